//! Processes that die: traffic goes on, and what comes back finds its way by itself.

use crate::echo::{Echo, connects, ping_all};
use crate::extra::{Extra, configure, endpoint, ip};
use crate::lab::{Lab, lab};
use crate::namespaces::{BOUND, wait};
use std::time::Duration;

/// A connection of red from `app` on h2 to `db` on h3, which the rule `database` allows.
fn connection(lab: &Lab) -> Echo {
    // The rule lets in port 5432, and there nginx listens.
    lab.kill("nginx-red-db");
    Echo::open(&lab.netns("red-app"), &lab.netns("red-db"), lab.v4("red-db"), 5432)
}

/// One more endpoint of red, in a namespace of the scenario.
fn newcomer(extra: &Extra, name: &str, host: &str) -> (String, weir_lab::Netns) {
    let netns = extra.netns(name);
    (endpoint("red", name, host, &["10.1.0.200"], &netns), netns)
}

#[test]
fn without_a_controller_traffic_goes_on_and_its_return_reprograms_nothing() {
    let Some(lab) = lab("controller_crash") else { return };
    let extra = Extra::begin();
    let echo = connection(&lab);
    let (before, repeated) = (lab.programmed(), lab.repeated());
    lab.kill("controller");
    echo.goes_on();
    assert!(ping_all(&lab.netns("red-app"), lab.v4("red-web")));
    assert!(connects(&lab.netns("blue-app"), lab.v4("blue-web"), 80, BOUND), "new connections open too");

    let (text, netns) = newcomer(&extra, "late", "h1");
    let refused = lab.weir_with_input(&["apply", "-f", "-", "--yes"], &text);
    assert_eq!(refused.status.code(), Some(3), "the controller cannot be reached");
    assert!(netns.ip(&["link", "show", "dev", "eth0"]).is_err(), "a new endpoint waits");

    lab.start("controller");
    lab.wait_in_step();
    assert_eq!(lab.programmed(), before, "keys and versions of each switch");
    assert_eq!(lab.repeated(), repeated, "what was in force did not come again");
    lab.apply(&text);
    configure(&netns, "10.1.0.200/24", "10.1.0.1");
    assert!(ping_all(&lab.netns("red-app"), ip("10.1.0.200")), "it comes when the controller is back");
    echo.goes_on();
    echo.close();
    lab.start("nginx-red-db");
}

#[test]
fn without_an_agent_traffic_goes_on_and_the_next_one_serves_new_endpoints() {
    let Some(lab) = lab("agent_crash") else { return };
    let extra = Extra::begin();
    let echo = connection(&lab);
    for host in ["h2", "h3"] {
        lab.crash(host, "agent");
        echo.goes_on();
    }
    lab.wait_in_step();
    let (text, netns) = newcomer(&extra, "late", "h3");
    lab.apply(&text);
    crate::extra::wait_carrier(&netns);
    let _client = extra.dhcpcd(&netns);
    assert_eq!(crate::extra::wait_address(&netns, false), ip("10.1.0.200"), "the new agent answers DHCP");
    assert!(ping_all(&lab.netns("red-app"), ip("10.1.0.200")));
    echo.goes_on();
    echo.close();
    lab.start("nginx-red-db");
}

#[test]
fn a_switch_restarts_from_its_checkpoint_without_a_controller_and_connections_survive() {
    let Some(lab) = lab("switch_crash") else { return };
    let echo = connection(&lab);
    let before = lab.programmed();
    lab.kill("controller");
    for host in ["h2", "h3"] {
        lab.crash(host, "switch");
        echo.goes_on();
    }
    // A guest sees its link go and come, so its DHCP client asks anew; the agents answer, also without a controller.
    for (tenant, what) in [("red", "h1 never stopped, h2 is back"), ("blue", "through both that are back")] {
        let (app, web) = (lab.netns(&format!("{tenant}-app")), ip("10.1.0.10"));
        wait(what, || connects(&app, web, 80, Duration::from_secs(5)));
    }
    lab.start("controller");
    lab.wait_in_step();
    echo.goes_on();
    assert_eq!(lab.programmed(), before, "keys and versions of each switch");
    for host in ["h2", "h3"] {
        assert_eq!(lab.repeated()[host], 0, "what {host} found in its checkpoint did not come again");
    }
    assert!(echo.close() > 0);
    lab.start("nginx-red-db");
}

#[test]
fn a_switch_that_hangs_is_replaced_and_traffic_returns() {
    let Some(lab) = lab("switch_hangs") else { return };
    let echo = connection(&lab);
    let before = lab.programmed();
    lab.hang("h2", "switch");
    echo.goes_on();
    lab.wait_in_step();
    assert_eq!(lab.programmed(), before, "keys and versions of each switch");
    assert!(echo.close() > 0);
    lab.start("nginx-red-db");
}

#[test]
fn a_gateway_restarts_and_translated_connections_survive() {
    let Some(lab) = lab("gateway_crash") else { return };
    let (app, out) = (lab.netns("red-app"), lab.netns("out"));
    let echo = Echo::open(&app, &out, ip("192.0.2.2"), 7000);
    lab.crash("g1", "switch");
    echo.goes_on();
    assert!(connects(&lab.netns("blue-app"), ip("192.0.2.2"), 80, BOUND));
    echo.close();
}
