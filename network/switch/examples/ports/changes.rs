//! What a change costs at a million flows: how many flows are looked at, and decided again, for one update. Beside it a walk over all flows, which
//! is what finding them takes without an index.
//!
//! One network at a host: 64 ports, 16,384 destinations in a subnet, of which every sixteenth has a location; the others are reached by four gateways.
//! A flow a port and destination. Routes lead to 64 prefixes besides, through one endpoint.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_model::entry::{
    GatewayEntry, LocationEntry, NetworkEntry, PolicyEntry, PortEntry, RouteEntry, RouteHop, SubnetEntry, Vni,
};
use weir_model::resource::{Action, AttachmentKind, DhcpOptions, Encapsulation, Forwarding, PortState};
use weir_model::{Change, Entry, Key, Label, MacAddr, Update, Version};
use weir_packet::{FlowKey, checksum, parse};
use weir_switch::flow::{FLOWS_LIMIT, Ingress, MissReason, PortIndex, Resolver};
use weir_switch::flowtable::{FlowStore, Tables};
use weir_switch::resolve::{ResolverConfig, TableResolver};
use weir_switch::slow::flows::{Decided, FlowBook};
use weir_trust::token::TokenKey;

const PORTS: u32 = 64;
const DESTINATIONS: u32 = 16_384;
/// Prefixes with a route.
const ROUTED: u32 = 64;

fn label(text: &str) -> Label {
    Label::new(text).expect("a label")
}

fn own(port: u32) -> IpAddr {
    Ipv4Addr::from(0x0a00_0010 + port).into()
}

fn mac(last: u32) -> MacAddr {
    let [a, b, c, d] = last.to_be_bytes();
    MacAddr([2, 0, a, b, c, d])
}

/// Three quarters are in the subnet; the others are behind routes.
fn destination(number: u32) -> IpAddr {
    match number % 4 {
        0 => Ipv4Addr::from(0xac10_0000 + ((number / 4) % ROUTED) * 256 + number / 4 / ROUTED).into(),
        _ => Ipv4Addr::from(0x0a01_0000 + number).into(),
    }
}

fn gateway(last: u8) -> GatewayEntry {
    GatewayEntry { name: label(&format!("gateway-{last}")), underlay: [192, 0, 2, last].into() }
}

struct Host {
    mind: TableResolver,
    book: FlowBook,
    /// What the engine would have.
    engine: Option<Box<Tables>>,
    version: u64,
}

impl Host {
    fn new() -> Host {
        let config = ResolverConfig::host(label("host"), [192, 0, 2, 1].into(), TokenKey::new([9; 16]));
        let store = Arc::new(FlowStore::with_flows_max([3, 4], FLOWS_LIMIT));
        let (book, engine) = FlowBook::new(store);
        let mut host = Host { mind: TableResolver::new(config), book, engine: Some(engine), version: 0 };
        let vni = Vni(1);
        let subnet = SubnetEntry {
            name: label("all"),
            v4: Some("10.0.0.0/8".parse().expect("a prefix")),
            router_v4: Some([10, 0, 0, 1].into()),
            v6: None,
            router_v6: None,
        };
        let network = NetworkEntry {
            name: label("red"),
            mtu: 1400,
            encapsulation: Encapsulation::Geneve,
            external_access: false,
            subnets: vec![subnet],
            forwarding: Forwarding::Routed,
        };
        host.put(Key::Network { vni }, Entry::Network(network));
        host.policy(Action::Allow);
        host.put(Key::Gateways, Entry::Gateways([1, 2, 3, 4].map(gateway).to_vec()));
        for number in 0..PORTS {
            host.port(number, PortState::Up);
        }
        for number in 0..ROUTED {
            host.route(number, 0x0a01_0001);
        }
        for number in (1..DESTINATIONS).step_by(16) {
            host.location(number, 2);
        }
        host
    }

    fn put(&mut self, key: Key, entry: Entry) -> Vec<weir_switch::flow::Invalidate> {
        self.version += 1;
        let (target, expected) = (label("host"), Version::ZERO);
        let update =
            Update { target, key, version: Version(self.version), expected, change: Change::Put(entry) };
        self.mind.apply(0, &update).expect("an update").invalidate
    }

    fn policy(&mut self, default_egress: Action) -> Vec<weir_switch::flow::Invalidate> {
        let entry = PolicyEntry { default_ingress: Action::Allow, default_egress, rules: Vec::new() };
        self.put(Key::Policy { vni: Vni(1) }, Entry::Policy(entry))
    }

    fn port(&mut self, number: u32, state: PortState) -> Vec<weir_switch::flow::Invalidate> {
        let name = label(&format!("p{number}"));
        let entry = PortEntry {
            mac: mac(number),
            addresses: vec![own(number)],
            tags: Vec::new(),
            state,
            netns: None,
            device: format!("p{number}"),
            kind: AttachmentKind::Tap,
            queue_pairs: 1,
            subnet: label("all"),
            dhcp: DhcpOptions::default(),
            policy_min: Version(1),
        };
        self.put(Key::Port { vni: Vni(1), endpoint: name }, Entry::Port(entry))
    }

