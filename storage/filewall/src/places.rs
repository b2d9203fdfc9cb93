//! Which handle is below which path of the policies (the paper's "file system state must be inferred … using message
//! history").
//!
//! NFSv3 names a file by a handle that says nothing about its path. The paths that policies speak of form a small tree,
//! [`Zones`]; each handle that a reply brings is given a [`Place`] in it: the deepest node of the tree on its way from the
//! root, and whether it is that node itself. The place of a name in a directory follows from the directory's place.
//!
//! Invariants
//! - The place of an object does not change while it lives: FileWall refuses a RENAME or LINK between two zones as between two
//!   file systems (`NFS3ERR_XDEV`), so `mv` copies. Otherwise a subtree could be moved out of a rule's reach by its handle.
//! - Nothing is learnt from `..`, whose place cannot be derived.
//! - With a context, places are written down before clients get the handles ([`kept`]), and are known again after a restart under the
//!   same paths.
//! - A handle whose place is not known (of before a change of the paths, or forgotten) is answered with `NFS3ERR_STALE` where a path
//!   matters; clients then look the path up again, from what they have mounted: so the places of mounts outlive a change of the
//!   paths, and that of the export's root is asked for at the start. Until the server was asked, the answer is to try later.

mod kept;
mod keys;
mod listings;

use crate::wire::name;
use crate::wire::nfs3::{Handle, Status, bare};
use hashbrown::HashMap;
pub use kept::Batch;
use kept::{Found, Kept};
pub use keys::seed;
use keys::{Key, Keys};
pub use listings::Listing;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Most handles whose place is known, over all shards and both generations.
pub const PLACES_MAX: usize = 2 << 20;
/// Most mounts whose paths are remembered.
pub const MOUNTS_MAX: usize = 4096;
/// Most nodes of the tree of paths.
pub const ZONES_MAX: usize = 4096;
/// Deepest path that is written out for people.
const DEPTH_MAX: usize = 64;
const SHARDS: usize = 16;

/// A node of the tree of paths; 0 is the root.
pub type Node = u16;

/// First of the numbers that stand for folders above the export, which are no nodes of the tree.
const ABOVE_FIRST: Node = Node::MAX - 255;

/// Where an object is, as far as policies care.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Deepest node on the way to it.
    pub node: Node,
    /// True if it is that node, false if it is below.
    pub exact: bool,
}

/// The root of the export.
pub const ROOT: Place = Place { node: 0, exact: true };

/// The tree of the paths that policies speak of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zones {
    nodes: Vec<ZoneNode>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ZoneNode {
    parent: Node,
    name: Box<[u8]>,
    children: HashMap<Box<[u8]>, Node>,
}

impl Default for Zones {
    fn default() -> Self {
        Self { nodes: vec![ZoneNode::default()] }
    }
}

/// Why a path is none that policies can speak of.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// It does not begin at the root.
    #[error("path '{path}' does not begin with '/', the root of the export")]
    NoRoot {
        /// The path.
        path: String,
    },
    /// A part of it is no name.
    #[error("path '{path}' has a part {part:?}: {why}; write it without")]
    Part {
        /// The path.
        path: String,
        /// The part.
        part: String,
        /// Why it is none.
        why: name::Misnamed,
    },
    /// The tree is full.
    #[error("the policies speak of more than {ZONES_MAX} folders")]
    TooMany,
}

impl Zones {
    /// Adds a path (`/a/b`), and returns its node.
    ///
    /// # Errors
    /// What is wrong with the path.
    pub fn add(&mut self, path: &str) -> Result<Node, PathError> {
        if !path.starts_with('/') {
            return Err(PathError::NoRoot { path: path.to_string() });
        }
        let parts = || path.split('/').filter(|part| !part.is_empty());
        for part in parts() {
            name::check(part.as_bytes(), name::Use::Change).map_err(|why| PathError::Part {
                path: path.to_string(),
                part: part.to_string(),
                why,
            })?;
        }
        let mut node: Node = 0;
        for part in parts() {
            node = match self.nodes[usize::from(node)].children.get(part.as_bytes()) {
                Some(child) => *child,
                None => self.grow(node, part.as_bytes())?,
            };
        }
        Ok(node)
    }

