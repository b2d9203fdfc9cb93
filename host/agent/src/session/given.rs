//! Which controller's session gave the switch which updates, until it has acked them.
//!
//! Updates go to the switch as they come; its gate verifies them, here nothing is. When it calls one forged, this says
//! whose it was: that session alone is told (to the others it would say that what they sent is refused, for who forges may choose
//! key and version), and it is charged for it ([`super::conduct`]).
//!
//! A session has at most [`FRAMES_MAX`] frames under way to the switch; its stream is not read while it has
//! ([`Room`]). So what a flood has put before others' updates is bounded before the first verdict on it is here.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use weir_model::signed::SignedUpdates;
use weir_model::{Ack, Key, Version};

/// Frames of updates of one session that may be under way to the switch.
pub const FRAMES_MAX: usize = 32;
/// Updates under way that are remembered; the oldest frames are forgotten when there are more.
const UPDATES_MAX: usize = 262_144;
/// A frame that the switch has not acked for so long is not waited for any more, milliseconds: its gate could not keep it, and the
/// controller sends it again.
const LIFE_MS: u64 = 10_000;

/// Places for frames of one stream.
#[derive(Clone, Debug)]
pub struct Room(Arc<Semaphore>);

/// A place; it is free again when this is dropped.
#[derive(Debug)]
pub struct Place {
    _permit: Option<OwnedSemaphorePermit>,
}

impl Default for Room {
    /// All of them free.
    fn default() -> Room {
        Room(Arc::new(Semaphore::new(FRAMES_MAX)))
    }
}

impl Room {
    /// Waits for a place.
    pub async fn place(&self) -> Place {
        // The semaphore is never closed.
        Place { _permit: self.0.clone().acquire_owned().await.ok() }
    }
}

type Named = (Key, Version);

struct Frame {
    session: u64,
    names: Vec<Named>,
    at_ms: u64,
    /// Held for what it drops.
    _place: Option<Place>,
}

/// See the module.
#[derive(Default)]
pub struct Given {
    frames: BTreeMap<u64, Frame>,
    next: u64,
    /// Frames by what is in them, the oldest first.
    by_name: BTreeMap<Named, VecDeque<u64>>,
    updates: usize,
}

impl Given {
    /// A session gives a frame of updates. It keeps the place until the switch has acked it.
    pub fn gives(&mut self, now_ms: u64, session: u64, frame: &SignedUpdates, place: Option<Place>) {
        let names = frame.updates.iter().map(|proven| (proven.update.key.clone(), proven.update.version));
        let names: Vec<Named> = names.collect();
        if names.is_empty() {
            return;
        }
        let id = self.next;
        self.next += 1;
        for name in &names {
            self.by_name.entry(name.clone()).or_default().push_back(id);
        }
        self.updates += names.len();
        self.frames.insert(id, Frame { session, names, at_ms: now_ms, _place: place });
        self.forget_old(now_ms);
    }

    /// Whose these acked updates are: the session of each frame that has one of them. They are under way no more.
    pub fn acked(&mut self, acks: &[Ack]) -> Vec<u64> {
        let mut sessions = Vec::new();
        let mut done: BTreeSet<Named> = BTreeSet::new();
        for ack in acks {
            let name = (ack.key.clone(), ack.version);
            if done.remove(&name) {
                continue;
            }
            let Some(id) = self.by_name.get(&name).and_then(|ids| ids.front().copied()) else { continue };
            if let Some(frame) = self.remove(id) {
                sessions.push(frame.session);
                done.extend(frame.names);
                done.remove(&name);
            }
        }
        sessions
    }

    /// The switch is gone, and answers nothing any more.
    pub fn clear(&mut self) {
        self.frames.clear();
        self.by_name.clear();
        self.updates = 0;
    }

    fn forget_old(&mut self, now_ms: u64) {
        while let Some((&id, oldest)) = self.frames.first_key_value() {
            if self.updates <= UPDATES_MAX && now_ms.saturating_sub(oldest.at_ms) < LIFE_MS {
                return;
            }
            self.remove(id);
        }
    }

    /// When the oldest is not waited for any more.
    pub fn next_tick_ms(&self) -> Option<u64> {
        self.frames.first_key_value().map(|(_, oldest)| oldest.at_ms + LIFE_MS)
    }

    /// Time passed.
    pub fn tick(&mut self, now_ms: u64) {
        self.forget_old(now_ms);
    }

    fn remove(&mut self, id: u64) -> Option<Frame> {
        let frame = self.frames.remove(&id)?;
        self.updates -= frame.names.len();
        for name in &frame.names {
            if let Some(ids) = self.by_name.get_mut(name) {
                // A frame may name the same twice.
                ids.retain(|known| *known != id);
                if ids.is_empty() {
                    self.by_name.remove(name);
                }
            }
        }
        Some(frame)
    }
}

#[cfg(test)]
mod tests;
