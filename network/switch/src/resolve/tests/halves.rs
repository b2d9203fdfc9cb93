//! Verdicts of two halves: three hosts that tell each other what they decided, beside a naive firewall that knows everything.

use super::*;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::collections::{BTreeMap, BTreeSet};
use weir_model::entry::Rule;
use weir_model::resource::{Action, Direction, Peer};
use weir_packet::encap::Half;

const HOSTS: [&str; 3] = ["192.0.2.1", "192.0.2.2", "192.0.2.3"];
const NAMES: [&str; 3] = ["a", "b", "c"];
const GRE: u8 = 47;

fn address(endpoint: usize) -> String {
    format!("10.0.0.{}", 5 + endpoint)
}

/// What an endpoint sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Udp,
    Gre,
    TcpSyn,
    TcpData,
    Ping,
    Pong,
}

impl Kind {
    fn frame(self, from: usize, to: usize) -> Vec<u8> {
        let (source, destination) = (ip(&address(from)), ip(&address(to)));
        let (sender, receiver) = ((source, 500), (destination, 500));
        let packet = match self {
            Kind::Udp => udp(sender, receiver, 4),
            Kind::Gre => Packet::new(source, destination, GRE, vec![0; 8]),
            Kind::TcpSyn => tcp(sender, receiver, SYN),
            Kind::TcpData => tcp(sender, receiver, ACK),
            Kind::Ping => echo(source, destination, 7, true),
            Kind::Pong => echo(source, destination, 7, false),
        };
        packet.from(mac(5 + from as u8)).build()
    }

    /// Conversations of one kind between two endpoints have one name; of echo each way has its own.
    fn conversation(self, from: usize, to: usize) -> (u8, usize, usize) {
        let unordered = (from.min(to), from.max(to));
        match self {
            Kind::Udp => (0, unordered.0, unordered.1),
            Kind::Gre => (1, unordered.0, unordered.1),
            Kind::TcpSyn | Kind::TcpData => (2, unordered.0, unordered.1),
            Kind::Ping => (3, from, to),
            Kind::Pong => (3, to, from),
        }
    }

    fn opens(self) -> bool {
        !matches!(self, Kind::TcpData | Kind::Pong)
    }
}

/// Who may send to whom: pairs that egress, and that ingress, allows.
#[derive(Clone, Debug, Default)]
struct Rules {
    out: BTreeSet<(usize, usize)>,
    into: BTreeSet<(usize, usize)>,
}

impl Rules {
    fn allow(&self, from: usize, to: usize) -> bool {
        self.out.contains(&(from, to)) && self.into.contains(&(from, to))
    }

    fn policy(&self, version: u64) -> weir_model::Update {
        let rule = |direction, own: usize, peer: usize| Rule {
            targets: vec![label(NAMES[own])],
            peers: vec![Peer::Prefix(format!("{}/32", address(peer)).parse().unwrap())],
            ..rule(&format!("r{}-{own}-{peer}", direction as u8), direction, Action::Allow)
        };
        let out = self.out.iter().map(|&(from, to)| rule(Direction::Egress, from, to));
        let into = self.into.iter().map(|&(from, to)| rule(Direction::Ingress, to, from));
        policy_with(1, version, Action::Deny, Action::Deny, out.chain(into).collect())
    }
}

/// Three hosts with their endpoints.
struct Cloud {
    hosts: Vec<Switch>,
    at: [usize; 3],
    rules: Rules,
    version: u64,
}

impl Cloud {
    fn new() -> Cloud {
        let mut cloud = Cloud { hosts: Vec::new(), at: [0, 1, 2], rules: Rules::default(), version: 1 };
        for (host, address) in HOSTS.iter().enumerate() {
            cloud.hosts.push(Switch::new(resolver(address)));
            cloud.fill(host);
        }
        cloud
    }

    /// Puts into a host all that is to be in force there.
    fn fill(&mut self, host: usize) {
        let policy = self.rules.policy(self.version);
        self.hosts[host].apply_all(&[network(1, network_entry("red", false)), policy]);
        for endpoint in 0..NAMES.len() {
            self.place(host, endpoint);
        }
    }

    fn place(&mut self, host: usize, endpoint: usize) {
        let last = 5 + endpoint as u8;
        let update = match self.at[endpoint] == host {
            true => port(1, NAMES[endpoint], last, &[&address(endpoint)], &[NAMES[endpoint]]),
            false => location(1, &address(endpoint), last, HOSTS[self.at[endpoint]]),
        };
        self.hosts[host].apply(&update);
    }

    fn set_rules(&mut self) {
        self.version += 1;
        let policy = self.rules.policy(self.version);
        self.hosts.iter_mut().for_each(|host| {
            host.apply(&policy);
        });
    }

    fn move_to(&mut self, endpoint: usize, host: usize) {
        let old = std::mem::replace(&mut self.at[endpoint], host);
        if old == host {
            return;
        }
        self.hosts[old].apply(&delete(2, port_key(1, NAMES[endpoint])));
        let key =
            weir_model::Key::Location { vni: weir_model::entry::Vni(1), address: ip(&address(endpoint)) };
        self.hosts[host].apply(&delete(2, key));
        for host in 0..HOSTS.len() {
            self.place(host, endpoint);
        }
    }

