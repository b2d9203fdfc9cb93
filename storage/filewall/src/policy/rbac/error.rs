//! What can be wrong with rules, and with the state of roles.

use crate::places::PathError;
use std::path::PathBuf;

/// Why rules are refused, or cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    /// The text is too long.
    #[error("longer than {most} bytes")]
    TooLong {
        /// The most that is taken.
        most: usize,
    },
    /// Brackets are too many in each other.
    #[error("line {line}: nested more than {most} deep")]
    TooDeep {
        /// Where.
        line: usize,
        /// The most that is taken.
        most: usize,
    },
    /// A rule is too long.
    #[error("line {line}: a rule of more than {most} words and signs")]
    LongRule {
        /// Where.
        line: usize,
        /// The most that is taken.
        most: usize,
    },
    /// There are too many rules.
    #[error("more than {most} rules")]
    TooMany {
        /// The most that are taken.
        most: usize,
    },
    /// A rule with places for others to fill.
    #[error("templates ('?principal', '?resource') are not served")]
    Template,
    /// A rule speaks of what there is not.
    #[error("the rule of line {line}: {why}")]
    Rule {
        /// Where it begins.
        line: usize,
        /// What is wrong with it.
        why: RuleError,
    },
    /// What Cedar finds in the text, with its help and the line.
    #[error("{}{message}", line.map(|line| format!("line {line}: ")).unwrap_or_default())]
    Text {
        /// Where, if it says.
        line: Option<usize>,
        /// What it says: of its many kinds of errors people need the words.
        message: String,
    },
    /// What Cedar says of what is made for it: our fault, not that of the rules.
    #[error(transparent)]
    Cedar(Box<dyn std::error::Error + Send + Sync>),
}

/// What Cedar does not find in a rule.
#[derive(Debug, thiserror::Error)]
pub enum RuleError {
    /// Our annotation.
    #[error("@permission is one of {allowed}")]
    Permission {
        /// What there is.
        allowed: String,
    },
    /// A role that is not defined.
    #[error("Role::\"{0}\" is none of the roles")]
    Role(String),
    /// An action that is none.
    #[error("Action::\"{0}\" is no operation and no group")]
    Action(String),
    /// A folder that is none.
    #[error(transparent)]
    Folder(#[from] PathError),
}

/// Why the state cannot be used, or a change not be kept.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The system refuses the file.
    #[error("state file {}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// Another FileWall has it.
    #[error("state file {} is used by another process ({error})", path.display())]
    Taken {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: std::fs::TryLockError,
    },
    /// A record is not what a FileWall writes.
    #[error("state file {}: a record that cannot be read ({error})", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: serde_json::Error,
    },
    /// It answers questions only.
    #[error("it is only looked at")]
    Looked,
    /// There is no room for more.
    #[error("permissions of more than {most} files")]
    TooMany {
        /// The most that there may be.
        most: usize,
    },
    /// The disk does not take a change.
    #[error(transparent)]
    Disk(#[from] std::io::Error),
}
