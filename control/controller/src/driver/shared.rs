//! What the core thread, the sessions and the handles share.

use super::aside::AsideInbox;
use super::audit::Keeper;
use super::command::Command;
use super::counters::{DriverCounters, Gauges};
use super::line::LineDoor;
use super::locking::locked;
use super::moves::Moves;
use super::operations::Operations;
use super::sessions::Sessions;
use super::steps::{EventName, Steps};
use super::{ControllerSettings, Order, SessionSettings, TimeKeeper, time, turns};
use crate::Error;
use crate::audit::record::is_recorded;
use crate::audit::{Misdeed, Record, Wrong};
use crate::core::admission::{SourceKeys, Unauthentic, admit};
use crate::core::clock::difference_ms;
use crate::core::conversion;
use crate::core::identities::{Identities, Registered};
use crate::core::keys::GroupKeys;
use crate::core::operators::Operators;
use crate::core::scheduler::Mode;
use crate::core::{
    APART, CommittedChange, Core, Feed, FeedSettings, Item, REVOKED_FOR_ALL, SharedApp, Wanted,
    changes_nothing, marker, was_decided,
};
use arc_swap::{ArcSwap, ArcSwapOption};
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::sync::{mpsc, oneshot, watch};
use weir_base::codec::{decode, encode};
use weir_base::numbers::Numbers;
use weir_base::ordered_time::State as ClockState;
use weir_base::world::Clock;
use weir_model::domain::{Fetch, SignedFetch};
use weir_model::event::{ActuatorFacts, Event, EventBody, SignedEvent, SourceId};
use weir_model::operator::Founders;
use weir_model::signed::GroupKey;
use weir_model::{Label, Version};
use weir_order::{Submitter, Waiting};
use weir_store::Store;
use weir_trust::identity::{KeyPair, sign_event, sign_fetch};

/// After so long without them, the order is told of the newest rules again.
const RULES_AGAIN_MS: u64 = 5_000;

/// The state after the last batch. A snapshot: it costs nothing and does not change.
#[derive(Clone, Debug)]
pub struct Published {
    /// The store.
    pub store: Store,
    /// Ordered time, milliseconds of the Unix epoch.
    pub now_ms: u64,
    /// Epoch of the group.
    pub epoch: u64,
    /// Actuators that joined.
    pub joined: Arc<BTreeMap<Label, ActuatorFacts>>,
    /// Which keys and certificates are taken.
    pub identities: Arc<Identities>,
    /// Whose requests are taken, and whether what people order must be signed by them.
    pub operators: Arc<Operators>,
    /// By which rules entries are carried out.
    pub rules: u32,
    /// Highest number of this controller's own events in the order.
    pub own_sequence: u64,
    /// Whether the order has ended: see [`crate::core::Core::ended`].
    pub ended: bool,
}

type Answer = oneshot::Sender<Result<Version, Error>>;

