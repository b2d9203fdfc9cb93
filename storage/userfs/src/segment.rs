//! The segment: shared memory with the bytes of files, which the daemon and accelerated processes use at once.
//!
//! Layout and algorithms are in `segment/segment.h` and `segment.c`, compiled here and into the blob, so that both
//! sides cannot disagree. This module owns the memory and offers it safely: a [`Record`] can only be touched
//! while its lock is held.
//!
//! Trust: whoever maps the segment can damage every file in it. So only processes of the mount's owner may map it,
//! and block numbers read from it are checked before they are followed: a damaged segment gives wrong bytes,
//! never an access outside.
#![allow(unsafe_code)]

mod give_back;
mod join;
mod names;
#[cfg(test)]
mod tests;

pub use names::{Event, FETCH_BYTES_MAX, Names, NodeFields, Secret, What};

use crate::error::{Errno, Result};
use std::ffi::c_void;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Bytes of a block.
pub const BLOCK_BYTES: u64 = 4096;
/// Blocks named in the record itself.
const DIRECT_BLOCKS: usize = 10;
/// Processes that are shown in status.
const PROCESSES_MAX: usize = 120;
/// Bytes in front of the records.
const HEAD_BYTES: usize = 2 * BLOCK_BYTES as usize;
const MAGIC: u64 = 0x3247_4553_5249_4557;

/// `struct segment` of segment.h.
#[repr(C)]
struct Head {
    magic: AtomicU64,
    records_max: u64,
    blocks_max: u64,
    records_offset: u64,
    blocks_offset: u64,
    bytes: u64,
    free_block: AtomicU64,
    next_block: AtomicU64,
    blocks_used: AtomicU64,
    locks_taken_over: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    invalidations: AtomicU64,
    passed: AtomicU64,
    names_offset: u64,
    links_offset: u64,
    bare_block: AtomicU64,
    bare_count: AtomicU64,
    caught: AtomicU64,
    calls: AtomicU64,
    processes: [RawProcess; PROCESSES_MAX],
}

/// `struct segment_process` of segment.h.
#[repr(C)]
struct RawProcess {
    id: AtomicU32,
    state: AtomicU16,
    _holds: AtomicU16,
    sites_patched: AtomicU32,
    sites_left: AtomicU32,
    name: [std::sync::atomic::AtomicU8; 16],
    reads: AtomicU64,
    writes: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
}
const _: () = assert!(size_of::<Head>() <= HEAD_BYTES);

/// `struct segment_record` of segment.h.
#[repr(C)]
struct RawRecord {
    lock: AtomicU32,
    live: AtomicU32,
    size: AtomicU64,
    modified_ns: AtomicU64,
    blocks: AtomicU64,
    fills: AtomicU64,
    fills_gone: AtomicU64,
    told: AtomicU64,
    told_gone: AtomicU64,
    direct: [AtomicU32; DIRECT_BLOCKS],
    index: [AtomicU32; 3],
    left_to_kernel: AtomicU32,
    partial: AtomicU16,
    locked: AtomicU16,
    version: AtomicU32,
}
const _: () = assert!(size_of::<RawRecord>() == 128);

/// `struct segment_caller` of segment.h.
#[repr(C)]
struct Caller {
    segment: *mut Head,
    thread: u32,
    copy: extern "C" fn(*mut c_void, *const c_void, u64) -> u64,
    waited: extern "C" fn(u32) -> i32,
    ready: extern "C" fn(*const c_void),
}