    fn route(&mut self, number: u32, through: u32) -> Vec<weir_switch::flow::Invalidate> {
        let prefix = format!("172.16.{number}.0/24").parse().expect("a prefix");
        let next_hop = RouteHop::Address(Ipv4Addr::from(through).into());
        let entry = RouteEntry { name: label(&format!("r{number}")), version: Version(1), next_hop };
        self.put(Key::Route { vni: Vni(1), prefix }, Entry::Route(entry))
    }

    fn location(&mut self, number: u32, host: u8) -> Vec<weir_switch::flow::Invalidate> {
        let entry = LocationEntry {
            endpoint: label("there"),
            mac: mac(1 << 16 | number),
            host: label("h"),
            underlay: [192, 0, 3, host].into(),
        };
        let address = Ipv4Addr::from(0x0a01_0000 + number).into();
        self.put(Key::Location { vni: Vni(1), address }, Entry::Location(entry))
    }

    /// Decides on a packet of each flow, as misses.
    fn fill(&mut self) {
        for port in 0..PORTS {
            let ingress = Ingress::Port(port as PortIndex);
            for number in 0..DESTINATIONS {
                let frame = frame(port, number);
                let key = FlowKey::new(0, &parse(&frame).expect("a frame"));
                let resolution = self.mind.resolve(0, &ingress, &key, MissReason::NoFlow, &frame);
                for (ingress, key, action) in &resolution.install {
                    assert!(self.book.install(ingress, key, action, |_| Some(1), 0));
                }
            }
            self.publish();
        }
    }

    /// As the engine would: it gives the tables back at once.
    fn publish(&mut self) {
        if let Some(tables) = self.book.publish() {
            let old = self.engine.replace(tables).expect("the other copy");
            self.book.take_back_untold(old);
        }
    }
}

fn frame(port: u32, number: u32) -> Vec<u8> {
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (own(port), destination(number)) else {
        unreachable!()
    };
    let mut frame =
        [&[2, 0, 0, 0, 0, 1][..], &mac(port).0, &[8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]].concat();
    frame.extend(source.octets());
    frame.extend(destination.octets());
    frame.extend([0x10, 0, 0x20, 0, 0, 8, 0, 0]);
    let parsed = parse(&frame).expect("a frame");
    checksum::fill_network(&mut frame, &parsed).expect("a header");
    frame
}

/// Prints what each kind of change costs.
pub fn run() {
    let mut host = Host::new();
    let begun = Instant::now();
    host.fill();
    let count = host.book.count();
    let miss = begun.elapsed() / count as u32;
    println!(
        "# {count} flows, {:.0} bytes a flow in the book and the table, of them {:.0} of links; {miss:?} a miss with its installation",
        host.book.bytes() as f64 / count as f64,
        host.book.dependents_bytes() as f64 / count as f64,
    );
    type Made = fn(&mut Host) -> Vec<weir_switch::flow::Invalidate>;
    let changes: [(&str, Made); 7] = [
        ("location-moved", |host| host.location(17, 3)),
        ("location-new", |host| host.location(2, 2)),
        ("route", |host| host.route(7, 0x0a01_0011)),
        ("gateway-added", |host| {
            host.put(Key::Gateways, Entry::Gateways([1, 2, 3, 4, 5].map(gateway).to_vec()))
        }),
        ("gateway-lost", |host| host.put(Key::Gateways, Entry::Gateways([1, 2, 3, 5].map(gateway).to_vec()))),
        ("port-down", |host| host.port(9, PortState::Down)),
        ("policy", |host| host.policy(Action::Allow)),
    ];
    for (name, change) in changes {
        let flows = host.book.count();
        let invalidate = change(&mut host);
        let before: u64 = host.book.changes.looked_at.iter().sum();
        let begun = Instant::now();
        let slots = host.book.dependents(&invalidate, &host.mind);
        let found = begun.elapsed();
        let looked_at = host.book.changes.looked_at.iter().sum::<u64>() - before;
        let (mut taken, mut changed) = (Duration::ZERO, 0);
        for part in slots.chunks(4096) {
            let begun = Instant::now();
            for slot in part {
                let decided = host.book.decide_again(*slot, 0, &mut host.mind, |_| Some(1));
                changed += usize::from(decided != Decided::Same);
            }
            taken += begun.elapsed();
            host.publish();
        }
        println!(
            "RESULT ports change-{name}-{flows} weir={looked_at}flows walk={flows}flows ratio={:.6}   # {} decided again, {changed} of them otherwise; \
             found in {found:?}, decided in {taken:?}",
            looked_at as f64 / flows as f64,
            slots.len(),
        );
    }
}
