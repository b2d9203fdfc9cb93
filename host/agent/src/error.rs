//! The crate's errors: what is wrong, and what would be right.

use std::io;
use std::path::PathBuf;

/// Why the agent could not do something.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A field of the configuration, or an argument, is wrong.
    #[error("{field}: '{value}' is not allowed: {allowed}")]
    Field {
        /// The field, with dots between levels.
        field: String,
        /// What was given.
        value: String,
        /// What would be right.
        allowed: String,
    },
    /// A configuration file cannot be read as one.
    #[error("{path}: {reason}")]
    Config {
        /// The file.
        path: PathBuf,
        /// What the parser says, with the line.
        reason: String,
    },
    /// A file cannot be read or written.
    #[error("{path}: {source}{hint}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
        /// What to do, or empty; begins with a separator.
        hint: &'static str,
    },
    /// Key, certificate or trust material is not usable.
    #[error("{what} is not usable: {reason}")]
    Material {
        /// Which material, with its file if it has one.
        what: String,
        /// Why.
        reason: String,
    },
    /// A part of the state directory is missing or is another one.
    #[error(
        "{}: {problems}: bring it back from where it was, all of one time; or, if it is lost, say 'weir state accept --state {} --yes' \
         and join again with a new token",
        path.display(), path.display()
    )]
    Incomplete {
        /// The directory.
        path: PathBuf,
        /// What is wrong.
        problems: String,
    },
    /// A join token is not one.
    #[error("the join token is not usable: {0}")]
    Token(String),
    /// No controller let us join.
    #[error("joining failed: {0}")]
    Join(String),
    /// A device cannot be made, changed or removed.
    #[error("device '{device}' in {namespace}: {reason}")]
    Device {
        /// Its name.
        device: String,
        /// The namespace in words.
        namespace: String,
        /// Why.
        reason: String,
    },
    /// A child process cannot be started.
    #[error("'{program}' cannot be started: {source}")]
    Spawn {
        /// The program.
        program: String,
        /// The system's error.
        source: io::Error,
    },
    /// Another process of the same role has the run directory.
    #[error("another {role} runs, it holds '{lock}': stop it, or give this one a runDir of its own")]
    Running {
        /// What it is.
        role: &'static str,
        /// Its lock.
        lock: PathBuf,
    },
    /// A socket cannot be made.
    #[error("{what}: {source}")]
    Socket {
        /// Which socket, with its address.
        what: String,
        /// The system's error.
        source: io::Error,
    },
}

impl AgentError {
    /// A wrong field.
    pub(crate) fn field(field: &str, value: impl ToString, allowed: impl ToString) -> AgentError {
        AgentError::Field { field: field.to_string(), value: value.to_string(), allowed: allowed.to_string() }
    }

    /// A file that cannot be read or written.
    pub(crate) fn file(path: impl Into<PathBuf>, source: io::Error) -> AgentError {
        AgentError::File { path: path.into(), source, hint: "" }
    }
}
