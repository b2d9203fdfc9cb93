//! What the core thread is asked by all others.

use crate::Error;
use crate::core::scheduler::Reached;
use crate::core::{Core, Input};
use tokio::sync::oneshot;
use weir_model::Version;
use weir_order::{Entry, Position};

/// What is asked of the core thread.
pub(super) enum Command {
    /// The order committed an entry.
    Committed(Entry),
    /// The order brings the state after an entry.
    Install(Position, Vec<u8>),
    /// This replica begins or ceases to lead.
    Lead { leads: bool, reply: oneshot::Sender<()> },
    /// Something happened on a session.
    Input(Input),
    /// Time passed.
    Tick,
    /// Somebody wants to look at the core.
    Inspect(Box<dyn FnOnce(&Core) + Send>),
    /// Somebody waits until all updates of a version are acked.
    Wait { version: Version, reply: oneshot::Sender<Result<Reached, Error>> },
    /// A snapshot was saved or failed.
    SnapshotDone { saved: bool },
    /// The state rots: see [`weir_store::Store::rot`].
    #[cfg(debug_assertions)]
    Rot,
    /// This replica begins to lead and wait for something to order.
    Waiting,
    /// Nothing, but look whether the controller stops.
    Wake,
}
