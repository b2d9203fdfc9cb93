//! One replica: openraft with its log, machine and network, and the handle that others use.
//!
//! [`open`] reads the disk and gives an [`Opened`]: the engine's handle, a future to run, and the log's writer. Who runs them
//! differs: `driver` uses two threads, the simulator one for a whole group.
//!
//! What a proposer is told (row B1)
//! - Ok: a quorum has the batch on disk, and the sink of this replica saw it.
//! - [`Error::NotLeader`]: for certain not in the order; ask the leader named.
//! - [`Error::LeaderLost`]: leadership went before the fate was known. Raft cannot take a batch back that another replica
//!   may have, so this stays open; whoever proposes carries an identity in each operation, and the state drops the second.

mod admin;
mod health;
mod lost;
mod newborn;
mod promote;
mod reads;
mod room;
mod status;
mod tell;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::ClientWriteError;
use openraft::raft::ClientWriteResult;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use weir_base::world::{Disk, DiskLock, LockOutcome};
use weir_order::{Completion, Engine, Error, LogCounters, Position, Sink, SnapshotInfo, Status};

pub use admin::Change;
pub use reads::ReadKind;
pub use status::{Lag, Leadership, ReplicaCounters, ReplicaStatus, Role};

use crate::log::{self, CacheCounters, LogStore, OpenedLog, Write, Writer};
use crate::machine::{Machine, MachineShared};
use crate::net::{
    Accepted, Common, Contacts, Counts, FRAME_OVERHEAD_BYTES, Incoming, Network, Pace, PeerSink, Service,
    Transport,
};
use crate::runtime::spawn;
use crate::settings::Settings;
use crate::types::{Answer, Batch, Types};
use admin::Command;
pub(crate) use newborn::Newborn;
use reads::Waiting;

const LOCK: &str = "lock";
/// Commands and notices that may wait.
const COMMANDS_MAX: usize = 256;
/// Links of others that may wait to be served.
pub const LINKS_WAITING_MAX: usize = 64;

pub(crate) type RaftOf = openraft::Raft<Types, Machine>;

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves plain values that are each whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Proposal {
    batch: Bytes,
    number: u64,
}

/// Proposals whose fate is not known yet, in the order in which they came.
#[derive(Default)]
struct Pending {
    next: u64,
    waiting: BTreeMap<u64, Completion>,
}

/// What the handle and the replica's tasks share.
pub(crate) struct Inner {
    pub(crate) settings: Settings,
    pub(crate) machine: Arc<MachineShared>,
    pub(crate) log: Arc<log::Shared>,
    pub(crate) counts: Arc<Counts>,
    pub(crate) contacts: Arc<Contacts>,
    pub(crate) peers: Arc<OnceLock<Box<PeerSink>>>,
    pub(crate) raft: OnceLock<RaftOf>,
    pub(crate) leadership: watch::Sender<Leadership>,
    pub(crate) fence: Mutex<Option<String>>,
    pub(crate) failure: Mutex<Option<String>>,
    /// The log ended here when the replica started: what it may have acknowledged in an earlier life.
    pub(crate) start_log_index: Option<u64>,
    pub(crate) changing: AtomicBool,
    /// Another replica needs a state.
    pub(crate) state_wanted: AtomicBool,
    pub(crate) divergences: AtomicU64,
    pub(crate) repairs: AtomicU64,
    pub(crate) digests_agreed: AtomicU64,
    pub(crate) read_checks: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) overloads: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) committed: AtomicU64,
    pub(crate) room_handovers: AtomicU64,
    /// Replicas whose vote this leader took, because they had lost their log.
    pub(crate) demoted: Mutex<BTreeSet<u64>>,
    /// Learners that are to have no vote; nothing before they are known.
    pub(crate) spares: Mutex<Option<BTreeSet<u64>>>,
    pub(crate) mended: AtomicU64,
    pub(crate) newborn: Arc<Newborn>,
    pub(crate) room_refusals: AtomicU64,
    pending: Mutex<Pending>,
    stop: watch::Sender<bool>,
}

