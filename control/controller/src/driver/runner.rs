//! The core thread: feeds the core, and does what it says.

use super::audit::Observer;
use super::carrying::{Carrying, Way};
use super::command::Command;
use super::counters::Gauges;
use super::shared::Shared;
use super::snapshots::Job;
use super::{ControllerSettings, Members, SnapshotPolicy, TICK};
use crate::Error;
use crate::core::scheduler::Reached;
use crate::core::{Core, FeedSettings, Input, Item, Outcome, Output, decode_batch};
use crate::quorum;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, TrySendError};
use tokio::sync::{mpsc, oneshot};
use weir_model::event::EventBody;
use weir_model::session::ToActuator;
use weir_model::signed::ProvenUpdate;
use weir_model::{Label, Version};
use weir_order::{Entry, Position};

/// Most that may wait for a version to be in force everywhere.
const WAITERS_MAX: usize = 65_536;
/// Most that waits behind an entry before which the controller waits; then the order waits, too.
const BEHIND_MAX: usize = 65_536;
/// Most bytes of it.
const BEHIND_BYTES_MAX: usize = 64 << 20;
/// Ticks between two looks at waiters and gauges.
const TICKS_PER_LOOK: u64 = 10;

pub(super) struct Runner {
    core: Core,
    commands: mpsc::Receiver<Command>,
    shared: Arc<Shared>,
    snapshots: SyncSender<Job>,
    members: Option<Members>,
    observer: Observer,
    carrying: Carrying,
    policy: SnapshotPolicy,
    feed: FeedSettings,
    digest_every: u64,
    last: Position,
    entries_since: u64,
    bytes_since: u64,
    saving: bool,
    waiters: BTreeMap<Version, Vec<oneshot::Sender<Result<Reached, Error>>>>,
    waiters_count: usize,
    ticks: u64,
    /// When the core is told the time next, ns.
    tick_at_ns: u64,
    /// States are taken after the same batches as on the other replicas.
    agreed_states: bool,
    /// The last batch whose state was taken.
    taken: u64,
    /// The entry before which this controller waits, and what came behind it.
    held: Option<Entry>,
    behind: Behind,
    /// Numbers of own events from here on are of this life of the process; 0: that one was seen.
    own_from: u64,
}

/// Commands that wait until the core is past an entry.
#[derive(Default)]
struct Behind {
    commands: VecDeque<Command>,
    bytes: usize,
}

impl Behind {
    fn is_full(&self) -> bool {
        self.commands.len() >= BEHIND_MAX || self.bytes >= BEHIND_BYTES_MAX
    }

    fn push(&mut self, command: Command) {
        self.bytes += bytes_of(&command);
        self.commands.push_back(command);
    }

    fn pop(&mut self) -> Option<Command> {
        let command = self.commands.pop_front()?;
        self.bytes -= bytes_of(&command);
        Some(command)
    }

    /// A state was taken over: what was ordered before is in it.
    fn forget_entries(&mut self) {
        self.commands.retain(|command| !matches!(command, Command::Committed(_)));
        self.bytes = self.commands.iter().map(bytes_of).sum();
    }
}

fn bytes_of(command: &Command) -> usize {
    match command {
        Command::Committed(entry) => entry.batch.len(),
        Command::Install(_, state) => state.len(),
        _ => 0,
    }
}

/// Whether a command is for the state behind what is waited for. A state that is taken over ends the waiting.
fn waits_too(command: &Command) -> bool {
    !matches!(command, Command::Install(..) | Command::Tick | Command::Wake | Command::SnapshotDone { .. })
}

/// However the core thread ends, nobody may wait for an answer that never comes.
struct EndGuard(Arc<Shared>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.core_ended();
    }
}

impl Runner {
    pub fn new(
        core: Core,
        commands: mpsc::Receiver<Command>,
        shared: Arc<Shared>,
        (snapshots, members): (SyncSender<Job>, Option<Members>),
        (observer, carrying): (Observer, Carrying),
        settings: &ControllerSettings,
        (last, own_from): (Position, u64),
    ) -> Runner {
        Runner {
            digest_every: shared.engine().map_or(0, |engine| engine.digest_every()),
            agreed_states: shared.engine().is_some_and(|engine| engine.is_everywhere()),
            feed: settings.feed,
            core,
            commands,
            shared,
            snapshots,
            members,
            observer,
            carrying,
            policy: settings.snapshots,
            last,
            entries_since: 0,
            bytes_since: 0,
            saving: false,
            waiters: BTreeMap::new(),
            waiters_count: 0,
            ticks: 0,
            tick_at_ns: 0,
            taken: 0,
            held: None,
            behind: Behind::default(),
            own_from,
        }
    }

