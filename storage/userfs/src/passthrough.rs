//! FUSE passthrough: the kernel reads, writes and maps the local files of a backend by itself, without the daemon, for every
//! program, accelerated or not. Names, attributes and permissions stay the server's.
//!
//! The bytes are then in one place, the page cache of the local file, so all who use it agree: descriptors, maps, and
//! who opened the local file itself. Opening costs a question to the daemon, which gives the kernel the file (an `O_PATH`
//! descriptor of it: links were never followed to it, and the kernel opens that file, not a name).
//!
//! Invariants
//! - All opens of an inode at one time have the same file for the kernel, or it refuses with EIO: it is kept from the first open to
//!   the last release.
//! - Where a daemon may come after this one (`keeper`), what the kernel has is written down: it still has it then, by the same numbers. That an inode
//!   has no file any more is written before the kernel gives it up: a successor that believed in a number which the kernel does not have would
//!   have every open of that inode refused with EIO, until it is unmounted.
//! - A mount decides once, when the kernel says what it can. An open that the kernel cannot take (a file system below that is
//!   stacked too high, no descriptor left) goes through the server, and so do all others of that inode until the last of them is closed: the kernel
//!   does not mix the two for one inode.
//! - The kernel opens the local file with the flags of the open, and `fcntl` changes only those of the descriptor above: what is written by one that was
//!   opened to append would be appended for ever, and one that was opened for direct input and output would want aligned places for ever. So
//!   what is opened with either is read and written by the daemon, which is told the flags of each write, and only mapped by the kernel itself.

#![allow(unsafe_code)]

use crate::backend::Inode;
use crate::journal::Journal;
use crate::stats::Stats;
use fuser::{BackingId, FileHandle, FopenFlags, InitFlags, KernelConfig, ReplyOpen};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many file systems may lie on each other below: the kernel's own limit.
const STACKED_MAX: u32 = 2;
/// Handle of an open that the kernel serves by itself, and of others.
const BY_KERNEL: FileHandle = FileHandle(1);
const BY_SERVER: FileHandle = FileHandle(0);
/// Of an open that the kernel has the local file for, and that is read and written by the server.
const MAPPED_BY_KERNEL: FileHandle = FileHandle(2);
/// Flags of an open that `fcntl` changes, and that mean something to who reads and writes.
const CHANGEABLE: i32 = libc::O_APPEND | libc::O_DIRECT;

/// In place of the kernel's number for a file: the inode is open by the server. The kernel's own begin with 1.
const NO_NUMBER: u32 = 0;

/// A file that the kernel has, by its number for it, and how often it is open. For the journal.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Line {
    inode: Inode,
    number: u32,
    opens: u64,
}

/// A file that the kernel has, or one that it would not take ([`NO_NUMBER`]).
#[derive(Debug)]
struct Backing {
    number: u32,
    opens: u64,
    /// The kernel gives it up when this is dropped. Nothing as long as it is one from before a crash that was not opened since.
    file: Option<BackingId>,
}

impl Backing {
    /// One that is to be opened, by the kernel where it takes `local`.
    fn new(local: Option<OwnedFd>, reply: &ReplyOpen) -> Backing {
        match local.map(|file| reply.open_backing(file)) {
            Some(Ok(file)) => {
                let number = file.into_raw();
                Backing { number, opens: 0, file: Some(wrapped(reply, number)) }
            }
            _ => Backing { number: NO_NUMBER, opens: 0, file: None },
        }
    }
}

#[derive(Debug, Default)]
struct Files {
    of: HashMap<Inode, Backing>,
    /// Of files from before a crash that are closed: the kernel is told at the next open, which has a way to it.
    over: Vec<u32>,
}

/// Files that the kernel has, with how often they are open.
#[derive(Debug, Default)]
pub(crate) struct Passthrough {
    on: AtomicBool,
    files: Mutex<Files>,
    journal: Option<Journal>,
    stats: Arc<Stats>,
}

fn wrapped(reply: &ReplyOpen, number: u32) -> BackingId {
    // SAFETY: the number was given by the kernel for this mount, and whoever has it from us gives it up once.
    unsafe { reply.wrap_backing(number) }
}