/// The handle of a replica. Clones are the same replica; it stops when told, or when the last is dropped.
#[derive(Clone)]
pub struct Replica {
    pub(crate) inner: Arc<Inner>,
    proposals: mpsc::Sender<Proposal>,
    reads: mpsc::Sender<Waiting>,
    commands: mpsc::Sender<Command>,
    tells: mpsc::Sender<tell::Tell>,
}

/// A replica that is open, but does nothing until its parts are run.
pub struct Opened {
    /// The handle.
    pub replica: Replica,
    /// To be run in a life of its own, on a tokio runtime with time.
    pub run: Run,
    /// Writes the log: to be run on a thread of its own, or as a task.
    pub writer: Writer,
    /// What the writer is asked.
    pub writes: mpsc::Receiver<Write>,
    /// Keeps the directory locked: whoever runs the writer holds it until the log is closed.
    pub lock: Arc<DiskLock>,
    /// What opening the log found.
    pub recovery: weir_order::Recovery,
}

/// The replica's work.
pub struct Run {
    inner: Arc<Inner>,
    disk: Arc<dyn Disk>,
    transport: Arc<dyn Transport>,
    links: mpsc::Receiver<Accepted>,
    store: LogStore,
    sink: Box<dyn Sink>,
    proposals: mpsc::Receiver<Proposal>,
    reads: mpsc::Receiver<Waiting>,
    commands: mpsc::Receiver<Command>,
    tells: mpsc::Receiver<tell::Tell>,
    stopped: watch::Receiver<bool>,
    ends: EndsPending,
    _lock: Arc<DiskLock>,
}

/// Ends what waits when the run ends, also when it is cut off: nobody may wait for ever.
struct EndsPending(Arc<Inner>);

impl Drop for EndsPending {
    fn drop(&mut self) {
        self.0.leadership.send_replace(Leadership::default());
        self.0.fail_pending(u64::MAX, &Error::Stopped);
    }
}

pub(crate) fn lock(disk: &dyn Disk) -> Result<DiskLock, Error> {
    let dir = disk.describe();
    match disk.lock(LOCK, &format!("pid {}", std::process::id())) {
        Ok(LockOutcome::Held(lock)) => Ok(lock),
        Ok(LockOutcome::Busy { holder }) => Err(Error::Locked { dir, holder }),
        Err(error) => {
            Err(Error::Io { action: "locking", file: LOCK.to_owned(), dir, source: Arc::new(error) })
        }
    }
}

fn newborn(disk: &Arc<dyn Disk>, has_snapshot: bool) -> Result<Newborn, Error> {
    let names = disk.list().map_err(|error| file_error("listing", disk, error))?;
    let has_log = names.iter().any(|name| weir_order::log::segment::number_of(name).is_some());
    // A log that is missing beside its proof is refused where it is opened.
    Newborn::open(Arc::clone(disk), !has_log && !has_snapshot)
        .map_err(|error| file_error("marking as new", disk, error))
}

fn file_error(action: &'static str, disk: &Arc<dyn Disk>, error: std::io::Error) -> Error {
    Error::Io { action, file: "files".to_owned(), dir: disk.describe(), source: Arc::new(error) }
}

