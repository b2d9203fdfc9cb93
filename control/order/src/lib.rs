//! One total order of batches for a domain, behind one trait (rows R1, B1, R9).
//!
//! **Contract.** [`Engine`] gives every proposed batch a place, 1, 2, 3 and so on, and answers when the batch is
//! durable and committed; the [`Sink`] sees all entries in that order, each once. What the engines differ in is
//! what they survive. The one here, [`LocalEngine`], is one process with a durable log: it survives a kill and a
//! power cut at any byte, refuses to go on when its disk lost or damaged what it had acknowledged, and does not
//! survive the loss of its disk.
//!
//! From the bottom up
//! - [`log`]: records in segment files; what is durable, and what may be cut after a crash.
//! - [`snapshot`]: the application's state, so that the log stays short.
//! - [`local`]: the pure core that gives indices and keeps answers in order.
//! - [`batcher`]: the pure core that gathers operations into batches, above any engine.
//! - [`intake`]: takes signed events from their sources on every replica, so that each is ordered once.
//! - [`digests`]: compares the states of replicas.
//! - [`driver`]: threads and channels around the two cores.
//!
//! Row R1: the order is total because one log gives the indices; that updates of one event end before the next
//! one's start is the scheduler's part. Row B1: this is the mode without replication; replicated engines
//! implement the same trait (`weir_raft`, `weir_bft`).

pub mod batcher;
mod counters;
pub mod digests;
pub mod driver;
mod engine;
mod error;
pub mod intake;
pub mod local;
pub mod log;
mod position;
pub mod snapshot;

pub use batcher::{BatcherSettings, OperationPosition};
pub use counters::{BatcherCounters, EngineCounters, LogCounters};
pub use driver::{LocalEngine, OpenedLocal, Opening, Settings, Submitter};
pub use engine::{Completion, Engine, Entry, Sink, Status, Waiting};
pub use error::Error;
pub use log::{LogSettings, Recovery};
pub use position::Position;
pub use snapshot::{Refused, SnapshotInfo, SnapshotReader};
