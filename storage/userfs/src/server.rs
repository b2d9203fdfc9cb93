//! The kernel's side: a FUSE server before any [`Backend`], by the crate fuser.
//!
//! Programs that are not accelerated come through here, and it is what keeps everything correct: names, permissions,
//! locks, maps, inheritance of descriptors are the kernel's.
//!
//! - Entries and attributes are cached for ever, names that are not there are not: all changes go through this mount
//!   or are told to the kernel by whoever makes them past it (see `segment/segment.h`).
//! - Create is "not implemented": the kernel uses mknod, and opens without asking. Each create would have a release, which asks once more. Where
//!   processes make files past the kernel, mknod may meet one of theirs (`again`).
//! - Open, flush and opendir are answered with "not implemented" once, which makes the kernel never ask again: opening a
//!   cached file costs no round trip. So there are no handles; an inode is enough to read and write.
//! - Where the kernel may use local files by itself (`passthrough`), open and release are answered instead.
//! - Both are so for backends that own their files. With close-to-open consistency names are kept for a moment, attributes
//!   are asked for each time, and open and flush are the backend's.
//! - No writeback cache: a write reaches the backend before it returns, and the size in the backend is true.
//! - `default_permissions`: the kernel checks permissions.
//! - The kernel takes set-user-id bits and capabilities away when a file is written, and asks for the latter once before a file's first write.
//!   FUSE_HANDLE_KILLPRIV_V2 would spare it the question, and leave us all of it. fuser does not hand on whether a change of size is to take the bits
//!   away (FATTR_KILL_SUIDGID), the kernel would go on with the mode that it was told, for ever, and what it writes into local files by itself, and
//!   what we write there for others, nobody would look at: it is done with our own rights.
//! - Locks (flock, fcntl) are the kernel's, as no lock operation is taken on.

mod again;
mod shown;
mod stale;

pub(crate) use stale::Stale;

use crate::backend::{Attributes, Backend, Change, Consistency, Inode, New, Replace};
use crate::error::{Errno, Result};
use crate::passthrough::Passthrough;
use crate::segment::Segment;
use crate::stats::{Operation, Stats};
use fuser::{
    BsdFileFlags, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use shown::{empty, errno, extended, kind, new_time, shown};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// How long the kernel may keep what it was told: for ever, as everything that changes is told.
const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);
/// Largest write the kernel may send at once.
const WRITE_BYTES_MAX: u32 = 1 << 20;
/// Largest read that we answer at once; the kernel asks for less.
const READ_BYTES_MAX: usize = 1 << 20;

