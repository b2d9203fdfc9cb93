//! A process, as the audit log has it.

use crate::incident::Suspect;
use crate::kernel::comm_text;
use serde::{Deserialize, Serialize};

/// A process in an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub process: u32,
    /// Its program.
    pub program: String,
    /// Its user.
    pub user: u32,
    /// Whether it lived then.
    pub alive: bool,
}

impl Process {
    pub(crate) fn of(suspect: &Suspect) -> Option<Process> {
        (suspect.process != 0).then(|| Process {
            process: suspect.process,
            program: comm_text(&suspect.comm),
            user: suspect.user,
            alive: suspect.alive,
        })
    }
}
