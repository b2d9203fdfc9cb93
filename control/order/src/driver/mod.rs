//! Threads and channels around the cores: one thread writes and syncs the log, a second makes spare segments.

mod log_thread;
mod open;
mod submit;
#[cfg(test)]
mod tests;

use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use bytes::Bytes;
use weir_base::world::{Disk, DiskLock};

pub use open::{OpenedLocal, Opening, Settings};
pub use submit::{Reply, Submitter};

use crate::counters::{EngineCounters, LogCounters};
use crate::engine::{Completion, Engine, Sink, Status};
use crate::error::Error;
use crate::log::{Log, prepare_spare};
use crate::position::Position;
use crate::snapshot::{SnapshotInfo, SnapshotStore};
use log_thread::LogThread;

/// What the log thread is told.
enum Command {
    Propose { batch: Bytes, done: Completion },
    TruncateBelow { index: u64 },
}

/// What the log thread shows to others.
struct Shared {
    last: Mutex<Position>,
    committed: AtomicU64,
    unhealthy: AtomicBool,
    overloads: AtomicU64,
    failed: AtomicU64,
    snapshots_saved: AtomicU64,
    snapshot_bytes: AtomicU64,
    spare_failures: AtomicU64,
    log: Mutex<LogCounters>,
}

impl Shared {
    fn new(log: &Log) -> Shared {
        Shared {
            last: Mutex::new(log.last()),
            committed: AtomicU64::new(0),
            unhealthy: AtomicBool::new(false),
            overloads: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            snapshots_saved: AtomicU64::new(0),
            snapshot_bytes: AtomicU64::new(0),
            spare_failures: AtomicU64::new(0),
            log: Mutex::new(log.counters()),
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves plain values that are each whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The engine of one process. Dropping it finishes what was proposed and closes the log.
pub struct LocalEngine {
    /// None only while the engine is dropped.
    commands: Option<SyncSender<Command>>,
    commands_max: usize,
    batch_bytes_max: u64,
    shared: Arc<Shared>,
    snapshots: Mutex<SnapshotStore>,
    threads: Vec<JoinHandle<()>>,
    _lock: Arc<DiskLock>,
}

impl LocalEngine {
    fn start(
        disk: Arc<dyn Disk>,
        settings: &Settings,
        log: Log,
        snapshots: SnapshotStore,
        lock: DiskLock,
        sink: Box<dyn Sink>,
    ) -> Result<LocalEngine, Error> {
        let shared = Arc::new(Shared::new(&log));
        let commands_max = settings.local.waiting_max;
        let (commands, inbox) = sync_channel(commands_max);
        let (spares, spare_requests) = sync_channel(1);
        // Each thread keeps the directory locked until it ends, even when the engine is dropped by one of them.
        let lock = Arc::new(lock);
        let log_thread = LogThread::new(log, settings.local, sink, Arc::clone(&shared), inbox, spares);
        let segment_bytes = settings.log.segment_bytes;
        let (held, seen) = (Arc::clone(&lock), Arc::clone(&shared));
        let threads = vec![
            spawn("order-log", {
                let lock = Arc::clone(&lock);
                move || {
                    log_thread.run();
                    drop(lock);
                }
            })?,
            spawn("order-spare", move || {
                make_spares(&*disk, segment_bytes, &spare_requests, &seen);
                drop(held);
            })?,
        ];
        let snapshots = Mutex::new(snapshots);
        let batch_bytes_max = settings.local.batch_bytes_max;
        let commands = Some(commands);
        let engine =
            LocalEngine { commands, commands_max, batch_bytes_max, shared, snapshots, threads, _lock: lock };
        let needed_above = locked(&engine.snapshots).log_needed_above();
        engine.truncate(needed_above)?;
        Ok(engine)
    }

    fn truncate(&self, needed_above: Option<u64>) -> Result<(), Error> {
        let Some(index) = needed_above else { return Ok(()) };
        let commands = self.commands.as_ref().ok_or(Error::Stopped)?;
        commands.send(Command::TruncateBelow { index }).map_err(|_| Error::Stopped)
    }

    /// What was counted since the engine was opened.
    pub fn counters(&self) -> EngineCounters {
        let shared = &self.shared;
        EngineCounters {
            log: *locked(&shared.log),
            committed: shared.committed.load(Ordering::Relaxed),
            overloads: shared.overloads.load(Ordering::Relaxed),
            failed: shared.failed.load(Ordering::Relaxed),
            snapshots_saved: shared.snapshots_saved.load(Ordering::Relaxed),
            snapshot_bytes: shared.snapshot_bytes.load(Ordering::Relaxed),
            spare_failures: shared.spare_failures.load(Ordering::Relaxed),
        }
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    let spawned = thread::Builder::new().name(name.to_owned()).spawn(run);
    spawned.map_err(|error| Error::io("starting a thread for", name, "this process", error))
}

/// A failure costs only time: the log makes the segment itself when it needs it, or says that the disk is full.
fn make_spares(disk: &dyn Disk, segment_bytes: u64, requests: &Receiver<()>, shared: &Shared) {
    while requests.recv().is_ok() {
        if let Err(error) = prepare_spare(disk, segment_bytes) {
            shared.spare_failures.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%error, "could not make a spare segment ahead of need");
        }
    }
}

impl Engine for LocalEngine {
    fn propose(&self, batch: Bytes, done: Completion) -> Result<(), Error> {
        let (bytes, limit_bytes) = (batch.len() as u64, self.batch_bytes_max);
        if bytes > limit_bytes {
            done.disarm();
            return Err(Error::TooLarge { what: "the batch", bytes, limit_bytes });
        }
        let Some(commands) = &self.commands else {
            done.disarm();
            return Err(Error::Stopped);
        };
        let (command, error) = match commands.try_send(Command::Propose { batch, done }) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Full(command)) => {
                self.shared.overloads.fetch_add(1, Ordering::Relaxed);
                let limit = self.commands_max as u64;
                (command, Error::Overloaded { what: "batches", waiting: limit, limit })
            }
            Err(TrySendError::Disconnected(command)) => (command, Error::Stopped),
        };
        if let Command::Propose { done, .. } = command {
            done.disarm();
        }
        Err(error)
    }

    fn status(&self) -> Status {
        let committed = *locked(&self.shared.last);
        Status { committed, leader: Some(0), healthy: !self.shared.unhealthy.load(Ordering::Acquire) }
    }

    fn save_snapshot(&self, at: Position, state: &mut dyn Read) -> Result<SnapshotInfo, Error> {
        let committed = self.status().committed;
        if at.index > committed.index {
            let right = format!("the last committed index is {}", committed.index);
            return Err(Error::Index { index: at.index, right });
        }
        let mut snapshots = locked(&self.snapshots);
        let info = snapshots.save(at, state)?;
        self.shared.snapshots_saved.fetch_add(1, Ordering::Relaxed);
        self.shared.snapshot_bytes.fetch_add(info.bytes, Ordering::Relaxed);
        self.truncate(snapshots.log_needed_above())?;
        Ok(info)
    }
}

impl Drop for LocalEngine {
    fn drop(&mut self) {
        // The log thread ends when it has taken everything sent, and the spare thread after it.
        self.commands = None;
        let own = thread::current().id();
        if self.threads.iter().any(|handle| handle.thread().id() == own) {
            // The last reference was dropped by a completion: a thread cannot wait for itself.
            return;
        }
        for handle in self.threads.drain(..) {
            if handle.join().is_err() {
                tracing::error!("a thread of the order panicked");
            }
        }
    }
}
