//! Numbers of files that outlive the daemon, for backends that give numbers anew each time they begin: folders and servers.
//!
//! The kernel calls a file by the number that it was told. Here is written down, beside the backend, by which names it can be found and how
//! often it was told. After a crash the successor's backend is asked for these names, one by one as they are needed: close-to-open, as
//! if the file had been looked up by that name again.
//!
//! Invariants
//! - A number here is given once. While one daemon lives, it stands for one number of the backend.
//! - Names are those under which the file was found or made here, as they are after what was renamed and removed here; at most
//!   [`NAMES_MAX`] of a file.
//! - The lock is not held while the backend is asked.
//!
//! What is lost: a file without a name (removed while it is open) gives ESTALE after a crash, unless the kernel itself has it
//! (`passthrough`). Of a backend that keeps what is written until it is synced ([`Backend::keeps_writes`]), a file that was written
//! and not synced gives EIO until it is closed: what is there is neither what it was nor what it should be.

use crate::backend::{
    Attributes, Backend, Change, Consistency, Entry, Held, Inode, New, ROOT, Replace, Space, Written,
};
use crate::error::{Errno, Result};
use crate::journal::Journal;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Names of one file that are remembered.
const NAMES_MAX: usize = 8;
const NO_LONGER: Errno = Errno(libc::ESTALE);

/// What the journal says.
#[derive(Debug, Serialize, Deserialize)]
enum Line {
    Is { inode: Inode, kind: u32, told: u64, opens: u64, written: bool, names: Vec<(Inode, Vec<u8>)> },
    Gone { inode: Inode },
}

#[derive(Debug, Default)]
struct Known {
    kind: u32,
    names: Vec<(Inode, OsString)>,
    told: u64,
    opens: u64,
    /// Since it was last synced, where that matters.
    written: bool,
    /// Written by a daemon that died.
    lost: bool,
    /// The backend's number, and how often it told it.
    inner: Option<(Inode, u64)>,
}

#[derive(Debug, Default)]
struct Numbers {
    of: HashMap<Inode, Known>,
    by_name: HashMap<(Inode, OsString), Inode>,
    by_inner: HashMap<Inode, Inode>,
    next: Inode,
}

/// A backend whose numbers outlive it.
pub struct Ledger {
    backend: Arc<dyn Backend>,
    numbers: Mutex<Numbers>,
    journal: Journal,
    not_found: AtomicU64,
}

impl Numbers {
    fn line(&self, inode: Inode) -> Option<Line> {
        let known = self.of.get(&inode)?;
        let names = known.names.iter().map(|(above, name)| (*above, name.as_bytes().to_vec())).collect();
        let Known { kind, told, opens, written, .. } = *known;
        Some(Line::Is { inode, kind, told, opens, written, names })
    }

    fn redo(&mut self, line: Line) {
        match line {
            Line::Gone { inode } => drop(self.of.remove(&inode)),
            Line::Is { inode, kind, told, opens, written, names } => {
                let names =
                    names.into_iter().map(|(above, name)| (above, OsString::from_vec(name))).collect();
                self.next = self.next.max(inode + 1);
                let known = Known { kind, told, opens, written, names, lost: written, inner: None };
                self.of.insert(inode, known);
            }
        }
    }

    fn add_name(&mut self, inode: Inode, parent: Inode, name: &OsStr) {
        let key = (parent, name.to_owned());
        let before = self.by_name.insert(key.clone(), inode);
        if let Some(other) = before.filter(|other| *other != inode) {
            self.drop_name_of(other, parent, name);
        }
        if let Some(known) = self.of.get_mut(&inode)
            && !known.names.contains(&key)
        {
            if known.names.len() >= NAMES_MAX {
                let oldest = known.names.remove(0);
                self.by_name.remove(&oldest);
            }
            known.names.push(key);
        }
    }

    fn drop_name_of(&mut self, inode: Inode, parent: Inode, name: &OsStr) {
        if let Some(known) = self.of.get_mut(&inode) {
            known.names.retain(|(above, there)| *above != parent || there != name);
        }
    }

    /// Whose name it was.
    fn drop_name(&mut self, parent: Inode, name: &OsStr) -> Option<Inode> {
        let inode = self.by_name.remove(&(parent, name.to_owned()))?;
        self.drop_name_of(inode, parent, name);
        Some(inode)
    }