pub(super) struct Shared {
    pub domain: Label,
    /// The one key by which batches are signed; in a group with shares it comes with the order.
    single_key: Option<GroupKey>,
    /// What signs until a group has its key, where the domain was converted.
    before_key: Option<GroupKey>,
    group_keys: ArcSwap<GroupKeys>,
    source: SourceId,
    identity: ArcSwap<KeyPair>,
    keys: SourceKeys,
    numbers: Mutex<Numbers>,
    pub apps: Vec<SharedApp>,
    pub clock: Arc<dyn Clock>,
    pub session_settings: SessionSettings,
    pub sessions: Sessions,
    /// When actuators changed their addresses on the underlay.
    pub moves: Moves,
    pub counters: DriverCounters,
    pub steps: Steps,
    pub gauges: ArcSwap<Gauges>,
    engine: ArcSwapOption<Arc<dyn Order>>,
    pub submitter: ArcSwapOption<Submitter>,
    published: ArcSwap<Published>,
    feed: Mutex<Feed>,
    /// The last version, and whether the controller has stopped.
    pub reached: watch::Sender<(Version, bool)>,
    /// Whether all that the order brought before there was a core thread is in that one's queue.
    pub early_is_in: watch::Sender<bool>,
    /// Grows with what there is to tell other domains.
    pub told: watch::Sender<u64>,
    /// Whether the controller has stopped; of its own, so that who waits for it only is not woken by every version.
    pub ends: watch::Sender<bool>,
    proposals: Mutex<HashMap<EventName, Vec<Answer>>>,
    proposals_max: usize,
    pub operations: Operations,
    /// Whether others order too, so that a read needs a barrier.
    pub replicated: bool,
    /// Whether every replica takes proposals, whoever leads.
    pub everywhere: bool,
    /// Events of others whose turn here has not come.
    held: Mutex<turns::Held>,
    /// By which rules this controller would have entries carried out.
    rules_wanted: u32,
    /// When the order was told of these rules, since this replica began to lead; ms of the clock that does not go back.
    rules_told_ms: Mutex<Option<u64>>,
    /// The first operators by the settings.
    pub(super) operators: Founders,
    /// Whether the order has yet to say so: see [`ControllerSettings::awaits_operators`].
    pub(super) awaits_operators: Arc<AtomicBool>,
    pub(super) operators_told_ms: Mutex<Option<u64>>,
    /// How often a replica did not propose an event in its turn.
    passed_over: Mutex<BTreeMap<u64, u64>>,
    /// Nothing more is taken: the order ends.
    pub converts: AtomicBool,
    leads: AtomicBool,
    /// The door for people's changes while too much waits in line.
    pub line: LineDoor,
    /// What is published has all that was acknowledged before this.
    fresh_at: Mutex<Option<Instant>>,
    pub time: Arc<TimeKeeper>,
    /// How the clocks agreed when it was looked last.
    clocks: Mutex<ClockState>,
    stopped: AtomicBool,
    failed: AtomicBool,
    inbox: mpsc::Sender<Command>,
    pub(super) aside: AsideInbox,
    /// The audit, until the controller stops.
    audit: ArcSwapOption<Keeper>,
}

/// What [`Shared`] is made of.
pub(super) struct Parts<'a> {
    pub settings: &'a ControllerSettings,
    pub source: SourceId,
    pub keys: SourceKeys,
    pub numbers: Numbers,
    pub apps: Vec<SharedApp>,
    pub group_key: Option<GroupKey>,
    /// What signs until a group has its key, where the domain was converted.
    pub before_key: Option<GroupKey>,
    pub feed: Feed,
    pub core: &'a Core,
    pub clock: Arc<dyn Clock>,
    pub submitter: Submitter,
    pub engine: Arc<dyn Order>,
    /// False: a replica of a group, which follows at first.
    pub leads: bool,
    pub inbox: mpsc::Sender<Command>,
    pub audit: Option<Keeper>,
    /// Why it waits before an entry, if it does.
    pub aside: AsideInbox,
}

