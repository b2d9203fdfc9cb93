//! What names lead to, as far as replies have told: so a REMOVE, RMDIR or RENAME is judged by the object that it takes away without
//! asking the server first which one that is.
//!
//! A name that leads to an object does so until a REMOVE, RMDIR or RENAME takes it away, or a RENAME puts another object in its place.
//! All of these pass FileWall where it is the only way to the server. So what is known is exact, and not merely young:
//!
//! - A name is forgotten before the call that unbinds it goes to the server ([`Names::begin`]), and nothing is learnt of it until the
//!   reply has come ([`Names::end`]).
//! - A reply teaches what a name leads to only if no call that unbinds it was under way at any moment since the server was asked:
//!   a call takes the number of such changes with it ([`Seen::names`]), and the reply finds the same one.
//! - A call that unbinds a name and whose reply never came counts as under way for [`LOST_US`]: longer than FileWall waits for it.
//! - Names are told apart by keys of 128 bits under a secret seed (SipHash), so nobody can make two that are taken for one.
//!
//! That a name leads nowhere is known too, for a RENAME puts its object in the place of what is there. Calls that make a name are watched
//! likewise, but for an OPEN of NFSv4 that makes a file where the one that it was judged by has just been removed: so nothing of
//! the kind is believed that was learnt less than [`LOST_US`] after a call of NFSv4 that could make a name.
//!
//! What stays possible is what is possible when the server is asked first: that another call, which is under way at the same time,
//! takes the name away between the decision and the removal. Where others change the server too (`known-s`), nothing here is used.
//!
//! A server may have another handle for the same folder in NFSv4 than in NFSv3. So a name that was learnt in one version is forgotten when
//! any name is unbound in the other, and is not used while that is under way ([`Versions`]).
//!
//! Names that servers take for one although their bytes differ (in upper and lower case) are not known for one here: behind such a server
//! `known-s` must be set.

use crate::message::Seen;
use crate::places::seed;
use crate::wire::nfs3::{Handle, bare};
use hashbrown::HashMap;
use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Most names that are known, over both generations.
pub const NAMES_MAX: usize = 1 << 19;
/// How long a call whose reply never came may still be carried out, µs. FileWall itself waits for two minutes.
pub const LOST_US: u64 = 600_000_000;
/// Longest handle that is remembered, without zeros at its end, bytes.
const HANDLE_BYTES: usize = 64;
const SHARDS: usize = 64;
/// Counters of changes of a shard, and of all folders.
const STRIPES: usize = 256;
const FOLDERS: usize = 4096;

/// A folder's or a name's key.
pub type Key = (u64, u64);

/// What is known of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leads {
    /// It leads to this object; true if that is its handle in NFSv4 to the byte.
    To(Handle, bool),
    /// There is no such name.
    Nowhere,
}

/// What a name leads to: an empty handle is nothing.
#[derive(Clone, Copy, Debug)]
struct Child {
    bytes: [u8; HANDLE_BYTES],
    used: u8,
    length: u8,
    /// The handle is as NFSv4 has it: servers pad the same one differently in NFSv3.
    four: bool,
    /// Changes in the other version when it was learnt.
    elsewhere: u64,
    /// When the server was asked, µs.
    at_us: u64,
}

impl Child {
    fn of(handle: &[u8], seen: &Seen) -> Option<Child> {
        let own = bare(handle);
        let mut bytes = [0; HANDLE_BYTES];
        bytes.get_mut(..own.len())?.copy_from_slice(own);
        let length = u8::try_from(handle.len()).ok()?;
        let (four, elsewhere, at_us) = (seen.four, seen.names_elsewhere, seen.at_us);
        Some(Child { bytes, used: own.len() as u8, length, four, elsewhere, at_us })
    }

    fn handle(&self) -> Option<Handle> {
        let mut whole = [0; crate::wire::nfs3::HANDLE4_BYTES_MAX];
        whole[..usize::from(self.used)].copy_from_slice(&self.bytes[..usize::from(self.used)]);
        Handle::new(whole.get(..usize::from(self.length))?)
    }
}

/// Changes of some names.
#[derive(Clone, Copy, Debug, Default)]
struct Stripe {
    /// Changes that have begun or ended.
    changes: u64,
    /// Changes that are under way.
    under_way: u32,
    /// When the last one has begun, µs.
    begun_us: u64,
}

impl Stripe {
    /// Gives up on replies that cannot come any more.
    fn settle(&mut self, now_us: u64) {
        if self.under_way > 0 && now_us.saturating_sub(self.begun_us) > LOST_US {
            self.under_way = 0;
            self.changes += 1;
        }
    }
}

/// Changes that came in each version of NFS.
#[derive(Debug, Default)]
pub struct Versions([Version; 2]);

#[derive(Debug, Default)]
struct Version {
    /// Those that have begun or ended.
    changes: AtomicU64,
    under_way: AtomicU64,
    begun_us: AtomicU64,
}

