//! The operations of files, as requests to an object store.

use super::said::Wanted;
use super::{OBJECT_BYTES_MAX, S3, lie};
use crate::backend::{Attributes, Change, New, Replace, Space};
use crate::error::{Errno, Result};
use crate::remote::{Found, LISTING_MOST, NAMES_MAX, Place, Protocol, can_be_name};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::FileExt;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Names that are asked for at once, and how often: as many as there may be, and half as many again.
const PAGE_NAMES: usize = 1000;
const PAGES_MAX: usize = NAMES_MAX / PAGE_NAMES * 3 / 2;

impl Protocol for S3 {
    /// Times have whole seconds.
    const EXACT_TIMES: bool = false;
    /// Objects are put up as a whole.
    const KEEPS_WRITES: bool = false;

    fn root(&self) -> Result<Found> {
        Ok(Found { attributes: self.directory(), key: Vec::new() })
    }

    fn lookup(&self, parent: &Place, name: &OsStr) -> Result<Found> {
        Ok(Found { attributes: self.find(&parent.join(name)?)?, key: Vec::new() })
    }

    fn attributes(&self, of: &Place) -> Result<Attributes> {
        let Some(one) = self.staged_of(of) else {
            let (shown, object) = self.find_object(of.path()?)?;
            self.remember(of, object)?;
            return Ok(shown);
        };
        let staged = one.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(file) = staged.file.as_ref().filter(|_| staged.changed && !staged.over) else {
            drop(staged);
            return self.find(of.path()?);
        };
        let found = file.metadata()?;
        Ok(self.file(found.len(), found.modified()?))
    }

    fn change(&self, of: &Place, change: &Change, now: &Attributes) -> Result<()> {
        let other = |new: Option<u32>, old: u32| new.is_some_and(|new| new != old);
        if other(change.mode.map(|mode| mode & 0o7777), now.mode & 0o7777)
            || other(change.user, now.user)
            || other(change.group, now.group)
        {
            return Err(Errno::NOT_PERMITTED);
        }
        let Some(size) = change.size else { return Ok(()) };
        if size > OBJECT_BYTES_MAX {
            return Err(Errno(libc::EFBIG));
        }
        self.alter(of, size == 0, |file| file.set_len(size))?;
        if of.open {
            return Ok(());
        }
        self.upload(of, true)
    }

    fn read_link(&self, _of: &Place) -> Result<Vec<u8>> {
        Err(Errno::INVALID)
    }

    fn make(&self, parent: &Place, name: &OsStr, _new: New) -> Result<()> {
        let path = parent.join(name)?;
        match self.find(&path) {
            Err(Errno::NOT_FOUND) => self.put(&self.key(&path)?, None, true),
            Err(error) => Err(error),
            Ok(_) => Err(Errno::EXISTS),
        }
    }

    fn make_directory(&self, parent: &Place, name: &OsStr, _new: New) -> Result<()> {
        let path = parent.join(name)?;
        match self.find(&path) {
            Err(Errno::NOT_FOUND) => self.put(&self.folder(&path)?, None, false),
            Err(error) => Err(error),
            Ok(_) => Err(Errno::EXISTS),
        }
    }

    fn make_link(&self, _parent: &Place, _name: &OsStr, _target: &OsStr, _new: New) -> Result<()> {
        Err(Errno::NOT_PERMITTED)
    }

    fn link(&self, _of: &Place, _parent: &Place, _name: &OsStr) -> Result<()> {
        Err(Errno::NOT_PERMITTED)
    }

    fn remove(&self, parent: &Place, name: &OsStr) -> Result<()> {
        let key = self.key(&parent.join(name)?)?;
        self.head(&key)?;
        self.delete(&key)?;
        self.keep(parent.path()?)
    }

    fn remove_directory(&self, parent: &Place, name: &OsStr) -> Result<()> {
        let folder = self.folder(&parent.join(name)?)?;
        if !self.is_empty(&folder)? {
            return Err(Errno::NOT_EMPTY);
        }
        self.delete(&folder)?;
        self.keep(parent.path()?)
    }

    fn rename(&self, from: (&Place, &OsStr), to: (&Place, &OsStr), replace: Replace) -> Result<()> {
        let (old, new) = (from.0.join(from.1)?, to.0.join(to.1)?);
        let moved = self.find(&old)?;
        let there = match self.find(&new) {
            Err(Errno::NOT_FOUND) => None,
            found => Some(found?),
        };
        match there {
            Some(_) if replace == Replace::No => return Err(Errno::EXISTS),
            Some(there) => match (moved.is_directory(), there.is_directory()) {
                (false, true) => return Err(Errno::IS_A_DIRECTORY),
                (true, false) => return Err(Errno::NOT_A_DIRECTORY),
                (true, true) if !self.is_empty(&self.folder(&new)?)? => return Err(Errno::NOT_EMPTY),
                _ => {}
            },
            None => {}
        }
        if moved.is_directory() {
            let (old, new) = (self.folder(&old)?, self.folder(&new)?);
            if new.starts_with(&old) {
                return Err(Errno::INVALID);
            }
            let keys = self.below(&old)?;
            for key in &keys {
                self.copy(key, &format!("{new}{}", &key[old.len()..]))?;
            }
            // Deepest first: some stores keep directories that are not empty.
            keys.iter().rev().try_for_each(|key| self.delete(key))?;
        } else {
            let (old, new) = (self.key(&old)?, self.key(&new)?);
            self.copy(&old, &new)?;
            self.delete(&old)?;
        }
        // A copy is another object, of the same bytes.
        self.seen().values_mut().for_each(|seen| *seen = None);
        self.keep(from.0.path()?)
    }

