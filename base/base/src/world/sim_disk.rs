//! A directory in memory that fails as real ones do, from a seed.
//!
//! What it models
//! - Power cut ([`SimDisk::cut_power`], or in the midst of the n-th change by [`SimDisk::cut_power_after`]): every sector
//!   of every write that was not synced is kept, lost or torn at any byte, each on its own, so writes also appear
//!   reordered. Name changes that were not synced are kept in the order they were made up to some point (a
//!   journalling file system); a removal may be lost on its own.
//! - Process kill ([`SimDisk::kill`]): what was written stays, synced or not; open files and locks are gone.
//! - A failing sync ([`SimDisk::fail_syncs`]): the pages are dropped as clean, so they still read back, a second sync
//!   says Ok, and a power cut loses them.
//! - A failing write ([`SimDisk::fail_writes`]): some first part is written.
//! - A full disk ([`SimDisk::set_capacity_bytes`]) and bit rot ([`SimDisk::flip_bit`]).
//!
//! It does not model: sectors that change without being written, and syncs that lie by returning Ok.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::disk::{Disk, DiskFile, DiskLock, LockOutcome};
use super::rng::Rng;

/// The unit in which an unsynced write is kept, lost or torn.
pub const SECTOR_BYTES: u64 = 512;

/// A simulated directory. Clones share it. A handle, and all files opened through it, is dead after a power cut or a
/// kill; [`SimDisk::restart`] gives a live one.
#[derive(Clone)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
    generation: u64,
}

struct State {
    rng: Rng,
    generation: u64,
    changes: u64,
    cut_after_changes: Option<u64>,
    failing_syncs: u64,
    failing_writes: Option<(u64, io::ErrorKind)>,
    capacity_bytes: u64,
    inodes: BTreeMap<u64, Inode>,
    inode_next: u64,
    names: BTreeMap<String, u64>,
    names_durable: BTreeMap<String, u64>,
    names_pending: Vec<NameChange>,
    locks: BTreeMap<String, (u64, String)>,
}

#[derive(Default)]
struct Inode {
    /// What readers see.
    cache: Vec<u8>,
    /// What a power cut cannot take.
    durable: Vec<u8>,
    /// Writes in `cache` that are not in `durable`, oldest first.
    pending: Vec<(u64, Vec<u8>)>,
}

enum NameChange {
    Link { name: String, inode: u64 },
    Rename { from: String, to: String, inode: u64 },
    Unlink { name: String },
}

/// How kind a power cut is to what was not synced.
#[derive(Clone, Copy)]
enum Fate {
    KeepAll,
    LoseAll,
    Sectors { keep_percent: u64 },
}

impl Fate {
    fn pick(rng: &mut Rng) -> Fate {
        match rng.below(8) {
            0 => Fate::KeepAll,
            1 => Fate::LoseAll,
            _ => Fate::Sectors { keep_percent: 10 + rng.below(85) },
        }
    }

    /// How many bytes of a sector of `bytes` bytes reach the disk.
    fn kept_bytes(self, rng: &mut Rng, bytes: u64) -> u64 {
        match self {
            Fate::KeepAll => bytes,
            Fate::LoseAll => 0,
            Fate::Sectors { keep_percent } if rng.chance(keep_percent, 100) => bytes,
            Fate::Sectors { .. } if rng.chance(1, 2) => rng.below(bytes),
            Fate::Sectors { .. } => 0,
        }
    }
}

fn put(into: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let (start, end) = (offset as usize, offset as usize + bytes.len());
    if into.len() < end {
        into.resize(end, 0);
    }
    into[start..end].copy_from_slice(bytes);
}

impl Inode {
    /// Moves what `fate` lets through of the pending writes to the disk and forgets the rest.
    fn settle(&mut self, fate: Fate, rng: &mut Rng) {
        for (offset, bytes) in std::mem::take(&mut self.pending) {
            let mut done = 0;
            while done < bytes.len() as u64 {
                let at = offset + done;
                let sector_end = (at / SECTOR_BYTES + 1) * SECTOR_BYTES;
                let length = (sector_end - at).min(bytes.len() as u64 - done);
                let kept = fate.kept_bytes(rng, length);
                if kept > 0 {
                    put(&mut self.durable, at, &bytes[done as usize..(done + kept) as usize]);
                }
                done += length;
            }
        }
    }
}

impl State {
    fn used_bytes(&self) -> u64 {
        self.names.values().filter_map(|id| self.inodes.get(id)).map(|inode| inode.cache.len() as u64).sum()
    }

    fn apply_durable(&mut self, change: NameChange) {
        match change {
            NameChange::Link { name, inode } => {
                self.names_durable.insert(name, inode);
            }
            NameChange::Rename { from, to, inode } => {
                self.names_durable.remove(&from);
                self.names_durable.insert(to, inode);
            }
            NameChange::Unlink { name } => {
                self.names_durable.remove(&name);
            }
        }
    }

