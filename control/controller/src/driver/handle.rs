//! The handle: what the API and the sessions use of a controller. A clone costs nothing.

use super::audit::{AuditPage, AuditStatus};
use super::command::Command;
use super::shared::{Published, Shared};
use crate::Error;
use crate::audit::{Misdeed, Record, Wrong};
use crate::core::keys::GroupKeys;
use crate::core::scheduler::{KeyStatus, LineStatus, Reached, TargetStatus, Waiting};
use crate::core::{CommittedChange, Core, Input, OutboxPage, Wanted, dry_run};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{timeout, timeout_at};
use weir_model::domain::{DomainEvent, Fetch, SignedFetch};
use weir_model::event::{ActuatorFacts, Apply, Event, EventBody, SignedEvent, SourceId, Transaction};
use weir_model::local::{Answer, Question};
use weir_model::signed::GroupKey;
use weir_model::{Key, Label, Plan, Version};
use weir_store::Store;

/// Most changes that [`Watch::next`] gives at once.
const WATCH_CHANGES_MAX: usize = 256;
/// Most bytes of captured frames that one [`ControllerHandle::ask`] gathers.
const CAPTURE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// State of the domain.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// The domain.
    pub domain: Label,
    /// Version of the store.
    pub version: Version,
    /// Digest of the store.
    pub digest: u128,
    /// Epoch of the group.
    pub epoch: u64,
    /// Public key of the group; none before its members have made it.
    pub group_key: Option<GroupKey>,
    /// Ordered time, milliseconds of the Unix epoch.
    pub now_ms: u64,
    /// Actuators by name.
    pub actuators: Vec<ActuatorStatus>,
    /// With linear consistency, what waits and for whom.
    pub line: Option<LineStatus>,
}

/// State of an actuator.
#[derive(Clone, Debug, Serialize)]
pub struct ActuatorStatus {
    /// What it told of itself; `None` when it was planned for but never joined.
    pub facts: Option<ActuatorFacts>,
    /// Release of its software, while it is connected.
    pub software: Option<String>,
    /// What is desired and acked.
    pub target: TargetStatus,
}

/// See the module.
#[derive(Clone)]
pub struct ControllerHandle {
    pub(super) shared: Arc<Shared>,
    inbox: mpsc::Sender<Command>,
}

impl ControllerHandle {
    pub(super) fn new(shared: Arc<Shared>, inbox: mpsc::Sender<Command>) -> ControllerHandle {
        ControllerHandle { shared, inbox }
    }

    /// Under which name this controller sends events.
    pub fn source(&self) -> &SourceId {
        self.shared.source()
    }

    /// Name of the domain.
    pub fn domain(&self) -> &Label {
        &self.shared.domain
    }

    /// Public key of the group; none before its members have made it.
    pub fn group_key(&self) -> Option<GroupKey> {
        self.shared.group_key()
    }

    /// The group's threshold key, as the order knows it.
    pub fn group_keys(&self) -> Arc<GroupKeys> {
        self.shared.group_keys()
    }

    /// Changes resources; gives the version at which it was decided, durably.
    ///
    /// # Errors
    /// [`Error::Rejected`], [`Error::Overloaded`] and definite [`Error::Order`]s: nothing changed.
    /// [`Error::Stopped`] and other [`Error::Order`]s: it may or may not be decided.
    pub async fn propose(&self, transaction: Transaction) -> Result<Version, Error> {
        self.submit_own(EventBody::Intent(transaction), None).await
    }

    /// Whether an event about domains would be decided on as things are, and if not, why. Nothing changes; runs beside the core.
    ///
    /// # Errors
    /// The rejection that it would get.
    pub async fn would_take(&self, about: DomainEvent) -> Result<(), Error> {
        let (published, shared) = (self.published(), self.shared.clone());
        let now_ms = published.now_ms.max(shared.ordered_now_ms());
        let event =
            Event { source: self.source().clone(), sequence: 0, body: EventBody::Domain(Box::new(about)) };
        let run = move || dry_run(&published.store, &shared.apps, now_ms, &event);
        tokio::task::spawn_blocking(run).await.map_err(|_| Error::Stopped)??;
        Ok(())
    }

