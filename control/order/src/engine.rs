//! What every engine offers, and what it asks of the application.

use std::io::Read;

use bytes::Bytes;

use crate::error::Error;
use crate::position::Position;
use crate::snapshot::SnapshotInfo;

/// One batch in the order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its place.
    pub position: Position,
    /// The batch as it was proposed.
    pub batch: Bytes,
}

/// Who leads and waits for something to order. A replica's own view of it: two may be wrong about each other for as long as a message takes,
/// so it says who had better propose, and nothing hangs on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Waiting {
    /// This replica: what it is given goes out at once.
    Own,
    /// Another one: this replica knows of nothing that is being ordered.
    Other,
    /// Nobody: something is being ordered.
    #[default]
    Nobody,
}

/// Takes the committed entries, in index order, each once in the life of an engine. Runs on the engine's thread: it
/// may hand over to a bounded queue and so slow the engine down, but must not wait for a proposal of its own.
pub trait Sink: Send {
    /// `entry` is durable and committed; nothing can take it away.
    fn committed(&mut self, entry: &Entry);

    /// Forget the state and take this one, which is that after `at`; the next entry is the one after `at`. A replicated
    /// engine calls this when it starts with a snapshot, when this replica was away longer than the others keep
    /// their log, and when its state had diverged. An engine of one process never does: whoever opens it reads
    /// snapshot and replay before it starts. `state` is checked from end to end before; an error stops the engine.
    fn install(&mut self, at: Position, state: &mut dyn Read) -> std::io::Result<()>;
}

/// A function sees entries only: it is a sink for an engine of one process, or for one that never has a snapshot.
impl<F: FnMut(&Entry) + Send> Sink for F {
    fn committed(&mut self, entry: &Entry) {
        self(entry);
    }

    fn install(&mut self, at: Position, _state: &mut dyn Read) -> std::io::Result<()> {
        let what =
            format!("this application cannot take over a state; one after index {} was offered", at.index);
        Err(std::io::Error::new(std::io::ErrorKind::Unsupported, what))
    }
}

type CompletionCall = Box<dyn FnOnce(Result<Position, Error>) + Send>;

/// Called once with the fate of a proposal, also when the engine goes away ([`Error::Stopped`]).
pub struct Completion {
    call: Option<CompletionCall>,
}

impl Completion {
    /// A completion that calls `call`.
    pub fn new(call: impl FnOnce(Result<Position, Error>) + Send + 'static) -> Completion {
        Completion { call: Some(Box::new(call)) }
    }

    /// Tells the fate.
    pub fn finish(mut self, result: Result<Position, Error>) {
        if let Some(call) = self.call.take() {
            call(result);
        }
    }

    /// Forgets the call: the proposer hears of the failure by the return value of `propose`.
    pub fn disarm(mut self) {
        self.call = None;
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            call(Err(Error::Stopped));
        }
    }
}

/// What an engine knows of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// The last committed entry; index 0 when there is none.
    pub committed: Position,
    /// Who leads, when known. An engine of one process leads itself, as replica 0.
    pub leader: Option<u64>,
    /// False once the engine can order nothing more until it is opened anew.
    pub healthy: bool,
}

/// One total order of batches. Engines differ in what they survive, not in what they promise:
///
/// - a completion with Ok means durable and committed, on a quorum where there is one;
/// - completions of one engine come in index order, and after the [`Sink`] saw the entry;
/// - an error whose [`Error::is_definite`] is true means the batch is not in the order and never will be.
///
/// An engine appends what it is given: it neither looks into a batch nor removes duplicates.
pub trait Engine: Send + Sync {
    /// Asks for a place for `batch`. Returns at once. An error here is definite and `done` is then not called;
    /// otherwise `done` is called later, never from within this call.
    fn propose(&self, batch: Bytes, done: Completion) -> Result<(), Error>;

    /// What the engine knows of itself now.
    fn status(&self) -> Status;

    /// Stores the application's state after the entry at `at` and lets the engine forget what it no longer needs.
    /// `at` must be committed and above the last snapshot. Blocks while it reads `state` to its end; ordering goes on.
    fn save_snapshot(&self, at: Position, state: &mut dyn Read) -> Result<SnapshotInfo, Error>;
}