impl Versions {
    /// A change goes to the server.
    pub fn begin(&self, four: bool, now_us: u64) {
        let version = &self.0[usize::from(four)];
        version.begun_us.store(now_us, Ordering::SeqCst);
        version.under_way.fetch_add(1, Ordering::SeqCst);
        version.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// It is over.
    pub fn end(&self, four: bool) {
        let version = &self.0[usize::from(four)];
        version.changes.fetch_add(1, Ordering::SeqCst);
        let less = |count: u64| Some(count.saturating_sub(1));
        // It is never refused.
        let _ = version.under_way.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    }

    /// Gives up on replies that cannot come any more.
    pub fn settle(&self, now_us: u64) {
        for version in &self.0 {
            let under_way = version.under_way.load(Ordering::SeqCst);
            let begun_us = version.begun_us.load(Ordering::SeqCst);
            if under_way == 0 || now_us.saturating_sub(begun_us) <= LOST_US {
                continue;
            }
            // One that has begun since has said so before it was counted, and then there is another number.
            if version.under_way.compare_exchange(under_way, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                version.changes.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    /// Changes so far.
    pub fn changes(&self, four: bool) -> u64 {
        self.0[usize::from(four)].changes.load(Ordering::SeqCst)
    }

    /// True if no change was made since there were so many, and none is under way.
    pub fn is_quiet(&self, four: bool, changes: u64) -> bool {
        let version = &self.0[usize::from(four)];
        version.under_way.load(Ordering::SeqCst) == 0 && self.changes(four) == changes
    }
}

#[derive(Debug)]
struct Shard {
    young: HashMap<Key, Child, foldhash::fast::RandomState>,
    old: HashMap<Key, Child, foldhash::fast::RandomState>,
    stripes: [Stripe; STRIPES],
}

impl Default for Shard {
    fn default() -> Self {
        Self { young: HashMap::default(), old: HashMap::default(), stripes: [Stripe::default(); STRIPES] }
    }
}

/// The names, in two generations: what was not looked at while the younger one filled up is forgotten.
#[derive(Debug)]
pub struct Names {
    seed: [u8; 16],
    shards: Vec<Mutex<Shard>>,
    /// Changes in folders that have begun or ended.
    folders: Vec<AtomicU64>,
    versions: Versions,
    /// When a call of NFSv4 has gone out last that could make a name; 0 is never.
    made_four_us: AtomicU64,
}

impl Default for Names {
    fn default() -> Self {
        Self {
            seed: seed(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            folders: (0..FOLDERS).map(|_| AtomicU64::new(1)).collect(),
            versions: Versions::default(),
            made_four_us: AtomicU64::new(0),
        }
    }
}

impl Names {
    /// The key of a name in a folder, and the number of the folder's counter; `None` for names whose meaning others change.
    pub fn key(&self, folder: &[u8], name: &[u8]) -> Option<(Key, u16)> {
        Some((self.name_key(folder, name)?, self.folder(folder)))
    }

    /// The same without the folder.
    pub fn name_key(&self, folder: &[u8], name: &[u8]) -> Option<Key> {
        if matches!(name, b"" | b"." | b"..") || folder.is_empty() {
            return None;
        }
        let folder = bare(folder);
        let mut hasher = SipHasher13::new_with_key(&self.seed);
        hasher.write_usize(folder.len());
        hasher.write(folder);
        hasher.write(name);
        Some(hasher.finish128().as_u64())
    }

    /// The number of a folder's counter.
    pub fn folder(&self, folder: &[u8]) -> u16 {
        (SipHasher13::new_with_key(&self.seed).hash(bare(folder)).h1 % FOLDERS as u64) as u16
    }

    fn with<T>(&self, key: Key, work: impl FnOnce(&mut Shard, usize) -> T) -> T {
        let shard = &self.shards[key.0 as usize % SHARDS];
        let stripe = (key.0 / SHARDS as u64) as usize % STRIPES;
        work(&mut shard.lock().unwrap_or_else(PoisonError::into_inner), stripe)
    }

    /// Changes of a name so far, to be taken along by a call that asks for it.
    pub fn changes(&self, key: Key) -> u64 {
        self.with(key, |shard, stripe| shard.stripes[stripe].changes)
    }

    /// The same of all names in a folder.
    pub fn changes_in(&self, folder: u16) -> u64 {
        self.folders[usize::from(folder)].load(Ordering::SeqCst)
    }

    /// Gives up on replies that cannot come any more.
    pub fn settle(&self, now_us: u64) {
        self.versions.settle(now_us);
    }

    /// Changes of names so far that came in a version of NFS.
    pub fn changes_by(&self, four: bool) -> u64 {
        self.versions.changes(four)
    }

    /// What a name leads to, where that is known for sure.
    pub fn get(&self, key: Key) -> Option<Leads> {
        let child = self.with(key, |shard, _| {
            let child = match shard.young.get(&key) {
                Some(child) => *child,
                None => {
                    let child = shard.old.remove(&key)?;
                    shard.insert(key, child);
                    child
                }
            };
            Some(child)
        })?;
        if child.length == 0 {
            let made_us = self.made_four_us.load(Ordering::SeqCst);
            return (made_us == 0 || child.at_us > made_us + LOST_US).then_some(Leads::Nowhere);
        }
        self.versions
            .is_quiet(!child.four, child.elsewhere)
            .then(|| Some(Leads::To(child.handle()?, child.four)))?
    }

    /// A call that unbinds a name goes to the server.
    pub fn begin(&self, (key, folder): (Key, u16), four: bool, now_us: u64) {
        // A RENAME makes a name too.
        if four {
            self.makes_unseen(now_us);
        }
        self.versions.begin(four, now_us);
        // The folder first: who learns looks at it with the name's shard locked.
        self.folders[usize::from(folder)].fetch_add(1, Ordering::SeqCst);
        self.with(key, |shard, stripe| {
            shard.young.remove(&key);
            shard.old.remove(&key);
            let stripe = &mut shard.stripes[stripe];
            stripe.settle(now_us);
            stripe.changes += 1;
            stripe.under_way += 1;
            stripe.begun_us = now_us;
        });
    }

    /// The server has answered it, or has not got it.
    pub fn end(&self, (key, folder): (Key, u16), four: bool) {
        self.versions.end(four);
        self.folders[usize::from(folder)].fetch_add(1, Ordering::SeqCst);
        self.with(key, |shard, stripe| {
            let stripe = &mut shard.stripes[stripe];
            stripe.changes += 1;
            stripe.under_way = stripe.under_way.saturating_sub(1);
        });
    }

    /// A call that makes a name goes to the server. Returns the changes of the name with this one.
    pub fn begin_making(&self, key: Key, four: bool, now_us: u64) -> u64 {
        if four {
            self.makes_unseen(now_us);
        }
        self.with(key, |shard, stripe| {
            for known in [&mut shard.young, &mut shard.old] {
                if known.get(&key).is_some_and(|child| child.length == 0) {
                    known.remove(&key);
                }
            }
            let stripe = &mut shard.stripes[stripe];
            stripe.settle(now_us);
            stripe.changes += 1;
            stripe.under_way += 1;
            stripe.begun_us = now_us;
            stripe.changes
        })
    }

    /// The server has answered it, or has not got it.
    pub fn end_making(&self, key: Key) {
        self.with(key, |shard, stripe| {
            let stripe = &mut shard.stripes[stripe];
            stripe.changes += 1;
            stripe.under_way = stripe.under_way.saturating_sub(1);
        });
    }

    /// A call of NFSv4 goes to the server that may make any name.
    pub fn makes_unseen(&self, now_us: u64) {
        self.made_four_us.fetch_max(now_us.max(1), Ordering::SeqCst);
    }

    /// A reply says what a name leads to; `own` if its call makes the name, and is not over yet.
    pub fn learn(&self, seen: &Seen, handle: &[u8], own: bool) {
        if let (Some(key), Some(child)) = (seen.keys[0], Child::of(handle, seen)) {
            self.put(key, child, seen, u32::from(own));
        }
    }

    /// A reply of NFSv3 says that there is no such name.
    pub fn learn_absent(&self, seen: &Seen) {
        if let (Some(key), Some(child), false) = (seen.keys[0], Child::of(&[], seen), seen.four) {
            self.put(key, child, seen, 0);
        }
    }

    fn put(&self, key: Key, child: Child, seen: &Seen, own: u32) {
        self.with(key, |shard, stripe| {
            let stripe = &mut shard.stripes[stripe];
            stripe.settle(seen.at_us);
            if stripe.under_way == own && stripe.changes == seen.names {
                shard.insert(key, child);
            }
        });
    }

    /// A listing of a folder says what one of its names leads to.
    pub fn learn_listed(&self, seen: &Seen, (folder, number): (&[u8], u16), name: &[u8], handle: &[u8]) {
        let Some(key) = self.name_key(folder, name) else { return };
        let Some(child) = Child::of(handle, seen) else { return };
        self.with(key, |shard, stripe| {
            let stripe = &mut shard.stripes[stripe];
            stripe.settle(seen.at_us);
            if stripe.under_way == 0 && self.changes_in(number) == seen.names {
                shard.insert(key, child);
            }
        });
    }

    /// Number of names of which something is known.
    pub fn known(&self) -> usize {
        let count = |shard: &Mutex<Shard>| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.young.len() + shard.old.len()
        };
        self.shards.iter().map(count).sum()
    }
}

impl Shard {
    fn insert(&mut self, key: Key, child: Child) {
        if self.young.len() >= NAMES_MAX / SHARDS / 2 && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, child);
    }
}

#[cfg(test)]
mod tests;
