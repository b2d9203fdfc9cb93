//! `mem:`: files in memory, shared by all processes of the machine (the paper's CRUISE, Table 4.2).
//!
//! Names and attributes are the daemon's, under one lock; bytes, sizes and times of contents are in the
//! [`Segment`], so that accelerated processes read and write them without the daemon. Nothing outlives the mount. What outlives the
//! daemon is the segment and, where somebody keeps both (`keeper`), a journal of the tree.
//!
//! Invariants
//! - Regular files have the record of their inode number, live from `make` until the last name and the last telling
//!   are gone.
//! - Lock order: the tree, then a record.

mod locked;
mod recall;
mod tree;

use crate::backend::{
    Attributes, Backend, Change, Entry, Inode, New, NewTime, ROOT, Replace, Space, Written,
};
use crate::error::{Errno, Result};
use crate::journal::Journal;
use crate::segment::{BLOCK_BYTES, Record, Secret, Segment};
use locked::Locked;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;
use tree::{Content, Node, Tree};

/// Longest name.
pub(crate) const NAME_BYTES_MAX: usize = 255;
/// Bytes of one extended attribute's value, as the kernel's own limit.
const ATTRIBUTE_BYTES_MAX: usize = 65_536;
/// Free blocks that keep their memory for the next files: 64 MiB.
const IDLE_KEPT: u64 = (64 << 20) / BLOCK_BYTES;
/// What a change of the file takes away. The kernel sees to that, as it sees to set-user-id bits.
const CAPABILITIES: &str = "security.capability";
/// Beginnings of extended attributes' names that there are, as on tmpfs.
const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
/// Extended attributes of a file.
const ATTRIBUTES_MAX: usize = 1024;

/// Limits of a file system in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of all files.
    pub bytes_max: u64,
    /// Files, directories too.
    pub files_max: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { bytes_max: 8 << 30, files_max: 1 << 20 }
    }
}

/// Whether an extended attribute may have this name: one of those beginnings, and more.
fn attribute_name(name: &OsStr) -> Result<()> {
    let name = name.as_encoded_bytes();
    match NAMESPACES.iter().find(|space| name.starts_with(space)) {
        None => Err(Errno::UNSUPPORTED),
        Some(space) if space.len() == name.len() => Err(Errno::INVALID),
        Some(_) => Ok(()),
    }
}

/// Files in memory.
#[derive(Debug)]
pub struct Memory {
    segment: Segment,
    tree: Mutex<Tree>,
    /// What a daemon that comes after us must know, where one may.
    journal: Option<Journal>,
    /// Blocks that were free when it was tidied last.
    idle: AtomicU64,
}

impl Memory {
    /// An empty file system whose root belongs to `user` and `group`.
    pub fn new(limits: Limits, user: u32, group: u32) -> std::io::Result<Memory> {
        Memory::with(limits, (user, group), None)
    }

    /// The same, whose files processes do not make and open by themselves: what a file system in user space is without that.
    pub fn plain(limits: Limits, user: u32, group: u32) -> std::io::Result<Memory> {
        let segment = Segment::create(limits.files_max, limits.bytes_max)?;
        let tree = Mutex::new(Tree::new(limits.files_max, user, group));
        Ok(Memory { segment, tree, journal: None, idle: AtomicU64::new(0) })
    }

    /// The same, which [`Memory::recall`] finds again when its daemon died.
    pub fn kept(limits: Limits, user: u32, group: u32) -> std::io::Result<Memory> {
        Memory::with(limits, (user, group), Some(Journal::create()?))
    }

    fn with(limits: Limits, owner: (u32, u32), journal: Option<Journal>) -> std::io::Result<Memory> {
        let segment = Segment::create_with_names(limits.files_max, limits.bytes_max)?;
        let tree = Mutex::new(Tree::new(limits.files_max, owner.0, owner.1));
        let memory = Memory { segment, tree, journal, idle: AtomicU64::new(0) };
        // The root comes into the segment.
        drop(memory.tree());
        Ok(memory)
    }

    /// The files of a daemon that died.
    pub fn recall(segment: OwnedFd, journal: [OwnedFd; 2]) -> std::io::Result<Memory> {
        let segment = Segment::join(segment)?;
        let mut tree = Tree::new(segment.records_max(), 0, 0);
        let journal = Journal::open(journal, |batch| batch.into_iter().for_each(|entry| tree.redo(entry)))?;
        locked::mend(&segment, &mut tree, &journal);
        Ok(Memory { segment, tree: Mutex::new(tree), journal: Some(journal), idle: AtomicU64::new(0) })
    }