    pub fn run(mut self) {
        let _guard = EndGuard(self.shared.clone());
        while let Some(command) = self.next() {
            match command {
                command if self.held.is_some() && waits_too(&command) => self.behind.push(command),
                Command::Committed(entry) => {
                    if let Err(error) = self.committed(&entry) {
                        tracing::error!(index = entry.position.index, %error, "cannot apply an ordered entry");
                        break;
                    }
                }
                Command::Install(at, state) => {
                    if let Err(error) = self.install(at, &state) {
                        tracing::error!(index = at.index, %error, "cannot install the received snapshot");
                        break;
                    }
                }
                Command::Lead { leads, reply } => self.lead(leads, reply),
                Command::Input(input) => self.step(input),
                Command::Inspect(look) => look(&self.core),
                Command::Wait { version, reply } => self.wait(version, reply),
                Command::SnapshotDone { saved } => self.snapshot_done(saved),
                Command::Waiting => self.shared.take_resting(),
                #[cfg(debug_assertions)]
                Command::Rot => self.core.rot(),
                // Only to wake this thread.
                Command::Tick | Command::Wake => {}
            }
            // By the clock and not by a command: a queue that is always full has no room for one.
            if self.shared.clock.now_ns() >= self.tick_at_ns {
                self.tick();
            }
            if self.shared.is_stopped() {
                // Whoever waits for an entry that ended the process ends in good order, too.
                self.carrying.asides().end();
                break;
            }
        }
    }

    /// The next command: of those that waited when nothing is waited for any more.
    fn next(&mut self) -> Option<Command> {
        if self.held.is_none()
            && let Some(command) = self.behind.pop()
        {
            return Some(command);
        }
        if self.held.is_some() && self.behind.is_full() {
            std::thread::sleep(TICK);
            return Some(Command::Tick);
        }
        self.commands.blocking_recv()
    }

    /// Looks whether the entry before which this controller waits is set aside by now.
    fn look_at_held(&mut self) {
        let Some(entry) = &self.held else { return };
        match self.carrying.look(entry, self.core.operators()) {
            Ok(case) => {
                self.shared.aside.show(None);
                super::left_out(&mut self.observer, &mut self.carrying, &case);
                if let Some(entry) = self.held.take() {
                    self.passed(&entry);
                }
            }
            Err(error) => self.show_held(&error),
        }
    }

    fn show_held(&self, error: &Error) {
        let text = error.to_string();
        if self.shared.aside.held().is_none_or(|before| *before != text) {
            tracing::error!(error = text, "this controller waits before an entry of the order");
            self.shared.aside.show(Some(text));
        }
    }

    fn committed(&mut self, entry: &Entry) -> Result<(), Error> {
        // An empty one only brings the order on.
        let way = match entry.batch.is_empty() {
            true => None,
            false => Some(self.carrying.begin(entry, self.core.operators())),
        };
        match way {
            None => {}
            Some(Way::SetAside(case)) => super::left_out(&mut self.observer, &mut self.carrying, &case),
            Some(Way::SetAsideBefore(digest)) => self.observer.set_aside(entry.position.index, digest),
            Some(Way::Wait) => {
                self.held = Some(entry.clone());
                self.look_at_held();
                return Ok(());
            }
            Some(Way::CarryOut) => {
                let mut out = Vec::new();
                let items = decode_batch(&entry.batch)?;
                let begun_ns = self.shared.clock.now_ns();
                self.core.step(Input::Ordered(items), &mut out);
                self.carrying.done();
                self.shared.steps.decide.took(self.shared.clock.now_ns().saturating_sub(begun_ns));
                self.observer.ordered(entry.position.index, &out, self.core.group_keys());
                self.shared.publish(&self.core);
                self.shared.line.set(self.core.scheduler().line_is_long());
                self.shared.set_told(self.core.outbox().changes());
                self.obey_all(out);
                if self.own_from > 0 && self.core.own_sequence() >= self.own_from {
                    // It was proposed in this life, so it is behind all of lives before.
                    self.own_from = 0;
                    self.carrying.asides().settle();
                }
            }
        }
        self.passed(entry);
        Ok(())
    }

