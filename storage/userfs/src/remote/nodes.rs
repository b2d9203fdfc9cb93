//! What is known about the files of a server: numbers, names, attributes, who has them open.

use super::staying::{How, Locks, NameLock, Needed};
use super::{Found, LISTED_MAX, Listing, Place, is_fresh};
use crate::backend::{Attributes, Inode, ROOT};
use crate::error::{Errno, Result};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

/// How long places of names stay after the last listing.
const LISTING_KEPT: Duration = Duration::from_secs(60);

/// Same kind of file.
fn same_kind(a: u32, b: u32) -> bool {
    a & libc::S_IFMT == b & libc::S_IFMT
}

#[derive(Debug)]
struct Node {
    /// Directory and name; nothing when the name is gone.
    name: Option<(Inode, OsString)>,
    key: Vec<u8>,
    told: u64,
    opens: u64,
    /// Nodes whose names lie in it.
    children: u64,
    attributes: Attributes,
    /// When they were learnt; nothing when they are known to be old.
    at: Option<Instant>,
    /// Size and times of which the kernel may hold pages.
    pages: Option<(u64, SystemTime, SystemTime)>,
    hidden: bool,
    append: Arc<Mutex<()>>,
    name_lock: NameLock,
    listing: Option<(Listing, Instant)>,
}

impl Node {
    fn new(name: Option<(Inode, OsString)>, found: Found) -> Node {
        Node {
            name,
            key: found.key,
            told: 0,
            opens: 0,
            children: 0,
            attributes: found.attributes,
            at: Some(Instant::now()),
            pages: None,
            hidden: false,
            append: Arc::default(),
            name_lock: NameLock::default(),
            listing: None,
        }
    }
}

#[derive(Debug)]
pub(super) struct Nodes {
    of: HashMap<Inode, Node>,
    names: HashMap<(Inode, OsString), Inode>,
    listed: HashMap<(Inode, OsString), (Found, Instant)>,
    next: Inode,
}

impl Nodes {
    pub(super) fn new(root: Found) -> Nodes {
        let mut node = Node::new(None, root);
        node.told = 1;
        node.attributes.inode = ROOT;
        Nodes {
            of: HashMap::from([(ROOT, node)]),
            names: HashMap::new(),
            listed: HashMap::new(),
            next: ROOT + 1,
        }
    }

    /// Files that are known.
    pub(super) fn count(&self) -> u64 {
        self.of.len() as u64
    }

    fn node(&mut self, inode: Inode) -> Result<&mut Node> {
        self.of.get_mut(&inode).ok_or(Errno(libc::ESTALE))
    }

    pub(super) fn place(&self, inode: Inode) -> Result<Place> {
        let node = self.of.get(&inode).ok_or(Errno(libc::ESTALE))?;
        Ok(Place { inode, path: self.path(inode), key: node.key.clone(), open: node.opens > 0 })
    }

    fn path(&self, mut inode: Inode) -> Option<Vec<u8>> {
        let mut parts = Vec::new();
        while inode != ROOT {
            let (parent, name) = self.of.get(&inode)?.name.as_ref()?;
            parts.push(name.as_encoded_bytes());
            inode = *parent;
        }
        parts.reverse();
        Some(parts.join(&b'/'))
    }

    pub(super) fn parent(&self, inode: Inode) -> Inode {
        let name = self.of.get(&inode).and_then(|node| node.name.as_ref());
        name.map_or(ROOT, |name| name.0)
    }

    pub(super) fn recent(&mut self, inode: Inode) -> Result<Option<Attributes>> {
        let node = self.node(inode)?;
        Ok(node.at.filter(|at| is_fresh(*at)).map(|_| node.attributes))
    }

    pub(super) fn learn(&mut self, inode: Inode, attributes: Attributes) -> Attributes {
        let attributes = Attributes { inode, ..attributes };
        if let Ok(node) = self.node(inode) {
            node.attributes = attributes;
            node.at = Some(Instant::now());
        }
        attributes
    }