    /// Kills a host's switch; the next has its entries and the journal of its connections.
    fn restart(&mut self, host: usize) {
        let records = self.hosts[host].mind.connection_snapshot();
        self.hosts[host] = Switch::new(resolver(HOSTS[host]));
        self.fill(host);
        let now_ms = self.hosts[host].now_ms;
        self.hosts[host].mind.restore_connections(now_ms, records);
    }

    /// Whether a packet arrives; at each end a miss or a flow decides.
    fn arrives(&mut self, kind: Kind, from: usize, to: usize) -> bool {
        let host = self.at[from];
        match self.hosts[host].at_port(1, NAMES[from], &kind.frame(from, to)) {
            Event::Delivered(..) => true,
            Event::Sent { receiver, half, by_gateway: false, frame, .. } => {
                let there = HOSTS.iter().position(|host| ip(host) == receiver).unwrap();
                let event = self.hosts[there].at_underlay_with(HOSTS[host], 1, half, &frame);
                assert!(matches!(event, Event::Delivered(..) | Event::Dropped(_)), "{event:?}");
                matches!(event, Event::Delivered(..))
            }
            Event::Dropped(_) => false,
            other => panic!("{other:?}"),
        }
    }
}

/// What a naive firewall knows of a conversation: who opened it and whether it was answered, if that is still known at both ends.
type Opener = Option<(usize, Answered)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answered {
    No,
    Yes,
    /// One end may remember it.
    Perhaps,
}

#[derive(Default)]
struct Model {
    open: BTreeMap<(u8, usize, usize), Opener>,
}

impl Model {
    /// Whether a packet must, and whether it may, pass.
    fn take(&mut self, rules: &Rules, kind: Kind, from: usize, to: usize) -> (bool, bool) {
        let (own, back) = (rules.allow(from, to), rules.allow(to, from));
        let name = kind.conversation(from, to);
        let Some(opener) = self.open.get(&name).copied() else {
            if own {
                self.open.insert(name, Some((from, Answered::No)));
            }
            return (own, own);
        };
        match opener {
            Some((opener, _)) if opener == from => (own, own),
            // A reply, as long as the rules allow what it replies to.
            Some((opener, _)) if back => {
                self.open.insert(name, Some((opener, Answered::Yes)));
                (true, true)
            }
            // Of a dead one: judged for itself.
            Some((_, answered)) => {
                let must = own && (kind.opens() || answered == Answered::No);
                let tries = kind.opens() || answered != Answered::Yes;
                if must {
                    self.open.insert(name, Some((from, Answered::No)));
                } else if tries && rules.out.contains(&(from, to)) {
                    // The sender's half may let it go as an opening, and keep that in place of the dead one.
                    self.open.insert(name, None);
                }
                (must, own && tries)
            }
            // One end has forgotten it: what opens passes, what does not may be taken for an opening.
            None => {
                if own && kind.opens() && !back {
                    self.open.insert(name, Some((from, Answered::Perhaps)));
                }
                (own && kind.opens(), own || back)
            }
        }
    }

