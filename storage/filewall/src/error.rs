//! What can go wrong outside the path of messages.

use std::path::PathBuf;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why FileWall does not start, or refuses a policy.
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
    /// A policy file is wrong.
    #[error("{}{}: {reason}", path.display(), document.map(|number| format!(", document {number}")).unwrap_or_default())]
    Policy {
        /// The file.
        path: PathBuf,
        /// The document in it, counted from 1.
        document: Option<usize>,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// The address of a server is wrong.
    #[error("'{text}' is no server: {reason}; write nfs://ADDRESS/PATH, perhaps with ?nfsport=N&mountport=N")]
    Server {
        /// What was given.
        text: String,
        /// What is wrong.
        reason: String,
    },
}

impl Error {
    /// An I/O error with what was tried.
    pub fn io(what: impl Into<String>, error: impl Into<std::io::Error>) -> Self {
        Error::Io { what: what.into(), error: error.into() }
    }
}
