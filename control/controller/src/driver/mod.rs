//! The runtime: threads, the order engine, TLS sessions and the handle, around the pure core.
//!
//! ```text
//!  API ── ControllerHandle ──► Submitter ──► Engine (log, group) ── committed ┐
//!            │      ▲                                                         ▼
//!            │      └── answers ◄──────────────────────────────────── core thread (Core::step)
//!            │                                                          ▲          │
//!            └── questions ──► sessions (a task each, TLS) ── acks ─────┘          │
//!                                  ▲                                               │
//!                                  └────────────── updates ◄───────────────────────┘
//! ```
//!
//! Invariants
//! - A proposer is answered after the log has its event durably and the core decided on it. After the
//!   end of the process at any byte, what was answered is there; what was not is there whole or not at all.
//! - Only the core thread touches the core; everything reaches it by one bounded queue. When that is
//!   full, sessions and the log wait, and those who ask by the handle are told so.
//! - Which entry is being carried out stands in a file, so that one which ends the process is known (`carrying`); how it is set aside
//!   is [`aside`]'s.
//! - Ordered time is led by the clocks of a majority ([`TimeKeeper`]), put in by the proposer and held by the core.
//! - An actuator has one session with a replica; a newer one ends the older.
//! - A group with a threshold key has one more thread, of this member's part in the group's signatures ([`members`]).
//! - In a group every replica runs all of this on the same entries; only the one that leads proposes events of its own,
//!   sends updates, and answers whoever proposes ([`follow`]).

pub mod aside;
mod audit;
mod carrying;
mod command;
mod convert;
mod counters;
mod engine;
mod follow;
mod frame;
mod group;
mod handle;
mod identities;
mod line;
mod locking;
mod members;
mod metrics;
mod moves;
mod operations;
mod people;
mod runner;
mod session;
mod sessions;
mod shared;
mod snapshots;
mod steps;
mod time;
mod turns;

pub use aside::{AsideGroup, AsideInbox};
pub use audit::{AuditPage, AuditPlace, AuditStatus, BYTES_MIN as AUDIT_BYTES_MIN, Keeper};
pub use engine::Order;
pub use follow::Signing;
pub use frame::{read_frame, write_frame};
pub use handle::{ActuatorStatus, ControllerHandle, Status, Watch};
pub use identities::{Renewer, certificate_key};
pub use members::{Members, MembersThread, Peers, members};
pub use moves::MOVE_REST;
pub use session::{SessionAccess, serve_sessions};
pub use shared::Published;
pub use time::TimeKeeper;

use crate::Error;
use crate::aside::Case;
use crate::audit::Record;
use crate::core::admission::SourceKeys;
use crate::core::scheduler::SchedulerSettings;
use crate::core::{Core, CoreSettings, Feed, FeedSettings, Input, Output, SharedApp, Signer, decode_batch};
use aside::AsidePlace;
use audit::Observer;
use carrying::{Carrying, Way};
pub use carrying::{ENDS_MAX, EndedAt};
use command::Command;
use runner::Runner;
use shared::{Parts, Shared};
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::mpsc;
use weir_base::numbers::Numbers;
use weir_base::world::{Clock, Disk};
use weir_model::Label;
use weir_model::conversion::Conversion;
use weir_model::event::SourceId;
use weir_model::join::to_hex;
use weir_model::operator::Founders;
use weir_model::signed::GroupKey;
use weir_order::{BatcherSettings, Entry, OpenedLocal, Position, Submitter};
use weir_trust::batch::GroupSigner;
use weir_trust::identity::KeyPair;

/// How often the core is told the time.
const TICK: Duration = Duration::from_millis(100);

/// File of the numbers of this controller's events, beside the log.
const NUMBERS_FILE: &str = "event-numbers";
/// How many of them are reserved with one durable write.
const NUMBERS_RESERVED: u64 = 1 << 16;

/// Largest operation of the order: a transaction of the most mutations, at about 700 bytes each.
const OPERATION_BYTES_MAX: usize = 15 * 1024 * 1024;
/// Largest batch of the order.
const BATCH_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// When a snapshot is taken: when the log after the last one has either.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotPolicy {
    /// Bytes of batches.
    pub bytes: u64,
    /// Batches.
    pub entries: u64,
}

