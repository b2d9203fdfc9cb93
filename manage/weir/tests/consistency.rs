//! Consistency of a whole lab: changes come into force in each mode, and what is away holds up what it must, and no more. With `linear`
//! one host that is away holds everything behind it, is named, and lets go when it is forgotten.

use crate::extra::network;
use crate::lab::{Lab, lab, text};
use crate::namespaces::wait;

/// The host that goes away.
const AWAY: &str = "h3";
/// A host that stays.
const HERE: &str = "h1";

/// Starts the controller anew with a consistency.
fn restart(lab: &Lab, consistency: &str) {
    lab.kill("controller");
    std::fs::write(lab.folder().join("consistency"), consistency).unwrap();
    lab.start("controller");
    wait("every switch connected", || {
        let switches = lab.switches();
        !switches.is_empty() && switches.iter().all(|one| one.connected)
    });
    lab.wait_in_step();
}

/// An endpoint of a network on a host, which needs no device that traffic goes by. Its name is that of its device, and so its own on its host.
fn endpoint(network: &str, name: &str, host: &str) -> String {
    format!("---\nkind: endpoint\nnetwork: {network}\nname: {name}\nsubnet: main\nhost: {host}\n")
}

/// Asks for something that need not be in force soon.
fn ask(lab: &Lab, yaml: &str) {
    let output = lab.weir_with_input(&["apply", "-f", "-", "--yes", "--wait-s", "1"], yaml);
    let said = text(&output.stderr);
    assert!(said.is_empty() || output.status.code() != Some(2), "{said}");
}

/// Cuts the link of the host that goes away: killing its supervisor would leave its agent there.
fn leaves(lab: &Lab) {
    let host = lab.netns(AWAY);
    host.sysctl("net.ipv6.conf.eth0.keep_addr_on_down", "1").unwrap();
    host.ip(&["link", "set", "dev", "eth0", "down"]).unwrap();
    wait("the host to be missed", || lab.switches().iter().any(|one| one.name == AWAY && !one.connected));
}

fn behind(lab: &Lab, host: &str) -> usize {
    let switches = lab.switches();
    let one = switches.iter().find(|one| one.name == host).unwrap();
    one.desired_entries - one.acked_entries
}

#[test]
fn changes_come_into_force_in_each_mode_and_with_linear_who_is_away_holds_the_line_until_it_is_forgotten() {
    let Some(lab) = lab("consistency") else { return };
    for (number, consistency) in ["none", "dependent", "linear"].into_iter().enumerate() {
        restart(&lab, consistency);
        let name = format!("mode-{consistency}");
        let ranges = format!("v4: 10.9{number}.0.0/24");
        // The command says that all of it is in force.
        lab.apply(&format!(
            "{}{}{}",
            network(&name, "", &ranges),
            endpoint(&name, &format!("{consistency}-one"), HERE),
            endpoint(&name, &format!("{consistency}-two"), AWAY)
        ));
        assert!(lab.client().status().unwrap().line.is_none(), "{consistency}: nothing waits");
    }

    // Without linear, a host that is away holds up only what waits for it.
    restart(&lab, "dependent");
    leaves(&lab);
    ask(&lab, &(network("away", "", "v4: 10.95.0.0/24") + &endpoint("away", "there", AWAY)));
    ask(&lab, &(network("near", "", "v4: 10.96.0.0/24") + &endpoint("near", "here", HERE)));
    wait("the host that is here to have what it shall have", || behind(&lab, HERE) == 0);
    assert!(behind(&lab, AWAY) > 0 && lab.client().status().unwrap().line.is_none());

    // With it, all that is decided later waits.
    lab.netns(AWAY).ip(&["link", "set", "dev", "eth0", "up"]).unwrap();
    restart(&lab, "linear");
    leaves(&lab);
    ask(&lab, &endpoint("away", "again", AWAY));
    ask(&lab, &endpoint("near", "again", HERE));
    wait("the line to be held", || lab.client().status().unwrap().line.is_some());
    let line = lab.client().status().unwrap().line.unwrap();
    assert_eq!((line.actuator.as_str(), line.length > 1), (AWAY, true), "{line:?}");
    assert!(behind(&lab, HERE) > 0, "what is decided later waits");
    let said = lab.ok(&["status"]);
    assert!(
        said.contains(&format!("{AWAY} holds the line")) && said.contains(&format!("weir forget {AWAY}")),
        "{said}"
    );
    lab.ok(&["forget", AWAY, "--yes"]);
    wait("the line to be let go", || lab.client().status().unwrap().line.is_none());
    wait("the host that is here to have what it shall have", || behind(&lab, HERE) == 0);
    assert!(!lab.ok(&["status"]).contains("holds the line"));
    std::fs::remove_file(lab.folder().join("consistency")).unwrap();
    lab.spent();
}
