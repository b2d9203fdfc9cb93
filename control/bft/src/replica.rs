//! One replica: the core with its journal, consensus, network and application, and the handle that others use.
//!
//! [`open`] reads the disk and gives an [`Opened`]; [`Run::run`] is to be run on a runtime, with a network. Which runtime and which network
//! differs: `driver` has tokio and authenticated links over TCP, the tests a whole group in one thread from a seed.
//!
//! What a proposer is told
//! - Ok: 2f+1 members finalized a block with the batch, f+1 honest ones have it on disk, and this replica's sink saw it.
//! - [`Error::Stopped`], [`Error::LeaderLost`]: it may be in the order or come into it.
//! - everything else: it is not in the order and never will be.

mod agreeing;
mod answers;
mod care;
mod cutting;
mod epochs;
mod handle;
pub mod health;
mod open;
mod outputs;
mod status;
pub mod words;
mod writing;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use commonware_cryptography::ed25519::PublicKey;
use commonware_p2p::{Blocker, Receiver, Recipients, Sender};
use commonware_runtime::{Clock, IoBuf, Metrics, Spawner};
use commonware_utils::channel::{mpsc, watch};
use rand_chacha::rand_core::CryptoRng;
use weir_base::world::DiskLock;
use weir_order::log::Room;
use weir_order::{Completion, Error, Recovery, Sink, Waiting};

use crate::consensus::{Identity, KeyRing, Question};
use crate::core::{Core, Output, To};
use crate::evidence::Evidence;
use crate::journal::{Journal, Write, Written};
use crate::lock::locked;
use crate::members::{Change, Link, Member};
use crate::rest::{REST_AFTER_MS, Rest};
use crate::settings::Settings;
use crate::turns::Turns;
use crate::votes::{Votes, VotesWriter};
use crate::wire::{MESSAGE_OVERHEAD_BYTES, Message};
use agreeing::Agreeing;
use answers::{Answer, Answers};
use epochs::{Lanes, Membership};
use health::Health;
use words::Word;

pub use agreeing::ProcessorTime;
pub use epochs::{ChangeDone, Linked, Tracks};
pub use handle::{EvidenceSink, PeerSink, WaitSink};
pub use open::open;
pub use status::{ReplicaCounters, ReplicaStatus};
pub use writing::JournalWriter;

/// Bytes that may wait to be written; beyond, nothing more is taken from the network.
const UNWRITTEN_BYTES_MAX: usize = 64 << 20;
/// Blocks of the largest size in an answer to a replica that is behind.
const RANGE_STRETCH: usize = 4;
/// Empty batches for barriers that may be on their way: what is asked meanwhile waits for the next.
const BARRIERS_IN_FLIGHT_MAX: usize = 4;
/// Pieces of evidence that are kept; faults beyond are counted.
const EVIDENCE_MAX: usize = 64;
/// How long a caller waits, in times of [`crate::Timers::ask`].
const UNANSWERED_ASKS: u32 = 40;
/// Time passes in steps of at most so much, ms.
const TICK_MS: u64 = 20;

#[derive(Default)]
struct Seen {
    status: ReplicaStatus,
    counters: ReplicaCounters,
    waiting: Waiting,
    /// Places of which other members need the state.
    wanted: BTreeSet<u64>,
    /// Votes that exclude each other, and of which member.
    evidence: BTreeMap<(u32, u64, u8), Evidence>,
}

struct Inner {
    id: u32,
    settings: Settings,
    journal: Arc<Journal>,
    seen: Mutex<Seen>,
    open: AtomicU64,
    barriers: AtomicU64,
    peers: OnceLock<Box<PeerSink>>,
    evidence: OnceLock<Box<EvidenceSink>>,
    waits: OnceLock<Box<WaitSink>>,
    view: Arc<AtomicU64>,
    /// Of the journal and of the votes.
    rooms: [Arc<Room>; 2],
    room_refusals: AtomicU64,
    stop: watch::Sender<bool>,
}

