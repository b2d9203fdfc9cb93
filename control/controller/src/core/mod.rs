//! The controller's core: one step machine from ordered batches, acks and states to decisions,
//! signed updates and what is sent (rows R1, R2, R5, R8, R9; DESIGN §1). It knows no socket, thread
//! or wall clock; [`crate::driver`] brings these, a simulator others.
//!
//! Operations of clients of the store take their places in the same order (row B1). They write tables of
//! clients only, so no app sees them and no update follows from them.
//!
//! A batch of the order is decided event by event, each at its own version: the apps decide on a view
//! of the store, a rejection leaves no trace, and the updates of the whole batch are signed once.
//!
//! Invariants
//! - The store, what is desired, and every signature are functions of the order (and, when they begin
//!   from one, of a snapshot). So a replay makes the same bytes.
//! - Only what was decided in the order is signed; repairs are ordered too.
//! - An event changes something only with the signature of a registered source over it (`admission`).
//! - An event with the source and number of one before it changes nothing and gets its answer.
//! - Ordered time never goes back, whatever the proposers' clocks say.
//! - Acks count only with the signature of the identity that the actuator joined with.
//! - In a group with a threshold key nothing here signs: headers leave by [`Output::Sign`], and signatures, verified,
//!   come back by [`Input::Signed`], whenever they do. What is decided does not depend on them.
//!
//! Departure from RoSCo: acks are not barriers (row R8) but name key and version, so that what is
//! independent never waits.

pub mod admission;
mod batch;
mod dedup;
mod feed;
mod header;
pub mod keys;
mod outbox;
pub mod scheduler;
mod snapshot;
#[cfg(test)]
mod tests;

pub use batch::{Item, decode_batch, is_reasonable};
pub use dedup::{CELLS_MAX, DEDUP_TABLE, WINDOW, was_decided};
pub use feed::{CommittedChange, Feed, FeedSettings};
pub use header::{BatchName, DecidedHeader};
pub use outbox::{Outbox, OutboxPage};
pub use snapshot::CoreSnapshot;

use admission::{SourceKeys, Unauthentic, UnauthenticCounters, admit};
use dedup::Seen;
use keys::GroupKeys;
use scheduler::{Held, Scheduler, SchedulerSettings};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use weir_base::codec::encoded_bytes;
use weir_model::domain::{DomainEvent, statement_of};
use weir_model::event::{ActuatorFacts, Event, EventBody, SignedEvent, SourceId};
use weir_model::session::StateDigest;
use weir_model::signed::{
    GroupSignature, PATH_MAX, ProvenUpdate, SignedAcks, SignedUpdates, UnsignedUpdates,
};
use weir_model::update::{Reason, Refusal};
use weir_model::{Change, Dependency, Key, Label, Plan, PlannedUpdate, Update, Version};
use weir_store::{App, Registry, Rejection, Store};
use weir_trust::batch::{GroupSigner, prepare_batch, sign_batch};
use weir_trust::identity::verify_acks;

/// Largest update, bytes: it must fit into a frame beside its proof.
pub const UPDATE_BYTES_MAX: usize = 2 * 1024 * 1024;

/// A deciding app, shared with those who try decisions out.
pub type SharedApp = Arc<dyn App + Sync>;

/// How decided batches are signed.
pub enum Signer {
    /// With one key, at once.
    Key(Box<dyn GroupSigner + Send>),
    /// By enough members of the group, elsewhere and later.
    Shares,
}

impl<S: GroupSigner + Send + 'static> From<Box<S>> for Signer {
    fn from(signer: Box<S>) -> Signer {
        Signer::Key(signer)
    }
}

/// What the core is made with.
pub struct CoreSettings {
    /// The domain.
    pub domain: Label,
    /// Epoch of the group, when there is no snapshot that says it.
    pub epoch: u64,
    /// Under which name this controller sends events of its own.
    pub source: SourceId,
    /// Keys of the sources that need not join: this controller and the others of its group. The same on every
    /// replica.
    pub keys: SourceKeys,
    /// The scheduler.
    pub scheduler: SchedulerSettings,
}

