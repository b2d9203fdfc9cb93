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
//! Who is fit to judge, and whose opinions count, says [`hearing`]: nobody who was late, or hears no majority of its neighbours. How many
//! may be declared at once, and which one host fences, says [`fencing`].
//!
//! Departures from the paper: it assumes reports of power failures and a network without loss; here the votes of several
//! watchers stand for both. More failures at once than k are declared by nobody: what takes them all away is the network.
//!
//! It is a step machine: inputs and times come in, outputs go out; it knows no clock and no socket. What joins it to the
//! network is [`crate::remote`].
//!
//! Invariants
//! - A host never declares itself, nor a host that answers it, nor a majority of the ring.
//! - It declares at its ticks only, and what it saw at the tick before, too: by then all that was said of that moment has come.
//! - Suspicions are as many as hosts squared, and hosts are at most [`HOSTS_MAX`].

pub mod fencing;
pub mod hearing;

use crate::detector::{Decision, Detector, Settings, State};
use fencing::Fencing;
use hearing::{Hearing, Standing};
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
    /// Something else of a host came, which it said just now.
    Heard(Host),
    /// A host says that it has fenced another, or that it cannot; this host's own word, too.
    Fenced {
        /// Who says so.
        from: Host,
        /// About whom.
        about: Host,
        /// Whether it did.
        done: bool,
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
    /// A host failed.
    Failed(Host),
    /// It is this host's turn to fence one that failed; what came of it comes back as [`Input::Fenced`].
    Fence(Host),
    /// Tell a host whether this one has fenced another.
    TellFenced {
        /// Whom.
        to: Host,
        /// About whom.
        about: Host,
        /// Whether it did.
        done: bool,
    },
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
    hearing: Hearing,
    fencing: Fencing,
    /// Who looked failed at the last tick.
    pending: BTreeSet<Host>,
    /// Rules that a test leaves out.
    #[cfg(test)]
    without: Without,
}

