//! Requests that met what they would make, or come a second time.
//!
//! - The kernel looks a name up, and then makes it. An accelerated process may make it in between, which the kernel cannot lock out:
//!   [`open_instead`] then opens that file, unless the program asked for one that is new (`O_EXCL`).
//! - What a daemon had read when it died, the kernel tells its successor once more (`keeper`), with a bit in the request's number.
//!   It may have been done. Most operations can be done twice; of the others, what is there tells whether it was: the kernel holds the
//!   directory locked from its look at the name to our answer, so what a name is now was done by this request or past the kernel.

use super::{Attributes, Backend, Inode};
use crate::backend::{Change, Replace, Written};
use crate::error::{Errno, Result};
use fuser::Request;
use std::ffi::OsStr;

/// `FUSE_UNIQUE_RESEND`.
const RESENT: u64 = 1 << 63;
/// The kernel begins the open anew when it hears this, and judges by itself.
const LOOK_AGAIN: Errno = Errno(libc::ESTALE);
/// Times that a file may come and go while one is opened.
const TRIES: usize = 16;
const MAY_READ: u32 = 4;
const MAY_WRITE: u32 = 2;

/// Whether a request may have been done by a daemon that died.
pub(super) fn is_again(request: &Request) -> bool {
    request.unique().0 & RESENT != 0
}

/// Makes a file and opens it, or, without `O_EXCL`, opens the one that somebody else just made.
pub(super) fn make_or_open(
    backend: &dyn Backend,
    request: &Request,
    (parent, name): (Inode, &OsStr),
    mode: u32,
    flags: i32,
) -> Result<Attributes> {
    for _ in 0..TRIES {
        match backend.make(parent, name, super::new(request, mode, 0)) {
            Err(Errno::EXISTS) if flags & libc::O_EXCL == 0 || is_again(request) => {}
            other => return other,
        }
        match open_instead(backend, request, (parent, name), flags) {
            // Removed again.
            Err(Errno::NOT_FOUND) => {}
            other => return other,
        }
    }
    Err(LOOK_AGAIN)
}

/// The kernel believes the file to be new, so it neither asks for permission nor empties it: both are ours.
fn open_instead(
    backend: &dyn Backend,
    request: &Request,
    (parent, name): (Inode, &OsStr),
    flags: i32,
) -> Result<Attributes> {
    let found = backend.lookup(parent, name)?;
    let wanted = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => MAY_READ,
        libc::O_WRONLY => MAY_WRITE,
        _ => MAY_READ | MAY_WRITE,
    };
    let plain = found.mode & (libc::S_IFMT | libc::S_ISUID | libc::S_ISGID) == libc::S_IFREG;
    let allowed = found.user == request.uid() && found.mode >> 6 & wanted == wanted;
    let opened = if !plain || !allowed {
        Err(LOOK_AGAIN)
    } else if flags & libc::O_TRUNC != 0 {
        backend.change(found.inode, &Change { size: Some(0), ..Change::default() })
    } else {
        Ok(found)
    };
    if opened.is_err() {
        backend.forget(found.inode, 1);
    }
    opened
}

/// What was to be made is there: by this request, when it comes again.
pub(super) fn made(
    backend: &dyn Backend,
    request: &Request,
    (parent, name): (Inode, &OsStr),
    answer: Result<Attributes>,
) -> Result<Attributes> {
    match answer {
        Err(Errno::EXISTS) if is_again(request) => backend.lookup(parent, name),
        other => other,
    }
}

/// What was to be taken away is gone.
pub(super) fn gone(request: &Request, answer: Result<()>) -> Result<()> {
    match answer {
        Err(Errno::NOT_FOUND | Errno::NO_DATA) if is_again(request) => Ok(()),
        other => other,
    }
}

/// An attribute that was to be new.
pub(super) fn set(request: &Request, answer: Result<()>) -> Result<()> {
    match answer {
        Err(Errno::EXISTS) if is_again(request) => Ok(()),
        other => other,
    }
}

/// Two names that change places twice are as before, and nothing tells: whoever wants it must look.
pub(super) fn may_rename(request: &Request, replace: Replace) -> Result<()> {
    if replace == Replace::Exchange && is_again(request) { Err(Errno::IO) } else { Ok(()) }
}

/// Appends, unless these bytes are where the kernel believed the end to be.
pub(super) fn append(
    backend: &dyn Backend,
    request: &Request,
    inode: Inode,
    offset: u64,
    data: &[u8],
) -> Result<Written> {
    if is_again(request) {
        let mut there = vec![0; data.len()];
        if backend.read(inode, offset, &mut there)? == data.len() && there == data {
            return Ok(Written { bytes: data.len(), offset });
        }
    }
    backend.write(inode, offset, data, true)
}