/// What happens to the core.
#[derive(Clone, Debug)]
pub enum Input {
    /// The order committed a batch.
    Ordered(Vec<Item>),
    /// An actuator opened a session.
    Connected {
        /// Its name.
        actuator: Label,
        /// Number of the session, never used twice in the core's life.
        session: u64,
        /// What is in force there.
        digest: StateDigest,
    },
    /// A session is over.
    Disconnected {
        /// The actuator.
        actuator: Label,
        /// Number of the session.
        session: u64,
    },
    /// Part of an actuator's state, asked for by [`Output::AskState`].
    State {
        /// The actuator.
        actuator: Label,
        /// Number of the session.
        session: u64,
        /// Keys and versions, tombstones included.
        entries: Vec<(Key, Version)>,
        /// Whether it is the last part.
        last: bool,
    },
    /// Acks came on a session.
    Acks {
        /// Number of the session.
        session: u64,
        /// The acks.
        acks: SignedAcks,
    },
    /// The group's signature over a batch, verified.
    Signed {
        /// Which batch.
        batch: BatchName,
        /// The signature.
        signature: GroupSignature,
    },
    /// This replica of a group begins or ceases to lead. It begins after it decided all that was ordered.
    Lead(bool),
    /// Time passed, on any clock that does not go back.
    Tick {
        /// Its milliseconds.
        now_ms: u64,
    },
}

/// What the driver must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// An event was decided: answer who proposed it.
    Decided {
        /// The event.
        event: Box<SignedEvent>,
        /// How it ended.
        outcome: Outcome,
    },
    /// Keys of an actuator were decided anew.
    Repaired {
        /// The actuator.
        target: Label,
        /// At which version.
        version: Version,
        /// How many.
        keys: u64,
    },
    /// Updates of a batch were decided, those under one root, in its order. The header may have no signature yet.
    Prepared {
        /// What is signed.
        header: Arc<DecidedHeader>,
        /// The updates.
        updates: Vec<Arc<ProvenUpdate>>,
    },
    /// Acks came with the signature of their actuator.
    Acked(Box<SignedAcks>),
    /// The store changed.
    Committed(Arc<CommittedChange>),
    /// Send updates.
    Send {
        /// The actuator.
        target: Label,
        /// Number of the session.
        session: u64,
        /// The updates.
        updates: SignedUpdates,
    },
    /// Send updates that the actuator applies when shares of their batch's signature have come.
    SendUnsigned {
        /// The actuator.
        target: Label,
        /// Number of the session.
        session: u64,
        /// The updates.
        updates: UnsignedUpdates,
    },
    /// Ask for the state.
    AskState {
        /// The actuator.
        target: Label,
        /// Number of the session.
        session: u64,
    },
    /// Close a session; the core has forgotten it.
    Close {
        /// The actuator.
        target: Label,
        /// Number of the session.
        session: u64,
        /// Why, for the peer and the log.
        reason: String,
    },
    /// Propose [`Item::Repair`].
    Repair {
        /// The actuator.
        target: Label,
        /// Keys with the versions found there.
        found: Vec<(Key, Version)>,
    },
    /// Propose [`EventBody::Refused`] as an event of this controller.
    Refused {
        /// The actuator.
        target: Label,
        /// The key.
        key: Key,
        /// The version that it refused.
        version: Version,
        /// Why.
        refusal: Refusal,
    },
    /// Operations of a client were applied: answer who proposed them.
    Applied {
        /// Which process proposed them.
        origin: u64,
        /// Under which number they wait there.
        ticket: u64,
        /// One for each request.
        outcomes: Vec<weir_store::Outcome>,
    },
    /// All updates of a version are acked.
    Finished(Version),
    /// The group must sign this; answered by [`Input::Signed`].
    Sign(Arc<DecidedHeader>),
    /// The group's threshold key went a step further: see [`Core::keys`].
    KeysChanged,
}

/// How an event ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was decided at this version.
    Committed(Version),
    /// It had been decided before, at this version.
    Duplicate(Version),
    /// Its number is so old that nobody knows whether it was decided; it was not decided now.
    TooOld,
    /// The apps rejected it; nothing changed.
    Rejected(Rejection),
    /// It is not its source's; nothing changed.
    Unauthentic(Unauthentic),
}