enum Command {
    Propose { batch: Bytes, done: Completion },
    Barrier { done: Completion },
    Digest { index: u64, digest: [u8; 32] },
    Tell { to: u32, bytes: Bytes },
    Change { change: Change, done: ChangeDone },
    GiveUpChange,
    Spares { spares: BTreeMap<u32, Member> },
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
    /// Writes the votes, likewise.
    pub votes: VotesWriter,
    /// Keeps the directory locked: whoever runs the writer holds it until the journal is closed.
    pub lock: DiskLock,
    /// What opening the journal found.
    pub recovery: Recovery,
}

/// The replica's work.
pub struct Run {
    inner: Arc<Inner>,
    keys: KeyRing,
    votes: Votes,
    core: Core,
    sink: Box<dyn Sink>,
    commands: mpsc::UnboundedReceiver<Command>,
    writes: mpsc::UnboundedSender<Write>,
    written: mpsc::UnboundedReceiver<Written>,
    stopped: watch::Receiver<bool>,
    answers: Answers,
    unwritten: usize,
    now_ms: u64,
    ticked_ms: u64,
    health: Health,
    identity: Identity,
    membership: Membership,
    /// Reads that wait for the next empty batch.
    barriers: Vec<Completion>,
    barriers_in_flight: usize,
    agreeing: Agreeing,
    /// Of the present epoch.
    turns: Option<Turns>,
    /// How often a member was not heard any more in the epochs before.
    turns_before: u64,
    far_certificates: Arc<AtomicU64>,
    rest: Arc<Rest>,
    /// When something was to be ordered last.
    awake_ms: u64,
    /// Links that lead on and found no room on the disk.
    links_left: VecDeque<Link>,
    links_at_ms: u64,
}

/// A channel of the network between the members: one for each number in [`CHANNELS`].
pub type Channel<S, R> = (S, R);

/// The channels: votes, certificates, what consensus fetches, the engine's own, and words.
pub const CHANNELS: [u64; 5] = [0, 1, 2, 3, 4];

/// The largest message on any channel.
pub fn message_bytes_max(settings: &Settings) -> usize {
    let block = settings.block_bytes_max.max(settings.log.batch_bytes_max as usize);
    RANGE_STRETCH * block + (1 << 20) + MESSAGE_OVERHEAD_BYTES
}

impl Run {
    /// Has agreements timed by the processor that runs this.
    pub fn timed_by(&mut self, processor: ProcessorTime) {
        self.agreeing.processor = Some(processor);
    }

    /// Runs until the replica is stopped or cannot go on. `tracks` is told who may be linked with, whenever that changes.
    pub async fn run<E, S, R, B>(
        mut self,
        context: E,
        channels: [Channel<S, R>; 5],
        blocker: B,
        tracks: Tracks,
    ) where
        E: Clock + CryptoRng + Spawner + Metrics,
        S: Sender<PublicKey = PublicKey>,
        R: Receiver<PublicKey = PublicKey>,
        B: Blocker<PublicKey = PublicKey>,
    {
        let inner = Arc::clone(&self.inner);
        let blocker = cutting::Cutting::new(blocker, Arc::clone(&inner));
        if let Err(failure) = self.work(context, channels, blocker, tracks).await {
            tracing::error!(replica = inner.id, failure, "the replica stops");
            locked(&inner.seen).status.failure = Some(failure);
        } else {
            locked(&inner.seen).status.failure = Some("it was stopped".to_owned());
        }
    }

