use super::*;
use crate::flow::{Effects, Invalidate, PortEffect};
use crate::testing::*;
use proptest::prelude::*;
use weir_model::resource::PortState;
use weir_model::update::Refusal;
use weir_model::{Change, Entry, Update};

fn host() -> Tables {
    Tables::new(Role::Host)
}

fn apply(tables: &mut Tables, update: &Update) -> Effects {
    tables.apply(update).unwrap()
}

fn refused(tables: &mut Tables, update: &Update) -> String {
    let before = format!("{tables:?}");
    let refusal = tables.apply(update).unwrap_err();
    assert_eq!(format!("{tables:?}"), before, "a refused update changed something");
    refusal.to_string()
}

fn ups(effects: &Effects) -> Vec<bool> {
    let up = |effect: &PortEffect| match effect {
        PortEffect::Set { up, .. } => Some(*up),
        PortEffect::Remove { .. } => None,
    };
    effects.ports.iter().filter_map(up).collect()
}

#[test]
fn a_port_is_up_only_with_its_network_and_its_policy_in_force() {
    let mut tables = host();
    let effects = apply(&mut tables, &port(1, "a", 5, &["10.0.0.5"], &[]));
    assert_eq!(ups(&effects), [false]);
    assert!(tables.port(0).unwrap().reason.contains("network"));
    assert_eq!(ups(&apply(&mut tables, &network(1, network_entry("red", false)))), [false]);
    assert!(tables.port(0).unwrap().reason.contains("policy"), "{}", tables.port(0).unwrap().reason);
    assert_eq!(ups(&apply(&mut tables, &policy(1, 1, Vec::new()))), [true]);
    assert_eq!(ups(&apply(&mut tables, &policy(1, 2, Vec::new()))), [] as [bool; 0]);

    let Change::Put(Entry::Port(mut entry)) = port(1, "a", 5, &["10.0.0.5"], &[]).change else { panic!() };
    entry.policy_min = Version(3);
    let update = put(2, port_key(1, "a"), Entry::Port(entry.clone()));
    assert_eq!(ups(&apply(&mut tables, &update)), [false]);
    assert_eq!(ups(&apply(&mut tables, &policy(1, 3, Vec::new()))), [true]);
    entry.state = PortState::Down;
    assert_eq!(ups(&apply(&mut tables, &put(3, port_key(1, "a"), Entry::Port(entry)))), [false]);
}

#[test]
fn the_ports_of_a_network_learn_its_mtu_and_its_end() {
    let mut tables = host();
    apply(&mut tables, &network(1, network_entry("red", false)));
    apply(&mut tables, &policy(1, 1, Vec::new()));
    apply(&mut tables, &port(1, "a", 5, &["10.0.0.5"], &[]));
    let jumbo = weir_model::entry::NetworkEntry { mtu: 9000, ..network_entry("red", false) };
    let effects = apply(&mut tables, &network(1, jumbo.clone()));
    assert!(matches!(effects.ports[..], [PortEffect::Set { mtu: 9000, up: true, vni: 1, .. }]));
    assert_eq!(apply(&mut tables, &network(1, jumbo)), Effects::default(), "nothing new");
    let effects = apply(&mut tables, &delete(3, Key::Network { vni: Vni(1) }));
    assert_eq!(ups(&effects), [false]);
}

