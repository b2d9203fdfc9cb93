//! Which programs are left alone, and why.
#![allow(unsafe_code)]

use crate::error::Error;
use crate::images::{identity_of, is_settled};
use crate::trace::Tracee;
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};

const SET_IDS: u32 = 0o6000;
const ELF_X86_64: u16 = 62;
/// As much as it is nearly always.
const STATUS_BYTES: usize = 8192;
/// Programs that are known at most.
const JUDGED_MAX: usize = 4096;

fn status<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| Some(line.strip_prefix(key)?.trim()))
}

/// What `/proc` says of the thread. In one piece: each more is another question to the kernel, and programs wait for it.
fn status_of(thread: i32) -> Option<String> {
    let mut text = String::with_capacity(STATUS_BYTES);
    File::open(format!("/proc/{thread}/status")).ok()?.read_to_string(&mut text).ok()?;
    Some(text)
}

/// Whether the other end may ask here, or be asked: only root and our own user take descriptors of ours, so all others would only keep threads from them.
pub(crate) fn is_ours(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid().as_raw();
    credentials(stream).is_ok_and(|peer| peer.uid == own || peer.uid == 0)
}

/// The process at the other end, by its number here; nothing where it has none.
pub(crate) fn peer(stream: &UnixStream) -> Result<Option<i32>, Error> {
    credentials(stream).map(|peer| (peer.pid > 0).then_some(peer.pid))
}

fn credentials(stream: &UnixStream) -> Result<libc::ucred, Error> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut bytes = size_of_val(&peer) as libc::socklen_t;
    // SAFETY: writes at most as many bytes as are said, into what is ours.
    let asked = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut bytes,
        )
    };
    if asked < 0 { Err(Error::last("asking who it is")) } else { Ok(peer) }
}

/// Whether the process sees other numbers of processes than this one.
pub(crate) fn is_elsewhere(process: i32) -> bool {
    let space = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/pid")).ok();
    space(&process.to_string()).is_some_and(|its| space("self").is_some_and(|own| own != its))
}

/// Whether the thread is one of the process.
pub(crate) fn is_of(thread: i32, process: i32) -> bool {
    // SAFETY: signal 0 is none: only whether there is such a thread is asked.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread, 0) == 0 }
}

/// Why the thread cannot be traced, when it is another's already.
pub(crate) fn traced(thread: i32) -> Option<String> {
    let text = status_of(thread)?;
    let tracer = status(&text, "TracerPid:")?;
    (tracer != "0").then(|| format!("process {tracer} traces it"))
}

/// Why calls of the thread, which stands still, cannot be changed.
pub(crate) fn filtered(tracee: &Tracee) -> Option<String> {
    if tracee.has_filter().is_some_and(|has| !has) {
        return None;
    }
    let thread = tracee.thread;
    let text = status_of(thread)?;
    (status(&text, "Seccomp:")? != "0").then(|| "a seccomp filter is on it".to_owned())
}

/// What a file is, and its permissions.
type Key = ([u64; 5], u32);

/// Programs whose files were judged: a file whose capabilities or permissions are changed has another time.
#[derive(Default)]
pub(crate) struct Judged {
    of: Mutex<HashMap<Key, Option<String>>>,
}

impl Judged {
    /// What the program is that a process has begun, as in `struct part` of `blob/weir.h`; or why it must not be touched.
    pub(crate) fn program(&self, process: i32) -> Result<[u64; 5], String> {
        let path = format!("/proc/{process}/exe");
        let unreadable = || "its file cannot be read".to_owned();
        let metadata = std::fs::metadata(&path).map_err(|_| unreadable())?;
        let key = (identity_of(&metadata), metadata.mode());
        let known = self.of.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        let reason = match known {
            Some(reason) => reason,
            None => {
                let program = File::open(&path).map_err(|_| unreadable())?;
                let reason = file(&program);
                let is_same = program.metadata().is_ok_and(|is| (identity_of(&is), is.mode()) == key);
                if is_same && is_settled(key.0[4]) {
                    self.keep(key, reason.clone());
                }
                reason
            }
        };
        match reason.or_else(|| of_another(process)) {
            Some(reason) => Err(reason),
            None => Ok(key.0),
        }
    }

    fn keep(&self, key: Key, reason: Option<String>) {
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that are used are soon there again.
        if of.len() >= JUDGED_MAX {
            of.clear();
        }
        of.insert(key, reason);
    }
}

/// Why the process is not ours to touch.
fn of_another(process: i32) -> Option<String> {
    let ours = rustix::process::geteuid();
    if ours.is_root() {
        return None;
    }
    let own = std::fs::metadata(format!("/proc/{process}")).ok()?;
    (own.uid() != ours.as_raw()).then(|| "it belongs to another user".to_owned())
}

/// Why a program of this file must not be touched.
pub(crate) fn file(file: &File) -> Option<String> {
    let metadata = file.metadata().ok()?;
    if metadata.permissions().mode() & SET_IDS != 0 {
        return Some("it is set-user-id or set-group-id".to_owned());
    }
    let mut value = [0; 64];
    if rustix::fs::fgetxattr(file, "security.capability", &mut value).is_ok() {
        return Some("its file has capabilities".to_owned());
    }
    let mut head = [0; 20];
    let elf = file.read_exact_at(&mut head, 0).is_ok() && head[..5] == *b"\x7fELF\x02";
    if !elf || u16::from_le_bytes([head[18], head[19]]) != ELF_X86_64 {
        return Some("it is no program for x86-64".to_owned());
    }
    None
}