impl Shared {
    pub fn new(parts: Parts<'_>) -> Shared {
        let settings = parts.settings;
        let version = parts.core.store().version();
        let everywhere = parts.engine.is_everywhere();
        let time = settings.time.clone().unwrap_or_else(|| Arc::new(TimeKeeper::new(parts.clock.clone(), 0)));
        time.decided(parts.core.now_ms(), difference_ms(parts.core.store()));
        time.tick();
        let awaits = !settings.operators.is_empty() && !parts.core.operators().in_force();
        settings.awaits_operators.store(awaits, Ordering::SeqCst);
        Shared {
            domain: settings.domain.clone(),
            single_key: parts.group_key,
            before_key: parts.before_key,
            converts: AtomicBool::new(false),
            group_keys: ArcSwap::from(parts.core.group_keys().clone()),
            source: parts.source,
            identity: ArcSwap::from(settings.identity.clone()),
            keys: parts.keys,
            numbers: Mutex::new(parts.numbers),
            apps: parts.apps,
            clock: parts.clock,
            session_settings: settings.sessions,
            sessions: Sessions::new(settings.sessions),
            moves: Moves::default(),
            counters: DriverCounters::default(),
            steps: Steps::default(),
            gauges: ArcSwap::from_pointee(Gauges::default()),
            engine: ArcSwapOption::from(Some(Arc::new(parts.engine))),
            submitter: ArcSwapOption::from(Some(Arc::new(parts.submitter))),
            published: ArcSwap::from_pointee(Published::of(parts.core)),
            feed: Mutex::new(parts.feed),
            reached: watch::Sender::new((version, false)),
            early_is_in: watch::Sender::new(true),
            told: watch::Sender::new(0),
            ends: watch::Sender::new(false),
            proposals: Mutex::new(HashMap::new()),
            proposals_max: settings.proposals_max,
            operations: Operations::new(settings.proposals_max),
            replicated: !parts.leads,
            everywhere,
            held: Mutex::default(),
            passed_over: Mutex::default(),
            rules_wanted: if settings.scheduler.mode == Mode::Linear { APART } else { REVOKED_FOR_ALL },
            rules_told_ms: Mutex::default(),
            operators: settings.operators.clone(),
            awaits_operators: settings.awaits_operators.clone(),
            operators_told_ms: Mutex::default(),
            leads: AtomicBool::new(parts.leads),
            line: LineDoor::new(settings.scheduler.line_older_max),
            fresh_at: Mutex::default(),
            time,
            clocks: Mutex::new(ClockState::Alone),
            stopped: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            inbox: parts.inbox,
            aside: parts.aside,
            audit: ArcSwapOption::from(parts.audit.map(Arc::new)),
        }
    }

    /// The group's public key; none before the members have made it.
    pub fn group_key(&self) -> Option<GroupKey> {
        let own = self.single_key.clone().or_else(|| self.group_keys.load().key());
        own.or_else(|| self.before_key.clone().filter(|_| self.is_converted()))
    }

    /// Whether the domain had an order of another kind before.
    pub fn is_converted(&self) -> bool {
        conversion::kept(&self.published().store).is_some()
    }

    /// The group's threshold key, as the order knows it.
    pub fn group_keys(&self) -> Arc<GroupKeys> {
        self.group_keys.load_full()
    }

    pub fn set_group_keys(&self, keys: Arc<GroupKeys>) {
        self.group_keys.store(keys);
    }

    pub fn published(&self) -> Arc<Published> {
        self.published.load_full()
    }

    /// Shows the state after a batch, before anybody is told that their event is decided.
    pub fn publish(&self, core: &Core) {
        let version = core.store().version();
        self.time.decided(core.now_ms(), difference_ms(core.store()));
        self.note_operators(core.operators().in_force());
        self.published.store(Arc::new(Published::of(core)));
        locked(&self.feed).reached(version);
    }

    pub fn push_change(&self, change: Arc<CommittedChange>) {
        let version = change.version;
        locked(&self.feed).push(change);
        self.reached.send_modify(|(reached, _)| *reached = version);
    }

    /// Wakes who waits for something to tell other domains.
    pub fn set_told(&self, changes: u64) {
        self.told.send_if_modified(|known| std::mem::replace(known, changes) != changes);
    }

    /// Bytes of the changes that watchers can still get.
    pub fn feed_bytes(&self) -> usize {
        locked(&self.feed).bytes()
    }

    pub fn changes_after(
        &self,
        from: Version,
        limit: usize,
        wanted: Wanted,
    ) -> Result<Vec<Arc<CommittedChange>>, Error> {
        locked(&self.feed).after(from, limit, wanted)
    }

