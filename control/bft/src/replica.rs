//! One replica: the core with its journal, consensus, network and application, and the handle that others use.
//!
//! [`open`] reads the disk and gives an [`Opened`]; [`Run::run`] is to be run on a runtime, with a network. Which runtime and which network
//! differs: `driver` has tokio and authenticated links over TCP, the tests a whole group in one thread from a seed.
//!
//! What a proposer is told
//! - Ok: 2f+1 members finalized a block with the batch, f+1 honest ones have it on disk, and this replica's sink saw it.
//! - [`Error::Stopped`], [`Error::LeaderLost`]: it may be in the order or come into it.
//! - everything else: it is not in the order and never will be.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use commonware_consensus::simplex;
use commonware_cryptography::ed25519::PublicKey;
use commonware_cryptography::sha256;
use commonware_p2p::{Blocker, Receiver, Recipients, Sender};
use commonware_runtime::{Clock, IoBuf, Metrics, Spawner, Storage};
use commonware_utils::channel::{mpsc, oneshot, watch};
use rand_chacha::rand_core::CryptoRng;
use weir_base::world::{Disk, DiskLock, LockOutcome};
use weir_order::{Completion, Engine, Error, LogCounters, Position, Recovery, Sink, SnapshotInfo, Status};

use crate::consensus::{Identity, KeyRing, Mailbox, Members, Question, config};
use crate::core::{Beginning, Core, CoreCounters, Output, To};
use crate::journal::{self, Journal, OpenedJournal, Write, Writer, Written, locked};
use crate::rules::Overlay;
use crate::settings::Settings;
use crate::wire::{MESSAGE_OVERHEAD_BYTES, Message};

const LOCK: &str = "lock";
/// Bytes that may wait to be written; beyond, nothing more is taken from the network.
const UNWRITTEN_BYTES_MAX: usize = 64 << 20;
/// Blocks of the largest size in an answer to a replica that is behind.
const RANGE_STRETCH: usize = 4;

/// What a replica says of itself, beside [`Status`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// This replica.
    pub id: u32,
    /// The group's epoch.
    pub epoch: u64,
    /// The highest view of consensus that this replica knows of.
    pub view: u64,
    /// The last committed block.
    pub height: u64,
    /// The last batch that the sink saw.
    pub applied: Position,
    /// Why it has stopped, when it could not go on.
    pub failure: Option<String>,
}

/// Counts of a replica since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplicaCounters {
    /// Its core's counts.
    pub core: CoreCounters,
    /// Messages that are none.
    pub malformed: u64,
    /// Messages that were too large to send.
    pub unsendable: u64,
    /// Pairs of votes of one member that exclude each other.
    pub faults: u64,
}

#[derive(Default)]
struct Seen {
    status: ReplicaStatus,
    counters: ReplicaCounters,
}

struct Inner {
    id: u32,
    epoch: u64,
    settings: Settings,
    journal: Arc<Journal>,
    seen: Mutex<Seen>,
    open: AtomicU64,
    view: Arc<AtomicU64>,
    stop: watch::Sender<bool>,
}

enum Command {
    Propose { batch: Bytes, done: Completion },
    Saved,
}

/// The handle of a replica. Clones are the same replica; it stops when told, or when the last is dropped.
#[derive(Clone)]
pub struct Replica {
    inner: Arc<Inner>,
    commands: mpsc::UnboundedSender<Command>,
}

/// A replica that is open, but does nothing until its parts are run.
pub struct Opened {
    /// The handle.
    pub replica: Replica,
    /// To be run on a runtime.
    pub run: Run,
    /// Writes the journal: on a thread of its own, or as a task.
    pub writer: JournalWriter,
    /// Keeps the directory locked: whoever runs the writer holds it until the journal is closed.
    pub lock: DiskLock,
    /// What opening the journal found.
    pub recovery: Recovery,
}

/// Writes what the replica asks it to.
pub struct JournalWriter {
    writer: Writer,
    writes: mpsc::UnboundedReceiver<Write>,
    written: mpsc::UnboundedSender<Written>,
}

