//! The files that the kernel knows of a folder, and descriptors of them: of few, however many the kernel knows.
//!
//! A file is opened (`O_PATH`) when it is looked up, and stays open as long as there is room: at most so many descriptors as the process may have, but for
//! [`SPARE`]. Then those go that were not used lately, each once it is certain how its file is opened again: by its handle ([`super::handle`]), or, where
//! there is none or this process may not (it is not root's), by the names under which it was looked up or made here. What is found must be the same file by its
//! [`Mark`], or it is gone: ESTALE, at which the kernel looks anew.
//!
//! Invariants
//! - A number names one file: two that had the same inode number underneath one after the other are two.
//! - A file without a name cannot be opened again by every file system: it stays open until the kernel forgets it. So does a file while it is
//!   removed or renamed here ([`Files::keep`]).
//! - Where files are opened again by name, a folder is known here as long as a file is that has its name in it.
//! - The ring has each file that may go, once; at most twice as many entries as there are files ([`RING_SLACK`]).
//! - Nothing is opened or closed with the lock held; looking at an open file is.
//!
//! What is not bounded here is how many files the kernel knows: it forgets them when it needs memory, which gives back ours; they are counted ([`Held`]).

use super::handle::{Handles, Mark};
use crate::backend::{Held, Inode, ROOT};
use crate::error::{Errno, Result};
use rustix::fs::{AtFlags, Mode, OFlags, Stat};
use std::collections::{HashMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Descriptors that are held at most, whatever the limit is: the file system underneath cannot forget what is open.
const HELD_MAX: usize = 65_536;
/// What is left of the limit for all else: this part of it, and at least and at most so many.
const SPARE: u64 = 4;
const SPARE_MIN: u64 = 32;
const SPARE_MAX: u64 = 1024;
/// Even of the smallest limit.
const HELD_MIN: usize = 16;
/// How often an open is tried again when others took the descriptors that were spared.
const TRIES_MAX: u32 = 3;
/// Entries of the ring that may be of files that were forgotten, beside as many as there are files.
const RING_SLACK: usize = 64;
/// Names of a file that are remembered, where it is opened again by name.
const NAMES_MAX: usize = 8;
const GONE: Errno = Errno(libc::ESTALE);

/// Device and inode number underneath.
type Key = (u64, u64);

/// A name that leads to a file itself, links not followed further.
pub(super) fn magic(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

pub(super) fn stat_of(file: &OwnedFd) -> rustix::io::Result<Stat> {
    rustix::fs::statat(file, "", AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW)
}

fn key(stat: &Stat) -> Key {
    (stat.st_dev, stat.st_ino)
}

/// A file that is open for its bytes.
#[derive(Debug, Clone)]
struct Data {
    file: Arc<OwnedFd>,
    writable: bool,
}

#[derive(Debug)]
struct Known {
    key: Key,
    /// Nothing while it is put away.
    path: Option<Arc<OwnedFd>>,
    /// Nothing before it is needed, and while it is put away.
    data: Option<Data>,
    /// Of what is put away, or was once.
    mark: Option<Mark>,
    /// Since the ring came by.
    used: bool,
    in_ring: bool,
    /// While this is not 0 it stays open.
    kept: u32,
    told: u64,
    /// Names of files that lie in it.
    children: u64,
    names: Vec<(Inode, OsString)>,
    append: Arc<Mutex<()>>,
}

impl Known {
    fn new(path: OwnedFd, key: Key) -> Known {
        Known {
            key,
            path: Some(Arc::new(path)),
            data: None,
            mark: None,
            used: true,
            in_ring: false,
            kept: 0,
            told: 0,
            children: 0,
            names: Vec::new(),
            append: Arc::default(),
        }
    }

    /// Its descriptors.
    fn take(&mut self) -> impl Iterator<Item = Arc<OwnedFd>> + use<> {
        self.path.take().into_iter().chain(self.data.take().map(|data| data.file))
    }
}

#[derive(Debug)]
struct Nodes {
    of: HashMap<Inode, Known>,
    numbers: HashMap<Key, Inode>,
    next: Inode,
    ring: VecDeque<Inode>,
    /// Descriptors.
    open: usize,
}

/// Descriptors that are closed once the lock is given back.
type Away = Vec<Arc<OwnedFd>>;

/// The files of a folder.
#[derive(Debug)]
pub(super) struct Files {
    nodes: Mutex<Nodes>,
    handles: Option<Handles>,
    device: u64,
    most: usize,
    /// Held while rights of a file are other than its owner gave it.
    rights: Mutex<()>,
    put_away: AtomicU64,
    reopened: AtomicU64,
    lost: AtomicU64,
    short: AtomicU64,
}

/// A file that stays open while its names change.
#[derive(Debug)]
pub(super) struct Kept<'a> {
    files: &'a Files,
    inode: Inode,
}

/// The same file, whatever it is called.
impl PartialEq for Kept<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.inode == other.inode
    }
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        let mut nodes = self.files.nodes();
        if let Some(known) = nodes.of.get_mut(&self.inode) {
            known.kept = known.kept.saturating_sub(1);
            nodes.list(self.inode);
        }
    }
}

