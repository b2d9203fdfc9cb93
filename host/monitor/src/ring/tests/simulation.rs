//! Whole rings over seeds: the network between hosts is cut, heals, flaps and delays, monitors stop and go on, are late, and begin anew
//! with young clocks; and now and then a host dies. Nobody healthy and reachable may be declared failed, and who dies is, and is fenced once.

use super::super::hearing::Standing;
use super::*;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

const SEEDS: u64 = 320;
/// Periods of silence that make a host suspect.
const PATIENCE: u32 = 5;
/// A host that was away is excused for so long.
const EXCUSED: u64 = 15 * PERIOD;

/// Rules that are left out.
#[derive(Clone, Copy, Debug, Default)]
struct Less {
    late: bool,
    alone: bool,
    trust: bool,
    at_once: bool,
}

#[derive(Clone, Debug)]
struct Machine {
    ring: Ring,
    /// Its clock began here.
    began: u64,
    /// Ticks and packets wait until then.
    stopped_until: u64,
    dead: bool,
    /// Which part of the network it is in; others of another part are not reached.
    part: usize,
    next_tick: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Word {
    Probe(u64),
    Answer(u64),
    Opinion(Host, bool),
    Fenced(Host, bool),
}

/// When it comes, its number, to whom, from whom, when it was sent, what.
type UnderWay = (u64, u64, Host, Host, u64, Word);

struct Simulation {
    machines: Vec<Machine>,
    dice: Dice,
    now: u64,
    under_way: BinaryHeap<Reverse<UnderWay>>,
    sent: u64,
    /// When a host was last dead, stopped, or without a majority while there was one.
    away: Vec<Option<u64>>,
    fenced: Vec<(u64, Host, Host)>,
    wrong: Vec<String>,
    k: usize,
    less: Less,
}

impl Simulation {
    fn new(hosts: Host, k: usize, seed: u64, less: Less) -> Simulation {
        let mut simulation = Simulation {
            machines: Vec::new(),
            now: 0,
            under_way: BinaryHeap::new(),
            sent: 0,
            away: vec![None; usize::from(hosts)],
            fenced: Vec::new(),
            wrong: Vec::new(),
            k,
            less,
            dice: Dice(seed ^ 0x5555),
        };
        for host in 0..hosts {
            let ring = simulation.ring(host, hosts);
            let next_tick = simulation.dice.below(PERIOD);
            simulation.machines.push(Machine {
                ring,
                began: 0,
                stopped_until: 0,
                dead: false,
                part: 0,
                next_tick,
            });
        }
        simulation
    }

    fn ring(&self, own: Host, hosts: Host) -> Ring {
        let settings = Settings { period_ns: PERIOD, periods: PATIENCE, watch_ns: 0 };
        let mut ring = Ring::new(own, 0..hosts, self.k, settings);
        ring.hearing.without = [self.less.late, self.less.alone];
        ring.without = Without { trust: self.less.trust, at_once: self.less.at_once };
        ring
    }

    fn count(&self) -> Host {
        self.machines.len() as Host
    }

    /// The part that has a majority, if there is one.
    fn main_part(&self) -> Option<usize> {
        let parts = self.machines.iter().map(|machine| machine.part);
        let of = |part: usize| self.machines.iter().filter(|other| other.part == part && !other.dead).count();
        parts.max_by_key(|part| of(*part)).filter(|part| of(*part) * 2 > self.machines.len())
    }

    /// Notes who may be taken for failed: nobody blames the ring for a stop that is as long as its patience.
    fn note_away(&mut self) {
        let main = self.main_part();
        for (number, machine) in self.machines.iter().enumerate() {
            let cut = main.is_some_and(|main| main != machine.part);
            if machine.dead || cut || machine.stopped_until > self.now {
                self.away[number] = Some(self.now);
            }
        }
    }

    fn post(&mut self, from: Host, to: Host, word: Word) {
        let (a, b) = (&self.machines[usize::from(from)], &self.machines[usize::from(to)]);
        if a.part != b.part || b.dead {
            return;
        }
        let arrives = self.now + 50_000 + self.dice.below(2 * MS);
        self.sent += 1;
        self.under_way.push(Reverse((arrives, self.sent, to, from, self.now, word)));
    }