    /// Ends of an endpoint's conversations were forgotten.
    fn forget(&mut self, endpoint: usize) {
        for (name, opener) in &mut self.open {
            if name.1 == endpoint || name.2 == endpoint {
                *opener = None;
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Send(Kind, usize, usize),
    Out(usize, usize, bool),
    Into(usize, usize, bool),
    Move(usize, usize),
    Restart(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pair = || (0..3_usize, 1..3_usize).prop_map(|(from, further)| (from, (from + further) % 3));
    let kinds = [Kind::Udp, Kind::Gre, Kind::TcpSyn, Kind::TcpData, Kind::Ping, Kind::Pong];
    let kind = proptest::sample::select(kinds.to_vec());
    let step = prop_oneof![
        24 => (kind, pair()).prop_map(|(kind, (from, to))| Step::Send(kind, from, to)),
        4 => (pair(), any::<bool>()).prop_map(|((from, to), allow)| Step::Out(from, to, allow)),
        4 => (pair(), any::<bool>()).prop_map(|((from, to), allow)| Step::Into(from, to, allow)),
        1 => (0..3_usize, 0..3_usize).prop_map(|(endpoint, host)| Step::Move(endpoint, host)),
        1 => (0..3_usize).prop_map(Step::Restart),
    ];
    proptest::collection::vec(step, 1..120)
}

fn run(steps: &[Step]) {
    let (mut cloud, mut model) = (Cloud::new(), Model::default());
    // At first most is allowed, so that there is something to revoke.
    for from in 0..3 {
        for to in (0..3).filter(|to| *to != from) {
            cloud.rules.out.insert((from, to));
            if (from + 1) % 3 == to {
                cloud.rules.into.insert((from, to));
            }
        }
    }
    cloud.set_rules();
    for (number, step) in steps.iter().enumerate() {
        let set = |set: &mut BTreeSet<(usize, usize)>, pair, allow| match allow {
            true => set.insert(pair),
            false => set.remove(&pair),
        };
        match *step {
            Step::Send(kind, from, to) => {
                let (must, may) = model.take(&cloud.rules, kind, from, to);
                let arrived = cloud.arrives(kind, from, to);
                assert!(arrived || !must, "step {number}, {step:?} is lost: {steps:?}");
                assert!(!arrived || may, "step {number}, {step:?} must not pass: {steps:?}");
            }
            Step::Out(from, to, allow) => {
                set(&mut cloud.rules.out, (from, to), allow);
                cloud.set_rules();
            }
            Step::Into(from, to, allow) => {
                set(&mut cloud.rules.into, (from, to), allow);
                cloud.set_rules();
            }
            Step::Move(endpoint, host) => {
                cloud.move_to(endpoint, host);
                model.forget(endpoint);
            }
            Step::Restart(host) => {
                cloud.restart(host);
                for endpoint in (0..3).filter(|endpoint| cloud.at[*endpoint] == host) {
                    model.forget(endpoint);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

    #[test]
    fn verdicts_are_those_of_a_naive_firewall_that_knows_both_ends(steps in steps()) {
        run(&steps);
    }
}

/// Egress is denied but for what is said, everything may come in.
fn with_out(pairs: &[(usize, usize)]) -> Cloud {
    let mut cloud = Cloud::new();
    for from in 0..3 {
        cloud.rules.into.extend((0..3).filter(|to| *to != from).map(|to| (from, to)));
    }
    cloud.rules.out.extend(pairs);
    cloud.set_rules();
    cloud
}

#[test]
fn replies_to_what_was_revoked_end_at_both_ends_also_when_the_opener_moves() {
    let kinds = [(Kind::Udp, Kind::Udp), (Kind::Gre, Kind::Gre), (Kind::TcpSyn, Kind::TcpData)];
    for (opening, reply) in kinds {
        let mut cloud = with_out(&[(0, 2)]);
        assert!(!cloud.arrives(reply, 2, 0), "it may open nothing of its own");
        assert!(cloud.arrives(opening, 0, 2) && cloud.arrives(reply, 2, 0));
        cloud.rules.out.clear();
        cloud.set_rules();
        assert!(!cloud.arrives(reply, 2, 0) && !cloud.arrives(opening, 0, 2));
        cloud.move_to(0, 1);
        for _ in 0..3 {
            assert!(!cloud.arrives(reply, 2, 0), "the new host remembers nothing");
        }
        cloud.rules.out.insert((0, 2));
        cloud.set_rules();
        assert!(cloud.arrives(reply, 2, 0), "allowed again, it goes on where its opener is now");
        assert!(cloud.arrives(reply, 0, 2));
    }
}

#[test]
fn a_revoked_connection_does_not_shut_the_other_way() {
    for kind in [Kind::Udp, Kind::Gre] {
        let mut cloud = with_out(&[(0, 2), (2, 0)]);
        cloud.rules.into = [(0, 2), (2, 0)].into();
        cloud.set_rules();
        assert!(cloud.arrives(kind, 2, 0));
        cloud.rules.into.remove(&(2, 0));
        cloud.set_rules();
        assert!(!cloud.arrives(kind, 2, 0));
        for _ in 0..3 {
            assert!(cloud.arrives(kind, 0, 2), "which the rules allow by themselves");
        }
        assert!(cloud.arrives(kind, 2, 0), "a reply to that");
    }
}

#[test]
fn what_dies_at_the_end_that_replies_is_dead_at_the_other() {
    // The rules let everything out; `b` takes in what `a` opens, until it does not.
    let mut cloud = with_out(&[(0, 1), (1, 0)]);
    cloud.rules.into = [(0, 1)].into();
    cloud.set_rules();
    assert!(cloud.arrives(Kind::Udp, 0, 1) && cloud.arrives(Kind::Udp, 1, 0));
    cloud.rules.into.clear();
    cloud.set_rules();
    assert!(!cloud.arrives(Kind::Udp, 1, 0), "no reply any more, and nothing that it may open");
}

#[test]
fn a_switch_that_says_nothing_is_judged_as_it_always_was() {
    let mut switch = host(vec![allow_in("all", weir_model::resource::Protocol::Any, None)]);
    let query = udp((ip("10.0.0.9"), 7), (ip("10.0.0.5"), 8), 5).build();
    assert!(matches!(switch.at_underlay(OTHER_HOST, 1, &query), Event::Delivered(..)));
    // The same key from the same switch, with a word: another flow, which is judged for itself.
    let replies = switch.at_underlay_with(OTHER_HOST, 1, Half::Replies, &query);
    assert!(matches!(replies, Event::Delivered(..)), "what goes out is allowed: {replies:?}");
    switch.apply(&policy_with(1, 2, Action::Allow, Action::Deny, Vec::new()));
    assert_eq!(switch.at_underlay_with(OTHER_HOST, 1, Half::Replies, &query), default_deny("egress"));
    assert!(matches!(switch.at_underlay_with(OTHER_HOST, 1, Half::Opens, &query), Event::Delivered(..)));
}
