//! A store behind an engine of this process: a durable log, the store in memory, snapshots.
//!
//! ```text
//!  submit ─► Submitter ─► Engine (log) ── committed ─► apply thread (owns the store) ── outcomes ─► who submitted
//!  read ─────────────────────────────────────────────────►   │          └─ changes ─► history ─► watches
//!                                                 snapshots ◄┘
//! ```
//!
//! Invariants
//! - An outcome is told after its batch is durable and applied; a read that begins then sees it, because both
//!   go through the one queue of the apply thread.
//! - After the end of the process at any byte, all that was told is there.
//! - Only this thread touches the store. The queue is bounded: the log waits when it is full, readers are told.
//!
//! - With a replicated engine ([`LocalStore::follow`]) the state comes from the order alone, also as a whole, and a
//!   [`Barrier`] comes before reads. Who asks another replica than the one that leads is told which does.

mod apply;

use crate::Error;
use crate::service::{
    Barrier, Borrowing, Boxed, Changes, Consistency, ReadResult, ServiceError, StoreService,
};
use apply::{Applier, Command};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io::Read as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use weir_base::codec::{decode, encode};
use weir_base::ordered_time::OrderedTime;
use weir_base::world::{Clock, Disk};
use weir_model::Version;
use weir_order::{BatcherSettings, Engine, Entry, OpenedLocal, Position, Sink, Submitter};
use weir_store::{Batch, Change, History, HistorySettings, Outcome, Query, Registry, Store};

/// Most changes that a watch gives at once.
const WATCH_CHANGES_MAX: usize = 256;

/// Settings of a local store.
#[derive(Clone, Copy, Debug)]
pub struct LocalSettings {
    /// Batches of the order (row R9).
    pub batcher: BatcherSettings,
    /// The log.
    pub order: weir_order::Settings,
    /// A snapshot is taken when the log behind the last has so many bytes …
    pub snapshot_bytes: u64,
    /// … or so many entries.
    pub snapshot_entries: u64,
    /// Changes kept for watchers.
    pub history: HistorySettings,
    /// Entries and reads that may wait for the apply thread.
    pub inbox_max: usize,
    /// Batches that may wait for their outcomes.
    pub submissions_max: usize,
}

impl Default for LocalSettings {
    fn default() -> LocalSettings {
        let mut order = weir_order::Settings::default();
        order.log.batch_bytes_max = 18 << 20;
        order.local.batch_bytes_max = 18 << 20;
        LocalSettings {
            batcher: BatcherSettings { operation_bytes_max: 17 << 20, ..BatcherSettings::default() },
            order,
            snapshot_bytes: 64 << 20,
            snapshot_entries: 50_000,
            history: HistorySettings::default(),
            inbox_max: 4_096,
            submissions_max: 65_536,
        }
    }
}

/// One operation of the order: a batch, or with no requests only the time.
#[derive(Serialize, Deserialize)]
struct Item {
    /// The proposer's time, milliseconds of the Unix epoch.
    now_ms: u64,
    /// Which process proposed it; and under which number it waits for the outcomes.
    origin: u64,
    ticket: u64,
    batch: Batch,
}

type Answered = oneshot::Sender<Result<Vec<Outcome>, ServiceError>>;

/// What the apply thread and everybody else share.
struct Shared {
    origin: u64,
    submissions: Mutex<HashMap<u64, Answered>>,
    history: Mutex<History>,
    reached: watch::Sender<Version>,
    repeated: AtomicU64,
    clock: Arc<dyn Clock>,
    time: Mutex<OrderedTime>,
    /// All that was acknowledged before this is applied.
    fresh_at: Mutex<Option<Instant>>,
}

impl Shared {
    /// Time for a proposal: led by the machine's clock, never moved by a jump of it.
    fn ordered_ms(&self) -> u64 {
        let (wall_ms, steady_ms) = (self.clock.wall_ms(), self.clock.now_ns() / 1_000_000);
        let mut time = locked(&self.time);
        time.tick(wall_ms, steady_ms);
        time.ordered_ms(steady_ms)
    }

