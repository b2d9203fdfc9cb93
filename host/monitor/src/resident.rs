//! Memory that is there: what the loop touches is neither made at the first touch nor paged out, however short memory is.
//!
//! `mlockall(MCL_FUTURE)` alone would do that by making all memory of the process at once: also what an allocator only
//! reserves (mimalloc: a gigabyte), the stacks of other threads, and a guest's memory that is mapped for its tasks. So memory is locked as
//! it is touched (`MCL_ONFAULT`), and what the loop works with is made present before:
//! - its arrays, when they are made ([`present`]);
//! - the program and its libraries, code and data ([`lock`]);
//! - its stack ([`present_stack`]);
//! - boxes that it is handed, by the thread that hands them over (`View::populate`).
//!
//! How many faults the loop still took is counted ([`Faults`]) and shown.
#![allow(unsafe_code)]

use crate::error::{Error, Result};
use rustix::mm::{Advice, MlockAllFlags, madvise, mlock, mlockall};
use std::ops::Range;

const PAGE: usize = 4096;
/// So much of the loop's stack is there: its deepest calls need less than a quarter.
const STACK_BYTES: usize = 256 * 1024;

/// Makes all pages of a vector's capacity present, and its own. Where the kernel cannot (before Linux 5.14) each is made at
/// its first touch.
pub(crate) fn present<T>(mut vector: Vec<T>) -> Vec<T> {
    let bytes = vector.capacity() * size_of::<T>();
    if bytes > 0 {
        let start = vector.as_mut_ptr() as usize;
        let first = start & !(PAGE - 1);
        // SAFETY: the advice changes no content: it only makes pages that this process may write, and those of this range
        // belong to the vector or share a page with it.
        let _ = unsafe {
            madvise(first as *mut core::ffi::c_void, start + bytes - first, Advice::LinuxPopulateWrite)
        };
    }
    vector
}

/// Makes the calling thread's stack present, as deep as the loop may go.
pub(crate) fn present_stack() {
    let mut stack = [0_u8; STACK_BYTES];
    for at in (0..STACK_BYTES).step_by(PAGE) {
        // SAFETY: the index is inside the array; a volatile store is not left out.
        unsafe { (&raw mut stack[at]).write_volatile(1) };
    }
    std::hint::black_box(&stack);
}

/// Keeps what this process has touched, or will touch, from being paged out; and all of its program.
pub(crate) fn lock() -> Result<()> {
    let refused = |error: rustix::io::Errno| {
        Error::io("locking the monitor's memory (run it as root, or raise 'ulimit -l')", error)
    };
    let maps = std::fs::read_to_string("/proc/self/maps")
        .map_err(|error| Error::io("reading /proc/self/maps", error))?;
    for range in program(&maps) {
        // SAFETY: locking changes no content and no address; the kernel refuses what is not mapped.
        unsafe { mlock(range.start as *mut core::ffi::c_void, range.len()) }.map_err(refused)?;
    }
    let all = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE;
    match mlockall(all | MlockAllFlags::ONFAULT) {
        // Linux before 4.4.
        Err(rustix::io::Errno::INVAL) => mlockall(all).map_err(refused),
        other => other.map_err(refused),
    }
}

/// Readable parts of files of which a part is code: the program and its libraries.
fn program(maps: &str) -> Vec<Range<usize>> {
    // ADDRESS-ADDRESS FLAGS OFFSET DEVICE INODE PATH, where the path may hold spaces.
    let parts: Vec<(Range<usize>, &str, &str)> = maps.lines().filter_map(part).collect();
    let is_code = |path: &str| parts.iter().any(|(_, flags, other)| *other == path && flags.contains('x'));
    let readable = |(_, flags, path): &&(Range<usize>, &str, &str)| flags.starts_with('r') && is_code(path);
    parts.iter().filter(readable).map(|(range, ..)| range.clone()).collect()
}

fn part(line: &str) -> Option<(Range<usize>, &str, &str)> {
    let path = &line[line.find('/')?..];
    let mut fields = line.split(' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let address = |text: &str| usize::from_str_radix(text, 16).ok();
    Some((address(start)?..address(end)?, fields.next()?, path))
}

/// Page faults of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Those that took no reading from a disk.
    pub minor: u64,
    /// Those that did.
    pub major: u64,
}

impl Faults {
    /// Those of the calling thread up to now.
    pub fn of_thread() -> Faults {
        // SAFETY: an all-zero rusage is a valid value of that plain C structure.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: the structure lives for the call, which fills it.
        unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
        Faults { minor: usage.ru_minflt.cast_unsigned(), major: usage.ru_majflt.cast_unsigned() }
    }

    /// Those since an earlier time.
    pub fn since(self, before: Faults) -> Faults {
        Faults {
            minor: self.minor.saturating_sub(before.minor),
            major: self.major.saturating_sub(before.major),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_found_among_the_mappings() {
        let maps = "\
55d0-55e0 r--p 00000000 fe:00 1 /usr/bin/a program
55e0-55f0 r-xp 00010000 fe:00 1 /usr/bin/a program
55f0-5600 ---p 00020000 fe:00 1 /usr/bin/a program
5600-5610 rw-p 00030000 fe:00 1 /usr/bin/a program
5610-5700 rw-p 00000000 00:00 0 [heap]
7000-8000 rw-s 00000000 00:01 9 /memfd:box (deleted)
8000-9000 rw-p 00000000 00:00 0 \n";
        assert_eq!(program(maps), [0x55d0..0x55e0, 0x55e0..0x55f0, 0x5600..0x5610]);
        let own = program(&std::fs::read_to_string("/proc/self/maps").unwrap());
        let code = program as *const () as usize;
        assert!(own.iter().any(|range| range.contains(&code)));
    }

    #[test]
    fn what_is_present_costs_no_fault() {
        // So much that no allocator takes it from memory that was touched before.
        const BYTES: usize = 40 << 20;
        let mut untouched = vec![0_u8; BYTES];
        let mut there = present(vec![0_u8; BYTES]);
        let faults = |memory: &mut Vec<u8>| {
            let before = Faults::of_thread();
            memory.iter_mut().step_by(PAGE).for_each(|byte| *std::hint::black_box(byte) = 1);
            Faults::of_thread().since(before).minor
        };
        let (first, second) = (faults(&mut untouched), faults(&mut there));
        // A page now and then is moved meanwhile by the kernel.
        assert!(second * 4 < first, "{second} faults of what is there, {first} of what is not");
    }
}
