//! Parts of programs and libraries with all their system calls changed, made once for all processes.
//!
//! A process that meets a part of a file of which nothing is known changes it in its own memory (`blob/patch.c`) and shows the file to
//! the injector (`blob/images.c`), which reads it once and makes an image: memory with the trampolines and the changed part, sealed. The
//! blobs of later processes bring a table of these, and map them in place of what the kernel or the loader mapped. So an exec searches and
//! writes nothing, and the kernel shares the pages.
//!
//! Invariants
//! - Only bytes that the injector read itself are believed: no process can hide calls of another, or give it code.
//! - A file that was changed within the last moments is not kept: its times may stay the same over one more change.
//! - The same lines (`weir_find_sites`, `weir_write_site`) change code here and in processes, so both find the same.
#![allow(unsafe_code)]

use crate::error::Error;
use crate::memory::Memory;
use std::collections::VecDeque;
use std::fs::{File, Metadata};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// System calls that are told apart, and bits of an entry of `weir_calls`.
pub(crate) const CALLS_MAX: usize = 512;

/// Parts that are known at most; what was found first goes first.
const PARTS_MAX: usize = 128;
/// Bytes of all images together, and so of the largest.
const IMAGES_BYTES_MAX: u64 = 256 << 20;
/// What the memory with the table is called where maps are shown.
const TABLE_NAME: &str = "weir:known";
/// How long a file must have been as it is.
const SETTLED_NS: i128 = 2_000_000_000;
const PAGE_BYTES: u64 = 4096;
/// `TRAMPOLINE_BYTES` of `blob/patch.c`.
const TRAMPOLINE_BYTES: usize = 56;
/// Most places that are changed in a part.
const SITES_MAX: usize = 65_536;
/// Pages that stay free between a library and its trampolines: the kernel puts pages of its own in front of the loader.
const FREE_PAGES: u64 = 16;
/// How far a jump reaches, with room to spare.
const REACH: u64 = 0x7000_0000;

/// `struct figures` of `blob/weir.h`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sites {
    patched: u64,
    pub(crate) left: u64,
    pub(crate) confusing: u64,
    unknown: u64,
    caught: u64,
}

unsafe extern "C" {
    fn weir_find_sites(
        code: *const u8,
        bytes: u64,
        classes: *const u8,
        unseen: *const u8,
        figures: *mut Sites,
        sites: *mut u32,
        max: u32,
    ) -> u32;
    fn weir_site_kind(syscall: *const u8, before: u64, behind: u64) -> u32;
    fn weir_write_site(syscall: *mut u8, kind: u32, before: u64, trampoline: *mut u8);
}

/// What is wanted of system calls, by their numbers: see `weir_calls` in `blob/weir.h`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) classes: [u8; CALLS_MAX],
    pub(crate) unseen: [u8; CALLS_MAX],
}

impl Wanted {
    /// Every call, of which none goes unseen.
    pub(crate) const EVERY: Wanted = Wanted { classes: [1; CALLS_MAX], unseen: [0; CALLS_MAX] };
}

/// The places of `code` that are wanted, and how many of what kind there are.
pub(crate) fn sites(code: &[u8], wanted: &Wanted) -> (Vec<u32>, Sites) {
    let (mut found, mut figures) = (vec![0; SITES_MAX], Sites::default());
    // SAFETY: reads inside `code`, and two tables of as many entries as there are calls; writes at most as many places as there is room for.
    let count = unsafe {
        weir_find_sites(
            code.as_ptr(),
            code.len() as u64,
            wanted.classes.as_ptr(),
            wanted.unseen.as_ptr(),
            &raw mut figures,
            found.as_mut_ptr(),
            SITES_MAX as u32,
        )
    };
    found.truncate(count as usize);
    figures.patched = u64::from(count);
    (found, figures)
}

/// Changed code, with its trampolines so far in front of it as they will be.
struct Changed {
    memory: Vec<u8>,
    trampolines_bytes: usize,
    distance: usize,
}

