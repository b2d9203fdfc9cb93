//! What replicas have said to one change: which answer counts, and who has done something else.
//!
//! - Who has done it counts before who could not (full, read-only, or failing): the others have missed it.
//! - Otherwise the majority counts, and of two that are equally many the one with the first server.
//! - Of those who have done it, who has done more of it counts; who has begun anew since it was spoken to may have lost what was
//!   not durable, and counts only where all have.
//! - Attributes that clients build on (kind, mode, owner, group, length) must be the same.

use super::asked::Lost;
use super::server::Answer;
use crate::wire::make::at;
use crate::wire::nfs3::{ATTRIBUTES_BYTES, Op, Status, ftype};
use crate::wire::xdr::get_u32;

/// Place of the number of names in `fattr3`.
const NLINK: usize = 8;

/// What one of them has said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// `nfsstat3`.
    pub status: u32,
    /// Bytes written.
    pub count: u32,
    /// It has begun anew since it was spoken to last.
    pub anew: bool,
    /// Kind, mode, owner, group and length of the object, if it has said them and they must be the same.
    pub object: Option<[u32; 6]>,
}

impl Said {
    /// What an outcome says; `None` if there is no answer. `known` is the verifier that the server had before.
    pub fn of(op: Op, outcome: &Result<Answer, Lost>, known: Option<u64>) -> Option<Said> {
        let answer = match outcome {
            Ok(answer) => answer,
            Err(Lost::Status(status)) => {
                return Some(Said { status: *status, count: 0, anew: false, object: None });
            }
            Err(Lost::Io(_)) => return None,
        };
        let verifier = verifier(op, answer);
        Some(Said {
            status: answer.results.status,
            count: answer.results.count,
            anew: known.zip(verifier).is_some_and(|(known, verifier)| known != verifier),
            object: answer.attributes().and_then(|attributes| object(op, attributes)),
        })
    }

