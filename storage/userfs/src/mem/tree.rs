//! Names and attributes of the files in memory.
//!
//! Invariants
//! - `links` of a directory is 2 and one for each directory in it; of anything else its names.
//! - A node is in the table while it has names or tellings, or a process has it open by itself (`held`).
//! - Places of a directory only grow, so a listing that goes on after a place neither repeats nor skips names
//!   that stay.

use super::{NAME_BYTES_MAX, is_root};
use crate::backend::{Inode, New, ROOT, Replace};
use crate::error::{Errno, Result};
use crate::segment::{Event, NodeFields, What};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::time::{Duration, Instant, SystemTime};

/// Places of entries begin behind those of `.` and `..`.
const FIRST_PLACE: u64 = 3;
/// Names that the kernel looks at again at once. While it does no process makes any, so there are few.
const LOOKS_MAX: usize = 64;
/// How long it may take to.
const LOOK_PATIENCE: Duration = Duration::from_secs(1);

/// Entries of a directory.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) parent: Inode,
    names: HashMap<OsString, (u64, Inode)>,
    places: BTreeMap<u64, OsString>,
    next_place: u64,
}

impl Directory {
    pub(super) fn new(parent: Inode) -> Directory {
        Directory { parent, names: HashMap::new(), places: BTreeMap::new(), next_place: FIRST_PLACE }
    }

    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    fn get(&self, name: &OsStr) -> Option<Inode> {
        self.names.get(name).map(|found| found.1)
    }

    /// Its place.
    fn insert(&mut self, name: &OsStr, inode: Inode) -> u64 {
        self.insert_at(self.next_place, name, inode);
        self.next_place - 1
    }

    pub(super) fn insert_at(&mut self, place: u64, name: &OsStr, inode: Inode) {
        self.remove(name);
        self.places.insert(place, name.to_owned());
        self.names.insert(name.to_owned(), (place, inode));
        self.next_place = self.next_place.max(place + 1);
    }

    pub(super) fn remove(&mut self, name: &OsStr) {
        if let Some((place, _)) = self.names.remove(name) {
            self.places.remove(&place);
        }
    }

    /// Place, name and number of the entries after `place`.
    pub(super) fn after(&self, place: u64) -> impl Iterator<Item = (u64, &OsStr, Inode)> {
        let rest = self.places.range((std::ops::Bound::Excluded(place), std::ops::Bound::Unbounded));
        rest.filter_map(|(place, name)| Some((*place, name.as_os_str(), self.get(name)?)))
    }
}

/// What a file is.
#[derive(Debug)]
pub(super) enum Content {
    /// Its bytes are in the segment.
    File,
    Directory(Directory),
    Link(Vec<u8>),
    /// Pipes, sockets, devices: the kernel does the rest.
    Special,
}

/// One file.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) content: Content,
    pub(super) mode: u32,
    pub(super) links: u32,
    pub(super) user: u32,
    pub(super) group: u32,
    pub(super) device: u32,
    pub(super) accessed: SystemTime,
    /// Of a regular file: as it was last set; the segment has the real one.
    pub(super) modified: SystemTime,
    pub(super) changed: SystemTime,
    pub(super) attributes: BTreeMap<OsString, Vec<u8>>,
    pub(super) told: u64,
}

impl Node {
    /// Names, of a directory.
    pub(super) fn entries(&self) -> usize {
        match &self.content {
            Content::Directory(directory) => directory.len(),
            _ => 0,
        }
    }
}

/// All files.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) nodes: HashMap<Inode, Node>,
    files_max: u64,
    pub(super) next: Inode,
    pub(super) free: Vec<Inode>,
    /// What changed since [`Tree::changes`].
    changes: Changes,
    /// Files that would be gone if no process had them open by itself.
    pub(super) held: HashSet<Inode>,
    /// Names at which the kernel looks again, and since when.
    looks_again: Vec<(Inode, OsString, Instant)>,
}

/// What became of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NameChange {
    pub(super) folder: Inode,
    pub(super) name: OsString,
    /// What it stands for, and its place; nothing when it is gone.
    pub(super) now: Option<(Inode, u64)>,
}

