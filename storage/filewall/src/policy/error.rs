//! What can be wrong with a policy as it is written, or with the files that it keeps.

use super::rbac::error::{RulesError, StateError};
use crate::places::PathError;
use crate::wire::name::Misnamed;
use std::path::PathBuf;

/// Why a policy is refused: what is wrong, and what would be right.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// A path that it speaks of.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The state of roles cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The rules of roles.
    #[error("rules: {0}")]
    Rules(#[from] RulesError),
    /// A word stands where operations do.
    #[error("'{word}' is no operation of NFSv3 (such as WRITE) and no group ({groups})")]
    Operation {
        /// The word.
        word: String,
        /// The groups that there are.
        groups: String,
    },
    /// A number is too small or too large.
    #[error("{field} {value} is not between {least} and {most}")]
    Between {
        /// Where it stands.
        field: &'static str,
        /// The number.
        value: u64,
        /// The least that is allowed.
        least: u64,
        /// The most that is allowed.
        most: u64,
    },
    /// A number is too large.
    #[error("{field} {value} is more than {most}")]
    Above {
        /// Where it stands.
        field: &'static str,
        /// The number.
        value: u64,
        /// The most that is allowed.
        most: u64,
    },
    /// A number is smaller than another one of the same policy.
    #[error("{field} {value} is less than {other} {least}")]
    Less {
        /// Where it stands.
        field: &'static str,
        /// The number.
        value: u64,
        /// The other one.
        other: &'static str,
        /// Its value.
        least: u64,
    },
    /// A folder's number of files is smaller than a user's, or too large.
    #[error("folder-files {value} is not between files {files} and {most}")]
    FolderFiles {
        /// The number.
        value: u64,
        /// That of a user.
        files: u64,
        /// The most that is allowed.
        most: u64,
    },
    /// There are too many of something.
    #[error("{count} {what}; at most {most} are allowed")]
    TooMany {
        /// How many there are.
        count: usize,
        /// Of what.
        what: &'static str,
        /// The most that are allowed.
        most: usize,
    },
    /// None of the limits that it could set is given.
    #[error("say {limits}, or both")]
    NoLimit {
        /// The two that there are.
        limits: &'static str,
    },
    /// A rate that is none.
    #[error("a rate of 0 lets nothing through; use a policy of kind 'access' to deny")]
    NoRate,
    /// A length that every call has.
    #[error("long-bytes: 0 would set every WRITE aside; give at least 1")]
    NoLength,
    /// A rule that allows and denies, or neither.
    #[error("write either 'allow' or 'deny', with the operations that are meant")]
    AllowOrDeny,
    /// A rule that allows says how it denies.
    #[error("'answer' belongs to a rule with 'deny'")]
    Answer,
    /// One of several rules.
    #[error("rule {number}: {why}")]
    Rule {
        /// Which one, counted from 1.
        number: usize,
        /// What is wrong with it.
        why: Box<PolicyError>,
    },
    /// A rule is for a role that nobody can have.
    #[error("role '{0}' is not among the identities")]
    NoIdentity(String),
    /// A rule is for somebody unknown.
    #[error("{what} '{name}' is not among the identities, and no number")]
    Nobody {
        /// User or group.
        what: &'static str,
        /// As it is written.
        name: String,
    },
    /// A role that is not defined.
    #[error("{field}: '{name}' is none of the roles")]
    NoRole {
        /// Where it stands.
        field: &'static str,
        /// The role.
        name: String,
    },
    /// Machines of a user who is not defined.
    #[error("machines: '{0}' is none of the users")]
    NoUser(String),
    /// Machines that are written wrong.
    #[error("'{0}' is no address and no subnet; write one such as 10.0.0.0/24")]
    Subnet(String),
    /// A time of day that is written wrong.
    #[error("'{0}' is no time of day; write HH:MM, such as 17:00")]
    TimeOfDay(String),
    /// A time zone that is not known.
    #[error("'{0}' is no time zone that this machine knows; write one such as Europe/Berlin or UTC")]
    Zone(String),
    /// A time that is written wrong.
    #[error("'{0}' is no time; write one such as 2026-11-21T18:00:00Z")]
    Time(String),
    /// A mode that is written wrong.
    #[error("clear-mode '{0}' is no mode; write octal digits in quotes, such as \"6002\"")]
    Mode(String),
    /// The folder of the control namespace cannot have such a name.
    #[error("control: {name:?} is no name of a folder: {why}")]
    Control {
        /// The name.
        name: String,
        /// Why it is none.
        why: Misnamed,
    },
    /// The module cannot be used.
    #[error("module {}: {why}", path.display())]
    Module {
        /// Its file.
        path: PathBuf,
        /// Why.
        why: ModuleError,
    },
    /// The counts cannot be read.
    #[error("state file {}: {why}; mend it, or delete it to count from 0", path.display())]
    Counts {
        /// Their file.
        path: PathBuf,
        /// Why.
        why: CountsError,
    },
    /// The system refuses a file.
    #[error("{what} {}: {error}", path.display())]
    File {
        /// What it is.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// A key that is no key.
    #[error("key file {} has less than {bytes} bytes; delete it to have a new one made", path.display())]
    ShortKey {
        /// Its file.
        path: PathBuf,
        /// How long keys are.
        bytes: usize,
    },
    /// The system has no random numbers for a key.
    #[error("no random numbers: {0}")]
    Random(getrandom::Error),
    /// The system has no thread.
    #[error("no thread for {of}: {error}")]
    Thread {
        /// What it would do.
        of: &'static str,
        /// What the system says.
        error: std::io::Error,
    },
}

impl PolicyError {
    /// Checks that a number lies between two others, which are allowed.
    ///
    /// # Errors
    /// [`PolicyError::Between`].
    pub(crate) fn between(field: &'static str, value: u64, least: u64, most: u64) -> Result<(), PolicyError> {
        if (least..=most).contains(&value) {
            Ok(())
        } else {
            Err(PolicyError::Between { field, value, least, most })
        }
    }

    /// With the file that the system refuses.
    pub(crate) fn file(what: &'static str, path: &std::path::Path) -> impl Fn(std::io::Error) -> PolicyError {
        move |error| PolicyError::File { what, path: path.to_path_buf(), error }
    }
}

/// Why a module cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// The system refuses its file.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// Its file is too long.
    #[error("longer than {most} bytes")]
    TooLong {
        /// The most that is taken.
        most: u64,
    },
    /// Its text is none.
    #[error(transparent)]
    Text(#[from] wat::Error),
    /// It is none that can be run, or lacks what it must export.
    #[error(transparent)]
    Code(#[from] wasmi::Error),
}

/// Why counts that were saved cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CountsError {
    /// The system refuses the file.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// No FileWall writes so much.
    #[error("it is too long")]
    TooLong,
    /// It is not what a FileWall writes.
    #[error(transparent)]
    Text(#[from] serde_json::Error),
    /// Something is counted for what is neither a user nor a client.
    #[error("'{0}' is nobody")]
    Nobody(String),
}
