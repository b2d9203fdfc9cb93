//! NFSv3 (RFC 1813): operations, status codes and limits.

use std::fmt;

/// Version of NFS that is decoded.
pub const VERSION: u32 = 3;
/// Longest file handle, bytes.
pub const HANDLE_BYTES_MAX: usize = 64;
/// Longest file handle of NFSv4, bytes.
pub const HANDLE4_BYTES_MAX: usize = 128;
/// Longest name that is let through, bytes. The RFC leaves it to servers; none that is known allows more.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest path (of a symbolic link, of a mount), bytes.
pub const PATH_BYTES_MAX: usize = 4096;
/// Longest payload of a READ or WRITE, bytes; FSINFO replies are cut to it, so that clients keep to it.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 20;
/// Longest listing that a server is asked for at once, bytes.
pub const LISTING_BYTES_MAX: usize = 256 << 10;
/// Length of `fattr3`, bytes.
pub const ATTRIBUTES_BYTES: usize = 84;
/// Number of procedures.
pub const OPS: usize = 22;

/// Declares [`Op`] once: procedures in the order of their numbers, and their names.
macro_rules! procedures {
    ($($(#[$doc:meta])* $op:ident = $name:literal,)*) => {
        /// A procedure of NFSv3.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Op {
            $($(#[$doc])* $op,)*
        }

        impl Op {
            /// All, by procedure number.
            pub const ALL: [Op; OPS] = [$(Op::$op,)*];
            const NAMES: [&str; OPS] = [$($name,)*];
        }
    };
}

procedures! {
    /// Nothing.
    Null = "NULL",
    /// Attributes of an object.
    Getattr = "GETATTR",
    /// Change of attributes.
    Setattr = "SETATTR",
    /// Handle of a name.
    Lookup = "LOOKUP",
    /// What the caller may do.
    Access = "ACCESS",
    /// Target of a symbolic link.
    Readlink = "READLINK",
    /// Bytes of a file.
    Read = "READ",
    /// Bytes to a file.
    Write = "WRITE",
    /// New file.
    Create = "CREATE",
    /// New directory.
    Mkdir = "MKDIR",
    /// New symbolic link.
    Symlink = "SYMLINK",
    /// New special file.
    Mknod = "MKNOD",
    /// Removal of a file.
    Remove = "REMOVE",
    /// Removal of a directory.
    Rmdir = "RMDIR",
    /// New name.
    Rename = "RENAME",
    /// Second name.
    Link = "LINK",
    /// Names of a directory.
    Readdir = "READDIR",
    /// Names, attributes and handles of a directory.
    Readdirplus = "READDIRPLUS",
    /// State of the file system.
    Fsstat = "FSSTAT",
    /// Limits of the file system.
    Fsinfo = "FSINFO",
    /// Limits of names.
    Pathconf = "PATHCONF",
    /// Bytes written are made durable.
    Commit = "COMMIT",
}

impl Op {
    /// The operation of a procedure number.
    pub fn from_number(number: u32) -> Option<Op> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// Procedure number, also an index into arrays of [`OPS`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// A bit for sets of operations.
    pub const fn bit(self) -> u32 {
        1 << self as u32
    }

    /// Its name, as in the RFC.
    pub fn name(self) -> &'static str {
        Self::NAMES[self.index()]
    }

    /// The operation of a name, in any case.
    pub fn from_name(name: &str) -> Option<Op> {
        Self::ALL.into_iter().find(|op| op.name().eq_ignore_ascii_case(name))
    }

    /// True if it changes the file system.
    pub fn changes(self) -> bool {
        self.bit() & CHANGES != 0
    }

    /// True if it makes an object.
    pub fn makes(self) -> bool {
        matches!(self, Op::Create | Op::Mkdir | Op::Symlink | Op::Mknod)
    }

    /// True if doing it twice differs from doing it once, so that a retransmission must not reach the server.
    pub fn once(self) -> bool {
        self.bit() & ONCE != 0
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

const fn bits(ops: &[Op]) -> u32 {
    let mut set = 0;
    let mut at = 0;
    while at < ops.len() {
        set |= 1 << ops[at] as u32;
        at += 1;
    }
    set
}

/// Operations that change the file system.
pub const CHANGES: u32 = bits(&[
    Op::Setattr,
    Op::Write,
    Op::Create,
    Op::Mkdir,
    Op::Symlink,
    Op::Mknod,
    Op::Remove,
    Op::Rmdir,
    Op::Rename,
    Op::Link,
    Op::Commit,
]);
/// Operations of which a second execution fails or does something else.
pub const ONCE: u32 = bits(&[
    Op::Setattr,
    Op::Create,
    Op::Mkdir,
    Op::Symlink,
    Op::Mknod,
    Op::Remove,
    Op::Rmdir,
    Op::Rename,
    Op::Link,
]);
/// Operations that look at content.
pub const READS: u32 = bits(&[Op::Read, Op::Readlink, Op::Readdir, Op::Readdirplus]);
/// Operations that look at names and attributes.
pub const LOOKS: u32 =
    bits(&[Op::Getattr, Op::Lookup, Op::Access, Op::Fsstat, Op::Fsinfo, Op::Pathconf, Op::Null]);
/// All operations.
pub const ALL_OPS: u32 = (1 << OPS) - 1;

/// Declares [`Status`] once: the numbers, their names, and the list that numbers of servers are looked up in cannot differ.
macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// `nfsstat3`: all of RFC 1813 but those of version 2 that no server of version 3 answers with; and a few of NFSv4.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Status {
            $($(#[$doc])* $name = $number,)*
        }

        impl Status {
            /// All.
            pub const ALL: &'static [Status] = &[$(Status::$name,)*];

            /// The status of a number of a server's; [`Status::ServerFault`] for one that is none.
            pub fn of(number: u32) -> Status {
                match number {
                    $($number => Status::$name,)*
                    _ => Status::ServerFault,
                }
            }
        }
    };
}

statuses! {
    /// Done.
    Ok = 0,
    /// Only the owner may.
    Perm = 1,
    /// There is no such name.
    Noent = 2,
    /// The disk does not answer.
    Io = 5,
    /// There is no such device.
    Nxio = 6,
    /// Access denied.
    Acces = 13,
    /// It is there already.
    Exist = 17,
    /// Two file systems, or what looks like two.
    Xdev = 18,
    /// There is no such device.
    Nodev = 19,
    /// It is no folder.
    Notdir = 20,
    /// It is a folder.
    Isdir = 21,
    /// The argument makes no sense.
    Inval = 22,
    /// The file would be too long.
    Fbig = 27,
    /// No space is left.
    Nospc = 28,
    /// The file system is read-only.
    Rofs = 30,
    /// It has too many names.
    Mlink = 31,
    /// The name is too long.
    Nametoolong = 63,
    /// The folder is not empty.
    Notempty = 66,
    /// Over quota.
    Dquot = 69,
    /// The handle is known no more.
    Stale = 70,
    /// Too many hops to the file.
    Remote = 71,
    /// The handle is none of ours.
    BadHandle = 10001,
    /// It was changed meanwhile.
    NotSync = 10002,
    /// The listing cannot go on from there.
    BadCookie = 10003,
    /// It cannot be done here.
    Notsupp = 10004,
    /// There is too little room for the answer.
    Toosmall = 10005,
    /// Something failed.
    ServerFault = 10006,
    /// There are no such objects here.
    Badtype = 10007,
    /// Try again later.
    Jukebox = 10008,
    /// It is a symbolic link. NFSv4 only, as those below: what a server of it says when it is asked for a name.
    Symlink = 10029,
    /// The name has signs that are not allowed.
    Badchar = 10040,
    /// The name is none that there can be.
    Badname = 10041,
}

impl Status {
    /// Number on the wire.
    pub fn number(self) -> u32 {
        self as u32
    }
}

/// Bits of ACCESS.
pub mod access {
    /// Read data or list.
    pub const READ: u32 = 1;
    /// Look a name up.
    pub const LOOKUP: u32 = 2;
    /// Rewrite data.
    pub const MODIFY: u32 = 4;
    /// Write new data or names.
    pub const EXTEND: u32 = 8;
    /// Delete a name.
    pub const DELETE: u32 = 16;
    /// Run a file.
    pub const EXECUTE: u32 = 32;
}

/// Types of `ftype3`.
pub mod ftype {
    /// File.
    pub const REGULAR: u32 = 1;
    /// Directory.
    pub const DIRECTORY: u32 = 2;
    /// Symbolic link.
    pub const LINK: u32 = 5;
}

/// A server's handle without zeros at its end: servers pad the same handle differently in NFSv3 and NFSv4.
pub fn bare(handle: &[u8]) -> &[u8] {
    handle.iter().rposition(|byte| *byte != 0).map_or(&[], |last| &handle[..=last])
}

/// A file handle by value, of either version.
#[derive(Clone, Copy)]
pub struct Handle {
    bytes: [u8; HANDLE4_BYTES_MAX],
    length: u8,
}

impl Handle {
    /// No bytes: of a call that has no handle.
    pub const EMPTY: Handle = Handle { bytes: [0; HANDLE4_BYTES_MAX], length: 0 };

    /// A handle of these bytes; `None` if there are more than [`HANDLE4_BYTES_MAX`].
    #[inline]
    pub fn new(bytes: &[u8]) -> Option<Handle> {
        let mut own = [0; HANDLE4_BYTES_MAX];
        own.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Handle { bytes: own, length: u8::try_from(bytes.len()).ok()? })
    }

    /// The bytes.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl PartialEq for Handle {
    fn eq(&self, other: &Handle) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Handle {}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