    /// Proposes an event of any authenticated source under its own number, so that it may be proposed again
    /// when the answer was lost: it is decided once.
    ///
    /// # Errors
    /// As [`ControllerHandle::propose`], [`Error::Unauthentic`] and [`Error::NumberTooOld`].
    pub async fn submit(&self, event: SignedEvent) -> Result<Version, Error> {
        self.shared.propose(event)?.await.map_err(|_| Error::Stopped)?
    }

    /// What a change would do now. Nothing changes; runs beside the core.
    ///
    /// # Errors
    /// The rejection that it would get.
    pub async fn dry_run(&self, transaction: Transaction) -> Result<Plan, Error> {
        self.plan_of(EventBody::Intent(transaction)).await
    }

    /// The same of what is applied together.
    ///
    /// # Errors
    /// The rejection that it would get.
    pub async fn dry_run_apply(&self, apply: Apply) -> Result<Plan, Error> {
        self.plan_of(EventBody::Apply(apply)).await
    }

    async fn plan_of(&self, body: EventBody) -> Result<Plan, Error> {
        let (published, shared) = (self.published(), self.shared.clone());
        let now_ms = published.now_ms.max(shared.ordered_now_ms());
        let source = SourceId("dry-run".into());
        let event = Event { source, sequence: 0, body };
        let run = move || dry_run(&published.store, &shared.apps, now_ms, &event);
        Ok(tokio::task::spawn_blocking(run).await.map_err(|_| Error::Stopped)??)
    }

    /// The store after the last batch: a snapshot.
    pub fn store(&self) -> Store {
        self.shared.published().store.clone()
    }

    /// The state after the last batch.
    pub fn published(&self) -> Arc<Published> {
        self.shared.published()
    }

    /// State of the domain and of every actuator.
    ///
    /// # Errors
    /// [`Error::Overloaded`] or [`Error::Stopped`].
    pub async fn status(&self) -> Result<Status, Error> {
        let targets = self.inspect(|core| {
            let scheduler = core.scheduler();
            let names = scheduler.target_names();
            let targets = names.filter_map(|name| scheduler.target_status(name)).collect::<Vec<_>>();
            (targets, scheduler.line_status())
        });
        let (targets, line) = targets.await?;
        let published = self.published();
        let actuators = targets.into_iter().map(|target| ActuatorStatus {
            facts: published.joined.get(&target.target).cloned(),
            software: self.shared.sessions.software(&target.target),
            target,
        });
        Ok(Status {
            domain: self.shared.domain.clone(),
            version: published.store.version(),
            digest: published.store.digest(),
            epoch: published.epoch,
            group_key: self.shared.group_key(),
            now_ms: published.now_ms,
            actuators: actuators.collect(),
            line,
        })
    }

    /// Keys of an actuator behind `after`, with desired and acked versions; at most `limit`.
    ///
    /// # Errors
    /// [`Error::Overloaded`] or [`Error::Stopped`].
    pub async fn keys(
        &self,
        actuator: Label,
        after: Option<Key>,
        limit: usize,
    ) -> Result<Vec<KeyStatus>, Error> {
        self.inspect(move |core| core.scheduler().key_status(&actuator, after.as_ref(), limit)).await
    }

    /// Updates that are not acked, and why; at most `limit`.
    ///
    /// # Errors
    /// [`Error::Overloaded`] or [`Error::Stopped`].
    pub async fn waiting(&self, limit: usize) -> Result<Vec<Waiting>, Error> {
        self.inspect(move |core| core.scheduler().waiting(limit)).await
    }

    /// The same, by actuator, oldest decisions first: at most `each` of one, and `limit` of all.
    ///
    /// # Errors
    /// [`Error::Overloaded`] or [`Error::Stopped`].
    pub async fn waiting_of_each(
        &self,
        each: usize,
        limit: usize,
    ) -> Result<BTreeMap<Label, Vec<Waiting>>, Error> {
        let waiting = self.inspect(move |core| core.scheduler().waiting_of_each(each, limit)).await?;
        let mut by_actuator: BTreeMap<Label, Vec<Waiting>> = BTreeMap::new();
        for one in waiting {
            by_actuator.entry(one.target.clone()).or_default().push(one);
        }
        Ok(by_actuator)
    }

