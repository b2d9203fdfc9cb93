//! Opens a local engine: lock, snapshots, log, and then the application's state before anything new is ordered.

use std::sync::Arc;

use weir_base::world::{Disk, DiskLock, LockOutcome};

use super::LocalEngine;
use crate::engine::Sink;
use crate::error::Error;
use crate::local::LocalSettings;
use crate::log::{Log, LogSettings, Recovery, Replay, segment};
use crate::snapshot::{Refused, SnapshotInfo, SnapshotReader, SnapshotStore};

const LOCK: &str = "lock";

/// Settings of a local engine.
#[derive(Debug, Clone, Copy, Default)]
pub struct Settings {
    /// The log's layout.
    pub log: LogSettings,
    /// The core's limits. Its `batch_bytes_max` must not be above the log's.
    pub local: LocalSettings,
}

/// What opening found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opening {
    /// Of the log.
    pub recovery: Recovery,
    /// The snapshot to load first; none means to begin from nothing.
    pub snapshot: Option<SnapshotInfo>,
    /// Damaged snapshots that are not used.
    pub refused: Vec<Refused>,
    /// The first index to replay.
    pub replay_from: u64,
    /// The last entry's index.
    pub last_index: u64,
}

/// A log that is open, but does not order yet: load the snapshot, apply the replay, then start.
pub struct OpenedLocal {
    disk: Arc<dyn Disk>,
    settings: Settings,
    lock: DiskLock,
    snapshots: SnapshotStore,
    log: Log,
    opening: Opening,
}

impl OpenedLocal {
    /// Opens the log in `disk`, or makes one, and recovers from however it was left.
    pub fn open(disk: Arc<dyn Disk>, settings: Settings) -> Result<OpenedLocal, Error> {
        check(&settings)?;
        let lock = lock(&*disk)?;
        let snapshots = SnapshotStore::open(Arc::clone(&disk))?;
        let base = snapshots.newest().map_or(0, |info| info.at.index);
        let (log, recovery) = Log::open(Arc::clone(&disk), settings.log, base)?;
        if log.first_index() > base + 1 {
            let refused = snapshots.refused().first();
            let hint =
                refused.map_or(String::new(), |one| format!("; {} is damaged: {}", one.file, one.what));
            let what =
                format!("entries {} to {} are in no good snapshot{hint}", base + 1, log.first_index() - 1);
            let file = segment::file_name(1);
            return Err(Error::Corrupt { file, dir: disk.describe(), offset: 0, index: base, what });
        }
        let opening = Opening {
            recovery,
            snapshot: snapshots.newest(),
            refused: snapshots.refused().to_vec(),
            replay_from: base + 1,
            last_index: log.last().index,
        };
        Ok(OpenedLocal { disk, settings, lock, snapshots, log, opening })
    }

    /// What opening found.
    pub fn opening(&self) -> &Opening {
        &self.opening
    }

    /// Reads the state of [`Opening::snapshot`].
    pub fn snapshot(&self) -> Result<Option<SnapshotReader>, Error> {
        self.snapshots.read_newest()
    }

    /// The entries after the snapshot. All are durable.
    pub fn replay(&self) -> Result<Replay, Error> {
        self.log.replay(self.opening.replay_from)
    }

    /// Starts ordering after the last entry. `sink` sees only new entries: replay the old ones before.
    pub fn start(self, sink: Box<dyn Sink>) -> Result<LocalEngine, Error> {
        LocalEngine::start(self.disk, &self.settings, self.log, self.snapshots, self.lock, sink)
    }
}

fn check(settings: &Settings) -> Result<(), Error> {
    let (value, limit) = (settings.local.batch_bytes_max, settings.log.batch_bytes_max);
    if value > limit {
        let right = format!("at most {limit}, the log's own limit");
        return Err(Error::Setting { name: "local.batch_bytes_max", value, right });
    }
    if settings.local.waiting_max == 0 {
        return Err(Error::Setting { name: "local.waiting_max", value: 0, right: "at least 1".to_owned() });
    }
    Ok(())
}

fn lock(disk: &dyn Disk) -> Result<DiskLock, Error> {
    let dir = disk.describe();
    match disk.lock(LOCK, &format!("pid {}", std::process::id())) {
        Ok(LockOutcome::Held(lock)) => Ok(lock),
        Ok(LockOutcome::Busy { holder }) => {
            let holder = if holder.is_empty() { "it has not said which yet".to_owned() } else { holder };
            Err(Error::Locked { dir, holder })
        }
        Err(error) => Err(Error::io("locking", LOCK, &dir, error)),
    }
}
