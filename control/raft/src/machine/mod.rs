//! openraft's state machine over the application's [`Sink`].
//!
//! Invariants
//! - The sink sees every batch in order, each once in the engine's life, and only what a quorum has. It sees raft's own
//!   entries (a leader's first, memberships) not at all: [`Position::index`] counts batches, without gaps.
//! - A proposer hears of its batch after the sink saw it.
//! - A state is installed only when its file was checked from end to end and has its final name.
//!
//! [`Steps`] relates the two countings. A snapshot's file begins with a preamble that says where in raft's log it
//! stands and who the members are; the application neither sees nor writes it.

mod steps;
#[cfg(test)]
mod tests;

use std::io::{self, Read};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use openraft::OptionalSend;
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine, Snapshot};
use weir_base::world::{Disk, DiskFile};
use weir_order::snapshot::{self, SnapshotStore};
use weir_order::{Entry, Error, Position, Sink, SnapshotInfo};

pub use steps::{Meta, Steps};

use crate::codec::{Malformed, Put, Reader};
use crate::log::Shared;
use crate::runtime::aside;
use crate::types::{LogId, Payload, Placed, SnapshotMeta, StoredMembership, Types};

const PREAMBLE_VERSION: u8 = 1;
/// Bytes of a preamble, at most: a membership of 64 replicas with long addresses fits.
const PREAMBLE_BYTES_MAX: usize = 64 << 10;

/// A snapshot's file, for reading.
#[derive(Clone)]
pub struct SnapshotFile {
    /// Its file, held open so that it can be read to its end after its name is gone.
    pub file: Arc<dyn DiskFile>,
    /// Its name.
    pub name: String,
    /// What it holds.
    pub info: SnapshotInfo,
    /// Bytes of the whole file.
    pub file_bytes: u64,
    /// Whether it came from another replica and has not got its final name yet.
    pub incoming: bool,
}

struct Known {
    meta: Meta,
    data: SnapshotFile,
}

/// What the machine shares with the engine's handle and the network.
pub struct MachineShared {
    disk: Arc<dyn Disk>,
    /// Locked as long as a snapshot is written or adopted.
    snapshots: Mutex<SnapshotStore>,
    /// The good snapshots, oldest first. Never locked for long.
    known: Mutex<Vec<Known>>,
    steps: Mutex<Steps>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves plain values that are each whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn invalid(error: Malformed) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the snapshot's preamble: {error}"))
}

/// What stands in front of the application's state.
pub(crate) fn preamble(meta: &Meta) -> Vec<u8> {
    let mut body = BytesMut::new();
    body.put_u8(PREAMBLE_VERSION);
    body.put_log_id(Some(&meta.log_id));
    body.put_stored_membership(&meta.membership);
    let mut out = BytesMut::new();
    out.put_bytes_of(&body);
    out.to_vec()
}

/// Reads the preamble from the front of a snapshot's state; what follows is the application's.
pub fn read_preamble(state: &mut dyn Read, position: Position) -> io::Result<Meta> {
    let mut length = [0; 4];
    state.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > PREAMBLE_BYTES_MAX {
        return Err(invalid(Malformed("it is too long")));
    }
    let mut body = vec![0; length];
    state.read_exact(&mut body)?;
    let mut reader = Reader(Bytes::from(body));
    let read = || {
        if reader.u8()? != PREAMBLE_VERSION {
            return Err(Malformed("it has a version that this program does not read"));
        }
        let log_id = reader.log_id()?.ok_or(Malformed("it has no place"))?;
        let membership = reader.stored_membership()?;
        reader.end()?;
        Ok(Meta { log_id, membership, position })
    };
    read().map_err(invalid)
}

impl MachineShared {
    /// Finds the snapshots in `disk`.
    pub fn open(disk: Arc<dyn Disk>) -> Result<Arc<MachineShared>, Error> {
        let snapshots = SnapshotStore::open(Arc::clone(&disk))?;
        let shared = MachineShared {
            disk,
            known: Mutex::default(),
            steps: Mutex::new(Steps::default()),
            snapshots: Mutex::new(snapshots),
        };
        let known = shared.look(&locked(&shared.snapshots))?;
        *locked(&shared.known) = known;
        Ok(Arc::new(shared))
    }

