//! A call as it came, and why there may be no answer to it.

use super::missed::Extent;
use super::names::Number;
use crate::wire::call::Arguments;
use crate::wire::nfs3::{Handle, Op, Status};
use crate::wire::rpc::mark_of;
use crate::wire::xdr::put_opaque;
use std::io;

/// Why there is no answer.
#[derive(Debug)]
pub enum Lost {
    /// The server cannot be reached.
    Io(io::Error),
    /// It says this on the way to the object.
    Status(u32),
}

impl From<io::Error> for Lost {
    fn from(error: io::Error) -> Lost {
        Lost::Io(error)
    }
}

impl From<Status> for Lost {
    fn from(status: Status) -> Lost {
        Lost::Status(status.number())
    }
}

/// A call as it came: the record with its mark, and what it is about.
#[derive(Debug)]
pub struct Asked {
    /// The record, with its mark.
    pub record: Vec<u8>,
    /// Where its fields are, from behind the mark.
    pub arguments: Arguments,
    /// Objects of its handles.
    pub numbers: Vec<Number>,
}

impl Asked {
    /// Operation.
    pub fn op(&self) -> Op {
        self.arguments.op
    }

    /// The `number`th name.
    pub fn name(&self, number: usize) -> &[u8] {
        self.arguments.names[number].of(&self.record[4..])
    }

    /// The names that it changes, with their folders.
    pub fn changed_names(&self) -> impl Iterator<Item = (Number, &[u8])> {
        let at: &[(usize, usize)] = match self.op() {
            Op::Create | Op::Mkdir | Op::Symlink | Op::Mknod | Op::Remove | Op::Rmdir => &[(0, 0)],
            Op::Rename => &[(0, 0), (1, 1)],
            Op::Link => &[(1, 0)],
            _ => &[],
        };
        at.iter().map(|(folder, name)| (self.numbers[*folder], self.name(*name)))
    }

    /// The object whose content or attributes it changes, and which bytes.
    pub(super) fn changed_object(&self) -> Option<(Number, Extent)> {
        let end = self.arguments.offset.saturating_add(self.arguments.count.into());
        let extent = match self.op() {
            Op::Write => Extent { from: self.arguments.offset, to: end },
            Op::Commit if self.arguments.count == 0 => Extent { from: self.arguments.offset, to: u64::MAX },
            Op::Commit => Extent { from: self.arguments.offset, to: end },
            // It may set the length.
            Op::Setattr => Extent::ALL,
            Op::Link => Extent::NONE,
            _ => return None,
        };
        Some((self.numbers[0], extent))
    }

    /// The record with a server's handles.
    pub(super) fn with_handles(&self, handles: &[Handle]) -> Vec<u8> {
        let record = &self.record[4..];
        let mut out = vec![0; 4];
        let mut from = 0;
        for (span, handle) in self.arguments.handles.iter().zip(handles) {
            out.extend_from_slice(&record[from..span.start - 4]);
            put_opaque(&mut out, handle.as_bytes());
            from = span.padded_end();
        }
        out.extend_from_slice(&record[from..]);
        let mark = mark_of(out.len() - 4);
        out[..4].copy_from_slice(&mark.to_be_bytes());
        out
    }
}