    fn give(&mut self, host: Host, input: Input) {
        let machine = &mut self.machines[usize::from(host)];
        let mut out = Vec::new();
        machine.ring.step(self.now - machine.began, input, &mut out);
        for output in out {
            match output {
                Output::Probe(to) => self.post(host, to, Word::Probe(self.now)),
                Output::Tell { to, about, suspects } => self.post(host, to, Word::Opinion(about, suspects)),
                Output::TellFenced { to, about, done } => self.post(host, to, Word::Fenced(about, done)),
                Output::Failed(about) => self.check(host, about),
                Output::Fence(about) => {
                    self.fenced.push((self.now, host, about));
                    self.give(host, Input::Fenced { from: host, about, done: true });
                }
                Output::Recovered(_) => {}
            }
        }
    }

    fn check(&mut self, by: Host, about: Host) {
        let ms = self.now / MS;
        let away = self.away[usize::from(about)];
        if away.is_none_or(|last| self.now - last > EXCUSED) {
            self.wrong.push(format!("{ms} ms: {by} declares {about}, which is healthy and reachable"));
        }
        let failed = self.machines[usize::from(by)].ring.failed().len();
        if failed * 2 >= self.machines.len() {
            self.wrong.push(format!("{ms} ms: {by} takes a majority, {failed} hosts, for failed"));
        }
    }

    /// For so long: what comes first is dealt with first.
    fn run(&mut self, length: u64) {
        let end = self.now + length;
        loop {
            let tick = self.machines.iter().map(|machine| machine.next_tick.max(machine.stopped_until)).min();
            let arrival = self.under_way.peek().map(|next| next.0.0);
            let at = tick.unwrap_or(end).min(arrival.unwrap_or(end)).max(self.now);
            if at >= end {
                self.now = end;
                return self.note_away();
            }
            self.now = at;
            self.note_away();
            if arrival.is_some_and(|arrival| arrival <= at) {
                if let Some(Reverse((_, number, to, from, sent, word))) = self.under_way.pop() {
                    self.arrive(number, to, from, sent, word);
                }
                continue;
            }
            for host in 0..self.count() {
                let jitter = self.dice.below(2 * MS);
                let machine = &mut self.machines[usize::from(host)];
                if machine.next_tick.max(machine.stopped_until) <= at {
                    machine.next_tick = at + PERIOD + jitter;
                    if !machine.dead {
                        self.give(host, Input::Tick);
                    }
                }
            }
        }
    }

    fn arrive(&mut self, number: u64, to: Host, from: Host, sent: u64, word: Word) {
        let machine = &self.machines[usize::from(to)];
        if machine.dead || sent < machine.began {
            return;
        }
        if machine.stopped_until > self.now {
            // It waits in the socket, behind the tick that is late.
            let later = machine.stopped_until + 1000;
            self.under_way.push(Reverse((later, number, to, from, sent, word)));
            return;
        }
        // What waited for too long is not new: the driver leaves it out.
        let is_new = self.now - sent <= 10 * PERIOD;
        match word {
            Word::Probe(nonce) => {
                self.post(to, from, Word::Answer(nonce));
                if is_new {
                    self.give(to, Input::Heard(from));
                }
            }
            Word::Answer(nonce) if is_new => {
                self.give(to, Input::Answer { host: from, progress: nonce.max(1) });
            }
            Word::Opinion(about, suspects) if is_new => {
                self.give(to, Input::Opinion { from, about, suspects });
            }
            Word::Fenced(about, done) if is_new => self.give(to, Input::Fenced { from, about, done }),
            _ => {}
        }
    }

    fn all_in(&mut self, part: impl Fn(usize) -> usize) {
        self.machines.iter_mut().enumerate().for_each(|(number, machine)| machine.part = part(number));
    }

    /// Heals host by host, within some time.
    fn heal(&mut self, within: u64) {
        for host in 0..self.machines.len() {
            self.machines[host].part = 0;
            let pause = self.dice.below(within / self.machines.len() as u64 + 1);
            self.run(pause);
        }
    }

