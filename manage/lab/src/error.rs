//! The one error type of this crate.

use std::path::PathBuf;

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong outside our own code, with what a person needs to mend it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The caller is not root.
    #[error("network namespaces need root: run this as root (for example with sudo)")]
    NotRoot,
    /// A name that must not be used for namespaces or links.
    #[error("name {name:?} is not usable: {rule}")]
    Name {
        /// The refused name.
        name: String,
        /// What is allowed.
        rule: &'static str,
    },
    /// Another process holds the scope.
    #[error("{name} is in use by another running command (lock {path}): wait for it or stop it")]
    Busy {
        /// Scope name.
        name: String,
        /// The lock file.
        path: PathBuf,
    },
    /// A program is not installed.
    #[error(
        "{program} is not installed: run scripts/install-deps, or install the Debian package that has it"
    )]
    Missing {
        /// The program that was not found.
        program: String,
    },
    /// A program ended with a failure.
    #[error("`{command}` failed ({status}): {stderr}")]
    Command {
        /// The command line.
        command: String,
        /// Exit status as text.
        status: String,
        /// The end of what it wrote to its error stream.
        stderr: String,
    },
    /// A program or condition took longer than its bound.
    #[error("{what} was not there after {after_ms} ms{hint}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// The bound.
        after_ms: u64,
        /// Where to look, empty or beginning with a separator.
        hint: String,
    },
    /// A program wrote something that we cannot read.
    #[error("the output of {program} is not understood: {reason}")]
    Output {
        /// The program.
        program: &'static str,
        /// What is missing or wrong.
        reason: String,
    },
    /// A file or system call failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Ctrl-c or a termination signal.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// Wraps a system error with what was tried.
    pub fn io(what: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        Self::Io { what: what.into(), source: source.into() }
    }
}
