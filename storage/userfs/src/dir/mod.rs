//! `dir:FOLDER`: the files of a local directory (the paper's direct wrapper, Table 4.2).
//!
//! Each file that the kernel knows is held by an `O_PATH` descriptor, or, where these are too many, can be opened again as the same file ([`files`]). So renames by
//! others do not matter (but for files that can only be opened again by name), and nothing leads out of the folder: names are looked up one by one, links are never
//! followed. Reading and writing open the file once through `/proc/self/fd`.
//!
//! The folder belongs to the mount while it is mounted: what others change in it directly is seen late or not at all,
//! as the kernel caches names and attributes for ever.
//!
//! Invariant: a file has one inode number here however many names it has (device and inode number underneath).

mod files;
mod handle;

use crate::backend::{
    Attributes, Backend, Change, Entry, Held, Inode, New, NewTime, ROOT, Replace, Space, Written,
};
use crate::error::{Errno, Error, Result};
use files::{Files, magic, stat_of};
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Uid, XattrFlags};
use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::PoisonError;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Buffer for names of a directory.
const NAMES_BYTES: usize = 32 * 1024;
/// Largest extended attribute, as the kernel's own limit.
const ATTRIBUTE_BYTES_MAX: usize = 65_536;

/// A local directory.
#[derive(Debug)]
pub struct Directory {
    files: Files,
}

fn system_time(seconds: i64, nanoseconds: u64) -> SystemTime {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let base = if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    base.and_then(|base| base.checked_add(Duration::from_nanos(nanoseconds))).unwrap_or(UNIX_EPOCH)
}

fn timespec(time: Option<NewTime>) -> Timespec {
    match time {
        None => Timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT },
        Some(NewTime::Now) => Timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW },
        Some(NewTime::At(time)) => match time.duration_since(UNIX_EPOCH) {
            Ok(since) => Timespec { tv_sec: since.as_secs() as i64, tv_nsec: since.subsec_nanos().into() },
            Err(before) => {
                let before = before.duration();
                let borrow = i64::from(before.subsec_nanos() > 0);
                let rest = if borrow == 1 { 1_000_000_000 - before.subsec_nanos() } else { 0 };
                Timespec { tv_sec: -(before.as_secs() as i64) - borrow, tv_nsec: rest.into() }
            }
        },
    }
}

fn shown(inode: Inode, stat: &rustix::fs::Stat) -> Attributes {
    Attributes {
        inode,
        mode: stat.st_mode,
        links: stat.st_nlink as u32,
        user: stat.st_uid,
        group: stat.st_gid,
        device: stat.st_rdev as u32,
        size: stat.st_size as u64,
        blocks: stat.st_blocks as u64,
        accessed: system_time(stat.st_atime, stat.st_atime_nsec),
        modified: system_time(stat.st_mtime, stat.st_mtime_nsec),
        changed: system_time(stat.st_ctime, stat.st_ctime_nsec),
    }
}