/// What changed, in order.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Nodes that are no more.
    pub(super) gone: Vec<Inode>,
    /// Names that came and went.
    pub(super) names: Vec<NameChange>,
    /// Nodes that may have changed.
    pub(super) touched: Vec<Inode>,
    /// Nodes whose tellings changed.
    pub(super) told: Vec<Inode>,
}

impl Changes {
    pub(super) fn is_empty(&self) -> bool {
        self.gone.is_empty() && self.names.is_empty() && self.touched.is_empty() && self.told.is_empty()
    }
}

impl Tree {
    pub(super) fn new(files_max: u64, user: u32, group: u32) -> Tree {
        let now = SystemTime::now();
        let root = Node {
            content: Content::Directory(Directory::new(ROOT)),
            mode: libc::S_IFDIR | 0o755,
            links: 2,
            user,
            group,
            device: 0,
            accessed: now,
            modified: now,
            changed: now,
            attributes: BTreeMap::new(),
            told: 1,
        };
        Tree {
            nodes: HashMap::from([(ROOT, root)]),
            files_max,
            next: ROOT + 1,
            free: Vec::new(),
            changes: Changes { touched: vec![ROOT], ..Changes::default() },
            held: HashSet::new(),
            looks_again: Vec::new(),
        }
    }

    /// The kernel will look at this name again.
    pub(super) fn look_again(&mut self, parent: Inode, name: &OsStr) {
        if self.looks_again.len() < LOOKS_MAX {
            self.looks_again.push((parent, name.to_owned(), Instant::now()));
        }
    }

    /// It looked, and what it found or made is told.
    pub(super) fn looked(&mut self, parent: Inode, name: &OsStr) {
        self.looks_again.retain(|(above, there, _)| *above != parent || there != name);
    }

    /// Whether it is still about to look somewhere. Of a program that ended meanwhile nothing more is heard.
    pub(super) fn is_looking(&mut self) -> bool {
        self.looks_again.retain(|(_, _, since)| since.elapsed() < LOOK_PATIENCE);
        !self.looks_again.is_empty()
    }

    pub(super) fn files_max(&self) -> u64 {
        self.files_max
    }

    pub(super) fn files(&self) -> u64 {
        self.nodes.len() as u64
    }

    pub(super) fn node(&self, inode: Inode) -> Result<&Node> {
        self.nodes.get(&inode).ok_or(Errno(libc::ESTALE))
    }

    pub(super) fn node_mut(&mut self, inode: Inode) -> Result<&mut Node> {
        self.changes.touched.push(inode);
        self.nodes.get_mut(&inode).ok_or(Errno(libc::ESTALE))
    }

    fn directory(&self, inode: Inode) -> Result<&Directory> {
        match &self.node(inode)?.content {
            Content::Directory(directory) => Ok(directory),
            _ => Err(Errno::NOT_A_DIRECTORY),
        }
    }

    /// The directory, with its times moved on.
    fn alter(&mut self, inode: Inode, now: SystemTime) -> Result<(&mut Directory, &mut u32)> {
        let node = self.node_mut(inode)?;
        node.modified = now;
        node.changed = now;
        match &mut node.content {
            Content::Directory(directory) => Ok((directory, &mut node.links)),
            _ => Err(Errno::NOT_A_DIRECTORY),
        }
    }

    fn add_name(&mut self, folder: Inode, name: &OsStr, inode: Inode, now: SystemTime) -> Result<&mut u32> {
        let place = self.alter(folder, now)?.0.insert(name, inode);
        self.changes.names.push(NameChange { folder, name: name.to_owned(), now: Some((inode, place)) });
        Ok(self.alter(folder, now)?.1)
    }

    fn take_name(&mut self, folder: Inode, name: &OsStr, now: SystemTime) -> Result<&mut u32> {
        self.changes.names.push(NameChange { folder, name: name.to_owned(), now: None });
        let (entries, links) = self.alter(folder, now)?;
        entries.remove(name);
        Ok(links)
    }

    /// What changed since this was asked last.
    pub(super) fn changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    /// A number for a file that somebody else makes.
    pub(super) fn set_aside(&mut self) -> Option<Inode> {
        self.fresh().ok()
    }