    /// The state has this ordered time.
    fn decided(&self, last_ms: u64) {
        locked(&self.time).decided(last_ms, self.clock.now_ns() / 1_000_000);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves plain values that are each whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// See the module.
pub struct LocalStore {
    shared: Arc<Shared>,
    /// None only while it is dropped.
    submitter: Option<Arc<Submitter>>,
    inbox: SyncSender<Command>,
    next_ticket: AtomicU64,
    submissions_max: usize,
    barrier: Option<Arc<dyn Barrier>>,
    threads: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for LocalStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LocalStore")
    }
}

impl LocalStore {
    /// Opens the log on `disk`, recovers (newest snapshot, then replay), and starts.
    ///
    /// # Errors
    /// [`Error::Order`], [`Error::Snapshot`], [`Error::Setting`].
    pub fn open(
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        registry: Arc<Registry>,
        settings: LocalSettings,
    ) -> Result<LocalStore, Error> {
        let opened = OpenedLocal::open(disk, settings.order)?;
        let mut store = load(&opened)?;
        let last = replay(&opened, &mut store, &registry)?;
        let (inbox, commands) = sync_channel(settings.inbox_max);
        let committed = inbox.clone();
        let sink = move |entry: &Entry| {
            // Fails only when the apply thread has ended; then nobody is answered any more.
            let _ = committed.send(Command::Committed(entry.clone()));
        };
        let engine: Arc<dyn Engine> = Arc::new(opened.start(Box::new(sink))?);
        LocalStore::run(clock, registry, settings, (store, last), (inbox, commands), (engine, None))
    }

    /// A store over a replicated order, with an empty state. `start` is given where the order brings its entries and
    /// snapshots, and gives the order and its barrier.
    ///
    /// # Errors
    /// [`Error::Order`], [`Error::Setting`].
    pub fn follow(
        clock: Arc<dyn Clock>,
        registry: Arc<Registry>,
        settings: LocalSettings,
        start: impl FnOnce(Box<dyn Sink>) -> Result<(Arc<dyn Engine>, Arc<dyn Barrier>), weir_order::Error>,
    ) -> Result<LocalStore, Error> {
        let (inbox, commands) = sync_channel(settings.inbox_max);
        let (engine, barrier) = start(Box::new(ToApply(inbox.clone())))?;
        let nothing = (Store::new(), Position { term: 0, index: 0 });
        LocalStore::run(clock, registry, settings, nothing, (inbox, commands), (engine, Some(barrier)))
    }

    fn run(
        clock: Arc<dyn Clock>,
        registry: Arc<Registry>,
        settings: LocalSettings,
        (store, last): (Store, Position),
        (inbox, commands): (SyncSender<Command>, Receiver<Command>),
        (engine, barrier): (Arc<dyn Engine>, Option<Arc<dyn Barrier>>),
    ) -> Result<LocalStore, Error> {
        let mut origin = [0; 8];
        getrandom::fill(&mut origin).map_err(|error| Error::Setting(format!("no randomness: {error}")))?;
        let shared = Arc::new(Shared {
            origin: u64::from_le_bytes(origin),
            submissions: Mutex::default(),
            history: Mutex::new(History::new(settings.history, store.version())),
            reached: watch::Sender::new(store.version()),
            repeated: AtomicU64::new(0),
            clock: clock.clone(),
            time: Mutex::new(OrderedTime::new(0, store.now_ms(), clock.now_ns() / 1_000_000)),
            fresh_at: Mutex::default(),
        });
        let submitter = Arc::new(Submitter::new(engine.clone(), clock, settings.batcher)?);
        let (saver, jobs) = sync_channel(1);
        let saved = inbox.clone();
        let applier =
            Applier::new(store, registry, shared.clone(), Arc::downgrade(&submitter), saver, settings, last);
        let threads = vec![
            spawn("store-apply", move || applier.run(&commands))?,
            spawn("store-snapshot", move || apply::save_snapshots(&*engine, &jobs, &saved))?,
        ];
        Ok(LocalStore {
            shared,
            submitter: Some(submitter),
            inbox,
            next_ticket: AtomicU64::new(1),
            submissions_max: settings.submissions_max,
            barrier,
            threads,
        })
    }

