mod balanced;
mod changes;
mod connected;
mod crash;
mod firewall;
mod gateway;
mod halves;
mod learned;
mod odd;
mod port;
mod properties;
mod underlay;

use crate::testing::*;

pub(super) const GATEWAY: &str = "192.0.2.100";
pub(super) const HOST: &str = "192.0.2.1";
pub(super) const OTHER_HOST: &str = "192.0.2.2";

/// A host with the ports `a` (10.0.0.5) and `b` (10.0.0.6) in the subnet `front`, `c` (10.0.1.7) in `back`,
/// and the far endpoint 10.0.0.9 at another host. Incoming is denied but for what `rules` allow.
pub(super) fn host(rules: Vec<weir_model::entry::Rule>) -> Switch {
    let mut switch = Switch::new(resolver(HOST));
    switch.apply_all(&[
        network(1, network_entry("red", true)),
        policy(1, 1, rules),
        port(1, "a", 5, &["10.0.0.5", "fd00::5"], &["app"]),
        port(1, "b", 6, &["10.0.0.6", "fd00::6"], &["web"]),
        port(1, "c", 7, &["10.0.1.7", "fd00:0:0:1::7"], &[]),
        location(1, "10.0.0.9", 9, OTHER_HOST),
        location(1, "fd00::9", 9, OTHER_HOST),
        gateways(&[GATEWAY]),
    ]);
    switch
}

/// A gateway that knows 10.0.0.5 at one host and 10.0.0.9 at another.
pub(super) fn gateway() -> Switch {
    let mut switch = Switch::new(gateway_resolver(GATEWAY, nat_pool()));
    switch.apply_all(&[
        network(1, network_entry("red", true)),
        location(1, "10.0.0.5", 5, HOST),
        location(1, "fd00::5", 5, HOST),
        location(1, "10.0.0.9", 9, OTHER_HOST),
        gateways(&[GATEWAY]),
    ]);
    switch
}

pub(super) fn dropped(reason: &str) -> Event {
    Event::Dropped(format!("drops{{reason=\"{reason}\"}}"))
}

pub(super) fn dropped_by(rule: &str) -> Event {
    Event::Dropped(format!("drops{{reason=\"rule\",network=\"red\",rule=\"{rule}\"}}"))
}

pub(super) fn default_deny(direction: &str) -> Event {
    Event::Dropped(format!("drops{{reason=\"default-deny\",network=\"red\",direction=\"{direction}\"}}"))
}

pub(super) fn ttl_of(frame: &[u8]) -> u8 {
    weir_packet::parse(frame).unwrap().ttl
}

pub(super) fn check(frame: &[u8]) {
    let parsed = weir_packet::parse(frame).unwrap();
    weir_packet::checksum::verify(frame, &parsed).unwrap();
}
