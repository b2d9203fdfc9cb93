//! Where the system calls of programs and libraries are, so that a process need not look for them at exec.
//!
//! A process that meets a file of which nothing is known looks by itself (`blob/patch.c`) and shows the file to the injector
//! (`blob/places.c`), which reads it once; the blobs of later processes bring what it found. What is kept are places
//! of the two bytes of a `syscall`, of a part of a file with a device, inode number, size, and times of change: the process
//! still judges each place by the bytes that it has in memory, exactly as if it had found it itself.
//!
//! Invariants
//! - Only bytes that the injector read itself are believed: no process can hide calls of another.
//! - A file that was changed within the last moments is not kept: its times may stay the same over one more change.
#![allow(unsafe_code)]

use crate::error::Error;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// Bytes that a blob brings at most; what was found first goes first.
const KNOWN_BYTES_MAX: usize = 64 * 1024;
/// Bytes of the largest part that is read.
const PART_BYTES_MAX: u64 = 256 << 20;
/// How long a file must have been as it is.
const SETTLED_NS: i128 = 2_000_000_000;
const PAGE_BYTES: u64 = 4096;
/// Words of `struct places` before its list.
const HEAD_WORDS: usize = 8;

unsafe extern "C" {
    fn weir_next_call(code: *const u8, from: u64, bytes: u64) -> u64;
}

/// Where `code` has the bytes of system calls.
pub(crate) fn calls(code: &[u8]) -> Vec<u32> {
    let bytes = code.len() as u64;
    let mut places = Vec::new();
    let mut at = 0;
    loop {
        // SAFETY: reads inside `code` only, from `at` on.
        at = unsafe { weir_next_call(code.as_ptr(), at, bytes) };
        if at >= bytes {
            return places;
        }
        places.push(at as u32);
        at += 1;
    }
}

/// One part of a file, as in `struct places` of `blob/weir.h`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    head: [u64; HEAD_WORDS],
    places: Vec<u32>,
}

impl Part {
    fn bytes(&self) -> usize {
        HEAD_WORDS * 8 + self.places.len().next_multiple_of(2) * 4
    }

    fn write(&self, to: &mut Vec<u8>) {
        let padding = (!self.places.len().is_multiple_of(2)).then_some(0);
        to.extend(self.head.iter().flat_map(|word| word.to_le_bytes()));
        to.extend(self.places.iter().copied().chain(padding).flat_map(u32::to_le_bytes));
    }

    /// Whether `other` is the same part of the same file, perhaps of another time.
    fn replaces(&self, other: &Part) -> bool {
        let key = |part: &Part| (part.head[0], part.head[1], part.head[5], part.head[6]);
        key(self) == key(other)
    }
}

/// What is known of all files.
#[derive(Debug, Default)]
pub(crate) struct Places {
    of: Mutex<(Vec<Part>, Arc<Vec<u8>>)>,
}

fn identity(file: &File) -> Result<[u64; 5], Error> {
    let found = file.metadata().map_err(|error| Error::io("looking at a program's file", error))?;
    if !found.is_file() {
        return Err(Error::Refused("what it shows is no file of code".to_owned()));
    }
    let ns = |seconds: i64, nanoseconds: i64| {
        (seconds as u64).wrapping_mul(1_000_000_000).wrapping_add(nanoseconds as u64)
    };
    Ok([
        found.dev(),
        found.ino(),
        found.size(),
        ns(found.mtime(), found.mtime_nsec()),
        ns(found.ctime(), found.ctime_nsec()),
    ])
}

impl Places {
    /// Reads `bytes` of `file` from `offset` on, and keeps where calls are. False when it is not to be kept yet.
    ///
    /// # Errors
    /// When it cannot be read, or is no file of code.
    pub(crate) fn learn(&self, file: &File, offset: u64, bytes: u64) -> Result<bool, Error> {
        if bytes > PART_BYTES_MAX || !offset.is_multiple_of(PAGE_BYTES) || !bytes.is_multiple_of(PAGE_BYTES) {
            return Err(Error::Refused(
                "what it shows of a file is too large to be looked through".to_owned(),
            ));
        }
        let before = identity(file)?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        if i128::from(before[4] as i64) + SETTLED_NS > now.as_nanos() as i128 || offset >= before[2] {
            return Ok(false);
        }
        // Behind the end of the file a map has zeros, in which there are no calls.
        let mut code = vec![0; bytes.min(before[2] - offset) as usize];
        file.read_exact_at(&mut code, offset)
            .map_err(|error| Error::io("reading a program's file", error))?;
        if identity(file)? != before {
            return Ok(false);
        }
        let [device, inode, size, modified, changed] = before;
        let places = calls(&code);
        let head = [device, inode, size, modified, changed, offset, bytes, places.len() as u64];
        self.keep(Part { head, places });
        Ok(true)
    }

    fn keep(&self, part: Part) {
        if part.bytes() > KNOWN_BYTES_MAX {
            return;
        }
        let mut known = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        let (parts, written) = &mut *known;
        parts.retain(|old| !part.replaces(old));
        parts.push(part);
        let total = |parts: &[Part]| parts.iter().map(Part::bytes).sum::<usize>();
        while total(parts) > KNOWN_BYTES_MAX {
            parts.remove(0);
        }
        let mut all = Vec::with_capacity(total(parts));
        parts.iter().for_each(|part| part.write(&mut all));
        *written = Arc::new(all);
    }

    /// All of it, as blobs read it.
    pub(crate) fn written(&self) -> Arc<Vec<u8>> {
        self.of.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    /// Parts of files that are known.
    pub(crate) fn len(&self) -> usize {
        self.of.lock().unwrap_or_else(PoisonError::into_inner).0.len()
    }
}