    /// Shows a state that took the place of the one before. Who waits for a decision hears that it is not known here.
    pub fn replaced(&self, core: &Core, settings: FeedSettings) {
        let version = core.store().version();
        self.set_fresh_at(None);
        self.publish(core);
        *locked(&self.feed) = Feed::new(settings, version);
        self.reached.send_modify(|(reached, _)| *reached = version);
        locked(&self.proposals).clear();
        self.operations.clear();
        // What they told is forgotten with the state that it was compared to.
        self.sessions.close_all();
    }

    /// The order, until the controller stops.
    pub fn engine(&self) -> Option<Arc<dyn Order>> {
        self.engine.load_full().map(|engine| (*engine).clone())
    }

    pub fn source(&self) -> &SourceId {
        &self.source
    }

    /// Keys of the sources that need not join, by the settings.
    pub fn keys(&self) -> &SourceKeys {
        &self.keys
    }

    /// The key that signs what this controller says.
    pub fn identity(&self) -> Arc<KeyPair> {
        self.identity.load_full()
    }

    pub fn set_identity(&self, key: Arc<KeyPair>) {
        self.identity.store(key);
    }

    fn admits(&self, published: &Published, event: &SignedEvent) -> Result<(), Unauthentic> {
        admit(&self.domain, published.registered(&self.keys), self.wall_ms(published), event)
    }

    /// The audit, if there is one, until the controller stops.
    pub fn audit(&self) -> Option<Arc<Keeper>> {
        self.audit.load_full()
    }

    pub fn fresh_at(&self) -> Option<Instant> {
        *locked(&self.fresh_at)
    }

    pub fn set_fresh_at(&self, at: Option<Instant>) {
        *locked(&self.fresh_at) = at;
    }

    pub fn leads(&self) -> bool {
        self.leads.load(Ordering::SeqCst)
    }

    /// Begins or ceases to lead.
    pub fn set_leads(&self, leads: bool) {
        self.leads.store(leads, Ordering::SeqCst);
        *locked(&self.rules_told_ms) = None;
    }

    /// Puts the rules that it wants into the order where they may not be there: see [`crate::core::marker`].
    pub fn tell_rules(self: &Arc<Self>) {
        if !self.leads() && !self.everywhere {
            return;
        }
        let now_ms = self.clock.now_ns() / 1_000_000;
        {
            let mut told_ms = locked(&self.rules_told_ms);
            let known = self.published().rules >= self.rules_wanted;
            if told_ms.is_some_and(|at_ms| known || now_ms.saturating_sub(at_ms) < RULES_AGAIN_MS) {
                return;
            }
            *told_ms = Some(now_ms);
        }
        self.offer_item(&marker(self.ordered_now_ms(), self.rules_wanted));
    }

    /// The same, where events must keep their updates apart from the first one on.
    fn tell_rules_first(self: &Arc<Self>) {
        if self.rules_wanted >= APART {
            self.tell_rules();
        }
    }

    /// Time for a proposal: what the core has of it stays where a proposal has less.
    pub fn ordered_now_ms(&self) -> u64 {
        self.time.ordered_ms()
    }

    /// Time passed.
    pub fn tick_time(&self) {
        self.time.tick();
        let view = self.time.view().0;
        let before = std::mem::replace(&mut *locked(&self.clocks), view.state);
        time::warn(before, &view);
    }

    /// Proposes an event and gives back where its answer will come.
    pub fn propose(
        self: &Arc<Self>,
        event: SignedEvent,
    ) -> Result<oneshot::Receiver<Result<Version, Error>>, Error> {
        if self.converts.load(Ordering::SeqCst) {
            return Err(Error::Converts);
        }
        self.propose_last(event)
    }