    /// Requests that were asked again and not done again, since it was opened.
    pub fn repeated(&self) -> u64 {
        self.shared.repeated.load(Ordering::Relaxed)
    }

    fn offer(
        &self,
        batch: Batch,
    ) -> Result<oneshot::Receiver<Result<Vec<Outcome>, ServiceError>>, ServiceError> {
        let stopped = || ServiceError::Unavailable { reason: "the store has stopped".into() };
        let submitter = self.submitter.as_ref().ok_or_else(stopped)?;
        let ticket = self.next_ticket.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        {
            let mut submissions = locked(&self.shared.submissions);
            if submissions.len() >= self.submissions_max {
                return Err(ServiceError::Overloaded {
                    reason: format!("{} batches wait", submissions.len()),
                });
            }
            submissions.insert(ticket, answer);
        }
        let item = Item { now_ms: self.shared.ordered_ms(), origin: self.shared.origin, ticket, batch };
        let (shared, barrier) = (self.shared.clone(), self.barrier.clone());
        // Success is told by the apply thread, which has the outcomes.
        let reply = move |result: Result<_, weir_order::Error>| {
            if let Err(error) = result
                && let Some(answer) = locked(&shared.submissions).remove(&ticket)
            {
                let _ = answer.send(Err(refused(&error, barrier.as_deref())));
            }
        };
        submitter.submit(Bytes::from(encode(&item)), Box::new(reply));
        Ok(answered)
    }
}

/// Hands everything over to the apply thread. It runs on the order's thread.
struct ToApply(SyncSender<Command>);

impl Sink for ToApply {
    fn committed(&mut self, entry: &Entry) {
        // Fails only when the apply thread has ended; then nobody is answered any more.
        let _ = self.0.send(Command::Committed(entry.clone()));
    }

    fn install(&mut self, at: Position, state: &mut dyn std::io::Read) -> std::io::Result<()> {
        let mut bytes = Vec::new();
        state.read_to_end(&mut bytes)?;
        let store = Store::from_snapshot(&bytes).map_err(std::io::Error::other)?;
        let _ = self.0.send(Command::Install(at, Box::new(store)));
        Ok(())
    }
}

/// What a failure of the order is to a client.
pub fn refused(error: &weir_order::Error, barrier: Option<&dyn Barrier>) -> ServiceError {
    let reason = error.to_string();
    match error {
        weir_order::Error::NotLeader { leader } => {
            let address = leader.and_then(|leader| barrier?.address_of(leader));
            ServiceError::NotLeader { leader: address }
        }
        weir_order::Error::Overloaded { .. } => ServiceError::Overloaded { reason },
        error if error.is_definite() => ServiceError::Unavailable { reason },
        _ => ServiceError::Uncertain { reason },
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    spawned.map_err(|error| Error::Setting(format!("starting thread {name}: {error}")))
}

fn load(opened: &OpenedLocal) -> Result<Store, Error> {
    let Some(mut reader) = opened.snapshot()? else { return Ok(Store::new()) };
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).map_err(|error| Error::Snapshot(error.to_string()))?;
    Store::from_snapshot(&bytes).map_err(|error| Error::Snapshot(error.to_string()))
}

fn items(entry: &Entry) -> Result<Vec<Item>, Error> {
    let operations = weir_order::batcher::decode(&entry.batch)?;
    let read = |operation: &[u8]| {
        decode(operation).map_err(|error| Error::Snapshot(format!("entry {}: {error}", entry.position.index)))
    };
    operations.into_iter().map(read).collect()
}

fn replay(opened: &OpenedLocal, store: &mut Store, registry: &Registry) -> Result<Position, Error> {
    let mut last = opened.opening().snapshot.map_or(Position { term: 0, index: 0 }, |info| info.at);
    for entry in opened.replay()? {
        let entry = entry?;
        for item in items(&entry)? {
            store.apply(registry, item.now_ms, &item.batch);
        }
        last = entry.position;
    }
    Ok(last)
}

impl StoreService for LocalStore {
    fn submit(&self, batch: Batch) -> Boxed<Result<Vec<Outcome>, ServiceError>> {
        let offered = self.offer(batch);
        Box::pin(async move {
            let stopped = |_| ServiceError::Uncertain { reason: "the store stopped meanwhile".into() };
            offered?.await.map_err(stopped)?
        })
    }

