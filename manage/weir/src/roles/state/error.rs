//! Why the state of a controller cannot be used.

use std::io;
use std::path::PathBuf;
use weir_api::pki::PkiError;

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A file cannot be read or written.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// A file has no sense.
    #[error(
        "{path} is damaged: {reason}; restore it from a backup, or start a new domain in an empty directory"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The directory is of another domain.
    #[error(
        "{path} belongs to domain '{found}', not '{wanted}': name the right domain, or another directory"
    )]
    OtherDomain {
        /// The directory.
        path: PathBuf,
        /// Its domain.
        found: String,
        /// The domain asked for.
        wanted: String,
    },
    /// A file of a domain's keys has no sense.
    #[error("{path} is no file of a domain's keys: {reason}; make it with 'weir group keys'")]
    Keys {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The directory has other keys than those that it is given.
    #[error(
        "{path} is of another domain's keys than those given (group.keys): give those of this domain, or begin in an \
         empty directory"
    )]
    OtherKeys {
        /// The file that differs.
        path: PathBuf,
    },
    /// Something that was there is gone or another.
    #[error(
        "{} is not whole: {problems}. It was there before, and is not made anew. Bring it back from a backup of this directory (the whole \
         one, copied while the controller did not run){rejoin}; or, when it shall be so, 'weir state accept --state {}'",
        path.display(), path.display()
    )]
    Incomplete {
        /// The directory.
        path: PathBuf,
        /// What is wrong.
        problems: String,
        /// What else helps.
        rejoin: String,
    },
    /// The manifest of the directory.
    #[error(
        "{reason}: bring back the whole directory from a backup, or check it and say 'weir state accept'"
    )]
    Manifest {
        /// What is wrong.
        reason: String,
    },
    /// Certificates.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// No randomness.
    #[error("the system gives no randomness: {0}")]
    Random(#[from] getrandom::Error),
}