/// The replica's work.
pub struct Run {
    inner: Arc<Inner>,
    keys: KeyRing,
    core: Core,
    sink: Box<dyn Sink>,
    commands: mpsc::UnboundedReceiver<Command>,
    writes: mpsc::UnboundedSender<Write>,
    written: mpsc::UnboundedReceiver<Written>,
    stopped: watch::Receiver<bool>,
    answers: Answers,
    unwritten: usize,
    now_ms: u64,
}

/// A channel of the network between the members: one for each number in [`CHANNELS`].
pub type Channel<S, R> = (S, R);

/// The channels: votes, certificates, what consensus fetches, and the engine's own.
pub const CHANNELS: [u64; 4] = [0, 1, 2, 3];

/// The largest message on any channel.
pub fn message_bytes_max(settings: &Settings) -> usize {
    let block = settings.block_bytes_max.max(settings.log.batch_bytes_max as usize);
    RANGE_STRETCH * block + (1 << 20) + MESSAGE_OVERHEAD_BYTES
}

enum Answer {
    Propose(oneshot::Sender<sha256::Digest>),
    Verdict(oneshot::Sender<bool>),
    Done(Completion),
}

/// Who waits for what. Whoever waits when the replica ends is told so by the end of its channel or completion.
#[derive(Default)]
struct Answers {
    next: u64,
    waiting: BTreeMap<u64, Answer>,
}

impl Answers {
    fn add(&mut self, answer: Answer) -> u64 {
        self.next += 1;
        self.waiting.insert(self.next, answer);
        self.next
    }

    fn is_gone(&self, ticket: u64) -> bool {
        match self.waiting.get(&ticket) {
            Some(Answer::Propose(answer)) => answer.is_closed(),
            Some(Answer::Verdict(answer)) => answer.is_closed(),
            Some(Answer::Done(_)) => false,
            None => true,
        }
    }
}

fn lock(disk: &dyn Disk) -> Result<DiskLock, Error> {
    let dir = disk.describe();
    match disk.lock(LOCK, &format!("pid {}", std::process::id())) {
        Ok(LockOutcome::Held(lock)) => Ok(lock),
        Ok(LockOutcome::Busy { holder }) => Err(Error::Locked { dir, holder }),
        Err(error) => {
            Err(Error::Io { action: "locking", file: LOCK.to_owned(), dir, source: Arc::new(error) })
        }
    }
}

/// The first epoch of a group.
pub const FIRST_EPOCH: u64 = 1;

/// Opens the replica whose journal and states are in `disk`, or makes a new one. `sink` is given the newest state, every
/// batch behind it that has a certificate here, and then every other as soon as it is committed. `now_ns` is the time since 1970, and `seed`
/// any random bytes.
pub fn open(
    disk: Arc<dyn Disk>,
    settings: Settings,
    identity: &Identity,
    members: &Members,
    mut sink: Box<dyn Sink>,
    now_ns: u64,
    seed: [u8; 32],
) -> Result<Opened, crate::Error> {
    settings.check()?;
    let keys = KeyRing::new(&settings.group, FIRST_EPOCH, identity, members, seed)?;
    let lock = lock(&*disk)?;
    let OpenedJournal { journal, writer, base, recent, loose, last_number, recovery } = journal::open(
        &disk,
        settings.log,
        settings.group.as_bytes(),
        FIRST_EPOCH,
        keys.genesis(),
        settings.admission.clone(),
        &mut *sink,
    )?;
    let (last_life, _) = base.tables.last_of(&Overlay::default(), identity.id);
    let beginning = Beginning {
        me: identity.id,
        members: keys.ids(),
        keys: Box::new(keys.clone()),
        epoch: FIRST_EPOCH,
        life: now_ns.max(last_life + 1),
        tip: base.tip,
        applied: base.applied,
        tables: base.tables,
        recent,
        last_number,
        batches: loose.batches,
        blocks: loose.blocks,
    };
    let core = Core::new(settings.clone(), beginning);
    let (commands, commanded) = mpsc::unbounded_channel();
    let (writes, to_write) = mpsc::unbounded_channel();
    let (written, was_written) = mpsc::unbounded_channel();
    let (stop, stopped) = watch::channel(false);
    let inner = Arc::new(Inner {
        id: identity.id,
        epoch: FIRST_EPOCH,
        settings,
        journal,
        seen: Mutex::default(),
        open: AtomicU64::new(0),
        view: Arc::default(),
        stop,
    });
    let run = Run {
        inner: Arc::clone(&inner),
        keys,
        core,
        sink,
        commands: commanded,
        writes,
        written: was_written,
        stopped,
        answers: Answers::default(),
        unwritten: 0,
        now_ms: 0,
    };
    run.publish();
    let writer = JournalWriter { writer, writes: to_write, written };
    Ok(Opened { replica: Replica { inner, commands }, run, writer, lock, recovery })
}

