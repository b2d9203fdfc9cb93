//! The operations of files, as calls of SFTP.

use super::{Sftp, read_pieces, seconds, shown, text, two, write_pieces};
use crate::backend::{Attributes, Change, New, NewTime, Replace, Space};
use crate::error::{Errno, Result};
use crate::remote::{Found, LISTING_MOST, NAMES_BYTES_MAX, NAMES_MAX, Place, Protocol, can_be_name};
use russh_sftp::client::error::Error as SftpError;
use russh_sftp::protocol::{FileAttributes, OpenFlags, Packet, StatusCode};
use std::ffi::{OsStr, OsString};
use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime};

impl Protocol for Sftp {
    /// Times have whole seconds.
    const EXACT_TIMES: bool = false;
    const KEEPS_WRITES: bool = true;

    fn root(&self) -> Result<Found> {
        // The folder itself may be a link.
        let path = self.absolute(b"")?;
        let found = self.ask(true, |live| {
            let path = path.clone();
            async move { live.session.stat(path).await }
        })?;
        Ok(Found { attributes: shown(&found.attrs).ok_or(Errno::IO)?, key: Vec::new() })
    }

    fn lookup(&self, parent: &Place, name: &OsStr) -> Result<Found> {
        let attributes = self.stat(&self.absolute(&parent.join(name)?)?)?;
        Ok(Found { attributes, key: Vec::new() })
    }

    fn attributes(&self, of: &Place) -> Result<Attributes> {
        if of.path.as_ref().is_some_and(Vec::is_empty) {
            return self.root().map(|found| found.attributes);
        }
        self.stat(&self.path(of)?)
    }

    fn change(&self, of: &Place, change: &Change, now: &Attributes) -> Result<()> {
        let none = FileAttributes::empty();
        if let Some(size) = change.size {
            self.set(of, &FileAttributes { size: Some(size), ..none.clone() })
                .map_err(|error| self.write_failed(error))?;
        }
        if change.user.is_some() || change.group.is_some() {
            let (uid, gid) = (change.user.or(Some(now.user)), change.group.or(Some(now.group)));
            self.set(of, &FileAttributes { uid, gid, ..none.clone() })?;
        }
        if let Some(mode) = change.mode {
            self.set(of, &FileAttributes { permissions: Some(mode & 0o7777), ..none.clone() })?;
        }
        if change.accessed.is_some() || change.modified.is_some() {
            let time = |new: Option<NewTime>, old: SystemTime| match new {
                Some(NewTime::Now) => SystemTime::now(),
                Some(NewTime::At(time)) => time,
                None => old,
            };
            let atime = Some(seconds(time(change.accessed, now.accessed)));
            let mtime = Some(seconds(time(change.modified, now.modified)));
            self.set(of, &FileAttributes { atime, mtime, ..none })?;
        }
        Ok(())
    }

    fn read_link(&self, of: &Place) -> Result<Vec<u8>> {
        let path = self.path(of)?;
        let found = self.ask(true, |live| {
            let path = path.clone();
            async move { live.session.readlink(path).await }
        })?;
        found.files.into_iter().next().map(|file| file.filename.into_bytes()).ok_or(Errno::IO)
    }

    fn make(&self, parent: &Place, name: &OsStr, new: New) -> Result<()> {
        let path = self.absolute(&parent.join(name)?)?;
        let mode = FileAttributes { permissions: Some(new.mode & 0o7777), ..FileAttributes::empty() };
        let made = self.ask(false, |live| {
            let (path, mode) = (path.clone(), mode.clone());
            async move {
                let flags = OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::EXCLUDE;
                let handle = live.session.open(path, flags, mode.clone()).await?.handle;
                // The server took its umask off.
                let set = live.session.fsetstat(handle.clone(), mode).await;
                live.session.close(handle).await?;
                set
            }
        });
        made.map(drop).map_err(|error| self.write_failed(self.make_failed(error, &path)))
    }

