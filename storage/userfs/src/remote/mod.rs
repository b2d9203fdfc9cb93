//! Files that a server has: what all remote backends have in common, over a [`Protocol`].
//!
//! Consistency is close-to-open, as NFS clients have it: whoever opens a file sees what was in it when it was last closed (or
//! synced) anywhere. So the kernel asks at each open, and keeps pages only if size and time of change are those that it
//! knows; attributes are at most [`FRESH`] old, names [`FRESH`] more. Writes go to the server before they return, or, where
//! a protocol cannot write pieces, when the file is closed or synced, and then tell its errors. Two clients that write the same
//! file at once, appends too, may overwrite each other.
//!
//! Invariants
//! - An inode number names one (directory, name) until that name is gone from the server, is another kind of file, or is another
//!   file by the key that the protocol gives. Then the number stays with the old file, which may be without a name.
//! - A file that is removed or replaced here while it is open here gets a hidden name ([`HIDDEN`]) until it is closed, as with NFS
//!   clients.
//! - What a server says is compared with what was asked: a read that gives less than the size that it told is an error, as is an answer that is longer,
//!   empty, or about something else (the protocols see to that).
//! - Bounds: nodes are forgotten with the kernel's own; [`LISTED_MAX`] attributes from listings; lists are dropped when unused.

pub(crate) mod nfs;
mod nodes;
pub(crate) mod runtime;
pub mod s3;
pub(crate) mod sftp;
mod staying;
#[cfg(test)]
mod tests;

use crate::backend::{
    Attributes, Backend, Change, Consistency, Entry, Held, Inode, New, Replace, Space, Written,
};
use crate::error::{Errno, Result};
use nodes::Nodes;
use staying::Needed;
use std::ffi::{OsStr, OsString};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How old attributes and names may be.
pub(crate) const FRESH: Duration = Duration::from_secs(1);
/// Attributes that listings told and nobody asked for yet.
const LISTED_MAX: usize = 16_384;
/// Beginning of names of files that were removed while open.
pub const HIDDEN: &str = ".weir-removed-";
/// Longest name.
const NAME_BYTES_MAX: usize = 255;
/// Names of a directory, and bytes of them.
pub(crate) const NAMES_MAX: usize = 1 << 20;
pub(crate) const NAMES_BYTES_MAX: usize = 256 << 20;
/// How long a server may take to tell all names of a directory.
pub(crate) const LISTING_MOST: Duration = Duration::from_secs(120);

/// Whether a file can have this name.
pub(crate) fn can_be_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..")
        && name.len() <= NAME_BYTES_MAX
        && !name.iter().any(|byte| matches!(byte, b'/' | 0))
}

/// A file, as a protocol needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// Its number here, for what a protocol keeps of open files; 0 when it has none yet.
    pub(crate) inode: Inode,
    /// Its name from the root, without `/` in front; nothing when the name is gone.
    pub(crate) path: Option<Vec<u8>>,
    /// What the protocol called it when it was looked up.
    pub(crate) key: Vec<u8>,
    /// Somebody has it open, so it will be closed.
    pub(crate) open: bool,
}

impl Place {
    /// The name from the root.
    ///
    /// # Errors
    /// ESTALE when it has none any more.
    pub(crate) fn path(&self) -> Result<&[u8]> {
        self.path.as_deref().ok_or(Errno(libc::ESTALE))
    }

    /// For people.
    pub(crate) fn shown(&self) -> String {
        let path = self.path.as_deref().unwrap_or(b"a file without a name");
        String::from_utf8_lossy(path).into_owned()
    }

    /// The path of `name` in this directory.
    pub(crate) fn join(&self, name: &OsStr) -> Result<Vec<u8>> {
        let above = self.path()?;
        let mut path = above.to_vec();
        if !above.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name.as_encoded_bytes());
        Ok(path)
    }
}

/// What a server found under a name. The inode number in the attributes says nothing.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) attributes: Attributes,
    /// Names the file itself, or is empty when the protocol has only paths.
    pub(crate) key: Vec<u8>,
}