    fn class(&self) -> Class {
        match Status::of(self.status) {
            Status::Ok => Class::Done,
            Status::Rofs
            | Status::Nospc
            | Status::Dquot
            | Status::Io
            | Status::ServerFault
            | Status::Jukebox => Class::Cannot(self.status),
            _ => Class::Refused(self.status),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Done,
    Refused(u32),
    Cannot(u32),
}

/// The verifier of a WRITE or COMMIT that went well.
pub fn verifier(op: Op, answer: &Answer) -> Option<u64> {
    let at = answer.record.len().checked_sub(8)?;
    let has = matches!(op, Op::Write | Op::Commit) && answer.results.status == 0;
    has.then(|| u64::from(get_u32(&answer.record, at)) << 32 | u64::from(get_u32(&answer.record, at + 4)))
}

/// True if an object is no folder and has one name.
pub fn one_name(attributes: &[u8]) -> bool {
    attributes.len() == ATTRIBUTES_BYTES
        && get_u32(attributes, at::KIND) != ftype::DIRECTORY
        && get_u32(attributes, NLINK) == 1
}

/// The length of a folder is a server's own matter, and of an object with several names others may be changing it.
fn object(op: Op, attributes: &[u8]) -> Option<[u32; 6]> {
    let word = |at: usize| get_u32(attributes, at);
    let folder = word(at::KIND) == ftype::DIRECTORY;
    // REMOVE and RENAME speak of the folder only.
    if matches!(op, Op::Remove | Op::Rmdir | Op::Rename) || !folder && word(NLINK) != 1 {
        return None;
    }
    let size = if word(at::KIND) == ftype::REGULAR { [word(at::SIZE), word(at::SIZE + 4)] } else { [0, 0] };
    Some([word(at::KIND), word(at::MODE) & 0o7777, word(at::UID), word(at::GID), size[0], size[1]])
}

/// The larger group of equals among `chosen`, the one with the first server where there are two.
fn most<K: PartialEq>(chosen: &[usize], key: impl Fn(usize) -> K) -> Vec<usize> {
    let with =
        |one: usize| chosen.iter().copied().filter(|other| key(*other) == key(one)).collect::<Vec<_>>();
    chosen.iter().fold(Vec::new(), |best, one| {
        let group = with(*one);
        if group.len() > best.len() { group } else { best }
    })
}

/// Whose answers count: all of them have said the same. `said` is in the order of the servers; empty if nobody has answered.
pub fn agreed(said: &[Option<Said>]) -> Vec<usize> {
    let of = |at: usize| said[at].as_ref();
    let mut chosen: Vec<usize> = (0..said.len()).filter(|at| said[*at].is_some()).collect();
    let cannot = |at: usize| of(at).is_some_and(|said| matches!(said.class(), Class::Cannot(_)));
    if chosen.iter().any(|at| !cannot(*at)) {
        chosen.retain(|at| !cannot(*at));
    }
    let mut chosen = most(&chosen, |at| of(at).map(Said::class));
    if !chosen.iter().any(|at| of(*at).is_some_and(|said| said.status == 0)) {
        return chosen;
    }
    if chosen.iter().any(|at| of(*at).is_some_and(|said| !said.anew)) {
        chosen.retain(|at| of(*at).is_some_and(|said| !said.anew));
    } else {
        // Each may have lost something else.
        chosen.truncate(1);
    }
    let most_bytes = chosen.iter().filter_map(|at| of(*at)).map(|said| said.count).max();
    chosen.retain(|at| of(*at).map(|said| said.count) == most_bytes);
    let speaks: Vec<usize> =
        chosen.iter().copied().filter(|at| of(*at).is_some_and(|said| said.object.is_some())).collect();
    let same = most(&speaks, |at| of(at).and_then(|said| said.object));
    chosen.retain(|at| !speaks.contains(at) || same.contains(at));
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(status: u32, count: u32) -> Option<Said> {
        Some(Said { status, count, anew: false, object: None })
    }

    fn sized(size: u32) -> Option<Said> {
        Some(Said { status: 0, count: 8, anew: false, object: Some([1, 0o644, 0, 0, 0, size]) })
    }

    fn anew() -> Option<Said> {
        Some(Said { status: 0, count: 8, anew: true, object: None })
    }

    #[test]
    fn who_has_done_it_counts_before_who_could_not() {
        for cannot in [30, 28, 69, 5, 10_006, 10_008] {
            assert_eq!(agreed(&[said(cannot, 0), said(0, 8)]), [1]);
            assert_eq!(agreed(&[said(cannot, 0), said(cannot, 0), said(0, 8)]), [2]);
            assert_eq!(agreed(&[said(cannot, 0), said(17, 0)]), [1]);
            assert_eq!(agreed(&[said(cannot, 0), said(cannot, 0)]), [0, 1]);
        }
    }

    #[test]
    fn the_majority_counts_and_then_the_first() {
        assert_eq!(agreed(&[said(2, 0), said(0, 0), said(0, 0)]), [1, 2]);
        assert_eq!(agreed(&[said(0, 0), said(17, 0)]), [0]);
        assert_eq!(agreed(&[None, said(17, 0), said(0, 0)]), [1]);
        assert_eq!(agreed(&[None, None]), [0; 0]);
    }

    #[test]
    fn a_short_count_other_attributes_and_a_new_beginning_differ() {
        assert_eq!(agreed(&[said(0, 4), said(0, 8)]), [1]);
        assert_eq!(agreed(&[said(0, 4), said(0, 4), said(0, 8)]), [2]);
        assert_eq!(agreed(&[sized(8), sized(4), sized(4)]), [1, 2]);
        assert_eq!(agreed(&[sized(8), said(0, 8)]), [0, 1], "who says nothing contradicts nobody");
        assert_eq!(agreed(&[anew(), said(0, 8)]), [1]);
        assert_eq!(agreed(&[anew(), anew()]), [0]);
    }
}