thread_local! {
    /// What a thread answers reads from: memory that is new for each would be cleared first, page by page.
    static ANSWER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Serves a backend to the kernel.
pub(crate) struct Server {
    backend: Arc<dyn Backend>,
    stats: Arc<Stats>,
    stale: Arc<Stale>,
    /// Local files that the kernel uses by itself, where that is wanted.
    passthrough: Option<Arc<Passthrough>>,
    /// How long the kernel may keep names, and attributes.
    keeps: (Duration, Duration),
}

impl Server {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        stats: Arc<Stats>,
        stale: Arc<Stale>,
        passthrough: Option<Arc<Passthrough>>,
    ) -> Server {
        let keeps = match backend.consistency() {
            Consistency::Own => (FOREVER, FOREVER),
            // The backend itself knows how old attributes are.
            Consistency::CloseToOpen { names } => (names, Duration::ZERO),
        };
        Server { backend, stats, stale, passthrough, keeps }
    }

    /// What answers opens, where the kernel agreed to it.
    fn passthrough(&self) -> Option<&Passthrough> {
        self.passthrough.as_deref().filter(|passthrough| passthrough.is_on())
    }

    /// Whether all changes go through this mount.
    fn is_own(&self) -> bool {
        self.backend.consistency() == Consistency::Own
    }

    /// Whether processes make files past the kernel.
    fn has_names(&self) -> bool {
        self.backend.segment().is_some_and(Segment::has_names)
    }

    fn entry(&self, answer: Result<Attributes>, reply: ReplyEntry) {
        match answer {
            Ok(attributes) => {
                let (names, kept) = self.keeps;
                reply.entry_with_ttls(&kept, &names, &shown(&attributes), Generation(0));
                self.told(&attributes);
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    /// The kernel has heard this. A process that made the file longer meanwhile could not tell it: it did not know the file yet, or not better.
    fn told(&self, attributes: &Attributes) {
        let Some(segment) = self.backend.segment().filter(|_| !self.backend.read_only()) else { return };
        let is_file = kind(attributes.mode) == FileType::RegularFile;
        if is_file && segment.size(attributes.inode).is_some_and(|size| size != attributes.size) {
            self.stale.push(attributes.inode);
        }
    }

    /// A program that may not keep them writes to a file with set-user-id or set-group-id, and the kernel leaves it to us to take them away.
    /// (Capabilities go where we write.) It hears of it before the write returns.
    fn end_rights(&self, inode: Inode) {
        let Ok(Attributes { mode, .. }) = self.backend.attributes(inode) else { return };
        let group = if mode & libc::S_IXGRP == 0 { 0 } else { libc::S_ISGID };
        let left = mode & !(libc::S_ISUID | group);
        if left != mode {
            let change = Change { mode: Some(left), ..Change::default() };
            // What cannot be changed shows at the write itself.
            let _ = self.ask(Operation::Change, |backend| backend.change(inode, &change));
            self.stale.tell_attributes(inode);
        }
    }

    fn ask<T>(&self, operation: Operation, asked: impl FnOnce(&dyn Backend) -> Result<T>) -> Result<T> {
        let begun = Instant::now();
        let answer = asked(self.backend.as_ref());
        self.stats.count(operation, answer.is_err(), begun.elapsed());
        answer
    }
}

fn new(request: &Request, mode: u32, device: u32) -> New {
    New { mode, device, user: request.uid(), group: request.gid() }
}

impl Filesystem for Server {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Each is used if this kernel has it, and nothing depends on it.
        for wanted in
            [InitFlags::FUSE_PARALLEL_DIROPS, InitFlags::FUSE_BIG_WRITES, InitFlags::FUSE_CACHE_SYMLINKS]
        {
            let _ = config.add_capabilities(wanted);
        }
        if !self.is_own() {
            // Pages go when size or time have changed under the kernel.
            let _ = config.add_capabilities(InitFlags::FUSE_AUTO_INVAL_DATA);
        }
        let _ = config.set_max_write(WRITE_BYTES_MAX);
        if let Some(passthrough) = &self.passthrough {
            passthrough.negotiate(config);
        }
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.entry(self.ask(Operation::Lookup, |backend| backend.lookup(parent.0, name)), reply);
    }

    fn forget(&self, _request: &Request, inode: INodeNo, times: u64) {
        self.backend.forget(inode.0, times);
    }

    fn getattr(&self, _request: &Request, inode: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        match self.ask(Operation::Attributes, |backend| backend.attributes(inode.0)) {
            Ok(attributes) => {
                reply.attr(&self.keeps.1, &shown(&attributes));
                self.told(&attributes);
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn setattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        user: Option<u32>,
        group: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _changed: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _created: Option<SystemTime>,
        _flags_changed: Option<SystemTime>,
        _backed_up: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = Change {
            mode,
            user,
            group,
            size,
            accessed: accessed.map(new_time),
            modified: modified.map(new_time),
        };
        match self.ask(Operation::Change, |backend| backend.change(inode.0, &change)) {
            Ok(attributes) => reply.attr(&self.keeps.1, &shown(&attributes)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn readlink(&self, _request: &Request, inode: INodeNo, reply: ReplyData) {
        match self.ask(Operation::ReadLink, |backend| backend.read_link(inode.0)) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let made = self.ask(Operation::Make, |backend| {
            let made = backend.make(parent.0, name, new(request, mode, device));
            let made = again::made(backend, request, (parent.0, name), made);
            if self.has_names() { again::met(backend, (parent.0, name), made) } else { made }
        });
        self.entry(made, reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let made = self.ask(Operation::MakeDirectory, |backend| {
            let made = backend.make_directory(parent.0, name, new(request, mode, 0));
            again::made(backend, request, (parent.0, name), made)
        });
        self.entry(made, reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed =
            self.ask(Operation::Unlink, |backend| again::gone(request, backend.unlink(parent.0, name)));
        empty(removed, reply);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = self.ask(Operation::RemoveDirectory, |backend| {
            again::gone(request, backend.remove_directory(parent.0, name))
        });
        empty(removed, reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let made = self.ask(Operation::MakeLink, |backend| {
            let made = backend.make_link(parent.0, name, target.as_os_str(), new(request, 0o777, 0));
            again::made(backend, request, (parent.0, name), made)
        });
        self.entry(made, reply);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let replace = if flags.is_empty() {
            Replace::Yes
        } else if flags == RenameFlags::RENAME_NOREPLACE {
            Replace::No
        } else if flags == RenameFlags::RENAME_EXCHANGE {
            Replace::Exchange
        } else {
            return reply.error(fuser::Errno::EINVAL);
        };
        let renamed = self.ask(Operation::Rename, |backend| {
            again::may_rename(request, replace)?;
            again::gone(request, backend.rename((parent.0, name), (new_parent.0, new_name), replace))
        });
        empty(renamed, reply);
    }

    fn link(&self, request: &Request, inode: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let made = self.ask(Operation::Link, |backend| {
            let made = backend.link(inode.0, parent.0, name);
            again::made(backend, request, (parent.0, name), made)
        });
        self.entry(made, reply);
    }

    fn open(&self, _request: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if let Some(passthrough) = self.passthrough() {
            return passthrough.open(inode.0, flags.0, || self.backend.local(inode.0), reply);
        }
        if self.is_own() {
            return reply.error(fuser::Errno::ENOSYS);
        }
        match self.ask(Operation::Open, |backend| backend.open(inode.0)) {
            Ok(true) => reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE),
            Ok(false) => reply.opened(FileHandle(0), FopenFlags::empty()),
            Err(error) => reply.error(errno(error)),
        }
    }

    /// One that comes again may have been counted: a file that is open for us for ever costs less than one that is not and is used.
    fn release(
        &self,
        request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let counted = again::is_again(request);
        if let Some(passthrough) = self.passthrough() {
            if !counted {
                passthrough.release(inode.0);
            }
            if flags.0 & libc::O_ACCMODE == libc::O_RDWR {
                // A map may have changed it, which moves times below, unseen by the kernel's side above.
                self.stale.push(inode.0);
            }
            return reply.ok();
        }
        if !counted {
            self.backend.release(inode.0);
        }
        reply.ok();
    }

    /// Where processes make files past the kernel, or others do at the server, it may keep no listings: what is not asked, it keeps, and a
    /// folder of a store has no time by which it would see that they are old.
    fn opendir(&self, _request: &Request, _inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if !self.is_own() || self.has_names() && !self.backend.read_only() {
            return reply.opened(FileHandle(0), FopenFlags::empty());
        }
        reply.error(fuser::Errno::ENOSYS);
    }

    fn flush(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        if self.is_own() {
            return reply.error(fuser::Errno::ENOSYS);
        }
        empty(self.ask(Operation::Close, |backend| backend.close(inode.0)), reply);
    }

    fn read(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        ANSWER.with_borrow_mut(|data| {
            let size = (size as usize).min(READ_BYTES_MAX);
            if data.len() < size {
                data.resize(size, 0);
            }
            match self.ask(Operation::Read, |backend| backend.read(inode.0, offset, &mut data[..size])) {
                Ok(bytes) => reply.data(&data[..bytes]),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn write(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if Passthrough::leaves_rights(handle) && write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
            self.end_rights(inode.0);
        }
        // The kernel appends where it believes the end to be. A page of a map that it writes out has its place.
        let append = flags.0 & libc::O_APPEND != 0 && !write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let written = self.ask(Operation::Write, |backend| {
            if append {
                again::append(backend, request, inode.0, offset, data)
            } else {
                backend.write(inode.0, offset, data, false)
            }
        });
        match written {
            Ok(written) => {
                if written.offset != offset {
                    // It now has these bytes at the wrong place.
                    self.stale.push(inode.0);
                }
                reply.written(written.bytes as u32);
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    /// Files can always be read and written, which the kernel knows when it hears this once.
    fn poll(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _waiting: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        reply.error(fuser::Errno::ENOSYS);
    }

    fn fsync(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        empty(self.ask(Operation::Sync, |backend| backend.sync(inode.0, data_only)), reply);
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        empty(self.ask(Operation::Sync, |backend| backend.sync(inode.0, data_only)), reply);
    }

    fn readdir(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = self.ask(Operation::List, |backend| {
            backend.list(inode.0, offset, &mut |entry| {
                !reply.add(INodeNo(entry.inode), entry.next, kind(entry.mode), entry.name)
            })
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn statfs(&self, _request: &Request, _inode: INodeNo, reply: ReplyStatfs) {
        match self.ask(Operation::Space, |backend| backend.space()) {
            Ok(space) => reply.statfs(
                space.blocks,
                space.blocks_free,
                space.blocks_free,
                space.files,
                space.files_free,
                space.block_bytes,
                255,
                space.block_bytes,
            ),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn setxattr(
        &self,
        request: &Request,
        inode: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let set = self.ask(Operation::SetAttribute, |backend| {
            again::set(request, backend.set_attribute(inode.0, name, value, flags))
        });
        empty(set, reply);
    }

    fn getxattr(&self, _request: &Request, inode: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        extended(
            self.ask(Operation::GetAttribute, |backend| backend.get_attribute(inode.0, name)),
            size,
            reply,
        );
    }

    fn listxattr(&self, _request: &Request, inode: INodeNo, size: u32, reply: ReplyXattr) {
        extended(
            self.ask(Operation::ListAttributes, |backend| backend.list_attributes(inode.0)),
            size,
            reply,
        );
    }

    fn removexattr(&self, request: &Request, inode: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = self.ask(Operation::RemoveAttribute, |backend| {
            again::gone(request, backend.remove_attribute(inode.0, name))
        });
        empty(removed, reply);
    }

    fn fallocate(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        bytes: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        empty(self.ask(Operation::Allocate, |backend| backend.allocate(inode.0, offset, bytes, mode)), reply);
    }

    fn lseek(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let answer = match (u64::try_from(offset), whence) {
            (Ok(offset), libc::SEEK_DATA) => {
                self.ask(Operation::Seek, |backend| backend.seek(inode.0, offset, false))
            }
            (Ok(offset), libc::SEEK_HOLE) => {
                self.ask(Operation::Seek, |backend| backend.seek(inode.0, offset, true))
            }
            (Err(_), _) => Err(Errno::NO_SUCH_OFFSET),
            _ => Err(Errno::INVALID),
        };
        match answer {
            Ok(found) => reply.offset(found as i64),
            Err(error) => reply.error(errno(error)),
        }
    }
}