/// A server, by its protocol. Errors are those of the calls of the same names in Linux, as well as they can be known.
pub(crate) trait Protocol: Send + Sync + 'static {
    /// Whether size and times always tell that a file has changed. Without it no page outlives an open.
    const EXACT_TIMES: bool;
    /// Whether the server has what was written before it is synced, and syncs it whoever asks.
    const KEEPS_WRITES: bool;
    fn root(&self) -> Result<Found>;
    fn lookup(&self, parent: &Place, name: &OsStr) -> Result<Found>;
    fn attributes(&self, of: &Place) -> Result<Attributes>;
    /// `now` is what the file has.
    fn change(&self, of: &Place, change: &Change, now: &Attributes) -> Result<()>;
    fn read_link(&self, of: &Place) -> Result<Vec<u8>>;
    /// Makes a regular file; EEXIST when there is something.
    fn make(&self, parent: &Place, name: &OsStr, new: New) -> Result<()>;
    fn make_directory(&self, parent: &Place, name: &OsStr, new: New) -> Result<()>;
    fn make_link(&self, parent: &Place, name: &OsStr, target: &OsStr, new: New) -> Result<()>;
    fn link(&self, of: &Place, parent: &Place, name: &OsStr) -> Result<()>;
    fn remove(&self, parent: &Place, name: &OsStr) -> Result<()>;
    fn remove_directory(&self, parent: &Place, name: &OsStr) -> Result<()>;
    fn rename(&self, from: (&Place, &OsStr), to: (&Place, &OsStr), replace: Replace) -> Result<()>;
    fn list(&self, of: &Place) -> Result<Vec<(OsString, Found)>>;
    /// Fills `to`; fewer bytes only at the end.
    fn read(&self, of: &Place, offset: u64, to: &mut [u8]) -> Result<usize>;
    fn write(&self, of: &Place, offset: u64, from: &[u8]) -> Result<()>;
    /// Returns when what was written is as safe as the server can make it.
    fn sync(&self, of: &Place) -> Result<()>;
    /// A descriptor was closed: others see what was written.
    fn close(&self, of: &Place) -> Result<()>;
    /// All were closed; what nobody was told of yet becomes the server's.
    fn finish(&self, of: &Place) -> Result<()> {
        self.close(of)
    }
    /// It is opened, maybe once more.
    fn opened(&self, _of: &Place) {}
    /// The last descriptor was closed, and nobody opens it meanwhile: what is kept of the open file goes. Does not wait for the server.
    fn released(&self, _of: &Place) {}
    fn space(&self) -> Result<Space>;
    fn notes(&self) -> Vec<String>;
}

/// Attributes that a file can have.
fn possible(told: Attributes) -> Result<Attributes> {
    if told.size > i64::MAX as u64 { Err(Errno::IO) } else { Ok(told) }
}

/// The files of a server.
pub(crate) struct Remote<P> {
    protocol: P,
    nodes: Mutex<Nodes>,
}

impl<P: Protocol> Remote<P> {
    /// The files that `protocol` reaches.
    pub(crate) fn new(protocol: P) -> Result<Remote<P>> {
        let root = protocol.root()?;
        if !root.attributes.is_directory() {
            return Err(Errno::NOT_A_DIRECTORY);
        }
        Ok(Remote { nodes: Mutex::new(Nodes::new(root)), protocol })
    }

    fn nodes(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self, inode: Inode) -> Result<Place> {
        self.nodes().place(inode)
    }

    /// Attributes as they are now.
    fn fresh(&self, inode: Inode) -> Result<Attributes> {
        let place = self.place(inode)?;
        let attributes = possible(self.protocol.attributes(&place)?)?;
        Ok(self.nodes().learn(inode, attributes))
    }

    /// Attributes that are not old.
    fn recent(&self, inode: Inode) -> Result<Attributes> {
        let known = self.nodes().recent(inode)?;
        known.map_or_else(|| self.fresh(inode), Ok)
    }

    fn find(&self, parent: Inode, name: &OsStr) -> Result<Attributes> {
        let (place, listed) = {
            let mut nodes = self.nodes();
            (nodes.place(parent)?, nodes.take_listed(parent, name))
        };
        let found = match listed {
            Some(found) => found,
            None => match self.protocol.lookup(&place, name) {
                Err(Errno::NOT_FOUND) => {
                    self.nodes().lost(parent, name);
                    return Err(Errno::NOT_FOUND);
                }
                found => found?,
            },
        };
        possible(found.attributes)?;
        Ok(self.nodes().tell(parent, name, found))
    }

