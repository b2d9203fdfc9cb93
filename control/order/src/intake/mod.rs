//! Leaderless intake of events (row R4): a source sends its signed event to every replica, and each is ordered once.
//!
//! Two halves. [`Ordered`] is deterministic and belongs to the replicated state: it accepts of each source the sequences 1, 2,
//! 3 and so on, each once, whoever proposed them and however often. [`Intake`] is what one replica remembers for
//! itself: the events that it saw and that are not ordered yet. The replica that leads proposes what it holds; the others
//! wait, and when an event is not ordered in time they forward it to the leader, or propose it when they lead by
//! then. So an event gets into the order as long as one replica that works has it, and no leader can leave it out unseen.
//!
//! Invariants
//! - An event takes effect at most once, and events of one source in their order.
//! - Of each source at most [`IntakeSettings::window`] events behind the last ordered one are held, and all together at most
//!   [`IntakeSettings::held_bytes_max`] bytes. What does not fit is dropped and counted; its source sends again. What a source's order needs next
//!   makes room for itself.
//! - Nothing without a right signature is held, forwarded or proposed.
//!
//! A pure core: `step` takes an input and says what to do.
//!
//! Departure from R4: the paper's replicas drop duplicates by unique ids that they remember for ever; here by a sequence a
//! source, which is one number to remember.

mod event;
mod ordered;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use bytes::Bytes;

pub use event::{EVENT_OVERHEAD_BYTES, SignedEvent, Source, Verify};
pub use ordered::{Dropped, Ordered, OrderedCounters};

/// Limits of an intake.
#[derive(Debug, Clone, Copy)]
pub struct IntakeSettings {
    /// Events of one source that may wait.
    pub window: u64,
    /// Bytes of all events that may wait.
    pub held_bytes_max: usize,
    /// Bytes of one event's payload.
    pub payload_bytes_max: usize,
    /// After how long an event that is not ordered is forwarded, or proposed again, in ns.
    pub patience_ns: u64,
}

impl Default for IntakeSettings {
    fn default() -> Self {
        IntakeSettings {
            window: 1024,
            held_bytes_max: 64 << 20,
            payload_bytes_max: 1 << 20,
            patience_ns: 500_000_000,
        }
    }
}

/// Counts of an intake.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IntakeCounters {
    /// Events taken.
    pub held: u64,
    /// Events that were ordered, or held, already.
    pub duplicates: u64,
    /// Events too far ahead of their source's last ordered one.
    pub ahead: u64,
    /// Events with a wrong signature.
    pub signatures: u64,
    /// Events that are too large.
    pub large: u64,
    /// Events for which there was no room.
    pub full: u64,
    /// Events that made room for one that its source's order needs next.
    pub evicted: u64,
    /// Proposals.
    pub proposed: u64,
    /// Events forwarded.
    pub forwarded: u64,
}

/// What happens.
#[derive(Debug)]
pub enum Input<'a> {
    /// A source, or another replica, sent an event.
    Event {
        /// The event.
        event: SignedEvent,
        /// The time now.
        now_ns: u64,
    },
    /// The state has moved on: events of these sources were ordered.
    Ordered {
        /// The state.
        ordered: &'a Ordered,
        /// Whose last sequence has changed.
        sources: &'a [Source],
        /// The time now.
        now_ns: u64,
    },
    /// Who leads has changed.
    Leader {
        /// Whether this replica does.
        leads: bool,
        /// The time now.
        now_ns: u64,
    },
    /// Time passed.
    Tick {
        /// The time now.
        now_ns: u64,
    },
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Propose this operation. Its fate need not be reported: what is not ordered in time is proposed again.
    Propose {
        /// The event's bytes.
        operation: Bytes,
    },
    /// Send this event to the leader, or to all when none is known.
    Forward {
        /// The event's bytes.
        operation: Bytes,
    },
    /// Tell the source that its events up to this one are ordered.
    Ordered {
        /// Who.
        source: Source,
        /// The last one.
        sequence: u64,
    },
}

struct Held {
    bytes: Bytes,
    /// When it was last proposed, forwarded, or else came.
    since_ns: u64,
    /// Whether this replica has proposed it in this leadership.
    proposed: bool,
}

#[derive(Default)]
struct OfSource {
    last: u64,
    held: BTreeMap<u64, Held>,
}

/// The events that one replica holds.
pub struct Intake<V> {
    settings: IntakeSettings,
    verify: V,
    leads: bool,
    sources: BTreeMap<Source, OfSource>,
    held_bytes: usize,
    counters: IntakeCounters,
}

impl<V: Verify> Intake<V> {
    /// Holds nothing.
    pub fn new(settings: IntakeSettings, verify: V) -> Intake<V> {
        let (sources, counters) = (BTreeMap::new(), IntakeCounters::default());
        Intake { settings, verify, leads: false, sources, held_bytes: 0, counters }
    }

    /// What was counted.
    pub fn counters(&self) -> IntakeCounters {
        self.counters
    }

    /// Bytes held.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// When to send [`Input::Tick`] at the latest.
    pub fn wake_at_ns(&self) -> Option<u64> {
        let oldest =
            self.sources.values().flat_map(|source| source.held.values()).map(|held| held.since_ns).min();
        oldest.map(|since_ns| since_ns.saturating_add(self.settings.patience_ns))
    }