    fn grow(&mut self, parent: Node, name: &[u8]) -> Result<Node, PathError> {
        if self.nodes.len() >= ZONES_MAX {
            return Err(PathError::TooMany);
        }
        let node = Node::try_from(self.nodes.len()).map_err(|_| PathError::TooMany)?;
        self.nodes.push(ZoneNode { parent, name: name.into(), children: HashMap::new() });
        self.nodes[usize::from(parent)].children.insert(name.into(), node);
        Ok(node)
    }

    /// True if policies speak of no path but the root: then no place needs to be known.
    pub fn trivial(&self) -> bool {
        self.nodes.len() == 1
    }

    /// The place of `name` in a directory at `place`; `None` for `..`, which cannot be derived.
    pub fn step(&self, place: Place, name: &[u8]) -> Option<Place> {
        match name {
            b"." => Some(place),
            b".." => None,
            _ if !place.exact => Some(place),
            _ => Some(match self.nodes[usize::from(place.node)].children.get(name) {
                Some(node) => Place { node: *node, exact: true },
                None => Place { node: place.node, exact: false },
            }),
        }
    }

    /// The place of the folder that an object at `place` is in, as far as rules tell places apart; `None` above the root.
    pub fn above(&self, place: Place) -> Option<Place> {
        match place {
            ROOT => None,
            // All folders on the way to a node are nodes.
            Place { node, exact: true } => {
                Some(Place { node: self.nodes[usize::from(node)].parent, exact: true })
            }
            below => Some(below),
        }
    }

    /// The place of a path below the root of the export; `None` if a part of it is no name.
    pub fn place(&self, path: &[u8]) -> Option<Place> {
        name::of_path(path).ok()?.into_iter().try_fold(ROOT, |place, part| self.step(place, part))
    }

    /// True if `node` is `above` or below it.
    pub fn within(&self, node: Node, above: Node) -> bool {
        let mut at = node;
        loop {
            if at == above {
                return true;
            }
            if at == 0 {
                return false;
            }
            at = self.nodes[usize::from(at)].parent;
        }
    }

    /// The path of a node, for people.
    pub fn path(&self, node: Node) -> String {
        let mut parts = Vec::new();
        let mut at = node;
        while at != 0 {
            let zone = &self.nodes[usize::from(at)];
            parts.push(String::from_utf8_lossy(&zone.name).into_owned());
            at = zone.parent;
        }
        parts.reverse();
        format!("/{}", parts.join("/"))
    }
}

/// A directory whose handle was looked at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Directory(Key);

#[derive(Clone, Debug)]
struct Known {
    place: Place,
    parent: Key,
    name: Option<Arc<[u8]>>,
}

type Shard = HashMap<Key, Known, foldhash::fast::RandomState>;

/// Two generations: what was not looked at while the younger one filled up is forgotten.
#[derive(Debug, Default)]
struct Generations {
    young: Shard,
    old: Shard,
}

#[derive(Debug, Default)]
struct Shards([Mutex<Generations>; SHARDS]);

type Mounts = HashMap<Box<[u8]>, Arc<[u8]>>;

/// The places of handles.
#[derive(Debug, Default)]
pub struct Places {
    keys: Keys,
    shards: Shards,
    /// Handles forgotten because there were too many.
    pub forgotten: AtomicU64,
    /// Paths of mounts below the root of the export, by what their handles have before the zeros at their end.
    mounts: Mutex<Mounts>,
    settled: AtomicBool,
    ambiguous: AtomicBool,
    /// Where places outlive the process.
    kept: Option<Arc<Kept>>,
}