    /// As [`Shared::propose`], also when nothing else is taken any more.
    pub fn propose_last(
        self: &Arc<Self>,
        event: SignedEvent,
    ) -> Result<oneshot::Receiver<Result<Version, Error>>, Error> {
        if !self.leads() && self.replicated && !self.everywhere {
            // Also while it was chosen and has not decided all that was ordered yet.
            let leader = self.engine().and_then(|engine| engine.status().leader);
            return Err(weir_order::Error::NotLeader { leader }.into());
        }
        self.line.admit(&event.event.body).inspect_err(|_| {
            self.counters.overloads.fetch_add(1, Ordering::Relaxed);
        })?;
        self.tell_rules_first();
        let name = (event.event.source.clone(), event.event.sequence);
        let (answer, answered) = oneshot::channel();
        {
            let mut proposals = locked(&self.proposals);
            if proposals.len() >= self.proposals_max {
                self.counters.overloads.fetch_add(1, Ordering::Relaxed);
                return Err(Error::Overloaded { what: "proposals", limit: self.proposals_max });
            }
            proposals.entry(name.clone()).or_default().push(answer);
        }
        let shared = self.clone();
        let item = Item::Event { now_ms: self.ordered_now_ms(), event };
        self.submit(&item, move |error| shared.answer(&name, &Err(error)));
        Ok(answered)
    }

    /// An event of this controller, under the next number and signed, perhaps for somebody.
    pub fn own_event(&self, body: EventBody, subject: Option<String>) -> Result<SignedEvent, Error> {
        let used = self.published().own_sequence;
        let next = {
            let mut numbers = locked(&self.numbers);
            numbers.begin_behind(used);
            numbers.take()
        };
        let sequence = next.map_err(Error::system("reserving numbers for events"))?;
        let event = Event { source: self.source.clone(), sequence, body };
        Ok(sign_event(&self.identity.load(), &self.domain, event, subject))
    }

    /// Signs what this controller asks another domain.
    pub fn sign_fetch(&self, fetch: Fetch) -> SignedFetch {
        sign_fetch(&self.identity.load(), fetch)
    }

    /// Proposes an event of this controller without waiting for its end.
    pub fn offer(self: &Arc<Self>, body: EventBody) {
        self.tell_rules_first();
        match self.own_event(body, None) {
            Ok(event) => self.offer_item(&Item::Event { now_ms: self.ordered_now_ms(), event }),
            Err(error) => self.offer_failed(&error),
        }
    }