    /// The next step.
    pub fn step(&mut self, input: Input<'_>, out: &mut Vec<Output>) {
        match input {
            Input::Event { event, now_ns } => self.event(event, now_ns, out),
            Input::Ordered { ordered, sources, now_ns } => {
                for source in sources {
                    self.ordered(source, ordered.last(source), now_ns, out);
                }
            }
            Input::Leader { leads, now_ns } => {
                self.leads = leads;
                let all: Vec<Source> = self.sources.keys().copied().collect();
                for of_source in self.sources.values_mut() {
                    of_source.held.values_mut().for_each(|held| held.proposed = false);
                }
                if leads {
                    all.iter().for_each(|source| self.propose(source, now_ns, out));
                }
            }
            Input::Tick { now_ns } => self.tick(now_ns, out),
        }
    }

    fn event(&mut self, event: SignedEvent, now_ns: u64, out: &mut Vec<Output>) {
        let bytes = event.payload.len() + EVENT_OVERHEAD_BYTES;
        let known = self.sources.get(&event.source);
        let last = known.map_or(0, |source| source.last);
        let duplicate =
            event.sequence <= last || known.is_some_and(|source| source.held.contains_key(&event.sequence));
        let next_and_right = event.sequence == last + 1 && !duplicate && self.verify.is_right(&event);
        if next_and_right {
            self.make_room(bytes);
        }
        let counters = &mut self.counters;
        let refused = if duplicate {
            // Also when its signature is wrong: it changes nothing.
            Some(&mut counters.duplicates)
        } else if event.sequence > last + self.settings.window {
            Some(&mut counters.ahead)
        } else if event.payload.len() > self.settings.payload_bytes_max {
            Some(&mut counters.large)
        } else if self.held_bytes + bytes > self.settings.held_bytes_max {
            Some(&mut counters.full)
        } else if !next_and_right && !self.verify.is_right(&event) {
            Some(&mut counters.signatures)
        } else {
            None
        };
        if let Some(counter) = refused {
            *counter += 1;
            if event.sequence <= last {
                // The source has not heard it yet.
                out.push(Output::Ordered { source: event.source, sequence: last });
            }
            return;
        }
        self.counters.held += 1;
        self.held_bytes += bytes;
        let held = Held { bytes: event.encode(), since_ns: now_ns, proposed: false };
        self.sources.entry(event.source).or_default().held.insert(event.sequence, held);
        if self.leads {
            self.propose(&event.source, now_ns, out);
        }
    }

    /// Makes room for an event that its source's order needs next: else events that wait for it would keep it out for ever.
    /// What goes is what is furthest ahead, and never the only event of a source.
    fn make_room(&mut self, bytes: usize) {
        while self.held_bytes + bytes > self.settings.held_bytes_max {
            let most = self.sources.values_mut().max_by_key(|source| source.held.len());
            let furthest =
                most.filter(|source| source.held.len() > 1).and_then(|source| source.held.pop_last());
            let Some((_, held)) = furthest else { return };
            self.held_bytes -= held.bytes.len();
            self.counters.evicted += 1;
        }
    }

    /// Proposes what follows the last ordered event without a gap and was not proposed yet.
    fn propose(&mut self, source: &Source, now_ns: u64, out: &mut Vec<Output>) {
        let Some(of_source) = self.sources.get_mut(source) else { return };
        for (next, (sequence, held)) in (of_source.last + 1..).zip(&mut of_source.held) {
            if *sequence != next {
                break;
            }
            if !held.proposed {
                held.proposed = true;
                held.since_ns = now_ns;
                self.counters.proposed += 1;
                out.push(Output::Propose { operation: held.bytes.clone() });
            }
        }
    }

    fn ordered(&mut self, source: &Source, last: u64, now_ns: u64, out: &mut Vec<Output>) {
        let of_source = self.sources.entry(*source).or_default();
        if last <= of_source.last {
            return;
        }
        of_source.last = last;
        let rest = of_source.held.split_off(&(last + 1));
        for held in std::mem::replace(&mut of_source.held, rest).into_values() {
            self.held_bytes -= held.bytes.len();
        }
        out.push(Output::Ordered { source: *source, sequence: last });
        if self.leads {
            self.propose(source, now_ns, out);
        }
    }

    fn tick(&mut self, now_ns: u64, out: &mut Vec<Output>) {
        let patience_ns = self.settings.patience_ns;
        for of_source in self.sources.values_mut() {
            let mut next = of_source.last + 1;
            for (sequence, held) in &mut of_source.held {
                let follows = *sequence == next;
                next = sequence + 1;
                if held.since_ns.saturating_add(patience_ns) > now_ns {
                    continue;
                }
                held.since_ns = now_ns;
                let operation = held.bytes.clone();
                if !self.leads {
                    self.counters.forwarded += 1;
                    out.push(Output::Forward { operation });
                } else if follows {
                    // A run that is broken by a gap would be dropped by everybody.
                    self.counters.proposed += 1;
                    held.proposed = true;
                    out.push(Output::Propose { operation });
                } else {
                    break;
                }
            }
        }
    }
}
