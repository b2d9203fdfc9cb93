//! What can go wrong outside the loop.

use std::path::PathBuf;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a monitor does not start, or refuses a file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system refuses something.
    #[error("{what}: {error}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system says.
        error: std::io::Error,
    },
    /// The kernel's programs cannot be used.
    #[error("the kernel's programs are not used: {0}")]
    Kernel(String),
    /// A file of policies or queries is wrong.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// A query is wrong.
    #[error("query, byte {at}: {reason}")]
    Query {
        /// Where, bytes from the start of the text.
        at: usize,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// A sensor box cannot be used.
    #[error(transparent)]
    Sensor(#[from] weir_sensor::Error),
    /// The audit log is damaged.
    #[error("{} line {line}: {reason}", path.display())]
    Audit {
        /// The log.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// A guest's memory cannot be read.
    #[error("guest memory: {0}")]
    Guest(String),
}

impl Error {
    /// An I/O error with what was tried.
    pub fn io(what: impl Into<String>, error: impl Into<std::io::Error>) -> Self {
        Error::Io { what: what.into(), error: error.into() }
    }

    /// The same error, which says to what it belongs.
    pub(crate) fn of(self, whose: &str) -> Self {
        match self {
            Error::Io { what, error } => Error::Io { what: format!("{whose}: {what}"), error },
            other => other,
        }
    }
}
