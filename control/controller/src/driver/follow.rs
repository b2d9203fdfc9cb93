//! A controller over a replicated order: the state comes from the order alone, entry by entry or as a whole, and
//! who leads changes.

use super::carrying::Carrying;
use super::command::Command;
use super::locking::locked;
use super::runner::Runner;
use super::shared::{Parts, Shared};
use super::turns::TURN_MS;
use super::{
    Controller, ControllerHandle, ControllerSettings, Members, MembersThread, NUMBERS_FILE, NUMBERS_RESERVED,
    Order, Recovered, snapshots,
};
use crate::Error;
use crate::core::{Core, CoreSettings, Feed, Input, SharedApp, Signer};
use std::io::Read;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use weir_base::numbers::Numbers;
use weir_base::world::{Clock, Disk};
use weir_model::event::SourceId;
use weir_order::{Completion, Entry, Position, Sink, Submitter};
use weir_trust::batch::GroupSigner;

/// Milliseconds of the Unix epoch, shifted by so much, are below the numbers of a life's events: room for a million of
/// them in each.
const NUMBERS_SHIFT: u32 = 20;
/// How often a full queue of the core is looked at.
const ROOM_LOOK: Duration = Duration::from_micros(200);

/// What an order brings while it is opened, before there is a core thread: as much as its log has behind a state.
type Early = Arc<Mutex<Option<Vec<Command>>>>;

/// Hands everything over to the core thread. It runs on the order's thread, which must not decide.
struct ToCore {
    inbox: mpsc::Sender<Command>,
    early: Early,
}

/// Waits for room as a thread does: the order's thread may be one of a runtime, where a channel of tokio must not block.
fn send(inbox: &mpsc::Sender<Command>, mut command: Command) {
    while let Err(TrySendError::Full(full)) = inbox.try_send(command) {
        command = full;
        std::thread::sleep(ROOM_LOOK);
    }
    // Closed only when the core thread has ended; then nobody is answered any more.
}

impl ToCore {
    fn send(&self, command: Command) {
        let mut early = locked(&self.early);
        match &mut *early {
            Some(waiting) => waiting.push(command),
            None => {
                drop(early);
                send(&self.inbox, command);
            }
        }
    }
}

/// Hands over what came early, and lets the rest through behind it. Until it has, a barrier waits: what the order brought is not in the
/// queue before that.
fn hand_over(
    inbox: mpsc::Sender<Command>,
    early: Early,
    shared: Arc<Shared>,
) -> Result<std::thread::JoinHandle<()>, Error> {
    let run = move || {
        let mut early = locked(&early);
        for command in early.take().unwrap_or_default() {
            if shared.is_stopped() {
                break;
            }
            send(&inbox, command);
        }
        shared.early_is_in.send_replace(true);
    };
    let thread = std::thread::Builder::new().name("controller-early".into());
    thread.spawn(run).map_err(Error::system("starting a thread"))
}

impl Sink for ToCore {
    fn committed(&mut self, entry: &Entry) {
        self.send(Command::Committed(entry.clone()));
    }

    fn install(&mut self, at: Position, state: &mut dyn Read) -> std::io::Result<()> {
        let mut bytes = Vec::new();
        state.read_to_end(&mut bytes)?;
        self.send(Command::Install(at, bytes));
        Ok(())
    }
}

/// How a group signs what it decides.
pub enum Signing {
    /// All members have the same key: the group survives crashes only.
    Key(Box<dyn GroupSigner + Send>),
    /// Each member has a share of a key. In a domain that was converted, the other key signs until there is one.
    Shares(MembersThread, Members, Option<Box<dyn GroupSigner + Send>>),
}

