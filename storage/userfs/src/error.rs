//! What can go wrong: [`Errno`] between a backend and a program, [`Error`] for the person who mounts.

use std::fmt;
use std::path::PathBuf;

/// A system error number, as programs see it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// No such file.
    pub const NOT_FOUND: Errno = Errno(libc::ENOENT);
    /// There already.
    pub const EXISTS: Errno = Errno(libc::EEXIST);
    /// Not a directory.
    pub const NOT_A_DIRECTORY: Errno = Errno(libc::ENOTDIR);
    /// A directory.
    pub const IS_A_DIRECTORY: Errno = Errno(libc::EISDIR);
    /// A directory with entries.
    pub const NOT_EMPTY: Errno = Errno(libc::ENOTEMPTY);
    /// Wrong argument.
    pub const INVALID: Errno = Errno(libc::EINVAL);
    /// Not offered by this backend.
    pub const UNSUPPORTED: Errno = Errno(libc::EOPNOTSUPP);
    /// Cannot be written.
    pub const READ_ONLY: Errno = Errno(libc::EROFS);
    /// No space.
    pub const NO_SPACE: Errno = Errno(libc::ENOSPC);
    /// The backend failed.
    pub const IO: Errno = Errno(libc::EIO);
    /// No such attribute.
    pub const NO_DATA: Errno = Errno(libc::ENODATA);
    /// Not permitted.
    pub const NOT_PERMITTED: Errno = Errno(libc::EPERM);
    /// Nothing there (data behind the end).
    pub const NO_SUCH_OFFSET: Errno = Errno(libc::ENXIO);
}

impl fmt::Debug for Errno {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", std::io::Error::from_raw_os_error(self.0))
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Errno {
        Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Errno {
        Errno(error.raw_os_error())
    }
}

/// Result of an operation on files.
pub type Result<T> = std::result::Result<T, Errno>;

/// Why a file system cannot be mounted or asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The backend's text is not understood.
    #[error("backend '{given}': {reason}")]
    Backend {
        /// What was given.
        given: String,
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// An archive cannot be read.
    #[error("{}: {reason}", file.display())]
    Archive {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The system refused.
    #[error("{what}: {error}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system says.
        error: std::io::Error,
    },
    /// Nothing of ours is mounted there.
    #[error("{}: no file system of weir is mounted there; 'weir fs status' lists them", .0.display())]
    NotMounted(PathBuf),
    /// The process that serves a mount ended, and what it said.
    #[error("{0}")]
    Daemon(String),
    /// A daemon answered what it should not.
    #[error("the daemon of {mount} answered: {answer}")]
    Answer {
        /// Where it is mounted.
        mount: String,
        /// What it said.
        answer: String,
    },
}

impl Error {
    /// An error of the system while `what` was tried.
    pub fn io(what: impl Into<String>, error: impl Into<std::io::Error>) -> Error {
        Error::Io { what: what.into(), error: error.into() }
    }
}