#[test]
fn an_update_invalidates_what_it_touches_and_no_more() {
    let mut tables = host();
    apply(&mut tables, &network(1, network_entry("red", false)));
    let tagged = from_tag(allow_in("web", weir_model::resource::Protocol::Any, None), "web");
    assert_eq!(apply(&mut tables, &policy(1, 1, vec![tagged])).invalidate, [Invalidate::Network(1)]);
    let address = |text: &str| Invalidate::Address(1, ip(text));
    let effects = apply(&mut tables, &port(1, "a", 5, &["10.0.0.5"], &[]));
    assert_eq!(effects.invalidate, [address("10.0.0.5")]);
    let effects = apply(&mut tables, &port(1, "a", 5, &["10.0.0.5", "10.0.0.6"], &[]));
    let own = ["10.0.0.5", "10.0.0.6"].map(address);
    assert_eq!(effects.invalidate, [&[Invalidate::Port(0)][..], &own].concat());
    assert_eq!(apply(&mut tables, &port(1, "a", 5, &["10.0.0.5", "10.0.0.6"], &[])), Effects::default());

    assert_eq!(
        apply(&mut tables, &location(1, "10.0.0.9", 9, "192.0.2.9")).invalidate,
        [address("10.0.0.9")]
    );
    assert_eq!(apply(&mut tables, &location(1, "10.0.0.9", 9, "192.0.2.9")), Effects::default());
    assert_eq!(apply(&mut tables, &members(1, "db", 0, &["10.0.0.9"])), Effects::default(), "in no rule");
    let effects = apply(&mut tables, &members(1, "web", 0, &["10.0.0.9", "10.0.0.5"]));
    assert_eq!(effects.invalidate, [address("10.0.0.5"), address("10.0.0.9")]);
    let effects = apply(&mut tables, &members(1, "web", 0, &["10.0.0.9", "10.0.0.7"]));
    assert_eq!(effects.invalidate, [address("10.0.0.5"), address("10.0.0.7")]);

    let hop = RouteHop::Address(ip("10.0.0.9"));
    let of_route = |prefix: &str| Invalidate::Route(1, prefix.parse().unwrap());
    let effects = apply(&mut tables, &route(1, "r", "172.16.0.0/16", hop.clone()));
    assert_eq!(effects.invalidate, [of_route("172.16.0.0/16")]);
    assert_eq!(apply(&mut tables, &route(1, "r", "172.16.0.0/16", hop)), Effects::default());
    let effects = apply(&mut tables, &route(1, "one", "172.16.0.1/32", RouteHop::Drop));
    assert_eq!(effects.invalidate, [of_route("172.16.0.1/32")]);
    let effects = apply(&mut tables, &location(1, "10.0.0.9", 9, "192.0.2.8"));
    let nobody_is_there = Invalidate::Sender(Some(1), ip("192.0.2.9"));
    assert_eq!(effects.invalidate, [address("10.0.0.9"), nobody_is_there]);

    let changed = |come: &[&str], gone: &[&str]| Invalidate::Gateways {
        come: come.iter().map(|gateway| ip(gateway)).collect(),
        gone: gone.iter().map(|gateway| ip(gateway)).collect(),
    };
    assert_eq!(apply(&mut tables, &gateways(&["192.0.2.100"])).invalidate, [changed(&["192.0.2.100"], &[])]);
    assert_eq!(apply(&mut tables, &gateways(&["192.0.2.100"])), Effects::default());
    let effects = apply(&mut tables, &gateways(&["192.0.2.101"]));
    let gone = Invalidate::Sender(None, ip("192.0.2.100"));
    assert_eq!(effects.invalidate, [gone, changed(&["192.0.2.101"], &["192.0.2.100"])]);
    let effects = apply(&mut tables, &delete(2, port_key(1, "a")));
    assert_eq!(effects.invalidate[0], Invalidate::Port(0));
    assert_eq!(effects.ports, [PortEffect::Remove { port: 0 }]);
}