    async fn work<E, S, R, B>(
        &mut self,
        context: E,
        channels: [Channel<S, R>; 5],
        blocker: B,
        mut tracks: Tracks,
    ) -> Result<(), String>
    where
        E: Clock + CryptoRng + Spawner + Metrics,
        S: Sender<PublicKey = PublicKey>,
        R: Receiver<PublicKey = PublicKey>,
        B: Blocker<PublicKey = PublicKey>,
    {
        let [votes, certificates, fetches, (mut sender, mut receiver), (mut words, mut worded)] = channels;
        let mut lanes = Lanes::new(&context, [votes, certificates, fetches]);
        tracks(&self.membership.linked());
        let mut consensus = self.begin_epoch(&context, &mut lanes, blocker.clone()).await?;
        let (mut out, mut stopped) = (Vec::new(), self.stopped.clone());
        if *stopped.borrow_and_update() {
            return Ok(());
        }
        loop {
            self.clock(&context);
            // Before anything that may always be there, so that no load keeps time from passing.
            if self.core.wake_at_ms(self.now_ms) <= self.now_ms || self.now_ms >= self.ticked_ms + TICK_MS {
                self.tick(&mut out);
                self.look_after(&mut out, &mut words);
                if !self.links_left.is_empty() {
                    self.keep_links()?;
                }
            }
            self.perform(&mut out, &mut sender)?;
            self.rest(context.current());
            if std::mem::take(&mut self.membership.moved) {
                self.know_members();
                tracks(&self.membership.linked());
                self.look_after_change(&mut out);
                self.still_member()?;
                if consensus.epoch != self.core.roster().epoch {
                    consensus.engine.end().await;
                    consensus = self.begin_epoch(&context, &mut lanes, blocker.clone()).await?;
                }
            }
            let wait = Duration::from_millis(self.core.wake_at_ms(self.now_ms).saturating_sub(self.now_ms));
            tokio::select! {
                biased;
                // Also when no handle is left: nobody is there to serve.
                changed = stopped.changed() => if changed.is_err() || *stopped.borrow() { return Ok(()) },
                ended = consensus.engine.ended() => return Err(format!("consensus ended: {ended}")),
                question = consensus.asked.recv() => match question {
                    Some(question) => self.question(question, &mut out),
                    None => return Err("consensus ended".to_owned()),
                },
                written = self.written.recv() => match written {
                    Some(written) => self.was_written(written, &mut out)?,
                    None => return Err("the journal ended".to_owned()),
                },
                word = worded.recv() => match word {
                    Ok((from, bytes)) => self.heard_word(&from, bytes.into()),
                    Err(error) => return Err(format!("the network ended: {error}")),
                },
                command = self.commands.recv() => match command {
                    Some(command) => {
                        self.agreeing.comes();
                        self.command(command, &mut out, &mut words);
                    }
                    None => return Ok(()),
                },
                message = receiver.recv(), if self.unwritten < UNWRITTEN_BYTES_MAX => match message {
                    Ok((from, bytes)) => {
                        self.agreeing.comes();
                        self.heard(&from, bytes.into(), &mut out);
                    }
                    Err(error) => return Err(format!("the network ended: {error}")),
                },
                // The next round ticks.
                () = context.sleep(wait) => {}
            }
        }
    }

    fn clock<E: Clock>(&mut self, context: &E) {
        let now = context.current().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Never back, whatever is done to the machine's clock.
        self.now_ms = self.now_ms.max(now.as_millis() as u64);
    }

    /// Rests when nothing was to be ordered for a while, and wakes at once when something is.
    fn rest(&mut self, now: SystemTime) {
        let idle = self.core.waiting() != Waiting::Nobody && self.answers_wait_for_nothing();
        if !idle || self.awake_ms == 0 {
            self.awake_ms = self.now_ms;
        }
        let rests = self.now_ms.saturating_sub(self.awake_ms) >= REST_AFTER_MS;
        self.core.set_rests(rests);
        self.rest.set(rests, now);
    }

    fn answers_wait_for_nothing(&self) -> bool {
        let waits = |answer: &Answer| !matches!(answer, Answer::Propose(_) | Answer::Verdict(_));
        self.barriers.is_empty() && !self.answers.waiting.values().any(waits)
    }

    fn tick(&mut self, out: &mut Vec<Output>) {
        self.ticked_ms = self.now_ms;
        let answers = &mut self.answers;
        self.core.forget(|ticket| answers.is_gone(ticket));
        answers.waiting.retain(|_, answer| match answer {
            Answer::Propose(answer) => !answer.is_closed(),
            Answer::Verdict(answer) => !answer.is_closed(),
            Answer::Done(..) | Answer::Barrier(..) | Answer::Pumped | Answer::Approval => true,
        });
        self.core.tick(self.now_ms, out);
        let unheard = self.turns_before + self.turns.as_ref().map_or(0, Turns::unheard);
        let far = self.far_certificates.load(Ordering::Relaxed);
        let mut seen = locked(&self.inner.seen);
        (seen.counters.unheard, seen.counters.far_certificates) = (unheard, far);
        drop(seen);
        let not_heard = self.turns.iter().flat_map(Turns::not_heard);
        self.core.put_off(not_heard.filter_map(|key| self.keys.id_of(&key)).collect());
        self.look_after_change(out);
        self.give_up(out);
    }

