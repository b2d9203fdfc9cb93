//! Results of NFSv3 that FileWall makes itself, for objects that no server has (row F: virtual control namespace).

use super::nfs3::{ATTRIBUTES_BYTES, ftype};
use super::xdr::{put_opaque, put_u32, put_u64, set_u32};

/// Attributes of an object that is made up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// True for a folder.
    pub folder: bool,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Length, bytes.
    pub size: u64,
    /// File system.
    pub fsid: u64,
    /// Number.
    pub fileid: u64,
    /// Times: seconds since the Unix epoch, nanoseconds.
    pub time: (u32, u32),
}

/// Places in `fattr3`, bytes from its beginning.
pub mod at {
    /// Type.
    pub const KIND: usize = 0;
    /// Permission bits.
    pub const MODE: usize = 4;
    /// Owner.
    pub const UID: usize = 12;
    /// Group.
    pub const GID: usize = 16;
    /// Length.
    pub const SIZE: usize = 20;
    /// File system.
    pub const FSID: usize = 44;
    /// Number.
    pub const FILEID: usize = 52;
}

impl Attributes {
    /// As `fattr3`.
    pub fn bytes(&self) -> [u8; ATTRIBUTES_BYTES] {
        let mut out = Vec::with_capacity(ATTRIBUTES_BYTES);
        put_u32(&mut out, if self.folder { ftype::DIRECTORY } else { ftype::REGULAR });
        for word in [self.mode, if self.folder { 2 } else { 1 }, self.uid, self.gid] {
            put_u32(&mut out, word);
        }
        for number in [self.size, self.size, 0, self.fsid, self.fileid] {
            put_u64(&mut out, number);
        }
        for _ in 0..3 {
            put_u32(&mut out, self.time.0);
            put_u32(&mut out, self.time.1);
        }
        let mut bytes = [0; ATTRIBUTES_BYTES];
        bytes.copy_from_slice(&out);
        bytes
    }

    /// Writes type, mode, owner, length and number over those of a `fattr3`; times stay.
    pub fn overwrite(&self, fattr3: &mut [u8]) {
        let bytes = self.bytes();
        fattr3[..at::GID + 4].copy_from_slice(&bytes[..at::GID + 4]);
        fattr3[at::SIZE..at::SIZE + 16].copy_from_slice(&bytes[at::SIZE..at::SIZE + 16]);
        fattr3[at::FILEID..at::FILEID + 8].copy_from_slice(&bytes[at::FILEID..at::FILEID + 8]);
    }
}

/// Results being made.
#[derive(Debug, Default)]
pub struct Made(pub Vec<u8>);

impl Made {
    /// Of a call that succeeded.
    pub fn ok() -> Made {
        Made(vec![0; 4])
    }

    /// An integer.
    pub fn u32(mut self, value: u32) -> Made {
        put_u32(&mut self.0, value);
        self
    }

    /// A hyper integer.
    pub fn u64(mut self, value: u64) -> Made {
        put_u64(&mut self.0, value);
        self
    }

    /// A variable field.
    pub fn opaque(mut self, bytes: &[u8]) -> Made {
        put_opaque(&mut self.0, bytes);
        self
    }

    /// `fattr3`.
    pub fn attributes(mut self, attributes: &[u8; ATTRIBUTES_BYTES]) -> Made {
        self.0.extend_from_slice(attributes);
        self
    }

    /// `post_op_attr`.
    pub fn after(self, attributes: Option<&[u8; ATTRIBUTES_BYTES]>) -> Made {
        match attributes {
            None => self.u32(0),
            Some(attributes) => self.u32(1).attributes(attributes),
        }
    }

    /// `wcc_data` without what was before.
    pub fn change(self, attributes: &[u8; ATTRIBUTES_BYTES]) -> Made {
        self.u32(0).after(Some(attributes))
    }

    /// Overwrites the integer at `at`.
    pub fn set(mut self, at: usize, value: u32) -> Made {
        set_u32(&mut self.0, at, value);
        self
    }
}