    fn make_directory(&self, parent: &Place, name: &OsStr, new: New) -> Result<()> {
        let path = self.absolute(&parent.join(name)?)?;
        let mode = FileAttributes { permissions: Some(new.mode & 0o7777), ..FileAttributes::empty() };
        let made = self.ask(false, |live| {
            let (path, mode) = (path.clone(), mode.clone());
            async move {
                live.session.mkdir(path.clone(), mode.clone()).await?;
                live.session.setstat(path, mode).await
            }
        });
        made.map(drop).map_err(|error| self.make_failed(error, &path))
    }

    fn make_link(&self, parent: &Place, name: &OsStr, target: &OsStr, _new: New) -> Result<()> {
        let path = self.absolute(&parent.join(name)?)?;
        let target = text(target.as_encoded_bytes())?;
        let made = self.ask(false, |live| {
            let (path, target) = (path.clone(), target.to_owned());
            // OpenSSH takes them in the other order than the protocol says, and all servers follow it.
            async move { live.session.symlink(target, path).await }
        });
        made.map(drop).map_err(|error| self.make_failed(error, &path))
    }

    fn link(&self, of: &Place, parent: &Place, name: &OsStr) -> Result<()> {
        let (old, new) = (self.path(of)?, self.absolute(&parent.join(name)?)?);
        let made = self.ask(false, |live| {
            let (old, new) = (old.clone(), new.clone());
            async move { live.session.hardlink(old, new).await }
        });
        made.map(drop).map_err(|error| self.make_failed(error, &new))
    }

    fn remove(&self, parent: &Place, name: &OsStr) -> Result<()> {
        let path = self.absolute(&parent.join(name)?)?;
        self.ask(false, |live| {
            let path = path.clone();
            async move { live.session.remove(path).await }
        })
        .map(drop)
    }

    fn remove_directory(&self, parent: &Place, name: &OsStr) -> Result<()> {
        let path = self.absolute(&parent.join(name)?)?;
        let removed = self.ask(false, |live| {
            let path = path.clone();
            async move { live.session.rmdir(path).await }
        });
        removed.map(drop).map_err(|error| {
            let below = Place { inode: 0, path: parent.join(name).ok(), key: Vec::new(), open: false };
            match self.list(&below) {
                Ok(names) if error == Errno::IO && !names.is_empty() => Errno::NOT_EMPTY,
                _ => error,
            }
        })
    }

    fn rename(&self, from: (&Place, &OsStr), to: (&Place, &OsStr), replace: Replace) -> Result<()> {
        const POSIX: &str = "posix-rename@openssh.com";
        let (old, new) = (self.absolute(&from.0.join(from.1)?)?, self.absolute(&to.0.join(to.1)?)?);
        let renamed = self.ask(false, |live| {
            let (old, new) = (old.clone(), new.clone());
            async move {
                if replace == Replace::No || !live.offers.contains(POSIX) {
                    return live.session.rename(old, new).await.map(drop);
                }
                match live.session.extended(POSIX, two(&old, &new)).await? {
                    Packet::Status(status) if status.status_code == StatusCode::Ok => Ok(()),
                    Packet::Status(status) => Err(SftpError::Status(status)),
                    _ => Err(SftpError::UnexpectedPacket),
                }
            }
        });
        renamed.map_err(|error| match (error, self.stat(&old), self.stat(&new)) {
            (Errno::IO, Ok(moved), _)
                if moved.is_directory()
                    && new.strip_prefix(&old).is_some_and(|rest| rest.starts_with('/')) =>
            {
                Errno::INVALID
            }
            (Errno::IO, Ok(_), Ok(_)) if replace == Replace::No => Errno::EXISTS,
            (Errno::IO, Ok(moved), Ok(there)) => match (moved.is_directory(), there.is_directory()) {
                (false, true) => Errno::IS_A_DIRECTORY,
                (true, false) => Errno::NOT_A_DIRECTORY,
                (true, true) => Errno::NOT_EMPTY,
                // A server that cannot replace.
                (false, false) => Errno::EXISTS,
            },
            (error, ..) => error,
        })
    }