#[test]
fn wrong_entries_are_refused_in_words_and_change_nothing() {
    let mut tables = host();
    apply(&mut tables, &network(1, network_entry("red", false)));
    apply(&mut tables, &port(1, "a", 5, &["10.0.0.5"], &[]));
    let same_address = port(1, "b", 6, &["10.0.0.5"], &[]);
    assert!(refused(&mut tables, &same_address).contains("10.0.0.5, which a has"));
    let same_device = put(1, port_key(1, "b"), Entry::Port(port_entry(6, "a-1", &["10.0.0.6"], &[])));
    assert!(refused(&mut tables, &same_device).contains("device a-1, which a has"));
    let multicast = port(1, "b", 6, &["224.0.0.5"], &[]);
    assert!(refused(&mut tables, &multicast).contains("224.0.0.5"));
    let Entry::Port(mut entry) = Entry::Port(port_entry(7, "b", &[], &[])) else { panic!() };
    entry.mac = weir_model::MacAddr::BROADCAST;
    assert!(refused(&mut tables, &put(1, port_key(1, "b"), Entry::Port(entry.clone()))).contains("ff:ff"));
    entry.mac = mac(7);
    entry.device = "a-very-long-device-name".to_string();
    assert!(refused(&mut tables, &put(1, port_key(1, "b"), Entry::Port(entry))).contains("a-very-long"));
    let tiny = weir_model::entry::NetworkEntry { mtu: 500, ..network_entry("red", false) };
    assert!(refused(&mut tables, &network(1, tiny)).contains("MTU 500"));
    let mut outside = network_entry("red", false);
    outside.subnets[0].router_v4 = Some("10.9.9.9".parse().unwrap());
    assert!(refused(&mut tables, &network(1, outside)).contains("router of subnet front"));
    let zero = network(0, network_entry("red", false));
    assert!(refused(&mut tables, &zero).contains("between 1 and"));
    let host_bits = route(1, "r", "10.0.0.1/8", RouteHop::Drop);
    assert!(refused(&mut tables, &host_bits).contains("10.0.0.0/8"));
    let other_family = route(1, "r", "10.0.0.0/8", RouteHop::Address(ip("fd00::1")));
    assert!(refused(&mut tables, &other_family).contains("fd00::1"));
    assert!(refused(&mut tables, &gateways(&["0.0.0.0"])).contains("gateway-0"));
    let misfit = put(1, Key::Gateways, Entry::Members(Vec::new()));
    assert_eq!(tables.apply(&misfit).unwrap_err(), Refusal::Misfit);
    let unsorted = put(
        1,
        Key::Members { vni: Vni(1), tag: label("t"), bucket: 0 },
        Entry::Members(vec![ip("10.0.0.9"), ip("10.0.0.8")]),
    );
    assert!(refused(&mut tables, &unsorted).contains("ascending"));
    let mut at_gateway = Tables::new(Role::Gateway);
    assert!(refused(&mut at_gateway, &port(1, "a", 5, &[], &[])).contains("gateway"));
}

#[test]
fn a_newer_port_takes_what_an_older_one_has_in_whatever_order_they_come() {
    let put_port = |version, name: &str, device: &str, addresses: &[&str]| {
        put(version, port_key(1, name), Entry::Port(port_entry(5, device, addresses, &[])))
    };
    let old = put_port(2, "a", "d", &["10.0.0.5", "10.0.0.6"]);
    let other = put_port(2, "c", "e", &["10.0.0.7"]);
    let new = put_port(3, "b", "e", &["10.0.0.5"]);
    let mut tables = host();
    apply(&mut tables, &network(1, network_entry("red", false)));
    apply(&mut tables, &old);
    apply(&mut tables, &other);
    let effects = apply(&mut tables, &new);
    let removed = effects.ports.iter().filter(|effect| matches!(effect, PortEffect::Remove { .. })).count();
    assert_eq!(removed, 2, "one has the address, one the device: {effects:?}");
    assert!(matches!(effects.ports.last(), Some(PortEffect::Set { .. })), "{effects:?}");
    let holds = |tables: &Tables, address: &str| {
        let network = tables.network(1).unwrap();
        network
            .local
            .get(&ip(address))
            .and_then(|index| tables.port(*index))
            .map(|port| port.name.to_string())
    };
    assert_eq!(holds(&tables, "10.0.0.5").as_deref(), Some("b"));
    assert_eq!((holds(&tables, "10.0.0.6"), holds(&tables, "10.0.0.7")), (None, None));
    // What is late, and what goes, touches nothing of the newer one.
    assert!(refused(&mut tables, &old).contains("10.0.0.5, which b has"));
    apply(&mut tables, &delete(4, port_key(1, "a")));
    assert_eq!(holds(&tables, "10.0.0.5").as_deref(), Some("b"));
    // The other gives way, and is itself again.
    apply(&mut tables, &put_port(4, "c", "f", &["10.0.0.7"]));
    assert_eq!(holds(&tables, "10.0.0.7").as_deref(), Some("c"));
    // After a restart they come in the order of their names: the newer one has it again.
    for order in [[&old, &new], [&new, &old]] {
        let mut tables = host();
        for update in order {
            let _refused = tables.apply(update);
        }
        assert_eq!(holds(&tables, "10.0.0.5").as_deref(), Some("b"));
    }
}

