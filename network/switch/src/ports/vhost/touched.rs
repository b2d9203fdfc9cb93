//! How much of lent memory this process was the first to touch: the kernel charges a page of a memory file to whoever touches it first,
//! for as long as the file lives.
//!
//! A guest that offers buffers which it has never written has the switch's copies be the first touch. That is what virtual machines
//! without memory made beforehand do all the time, so it is allowed, up to a bound: of all ports together, and for one port half of what is
//! left of that. A port that reaches it loses its virtual machine's connection, and gets it again when the memory is made beforehand, or
//! is another.
//!
//! The kernel does not say who touched a page first, so what is counted is the most that it could be: a page that this process is charged for
//! was made since the file was lent, is mapped here, and is charged to this process's control group. So it is the least of three: bytes by
//! which the files have grown, bytes of the mappings that are in use, and bytes of shared memory that the control group is charged for. A
//! machine that touches all its memory by itself and has its traffic all over it counts for nothing by the last. The growth is cheap to know;
//! the others are looked at only when that has become more by a step. Huge pages are of a pool of their own, and charged to nobody here.
//!
//! What was counted stays with the port when its monitor connects anew with the same files. Files that are others than before are taken for a
//! new virtual machine, whose like before is gone: so often in each [`ANEW_SPAN`]; beyond that what was counted stays.

use super::memory::Memory;
use super::offered::wrong;
use crate::ports::seldom::Seldom;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes that all ports may have touched first, unless a setting says otherwise.
pub const TOUCHED_BYTES_MAX: u64 = 8 << 30;
/// Least that a setting may say.
pub const TOUCHED_BYTES_LEAST: u64 = 64 << 20;
/// Growth after which the mappings are looked at again, as a part of what a port may have.
const STEPS: u64 = 16;
/// And as a part of what is mapped.
const STEPS_OF_MAPPED: u64 = 64;
/// Times that other files are a new virtual machine's, in each span.
const ANEW_MAX: u32 = 4;
/// See there.
pub const ANEW_SPAN: Duration = Duration::from_secs(3600);

/// The switch touched as much of lent memory first as it may for one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the switch was the first to touch {} MiB of the lent memory and is charged for it, of {} MiB that this port may have: have \
     the memory made beforehand (prealloc=on), or raise engine.guestTouchedBytesMax",
    bytes >> 20,
    most >> 20
)]
pub struct TooMuch {
    /// What it touched, bytes.
    pub bytes: u64,
    /// What it may, bytes.
    pub most: u64,
}

/// What all ports have touched first, of this process or of something else that counts apart.
#[derive(Debug)]
pub struct All {
    most: AtomicU64,
    bytes: AtomicU64,
    refused: AtomicU64,
}

static PROCESS: All = All::new(TOUCHED_BYTES_MAX);

impl All {
    /// Nothing yet, of so much.
    pub const fn new(most: u64) -> All {
        All { most: AtomicU64::new(most), bytes: AtomicU64::new(0), refused: AtomicU64::new(0) }
    }

    /// This process's.
    pub fn process() -> &'static All {
        &PROCESS
    }

    /// Sets the bound.
    pub fn set_most(&self, bytes: u64) {
        self.most.store(bytes, Relaxed);
    }

    /// Bytes that were touched first.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Times that a port reached its bound, or was refused because it had.
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// What a port may have that has so much: half of what the others leave.
    fn most_of_one(&self, own: u64) -> u64 {
        let others = self.bytes().saturating_sub(own);
        self.most.load(Relaxed).saturating_sub(others) / 2
    }
}

/// Which file of memory.
type File = (u64, u64);

#[derive(Debug)]
struct State {
    files: BTreeSet<File>,
    /// Counted of connections before, with the same files.
    before: u64,
    /// Counted of this one.
    now: u64,
    /// Growth when the mappings were looked at.
    looked_at: u64,
    anew: Seldom,
}

/// What a port's virtual machines lend, and how much of it was touched first here.
#[derive(Debug)]
pub struct Touched {
    all: &'static All,
    lent: AtomicU64,
    bytes: AtomicU64,
    state: Mutex<State>,
}

impl Drop for Touched {
    fn drop(&mut self) {
        self.all.bytes.fetch_sub(self.bytes.load(Relaxed), Relaxed);
    }
}

impl Touched {
    /// Of a new port.
    pub fn new(all: &'static All) -> Touched {
        let anew = Seldom::new(ANEW_MAX, ANEW_SPAN);
        let state = State { files: BTreeSet::new(), before: 0, now: 0, looked_at: 0, anew };
        Touched { all, lent: AtomicU64::new(0), bytes: AtomicU64::new(0), state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that are lent now, and bytes that were touched first.
    pub fn read(&self) -> (u64, u64) {
        (self.lent.load(Relaxed), self.bytes.load(Relaxed))
    }

    fn show(&self, state: &State) -> u64 {
        let bytes = state.before + state.now;
        let old = self.bytes.swap(bytes, Relaxed);
        // Modulo its size it adds and takes away alike.
        self.all.bytes.fetch_add(bytes.wrapping_sub(old), Relaxed);
        bytes
    }

    /// Memory is lent, in place of what was.
    ///
    /// # Errors
    /// The port has touched as much as it may, and this memory is not made beforehand.
    pub fn lent(&self, memory: &Memory, now: Instant) -> io::Result<()> {
        let mut state = self.state();
        let (files, is_made) = memory.files();
        let is_new = state.files.is_disjoint(&files);
        if !(is_new && (state.files.is_empty() || state.anew.again(now).is_some())) {
            state.before += state.now;
        } else {
            state.before = 0;
        }
        (state.now, state.looked_at, state.files) = (0, 0, files);
        let bytes = self.show(&state);
        let most = self.all.most_of_one(bytes);
        if bytes >= most && !is_made {
            self.all.refused.fetch_add(1, Relaxed);
            return Err(wrong(TooMuch { bytes, most }.to_string()));
        }
        self.lent.store(memory.mapped_bytes(), Relaxed);
        Ok(())
    }

    /// Nothing is lent any more.
    pub fn gone(&self) {
        self.lent.store(0, Relaxed);
    }

    /// Looks how much was touched.
    ///
    /// # Errors
    /// [`TooMuch`]; its virtual machine is to go.
    pub fn look(&self, memory: &Memory) -> Result<(), TooMuch> {
        let mut state = self.state();
        let grown = memory.grown_bytes();
        // What a machine gave back it may have touched here again.
        state.looked_at = state.looked_at.min(grown);
        let (more, counted) = (grown - state.looked_at, state.before + state.now);
        let most = self.all.most_of_one(counted);
        // Of a large machine's own growth each look costs as much as the machine is large.
        let step = (most / STEPS).max(memory.mapped_bytes() / STEPS_OF_MAPPED).max(1);
        if more < step && (more == 0 || counted + more < most) {
            return Ok(());
        }
        state.looked_at = grown;
        state.now = grown.min(memory.used_bytes()).min(charged().unwrap_or(u64::MAX));
        let bytes = self.show(&state);
        let most = self.all.most_of_one(bytes);
        if bytes < most {
            return Ok(());
        }
        self.all.refused.fetch_add(1, Relaxed);
        Err(TooMuch { bytes, most })
    }
}

/// Bytes of shared memory that this process's control group is charged for; `None` where nothing says so (no control groups of version 2).
fn charged() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let counted =
        std::fs::read_to_string(Path::new("/sys/fs/cgroup").join(group).join("memory.stat")).ok()?;
    counted.lines().find_map(|line| line.strip_prefix("shmem ")?.trim().parse().ok())
}
