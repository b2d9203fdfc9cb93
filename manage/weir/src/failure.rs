//! Why a command does not do its work, and how the process ends then.

use crate::exit::Exit;
use weir_api::client::ClientError;
use weir_api::said::WAITS;
use weir_model::resource::FieldError;

/// Why a command did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The controller refused, or cannot be reached.
    #[error("{0}")]
    Client(#[from] ClientError),
    /// The store refuses, or cannot be reached.
    #[error("{reason}")]
    Store {
        /// Why.
        reason: String,
        /// Whether it cannot be reached.
        unreachable: bool,
    },
    /// A file system cannot be mounted or asked.
    #[error("{0}")]
    Files(#[from] weir_userfs::Error),
    /// The machine refuses, or a program of a lab failed.
    #[error("{0}")]
    Lab(#[from] weir_lab::Error),
    /// An argument or a file is wrong.
    #[error("{0}")]
    Input(String),
    /// Something that is named is not there.
    #[error("{0}")]
    Missing(String),
    /// It is not done, for a reason that is no mistake in the command line.
    #[error("{0}")]
    Refused(String),
    /// A person said no.
    #[error("nothing was changed")]
    Declined,
    /// A file or the terminal failed.
    #[error("{what}: {error}{}", what_to_do(.error))]
    Io {
        /// What was tried.
        what: String,
        /// What the system says.
        error: std::io::Error,
    },
}

/// What helps against an error of the system, if that is known.
fn what_to_do(error: &std::io::Error) -> &'static str {
    use std::io::ErrorKind;
    match error.kind() {
        ErrorKind::PermissionDenied => ": run this as root, or as the user whom it belongs to",
        ErrorKind::AddrInUse => ": another program listens there; stop it, or choose another port",
        ErrorKind::AddrNotAvailable => ": use an address of this machine, 'ip address' shows them",
        _ => "",
    }
}

impl Failure {
    /// How the process ends.
    pub fn exit(&self) -> Exit {
        match self {
            Failure::Client(ClientError::Unreachable { .. } | ClientError::Clock { .. })
            | Failure::Store { unreachable: true, .. } => Exit::Unreachable,
            Failure::Client(ClientError::Refused(error)) if error.problem.code == WAITS => Exit::NotInForce,
            Failure::Client(_)
            | Failure::Store { .. }
            | Failure::Lab(_)
            | Failure::Files(_)
            | Failure::Missing(_)
            | Failure::Refused(_)
            | Failure::Io { .. } => Exit::Failed,
            Failure::Input(_) => Exit::Usage,
            Failure::Declined => Exit::No,
        }
    }

    /// An I/O error with what was tried.
    pub fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Failure {
        let what = what.into();
        move |error| Failure::Io { what, error }
    }
}

impl From<FieldError> for Failure {
    fn from(error: FieldError) -> Failure {
        Failure::Input(error.to_string())
    }
}