    /// An event of a source elsewhere, which every replica hears: the one that leads orders it; where all take
    /// proposals, the one whose turn it is.
    pub fn hear(self: &Arc<Self>, event: SignedEvent, from: &SourceId) {
        self.tell_rules_first();
        if !self.everywhere {
            if self.leads() {
                self.intake(event);
            }
            return;
        }
        let turn = turns::turn_of(&event.event.source, event.event.sequence);
        let before = self.engine().map(|engine| engine.before(turn)).unwrap_or_default();
        let waiting = self.engine().map(|engine| engine.waiting()).unwrap_or_default();
        let rests = waiting == Waiting::Other;
        let admitted = || {
            let published = self.published();
            let by_itself = event.event.source == *from;
            (by_itself || self.admits(&published, &event).is_ok())
                && !was_decided(&published.store, &event.event)
        };
        // Forged and known ones are counted by the intake, and never held.
        let now = waiting == Waiting::Own || (before.is_empty() && !rests);
        if now || !admitted() {
            return self.intake(event);
        }
        let rest_ms = if rests { turns::REST_MS } else { 0 };
        let due_ms = self.clock.now_ns() / 1_000_000 + rest_ms + before.len() as u64 * turns::TURN_MS;
        let counter = match locked(&self.held).hold(turns::Waits { event, before, rests }, due_ms) {
            true => &self.counters.intake_held,
            false => &self.counters.intake_full,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Orders what was held and was not decided when its turn came.
    pub fn take_turns(self: &Arc<Self>) {
        if !self.everywhere {
            return;
        }
        let due = locked(&self.held).due(self.clock.now_ns() / 1_000_000);
        for turns::Waits { event, before, .. } in due {
            if was_decided(&self.published().store, &event.event) {
                self.counters.intake_spared.fetch_add(1, Ordering::Relaxed);
            } else {
                // It may not have been checked yet: who drops what is forged does right. So may who drops a report that changed nothing then.
                if !matches!(event.event.body, EventBody::Usage(_))
                    && self.admits(&self.published(), &event).is_ok()
                {
                    before.into_iter().for_each(|replica| self.passed_over(replica, &event.event));
                }
                self.intake(event);
            }
        }
    }

    /// Whether this replica holds what another one was expected to take.
    pub fn has_resting(&self) -> bool {
        locked(&self.held).has_resting()
    }

    /// This replica leads and waits: orders what it held because another one did.
    pub fn take_resting(self: &Arc<Self>) {
        let resting = locked(&self.held).resting();
        for turns::Waits { event, .. } in resting {
            if was_decided(&self.published().store, &event.event) {
                self.counters.intake_spared.fetch_add(1, Ordering::Relaxed);
            } else {
                self.counters.intake_taken_over.fetch_add(1, Ordering::Relaxed);
                self.intake(event);
            }
        }
    }

    /// A replica did not propose an event in its turn: the audit says so, of the first, second, fourth and so on.
    fn passed_over(&self, replica: u64, event: &Event) {
        let count = {
            let mut passed_over = locked(&self.passed_over);
            let count = passed_over.entry(replica).or_default();
            *count += 1;
            *count
        };
        self.counters.intake_passed_over.fetch_add(1, Ordering::Relaxed);
        if let Some(audit) = self.audit().filter(|_| is_recorded(count)) {
            let who = self.engine().and_then(|engine| engine.source_of(replica));
            let who = who.unwrap_or_else(|| SourceId(format!("{}{replica}", SourceId::CONTROLLERS)));
            let what = Wrong::PassedOver { source: event.source.clone(), sequence: event.sequence };
            audit.seen(Record::Misdeed(Box::new(Misdeed { who, what, count })));
        }
    }

    /// Events that are held.
    pub fn held(&self) -> usize {
        locked(&self.held).len()
    }

    /// Whether an event is a report of use that changes nothing: no offload is decided from it, none goes, and nothing that is kept of them is
    /// renewed. Such a report is not ordered (row A11): each active host sends one a second. It is found by deciding on it beside the order, so
    /// that what is ordered is decided as it always was. A replica that is behind orders one too many, or leaves one to the next second.
    fn is_idle(&self, published: &Published, event: &Event) -> bool {
        let now_ms = published.now_ms.max(self.ordered_now_ms());
        matches!(event.body, EventBody::Usage(_))
            && changes_nothing(&published.store, &self.apps, now_ms, event)
    }

    /// Takes an event of a source elsewhere: orders it unless it changes nothing ([`Shared::is_idle`]), or unless it is not its source's or was decided before.
    pub fn intake(self: &Arc<Self>, event: SignedEvent) {
        let published = self.published();
        if let Err(reason) = self.admits(&published, &event) {
            self.counters.intake_unauthentic(reason);
            tracing::warn!(source = %event.event.source.0, %reason, "an event is dropped");
        } else if was_decided(&published.store, &event.event) {
            self.counters.intake_duplicates.fetch_add(1, Ordering::Relaxed);
        } else if self.is_idle(&published, &event.event) {
            self.counters.intake_idle.fetch_add(1, Ordering::Relaxed);
        } else {
            self.counters.intake_accepted.fetch_add(1, Ordering::Relaxed);
            self.offer_item(&Item::Event { now_ms: self.ordered_now_ms(), event });
        }
    }

    fn offer_failed(&self, error: &Error) {
        self.counters.offers_failed.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(%error, "an event was not ordered");
    }

    /// Proposes something without waiting for its end.
    pub fn offer_item(self: &Arc<Self>, item: &Item) {
        let shared = self.clone();
        self.submit(item, move |error| shared.offer_failed(&error));
    }

    pub(super) fn submit(&self, item: &Item, failed: impl FnOnce(Error) + Send + 'static) {
        // It would be ordered, and nobody here could say what became of it.
        if let Some(held) = self.aside.held() {
            return failed(Error::Held(held));
        }
        match self.submitter.load_full() {
            None => failed(Error::Stopped),
            Some(submitter) => {
                if let Item::Event { event, .. } = item {
                    let name = (event.event.source.clone(), event.event.sequence);
                    self.steps.proposed(name, self.clock.now_ns());
                }
                let operation = Bytes::from(encode(item));
                if let Err(error) = readable(&operation) {
                    self.counters.unreadable.fetch_add(1, Ordering::Relaxed);
                    tracing::error!(%error, "an operation is not proposed");
                    return failed(error);
                }
                // Success is answered by the core, which decides in the meantime.
                let reply = Box::new(move |result: Result<_, weir_order::Error>| {
                    if let Err(error) = result {
                        failed(error.into());
                    }
                });
                submitter.submit(operation, reply);
            }
        }
    }

    /// Proposals whose answers are waited for.
    pub fn open_proposals(&self) -> usize {
        locked(&self.proposals).len()
    }

    /// Answers whoever waits for an event.
    pub fn answer(&self, name: &EventName, result: &Result<Version, Error>) {
        self.steps.decided(name, self.clock.now_ns());
        let waiting = locked(&self.proposals).remove(name).unwrap_or_default();
        for answer in waiting {
            // Who asked may have given up.
            let _ = answer.send(result.clone());
        }
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Whether it stopped by itself.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::SeqCst)
    }

    /// The core thread ended. That is a failure unless the controller was told to stop.
    pub fn core_ended(&self) {
        self.failed.store(!self.is_stopped(), Ordering::SeqCst);
        self.stop();
    }

    /// Begins the end: nothing more is proposed, and everybody who waits is told.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.submitter.store(None);
        self.engine.store(None);
        self.audit.store(None);
        self.leads.store(false, Ordering::SeqCst);
        // Only to wake the core thread; when its queue is full it is awake.
        let _ = self.inbox.try_send(Command::Wake);
        self.reached.send_modify(|(_, stopped)| *stopped = true);
        self.ends.send_replace(true);
        locked(&self.proposals).clear();
        self.operations.clear();
        self.sessions.close_all();
    }
}

