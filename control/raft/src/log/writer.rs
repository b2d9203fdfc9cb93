//! Writes the log: everything that waits, then one sync, then the callbacks.

use std::io;
use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use openraft::storage::IOFlushed;
use tokio::sync::oneshot;
use weir_order::log::Log;
use weir_order::{Error, Position};

use super::{Notes, Shared, position_of};
use crate::types::{LogId, Types, Vote};

/// An entry on its way to the disk.
pub struct Pending {
    /// Its place in the log's records.
    pub at: Position,
    /// What its body is.
    pub tag: u8,
    /// Its body.
    pub body: Bytes,
    /// Its append in the view.
    pub stamp: u64,
}

/// What the writer is asked to do. Everything is done in the order in which it was asked.
pub enum Write {
    /// Append entries; `done` when they are durable.
    Append {
        /// The entries.
        entries: Vec<Pending>,
        /// openraft's callback.
        done: IOFlushed<Types>,
    },
    /// Cut everything above.
    Cut {
        /// The last entry that stays.
        last: Option<LogId>,
    },
    /// Forget everything up to here.
    Purge {
        /// The last entry to forget.
        upto: LogId,
    },
    /// Keep a vote; `done` when it is durable.
    Vote {
        /// The vote.
        vote: Vote,
        /// Told the outcome.
        done: oneshot::Sender<io::Result<()>>,
    },
}

/// Owns the log. See the module above.
pub struct Writer {
    log: Log,
    shared: Arc<Shared>,
    notes: Notes,
    /// The segment that has the newest notes.
    noted_in: u64,
    failure: Option<Error>,
}

/// What is owed when the sync was done.
#[derive(Default)]
struct Owed {
    appends: Vec<IOFlushed<Types>>,
    votes: Vec<oneshot::Sender<io::Result<()>>>,
    purge: Option<LogId>,
    sync: bool,
}

impl Writer {
    pub(super) fn new(log: Log, shared: Arc<Shared>, notes: Notes) -> Writer {
        // Where the newest notes stand is not known after opening: 0 is no segment's number.
        Writer { log, shared, notes, noted_in: 0, failure: None }
    }

    /// Whether a spare segment should be made now.
    pub fn wants_spare(&self) -> bool {
        self.log.wants_spare()
    }

    /// False after a failure: nothing is written any more until the log is opened anew.
    pub fn is_healthy(&self) -> bool {
        self.failure.is_none()
    }

    /// Nothing waits: says in the log that all of it is durable.
    pub fn idle(&mut self) {
        self.log.mark();
        self.publish();
    }

    /// Leaves nothing in doubt.
    pub fn close(&mut self) -> Result<(), Error> {
        let closed = self.log.close();
        self.publish();
        closed
    }

    /// Does all of `writes`, makes it durable, and answers.
    pub fn drain(&mut self, writes: &mut Vec<Write>) {
        let mut owed = Owed::default();
        let mut result = match &self.failure {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        };
        let mut appending: Vec<Pending> = Vec::new();
        for write in writes.drain(..) {
            match write {
                Write::Append { entries, done } => {
                    appending.extend(entries);
                    owed.appends.push(done);
                }
                other => {
                    result = result.and_then(|()| self.append(&mut appending, &mut owed));
                    result = self.other(other, &mut owed, result);
                }
            }
        }
        result = result.and_then(|()| self.append(&mut appending, &mut owed));
        if result.is_ok() && owed.sync {
            result = self.log.sync();
        }
        let result = result.and_then(|()| self.purge(owed.purge.take()));
        self.publish();
        self.answer(owed, result);
    }

    /// Everything but appends. After a failure the answer is still owed.
    fn other(&mut self, write: Write, owed: &mut Owed, result: Result<(), Error>) -> Result<(), Error> {
        match write {
            Write::Append { .. } => unreachable!("appends are gathered"),
            Write::Cut { last } => {
                result?;
                owed.sync = true;
                self.log.set_last(position_of(last.as_ref()))
            }
            Write::Purge { upto } => {
                result?;
                self.notes.purged = Some(upto);
                owed.purge = Some(upto);
                owed.sync = true;
                self.note()?;
                if upto.index() + 1 > self.log.last().index {
                    self.log.set_last(position_of(Some(&upto)))?;
                }
                Ok(())
            }
            Write::Vote { vote, done } => {
                owed.votes.push(done);
                result?;
                self.notes.vote = Some(vote);
                owed.sync = true;
                self.note()
            }
        }
    }

    fn append(&mut self, appending: &mut Vec<Pending>, owed: &mut Owed) -> Result<(), Error> {
        let mut rest = &appending[..];
        while !rest.is_empty() {
            let mut places = Vec::with_capacity(rest.len());
            let entries = rest.iter().map(|entry| (entry.at, entry.tag, &entry.body));
            let count = self.log.append_tagged(entries, &mut |place| places.push(place))?;
            let mut view = self.shared.view();
            for (entry, place) in rest[..count].iter().zip(places) {
                view.placed(entry.at.index - 1, entry.stamp, place);
            }
            view.evict();
            rest = &rest[count..];
            owed.sync = true;
        }
        appending.clear();
        Ok(())
    }

    fn note(&mut self) -> Result<(), Error> {
        self.log.note(&self.notes.encode())?;
        self.noted_in = self.log.active_segment();
        Ok(())
    }

    /// Removes segments below the purge. The notes are durable in the active segment before.
    fn purge(&mut self, upto: Option<LogId>) -> Result<(), Error> {
        let Some(upto) = upto else { return Ok(()) };
        if self.noted_in != self.log.active_segment() {
            self.note()?;
            self.log.sync()?;
        }
        self.log.truncate_below(upto.index() + 1)
    }

    fn answer(&mut self, owed: Owed, result: Result<(), Error>) {
        if let Err(error) = &result {
            if self.failure.is_none() {
                tracing::error!(%error, "the replica's log stops");
            }
            self.failure = Some(error.clone());
        }
        let outcome = || match &result {
            Ok(()) => Ok(()),
            Err(error) => Err(io::Error::other(error.clone())),
        };
        for done in owed.appends {
            done.io_completed(outcome());
        }
        for done in owed.votes {
            // Whoever asked may be gone with its replica.
            let _unheard = done.send(outcome());
        }
    }

    fn publish(&self) {
        *self.shared.counters.lock().unwrap_or_else(PoisonError::into_inner) = self.log.counters();
    }
}
