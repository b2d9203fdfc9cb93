//! The thread that writes the chain, and the handle to it.
//!
//! What comes within [`GATHER`] becomes links, one write and one sync (group commit); a flush and a reader do not wait. The position of a link in the log's records
//! carries the place in the order up to which the chain is complete, so opening it tells which entries of a replay
//! are there already.

mod observer;
#[cfg(test)]
mod tests;

pub use observer::Observer;

use crate::Error;
use crate::audit::link::{GENESIS, LinkHash, hash};
use crate::audit::links::{LINK_BYTES, Links};
use crate::audit::record::Record;
use bytes::Bytes;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weir_base::world::{Clock, Disk, DiskLock, LockOutcome};
use weir_model::Version;
use weir_order::Entry;
use weir_order::log::{Log, LogSettings, Replay};

/// What may wait for the thread.
const INBOX_MAX: usize = 1_024;
/// How long records may wait for others, so that the audit costs few syncs of a disk that the order needs.
const GATHER: Duration = Duration::from_millis(50);
/// Bytes of links that wait for room on a full disk, about: beyond, nothing more is kept.
const HELD_BYTES_MAX: usize = 64 << 20;
/// Bytes of records that wait, about.
const GATHER_BYTES: usize = 4 * LINK_BYTES;
/// Size of a segment of the log.
const SEGMENT_BYTES: u64 = 8 << 20;
/// The largest link, with some room above the largest record.
const BATCH_BYTES_MAX: u64 = 5 << 20;
/// The least size on disk that can be asked for.
pub const BYTES_MIN: u64 = 4 * SEGMENT_BYTES;
/// Links of a page, at most.
pub const PAGE_LINKS_MAX: usize = 4_096;
/// Bytes of a page, about.
const PAGE_BYTES: usize = 4 << 20;

/// Where an audit is kept, and how much of it.
#[derive(Clone)]
pub struct AuditPlace {
    /// A directory of its own.
    pub disk: Arc<dyn Disk>,
    /// Bytes on disk, at most: the oldest links go then. At least [`BYTES_MIN`].
    pub bytes_max: u64,
}

impl std::fmt::Debug for AuditPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AuditPlace({}, {} bytes)", self.disk.describe(), self.bytes_max)
    }
}

enum Job {
    /// Records of an entry of the order.
    Ordered { index: u64, records: Vec<Record> },
    /// Records of what is not ordered.
    Seen(Record),
    /// The order was followed up to here; answered when that is durable.
    Flush { index: u64, done: SyncSender<()> },
    /// A state was taken over.
    TookOver { index: u64, version: Version },
    /// Somebody reads from a link on.
    Read { from: u64, reply: Sender<Result<Option<Replay>, weir_order::Error>> },
}

#[derive(Default)]
struct Shared {
    links: AtomicU64,
    records: AtomicU64,
    bytes: AtomicU64,
    syncs: AtomicU64,
    first: AtomicU64,
    last: AtomicU64,
    segments: AtomicU64,
    waits: AtomicU64,
    failed: AtomicBool,
    head: Mutex<LinkHash>,
}

/// How the audit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditStatus {
    /// Number of the oldest link that is left; 0 when there is none yet.
    pub first: u64,
    /// Number of the newest.
    pub last: u64,
    /// Its hash.
    pub head: LinkHash,
    /// Links written since the start.
    pub links: u64,
    /// Records in them.
    pub records: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Syncs of the disk since the start.
    pub syncs: u64,
    /// Segment files.
    pub segments: u64,
    /// Times that who gave records had to wait for room.
    pub waits: u64,
    /// Whether writing failed: nothing more is kept until the controller starts anew.
    pub failed: bool,
}

/// Some links, as bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditPage {
    /// Number of the first link of `links`.
    pub from: u64,
    /// The links' bytes.
    pub links: Vec<Bytes>,
}

/// The handle. Clones are the same; the thread ends with the last one.
#[derive(Clone)]
pub struct Keeper {
    inbox: SyncSender<Job>,
    shared: Arc<Shared>,
    /// The place in the order up to which the chain was complete when it was opened.
    opened_at: u64,
}