/// Opens the replica whose log and snapshots are in `disk`, or makes a new one. `links` brings the links that others open.
/// `sink` is given the newest snapshot's state, and then every batch behind it as soon as it is known to be committed.
pub fn open(
    disk: Arc<dyn Disk>,
    settings: Settings,
    transport: Arc<dyn Transport>,
    links: mpsc::Receiver<Accepted>,
    sink: Box<dyn Sink>,
) -> Result<Opened, Error> {
    settings.check()?;
    settings.config()?;
    let held = Arc::new(lock(&*disk)?);
    let machine = MachineShared::open(Arc::clone(&disk))?;
    // Before there is a log: what begins empty says so until it has caught up.
    let newborn = newborn(&disk, machine.has_snapshot())?;
    let opened =
        log::open(Arc::clone(&disk), settings.log, settings.cache_bytes_max, machine.has_snapshot())?;
    let OpenedLog { store, writer, writes, recovery } = opened;
    let spares = Mutex::new((!settings.awaits_spares).then(BTreeSet::new));
    let start_log_index = store.shared().view().last().map(|id| id.index());
    let (proposals, proposed) = mpsc::channel(settings.proposals_max);
    let (reads, read) = mpsc::channel(settings.reads_max);
    let (commands, commanded) = mpsc::channel(COMMANDS_MAX);
    let (tells, told) = mpsc::channel(tell::WAITING_MAX);
    let (stop, stopped) = watch::channel(false);
    let contacts = Arc::new(Contacts::new(settings.timers.heartbeat_ms, settings.id));
    let inner = Arc::new(Inner {
        settings,
        machine,
        log: Arc::clone(store.shared()),
        counts: Arc::default(),
        contacts,
        peers: Arc::default(),
        raft: OnceLock::new(),
        leadership: watch::Sender::new(Leadership::default()),
        fence: Mutex::default(),
        failure: Mutex::default(),
        start_log_index,
        changing: AtomicBool::new(false),
        state_wanted: AtomicBool::new(false),
        divergences: AtomicU64::new(0),
        repairs: AtomicU64::new(0),
        digests_agreed: AtomicU64::new(0),
        read_checks: AtomicU64::new(0),
        reads: AtomicU64::new(0),
        overloads: AtomicU64::new(0),
        failed: AtomicU64::new(0),
        committed: AtomicU64::new(0),
        room_handovers: AtomicU64::new(0),
        demoted: Mutex::default(),
        spares,
        mended: AtomicU64::new(0),
        newborn: Arc::new(newborn),
        room_refusals: AtomicU64::new(0),
        pending: Mutex::default(),
        stop,
    });
    let replica = Replica { inner: Arc::clone(&inner), proposals, reads, commands, tells };
    let run = Run {
        ends: EndsPending(Arc::clone(&inner)),
        inner,
        disk,
        transport,
        links,
        store,
        sink,
        proposals: proposed,
        reads: read,
        commands: commanded,
        tells: told,
        stopped,
        _lock: Arc::clone(&held),
    };
    Ok(Opened { replica, run, writer, writes, lock: held, recovery })
}

impl Run {
    /// Runs until the replica is stopped or cannot go on.
    pub async fn run(self) {
        let inner = Arc::clone(&self.inner);
        if let Err(error) = self.work().await {
            tracing::error!(replica = inner.settings.id, error, "the replica stops");
            *locked(&inner.failure) = Some(error);
        }
    }

    async fn work(mut self) -> Result<(), String> {
        let inner = &self.inner;
        let settings = &inner.settings;
        let config = Arc::new(settings.config().map_err(|error| error.to_string())?);
        let common = Arc::new(Common {
            id: settings.id,
            group: settings.group.clone(),
            frame_bytes_max: settings.log.batch_bytes_max as usize + FRAME_OVERHEAD_BYTES + (1 << 20),
            counts: Arc::clone(&inner.counts),
            contacts: Arc::clone(&inner.contacts),
        });
        let pace =
            Pace { chunk_bytes: settings.snapshot_chunk_bytes, bytes_per_s: settings.snapshot_bytes_per_s };
        let silence = 2 * settings.timers.election_max();
        let network = Network::new(Arc::clone(&common), Arc::clone(&self.transport), pace, silence);
        let machine = Machine::new(Arc::clone(&inner.machine), self.sink);
        let raft = RaftOf::new(settings.id, config, network.clone(), self.store, machine)
            .await
            .map_err(|error| error.to_string())?;
        let held_back = if settings.lease_reads && inner.start_log_index.is_some() {
            settings.timers.election_max()
        } else {
            Duration::ZERO
        };
        let (notices, noticed) = mpsc::channel(COMMANDS_MAX);
        let service = Arc::new(Service {
            common,
            raft: raft.clone(),
            disk: Arc::clone(&self.disk),
            machine: Arc::clone(&inner.machine),
            incoming: tokio::sync::Mutex::new(None::<Incoming>),
            notices,
            peers: Arc::clone(&inner.peers),
            votes_from: Instant::now() + held_back,
            repairing: AtomicBool::new(false),
            newborn: Arc::clone(&inner.newborn),
            log: Arc::clone(&inner.log),
        });
        raft.runtime_config().elect(inner.newborn.may_vote(inner.log.view().last().as_ref()));
        // Set once, here.
        let _first = inner.raft.set(raft.clone());
        spawn(crate::net::serve(Arc::clone(&service), self.links));
        spawn(propose_all(Arc::clone(inner), raft.clone(), self.proposals));
        spawn(promote::watch(Arc::clone(inner), raft.clone()));
        spawn(lost::watch(Arc::clone(inner), raft.clone()));
        spawn(room::watch(Arc::clone(inner), raft.clone()));
        spawn(reads::answer_all(Arc::clone(inner), raft.clone(), self.reads));
        let (told, heard) = mpsc::channel(COMMANDS_MAX);
        spawn(admin::obey(Arc::clone(inner), raft.clone(), network.clone(), self.commands, told));
        spawn(tell::tell_all(Arc::clone(inner), raft.clone(), network.clone(), self.tells));
        spawn(health::watch_over(Arc::clone(inner), raft.clone(), network, service, noticed, heard));
        let ended = watch_leader(inner, &raft, &mut self.stopped).await;
        drop(self.ends);
        // The outcome is known to whoever waits on the core.
        let _joined = raft.shutdown().await;
        ended
    }
}