unsafe extern "C" {
    fn segment_bytes(records_max: u64, blocks_max: u64, named: i32) -> u64;
    fn segment_format(segment: *mut Head, records_max: u64, blocks_max: u64, named: i32);
    fn segment_lock(caller: *const Caller, record: *const RawRecord) -> i32;
    fn segment_unlock(record: *const RawRecord);
    fn segment_read(
        caller: *const Caller,
        record: *const RawRecord,
        offset: u64,
        to: *mut u8,
        bytes: u64,
    ) -> i64;
    #[cfg(test)]
    fn segment_peek(
        caller: *const Caller,
        record: *const RawRecord,
        offset: u64,
        to: *mut u8,
        bytes: u64,
    ) -> i64;
    fn segment_write(
        caller: *const Caller,
        record: *const RawRecord,
        offset: u64,
        from: *const u8,
        bytes: u64,
        now_ns: u64,
    ) -> i64;
    fn segment_resize(caller: *const Caller, record: *const RawRecord, size: u64) -> i64;
    fn segment_drop(caller: *const Caller, record: *const RawRecord);
    fn segment_punch(caller: *const Caller, record: *const RawRecord, offset: u64, bytes: u64) -> i64;
    fn segment_seek(caller: *const Caller, record: *const RawRecord, offset: u64, hole: i32) -> u64;
}

extern "C" fn copy(to: *mut c_void, from: *const c_void, bytes: u64) -> u64 {
    // SAFETY: segment.c asks for `bytes` of the caller's slice on one side and of a block on the other.
    unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast::<u8>(), bytes as usize) };
    0
}

/// Says whether the holder of a lock is gone, and lets others run if it is not.
extern "C" fn waited(holder: u32) -> i32 {
    let gone = rustix::process::Pid::from_raw(holder as i32)
        .is_none_or(|pid| rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH));
    if !gone {
        std::thread::sleep(Duration::from_micros(100));
    }
    i32::from(gone)
}

/// Who lives long touches a page for the first time only once.
extern "C" fn ready(_place: *const c_void) {}

/// Figures of a segment, for status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SegmentFigures {
    /// Blocks of 4 KiB that files hold.
    pub blocks_used: u64,
    /// Blocks that there may be.
    pub blocks_max: u64,
    /// Locks taken over from a process that died while it held them.
    pub locks_taken_over: u64,
    /// Reads that accelerated processes served themselves.
    pub reads: u64,
    /// Writes that accelerated processes served themselves.
    pub writes: u64,
    /// Bytes of these reads.
    pub bytes_read: u64,
    /// Bytes of these writes.
    pub bytes_written: u64,
    /// Invalidations of the kernel's caches that accelerated writes needed.
    pub invalidations: u64,
    /// Calls of accelerated processes on our files that went through the kernel.
    pub passed: u64,
    /// Files that accelerated processes made themselves.
    #[serde(default)]
    pub files_made: u64,
    /// Calls of programs run with `--every-call`, and how many of them the kernel had to send by a signal.
    #[serde(default)]
    pub calls: u64,
    /// See `calls`.
    #[serde(default)]
    pub caught: u64,
}

/// A process that maps a segment.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Process {
    /// Its number.
    pub id: u32,
    /// Its program.
    pub name: String,
    /// "accelerated", or why not.
    pub state: String,
    /// Places of its code that go through us.
    pub sites_patched: u32,
    /// Places that make system calls and could not be changed.
    pub sites_left: u32,
}

/// The daemon's mapping of a segment.
#[derive(Debug)]
pub struct Segment {
    head: *mut Head,
    bytes: usize,
    memory: OwnedFd,
}

// SAFETY: all that threads share in the mapping is atomic or guarded by a record's lock.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

/// Of the calling thread, which is asked for it once: locks are taken for every operation, and a call each would cost more than they do.
fn thread_id() -> u32 {
    thread_local! {
        static OWN: u32 = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    }
    OWN.with(|own| *own)
}

impl Segment {
    /// Makes a segment for up to `records_max` files with up to `bytes_max` bytes together. Memory is taken as
    /// blocks are used.
    pub fn create(records_max: u64, bytes_max: u64) -> std::io::Result<Segment> {
        Segment::make(records_max, bytes_max, false)
    }

    /// The same, with room for names: see [`Segment::names`].
    pub fn create_with_names(records_max: u64, bytes_max: u64) -> std::io::Result<Segment> {
        let segment = Segment::make(records_max, bytes_max, true)?;
        names::begin(&segment)?;
        Ok(segment)
    }

