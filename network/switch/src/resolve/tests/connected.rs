//! Routes that contain the network's own subnets: the same answer wherever an endpoint is and whatever is in the tables.

use super::*;
use ipnet::IpNet;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::collections::BTreeMap;
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

/// Last bytes of the Ethernet addresses of the asker, of one whose place differs, and of one that routes lead to.
const ASKER: u8 = 5;
const OTHER: u8 = 9;
const ROUTER: u8 = 7;

/// The addresses of one family.
struct Family {
    asker: &'static str,
    /// One whose place differs, and one that routes lead to.
    others: [(&'static str, u8); 2],
    subnets: [&'static str; 2],
    prefixes: [&'static str; 11],
    asked: [&'static str; 8],
}

const FAMILIES: [Family; 2] = [
    Family {
        asker: "10.0.0.5",
        others: [("10.0.0.9", OTHER), ("10.0.1.7", ROUTER)],
        subnets: ["10.0.0.0/24", "10.0.1.0/24"],
        prefixes: [
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
        ],
        asked: [
            "10.0.0.9",
            "10.0.1.7",
            "10.0.0.77",
            "10.0.0.200",
            "10.0.1.66",
            "10.7.0.1",
            "192.168.3.3",
            "8.8.8.8",
        ],
    },
    Family {
        asker: "fd00::5",
        others: [("fd00::9", OTHER), ("fd00:0:0:1::7", ROUTER)],
        subnets: ["fd00::/64", "fd00:0:0:1::/64"],
        prefixes: [
            "::/0",
            "fd00::/8",
            "fd00::/48",
            "fd00::/63",
            "fd00::/64",
            "fd00::/65",
            "fd00::8/126",
            "fd00::9/128",
            "fd00::77/128",
            "fd00::70/124",
            "2001:db8::/32",
        ],
        asked: [
            "fd00::9",
            "fd00:0:0:1::7",
            "fd00::77",
            "fd00::ffff:0:0:1",
            "fd00:0:0:1::66",
            "fd00:7::1",
            "2001:db8::3",
            "2001:4860::8",
        ],
    },
];

/// Routes in force, by prefix: a prefix has one.
type Routes = BTreeMap<IpNet, u8>;

fn hop(family: &Family, choice: u8) -> RouteHop {
    match choice % 3 {
        0 => RouteHop::Drop,
        1 => RouteHop::External,
        _ => RouteHop::Address(ip(family.others[1].0)),
    }
}

/// The answer of one who knows everything: the endpoint, else the longest of routes and subnets, subnets first.
fn naive(family: &Family, routes: &Routes, to: IpAddr) -> End {
    for (address, last) in family.others {
        if to == ip(address) {
            return End::At(last);
        }
    }
    let subnets = family.subnets.map(|text| text.parse::<IpNet>().unwrap());
    let connected = subnets.iter().filter(|net| net.contains(&to)).map(|net| net.prefix_len()).max();
    let matching = routes.iter().filter(|(prefix, _)| prefix.contains(&to));
    let best = matching.max_by_key(|(prefix, _)| prefix.prefix_len());
    match best.filter(|(prefix, _)| connected.is_none_or(|bits| prefix.prefix_len() > bits)) {
        Some((_, choice)) => match hop(family, *choice) {
            RouteHop::Drop => End::Nowhere,
            RouteHop::External => End::Outside,
            RouteHop::Address(_) => End::At(ROUTER),
        },
        None if connected.is_some() => End::Nowhere,
        None => End::Outside,
    }
}

/// Where the others are, as the asker's host sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Places {
    /// At another host, which this one does not know.
    Unknown,
    /// At another host.
    Known,
    /// At the asker's host.
    Here,
}

#[derive(Clone, Debug)]
enum Change {
    Put(usize, u8),
    Delete(usize),
    Move(Places),
    /// Idle flows go.
    Pass,
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let places = prop::sample::select(vec![Places::Unknown, Places::Known, Places::Here]);
    let change = prop_oneof![
        4 => (0..11_usize, any::<u8>()).prop_map(|(prefix, choice)| Change::Put(prefix, choice)),
        2 => (0..11_usize).prop_map(Change::Delete),
        3 => places.prop_map(Change::Move),
        1 => Just(Change::Pass),
    ];
    prop::collection::vec(change, 0..10)
}

/// A host with the asker, a gateway, and what is in force at both.
struct World {
    family: &'static Family,
    host: Switch,
    gateway: Switch,
    routes: Routes,
    places: Places,
}

impl World {
    fn new(family: &'static Family) -> World {
        let mut host = Switch::new(resolver(HOST));
        let open = weir_model::resource::Action::Allow;
        host.apply_all(&[
            network(1, network_entry("red", true)),
            policy_with(1, 1, open, open, Vec::new()),
            port(1, "asker", ASKER, &[family.asker], &[]),
            gateways(&[GATEWAY]),
        ]);
        let mut gateway = Switch::new(gateway_resolver(GATEWAY, nat_pool()));
        gateway.apply_all(&[network(1, network_entry("red", true)), location(1, family.asker, ASKER, HOST)]);
        let mut world = World { family, host, gateway, routes: Routes::new(), places: Places::Unknown };
        world.tell_gateway(OTHER_HOST);
        world
    }

    fn tell_gateway(&mut self, at: &str) {
        for (address, last) in self.family.others {
            self.gateway.apply(&location(1, address, last, at));
        }
    }

    fn prefix(&self, number: usize) -> IpNet {
        self.family.prefixes[number].parse().unwrap()
    }

    fn make(&mut self, change: &Change) {
        match change {
            Change::Put(number, choice) => {
                let prefix = self.prefix(*number);
                let next_hop = hop(self.family, *choice);
                let entry = weir_model::entry::RouteEntry {
                    name: label("r"),
                    version: weir_model::Version(1),
                    next_hop,
                };
                let update = put(1, Key::Route { vni: Vni(1), prefix }, weir_model::Entry::Route(entry));
                self.host.apply(&update);
                self.gateway.apply(&update);
                self.routes.insert(prefix, *choice);
            }
            Change::Delete(number) => {
                let prefix = self.prefix(*number);
                if self.routes.remove(&prefix).is_some() {
                    let update = delete(2, Key::Route { vni: Vni(1), prefix });
                    self.host.apply(&update);
                    self.gateway.apply(&update);
                }
            }
            Change::Move(places) => self.move_to(*places),
            Change::Pass => {
                self.host.pass(70_000);
                self.gateway.pass(70_000);
            }
        }
    }

    /// The old place goes before the new one comes, as controllers order it.
    fn move_to(&mut self, places: Places) {
        for (number, (address, last)) in self.family.others.into_iter().enumerate() {
            let (name, at) = (format!("other{number}"), Key::Location { vni: Vni(1), address: ip(address) });
            match self.places {
                Places::Here => drop(self.host.apply(&delete(2, port_key(1, &name)))),
                Places::Known => drop(self.host.apply(&delete(2, at))),
                Places::Unknown => {}
            }
            match places {
                Places::Here => drop(self.host.apply(&port(1, &name, last, &[address], &[]))),
                Places::Known => drop(self.host.apply(&location(1, address, last, OTHER_HOST))),
                Places::Unknown => {}
            }
        }
        self.tell_gateway(if places == Places::Here { HOST } else { OTHER_HOST });
        self.places = places;
    }

    /// Where a packet of the asker ends, by host and gateway.
    fn end(&mut self, to: IpAddr) -> End {
        let frame = udp((ip(self.family.asker), 4000), (to, 53), 1).from(mac(ASKER)).build();
        match self.host.at_port(1, "asker", &frame) {
            Event::Delivered(_, frame) => End::At(frame[5]),
            Event::Sent { by_gateway: false, frame, .. } => End::At(frame[5]),
            Event::Sent { half, frame, .. } => match self.gateway.at_underlay_with(HOST, 1, half, &frame) {
                Event::Sent { frame, .. } => End::At(frame[5]),
                Event::External(_) => End::Outside,
                Event::Dropped(_) | Event::Answered(_) => End::Nowhere,
                other => panic!("{other:?}"),
            },
            Event::Dropped(_) | Event::Answered(_) => End::Nowhere,
            other => panic!("{other:?}"),
        }
    }

    /// Every answer is the one of who knows everything. The second packet is decided by the flows that the first one left.
    fn check(&mut self, history: &[Change]) -> Result<(), TestCaseError> {
        for to in self.family.asked {
            let expected = naive(self.family, &self.routes, ip(to));
            for _ in 0..2 {
                let found = self.end(ip(to));
                prop_assert_eq!(&found, &expected, "{} with {:?} after {:?}", to, self.routes, history);
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

    #[test]
    fn a_route_answers_alike_whatever_is_where_and_was_before(history in changes(), asks in any::<u16>()) {
        for family in &FAMILIES {
            let mut world = World::new(family);
            for (number, change) in history.iter().enumerate() {
                world.make(change);
                // Between some changes nobody asks, so that there are flows of older times.
                if asks >> number & 1 != 0 {
                    world.check(&history[..=number])?;
                }
            }
            world.check(&history)?;
            // One that has seen nothing of it answers the same.
            let mut fresh = World::new(family);
            fresh.move_to(world.places);
            for number in 0..family.prefixes.len() {
                if let Some(choice) = world.routes.get(&fresh.prefix(number)).copied() {
                    fresh.make(&Change::Put(number, choice));
                }
            }
            fresh.check(&history)?;
        }
    }
}

#[test]
fn a_router_does_not_speak_for_addresses_of_the_subnets() {
    let (nobody, outside) = (2, 7);
    for family in &FAMILIES {
        let mut world = World::new(family);
        world.move_to(Places::Here);
        world.make(&Change::Put(0, 2));
        let as_one = |number: usize| {
            udp((ip(family.asked[number]), 1), (ip(family.asker), 2), 1).from(mac(ROUTER)).build()
        };
        assert_eq!(world.host.at_port(1, "other1", &as_one(nobody)), dropped("spoofed-source"));
        assert!(matches!(world.host.at_port(1, "other1", &as_one(outside)), Event::Delivered(..)));
    }
}
