//! `dir:FOLDER`: the files of a local directory (the paper's direct wrapper, Table 4.2).
//!
//! Each file that the kernel knows is held by an `O_PATH` descriptor, so that renames by others do not matter and
//! nothing leads out of the folder: names are looked up one by one, links are never followed. Reading and writing
//! open the file once through `/proc/self/fd`.
//!
//! The folder belongs to the mount while it is mounted: what others change in it directly is seen late or not at all,
//! as the kernel caches names and attributes for ever.
//!
//! Invariant: a file has one inode number here however many names it has (device and inode number underneath).

use crate::backend::{
    Attributes, Backend, Change, Entry, Inode, New, NewTime, ROOT, Replace, Space, Written,
};
use crate::error::{Errno, Error, Result};
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Uid, XattrFlags};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Buffer for names of a directory.
const NAMES_BYTES: usize = 32 * 1024;
/// Largest extended attribute, as the kernel's own limit.
const ATTRIBUTE_BYTES_MAX: usize = 65_536;

#[derive(Debug)]
struct Node {
    path: OwnedFd,
    /// For reading and, if it may be written, for writing.
    data: OnceLock<OwnedFd>,
    /// One append at a time: each looks where the end is.
    append: Mutex<()>,
    key: (u64, u64),
}

impl Node {
    fn new(path: OwnedFd, key: (u64, u64)) -> Node {
        Node { path, data: OnceLock::new(), append: Mutex::new(()), key }
    }

    /// A name that leads to the file itself, links not followed further.
    fn magic(&self) -> String {
        format!("/proc/self/fd/{}", self.path.as_raw_fd())
    }

    fn data(&self) -> Result<&OwnedFd> {
        if let Some(open) = self.data.get() {
            return Ok(open);
        }
        let flags = OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        let opened = rustix::fs::open(self.magic(), flags | OFlags::RDWR, Mode::empty())
            .or_else(|_| rustix::fs::open(self.magic(), flags | OFlags::RDONLY, Mode::empty()))?;
        Ok(self.data.get_or_init(|| opened))
    }
}

#[derive(Debug, Default)]
struct Nodes {
    of: HashMap<Inode, (Arc<Node>, u64)>,
    numbers: HashMap<(u64, u64), Inode>,
    next: Inode,
}

/// A local directory.
#[derive(Debug)]
pub struct Directory {
    nodes: Mutex<Nodes>,
}

