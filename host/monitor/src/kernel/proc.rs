//! Processes as `/proc` shows them: what is there when the monitor starts, what a process weighs when one must be chosen,
//! and the truth after a loss.
//!
//! Everything that the loop calls works in buffers made beforehand: no allocation, one open descriptor for `/proc`.

use crate::error::{Error, Result};
use crate::kernel::Comm;
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags, RawDir, openat};
use std::ffi::CStr;
use std::io::Write;
use std::mem::MaybeUninit;

/// Bytes for entries of a folder.
const ENTRIES_BYTES: usize = 32 * 1024;
/// Longest file of one process that is read, bytes; what is needed is at the start.
const FILE_BYTES: usize = 1024;

/// What `/proc/PID/stat` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The parent now, which may have adopted it.
    pub parent: u32,
    /// The program.
    pub comm: Comm,
    /// `Z` for one that has ended and is not yet reaped, `R`, `S`, ….
    pub state: u8,
    /// Time of its start, ticks of 10 ms since the boot.
    pub start_ticks: u64,
}

/// Nanoseconds of a tick of `/proc/PID/stat` (USER_HZ is 100 on all that we run on).
const TICK_NS: u64 = 10_000_000;
/// Two times of birth that differ by less may be the same, ns: one is rounded, and the kernel takes them at two moments.
const SAME_NS: u64 = 1_000_000_000;

impl Stat {
    /// Whether the process may be the one that was forked at `born_ns` of the monotonic clock, where 0 means that nobody knows.
    /// `asleep_ns` is [`asleep_ns`].
    pub fn may_be_born(&self, born_ns: u64, asleep_ns: u64) -> bool {
        let start_ns = self.start_ticks.saturating_mul(TICK_NS).saturating_sub(asleep_ns);
        born_ns == 0 || start_ns.abs_diff(born_ns) < SAME_NS
    }
}

/// How long the machine slept since its boot, ns: what the clock of `/proc` is ahead of the monotonic one.
pub fn asleep_ns() -> u64 {
    let ns = |clock| {
        let time = rustix::time::clock_gettime(clock);
        (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
    };
    ns(rustix::time::ClockId::Boottime).saturating_sub(ns(rustix::time::ClockId::Monotonic))
}

/// An open `/proc`.
#[derive(Debug)]
pub struct Proc {
    root: OwnedFd,
}

/// The buffer of a listing.
#[derive(Debug)]
pub struct Listing(Box<[MaybeUninit<u8>]>);

impl Default for Listing {
    fn default() -> Listing {
        Listing(crate::resident::present(vec![MaybeUninit::uninit(); ENTRIES_BYTES]).into_boxed_slice())
    }
}

impl Proc {
    /// Opens it.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn open() -> Result<Proc> {
        let root = openat(CWD, c"/proc", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|error| Error::io("opening /proc", error))?;
        Ok(Proc { root })
    }

    /// Calls `each` for every process. What it cannot list it leaves out.
    pub fn for_each(&self, buffer: &mut Listing, mut each: impl FnMut(u32)) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(folder) = openat(&self.root, c".", flags, Mode::empty()) else { return };
        let mut listing = RawDir::new(folder, &mut buffer.0);
        while let Some(Ok(entry)) = listing.next() {
            if let Some(process) = number(entry.file_name().to_bytes()) {
                each(process);
            }
        }
    }

    /// Reads the start of a file of a process into `buffer`.
    pub fn read<'a>(&self, process: u32, file: &str, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
        let mut path = [0_u8; 48];
        let mut rest = &mut path[..47];
        write!(rest, "{process}/{file}").ok()?;
        let path = CStr::from_bytes_until_nul(&path).ok()?;
        let opened = openat(&self.root, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let length = rustix::io::read(&opened, &mut *buffer).ok()?;
        buffer.get(..length)
    }

    /// What `stat` says; nothing when the process is gone.
    pub fn stat(&self, process: u32) -> Option<Stat> {
        parse_stat(self.read(process, "stat", &mut [0; FILE_BYTES])?)
    }

    /// Resident pages of a process, of which shared ones are not its own; nothing when it is gone.
    pub fn resident_pages(&self, process: u32) -> Option<Resident> {
        let mut buffer = [0; 128];
        let text = self.read(process, "statm", &mut buffer)?;
        let mut fields = text.split(|byte| *byte == b' ').skip(1);
        Some(Resident { all: number64(fields.next()?)?, shared: number64(fields.next()?)? })
    }

    /// The path of the cgroup (version 2) of a process below its mount, without a slash in front; nothing when it is gone or in a path
    /// that `buffer` does not hold.
    pub fn cgroup_path<'a>(&self, process: u32, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
        let size = buffer.len();
        let text = self.read(process, "cgroup", buffer)?;
        let whole = text.len() < size;
        let path = text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"0::/"))?;
        whole.then_some(path)
    }

    /// The cgroup (version 2) of a process, as the number of its folder below `mount`. Allocates.
    pub fn cgroup(&self, process: u32, mount: &std::path::Path) -> Option<u64> {
        use std::os::unix::fs::MetadataExt;
        let mut buffer = [0; 4096];
        let text = std::str::from_utf8(self.read(process, "cgroup", &mut buffer)?).ok()?;
        let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
        Some(std::fs::metadata(mount.join(path)).ok()?.ino())
    }
}

/// Resident pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resident {
    /// All.
    pub all: u64,
    /// Those of files and shared memory.
    pub shared: u64,
}

/// Reads `stat`: `PID (NAME) STATE PPID …`, where the name may hold anything, also `) `.
pub fn parse_stat(text: &[u8]) -> Option<Stat> {
    let open = text.iter().position(|byte| *byte == b'(')?;
    let close = text.iter().rposition(|byte| *byte == b')')?;
    let name = text.get(open + 1..close)?;
    let mut comm = [0; 16];
    let length = name.len().min(15);
    comm[..length].copy_from_slice(&name[..length]);
    let mut fields = text.get(close + 2..)?.split(|byte| *byte == b' ');
    let state = *fields.next()?.first()?;
    let parent = number(fields.next()?)?;
    let start_ticks = number64(fields.nth(17)?)?;
    Some(Stat { parent, comm, state, start_ticks })
}

/// A decimal number without sign.
pub(crate) fn number64(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii();
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |sum, byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 { None } else { sum.checked_mul(10)?.checked_add(u64::from(digit)) }
    })
}

fn number(text: &[u8]) -> Option<u32> {
    u32::try_from(number64(text)?).ok()
}
