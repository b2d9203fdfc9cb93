//! What may pass, from the first packet on and not a packet longer than allowed.

use crate::echo::{Blast, Counting, Echo, connects};
use crate::extra::{Extra, endpoint, ip, network, pair};
use crate::lab::lab;
use crate::namespaces::{BOUND, wait};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Two ports, one of which the sender's own firewall denies.
const RULES: &str = "---
kind: firewall-rule
network: gate
name: one-port
direction: egress
action: allow
protocol: udp
ports: [\"7001\"]
---
kind: firewall-rule
network: gate
name: not-the-other
direction: egress
priority: 10
action: deny
protocol: udp
ports: [\"7002\"]
";

#[test]
fn the_first_packet_of_a_new_port_is_policed() {
    let Some(lab) = lab("first_packet") else { return };
    let extra = Extra::begin();
    let (sender, receiver) = (extra.netns("sender"), extra.netns("receiver"));
    let base = network("gate", "egress: deny", "v4: 10.8.0.0/24");
    lab.apply(&(base.clone() + &endpoint("gate", "receiver", "h2", &["10.8.0.12"], &receiver)));
    crate::extra::configure(&receiver, "10.8.0.12/24", "10.8.0.1");
    let (mut open, mut denied) = (Counting::begin(&receiver, 7001), Counting::begin(&receiver, 7002));
    let target = |port| SocketAddr::new(ip("10.8.0.12"), port);

    // It sends before its device exists, and goes on while rules and port come in one change.
    let blast = Blast::begin(&sender, vec![target(7002), target(7001)]);
    let configuring = std::thread::spawn({
        let sender = sender.clone();
        move || {
            wait("the device of the sender", || sender.address("eth0", "10.8.0.11/24").is_ok());
            sender.up("eth0").unwrap();
        }
    });
    lab.apply(&(base + RULES + &endpoint("gate", "sender", "h1", &["10.8.0.11"], &sender)));
    configuring.join().unwrap();
    wait("packets to the allowed port", || open.count() > 100);
    drop(blast);
    assert_eq!(denied.count(), 0, "not one packet to the denied port, also not the first");
    let name = "drops{reason=\"rule\",network=\"gate\",rule=\"not-the-other\"}";
    let counted = lab.counters("h1").get(name).copied().unwrap_or_default();
    assert!(counted > 0, "the rule counted what it dropped: {:?}", lab.counters("h1"));
}

/// How often a rule is revoked and given back, since what could go wrong is a race with packets under way.
const REVOCATIONS: usize = 10;

#[test]
fn a_revoked_rule_cuts_an_established_connection() {
    let Some(lab) = lab("revoked_rule") else { return };
    let (app, db, address) = (lab.netns("red-app"), lab.netns("red-db"), lab.v4("red-db"));
    lab.kill("nginx-red-db");
    let (mut cuts_ms, mut commands_ms) = (Vec::new(), Vec::new());
    for _ in 0..REVOCATIONS {
        let echo = Echo::open(&app, &db, address, 5432);
        let begin = Instant::now();
        lab.ok(&["delete", "firewall-rule", "red/database", "--yes", "--wait-s", "30"]);
        commands_ms.push(begin.elapsed().as_secs_f64() * 1e3);
        let last = echo.wait_cut(Duration::from_secs(1));
        cuts_ms.push(last.saturating_duration_since(begin).as_secs_f64() * 1e3);
        assert!(!connects(&app, address, 5432, Duration::from_millis(500)), "no new connection either");
        drop(echo);
        lab.restore();
    }
    cuts_ms.sort_by(f64::total_cmp);
    commands_ms.sort_by(f64::total_cmp);
    println!(
        "MEASURED revoked rule, {REVOCATIONS} times: last data {:.1} ms after the start of the command (median), {:.1} ms \
         at most; the command took {:.1} ms (median)",
        cuts_ms[REVOCATIONS / 2],
        cuts_ms[REVOCATIONS - 1],
        commands_ms[REVOCATIONS / 2]
    );
    assert!(!connects(&db, lab.v4("red-app"), 80, Duration::from_secs(1)), "never in reverse");
    lab.start("nginx-red-db");
    wait("the database again", || connects(&app, address, 5432, Duration::from_secs(1)));
}

#[test]
fn a_port_that_shall_be_down_is_down_and_comes_back() {
    let Some(lab) = lab("port_state") else { return };
    let extra = Extra::begin();
    let ends = pair(&lab, &extra, "gate", "");
    let text = |state: &str| endpoint("gate", "b", "h2", &["10.7.0.12", "fd00:7::12"], &ends.b) + state;
    assert!(crate::echo::ping_all(&ends.a, ip("10.7.0.12")));
    lab.apply(&text("state: down\n"));
    wait("no carrier", || !ends.b.ip(&["-o", "link", "show", "eth0"]).unwrap().contains("LOWER_UP"));
    assert!(crate::echo::ping_none(&ends.a, ip("10.7.0.12")));
    lab.apply(&text("state: up\n"));
    crate::extra::wait_carrier(&ends.b);
    wait("answers again", || crate::echo::ping_all(&ends.a, ip("10.7.0.12")));
}

#[test]
fn tags_decide_and_changes_of_members_reach_everybody() {
    let Some(lab) = lab("tags") else { return };
    let extra = Extra::begin();
    let ends = pair(&lab, &extra, "gate", "");
    let rule = "---\nkind: firewall-rule\nnetwork: gate\nname: friends\ndirection: ingress\naction: deny\n\
                protocol: tcp\nports: [\"9000\"]\npeers: [tag: stranger]\n";
    let a = |tags: &str| endpoint("gate", "a", "h1", &["10.7.0.11", "fd00:7::11"], &ends.a) + tags;
    let _listener = crate::echo::listen(&ends.b, 9000);
    assert!(connects(&ends.a, ip("10.7.0.12"), 9000, BOUND));
    lab.apply(&(rule.to_string() + &a("tags: [stranger]\n")));
    assert!(!connects(&ends.a, ip("10.7.0.12"), 9000, Duration::from_secs(1)), "a stranger now");
    assert!(!connects(&ends.a, ip("fd00:7::12"), 9000, Duration::from_secs(1)), "with IPv6 too");
    lab.apply(&a("tags: [friend]\n"));
    assert!(connects(&ends.a, ip("10.7.0.12"), 9000, BOUND));
}