    fn list(&self, of: &Place) -> Result<Vec<(OsString, Found)>> {
        let path = self.path(of)?;
        let files = self.ask(true, |live| {
            let path = path.clone();
            async move {
                let handle = live.session.opendir(path).await?.handle;
                let (mut all, mut bytes, begun) = (Vec::new(), 0, Instant::now());
                let ended = loop {
                    match live.session.readdir(handle.clone()).await {
                        Ok(names) => {
                            bytes += names.files.iter().map(|file| file.filename.len()).sum::<usize>();
                            let none = names.files.is_empty();
                            all.extend(names.files);
                            // Which is no end, and no name.
                            if none
                                || all.len() > NAMES_MAX
                                || bytes > NAMES_BYTES_MAX
                                || begun.elapsed() > LISTING_MOST
                            {
                                break Ok(None);
                            }
                        }
                        Err(SftpError::Status(status)) if status.status_code == StatusCode::Eof => {
                            break Ok(Some(all));
                        }
                        Err(error) => break Err(error),
                    }
                };
                live.session.close(handle).await?;
                ended
            }
        })?;
        let files = files.ok_or_else(|| {
            tracing::warn!("{}: its listing does not end", of.shown());
            Errno(libc::EOVERFLOW)
        })?;
        let (known, skipped): (Vec<_>, Vec<_>) =
            files.into_iter().partition(|file| !file.filename.contains(char::REPLACEMENT_CHARACTER));
        self.skipped.fetch_add(skipped.len() as u64, Ordering::Relaxed);
        let mut all = Vec::with_capacity(known.len());
        for file in known {
            let name = file.filename;
            if matches!(name.as_str(), "." | "..") {
                continue;
            }
            if !can_be_name(name.as_bytes()) {
                self.fate.left_out.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let attributes = match shown(&file.attrs) {
                Some(attributes) => attributes,
                // A server that lists names alone.
                None => match self.lookup(of, OsStr::new(&name)) {
                    Ok(found) => found.attributes,
                    Err(Errno::NOT_FOUND) => continue,
                    Err(error) => return Err(error),
                },
            };
            all.push((OsString::from(name), Found { attributes, key: Vec::new() }));
        }
        Ok(all)
    }

    fn read(&self, of: &Place, offset: u64, to: &mut [u8]) -> Result<usize> {
        let bytes = to.len();
        let data = self.with_handle(of, false, |live, handle| read_pieces(live, handle, offset, bytes))?;
        to[..data.len()].copy_from_slice(&data);
        Ok(data.len())
    }

    fn write(&self, of: &Place, offset: u64, from: &[u8]) -> Result<()> {
        self.with_handle(of, true, |live, handle| write_pieces(live, handle, offset, from.to_vec()))
            .map_err(|error| self.write_failed(error))
    }

    fn sync(&self, of: &Place) -> Result<()> {
        if !self.live()?.offers.contains("fsync@openssh.com") {
            return Err(Errno::INVALID);
        }
        self.with_handle(of, false, |live, handle| async move { live.session.fsync(handle).await }).map(drop)
    }

    /// Writes were the server's before they returned.
    fn close(&self, _of: &Place) -> Result<()> {
        Ok(())
    }

    /// Another file may have the name now.
    fn opened(&self, of: &Place) {
        self.handles().remove(&of.inode);
    }

    fn released(&self, of: &Place) {
        self.handles().remove(&of.inode);
    }

    fn space(&self) -> Result<Space> {
        let path = self.absolute(b"")?;
        let found = self.ask(true, |live| {
            let path = path.clone();
            async move { live.session.statvfs(path).await }
        })?;
        Ok(Space {
            block_bytes: found.fragment_size as u32,
            blocks: found.blocks,
            blocks_free: found.blocks_avail,
            files: found.inodes,
            files_free: found.inodes_avail,
        })
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.fate.notes();
        let skipped = self.skipped.load(Ordering::Relaxed);
        if skipped > 0 {
            notes.push(format!(
                "{skipped} names were left out of listings: SFTP names are UTF-8, they are not"
            ));
        }
        notes
    }
}