/// Publishes who leads, and ends what was proposed to a leadership that is gone. Ends when told to, or when openraft ends.
async fn watch_leader(
    inner: &Arc<Inner>,
    raft: &RaftOf,
    stopped: &mut watch::Receiver<bool>,
) -> Result<(), String> {
    let mut metrics = raft.server_metrics();
    let own = inner.settings.id;
    loop {
        let now = {
            let seen = metrics.borrow_and_update();
            Leadership { leader: seen.current_leader, term: seen.vote.leader_id.term }
        };
        let before = inner.leadership.send_replace(now);
        let leads = now.leader == Some(own);
        let led = before.leader == Some(own);
        inner.log.set_follows(now.leader.is_some() && !leads);
        if leads && inner.newborn.is_new() {
            // Whoever leads has what is committed.
            inner.newborn.grown();
            raft.runtime_config().elect(true);
        }
        if before.term != now.term {
            inner.contacts.forget_full();
        }
        if led && (!leads || before.term != now.term) {
            let handed = locked(&inner.pending).next;
            inner.fail_pending(handed, &Error::LeaderLost);
        }
        if before != now {
            tracing::info!(replica = own, leader = now.leader, term = now.term, "leadership");
        }
        tokio::select! {
            biased;
            // The handle is gone: nobody is left to serve.
            changed = stopped.wait_for(|stop| *stop) => return changed.map(|_| ()).or(Ok(())),
            changed = metrics.changed() => if changed.is_err() {
                let fatal = raft.metrics().borrow_watched().running_state.clone();
                return Err(fatal.err().map_or("openraft ended".to_owned(), |error| error.to_string()));
            },
        }
        if let Err(error) = raft.metrics().borrow_watched().running_state.clone() {
            return Err(error.to_string());
        }
    }
}

async fn propose_all(inner: Arc<Inner>, raft: RaftOf, mut proposals: mpsc::Receiver<Proposal>) {
    while let Some(Proposal { batch, number }) = proposals.recv().await {
        let hears = Arc::clone(&inner);
        let answer = Answer(Box::new(move |result| hears.answered(number, result)));
        if raft.client_write_ff(Batch(batch), Some(answer)).await.is_err() {
            inner.finish(number, Err(Error::Stopped));
        }
    }
}

impl Inner {
    fn answered(&self, number: u64, result: ClientWriteResult<Types>) {
        let result = match result {
            Ok(response) => response.data.0.ok_or(Error::Stopped),
            Err(ClientWriteError::ForwardToLeader(to)) => {
                Err(Error::NotLeader { leader: to.leader_id.filter(|id| *id != self.settings.id) })
            }
            // It was in the log of this leader and was cut out of it: another replica may have it.
            Err(_) => Err(Error::LeaderLost),
        };
        self.finish(number, result);
    }

