//! What a server needs of whoever orders and applies: the local engine, a replicated one, or the controller.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use weir_model::Version;
use weir_store::{Answer, Batch, Change, HistoryError, Outcome, Query};

/// A future in a box.
pub type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A future in a box that borrows.
pub type Borrowing<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// How fresh a read must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    /// It sees all that was acknowledged before it began.
    Linearizable,
    /// It may lack what was done in the last so many milliseconds.
    Stale {
        /// How many.
        staleness_ms: u64,
    },
}

/// What was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadResult {
    /// At which version.
    pub version: Version,
    /// One for each query.
    pub answers: Vec<Answer>,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// Another replica leads; nothing was done.
    #[error("another replica leads{}", leader.as_ref().map_or(String::new(), |leader| format!(": {leader}")))]
    NotLeader {
        /// Where, as the client reaches it.
        leader: Option<String>,
    },
    /// Too much waits; nothing was done.
    #[error("{reason}: ask again later")]
    Overloaded {
        /// What waits.
        reason: String,
    },
    /// Nobody knows whether it was done.
    #[error("it is not known whether it was done: {reason}")]
    Uncertain {
        /// Why.
        reason: String,
    },
    /// Nothing was done.
    #[error("{reason}")]
    Unavailable {
        /// Why.
        reason: String,
    },
    /// A watch cannot go on.
    #[error("{0}")]
    History(#[from] HistoryError),
}

/// The changes after a version, as they happen.
pub trait Changes: Send {
    /// The next ones in order, at least one, or none with the version up to which nothing changed. Cancel-safe.
    fn next(&mut self) -> Borrowing<'_, Result<Vec<Arc<Change>>, ServiceError>>;
}

/// A store behind an order.
pub trait StoreService: Send + Sync + 'static {
    /// Orders and applies a batch. Takes its place in the order when called, not when first polled.
    fn submit(&self, batch: Batch) -> Boxed<Result<Vec<Outcome>, ServiceError>>;

    /// Reads at one version.
    fn read(&self, queries: Vec<Query>, consistency: Consistency) -> Boxed<Result<ReadResult, ServiceError>>;

    /// The changes after a version; `None`: after the present one.
    ///
    /// # Errors
    /// [`ServiceError::History`].
    fn watch(&self, from: Option<Version>) -> Result<(Version, Box<dyn Changes>), ServiceError>;
}

/// What a replicated order gives for linearizable reads.
pub trait Barrier: Send + Sync + 'static {
    /// Ends when this replica knew itself to lead at some moment after the call, and its sink has seen
    /// all that was committed before that moment.
    fn barrier(&self) -> Boxed<Result<(), ServiceError>>;

    /// Where a client reaches a replica, `host:port`.
    fn address_of(&self, replica: u64) -> Option<String>;
}
