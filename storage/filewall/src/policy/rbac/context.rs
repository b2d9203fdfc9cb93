//! The persistent part of the context: assignments, threats and permissions of files that were changed since the files of the
//! policy were written (paper 4.2.2 and 4.5.1: "policy definition" and "permission assignment").
//!
//! Invariants
//! - A change is in force only when it is on the disk: [`Context::commit`] writes and syncs one record of a journal, whole or not
//!   at all, then changes what is in memory. So a kill at any time loses nothing that was acknowledged, and half of nothing.
//! - One process has the file: it is locked.

use super::error::StateError;
use crate::policy::error::PolicyError;
use crate::policy::ops;
use crate::wire::nfs3::{Handle, OPS, Op};
use arc_swap::ArcSwap;
use hashbrown::HashMap;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use weir_base::journal::Journal;

/// Most files whose permissions differ from those of the policy.
pub const FILES_MAX: usize = 65_536;
/// Records above which the journal is written anew when it is opened.
const RECORDS_MAX: usize = 4096;

/// Who may do an operation on a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Grant {
    /// As the policy says.
    #[default]
    Policy,
    /// The owner.
    Owner,
    /// Nobody.
    Nobody,
    /// Those who have this role or one that inherits it.
    Role(Arc<str>),
}

impl Grant {
    /// As it is written in shadow files.
    pub fn text(&self) -> &str {
        match self {
            Grant::Policy => "policy",
            Grant::Owner => "OWNER",
            Grant::Nobody => "nobody",
            Grant::Role(role) => role,
        }
    }

    /// Reads it; any other word is a role.
    pub fn of(text: &str) -> Grant {
        match text {
            "policy" => Grant::Policy,
            "OWNER" => Grant::Owner,
            "nobody" => Grant::Nobody,
            role => Grant::Role(role.into()),
        }
    }
}

/// Permissions of a file, by operation.
pub type Grants = [Grant; OPS];

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "kebab-case")]
pub enum Change {
    /// Who may do an operation on a file.
    Grant {
        /// The server's handle, hexadecimal.
        file: String,
        /// Operation.
        op: String,
        /// As [`Grant::text`].
        grant: String,
    },
    /// A role is given to a user, or taken away.
    Assign {
        /// User.
        uid: u32,
        /// Role.
        role: String,
        /// Given.
        assigned: bool,
    },
    /// A user is a threat, or no more.
    Threat {
        /// User.
        uid: u32,
        /// Is one.
        threat: bool,
    },
    /// The handle of the export's root.
    Root {
        /// The server's handle, hexadecimal.
        handle: String,
    },
}

/// What is in force.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    /// Permissions of files by the server's handle; only those that differ from the policy.
    pub files: HashMap<Box<[u8]>, Arc<Grants>>,
    /// Roles that were given or taken away.
    pub assigned: BTreeMap<(u32, String), bool>,
    /// Users that are threats.
    pub threats: BTreeSet<u32>,
    /// The root of the export.
    pub root: Option<Handle>,
}

/// Hexadecimal digits of a handle.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes_of(text: &str) -> Option<Vec<u8>> {
    let digit = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    (0..text.len()).step_by(2).map(digit).collect()
}

impl Tables {
    fn apply(&mut self, change: &Change) {
        match change {
            Change::Grant { file, op, grant } => {
                let (Some(file), Some(op)) = (bytes_of(file), Op::from_name(op)) else { return };
                let file: Box<[u8]> = crate::wire::nfs3::bare(&file).into();
                let mut grants =
                    self.files.get(&file).map_or_else(Grants::default, |known| (**known).clone());
                grants[op.index()] = Grant::of(grant);
                if grants.iter().all(|grant| *grant == Grant::Policy) {
                    self.files.remove(&file);
                } else {
                    self.files.insert(file, Arc::new(grants));
                }
            }
            Change::Assign { uid, role, assigned } => {
                self.assigned.insert((*uid, role.clone()), *assigned);
            }
            Change::Threat { uid, threat: true } => drop(self.threats.insert(*uid)),
            Change::Threat { uid, threat: false } => drop(self.threats.remove(uid)),
            Change::Root { handle } => self.root = bytes_of(handle).and_then(|bytes| Handle::new(&bytes)),
        }
    }

    /// The changes that lead here from nothing.
    fn changes(&self) -> Vec<Change> {
        let grants = self.files.iter().flat_map(|(file, grants)| {
            let set = Op::ALL.into_iter().filter(|op| grants[op.index()] != Grant::Policy);
            set.map(|op| Change::Grant {
                file: hexadecimal(file),
                op: op.name().to_string(),
                grant: grants[op.index()].text().to_string(),
            })
        });
        let assigned = self.assigned.iter().map(|((uid, role), assigned)| Change::Assign {
            uid: *uid,
            role: role.clone(),
            assigned: *assigned,
        });
        let threats = self.threats.iter().map(|uid| Change::Threat { uid: *uid, threat: true });
        let root = self.root.iter().map(|root| Change::Root { handle: hexadecimal(root.as_bytes()) });
        grants.chain(assigned).chain(threats).chain(root).collect()
    }
}