impl Changed {
    /// `code` is a part that begins at `offset` of its file: a library's earlier parts are in front of it in memory.
    fn new(code: &[u8], offset: u64, sites: &[u32]) -> Option<Changed> {
        let trampolines_bytes = (sites.len() * TRAMPOLINE_BYTES).next_multiple_of(PAGE_BYTES as usize);
        let distance = offset + FREE_PAGES * PAGE_BYTES + trampolines_bytes as u64;
        if distance + code.len() as u64 > REACH {
            return None;
        }
        let distance = distance as usize;
        let mut memory = vec![0; distance];
        memory.extend_from_slice(code);
        for (number, site) in sites.iter().enumerate() {
            let (before, behind) = (u64::from(*site), (code.len() - *site as usize) as u64);
            // SAFETY: the trampoline is in front of `distance`, with room for it; the site is behind, with as many bytes around it as
            // are said; both in one piece of memory.
            unsafe {
                let place = memory.as_mut_ptr().add(distance + *site as usize);
                let trampoline = memory.as_mut_ptr().add(number * TRAMPOLINE_BYTES);
                weir_write_site(place, weir_site_kind(place, before, behind), before, trampoline);
            }
        }
        Some(Changed { memory, trampolines_bytes, distance })
    }

    fn sealed(&self, name: &str) -> std::io::Result<Memory> {
        let (trampolines, code) = (&self.memory[..self.trampolines_bytes], &self.memory[self.distance..]);
        let before = trampolines.len() as u64;
        Memory::new(name, before + code.len() as u64, &[(0, trampolines), (before, code)])
    }
}

/// A part of a file, as in `struct image` of `blob/weir.h`.
struct Part {
    /// Device, inode, size, both times.
    identity: [u64; 5],
    offset: u64,
    bytes: u64,
    figures: Sites,
    /// Nothing where nothing is to be changed.
    image: Option<Image>,
}

struct Image {
    memory: Memory,
    trampolines_bytes: u64,
    distance: u64,
}

impl Part {
    fn write(&self, to: &mut Vec<u8>) {
        let image = self.image.as_ref();
        let wide = [
            self.offset,
            self.bytes,
            image.map_or(0, |image| image.memory.inode),
            image.map_or(0, |image| image.trampolines_bytes),
            image.map_or(0, |image| image.distance),
        ];
        let descriptor = image.map_or(-1, |image| image.memory.descriptor());
        let figures = self.figures;
        let half =
            [figures.patched, figures.left, figures.confusing, figures.unknown].map(|count| count as u32);
        to.extend(self.identity.iter().chain(&wide).flat_map(|word| word.to_le_bytes()));
        to.extend([std::process::id() as i32, descriptor].iter().flat_map(|word| word.to_le_bytes()));
        to.extend(half.iter().flat_map(|word| word.to_le_bytes()));
    }

    /// Whether `other` is the same part of the same file, perhaps of another time.
    fn replaces(&self, other: &Part) -> bool {
        let key = |part: &Part| (part.identity[0], part.identity[1], part.offset, part.bytes);
        key(self) == key(other)
    }

    fn memory_bytes(&self) -> u64 {
        self.image.as_ref().map_or(0, |image| image.trampolines_bytes + self.bytes)
    }
}

/// Tables of former times that are kept, as processes that begin may be about to take them.
const TABLES_MAX: usize = 4;

/// What is known of all files, and the same as blobs read it: the last of these.
#[derive(Default)]
struct Known {
    parts: Vec<Part>,
    tables: VecDeque<Arc<Memory>>,
}

/// What is known of all files.
#[derive(Default)]
pub(crate) struct Images {
    of: Mutex<Known>,
}