    fn finish(&self, number: u64, result: Result<Position, Error>) {
        let Some(done) = locked(&self.pending).waiting.remove(&number) else { return };
        let counter = if result.is_ok() { &self.committed } else { &self.failed };
        counter.fetch_add(1, Ordering::Relaxed);
        done.finish(result);
    }

    /// Ends proposals numbered below `below`.
    fn fail_pending(&self, below: u64, error: &Error) {
        let lost = {
            let mut pending = locked(&self.pending);
            let keep = pending.waiting.split_off(&below);
            std::mem::replace(&mut pending.waiting, keep)
        };
        self.failed.fetch_add(lost.len() as u64, Ordering::Relaxed);
        for done in lost.into_values() {
            done.finish(Err(error.clone()));
        }
    }

    /// Why nothing is served, if so.
    pub(crate) fn refusal(&self) -> Option<Error> {
        if let Some(what) = locked(&self.fence).clone() {
            return Some(Error::Fenced { what });
        }
        locked(&self.failure).is_some().then_some(Error::Stopped)
    }
}

impl Replica {
    /// Stops the replica. Its state on disk is whole at any time; this only spares the others the wait for an election
    /// when leadership was given away before ([`Replica::transfer_leadership`]).
    pub fn stop(&self) {
        self.inner.stop.send_replace(true);
    }

    /// Who leads, as far as this replica knows; changes can be waited for.
    pub fn leader(&self) -> watch::Receiver<Leadership> {
        self.inner.leadership.subscribe()
    }

    /// Counts of the log.
    pub fn log_counters(&self) -> LogCounters {
        self.inner.log.counters()
    }

    /// Counts of the entries in memory.
    pub fn cache_counters(&self) -> CacheCounters {
        self.inner.log.view().counters
    }

    async fn command(&self, make: impl FnOnce(admin::Reply) -> Command) -> Result<(), crate::Error> {
        let (reply, answer) = oneshot::channel();
        let stopped = || crate::Error::Order(Error::Stopped);
        self.commands.send(make(reply)).await.map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }

    /// Founds the group with these voters and their addresses. To be done once, on one replica, before anything else.
    pub async fn initialize(&self, members: BTreeMap<u64, String>) -> Result<(), crate::Error> {
        self.command(|reply| Command::Initialize { members, reply }).await
    }

    /// Changes the group, one replica at a time.
    pub async fn change(&self, change: Change) -> Result<(), crate::Error> {
        self.command(|reply| Command::Change { change, reply }).await
    }

    /// Whether replica `id` of this group answers at an address, within some seconds.
    pub async fn probe(&self, id: u64, address: String) -> Result<(), crate::Error> {
        self.command(|reply| Command::Probe { id, address, reply }).await
    }

    /// Gives leadership to `to`, or to the voter that is least behind. Returns when another leads.
    pub async fn transfer_leadership(&self, to: Option<u64>) -> Result<(), crate::Error> {
        self.command(|reply| Command::Transfer { to, reply }).await
    }

    /// Waits until all acknowledged batches of before this call are applied here, without a write to disk. Waiting reads
    /// share one check. `done` is called with the last batch applied.
    pub fn read_barrier(&self, kind: ReadKind, done: Completion) -> Result<(), Error> {
        if let Some(error) = self.inner.refusal() {
            done.disarm();
            return Err(error);
        }
        let limit = self.inner.settings.reads_max as u64;
        let (waiting, error) = match self.reads.try_send(Waiting { kind, done }) {
            Ok(()) => return Ok(()),
            Err(mpsc::error::TrySendError::Full(waiting)) => {
                self.inner.overloads.fetch_add(1, Ordering::Relaxed);
                (waiting, Error::Overloaded { what: "reads", waiting: limit, limit })
            }
            Err(mpsc::error::TrySendError::Closed(waiting)) => (waiting, Error::Stopped),
        };
        waiting.done.disarm();
        Err(error)
    }

