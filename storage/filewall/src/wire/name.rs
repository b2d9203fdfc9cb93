//! What a name is: the one place that says so, for names in calls, in listings of servers, in paths of mounts, and in policies.
//!
//! Policies judge a name as one step from a folder. A server may see more in it: one that hands names to its system as they
//! are goes several steps where there is a `/`, and ends where there is a NUL. Then what is done is not what was judged, and what
//! is learnt of the answer holds for all clients. So what is no name goes no further than here.
//!
//! Invariants
//! - A name has 1 to [`NAME_BYTES_MAX`] bytes, none of them `/` or NUL.
//! - `.` and `..` are no names of something that is made, removed, moved or, in NFSv4, looked up.
//! - Names are compared byte for byte: a server behind FileWall must tell upper from lower case.

use super::nfs3::{NAME_BYTES_MAX, Status};
use super::nfs4::status;

/// What a name is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It is looked up: `.` and `..` have a meaning (NFSv3 only).
    Look,
    /// It is made, removed, moved, or looked up in NFSv4.
    Change,
}

/// Why bytes are no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misnamed {
    /// There are none.
    #[error("a name is empty")]
    Empty,
    /// A `/`, or a NUL, is among them.
    #[error("a name has a '/' or a NUL in it")]
    Sign,
    /// `.` or `..`, where they have no meaning.
    #[error("'.' and '..' name nothing here")]
    Dots,
    /// There are too many.
    #[error("a name has more than {NAME_BYTES_MAX} bytes")]
    Long,
}

impl Misnamed {
    /// What such a call is answered with in NFSv3.
    pub fn status(self) -> Status {
        match self {
            Misnamed::Long => Status::Nametoolong,
            Misnamed::Empty | Misnamed::Sign | Misnamed::Dots => Status::Inval,
        }
    }

    /// What such an operation is answered with in NFSv4.
    pub fn status4(self) -> u32 {
        match self {
            Misnamed::Long => status::NAMETOOLONG,
            Misnamed::Empty => status::INVAL,
            Misnamed::Sign | Misnamed::Dots => status::BADNAME,
        }
    }
}

/// Says whether bytes are a name.
///
/// # Errors
/// Why they are none.
#[inline]
pub fn check(name: &[u8], what: Use) -> Result<(), Misnamed> {
    let (signs, dots) = name.iter().fold((false, true), |(signs, dots), byte| {
        (signs | matches!(byte, 0 | b'/'), dots & (*byte == b'.'))
    });
    match name.len() {
        0 => Err(Misnamed::Empty),
        _ if signs => Err(Misnamed::Sign),
        1 | 2 if dots && what == Use::Change => Err(Misnamed::Dots),
        bytes if bytes > NAME_BYTES_MAX => Err(Misnamed::Long),
        _ => Ok(()),
    }
}

/// The names of a path: what stands between its `/`, without `.`, which leads nowhere.
///
/// # Errors
/// Why one of them is no name; `..` is none, for nobody can say here where it leads.
pub fn of_path(path: &[u8]) -> Result<Vec<&[u8]>, Misnamed> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
    names.map(|name| check(name, Use::Change).map(|()| name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_step_and_nothing_else() {
        use Misnamed::{Dots, Empty, Long, Sign};
        for what in [Use::Look, Use::Change] {
            for sound in [&b"a"[..], b"...", b".a", b"..a", b"a b", b"\xff\xfe", &[b'a'; NAME_BYTES_MAX]] {
                assert_eq!(check(sound, what), Ok(()), "{sound:?}");
            }
            for (wrong, why) in [
                (&b""[..], Empty),
                (b"/", Sign),
                (b"a/b", Sign),
                (b"a/", Sign),
                (b"/a", Sign),
                (b"../..", Sign),
                (b"./a", Sign),
                (b"\0", Sign),
                (b"a\0", Sign),
                (b"a\0b", Sign),
                (b"..\0", Sign),
                (&[b'a'; NAME_BYTES_MAX + 1], Long),
            ] {
                assert_eq!(check(wrong, what), Err(why), "{wrong:?}");
            }
        }
        for dots in [&b"."[..], b".."] {
            assert_eq!(check(dots, Use::Look), Ok(()));
            assert_eq!(check(dots, Use::Change), Err(Dots));
        }
    }

    #[test]
    fn a_path_is_a_row_of_names() {
        assert_eq!(of_path(b"/a//b/./c/"), Ok(vec![&b"a"[..], b"b", b"c"]));
        assert_eq!(of_path(b""), Ok(Vec::new()));
        assert_eq!(of_path(b"/a/../b"), Err(Misnamed::Dots));
        assert_eq!(of_path(b"/a\0/b"), Err(Misnamed::Sign));
        assert_eq!(of_path(&[b'a'; NAME_BYTES_MAX + 1]), Err(Misnamed::Long));
    }
}
