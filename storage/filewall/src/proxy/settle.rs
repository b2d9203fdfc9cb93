//! Calls of which nobody knows whether the server has carried them out (paper 4, future work: fault tolerance).
//!
//! When FileWall, or the connection to the server, ends with a call pending that must happen once, the client sends it again.
//! Whether it has happened shows in the folder: a name that a REMOVE was about is gone, one that a MKDIR makes is there. If so,
//! the copy is answered with success, and the server does not see it twice; if not, it goes on.
//!
//! What cannot be told apart: another client that has done the same in between. The answer is right for it too: what was asked
//! for is so.

use crate::message::{Call, Probe, Told};
use crate::wire::make::Made;
use crate::wire::nfs3::{Handle, Op, Status};

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

/// Settles a copy, as far as the server has told.
pub(super) fn settle(call: &Call<'_>) -> Settled {
    let probe = |handle: usize, name: usize| Probe {
        handle: Handle::new(call.handle(handle)).unwrap_or(Handle::EMPTY),
        name: Some(call.name(name).into()),
    };
    let told = |wanted: Probe| match call.told.iter().find(|told| told.probe == wanted) {
        Some(told) => Ok(told),
        None => Err(Settled::Ask(Box::new(wanted))),
    };
    let noent = Status::Noent.number();
    let decide = || -> Result<Settled, Settled> {
        let (target, gone) = match call.op() {
            Op::Remove | Op::Rmdir => (told(probe(0, 0))?, true),
            Op::Mkdir | Op::Symlink | Op::Mknod => (told(probe(0, 0))?, false),
            Op::Create => {
                let how = call.word(call.arguments.names[0].padded_end());
                if how != GUARDED {
                    return Ok(Settled::Again);
                }
                (told(probe(0, 0))?, false)
            }
            Op::Link => (told(probe(1, 0))?, false),
            Op::Rename => {
                let from = told(probe(0, 0))?;
                match from.status {
                    0 => return Ok(Settled::Again),
                    status if status == noent => (told(probe(1, 1))?, false),
                    _ => return Ok(Settled::Later),
                }
            }
            _ => return Ok(Settled::Again),
        };
        Ok(match target.status {
            0 if !gone => Settled::Done(results(call.op(), target)),
            status if status == noent && gone => Settled::Done(results(call.op(), target)),
            0 => Settled::Again,
            status if status == noent => Settled::Again,
            _ => Settled::Later,
        })
    };
    decide().unwrap_or_else(|ask| ask)
}

/// Success, in the shape of an operation, without attributes of folders.
fn results(op: Op, target: &Told) -> Vec<u8> {
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
