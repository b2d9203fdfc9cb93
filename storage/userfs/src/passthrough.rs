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
//! - A mount decides once, when the kernel says what it can. An open that the kernel cannot take (a file system below that is
//!   stacked too high) goes through the server; the kernel does not mix the two for one inode.

use crate::backend::Inode;
use fuser::{BackingId, FileHandle, FopenFlags, InitFlags, KernelConfig, ReplyOpen};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// How many file systems may lie on each other below: the kernel's own limit.
const STACKED_MAX: u32 = 2;
/// Handle of an open that the kernel serves by itself, and of others.
const BY_KERNEL: FileHandle = FileHandle(1);
const BY_SERVER: FileHandle = FileHandle(0);

/// Files that the kernel has, with how often they are open.
#[derive(Debug, Default)]
pub(crate) struct Passthrough {
    on: AtomicBool,
    files: Mutex<HashMap<Inode, (BackingId, u64)>>,
    opened: AtomicU64,
    refused: AtomicU64,
}

impl Passthrough {
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

    /// Opens that the kernel serves by itself, and those that it would not take.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.opened.load(Ordering::Relaxed), self.refused.load(Ordering::Relaxed))
    }

    /// Answers an open of `inode` with the file that `local` gives.
    pub(crate) fn open(&self, inode: Inode, local: impl FnOnce() -> Option<OwnedFd>, reply: ReplyOpen) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let known = files.contains_key(&inode);
        if !known && let Some(Ok(file)) = local().map(|file| reply.open_backing(file)) {
            files.insert(inode, (file, 0));
        }
        if let Some((file, opens)) = files.get_mut(&inode) {
            *opens += 1;
            self.opened.fetch_add(1, Ordering::Relaxed);
            // With the lock held: a release of the same inode must not be faster.
            return reply.opened_passthrough(BY_KERNEL, FopenFlags::empty(), file);
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        reply.opened(BY_SERVER, FopenFlags::FOPEN_KEEP_CACHE);
    }

    /// An open is over.
    pub(crate) fn release(&self, inode: Inode, handle: FileHandle) {
        if handle != BY_KERNEL {
            return;
        }
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, opens)) = files.get_mut(&inode) {
            *opens -= 1;
            if *opens == 0 {
                files.remove(&inode);
            }
        }
    }
}
