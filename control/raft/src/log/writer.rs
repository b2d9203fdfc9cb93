//! Writes the log: everything that waits, then one sync, then the callbacks.

use std::io;
use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use openraft::storage::IOFlushed;
use tokio::sync::oneshot;
use weir_order::log::{Log, Room};
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

impl Write {
    /// Who is told of a vote.
    fn vote_done(self) -> Option<oneshot::Sender<io::Result<()>>> {
        match self {
            Write::Vote { done, .. } => Some(done),
            _ => None,
        }
    }
}

/// Bytes of a segment that entries leave to votes, cuts and purges: some dozens of them.
const NOTES_BYTES: u64 = 8 << 10;

/// Owns the log. See the module above.
pub struct Writer {
    log: Log,
    shared: Arc<Shared>,
    notes: Notes,
    /// The segment that has the newest notes.
    noted_in: u64,
    failure: Option<Error>,
    /// What found no room, in order; nothing behind it is written before it.
    held: Vec<Write>,
    /// What may be forgotten as soon as there is room for the note that must be written before.
    purge_left: Option<LogId>,
}

/// What is owed when the sync was done.
#[derive(Default)]
struct Owed {
    appends: Vec<IOFlushed<Types>>,
    votes: Vec<oneshot::Sender<io::Result<()>>>,
    purge: Option<LogId>,
    sync: bool,
}

/// Appends that are gathered for one write.
#[derive(Default)]
struct Gathered {
    entries: Vec<Pending>,
    /// How many entries belong to each append, and who is told.
    asked: Vec<(usize, IOFlushed<Types>)>,
    /// How many entries are in the log.
    written: usize,
}

impl Gathered {
    /// Moves those whose entries are all in the log to what is owed, and gives back what is left of the others.
    fn settle(&mut self, owed: &mut Owed) -> Vec<Write> {
        let (mut left, mut end) = (Vec::new(), 0);
        let mut rest = std::mem::take(&mut self.entries).split_off(self.written);
        for (count, done) in self.asked.drain(..) {
            let begin = end;
            end += count;
            if end <= self.written {
                owed.appends.push(done);
                continue;
            }
            let behind = rest.split_off(end - self.written.max(begin));
            left.push(Write::Append { entries: std::mem::replace(&mut rest, behind), done });
        }
        self.written = 0;
        left
    }
}

impl Writer {
    pub(super) fn new(log: Log, shared: Arc<Shared>, notes: Notes) -> Writer {
        let mut log = log;
        log.keep_for_notes(NOTES_BYTES);
        // Where the newest notes stand is not known after opening: 0 is no segment's number.
        Writer { log, shared, notes, noted_in: 0, failure: None, held: Vec::new(), purge_left: None }
    }

    /// Whether something waits for room on the disk: [`Writer::drain`] tries it again, after [`Room::pause`](weir_order::log::Room::pause).
    pub fn is_waiting(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether there is room on the disk.
    pub fn room(&self) -> &Arc<Room> {
        self.log.room()
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

    /// Does what waits for room and then all of `writes`, makes it durable, and answers. Where there is no room, what is left waits, in
    /// order and without an answer.
    pub fn drain(&mut self, writes: &mut Vec<Write>) {
        let mut all = std::mem::take(&mut self.held);
        all.append(writes);
        let mut owed = Owed { purge: self.purge_left.take(), ..Owed::default() };
        let mut result = match &self.failure {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        };
        let mut gathered = Gathered::default();
        let mut all = all.into_iter();
        for write in all.by_ref() {
            match write {
                Write::Append { entries, done } => {
                    gathered.asked.push((entries.len(), done));
                    gathered.entries.extend(entries);
                }
                other => {
                    result = result.and_then(|()| self.append(&mut gathered, &mut owed));
                    result = result.and_then(|()| self.other(&other, &mut owed));
                    match &result {
                        Err(error) if self.can_wait(error) => self.held.push(other),
                        _ => owed.votes.extend(other.vote_done()),
                    }
                    if !self.held.is_empty() {
                        break;
                    }
                }
            }
        }
        if result.is_ok() {
            result = self.append(&mut gathered, &mut owed);
        }
        if let Err(error) = &result
            && self.can_wait(error)
        {
            let mut left = gathered.settle(&mut owed);
            left.append(&mut self.held);
            self.held = left;
            self.held.extend(all);
            result = Ok(());
        } else {
            // In the log, or never: all are told.
            owed.appends.extend(gathered.asked.drain(..).map(|(_, done)| done));
        }
        if result.is_ok() && owed.sync {
            result = self.log.sync();
        }
        let result = result.and_then(|()| self.purge(owed.purge.take()));
        match self.held.is_empty() {
            true => self.log.room().goes_on(),
            false => self.log.room().waits(),
        }
        self.publish();
        self.answer(owed, result);
    }

    /// Whether a failure leaves the log as it was, so that what met it can be tried again.
    fn can_wait(&self, error: &Error) -> bool {
        self.failure.is_none() && error.is_no_room() && self.log.is_healthy()
    }

    /// Everything but appends.
    fn other(&mut self, write: &Write, owed: &mut Owed) -> Result<(), Error> {
        match write {
            Write::Append { .. } => unreachable!("appends are gathered"),
            Write::Cut { last } => {
                self.log.set_last(position_of(last.as_ref()))?;
            }
            Write::Purge { upto } => {
                self.notes.purged = Some(*upto);
                self.note()?;
                owed.sync = true;
                if upto.index() + 1 > self.log.last().index {
                    self.log.set_last(position_of(Some(upto)))?;
                }
                owed.purge = Some(*upto);
            }
            Write::Vote { vote, .. } => {
                self.notes.vote = Some(*vote);
                self.note()?;
            }
        }
        owed.sync = true;
        Ok(())
    }

    fn append(&mut self, gathered: &mut Gathered, owed: &mut Owed) -> Result<(), Error> {
        while gathered.written < gathered.entries.len() {
            let rest = &gathered.entries[gathered.written..];
            let mut places = Vec::with_capacity(rest.len());
            let entries = rest.iter().map(|entry| (entry.at, entry.tag, &entry.body));
            let count = self.log.append_tagged(entries, &mut |place| places.push(place))?;
            let mut view = self.shared.view();
            for (entry, place) in rest[..count].iter().zip(places) {
                view.placed(entry.at.index - 1, entry.stamp, place);
            }
            view.evict();
            gathered.written += count;
            owed.sync = true;
        }
        let _all_written = gathered.settle(owed);
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
            match self.note() {
                Err(error) if self.can_wait(&error) => {
                    self.purge_left = Some(upto);
                    return Ok(());
                }
                result => result?,
            }
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