impl Controller {
    /// Starts a replica of a group, with an empty state. `disk` keeps the numbers of its own events. `start` is given where the order brings its entries and
    /// snapshots, and gives the order. It follows until [`ControllerHandle::lead`] says otherwise.
    ///
    /// # Errors
    /// [`Error::Order`], [`Error::System`].
    pub fn follow(
        settings: ControllerSettings,
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        signing: Signing,
        apps: Vec<SharedApp>,
        start: impl FnOnce(Box<dyn Sink>) -> Result<Arc<dyn Order>, weir_order::Error>,
    ) -> Result<Controller, Error> {
        let source = SourceId::of_controller(&settings.name);
        let keys = settings.source_keys();
        // The order asks it before there is a state.
        settings.awaits_operators.store(!settings.operators.is_empty(), Ordering::SeqCst);
        // What it proposed in an earlier life may be ordered yet, or forgotten with its disk: the clock is above both, unless it was
        // ahead then. What the order knows of it is passed by as it comes: see `Shared::own_event`.
        let floor = clock.wall_ms() << NUMBERS_SHIFT;
        let place = settings.aside_place(&disk);
        let aside = place.inbox.clone();
        let carrying = Carrying::open(disk.clone(), settings.domain.clone(), place)?;
        let ended_at = carrying.ended_at();
        let numbers = Numbers::open(disk, NUMBERS_FILE, NUMBERS_RESERVED, floor)
            .map_err(Error::system("reading the numbers of events"))?;
        let core_settings = CoreSettings {
            domain: settings.domain.clone(),
            epoch: settings.epoch,
            source: source.clone(),
            keys: keys.clone(),
            believes_one: settings.believes_one,
            scheduler: settings.scheduler,
        };
        let (mut group_key, mut before_key) = (None, None);
        let (signer, members) = match signing {
            Signing::Key(signer) => {
                group_key = Some(signer.group_key());
                (Signer::Key(signer), None)
            }
            Signing::Shares(thread, members, None) => (Signer::Shares, Some((thread, members))),
            Signing::Shares(thread, members, Some(before)) => {
                before_key = Some(before.group_key());
                (Signer::SharesAfter(before), Some((thread, members)))
            }
        };
        let mut core = Core::new(core_settings, signer, apps.clone());
        core.set_registry(settings.registry.clone());
        core.step(Input::Lead(false), &mut Vec::new());
        let feed = Feed::new(settings.feed, core.store().version());
        let (inbox, commands) = mpsc::channel(settings.inbox_max);
        let (keeper, observer, audit_thread) =
            super::open_audit(&settings, &clock, &keys, (group_key.as_ref(), before_key.as_ref()))?;
        let early: Early = Arc::new(Mutex::new(Some(Vec::new())));
        let engine = start(Box::new(ToCore { inbox: inbox.clone(), early: early.clone() }))?;
        let submitter = Submitter::new(engine.clone(), clock.clone(), settings.batcher)?;
        let shared = Arc::new(Shared::new(Parts {
            settings: &settings,
            source,
            keys,
            numbers,
            apps,
            group_key,
            before_key,
            feed,
            core: &core,
            clock,
            submitter,
            engine: engine.clone(),
            leads: false,
            inbox: inbox.clone(),
            audit: keeper.clone(),
            aside,
        }));
        shared.early_is_in.send_replace(false);
        let handle = ControllerHandle::new(shared.clone(), inbox.clone());
        let (waiting, behind) = (Arc::downgrade(&shared), inbox.clone());
        engine.on_waiting(Box::new(move || {
            if waiting.upgrade().is_some_and(|shared| shared.has_resting()) {
                // A full queue: there is so much to decide that each event's turn comes by itself.
                let _ = behind.try_send(Command::Waiting);
            }
        }));
        let (jobs, snapshot_thread) = snapshots::start(engine, inbox.clone(), keeper)?;
        let nothing = Position { term: 0, index: 0 };
        let mut threads = vec![snapshot_thread, hand_over(inbox.clone(), early, shared.clone())?];
        let mut fed = None;
        if let Some((thread, members)) = members {
            threads.push(thread.start(shared.clone(), inbox.clone())?);
            fed = Some(members);
        }
        let observer = (observer, carrying);
        let from = (nothing, floor);
        let runner = Runner::new(core, commands, shared.clone(), (jobs, fed), observer, &settings, from);
        let recovered = Recovered { ended_at, ..Recovered::default() };
        Controller::run(handle, shared, runner, (threads, audit_thread), inbox, recovered)
    }
}