    /// What is kept of an open file goes, unless it is open (again). With the lock: what is written by whoever opens it next must not go.
    fn drop_closed(&self, place: &Place) {
        let nodes = self.nodes();
        if !nodes.is_open(place.inode) {
            self.protocol.released(place);
        }
    }

    /// Whether the file is not longer.
    fn ends_at(&self, inode: Inode, place: u64) -> Result<bool> {
        Ok(self.recent(inode)?.size <= place || self.fresh(inode)?.size <= place)
    }

    fn checked(name: &OsStr) -> Result<()> {
        if name.len() > NAME_BYTES_MAX { Err(Errno(libc::ENAMETOOLONG)) } else { Ok(()) }
    }

    /// Gives the file of this name a hidden one, if it is open here. Whether it did.
    fn hide(&self, parent: Inode, name: &OsStr) -> Result<bool> {
        let (place, inode) = {
            let nodes = self.nodes();
            let Some(inode) = nodes.open_file(parent, name) else { return Ok(false) };
            (nodes.place(parent)?, inode)
        };
        let hidden = OsString::from(format!("{HIDDEN}{}-{inode}", std::process::id()));
        self.protocol.rename((&place, name), (&place, &hidden), Replace::Yes)?;
        let is_over = {
            let mut nodes = self.nodes();
            nodes.hidden(inode, parent, name, &hidden);
            let is_over = !nodes.is_open(inode);
            if is_over {
                nodes.take_hidden(inode);
            }
            is_over
        };
        if is_over {
            // It was closed meanwhile, by somebody who could not know that it has this name.
            self.protocol.remove(&place, &hidden)?;
            self.nodes().lost(parent, &hidden);
        }
        Ok(true)
    }
}

impl<P: Protocol> Remote<P> {
    /// Does what puts up bytes of a file by its name, which is nobody else's meanwhile, as the names of folders above are not: one that is taken away
    /// at the same moment would come back. It is asked for when nobody can change it any more.
    fn put_up<T>(&self, inode: Inode, work: impl FnOnce(&Place) -> Result<T>) -> Result<T> {
        self.place(inode)?;
        self.holding(Needed { files: &[inode], changed: &[] }, || work(&self.place(inode)?))
    }

    /// Does what makes something in a folder, which keeps its name meanwhile.
    fn make_in<T>(&self, parent: Inode, work: impl FnOnce(&Place) -> Result<T>) -> Result<T> {
        self.put_up(parent, work)
    }

    /// Does what changes or takes names, when nothing is put up by them.
    fn rename_alone<T>(&self, names: &[(Inode, &OsStr)], work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.holding(Needed { files: &[], changed: names }, work)
    }
}

impl<P: Protocol> Backend for Remote<P> {
    fn consistency(&self) -> Consistency {
        Consistency::CloseToOpen { names: FRESH }
    }

    fn notes(&self) -> Vec<String> {
        self.protocol.notes()
    }

    fn keeps_writes(&self) -> bool {
        P::KEEPS_WRITES
    }

    fn held(&self) -> Option<Held> {
        Some(Held { files: self.nodes().count(), ..Held::default() })
    }

    fn lookup(&self, parent: Inode, name: &OsStr) -> Result<Attributes> {
        Self::checked(name)?;
        self.find(parent, name)
    }

    fn forget(&self, inode: Inode, times: u64) {
        self.nodes().untell(inode, times);
    }

    fn attributes(&self, inode: Inode) -> Result<Attributes> {
        self.recent(inode)
    }

    fn change(&self, inode: Inode, change: &Change) -> Result<Attributes> {
        let now = self.fresh(inode)?;
        let place = self.place(inode)?;
        // Of one that is open nothing is put up now.
        let changed = if place.open {
            self.protocol.change(&place, change, &now)
        } else {
            self.put_up(inode, |place| self.protocol.change(place, change, &now))
        };
        if let Err(error) = changed {
            self.drop_closed(&place);
            return Err(error);
        }
        // It was open, so the protocol waits for it to be closed; which may be over.
        if place.open && !self.nodes().is_open(inode) {
            self.put_up(inode, |place| self.protocol.close(place))?;
        }
        self.fresh(inode)
    }

