//! Policies of FileWalls that the controllers order (Bohra, chapter 4; row F).
//!
//! An order is whole: all files that a FileWall shall have, under the name of the FileWall on its host. As an entry it carries the
//! group's signature, the gate of the host's switch checks it, and the FileWall reads it there. So nobody can change what a FileWall
//! lets through who could not program the switch.

use crate::{Label, Version};
use serde::{Deserialize, Serialize};

/// Most files of one order.
pub const FILES_MAX: usize = 32;
/// Longest name of a file, bytes.
pub const NAME_BYTES_MAX: usize = 63;
/// Most bytes of the files of one order.
pub const ORDER_BYTES_MAX: usize = 128 * 1024;
/// Most FileWalls of one host that have orders.
pub const WALLS_MAX: usize = 4;

/// A file of policies (YAML), or of a module that one of them names (WebAssembly as text).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct PolicyFile {
    /// Its name; policies are read in the order of their names. See [`files_problem`].
    pub name: String,
    /// What is in it.
    pub text: String,
}

/// An order of the policies of a FileWall, or the end of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyOrder {
    /// The host or gateway that it runs on.
    pub actuator: Label,
    /// Name of the FileWall there.
    pub wall: Label,
    /// All its files, in the order of their names. None withdraws the order; the FileWall keeps what it has.
    pub files: Option<Vec<PolicyFile>>,
}

/// Policies that are ordered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicySet {
    /// When they were ordered.
    pub version: Version,
    /// All files, in the order of their names.
    pub files: Vec<PolicyFile>,
}

/// Why files are none that can be ordered, if they are none.
pub fn files_problem(files: &[PolicyFile]) -> Option<&'static str> {
    let odd = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'));
    let named = |file: &PolicyFile| {
        let name = file.name.as_str();
        let kind = name.rsplit_once('.').map(|(_, kind)| kind);
        !name.starts_with('.')
            && name.len() <= NAME_BYTES_MAX
            && !name.contains(odd)
            && matches!(kind, Some("yaml" | "yml" | "wat"))
    };
    if files.is_empty() || files.len() > FILES_MAX {
        return Some("an order has 1 to 32 files");
    }
    if !files.iter().all(named) {
        return Some(
            "a file's name ends in .yaml, .yml or .wat and has at most 63 letters, digits, '.', '-' and '_'",
        );
    }
    if !files.is_sorted_by(|a, b| a.name < b.name) {
        return Some("files are in the order of their names, each name once");
    }
    if files.iter().map(|file| file.name.len() + file.text.len()).sum::<usize>() > ORDER_BYTES_MAX {
        return Some("the files of an order have at most 131072 bytes in all");
    }
    None
}

#[cfg(test)]
mod tests;