/// Why a text that is written to a shadow file is refused.
#[derive(Debug, thiserror::Error)]
pub enum ShadowError {
    /// A line says who, and not what.
    #[error("'{0}' names no operation")]
    NoOperation(String),
    /// A line says who, and there is nobody like that.
    #[error("'{0}' is no role, and neither OWNER, nobody nor policy")]
    NoRole(String),
    /// A word is no operation.
    #[error(transparent)]
    Operation(#[from] PolicyError),
}

/// Tables and their journal.
#[derive(Debug)]
pub struct Context {
    /// With its lock; none where it is only looked at.
    journal: Mutex<Option<(Journal, std::fs::File)>>,
    tables: ArcSwap<Tables>,
}

impl Context {
    /// Opens the journal, or makes it.
    ///
    /// # Errors
    /// What is wrong.
    pub fn open(path: &Path) -> Result<Context, StateError> {
        let wrong = |error| StateError::File { path: path.to_path_buf(), error };
        let lock = std::fs::OpenOptions::new().create(true).append(true).open(path.with_extension("lock"));
        let lock = lock.map_err(wrong)?;
        lock.try_lock().map_err(|error| StateError::Taken { path: path.to_path_buf(), error })?;
        let (mut journal, records) = Journal::open(path).map_err(wrong)?;
        let (count, tables) = (records.len(), read(path, &records)?);
        if count > RECORDS_MAX {
            let changes = tables.changes();
            let records: Vec<Vec<u8>> =
                changes.chunks(256).filter_map(|changes| serde_json::to_vec(changes).ok()).collect();
            journal.rewrite(records.iter().map(Vec::as_slice)).map_err(wrong)?;
        }
        Ok(Context { journal: Mutex::new(Some((journal, lock))), tables: ArcSwap::from_pointee(tables) })
    }

    /// What a journal says that another process may have; nothing can be changed.
    ///
    /// # Errors
    /// What is wrong.
    pub fn look(path: &Path) -> Result<Context, StateError> {
        let records = match Journal::follow(path) {
            Ok((_, records)) => records,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(StateError::File { path: path.to_path_buf(), error }),
        };
        Ok(Context { journal: Mutex::default(), tables: ArcSwap::from_pointee(read(path, &records)?) })
    }

    /// What is in force.
    pub fn tables(&self) -> arc_swap::Guard<Arc<Tables>> {
        self.tables.load()
    }

    /// Makes changes: all of them, or none.
    ///
    /// # Errors
    /// What is wrong; nothing has changed then.
    pub fn commit(&self, changes: &[Change]) -> Result<(), StateError> {
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((journal, _)) = &mut *journal else { return Err(StateError::Looked) };
        let mut tables = (**self.tables.load()).clone();
        changes.iter().for_each(|change| tables.apply(change));
        if tables.files.len() > FILES_MAX {
            return Err(StateError::TooMany { most: FILES_MAX });
        }
        let record = serde_json::to_vec(changes).map_err(std::io::Error::from)?;
        journal.append(&[record]).and_then(|()| journal.sync())?;
        self.tables.store(Arc::new(tables));
        Ok(())
    }
}

fn read(path: &Path, records: &[Vec<u8>]) -> Result<Tables, StateError> {
    let mut tables = Tables::default();
    for record in records {
        let changes: Vec<Change> = serde_json::from_slice(record)
            .map_err(|error| StateError::Record { path: path.to_path_buf(), error })?;
        changes.iter().for_each(|change| tables.apply(change));
    }
    Ok(tables)
}

/// Reads the text that is written to a shadow file: on each line operations, or a group of them, and who may do them.
///
/// # Errors
/// What is wrong.
pub fn shadow_changes(
    file: &[u8],
    text: &str,
    is_role: impl Fn(&str) -> bool,
) -> Result<Vec<Change>, ShadowError> {
    let mut changes = Vec::new();
    // What the file shows of itself, with its remarks, may be written back.
    let bare = |line: &str| line.split('#').next().unwrap_or_default().trim().to_string();
    for line in text.lines().map(bare).filter(|line| !line.is_empty()) {
        let mut words: Vec<&str> =
            line.split(|c: char| c.is_whitespace() || c == '=').filter(|w| !w.is_empty()).collect();
        if matches!(words.first(), Some(&"owner" | &"mode")) {
            continue;
        }
        let grant = words
            .pop()
            .filter(|_| !words.is_empty())
            .ok_or_else(|| ShadowError::NoOperation(line.clone()))?;
        if matches!(Grant::of(grant), Grant::Role(_)) && !is_role(grant) {
            return Err(ShadowError::NoRole(grant.to_string()));
        }
        let words: Vec<String> = words.into_iter().map(str::to_string).collect();
        let set = ops::parse(&words)?;
        changes.extend(Op::ALL.into_iter().filter(|op| set & op.bit() != 0 && *op != Op::Null).map(|op| {
            Change::Grant { file: hexadecimal(file), op: op.name().to_string(), grant: grant.to_string() }
        }));
    }
    Ok(changes)
}

#[cfg(test)]
mod tests;