    fn make(records_max: u64, bytes_max: u64, named: bool) -> std::io::Result<Segment> {
        let blocks_max = (bytes_max / BLOCK_BYTES).min(u64::from(u32::MAX) - 1);
        // SAFETY: pure arithmetic.
        let bytes = unsafe { segment_bytes(records_max, blocks_max, i32::from(named)) };
        // SAFETY: a new descriptor, checked below, that nobody else owns.
        let raw = unsafe {
            libc::memfd_create(c"weir-userfs".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)
        };
        if raw < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: just made, and owned by nothing else.
        let memory = File::from(unsafe { OwnedFd::from_raw_fd(raw) });
        memory.set_len(bytes)?;
        // A segment that shrank under a process would kill it.
        // SAFETY: plain flags on our own descriptor.
        if unsafe {
            libc::fcntl(memory.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW)
        } < 0
        {
            return Err(std::io::Error::last_os_error());
        }
        let head = join::map(&memory, bytes as usize)?;
        // SAFETY: the mapping is as long as segment_bytes says, and zero.
        unsafe { segment_format(head, records_max, blocks_max, i32::from(named)) };
        Ok(Segment { head, bytes: bytes as usize, memory: memory.into() })
    }

    fn head(&self) -> &Head {
        // SAFETY: mapped as long as `self`; foreign processes change only atomics of it by their program, and what
        // they might damage is plain numbers.
        unsafe { &*self.head }
    }

    /// Processes that map it and live.
    pub fn processes(&self) -> Vec<Process> {
        let of = |counter: &AtomicU32| counter.load(Ordering::Relaxed);
        let shown = |raw: &RawProcess| {
            let id = of(&raw.id);
            let alive = id != 0 && std::path::Path::new(&format!("/proc/{id}")).exists();
            let name: Vec<u8> = raw.name.iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
            alive.then(|| Process {
                id,
                name: String::from_utf8_lossy(name.split(|byte| *byte == 0).next().unwrap_or_default())
                    .into_owned(),
                state: match raw.state.load(Ordering::Relaxed) {
                    1 => "accelerated",
                    2 => "through the kernel: it makes system calls in ways that could not be seen",
                    3 => "through the kernel: it put itself under seccomp",
                    4 => "through the kernel: it has a limit of file size (RLIMIT_FSIZE)",
                    5 => "through the kernel: it uses io_uring",
                    _ => "through the kernel",
                }
                .to_owned(),
                sites_patched: of(&raw.sites_patched),
                sites_left: of(&raw.sites_left),
            })
        };
        self.head().processes.iter().filter_map(shown).collect()
    }

    /// Bytes of the mapping.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// The memory, for processes that join in.
    pub fn memory(&self) -> &OwnedFd {
        &self.memory
    }

    /// How many files there may be.
    pub fn records_max(&self) -> u64 {
        self.head().records_max
    }

    /// Figures for status.
    pub fn figures(&self) -> SegmentFigures {
        let head = self.head();
        assert_eq!(head.magic.load(Ordering::Relaxed), MAGIC, "the segment was formatted by us");
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let all = |gone: &AtomicU64, own: fn(&RawProcess) -> &AtomicU64| {
            head.processes.iter().fold(of(gone), |sum, process| sum.wrapping_add(of(own(process))))
        };
        SegmentFigures {
            blocks_used: of(&head.blocks_used),
            blocks_max: head.blocks_max,
            locks_taken_over: of(&head.locks_taken_over),
            reads: all(&head.reads, |process| &process.reads),
            writes: all(&head.writes, |process| &process.writes),
            bytes_read: all(&head.bytes_read, |process| &process.bytes_read),
            bytes_written: all(&head.bytes_written, |process| &process.bytes_written),
            invalidations: of(&head.invalidations),
            calls: of(&head.calls),
            caught: of(&head.caught),
            passed: of(&head.passed),
            files_made: self.files_made(),
        }
    }