impl JournalWriter {
    /// Writes until the replica is gone. Blocks; `spare` is called when a spare segment should be made.
    pub fn run(mut self, mut spare: impl FnMut()) {
        let mut waiting = Vec::new();
        while let Some(first) = self.writes.blocking_recv() {
            waiting.push(first);
            loop {
                self.take(&mut waiting);
                if waiting.is_empty() {
                    break;
                }
                self.write(&mut waiting);
                if self.writer.wants_spare() {
                    spare();
                }
            }
            self.writer.idle();
        }
        if let Err(error) = self.writer.close() {
            tracing::warn!(%error, "the replica's journal could not be closed cleanly");
        }
    }

    /// As [`JournalWriter::run`], as a task: what is written takes `time` to become durable.
    pub async fn run_as_task<E: Clock>(mut self, context: E, time: impl Fn() -> Duration + Send) {
        let mut waiting = Vec::new();
        while let Some(first) = self.writes.recv().await {
            waiting.push(first);
            context.sleep(time()).await;
            self.take(&mut waiting);
            self.write(&mut waiting);
        }
    }

    fn take(&mut self, waiting: &mut Vec<Write>) {
        while let Ok(next) = self.writes.try_recv() {
            waiting.push(next);
        }
    }

    fn write(&mut self, waiting: &mut Vec<Write>) {
        // The replica may be gone; what it asked for is written all the same.
        let _unheard = self.written.send(self.writer.drain(waiting));
    }
}

impl Run {
    /// Runs until the replica is stopped or cannot go on. `partition` names consensus's own journal in the storage of `context`.
    pub async fn run<E, S, R, B>(
        mut self,
        context: E,
        channels: [Channel<S, R>; 4],
        blocker: B,
        partition: &str,
    ) where
        E: Clock + CryptoRng + Spawner + Storage + Metrics,
        S: Sender<PublicKey = PublicKey>,
        R: Receiver<PublicKey = PublicKey>,
        B: Blocker<PublicKey = PublicKey>,
    {
        let inner = Arc::clone(&self.inner);
        if let Err(failure) = self.work(context, channels, blocker, partition).await {
            tracing::error!(replica = inner.id, failure, "the replica stops");
            locked(&inner.seen).status.failure = Some(failure);
        } else {
            locked(&inner.seen).status.failure = Some("it was stopped".to_owned());
        }
    }