/// Rules that a test leaves out, to see that each is needed.
#[cfg(test)]
#[derive(Clone, Copy, Debug, Default)]
struct Without {
    trust: bool,
    at_once: bool,
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
            hearing: Hearing::new(settings),
            fencing: Fencing::new(settings.period_ns),
            pending: BTreeSet::new(),
            #[cfg(test)]
            without: Without::default(),
        };
        ring.close();
        ring
    }

    /// The hosts that this one takes for failed.
    pub fn failed(&self) -> &BTreeSet<Host> {
        &self.failed
    }

    /// How this host stands: whether it judges others.
    pub fn standing(&self) -> Standing {
        self.hearing.standing()
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

    /// The living hosts that this one should hear: whom it watches, and who watch it.
    fn circle(&self) -> BTreeSet<Host> {
        let both = [self.neighbours(self.own, false), self.neighbours(self.own, true)];
        both.into_iter().flatten().collect()
    }

    /// One step.
    pub fn step(&mut self, now_ns: u64, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Tick => self.tick(now_ns, out),
            Input::Heard(host) => self.hears(now_ns, host),
            Input::Answer { host, progress } => {
                self.hears(now_ns, host);
                if let Some((_, newest)) = self.watched.get_mut(&host) {
                    *newest = progress.max(1);
                }
                self.look(now_ns, host, out);
            }
            Input::Opinion { from, about, suspects } => {
                let known = self.hosts.contains(&from) && self.hosts.contains(&about) && from != self.own;
                if known && from != about {
                    self.hears(now_ns, from);
                    if !suspects {
                        self.suspicions.remove(&(about, from));
                    } else if self.believes(now_ns, from) {
                        self.suspicions.insert((about, from), now_ns);
                    }
                }
            }
            Input::Fenced { from, about, done } => {
                self.fencing.heard(from, about, done);
                if from == self.own {
                    let others = self.hosts.iter().filter(|host| **host != self.own && **host != about);
                    out.extend(others.map(|to| Output::TellFenced { to: *to, about, done }));
                }
            }
        }
    }

    fn hears(&mut self, now_ns: u64, host: Host) {
        if host != self.own && self.hosts.contains(&host) {
            self.hearing.hears(now_ns, host);
        }
    }

    /// Whether a host's suspicion counts. One that this host does not hear otherwise has judged itself by the same rules.
    fn believes(&self, now_ns: u64, from: Host) -> bool {
        #[cfg(test)]
        if self.without.trust {
            return true;
        }
        let is_near = self.circle().contains(&from);
        self.standing() == Standing::Steady && (!is_near || self.hearing.counts(now_ns, from))
    }

    fn tick(&mut self, now_ns: u64, out: &mut Vec<Output>) {
        let standing = self.hearing.tick(now_ns, self.circle().into_iter().collect::<Vec<_>>().into_iter());
        out.extend(self.watched.keys().map(|host| Output::Probe(*host)));
        if standing != Standing::Steady {
            return self.forget(now_ns, out);
        }
        let watched: Vec<Host> = self.watched.keys().copied().collect();
        watched.into_iter().for_each(|host| self.look(now_ns, host, out));
        self.suspect_the_silent(now_ns, out);
        // Opinions may be lost on the way: what is suspected is told again,
        let own: Vec<Host> =
            self.suspicions.keys().filter(|(_, from)| *from == self.own).map(|(about, _)| *about).collect();
        own.into_iter().for_each(|about| self.tell(about, true, out));
        // and what is not told again is suspected no more.
        let since = now_ns.saturating_sub(self.settings.period_ns.saturating_mul(OPINION_PERIODS));
        self.suspicions.retain(|(_, from), heard| *from == self.own || *heard >= since);
        self.judge(now_ns, out);
        let turns = {
            let Ring { fencing, hosts, failed, own, .. } = self;
            let living = |host: &&Host| !failed.contains(host);
            let before = |about: Host| -> Vec<Host> {
                hosts.range(..about).rev().chain(hosts.range(about..).rev()).filter(living).copied().collect()
            };
            fencing.turns(now_ns, *own, before)
        };
        out.extend(turns.into_iter().map(Output::Fence));
    }

    /// With one that it suspects a host suspects all that are silent: behind a cut all of them are, though a detector that has been wrong
    /// waits longer than another. So whoever judges sees at once how many are away. Who is heard again is suspected no more.
    fn suspect_the_silent(&mut self, now_ns: u64, out: &mut Vec<Output>) {
        #[cfg(test)]
        if self.without.at_once {
            return;
        }
        let own = self.own;
        let is_back = |about: Host| self.answers(about) && self.hearing.is_heard(now_ns, about);
        let of_own = self.suspicions.keys().filter(|(_, from)| *from == own).map(|(about, _)| *about);
        let back: Vec<Host> = of_own.filter(|about| is_back(*about)).collect();
        for about in back {
            self.suspicions.remove(&(about, own));
            self.tell(about, false, out);
        }
        if !self.suspicions.keys().any(|(about, from)| *from == own && !self.failed.contains(about)) {
            return;
        }
        let is_silent = |host: Host| {
            let is_known = self.failed.contains(&host) || self.suspects(own, host);
            !is_known && !self.hearing.is_heard(now_ns, host)
        };
        let silent: Vec<Host> = self.watched.keys().copied().filter(|host| is_silent(*host)).collect();
        for host in silent {
            self.suspicions.insert((host, own), now_ns);
            self.tell(host, true, out);
        }
    }

    /// Takes back what this host suspects, but for those that are declared.
    fn withdraw(&mut self, out: &mut Vec<Output>) {
        let is_void = |(about, from): &&(Host, Host)| *from == self.own && !self.failed.contains(about);
        let void: Vec<(Host, Host)> = self.suspicions.keys().filter(is_void).copied().collect();
        for (about, from) in void {
            self.suspicions.remove(&(about, from));
            self.tell(about, false, out);
            if let Some((detector, _)) = self.watched.get_mut(&about) {
                *detector = Detector::new(self.settings);
            }
        }
    }

    /// What an unfit host suspected is void, but for those that are declared: they are taken back when they answer. Whom it watches it watches
    /// anew.
    fn forget(&mut self, now_ns: u64, out: &mut Vec<Output>) {
        self.withdraw(out);
        self.pending.clear();
        let failed = &self.failed;
        self.suspicions.retain(|(about, _), _| failed.contains(about));
        self.suspicions.values_mut().for_each(|heard| *heard = now_ns);
        for (host, (detector, _)) in &mut self.watched {
            if !self.failed.contains(host) {
                *detector = Detector::new(self.settings);
            }
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
            }
            Decision::Recovered => {
                self.suspicions.remove(&(host, self.own));
                self.tell(host, false, out);
            }
            Decision::Nothing | Decision::Stimulate => {}
        }
    }

    fn suspects(&self, from: Host, about: Host) -> bool {
        self.suspicions.contains_key(&(about, from))
    }

    /// Whether a host looks failed to those of its watchers that nobody suspects: a majority of all of them is needed to declare it, but
    /// where a part of the ring is cut off those behind the cut cannot say so.
    fn looks_failed(&self, about: Host) -> bool {
        let is_suspected =
            |host: &Host| self.suspicions.range((*host, 0)..=(*host, Host::MAX)).next().is_some();
        let watchers = self.neighbours(about, true);
        let credible: Vec<Host> = watchers.into_iter().filter(|host| !is_suspected(host)).collect();
        let votes = credible.iter().filter(|watcher| self.suspects(**watcher, about)).count();
        if credible.is_empty() { is_suspected(&about) } else { votes * 2 > credible.len() }
    }

    /// Declares who failed, and takes back who did not.
    fn judge(&mut self, now_ns: u64, out: &mut Vec<Output>) {
        let back: Vec<Host> = self.failed.iter().filter(|host| self.is_back(**host)).copied().collect();
        for host in back {
            self.failed.remove(&host);
            self.fencing.recovered(host);
            out.push(Output::Recovered(host));
            self.close();
        }
        let suspected: BTreeSet<Host> = self.suspicions.keys().map(|(about, _)| *about).collect();
        let undeclared: BTreeSet<Host> = suspected.difference(&self.failed).copied().collect();
        // What others say of the same moment comes within a period.
        let fallen: BTreeSet<Host> = undeclared.into_iter().filter(|host| self.has_failed(*host)).collect();
        let pending = std::mem::replace(&mut self.pending, fallen.clone());
        #[cfg(test)]
        let pending = if self.without.at_once { fallen.clone() } else { pending };
        for host in fallen.intersection(&pending).copied() {
            let down =
                self.hosts.iter().filter(|host| !self.failed.contains(host) && self.looks_failed(**host));
            let may = self.fencing.may_declare(now_ns, self.hosts.len(), self.k, down.count().max(1));
            #[cfg(test)]
            let may = may || self.without.at_once;
            if may && self.has_failed(host) {
                self.failed.insert(host);
                self.fencing.declared(now_ns, host);
                // What a failed host thinks counts no more.
                self.suspicions.retain(|(_, from), _| *from != host);
                out.push(Output::Failed(host));
                // The watchers of others are others now.
                self.close();
            }
        }
    }

    fn answers(&self, about: Host) -> bool {
        self.watched.get(&about).is_some_and(|(detector, _)| detector.state() != State::Failed)
    }

    fn votes(&self, about: Host) -> (usize, usize) {
        let watchers = self.neighbours(about, true);
        (watchers.iter().filter(|watcher| self.suspects(**watcher, about)).count(), watchers.len())
    }

    /// Whether enough of a host's watchers suspect it.
    fn has_failed(&self, about: Host) -> bool {
        let (votes, watchers) = self.votes(about);
        about != self.own && votes * 2 > watchers && !self.answers(about)
    }

    /// Whether none of its watchers suspects it any more. Nobody speaks of a host that was suspected only by hosts that failed themselves.
    fn is_back(&self, about: Host) -> bool {
        let answered = |newest: u64| newest > 0 && self.answers(about);
        self.votes(about).0 == 0 && self.watched.get(&about).is_none_or(|(_, newest)| answered(*newest))
    }
}

#[cfg(test)]
mod tests;