impl Places {
    /// Places that are kept in a file, those that it holds known.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(path: &Path, zones: &Zones) -> std::io::Result<Places> {
        let Found { kept, places: found } = Kept::open(path, zones)?;
        let places = match found {
            Some((seed, found)) => {
                let places = Places { keys: Keys::under(seed), ..Places::default() };
                for (key, place) in found {
                    places.with(key, |generations| {
                        places.insert(generations, key, Known { place, parent: key, name: None });
                    });
                }
                kept.go_on(places.keys.number);
                places
            }
            None => {
                let places = Places::default();
                kept.begin((places.keys.number, places.keys.seed()), zones, std::iter::empty())?;
                places
            }
        };
        Ok(Places { kept: Some(Arc::new(kept)), ..places })
    }

    /// Places under other paths: of what is known, the mounts stay.
    pub fn under(&self, zones: &Zones) -> Places {
        let places = Places { kept: self.kept.clone(), ..Places::default() };
        places.write_all(zones);
        for (handle, path) in self.mounts() {
            places.learn_mount(&handle, zones, &path);
        }
        places.settled.store(self.is_settled(), Ordering::Relaxed);
        places.ambiguous.store(self.ambiguous(), Ordering::Relaxed);
        places
    }

    /// Writes down all that is known, in place of what was.
    fn write_all(&self, zones: &Zones) {
        let Some(kept) = &self.kept else { return };
        let mut all = Vec::new();
        for shard in &self.shards.0 {
            let generations = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let known = generations.old.iter().chain(&generations.young);
            all.extend(known.map(|(key, known)| (*key, known.place)));
        }
        if let Err(error) = kept.begin((self.keys.number, self.keys.seed()), zones, all.into_iter()) {
            tracing::error!(%error, "places cannot be written down: open files do not outlive this process");
        }
    }

    /// Writes down what was learnt, before a client hears of it.
    pub fn write_down(&self, batch: Batch, zones: &Zones) {
        let Some(kept) = &self.kept else { return };
        if !zones.trivial() && !batch.is_empty() && kept.append(self.keys.number, batch) {
            self.write_all(zones);
        }
    }

    /// An object may have several handles from now on: one for each of its names.
    pub fn set_ambiguous(&self) {
        self.ambiguous.store(true, Ordering::Relaxed);
    }

    /// True if an object may have several handles.
    pub fn ambiguous(&self) -> bool {
        self.ambiguous.load(Ordering::Relaxed)
    }

    /// The server was asked for the export's root.
    pub fn settle(&self) {
        self.settled.store(true, Ordering::Relaxed);
    }

    /// True if the server was asked for the export's root.
    pub fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Relaxed)
    }

    /// How a call is answered that is about a handle whose place is not known.
    pub fn unknown(&self) -> Status {
        if self.is_settled() { Status::Stale } else { Status::Jukebox }
    }

    /// The name of a listing of a folder, under policies of this number.
    pub fn listing(&self, epoch: u64, folder: &[u8], entries: &[u8]) -> Listing {
        let forgotten = self.forgotten.load(Ordering::Relaxed);
        Listing::of([self.keys.number, epoch, forgotten], folder, entries)
    }

    /// Servers pad the same handle differently in NFSv3 and NFSv4.
    fn key(&self, handle: &[u8]) -> Key {
        self.keys.of(bare(handle))
    }

    fn with<T>(&self, key: Key, work: impl FnOnce(&mut Generations) -> T) -> T {
        let shard = &self.shards.0[usize::try_from(key.0).unwrap_or(0) % SHARDS];
        work(&mut shard.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What `look` takes from what is known of a handle.
    fn known<T>(&self, key: Key, look: impl Fn(&Known) -> T) -> Option<T> {
        self.with(key, |generations| {
            if let Some(known) = generations.young.get(&key) {
                return Some(look(known));
            }
            let known = generations.old.remove(&key)?;
            let seen = look(&known);
            self.insert(generations, key, known);
            Some(seen)
        })
    }

    fn insert(&self, generations: &mut Generations, key: Key, known: Known) {
        if generations.young.len() >= PLACES_MAX / SHARDS / 2 {
            let old = std::mem::replace(&mut generations.old, std::mem::take(&mut generations.young));
            self.forgotten.fetch_add(old.len() as u64, Ordering::Relaxed);
        }
        generations.young.insert(key, known);
    }

    /// The place of a handle, if it is known and inside the export.
    pub fn get(&self, handle: &[u8]) -> Option<Place> {
        self.known(self.key(handle), |known| known.place).filter(|place| place.node < ABOVE_FIRST)
    }

    /// How far above the export a handle of NFSv4 leads: 0 is the server's root; `None` if it is not above it.
    pub fn above(&self, handle: &[u8]) -> Option<usize> {
        let node = self.known(self.key(handle), |known| known.place.node)?;
        node.checked_sub(ABOVE_FIRST).map(usize::from)
    }

    /// Notes that a handle is that of a folder above the export.
    pub fn learn_above(&self, handle: &[u8], level: usize) -> Batch {
        let level = Node::try_from(level).unwrap_or(Node::MAX).min(Node::MAX - ABOVE_FIRST);
        let place = Place { node: ABOVE_FIRST + level, exact: true };
        self.learn(handle, place, handle, None)
    }

    /// Notes the place of a handle that was found as `name` in `directory`; `name` is kept for people. What is to be written down
    /// comes back.
    pub fn learn(&self, handle: &[u8], place: Place, directory: &[u8], name: Option<&[u8]>) -> Batch {
        let mut batch = Batch::default();
        self.learn_in(self.directory(directory), handle, place, name, &mut batch);
        batch
    }

    /// A directory by name of its handle, for [`Places::learn_in`].
    pub fn directory(&self, handle: &[u8]) -> Directory {
        Directory(self.key(handle))
    }

    /// The directory that a handle was found in last, if that is known: not of what was mounted, nor of what a context alone knows.
    pub fn folder(&self, handle: &[u8]) -> Option<Directory> {
        let key = self.key(handle);
        self.known(key, |known| known.parent).filter(|parent| *parent != key).map(Directory)
    }

    /// Like [`Places::learn`], for many names in one directory: what is to be written down is added to `batch`.
    pub fn learn_in(
        &self,
        Directory(parent): Directory,
        handle: &[u8],
        place: Place,
        name: Option<&[u8]>,
        batch: &mut Batch,
    ) {
        let key = self.key(handle);
        let new = self.with(key, |generations| {
            // A listing mostly says what is known: then nothing is allocated.
            let before = generations.young.get(&key);
            let same = |known: &&Known| {
                known.place == place && known.parent == parent && known.name.as_deref() == name
            };
            if before.filter(same).is_some() {
                return false;
            }
            let new = before.is_none_or(|known| known.place != place);
            self.insert(generations, key, Known { place, parent, name: name.map(Arc::from) });
            new
        });
        if new && self.kept.is_some() {
            batch.push(key, place);
        }
    }

    /// Notes the handle of a mount of a path below the export's root; true if it was not known.
    pub fn learn_mount(&self, handle: &Handle, zones: &Zones, path: &[u8]) -> bool {
        let Some(place) = zones.place(path) else { return false };
        let handle = bare(handle.as_bytes());
        let key = self.key(handle);
        let path: Arc<[u8]> = Arc::from(path);
        self.with(key, |generations| {
            self.insert(generations, key, Known { place, parent: key, name: Some(path.clone()) })
        });
        self.settle();
        let mut mounts = self.mounts.lock().unwrap_or_else(PoisonError::into_inner);
        let known = mounts.get(handle).is_some_and(|known| *known == path);
        if !known && (mounts.len() < MOUNTS_MAX || mounts.contains_key(handle)) {
            mounts.insert(handle.into(), path);
        }
        !known
    }

    /// The mounts that are known, with their paths.
    pub fn mounts(&self) -> Vec<(Handle, Arc<[u8]>)> {
        let mounts = self.mounts.lock().unwrap_or_else(PoisonError::into_inner);
        mounts.iter().filter_map(|(handle, path)| Some((Handle::new(handle)?, path.clone()))).collect()
    }

    /// The path of a handle as far as names are known, for people: `…/b/c` where the beginning is not.
    pub fn path(&self, handle: &[u8]) -> String {
        let mut key = self.key(handle);
        let mut parts: Vec<String> = Vec::new();
        let mut complete = false;
        for _ in 0..DEPTH_MAX {
            let Some((Some(name), parent)) = self.known(key, |known| (known.name.clone(), known.parent))
            else {
                break;
            };
            let text = String::from_utf8_lossy(&name).into_owned();
            if parent == key {
                parts.push(text.trim_matches('/').to_string());
                complete = true;
                break;
            }
            parts.push(text);
            key = parent;
        }
        parts.reverse();
        let joined = parts.iter().filter(|part| !part.is_empty()).cloned().collect::<Vec<_>>().join("/");
        if complete { format!("/{joined}") } else { format!("…/{joined}") }
    }

    /// Number of handles that are known.
    pub fn len(&self) -> usize {
        let count = |shard: &Mutex<Generations>| {
            let generations = shard.lock().unwrap_or_else(PoisonError::into_inner);
            generations.young.len() + generations.old.len()
        };
        self.shards.0.iter().map(count).sum()
    }

    /// True if none is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests;
