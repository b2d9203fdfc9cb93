//! Verdicts of two halves: three hosts that tell each other what they decided, beside a naive firewall that knows everything.

use super::*;
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
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

/// What a naive firewall knows of a conversation, if that is still known at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Opened {
    by: usize,
    answered: Answered,
    /// It took the place of a dead one of the other end, whose host may not know that before it is answered: then data without
    /// a beginning, of TCP and of echo, is of the dead one there.
    took_over: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answered {
    No,
    Yes,
    /// One end may remember it: an answer, or what it was an answer to, was lost on the way.
    Perhaps,
}

#[derive(Default)]
struct Model {
    open: BTreeMap<(u8, usize, usize), Option<Opened>>,
}

impl Model {
    /// Whether a packet must, and whether it may, pass.
    fn take(&mut self, rules: &Rules, kind: Kind, from: usize, to: usize) -> (bool, bool) {
        let (own, back) = (rules.allow(from, to), rules.allow(to, from));
        let name = kind.conversation(from, to);
        let by_sender = |answered, took_over| Some(Opened { by: from, answered, took_over });
        let Some(opened) = self.open.get(&name).copied() else {
            if own {
                self.open.insert(name, by_sender(Answered::No, false));
            }
            return (own, own);
        };
        let (next, must, may) = match opened {
            Some(opened) if opened.by == from => {
                let lost = !own && opened.answered == Answered::Yes;
                let answered = if lost { Answered::Perhaps } else { opened.answered };
                let next = Opened { answered, ..opened };
                (Some(next), own && (kind.opens() || !opened.took_over), own)
            }
            // A reply, as long as the rules allow what it replies to.
            Some(opened) if back => {
                (Some(Opened { answered: Answered::Yes, took_over: false, ..opened }), true, true)
            }
            // Of a dead one: judged for itself.
            Some(opened) => {
                let unanswered = opened.answered == Answered::No;
                let must = own && (kind.opens() || unanswered && !opened.took_over);
                let tries = kind.opens() || opened.answered != Answered::Yes;
                let next = if must {
                    by_sender(Answered::No, true)
                } else if tries && rules.out.contains(&(from, to)) {
                    // The sender's half may let it go as an opening, and keep that in place of the dead one.
                    None
                } else if unanswered {
                    Some(Opened { answered: Answered::Perhaps, ..opened })
                } else {
                    Some(opened)
                };
                (next, must, own && tries)
            }
            // One end has forgotten it: what opens passes, what does not may be taken for an opening.
            None => {
                let opens = own && kind.opens();
                let next = if opens && !back { by_sender(Answered::Perhaps, true) } else { None };
                (next, opens, own || back)
            }
        };
        self.open.insert(name, next);
        (must, may)
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

/// Random cases of a seed.
fn check(seed: u64, cases: u32) -> Result<(), String> {
    let rng_seed = RngSeed::Fixed(seed);
    let config = ProptestConfig { cases, rng_seed, failure_persistence: None, ..ProptestConfig::default() };
    let result = TestRunner::new(config).run(&steps(), |steps| {
        run(&steps);
        Ok(())
    });
    result.map_err(|error| format!("seed {seed:#x}: {error}"))
}

/// Cases of one seed.
const CASES: u32 = 200;

/// Seeds that have found faults.
const SEEDS: [u64; 10] = [
    0x5eed,
    0x551d_0905_e15a_96d9,
    0x9110_bd84_dd8f_9b8f,
    0xc731_5681_9932_66d2,
    0x4440_89bb_74ea_08ff,
    0xdec7_c5eb_9a8c_daf8,
    0xe4fb_0225_1752_7364,
    0x02bc_e3e6_8bc5_cd50,
    0xe449_d84b_bf39_5666,
    0x035a_4db6_19b9_3de5,
];

#[test]
fn verdicts_are_those_of_a_naive_firewall_that_knows_both_ends() {
    for seed in SEEDS {
        check(seed, CASES).unwrap();
    }
}

/// As many random seeds as `WEIR_HALVES_SEEDS` says.
#[test]
fn verdicts_are_so_with_random_seeds() {
    let wanted = std::env::var("WEIR_HALVES_SEEDS").ok().map(|seeds| seeds.parse::<u32>().unwrap());
    let Some(wanted) = wanted else {
        println!("NOT RUN verdicts_are_so_with_random_seeds: WEIR_HALVES_SEEDS says how many seeds");
        return;
    };
    let seed = || RandomState::new().hash_one("a seed");
    let wrong: Vec<String> = (0..wanted).filter_map(|_| check(seed(), CASES).err()).collect();
    assert!(wrong.is_empty(), "{} of {wanted} seeds: {}", wrong.len(), wrong.join("\n\n"));
}

/// A reply that is judged as an opening, since the rules deny what it replies to, makes a connection the other way at the host that
/// takes it; the other host goes on taking it for a reply. What counts is the younger of the two.
#[test]
fn what_the_other_end_takes_for_replies_to_something_older_passes_only_by_itself() {
    use Kind::{Gre, TcpData, TcpSyn, Udp};
    use Step::{Into, Out, Send};
    let all = [Into(0, 1, true), Into(1, 0, true)];
    let turned = |open: Kind| [Send(open, 0, 1), Out(0, 1, false), Send(open, 1, 0), Out(0, 1, true)];
    for kind in [Udp, Gre, TcpSyn] {
        for denied in [Out(1, 0, false), Into(1, 0, false)] {
            // It is denied, and what it would reply to is dead.
            run(&[&all[..], &turned(kind), &[denied, Send(kind, 1, 0)]].concat());
            run(&[&all[..], &turned(kind), &[denied, Send(kind, 1, 0), Send(kind, 0, 1), Send(kind, 1, 0)]]
                .concat());
        }
        // Both ways are allowed: an answer makes both ends agree.
        let agreed = [Send(kind, 0, 1), Out(1, 0, false), Send(kind, 1, 0), Send(kind, 0, 1)];
        run(&[&all[..], &turned(kind), &agreed].concat());
    }
    run(&[&all[..], &turned(TcpSyn), &[Out(1, 0, false), Send(TcpData, 1, 0)]].concat());
    // What the opener sends while only replies may pass is dropped, and stays so when the other end has sent something.
    let dead = [Out(1, 0, false), Send(Udp, 0, 1), Send(Udp, 1, 0), Send(Udp, 0, 1)];
    run(&[&all[..], &turned(Udp)[..3], &dead].concat());
    // A drop must not outlast what makes the packets replies again.
    let again = [Out(1, 0, false), Send(Udp, 1, 0), Send(Udp, 0, 1), Send(Udp, 1, 0)];
    run(&[&all[..], &turned(Udp), &again].concat());
}

/// What was answered before it was revoked was answered when it is allowed again.
#[test]
fn data_of_a_dead_connection_opens_nothing_when_it_was_revoked_twice() {
    use Kind::{TcpData, TcpSyn};
    use Step::{Into, Out, Send};
    let revoked =
        [Out(0, 1, false), Send(TcpData, 1, 0), Out(0, 1, true), Send(TcpSyn, 0, 1), Out(0, 1, false)];
    let begun = [Into(0, 1, true), Into(1, 0, true), Send(TcpSyn, 0, 1), Send(TcpData, 1, 0)];
    run(&[&begun[..], &revoked, &[Send(TcpData, 1, 0)]].concat());
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