impl Default for SnapshotPolicy {
    fn default() -> SnapshotPolicy {
        SnapshotPolicy { bytes: 64 * 1024 * 1024, entries: 50_000 }
    }
}

/// Settings of sessions with actuators.
#[derive(Clone, Copy, Debug)]
pub struct SessionSettings {
    /// TLS handshake and `Hello` must be over after so long.
    pub handshake_ms: u64,
    /// How often a peer is pinged.
    pub ping_ms: u64,
    /// A peer that sent nothing for so long is dead.
    pub dead_ms: u64,
    /// Frames that may wait to be written; a session that has more is closed.
    pub outbound_frames_max: usize,
    /// Questions to one actuator that may be open.
    pub questions_max: usize,
    /// How long an answer may take beyond what the question asks for.
    pub answer_ms: u64,
}

impl Default for SessionSettings {
    fn default() -> SessionSettings {
        SessionSettings {
            handshake_ms: 10_000,
            ping_ms: 2_000,
            dead_ms: 8_000,
            outbound_frames_max: 1_024,
            questions_max: 64,
            answer_ms: 5_000,
        }
    }
}

/// Settings of a controller.
#[derive(Clone, Debug)]
pub struct ControllerSettings {
    /// The domain.
    pub domain: Label,
    /// Name of this controller, unique in the domain.
    pub name: Label,
    /// The controller's own key: signs what it and its API say.
    pub identity: Arc<KeyPair>,
    /// Its public key in the settings of all, where it was changed since.
    pub configured: Option<[u8; 32]>,
    /// Keys of the other controllers of the group, by their names as sources; the same on every replica but for the own.
    pub peers: SourceKeys,
    /// Whether the others know this controller's key by their settings; else they must be told by events.
    pub is_configured: bool,
    /// Whether one controller's word about another one is enough: none of them lies.
    pub believes_one: bool,
    /// The first operators of the domain, whose requests are signed; none: people order by the word of controllers. The same at every
    /// controller of a group. Once the order has them, they are changed by requests and not here.
    pub operators: Founders,
    /// True while `operators` names some and the order does not: who votes for batches asks it.
    pub awaits_operators: Arc<AtomicBool>,
    /// Epoch of the group when the log is new.
    pub epoch: u64,
    /// The scheduler.
    pub scheduler: SchedulerSettings,
    /// Batches of events (row R9).
    pub batcher: BatcherSettings,
    /// The log.
    pub order: weir_order::Settings,
    /// Snapshots.
    pub snapshots: SnapshotPolicy,
    /// The watch feed.
    pub feed: FeedSettings,
    /// Sessions.
    pub sessions: SessionSettings,
    /// Inputs that may wait for the core.
    pub inbox_max: usize,
    /// Proposals that may wait for their answer.
    pub proposals_max: usize,
    /// Procedures that clients of the store may call.
    pub registry: Arc<weir_store::Registry>,
    /// Where the audit is kept; none: nowhere.
    pub audit: Option<AuditPlace>,
    /// How entries are set aside together with others; none: this controller has no others, and its directory no manifest.
    pub aside: Option<AsidePlace>,
    /// Ordered time, of a member of a group; none: this controller has no other beside it.
    pub time: Option<Arc<TimeKeeper>>,
    /// Whether an order that has ended is opened, for [`ControllerHandle::take_back`].
    pub takes_back: bool,
}

impl ControllerSettings {
    /// Defaults for a domain, a controller's name and its key.
    pub fn new(domain: Label, name: Label, identity: Arc<KeyPair>) -> ControllerSettings {
        let mut order = weir_order::Settings::default();
        order.log.batch_bytes_max = BATCH_BYTES_MAX;
        order.local.batch_bytes_max = BATCH_BYTES_MAX;
        let batcher =
            BatcherSettings { operation_bytes_max: OPERATION_BYTES_MAX, ..BatcherSettings::default() };
        ControllerSettings {
            domain,
            name,
            identity,
            configured: None,
            peers: SourceKeys::new(),
            is_configured: true,
            believes_one: true,
            operators: Founders::new(),
            awaits_operators: Arc::default(),
            epoch: 1,
            scheduler: SchedulerSettings::default(),
            batcher,
            order,
            snapshots: SnapshotPolicy::default(),
            feed: FeedSettings::default(),
            sessions: SessionSettings::default(),
            inbox_max: 4_096,
            proposals_max: 16_384,
            registry: Arc::default(),
            audit: None,
            aside: None,
            time: None,
            takes_back: false,
        }
    }
}