impl Published {
    /// What is registered, with these keys by the settings.
    pub(super) fn registered<'a>(&'a self, keys: &'a SourceKeys) -> Registered<'a> {
        Registered { keys, joined: &self.joined, identities: &self.identities, operators: &self.operators }
    }

    fn of(core: &Core) -> Published {
        Published {
            store: core.store().clone(),
            now_ms: core.now_ms(),
            epoch: core.epoch(),
            joined: core.joined().clone(),
            identities: core.identities().clone(),
            operators: core.operators().clone(),
            rules: core.rules(),
            own_sequence: core.own_sequence(),
            ended: core.ended().is_some(),
        }
    }
}

/// Whether those who carry an operation out will be able to read it. In an order that survives lies they ask that of each other before
/// they vote ([`is_reasonable`](crate::core::is_reasonable)); in the others every replica would end at it, and again at each start.
fn readable(operation: &[u8]) -> Result<(), Error> {
    match decode::<Item>(operation) {
        Ok(_) => Ok(()),
        Err(source) => Err(Error::Unreadable { source: Arc::new(source) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_could_read_again_is_not_proposed() {
        let read = encode(&marker(7, APART));
        assert!(readable(&read).is_ok());
        for bytes in [&read[..read.len() - 1], &[&read[..], &[0]].concat(), b"", &[0xff; 40]] {
            let said = readable(bytes).unwrap_err().to_string();
            assert!(said.contains("is not ordered"), "{said}");
        }
    }
}