    /// The number here of what the backend found under a name: the one that it has, one from before the crash that waits to be found, or a
    /// new one.
    fn number(&mut self, parent: Inode, name: &OsStr, found: &Attributes) -> Inode {
        if let Some(inode) = self.by_inner.get(&found.inode) {
            return *inode;
        }
        let kind = found.mode & libc::S_IFMT;
        let waiting = self.by_name.get(&(parent, name.to_owned())).copied().filter(|inode| {
            self.of.get(inode).is_some_and(|known| known.inner.is_none() && known.kind == kind)
        });
        let inode = waiting.unwrap_or(self.next);
        if waiting.is_none() {
            self.next += 1;
            self.of.insert(inode, Known { kind, ..Known::default() });
        }
        self.by_inner.insert(found.inode, inode);
        if let Some(known) = self.of.get_mut(&inode) {
            known.inner = Some((found.inode, 0));
        }
        inode
    }
}

impl Ledger {
    /// For a backend that begins.
    pub fn new(backend: Arc<dyn Backend>) -> std::io::Result<Ledger> {
        Ok(Ledger::with(backend, Numbers { next: ROOT + 1, ..Numbers::default() }, Journal::create()?))
    }

    /// For a backend that begins in place of one that died.
    pub fn again(backend: Arc<dyn Backend>, journal: [OwnedFd; 2]) -> std::io::Result<Ledger> {
        let mut numbers = Numbers { next: ROOT + 1, ..Numbers::default() };
        let journal = Journal::open(journal, |lines| lines.into_iter().for_each(|line| numbers.redo(line)))?;
        let names: Vec<_> = numbers
            .of
            .iter()
            .flat_map(|(inode, known)| known.names.iter().map(|name| (name.clone(), *inode)))
            .collect();
        numbers.by_name.extend(names);
        if backend.keeps_writes() {
            numbers.of.values_mut().for_each(|known| known.lost = false);
        }
        Ok(Ledger::with(backend, numbers, journal))
    }

    fn with(backend: Arc<dyn Backend>, mut numbers: Numbers, journal: Journal) -> Ledger {
        numbers.by_inner.insert(ROOT, ROOT);
        let root = Known { kind: libc::S_IFDIR, told: 1, inner: Some((ROOT, 1)), ..Known::default() };
        numbers.of.insert(ROOT, root);
        Ledger { backend, numbers: Mutex::new(numbers), journal, not_found: AtomicU64::new(0) }
    }

    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes down what these are now.
    fn write_down(&self, numbers: &Numbers, inodes: &[Inode]) {
        let line = |inode: &Inode| numbers.line(*inode).unwrap_or(Line::Gone { inode: *inode });
        self.journal.append(&inodes.iter().map(line).collect::<Vec<_>>());
        if self.journal.is_long() {
            self.journal.rewrite(numbers.of.keys().filter_map(|inode| numbers.line(*inode)));
        }
    }

    /// The backend's number.
    fn inner(&self, inode: Inode) -> Result<Inode> {
        let (names, kind) = {
            let numbers = self.numbers();
            let known = numbers.of.get(&inode).ok_or(NO_LONGER)?;
            if let Some((inner, _)) = known.inner {
                return Ok(inner);
            }
            (known.names.clone(), known.kind)
        };
        for (parent, name) in names {
            // As deep as the path.
            let found = self.inner(parent).and_then(|above| self.backend.lookup(above, &name));
            let found = match found {
                Ok(found) => found,
                Err(Errno::NOT_FOUND | NO_LONGER | Errno::NOT_A_DIRECTORY) => continue,
                Err(error) => return Err(error),
            };
            if found.mode & libc::S_IFMT == kind
                && let Some(inner) = self.bind(inode, &found)?
            {
                return Ok(inner);
            }
            self.backend.forget(found.inode, 1);
        }
        self.not_found.fetch_add(1, Ordering::Relaxed);
        Err(NO_LONGER)
    }

    /// A file from before the crash was found. Nothing when the backend calls another one so.
    fn bind(&self, inode: Inode, found: &Attributes) -> Result<Option<Inode>> {
        let mut numbers = self.numbers();
        if *numbers.by_inner.entry(found.inode).or_insert(inode) != inode {
            return Ok(None);
        }
        let known = numbers.of.get_mut(&inode).ok_or(NO_LONGER)?;
        let first = known.inner.is_none();
        known.inner = Some((found.inode, known.inner.map_or(1, |(_, told)| told + 1)));
        let opens = if first { known.opens } else { 0 };
        drop(numbers);
        self.open_again(found.inode, opens)?;
        Ok(Some(found.inode))
    }

    /// The backend has not heard of opens from before.
    fn open_again(&self, inner: Inode, opens: u64) -> Result<()> {
        if self.backend.consistency() != Consistency::Own {
            for _ in 0..opens {
                self.backend.open(inner)?;
            }
        }
        Ok(())
    }

