//! NFSv4.0 and 4.1 (RFC 7530, RFC 8881): COMPOUND, decoded where it lies.
//!
//! - [`arguments`]: the operations of a call. - [`results`]: their results. - [`made`]: results that FileWall makes.
//!
//! Decoding is strict: every field of every operation is stepped over under its limit, for the next operation begins where
//! this one ends. An operation that is not known, or not served, ends the list: what stands behind it cannot be reached,
//! and the server would not carry it out either.

pub mod arguments;
pub mod made;
mod parts;
pub mod results;
pub mod status;

use super::nfs3::Op;
use super::xdr::{Read, Reader, Span};

/// Version of the program.
pub const VERSION: u32 = 4;
/// Procedure COMPOUND; 0 is NULL.
pub const COMPOUND: u32 = 1;
/// Newest minor version that is served.
pub const MINOR_MAX: u32 = 1;
/// Most operations of one COMPOUND.
pub const OPS_MAX: usize = 64;
/// Longest tag, bytes.
pub const TAG_BYTES_MAX: usize = 1024;
/// Longest opaque name of a client or owner, bytes.
pub const OPAQUE_BYTES_MAX: usize = 1024;
/// Longest list of attributes' values, bytes.
pub const ATTRIBUTES_BYTES_MAX: usize = 256 << 10;
/// Longest name that is read, bytes; which are too long is said by [`crate::wire::name`].
pub const NAME_BYTES_MAX: usize = 4096;
/// Longest bitmap, words: more than any attribute needs, for clients may ask for what nobody knows.
pub const BITMAP_WORDS_MAX: usize = 64;
/// Length of a state identifier, bytes.
pub const STATE_BYTES: usize = 16;
/// Length of a session identifier, bytes.
pub const SESSION_BYTES: usize = 16;
/// Length of a client's number, bytes.
pub const CLIENT_BYTES: usize = 8;

/// Numbers of attributes.
pub const ATTRIBUTE_KIND: u32 = 1;
/// Length.
pub const ATTRIBUTE_SIZE: u32 = 4;
/// File system.
pub const ATTRIBUTE_FSID: u32 = 8;
/// Why an entry has no others.
pub const ATTRIBUTE_ERROR: u32 = 11;
/// Number in the file system.
pub const ATTRIBUTE_FILEID: u32 = 20;
/// Permission bits.
pub const ATTRIBUTE_MODE: u32 = 33;
/// Owner, as text.
pub const ATTRIBUTE_OWNER: u32 = 36;
/// Group, as text.
pub const ATTRIBUTE_GROUP: u32 = 37;
/// Number of the attribute that is the object's handle.
pub const ATTRIBUTE_HANDLE: u32 = 19;
/// Numbers of the attributes that are the longest READ and WRITE.
pub const ATTRIBUTES_LIMITS: [u32; 2] = [30, 31];
/// Attributes that would lead a client to another server.
pub const ATTRIBUTES_LOCATIONS: [u32; 2] = [24, 67];

macro_rules! ops {
    ($($name:ident = $number:literal,)*) => {
        /// An operation that is served.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum Op4 {
            $(#[doc = concat!("Operation ", stringify!($number), ".")] $name = $number,)*
        }

        impl Op4 {
            /// The operation of a number.
            pub fn from_number(number: u32) -> Option<Op4> {
                match number {
                    $($number => Some(Op4::$name),)*
                    _ => None,
                }
            }

            /// All of them.
            pub const ALL: &[Op4] = &[$(Op4::$name,)*];
        }
    };
}

ops! {
    Access = 3, Close = 4, Commit = 5, Create = 6, DelegPurge = 7, DelegReturn = 8, GetAttr = 9, GetFh = 10, Link = 11,
    Lock = 12, LockTest = 13, Unlock = 14, Lookup = 15, LookupParent = 16, NVerify = 17, Open = 18, OpenConfirm = 20, OpenDowngrade = 21,
    PutFh = 22, PutPubFh = 23, PutRootFh = 24, Read = 25, ReadDir = 26, ReadLink = 27, Remove = 28, Rename = 29, Renew = 30,
    RestoreFh = 31, SaveFh = 32, SecInfo = 33, SetAttr = 34, SetClientId = 35, SetClientIdConfirm = 36, Verify = 37,
    Write = 38, ReleaseLockOwner = 39, BindConnection = 41, ExchangeId = 42, CreateSession = 43, DestroySession = 44,
    FreeState = 45, SecInfoNoName = 52, Sequence = 53, TestState = 55, DestroyClientId = 57, ReclaimComplete = 58,
}

impl Op4 {
    /// Number on the wire.
    pub fn number(self) -> u32 {
        self as u32
    }

    /// First minor version that has it.
    pub fn minor_first(self) -> u32 {
        u32::from(self.number() >= 40)
    }

    /// True if only minor version 0 has it.
    pub fn only_first(self) -> bool {
        matches!(
            self,
            Op4::OpenConfirm
                | Op4::Renew
                | Op4::SetClientId
                | Op4::SetClientIdConfirm
                | Op4::ReleaseLockOwner
        )
    }
}

/// Status of an operation that is not served: known to the protocol (`NOTSUPP`) or not (`ILLEGAL`).
pub fn refusal_of(number: u32) -> u32 {
    if (3..=58).contains(&number) { status::NOTSUPP } else { status::ILLEGAL }
}

/// A `bitmap4`: where its words are.
fn bitmap(reader: &mut Reader<'_>) -> Read<Span> {
    let words = reader.length(BITMAP_WORDS_MAX)?;
    let start = reader.at();
    reader.take(4 * words)?;
    Ok(Span { start, bytes: 4 * words })
}

/// True if a bitmap has an attribute.
fn has(reader: &Reader<'_>, bitmap: Span, attribute: u32) -> bool {
    has_bit(reader.slice(bitmap), attribute)
}

/// True if the words of a bitmap have an attribute.
pub fn has_bit(words: &[u8], attribute: u32) -> bool {
    let at = 4 * (attribute / 32) as usize;
    let Some(word) = words.get(at..at + 4) else { return false };
    u32::from_be_bytes([word[0], word[1], word[2], word[3]]) & 1 << (attribute % 32) != 0
}

/// The operation of NFSv3 that rules speak of, where there is one.
pub fn as_nfs3(op: Op4) -> Option<Op> {
    Some(match op {
        Op4::Access => Op::Access,
        Op4::Commit => Op::Commit,
        // Locks tell who has locked what of a file.
        Op4::GetAttr | Op4::Verify | Op4::NVerify | Op4::Lock | Op4::LockTest => Op::Getattr,
        Op4::Link => Op::Link,
        Op4::Lookup | Op4::SecInfo => Op::Lookup,
        Op4::Read => Op::Read,
        Op4::ReadDir => Op::Readdirplus,
        Op4::ReadLink => Op::Readlink,
        Op4::Remove => Op::Remove,
        Op4::Rename => Op::Rename,
        Op4::SetAttr => Op::Setattr,
        Op4::Write => Op::Write,
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