    fn cut_power(&mut self) {
        let fate = Fate::pick(&mut self.rng);
        for inode in self.inodes.values_mut() {
            inode.settle(fate, &mut self.rng);
        }
        let pending = std::mem::take(&mut self.names_pending);
        let kept = match fate {
            Fate::KeepAll => pending.len(),
            Fate::LoseAll => 0,
            Fate::Sectors { .. } => self.rng.below(pending.len() as u64 + 1) as usize,
        };
        for change in pending.into_iter().take(kept) {
            let lost = matches!(change, NameChange::Unlink { .. })
                && matches!(fate, Fate::Sectors { .. })
                && self.rng.chance(1, 3);
            if !lost {
                self.apply_durable(change);
            }
        }
        self.names = self.names_durable.clone();
        let names = &self.names;
        self.inodes.retain(|id, _| names.values().any(|named| named == id));
        for inode in self.inodes.values_mut() {
            inode.cache = inode.durable.clone();
        }
        self.restart();
    }

    fn restart(&mut self) {
        self.generation += 1;
        self.cut_after_changes = None;
        self.failing_syncs = 0;
        self.failing_writes = None;
    }

    /// Counts one change. True when the power goes during it.
    fn change(&mut self) -> bool {
        self.changes += 1;
        match &mut self.cut_after_changes {
            Some(0) => true,
            Some(left) => {
                *left -= 1;
                false
            }
            None => false,
        }
    }
}

fn dead() -> io::Error {
    io::Error::other("the simulated machine lost power or the process was killed; restart() the disk")
}

fn not_found(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("no file {name}"))
}