    /// What the backend found or made under a name, told once more.
    fn tell(&self, parent: Inode, name: &OsStr, found: Result<Attributes>) -> Result<Attributes> {
        let found = found?;
        let mut numbers = self.numbers();
        let inode = numbers.number(parent, name, &found);
        numbers.add_name(inode, parent, name);
        let mut opens = 0;
        if let Some(known) = numbers.of.get_mut(&inode) {
            known.told += 1;
            if let Some((_, told)) = &mut known.inner {
                *told += 1;
                opens = if *told == 1 { known.opens } else { 0 };
            }
        }
        self.write_down(&numbers, &[inode]);
        drop(numbers);
        self.open_again(found.inode, opens)?;
        Ok(Attributes { inode, ..found })
    }

    fn shown(&self, inode: Inode, found: Result<Attributes>) -> Result<Attributes> {
        found.map(|found| Attributes { inode, ..found })
    }

    /// The backend's number of a file whose bytes are used.
    fn sound(&self, inode: Inode) -> Result<Inode> {
        if self.numbers().of.get(&inode).is_some_and(|known| known.lost) {
            return Err(Errno::IO);
        }
        self.inner(inode)
    }

    fn set_written(&self, inode: Inode, written: bool) {
        if self.backend.keeps_writes() {
            return;
        }
        let mut numbers = self.numbers();
        if let Some(known) = numbers.of.get_mut(&inode)
            && known.written != written
        {
            known.written = written;
            self.write_down(&numbers, &[inode]);
        }
    }

    fn count_open(&self, inode: Inode, count: impl FnOnce(u64) -> u64) {
        let mut numbers = self.numbers();
        if let Some(known) = numbers.of.get_mut(&inode) {
            known.opens = count(known.opens);
            if known.opens == 0 {
                (known.lost, known.written) = (false, false);
            }
            self.write_down(&numbers, &[inode]);
        }
    }

    fn removed(&self, parent: Inode, name: &OsStr) {
        let mut numbers = self.numbers();
        if let Some(inode) = numbers.drop_name(parent, name) {
            self.write_down(&numbers, &[inode]);
        }
    }
}

impl Backend for Ledger {
    fn lookup(&self, parent: Inode, name: &OsStr) -> Result<Attributes> {
        let found = self.backend.lookup(self.inner(parent)?, name);
        self.tell(parent, name, found)
    }

    fn forget(&self, inode: Inode, times: u64) {
        let mut numbers = self.numbers();
        let Some(known) = numbers.of.get_mut(&inode) else { return };
        known.told = known.told.saturating_sub(times);
        if known.told > 0 || inode == ROOT {
            return self.write_down(&numbers, &[inode]);
        }
        let Some(known) = numbers.of.remove(&inode) else { return };
        for key in &known.names {
            if numbers.by_name.get(key) == Some(&inode) {
                numbers.by_name.remove(key);
            }
        }
        if let Some((inner, _)) = known.inner {
            numbers.by_inner.remove(&inner);
        }
        self.write_down(&numbers, &[inode]);
        drop(numbers);
        if let Some((inner, told)) = known.inner {
            self.backend.forget(inner, told);
        }
    }

    fn attributes(&self, inode: Inode) -> Result<Attributes> {
        self.shown(inode, self.backend.attributes(self.inner(inode)?))
    }

    fn change(&self, inode: Inode, change: &Change) -> Result<Attributes> {
        let inner = if change.size.is_some() { self.sound(inode)? } else { self.inner(inode)? };
        if change.size.is_some() {
            self.set_written(inode, true);
        }
        self.shown(inode, self.backend.change(inner, change))
    }

    fn read_link(&self, inode: Inode) -> Result<Vec<u8>> {
        self.backend.read_link(self.inner(inode)?)
    }

    fn make(&self, parent: Inode, name: &OsStr, new: New) -> Result<Attributes> {
        let made = self.backend.make(self.inner(parent)?, name, new);
        self.tell(parent, name, made)
    }

    fn make_directory(&self, parent: Inode, name: &OsStr, new: New) -> Result<Attributes> {
        let made = self.backend.make_directory(self.inner(parent)?, name, new);
        self.tell(parent, name, made)
    }

    fn make_link(&self, parent: Inode, name: &OsStr, target: &OsStr, new: New) -> Result<Attributes> {
        let made = self.backend.make_link(self.inner(parent)?, name, target, new);
        self.tell(parent, name, made)
    }

    fn link(&self, inode: Inode, parent: Inode, name: &OsStr) -> Result<Attributes> {
        let made = self.backend.link(self.inner(inode)?, self.inner(parent)?, name);
        self.tell(parent, name, made)
    }

    fn unlink(&self, parent: Inode, name: &OsStr) -> Result<()> {
        self.backend.unlink(self.inner(parent)?, name)?;
        self.removed(parent, name);
        Ok(())
    }