    /// An entry is carried out, or set aside.
    fn passed(&mut self, entry: &Entry) {
        self.last = entry.position;
        self.entries_since += 1;
        self.bytes_since += entry.batch.len() as u64;
        if self.digest_every > 0 && entry.position.index.is_multiple_of(self.digest_every) {
            self.report_digest();
        }
        self.take_snapshot();
    }

    fn install(&mut self, at: Position, state: &[u8]) -> Result<(), Error> {
        self.core.install(state)?;
        self.carrying.asides().installed(at.index);
        if self.held.take().is_some() {
            self.behind.forget_entries();
            self.shared.aside.show(None);
        }
        self.last = at;
        self.entries_since = 0;
        self.bytes_since = 0;
        self.taken = at.index;
        tracing::info!(index = at.index, version = %self.core.store().version(), "installed a snapshot");
        self.observer.took_over(at.index, self.core.store().version(), self.core.group_keys());
        if self.core.signs_as_before() {
            self.observer.signs_as_before();
        }
        if self.digest_every > 0 {
            self.report_digest();
        }
        self.shared.replaced(&self.core, self.feed);
        self.keys_changed();
        if let Some(members) = &self.members {
            for header in self.core.headers() {
                members.must(quorum::Input::Sign(Arc::downgrade(&header)));
            }
        }
        Ok(())
    }

    fn keys_changed(&self) {
        let keys = self.core.group_keys();
        self.shared.set_group_keys(keys.clone());
        if let Some(members) = &self.members {
            members.must(quorum::Input::Keys(keys.clone()));
        }
    }

    fn lead(&mut self, leads: bool, reply: oneshot::Sender<()>) {
        self.shared.set_leads(leads);
        self.step(Input::Lead(leads));
        // Who asked may have given up.
        let _ = reply.send(());
    }

    fn report_digest(&self) {
        if let Some(engine) = self.shared.engine() {
            engine.report_digest(self.last, self.core.replica_digest());
        }
    }

    /// Anything but an entry of the order.
    fn step(&mut self, input: Input) {
        if let Input::Signed { batch, signature } = &input
            && let Some(header) = self.core.unsigned(batch)
        {
            self.shared.steps.signed(batch, self.shared.clock.now_ns());
            self.observer.signed(&header, &self.core.proven(signature.clone()), self.core.group_keys());
        }
        let mut out = Vec::new();
        self.core.step(input, &mut out);
        self.shared.line.set(self.core.scheduler().line_is_long());
        self.observer.seen(&out);
        self.shared.set_told(self.core.outbox().changes());
        self.obey_all(out);
    }

    fn obey_all(&mut self, out: Vec<Output>) {
        for output in out {
            self.obey(output);
        }
    }

    fn obey(&mut self, output: Output) {
        match output {
            Output::Decided { event, outcome } => {
                let (source, sequence) = (event.event.source, event.event.sequence);
                let sender = || source.0.clone();
                let result = match outcome {
                    Outcome::Committed(version) | Outcome::Duplicate(version) => Ok(version),
                    Outcome::Rejected(rejection) => Err(Error::Rejected(rejection)),
                    Outcome::Unauthentic(reason) => {
                        Err(Error::Unauthentic { sender: sender(), sequence, reason })
                    }
                    Outcome::TooOld => Err(Error::NumberTooOld { sender: sender(), sequence }),
                };
                self.shared.answer(&(source, sequence), &result);
            }
            Output::Committed(change) => self.shared.push_change(change),
            Output::Applied { origin, ticket, outcomes } => {
                self.shared.operations.answer(origin, ticket, outcomes);
            }
            Output::Send { target, session, updates } => {
                self.sent(&target, &updates.updates);
                self.shared.sessions.send(&target, session, ToActuator::Updates(updates));
            }
            Output::SendUnsigned { target, session, updates } => {
                self.sent(&target, &updates.updates);
                self.shared.sessions.send(&target, session, ToActuator::Unsigned(updates));
            }
            Output::AskState { target, session } => {
                self.shared.sessions.send(&target, session, ToActuator::SendState);
            }
            Output::Close { target, session, reason } => {
                tracing::warn!(actuator = %target, session, reason, "session closed");
                self.shared.sessions.close(&target, session, reason);
            }
            Output::Repair { target, found } => {
                tracing::info!(actuator = %target, keys = found.len(), "repairing keys");
                let now_ms = self.shared.ordered_now_ms();
                self.shared.offer_item(&Item::Repair { now_ms, actuator: target, found });
            }
            Output::Refused { target, key, version, refusal } => {
                tracing::warn!(actuator = %target, %key, %version, %refusal, "update refused");
                self.shared.offer(EventBody::Refused { actuator: target, key, version, refusal });
            }
            Output::Sign(header) => {
                // Others check what the one that sends has sent already, when there is time.
                if self.shared.leads() {
                    self.shared.steps.unsigned(header.name(), self.shared.clock.now_ns());
                }
                if let Some(members) = &self.members {
                    members.must(quorum::Input::Sign(Arc::downgrade(&header)));
                }
            }
            Output::KeysChanged => self.keys_changed(),
            // For the audit only.
            Output::Repaired { .. } | Output::Prepared { .. } | Output::Forged { .. } => {}
            Output::Acked(acks) => {
                let now_ns = self.shared.clock.now_ns();
                acks.acks.iter().for_each(|ack| self.shared.steps.acked(&acks.actuator, ack.version, now_ns));
            }
            Output::Finished(version) => {
                let waiters = self.waiters.remove(&version).unwrap_or_default();
                self.waiters_count -= waiters.len();
                waiters.into_iter().for_each(|waiter| drop(waiter.send(Ok(Reached::All))));
            }
        }
    }