    async fn work<E, S, R, B>(
        &mut self,
        context: E,
        channels: [Channel<S, R>; 4],
        blocker: B,
        partition: &str,
    ) -> Result<(), String>
    where
        E: Clock + CryptoRng + Spawner + Storage + Metrics,
        S: Sender<PublicKey = PublicKey>,
        R: Receiver<PublicKey = PublicKey>,
        B: Blocker<PublicKey = PublicKey>,
    {
        let [votes, certificates, fetches, (mut sender, mut receiver)] = channels;
        let (questions, mut asked) = mpsc::unbounded_channel();
        let mailbox = Mailbox { questions, view: Arc::clone(&self.inner.view) };
        let config = config(&self.inner.settings, &self.keys, mailbox, blocker, partition);
        let engine = simplex::Engine::new(context.child("consensus"), config);
        let mut engine = engine.start(votes, certificates, fetches);
        let (mut out, mut stopped) = (Vec::new(), self.stopped.clone());
        if *stopped.borrow_and_update() {
            return Ok(());
        }
        loop {
            self.clock(&context);
            if self.core.wake_at_ms(self.now_ms) <= self.now_ms {
                self.tick(&mut out);
            }
            self.perform(&mut out, &mut sender)?;
            let wait = Duration::from_millis(self.core.wake_at_ms(self.now_ms).saturating_sub(self.now_ms));
            tokio::select! {
                biased;
                // Also when no handle is left: nobody is there to serve.
                changed = stopped.changed() => if changed.is_err() || *stopped.borrow() { return Ok(()) },
                ended = &mut engine => return Err(format!("consensus ended: {ended:?}")),
                question = asked.recv() => match question {
                    Some(question) => self.question(question, &mut out),
                    None => return Err("consensus ended".to_owned()),
                },
                written = self.written.recv() => match written {
                    Some(written) => self.was_written(written, &mut out)?,
                    None => return Err("the journal ended".to_owned()),
                },
                command = self.commands.recv() => match command {
                    Some(command) => self.command(command, &mut out),
                    None => return Ok(()),
                },
                message = receiver.recv(), if self.unwritten < UNWRITTEN_BYTES_MAX => match message {
                    Ok((from, bytes)) => self.heard(&from, bytes.into(), &mut out),
                    Err(error) => return Err(format!("the network ended: {error}")),
                },
                () = context.sleep(wait) => self.tick_at(&context, &mut out),
            }
        }
    }

    fn clock<E: Clock>(&mut self, context: &E) {
        let now = context.current().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Never back, whatever is done to the machine's clock.
        self.now_ms = self.now_ms.max(now.as_millis() as u64);
    }

    fn tick_at<E: Clock>(&mut self, context: &E, out: &mut Vec<Output>) {
        self.clock(context);
        self.tick(out);
    }

    fn tick(&mut self, out: &mut Vec<Output>) {
        let answers = &mut self.answers;
        self.core.forget(|ticket| answers.is_gone(ticket));
        answers.waiting.retain(|_, answer| match answer {
            Answer::Propose(answer) => !answer.is_closed(),
            Answer::Verdict(answer) => !answer.is_closed(),
            Answer::Done(_) => true,
        });
        self.core.tick(self.now_ms, out);
    }

    fn question(&mut self, question: Question, out: &mut Vec<Output>) {
        match question {
            Question::Propose { parent, answer } => {
                let ticket = self.answers.add(Answer::Propose(answer));
                self.core.lead(ticket, parent, self.now_ms, out);
            }
            Question::Verify { leader, parent, payload, answer } => {
                let leader = self.keys.id_of(&leader).unwrap_or(self.inner.id);
                let ticket = self.answers.add(Answer::Verdict(answer));
                self.core.verify(ticket, leader, parent, payload, self.now_ms, out);
            }
            Question::Certify { payload, answer } => {
                let ticket = self.answers.add(Answer::Verdict(answer));
                self.core.certify(ticket, payload, self.now_ms, out);
            }
            Question::Relay { payload, to } => match to {
                Recipients::All => self.core.relay(&payload, To::All, out),
                Recipients::One(key) => self.relay(&payload, &[key], out),
                Recipients::Some(keys) => self.relay(&payload, &keys, out),
            },
            Question::Final { view, payload, certificate } => {
                self.core.finalized(view, payload, certificate, self.now_ms, out);
            }
            Question::Fault => locked(&self.inner.seen).counters.faults += 1,
        }
    }

    fn relay(&mut self, payload: &[u8; 32], keys: &[PublicKey], out: &mut Vec<Output>) {
        for id in keys.iter().filter_map(|key| self.keys.id_of(key)) {
            self.core.relay(payload, To::One(id), out);
        }
    }

    fn command(&mut self, command: Command, out: &mut Vec<Output>) {
        match command {
            Command::Propose { batch, done } => {
                let ticket = self.answers.add(Answer::Done(done));
                self.core.propose(ticket, batch, self.now_ms, out);
            }
            Command::Saved => self.forget(),
        }
    }

