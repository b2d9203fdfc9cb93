//! What was learnt of objects from the attributes in replies: owner, mode, kind (the paper's owner information, which "can be
//! regenerated").
//!
//! An owner is what a decision rests on, so one that was must never come after one that is: attributes teach nothing when an owner
//! was changed through FileWall at any moment since the server was asked for them ([`Seen::owners`]), and while an object's owner is
//! being changed nothing is learnt of it. What was learnt in one version of NFS is forgotten when any owner is changed in the other, for an
//! object may have two handles then ([`Versions`]). Where others change the server too, what is known is believed for a time only (`known-s`),
//! counted from when the server was asked.

use super::names::{LOST_US, Versions};
use crate::message::Seen;
use crate::wire::make::at;
use crate::wire::nfs3::{ATTRIBUTES_BYTES, ftype};
use crate::wire::xdr::get_u32;
use foldhash::quality::RandomState;
use hashbrown::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::{Mutex, PoisonError};

/// Most objects that are known, over both generations.
pub const OBJECTS_MAX: usize = 1 << 20;
const SHARDS: usize = 16;

/// An object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Permission bits.
    pub mode: u32,
    /// True for a folder.
    pub folder: bool,
    /// File system.
    pub fsid: u64,
}

impl Object {
    /// From `fattr3`; `None` if there are too few bytes.
    pub fn of(attributes: &[u8]) -> Option<Object> {
        let bytes = attributes.get(..ATTRIBUTES_BYTES)?;
        Some(Object {
            uid: get_u32(bytes, at::UID),
            gid: get_u32(bytes, at::GID),
            mode: get_u32(bytes, at::MODE) & 0o7777,
            folder: get_u32(bytes, at::KIND) == ftype::DIRECTORY,
            fsid: u64::from(get_u32(bytes, at::FSID)) << 32 | u64::from(get_u32(bytes, at::FSID + 4)),
        })
    }
}

type Key = (u64, u64);

/// An object, and what was so when the server was asked for it.
#[derive(Clone, Copy, Debug)]
struct Known {
    object: Object,
    at_us: u64,
    four: bool,
    /// Changes of owners in the other version.
    elsewhere: u64,
}

#[derive(Debug, Default)]
struct Generations {
    young: HashMap<Key, Known, foldhash::fast::RandomState>,
    old: HashMap<Key, Known, foldhash::fast::RandomState>,
    /// Objects whose owner is being changed, and since when; a few at a time.
    under_way: Vec<(Key, u64)>,
}

/// Objects by handle, in two generations: what was not looked at while the younger one filled up is forgotten.
#[derive(Debug)]
pub struct Objects {
    seeds: (RandomState, RandomState),
    shards: Vec<Mutex<Generations>>,
    versions: Versions,
}

impl Default for Objects {
    fn default() -> Self {
        Self {
            seeds: (RandomState::default(), RandomState::default()),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            versions: Versions::default(),
        }
    }
}

impl Objects {
    fn with<T>(&self, handle: &[u8], work: impl FnOnce(&mut Generations, Key) -> T) -> T {
        let handle = crate::wire::nfs3::bare(handle);
        let hash = |seed: &RandomState| {
            let mut hasher = seed.build_hasher();
            hasher.write(handle);
            hasher.finish()
        };
        let key = (hash(&self.seeds.0), hash(&self.seeds.1));
        let shard = &self.shards[usize::try_from(key.0).unwrap_or(0) % SHARDS];
        work(&mut shard.lock().unwrap_or_else(PoisonError::into_inner), key)
    }

    /// What is known of the object of a handle, if the server was asked at `since_us` or later.
    pub fn get(&self, handle: &[u8], since_us: u64) -> Option<Object> {
        let known = self.with(handle, |generations, key| {
            if let Some(known) = generations.young.get(&key) {
                return Some(*known);
            }
            let known = generations.old.remove(&key)?;
            generations.insert(key, known);
            Some(known)
        });
        known
            .filter(|known| known.at_us >= since_us && self.versions.is_quiet(!known.four, known.elsewhere))
            .map(|known| known.object)
    }

    /// What was known of an object has changed.
    pub fn forget(&self, handle: &[u8]) {
        self.with(handle, |generations, key| {
            generations.young.remove(&key);
            generations.old.remove(&key);
        });
    }

    /// Changes of owners so far in each version of NFS, to be taken along by a call; never 0.
    pub fn changes(&self) -> [u64; 2] {
        [false, true].map(|four| self.versions.changes(four) + 1)
    }

    /// Gives up on replies that cannot come any more.
    pub fn settle(&self, now_us: u64) {
        self.versions.settle(now_us);
    }

    /// A call that changes the owner of an object goes to the server.
    pub fn begin(&self, handle: &[u8], four: bool, now_us: u64) {
        // First, for who learns looks at it with the object's shard locked.
        self.versions.begin(four, now_us);
        self.with(handle, |generations, key| {
            generations.young.remove(&key);
            generations.old.remove(&key);
            generations.under_way.retain(|(_, since_us)| now_us.saturating_sub(*since_us) <= LOST_US);
            // Bounded by the calls that are pending.
            generations.under_way.push((key, now_us));
        });
    }

    /// The server has answered it, or has not got it.
    pub fn end(&self, handle: &[u8], four: bool) {
        self.versions.end(four);
        self.with(handle, |generations, key| {
            if let Some(at) = generations.under_way.iter().position(|(other, _)| *other == key) {
                generations.under_way.swap_remove(at);
            }
        });
    }

    /// Notes the attributes of an object, which the server was asked for when `seen` was noted. Those of NFSv4 do not say its file
    /// system in the numbers of NFSv3.
    pub fn learn(&self, handle: &[u8], attributes: &[u8], seen: &Seen) {
        let Some(mut object) = Object::of(attributes) else { return };
        self.with(handle, |generations, key| {
            let overtaken = seen.owners != self.changes();
            let under_way = |(other, since_us): &(Key, u64)| {
                *other == key && seen.at_us.saturating_sub(*since_us) <= LOST_US
            };
            if overtaken || generations.under_way.iter().any(under_way) {
                return;
            }
            // Most of what is told is known: then nothing has to be put in its place.
            let elsewhere = seen.owners[usize::from(!seen.four)] - 1;
            let fresh = |object| Known { object, at_us: seen.at_us, four: seen.four, elsewhere };
            if let Some(known) = generations.young.get_mut(&key) {
                if object.fsid == 0 {
                    object.fsid = known.object.fsid;
                }
                *known = Known { at_us: known.at_us.max(seen.at_us), ..fresh(object) };
                return;
            }
            if object.fsid == 0 {
                object.fsid = generations.old.get(&key).map_or(0, |known| known.object.fsid);
            }
            generations.insert(key, fresh(object));
        });
    }
}

impl Generations {
    fn insert(&mut self, key: Key, known: Known) {
        if self.young.len() >= OBJECTS_MAX / SHARDS / 2 && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, known);
    }
}

#[cfg(test)]
mod tests;
