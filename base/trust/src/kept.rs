//! What an actuator does with the updates that it is given, whatever it acts on: judge each, have it applied, keep it, answer it
//! (DESIGN 1.7; row A9). The switch and the processes of planes do it with this one machine.
//!
//! [`Gate`] judges and keeps; here is the order in which that happens, and what becomes of what was applied and could not be kept.
//!
//! Invariants
//! - An update is applied before it is kept, and answered with `Ok` only when it is kept.
//! - What was applied and cannot be kept is put back ([`Hands::put_back`]): without its place in the journal nothing is in force.
//! - After the journal failed the gate is opened anew before anything else, and what it then says of those keys is put in force: a
//!   write that failed may have reached the disk all the same.
//! - Of two updates of one key in one frame the second is judged when the first is kept, so that no version goes back.

use crate::gate::{Gate, InForce, Verdict};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use weir_model::signed::SignedUpdates;
use weir_model::update::Refusal;
use weir_model::{Ack, Key, Update};

/// What acts.
pub trait Hands {
    /// Puts an admitted update in force.
    ///
    /// # Errors
    /// Why it cannot be; what was in force before must be in force then.
    fn apply(&mut self, gate: &Gate, update: &Update) -> Result<(), Refusal>;

    /// An update came that is kept already. Whether it is in force, too.
    ///
    /// # Errors
    /// Why it is not, and cannot be.
    fn again(&mut self, _gate: &Gate, _update: &Update) -> Result<(), Refusal> {
        Ok(())
    }

    /// Makes what is in force under these keys what the gate has there.
    fn put_back(&mut self, gate: &Gate, keys: &BTreeSet<Key>);
}

/// A write of the journal, as [`Kept::watch_writes`] is asked about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// It comes: what is written was applied.
    Before,
    /// It is done: what was written is not acked yet.
    After,
}

/// Opens a gate on its journal.
pub type OpenGate = Box<dyn Fn() -> io::Result<Gate> + Send>;
type Watch = Box<dyn FnMut(Write) -> io::Result<()> + Send>;

/// What became of a frame.
#[derive(Debug)]
pub struct Taken {
    /// Answers to its first updates; to all of them if nothing failed.
    pub acks: Vec<Ack>,
    /// Why the rest is not answered: the journal failed. It comes again.
    pub failure: Option<io::Error>,
}

/// How far somebody has got what is in force, who gets it in parts.
#[derive(Debug, Default)]
pub struct Cursor {
    after: Option<Key>,
}

impl Cursor {
    /// The next part, in the order of the keys: what `of` makes of at most `most` of them, and whether it is the last. Deleted keys
    /// whose version is remembered are in it.
    pub fn part<T>(
        &mut self,
        gate: &Gate,
        most: usize,
        of: impl Fn(&Key, &InForce) -> Option<T>,
    ) -> (Vec<T>, bool) {
        assert!(most > 0, "a part has room");
        let all: Box<dyn Iterator<Item = (&Key, &InForce)>> = match &self.after {
            None => Box::new(gate.iter()),
            Some(after) => Box::new(gate.iter_after(after)),
        };
        let mut items = Vec::new();
        let mut end = None;
        for (key, known) in all {
            end = Some(key);
            items.extend(of(key, known));
            if items.len() == most {
                break;
            }
        }
        let end = end.cloned();
        let is_last = items.len() < most;
        self.after = end.or(self.after.take());
        (items, is_last)
    }
}

/// See the module.
pub struct Kept {
    gate: Gate,
    open: OpenGate,
    /// The journal failed: the gate is opened anew before anything else.
    is_broken: bool,
    /// Keys of what was put back since.
    torn: BTreeSet<Key>,
    watch: Option<Watch>,
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kept").field("is_broken", &self.is_broken).finish_non_exhaustive()
    }
}

impl Kept {
    /// Opens what was kept.
    ///
    /// # Errors
    /// As of [`Gate::open`].
    pub fn open(open: OpenGate) -> io::Result<Kept> {
        let gate = open()?;
        Ok(Kept::with(gate, open))
    }

