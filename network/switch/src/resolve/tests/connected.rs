//! Routes that contain the network's own subnets: the same answer wherever an endpoint is and whatever is in the tables.

use super::*;
use ipnet::IpNet;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::net::IpAddr;
use weir_model::entry::RouteHop;
use weir_model::{Key, entry::Vni};

/// Where a packet ends.
#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    /// At the endpoint with this last byte of its Ethernet address.
    At(u8),
    Outside,
    Nowhere,
}

/// Endpoints: the asker, one whose place differs, and one that routes lead to.
const ASKER: (&str, u8) = ("10.0.0.5", 5);
const OTHER: (&str, u8) = ("10.0.0.9", 9);
const ROUTER: (&str, u8) = ("10.0.1.7", 7);

fn hop(choice: u8) -> RouteHop {
    match choice % 3 {
        0 => RouteHop::Drop,
        1 => RouteHop::External,
        _ => RouteHop::Address(ip(ROUTER.0)),
    }
}

fn routes() -> impl Strategy<Value = Vec<(IpNet, u8)>> {
    let prefix = proptest::sample::select(vec![
        "0.0.0.0/0",
        "10.0.0.0/8",
        "10.0.0.0/16",
        "10.0.0.0/23",
        "10.0.0.0/24",
        "10.0.0.0/25",
        "10.0.0.8/30",
        "10.0.0.9/32",
        "10.0.0.77/32",
        "10.0.0.64/28",
        "192.168.0.0/16",
    ]);
    proptest::collection::vec((prefix.prop_map(|text| text.parse().unwrap()), any::<u8>()), 0..4)
}

/// The answer of one who knows everything: the endpoint, else the longest of routes and subnets, subnets first.
fn naive(routes: &[(IpNet, u8)], to: IpAddr) -> End {
    for (address, last) in [OTHER, ROUTER] {
        if to == ip(address) {
            return End::At(last);
        }
    }
    let subnets = ["10.0.0.0/24", "10.0.1.0/24"].map(|text| text.parse::<IpNet>().unwrap());
    let connected = subnets.iter().filter(|net| net.contains(&to)).map(|net| net.prefix_len()).max();
    // The one that was put last is in force, of two with one prefix.
    let mut best: Option<(IpNet, u8)> = None;
    for (prefix, choice) in routes {
        let longer = best.is_none_or(|(best, _)| prefix.prefix_len() >= best.prefix_len());
        if prefix.contains(&to) && longer {
            best = Some((*prefix, *choice));
        }
    }
    match best.filter(|(prefix, _)| connected.is_none_or(|bits| prefix.prefix_len() > bits)) {
        Some((_, choice)) => match hop(choice) {
            RouteHop::Drop => End::Nowhere,
            RouteHop::External => End::Outside,
            RouteHop::Address(_) => End::At(ROUTER.1),
        },
        None if connected.is_some() => End::Nowhere,
        None => End::Outside,
    }
}

/// A host with the asker, and perhaps the others, or their locations.
fn asker_s_host(routes: &[(IpNet, u8)], others_here: bool, known: bool) -> Switch {
    let mut switch = Switch::new(resolver(HOST));
    let open = weir_model::resource::Action::Allow;
    switch.apply_all(&[
        network(1, network_entry("red", true)),
        policy_with(1, 1, open, open, Vec::new()),
        port(1, "asker", ASKER.1, &[ASKER.0], &[]),
        gateways(&[GATEWAY]),
    ]);
    for (number, (address, last)) in [OTHER, ROUTER].into_iter().enumerate() {
        if others_here {
            switch.apply(&port(1, &format!("other{number}"), last, &[address], &[]));
        } else if known {
            switch.apply(&location(1, address, last, OTHER_HOST));
        }
    }
    put_routes(&mut switch, routes);
    switch
}

fn put_routes(switch: &mut Switch, routes: &[(IpNet, u8)]) {
    for (prefix, choice) in routes {
        let entry = weir_model::entry::RouteEntry {
            name: label("r"),
            version: weir_model::Version(1),
            next_hop: hop(*choice),
        };
        let key = Key::Route { vni: Vni(1), prefix: *prefix };
        switch.apply(&put(1, key, weir_model::Entry::Route(entry)));
    }
}

fn gateway_with(routes: &[(IpNet, u8)], others_at: &str) -> Switch {
    let mut switch = Switch::new(gateway_resolver(GATEWAY, nat_pool()));
    switch.apply_all(&[network(1, network_entry("red", true)), location(1, ASKER.0, ASKER.1, HOST)]);
    for (address, last) in [OTHER, ROUTER] {
        switch.apply(&location(1, address, last, others_at));
    }
    put_routes(&mut switch, routes);
    switch
}

/// Where a packet of the asker ends, by host and gateway.
fn end(host: &mut Switch, gateway: &mut Switch, to: IpAddr) -> End {
    let frame = udp((ip(ASKER.0), 4000), (to, 53), 1).from(mac(ASKER.1)).build();
    match host.at_port(1, "asker", &frame) {
        Event::Delivered(_, frame) => End::At(frame[5]),
        Event::Sent { by_gateway: false, frame, .. } => End::At(frame[5]),
        Event::Sent { half, frame, .. } => match gateway.at_underlay_with(HOST, 1, half, &frame) {
            Event::Sent { frame, .. } => End::At(frame[5]),
            Event::External(_) => End::Outside,
            Event::Dropped(_) | Event::Answered(_) => End::Nowhere,
            other => panic!("{other:?}"),
        },
        Event::Dropped(_) | Event::Answered(_) => End::Nowhere,
        other => panic!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

    #[test]
    fn a_route_answers_alike_whatever_is_where(routes in routes()) {
        let asked = ["10.0.0.9", "10.0.1.7", "10.0.0.77", "10.0.0.200", "10.0.1.66", "10.7.0.1", "192.168.3.3", "8.8.8.8"];
        for (others_here, known) in [(false, false), (false, true), (true, false)] {
            let mut host = asker_s_host(&routes, others_here, known);
            let mut gateway = gateway_with(&routes, if others_here { HOST } else { OTHER_HOST });
            for to in asked {
                let expected = naive(&routes, ip(to));
                // The second packet is decided by the flows that the first one left.
                for _ in 0..2 {
                    let found = end(&mut host, &mut gateway, ip(to));
                    prop_assert_eq!(&found, &expected, "{} with {:?}, here {} known {}", to, routes, others_here, known);
                }
            }
        }
    }
}

#[test]
fn a_router_does_not_speak_for_addresses_of_the_subnets() {
    let mut switch = asker_s_host(&[("0.0.0.0/0".parse().unwrap(), 2)], true, false);
    let as_nobody = udp((ip("10.0.0.77"), 1), (ip(ASKER.0), 2), 1).from(mac(ROUTER.1)).build();
    assert_eq!(switch.at_port(1, "other1", &as_nobody), dropped("spoofed-source"));
    let as_outside = udp((ip("8.8.8.8"), 1), (ip(ASKER.0), 2), 1).from(mac(ROUTER.1)).build();
    assert!(matches!(switch.at_port(1, "other1", &as_outside), Event::Delivered(..)));
}
