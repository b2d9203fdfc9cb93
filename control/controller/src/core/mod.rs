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
//! - An event changes something only with the signature of a registered source over it (`admission`); what is an operator's to
//!   order, where there are operators, only with an operator's (`operators`).
//! - An event with the source and number of one before it changes nothing and gets its answer.
//! - Ordered time never goes back, whatever the proposers' clocks say; a correction changes what wall time is, not it ([`clock`]).
//! - Acks count only with the signature of the identity that the actuator joined with.
//! - What clients of the store ask costs at most so much in one entry, and is asked by somebody who still may ([`rules`]).
//! - In a group with a threshold key nothing here signs: headers leave by [`Output::Sign`], and signatures, verified,
//!   come back by [`Input::Signed`], whenever they do. What is decided does not depend on them.
//! - An order that ended carries nothing out any more; the one that goes on has its state, one epoch later ([`conversion`]).
//! - The list of controllers whose endorsements a switch takes follows the group's key: when that changes, every actuator is
//!   planned the new list at once, and one that joins gets it with its first updates.
//!
//! Departure from RoSCo: acks are not barriers (row R8) but name key and version, so that what is
//! independent never waits.

pub mod admission;
pub mod approvals;
mod batch;
pub mod clock;
pub mod conversion;
mod decide;
mod dedup;
mod feed;
pub mod group;
mod header;
pub mod identities;
pub mod keys;
pub mod operators;
mod outbox;
mod rules;
pub mod scheduler;
mod since;
mod snapshot;
mod sources;
mod step;
#[cfg(test)]
mod tests;
pub mod tokens;

pub use batch::{Item, decode_batch, is_reasonable};
pub(crate) use decide::changes_nothing;
pub use decide::dry_run;
pub use dedup::{CELLS_MAX, DEDUP_TABLE, WINDOW, was_decided};
pub use feed::{CommittedChange, Feed, FeedSettings, Wanted};
pub use header::{BatchName, DecidedHeader};
pub use outbox::{Outbox, OutboxPage};
pub use rules::{APART, REVOKED_FOR_ALL, RULES, marker};
pub use snapshot::CoreSnapshot;
pub use step::{CoreCounters, CoreSettings, Input, Outcome, Output, Signer};

use admission::{SourceKeys, Unauthentic};
use identities::{Identities, Registered};
use keys::GroupKeys;
use operators::Operators;
use scheduler::{Held, Scheduler, continues_at};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use weir_base::codec::encoded_bytes;
use weir_model::entry::ControllersEntry;
use weir_model::event::{ActuatorFacts, Event, SourceId};
use weir_model::signed::{PATH_MAX, ProvenUpdate, SignedAcks};
use weir_model::{Change, Dependency, Entry, Key, Label, Plan, PlannedUpdate, Update, Version, edges};
use weir_store::{App, Meter, Registry, Rejection, Store};
use weir_trust::batch::{prepare_batch, sign_batch};
use weir_trust::identity::verify_acks;

/// Largest update, bytes: it must fit into a frame beside its proof.
pub const UPDATE_BYTES_MAX: usize = 2 * 1024 * 1024;

/// A deciding app, shared with those who try decisions out.
pub type SharedApp = Arc<dyn App + Sync>;

/// See the module.
pub struct Core {
    domain: Label,
    epoch: u64,
    source: SourceId,
    keys: SourceKeys,
    believes_one: bool,
    identities: Arc<Identities>,
    operators: Arc<Operators>,
    /// Frames of acks that did not count, by actuator; not a function of the order.
    forged: BTreeMap<Label, u64>,
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
    /// By which rules entries are carried out: see [`rules`].
    rules: u32,
    /// The actuators that joined, by the numbers under which they ask the store.
    principals: BTreeMap<u64, Label>,
    /// The conversion that was decided last: see [`conversion`].
    conversion: Option<conversion::Kept>,
    /// The key in force, where it took the place of another one.
    named: Option<conversion::Named>,
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
            believes_one: settings.believes_one,
            identities: Arc::default(),
            operators: Arc::default(),
            forged: BTreeMap::new(),
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
            rules: 0,
            principals: BTreeMap::new(),
            conversion: None,
            named: None,
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

    /// Which keys and certificates are taken.
    pub fn identities(&self) -> &Arc<Identities> {
        &self.identities
    }

    /// Whose requests are taken.
    pub fn operators(&self) -> &Arc<Operators> {
        &self.operators
    }