    fn read(&self, queries: Vec<Query>, consistency: Consistency) -> Boxed<Result<ReadResult, ServiceError>> {
        let (inbox, barrier, shared) = (self.inbox.clone(), self.barrier.clone(), self.shared.clone());
        Box::pin(async move {
            if let Some(barrier) = barrier {
                fresh(&shared, &*barrier, consistency).await?;
            }
            let (reply, read) = oneshot::channel();
            inbox.try_send(Command::Read { queries, reply }).map_err(|error| match error {
                TrySendError::Full(_) => ServiceError::Overloaded { reason: "too many reads wait".into() },
                TrySendError::Disconnected(_) => {
                    ServiceError::Unavailable { reason: "the store has stopped".into() }
                }
            })?;
            read.await.map_err(|_| ServiceError::Unavailable { reason: "the store has stopped".into() })
        })
    }

    fn watch(&self, from: Option<Version>) -> Result<(Version, Box<dyn Changes>), ServiceError> {
        let reached = self.shared.reached.subscribe();
        let from = {
            let history = locked(&self.shared.history);
            let from = from.unwrap_or(history.last());
            history.after(from, 0)?;
            from
        };
        Ok((from, Box::new(LocalChanges { shared: Arc::downgrade(&self.shared), reached, from })))
    }
}

/// Returns when what is in the queue of the apply thread has all that was acknowledged before this call, or before so
/// long: reads that may be stale share a barrier.
async fn fresh(shared: &Shared, barrier: &dyn Barrier, consistency: Consistency) -> Result<(), ServiceError> {
    let asked = Instant::now();
    if let Consistency::Stale { staleness_ms } = consistency {
        let within = Duration::from_millis(staleness_ms);
        if locked(&shared.fresh_at).is_some_and(|fresh_at| asked.duration_since(fresh_at) <= within) {
            return Ok(());
        }
    }
    barrier.barrier().await?;
    *locked(&shared.fresh_at) = Some(asked);
    Ok(())
}

struct LocalChanges {
    shared: std::sync::Weak<Shared>,
    reached: watch::Receiver<Version>,
    from: Version,
}

impl Changes for LocalChanges {
    fn next(&mut self) -> Borrowing<'_, Result<Vec<Arc<Change>>, ServiceError>> {
        Box::pin(async move {
            let stopped = || ServiceError::Unavailable { reason: "the store has stopped".into() };
            loop {
                self.reached.borrow_and_update();
                let shared = self.shared.upgrade().ok_or_else(stopped)?;
                let changes = locked(&shared.history).after(self.from, WATCH_CHANGES_MAX)?;
                drop(shared);
                if let Some(last) = changes.last() {
                    self.from = last.version;
                    return Ok(changes);
                }
                self.reached.changed().await.map_err(|_| stopped())?;
            }
        })
    }
}

impl Drop for LocalStore {
    fn drop(&mut self) {
        // What is in the queue is applied and answered; others hear that it is uncertain. The last reference to
        // the engine is the snapshot thread's, which ends after the apply thread.
        self.submitter = None;
        let _ = self.inbox.send(Command::Stop);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the store panicked");
            }
        }
    }
}
