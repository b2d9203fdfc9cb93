//! openraft's log on the durable log of `weir_order` (its bytes: `docs/protocol/log.md`, the notes: `docs/protocol/raft.md`).
//!
//! - One writer ([`Writer`]) owns the log. It takes all that waits, writes it, syncs once, and then calls all the
//!   callbacks: group commit. With a [`Desk`], a follower with nothing in the queue writes by itself. Appends, cuts, purges and the vote go through the one queue, so they reach the disk in order.
//! - Readers see what was appended at once, from memory ([`View`]): an index of all entries (about 64 bytes each; the
//!   purge bounds it) and the newest entries themselves up to a limit of bytes. Older ones are read back from the segments.
//! - Nothing is overwritten. A cut suffix is a record that says which entry is the last one now; the vote and the purge
//!   are notes. Before old segments go, the active segment gets a note with both, synced.
//!
//! - A full disk is no failure, which openraft would end at: what finds no room waits in the writer, in order, with everything behind it, and
//!   is not acknowledged; it is tried again ([`Room`]). So a vote may wait behind an entry, and no member ends. Before it comes to that, the
//!   leader takes nothing new (`replica::room`).
//!
//! A record's index is raft's index plus one: raft begins at 0, and 0 is "before all entries" in the log.
//!
//! Departure: the committed index is not saved. A replica that starts applies from its snapshot on as soon as it hears
//! what is committed, and serves no linearizable read before.

mod desk;
mod store;
#[cfg(test)]
mod tests;
mod view;
mod writer;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::{BufMut, Bytes, BytesMut};
use tokio::sync::mpsc;
use weir_base::world::Disk;
use weir_order::log::record::{Kind, RecordHeader};
use weir_order::log::{Log, LogSettings, Place, RecordReader, Room, segment};
use weir_order::{Error, LogCounters, Position, Recovery};

pub use desk::Desk;
pub use store::LogStore;
pub use view::{CacheCounters, View};
pub use writer::{Write, Writer};

use crate::codec::{Malformed, Put, Reader};
use crate::types::{LogId, Vote, log_id, term_of};

/// Writes that may wait for the writer.
pub const WRITES_WAITING_MAX: usize = 1024;

/// What a note in the log says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Notes {
    /// The newest vote.
    pub vote: Option<Vote>,
    /// The last entry that was purged.
    pub purged: Option<LogId>,
}

const NOTES_VERSION: u8 = 1;

impl Notes {
    /// The bytes of a note.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(NOTES_VERSION);
        out.put_u8(u8::from(self.vote.is_some()));
        if let Some(vote) = &self.vote {
            out.put_vote(vote);
        }
        out.put_log_id(self.purged.as_ref());
        out.freeze()
    }

    /// Reads a note.
    pub fn decode(bytes: &[u8]) -> Result<Notes, Malformed> {
        let mut reader = Reader(Bytes::copy_from_slice(bytes));
        if reader.u8()? != NOTES_VERSION {
            return Err(Malformed("a note has a version that this program does not read"));
        }
        let vote = if reader.bool()? { Some(reader.vote()?) } else { None };
        let purged = reader.log_id()?;
        reader.end()?;
        Ok(Notes { vote, purged })
    }
}

/// The place in the log's records of a raft log id.
pub fn position_of(id: Option<&LogId>) -> Position {
    id.map_or(Position { term: 0, index: 0 }, |id| Position { term: term_of(id), index: id.index() + 1 })
}

/// What the writer and the readers share.
pub struct Shared {
    view: Mutex<View>,
    records: RecordReader,
    counters: Mutex<LogCounters>,
    desk: OnceLock<Arc<Desk>>,
    room: Arc<Room>,
}

impl Shared {
    /// From now on a follower writes by itself where it may. Once, before the log is used.
    pub fn set_desk(&self, desk: Arc<Desk>) {
        // A second one is a mistake that changes nothing.
        let _first = self.desk.set(desk);
    }

    /// Says whether this replica follows.
    pub fn set_follows(&self, follows: bool) {
        if let Some(desk) = self.desk.get() {
            desk.set_follows(follows);
        }
    }

    /// The view, locked.
    pub fn view(&self) -> MutexGuard<'_, View> {
        // A panic elsewhere would have broken an assertion of the view; what it left is still an index of entries.
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is room on the disk.
    pub fn room(&self) -> &Arc<Room> {
        &self.room
    }

    /// What was counted in the log since it was opened.
    pub fn counters(&self) -> LogCounters {
        *self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A log that was opened: what to run and what to use.
pub struct OpenedLog {
    /// For openraft.
    pub store: LogStore,
    /// To be run beside it, with `writes`.
    pub writer: Writer,
    /// What the store asks of the writer.
    pub writes: mpsc::Receiver<Write>,
    /// What opening found.
    pub recovery: Recovery,
}

/// Opens the log in `disk`, or makes one. `must_exist` says that there are traces of an earlier life, such as a snapshot:
/// then a missing log means that the vote is lost, and that is refused.
pub fn open(
    disk: Arc<dyn Disk>,
    settings: LogSettings,
    cache_bytes_max: u64,
    must_exist: bool,
) -> Result<OpenedLog, Error> {
    let (mut view, mut notes) = (View::new(cache_bytes_max), Notes::default());
    let mut visit = |header: &RecordHeader, place: Place, body: &[u8]| {
        match header.kind {
            Kind::Mark => {}
            Kind::Entry => view.found(header.index - 1, header.term, place),
            Kind::Last => view.set_last(header.index.checked_sub(1).map(|index| log_id(header.term, index))),
            Kind::Note => notes = Notes::decode(body).map_err(|error| error.to_string())?,
        }
        Ok(())
    };
    // Without a log, any floor above 0 says that there should be one; with one, what is missing below a snapshot may be
    // missing, because a snapshot of another replica runs ahead of the log.
    let dir = disk.describe();
    let names = disk.list().map_err(|error| Error::Io {
        action: "listing",
        file: "files".to_owned(),
        dir: dir.clone(),
        source: Arc::new(error),
    })?;
    let there = names.iter().any(|name| segment::number_of(name).is_some());
    let floor = u64::from(must_exist && !there);
    let (mut log, recovery) = Log::open_visited(disk, settings, floor, &mut visit)?;
    view.finish(notes.purged).map_err(|missing| Error::Corrupt {
        file: segment::file_name(1),
        dir,
        offset: 0,
        index: notes.purged.map_or(0, |id| id.index() + 1),
        what: missing.to_string(),
    })?;
    let last = position_of(view.last().as_ref());
    if log.last() != last {
        // The power went between a purge's note and the record that leaves the hole.
        log.set_last(last)?;
        log.sync()?;
    }
    view.vote = notes.vote;
    let shared = Arc::new(Shared {
        view: Mutex::new(view),
        records: log.reader(),
        counters: Mutex::new(log.counters()),
        desk: OnceLock::new(),
        room: Arc::clone(log.room()),
    });
    let (queue, writes) = mpsc::channel(WRITES_WAITING_MAX);
    let store = LogStore::new(Arc::clone(&shared), queue);
    Ok(OpenedLog { store, writer: Writer::new(log, shared, notes), writes, recovery })
}
