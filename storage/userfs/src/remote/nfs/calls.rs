//! The operations of files, as calls of NFSv3.

use super::{Nfs, UNSYNCED_BYTES_MAX, handle, mode_of, named, shown};
use crate::backend::{Attributes, Change, New, NewTime, Replace, Space};
use crate::error::{Errno, Result};
use crate::remote::{Found, LISTING_MOST, NAMES_BYTES_MAX, NAMES_MAX, Place, Protocol, can_be_name};
use nfs3_client::nfs3_types::nfs3::{
    CREATE3args, FSSTAT3args, GETATTR3args, LINK3args, LOOKUP3args, MKDIR3args, Nfs3Option, READ3args,
    READDIRPLUS3args, READLINK3args, REMOVE3args, RENAME3args, RMDIR3args, SYMLINK3args, cookieverf3,
    createhow3, nfspath3, sattr3, set_atime, set_mtime, stable_how, symlinkdata3,
};
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// What a server has told of a directory so far, whether files can have these names or not.
#[derive(Default)]
struct Told {
    names: usize,
    bytes: usize,
    /// Where pages have begun: a listing that comes back to one of them never ends.
    begins: HashSet<u64>,
}

impl Told {
    fn count(&mut self, of: &Place, name: &OsStr, begun: Instant) -> Result<()> {
        (self.names, self.bytes) = (self.names + 1, self.bytes + name.len());
        if self.names > NAMES_MAX || self.bytes > NAMES_BYTES_MAX {
            return Err(endless(of, "it has more names than any that is read"));
        }
        if begun.elapsed() > LISTING_MOST {
            return Err(endless(of, "it takes too long"));
        }
        Ok(())
    }

    /// Whether a page that begins behind this cookie is another one than those before.
    fn goes_on(&mut self, cookie: u64) -> bool {
        cookie != 0 && self.begins.insert(cookie)
    }
}

fn endless(of: &Place, why: &str) -> Errno {
    tracing::warn!("{}: its listing does not end: {why}", of.shown());
    Errno(libc::EOVERFLOW)
}

impl Protocol for Nfs {
    const EXACT_TIMES: bool = true;
    /// What the server did not commit must be kept here, lest it was restarted.
    const KEEPS_WRITES: bool = false;

    fn root(&self) -> Result<Found> {
        let place = Place { inode: 0, path: None, key: self.root.data.to_vec(), open: false };
        Ok(Found { attributes: self.attributes(&place)?, key: place.key })
    }

    fn lookup(&self, parent: &Place, name: &OsStr) -> Result<Found> {
        let found =
            self.ask(true, async |client| client.lookup(&LOOKUP3args { what: named(parent, name) }).await)?;
        let key = found.object.data.to_vec();
        let attributes = match &found.obj_attributes {
            Nfs3Option::Some(attributes) => shown(attributes),
            Nfs3Option::None => {
                self.attributes(&Place { inode: 0, path: None, key: key.clone(), open: false })?
            }
        };
        Ok(Found { attributes, key })
    }

    fn attributes(&self, of: &Place) -> Result<Attributes> {
        let object = handle(of);
        let found =
            self.ask(true, async |client| client.getattr(&GETATTR3args { object: object.clone() }).await)?;
        Ok(shown(&found.obj_attributes))
    }

    fn change(&self, of: &Place, change: &Change, _now: &Attributes) -> Result<()> {
        if change.size.is_some() {
            // What is written again later must not come back behind the new end.
            self.commit(of)?;
        }
        let client_time = |time: SystemTime| time.max(UNIX_EPOCH).try_into().map_err(|_| Errno(libc::EINVAL));
        let mut new = sattr3::default();
        let some = |number: Option<u32>| number.map_or(Nfs3Option::None, Nfs3Option::Some);
        new.mode = some(change.mode.map(|mode| mode & 0o7777));
        new.uid = some(change.user);
        new.gid = some(change.group);
        new.size = change.size.map_or(Nfs3Option::None, Nfs3Option::Some);
        new.atime = match change.accessed {
            None => set_atime::DONT_CHANGE,
            Some(NewTime::Now) => set_atime::SET_TO_SERVER_TIME,
            Some(NewTime::At(time)) => set_atime::SET_TO_CLIENT_TIME(client_time(time)?),
        };
        new.mtime = match change.modified {
            None => set_mtime::DONT_CHANGE,
            Some(NewTime::Now) => set_mtime::SET_TO_SERVER_TIME,
            Some(NewTime::At(time)) => set_mtime::SET_TO_CLIENT_TIME(client_time(time)?),
        };
        self.set(of, &new)
    }

    fn read_link(&self, of: &Place) -> Result<Vec<u8>> {
        let symlink = handle(of);
        let found = self
            .ask(true, async |client| client.readlink(&READLINK3args { symlink: symlink.clone() }).await)?;
        Ok(found.data.as_ref().to_vec())
    }

    fn make(&self, parent: &Place, name: &OsStr, new: New) -> Result<()> {
        self.ask(false, async |client| {
            let how = createhow3::GUARDED(mode_of(new));
            client.create(&CREATE3args { where_: named(parent, name), how }).await
        })?;
        self.hand_over(parent, name, new)
    }

    fn make_directory(&self, parent: &Place, name: &OsStr, new: New) -> Result<()> {
        self.ask(false, async |client| {
            client.mkdir(&MKDIR3args { where_: named(parent, name), attributes: mode_of(new) }).await
        })?;
        self.hand_over(parent, name, new)
    }

