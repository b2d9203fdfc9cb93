use super::*;
use crate::conntrack::{Connection, Limits, Owner, Sides};
use crate::testing::{ip, nat_pool};
use weir_packet::key::NO_VLAN;

fn key(vni: u32, source: (&str, u16), destination: (&str, u16)) -> FlowKey {
    FlowKey {
        source: ip(source.0).into(),
        destination: ip(destination.0).into(),
        zone: vni,
        source_port: source.1,
        destination_port: destination.1,
        vlan: NO_VLAN,
        protocol: TCP,
        flags: 0,
    }
}

fn open(pool: &NatPool, connections: &mut Connections, key: FlowKey) -> Option<Binding> {
    let binding = pool.find(&key, connections)?;
    let owner = Owner::Address(key.zone, key.source.into());
    let mut connection = Connection::new(key, 1, Sides { egress: None, ingress: None }, 0, owner);
    connection.binding = Some(binding);
    connections.open(0, connection)?;
    Some(binding)
}

#[test]
fn the_source_port_is_kept_when_it_is_free() {
    let mut connections = Connections::new(Limits::default());
    let first = open(&nat_pool(), &mut connections, key(1, ("10.0.0.5", 4000), ("8.8.8.8", 53))).unwrap();
    assert_eq!(first.external, (ip("198.51.100.1"), 4000));
    let other = open(&nat_pool(), &mut connections, key(2, ("10.0.0.5", 4000), ("8.8.8.8", 53))).unwrap();
    assert_ne!(other.external.1, 4000);
    let elsewhere = open(&nat_pool(), &mut connections, key(2, ("10.0.0.5", 4000), ("8.8.4.4", 53))).unwrap();
    assert_eq!(elsewhere.external.1, 4000, "a port is taken only towards one destination");
}

#[test]
fn every_port_is_used_before_the_pool_is_exhausted() {
    let pool = NatPool { ports: 2000..=2009, ..nat_pool() };
    let mut connections = Connections::new(Limits::default());
    let mut used = std::collections::BTreeSet::new();
    for port in 1..=10 {
        let binding = open(&pool, &mut connections, key(1, ("10.0.0.5", port), ("8.8.8.8", 53))).unwrap();
        assert!(pool.ports.contains(&binding.external.1));
        assert!(used.insert(binding.external.1), "{binding:?} twice");
    }
    assert_eq!(pool.find(&key(1, ("10.0.0.5", 11), ("8.8.8.8", 53)), &connections), None);
    assert!(pool.find(&key(1, ("10.0.0.5", 11), ("8.8.4.4", 53)), &connections).is_some());
}

#[test]
fn an_endpoint_keeps_to_one_address_of_the_pool() {
    let pool = NatPool { v4: (1..=9).map(|n| Ipv4Addr::new(198, 51, 100, n)).collect(), ..nat_pool() };
    let connections = Connections::new(Limits::default());
    let address = |source: &str, port, destination: &str| {
        pool.find(&key(1, (source, port), (destination, 80)), &connections).unwrap().external.0
    };
    let one = address("10.0.0.5", 1, "8.8.8.8");
    assert!((2..50).all(|port| address("10.0.0.5", port, "8.8.4.4") == one));
    let spread: std::collections::BTreeSet<IpAddr> =
        (1..=100).map(|n| address(&format!("10.0.0.{n}"), 1, "8.8.8.8")).collect();
    assert!(spread.len() > 3, "100 endpoints use only {spread:?}");
}

#[test]
fn a_pool_without_the_family_has_nothing() {
    let pool = NatPool { v6: Vec::new(), ..nat_pool() };
    let connections = Connections::new(Limits::default());
    assert_eq!(pool.find(&key(1, ("fd00::5", 1), ("2001:db8::9", 80)), &connections), None);
    assert!(nat_pool().find(&key(1, ("fd00::5", 1), ("2001:db8::9", 80)), &connections).is_some());
    assert!(pool.has(ip("198.51.100.1")) && !pool.has(ip("2001:db8::1")));
}

#[test]
fn only_what_has_a_port_is_translated() {
    let tcp = key(1, ("10.0.0.5", 1), ("8.8.8.8", 80));
    assert!(is_translatable(&tcp));
    assert!(is_translatable(&FlowKey { protocol: 1, destination_port: 0x0800, ..tcp }));
    assert!(!is_translatable(&FlowKey { protocol: 1, destination_port: 0x0d00, ..tcp }));
    assert!(!is_translatable(&FlowKey { protocol: 47, ..tcp }));
    assert!(!is_translatable(&FlowKey { flags: weir_packet::key::FLAG_FRAGMENT, ..tcp }));
    let reply = inbound_key(&FlowKey { protocol: 1, destination_port: 0x0800, ..tcp }, ip("198.51.100.1"), 7);
    assert_eq!((reply.source_port, reply.destination_port, reply.zone), (7, 0, 0));
}
