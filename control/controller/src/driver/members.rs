//! The thread of a member's part in the group's signatures: feeds [`crate::quorum`], and does what it says.
//!
//! It is fed by the core thread, which may wait for it; it never waits for the core thread itself: what the core's queue
//! has no room for waits here, and is at most as much as the core asked for.

use super::command::Command;
use super::shared::Shared;
use crate::Error;
use crate::audit::Record;
use crate::core::{Input as CoreInput, Item};
use crate::quorum::{Input, Output, PeerMessage, Quorum, QuorumStatus};
use arc_swap::ArcSwap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::mpsc;
use weir_base::codec::encode;
use weir_model::session::ToActuator;
use weir_model::signed::GroupSignature;

/// What may wait for the thread: of the core, and of other members.
const INBOX_MAX: usize = 16_384;
/// How often the machine is told the time.
const TICK: Duration = Duration::from_millis(20);
/// How often the status is shown.
const TICKS_PER_LOOK: u64 = 10;

/// Brings messages to other members; what is lost is said again.
pub trait Peers: Send + Sync {
    /// Says something to a member.
    fn tell(&self, to: u32, message: Vec<u8>);
}

/// A member's part in the group's signatures, for those that feed it. Clones are the same.
#[derive(Clone)]
pub struct Members {
    inbox: SyncSender<Input>,
    status: Arc<ArcSwap<QuorumStatus>>,
    /// Messages of other members that found no room.
    dropped: Arc<AtomicU64>,
}

impl Members {
    /// Something happened in the group; lost when the thread is busy beyond measure, and said again then.
    pub fn input(&self, input: Input) {
        if let Err(TrySendError::Full(_)) = self.inbox.try_send(input) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What it shows of itself, a fraction of a second old.
    pub fn status(&self) -> Arc<QuorumStatus> {
        self.status.load_full()
    }

    /// From the core, which waits for room.
    pub(super) fn must(&self, input: Input) {
        // Fails only when the thread has ended, which the log tells.
        let _ended = self.inbox.send(input);
    }
}

/// The parts of the thread, before there is a controller.
pub struct MembersThread {
    quorum: Quorum,
    inbox: Receiver<Input>,
    status: Arc<ArcSwap<QuorumStatus>>,
    peers: Arc<dyn Peers>,
}

/// A member's part, to be given to [`super::Controller::follow`], and its handle.
pub fn members(quorum: Quorum, peers: Arc<dyn Peers>) -> (MembersThread, Members) {
    let (sender, inbox) = sync_channel(INBOX_MAX);
    let status = Arc::new(ArcSwap::from_pointee(quorum.status()));
    let handle = Members { inbox: sender, status: status.clone(), dropped: Arc::default() };
    (MembersThread { quorum, inbox, status, peers }, handle)
}

impl MembersThread {
    /// Starts the thread. It ends with the controller.
    pub(super) fn start(
        self,
        shared: Arc<Shared>,
        core: mpsc::Sender<Command>,
    ) -> Result<JoinHandle<()>, Error> {
        let thread = std::thread::Builder::new().name("controller-quorum".into());
        let run = move || {
            let mut running = Running { thread: self, shared, core, signed: VecDeque::new(), ticks: 0 };
            if let Err(error) = running.run() {
                tracing::error!(%error, "this member signs nothing any more");
            }
        };
        thread.spawn(run).map_err(Error::system("starting a thread"))
    }
}

struct Running {
    thread: MembersThread,
    shared: Arc<Shared>,
    core: mpsc::Sender<Command>,
    /// Signatures that the core's queue had no room for yet.
    signed: VecDeque<CoreInput>,
    ticks: u64,
}

impl Running {
    fn run(&mut self) -> std::io::Result<()> {
        let mut next_tick_ms = 0;
        while !self.shared.is_stopped() {
            match self.thread.inbox.recv_timeout(TICK) {
                Ok(input) => self.step(input)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            self.hand_over();
            let now_ms = self.shared.clock.now_ns() / 1_000_000;
            if now_ms >= next_tick_ms {
                next_tick_ms = now_ms + TICK.as_millis() as u64;
                self.step(Input::Tick { now_ms })?;
                self.ticks += 1;
                if self.ticks.is_multiple_of(TICKS_PER_LOOK) {
                    self.thread.status.store(Arc::new(self.thread.quorum.status()));
                }
            }
        }
        Ok(())
    }

    fn step(&mut self, input: Input) -> std::io::Result<()> {
        let mut out = Vec::new();
        let stepped = self.thread.quorum.step(input, &mut out);
        for output in out {
            match output {
                Output::Tell { to, message } => self.tell(to, &message),
                Output::Signed { batch, signature } => {
                    let signature = GroupSignature::Threshold(signature);
                    self.signed.push_back(CoreInput::Signed { batch, signature });
                }
                Output::Share { targets, share } => {
                    for target in &targets {
                        self.shared.sessions.tell(target, ToActuator::Share((*share).clone()));
                    }
                }
                Output::Endorsement { targets, endorsement } => {
                    for target in &targets {
                        self.shared.sessions.tell(target, ToActuator::Endorsement((*endorsement).clone()));
                    }
                }
                Output::Propose(step) => {
                    let now_ms = self.shared.ordered_now_ms();
                    self.shared.offer_item(&Item::Keys { now_ms, step });
                }
                Output::FoundOut(fault) => self.seen(Record::Fault(fault)),
                Output::Contradicted(votes) => self.seen(Record::Contradiction(votes)),
            }
        }
        self.hand_over();
        stepped
    }

    fn seen(&self, record: Record) {
        if let Some(audit) = self.shared.audit() {
            audit.seen(record);
        }
    }

    fn tell(&self, to: u32, message: &PeerMessage) {
        self.thread.peers.tell(to, encode(message));
    }

    fn hand_over(&mut self) {
        while let Some(input) = self.signed.pop_front() {
            if let Err(mpsc::error::TrySendError::Full(Command::Input(input))) =
                self.core.try_send(Command::Input(input))
            {
                self.signed.push_front(input);
                return;
            }
        }
    }
}