    /// Tells those who have waited too long that nobody knows: who has no quorum around it must not keep its callers from others.
    fn give_up(&mut self, out: &mut Vec<Output>) {
        let limit_ms = (UNANSWERED_ASKS * self.inner.settings.timers.ask).as_millis() as u64;
        let now_ms = self.now_ms;
        let late: Vec<u64> = self
            .answers
            .waiting
            .iter()
            .filter(|(_, answer)| match answer {
                Answer::Done(_, since_ms) | Answer::Barrier(_, since_ms) => since_ms + limit_ms <= now_ms,
                _ => false,
            })
            .map(|(ticket, _)| *ticket)
            .collect();
        for ticket in late {
            // A read did nothing, a proposal may be ordered yet.
            let error = match self.answers.waiting.get(&ticket) {
                Some(Answer::Barrier(..)) => Error::NoQuorum,
                _ => Error::Unanswered,
            };
            self.done(ticket, Err(error));
        }
        self.pass_barriers(out);
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
            Question::Fault { conflict, votes } => self.fault(conflict, votes),
        }
    }

    fn relay(&mut self, payload: &[u8; 32], keys: &[PublicKey], out: &mut Vec<Output>) {
        for id in keys.iter().filter_map(|key| self.keys.id_of(key)) {
            self.core.relay(payload, To::One(id), out);
        }
    }

    fn command<S: Sender<PublicKey = PublicKey>>(
        &mut self,
        command: Command,
        out: &mut Vec<Output>,
        words: &mut S,
    ) {
        match command {
            Command::Propose { batch, done } => {
                let ticket = self.answers.add(Answer::Done(done, self.now_ms));
                self.core.propose(ticket, batch, self.now_ms, out);
            }
            Command::Barrier { done } => {
                self.barriers.push(done);
                self.pass_barriers(out);
            }
            Command::Digest { index, digest } => {
                let mut todo = Vec::new();
                self.health.own(index, digest, &mut todo);
                self.obey(todo, out, words);
            }
            Command::Tell { to, bytes } => {
                if let Some(key) = self.membership.key_of(to) {
                    // What does not get through is said again by whom it matters to.
                    let to = Recipients::One(key.clone());
                    let _reached = words.send(to, IoBuf::from(Word::Tell(bytes).encode()), false);
                }
            }
            Command::Change { change, done } => self.change(change, done),
            Command::GiveUpChange => self.give_up_change(),
            Command::Spares { spares } => self.set_spares(spares),
            Command::Saved => self.forget(),
        }
    }

    /// Lets the journal forget what neither blocks nor waiting batches need.
    fn forget(&mut self) {
        if !self.links_left.is_empty() {
            return;
        }
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
        let Some(from) = self.membership.id_of(from) else { return };
        match Message::decode(bytes) {
            Ok(message) => self.core.heard(from, message, self.now_ms, out),
            Err(error) => {
                locked(&self.inner.seen).counters.malformed += 1;
                tracing::debug!(replica = self.inner.id, from, %error, "a message is none");
            }
        }
    }

    fn publish(&mut self) {
        let waiting = self.core.waiting();
        let agreed = self.agreeing.goes(self.core.is_ordering());
        let mut seen = locked(&self.inner.seen);
        if let Some(cpu_ns) = agreed {
            seen.counters.agreements += 1;
            seen.counters.agreement_cpu_ns += cpu_ns;
        }
        let begins = waiting == Waiting::Own && seen.waiting != Waiting::Own;
        seen.waiting = waiting;
        seen.status.id = self.inner.id;
        seen.status.epoch = self.core.roster().epoch;
        seen.status.view = self.inner.view.load(Ordering::Relaxed);
        seen.status.height = self.core.tip().height;
        seen.status.applied = self.core.applied();
        seen.counters.core = self.core.counters();
        drop(seen);
        if let Some(hears) = self.inner.waits.get().filter(|_| begins) {
            hears();
        }
    }
}