impl ControllerHandle {
    /// Orders something past this controller's own door, as one that lies does: to see that the others do not take it. In builds for tests
    /// only.
    ///
    /// # Errors
    /// As [`ControllerHandle::propose`].
    #[cfg(debug_assertions)]
    pub async fn betray(&self, body: weir_model::event::EventBody) -> Result<weir_model::Version, Error> {
        self.submit(self.shared.own_event(body, None)?).await
    }

    /// This replica begins or ceases to lead. Before it begins, a barrier must have said that the sink saw all that was
    /// ordered. Returns when the core knows.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub async fn lead(&self, leads: bool) -> Result<(), Error> {
        let (reply, done) = oneshot::channel();
        self.send(Command::Lead { leads, reply }).await?;
        done.await.map_err(|_| Error::Stopped)
    }

    /// Why this controller waits before an entry of the order and serves nothing, if it does.
    pub fn held(&self) -> Option<Arc<String>> {
        self.shared.aside.held()
    }

    /// Whether this replica leads, as the core knows it. Without a group it always does.
    pub fn leads(&self) -> bool {
        self.shared.leads()
    }

    /// Whether this replica is the one to order what anybody could, such as that an entry's time is over, when it has been due for
    /// `overdue`: the one that leads at once; where all take proposals, the others when nobody did.
    pub fn orders_for_all(&self, overdue: Duration) -> bool {
        let turn = || self.shared.engine().map_or(0, |engine| engine.turn(0)) + 1;
        self.leads() || self.shared.everywhere && overdue.as_millis() as u64 >= turn() * TURN_MS
    }

    /// Whether every replica takes proposals, whoever leads.
    pub fn orders_everywhere(&self) -> bool {
        self.shared.everywhere
    }

    /// Returns when [`ControllerHandle::published`] shows all that was acknowledged before this call, by any replica.
    ///
    /// # Errors
    /// [`Error::Order`], such as `NotLeader`; [`Error::Stopped`].
    pub async fn barrier(&self) -> Result<(), Error> {
        if let Some(held) = self.held() {
            return Err(Error::Held(held));
        }
        let engine = self.shared.engine().ok_or(Error::Stopped)?;
        let (reply, seen) = oneshot::channel();
        let done = Completion::new(move |result| drop(reply.send(result)));
        engine.barrier(done)?;
        seen.await.map_err(|_| Error::Stopped)??;
        if !self.shared.replicated {
            return Ok(());
        }
        let mut early_is_in = self.shared.early_is_in.subscribe();
        early_is_in.wait_for(|is_in| *is_in).await.map_err(|_| Error::Stopped)?;
        // What the sink saw is in the queue before this.
        let (reply, passed) = oneshot::channel();
        let look = move |_: &Core| {
            // Who asked may have given up.
            let _ = reply.send(());
        };
        self.send(Command::Inspect(Box::new(look))).await?;
        passed.await.map_err(|_| Error::Stopped)
    }

    /// As [`ControllerHandle::barrier`], but what is published may lack what was acknowledged within the last `staleness`:
    /// many reads share one barrier then.
    ///
    /// # Errors
    /// As [`ControllerHandle::barrier`].
    pub async fn barrier_within(&self, staleness: Duration) -> Result<(), Error> {
        let asked = Instant::now();
        if self.shared.fresh_at().is_some_and(|fresh_at| asked.duration_since(fresh_at) <= staleness) {
            return Ok(());
        }
        self.barrier().await?;
        self.shared.set_fresh_at(Some(asked));
        Ok(())
    }

    /// Lets the state rot: see [`weir_store::Store::rot`].
    ///
    /// # Errors
    /// [`Error::Stopped`].
    #[cfg(debug_assertions)]
    pub async fn rot(&self) -> Result<(), Error> {
        self.send(Command::Rot).await
    }

    /// Tells every actuator, now and when it connects, where the controllers of the group are. Of two lists the one with
    /// the higher number counts.
    pub fn set_controllers(&self, number: u64, sessions: Vec<String>) {
        self.shared.sessions.set_controllers(number, sessions);
    }
}