    /// Why nothing new is taken, when this replica's disk is full, or those of so many others that no majority is left.
    fn no_room(&self) -> Option<Error> {
        if let Some(error) = self.inner.log.room().refusal() {
            return Some(error);
        }
        let full = self.inner.contacts.full();
        let raft = self.inner.raft.get().filter(|_| !full.is_empty())?;
        let metrics = raft.server_metrics();
        let seen = metrics.borrow_watched();
        let voters: Vec<u64> = seen.membership_config.membership().voter_ids().collect();
        let rest = voters.iter().filter(|id| !full.contains(id)).count();
        (rest < voters.len() / 2 + 1).then(|| Error::DiskFull {
            dir: format!("the logs of replicas {full:?}"),
            file: "what is new".to_owned(),
        })
    }

    /// Which learners are spares: they get no vote by themselves. Nothing: it is not known here, and no learner gets one.
    pub fn set_spares(&self, spares: Option<BTreeSet<u64>>) {
        *locked(&self.inner.spares) = spares;
    }

    /// Whether another replica, whose state is rotten, needs one that is newer than this replica's snapshot: the application's after the
    /// batch at `index`, the last one here.
    pub fn wants_state(&self, index: u64) -> bool {
        self.inner.state_wanted.load(Ordering::Acquire)
            && self.inner.machine.newest().is_none_or(|meta| meta.position.index < index)
    }

    /// Tells the digest of the application's state after the batch at `at`, to be compared with the others'. To be called
    /// after every [`Settings::digest_every`]th batch, in order, and after a state was taken over; a full queue loses one, which the next makes up for.
    pub fn report_digest(&self, at: Position, digest: [u8; 32]) {
        // Lost when the replica is busy or stopping.
        let _lost = self.commands.try_send(Command::Digest { index: at.index, digest });
    }
}

impl Engine for Replica {
    fn propose(&self, batch: Bytes, done: Completion) -> Result<(), Error> {
        let refuse = |done: Completion, error| {
            done.disarm();
            Err(error)
        };
        let (bytes, limit_bytes) = (batch.len() as u64, self.inner.settings.log.batch_bytes_max);
        if bytes > limit_bytes {
            return refuse(done, Error::TooLarge { what: "the batch", bytes, limit_bytes });
        }
        if let Some(error) = self.inner.refusal() {
            return refuse(done, error);
        }
        let leader = self.inner.leadership.borrow().leader;
        if leader != Some(self.inner.settings.id) {
            return refuse(done, Error::NotLeader { leader });
        }
        if let Some(error) = self.no_room() {
            self.inner.room_refusals.fetch_add(1, Ordering::Relaxed);
            return refuse(done, error);
        }
        let mut pending = locked(&self.inner.pending);
        let (waiting, limit) = (pending.waiting.len() as u64, self.inner.settings.proposals_max as u64);
        if waiting >= limit {
            self.inner.overloads.fetch_add(1, Ordering::Relaxed);
            return refuse(done, Error::Overloaded { what: "batches", waiting, limit });
        }
        let number = pending.next;
        // Queued under the lock, so that numbers and queue agree.
        match self.proposals.try_send(Proposal { batch, number }) {
            Ok(()) => {
                pending.next += 1;
                pending.waiting.insert(number, done);
                Ok(())
            }
            Err(mpsc::error::TrySendError::Full(_)) => {
                self.inner.overloads.fetch_add(1, Ordering::Relaxed);
                refuse(done, Error::Overloaded { what: "batches", waiting: limit, limit })
            }
            Err(mpsc::error::TrySendError::Closed(_)) => refuse(done, Error::Stopped),
        }
    }

    fn status(&self) -> Status {
        let status = self.replica_status();
        Status { committed: status.applied, leader: status.leader, healthy: status.failure.is_none() }
    }

    fn save_snapshot(&self, at: Position, state: &mut dyn Read) -> Result<SnapshotInfo, Error> {
        if let Some(error) = self.inner.refusal() {
            return Err(error);
        }
        let (info, purge) = self.inner.machine.save(at, state)?;
        self.inner.state_wanted.store(false, Ordering::Release);
        // A full queue only delays the purge until the next snapshot.
        let _delayed = self.commands.try_send(Command::Saved { purge });
        Ok(info)
    }
}