/// What the core counted since it began (a replay counts too).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreCounters {
    /// Batches of the order.
    pub batches: u64,
    /// Events decided.
    pub committed: u64,
    /// Operations of clients of the store.
    pub operations: u64,
    /// Events seen before.
    pub duplicates: u64,
    /// Events rejected.
    pub rejected: u64,
    /// Events that are not their source's.
    pub unauthentic: UnauthenticCounters,
    /// Batches signed.
    pub signatures: u64,
    /// Updates replaced by a later one of the same batch before they were signed.
    pub merged: u64,
    /// Updates that repaired an actuator.
    pub repairs: u64,
    /// Dependencies on a later version or in a circle, which no order can satisfy; they are dropped.
    pub dependencies_invalid: u64,
    /// Ack frames whose signature does not verify.
    pub acks_forged: u64,
}

/// See the module.
pub struct Core {
    domain: Label,
    epoch: u64,
    source: SourceId,
    keys: SourceKeys,
    signer: Signer,
    group_keys: Arc<GroupKeys>,
    apps: Vec<SharedApp>,
    registry: Arc<Registry>,
    store: Store,
    now_ms: u64,
    /// Highest number of an own event that was ordered.
    own_sequence: u64,
    joined: Arc<BTreeMap<Label, ActuatorFacts>>,
    scheduler: Scheduler,
    outbox: Outbox,
    counters: CoreCounters,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").field("domain", &self.domain).field("version", &self.store.version()).finish()
    }
}

impl Core {
    /// An empty core.
    pub fn new(settings: CoreSettings, signer: impl Into<Signer>, apps: Vec<SharedApp>) -> Core {
        Core {
            domain: settings.domain,
            epoch: settings.epoch,
            source: settings.source,
            keys: settings.keys,
            signer: signer.into(),
            group_keys: Arc::default(),
            apps,
            registry: Arc::default(),
            store: Store::new(),
            now_ms: 0,
            own_sequence: 0,
            joined: Arc::default(),
            scheduler: Scheduler::new(settings.scheduler),
            outbox: Outbox::default(),
            counters: CoreCounters::default(),
        }
    }

    /// With the procedures that clients of the store may call. Comes before anything is ordered, and is the
    /// same on every replica.
    pub fn set_registry(&mut self, registry: Arc<Registry>) {
        self.registry = registry;
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Epoch of the group.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Ordered time, milliseconds of the Unix epoch.
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Highest number of this controller's own events in the order.
    pub fn own_sequence(&self) -> u64 {
        self.own_sequence
    }

    /// Lets the state rot: see [`Store::rot`].
    #[cfg(debug_assertions)]
    pub fn rot(&mut self) {
        self.store.rot();
    }

    /// What replicas compare after the same batch: version, ordered time and digest of the store.
    pub fn replica_digest(&self) -> [u8; 32] {
        let mut digest = [0; 32];
        digest[..8].copy_from_slice(&self.store.version().0.to_le_bytes());
        digest[8..16].copy_from_slice(&self.now_ms.to_le_bytes());
        digest[16..].copy_from_slice(&self.store.digest().to_le_bytes());
        digest
    }

    /// The group's threshold key, as far as it is.
    pub fn group_keys(&self) -> &Arc<GroupKeys> {
        &self.group_keys
    }

    /// Headers of all updates that are held, with a signature or without: what a state that was taken over brings.
    pub fn headers(&self) -> Vec<Arc<DecidedHeader>> {
        let mut headers = self.scheduler.headers();
        let known: BTreeSet<BatchName> = headers.iter().map(|header| header.name()).collect();
        let told = self.outbox.held().map(|held| (held.header.name(), &held.header));
        let told: BTreeMap<BatchName, &Arc<DecidedHeader>> =
            told.filter(|(name, _)| !known.contains(name)).collect();
        headers.extend(told.into_values().cloned());
        headers
    }

    /// The header of a batch that waits for the group's signature.
    pub fn unsigned(&self, batch: &BatchName) -> Option<Arc<DecidedHeader>> {
        self.scheduler.unsigned(batch).or_else(|| self.outbox.unsigned(batch).cloned())
    }

    /// What other domains are told.
    pub fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    /// Actuators that joined.
    pub fn joined(&self) -> &Arc<BTreeMap<Label, ActuatorFacts>> {
        &self.joined
    }

    /// The scheduler, to look at.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// What was counted.
    pub fn counters(&self) -> CoreCounters {
        self.counters
    }

    /// The next step. Outputs are in the order in which they must be done.
    pub fn step(&mut self, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Ordered(items) => self.ordered(items, out),
            Input::Connected { actuator, session, digest } => {
                self.scheduler.connected(&actuator, session, digest, out);
            }
            Input::Disconnected { actuator, session } => self.scheduler.disconnected(&actuator, session),
            Input::State { actuator, session, entries, last } => {
                self.scheduler.state(&actuator, session, entries, last, out);
            }
            Input::Acks { session, acks } => self.acks(session, acks, out),
            Input::Signed { batch, signature } => {
                self.outbox.signed(&batch, &signature);
                self.scheduler.signed(batch, signature);
            }
            Input::Lead(leads) => self.scheduler.lead(leads, out),
            Input::Tick { now_ms } => self.scheduler.tick(now_ms, out),
        }
        self.scheduler.pump(out);
    }