    /// Does what somebody else did. It may be done already, by a daemon that died before it could say so. `fields`: attributes of the file.
    pub(super) fn learn(&mut self, event: &Event, fields: &NodeFields, now: SystemTime) -> Result<()> {
        let is = |tree: &Tree, folder, name| tree.find(folder, name) == Ok(event.inode);
        let lost = match &event.what {
            What::Made(folder, name) => return self.adopt((*folder, name), event.inode, fields, now),
            What::Removed(folder, name) if is(self, *folder, name) => Some(self.unlink(*folder, name, now)?),
            What::Moved(from, to) if is(self, from.0, &from.1) => {
                self.rename((from.0, &from.1), (to.0, &to.1), Replace::Yes, now)?
            }
            What::Changed | What::Removed(..) | What::Moved(..) => None,
        };
        self.held.extend(lost);
        Ok(())
    }

    /// Takes in a file that somebody else made, by a number that was set aside.
    fn adopt(
        &mut self,
        (folder, name): (Inode, &OsStr),
        inode: Inode,
        fields: &NodeFields,
        now: SystemTime,
    ) -> Result<()> {
        let node = Node {
            content: Content::File,
            mode: fields.mode,
            links: 1,
            user: fields.user,
            group: fields.group,
            device: 0,
            accessed: now,
            modified: now,
            changed: now,
            attributes: BTreeMap::new(),
            told: 0,
        };
        if self.nodes.contains_key(&inode) {
            return Ok(());
        }
        self.add_name(folder, name, inode, now)?;
        self.nodes.insert(inode, node);
        self.changes.touched.push(inode);
        Ok(())
    }

    pub(super) fn find(&self, parent: Inode, name: &OsStr) -> Result<Inode> {
        if name.len() > NAME_BYTES_MAX {
            return Err(Errno(libc::ENAMETOOLONG));
        }
        self.directory(parent)?.get(name).ok_or(Errno::NOT_FOUND)
    }

    pub(super) fn tell(&mut self, inode: Inode) {
        if let Some(node) = self.nodes.get_mut(&inode) {
            node.told += 1;
            self.changes.told.push(inode);
        }
    }

    pub(super) fn untell(&mut self, inode: Inode, times: u64) {
        if let Some(node) = self.nodes.get_mut(&inode) {
            node.told = node.told.saturating_sub(times);
            self.changes.told.push(inode);
        }
    }

    /// Forgets a node without names and tellings; says whether it did.
    pub(super) fn take_if_gone(&mut self, inode: Inode) -> bool {
        let gone =
            self.nodes.get(&inode).is_some_and(|node| node.told == 0 && node.links == 0 && !is_root(inode));
        if gone {
            self.nodes.remove(&inode);
            self.free.push(inode);
            self.changes.gone.push(inode);
        }
        gone
    }

    fn fresh(&mut self) -> Result<Inode> {
        if let Some(inode) = self.free.pop() {
            return Ok(inode);
        }
        if self.next >= self.files_max {
            return Err(Errno::NO_SPACE);
        }
        self.next += 1;
        Ok(self.next - 1)
    }