    /// Lets the journal forget what neither blocks nor waiting batches need.
    fn forget(&mut self) {
        if let Some(blocks) = self.inner.journal.forget() {
            let below = blocks.min(self.core.lowest_number());
            self.inner.journal.forgotten(below);
            // Without a writer the replica ends anyway.
            let _unheard = self.writes.send(Write::Forget { below });
        }
    }

    fn was_written(&mut self, written: Written, out: &mut Vec<Output>) -> Result<(), String> {
        self.unwritten = self.unwritten.saturating_sub(written.bytes);
        self.inner.journal.count(written.counters);
        if let Some(error) = written.failure {
            return Err(error.to_string());
        }
        self.inner.journal.placed(&written.places);
        self.core.stored(written.durable, self.now_ms, out);
        Ok(())
    }

    fn heard(&mut self, from: &PublicKey, bytes: Bytes, out: &mut Vec<Output>) {
        let Some(from) = self.keys.id_of(from) else { return };
        match Message::decode(bytes) {
            Ok(message) => self.core.heard(from, message, self.now_ms, out),
            Err(error) => {
                locked(&self.inner.seen).counters.malformed += 1;
                tracing::debug!(replica = self.inner.id, from, %error, "a message is none");
            }
        }
    }

    fn perform<S: Sender<PublicKey = PublicKey>>(
        &mut self,
        out: &mut Vec<Output>,
        sender: &mut S,
    ) -> Result<(), String> {
        while !out.is_empty() {
            for output in std::mem::take(out) {
                self.perform_one(output, out, sender)?;
            }
        }
        self.publish();
        Ok(())
    }

    fn perform_one<S: Sender<PublicKey = PublicKey>>(
        &mut self,
        output: Output,
        out: &mut Vec<Output>,
        sender: &mut S,
    ) -> Result<(), String> {
        let journal = Arc::clone(&self.inner.journal);
        match output {
            Output::Send { to, message } => self.send(sender, to, &message),
            Output::Store { number, tag, body, sync } => {
                let write = Write::Append { number, tag, body, sync };
                self.unwritten += write.bytes();
                self.writes.send(write).map_err(|_| "the journal ended".to_owned())?;
            }
            Output::Proposed { ticket, digest } => {
                if let Some(Answer::Propose(answer)) = self.answers.waiting.remove(&ticket) {
                    // Consensus may have gone on without.
                    let _late = answer.send(sha256::Digest(digest));
                }
            }
            Output::Verdict { ticket, right } => {
                if let Some(Answer::Verdict(answer)) = self.answers.waiting.remove(&ticket) {
                    let _late = answer.send(right);
                }
            }
            Output::Committed { entry } => {
                self.sink.committed(&entry);
                locked(&self.inner.seen).status.applied = entry.position;
            }
            Output::Chained(chained) => journal.chained(chained),
            Output::Done { ticket, result } => {
                if let Some(Answer::Done(done)) = self.answers.waiting.remove(&ticket) {
                    self.inner.open.fetch_sub(1, Ordering::Relaxed);
                    done.finish(result);
                }
            }
            Output::ServeRange { to, above } => {
                let range = journal.range(above).map_err(|error| error.to_string())?;
                let message = range.unwrap_or_else(|| journal.offers());
                let empty = matches!(&message, Message::Offers(offers) if offers.is_empty());
                if !empty {
                    self.send(sender, To::One(to), &message);
                }
            }
            Output::ServeOffers { to } => self.send(sender, To::One(to), &journal.offers()),
            Output::ServeChunk { to, index, offset } => {
                if let Some(message) = journal.chunk(index, offset) {
                    self.send(sender, To::One(to), &message);
                }
            }
            Output::WriteChunk { offset, bytes } => {
                journal.write_chunk(offset, &bytes).map_err(|error| error.to_string())?;
            }
            Output::Adopt { offer } => match journal.adopt(&offer) {
                Ok((base, mut state)) => {
                    let at = Position { term: self.inner.epoch, index: base.applied };
                    self.sink.install(at, &mut state).map_err(|error| error.to_string())?;
                    locked(&self.inner.seen).status.applied = at;
                    tracing::info!(replica = self.inner.id, index = at.index, "took over a state");
                    self.core.adopted(base.tip, base.tables, base.applied, self.now_ms, out);
                    self.forget();
                }
                Err(error) => {
                    tracing::warn!(replica = self.inner.id, %error, "a state that came is not taken over");
                    self.core.adopt_failed(self.now_ms, out);
                }
            },
            Output::Blame { who, what } => {
                tracing::warn!(replica = self.inner.id, who, what, "a member sent what no honest one sends");
            }
        }
        Ok(())
    }