    fn acks(&mut self, session: u64, acks: SignedAcks, out: &mut Vec<Output>) {
        let verified = match self.joined.get(&acks.actuator) {
            Some(facts) => verify_acks(&facts.identity, &acks).is_ok(),
            None => false,
        };
        if verified {
            self.scheduler.acks(&acks.actuator, session, &acks.acks, out);
            out.push(Output::Acked(Box::new(acks)));
        } else {
            self.counters.acks_forged += 1;
            tracing::warn!(actuator = %acks.actuator, "acks without the signature of the actuator's identity");
        }
    }

    /// What deciding on an event now would plan. Changes nothing.
    ///
    /// # Errors
    /// The [`Rejection`] that the event would get.
    pub fn dry_run(&self, event: &Event) -> Result<Plan, Rejection> {
        dry_run(&self.store, &self.apps, self.now_ms, event)
    }

    fn ordered(&mut self, items: Vec<Item>, out: &mut Vec<Output>) {
        self.counters.batches += 1;
        let mut planned: Vec<PlannedUpdate> = Vec::new();
        for item in items {
            match item {
                Item::Event { now_ms, event } => {
                    self.now_ms = self.now_ms.max(now_ms);
                    let outcome = self.decide(&event, &mut planned, out);
                    out.push(Output::Decided { event: Box::new(event), outcome });
                }
                Item::Repair { now_ms, actuator, found } => {
                    self.now_ms = self.now_ms.max(now_ms);
                    self.repair(&actuator, &found, &mut planned, out);
                }
                Item::Keys { now_ms, step } => {
                    self.now_ms = self.now_ms.max(now_ms);
                    if Arc::make_mut(&mut self.group_keys).step(&self.domain, step) {
                        out.push(Output::KeysChanged);
                    }
                }
                Item::Operations { now_ms, origin, ticket, batch } => {
                    self.now_ms = self.now_ms.max(now_ms);
                    let applied = self.store.apply(&self.registry, self.now_ms, &batch);
                    self.counters.operations += batch.requests.len() as u64;
                    out.extend(applied.changes.into_iter().map(|change| Output::Committed(Arc::new(change))));
                    out.push(Output::Applied { origin, ticket, outcomes: applied.outcomes });
                }
            }
        }
        self.scheduler.decided(self.store.version());
        self.sign(planned, out);
    }

    fn decide(
        &mut self,
        signed: &SignedEvent,
        planned: &mut Vec<PlannedUpdate>,
        out: &mut Vec<Output>,
    ) -> Outcome {
        if let Err(reason) = admit(&self.domain, &self.keys, &self.joined, signed) {
            self.counters.unauthentic.count(reason);
            tracing::warn!(source = %signed.event.source.0, %reason, "an ordered event is dropped");
            return Outcome::Unauthentic(reason);
        }
        let event = &signed.event;
        if event.source == self.source {
            self.own_sequence = self.own_sequence.max(event.sequence);
        }
        match dedup::seen(&self.store, event) {
            Seen::Never => {}
            Seen::At(version) => {
                self.counters.duplicates += 1;
                return Outcome::Duplicate(version);
            }
            Seen::TooOld => {
                self.counters.duplicates += 1;
                return Outcome::TooOld;
            }
        }
        let version = Version(self.store.version().0 + 1);
        let mut view = self.store.view();
        let decided = plan(&mut view, &self.apps, version, self.now_ms, event)
            .and_then(|plan| dedup::record(&mut view, event, version).map(|()| plan));
        if let EventBody::Removed { actuator } = &event.body {
            dedup::forget(&mut view, &SourceId::of_actuator(actuator));
        }
        let plan = match decided {
            Ok(plan) => plan,
            Err(rejection) => {
                self.counters.rejected += 1;
                return Outcome::Rejected(rejection);
            }
        };
        let writes = view.into_writes();
        let change = feed::committed(version, self.now_ms, &writes);
        self.store.commit(version, writes);
        self.counters.committed += 1;
        out.push(Output::Committed(Arc::new(change)));
        planned.extend(plan.updates);
        self.membership(&event.body, planned, out);
        Outcome::Committed(version)
    }

