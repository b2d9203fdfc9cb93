//! What a backend must offer: about 25 operations, after Listings 4.1 and 4.2 of the DEFUSE paper.
//!
//! Departure from the listings: operations name files by inode number and parent, not by path, so that open and
//! unlinked or renamed files need no care; there is no open and no close, because descriptors are the kernel's
//! (no handle a descriptor exists that could be lost at exec, so `save` and `restore` are not needed either);
//! whether a caller may do something is checked by the kernel against the attributes, before a backend is asked.
//!
//! Invariants a backend keeps
//! - The root is inode 1. An inode number names one file from the reply that first tells it until `forget` has taken
//!   back every time that it was told; only then may it be used again.
//! - A file without names stays readable and writable until it is forgotten.
//! - Operations may run at once from several threads.

use crate::error::{Errno, Result};
use crate::journal::Journal;
use crate::segment::Segment;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::time::SystemTime;

/// Number of a file, as `stat` shows it.
pub type Inode = u64;
/// The root directory.
pub const ROOT: Inode = 1;

/// What `stat` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// Number of the file.
    pub inode: Inode,
    /// Kind and permissions, as in `st_mode`.
    pub mode: u32,
    /// Names.
    pub links: u32,
    /// Owner.
    pub user: u32,
    /// Group.
    pub group: u32,
    /// Number of a device, for device files.
    pub device: u32,
    /// Bytes.
    pub size: u64,
    /// Blocks of 512 bytes that it takes.
    pub blocks: u64,
    /// Last read.
    pub accessed: SystemTime,
    /// Last change of contents.
    pub modified: SystemTime,
    /// Last change of contents or attributes.
    pub changed: SystemTime,
}

impl Attributes {
    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFDIR
    }
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewTime {
    /// The moment at which it is done.
    Now,
    /// This one.
    At(SystemTime),
}

/// Attributes to set; nothing for those that stay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Change {
    /// Permissions.
    pub mode: Option<u32>,
    /// Owner.
    pub user: Option<u32>,
    /// Group.
    pub group: Option<u32>,
    /// Bytes.
    pub size: Option<u64>,
    /// Last read.
    pub accessed: Option<NewTime>,
    /// Last change of contents.
    pub modified: Option<NewTime>,
}

/// Who makes a file, and as what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct New {
    /// Kind and permissions (umask taken off).
    pub mode: u32,
    /// Number of a device, for device files.
    pub device: u32,
    /// Owner to be.
    pub user: u32,
    /// Group to be, unless the directory hands its own down.
    pub group: u32,
}

/// What a write did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Bytes taken.
    pub bytes: usize,
    /// Where they went: for appends this may be behind where the kernel believed the end to be.
    pub offset: u64,
}

/// One name of a directory.
#[derive(Debug)]
pub struct Entry<'a> {
    /// Number of the file.
    pub inode: Inode,
    /// Where to go on after this entry; never 0.
    pub next: u64,
    /// Kind, as in `st_mode`.
    pub mode: u32,
    /// The name.
    pub name: &'a OsStr,
}

/// How `rename` treats a name that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replace {
    /// It is replaced.
    Yes,
    /// It is an error.
    No,
    /// Both change places.
    Exchange,
}

/// Size of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Blocks in all.
    pub blocks: u64,
    /// Blocks free.
    pub blocks_free: u64,
    /// Files that there may be.
    pub files: u64,
    /// Files that may still be made.
    pub files_free: u64,
}

/// What is held for files as long as the kernel knows them: it forgets what nobody uses when it needs memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Held {
    /// Files that the kernel knows.
    pub files: u64,
    /// Descriptors of them.
    pub descriptors: u64,
    /// So many at most; 0 where none are held.
    pub descriptors_max: u64,
    /// Files whose descriptors made room for others.
    pub put_away: u64,
    /// Files that were opened again.
    pub reopened: u64,
    /// Times that a file could not be opened again: it was gone.
    pub lost: u64,
    /// Times that this process had no descriptor left, and made room.
    pub short: u64,
    /// Whether files are opened again by what the file system calls them, not by their names.
    pub by_handle: bool,
    /// Bytes of what a daemon that comes after this one is to know of them.
    pub journal_bytes: u64,
}

/// What the kernel may believe without asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consistency {
    /// The mount is the only way to the files: what the kernel was told stays true.
    Own,
    /// Others change them too. Who opens a file sees what was in it when it was last closed.
    CloseToOpen {
        /// How old names may be.
        names: std::time::Duration,
    },
}

