//! Memory that processes take from the injector by a descriptor, and that nobody can change any more.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};

/// `MFD_NOEXEC_SEAL` of Linux: the only memory that is given where `vm.memfd_noexec` is 2. It can be run from all the same.
const NOEXEC_SEAL: libc::c_uint = 8;

/// Sealed memory, and what it is.
#[derive(Debug)]
pub(crate) struct Memory {
    descriptor: OwnedFd,
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) bytes: u64,
}

fn made(name: &str) -> Result<File> {
    let name = CString::new(name).unwrap_or_default();
    let mut failed = None;
    for more in [0, NOEXEC_SEAL] {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | more;
        // SAFETY: a new descriptor, checked below, that nobody else owns.
        let raw = unsafe { libc::memfd_create(name.as_ptr(), flags) };
        if raw >= 0 {
            // SAFETY: just made, and owned by nothing else.
            return Ok(File::from(unsafe { OwnedFd::from_raw_fd(raw) }));
        }
        failed.get_or_insert_with(Error::last_os_error);
    }
    Err(failed.unwrap_or_else(Error::last_os_error))
}

impl Memory {
    /// Of `bytes`, with these parts at their places, and zeros elsewhere.
    pub(crate) fn new(name: &str, bytes: u64, parts: &[(u64, &[u8])]) -> Result<Memory> {
        let file = made(name)?;
        file.set_len(bytes)?;
        for (at, part) in parts {
            file.write_all_at(part, *at)?;
        }
        let seals = libc::F_SEAL_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: plain flags on our own descriptor.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } < 0 {
            return Err(Error::last_os_error());
        }
        let is = file.metadata()?;
        Ok(Memory { descriptor: file.into(), device: is.dev(), inode: is.ino(), bytes })
    }

    /// Its number in this process.
    pub(crate) fn descriptor(&self) -> i32 {
        self.descriptor.as_raw_fd()
    }
}
