mod v4;
mod v6;

use super::*;
use crate::frame::{UdpFrame, parse_udp};
use crate::testing::{MAC, context};
use std::net::IpAddr;
use weir_model::MacAddr;

/// A client's frame to a server.
fn client_frame(source: &str, destination: &str, ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
    UdpFrame {
        source_mac: MAC,
        destination_mac: MacAddr::BROADCAST,
        source: source.parse::<IpAddr>().unwrap(),
        destination: destination.parse::<IpAddr>().unwrap(),
        source_port: ports.0,
        destination_port: ports.1,
        payload,
    }
    .build()
    .unwrap()
}

#[test]
fn search_domains_begin_with_the_network_and_skip_what_is_no_name() {
    let mut port = context();
    let mut entry = (*port.port).clone();
    entry.dhcp.search =
        vec!["corp.example".into(), "no spaces..".into(), "lab.example.".into(), String::new()];
    port.port = std::sync::Arc::new(entry);
    let names: Vec<String> = search_domains(&port).iter().map(ToString::to_string).collect();
    assert_eq!(names, ["red.weir.internal.", "corp.example.", "lab.example."]);
}

#[test]
fn renewal_times_are_ordered_for_every_lease() {
    for lease_s in [0, 1, 59, 60, 3600, u32::MAX] {
        let (t1, t2) = renewal_times_s(lease_s);
        assert!(t1 <= t2 && t2 <= lease_s);
    }
}
