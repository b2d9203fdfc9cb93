//! A ring of monitors (Bohra, 3.5.1, figure 3.6; row O): each host watches its k+1 next living hosts, so that every host is
//! watched by k+1 others and k of them may fail at once.
//!
//! ```text
//!  h1 ─► h2 ─► h3 ─► h4 ─► h1     k = 1: h1 watches h2 and h3, h2 watches h3 and h4, …
//! ```
//!
//! A watcher probes and feeds the answers into a [`Detector`]. When that fails a host, it is suspected, and the suspicion is
//! told to all. The host is declared failed when more than half of those who should watch it now suspect it; so one watcher
//! whose own link is broken declares nobody, and a declaration is the same everywhere. Then the ring closes around it, and
//! its watchers take over its part. A host that answers again is taken back.
//!
//! Departures from the paper: it assumes reports of power failures and a network without loss; here the votes of several
//! watchers stand for both.
//!
//! It is a step machine: inputs and times come in, outputs go out; it knows no clock and no socket. What joins it to the
//! network is [`crate::remote`].
//!
//! Invariants
//! - A host never declares itself, nor a host that answers it.
//! - Suspicions are as many as hosts squared, and hosts are at most [`HOSTS_MAX`].

use crate::detector::{Decision, Detector, Settings, State};
use std::collections::{BTreeMap, BTreeSet};

/// Most hosts of a ring.
pub const HOSTS_MAX: usize = 256;

/// For so many periods an opinion holds that is not told again.
const OPINION_PERIODS: u64 = 10;

/// A host, by its number in the ring.
pub type Host = u16;

/// What comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Time has passed.
    Tick,
    /// A host answered a probe with its counter of progress.
    Answer {
        /// Who.
        host: Host,
        /// Its counter.
        progress: u64,
    },
    /// A host says whether it suspects another.
    Opinion {
        /// Who says so.
        from: Host,
        /// About whom.
        about: Host,
        /// Whether it suspects it.
        suspects: bool,
    },
}

/// What goes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Ask a host for its counter.
    Probe(Host),
    /// Tell a host what this one thinks of another.
    Tell {
        /// Whom.
        to: Host,
        /// About whom.
        about: Host,
        /// Whether it is suspected.
        suspects: bool,
    },
    /// A host failed: fence it, then fail over.
    Failed(Host),
    /// A host that was declared failed answers again.
    Recovered(Host),
}

/// A host's part in the ring.
#[derive(Clone, Debug)]
pub struct Ring {
    own: Host,
    hosts: BTreeSet<Host>,
    /// So many of a host's watchers may fail.
    k: usize,
    settings: Settings,
    failed: BTreeSet<Host>,
    watched: BTreeMap<Host, (Detector, u64)>,
    /// Who suspects whom, the suspected first, and when that was last heard, ns.
    suspicions: BTreeMap<(Host, Host), u64>,
}

impl Ring {
    /// The part of `own` in a ring of these hosts; hosts beyond [`HOSTS_MAX`] are left out.
    pub fn new(own: Host, hosts: impl IntoIterator<Item = Host>, k: usize, settings: Settings) -> Ring {
        let mut hosts: BTreeSet<Host> = hosts.into_iter().take(HOSTS_MAX).collect();
        hosts.insert(own);
        let mut ring = Ring {
            own,
            hosts,
            k,
            settings,
            failed: BTreeSet::new(),
            watched: BTreeMap::new(),
            suspicions: BTreeMap::new(),
        };
        ring.close();
        ring
    }

    /// The hosts that this one takes for failed.
    pub fn failed(&self) -> &BTreeSet<Host> {
        &self.failed
    }

    /// The hosts that this one watches, with their accrual levels.
    pub fn watched(&self, now_ns: u64) -> Vec<(Host, f64)> {
        self.watched.iter().map(|(host, (detector, _))| (*host, detector.level(now_ns))).collect()
    }

    /// The k+1 living hosts that come after (or, backwards, before) a host, without itself.
    fn neighbours(&self, host: Host, backwards: bool) -> Vec<Host> {
        let living = |other: &&Host| **other != host && !self.failed.contains(other);
        let after = self.hosts.range(host..).chain(self.hosts.range(..host)).filter(living);
        match backwards {
            false => after.take(self.k + 1).copied().collect(),
            true => after.rev().take(self.k + 1).copied().collect(),
        }
    }