#[test]
fn ports_have_a_limit_and_their_numbers_come_again() {
    let mut tables = host();
    apply(&mut tables, &network(1, network_entry("red", false)));
    for number in 0..PORTS_MAX {
        let entry = port_entry(1, &format!("d{number}"), &[], &[]);
        apply(&mut tables, &put(1, port_key(1, &format!("p{number}")), Entry::Port(entry)));
    }
    let one_more = put(1, port_key(1, "more"), Entry::Port(port_entry(1, "more", &[], &[])));
    assert_eq!(tables.apply(&one_more).unwrap_err(), Refusal::Full { limit: PORTS_MAX as u64 });
    apply(&mut tables, &delete(2, port_key(1, "p7")));
    apply(&mut tables, &one_more);
    assert_eq!(tables.port_named(1, &label("more")).unwrap().index, 7);
}

#[test]
fn what_is_deleted_leaves_nothing_behind() {
    let mut tables = host();
    let tagged = from_tag(allow_in("web", weir_model::resource::Protocol::Any, None), "web");
    let updates = [
        gateways(&["192.0.2.100"]),
        network(1, network_entry("red", false)),
        policy(1, 1, vec![tagged]),
        members(1, "web", 3, &["10.0.0.9"]),
        members(1, "db", 4, &["10.0.0.9"]),
        route(1, "r", "172.16.0.0/16", RouteHop::Address(ip("10.0.0.9"))),
        location(1, "10.0.0.9", 9, "192.0.2.9"),
        port(1, "a", 5, &["10.0.0.5"], &["web", "app"]),
    ];
    updates.iter().for_each(|update| drop(apply(&mut tables, update)));
    for update in &updates {
        apply(&mut tables, &delete(9, update.key.clone()));
        apply(&mut tables, &delete(9, update.key.clone()));
    }
    assert!(tables.networks.is_empty());
    assert!(tables.gateways.is_empty() && tables.port_by_name.is_empty());
    assert_eq!((tables.routes, tables.locations, tables.members), (0, 0, 0));
    assert_eq!(tables.ports().count(), 0);
}

#[test]
fn a_gateway_that_comes_or_goes_moves_only_its_own_share() {
    let all: Vec<GatewayEntry> = (1..=5)
        .map(|n| GatewayEntry { name: label(&format!("g{n}")), underlay: IpAddr::from([192, 0, 2, n]) })
        .collect();
    let fewer: Vec<GatewayEntry> = all.iter().filter(|g| g.name != label("g3")).cloned().collect();
    let mut shares = std::collections::BTreeMap::new();
    for last in 0..200_u8 {
        let (a, b) = (IpAddr::from([10, 0, 0, last]), ip("8.8.8.8"));
        let chosen = gateways::choose(&all, 1, a, b).unwrap();
        assert_eq!(gateways::choose(&all, 1, b, a).unwrap(), chosen, "both ways through one gateway");
        if chosen.name != label("g3") {
            assert_eq!(gateways::choose(&fewer, 1, a, b).unwrap(), chosen);
        }
        *shares.entry(chosen.name.clone()).or_insert(0) += 1;
    }
    assert_eq!(shares.len(), 5);
    assert!(shares.values().all(|share| *share > 15), "{shares:?}");
    assert_eq!(gateways::choose(&[], 1, ip("10.0.0.1"), ip("10.0.0.2")), None);
}

fn prefixes() -> impl Strategy<Value = Vec<(IpNet, bool)>> {
    let v4 = (any::<[u8; 2]>(), 0_u8..=32).prop_map(|(tail, length)| {
        IpNet::V4(ipnet::Ipv4Net::new([10, 0, tail[0] & 3, tail[1]].into(), length).unwrap().trunc())
    });
    let v6 = (any::<u8>(), 0_u8..=128).prop_map(|(last, length)| {
        IpNet::V6(ipnet::Ipv6Net::new(u128::from(last).into(), length).unwrap().trunc())
    });
    proptest::collection::vec((prop_oneof![v4, v6], prop::bool::weighted(0.8)), 0..60)
}