    fn list(&self, of: &Place) -> Result<Vec<(OsString, Found)>> {
        let folder = self.folder(of.path()?)?;
        let (mut all, mut after): (BTreeMap<OsString, Found>, Option<String>) = (BTreeMap::new(), None);
        let (begun, mut pages) = (Instant::now(), 0);
        loop {
            let (entries, more) = self.page(&folder, PAGE_NAMES, after.as_deref())?;
            pages += 1;
            if pages > PAGES_MAX || begun.elapsed() > LISTING_MOST || (more.is_some() && more == after) {
                return Err(lie(&folder, "its listing does not end"));
            }
            for (key, shown) in entries {
                let name = key.strip_prefix(&folder).unwrap_or_default().trim_end_matches('/');
                if !can_be_name(name.as_bytes()) {
                    // A directory's own object is nobody's name.
                    let left_out = u64::from(key != folder);
                    self.fate.left_out.fetch_add(left_out, Ordering::Relaxed);
                    continue;
                }
                // Some stores list objects of directories beside their common beginnings.
                let shown = shown.filter(|_| !key.ends_with('/'));
                let attributes = shown.unwrap_or_else(|| self.directory());
                // An object that is also the beginning of other keys is found by its name, as it is by a look.
                let found = Found { attributes, key: Vec::new() };
                let known = all.entry(OsString::from(name)).or_insert(found);
                if !attributes.is_directory() {
                    known.attributes = attributes;
                }
            }
            if more.is_none() {
                return Ok(all.into_iter().collect());
            }
            if all.len() > NAMES_MAX {
                return Err(Errno(libc::EOVERFLOW));
            }
            after = more;
        }
    }

    fn read(&self, of: &Place, offset: u64, to: &mut [u8]) -> Result<usize> {
        let one = self.staged_of(of);
        let staged = one.as_ref().map(|one| one.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(staged) = staged.filter(|staged| !staged.over)
            && let Some(file) = &staged.file
        {
            let mut done = 0;
            while done < to.len() {
                match file.read_at(&mut to[done..], offset + done as u64)? {
                    0 => break,
                    bytes => done += bytes,
                }
            }
            return Ok(done);
        }
        if to.is_empty() {
            return Ok(0);
        }
        let known = self.seen().get(&of.inode).cloned().flatten();
        let (mut done, space) = (0, to.len());
        let wanted = Wanted { range: Some((offset, space as u64)), object: known.as_ref() };
        let fetched = self.fetch(&self.key(of.path()?)?, wanted, &mut |piece| {
            let place = to.get_mut(done..done + piece.len()).ok_or(Errno::IO)?;
            place.copy_from_slice(piece);
            done += piece.len();
            Ok(())
        });
        match fetched {
            Err(Errno::NO_SUCH_OFFSET) if known.is_none_or(|object| object.size <= offset) => Ok(0),
            Err(Errno::NO_SUCH_OFFSET) => Err(Errno::IO),
            Err(error) => Err(error),
            Ok(object) => {
                // Who read first of a file that was open before this daemon says which it is.
                if of.open {
                    self.seen().entry(of.inode).or_default().get_or_insert(object);
                }
                Ok(done)
            }
        }
    }

    fn write(&self, of: &Place, offset: u64, from: &[u8]) -> Result<()> {
        if offset.saturating_add(from.len() as u64) > OBJECT_BYTES_MAX {
            return Err(Errno(libc::EFBIG));
        }
        self.alter(of, false, |file| file.write_all_at(from, offset))
    }

    fn sync(&self, of: &Place) -> Result<()> {
        self.upload(of, false)
    }

    fn close(&self, of: &Place) -> Result<()> {
        self.upload(of, true)
    }

    /// What could not be put up, and whoever closed it knows, is not tried once more: the name may be another file's by then.
    fn finish(&self, of: &Place) -> Result<()> {
        let told =
            self.staged_of(of).is_some_and(|one| one.lock().unwrap_or_else(PoisonError::into_inner).told);
        if told { Ok(()) } else { self.upload(of, true) }
    }

    /// Who opens it while another has it open reads the same object.
    fn opened(&self, of: &Place) {
        if !of.open {
            self.seen().insert(of.inode, None);
        }
    }

    /// Who has it locked changes it for a file that nobody has open, and ends it by itself.
    fn released(&self, of: &Place) {
        self.seen().remove(&of.inode);
        if let Some(one) = self.staged_of(of)
            && let Ok(mut staged) = one.try_lock()
        {
            self.end(of, &one, &mut staged);
        }
    }

    /// A store has no end that could be asked for.
    fn space(&self) -> Result<Space> {
        const BLOCKS: u64 = 1 << 38;
        Ok(Space {
            block_bytes: 4096,
            blocks: BLOCKS,
            blocks_free: BLOCKS,
            files: u64::from(u32::MAX),
            files_free: u64::from(u32::MAX),
        })
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.fate.left_out();
        let lost = self.fate.lost.load(Ordering::Relaxed);
        if lost > 0 {
            notes.push(format!("{lost} times a call found no way to the store, or no answer in time"));
        }
        notes.extend(self.tries.notes());
        notes
    }
}