    fn record(&self, node: &Node, inode: Inode) -> Result<Record<'_>> {
        match node.content {
            Content::File => self.segment.record(inode),
            Content::Directory(_) => Err(Errno::IS_A_DIRECTORY),
            _ => Err(Errno::INVALID),
        }
    }

    /// The record of a file, with its node known to be there.
    fn file(&self, inode: Inode) -> Result<Record<'_>> {
        let tree = self.tree();
        self.record(tree.node(inode)?, inode)
    }

    fn show(&self, inode: Inode, node: &Node) -> Result<Attributes> {
        let (size, blocks, modified) = match &node.content {
            Content::File => {
                let mut record = self.segment.record(inode)?;
                record.tell_attributes();
                (record.size(), record.blocks() * (BLOCK_BYTES / 512), record.modified())
            }
            Content::Link(target) => (target.len() as u64, 0, node.modified),
            Content::Directory(directory) => {
                self.segment.record(inode)?.tell_attributes();
                (directory.len() as u64, 0, node.modified)
            }
            Content::Special => (0, 0, node.modified),
        };
        Ok(Attributes {
            inode,
            mode: node.mode,
            links: node.links,
            user: node.user,
            group: node.group,
            device: node.device,
            size,
            blocks,
            accessed: node.accessed,
            modified,
            // A time that was set is no change of contents; one that moved since is.
            changed: if modified == node.modified { node.changed } else { node.changed.max(modified) },
        })
    }

    fn put(&self, parent: Inode, name: &OsStr, new: New, content: Content) -> Result<Attributes> {
        let now = SystemTime::now();
        let mut tree = self.tree();
        let inode = tree.put(parent, name, new, content, now)?;
        if matches!(tree.node(inode)?.content, Content::File) {
            self.segment.record(inode)?.begin(now);
        }
        let shown = self.show(inode, tree.node(inode)?)?;
        tree.tell(inode);
        tree.looked(parent, name);
        Ok(shown)
    }

    /// Ends files that have neither names nor tellings, and that no process has open by itself.
    fn drop_if_gone(&self, tree: &mut Locked<'_>, inode: Inode) {
        if tree.names.as_ref().is_some_and(|names| names.is_held(inode)) {
            tree.held.insert(inode);
            return;
        }
        let file = matches!(tree.node(inode).map(|node| &node.content), Ok(Content::File));
        if tree.take_if_gone(inode)
            && file
            && let Ok(mut record) = self.segment.record(inode)
        {
            record.end();
        }
    }
}

fn time(new: NewTime, now: SystemTime) -> SystemTime {
    match new {
        NewTime::Now => now,
        NewTime::At(time) => time,
    }
}

impl Backend for Memory {
    fn lookup(&self, parent: Inode, name: &OsStr) -> Result<Attributes> {
        let mut tree = self.tree();
        let inode = match self.segment.secret(name) {
            Some(Secret::File(inode)) => inode,
            _ => tree.find(parent, name)?,
        };
        let shown = self.show(inode, tree.node(inode)?)?;
        tree.tell(inode);
        tree.looked(parent, name);
        Ok(shown)
    }

    fn forget(&self, inode: Inode, times: u64) {
        let mut tree = self.tree();
        tree.untell(inode, times);
        self.drop_if_gone(&mut tree, inode);
    }

    fn attributes(&self, inode: Inode) -> Result<Attributes> {
        let tree = self.tree();
        self.show(inode, tree.node(inode)?)
    }

    fn change(&self, inode: Inode, change: &Change) -> Result<Attributes> {
        let now = SystemTime::now();
        let mut tree = self.tree();
        if let Some(size) = change.size {
            let mut record = self.record(tree.node(inode)?, inode)?;
            record.resize(size)?;
            record.touch(now);
        }
        if let Some(modified) = change.modified
            && matches!(tree.node(inode)?.content, Content::File)
        {
            self.segment.record(inode)?.touch(time(modified, now));
        }
        let node = tree.node_mut(inode)?;
        let file = matches!(node.content, Content::File);
        if file && change.mode.is_some_and(|mode| mode & (libc::S_ISUID | libc::S_ISGID) != 0) {
            self.segment.record(inode)?.leave_to_kernel();
        }
        if let Some(mode) = change.mode {
            node.mode = node.mode & libc::S_IFMT | mode & 0o7777;
        }
        node.user = change.user.unwrap_or(node.user);
        node.group = change.group.unwrap_or(node.group);
        node.accessed = change.accessed.map_or(node.accessed, |new| time(new, now));
        node.modified = change.modified.map_or(node.modified, |new| time(new, now));
        node.changed = now;
        self.show(inode, tree.node(inode)?)
    }

