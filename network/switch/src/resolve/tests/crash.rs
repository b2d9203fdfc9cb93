//! A process that ends without a word, and its successor with the journals (rows A9, A30).

use super::*;
use crate::conntrack::ConnectionRecord;
use crate::flow::Ingress;
use weir_base::codec::{decode, encode};
use weir_model::resource::{Action, Protocol};

/// What a journal keeps.
fn through_a_journal(records: Vec<ConnectionRecord>) -> Vec<ConnectionRecord> {
    records.iter().map(|record| decode(&encode(record)).unwrap()).collect()
}

#[test]
fn an_established_connection_survives_and_is_judged_again() {
    let strict = |rules| policy_with(1, 2, Action::Deny, Action::Deny, rules);
    let web = || vec![allow_in("web", Protocol::TCP, Some(80))];
    let there = |flags| tcp((ip("10.0.0.9"), 4000), (ip("10.0.0.5"), 80), flags).build();
    let back = |flags| tcp((ip("10.0.0.5"), 80), (ip("10.0.0.9"), 4000), flags).from(mac(5)).build();
    let mut before = host(Vec::new());
    before.apply(&strict(web()));
    before.at_underlay(OTHER_HOST, 1, &there(SYN));
    before.at_port(1, "a", &back(SYN | ACK));
    let records = through_a_journal(before.mind.take_connection_changes());

    let mut after = host(Vec::new());
    after.apply(&strict(web()));
    assert_eq!(after.mind.restore_connections(5, records.clone()), 1);
    assert!(matches!(after.at_port(1, "a", &back(ACK)), Event::Sent { .. }), "the reply first");
    assert_eq!(after.mind.connection_status(5, 9)[0].rule, "passed{network=\"red\",rule=\"web\"}");

    let mut revoked = host(Vec::new());
    revoked.apply(&strict(Vec::new()));
    revoked.mind.restore_connections(5, records);
    assert_eq!(revoked.at_port(1, "a", &back(ACK)), default_deny("ingress"));

    let records = through_a_journal(revoked.mind.connection_snapshot());
    let mut still_revoked = host(Vec::new());
    still_revoked.apply(&policy(1, 2, Vec::new()));
    assert_eq!(still_revoked.mind.restore_connections(5, records), 1);
    assert_eq!(still_revoked.at_port(1, "a", &back(ACK)), default_deny("ingress"));
}

#[test]
fn translations_survive_with_their_ports() {
    let mut before = gateway();
    let out = |port| tcp((ip("10.0.0.5"), port), (ip("8.8.8.8"), 443), ACK).build();
    let mut externals = Vec::new();
    // Two with one source port towards one destination cannot both keep it.
    before.apply_all(&[network(2, network_entry("blue", true)), location(2, "10.0.0.5", 5, "192.0.2.22")]);
    for (vni, host) in [(1, HOST), (2, "192.0.2.22")] {
        let Event::External(frame) = before.at_underlay(host, vni, &out(4000)) else { panic!() };
        let parsed = weir_packet::parse(&frame).unwrap();
        externals.push((parsed.source.into(), parsed.source_port));
    }
    let records = through_a_journal(before.mind.take_connection_changes());
    let mut after = gateway();
    after.apply_all(&[network(2, network_entry("blue", true)), location(2, "10.0.0.5", 5, "192.0.2.22")]);
    assert_eq!(after.mind.restore_connections(5, records.clone()), 2);
    for (external, vni) in externals.iter().zip([1, 2]) {
        let reply = tcp((ip("8.8.8.8"), 443), *external, ACK).build();
        let event = after.take(&Ingress::External, &reply);
        assert!(matches!(event, Event::Sent { vni: of, .. } if of == vni), "{event:?}");
    }
    let Event::External(frame) = after.at_underlay(HOST, 1, &out(4000)) else { panic!() };
    assert_eq!(weir_packet::parse(&frame).unwrap().source_port, externals[0].1);
    assert!(after.mind.take_connection_changes().len() <= 2, "what the journal has is not told again");
    let snapshot = after.mind.connection_snapshot();
    assert_eq!(snapshot.len(), 3);

    let mut elsewhere = Switch::new(gateway_resolver(
        GATEWAY,
        crate::nat::NatPool { v4: vec!["198.51.100.9".parse().unwrap()], ..nat_pool() },
    ));
    elsewhere.apply(&network(1, network_entry("red", true)));
    assert_eq!(elsewhere.mind.restore_connections(5, records), 0, "not with addresses it no longer has");
}

#[test]
fn a_journal_that_was_reset_or_closed_brings_nothing_back() {
    let mut before = gateway();
    before.at_underlay(HOST, 1, &tcp((ip("10.0.0.5"), 1), (ip("8.8.8.8"), 443), SYN).build());
    let mut records = before.mind.take_connection_changes();
    records.push(ConnectionRecord::Reset);
    assert_eq!(gateway().mind.restore_connections(5, records.clone()), 0);
    before.apply(&network(1, network_entry("red", false)));
    records.pop();
    records.extend(before.mind.take_connection_changes());
    assert_eq!(gateway().mind.restore_connections(5, records), 0);
}