impl Directory {
    /// The directory `folder`.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(folder: &Path) -> std::result::Result<Directory, Error> {
        let failed = |error| Error::io(format!("opening {}", folder.display()), error);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(folder, flags, Mode::empty()).map_err(failed)?;
        Ok(Directory { files: Files::new(root).map_err(failed)? })
    }

    fn stat(&self, inode: Inode, file: &OwnedFd) -> Result<Attributes> {
        Ok(shown(inode, &stat_of(file)?))
    }

    fn find(&self, above: Inode, parent: &OwnedFd, name: &OsStr) -> Result<Attributes> {
        let found = self.files.open_name(parent, name)?;
        let stat = stat_of(&found)?;
        Ok(shown(self.files.tell(above, name, found, &stat), &stat))
    }

    /// Gives what was just made to whom it belongs.
    fn hand_over(&self, inode: Inode, parent: &OwnedFd, name: &OsStr, new: New) -> Result<Attributes> {
        let above = rustix::fs::statat(parent, "", AtFlags::EMPTY_PATH)?;
        let group = if above.st_mode & libc::S_ISGID != 0 { None } else { Some(Gid::from_raw(new.group)) };
        let given = rustix::fs::chownat(
            parent,
            name,
            Some(Uid::from_raw(new.user)),
            group,
            AtFlags::SYMLINK_NOFOLLOW,
        );
        match given {
            // Only root can give files away; without it, all files are its own user's.
            Ok(()) | Err(rustix::io::Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
        if new.mode & libc::S_IFMT != libc::S_IFLNK {
            // Our umask and the change of owner took bits off; a directory keeps what it inherited.
            let inherited = above.st_mode & libc::S_ISGID;
            let directory = new.mode & libc::S_IFMT == libc::S_IFDIR;
            let mode = new.mode & 0o7777 | if directory { inherited } else { 0 };
            rustix::fs::chmodat(parent, name, Mode::from_bits_truncate(mode), AtFlags::empty())?;
        }
        self.find(inode, parent, name)
    }

    fn remove(&self, parent: Inode, name: &OsStr, how: AtFlags) -> Result<()> {
        let above = self.files.path(parent)?;
        let kept = self.files.keep(&above, name)?;
        rustix::fs::unlinkat(&above, name, how)?;
        self.files.unnamed(kept.as_ref(), parent, name);
        Ok(())
    }
}

impl Backend for Directory {
    fn lookup(&self, parent: Inode, name: &OsStr) -> Result<Attributes> {
        let above = self.files.path(parent)?;
        self.find(parent, &above, name)
    }

    fn forget(&self, inode: Inode, times: u64) {
        self.files.forget(inode, times);
    }

    fn attributes(&self, inode: Inode) -> Result<Attributes> {
        let file = self.files.path(inode)?;
        self.stat(inode, &file)
    }

    fn change(&self, inode: Inode, change: &Change) -> Result<Attributes> {
        let file = self.files.path(inode)?;
        if change.user.is_some() || change.group.is_some() {
            let (user, group) = (change.user.map(Uid::from_raw), change.group.map(Gid::from_raw));
            rustix::fs::chownat(&file, "", user, group, AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW)?;
        }
        if let Some(mode) = change.mode {
            let _alone = self.files.rights();
            rustix::fs::chmod(magic(&file), Mode::from_bits_truncate(mode & 0o7777))?;
        }
        if let Some(size) = change.size {
            rustix::fs::ftruncate(self.files.data(inode, true)?, size)?;
        }
        if change.accessed.is_some() || change.modified.is_some() {
            let times = rustix::fs::Timestamps {
                last_access: timespec(change.accessed),
                last_modification: timespec(change.modified),
            };
            let link = stat_of(&file)?.st_mode & libc::S_IFMT == libc::S_IFLNK;
            if link {
                let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
                rustix::fs::utimensat(&file, "", &times, flags)?;
            } else {
                rustix::fs::utimensat(CWD, magic(&file), &times, AtFlags::empty())?;
            }
        }
        self.stat(inode, &file)
    }

    fn read_link(&self, inode: Inode) -> Result<Vec<u8>> {
        Ok(rustix::fs::readlinkat(self.files.path(inode)?, "", Vec::new())?.into_bytes())
    }

    fn make(&self, parent: Inode, name: &OsStr, new: New) -> Result<Attributes> {
        let above = self.files.path(parent)?;
        let mode = Mode::from_bits_truncate(new.mode & 0o7777);
        let kind = if new.mode & libc::S_IFMT == 0 { libc::S_IFREG } else { new.mode & libc::S_IFMT };
        rustix::fs::mknodat(&above, name, FileType::from_raw_mode(kind), mode, new.device.into())?;
        self.hand_over(parent, &above, name, new)
    }

    fn make_directory(&self, parent: Inode, name: &OsStr, new: New) -> Result<Attributes> {
        let above = self.files.path(parent)?;
        rustix::fs::mkdirat(&above, name, Mode::from_bits_truncate(new.mode & 0o7777))?;
        self.hand_over(parent, &above, name, New { mode: libc::S_IFDIR | new.mode & 0o7777, ..new })
    }

    fn make_link(&self, parent: Inode, name: &OsStr, target: &OsStr, new: New) -> Result<Attributes> {
        let above = self.files.path(parent)?;
        rustix::fs::symlinkat(target, &above, name)?;
        self.hand_over(parent, &above, name, New { mode: libc::S_IFLNK, ..new })
    }

    fn link(&self, inode: Inode, parent: Inode, name: &OsStr) -> Result<Attributes> {
        let (file, above) = (self.files.path(inode)?, self.files.path(parent)?);
        match rustix::fs::linkat(&file, "", &above, name, AtFlags::EMPTY_PATH) {
            // Without the right to link by descriptor.
            Err(rustix::io::Errno::NOENT) => {
                rustix::fs::linkat(CWD, magic(&file), &above, name, AtFlags::SYMLINK_FOLLOW)?;
            }
            other => other?,
        }
        self.find(parent, &above, name)
    }

    fn unlink(&self, parent: Inode, name: &OsStr) -> Result<()> {
        self.remove(parent, name, AtFlags::empty())
    }

    fn remove_directory(&self, parent: Inode, name: &OsStr) -> Result<()> {
        self.remove(parent, name, AtFlags::REMOVEDIR)
    }

    fn rename(&self, from: (Inode, &OsStr), to: (Inode, &OsStr), replace: Replace) -> Result<()> {
        let (old, new) = (self.files.path(from.0)?, self.files.path(to.0)?);
        let (moved, there) = (self.files.keep(&old, from.1)?, self.files.keep(&new, to.1)?);
        let flags = match replace {
            Replace::Yes => RenameFlags::empty(),
            Replace::No => RenameFlags::NOREPLACE,
            Replace::Exchange => RenameFlags::EXCHANGE,
        };
        rustix::fs::renameat_with(&old, from.1, &new, to.1, flags)?;
        if moved == there {
            // Two names of one file: both stay.
            return Ok(());
        }
        self.files.unnamed(moved.as_ref(), from.0, from.1);
        self.files.unnamed(there.as_ref(), to.0, to.1);
        self.files.named(moved.as_ref(), to.0, to.1);
        if replace == Replace::Exchange {
            self.files.named(there.as_ref(), from.0, from.1);
        }
        Ok(())
    }

    fn read(&self, inode: Inode, offset: u64, to: &mut [u8]) -> Result<usize> {
        let data = self.files.data(inode, false)?;
        let mut done = 0;
        while done < to.len() {
            match rustix::io::pread(&data, &mut to[done..], offset + done as u64)? {
                0 => break,
                bytes => done += bytes,
            }
        }
        Ok(done)
    }

    fn write(&self, inode: Inode, offset: u64, from: &[u8], append: bool) -> Result<Written> {
        let data = self.files.data(inode, true)?;
        if !append {
            return Ok(Written { bytes: rustix::io::pwrite(data, from, offset)?, offset });
        }
        let one = self.files.append(inode)?;
        let _one = one.lock().unwrap_or_else(PoisonError::into_inner);
        let offset = rustix::fs::fstat(&data)?.st_size as u64;
        Ok(Written { bytes: rustix::io::pwrite(data, from, offset)?, offset })
    }

    fn sync(&self, inode: Inode, data_only: bool) -> Result<()> {
        let data = self.files.data(inode, false)?;
        let synced = if data_only { rustix::fs::fdatasync(data) } else { rustix::fs::fsync(data) };
        Ok(synced?)
    }

    fn list(&self, inode: Inode, after: u64, entry: &mut dyn FnMut(Entry<'_>) -> bool) -> Result<()> {
        let file = self.files.path(inode)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = self.files.open(|| rustix::fs::openat(&file, ".", flags, Mode::empty()))?;
        rustix::fs::seek(&folder, rustix::fs::SeekFrom::Start(after))?;
        let mut buffer = vec![MaybeUninit::uninit(); NAMES_BYTES];
        let mut names = rustix::fs::RawDir::new(folder.as_fd(), &mut buffer);
        while let Some(found) = names.next() {
            let found = found?;
            let told = Entry {
                inode: found.ino(),
                next: found.next_entry_cookie(),
                mode: found.file_type().as_raw_mode(),
                name: OsStr::from_bytes(found.file_name().to_bytes()),
            };
            if !entry(told) {
                break;
            }
        }
        Ok(())
    }

    fn space(&self) -> Result<Space> {
        let found = rustix::fs::fstatvfs(self.files.path(ROOT)?)?;
        Ok(Space {
            block_bytes: found.f_frsize as u32,
            blocks: found.f_blocks,
            blocks_free: found.f_bavail,
            files: found.f_files,
            files_free: found.f_ffree,
        })
    }

    fn seek(&self, inode: Inode, offset: u64, hole: bool) -> Result<u64> {
        // Moves the position of a descriptor by which nobody reads at its position.
        let place =
            if hole { rustix::fs::SeekFrom::Hole(offset) } else { rustix::fs::SeekFrom::Data(offset) };
        Ok(rustix::fs::seek(self.files.data(inode, false)?, place)?)
    }

    fn allocate(&self, inode: Inode, offset: u64, bytes: u64, mode: i32) -> Result<()> {
        let flags = rustix::fs::FallocateFlags::from_bits(mode as u32).ok_or(Errno::UNSUPPORTED)?;
        Ok(rustix::fs::fallocate(self.files.data(inode, true)?, flags, offset, bytes)?)
    }

    fn get_attribute(&self, inode: Inode, name: &OsStr) -> Result<Vec<u8>> {
        let file = self.files.path(inode)?;
        let mut value = vec![0; ATTRIBUTE_BYTES_MAX];
        let bytes = rustix::fs::getxattr(magic(&file), name, &mut value)?;
        value.truncate(bytes);
        Ok(value)
    }

    fn set_attribute(&self, inode: Inode, name: &OsStr, value: &[u8], flags: i32) -> Result<()> {
        let file = self.files.path(inode)?;
        let flags = XattrFlags::from_bits_truncate(flags as u32);
        Ok(rustix::fs::setxattr(magic(&file), name, value, flags)?)
    }

    fn list_attributes(&self, inode: Inode) -> Result<Vec<u8>> {
        let file = self.files.path(inode)?;
        let mut names = vec![0; ATTRIBUTE_BYTES_MAX];
        let bytes = rustix::fs::listxattr(magic(&file), &mut names)?;
        names.truncate(bytes);
        Ok(names)
    }

    fn remove_attribute(&self, inode: Inode, name: &OsStr) -> Result<()> {
        let file = self.files.path(inode)?;
        Ok(rustix::fs::removexattr(magic(&file), OsString::from(name))?)
    }

    fn local(&self, inode: Inode) -> Option<OwnedFd> {
        let file = self.files.path(inode).ok()?;
        self.files.open(|| rustix::io::fcntl_dupfd_cloexec(&file, 0)).ok()
    }

    fn held(&self) -> Option<Held> {
        Some(self.files.held())
    }
}