/// How many descriptors may be held, of so many that the process may have.
fn most_of(limit: Option<u64>) -> usize {
    let limit = limit.unwrap_or(u64::MAX);
    let spare = (limit / SPARE).clamp(SPARE_MIN, SPARE_MAX);
    usize::try_from(limit.saturating_sub(spare)).unwrap_or(usize::MAX).clamp(HELD_MIN, HELD_MAX)
}

impl Nodes {
    /// It may go when its turn comes.
    fn list(&mut self, inode: Inode) {
        if self.ring.len() > 2 * self.of.len() + RING_SLACK {
            let of = &self.of;
            self.ring.retain(|inode| of.get(inode).is_some_and(|known| known.in_ring));
        }
        if let Some(known) = self.of.get_mut(&inode)
            && known.kept == 0
            && known.path.is_some()
            && !std::mem::replace(&mut known.in_ring, true)
        {
            self.ring.push_back(inode);
        }
    }

    fn add_name(&mut self, inode: Inode, parent: Inode, name: &OsStr, away: &mut Away) {
        let Some(known) = self.of.get_mut(&inode) else { return };
        let there = |(above, called): &(Inode, OsString)| *above == parent && called == name;
        if known.names.iter().any(there) {
            return;
        }
        let oldest = (known.names.len() >= NAMES_MAX).then(|| known.names.remove(0));
        known.names.push((parent, name.to_owned()));
        if let Some(above) = self.of.get_mut(&parent) {
            above.children += 1;
        }
        if let Some((above, _)) = oldest {
            self.has_one_less(above, away);
        }
    }

    fn drop_name(&mut self, inode: Inode, parent: Inode, name: &OsStr, away: &mut Away) {
        let Some(known) = self.of.get_mut(&inode) else { return };
        let before = known.names.len();
        known.names.retain(|(above, called)| *above != parent || called != name);
        if known.names.len() < before {
            self.has_one_less(parent, away);
        }
    }

    /// A name in this folder is remembered no more.
    fn has_one_less(&mut self, folder: Inode, away: &mut Away) {
        if let Some(folder) = self.of.get_mut(&folder) {
            folder.children = folder.children.saturating_sub(1);
        }
        self.drop_unused(folder, away);
    }

    /// Drops a file that neither the kernel knows nor a name leads through, and folders that stayed for its sake.
    fn drop_unused(&mut self, inode: Inode, away: &mut Away) {
        let mut unused = vec![inode];
        while let Some(inode) = unused.pop() {
            let is_unused = |known: &&Known| known.told == 0 && known.children == 0 && inode != ROOT;
            if self.of.get(&inode).filter(is_unused).is_none() {
                continue;
            }
            let Some(mut known) = self.of.remove(&inode) else { continue };
            if self.numbers.get(&known.key) == Some(&inode) {
                self.numbers.remove(&known.key);
            }
            let before = away.len();
            away.extend(known.take());
            self.open -= away.len() - before;
            for (parent, _) in known.names {
                if let Some(above) = self.of.get_mut(&parent) {
                    above.children = above.children.saturating_sub(1);
                    unused.push(parent);
                }
            }
        }
    }
}