    pub(super) fn stale(&mut self, inode: Inode) {
        if let Ok(node) = self.node(inode) {
            node.at = None;
        }
    }

    /// What a listing said about a name that has no number yet.
    pub(super) fn take_listed(&mut self, parent: Inode, name: &OsStr) -> Option<Found> {
        let key = (parent, name.to_owned());
        let (found, at) = self.listed.remove(&key)?;
        (is_fresh(at) && !self.names.contains_key(&key)).then_some(found)
    }

    /// The number of what was found under a name, told once more.
    pub(super) fn tell(&mut self, parent: Inode, name: &OsStr, found: Found) -> Attributes {
        let key = (parent, name.to_owned());
        if let Some(inode) = self.names.get(&key).copied() {
            let same = self.of.get(&inode).is_some_and(|node| {
                node.key == found.key && same_kind(node.attributes.mode, found.attributes.mode)
            });
            if same {
                if let Ok(node) = self.node(inode) {
                    node.told += 1;
                }
                return self.learn(inode, found.attributes);
            }
            self.detach(inode);
        }
        let inode = self.next;
        self.next += 1;
        let attributes = Attributes { inode, ..found.attributes };
        let mut node = Node::new(Some(key.clone()), Found { attributes, ..found });
        node.told = 1;
        self.of.insert(inode, node);
        self.names.insert(key, inode);
        if let Ok(above) = self.node(parent) {
            above.children += 1;
        }
        attributes
    }

    pub(super) fn untell(&mut self, inode: Inode, times: u64) {
        if let Ok(node) = self.node(inode) {
            node.told = node.told.saturating_sub(times);
        }
        self.drop_unused(inode);
    }

    /// Drops a node that nobody knows, and directories above that stayed for its sake.
    fn drop_unused(&mut self, inode: Inode) {
        let mut here = inode;
        while here != ROOT {
            let unused = |node: &&Node| node.told == 0 && node.opens == 0 && node.children == 0;
            if self.of.get(&here).filter(unused).is_none() {
                return;
            }
            let parent = self.detach(here);
            self.of.remove(&here);
            let Some(parent) = parent else { return };
            here = parent;
        }
    }

    /// Takes a node's name away. The directory that it was in.
    fn detach(&mut self, inode: Inode) -> Option<Inode> {
        let (parent, name) = self.of.get_mut(&inode)?.name.take()?;
        self.names.remove(&(parent, name));
        if let Some(above) = self.of.get_mut(&parent) {
            above.children = above.children.saturating_sub(1);
        }
        Some(parent)
    }

    /// A name is new: what was known about it and its directory is old.
    pub(super) fn made(&mut self, parent: Inode, name: &OsStr) {
        self.listed.remove(&(parent, name.to_owned()));
        self.stale(parent);
    }

    /// A name is gone.
    pub(super) fn lost(&mut self, parent: Inode, name: &OsStr) {
        self.made(parent, name);
        if let Some(inode) = self.names.get(&(parent, name.to_owned())).copied() {
            self.detach(inode);
            self.stale(inode);
            self.drop_unused(parent);
        }
    }

    pub(super) fn moved(&mut self, from: (Inode, &OsStr), to: (Inode, &OsStr)) {
        self.lost(to.0, to.1);
        self.made(from.0, from.1);
        if let Some(inode) = self.names.get(&(from.0, from.1.to_owned())).copied() {
            self.detach(inode);
            self.attach(inode, to.0, to.1);
        }
    }

    fn attach(&mut self, inode: Inode, parent: Inode, name: &OsStr) {
        let key = (parent, name.to_owned());
        self.names.insert(key.clone(), inode);
        if let Ok(above) = self.node(parent) {
            above.children += 1;
        }
        if let Ok(node) = self.node(inode) {
            node.name = Some(key);
            node.at = None;
        }
    }

    /// The number of a file that is open under this name.
    pub(super) fn open_file(&self, parent: Inode, name: &OsStr) -> Option<Inode> {
        let inode = *self.names.get(&(parent, name.to_owned()))?;
        self.of.get(&inode).filter(|node| node.opens > 0 && !node.hidden).map(|_| inode)
    }