    /// Who joined and who is gone, as far as sending is concerned.
    fn membership(&mut self, body: &EventBody, planned: &mut Vec<PlannedUpdate>, out: &mut Vec<Output>) {
        match body {
            EventBody::Joined(facts) => {
                self.scheduler.add_target(&facts.name);
                Arc::make_mut(&mut self.joined).insert(facts.name.clone(), facts.clone());
            }
            EventBody::Removed { actuator } => {
                planned.retain(|planned| {
                    planned.update.target != *actuator || statement_of(&planned.update).is_some()
                });
                Arc::make_mut(&mut self.joined).remove(actuator);
                self.scheduler.remove_target(actuator, out);
            }
            EventBody::Intent(_)
            | EventBody::Usage(_)
            | EventBody::Refused { .. }
            | EventBody::Health(_)
            | EventBody::Repair(_)
            | EventBody::FileWall(_)
            | EventBody::PacketIn(_) => {}
            EventBody::Domain(about) => match &**about {
                DomainEvent::Heard { domain, through, .. } => self.outbox.taken(domain, *through),
                DomainEvent::Forgotten { domain } => {
                    planned
                        .retain(|planned| statement_of(&planned.update).is_none_or(|(to, ..)| to != domain));
                    self.outbox.forget(domain);
                }
                DomainEvent::Known(_) | DomainEvent::Controllers(_) | DomainEvent::Forwarded { .. } => {}
            },
        }
    }

    /// Decides keys of an actuator anew that cannot be mended by sending what is desired: a key that is
    /// newer there than desired gets its value again, a key that nobody desires is deleted, both at
    /// a fresh version. Tombstones are treated as absent because they are forgotten out of order.
    fn repair(
        &mut self,
        actuator: &Label,
        found: &[(Key, Version)],
        planned: &mut Vec<PlannedUpdate>,
        out: &mut Vec<Output>,
    ) {
        self.scheduler.repaired(actuator, found);
        if !self.scheduler.has_target(actuator) {
            return;
        }
        let version = Version(self.store.version().0 + 1);
        let mut updates = Vec::new();
        for (key, in_force) in found.iter().filter(|(_, in_force)| *in_force < version) {
            let pending = planned.iter().rev().any(|p| p.update.target == *actuator && p.update.key == *key);
            let (change, after) = match self.scheduler.desired(actuator, key) {
                _ if pending => continue,
                Some(held) if !held.is_delete() && held.version() > *in_force => continue,
                Some(held) if !held.is_delete() => (held.proven.update.change.clone(), held.after.to_vec()),
                // Replicas forget tombstones at different times, and must decide the same.
                _ => (Change::Delete, Vec::new()),
            };
            let (target, key) = (actuator.clone(), key.clone());
            let update = Update { target, key, version, expected: Version::ZERO, change };
            updates.push(PlannedUpdate { update, after });
        }
        if updates.is_empty() {
            return;
        }
        order_deletes(&mut updates);
        self.counters.repairs += updates.len() as u64;
        out.push(Output::Repaired { target: actuator.clone(), version, keys: updates.len() as u64 });
        self.store.commit(version, Vec::new());
        planned.extend(updates);
    }