    fn send<S: Sender<PublicKey = PublicKey>>(&mut self, sender: &mut S, to: To, message: &Message) {
        let recipients = match to {
            To::All => Recipients::All,
            To::One(id) => match self.keys.key_of(id) {
                Some(key) => Recipients::One(key.clone()),
                None => return,
            },
        };
        let bytes = message.encode();
        if bytes.len() > message_bytes_max(&self.inner.settings) {
            locked(&self.inner.seen).counters.unsendable += 1;
            return;
        }
        // What does not get through is asked for, or said again.
        let _reached = sender.send(recipients, IoBuf::from(bytes), false);
    }

    fn publish(&self) {
        let mut seen = locked(&self.inner.seen);
        seen.status.id = self.inner.id;
        seen.status.epoch = self.inner.epoch;
        seen.status.view = self.inner.view.load(Ordering::Relaxed);
        seen.status.height = self.core.tip().height;
        seen.status.applied = self.core.applied();
        seen.counters.core = self.core.counters();
    }
}

impl Replica {
    /// Stops the replica. Its disk is whole at any time.
    pub fn stop(&self) {
        self.inner.stop.send_replace(true);
    }

    /// Everything that the replica knows of itself.
    pub fn replica_status(&self) -> ReplicaStatus {
        locked(&self.inner.seen).status.clone()
    }

    /// What was counted.
    pub fn counters(&self) -> ReplicaCounters {
        locked(&self.inner.seen).counters
    }

    /// Counts of the journal.
    pub fn log_counters(&self) -> LogCounters {
        self.inner.journal.counters()
    }
}

impl Engine for Replica {
    fn propose(&self, batch: Bytes, done: Completion) -> Result<(), Error> {
        let refuse = |done: Completion, error| {
            done.disarm();
            Err(error)
        };
        let (bytes, limit_bytes) = (batch.len() as u64, self.inner.settings.proposal_bytes_max());
        if bytes > limit_bytes {
            return refuse(done, Error::TooLarge { what: "the batch", bytes, limit_bytes });
        }
        if locked(&self.inner.seen).status.failure.is_some() {
            return refuse(done, Error::Stopped);
        }
        let limit = self.inner.settings.proposals_max as u64;
        let waiting = self.inner.open.fetch_add(1, Ordering::Relaxed);
        if waiting >= limit {
            self.inner.open.fetch_sub(1, Ordering::Relaxed);
            return refuse(done, Error::Overloaded { what: "batches", waiting, limit });
        }
        match self.commands.send(Command::Propose { batch, done }) {
            Ok(()) => Ok(()),
            Err(refused) => match refused.0 {
                Command::Propose { done, .. } => refuse(done, Error::Stopped),
                Command::Saved => Err(Error::Stopped),
            },
        }
    }

    /// Every replica takes proposals, so each says that it leads.
    fn status(&self) -> Status {
        let seen = locked(&self.inner.seen);
        Status {
            committed: seen.status.applied,
            leader: Some(u64::from(self.inner.id)),
            healthy: seen.status.failure.is_none(),
        }
    }

    /// [`Error::Overloaded`] when records that the state covers are still on their way to the disk; nothing was read then.
    fn save_snapshot(&self, at: Position, state: &mut dyn Read) -> Result<SnapshotInfo, Error> {
        if locked(&self.inner.seen).status.failure.is_some() {
            return Err(Error::Stopped);
        }
        let committed = self.status().committed.index;
        if at.index > committed {
            let right = format!("at most {committed}, which is committed");
            return Err(Error::Index { index: at.index, right });
        }
        let info = self.inner.journal.save(at, state)?;
        // A replica that ends has nothing to forget.
        let _unheard = self.commands.send(Command::Saved);
        Ok(info)
    }
}
