//! A fault in the handling of one frame (row A29): it costs that frame, and the port that gives such a frame again; not the tenants of
//! a host.
//!
//! What was begun when a panic came is thrown away: the frame in hand and those read with it that were not judged yet. All that
//! outlives a frame (flows, ports, what is gathered for the underlay) is whole between two of them, and is kept.
//!
//! The second such frame of an endpoint's port has the port quarantined: it carries no traffic until its device or its entry is
//! set anew, and the next such frame after that has it quarantined at once. The outside of a gateway and the underlay are
//! everybody's, so there only the frames are lost.
//!
//! Departure: what a panic costs is one frame where frames are taken one by one, and at most a batch where they are taken in batches.

use super::counters::{EngineDrop, EngineEvent};
use super::hand::{Hand, NOBODY};
use super::path::Path;
use super::{EXTERNAL, Engine, Returned};
use weir_base::contain::Contained;

/// Frames of one port whose handling may fail before the port is quarantined.
pub const FAULTS_TO_QUARANTINE: u32 = 2;
/// Most ports whose faults are remembered.
pub(super) const PORTS_REMEMBERED: usize = 256;

/// A frame whose handling failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where it came from: a port, [`EXTERNAL`], or a number above for the underlay.
    pub class: usize,
    /// The frame, if it is known.
    pub frame: Vec<u8>,
    /// What failed.
    pub message: String,
    /// The port is quarantined.
    pub quarantined: bool,
}

impl Engine {
    /// Does something with frames from outside. A panic in it costs what it had in hand.
    #[inline]
    pub(super) fn contained<T: Default>(&mut self, work: impl FnOnce(&mut Engine) -> T) -> T {
        self.path.hold(NOBODY);
        match weir_base::contain::contain(|| work(self)) {
            Ok(done) => done,
            Err(contained) => {
                self.recover(contained);
                T::default()
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn recover(&mut self, contained: Contained) {
        let (class, frame) = self.path.let_go();
        let counters = &self.shared.counters;
        counters.event(EngineEvent::Contained).add(1);
        counters.dropped(EngineDrop::Fault).add(1, frame.len() as u64);
        let quarantined = class < EXTERNAL && {
            let faults = self.faults.iter_mut().find(|(port, _)| *port == class);
            let count = match faults {
                Some((_, count)) => {
                    *count = count.saturating_add(1);
                    *count
                }
                None => {
                    if self.faults.len() >= PORTS_REMEMBERED {
                        self.faults.remove(0);
                    }
                    self.faults.push((class, 1));
                    1
                }
            };
            count >= FAULTS_TO_QUARANTINE
        };
        if quarantined {
            self.path.ports.set_up(class, false, &self.poller);
            counters.event(EngineEvent::Quarantines).add(1);
        }
        self.give_back(Returned::Fault(Box::new(Fault {
            class,
            frame,
            message: contained.message,
            quarantined,
        })));
    }
}

impl Path {
    /// Throws away what was begun; returns the frame in hand, and where it came from.
    fn let_go(&mut self) -> (usize, Vec<u8>) {
        let (class, hand) = (self.hand_of, std::mem::take(&mut self.hand));
        let frame = match hand {
            Hand::Nothing => None,
            Hand::Arena { at, length } => self.in_arena(at, length),
            Hand::Received { at, length } => self.received(at, length),
        };
        let frame = frame.map(<[u8]>::to_vec).unwrap_or_default();
        self.begin_anew();
        (class, frame)
    }
}

#[cfg(test)]
mod tests;