    fn begin_anew(&mut self, host: Host) {
        let ring = self.ring(host, self.count());
        let machine = &mut self.machines[usize::from(host)];
        (machine.ring, machine.began, machine.next_tick) = (ring, self.now, self.now + MS);
        machine.dead = false;
    }

    fn trouble(&mut self) {
        let hosts = self.machines.len();
        let one = self.dice.below(hosts as u64) as usize;
        match self.dice.below(8) {
            // The switch between all is away.
            0 => {
                self.all_in(|number| number);
                let length = (30 + self.dice.below(2500)) * MS;
                self.run(length);
                self.heal(60 * MS);
            }
            // It flaps.
            1 => {
                for _ in 0..2 + self.dice.below(8) {
                    self.all_in(|number| number);
                    let (off, on) = (10 + self.dice.below(250), 10 + self.dice.below(250));
                    self.run(off * MS);
                    self.all_in(|_| 0);
                    self.run(on * MS);
                }
            }
            // Halves.
            2 => {
                let at = hosts / 2 + self.dice.below(2) as usize;
                self.all_in(|number| usize::from(number >= at));
                let length = (30 + self.dice.below(2500)) * MS;
                self.run(length);
                self.heal(60 * MS);
            }
            // One host is cut off.
            3 => {
                self.machines[one].part = 1;
                let length = (10 + self.dice.below(1500)) * MS;
                self.run(length);
                self.all_in(|_| 0);
            }
            // One processor for all, which somebody else has for a while.
            4 => {
                for _ in 0..4 {
                    let length = (40 + self.dice.below(140)) * MS;
                    for machine in &mut self.machines {
                        machine.stopped_until = self.now + length;
                    }
                    self.run(length + 20 * MS);
                }
            }
            // One stops, for long or not.
            5 => {
                let length = (30 + self.dice.below(2000)) * MS;
                self.machines[one].stopped_until = self.now + length;
                self.run(length + 20 * MS);
            }
            // A monitor begins anew, with a young clock.
            6 => self.begin_anew(one as Host),
            // All are cut off while they are late.
            _ => {
                self.all_in(|number| number);
                self.run(90 * MS);
                for machine in &mut self.machines {
                    machine.stopped_until = self.now + 130 * MS;
                }
                self.run(60 * MS);
                self.all_in(|_| 0);
                self.run(200 * MS);
            }
        }
        let rest = self.dice.below(1500) * MS;
        self.run(rest);
    }