    fn read_link(&self, inode: Inode) -> Result<Vec<u8>> {
        match &self.tree().node(inode)?.content {
            Content::Link(target) => Ok(target.clone()),
            _ => Err(Errno::INVALID),
        }
    }

    fn make(&self, parent: Inode, name: &OsStr, new: New) -> Result<Attributes> {
        let file = matches!(new.mode & libc::S_IFMT, 0 | libc::S_IFREG);
        let mode = if file { libc::S_IFREG | new.mode & 0o7777 } else { new.mode };
        self.put(parent, name, New { mode, ..new }, if file { Content::File } else { Content::Special })
    }

    fn look_again(&self, parent: Inode, name: &OsStr) {
        self.tree().look_again(parent, name);
    }

    fn make_directory(&self, parent: Inode, name: &OsStr, new: New) -> Result<Attributes> {
        let mode = libc::S_IFDIR | new.mode & 0o7777;
        self.put(parent, name, New { mode, ..new }, Content::Directory(tree::Directory::new(parent)))
    }

    fn make_link(&self, parent: Inode, name: &OsStr, target: &OsStr, new: New) -> Result<Attributes> {
        let mode = libc::S_IFLNK | 0o777;
        self.put(parent, name, New { mode, ..new }, Content::Link(target.as_encoded_bytes().to_vec()))
    }

    fn link(&self, inode: Inode, parent: Inode, name: &OsStr) -> Result<Attributes> {
        let mut tree = self.tree();
        tree.link(inode, parent, name, SystemTime::now())?;
        let shown = self.show(inode, tree.node(inode)?)?;
        tree.tell(inode);
        Ok(shown)
    }

    fn unlink(&self, parent: Inode, name: &OsStr) -> Result<()> {
        let mut tree = self.tree();
        let inode = tree.unlink(parent, name, SystemTime::now())?;
        self.drop_if_gone(&mut tree, inode);
        Ok(())
    }

    fn remove_directory(&self, parent: Inode, name: &OsStr) -> Result<()> {
        let mut tree = self.tree();
        let inode = tree.remove_directory(parent, name, SystemTime::now())?;
        self.drop_if_gone(&mut tree, inode);
        Ok(())
    }

    fn rename(&self, from: (Inode, &OsStr), to: (Inode, &OsStr), replace: Replace) -> Result<()> {
        let mut tree = self.tree();
        if let Some(inode) = tree.rename(from, to, replace, SystemTime::now())? {
            self.drop_if_gone(&mut tree, inode);
        }
        Ok(())
    }

    fn read(&self, inode: Inode, offset: u64, to: &mut [u8]) -> Result<usize> {
        let mut record = self.file(inode)?;
        record.tell_data();
        record.read(offset, to)
    }

    fn write(&self, inode: Inode, offset: u64, from: &[u8], append: bool) -> Result<Written> {
        let mut record = self.file(inode)?;
        let offset = if append { record.size() } else { offset };
        let bytes = record.write(offset, from, SystemTime::now())?;
        record.tell_data();
        record.tell_attributes();
        Ok(Written { bytes, offset })
    }

    fn sync(&self, inode: Inode, _data_only: bool) -> Result<()> {
        self.tree().node(inode).map(drop)
    }