    fn raw(&self, number: u64) -> &RawRecord {
        assert!(number < self.records_max(), "record {number} is inside the segment");
        // SAFETY: inside the table by the assertion; all fields are atomics.
        unsafe { &*self.head.cast::<u8>().add(HEAD_BYTES).cast::<RawRecord>().add(number as usize) }
    }

    /// What accelerated processes read without the lock; nothing when it changed meanwhile.
    #[cfg(test)]
    fn peek(&self, number: u64, offset: u64, to: &mut [u8]) -> Option<usize> {
        let caller = Caller { segment: self.head, thread: 1, copy, waited, ready };
        // SAFETY: the record lies in the mapping, and `to` is as long as we say.
        let got = unsafe {
            segment_peek(&raw const caller, self.raw(number), offset, to.as_mut_ptr(), to.len() as u64)
        };
        usize::try_from(got).ok()
    }

    /// Bytes of a file, as whoever looks now finds it; nothing where there is none.
    pub fn size(&self, number: u64) -> Option<u64> {
        let raw = (number < self.records_max()).then(|| self.raw(number))?;
        let live = raw.live.load(Ordering::Acquire) != 0;
        live.then(|| raw.size.load(Ordering::Acquire))
    }

    /// Locks record `number`. A holder that died loses its lock to us.
    ///
    /// # Errors
    /// EDEADLK when this thread already holds it.
    pub fn record(&self, number: u64) -> Result<Record<'_>> {
        let caller = Caller { segment: self.head, thread: thread_id(), copy, waited, ready };
        let raw = self.raw(number);
        // SAFETY: `raw` lies in the mapping, and `caller` outlives the call.
        match unsafe { segment_lock(&raw const caller, raw) } {
            0 => Ok(Record { caller, raw, _segment: std::marker::PhantomData }),
            error => Err(Errno(-error)),
        }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: made by `create` with this length, and no borrow outlives `self`.
        unsafe { libc::munmap(self.head.cast(), self.bytes) };
    }
}

/// A locked record; dropping it unlocks.
pub struct Record<'a> {
    caller: Caller,
    raw: &'a RawRecord,
    _segment: std::marker::PhantomData<&'a Segment>,
}

fn done(result: i64) -> Result<usize> {
    usize::try_from(result).map_err(|_| Errno((-result) as i32))
}

