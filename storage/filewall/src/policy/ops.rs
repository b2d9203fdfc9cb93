//! Sets of operations as administrators write them: `WRITE`, or a group such as `writes`.

use super::error::PolicyError;
use crate::wire::nfs3::{self, Op};

/// Groups that may be written in place of single operations.
pub const GROUPS: [(&str, u32); 5] = [
    ("all", nfs3::ALL_OPS),
    ("changes", nfs3::CHANGES),
    ("reads", nfs3::READS),
    ("looks", nfs3::LOOKS),
    ("removals", 1 << Op::Remove as u32 | 1 << Op::Rmdir as u32 | 1 << Op::Rename as u32),
];

/// The set of operations that a list of words stands for, as bits.
///
/// # Errors
/// [`PolicyError::Operation`]: the word that is neither an operation nor a group, and what there is.
pub fn parse(words: &[String]) -> Result<u32, PolicyError> {
    words.iter().try_fold(0, |set, word| Ok(set | parse_one(word)?))
}

fn parse_one(word: &str) -> Result<u32, PolicyError> {
    if let Some(op) = Op::from_name(word) {
        return Ok(op.bit());
    }
    let group = GROUPS.iter().find(|(name, _)| *name == word);
    group.map(|(_, set)| *set).ok_or_else(|| PolicyError::Operation {
        word: word.to_string(),
        groups: GROUPS.map(|(name, _)| name).join(", "),
    })
}

/// The names of a set.
pub fn names(set: u32) -> Vec<&'static str> {
    Op::ALL.iter().filter(|op| set & op.bit() != 0).map(|op| op.name()).collect()
}
