//! Which call has which place in the slots of sessions (NFSv4.1).
//!
//! A server answers what comes in a place that is taken with what it has answered there, and need not look whether it is the same
//! call (RFC 8881, 2.10.6.1.3.1). Policies judge what is asked now: so an answer to what another user, or another machine, has
//! asked would pass by them. What is not the call that has taken the place is answered with `NFS4ERR_SEQ_FALSE_RETRY`, and does not
//! reach the server.

use crate::proxy::retransmit::Key;
use crate::wire::nfs4::arguments::Argument;
use crate::wire::nfs4::{Op4, SESSION_BYTES};
use crate::wire::xdr::get_u32;
use hashbrown::HashMap;
use std::sync::{Mutex, PoisonError};

/// Most slots that are remembered; half of them are forgotten when there are more.
pub const SLOTS_MAX: usize = 65_536;

/// Most calls on their way to one slot that are remembered; a client sends the next one when the one before is answered.
const COMING_MAX: usize = 4;

/// A slot of a session.
pub type Slot = ([u8; SESSION_BYTES], u32);

/// A place in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    slot: Slot,
    number: u32,
}

impl Place {
    /// The place that a COMPOUND's first operation names, if it is a SEQUENCE.
    pub fn of(first: Option<&Argument>, record: &[u8]) -> Option<Place> {
        let first = first.filter(|first| first.op == Op4::Sequence)?;
        let at = first.start + 4;
        let session = record.get(at..at + SESSION_BYTES)?.try_into().ok()?;
        let [number, slot] = [0, 4].map(|word| get_u32(record, at + SESSION_BYTES + word));
        Some(Place { slot: (session, slot), number })
    }
}

/// A call, and the number of its place in a slot.
type Numbered = (u32, Key);

/// What is known of a slot.
#[derive(Clone, Debug, Default)]
struct Known {
    /// The call that the server has let have its place last: it remembers its answer.
    placed: Option<Numbered>,
    /// Calls on their way to it, oldest first.
    coming: Vec<Numbered>,
}

type Taken = HashMap<Slot, Known>;

#[derive(Debug, Default)]
struct Generations {
    young: Taken,
    old: Taken,
}

/// The places that are taken.
#[derive(Debug, Default)]
pub struct Slots(Mutex<Generations>);

impl Slots {
    fn with<T>(&self, slot: Slot, work: impl FnOnce(&mut Known) -> T) -> T {
        let mut generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Generations { young, old } = &mut *generations;
        if young.len() >= SLOTS_MAX / 2 && !young.contains_key(&slot) {
            *old = std::mem::take(young);
        }
        work(young.entry(slot).or_insert_with(|| old.remove(&slot).unwrap_or_default()))
    }

    /// A call is to go to its place; false if another call has it.
    pub fn take(&self, place: Place, call: Key) -> bool {
        self.with(place.slot, |known| {
            let there = known.placed.iter().chain(&known.coming).find(|(number, _)| *number == place.number);
            if let Some((_, other)) = there {
                return *other == call;
            }
            if known.coming.len() == COMING_MAX {
                known.coming.remove(0);
            }
            known.coming.push((place.number, call));
            true
        })
    }

    /// The server has answered a call, and has let it have its place or not.
    pub fn answered(&self, place: Place, call: Key, placed: bool) {
        self.with(place.slot, |known| {
            known.coming.retain(|coming| *coming != (place.number, call));
            if placed {
                known.placed = Some((place.number, call));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(slot: u32, number: u32) -> Place {
        Place { slot: ([7; SESSION_BYTES], slot), number }
    }

    #[test]
    fn a_place_is_one_calls_until_the_server_has_refused_it_or_has_given_the_next_one() {
        let slots = Slots::default();
        let (call, other) = ((1, 1), (1, 2));
        assert!(slots.take(place(0, 5), call) && slots.take(place(0, 5), call));
        assert!(!slots.take(place(0, 5), other));
        assert!(slots.take(place(1, 5), other), "another slot");
        slots.answered(place(0, 5), call, true);
        // Whoever asks for places that there are not yet frees none that is taken.
        for number in 7..7 + 2 * COMING_MAX as u32 {
            assert!(slots.take(place(0, number), other));
            slots.answered(place(0, number), other, false);
        }
        assert!(!slots.take(place(0, 5), other) && slots.take(place(0, 5), call));
        for number in 7..7 + 2 * COMING_MAX as u32 {
            assert!(slots.take(place(0, number), other));
        }
        assert!(!slots.take(place(0, 5), other));
        assert!(slots.take(place(0, 6), call));
        slots.answered(place(0, 6), call, false);
        assert!(slots.take(place(0, 6), other));
        slots.answered(place(0, 6), other, true);
        assert!(!slots.take(place(0, 6), call));
    }

    #[test]
    fn slots_that_are_remembered_are_bounded() {
        let slots = Slots::default();
        for number in 0..SLOTS_MAX as u32 * 2 {
            assert!(slots.take(place(number, 1), (0, 0)));
            assert!(!slots.take(place(0, 1), (1, 1)), "what is asked for stays");
        }
        let generations = slots.0.lock().unwrap();
        assert!(generations.young.len() + generations.old.len() <= SLOTS_MAX);
    }
}
