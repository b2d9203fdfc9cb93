use std::collections::VecDeque;

use weir_base::world::Rng;

use super::*;

type Checked = Intake<fn(&SignedEvent) -> bool>;

fn source(number: u8) -> Source {
    Source([number; 32])
}

fn event(number: u8, sequence: u64) -> SignedEvent {
    let payload = Bytes::from(vec![number; sequence as usize % 50]);
    let mut signature = [0; 64];
    signature[0] = number ^ sequence as u8 ^ 0x5a;
    SignedEvent { source: source(number), sequence, signature, payload }
}

fn is_right(event: &SignedEvent) -> bool {
    event.signature[0] == event.source.0[0] ^ event.sequence as u8 ^ 0x5a
}

fn intake() -> Checked {
    let settings =
        IntakeSettings { window: 16, held_bytes_max: 4000, payload_bytes_max: 100, patience_ns: 100 };
    Intake::new(settings, is_right)
}

fn feed(intake: &mut Checked, event: SignedEvent, now_ns: u64) -> Vec<Output> {
    let mut out = Vec::new();
    intake.step(Input::Event { event, now_ns }, &mut out);
    out
}

#[test]
fn events_keep_their_bytes() {
    let wanted = event(7, 3);
    assert_eq!(SignedEvent::decode(&wanted.encode()), Some(wanted.clone()));
    assert_eq!(SignedEvent::decode(&wanted.encode().slice(..100)), None);
    bolero::check!().with_iterations(2000).with_type::<Vec<u8>>().for_each(|bytes| {
        let bytes = Bytes::from(bytes.clone());
        if let Some(event) = SignedEvent::decode(&bytes) {
            assert_eq!(event.encode(), bytes);
        }
    });
}

#[test]
fn the_leader_proposes_in_order_and_the_others_forward_in_time() {
    let (mut leader, mut follower) = (intake(), intake());
    let mut out = Vec::new();
    leader.step(Input::Leader { leads: true, now_ns: 0 }, &mut out);
    assert_eq!(feed(&mut leader, event(1, 2), 1), [], "its predecessor is missing");
    let proposed = feed(&mut leader, event(1, 1), 2);
    let operation = |sequence| event(1, sequence).encode();
    let propose = |sequence| Output::Propose { operation: operation(sequence) };
    assert_eq!(proposed, [propose(1), propose(2)]);

    assert_eq!(feed(&mut follower, event(1, 1), 2), []);
    follower.step(Input::Tick { now_ns: 101 }, &mut out);
    assert_eq!(out, []);
    follower.step(Input::Tick { now_ns: 102 }, &mut out);
    assert_eq!(out, [Output::Forward { operation: operation(1) }]);
    out.clear();
    follower.step(Input::Leader { leads: true, now_ns: 103 }, &mut out);
    assert_eq!(out, [propose(1)]);
    assert_eq!(follower.wake_at_ns(), Some(203));

    let mut ordered = Ordered::new(10);
    assert!(ordered.admit(&operation(1), &is_right).is_ok());
    out.clear();
    let sources = [source(1)];
    follower.step(Input::Ordered { ordered: &ordered, sources: &sources, now_ns: 104 }, &mut out);
    assert_eq!(out, [Output::Ordered { source: source(1), sequence: 1 }]);
    assert_eq!((follower.held_bytes(), follower.wake_at_ns()), (0, None));
    assert_eq!(feed(&mut follower, event(1, 1), 105), out, "who asks again is told again");
}

#[test]
fn everything_that_does_not_belong_is_dropped_and_counted() {
    let mut intake = intake();
    let mut forged = event(1, 1);
    forged.signature[0] ^= 1;
    let mut large = event(1, 1);
    large.payload = Bytes::from(vec![0; 101]);
    feed(&mut intake, forged, 0);
    feed(&mut intake, large, 0);
    feed(&mut intake, event(1, 17), 0);
    feed(&mut intake, event(1, 16), 0);
    feed(&mut intake, event(1, 16), 0);
    for number in 2..200 {
        feed(&mut intake, event(number, 1), 0);
    }
    let counters = intake.counters();
    assert_eq!((counters.signatures, counters.large, counters.ahead, counters.duplicates), (1, 1, 1, 1));
    assert!(counters.full > 100 && intake.held_bytes() <= 4000, "{counters:?}");
}

#[test]
fn what_was_ordered_survives_a_snapshot_and_hostile_ones_are_refused() {
    let mut ordered = Ordered::new(2);
    let mut admit =
        |number, sequence| ordered.admit(&event(number, sequence).encode(), &is_right).map(|_| ());
    assert_eq!(admit(1, 1), Ok(()));
    assert_eq!(admit(1, 1), Err(Dropped::Duplicate));
    assert_eq!(admit(1, 3), Err(Dropped::Gap));
    assert_eq!(admit(2, 1), Ok(()));
    assert_eq!(admit(3, 1), Err(Dropped::Sources));
    let mut forged = event(1, 2);
    forged.signature[0] ^= 1;
    assert_eq!(ordered.admit(&forged.encode(), &is_right), Err(Dropped::Signature));
    assert_eq!(ordered.admit(&Bytes::from_static(b"x"), &is_right), Err(Dropped::Malformed));
    let counters = ordered.counters();
    assert_eq!((counters.accepted, counters.duplicates, counters.gaps, counters.sources), (2, 1, 1, 1));

    let bytes = ordered.encode();
    let again = Ordered::decode(&bytes, 2).unwrap();
    assert_eq!((again.last(&source(1)), again.last(&source(2)), again.encode()), (1, 1, bytes.clone()));
    assert_eq!(Ordered::decode(&bytes, 1), None);
    bolero::check!().with_iterations(2000).with_type::<(Vec<u8>, Vec<(u8, u8)>)>().for_each(
        |(any, changes)| {
            let mut changed = bytes.clone();
            for (at, with) in changes {
                let at = usize::from(*at) % changed.len();
                changed[at] ^= with;
            }
            for bytes in [any, &changed] {
                if let Some(ordered) = Ordered::decode(bytes, 10) {
                    assert_eq!(ordered.encode(), *bytes);
                }
            }
        },
    );
}