/// What a file is, as in `struct part` of `blob/weir.h`.
pub(crate) fn identity_of(found: &Metadata) -> [u64; 5] {
    let ns = |seconds: i64, nanoseconds: i64| {
        (seconds as u64).wrapping_mul(1_000_000_000).wrapping_add(nanoseconds as u64)
    };
    [
        found.dev(),
        found.ino(),
        found.size(),
        ns(found.mtime(), found.mtime_nsec()),
        ns(found.ctime(), found.ctime_nsec()),
    ]
}

/// Whether a file was changed at a time so long ago that another change must show.
pub(crate) fn is_settled(changed_ns: u64) -> bool {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i128::from(changed_ns as i64) + SETTLED_NS <= now.as_nanos() as i128
}

fn identity(file: &File) -> Result<[u64; 5], Error> {
    let found = file.metadata().map_err(|error| Error::io("looking at a program's file", error))?;
    if !found.is_file() {
        return Err(Error::Refused("what it shows is no file of code".to_owned()));
    }
    Ok(identity_of(&found))
}

/// What the memory is called where maps are shown.
fn name_of(file: &File) -> String {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap_or_default();
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    format!("weir:{}", name.chars().take(200).collect::<String>())
}

impl Images {
    /// Reads `bytes` of `file` from `offset` on, and makes its image. False when it is not to be kept yet.
    ///
    /// # Errors
    /// When it cannot be read, or is no file of code.
    pub(crate) fn learn(&self, file: &File, offset: u64, bytes: u64, wanted: &Wanted) -> Result<bool, Error> {
        if bytes > IMAGES_BYTES_MAX || !offset.is_multiple_of(PAGE_BYTES) || !bytes.is_multiple_of(PAGE_BYTES)
        {
            return Err(Error::Refused(
                "what it shows of a file is too large to be looked through".to_owned(),
            ));
        }
        let before = identity(file)?;
        if !is_settled(before[4]) || offset >= before[2] {
            return Ok(false);
        }
        // Behind the end of the file a map has zeros, in which there are no calls.
        let mut code = vec![0; bytes as usize];
        let there = bytes.min(before[2] - offset) as usize;
        file.read_exact_at(&mut code[..there], offset)
            .map_err(|error| Error::io("reading a program's file", error))?;
        if identity(file)? != before {
            return Ok(false);
        }
        let (sites, figures) = sites(&code, wanted);
        let image = match sites.is_empty() {
            true => None,
            false => {
                let Some(changed) = Changed::new(&code, offset, &sites) else { return Ok(false) };
                let failed = |error| Error::io("keeping changed code", error);
                let memory = changed.sealed(&name_of(file)).map_err(failed)?;
                let (trampolines_bytes, distance) =
                    (changed.trampolines_bytes as u64, changed.distance as u64);
                Some(Image { memory, trampolines_bytes, distance })
            }
        };
        self.keep(Part { identity: before, offset, bytes, figures, image });
        Ok(true)
    }

    fn keep(&self, part: Part) {
        let mut known = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        let Known { parts, tables } = &mut *known;
        parts.retain(|old| !part.replaces(old));
        parts.push(part);
        let total = |parts: &[Part]| parts.iter().map(Part::memory_bytes).sum::<u64>();
        while parts.len() > PARTS_MAX || total(parts) > IMAGES_BYTES_MAX {
            parts.remove(0);
        }
        let mut all = Vec::new();
        parts.iter().for_each(|part| part.write(&mut all));
        match Memory::new(TABLE_NAME, all.len() as u64, &[(0, &all)]) {
            Ok(table) => tables.push_back(Arc::new(table)),
            Err(error) => tracing::warn!("what is known of code cannot be told to programs: {error}"),
        }
        if tables.len() > TABLES_MAX {
            tables.pop_front();
        }
    }

    /// All of it, as blobs read it.
    pub(crate) fn table(&self) -> Option<Arc<Memory>> {
        self.of.lock().unwrap_or_else(PoisonError::into_inner).tables.back().cloned()
    }

    /// Parts of files that are known.
    pub(crate) fn len(&self) -> usize {
        self.of.lock().unwrap_or_else(PoisonError::into_inner).parts.len()
    }
}