    /// Watches whom this host has to watch now: its living successors, and the failed ones among them, to take them back.
    fn close(&mut self) {
        let mut wanted: BTreeSet<Host> = self.neighbours(self.own, false).into_iter().collect();
        wanted
            .extend(self.failed.iter().filter(|failed| self.neighbours(**failed, true).contains(&self.own)));
        self.watched.retain(|host, _| wanted.contains(host));
        for host in wanted {
            self.watched.entry(host).or_insert_with(|| (Detector::new(self.settings), 0));
        }
    }

    /// One step.
    pub fn step(&mut self, now_ns: u64, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Tick => self.tick(now_ns, out),
            Input::Answer { host, progress } => {
                if let Some((_, newest)) = self.watched.get_mut(&host) {
                    *newest = progress.max(1);
                }
                self.look(now_ns, host, out);
            }
            Input::Opinion { from, about, suspects } => {
                let known = self.hosts.contains(&from) && self.hosts.contains(&about) && from != self.own;
                if known && from != about {
                    match suspects {
                        true => self.suspicions.insert((about, from), now_ns),
                        false => self.suspicions.remove(&(about, from)),
                    };
                    self.judge(about, out);
                }
            }
        }
    }

    fn tick(&mut self, now_ns: u64, out: &mut Vec<Output>) {
        let watched: Vec<Host> = self.watched.keys().copied().collect();
        for host in watched {
            out.push(Output::Probe(host));
            self.look(now_ns, host, out);
        }
        // Opinions may be lost on the way: what is suspected is told again,
        let own: Vec<Host> =
            self.suspicions.keys().filter(|(_, from)| *from == self.own).map(|(about, _)| *about).collect();
        for about in own {
            self.tell(about, true, out);
        }
        // and what is not told again is suspected no more.
        let since = now_ns.saturating_sub(self.settings.period_ns.saturating_mul(OPINION_PERIODS));
        let stale =
            |(pair, heard): (&(Host, Host), &u64)| (pair.1 != self.own && *heard < since).then_some(*pair);
        let old: Vec<(Host, Host)> = self.suspicions.iter().filter_map(stale).collect();
        for (about, from) in old {
            self.suspicions.remove(&(about, from));
            self.judge(about, out);
        }
        // Who was suspected only by hosts that failed themselves has lost those votes, and nobody speaks of it any more.
        for about in self.failed.clone() {
            self.judge(about, out);
        }
    }

    fn tell(&self, about: Host, suspects: bool, out: &mut Vec<Output>) {
        let others = self.hosts.iter().filter(|host| **host != self.own && **host != about);
        out.extend(others.map(|to| Output::Tell { to: *to, about, suspects }));
    }

    fn look(&mut self, now_ns: u64, host: Host, out: &mut Vec<Output>) {
        let Some((detector, newest)) = self.watched.get_mut(&host) else { return };
        match detector.observe(now_ns, *newest) {
            Decision::Failed => {
                self.suspicions.insert((host, self.own), now_ns);
                self.tell(host, true, out);
                self.judge(host, out);
            }
            Decision::Recovered => {
                self.suspicions.remove(&(host, self.own));
                self.tell(host, false, out);
                self.judge(host, out);
            }
            Decision::Nothing | Decision::Stimulate => {}
        }
    }

    /// Whether enough of a host's watchers suspect it.
    fn judge(&mut self, about: Host, out: &mut Vec<Output>) {
        if about == self.own {
            return;
        }
        let answers = self.watched.get(&about).is_some_and(|(detector, _)| detector.state() != State::Failed);
        let watchers = self.neighbours(about, true);
        let votes =
            watchers.iter().filter(|watcher| self.suspicions.contains_key(&(about, **watcher))).count();
        let failed = votes * 2 > watchers.len() && !answers;
        if failed && self.failed.insert(about) {
            // What a failed host thinks counts no more.
            self.suspicions.retain(|(_, from), _| *from != about);
            out.push(Output::Failed(about));
        } else if !failed && votes == 0 && self.failed.remove(&about) {
            out.push(Output::Recovered(about));
        } else {
            return;
        }
        self.close();
        // The watchers of others are others now.
        let suspected: BTreeSet<Host> = self.suspicions.keys().map(|(about, _)| *about).collect();
        for other in suspected {
            self.judge(other, out);
        }
    }
}

#[cfg(test)]
mod tests;