    fn read_link(&self, inode: Inode) -> Result<Vec<u8>> {
        self.protocol.read_link(&self.place(inode)?)
    }

    fn make(&self, parent: Inode, name: &OsStr, new: New) -> Result<Attributes> {
        Self::checked(name)?;
        if !matches!(new.mode & libc::S_IFMT, 0 | libc::S_IFREG) {
            return Err(Errno::NOT_PERMITTED);
        }
        self.make_in(parent, |parent| self.protocol.make(parent, name, new))?;
        self.nodes().made(parent, name);
        self.find(parent, name)
    }

    fn make_directory(&self, parent: Inode, name: &OsStr, new: New) -> Result<Attributes> {
        Self::checked(name)?;
        self.make_in(parent, |parent| self.protocol.make_directory(parent, name, new))?;
        self.nodes().made(parent, name);
        self.find(parent, name)
    }

    fn make_link(&self, parent: Inode, name: &OsStr, target: &OsStr, new: New) -> Result<Attributes> {
        Self::checked(name)?;
        self.make_in(parent, |parent| self.protocol.make_link(parent, name, target, new))?;
        self.nodes().made(parent, name);
        self.find(parent, name)
    }

    fn link(&self, inode: Inode, parent: Inode, name: &OsStr) -> Result<Attributes> {
        Self::checked(name)?;
        self.holding(Needed { files: &[inode, parent], changed: &[] }, || {
            self.protocol.link(&self.place(inode)?, &self.place(parent)?, name)
        })?;
        let mut nodes = self.nodes();
        nodes.made(parent, name);
        nodes.stale(inode);
        drop(nodes);
        self.find(parent, name)
    }

    fn unlink(&self, parent: Inode, name: &OsStr) -> Result<()> {
        self.rename_alone(&[(parent, name)], || {
            if self.hide(parent, name)? {
                return Ok(());
            }
            self.protocol.remove(&self.place(parent)?, name)?;
            self.nodes().lost(parent, name);
            Ok(())
        })
    }

    fn remove_directory(&self, parent: Inode, name: &OsStr) -> Result<()> {
        self.rename_alone(&[(parent, name)], || {
            self.protocol.remove_directory(&self.place(parent)?, name)?;
            self.nodes().lost(parent, name);
            Ok(())
        })
    }

    fn rename(&self, from: (Inode, &OsStr), to: (Inode, &OsStr), replace: Replace) -> Result<()> {
        Self::checked(to.1)?;
        if from == to {
            return Ok(());
        }
        if replace == Replace::Exchange {
            return Err(Errno::INVALID);
        }
        self.rename_alone(&[from, to], || {
            let (old, new) = (self.place(from.0)?, self.place(to.0)?);
            if replace == Replace::Yes {
                // What is found here must be the one that is replaced, or nothing is hidden.
                self.protocol.lookup(&old, from.1)?;
                self.hide(to.0, to.1)?;
            }
            self.protocol.rename((&old, from.1), (&new, to.1), replace)?;
            self.nodes().moved(from, to);
            Ok(())
        })
    }

    fn open(&self, inode: Inode) -> Result<bool> {
        let place = self.place(inode)?;
        self.protocol.opened(&place);
        let attributes = possible(self.protocol.attributes(&place)?)?;
        let mut nodes = self.nodes();
        nodes.learn(inode, attributes);
        Ok(nodes.opened(inode) && P::EXACT_TIMES)
    }

    fn close(&self, inode: Inode) -> Result<()> {
        let closed = self.put_up(inode, |place| self.protocol.close(place));
        self.nodes().stale(inode);
        closed
    }