impl Passthrough {
    /// One whose successor knows what the kernel has.
    pub(crate) fn kept() -> std::io::Result<Passthrough> {
        Ok(Passthrough { journal: Some(Journal::create()?), ..Passthrough::default() })
    }

    /// What the kernel has from a daemon that died.
    pub(crate) fn again(journal: [OwnedFd; 2]) -> std::io::Result<Passthrough> {
        let mut files = Files::default();
        let mut last = None;
        let journal = Journal::open(journal, |lines: Vec<Line>| {
            for line @ Line { inode, number, opens } in lines {
                match opens {
                    0 => drop(files.of.remove(&inode)),
                    _ => drop(files.of.insert(inode, Backing { number, opens, file: None })),
                }
                last = Some(line);
            }
        })?;
        // Written down and perhaps not given up: the kernel does not mind to hear it twice, and gives no number twice for long.
        let last = last.filter(|line| line.opens == 0 && line.number != NO_NUMBER);
        files.over.extend(last.map(|line| line.number));
        Ok(Passthrough { files: Mutex::new(files), journal: Some(journal), ..Passthrough::default() })
    }

    pub(crate) fn journal(&self) -> Option<&Journal> {
        self.journal.as_ref()
    }

    /// Asks the kernel for it.
    pub(crate) fn negotiate(&self, config: &mut KernelConfig) {
        let possible = config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
            && config.set_max_stack_depth(STACKED_MAX).is_ok();
        self.on.store(possible, Ordering::Relaxed);
    }

    /// Whether opens are to be answered.
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Counts there.
    pub(crate) fn counting(self, stats: Arc<Stats>) -> Passthrough {
        Passthrough { stats, ..self }
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_down(&self, files: &Files, line: Line) {
        let Some(journal) = &self.journal else { return };
        journal.append(&[line]);
        if journal.is_long() {
            let line = |(inode, file): (&Inode, &Backing)| Line {
                inode: *inode,
                number: file.number,
                opens: file.opens,
            };
            journal.rewrite(files.of.iter().map(line));
        }
    }

    /// Whether the server writes for a descriptor of which the kernel takes no rights away when it is written.
    pub(crate) fn leaves_rights(handle: FileHandle) -> bool {
        handle == MAPPED_BY_KERNEL
    }

    /// Answers an open of `inode` by these flags with the file that `local` gives.
    pub(crate) fn open(
        &self,
        inode: Inode,
        flags: i32,
        local: impl FnOnce() -> Option<OwnedFd>,
        reply: ReplyOpen,
    ) {
        let mut files = self.files();
        files.over.drain(..).for_each(|number| drop(wrapped(&reply, number)));
        let backing = files.of.entry(inode).or_insert_with(|| Backing::new(local(), &reply));
        backing.opens += 1;
        let line = Line { inode, number: backing.number, opens: backing.opens };
        self.write_down(&files, line);
        if line.number == NO_NUMBER {
            self.stats.opened(false);
            return reply.opened(BY_SERVER, FopenFlags::FOPEN_KEEP_CACHE);
        }
        self.stats.opened(true);
        if let Some(backing) = files.of.get_mut(&inode) {
            let file = backing.file.get_or_insert_with(|| wrapped(&reply, backing.number));
            // With the lock held: a release of the same inode must not be faster.
            match flags & CHANGEABLE {
                0 => reply.opened_passthrough(BY_KERNEL, FopenFlags::empty(), file),
                _ => reply.opened_passthrough(MAPPED_BY_KERNEL, FopenFlags::FOPEN_DIRECT_IO, file),
            }
        }
    }

    /// An open is over.
    pub(crate) fn release(&self, inode: Inode) {
        let mut files = self.files();
        let Some(backing) = files.of.get_mut(&inode) else { return };
        backing.opens = backing.opens.saturating_sub(1);
        let line = Line { inode, number: backing.number, opens: backing.opens };
        let over = if line.opens == 0 { files.of.remove(&inode) } else { None };
        self.write_down(&files, line);
        match over {
            Some(Backing { number, file: None, .. }) if number != NO_NUMBER => files.over.push(number),
            // The kernel gives it up now, with the lock held: no other line stands behind its own then.
            over => drop(over),
        }
    }
}