impl ControllerSettings {
    fn aside_place(&self, disk: &Arc<dyn Disk>) -> AsidePlace {
        self.aside.clone().unwrap_or_else(|| AsidePlace::alone(disk.clone(), self.identity.clone()))
    }

    /// Keys of the controllers, by the settings of all.
    fn source_keys(&self) -> SourceKeys {
        let mut keys = self.peers.clone();
        if self.is_configured {
            keys.insert(
                SourceId::of_controller(&self.name),
                self.configured.unwrap_or(self.identity.public()),
            );
        }
        keys
    }
}

/// What opening found.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    /// Of the log of one process; a replica of a group recovers as it follows.
    pub opening: Option<weir_order::Opening>,
    /// Entries replayed after the snapshot.
    pub replayed: u64,
    /// The entry that the process ended at before, if it did.
    pub ended_at: Option<EndedAt>,
}

/// What an order has left that ended with a conversion.
#[derive(Debug)]
pub struct Ended {
    /// The conversion.
    pub conversion: Conversion,
    /// The last place of the order.
    pub at: Position,
    /// The state, as the group's snapshots have it.
    pub state: Vec<u8>,
    /// The epoch in which it goes on.
    pub epoch: u64,
}

/// A running controller. [`Controller::shutdown`], or dropping it, ends it in good order.
pub struct Controller {
    handle: ControllerHandle,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    recovered: Recovered,
}

impl Controller {
    /// Opens the log on `disk`, recovers (newest snapshot, then replay through the core), and starts.
    ///
    /// # Errors
    /// [`Error::Ended`]: it goes on as a member of a group; the log is closed and stays as it is.
    /// [`Error::Order`], the snapshot variants, [`Error::Operation`], [`Error::System`].
    pub fn open(
        settings: ControllerSettings,
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        signer: Box<dyn GroupSigner + Send>,
        apps: Vec<SharedApp>,
    ) -> Result<Controller, Error> {
        let (group_key, signer) = (signer.group_key(), Signer::Key(signer));
        let source = SourceId::of_controller(&settings.name);
        let keys = settings.source_keys();
        let core_settings = CoreSettings {
            domain: settings.domain.clone(),
            epoch: settings.epoch,
            source: source.clone(),
            keys: keys.clone(),
            believes_one: settings.believes_one,
            scheduler: settings.scheduler,
        };
        let opened = OpenedLocal::open(disk.clone(), settings.order)?;
        let mut core = load(&opened, core_settings, signer, apps.clone())?;
        core.set_registry(settings.registry.clone());
        let mut feed = Feed::new(settings.feed, core.store().version());
        let (keeper, mut observer, audit_thread) =
            open_audit(&settings, &clock, &keys, (Some(&group_key), None))?;
        if let Some(info) = opened.opening().snapshot {
            // Told where the chain has not all that is below: it could not be written, or was not wanted before.
            observer.took_over(info.at.index, core.store().version(), core.group_keys());
        }
        let place = settings.aside_place(&disk);
        let aside = place.inbox.clone();
        let mut carrying = Carrying::open(disk.clone(), settings.domain.clone(), place)?;
        let ended_at = carrying.ended_at();
        let (last, replayed) = replay(&opened, &mut core, &mut feed, (&mut observer, &mut carrying))?;
        if let Some(keeper) = &keeper {
            keeper.must_not_be_ahead(last.index, &*disk)?;
        }
        if !settings.takes_back
            && let Some(conversion) = core.convert()
        {
            let state = core.snapshot().to_bytes();
            let ended = Arc::new(Ended { conversion, at: last, state, epoch: core.epoch() });
            let dir = disk.describe();
            // The audit goes on in the group, once this is closed.
            drop((observer, keeper, opened));
            let _joined = audit_thread.map(JoinHandle::join);
            return Err(Error::Ended { dir, ended });
        }
        let recovered = Recovered { opening: Some(opened.opening().clone()), replayed, ended_at };
        tracing::info!(version = %core.store().version(), replayed, "the controller recovered its state");

        let own_next = core.own_sequence() + 1;
        let numbers = Numbers::open(disk, NUMBERS_FILE, NUMBERS_RESERVED, own_next)
            .map_err(Error::system("reading the numbers of events"))?;
        let (inbox, commands) = mpsc::channel(settings.inbox_max);
        let committed = inbox.clone();
        let sink = move |entry: &Entry| {
            // Fails only when the core thread has ended; then nobody is answered any more.
            let _ = committed.blocking_send(Command::Committed(entry.clone()));
        };
        let engine: Arc<dyn Order> = Arc::new(opened.start(Box::new(sink))?);
        let submitter = Submitter::new(engine.clone(), clock.clone(), settings.batcher)?;
        let shared = Arc::new(Shared::new(Parts {
            settings: &settings,
            source,
            keys,
            numbers,
            apps,
            group_key: Some(group_key),
            before_key: None,
            feed,
            core: &core,
            clock,
            submitter,
            engine: engine.clone(),
            leads: true,
            inbox: inbox.clone(),
            audit: keeper.clone(),
            aside,
        }));
        let handle = ControllerHandle::new(shared.clone(), inbox.clone());
        let (snapshots, snapshot_thread) = snapshots::start(engine, inbox.clone(), keeper)?;
        let (feeds, observer) = ((snapshots, None), (observer, carrying));
        let from = (last, own_next);
        let runner = Runner::new(core, commands, shared.clone(), feeds, observer, &settings, from);
        let threads = (vec![snapshot_thread], audit_thread);
        Controller::run(handle, shared, runner, threads, inbox, recovered)
    }