    /// Checks that `name` can be made in `parent`.
    fn vacant(&self, parent: Inode, name: &OsStr) -> Result<()> {
        match self.find(parent, name) {
            Ok(_) => Err(Errno::EXISTS),
            Err(Errno::NOT_FOUND) if self.node(parent)?.links == 0 => Err(Errno::NOT_FOUND),
            Err(Errno::NOT_FOUND) => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub(super) fn put(
        &mut self,
        parent: Inode,
        name: &OsStr,
        new: New,
        content: Content,
        now: SystemTime,
    ) -> Result<Inode> {
        self.vacant(parent, name)?;
        let inode = self.fresh()?;
        let directory = matches!(content, Content::Directory(_));
        let (mut mode, mut group) = (new.mode, new.group);
        let above = self.node(parent)?;
        if above.mode & libc::S_ISGID != 0 {
            group = above.group;
            mode |= if directory { libc::S_ISGID } else { 0 };
        }
        let node = Node {
            content,
            mode,
            links: if directory { 2 } else { 1 },
            user: new.user,
            group,
            device: new.device,
            accessed: now,
            modified: now,
            changed: now,
            attributes: BTreeMap::new(),
            told: 0,
        };
        *self.add_name(parent, name, inode, now)? += u32::from(directory);
        self.nodes.insert(inode, node);
        self.changes.touched.push(inode);
        Ok(inode)
    }

    pub(super) fn link(&mut self, inode: Inode, parent: Inode, name: &OsStr, now: SystemTime) -> Result<()> {
        self.vacant(parent, name)?;
        let node = self.node_mut(inode)?;
        if matches!(node.content, Content::Directory(_)) {
            return Err(Errno::NOT_PERMITTED);
        }
        if node.links == 0 {
            return Err(Errno::NOT_FOUND);
        }
        node.links += 1;
        node.changed = now;
        self.add_name(parent, name, inode, now).map(drop)
    }

    pub(super) fn unlink(&mut self, parent: Inode, name: &OsStr, now: SystemTime) -> Result<Inode> {
        let inode = self.find(parent, name)?;
        let node = self.node_mut(inode)?;
        if matches!(node.content, Content::Directory(_)) {
            return Err(Errno::IS_A_DIRECTORY);
        }
        node.links -= 1;
        node.changed = now;
        self.take_name(parent, name, now)?;
        Ok(inode)
    }

    pub(super) fn remove_directory(&mut self, parent: Inode, name: &OsStr, now: SystemTime) -> Result<Inode> {
        let inode = self.find(parent, name)?;
        if self.directory(inode)?.len() > 0 {
            return Err(Errno::NOT_EMPTY);
        }
        self.node_mut(inode)?.links = 0;
        *self.take_name(parent, name, now)? -= 1;
        Ok(inode)
    }

    /// Whether `inode` lies in the directory `above`, or is it.
    fn inside(&self, mut inode: Inode, above: Inode) -> Result<bool> {
        while inode != above {
            if is_root(inode) {
                return Ok(false);
            }
            inode = self.directory(inode)?.parent;
        }
        Ok(true)
    }

    /// Puts what is at `inode` into `parent` under `name`, and counts links of directories.
    fn place(&mut self, inode: Inode, old: Inode, new: (Inode, &OsStr), now: SystemTime) -> Result<()> {
        self.add_name(new.0, new.1, inode, now)?;
        let node = self.node_mut(inode)?;
        node.changed = now;
        if let Content::Directory(directory) = &mut node.content {
            directory.parent = new.0;
            *self.alter(old, now)?.1 -= 1;
            *self.alter(new.0, now)?.1 += 1;
        }
        Ok(())
    }

    /// Gives the inode that lost a name, if any.
    pub(super) fn rename(
        &mut self,
        from: (Inode, &OsStr),
        to: (Inode, &OsStr),
        replace: Replace,
        now: SystemTime,
    ) -> Result<Option<Inode>> {
        let moved = self.find(from.0, from.1)?;
        let there = match self.find(to.0, to.1) {
            Ok(inode) => Some(inode),
            Err(Errno::NOT_FOUND) if self.node(to.0)?.links > 0 => None,
            Err(error) => return Err(error),
        };
        let moves_directory = self.directory(moved).is_ok();
        if moves_directory && self.inside(to.0, moved)? {
            return Err(Errno::INVALID);
        }
        match (there, replace) {
            (Some(_), Replace::No) => return Err(Errno::EXISTS),
            (None, Replace::Exchange) => return Err(Errno::NOT_FOUND),
            (Some(other), Replace::Exchange) => {
                if self.directory(other).is_ok() && self.inside(from.0, other)? {
                    return Err(Errno::INVALID);
                }
                self.place(moved, from.0, to, now)?;
                self.place(other, to.0, from, now)?;
                return Ok(None);
            }
            (Some(other), Replace::Yes) if other == moved => return Ok(None),
            (Some(other), Replace::Yes) => match (moves_directory, self.directory(other)) {
                (true, Err(error)) => return Err(error),
                (false, Ok(_)) => return Err(Errno::IS_A_DIRECTORY),
                (true, Ok(directory)) if directory.len() > 0 => return Err(Errno::NOT_EMPTY),
                (true, Ok(_)) => drop(self.remove_directory(to.0, to.1, now)?),
                (false, Err(_)) => drop(self.unlink(to.0, to.1, now)?),
            },
            (None, _) => {}
        }
        self.take_name(from.0, from.1, now)?;
        self.place(moved, from.0, to, now)?;
        Ok(there)
    }
}
