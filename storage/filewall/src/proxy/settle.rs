//! Calls of which nobody knows whether the server has carried them out (paper 4, future work: fault tolerance).
//!
//! When FileWall, or the connection to the server, ends with a call pending that must happen once, the client sends it again.
//! Whether it has happened shows in the folder: a name that a REMOVE was about is gone, one that a MKDIR makes is there. If so,
//! the copy is answered with success, and the server does not see it twice; if not, it goes on.
//!
//! A server may carry the first one out between that look and the copy. Then the copy fails, because the name is gone or there
//! already: such an answer is not passed on before a second look ([`overtaken`], [`happened`]).
//!
//! What cannot be told apart: another client that has done the same in between. The answer is right for it too: what was asked
//! for is so.

use crate::message::{Asked, Call, Probe, ProbeAnswer};
use crate::wire::make::{Made, at};
use crate::wire::nfs3::{Handle, Op, Status, ftype};
use crate::wire::xdr::get_u32;

/// What to do with a copy.
#[derive(Debug)]
pub(super) enum Settled {
    /// Ask the server this first.
    Ask(Box<Probe>),
    /// It has happened: these are its results.
    Done(Vec<u8>),
    /// It has not happened, or may happen twice.
    Again,
    /// The server cannot say it now.
    Later,
}

/// GUARDED, as the way in which CREATE makes a file.
const GUARDED: u32 = 1;

/// The name that shows whether an operation has happened: where it is among handles and names, and whether it is gone then.
/// `None` for operations that may happen twice, or that the server tells apart itself.
fn target(call: &Call<'_>) -> Option<(usize, usize, bool)> {
    match call.op() {
        Op::Remove | Op::Rmdir => Some((0, 0, true)),
        Op::Mkdir | Op::Symlink | Op::Mknod => Some((0, 0, false)),
        // Of the others, one makes no difference and one carries a verifier.
        Op::Create if call.word(call.arguments.names[0].padded_end()) == GUARDED => Some((0, 0, false)),
        Op::Link => Some((1, 0, false)),
        Op::Rename => Some((1, 1, false)),
        _ => None,
    }
}

/// True if the fate of a call shows in a folder.
pub(super) fn shows(call: &Call<'_>) -> bool {
    target(call).is_some()
}

/// Settles a copy, as far as the server has told.
pub(super) fn settle(call: &Call<'_>) -> Settled {
    let Some((handle, name, gone)) = target(call) else { return Settled::Again };
    let told = |handle: usize, name: usize| {
        let wanted = Probe {
            handle: Handle::new(call.handle(handle)).unwrap_or(Handle::EMPTY),
            name: Some(call.name(name).into()),
        };
        match call.told.iter().find(|told| told.probe == wanted) {
            Some(told) => Ok(told),
            None => Err(Settled::Ask(Box::new(wanted))),
        }
    };
    let decide = || {
        if call.op() == Op::Rename {
            match Status::of(told(0, 0)?.status) {
                Status::Ok => return Ok(Settled::Again),
                Status::Noent => {}
                _ => return Ok(Settled::Later),
            }
        }
        let found = told(handle, name)?;
        Ok(match Status::of(found.status) {
            Status::Ok | Status::Noent if is_so(call.op(), gone, found) => {
                Settled::Done(results(call.op(), found))
            }
            Status::Ok | Status::Noent => Settled::Again,
            _ => Settled::Later,
        })
    };
    decide().unwrap_or_else(|ask| ask)
}

/// True if what an operation is for is so: its name is gone, or there and of the kind that it makes.
fn is_so(op: Op, gone: bool, told: &ProbeAnswer) -> bool {
    let made = match op {
        Op::Mkdir => Some(ftype::DIRECTORY),
        Op::Create => Some(ftype::REGULAR),
        Op::Symlink => Some(ftype::LINK),
        _ => None,
    };
    let kind = told.attributes.as_ref().map(|attributes| get_u32(attributes, at::KIND));
    match Status::of(told.status) {
        Status::Noent => gone,
        Status::Ok => !gone && (made.is_none() || kind.is_none() || kind == made),
        _ => false,
    }
}

/// What to ask when the server has answered a copy of a call with unknown fate: `None` if its answer says nothing about
/// whether the first one has happened.
pub(super) fn overtaken(asked: &Asked, status: u32) -> Option<Probe> {
    let (handle, name) = match (asked.op, Status::of(status)) {
        (Op::Remove | Op::Rmdir, Status::Noent)
        | (Op::Create | Op::Mkdir | Op::Symlink | Op::Mknod, Status::Exist) => {
            (Some(asked.handle), &asked.name)
        }
        (Op::Link, Status::Exist) => (asked.handle_to, &asked.name),
        (Op::Rename, Status::Noent) => (asked.handle_to, &asked.name_to),
        _ => return None,
    };
    Some(Probe { handle: handle?, name: Some(name.clone()?) })
}

/// The results of a call that was overtaken by its first copy, as far as the second look shows that it was.
pub(super) fn happened(op: Op, told: &ProbeAnswer) -> Option<Vec<u8>> {
    let gone = matches!(op, Op::Remove | Op::Rmdir);
    is_so(op, gone, told).then(|| results(op, told))
}

/// Success, in the shape of an operation, without attributes of folders.
fn results(op: Op, target: &ProbeAnswer) -> Vec<u8> {
    let made = match op {
        Op::Remove | Op::Rmdir => Made::ok().u32(0).u32(0),
        Op::Rename => (0..4).fold(Made::ok(), |made, _| made.u32(0)),
        Op::Link => (0..3).fold(Made::ok(), |made, _| made.u32(0)),
        _ => {
            let handle = target.handle.as_ref();
            let made = match handle {
                Some(handle) => Made::ok().u32(1).opaque(handle.as_bytes()),
                None => Made::ok().u32(0),
            };
            made.after(target.attributes.as_ref()).u32(0).u32(0)
        }
    };
    made.0
}