impl Record<'_> {
    /// Begins a file: empty, unknown to the kernel.
    pub fn begin(&mut self, now: SystemTime) {
        self.raw.size.store(0, Ordering::Relaxed);
        self.raw.left_to_kernel.store(0, Ordering::Relaxed);
        self.raw.locked.store(0, Ordering::Relaxed);
        self.touch(now);
        self.raw.live.store(1, Ordering::Release);
    }

    /// Begins a file of `size` bytes of which none is here yet. What is here is the file's; nothing is ever changed.
    pub fn begin_partial(&mut self, size: u64) {
        self.raw.size.store(size, Ordering::Relaxed);
        self.raw.partial.store(1, Ordering::Relaxed);
        self.raw.live.store(1, Ordering::Release);
    }

    /// Gives the blocks of a partial file back: nothing of it is here any more.
    pub fn drop_contents(&mut self) {
        // SAFETY: we hold the lock.
        unsafe { segment_drop(&raw const self.caller, self.raw) };
    }

    /// Whether it was begun and has not ended.
    pub fn is_live(&self) -> bool {
        self.raw.live.load(Ordering::Acquire) != 0
    }

    /// Ends a file and gives its blocks back.
    pub fn end(&mut self) {
        self.raw.live.store(0, Ordering::Release);
        // SAFETY: we hold the lock.
        let emptied = unsafe { segment_resize(&raw const self.caller, self.raw, 0) };
        assert_eq!(emptied, 0, "shrinking to nothing needs nothing");
    }

    /// Bytes of the file.
    pub fn size(&self) -> u64 {
        self.raw.size.load(Ordering::Acquire)
    }

    /// Blocks of 4 KiB that it holds.
    pub fn blocks(&self) -> u64 {
        self.raw.blocks.load(Ordering::Relaxed)
    }

    /// When its contents were changed last.
    pub fn modified(&self) -> SystemTime {
        moment(self.raw.modified_ns.load(Ordering::Acquire))
    }

    /// Sets when its contents were changed last.
    pub fn touch(&mut self, at: SystemTime) {
        self.raw.modified_ns.store(nanoseconds(at), Ordering::Release);
    }

    /// From now on accelerated processes neither read, change nor open the file by themselves, also where they have it open.
    pub fn leave_to_kernel(&mut self) {
        self.raw.left_to_kernel.store(1, Ordering::Release);
    }

    /// Says that the kernel is about to learn attributes. Call it before reading them.
    pub fn tell_attributes(&mut self) {
        self.raw.told.fetch_add(1, Ordering::SeqCst);
    }

    /// Says that the kernel is about to learn data. Call it before reading them.
    pub fn tell_data(&mut self) {
        self.raw.fills.fetch_add(1, Ordering::SeqCst);
    }

    /// Reads from `offset` on; less than asked for at the end of the file.
    pub fn read(&mut self, offset: u64, to: &mut [u8]) -> Result<usize> {
        // SAFETY: we hold the lock, and `to` is as long as we say.
        done(unsafe {
            segment_read(&raw const self.caller, self.raw, offset, to.as_mut_ptr(), to.len() as u64)
        })
    }

    /// Writes at `offset`; less than asked for when space runs out.
    pub fn write(&mut self, offset: u64, from: &[u8], now: SystemTime) -> Result<usize> {
        // SAFETY: we hold the lock, and `from` is as long as we say.
        done(unsafe {
            segment_write(
                &raw const self.caller,
                self.raw,
                offset,
                from.as_ptr(),
                from.len() as u64,
                nanoseconds(now),
            )
        })
    }

    /// Makes the file `size` bytes long.
    pub fn resize(&mut self, size: u64) -> Result<()> {
        // SAFETY: we hold the lock.
        done(unsafe { segment_resize(&raw const self.caller, self.raw, size) }).map(drop)
    }

    /// Makes a hole; the size stays.
    pub fn punch(&mut self, offset: u64, bytes: u64) -> Result<()> {
        // SAFETY: we hold the lock.
        done(unsafe { segment_punch(&raw const self.caller, self.raw, offset, bytes) }).map(drop)
    }

    /// The first offset from `offset` on that is data, or a hole; the size if there is none.
    pub fn seek(&mut self, offset: u64, hole: bool) -> u64 {
        // SAFETY: we hold the lock.
        unsafe { segment_seek(&raw const self.caller, self.raw, offset, i32::from(hole)) }
    }
}

impl Drop for Record<'_> {
    fn drop(&mut self) {
        // SAFETY: locked by us.
        unsafe { segment_unlock(self.raw) };
    }
}

/// Since 1970, as words of the segment have it: what is before that is a negative number of 64 bits.
pub(crate) fn nanoseconds(time: SystemTime) -> u64 {
    let capped = |length: Duration| i64::try_from(length.as_nanos()).unwrap_or(i64::MAX);
    let signed = match time.duration_since(UNIX_EPOCH) {
        Ok(since) => capped(since),
        Err(before) => -capped(before.duration()),
    };
    signed.cast_unsigned()
}

/// The moment of such a word.
pub(crate) fn moment(ns: u64) -> SystemTime {
    let signed = ns.cast_signed();
    let length = Duration::from_nanos(signed.unsigned_abs());
    let time = if signed < 0 { UNIX_EPOCH.checked_sub(length) } else { UNIX_EPOCH.checked_add(length) };
    time.unwrap_or(UNIX_EPOCH)
}