    fn make_link(&self, parent: &Place, name: &OsStr, target: &OsStr, new: New) -> Result<()> {
        self.ask(false, async |client| {
            let symlink = symlinkdata3 {
                symlink_attributes: sattr3::default(),
                symlink_data: nfspath3::from(target.as_bytes()),
            };
            client.symlink(&SYMLINK3args { where_: named(parent, name), symlink }).await
        })?;
        self.hand_over(parent, name, new)
    }

    fn link(&self, of: &Place, parent: &Place, name: &OsStr) -> Result<()> {
        self.ask(false, async |client| {
            client.link(&LINK3args { file: handle(of), link: named(parent, name) }).await
        })
        .map(drop)
    }

    fn remove(&self, parent: &Place, name: &OsStr) -> Result<()> {
        self.ask(false, async |client| client.remove(&REMOVE3args { object: named(parent, name) }).await)
            .map(drop)
    }

    fn remove_directory(&self, parent: &Place, name: &OsStr) -> Result<()> {
        self.ask(false, async |client| client.rmdir(&RMDIR3args { object: named(parent, name) }).await)
            .map(drop)
    }

    fn rename(&self, from: (&Place, &OsStr), to: (&Place, &OsStr), replace: Replace) -> Result<()> {
        // The protocol cannot refuse to replace; programs then look themselves.
        if replace != Replace::Yes {
            return Err(Errno::INVALID);
        }
        self.ask(false, async |client| {
            client.rename(&RENAME3args { from: named(from.0, from.1), to: named(to.0, to.1) }).await
        })
        .map(drop)
    }

    fn list(&self, of: &Place) -> Result<Vec<(OsString, Found)>> {
        let (mut all, mut told, begun) = (Vec::new(), Told::default(), Instant::now());
        let (mut cookie, mut verifier) = (0, cookieverf3::default());
        loop {
            let page = self.ask(true, async |client| {
                let arguments = READDIRPLUS3args {
                    dir: handle(of),
                    cookie,
                    cookieverf: verifier,
                    dircount: 16 * 1024,
                    maxcount: 64 * 1024,
                };
                client.readdirplus(&arguments).await
            })?;
            verifier = page.cookieverf;
            let (entries, eof) = (page.reply.entries.0, page.reply.eof);
            if entries.is_empty() && !eof {
                return Err(endless(of, "the server sends no name, and no end"));
            }
            for entry in entries {
                cookie = entry.cookie;
                let name = OsString::from_vec(entry.name.as_ref().to_vec());
                told.count(of, &name, begun)?;
                if name == "." || name == ".." {
                    continue;
                }
                if !can_be_name(name.as_bytes()) {
                    self.fate.left_out.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                let found = match (&entry.name_attributes, &entry.name_handle) {
                    (Nfs3Option::Some(attributes), Nfs3Option::Some(file)) => {
                        Found { attributes: shown(attributes), key: file.data.to_vec() }
                    }
                    _ => match self.lookup(of, &name) {
                        Err(Errno::NOT_FOUND) => continue,
                        found => found?,
                    },
                };
                all.push((name, found));
            }
            if eof {
                return Ok(all);
            }
            if !told.goes_on(cookie) {
                return Err(endless(of, "the server begins it again and again"));
            }
        }
    }

    fn read(&self, of: &Place, offset: u64, to: &mut [u8]) -> Result<usize> {
        let file = handle(of);
        let mut done = 0;
        while done < to.len() {
            let count = (to.len() - done).min(self.read_bytes as usize) as u32;
            let told = self.ask(true, async |client| {
                client.read(&READ3args { file: file.clone(), offset: offset + done as u64, count }).await
            })?;
            let data = told.data.as_ref();
            // More than was asked for, another number of bytes than it says, or none and no end.
            if data.len() > count as usize
                || data.len() != told.count as usize
                || (data.is_empty() && !told.eof)
            {
                return Err(Errno::IO);
            }
            to[done..done + data.len()].copy_from_slice(data);
            done += data.len();
            if told.eof {
                break;
            }
        }
        Ok(done)
    }

    fn write(&self, of: &Place, offset: u64, from: &[u8]) -> Result<()> {
        let Some(verifier) = self.send(of, offset, from, stable_how::UNSTABLE)? else { return Ok(()) };
        let full = {
            let mut all = self.unsynced();
            let unsynced = all.entry(of.inode).or_default();
            unsynced.pieces.push((offset, from.to_vec()));
            unsynced.bytes += from.len();
            if !unsynced.verifiers.contains(&verifier) {
                unsynced.verifiers.push(verifier);
            }
            unsynced.bytes > UNSYNCED_BYTES_MAX
        };
        if full { self.commit(of) } else { Ok(()) }
    }

    fn sync(&self, of: &Place) -> Result<()> {
        self.commit(of)
    }

    fn close(&self, of: &Place) -> Result<()> {
        self.commit(of)
    }

    /// Whoever closed it was told what could not be made stable.
    fn released(&self, of: &Place) {
        self.unsynced().remove(&of.inode);
    }

    fn space(&self) -> Result<Space> {
        const BLOCK_BYTES: u64 = 4096;
        let fsroot = self.root.clone();
        let found =
            self.ask(true, async |client| client.fsstat(&FSSTAT3args { fsroot: fsroot.clone() }).await)?;
        Ok(Space {
            block_bytes: BLOCK_BYTES as u32,
            blocks: found.tbytes / BLOCK_BYTES,
            blocks_free: found.abytes / BLOCK_BYTES,
            files: found.tfiles,
            files_free: found.afiles,
        })
    }

    fn notes(&self) -> Vec<String> {
        self.fate.notes()
    }
}
