//! Processes that reach files of a mount without the kernel: the injector with our client (`segment/client.c`).
//!
//! A process takes the segment and the FUSE connection from their holder by `pidfd_getfd`, which the kernel grants to
//! those who could trace it: processes of the mount's owner, and root. Others stay with the kernel's way. The holder is the daemon, or, where
//! there is one, its keeper: then nothing of this is lost when the daemon dies, and processes go on; what they ask the kernel waits for
//! the daemon's successor.

use crate::mount::Mount;
use crate::segment::Process;
use rustix::fs::{SeekFrom, fstat, seek};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_intercept::{Blob, Error, Injector};

/// What is put into programs.
pub(crate) const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/files.blob"));

/// What `weir fs status` says about acceleration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Acceleration {
    /// Where programs ask; nothing when it is not possible.
    pub injector: Option<String>,
    /// Why it is not possible.
    pub why_not: Option<String>,
    /// Programs that began accelerated.
    pub injected: u64,
    /// Programs that asked and were left alone, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Parts of program files and libraries whose system calls need not be looked for again.
    #[serde(default)]
    pub known: u64,
    /// Parts that programs showed because nothing was known of them.
    #[serde(default)]
    pub shown: u64,
    /// Opens whose data the kernel reads and writes by itself, for all programs; nothing where it does not.
    #[serde(default)]
    pub by_kernel: Option<u64>,
    /// Opens that the kernel would not take, and that the daemon serves.
    #[serde(default)]
    pub not_by_kernel: u64,
    /// Processes that use the segment now.
    pub processes: Vec<Process>,
}

/// Longest path of a mount under which programs open files by themselves; `POINT_BYTES_MAX` of `segment/process.h` and a zero.
const POINT_BYTES_MAX: usize = 1023;

/// Where programs find the memory and the connection: descriptors of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The process.
    pub process: u32,
    /// Its descriptor of the connection to the kernel.
    pub kernel: i32,
    /// Its descriptor of the segment, if there is one.
    pub segment: Option<i32>,
}

impl Holder {
    /// This process.
    pub fn own(mount: &Mount) -> Holder {
        Holder {
            process: std::process::id(),
            kernel: mount.kernel().map_or(-1, AsRawFd::as_raw_fd),
            segment: mount.backend().segment().map(|segment| segment.memory().as_raw_fd()),
        }
    }
}

/// `struct mount` of `segment/process.h`.
fn client(mount: &Mount, segment: &crate::segment::Segment, holder: Holder) -> Vec<u8> {
    let numbers = [holder.process as i32, holder.segment.unwrap_or(-1), holder.kernel];
    let wide = [mount.device(), segment.bytes()];
    let point = mount.point().as_os_str().as_bytes();
    let point = if point.len() <= POINT_BYTES_MAX { point } else { &[] };
    let padding = std::iter::repeat_n(0, POINT_BYTES_MAX + 1 - point.len());
    wide.iter()
        .flat_map(|word| word.to_le_bytes())
        .chain(numbers.iter().flat_map(|word| word.to_le_bytes()))
        .chain((point.len() as u32).to_le_bytes())
        .chain(point.iter().copied())
        .chain(padding)
        .chain(u64::from(mount.is_read_only()).to_le_bytes())
        .collect()
}

/// Bytes of `struct cursor` of `segment/process.h`.
const CURSOR_BYTES: usize = 16;

/// A program became one that is left alone: its positions, which it had in memory, are said to the kernel, for a process that stands still.
/// A descriptor that was closed then, or is another file's now, needs nothing.
fn settle(process: i32, cursors: &[u8], device: u64) {
    let Some(process) = rustix::process::Pid::from_raw(process) else { return };
    let Ok(process) = pidfd_open(process, PidfdFlags::empty()) else { return };
    for (descriptor, cursor) in cursors.chunks_exact(CURSOR_BYTES).enumerate() {
        let half = |at: usize| u32::from_le_bytes(cursor[at..at + 4].try_into().unwrap_or_default());
        let position = u64::from(half(0)) | u64::from(half(4)) << 32;
        let (private, known, stands_in) = (cursor[12], cursor[13], cursor[15]);
        if private == 0 || known == 0 || stands_in != 0 {
            continue;
        }
        let Ok(file) = pidfd_getfd(&process, descriptor as i32, PidfdGetfdFlags::empty()) else { continue };
        let is_its = fstat(&file).is_ok_and(|is| is.st_dev == device && is.st_ino == u64::from(half(8)));
        if is_its && let Err(error) = seek(&file, SeekFrom::Start(position)) {
            tracing::warn!(
                "descriptor {descriptor} of a program that is left alone has lost its position: {error}"
            );
        }
    }
}

/// A name for the injector of `mount`, which nobody can take before.
pub fn name(mount: &Mount) -> String {
    // Numbers of devices come again, while threads of an injector that ended may still have its socket.
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut secret = [0; 8];
    // Without it the name is only easier to guess.
    let _ = std::fs::File::open("/dev/urandom").and_then(|mut from| from.read_exact(&mut secret));
    let secret = u64::from_le_bytes(secret);
    format!("weir-fs-{}-{}-{number}-{secret:016x}", std::process::id(), mount.device())
}

/// Starts the injector of `mount`, or says why there is none.
///
/// # Errors
/// When the machine cannot intercept, or the backend has no segment.
pub fn start(mount: &Mount) -> Result<Injector, Error> {
    start_as(mount, &name(mount), Holder::own(mount))
}

/// The same, by this name, for programs that go to `holder`.
///
/// # Errors
/// As [`start`].
pub fn start_as(mount: &Mount, name: &str, holder: Holder) -> Result<Injector, Error> {
    let Some(segment) = mount.backend().segment() else {
        return Err(Error::Refused("this backend is served through the kernel only".to_owned()));
    };
    let blob = Blob::new(LIBRARY)?;
    let device = mount.device();
    let settle = Box::new(move |process, stash: &[u8]| settle(process, stash, device));
    Injector::start_with(blob, name, &client(mount, segment, holder), settle)
}

/// What it does.
pub fn describe(mount: &Mount, injector: Result<&Injector, &Error>) -> Acceleration {
    let processes = mount.backend().segment().map(|segment| segment.processes()).unwrap_or_default();
    let kernel = mount.by_kernel();
    let (by_kernel, not_by_kernel) = (kernel.map(|counts| counts.0), kernel.map_or(0, |counts| counts.1));
    match injector {
        Ok(injector) => {
            let figures = injector.figures();
            Acceleration {
                known: figures.known,
                shown: figures.shown,
                by_kernel,
                not_by_kernel,
                injector: Some(injector.name().to_owned()),
                why_not: None,
                injected: figures.injected,
                refused: figures.refused,
                processes,
            }
        }
        Err(error) => Acceleration {
            why_not: Some(error.to_string()),
            by_kernel,
            not_by_kernel,
            ..Acceleration::default()
        },
    }
}
