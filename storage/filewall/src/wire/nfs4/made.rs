//! Results of NFSv4 that FileWall makes itself, for objects that no server has: those that were made in the form of NFSv3
//! ([`crate::wire::make`]), said in the words of NFSv4.

use super::{
    ATTRIBUTE_ERROR, ATTRIBUTE_FILEID, ATTRIBUTE_FSID, ATTRIBUTE_GROUP, ATTRIBUTE_HANDLE, ATTRIBUTE_KIND,
    ATTRIBUTE_MODE, ATTRIBUTE_OWNER, ATTRIBUTE_SIZE, ATTRIBUTES_LIMITS, Op4, has_bit, status,
};
use crate::wire::nfs3::{ATTRIBUTES_BYTES, NAME_BYTES_MAX, PAYLOAD_BYTES_MAX};
use crate::wire::xdr::{get_u32, put_opaque, put_u32, put_u64, set_u32};

/// Where a `fattr3` has what an object of NFSv4 needs, bytes from its beginning.
mod at {
    pub use crate::wire::make::at::*;
    pub const NLINK: usize = 8;
    pub const USED: usize = 28;
    pub const ATIME: usize = 60;
    pub const MTIME: usize = 68;
    pub const CTIME: usize = 76;
}

/// Words of the bitmap of all attributes that such an object has.
const SUPPORTED: [u32; 2] = {
    let mut words = [0; 2];
    let all = [
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 19, 20, 27, 28, 29, 30, 31, 33, 35, 36, 37, 41, 45, 47, 51, 52,
        53, 55,
    ];
    let mut number = 0;
    while number < all.len() {
        words[all[number] / 32] |= 1 << (all[number] % 32);
        number += 1;
    }
    words
};

/// What an object is.
#[derive(Clone, Copy, Debug)]
pub struct Object4<'a> {
    /// `fattr3`; without it nothing is said of the object but that.
    pub attributes: Option<&'a [u8; ATTRIBUTES_BYTES]>,
    /// Its handle, as the client gets it.
    pub handle: &'a [u8],
    /// File system: the client sees one with that of the export.
    pub fsid: (u64, u64),
}

impl Object4<'_> {
    /// Appends `fattr4` with those of the wanted attributes that it has.
    pub fn put(&self, wanted: &[u8], out: &mut Vec<u8>) {
        let bits_at = out.len() + 4;
        [2, 0, 0].into_iter().for_each(|word| put_u32(out, word));
        let length_at = out.len();
        put_u32(out, 0);
        for attribute in 0..64 {
            let has = SUPPORTED[attribute as usize / 32] & 1 << (attribute % 32) != 0;
            let says = self.attributes.is_some() || attribute == ATTRIBUTE_ERROR;
            if has && says && has_bit(wanted, attribute) {
                let at = bits_at + 4 * (attribute as usize / 32);
                let word = get_u32(out, at);
                set_u32(out, at, word | 1 << (attribute % 32));
                self.value(attribute, out);
            }
        }
        let bytes = out.len() - length_at - 4;
        set_u32(out, length_at, u32::try_from(bytes).unwrap_or(u32::MAX));
    }

    fn value(&self, attribute: u32, out: &mut Vec<u8>) {
        let none = [0; ATTRIBUTES_BYTES];
        let of = self.attributes.unwrap_or(&none);
        let word = |at: usize| get_u32(of, at);
        let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
        let mut time = |at: usize| {
            put_u64(out, u64::from(word(at)));
            put_u32(out, word(at + 4));
        };
        match attribute {
            47 => time(at::ATIME),
            51 => put_times(out, &[0, 1]),
            52 => time(at::CTIME),
            53 => time(at::MTIME),
            0 => [2, SUPPORTED[0], SUPPORTED[1]].into_iter().for_each(|word| put_u32(out, word)),
            ATTRIBUTE_KIND => put_u32(out, word(at::KIND)),
            // What it shows may have changed when its handle is used again: the handle lives as long as that.
            2 => put_u32(out, 2),
            3 => put_u64(out, long(at::CTIME) ^ long(at::FILEID) << 1),
            ATTRIBUTE_SIZE => put_u64(out, long(at::SIZE)),
            ATTRIBUTE_FSID => [self.fsid.0, self.fsid.1].into_iter().for_each(|part| put_u64(out, part)),
            // No links, no named attributes; handles differ where objects do; a lease as of most servers.
            5..=7 => put_u32(out, 0),
            9 => put_u32(out, 1),
            10 => put_u32(out, 60),
            ATTRIBUTE_ERROR => put_u32(out, if self.attributes.is_some() { 0 } else { status::ACCES }),
            ATTRIBUTE_HANDLE => put_opaque(out, self.handle),
            ATTRIBUTE_FILEID | 55 => put_u64(out, long(at::FILEID)),
            27 => put_u64(out, PAYLOAD_BYTES_MAX as u64),
            28 => put_u32(out, 2),
            29 => put_u32(out, NAME_BYTES_MAX as u32),
            _ if ATTRIBUTES_LIMITS.contains(&attribute) => put_u64(out, PAYLOAD_BYTES_MAX as u64),
            ATTRIBUTE_MODE => put_u32(out, word(at::MODE)),
            35 => put_u32(out, word(at::NLINK)),
            ATTRIBUTE_OWNER => put_opaque(out, word(at::UID).to_string().as_bytes()),
            ATTRIBUTE_GROUP => put_opaque(out, word(at::GID).to_string().as_bytes()),
            41 => put_u64(out, 0),
            45 => put_u64(out, long(at::USED)),
            _ => {}
        }
    }
}

/// `time_delta`: seconds, nanoseconds.
fn put_times(out: &mut Vec<u8>, [seconds, nanoseconds]: &[u32; 2]) {
    put_u64(out, u64::from(*seconds));
    put_u32(out, *nanoseconds);
}

/// The beginning of a result.
pub fn result(op: Op4, status: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    put_u32(&mut out, op.number());
    put_u32(&mut out, status);
    out
}

/// A result of an operation that failed.
pub fn failed(op: Op4, status: u32) -> Vec<u8> {
    let mut out = result(op, status);
    if op == Op4::SetAttr {
        put_u32(&mut out, 0);
    }
    out
}

/// Appends a bitmap of the attributes among `asked` that were set: the length, and nothing else can be.
pub fn put_set(out: &mut Vec<u8>, asked: &[u8]) {
    let size = has_bit(asked, ATTRIBUTE_SIZE);
    put_u32(out, u32::from(size));
    if size {
        put_u32(out, 1 << ATTRIBUTE_SIZE);
    }
}
