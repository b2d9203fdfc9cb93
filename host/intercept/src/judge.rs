//! Which programs are left alone, and why.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};

const SET_IDS: u32 = 0o6000;
const ELF_X86_64: u16 = 62;
/// As much as it is nearly always.
const STATUS_BYTES: usize = 8192;

fn status<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| Some(line.strip_prefix(key)?.trim()))
}

/// What `/proc` says of the thread. In one piece: each more is another question to the kernel, and programs wait for it.
fn status_of(thread: i32) -> Option<String> {
    let mut text = String::with_capacity(STATUS_BYTES);
    File::open(format!("/proc/{thread}/status")).ok()?.read_to_string(&mut text).ok()?;
    Some(text)
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

/// Why calls of the thread cannot be changed. Asked while the thread makes its exec: that takes longer.
pub(crate) fn filtered(thread: i32) -> Option<String> {
    let text = status_of(thread)?;
    (status(&text, "Seccomp:")? != "0").then(|| "a seccomp filter is on it".to_owned())
}

/// Why the program that a process has begun must not be touched.
pub(crate) fn program(process: i32) -> Option<String> {
    let path = format!("/proc/{process}/exe");
    let Ok(program) = File::open(&path) else { return Some("its file cannot be read".to_owned()) };
    if let Some(reason) = file(&program) {
        return Some(reason);
    }
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