proptest! {
    #[test]
    fn the_longest_prefix_wins(changes in prefixes(), asked in any::<[u8; 2]>()) {
        let mut tables = host();
        let mut model: std::collections::BTreeMap<IpNet, String> = Default::default();
        for (number, (prefix, there)) in changes.iter().enumerate() {
            let name = format!("r{number}");
            if *there {
                apply(&mut tables, &route(1, &name, &prefix.to_string(), RouteHop::Drop));
                model.insert(*prefix, name);
            } else {
                apply(&mut tables, &delete(1, Key::Route { vni: Vni(1), prefix: *prefix }));
                model.remove(prefix);
            }
        }
        prop_assert_eq!(tables.routes, model.len());
        for address in [IpAddr::from([10, 0, asked[0] & 3, asked[1]]), IpAddr::V6(u128::from(asked[0]).into())] {
            let best = model.iter().filter(|(net, _)| net.contains(&address)).max_by_key(|(net, _)| net.prefix_len());
            let found = tables.network(1).and_then(|network| network.routes.find(address));
            prop_assert_eq!(
                found.map(|(net, route)| (net, route.name.to_string())),
                best.map(|(net, name)| (*net, name.clone()))
            );
        }
    }

    #[test]
    fn any_order_of_puts_leads_to_the_same_tables(order in Just((0..8_usize).collect::<Vec<_>>()).prop_shuffle()) {
        let updates = [
            gateways(&["192.0.2.100"]),
            network(1, network_entry("red", false)),
            policy(1, 1, vec![from_tag(allow_in("w", weir_model::resource::Protocol::Any, None), "web")]),
            members(1, "web", 3, &["10.0.0.9"]),
            route(1, "r", "172.16.0.0/16", RouteHop::Address(ip("10.0.0.9"))),
            location(1, "10.0.0.9", 9, "192.0.2.9"),
            port(1, "a", 5, &["10.0.0.5"], &["web"]),
            port(1, "b", 6, &["10.0.0.6"], &[]),
        ];
        let mut tables = host();
        for number in order {
            apply(&mut tables, &updates[number]);
        }
        prop_assert!(tables.ports().all(|port| port.up));
        let network = tables.network(1).unwrap();
        let web = network.tags.find(&label("web")).unwrap();
        prop_assert!(network.tags.has(web, ip("10.0.0.9")));
        prop_assert_eq!(tables.receiver(network, ip("10.0.0.5")), Some(tables.port_named(1, &label("a")).unwrap().index));
    }
}

use ipnet::IpNet;

/// Conversations are spread over the gateways that are not silent; one that is has its share back when it is heard again.
#[test]
fn a_silent_gateway_is_as_one_that_is_not_in_the_list() {
    use std::collections::BTreeSet;
    let mut tables = host();
    apply(&mut tables, &gateways(&["192.0.2.100", "192.0.2.101"]));
    let usable = |tables: &Tables| -> Vec<IpAddr> {
        tables.usable_gateways().iter().map(|gateway| gateway.underlay).collect()
    };
    let changed = |come: &[&str], gone: &[&str]| Invalidate::Gateways {
        come: come.iter().map(|gateway| ip(gateway)).collect(),
        gone: gone.iter().map(|gateway| ip(gateway)).collect(),
    };
    let (one, both) = (BTreeSet::from([ip("192.0.2.100")]), ["192.0.2.100", "192.0.2.101"].map(ip));
    assert_eq!(tables.set_silent(one.clone()), [changed(&[], &["192.0.2.100"])]);
    assert_eq!(usable(&tables), [ip("192.0.2.101")]);
    assert_eq!(tables.set_silent(one.clone()), [], "nothing new");
    // Packets from it are taken all the same, and it is a gateway in the list.
    assert_eq!(tables.gateways().len(), 2);
    assert_eq!(tables.set_silent(BTreeSet::from(both)), [changed(&["192.0.2.100"], &[])], "all are none");
    assert_eq!(usable(&tables), both);
    tables.set_silent(one);
    let effects = apply(&mut tables, &gateways(&["192.0.2.100"]));
    assert!(effects.invalidate.contains(&changed(&["192.0.2.100"], &["192.0.2.101"])), "{effects:?}");
    assert_eq!(tables.set_silent(BTreeSet::new()), []);
}
