//! Files by what the file system calls them: `name_to_handle_at` and `open_by_handle_at`. A handle outlives every descriptor, follows the file through renames,
//! and names no other file that gets the same inode number later (it has a generation).
//!
//! Asking for a handle needs no right; opening by one needs `CAP_DAC_READ_SEARCH`, and a file system that can.

#![allow(unsafe_code)]

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::{Errno, Result};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// Longest handle: the kernel's own limit.
const BYTES_MAX: usize = 128;
/// File systems of other processes: their handles hold as long as what the kernel knows of them, which is not for long.
const FUSE: rustix::fs::FsWord = 0x6573_5546;

/// A file's name below all names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Handle {
    kind: i32,
    bytes: Box<[u8]>,
}

/// `struct file_handle`.
#[repr(C)]
struct Raw {
    length: u32,
    kind: i32,
    bytes: [u8; BYTES_MAX],
}

impl Handle {
    /// Of an open file, and by which mount it was opened.
    pub(super) fn of(file: impl AsFd) -> Result<(Handle, i32)> {
        let mut raw = Raw { length: BYTES_MAX as u32, kind: 0, bytes: [0; BYTES_MAX] };
        let mut mount = 0i32;
        let file = file.as_fd().as_raw_fd();
        // SAFETY: the descriptor is open, the name is an empty text that ends, and both places are as large as the call says.
        let done = unsafe {
            libc::syscall(
                libc::SYS_name_to_handle_at,
                file,
                c"".as_ptr(),
                &raw mut raw,
                &raw mut mount,
                libc::AT_EMPTY_PATH,
            )
        };
        if done != 0 {
            return Err(last_error());
        }
        let bytes = raw.bytes.get(..raw.length as usize).ok_or(Errno::OVERFLOW)?;
        Ok((Handle { kind: raw.kind, bytes: bytes.into() }, mount))
    }

    /// Opens the file itself, as `O_PATH`; `beside` is any file of its mount that was not.
    pub(super) fn open(&self, beside: impl AsFd) -> Result<OwnedFd> {
        let mut raw = Raw { length: self.bytes.len() as u32, kind: self.kind, bytes: [0; BYTES_MAX] };
        raw.bytes[..self.bytes.len()].copy_from_slice(&self.bytes);
        let flags = (OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC).bits() as i32;
        let beside = beside.as_fd().as_raw_fd();
        // SAFETY: the descriptor is open, and the handle is as long as it says.
        let opened = unsafe { libc::syscall(libc::SYS_open_by_handle_at, beside, &raw mut raw, flags) };
        let opened = i32::try_from(opened).map_err(|_| Errno::OVERFLOW)?;
        if opened < 0 {
            return Err(last_error());
        }
        // SAFETY: the kernel just gave this descriptor to us.
        Ok(unsafe { OwnedFd::from_raw_fd(opened) })
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// How files of one mount are opened by handle.
#[derive(Debug)]
pub(super) struct Handles {
    /// A folder of it, not opened as `O_PATH`.
    beside: OwnedFd,
    mount: i32,
}

impl Handles {
    /// Of the mount of `root`; nothing where this process or the file system cannot.
    pub(super) fn of(root: &OwnedFd) -> Option<Handles> {
        if rustix::fs::fstatfs(root).ok()?.f_type == FUSE {
            return None;
        }
        let (handle, mount) = Handle::of(root).ok()?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let beside = rustix::fs::openat(root, ".", flags, Mode::empty()).ok()?;
        handle.open(&beside).ok()?;
        Some(Handles { beside, mount })
    }

    /// Opens a file by its mark, where that can be.
    pub(super) fn open(&self, mark: &Mark) -> Option<Result<OwnedFd>> {
        self.can_open(mark).then(|| mark.handle.as_ref().map(|handle| handle.open(&self.beside)))?
    }

    /// Whether it was asked for by this mount: by another one the file may have fewer rights.
    pub(super) fn can_open(&self, mark: &Mark) -> bool {
        mark.handle.is_some() && mark.mount == self.mount
    }
}

/// What tells a file from others that had or will have its inode number.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Mark {
    handle: Option<Handle>,
    mount: i32,
    /// When it was made, where there is no handle.
    born: Option<(i64, u32)>,
}

impl Mark {
    /// Of an open file.
    pub(super) fn of(file: &OwnedFd) -> Mark {
        let lasting = rustix::fs::fstatfs(file).is_ok_and(|system| system.f_type != FUSE);
        if let Some((handle, mount)) = lasting.then(|| Handle::of(file).ok()).flatten() {
            return Mark { handle: Some(handle), mount, born: None };
        }
        let told = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME).ok();
        let told = told.filter(|stat| stat.stx_mask & StatxFlags::BTIME.bits() != 0);
        Mark { born: told.map(|stat| (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec)), ..Mark::default() }
    }
}