    /// All on which it depends what is taken of whom.
    pub fn registered(&self) -> Registered<'_> {
        Registered {
            keys: &self.keys,
            joined: &self.joined,
            identities: &self.identities,
            operators: &self.operators,
        }
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
            Input::Plane { actuator, session, plane, entries, last } => {
                self.scheduler.plane_state(&actuator, session, &plane, (entries, last), out);
            }
            Input::Acks { session, acks } => self.acks(session, acks, out),
            Input::Signed { batch, signature } => {
                let signature = self.proven(signature);
                self.outbox.signed(&batch, &signature);
                self.scheduler.signed(batch, signature);
            }
            Input::Lead(leads) => self.scheduler.lead(leads, out),
            Input::Tick { now_ms } => self.scheduler.tick(now_ms, out),
        }
        self.scheduler.pump(out);
    }

    fn acks(&mut self, session: u64, acks: SignedAcks, out: &mut Vec<Output>) {
        let source = SourceId::of_actuator(&acks.actuator);
        let verified = self.registered().keys_of(&source).and_then(|keys| {
            let good = keys.iter().any(|key| verify_acks(key, &acks).is_ok());
            if good { Ok(()) } else { Err(Unauthentic::BadSignature) }
        });
        let Err(reason) = verified else {
            self.scheduler.acks(&acks.actuator, session, &acks.acks, out);
            out.push(Output::Acked(Box::new(acks)));
            return;
        };
        match reason {
            Unauthentic::Revoked => self.counters.acks_revoked += 1,
            _ => self.counters.acks_forged += 1,
        }
        tracing::warn!(actuator = %acks.actuator, %reason, "acks do not count");
        // Who has no session here is no actuator, and there must not be more of these than of those.
        if self.scheduler.has_target(&acks.actuator) {
            let count = self.forged.entry(acks.actuator.clone()).or_default();
            *count += 1;
            out.push(Output::Forged { actuator: acks.actuator, reason, count: *count });
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
        let mut meter = Meter::new();
        for item in items {
            if self.ended().is_some() && !conversion::takes_back(&item) {
                self.counters.behind_the_end += 1;
                continue;
            }
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
                    let before = self.group_keys.controllers();
                    if Arc::make_mut(&mut self.group_keys).step(&self.domain, step) {
                        out.push(Output::KeysChanged);
                        self.succeed(out);
                        self.tell_controllers(before.as_ref(), &mut planned);
                    }
                }
                Item::Operations { now_ms, origin, ticket, batch } => {
                    self.now_ms = self.now_ms.max(now_ms);
                    let applied = self.apply(&mut meter, &batch);
                    self.counters.operations += batch.requests.len() as u64;
                    out.extend(applied.changes.into_iter().map(|change| Output::Committed(Arc::new(change))));
                    out.push(Output::Applied { origin, ticket, outcomes: applied.outcomes });
                }
            }
        }
        self.scheduler.decided(self.store.version());
        self.sign(planned, out);
    }

    /// Every actuator shall know the controllers of now.
    fn tell_controllers(&mut self, before: Option<&ControllersEntry>, planned: &mut Vec<PlannedUpdate>) {
        let now = self.group_keys.controllers();
        if now.as_ref() == before || self.joined.is_empty() {
            return;
        }
        let version = Version(self.store.version().0 + 1);
        let change = now.map_or(Change::Delete, |now| Change::Put(Entry::Controllers(now)));
        planned.extend(self.joined.keys().map(|actuator| controllers(actuator, version, change.clone())));
        self.store.commit(version, Vec::new());
    }

    /// Decides keys of an actuator anew that cannot be mended by sending what is desired: a key that is
    /// newer there than desired gets its value again, a key that nobody desires is deleted, both at
    /// a fresh version, which is above what was found there. Tombstones are treated as absent because they are forgotten out of order.
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
        let version = continues_at(self.store.version(), found.iter().map(|(_, in_force)| *in_force));
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
        let planned = if self.rules >= APART { planned } else { batch::merge(planned) };
        self.counters.merged += (before - planned.len()) as u64;
        let (planned, invalid) = batch::sort(planned);
        self.counters.dependencies_invalid += invalid;
        let index = self.store.version();
        // What is signed was decided, and waits for nothing that comes later: so the oldest that waits can always go, and a snapshot
        // that is read has nothing above its own version.
        debug_assert!(
            planned.iter().all(|planned| {
                let version = planned.update.version;
                version <= index && planned.after.iter().all(|dependency| dependency.version <= version)
            }),
            "an update is above {index}, or waits for a later one"
        );
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
        let by_key = updates.iter().any(|update| update.key == Key::Controllers);
        let switched = updates.iter().filter(|update| !matches!(update.key, Key::Statement { .. }));
        let targets: BTreeSet<&Label> = switched.map(|update| &update.target).collect();
        let targets = targets.into_iter().cloned().collect();
        let before = self.signs_as_before();
        let made = match &self.signer {
            Signer::SharesAfter(signer) if before => {
                sign_batch(&**signer, &self.domain, self.epoch, index, updates)
                    .map(|(header, proven)| (DecidedHeader::signed(header), proven))
            }
            Signer::Key(signer) => sign_batch(&**signer, &self.domain, self.epoch, index, updates)
                .map(|(header, proven)| (DecidedHeader::signed(header), proven)),
            Signer::Shares | Signer::SharesAfter(_) => {
                prepare_batch(&self.domain, self.epoch, index, updates).map(|(header, proven)| {
                    let mut decided = DecidedHeader::unsigned(header, targets);
                    decided.by_key = by_key;
                    (decided, proven)
                })
            }
        };
        let Ok((header, proven)) = made else { unreachable!("a chunk has 1 to 2^20 updates") };
        self.counters.signatures += 1;
        (Arc::new(header), proven)
    }
}

/// An actuator's list of controllers.
fn controllers(actuator: &Label, version: Version, change: Change) -> PlannedUpdate {
    let (target, key) = (actuator.clone(), Key::Controllers);
    PlannedUpdate {
        update: Update { target, key, version, expected: Version::ZERO, change },
        after: Vec::new(),
    }
}

/// Deletes of a repair that belong together: the parts of something go before it.
fn order_deletes(updates: &mut [PlannedUpdate]) {
    let is_delete = |planned: &&mut PlannedUpdate| planned.update.change == Change::Delete;
    let mut parts: BTreeMap<Key, Vec<Dependency>> = BTreeMap::new();
    for PlannedUpdate { update, .. } in updates.iter_mut().filter(is_delete) {
        if let Some(whole) = edges::whole(&update.key) {
            let (target, key, version) = (update.target.clone(), update.key.clone(), update.version);
            let part = Dependency { target, key, version, reason: edges::PART_GONE };
            parts.entry(whole).or_default().push(part);
        }
    }
    for PlannedUpdate { update, after } in updates.iter_mut().filter(is_delete) {
        after.extend(parts.remove(&update.key).unwrap_or_default());
    }
}