impl SimDisk {
    /// An empty directory without a capacity limit, whose failures are drawn from `seed`.
    pub fn new(seed: u64) -> SimDisk {
        let state = State {
            rng: Rng::new(seed),
            generation: 0,
            changes: 0,
            cut_after_changes: None,
            failing_syncs: 0,
            failing_writes: None,
            capacity_bytes: u64::MAX,
            inodes: BTreeMap::new(),
            inode_next: 0,
            names: BTreeMap::new(),
            names_durable: BTreeMap::new(),
            names_pending: Vec::new(),
            locks: BTreeMap::new(),
        };
        SimDisk { state: Arc::new(Mutex::new(state)), generation: 0 }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn live(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.state();
        if state.generation == self.generation { Ok(state) } else { Err(dead()) }
    }

    /// Makes one name change, cutting the power during it when that was asked for.
    fn change_names(&self, act: impl FnOnce(&mut State) -> io::Result<NameChange>) -> io::Result<()> {
        let mut state = self.live()?;
        let change = act(&mut state)?;
        state.names_pending.push(change);
        if state.change() {
            state.cut_power();
            return Err(dead());
        }
        Ok(())
    }

    fn file(&self, inode: u64) -> Arc<dyn DiskFile> {
        Arc::new(SimFile { disk: self.clone(), inode })
    }

    /// Takes the power away now.
    pub fn cut_power(&self) {
        self.state().cut_power();
    }

    /// Takes the power away during the change (create, rename, remove, write, sync) that follows `changes` more of them.
    pub fn cut_power_after(&self, changes: u64) {
        self.state().cut_after_changes = Some(changes);
    }

    /// Ends the process that has this disk open; what it wrote stays.
    pub fn kill(&self) {
        self.state().restart();
    }

    /// A live handle, for the process that runs after a power cut or a kill.
    pub fn restart(&self) -> SimDisk {
        SimDisk { state: Arc::clone(&self.state), generation: self.state().generation }
    }

    /// Whether this handle outlived a power cut or a kill.
    pub fn is_dead(&self) -> bool {
        self.state().generation != self.generation
    }

    /// How many changes were made since the beginning.
    pub fn changes(&self) -> u64 {
        self.state().changes
    }

    /// Lets the next `count` calls of `sync_data` fail.
    pub fn fail_syncs(&self, count: u64) {
        self.state().failing_syncs = count;
    }

    /// Lets the next `count` writes fail with `kind` after some part of each was written.
    pub fn fail_writes(&self, count: u64, kind: io::ErrorKind) {
        self.state().failing_writes = Some((count, kind));
    }

    /// Limits the sum of all file lengths; writes beyond it fail with `StorageFull`.
    pub fn set_capacity_bytes(&self, bytes: u64) {
        self.state().capacity_bytes = bytes;
    }

    /// The sum of all file lengths in bytes.
    pub fn used_bytes(&self) -> u64 {
        self.state().used_bytes()
    }

    /// Rots one bit, on the disk and in the cache.
    pub fn flip_bit(&self, name: &str, offset: u64, bit: u8) -> io::Result<()> {
        let mut state = self.state();
        let inode = *state.names.get(name).ok_or_else(|| not_found(name))?;
        let inode = state.inodes.get_mut(&inode).ok_or_else(|| not_found(name))?;
        for bytes in [&mut inode.cache, &mut inode.durable] {
            if let Some(byte) = bytes.get_mut(offset as usize) {
                *byte ^= 1 << (bit % 8);
            }
        }
        Ok(())
    }

    /// All bytes of a file as a reader sees them.
    pub fn read_all(&self, name: &str) -> io::Result<Vec<u8>> {
        let state = self.state();
        let inode = state.names.get(name).and_then(|id| state.inodes.get(id));
        inode.map(|inode| inode.cache.clone()).ok_or_else(|| not_found(name))
    }
}

impl Disk for SimDisk {
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut made = 0;
        self.change_names(|state| {
            if state.names.contains_key(name) {
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{name} exists")));
            }
            made = state.inode_next;
            state.inode_next += 1;
            state.inodes.insert(made, Inode::default());
            state.names.insert(name.to_owned(), made);
            Ok(NameChange::Link { name: name.to_owned(), inode: made })
        })?;
        Ok(self.file(made))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let inode = self.live()?.names.get(name).copied();
        inode.map(|inode| self.file(inode)).ok_or_else(|| not_found(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.change_names(|state| {
            let inode = state.names.remove(from).ok_or_else(|| not_found(from))?;
            state.names.insert(to.to_owned(), inode);
            Ok(NameChange::Rename { from: from.to_owned(), to: to.to_owned(), inode })
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.change_names(|state| {
            state.names.remove(name).ok_or_else(|| not_found(name))?;
            Ok(NameChange::Unlink { name: name.to_owned() })
        })
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.live()?.names.keys().cloned().collect())
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut state = self.live()?;
        if state.change() {
            state.cut_power();
            return Err(dead());
        }
        for change in std::mem::take(&mut state.names_pending) {
            state.apply_durable(change);
        }
        Ok(())
    }

    fn lock(&self, name: &str, holder: &str) -> io::Result<LockOutcome> {
        let mut state = self.live()?;
        let generation = self.generation;
        if let Some((_, holder)) = state.locks.get(name).filter(|(taken, _)| *taken == generation) {
            return Ok(LockOutcome::Busy { holder: holder.clone() });
        }
        state.locks.insert(name.to_owned(), (generation, holder.to_owned()));
        let held = SimLock { disk: self.clone(), name: name.to_owned() };
        Ok(LockOutcome::Held(DiskLock::new(Box::new(held))))
    }

    fn describe(&self) -> String {
        "simulated disk".to_owned()
    }
}

struct SimLock {
    disk: SimDisk,
    name: String,
}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut state = self.disk.state();
        if state.locks.get(&self.name).is_some_and(|(taken, _)| *taken == self.disk.generation) {
            state.locks.remove(&self.name);
        }
    }
}

struct SimFile {
    disk: SimDisk,
    inode: u64,
}

impl SimFile {
    /// How many bytes of a write go through, and the error that ends it early.
    fn admit(state: &mut State, inode: u64, offset: u64, bytes: &[u8]) -> (usize, Option<io::Error>) {
        if let Some((count @ 1.., kind)) = state.failing_writes {
            state.failing_writes = Some((count - 1, kind));
            let part = state.rng.below(bytes.len() as u64 + 1) as usize;
            return (part, Some(io::Error::new(kind, "simulated write failure")));
        }
        let length = state.inodes.get(&inode).map_or(0, |inode| inode.cache.len() as u64);
        let room = length.saturating_add(state.capacity_bytes.saturating_sub(state.used_bytes()));
        let end = offset + bytes.len() as u64;
        if end <= room {
            return (bytes.len(), None);
        }
        let part = room.saturating_sub(offset) as usize;
        (part, Some(io::Error::new(io::ErrorKind::StorageFull, "simulated disk is full")))
    }
}

impl DiskFile for SimFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.disk.live()?;
        let (part, error) = SimFile::admit(&mut state, self.inode, offset, bytes);
        let inode = state.inodes.entry(self.inode).or_default();
        put(&mut inode.cache, offset, &bytes[..part]);
        inode.pending.push((offset, bytes[..part].to_vec()));
        if state.change() {
            state.cut_power();
            return Err(dead());
        }
        error.map_or(Ok(()), Err)
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let state = self.disk.live()?;
        let cache = state.inodes.get(&self.inode).map_or(&[][..], |inode| &inode.cache);
        let start = (offset as usize).min(cache.len());
        let count = bytes.len().min(cache.len() - start);
        bytes[..count].copy_from_slice(&cache[start..start + count]);
        Ok(count)
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut guard = self.disk.live()?;
        let state = &mut *guard;
        if state.change() {
            state.cut_power();
            return Err(dead());
        }
        let failing = state.failing_syncs > 0;
        let fate = if failing { Fate::Sectors { keep_percent: 50 } } else { Fate::KeepAll };
        if let Some(inode) = state.inodes.get_mut(&self.inode) {
            inode.settle(fate, &mut state.rng);
        }
        if failing {
            state.failing_syncs -= 1;
            return Err(io::Error::other("simulated sync failure"));
        }
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.live()?.inodes.get(&self.inode).map_or(0, |inode| inode.cache.len() as u64))
    }
}
