//! The local engine's core: gives proposals their indices and keeps their fates in order.
//!
//! It does no I/O and knows no thread: [`Local::step`] takes an input and says what to do. Whoever drives it writes
//! and syncs what [`Output::Write`] asks for and reports back, one write at a time; proposals that come meanwhile
//! form the next write (group commit), so the disk itself is the pacing.
//!
//! Invariants
//! - Nothing is committed or answered with Ok before the driver reported it durable.
//! - Commits and answers come in index order; an entry is committed before its proposal is answered.
//! - An index whose write failed is given again, so the order has no gaps.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use bytes::Bytes;

use crate::engine::Entry;
use crate::error::Error;
use crate::position::Position;

/// Limits of the core.
#[derive(Debug, Clone, Copy)]
pub struct LocalSettings {
    /// The largest batch.
    pub batch_bytes_max: u64,
    /// Batches that may wait for a write to end.
    pub waiting_max: usize,
    /// Bytes that one write gathers, at most, unless one batch alone is larger.
    pub write_bytes_max: u64,
}

impl Default for LocalSettings {
    fn default() -> Self {
        LocalSettings { batch_bytes_max: 8 << 20, waiting_max: 64, write_bytes_max: 4 << 20 }
    }
}

/// What happens to the core. `T` names a proposal to whoever drives the core.
#[derive(Debug)]
pub enum Input<T> {
    /// Somebody wants a place for a batch.
    Propose {
        /// Comes back in [`Output::Done`].
        ticket: T,
        /// The batch.
        batch: Bytes,
    },
    /// The first `count` entries of the write that was asked for are durable.
    Written {
        /// How many, at least one.
        count: usize,
    },
    /// The write that was asked for failed, all of it.
    WriteFailed {
        /// Why.
        error: Error,
    },
}

/// What the driver must do, in this order.
#[derive(Debug)]
pub enum Output<T> {
    /// Write these entries and sync, at least the first; then report. At most one such is open.
    Write {
        /// The entries, in index order.
        entries: Vec<Entry>,
    },
    /// Hand this to the application.
    Committed {
        /// The entry.
        entry: Entry,
    },
    /// Tell the proposer.
    Done {
        /// Whose proposal.
        ticket: T,
        /// Its place, or why it has none.
        result: Result<Position, Error>,
    },
}

/// The core.
#[derive(Debug)]
pub struct Local<T> {
    settings: LocalSettings,
    term: u64,
    next_index: u64,
    waiting: VecDeque<(T, Bytes)>,
    writing: VecDeque<(T, Entry)>,
    /// Whether the driver owes a report.
    write_open: bool,
}

impl<T> Local<T> {
    /// A core that goes on after `last`. Its term is one above, so that every incarnation has its own.
    pub fn new(settings: LocalSettings, last: Position) -> Local<T> {
        let (term, next_index) = (last.term + 1, last.index + 1);
        let (waiting, writing) = (VecDeque::new(), VecDeque::new());
        Local { settings, term, next_index, waiting, writing, write_open: false }
    }

    /// Whether nothing waits and nothing is being written.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.writing.is_empty()
    }

    /// The next step.
    pub fn step(&mut self, input: Input<T>, out: &mut Vec<Output<T>>) {
        match input {
            Input::Propose { ticket, batch } => self.propose(ticket, batch, out),
            Input::Written { count } => self.written(count, out),
            Input::WriteFailed { error } => self.failed(&error, out),
        }
    }

    fn propose(&mut self, ticket: T, batch: Bytes, out: &mut Vec<Output<T>>) {
        let (bytes, limit_bytes) = (batch.len() as u64, self.settings.batch_bytes_max);
        if bytes > limit_bytes {
            let error = Error::TooLarge { what: "the batch", bytes, limit_bytes };
            out.push(Output::Done { ticket, result: Err(error) });
            return;
        }
        let (waiting, limit) = (self.waiting.len() as u64, self.settings.waiting_max as u64);
        if waiting >= limit {
            let error = Error::Overloaded { what: "batches", waiting, limit };
            out.push(Output::Done { ticket, result: Err(error) });
            return;
        }
        self.waiting.push_back((ticket, batch));
        if !self.write_open {
            self.write(out);
        }
    }

    fn written(&mut self, count: usize, out: &mut Vec<Output<T>>) {
        assert!(self.write_open, "a report of a write that nobody asked for");
        assert!((1..=self.writing.len()).contains(&count), "{count} of {} written", self.writing.len());
        for (ticket, entry) in self.writing.drain(..count) {
            let position = entry.position;
            out.push(Output::Committed { entry });
            out.push(Output::Done { ticket, result: Ok(position) });
        }
        self.write(out);
    }

    fn failed(&mut self, error: &Error, out: &mut Vec<Output<T>>) {
        assert!(self.write_open, "a report of a write that nobody asked for");
        self.next_index -= self.writing.len() as u64;
        for (ticket, _) in self.writing.drain(..) {
            out.push(Output::Done { ticket, result: Err(error.clone()) });
        }
        self.write(out);
    }

    /// Asks for a write of what an unfinished one left, or else of what waits.
    fn write(&mut self, out: &mut Vec<Output<T>>) {
        if self.writing.is_empty() {
            self.gather();
        }
        self.write_open = !self.writing.is_empty();
        if !self.write_open {
            return;
        }
        out.push(Output::Write { entries: self.writing.iter().map(|(_, entry)| entry.clone()).collect() });
    }

    fn gather(&mut self) {
        let mut bytes = 0;
        while let Some((ticket, batch)) = self.waiting.pop_front() {
            bytes += batch.len() as u64;
            if bytes > self.settings.write_bytes_max && !self.writing.is_empty() {
                self.waiting.push_front((ticket, batch));
                break;
            }
            let position = Position { term: self.term, index: self.next_index };
            self.next_index += 1;
            self.writing.push_back((ticket, Entry { position, batch }));
        }
    }
}