impl Files {
    /// Of the folder `root`.
    pub(super) fn new(root: OwnedFd) -> rustix::io::Result<Files> {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let handles = Handles::of(&root);
        Files::with(root, handles, most_of(limit))
    }

    /// The same with so many descriptors.
    pub(super) fn with(root: OwnedFd, handles: Option<Handles>, most: usize) -> rustix::io::Result<Files> {
        let key = key(&rustix::fs::fstat(&root)?);
        let known = Known { told: 1, kept: 1, ..Known::new(root, key) };
        let nodes = Nodes {
            of: HashMap::from([(ROOT, known)]),
            numbers: HashMap::from([(key, ROOT)]),
            next: ROOT + 1,
            ring: VecDeque::new(),
            open: 1,
        };
        Ok(Files {
            nodes: Mutex::new(nodes),
            handles,
            device: key.0,
            most,
            rights: Mutex::default(),
            put_away: AtomicU64::new(0),
            reopened: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            short: AtomicU64::new(0),
        })
    }

    fn nodes(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is counted.
    pub(super) fn held(&self) -> Held {
        let nodes = self.nodes();
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        Held {
            files: nodes.of.len() as u64,
            descriptors: nodes.open as u64,
            descriptors_max: self.most as u64,
            put_away: count(&self.put_away),
            reopened: count(&self.reopened),
            lost: count(&self.lost),
            short: count(&self.short),
            by_handle: self.handles.is_some(),
            journal_bytes: 0,
        }
    }

    /// Takes descriptors out until there are at most `most`, of those that were not used since the ring came by last.
    fn make_room(&self, nodes: &mut Nodes, most: usize) -> Away {
        let mut away = Vec::new();
        let mut turns = 2 * nodes.ring.len();
        while nodes.open > most && turns > 0 {
            turns -= 1;
            let Some(inode) = nodes.ring.pop_front() else { break };
            let Some(known) = nodes.of.get_mut(&inode).filter(|known| known.in_ring) else { continue };
            if known.kept == 0 && std::mem::take(&mut known.used) {
                nodes.ring.push_back(inode);
                continue;
            }
            known.in_ring = false;
            let Some(path) = known.path.as_ref().filter(|_| known.kept == 0) else { continue };
            match self.way_back(path, known) {
                None => known.kept = 1,
                Some(mark) => {
                    known.mark = Some(mark);
                    let before = away.len();
                    away.extend(known.take());
                    nodes.open -= away.len() - before;
                    self.put_away.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        away
    }

    /// By what a file is opened again; nothing when it could not be.
    fn way_back(&self, path: &OwnedFd, known: &Known) -> Option<Mark> {
        // Removed, maybe by others.
        if stat_of(path).ok()?.st_nlink == 0 {
            return None;
        }
        let mark = Mark::of(path);
        let by_handle = self.handles.as_ref().is_some_and(|handles| handles.can_open(&mark));
        (by_handle || !known.names.is_empty()).then_some(mark)
    }

    /// Opens something. Where others took the descriptors that were spared, ours give way.
    pub(super) fn open<T>(&self, open: impl Fn() -> rustix::io::Result<T>) -> Result<T> {
        for _ in 0..TRIES_MAX {
            match open() {
                Err(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => {
                    self.short.fetch_add(1, Ordering::Relaxed);
                    let mut nodes = self.nodes();
                    let half = nodes.open / 2;
                    let away = self.make_room(&mut nodes, half);
                    drop(nodes);
                    drop(away);
                }
                other => return Ok(other?),
            }
        }
        Ok(open()?)
    }

    /// A descriptor (`O_PATH`) of a file.
    pub(super) fn path(&self, inode: Inode) -> Result<Arc<OwnedFd>> {
        let (key, mark, names) = {
            let mut nodes = self.nodes();
            let known = nodes.of.get_mut(&inode).ok_or(GONE)?;
            known.used = true;
            if let Some(path) = &known.path {
                return Ok(path.clone());
            }
            (known.key, known.mark.clone().unwrap_or_default(), known.names.clone())
        };
        let found = match self.find_again(key, &mark, &names) {
            Err(GONE) => {
                self.lost.fetch_add(1, Ordering::Relaxed);
                return Err(GONE);
            }
            found => Arc::new(found?),
        };
        self.reopened.fetch_add(1, Ordering::Relaxed);
        let mut nodes = self.nodes();
        let nodes_of = &mut *nodes;
        let Some(known) = nodes_of.of.get_mut(&inode) else { return Ok(found) };
        if let Some(path) = &known.path {
            return Ok(path.clone());
        }
        known.path = Some(found.clone());
        nodes_of.open += 1;
        nodes_of.list(inode);
        let away = self.make_room(nodes_of, self.most);
        drop(nodes);
        drop(away);
        Ok(found)
    }

    /// Opens a file that was put away.
    fn find_again(&self, key: Key, mark: &Mark, names: &[(Inode, OsString)]) -> Result<OwnedFd> {
        if let Some(handles) = self.handles.as_ref().filter(|handles| handles.can_open(mark)) {
            return self.open(|| handles.open(mark).unwrap_or(Err(rustix::io::Errno::STALE)));
        }
        for (parent, name) in names {
            // As deep as the path.
            let found = self.path(*parent).and_then(|above| self.open_name(&above, name));
            match found {
                Ok(found) if is_file(&found, key, mark) => return Ok(found),
                Ok(_) | Err(Errno::NOT_FOUND | Errno::NOT_A_DIRECTORY | GONE) => {}
                Err(error) => return Err(error),
            }
        }
        Err(GONE)
    }

    /// Opens a name in a folder, links not followed.
    pub(super) fn open_name(&self, parent: &OwnedFd, name: &OsStr) -> Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.open(|| rustix::fs::openat(parent, name, flags, Mode::empty()))
    }

    /// A descriptor for a file's bytes, to read or to write them.
    pub(super) fn data(&self, inode: Inode, write: bool) -> Result<Arc<OwnedFd>> {
        let path = self.path(inode)?;
        let fits = |data: &&Data| data.writable || !write;
        if let Some(data) = self.nodes().of.get(&inode).and_then(|known| known.data.as_ref()).filter(fits) {
            return Ok(data.file.clone());
        }
        let data = self.open_data(&path, write)?;
        let file = data.file.clone();
        let mut nodes = self.nodes();
        let nodes_of = &mut *nodes;
        let Some(known) = nodes_of.of.get_mut(&inode).filter(|known| known.path.is_some()) else {
            return Ok(file);
        };
        let before = known.data.replace(data);
        nodes_of.open += usize::from(before.is_none());
        let away = self.make_room(nodes_of, self.most);
        drop(nodes);
        drop((before, away));
        Ok(file)
    }

    /// For both, where that may be.
    fn open_data(&self, path: &OwnedFd, write: bool) -> Result<Data> {
        let name = magic(path);
        let flags = OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        let open = |mode| self.open(|| rustix::fs::open(&name, flags | mode, Mode::empty()));
        let data = |file, writable| Data { file: Arc::new(file), writable };
        let refused = match open(OFlags::RDWR) {
            Ok(file) => return Ok(data(file, true)),
            Err(error) => error,
        };
        let refused = match (write, refused) {
            (true, error) => error,
            (false, _) => match open(OFlags::RDONLY) {
                Ok(file) => return Ok(data(file, false)),
                Err(error) => error,
            },
        };
        if refused != Errno(libc::EACCES) {
            return Err(refused);
        }
        self.as_owner(path, || open(OFlags::RDWR)).map(|file| data(file, true))
    }

    /// Does what the owner's rights do not allow, of a file of this user: the kernel has judged who opened it when it was opened, and the rights may be
    /// others since, or those of a file that was just made to be read only.
    fn as_owner<T>(&self, path: &OwnedFd, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let _alone = self.rights();
        let stat = stat_of(path)?;
        let mode = stat.st_mode & 0o7777;
        let set = |mode| rustix::fs::chmod(magic(path), Mode::from_bits_truncate(mode));
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            return Err(Errno(libc::EACCES));
        }
        set(mode | 0o600)?;
        let done = work();
        set(mode)?;
        done
    }

    /// Whoever holds this may set the rights of files.
    pub(super) fn rights(&self) -> MutexGuard<'_, ()> {
        self.rights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One append to a file at a time: each looks where the end is.
    pub(super) fn append(&self, inode: Inode) -> Result<Arc<Mutex<()>>> {
        self.nodes().of.get(&inode).map(|known| known.append.clone()).ok_or(GONE)
    }

    /// The number of what was found under a name, told once more.
    pub(super) fn tell(&self, parent: Inode, name: &OsStr, found: OwnedFd, stat: &Stat) -> Inode {
        let key = key(stat);
        let mut nodes = self.nodes();
        let nodes_of = &mut *nodes;
        let known = nodes_of.numbers.get(&key).copied().filter(|inode| {
            let known = nodes_of.of.get(inode);
            // One that is open still has its inode number.
            known.is_some_and(|known| known.path.is_some() || known.mark == Some(Mark::of(&found)))
        });
        let inode = known.unwrap_or(nodes_of.next);
        let mut spare = None;
        if known.is_none() {
            nodes_of.next += 1;
            nodes_of.numbers.insert(key, inode);
            nodes_of.of.insert(inode, Known::new(found, key));
            nodes_of.open += 1;
        } else {
            spare = Some(found);
        }
        if let Some(known) = nodes_of.of.get_mut(&inode) {
            known.told += 1;
            known.used = true;
            if known.path.is_none()
                && let Some(found) = spare.take()
            {
                known.path = Some(Arc::new(found));
                nodes_of.open += 1;
            }
        }
        let mut away = Vec::new();
        if self.handles.is_none() || stat.st_dev != self.device {
            nodes_of.add_name(inode, parent, name, &mut away);
        }
        nodes_of.list(inode);
        away.extend(self.make_room(nodes_of, self.most));
        drop(nodes);
        drop((spare, away));
        inode
    }

    /// Takes back so many tellings.
    pub(super) fn forget(&self, inode: Inode, times: u64) {
        let mut away = Vec::new();
        let mut nodes = self.nodes();
        if let Some(known) = nodes.of.get_mut(&inode) {
            known.told = known.told.saturating_sub(times);
            nodes.drop_unused(inode, &mut away);
        }
        drop(nodes);
    }

    /// Keeps the file of a name open while that name changes, if the kernel knows the file.
    pub(super) fn keep(&self, parent: &OwnedFd, name: &OsStr) -> Result<Option<Kept<'_>>> {
        // What is not there, or may not be looked at, the call itself says.
        let Ok(stat) = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) else { return Ok(None) };
        let kept = {
            let mut nodes = self.nodes();
            let Some(inode) = nodes.numbers.get(&key(&stat)).copied() else { return Ok(None) };
            let Some(known) = nodes.of.get_mut(&inode) else { return Ok(None) };
            known.kept += 1;
            Kept { files: self, inode }
        };
        match self.path(kept.inode) {
            Ok(_) => Ok(Some(kept)),
            // The name is another file's, which the kernel does not know.
            Err(GONE) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A name is gone.
    pub(super) fn unnamed(&self, kept: Option<&Kept<'_>>, parent: Inode, name: &OsStr) {
        let mut away = Vec::new();
        if let Some(kept) = kept {
            self.nodes().drop_name(kept.inode, parent, name, &mut away);
        }
    }

    /// A file that was kept has this name now, besides those that it had.
    pub(super) fn named(&self, kept: Option<&Kept<'_>>, parent: Inode, name: &OsStr) {
        let mut away = Vec::new();
        let mut nodes = self.nodes();
        let by_name = |kept: &&Kept<'_>| {
            let known = nodes.of.get(&kept.inode);
            known.is_some_and(|known| self.handles.is_none() || known.key.0 != self.device)
        };
        if let Some(inode) = kept.filter(by_name).map(|kept| kept.inode) {
            nodes.add_name(inode, parent, name, &mut away);
        }
        drop(nodes);
    }
}

fn is_file(found: &OwnedFd, of: Key, mark: &Mark) -> bool {
    stat_of(found).is_ok_and(|stat| key(&stat) == of) && Mark::of(found) == *mark
}

#[cfg(test)]
mod tests;