    /// Runs a short look at the core on its thread.
    ///
    /// # Errors
    /// [`Error::Overloaded`] or [`Error::Stopped`].
    pub async fn inspect<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Core) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let (reply, seen) = oneshot::channel();
        let look = move |core: &Core| drop(reply.send(look(core)));
        self.command(Command::Inspect(Box::new(look)))?;
        seen.await.map_err(|_| Error::Stopped)
    }

    /// The committed changes after a version, and then each as it happens.
    ///
    /// # Errors
    /// [`Error::WatchTooOld`] or [`Error::WatchAhead`]: read everything again.
    pub fn watch(&self, from: Version) -> Result<Watch, Error> {
        self.watch_for(from, Wanted::All)
    }

    /// The same of the tables only that the settings of the feed name first.
    ///
    /// # Errors
    /// As [`ControllerHandle::watch`].
    pub fn watch_first(&self, from: Version) -> Result<Watch, Error> {
        self.watch_for(from, Wanted::First)
    }

    fn watch_for(&self, from: Version, wanted: Wanted) -> Result<Watch, Error> {
        let reached = self.shared.reached.subscribe();
        self.shared.changes_after(from, 0, wanted)?;
        Ok(Watch { shared: self.shared.clone(), reached, from, wanted })
    }

    /// Changes with every version that is reached; the second is whether the controller has stopped.
    pub fn versions(&self) -> watch::Receiver<(Version, bool)> {
        self.shared.reached.subscribe()
    }

    /// Waits until all updates of a version are acked, at most `limit`; tells how far they are then.
    ///
    /// # Errors
    /// [`Error::Overloaded`] or [`Error::Stopped`].
    pub async fn wait(&self, version: Version, limit: Duration) -> Result<Reached, Error> {
        let (reply, reached) = oneshot::channel();
        self.command(Command::Wait { version, reply })?;
        match timeout(limit, reached).await {
            Ok(reached) => reached.map_err(|_| Error::Stopped)?,
            Err(_) => self.inspect(move |core| core.scheduler().reached(version)).await,
        }
    }

    /// Asks an actuator's switch. Captured frames are gathered until the last.
    ///
    /// # Errors
    /// [`Error::NotConnected`], [`Error::NoAnswer`], [`Error::Overloaded`].
    pub async fn ask(&self, actuator: &Label, question: Question) -> Result<Answer, Error> {
        let own_ms = match &question {
            Question::Capture { duration_ms, .. } => u64::from(*duration_ms),
            _ => 0,
        };
        let limit_ms = own_ms.saturating_add(self.shared.session_settings.answer_ms);
        let deadline = tokio::time::Instant::now() + Duration::from_millis(limit_ms);
        let mut answers = self.shared.sessions.ask(actuator, question)?;
        let mut gathered = Vec::new();
        let mut bytes = 0;
        loop {
            let answer = timeout_at(deadline, answers.recv()).await;
            let answer =
                answer.map_err(|_| Error::NoAnswer { actuator: actuator.clone(), waited_ms: limit_ms })?;
            // The session ended, and its questions with it.
            let answer = answer.ok_or_else(|| Error::NotConnected(actuator.clone()))?;
            let Answer::Captured { frames, last } = answer else { return Ok(answer) };
            bytes += frames.iter().map(|(_, _, frame)| frame.len()).sum::<usize>();
            gathered.extend(frames);
            if last || bytes > CAPTURE_BYTES_MAX {
                return Ok(Answer::Captured { frames: gathered, last });
            }
        }
    }

    /// Orders what an actuator tells of itself.
    ///
    /// # Errors
    /// As [`ControllerHandle::propose`].
    pub async fn joined(&self, facts: ActuatorFacts) -> Result<Version, Error> {
        let subject = SourceId::of_actuator(&facts.name).0;
        self.submit_own(EventBody::Joined(facts), Some(subject)).await
    }

    /// Says in the audit that this controller's replica cut off another member for what that sent.
    pub fn note_cut_off(&self, member: &Label) {
        if let Some(audit) = self.shared.audit() {
            let who = SourceId::of_controller(member);
            audit.seen(Record::Misdeed(Box::new(Misdeed { who, what: Wrong::CutOff, count: 1 })));
        }
    }

    /// Orders something about other domains, for somebody whom the API authenticated or for this controller itself.
    ///
    /// # Errors
    /// As [`ControllerHandle::propose`].
    pub async fn about_domains(&self, about: DomainEvent, subject: Option<String>) -> Result<Version, Error> {
        self.submit_own(EventBody::Domain(Box::new(about)), subject).await
    }

    /// What this controller asks another domain, with its signature.
    pub fn sign_fetch(&self, fetch: Fetch) -> SignedFetch {
        self.shared.sign_fetch(fetch)
    }

    /// What follows a number of what is told to another domain.
    ///
    /// # Errors
    /// [`Error::Overloaded`] or [`Error::Stopped`].
    pub async fn told(&self, domain: Label, through: u64) -> Result<OutboxPage, Error> {
        self.inspect(move |core| core.outbox().page(&domain, through)).await
    }

    /// Changes whenever there is more to tell other domains.
    pub fn telling(&self) -> watch::Receiver<u64> {
        self.shared.told.subscribe()
    }

    /// Links of the audit from a number on, or from the oldest that is left, and how the audit is; none where no audit is
    /// kept.
    ///
    /// # Errors
    /// [`Error::Order`]: its files are damaged. [`Error::Stopped`].
    pub async fn audit(&self, from: u64, limit: usize) -> Result<Option<(AuditPage, AuditStatus)>, Error> {
        let Some(keeper) = self.shared.audit() else { return Ok(None) };
        let read = move || Ok((keeper.read(from, limit)?, keeper.status()));
        tokio::task::spawn_blocking(read).await.map_err(|_| Error::Stopped)?.map(Some)
    }

    /// Counters and gauges as Prometheus text.
    pub fn metrics_text(&self) -> String {
        super::metrics::text(&self.shared)
    }

    /// Gives the core an input; waits while its queue is full.
    pub(super) async fn input(&self, input: Input) -> Result<(), Error> {
        self.send(Command::Input(input)).await
    }

    /// As [`ControllerHandle::input`].
    pub(super) async fn send(&self, command: Command) -> Result<(), Error> {
        self.inbox.send(command).await.map_err(|_| Error::Stopped)
    }

    fn command(&self, command: Command) -> Result<(), Error> {
        self.inbox.try_send(command).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => {
                self.shared.counters.overloads.fetch_add(1, Ordering::Relaxed);
                Error::Overloaded { what: "requests", limit: self.inbox.max_capacity() }
            }
            mpsc::error::TrySendError::Closed(_) => Error::Stopped,
        })
    }
}

/// Committed changes as they happen: see [`ControllerHandle::watch`].
pub struct Watch {
    shared: Arc<Shared>,
    reached: watch::Receiver<(Version, bool)>,
    from: Version,
    wanted: Wanted,
}

impl Watch {
    /// The version to resume from.
    pub fn version(&self) -> Version {
        self.from
    }

    /// The next changes in order, at least one. Cancel-safe.
    ///
    /// # Errors
    /// [`Error::WatchTooOld`] when the watcher was too slow, [`Error::Stopped`].
    pub async fn next(&mut self) -> Result<Vec<Arc<CommittedChange>>, Error> {
        loop {
            let stopped = self.reached.borrow_and_update().1;
            let changes = self.shared.changes_after(self.from, WATCH_CHANGES_MAX, self.wanted)?;
            if let Some(last) = changes.last() {
                self.from = last.version;
                return Ok(changes);
            }
            if stopped || self.reached.changed().await.is_err() {
                return Err(Error::Stopped);
            }
        }
    }
}