    fn list(&self, inode: Inode, after: u64, entry: &mut dyn FnMut(Entry<'_>) -> bool) -> Result<()> {
        let tree = self.tree();
        let Content::Directory(directory) = &tree.node(inode)?.content else {
            return Err(Errno::NOT_A_DIRECTORY);
        };
        let own: [(u64, Inode, &str); 2] = [(1, inode, "."), (2, directory.parent, "..")];
        for (place, number, name) in own {
            let told = Entry { inode: number, next: place, mode: libc::S_IFDIR, name: OsStr::new(name) };
            if place > after && !entry(told) {
                return Ok(());
            }
        }
        for (place, name, number) in directory.after(after) {
            let mode = tree.node(number)?.mode;
            if !entry(Entry { inode: number, next: place, mode, name }) {
                break;
            }
        }
        Ok(())
    }

    fn space(&self) -> Result<Space> {
        let figures = self.segment.figures();
        let tree = self.tree();
        Ok(Space {
            block_bytes: BLOCK_BYTES as u32,
            blocks: figures.blocks_max,
            blocks_free: figures.blocks_max.saturating_sub(figures.blocks_used),
            files: tree.files_max(),
            files_free: tree.files_max() - tree.files(),
        })
    }

    fn seek(&self, inode: Inode, offset: u64, hole: bool) -> Result<u64> {
        let mut record = self.file(inode)?;
        if offset >= record.size() {
            return Err(Errno::NO_SUCH_OFFSET);
        }
        let found = record.seek(offset, hole);
        if !hole && found >= record.size() { Err(Errno::NO_SUCH_OFFSET) } else { Ok(found) }
    }

    fn allocate(&self, inode: Inode, offset: u64, bytes: u64, mode: i32) -> Result<()> {
        let end = offset.checked_add(bytes).ok_or(Errno(libc::EFBIG))?;
        let mut record = self.file(inode)?;
        let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        match mode & !libc::FALLOC_FL_KEEP_SIZE {
            // Space is not set aside: a later write may still find none.
            0 => {}
            libc::FALLOC_FL_PUNCH_HOLE if keep_size => record.punch(offset, bytes)?,
            libc::FALLOC_FL_ZERO_RANGE => record.punch(offset, bytes)?,
            _ => return Err(Errno::UNSUPPORTED),
        }
        if !keep_size && end > record.size() {
            record.resize(end)?;
        }
        record.tell_attributes();
        record.touch(SystemTime::now());
        Ok(())
    }

    fn get_attribute(&self, inode: Inode, name: &OsStr) -> Result<Vec<u8>> {
        attribute_name(name)?;
        self.tree().node(inode)?.attributes.get(name).cloned().ok_or(Errno::NO_DATA)
    }

    fn set_attribute(&self, inode: Inode, name: &OsStr, value: &[u8], flags: i32) -> Result<()> {
        attribute_name(name)?;
        let mut tree = self.tree();
        let node = tree.node_mut(inode)?;
        let there = node.attributes.contains_key(name);
        let file = matches!(node.content, Content::File);
        if value.len() > ATTRIBUTE_BYTES_MAX || !there && node.attributes.len() >= ATTRIBUTES_MAX {
            return Err(Errno::NO_SPACE);
        }
        match flags {
            libc::XATTR_CREATE if there => return Err(Errno::EXISTS),
            libc::XATTR_REPLACE if !there => return Err(Errno::NO_DATA),
            _ if file && name == CAPABILITIES => self.segment.record(inode)?.leave_to_kernel(),
            _ => {}
        }
        node.attributes.insert(OsString::from(name), value.to_vec());
        node.changed = SystemTime::now();
        Ok(())
    }

    fn list_attributes(&self, inode: Inode) -> Result<Vec<u8>> {
        let tree = self.tree();
        let names = tree.node(inode)?.attributes.keys();
        Ok(names.flat_map(|name| name.as_encoded_bytes().iter().copied().chain([0])).collect())
    }

    fn remove_attribute(&self, inode: Inode, name: &OsStr) -> Result<()> {
        attribute_name(name)?;
        let mut tree = self.tree();
        let node = tree.node_mut(inode)?;
        node.attributes.remove(name).ok_or(Errno::NO_DATA)?;
        node.changed = SystemTime::now();
        Ok(())
    }

    /// Gives memory back that nobody took for a while.
    fn tidy(&self) {
        let idle = self.segment.blocks_idle();
        let before = self.idle.swap(idle, Ordering::Relaxed);
        if idle <= IDLE_KEPT || idle != before {
            return;
        }
        if let Err(error) = self.segment.give_back(IDLE_KEPT) {
            tracing::warn!("the memory of removed files stays: {error}");
        }
    }

    fn segment(&self) -> Option<&Segment> {
        Some(&self.segment)
    }

    fn journal(&self) -> Option<&Journal> {
        self.journal.as_ref()
    }

    fn known(&self) -> Vec<Inode> {
        self.tree().nodes.iter().filter(|(_, node)| node.told > 0).map(|(inode, _)| *inode).collect()
    }

    fn notes(&self) -> Vec<String> {
        self.journal.as_ref().and_then(Journal::broken).into_iter().collect()
    }
}

/// The root is never forgotten.
pub(crate) const fn is_root(inode: Inode) -> bool {
    inode == ROOT
}