    pub(super) fn hidden(&mut self, inode: Inode, parent: Inode, name: &OsStr, hidden: &OsStr) {
        self.moved((parent, name), (parent, hidden));
        if let Ok(node) = self.node(inode) {
            node.hidden = true;
        }
    }

    pub(super) fn take_hidden(&mut self, inode: Inode) -> Option<(Inode, OsString)> {
        let node = self.node(inode).ok().filter(|node| node.hidden)?;
        node.hidden = false;
        node.name.clone()
    }

    /// Whether pages that the kernel holds are those of the file as it is.
    pub(super) fn opened(&mut self, inode: Inode) -> bool {
        let Ok(node) = self.node(inode) else { return false };
        node.opens += 1;
        let now = (node.attributes.size, node.attributes.modified, node.attributes.changed);
        node.pages.replace(now) == Some(now)
    }

    /// Whether nobody has it open any more.
    pub(super) fn released(&mut self, inode: Inode) -> bool {
        let Ok(node) = self.node(inode) else { return false };
        node.opens = node.opens.saturating_sub(1);
        let last = node.opens == 0;
        if last && !node.hidden {
            self.drop_unused(inode);
        }
        last
    }

    pub(super) fn is_open(&self, inode: Inode) -> bool {
        self.of.get(&inode).is_some_and(|node| node.opens > 0)
    }

    /// Locks of the names of these files and of all folders above them, and of those that have these names.
    pub(super) fn name_locks(&self, needed: Needed<'_>) -> Locks {
        let mut locks = Locks::new();
        for above in needed.files.iter().copied().chain(needed.changed.iter().map(|(parent, _)| *parent)) {
            self.lock_path(above, &mut locks);
        }
        for (parent, name) in needed.changed {
            if let Some(inode) = self.names.get(&(*parent, (*name).to_owned()))
                && let Some(node) = self.of.get(inode)
            {
                locks.insert(*inode, (How::Alone, node.name_lock.clone()));
            }
        }
        locks
    }

    fn lock_path(&self, mut inode: Inode, locks: &mut Locks) {
        while inode != ROOT
            && let Some(node) = self.of.get(&inode)
        {
            locks.insert(inode, (How::Together, node.name_lock.clone()));
            let Some((parent, _)) = &node.name else { return };
            inode = *parent;
        }
    }

    pub(super) fn append_lock(&mut self, inode: Inode) -> Result<Arc<Mutex<()>>> {
        Ok(self.node(inode)?.append.clone())
    }

    pub(super) fn listing(&mut self, inode: Inode) -> Option<Listing> {
        let (listing, at) = self.node(inode).ok()?.listing.as_mut()?;
        *at = Instant::now();
        Some(listing.clone())
    }

    /// Names that stayed keep their places, new ones come behind.
    pub(super) fn listed(&mut self, inode: Inode, found: Vec<(OsString, Found)>) -> Result<Listing> {
        let now = Instant::now();
        self.listed.retain(|_, (_, at)| is_fresh(*at));
        for (name, found) in found.iter().take(LISTED_MAX.saturating_sub(self.listed.len())) {
            self.listed.insert((inode, name.clone()), (found.clone(), now));
        }
        let node = self.node(inode)?;
        let before = node.listing.take().filter(|(_, at)| at.elapsed() < LISTING_KEPT);
        let mut modes: HashMap<OsString, u32> =
            found.into_iter().map(|(name, found)| (name, found.attributes.mode)).collect();
        let mut names: Vec<Option<(OsString, u32)>> = Vec::new();
        for there in before.iter().flat_map(|(listing, _)| listing.iter()) {
            let stays = there.as_ref().and_then(|(name, _)| modes.remove_entry(name.as_os_str()));
            names.push(stays);
        }
        let mut new: Vec<(OsString, u32)> = modes.into_iter().collect();
        new.sort();
        names.extend(new.into_iter().map(Some));
        let listing = Arc::new(names);
        node.listing = Some((listing.clone(), now));
        Ok(listing)
    }
}