    /// A host dies in quiet: it is declared by all others, and fenced by one, once. Then it is back.
    fn death(&mut self) {
        self.run(5000 * MS);
        let one = self.dice.below(self.machines.len() as u64) as Host;
        let before = self.fenced.len();
        self.machines[usize::from(one)].dead = true;
        self.run(4000 * MS);
        let ms = self.now / MS;
        for (host, machine) in self.machines.iter().enumerate() {
            if host != usize::from(one) && !machine.ring.failed().contains(&one) {
                let standing = machine.ring.standing();
                self.wrong.push(format!("{ms} ms: {host} ({standing:?}) does not know that {one} is dead"));
            }
        }
        let fences: Vec<_> = self.fenced[before..].to_vec();
        if fences.len() != 1 || fences[0].2 != one {
            self.wrong.push(format!("{one} is dead; fenced were (when, by whom, whom) {fences:?}"));
        }
        self.begin_anew(one);
        self.run(2000 * MS);
    }
}

/// What went wrong in a whole run.
fn wrongs(seed: u64, less: Less) -> Vec<String> {
    let mut dice = Dice(seed);
    let hosts = [3, 3, 5, 7][dice.below(4) as usize];
    let k = if hosts > 3 { 1 + dice.below(2) as usize } else { 1 };
    let mut simulation = Simulation::new(hosts, k, seed, less);
    simulation.run(1000 * MS);
    for _ in 0..4 {
        simulation.trouble();
    }
    simulation.death();
    simulation.trouble();
    simulation.run(8000 * MS);
    for (host, machine) in simulation.machines.iter().enumerate() {
        let (failed, standing) = (machine.ring.failed(), machine.ring.standing());
        if !failed.is_empty() || standing != Standing::Steady {
            simulation
                .wrong
                .push(format!("in the end {host} is {standing:?} and takes {failed:?} for failed"));
        }
    }
    simulation.wrong
}

#[test]
fn nobody_healthy_is_declared_and_who_dies_is_fenced_once() {
    let all = (0..SEEDS).map(|seed| (seed, wrongs(seed, Less::default())));
    let bad: Vec<_> = all.filter(|(_, wrong)| !wrong.is_empty()).collect();
    assert!(bad.is_empty(), "{} of {SEEDS} seeds: {:#?}", bad.len(), &bad[..bad.len().min(3)]);
}

/// What the rules are for: the same troubles without them.
#[test]
fn without_the_rules_somebody_healthy_is_declared() {
    let less = Less { late: true, alone: true, trust: true, at_once: true };
    let harms = |wrong: &String| wrong.contains("healthy and reachable") || wrong.contains("a majority");
    let harmed = (0..SEEDS).any(|seed| wrongs(seed, less).iter().any(harms));
    assert!(harmed, "over {SEEDS} seeds nobody is harmed without them");
}

/// Ticks of a host whose two neighbours are heard before each, as far as `heard` says.
fn ticks(hearing: &mut hearing::Hearing, from: u64, count: u64, heard: bool) -> Standing {
    let mut standing = Standing::Alone;
    for at in 1..=count {
        let now = from + at * PERIOD;
        if heard {
            hearing.hears(now, 1);
            hearing.hears(now, 2);
        }
        standing = hearing.tick(now, [1, 2].into_iter());
    }
    standing
}

fn steady() -> hearing::Hearing {
    let settings = Settings { period_ns: PERIOD, periods: PATIENCE, watch_ns: 0 };
    let mut hearing = hearing::Hearing::new(settings);
    assert_eq!(ticks(&mut hearing, 0, 5, true), Standing::Unsteady, "it has not been there for long");
    assert_eq!(ticks(&mut hearing, 5 * PERIOD, 25, true), Standing::Steady);
    hearing
}

#[test]
fn who_was_late_itself_judges_nobody_for_a_while() {
    for (without, after) in [(false, Standing::Unsteady), (true, Standing::Steady)] {
        let mut hearing = steady();
        hearing.without = [without, false];
        // Two periods and a half are half of the silence that makes suspect.
        assert_eq!(ticks(&mut hearing, 33 * PERIOD, 1, true), after);
    }
    let mut hearing = steady();
    assert_eq!(ticks(&mut hearing, 33 * PERIOD, 15, true), Standing::Steady, "it has been on time since");
}

#[test]
fn who_hears_no_majority_is_alone_and_judges_nobody_for_a_while() {
    for (without, after) in [(false, Standing::Alone), (true, Standing::Steady)] {
        let mut hearing = steady();
        hearing.without = [false, without];
        assert_eq!(ticks(&mut hearing, 30 * PERIOD, 6, false), after);
    }
    let mut hearing = steady();
    ticks(&mut hearing, 30 * PERIOD, 6, false);
    assert_eq!(ticks(&mut hearing, 36 * PERIOD, 3, true), Standing::Unsteady);
    assert_eq!(ticks(&mut hearing, 39 * PERIOD, 12, true), Standing::Steady);
}

#[test]
fn who_comes_back_is_believed_after_some_periods() {
    let mut hearing = steady();
    assert!(hearing.counts(30 * PERIOD, 1));
    ticks(&mut hearing, 30 * PERIOD, 6, false);
    assert!(!hearing.is_heard(36 * PERIOD, 1));
    ticks(&mut hearing, 36 * PERIOD, 3, true);
    assert!(hearing.is_heard(39 * PERIOD, 1) && !hearing.counts(39 * PERIOD, 1));
    ticks(&mut hearing, 39 * PERIOD, 12, true);
    assert!(hearing.counts(51 * PERIOD, 1));
}