    fn run(
        handle: ControllerHandle,
        shared: Arc<Shared>,
        runner: Runner,
        (mut threads, audit): (Vec<JoinHandle<()>>, Option<JoinHandle<()>>),
        inbox: mpsc::Sender<Command>,
        recovered: Recovered,
    ) -> Result<Controller, Error> {
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new()
                .name(name.into())
                .spawn(run)
                .map_err(Error::system("starting a thread"))
        };
        // Entries from before there were bounds may call very deep.
        let core_thread = std::thread::Builder::new().name("controller-core".into());
        let core_thread = core_thread.stack_size(weir_store::meter::STACK_BYTES);
        let core_thread =
            core_thread.spawn(move || runner.run()).map_err(Error::system("starting a thread"))?;
        let ticked = shared.clone();
        let ticker = spawn("controller-tick", Box::new(move || tick(&ticked, &inbox)))?;
        threads.extend([core_thread, ticker]);
        // The last: it ends when nobody is left who gives it records.
        threads.extend(audit);
        Ok(Controller { handle, shared, threads, recovered })
    }

    /// For the API and for [`serve_sessions`].
    pub fn handle(&self) -> ControllerHandle {
        self.handle.clone()
    }

    /// What opening found.
    pub fn recovered(&self) -> &Recovered {
        &self.recovered
    }

    /// Ends it: what was committed is in the log; who waits for an answer is told that it stopped.
    /// Blocks until the log is closed, so call it outside of async code (or with `spawn_blocking`).
    pub fn shutdown(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        self.shared.stop();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the controller panicked");
            }
        }
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.stop();
    }
}

fn tick(shared: &Arc<Shared>, inbox: &mpsc::Sender<Command>) {
    while !shared.is_stopped() {
        std::thread::sleep(TICK);
        // When the inbox is full, the core thread is awake and looks at the clock itself.
        let _ = inbox.try_send(Command::Tick);
        shared.tick_time();
        shared.take_turns();
        shared.tell_operators();
    }
}