    /// With a gate that is there already, such as one that follows another process's; `open` is for when its journal fails.
    pub fn with(gate: Gate, open: OpenGate) -> Kept {
        Kept { gate, open, is_broken: false, torn: BTreeSet::new(), watch: None }
    }

    /// The gate.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// The gate, to have it follow, or look at a proof ahead.
    pub fn gate_mut(&mut self) -> &mut Gate {
        &mut self.gate
    }

    /// Asks this around each write of the journal; an error of it is one of the journal. For tests of what a disk that fails, or
    /// a process that ends there, leaves.
    pub fn watch_writes(&mut self, watch: impl FnMut(Write) -> io::Result<()> + Send + 'static) {
        self.watch = Some(Box::new(watch));
    }

    /// Opens the gate anew if its journal failed.
    ///
    /// # Errors
    /// It cannot be opened yet: nothing may be taken.
    pub fn mend(&mut self, hands: &mut impl Hands) -> io::Result<()> {
        if self.is_broken {
            let before = self.gate.counters;
            self.gate = (self.open)()?;
            // What is counted goes on.
            self.gate.counters += before;
            self.is_broken = false;
            hands.put_back(&self.gate, &std::mem::take(&mut self.torn));
        }
        Ok(())
    }

    /// Takes a frame, after [`Kept::mend`]. `together` updates are kept with one write; an actuator whose answer to one update rests
    /// on what the gate has of those before says 1.
    pub fn take(&mut self, frame: &SignedUpdates, together: usize, hands: &mut impl Hands) -> Taken {
        assert!(!self.is_broken && together > 0, "it is mended first, and keeps what it takes");
        let mut acks: Vec<Ack> = Vec::with_capacity(frame.updates.len());
        // Applied and not kept yet, by key, and the answer to the first of them.
        let mut pending: BTreeMap<&Key, usize> = BTreeMap::new();
        let mut first = 0;
        for (number, proven) in frame.updates.iter().enumerate() {
            let update = &proven.update;
            if pending.contains_key(&update.key)
                && let Err(failure) = self.keep(frame, &mut pending, hands)
            {
                acks.truncate(first);
                return Taken { acks, failure: Some(failure) };
            }
            let result = match self.gate.admit(frame, number) {
                Verdict::Refuse(refusal) => Err(refusal),
                Verdict::InForce => hands.again(&self.gate, update),
                Verdict::Admit => hands.apply(&self.gate, update).inspect(|()| {
                    if pending.is_empty() {
                        first = acks.len();
                    }
                    pending.insert(&update.key, number);
                }),
            };
            acks.push(Ack { key: update.key.clone(), version: update.version, result });
            if pending.len() >= together
                && let Err(failure) = self.keep(frame, &mut pending, hands)
            {
                acks.truncate(first);
                return Taken { acks, failure: Some(failure) };
            }
        }
        let failure = self.keep(frame, &mut pending, hands).err();
        if failure.is_some() {
            acks.truncate(first);
        }
        Taken { acks, failure }
    }

    fn keep(
        &mut self,
        frame: &SignedUpdates,
        pending: &mut BTreeMap<&Key, usize>,
        hands: &mut impl Hands,
    ) -> io::Result<()> {
        let pending = std::mem::take(pending);
        if pending.is_empty() {
            return Ok(());
        }
        // In the order in which they were applied.
        let mut numbers: Vec<usize> = pending.values().copied().collect();
        numbers.sort_unstable();
        let kept = self.write(frame, &numbers);
        if kept.is_err() {
            self.is_broken = true;
            self.torn.extend(pending.into_keys().cloned());
            hands.put_back(&self.gate, &self.torn);
        }
        kept
    }

    fn write(&mut self, frame: &SignedUpdates, numbers: &[usize]) -> io::Result<()> {
        if let Some(watch) = &mut self.watch {
            watch(Write::Before)?;
        }
        self.gate.commit(frame, numbers)?;
        self.watch.as_mut().map_or(Ok(()), |watch| watch(Write::After))
    }
}

#[cfg(test)]
mod tests;