/// Three replicas with one order, a leader that changes, and everything lost, doubled, late or forged.
struct World {
    rng: Rng,
    intakes: Vec<Checked>,
    states: Vec<Ordered>,
    seen: Vec<usize>,
    order: Vec<Bytes>,
    effects: Vec<(Source, u64)>,
    mail: VecDeque<(usize, Bytes)>,
    leader: usize,
    now_ns: u64,
}

impl World {
    fn new(seed: u64) -> World {
        World {
            rng: Rng::new(seed),
            intakes: (0..3).map(|_| intake()).collect(),
            states: vec![Ordered::new(100); 3],
            seen: vec![0; 3],
            order: Vec::new(),
            effects: Vec::new(),
            mail: VecDeque::new(),
            leader: 0,
            now_ns: 0,
        }
    }

    fn step(&mut self, replica: usize, input: Input<'_>, loss: u64) {
        let mut out = Vec::new();
        self.intakes[replica].step(input, &mut out);
        for output in out {
            match output {
                Output::Propose { operation } => {
                    assert_eq!(replica, self.leader, "only a leader proposes");
                    // The order may take it twice, and out of order when a proposal before it is lost.
                    for _ in 0..1 + self.rng.below(2) {
                        if !self.rng.chance(loss, 100) {
                            self.order.push(operation.clone());
                        }
                    }
                }
                Output::Forward { operation } if !self.rng.chance(loss, 100) => {
                    self.mail.push_back((self.leader, operation));
                }
                Output::Forward { .. } | Output::Ordered { .. } => {}
            }
        }
    }

    fn apply(&mut self, replica: usize) {
        let mut changed = Vec::new();
        for operation in &self.order[self.seen[replica]..] {
            if let Ok(event) = self.states[replica].admit(operation, &is_right) {
                changed.push(event.source);
                if replica == 0 {
                    self.effects.push((event.source, event.sequence));
                }
            }
        }
        self.seen[replica] = self.order.len();
        let (state, now_ns) = (self.states[replica].clone(), self.now_ns);
        self.step(replica, Input::Ordered { ordered: &state, sources: &changed, now_ns }, 0);
    }

    fn round(&mut self, sent: &mut [u64], loss: u64) {
        self.now_ns += self.rng.below(60);
        let now_ns = self.now_ns;
        let number = self.rng.below(sent.len() as u64) as usize;
        let sequence = match self.rng.below(3) {
            0 if sent[number] > 0 => 1 + self.rng.below(sent[number]),
            // A source has at most its window on the way.
            _ if sent[number] < self.states[0].last(&source(number as u8)) + 10 => {
                sent[number] += 1;
                sent[number]
            }
            _ => 1 + self.rng.below(sent[number]),
        };
        for replica in 0..3 {
            let mut event = event(number as u8, sequence);
            if self.rng.chance(1, 10) {
                event.signature[0] ^= 1;
            }
            if !self.rng.chance(loss, 100) {
                self.step(replica, Input::Event { event, now_ns }, loss);
            }
        }
        if let Some((to, bytes)) = self.mail.pop_front() {
            let event = SignedEvent::decode(&bytes).unwrap();
            self.step(to, Input::Event { event, now_ns }, loss);
        }
        if self.rng.chance(loss, 400) {
            self.step(self.leader, Input::Leader { leads: false, now_ns }, loss);
            self.leader = self.rng.below(3) as usize;
            self.step(self.leader, Input::Leader { leads: true, now_ns }, loss);
        }
        let replica = self.rng.below(3) as usize;
        self.apply(replica);
        self.step(replica, Input::Tick { now_ns }, loss);
    }
}

#[test]
fn every_event_is_ordered_once_and_in_its_sources_order() {
    for seed in 0..200 {
        let mut world = World::new(seed);
        world.step(0, Input::Leader { leads: true, now_ns: 0 }, 0);
        let mut sent = [0; 5];
        for _ in 0..400 {
            world.round(&mut sent, 30);
        }
        // Then nothing is lost any more, and what was sent is sent again.
        for _ in 0..2000 {
            world.round(&mut sent, 0);
        }
        (0..3).for_each(|replica| world.apply(replica));
        for number in 0..5_u8 {
            let mine = world.effects.iter().filter(|(from, _)| *from == source(number)).map(|(_, at)| *at);
            let last = world.states[0].last(&source(number));
            assert_eq!(mine.collect::<Vec<_>>(), (1..=last).collect::<Vec<_>>(), "seed {seed}");
            assert!(last + 12 >= sent[number as usize] && last > 20, "seed {seed}: {last} of {sent:?}");
        }
        assert!(world.states.iter().all(|state| state.encode() == world.states[0].encode()));
        assert!(world.order.len() > world.effects.len(), "nothing came twice");
        assert_eq!(world.states[0].counters().signatures, 0, "a forged event was proposed");
        assert!(world.intakes.iter().all(|intake| intake.held_bytes() <= 4000));
    }
}