    fn release(&self, inode: Inode) {
        let (place, hidden) = {
            let mut nodes = self.nodes();
            let Ok(place) = nodes.place(inode) else { return };
            if !nodes.released(inode) {
                return;
            }
            (place, nodes.take_hidden(inode))
        };
        // What a map changed since its descriptor was closed is written by now, and nobody is left who could be told.
        let finish = |now: &Place| {
            // One whose name was taken since has nothing left to put up.
            if now.path.is_some() { self.protocol.finish(now) } else { Ok(()) }
        };
        if hidden.is_none()
            && let Err(error) = self.put_up(inode, finish)
        {
            tracing::warn!("{}, what was written last: {error:?}", place.shown());
        }
        self.drop_closed(&place);
        if let Some((parent, name)) = hidden {
            let removed = self.rename_alone(&[(parent, &name)], || {
                let removed = self.place(parent).and_then(|parent| self.protocol.remove(&parent, &name));
                self.nodes().lost(parent, &name);
                removed
            });
            if let Err(error) = removed {
                tracing::warn!("{}, a file that was removed while open, stays: {error:?}", name.display());
            }
        }
    }

    fn read(&self, inode: Inode, offset: u64, to: &mut [u8]) -> Result<usize> {
        let read = self.protocol.read(&self.place(inode)?, offset, to)?;
        if read == to.len() || self.ends_at(inode, offset + read as u64)? {
            return Ok(read);
        }
        // It may have grown in between.
        let again = self.protocol.read(&self.place(inode)?, offset, to)?;
        if again > read || self.ends_at(inode, offset + again as u64)? {
            return Ok(again);
        }
        tracing::warn!("{}: the server gives less than it says that there is", self.place(inode)?.shown());
        Err(Errno::IO)
    }

    fn write(&self, inode: Inode, offset: u64, from: &[u8], append: bool) -> Result<Written> {
        let place = self.place(inode)?;
        let one = self.nodes().append_lock(inode)?;
        let _one = append.then(|| one.lock().unwrap_or_else(PoisonError::into_inner));
        let offset = if append { self.protocol.attributes(&place)?.size } else { offset };
        let written = self.protocol.write(&place, offset, from);
        self.nodes().stale(inode);
        written.map(|()| Written { bytes: from.len(), offset })
    }

    fn sync(&self, inode: Inode, _data_only: bool) -> Result<()> {
        let synced = self.put_up(inode, |place| self.protocol.sync(place));
        self.nodes().stale(inode);
        synced
    }

    fn list(&self, inode: Inode, after: u64, entry: &mut dyn FnMut(Entry<'_>) -> bool) -> Result<()> {
        let known = if after == 0 { None } else { self.nodes().listing(inode) };
        let listing = match known {
            Some(listing) => listing,
            None => {
                let found = self.protocol.list(&self.place(inode)?)?;
                self.nodes().listed(inode, found)?
            }
        };
        let parent = self.nodes().parent(inode);
        for (place, number, name) in [(1, inode, "."), (2, parent, "..")] {
            let told = Entry { inode: number, next: place, mode: libc::S_IFDIR, name: OsStr::new(name) };
            if place > after && !entry(told) {
                return Ok(());
            }
        }
        // What `d_ino` is where the number is not known.
        const UNKNOWN: Inode = 0xffff_ffff;
        let skipped = after.saturating_sub(2) as usize;
        for (place, there) in listing.iter().enumerate().skip(skipped) {
            let Some((name, mode)) = there else { continue };
            let told = Entry { inode: UNKNOWN, next: place as u64 + 3, mode: *mode, name };
            if !entry(told) {
                break;
            }
        }
        Ok(())
    }

    fn space(&self) -> Result<Space> {
        self.protocol.space()
    }

    fn seek(&self, inode: Inode, offset: u64, hole: bool) -> Result<u64> {
        let size = self.recent(inode)?.size;
        match hole {
            _ if offset >= size => Err(Errno::NO_SUCH_OFFSET),
            true => Ok(size),
            false => Ok(offset),
        }
    }

    /// Programs then write zeros.
    fn allocate(&self, _inode: Inode, _offset: u64, _bytes: u64, _mode: i32) -> Result<()> {
        Err(Errno::UNSUPPORTED)
    }
}

/// Names of a directory at places that stay while somebody lists it.
pub(crate) type Listing = Arc<Vec<Option<(OsString, u32)>>>;

/// Whether what is known is not too old.
pub(crate) fn is_fresh(at: Instant) -> bool {
    at.elapsed() < FRESH
}