/// A file system that [`crate::mount`] serves.
#[allow(missing_docs)] // names and the module's rules say it; what is particular is said
pub trait Backend: Send + Sync + 'static {
    /// Finds a name; counts as telling the inode once.
    fn lookup(&self, parent: Inode, name: &OsStr) -> Result<Attributes>;
    /// Takes back `times` tellings.
    fn forget(&self, inode: Inode, times: u64);
    fn attributes(&self, inode: Inode) -> Result<Attributes>;
    fn change(&self, inode: Inode, change: &Change) -> Result<Attributes>;
    fn read_link(&self, inode: Inode) -> Result<Vec<u8>>;
    /// Makes a file, pipe, socket or device; tells the inode.
    fn make(&self, parent: Inode, name: &OsStr, new: New) -> Result<Attributes>;
    /// The kernel found no such name, and the name was there when it was to be made: the kernel will look again. Until it did nobody makes
    /// names past it.
    fn look_again(&self, _parent: Inode, _name: &OsStr) {}
    /// Makes a directory; tells the inode.
    fn make_directory(&self, parent: Inode, name: &OsStr, new: New) -> Result<Attributes>;
    /// Makes a symbolic link; tells the inode.
    fn make_link(&self, parent: Inode, name: &OsStr, target: &OsStr, new: New) -> Result<Attributes>;
    /// Gives a file one more name; tells the inode.
    fn link(&self, inode: Inode, parent: Inode, name: &OsStr) -> Result<Attributes>;
    fn unlink(&self, parent: Inode, name: &OsStr) -> Result<()>;
    fn remove_directory(&self, parent: Inode, name: &OsStr) -> Result<()>;
    fn rename(&self, from: (Inode, &OsStr), to: (Inode, &OsStr), replace: Replace) -> Result<()>;
    /// Fills `to`; fewer bytes only at the end of the file.
    fn read(&self, inode: Inode, offset: u64, to: &mut [u8]) -> Result<usize>;
    /// With `append` the bytes go to the end, wherever that is now.
    fn write(&self, inode: Inode, offset: u64, from: &[u8], append: bool) -> Result<Written>;
    /// Returns when contents (and attributes, unless `data_only`) will survive a crash, as far as the backend can.
    fn sync(&self, inode: Inode, data_only: bool) -> Result<()>;
    /// Tells entries after place `after` (0: from the beginning) until there is no more or `entry` says false.
    fn list(&self, inode: Inode, after: u64, entry: &mut dyn FnMut(Entry<'_>) -> bool) -> Result<()>;
    fn space(&self) -> Result<Space>;
    /// The first offset from `offset` on that is data, or a hole.
    ///
    /// # Errors
    /// ENXIO behind the end.
    fn seek(&self, inode: Inode, offset: u64, hole: bool) -> Result<u64>;
    /// `fallocate(2)`, with its modes.
    fn allocate(&self, inode: Inode, offset: u64, bytes: u64, mode: i32) -> Result<()>;

    fn get_attribute(&self, _inode: Inode, _name: &OsStr) -> Result<Vec<u8>> {
        Err(Errno::UNSUPPORTED)
    }
    /// `flags` as of `setxattr(2)`.
    fn set_attribute(&self, _inode: Inode, _name: &OsStr, _value: &[u8], _flags: i32) -> Result<()> {
        Err(Errno::UNSUPPORTED)
    }
    /// Names, each ended by a zero byte.
    fn list_attributes(&self, _inode: Inode) -> Result<Vec<u8>> {
        Err(Errno::UNSUPPORTED)
    }
    fn remove_attribute(&self, _inode: Inode, _name: &OsStr) -> Result<()> {
        Err(Errno::UNSUPPORTED)
    }
    fn consistency(&self) -> Consistency {
        Consistency::Own
    }
    /// Without [`Consistency::Own`]: a file is opened. Whether pages of it that the kernel holds are still true.
    fn open(&self, _inode: Inode) -> Result<bool> {
        Ok(true)
    }
    /// Without [`Consistency::Own`]: a descriptor is closed; errors of what was written come now at the latest.
    fn close(&self, _inode: Inode) -> Result<()> {
        Ok(())
    }
    /// Without [`Consistency::Own`]: an open of [`Backend::open`] is over, also of all that inherited it.
    fn release(&self, _inode: Inode) {}
    /// Whether what was written is the store's, and can be synced, even if this process dies before it is.
    fn keeps_writes(&self) -> bool {
        true
    }
    /// Whether nothing can ever be written.
    fn read_only(&self) -> bool {
        false
    }
    /// What a person should know about this mount, a sentence each.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
    /// What is held for files that the kernel knows, where that grows with them.
    fn held(&self) -> Option<Held> {
        None
    }
    /// The kernel's own file that holds the bytes of `inode`, where the kernel may read, write and map it by itself.
    /// `None` for the root when that is never so.
    fn local(&self, _inode: Inode) -> Option<OwnedFd> {
        None
    }
    /// The shared memory by which processes of the mount's owner may read and write files themselves; the record of
    /// a file is its inode number. Nothing when the backend must be asked each time.
    fn segment(&self) -> Option<&Segment> {
        None
    }
    /// Asked about once a second: what may be done aside.
    fn tidy(&self) {}
    /// What a daemon must know that comes after this one died; nothing when the backend begins anew without it.
    fn journal(&self) -> Option<&Journal> {
        None
    }
    /// Files of which the kernel may hold what is no longer true when the daemon before died: what it was about to tell the kernel is lost.
    fn known(&self) -> Vec<Inode> {
        Vec::new()
    }
}