    fn look(&self, snapshots: &SnapshotStore) -> Result<Vec<Known>, Error> {
        snapshots.good().iter().map(|info| self.known(snapshots, *info)).collect()
    }

    fn known(&self, snapshots: &SnapshotStore, info: SnapshotInfo) -> Result<Known, Error> {
        let name = snapshot::file_name(info.at.index);
        let failed = |source: io::Error| Error::Io {
            action: "reading",
            file: name.clone(),
            dir: self.disk.describe(),
            source: Arc::new(source),
        };
        let meta = read_preamble(&mut snapshots.read(info.at.index)?, info.at).map_err(failed)?;
        let file = self.disk.open(&name).map_err(failed)?;
        let file_bytes = file.len().map_err(failed)?;
        let data = SnapshotFile { file, name: name.clone(), info, file_bytes, incoming: false };
        Ok(Known { meta, data })
    }

    /// Whether there is a snapshot.
    pub fn has_snapshot(&self) -> bool {
        !locked(&self.known).is_empty()
    }

    /// The newest snapshot's place in the order of batches and in raft's log.
    pub fn newest(&self) -> Option<Meta> {
        locked(&self.known).last().map(|known| known.meta.clone())
    }

    /// The newest snapshot's file.
    pub fn newest_file(&self) -> Option<(Meta, SnapshotFile)> {
        locked(&self.known).last().map(|known| (known.meta.clone(), known.data.clone()))
    }

    /// The last batch that the sink saw.
    pub fn applied(&self) -> Position {
        locked(&self.steps).position()
    }

    /// The last entry that was applied.
    pub fn applied_log_id(&self) -> Option<LogId> {
        locked(&self.steps).applied()
    }

    /// Stores the application's state after `at`. Blocks while it reads; the machine goes on. Gives what it is, and the last
    /// entry of raft's log that is not needed any more.
    pub fn save(&self, at: Position, state: &mut dyn Read) -> Result<(SnapshotInfo, Option<u64>), Error> {
        let mut snapshots = locked(&self.snapshots);
        let meta = locked(&self.steps).meta_of(at)?;
        let front = preamble(&meta);
        let info = snapshots.save(at, &mut (&front[..]).chain(state))?;
        let fresh = self.look(&snapshots)?;
        let purge =
            fresh.len().checked_sub(snapshot::SNAPSHOTS_KEPT).map(|older| fresh[older].meta.log_id.index());
        *locked(&self.known) = fresh;
        locked(&self.steps).rebase(&meta);
        Ok((info, purge))
    }

    /// Takes the file as the only snapshot.
    fn adopt(&self, data: &SnapshotFile) -> Result<Meta, Error> {
        let mut snapshots = locked(&self.snapshots);
        if data.incoming {
            snapshots.adopt(&data.name)?;
        }
        let fresh = self.look(&snapshots)?;
        let meta = fresh.last().map(|known| known.meta.clone());
        *locked(&self.known) = fresh;
        meta.ok_or_else(|| Error::Index { index: data.info.at.index, right: "a snapshot".to_owned() })
    }
}

fn install(shared: &MachineShared, sink: &Mutex<Box<dyn Sink>>, data: &SnapshotFile) -> io::Result<Meta> {
    let meta = shared.adopt(data).map_err(io::Error::other)?;
    let at = meta.position;
    let mut state = locked(&shared.snapshots).read(at.index).map_err(io::Error::other)?;
    read_preamble(&mut state, at)?;
    locked(sink).install(at, &mut state)?;
    locked(&shared.steps).install(&meta);
    Ok(meta)
}

/// The state machine.
pub struct Machine {
    shared: Arc<MachineShared>,
    /// Shared with a thread that hands over a state; never waited for, as nothing else is applied meanwhile.
    sink: Arc<Mutex<Box<dyn Sink>>>,
}