    fn sent(&self, target: &Label, updates: &[ProvenUpdate]) {
        let last = updates.last().map(|proven| proven.update.version);
        self.shared.steps.sent(target, last, self.shared.clock.now_ns());
    }

    fn tick(&mut self) {
        self.ticks += 1;
        self.tick_at_ns = self.shared.clock.now_ns() + TICK.as_nanos() as u64;
        if self.held.is_some() {
            return self.look_at_held();
        }
        self.carrying.asides().hear();
        self.take_snapshot();
        self.step(Input::Tick { now_ms: self.shared.clock.now_ns() / 1_000_000 });
        if self.ticks.is_multiple_of(TICKS_PER_LOOK) {
            self.look_at_waiters();
            self.shared.sessions.forget_closed_questions();
            self.shared.gauges.store(Arc::new(Gauges::of(&self.core)));
        }
    }

    fn wait(&mut self, version: Version, reply: oneshot::Sender<Result<Reached, Error>>) {
        let reached = self.core.scheduler().reached(version);
        let answer = match reached {
            Reached::Waiting(_) if self.waiters_count < WAITERS_MAX => {
                self.waiters.entry(version).or_default().push(reply);
                self.waiters_count += 1;
                return;
            }
            Reached::Waiting(_) => {
                Err(Error::Overloaded { what: "waiters for versions", limit: WAITERS_MAX })
            }
            other => Ok(other),
        };
        // Who asked may have given up.
        let _ = reply.send(answer);
    }

    /// Forgets waiters that gave up, and answers those whose version is not followed any more.
    fn look_at_waiters(&mut self) {
        let scheduler = self.core.scheduler();
        self.waiters.retain(|version, waiters| {
            waiters.retain(|waiter| !waiter.is_closed());
            let reached = scheduler.reached(*version);
            if !matches!(reached, Reached::Waiting(_)) {
                waiters.drain(..).for_each(|waiter| drop(waiter.send(Ok(reached))));
            }
            !waiters.is_empty()
        });
        self.waiters_count = self.waiters.values().map(Vec::len).sum();
    }

    fn take_snapshot(&mut self) {
        let index = self.last.index;
        let due = match self.agreed_states {
            // Whatever each has had since its start: the same places everywhere.
            true => index > 0 && index.is_multiple_of(self.policy.entries.max(1)),
            false => self.entries_since >= self.policy.entries || self.bytes_since >= self.policy.bytes,
        };
        let wanted = || self.shared.engine().is_some_and(|engine| engine.wants_state(index));
        if self.saving || index <= self.taken || !(due || wanted()) {
            return;
        }
        let snapshot = if self.agreed_states { self.core.agreed_snapshot() } else { self.core.snapshot() };
        match self.snapshots.try_send((self.last, snapshot)) {
            Ok(()) => {
                self.taken = index;
                self.saving = true;
                self.entries_since = 0;
                self.bytes_since = 0;
            }
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
        }
    }

    fn snapshot_done(&mut self, saved: bool) {
        self.saving = false;
        if !saved {
            self.shared.counters.snapshots_failed.fetch_add(1, Ordering::Relaxed);
        }
    }
}
