//! Requests that met what they would make, or come a second time.
//!
//! - The kernel looks a name up, and then makes it. An accelerated process may make it in between, which the kernel cannot lock out: it is
//!   then told to look again ([`met`]), and names are held back until it did.
//! - What a daemon had read when it died, the kernel tells its successor once more (`keeper`), with a bit in the request's number.
//!   It may have been done. Most operations can be done twice; of the others, what is there tells whether it was: the kernel holds the
//!   directory locked from its look at the name to our answer, so what a name is now was done by this request or past the kernel.

use super::{Attributes, Backend, Inode};
use crate::backend::{Replace, Written};
use crate::error::{Errno, Result};
use fuser::Request;
use std::ffi::OsStr;

/// `FUSE_UNIQUE_RESEND`.
const RESENT: u64 = 1 << 63;
/// The kernel begins the call anew when it hears this, once, and judges by itself.
const LOOK_AGAIN: Errno = Errno(libc::ESTALE);

/// Whether a request may have been done by a daemon that died.
pub(super) fn is_again(request: &Request) -> bool {
    request.unique().0 & RESENT != 0
}

/// The kernel looked for a name, and before it could make it somebody made it past the kernel. Whether that is an error only the kernel knows: it asked
/// for a new file (`O_EXCL`), or for any.
pub(super) fn met(
    backend: &dyn Backend,
    (parent, name): (Inode, &OsStr),
    answer: Result<Attributes>,
) -> Result<Attributes> {
    match answer {
        Err(Errno::EXISTS) => {
            backend.look_again(parent, name);
            Err(LOOK_AGAIN)
        }
        other => other,
    }
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