    /// Signs the updates of a batch, and gives them to the scheduler.
    fn sign(&mut self, planned: Vec<PlannedUpdate>, out: &mut Vec<Output>) {
        let before = planned.len();
        let planned = batch::merge(planned);
        self.counters.merged += (before - planned.len()) as u64;
        let (planned, invalid) = batch::sort(planned);
        self.counters.dependencies_invalid += invalid;
        let index = self.store.version();
        let mut rest = planned.into_iter();
        loop {
            let chunk = rest.by_ref().take(1 << PATH_MAX);
            let (updates, after): (Vec<Update>, Vec<Vec<Dependency>>) =
                chunk.map(|planned| (planned.update, planned.after)).unzip();
            if updates.is_empty() {
                return;
            }
            let (header, proven) = self.sign_chunk(index, updates);
            let proven: Vec<Arc<ProvenUpdate>> = proven.into_iter().map(Arc::new).collect();
            out.push(Output::Prepared { header: header.clone(), updates: proven.clone() });
            if header.signature().is_none() {
                out.push(Output::Sign(header.clone()));
            }
            for (proven, after) in proven.into_iter().zip(after) {
                let bytes = encoded_bytes(&proven.update);
                let held = Held { header: header.clone(), proven, after: after.into(), bytes };
                if let Err(held) = self.outbox.insert(held) {
                    self.scheduler.insert(held, out);
                }
            }
        }
    }
}

impl Core {
    /// The header over some updates of a batch, signed where one key signs, and each with its proof.
    fn sign_chunk(
        &mut self,
        index: Version,
        updates: Vec<Update>,
    ) -> (Arc<DecidedHeader>, Vec<ProvenUpdate>) {
        let switched = updates.iter().filter(|update| !matches!(update.key, Key::Statement { .. }));
        let targets: BTreeSet<&Label> = switched.map(|update| &update.target).collect();
        let targets = targets.into_iter().cloned().collect();
        let made = match &self.signer {
            Signer::Key(signer) => sign_batch(&**signer, &self.domain, self.epoch, index, updates)
                .map(|(header, proven)| (DecidedHeader::signed(header), proven)),
            Signer::Shares => prepare_batch(&self.domain, self.epoch, index, updates)
                .map(|(header, proven)| (DecidedHeader::unsigned(header, targets), proven)),
        };
        let Ok((header, proven)) = made else { unreachable!("a chunk has 1 to 2^20 updates") };
        self.counters.signatures += 1;
        (Arc::new(header), proven)
    }
}

/// Lets every app decide on an event; the first rejection stands for all.
fn plan(
    view: &mut weir_store::View<'_>,
    apps: &[SharedApp],
    version: Version,
    now_ms: u64,
    event: &Event,
) -> Result<Plan, Rejection> {
    let mut plan = Plan::default();
    for app in apps {
        let decided = app.decide(view, version, now_ms, event)?;
        for planned in &decided.plan.updates {
            let update = &planned.update;
            let bytes = encoded_bytes(update);
            if bytes > UPDATE_BYTES_MAX {
                let what = format!("update of {} for {}, bytes,", update.key, update.target);
                return Err(Rejection::limit(&what, bytes, UPDATE_BYTES_MAX));
            }
            if update.version != version {
                let problem = format!(
                    "app '{}' planned it at {}, but the event is ordered at {version}",
                    app.name(),
                    update.version
                );
                return Err(Rejection::Reference { resource: update.key.to_string(), problem });
            }
        }
        plan.updates.extend(decided.plan.updates);
    }
    Ok(plan)
}

/// What deciding on an event over a store would plan; the store stays as it is.
///
/// # Errors
/// The [`Rejection`] that the event would get.
pub fn dry_run(store: &Store, apps: &[SharedApp], now_ms: u64, event: &Event) -> Result<Plan, Rejection> {
    plan(&mut store.view(), apps, Version(store.version().0 + 1), now_ms, event)
}

/// Deletes of a repair that belong together: a network's parameters outlive its ports.
fn order_deletes(updates: &mut [PlannedUpdate]) {
    let mut ports: BTreeMap<_, Vec<Dependency>> = BTreeMap::new();
    for PlannedUpdate { update, .. } in updates.iter() {
        if let (Key::Port { vni, .. }, Change::Delete) = (&update.key, &update.change) {
            ports.entry(*vni).or_default().push(Dependency {
                target: update.target.clone(),
                key: update.key.clone(),
                version: update.version,
                reason: Reason::PortGoneBeforeNetwork,
            });
        }
    }
    for PlannedUpdate { update, after } in updates.iter_mut() {
        if let (Key::Network { vni }, Change::Delete) = (&update.key, &update.change) {
            after.extend(ports.remove(vni).unwrap_or_default());
        }
    }
}
