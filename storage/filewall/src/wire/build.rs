//! Small calls: those that FileWall itself sends to a server, and those of tests and benches.

use super::rpc::{flavor, mark_of, program};
use super::xdr::{put_opaque, put_u32, put_u64};

/// Who a built call says is calling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller<'a> {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Further groups, at most 16.
    pub groups: &'a [u32],
}

/// A record that is being built. The record mark is set when it is finished.
#[derive(Debug)]
pub struct Record {
    bytes: Vec<u8>,
}

impl Record {
    /// A call with AUTH_SYS credentials.
    pub fn call(xid: u32, program_number: u32, version: u32, procedure: u32, caller: &Caller<'_>) -> Self {
        let mut bytes = Vec::with_capacity(256);
        for word in [0, xid, 0, 2, program_number, version, procedure, flavor::SYS] {
            put_u32(&mut bytes, word);
        }
        let groups = &caller.groups[..caller.groups.len().min(super::rpc::GROUPS_MAX)];
        put_u32(&mut bytes, 4 + 8 + 8 + 4 + 4 * u32::try_from(groups.len()).unwrap_or(0));
        put_u32(&mut bytes, 0);
        put_opaque(&mut bytes, b"weir");
        put_u32(&mut bytes, caller.uid);
        put_u32(&mut bytes, caller.gid);
        put_u32(&mut bytes, u32::try_from(groups.len()).unwrap_or(0));
        groups.iter().for_each(|group| put_u32(&mut bytes, *group));
        put_u32(&mut bytes, flavor::NONE);
        put_u32(&mut bytes, 0);
        Record { bytes }
    }

    /// A call of NFSv3.
    pub fn nfs3(xid: u32, op: super::nfs3::Op, caller: &Caller<'_>) -> Self {
        Self::call(xid, program::NFS, 3, op as u32, caller)
    }

    /// One more integer.
    pub fn u32(mut self, value: u32) -> Self {
        put_u32(&mut self.bytes, value);
        self
    }

    /// One more hyper integer.
    pub fn u64(mut self, value: u64) -> Self {
        put_u64(&mut self.bytes, value);
        self
    }

    /// One more variable field.
    pub fn opaque(mut self, bytes: &[u8]) -> Self {
        put_opaque(&mut self.bytes, bytes);
        self
    }

    /// Bytes that are encoded already.
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// The record with its mark.
    pub fn finish(mut self) -> Vec<u8> {
        let mark = mark_of(self.bytes.len() - 4);
        self.bytes[..4].copy_from_slice(&mark.to_be_bytes());
        self.bytes
    }

    /// The record without its mark, as it travels in a datagram.
    pub fn datagram(self) -> Vec<u8> {
        self.bytes[4..].to_vec()
    }
}