fn load(
    opened: &OpenedLocal,
    settings: CoreSettings,
    signer: Signer,
    apps: Vec<SharedApp>,
) -> Result<Core, Error> {
    let Some(mut reader) = opened.snapshot()? else { return Ok(Core::new(settings, signer, apps)) };
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).map_err(Error::system("reading the snapshot"))?;
    Core::from_snapshot(settings, signer, apps, &bytes)
}

/// The handle of an audit, who feeds it, and its thread.
type Audit = (Option<Keeper>, Observer, Option<JoinHandle<()>>);

/// Opens the audit, if one is wanted, and says in it who begins.
fn open_audit(
    settings: &ControllerSettings,
    clock: &Arc<dyn Clock>,
    keys: &SourceKeys,
    (group_key, before_key): (Option<&GroupKey>, Option<&GroupKey>),
) -> Result<Audit, Error> {
    let Some(place) = &settings.audit else { return Ok((None, Observer::default(), None)) };
    let (keeper, thread, complete) = Keeper::open(place, clock.clone())?;
    tracing::info!(links = keeper.status().last, complete, "the audit goes on");
    let (own, now) = (SourceId::of_controller(&settings.name), settings.identity.public());
    let began = |group_key: Option<&GroupKey>| Record::Began {
        domain: settings.domain.clone(),
        controller: own.clone(),
        software: env!("CARGO_PKG_VERSION").to_owned(),
        // Its own as it is now: what came before a change of it may be gone from the chain.
        sources: keys
            .iter()
            .map(|(source, key)| (source.clone(), if *source == own { now } else { *key }))
            .collect(),
        group_key: group_key.cloned(),
    };
    keeper.seen(began(group_key));
    let observer = Observer::new(Some(keeper.clone())).signed_before(before_key.map(|key| began(Some(key))));
    Ok((Some(keeper), observer, Some(thread)))
}

/// An entry is set aside: the log and the audit say so.
fn left_out(observer: &mut Observer, carrying: &mut Carrying, case: &Case) {
    let (index, sha256) = (case.entry.index, to_hex(&case.entry.sha256));
    tracing::warn!(
        index,
        sha256,
        promises = case.promises.len(),
        "the entry is set aside: nothing of it is done"
    );
    observer.left_out(case, &carrying.asides().keys(index));
}

/// Carries the entries behind the snapshot out, on a thread with as much stack as entries from before there were bounds need.
fn replay(
    opened: &OpenedLocal,
    core: &mut Core,
    feed: &mut Feed,
    (observer, carrying): (&mut Observer, &mut Carrying),
) -> Result<(Position, u64), Error> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("controller-replay".into());
        let thread = thread.stack_size(weir_store::meter::STACK_BYTES);
        let replaying = thread.spawn_scoped(scope, || replay_here(opened, core, feed, observer, carrying));
        let replaying = replaying.map_err(Error::system("starting a thread"))?;
        replaying.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn replay_here(
    opened: &OpenedLocal,
    core: &mut Core,
    feed: &mut Feed,
    observer: &mut Observer,
    carrying: &mut Carrying,
) -> Result<(Position, u64), Error> {
    let mut last = opened.opening().snapshot.map_or(Position { term: 0, index: 0 }, |info| info.at);
    let mut replayed = 0;
    let mut out = Vec::new();
    for entry in opened.replay()? {
        let entry = entry?;
        last = entry.position;
        replayed += 1;
        match carrying.begin(&entry, core.operators()) {
            Way::CarryOut => {}
            Way::SetAside(case) => {
                left_out(observer, carrying, &case);
                continue;
            }
            Way::SetAsideBefore(digest) => {
                observer.set_aside(last.index, digest);
                continue;
            }
            // Nobody else can say anything that would help.
            Way::Wait => match carrying.look(&entry, core.operators()) {
                Ok(case) => {
                    left_out(observer, carrying, &case);
                    continue;
                }
                Err(error) => return Err(error),
            },
        }
        core.step(Input::Ordered(decode_batch(&entry.batch)?), &mut out);
        carrying.done();
        observer.ordered(last.index, &out, core.group_keys());
        for output in out.drain(..) {
            if let Output::Committed(change) = output {
                feed.push(change);
            }
        }
    }
    feed.reached(core.store().version());
    Ok((last, replayed))
}