impl Keeper {
    /// Opens the chain, or begins one, and starts its thread. Tells the place in the order up to which it is complete.
    ///
    /// # Errors
    /// [`Error::Order`] for a damaged or foreign log, [`Error::System`].
    pub fn open(place: &AuditPlace, clock: Arc<dyn Clock>) -> Result<(Keeper, JoinHandle<()>, u64), Error> {
        let disk = place.disk.clone();
        let lock = match disk.lock("lock", "the controller's audit") {
            Ok(LockOutcome::Held(lock)) => lock,
            Ok(LockOutcome::Busy { holder }) => {
                let what = format!("{} is in use by {holder}", disk.describe());
                return Err(Error::system("opening the audit")(std::io::Error::other(what)));
            }
            Err(error) => return Err(Error::system("locking the audit")(error)),
        };
        let settings = LogSettings {
            segment_bytes: SEGMENT_BYTES,
            batch_bytes_max: BATCH_BYTES_MAX,
            ..LogSettings::default()
        };
        let (log, _) = Log::open(disk, settings, 0)?;
        let last = log.last();
        let head = match last.index {
            0 => GENESIS,
            index => match log.replay(index)?.next() {
                Some(entry) => hash(index, &entry?.batch),
                None => GENESIS,
            },
        };
        let (inbox, jobs) = sync_channel(INBOX_MAX);
        let shared = Arc::new(Shared::default());
        let segments_max = (place.bytes_max.max(BYTES_MIN) / SEGMENT_BYTES) as usize;
        let held = Held::default();
        let mut writer =
            Writer { log, head, clock, segments_max, shared: shared.clone(), failed: false, held };
        writer.publish();
        let run = move || {
            writer.run(&jobs);
            drop::<DiskLock>(lock);
        };
        let thread = std::thread::Builder::new().name("controller-audit".into()).spawn(run);
        let thread = thread.map_err(Error::system("starting a thread"))?;
        Ok((Keeper { inbox, shared, opened_at: last.term }, thread, last.term))
    }

    /// Refuses an order that ends before the chain does: the entries between them were decided, and answered. Only where an entry is
    /// decided when it is durable here: a member of a group may have decided what only others have on their disks yet.
    ///
    /// # Errors
    /// [`Error::BehindAudit`].
    pub fn must_not_be_ahead(&self, last: u64, disk: &dyn Disk) -> Result<(), Error> {
        let audited = self.opened_at;
        if audited > last {
            return Err(Error::BehindAudit { last, audited, dir: disk.describe() });
        }
        Ok(())
    }

    fn give(&self, job: Job) {
        if let Err(std::sync::mpsc::TrySendError::Full(job)) = self.inbox.try_send(job) {
            self.shared.waits.fetch_add(1, Ordering::Relaxed);
            // Fails only when the thread panicked, which its log tells.
            let _ended = self.inbox.send(job);
        }
    }

    /// Keeps the records of an entry of the order. Those of an entry that the chain has are passed over.
    pub fn ordered(&self, index: u64, records: Vec<Record>) {
        if !records.is_empty() {
            self.give(Job::Ordered { index, records });
        }
    }

    /// Keeps what is not ordered.
    pub fn seen(&self, record: Record) {
        self.give(Job::Seen(record));
    }

    /// A state was taken over that stands behind an entry of the order.
    pub fn took_over(&self, index: u64, version: Version) {
        self.give(Job::TookOver { index, version });
    }

    /// Returns when everything up to an entry of the order is on disk, or never will be.
    pub fn flush(&self, index: u64) {
        let (done, flushed) = sync_channel(1);
        self.give(Job::Flush { index, done });
        // Ends with an error when the thread has ended.
        let _ended = flushed.recv();
    }

    /// How it is.
    pub fn status(&self) -> AuditStatus {
        let shared = &self.shared;
        let get = |value: &AtomicU64| value.load(Ordering::Relaxed);
        AuditStatus {
            first: get(&shared.first),
            last: get(&shared.last),
            head: *shared.head.lock().unwrap_or_else(PoisonError::into_inner),
            links: get(&shared.links),
            records: get(&shared.records),
            bytes: get(&shared.bytes),
            syncs: get(&shared.syncs),
            segments: get(&shared.segments),
            waits: get(&shared.waits),
            failed: shared.failed.load(Ordering::Relaxed),
        }
    }

    /// Links from a number on, or from the oldest that is left; at most `limit`. Reads files: call it where that may
    /// block.
    ///
    /// # Errors
    /// [`Error::Order`]: the files are damaged. [`Error::Stopped`].
    pub fn read(&self, from: u64, limit: usize) -> Result<AuditPage, Error> {
        let (reply, answer) = channel();
        self.give(Job::Read { from, reply });
        let replay = answer.recv().map_err(|_| Error::Stopped)??;
        let mut page = AuditPage::default();
        let mut bytes = 0;
        for entry in replay.into_iter().flatten() {
            let entry = entry?;
            if page.links.is_empty() {
                page.from = entry.position.index;
            }
            bytes += entry.batch.len();
            page.links.push(entry.batch);
            if page.links.len() >= limit.min(PAGE_LINKS_MAX) || bytes >= PAGE_BYTES {
                break;
            }
        }
        Ok(page)
    }
}

/// Links that found no room on the disk and wait for it, with those who wait for them.
#[derive(Default)]
struct Held {
    entries: Vec<Entry>,
    records: u64,
    bytes: usize,
    flushed: Vec<SyncSender<()>>,
}

struct Writer {
    log: Log,
    /// Of the last link, also of one that waits.
    head: LinkHash,
    clock: Arc<dyn Clock>,
    segments_max: usize,
    shared: Arc<Shared>,
    failed: bool,
    held: Held,
}

