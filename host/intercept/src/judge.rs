//! Which programs are left alone, and why.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

const SET_IDS: u32 = 0o6000;
const ELF_X86_64: u16 = 62;

fn status<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| Some(line.strip_prefix(key)?.trim()))
}

/// Why the thread must not be touched while it is about to begin a program.
pub(crate) fn thread(thread: i32, process: i32) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let is = |key: &str| status(&text, key);
    if is("Tgid:")? != process.to_string() {
        return Some("it asks for a thread of another process".to_owned());
    }
    match is("TracerPid:")? {
        "0" => {}
        tracer => return Some(format!("process {tracer} traces it")),
    }
    (is("Seccomp:")? != "0").then(|| "a seccomp filter is on it".to_owned())
}

/// Why the program that a process has begun must not be touched.
pub(crate) fn program(process: i32) -> Option<String> {
    let path = format!("/proc/{process}/exe");
    let Ok(mut file) = File::open(&path) else { return Some("its file cannot be read".to_owned()) };
    let metadata = file.metadata().ok()?;
    if metadata.permissions().mode() & SET_IDS != 0 {
        return Some("it is set-user-id or set-group-id".to_owned());
    }
    let mut value = [0; 64];
    if rustix::fs::fgetxattr(&file, "security.capability", &mut value).is_ok() {
        return Some("its file has capabilities".to_owned());
    }
    let mut head = [0; 20];
    let elf = file.read_exact(&mut head).is_ok() && head[..5] == *b"\x7fELF\x02";
    if !elf || u16::from_le_bytes([head[18], head[19]]) != ELF_X86_64 {
        return Some("it is no program for x86-64".to_owned());
    }
    let own = std::fs::metadata(format!("/proc/{process}")).ok()?;
    let ours = rustix::process::geteuid();
    (!ours.is_root() && own.uid() != ours.as_raw()).then(|| "it belongs to another user".to_owned())
}
