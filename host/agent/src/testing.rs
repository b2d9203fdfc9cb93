//! Things that several test modules need.

use crate::mirror::PortContext;
use std::net::IpAddr;
use std::sync::Arc;
use weir_model::entry::{LocationEntry, NetworkEntry, PortEntry, SubnetEntry, Vni};
use weir_model::resource::{DhcpOptions, Encapsulation, PortState};
use weir_model::{Label, MacAddr, Version};

pub(crate) fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

pub(crate) const MAC: MacAddr = MacAddr([2, 0, 0x0a, 0, 0, 5]);
pub(crate) const VNI: Vni = Vni(7);

pub(crate) fn network(name: &str) -> NetworkEntry {
    NetworkEntry {
        name: label(name),
        mtu: 1400,
        encapsulation: Encapsulation::Geneve,
        external_access: false,
        subnets: vec![SubnetEntry {
            name: label("front"),
            v4: Some("10.0.0.0/24".parse().unwrap()),
            router_v4: Some("10.0.0.1".parse().unwrap()),
            v6: Some("fd00:a::/64".parse().unwrap()),
            router_v6: Some("fd00:a::1".parse().unwrap()),
        }],
        forwarding: weir_model::resource::Forwarding::Routed,
    }
}

pub(crate) fn port_entry(addresses: &[&str]) -> PortEntry {
    PortEntry {
        mac: MAC,
        addresses: addresses.iter().map(|a| a.parse::<IpAddr>().unwrap()).collect(),
        tags: vec![],
        state: PortState::Up,
        netns: None,
        device: "web0".to_string(),
        kind: weir_model::resource::AttachmentKind::Tap,
        queue_pairs: 1,
        subnet: label("front"),
        dhcp: DhcpOptions::default(),
        policy_min: Version::ZERO,
    }
}

pub(crate) fn location(endpoint: &str) -> LocationEntry {
    LocationEntry {
        endpoint: label(endpoint),
        mac: MacAddr([2, 0, 0, 0, 0, 9]),
        host: label("host-2"),
        underlay: "192.0.2.2".parse().unwrap(),
    }
}

pub(crate) fn context() -> PortContext {
    PortContext {
        vni: VNI,
        endpoint: label("web"),
        port: Arc::new(port_entry(&["10.0.0.5", "fd00:a::5"])),
        network: Arc::new(network("red")),
    }
}