impl Writer {
    fn run(&mut self, jobs: &Receiver<Job>) {
        while let Some(first) = self.next(jobs) {
            let mut flushed = Vec::new();
            let last = self.held.entries.last().map_or(self.log.last(), |link| link.position);
            let mut links = Links::after(last, self.head, self.clock.wall_ms());
            let mut read = None;
            let until = Instant::now() + GATHER;
            let mut next = Some(first);
            while let Some(job) = next {
                match job {
                    Job::Ordered { index, records } => links.ordered(index, records),
                    Job::Seen(record) => links.add(record),
                    Job::TookOver { index, version } => links.took_over(index, version),
                    Job::Flush { index, done } => {
                        links.reached(index);
                        flushed.push(done);
                        break;
                    }
                    // What was given before is to be seen.
                    Job::Read { from, reply } => {
                        read = Some((from, reply));
                        break;
                    }
                }
                if links.bytes > GATHER_BYTES {
                    break;
                }
                next = jobs.recv_timeout(until.saturating_duration_since(Instant::now())).ok();
            }
            self.held.flushed.append(&mut flushed);
            self.take(links);
            self.write();
            if let Some((from, reply)) = read {
                let from = from.max(self.log.first_index());
                let none = self.log.last().index == 0 || from > self.log.last().index;
                let replay = if none { Ok(None) } else { self.log.replay(from).map(Some) };
                // Who asked may have given up.
                let _unheard = reply.send(replay);
            }
        }
        if !self.held.entries.is_empty() {
            tracing::error!(
                links = self.held.entries.len(),
                "links of the audit found no room on the disk and are lost"
            );
        }
        if let Err(error) = self.log.close() {
            tracing::warn!(%error, "the audit could not be closed cleanly");
        }
    }

    /// The next job; meanwhile what waits for room is tried again. None when nobody gives any more.
    fn next(&mut self, jobs: &Receiver<Job>) -> Option<Job> {
        while !self.held.entries.is_empty() {
            match jobs.recv_timeout(self.log.room().pause()) {
                Ok(job) => return Some(job),
                Err(RecvTimeoutError::Timeout) => self.write(),
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
        jobs.recv().ok()
    }

    /// Has links to be written.
    fn take(&mut self, links: Links) {
        let (mut entries, records, head) = links.finish();
        if entries.is_empty() || self.failed {
            return;
        }
        self.head = head;
        self.held.bytes += entries.iter().map(|entry| entry.batch.len()).sum::<usize>();
        self.held.records += records;
        self.held.entries.append(&mut entries);
    }

    /// Writes what is to be written. Without room on the disk it waits, up to [`HELD_BYTES_MAX`].
    fn write(&mut self) {
        if self.failed || self.held.entries.is_empty() {
            self.held.flushed.clear();
            return;
        }
        let mut done = 0;
        let mut written = Ok(());
        while done < self.held.entries.len() && written.is_ok() {
            match self.log.append(&self.held.entries[done..]) {
                Ok(count) => done += count,
                Err(error) => written = Err(error),
            }
        }
        self.held.entries.drain(..done);
        if let Err(error) = &written
            && error.is_no_room()
            && self.held.bytes <= HELD_BYTES_MAX
        {
            self.log.room().waits();
            return;
        }
        let kept = written.and_then(|()| self.log.sync()).and_then(|()| self.forget());
        let held = std::mem::take(&mut self.held);
        if let Err(error) = kept {
            tracing::error!(%error, "the audit stops: nothing is kept of what happens from now on");
            self.failed = true;
            self.shared.failed.store(true, Ordering::Relaxed);
            return;
        }
        self.log.room().goes_on();
        self.log.mark();
        let shared = &self.shared;
        shared
            .links
            .fetch_add(self.log.last().index - shared.last.load(Ordering::Relaxed), Ordering::Relaxed);
        shared.records.fetch_add(held.records, Ordering::Relaxed);
        shared.bytes.fetch_add(held.bytes as u64, Ordering::Relaxed);
        self.publish();
    }

    /// Removes the oldest segments when there are too many.
    fn forget(&mut self) -> Result<(), weir_order::Error> {
        let starts = self.log.segment_starts();
        let surplus = starts.len().saturating_sub(self.segments_max);
        match starts.get(surplus) {
            Some(first) if surplus > 0 => self.log.truncate_below(first - 1),
            _ => Ok(()),
        }
    }

    fn publish(&mut self) {
        let shared = &self.shared;
        let last = self.log.last().index;
        shared.first.store(if last == 0 { 0 } else { self.log.first_index() }, Ordering::Relaxed);
        shared.last.store(last, Ordering::Relaxed);
        shared.syncs.store(self.log.counters().syncs, Ordering::Relaxed);
        shared.segments.store(self.log.segment_starts().len() as u64, Ordering::Relaxed);
        *shared.head.lock().unwrap_or_else(PoisonError::into_inner) = self.head;
    }
}