impl Machine {
    /// A machine that has seen nothing; openraft gives it its snapshot.
    pub fn new(shared: Arc<MachineShared>, sink: Box<dyn Sink>) -> Machine {
        Machine { shared, sink: Arc::new(Mutex::new(sink)) }
    }

    fn apply_one(&mut self, id: LogId, payload: Payload) -> Placed {
        let batch = match payload {
            Payload::Normal(batch) => batch.0,
            Payload::Blank => {
                locked(&self.shared.steps).own(id, None);
                return Placed(None);
            }
            Payload::Membership(membership) => {
                locked(&self.shared.steps).own(id, Some(StoredMembership::new(Some(id), membership)));
                return Placed(None);
            }
        };
        let position = locked(&self.shared.steps).next(&id);
        locked(&self.sink).committed(&Entry { position, batch });
        // Only now, so that whoever sees the position finds its effects.
        locked(&self.shared.steps).batch(id);
        Placed(Some(position))
    }

    fn install(&self, data: &SnapshotFile) -> io::Result<Meta> {
        install(&self.shared, &self.sink, data)
    }

    /// Replaces a state that had diverged: installs `data`, then applies again what the log has behind it.
    pub fn repair(&mut self, data: &SnapshotFile, log: &Shared) -> io::Result<Position> {
        const STEP_BYTES: u64 = 4 << 20;
        if data.info.at.index > self.shared.applied().index {
            return Err(io::Error::other(
                "the state that was sent is newer than what is applied here: ask again",
            ));
        }
        let applied = self.shared.applied_log_id().map_or(0, |id| id.index() + 1);
        self.install(data)?;
        loop {
            let next = self.shared.applied_log_id().map_or(0, |id| id.index() + 1);
            if next >= applied {
                return Ok(self.shared.applied());
            }
            let entries = log.read(next, applied, STEP_BYTES)?;
            if entries.first().is_none_or(|entry| entry.log_id.index() != next) {
                let what =
                    format!("the log no longer has entry {next}, which follows the state that was sent");
                return Err(io::Error::new(io::ErrorKind::NotFound, what));
            }
            for entry in entries {
                self.apply_one(entry.log_id, entry.payload);
            }
        }
    }
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotData = SnapshotFile;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let steps = locked(&self.shared.steps);
        Ok((steps.applied(), steps.membership()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Types>>> + Unpin + OptionalSend,
    {
        while let Some(item) = entries.next().await {
            let (entry, answer) = item?;
            let placed = self.apply_one(entry.log_id, entry.payload);
            if let Some(answer) = answer {
                answer.send(placed);
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        Builder(Arc::clone(&self.shared))
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, data: SnapshotFile) -> io::Result<()> {
        let (shared, sink) = (Arc::clone(&self.shared), Arc::clone(&self.sink));
        let installed = aside(move || install(&shared, &sink, &data)).await?;
        if meta.last_log_id != Some(installed.log_id) {
            let what = format!("it says it stands at {}, not where its sender said", installed.log_id);
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        tracing::info!(at = %installed.log_id, position = installed.position.index, "installed a snapshot");
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot1>> {
        Ok(current(&self.shared))
    }
}

type Snapshot1 = openraft::type_config::alias::SnapshotOf<Types, SnapshotFile>;

fn current(shared: &MachineShared) -> Option<Snapshot1> {
    let (meta, data) = shared.newest_file()?;
    let meta = SnapshotMeta { last_log_id: Some(meta.log_id), last_membership: meta.membership };
    Some(Snapshot { meta, snapshot: data })
}

/// Gives openraft the newest snapshot that the application had made.
pub struct Builder(Arc<MachineShared>);

impl RaftSnapshotBuilder<Types> for Builder {
    type SnapshotData = SnapshotFile;

    async fn build_snapshot(&mut self) -> io::Result<Snapshot1> {
        current(&self.0)
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the application made no snapshot"))
    }
}
