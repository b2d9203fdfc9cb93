//! What was learnt of objects from the attributes in replies: owner, mode, kind (the paper's owner information, which "can be
//! regenerated").

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

#[derive(Debug, Default)]
struct Generations {
    young: HashMap<Key, Object, foldhash::fast::RandomState>,
    old: HashMap<Key, Object, foldhash::fast::RandomState>,
}

/// Objects by handle, in two generations: what was not looked at while the younger one filled up is forgotten.
#[derive(Debug)]
pub struct Objects {
    seeds: (RandomState, RandomState),
    shards: Vec<Mutex<Generations>>,
}

impl Default for Objects {
    fn default() -> Self {
        Self {
            seeds: (RandomState::default(), RandomState::default()),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
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

    /// What is known of the object of a handle.
    pub fn get(&self, handle: &[u8]) -> Option<Object> {
        self.with(handle, |generations, key| {
            if let Some(object) = generations.young.get(&key) {
                return Some(*object);
            }
            let object = generations.old.remove(&key)?;
            generations.insert(key, object);
            Some(object)
        })
    }

    /// What was known of an object has changed.
    pub fn forget(&self, handle: &[u8]) {
        self.with(handle, |generations, key| {
            generations.young.remove(&key);
            generations.old.remove(&key);
        });
    }

    /// Notes the attributes of an object. Those of NFSv4 do not say its file system in the numbers of NFSv3.
    pub fn learn(&self, handle: &[u8], attributes: &[u8]) {
        let Some(mut object) = Object::of(attributes) else { return };
        self.with(handle, |generations, key| {
            // Most of what is told is known: then nothing has to be put in its place.
            if let Some(known) = generations.young.get_mut(&key) {
                if object.fsid == 0 {
                    object.fsid = known.fsid;
                }
                *known = object;
                return;
            }
            if object.fsid == 0 {
                object.fsid = generations.old.get(&key).map_or(0, |known| known.fsid);
            }
            generations.insert(key, object);
        });
    }
}

impl Generations {
    fn insert(&mut self, key: Key, object: Object) {
        if self.young.len() >= OBJECTS_MAX / SHARDS / 2 && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, object);
    }
}