    fn remove_directory(&self, parent: Inode, name: &OsStr) -> Result<()> {
        self.backend.remove_directory(self.inner(parent)?, name)?;
        self.removed(parent, name);
        Ok(())
    }

    fn rename(&self, from: (Inode, &OsStr), to: (Inode, &OsStr), replace: Replace) -> Result<()> {
        let (old, new) = (self.inner(from.0)?, self.inner(to.0)?);
        // Under their old names they could not be found any more.
        for (parent, name) in [from, to] {
            let known = self.numbers().by_name.get(&(parent, name.to_owned())).copied();
            // One that cannot be found needs no number.
            let _ = known.map(|inode| self.inner(inode));
        }
        self.backend.rename((old, from.1), (new, to.1), replace)?;
        let mut numbers = self.numbers();
        let (moved, other) = (numbers.drop_name(from.0, from.1), numbers.drop_name(to.0, to.1));
        if let Some(inode) = moved {
            numbers.add_name(inode, to.0, to.1);
        }
        if let Some(inode) = other.filter(|_| replace == Replace::Exchange) {
            numbers.add_name(inode, from.0, from.1);
        }
        let changed: Vec<Inode> = moved.into_iter().chain(other).collect();
        self.write_down(&numbers, &changed);
        Ok(())
    }

    fn read(&self, inode: Inode, offset: u64, to: &mut [u8]) -> Result<usize> {
        self.backend.read(self.sound(inode)?, offset, to)
    }

    fn write(&self, inode: Inode, offset: u64, from: &[u8], append: bool) -> Result<Written> {
        let inner = self.sound(inode)?;
        self.set_written(inode, true);
        self.backend.write(inner, offset, from, append)
    }

    fn sync(&self, inode: Inode, data_only: bool) -> Result<()> {
        self.backend.sync(self.sound(inode)?, data_only)?;
        self.set_written(inode, false);
        Ok(())
    }

    fn list(&self, inode: Inode, after: u64, entry: &mut dyn FnMut(Entry<'_>) -> bool) -> Result<()> {
        self.backend.list(self.inner(inode)?, after, entry)
    }

    fn space(&self) -> Result<Space> {
        self.backend.space()
    }

    fn seek(&self, inode: Inode, offset: u64, hole: bool) -> Result<u64> {
        self.backend.seek(self.sound(inode)?, offset, hole)
    }

    fn allocate(&self, inode: Inode, offset: u64, bytes: u64, mode: i32) -> Result<()> {
        self.backend.allocate(self.sound(inode)?, offset, bytes, mode)
    }

    fn get_attribute(&self, inode: Inode, name: &OsStr) -> Result<Vec<u8>> {
        self.backend.get_attribute(self.inner(inode)?, name)
    }

    fn set_attribute(&self, inode: Inode, name: &OsStr, value: &[u8], flags: i32) -> Result<()> {
        self.backend.set_attribute(self.inner(inode)?, name, value, flags)
    }

    fn list_attributes(&self, inode: Inode) -> Result<Vec<u8>> {
        self.backend.list_attributes(self.inner(inode)?)
    }

    fn remove_attribute(&self, inode: Inode, name: &OsStr) -> Result<()> {
        self.backend.remove_attribute(self.inner(inode)?, name)
    }

    fn consistency(&self) -> Consistency {
        self.backend.consistency()
    }

    fn open(&self, inode: Inode) -> Result<bool> {
        let fresh = self.backend.open(self.sound(inode)?)?;
        self.count_open(inode, |opens| opens + 1);
        Ok(fresh)
    }

    fn close(&self, inode: Inode) -> Result<()> {
        self.backend.close(self.sound(inode)?)?;
        self.set_written(inode, false);
        Ok(())
    }

    fn release(&self, inode: Inode) {
        if let Ok(inner) = self.inner(inode) {
            self.backend.release(inner);
        }
        self.count_open(inode, |opens| opens.saturating_sub(1));
    }

    fn read_only(&self) -> bool {
        self.backend.read_only()
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.backend.notes();
        notes.extend(self.journal.broken());
        let not_found = self.not_found.load(Ordering::Relaxed);
        if not_found > 0 {
            notes.push(format!("{not_found} times a file from before a crash could not be found again"));
        }
        notes
    }

    fn held(&self) -> Option<Held> {
        let held = self.backend.held().unwrap_or_default();
        let files = self.numbers().of.len() as u64;
        Some(Held { files, journal_bytes: self.journal.bytes(), ..held })
    }

    fn local(&self, inode: Inode) -> Option<OwnedFd> {
        self.backend.local(self.inner(inode).ok()?)
    }

    fn journal(&self) -> Option<&Journal> {
        Some(&self.journal)
    }

    fn known(&self) -> Vec<Inode> {
        self.numbers().of.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests;
