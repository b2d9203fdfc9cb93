//! The crate's errors.

use crate::service::ServiceError;
use weir_store::{HistoryError, Refusal};

/// A message says nothing that the store understands.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConvertError(pub(crate) String);

impl ConvertError {
    pub(crate) fn missing(what: &str) -> ConvertError {
        ConvertError(format!("{what} is missing, or newer than this release"))
    }
}

/// Why a client has no outcome.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The store refuses; nothing was done.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// The request was sent, and its outcome did not come in time, or is lost: it was done once or never.
    #[error("it is not known whether it was done: {0}")]
    Uncertain(String),
    /// Nothing was done: no server could be reached, or too much waits.
    #[error("{0}")]
    Unavailable(String),
    /// The server says that this may not be, or makes no sense.
    #[error("{0}")]
    Denied(String),
    /// Others changed the entry each time between reading and writing.
    #[error("others changed the entry {attempts} times between reading and writing it")]
    Contended {
        /// How often it was tried.
        attempts: u32,
    },
    /// The version to watch from is not kept any more.
    #[error("{0}")]
    WatchTooOld(String),
    /// A watch is from a version that no server has reached, for long.
    #[error("{0}")]
    WatchAhead(String),
    /// An endpoint, certificate or setting is wrong.
    #[error("{0}")]
    Setting(String),
    /// The server's answer makes no sense.
    #[error("the server's answer cannot be read: {0}")]
    Answer(#[from] ConvertError),
    /// The order below fails.
    #[error("{0}")]
    Order(#[from] weir_order::Error),
    /// A snapshot cannot be loaded.
    #[error("{0}")]
    Snapshot(String),
}

impl From<ServiceError> for Error {
    fn from(error: ServiceError) -> Error {
        match error {
            ServiceError::Uncertain { reason } => Error::Uncertain(reason),
            ServiceError::History(history @ HistoryError::TooOld { .. }) => {
                Error::WatchTooOld(history.to_string())
            }
            ServiceError::History(history) => Error::WatchAhead(history.to_string()),
            other => Error::Unavailable(other.to_string()),
        }
    }
}
