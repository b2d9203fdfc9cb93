//! Why a program is not intercepted.

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The machine cannot do it.
    #[error("programs cannot be intercepted here: {0}")]
    Machine(&'static str),
    /// This program is left alone.
    #[error("not intercepted: {0}")]
    Refused(String),
    /// The system refused.
    #[error("{what}: {error}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system says.
        error: std::io::Error,
    },
}

impl Error {
    /// The last error of the system, while `what` was tried.
    pub(crate) fn last(what: &str) -> Error {
        Error::io(what, std::io::Error::last_os_error())
    }

    /// An error of the system while `what` was tried.
    pub(crate) fn io(what: &str, error: impl Into<std::io::Error>) -> Error {
        Error::Io { what: what.to_owned(), error: error.into() }
    }
}