fn key(stat: &rustix::fs::Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
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
    pub fn open(folder: &Path) -> std::result::Result<Directory, Error> {
        let failed = |error| Error::io(format!("opening {}", folder.display()), error);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let path = rustix::fs::open(folder, flags, Mode::empty()).map_err(failed)?;
        let key = key(&rustix::fs::fstat(&path).map_err(failed)?);
        let root = Arc::new(Node::new(path, key));
        let nodes = Nodes {
            of: HashMap::from([(ROOT, (root, 1))]),
            numbers: HashMap::from([(key, ROOT)]),
            next: ROOT + 1,
        };
        Ok(Directory { nodes: Mutex::new(nodes) })
    }

    fn nodes(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn node(&self, inode: Inode) -> Result<Arc<Node>> {
        self.nodes().of.get(&inode).map(|found| found.0.clone()).ok_or(Errno(libc::ESTALE))
    }

    fn stat(&self, inode: Inode, node: &Node) -> Result<Attributes> {
        let stat = rustix::fs::statat(&node.path, "", AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(shown(inode, &stat))
    }

    fn find(&self, parent: &Node, name: &OsStr) -> Result<Attributes> {
        let path = rustix::fs::openat(
            &parent.path,
            name,
            OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let stat = rustix::fs::statat(&path, "", AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW)?;
        let key = key(&stat);
        let mut nodes = self.nodes();
        let known = nodes.numbers.get(&key).copied();
        let inode = known.unwrap_or(nodes.next);
        if known.is_none() {
            nodes.next += 1;
            nodes.numbers.insert(key, inode);
            nodes.of.insert(inode, (Arc::new(Node::new(path, key)), 0));
        }
        if let Some(told) = nodes.of.get_mut(&inode) {
            told.1 += 1;
        }
        Ok(shown(inode, &stat))
    }

    /// Gives what was just made to whom it belongs.
    fn hand_over(&self, parent: &Node, name: &OsStr, new: New) -> Result<Attributes> {
        let above = rustix::fs::statat(&parent.path, "", AtFlags::EMPTY_PATH)?;
        let group = if above.st_mode & libc::S_ISGID != 0 { None } else { Some(Gid::from_raw(new.group)) };
        let given = rustix::fs::chownat(
            &parent.path,
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
            rustix::fs::chmodat(&parent.path, name, Mode::from_bits_truncate(mode), AtFlags::empty())?;
        }
        self.find(parent, name)
    }
}

impl Backend for Directory {
    fn lookup(&self, parent: Inode, name: &OsStr) -> Result<Attributes> {
        self.find(self.node(parent)?.as_ref(), name)
    }

    fn forget(&self, inode: Inode, times: u64) {
        let mut nodes = self.nodes();
        let Some(told) = nodes.of.get_mut(&inode) else { return };
        told.1 = told.1.saturating_sub(times);
        if told.1 == 0 && inode != ROOT {
            let key = told.0.key;
            nodes.of.remove(&inode);
            nodes.numbers.remove(&key);
        }
    }

    fn attributes(&self, inode: Inode) -> Result<Attributes> {
        self.stat(inode, self.node(inode)?.as_ref())
    }

    fn change(&self, inode: Inode, change: &Change) -> Result<Attributes> {
        let node = self.node(inode)?;
        if change.user.is_some() || change.group.is_some() {
            let (user, group) = (change.user.map(Uid::from_raw), change.group.map(Gid::from_raw));
            rustix::fs::chownat(
                &node.path,
                "",
                user,
                group,
                AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW,
            )?;
        }
        if let Some(mode) = change.mode {
            rustix::fs::chmodat(
                CWD,
                node.magic(),
                Mode::from_bits_truncate(mode & 0o7777),
                AtFlags::empty(),
            )?;
        }
        if let Some(size) = change.size {
            rustix::fs::ftruncate(node.data()?, size)?;
        }
        if change.accessed.is_some() || change.modified.is_some() {
            let times = rustix::fs::Timestamps {
                last_access: timespec(change.accessed),
                last_modification: timespec(change.modified),
            };
            let link = rustix::fs::statat(&node.path, "", AtFlags::EMPTY_PATH)?.st_mode & libc::S_IFMT
                == libc::S_IFLNK;
            if link {
                rustix::fs::utimensat(
                    &node.path,
                    "",
                    &times,
                    AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW,
                )?;
            } else {
                rustix::fs::utimensat(CWD, node.magic(), &times, AtFlags::empty())?;
            }
        }
        self.stat(inode, &node)
    }

    fn read_link(&self, inode: Inode) -> Result<Vec<u8>> {
        Ok(rustix::fs::readlinkat(&self.node(inode)?.path, "", Vec::new())?.into_bytes())
    }

    fn make(&self, parent: Inode, name: &OsStr, new: New) -> Result<Attributes> {
        let parent = self.node(parent)?;
        let mode = Mode::from_bits_truncate(new.mode & 0o7777);
        let kind = if new.mode & libc::S_IFMT == 0 { libc::S_IFREG } else { new.mode & libc::S_IFMT };
        rustix::fs::mknodat(&parent.path, name, FileType::from_raw_mode(kind), mode, new.device.into())?;
        self.hand_over(&parent, name, new)
    }

    fn make_directory(&self, parent: Inode, name: &OsStr, new: New) -> Result<Attributes> {
        let parent = self.node(parent)?;
        rustix::fs::mkdirat(&parent.path, name, Mode::from_bits_truncate(new.mode & 0o7777))?;
        self.hand_over(&parent, name, New { mode: libc::S_IFDIR | new.mode & 0o7777, ..new })
    }

    fn make_link(&self, parent: Inode, name: &OsStr, target: &OsStr, new: New) -> Result<Attributes> {
        let parent = self.node(parent)?;
        rustix::fs::symlinkat(target, &parent.path, name)?;
        self.hand_over(&parent, name, New { mode: libc::S_IFLNK, ..new })
    }

    fn link(&self, inode: Inode, parent: Inode, name: &OsStr) -> Result<Attributes> {
        let (node, parent) = (self.node(inode)?, self.node(parent)?);
        match rustix::fs::linkat(&node.path, "", &parent.path, name, AtFlags::EMPTY_PATH) {
            // Without the right to link by descriptor.
            Err(rustix::io::Errno::NOENT) => {
                rustix::fs::linkat(CWD, node.magic(), &parent.path, name, AtFlags::SYMLINK_FOLLOW)?;
            }
            other => other?,
        }
        self.find(&parent, name)
    }

    fn unlink(&self, parent: Inode, name: &OsStr) -> Result<()> {
        Ok(rustix::fs::unlinkat(&self.node(parent)?.path, name, AtFlags::empty())?)
    }

    fn remove_directory(&self, parent: Inode, name: &OsStr) -> Result<()> {
        Ok(rustix::fs::unlinkat(&self.node(parent)?.path, name, AtFlags::REMOVEDIR)?)
    }

    fn rename(&self, from: (Inode, &OsStr), to: (Inode, &OsStr), replace: Replace) -> Result<()> {
        let (old, new) = (self.node(from.0)?, self.node(to.0)?);
        let flags = match replace {
            Replace::Yes => RenameFlags::empty(),
            Replace::No => RenameFlags::NOREPLACE,
            Replace::Exchange => RenameFlags::EXCHANGE,
        };
        Ok(rustix::fs::renameat_with(&old.path, from.1, &new.path, to.1, flags)?)
    }

    fn read(&self, inode: Inode, offset: u64, to: &mut [u8]) -> Result<usize> {
        let node = self.node(inode)?;
        let mut done = 0;
        while done < to.len() {
            match rustix::io::pread(node.data()?, &mut to[done..], offset + done as u64)? {
                0 => break,
                bytes => done += bytes,
            }
        }
        Ok(done)
    }

    fn write(&self, inode: Inode, offset: u64, from: &[u8], append: bool) -> Result<Written> {
        let node = self.node(inode)?;
        let data = node.data()?;
        if !append {
            return Ok(Written { bytes: rustix::io::pwrite(data, from, offset)?, offset });
        }
        let _one = node.append.lock().unwrap_or_else(PoisonError::into_inner);
        let offset = rustix::fs::fstat(data)?.st_size as u64;
        Ok(Written { bytes: rustix::io::pwrite(data, from, offset)?, offset })
    }

    fn sync(&self, inode: Inode, data_only: bool) -> Result<()> {
        let node = self.node(inode)?;
        let data = node.data()?;
        let synced = if data_only { rustix::fs::fdatasync(data) } else { rustix::fs::fsync(data) };
        Ok(synced?)
    }

    fn list(&self, inode: Inode, after: u64, entry: &mut dyn FnMut(Entry<'_>) -> bool) -> Result<()> {
        let node = self.node(inode)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::openat(&node.path, ".", flags, Mode::empty())?;
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
        let found = rustix::fs::fstatvfs(&self.node(ROOT)?.path)?;
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
        Ok(rustix::fs::seek(self.node(inode)?.data()?, place)?)
    }

    fn allocate(&self, inode: Inode, offset: u64, bytes: u64, mode: i32) -> Result<()> {
        let flags = rustix::fs::FallocateFlags::from_bits(mode as u32).ok_or(Errno::UNSUPPORTED)?;
        Ok(rustix::fs::fallocate(self.node(inode)?.data()?, flags, offset, bytes)?)
    }

    fn get_attribute(&self, inode: Inode, name: &OsStr) -> Result<Vec<u8>> {
        let mut value = vec![0; ATTRIBUTE_BYTES_MAX];
        let bytes = rustix::fs::getxattr(self.node(inode)?.magic(), name, &mut value)?;
        value.truncate(bytes);
        Ok(value)
    }

    fn set_attribute(&self, inode: Inode, name: &OsStr, value: &[u8], flags: i32) -> Result<()> {
        let flags = XattrFlags::from_bits_truncate(flags as u32);
        Ok(rustix::fs::setxattr(self.node(inode)?.magic(), name, value, flags)?)
    }

    fn list_attributes(&self, inode: Inode) -> Result<Vec<u8>> {
        let mut names = vec![0; ATTRIBUTE_BYTES_MAX];
        let bytes = rustix::fs::listxattr(self.node(inode)?.magic(), &mut names)?;
        names.truncate(bytes);
        Ok(names)
    }

    fn remove_attribute(&self, inode: Inode, name: &OsStr) -> Result<()> {
        Ok(rustix::fs::removexattr(self.node(inode)?.magic(), OsString::from(name))?)
    }

    fn local(&self, inode: Inode) -> Option<OwnedFd> {
        self.node(inode).ok()?.path.try_clone().ok()
    }
}
