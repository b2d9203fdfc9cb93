//! The controls of a cgroup: freeze, thaw, kill, opened beforehand, so that they can be used when the host cannot open a
//! file any more.
//!
//! Version 2 has `cgroup.freeze` and `cgroup.kill`; a folder of version 1's freezer has `freezer.state` and no kill.
//!
//! A freeze that is to last as long as a repair is marked by an attribute of the file first, which names the process, and goes with the
//! thaw. A monitor that died in between leaves the mark, by which the next one finds what to thaw ([`thaw_left_behind`]).

use crate::error::{Error, Result};
use crate::kernel::proc::Proc;
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags, XattrFlags, fgetxattr, fremovexattr, fsetxattr, fstat, openat};
use std::ffi::CStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;
use weir_sensor::now_ns;

/// Longest wait for a cgroup to be frozen, ns. Each of its processes must run once for that: 1,500 that spin on two
/// processors need 10 to 15 ms, and 50 beside others that compute.
pub const FREEZE_NS_MAX: u64 = 50_000_000;
/// Longest path of a cgroup that is borrowed, and the zero after it, bytes.
pub const PATH_BYTES: usize = 1024;
/// The attribute that marks a cgroup's file while a repair holds it frozen.
const MARK: &CStr = c"trusted.weir.struck";
const MARK_BYTES: usize = 12;
/// Most cgroups that are looked at for the mark.
const FOLDERS_MAX: usize = 65_536;
/// Where cgroups of version 2 are mounted, tried in order.
const MOUNTS: [&str; 2] = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];

/// Where cgroups of version 2 are mounted here.
pub fn mount() -> Option<PathBuf> {
    MOUNTS.iter().map(Path::new).find(|mount| mount.join("cgroup.procs").exists()).map(Path::to_path_buf)
}

/// An open folder: where cgroups of version 2 are mounted.
pub fn open_mount() -> Option<OwnedFd> {
    openat(CWD, mount()?, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// The numbers of a cgroup, by its path below the mount, and of those above it; without the root.
pub fn above(path: &Path) -> Vec<u64> {
    let Some(mount) = mount() else { return Vec::new() };
    let folders = path.ancestors().filter(|folder| !folder.as_os_str().is_empty());
    folders.filter_map(|folder| Some(std::fs::metadata(mount.join(folder)).ok()?.ino())).collect()
}

/// The folder that a policy's `cgroup` means.
pub fn folder(cgroup: &Path) -> PathBuf {
    if cgroup.is_absolute() { cgroup.to_path_buf() } else { mount().unwrap_or_default().join(cgroup) }
}

/// A process, as a mark names it: its number, and when it started, ticks since the boot.
fn mark_of(proc: &Proc, process: u32) -> Option<[u8; MARK_BYTES]> {
    let stat = proc.stat(process).filter(|stat| stat.state != b'Z')?;
    let mut mark = [0; MARK_BYTES];
    mark[..4].copy_from_slice(&process.to_le_bytes());
    mark[4..].copy_from_slice(&stat.start_ticks.to_le_bytes());
    Some(mark)
}

/// This process's mark; of nobody, when `/proc` does not tell. Read once, before anything is frozen.
fn own_mark() -> &'static [u8; MARK_BYTES] {
    static OWN: OnceLock<[u8; MARK_BYTES]> = OnceLock::new();
    OWN.get_or_init(|| {
        Proc::open().ok().and_then(|proc| mark_of(&proc, std::process::id())).unwrap_or_default()
    })
}

/// Thaws what a monitor that died during a repair left frozen: every cgroup of version 2 that has the mark. Returns which those are.
pub fn thaw_left_behind() -> Vec<PathBuf> {
    own_mark();
    let (mut thawed, mut folders, mut looked) = (Vec::new(), Vec::from_iter(mount()), 0);
    while let Some(folder) = folders.pop() {
        looked += 1;
        if Controls::open(&folder).is_ok_and(|controls| controls.thaw_if_left()) {
            thawed.push(folder.clone());
        }
        let below = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        let below = below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        folders
            .extend(below.map(|entry| entry.path()).take(FOLDERS_MAX.saturating_sub(looked + folders.len())));
    }
    thawed
}

/// The controls.
#[derive(Debug)]
pub struct Controls {
    /// The number of the cgroup, as the kernel's events give it.
    pub cgroup: u64,
    freeze: Option<OwnedFd>,
    events: Option<OwnedFd>,
    kill: Option<OwnedFd>,
    state: Option<OwnedFd>,
    processes: Option<OwnedFd>,
}

impl Controls {
    /// Opens what the folder has.
    ///
    /// # Errors
    /// [`Error::Io`] when there is no such cgroup.
    pub fn open(folder: &Path) -> Result<Controls> {
        let status = std::fs::metadata(folder)
            .map_err(|error| Error::io(format!("cgroup {} (make it first)", folder.display()), error))?;
        let open = |name: &str, flags: OFlags| {
            openat(CWD, folder.join(name), flags | OFlags::CLOEXEC, Mode::empty()).ok()
        };
        let controls = Controls {
            cgroup: status.ino(),
            freeze: open("cgroup.freeze", OFlags::WRONLY),
            events: open("cgroup.events", OFlags::RDONLY),
            kill: open("cgroup.kill", OFlags::WRONLY),
            state: open("freezer.state", OFlags::RDWR),
            processes: open("cgroup.procs", OFlags::RDONLY),
        };
        Ok(controls)
    }

    /// Opens those of a cgroup of version 2 by its path below the open folder `mount`; nothing for the root, which has none. It
    /// allocates nothing: for a cgroup that nobody named beforehand.
    pub fn borrow(mount: &OwnedFd, path: &[u8]) -> Option<Controls> {
        let mut name = [0_u8; PATH_BYTES];
        name.get_mut(..path.len())?.copy_from_slice(path);
        let path = CStr::from_bytes_until_nul(&name).ok().filter(|path| !path.is_empty())?;
        let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = openat(mount, path, folder, Mode::empty()).ok()?;
        let open =
            |name: &CStr, flags: OFlags| openat(&folder, name, flags | OFlags::CLOEXEC, Mode::empty()).ok();
        Some(Controls {
            cgroup: fstat(&folder).ok()?.st_ino,
            freeze: Some(open(c"cgroup.freeze", OFlags::WRONLY)?),
            events: open(c"cgroup.events", OFlags::RDONLY),
            kill: None,
            state: None,
            processes: None,
        })
    }

    /// Whether it can be frozen.
    pub fn can_freeze(&self) -> bool {
        self.freeze.is_some() || self.state.is_some()
    }

    /// Whether it can be killed whole.
    pub fn can_kill(&self) -> bool {
        self.kill.is_some()
    }

    /// Asks for a freeze that a thaw follows soon, and does not wait. From now on none of its processes runs in user mode or forks: those
    /// that run are interrupted, the others find it when they would run next. Returns whether the kernel took it.
    pub fn freeze_briefly(&self) -> bool {
        if let Some(file) = self.marked() {
            // A kernel without such attributes freezes all the same.
            let _ = fsetxattr(file, MARK, own_mark(), XattrFlags::empty());
        }
        self.ask_freeze()
    }

    /// The file that bears the mark.
    fn marked(&self) -> Option<&OwnedFd> {
        self.freeze.as_ref().or(self.state.as_ref())
    }

    /// Thaws it if a monitor that died during a repair left it frozen. Returns whether that was so.
    pub fn thaw_if_left(&self) -> bool {
        let mut mark = [0_u8; MARK_BYTES];
        if self.marked().is_none_or(|file| fgetxattr(file, MARK, &mut mark).is_err()) {
            return false;
        }
        let [a, b, c, d, ..] = mark;
        let lives = Proc::open().is_ok_and(|proc| {
            mark_of(&proc, u32::from_le_bytes([a, b, c, d])).is_some_and(|living| living == mark)
        });
        !lives && self.thaw()
    }

    fn ask_freeze(&self) -> bool {
        match (&self.freeze, &self.state) {
            (Some(file), _) => put(file, b"1"),
            (None, Some(file)) => put(file, b"FROZEN"),
            (None, None) => false,
        }
    }

    /// Freezes it, and waits until it is, or [`FREEZE_NS_MAX`] has passed. Returns whether it is.
    pub fn freeze(&self) -> bool {
        let asked = self.ask_freeze();
        let limit = now_ns().saturating_add(FREEZE_NS_MAX);
        if !asked {
            return false;
        }
        while !self.frozen() {
            if now_ns() > limit {
                return false;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        true
    }

    /// Whether it is frozen.
    pub fn frozen(&self) -> bool {
        let mut buffer = [0; 128];
        match (&self.events, &self.freeze, &self.state) {
            (Some(file), Some(_), _) => has_line(read(file, &mut buffer), b"frozen 1"),
            (_, None, Some(file)) => has_line(read(file, &mut buffer), b"FROZEN"),
            _ => false,
        }
    }

    /// Whether the cgroup that was opened is there still. One that was removed answers nothing any more, also when another of the same
    /// name was made since.
    pub fn is_there(&self) -> bool {
        let told = self.events.as_ref().or(self.state.as_ref()).or(self.processes.as_ref());
        told.is_none_or(|file| rustix::io::pread(file, &mut [0; 16][..], 0).is_ok())
    }

    /// Whether it has processes; `true` where that is not told.
    pub fn populated(&self) -> bool {
        let mut buffer = [0; 128];
        self.events.as_ref().is_none_or(|file| !has_line(read(file, &mut buffer), b"populated 0"))
    }

    /// Calls `each` for the processes of this cgroup itself, not of those below it.
    pub fn for_each_process(&self, mut each: impl FnMut(u32)) {
        let Some(file) = &self.processes else { return };
        let mut buffer = [0; 4096];
        let (mut offset, mut number) = (0, 0_u32);
        while let Ok(length @ 1..) = rustix::io::pread(file, &mut buffer[..], offset) {
            for byte in &buffer[..length] {
                match byte {
                    b'0'..=b'9' => number = number.wrapping_mul(10).wrapping_add(u32::from(byte - b'0')),
                    _ => each(std::mem::take(&mut number)),
                }
            }
            offset += length as u64;
        }
    }

    /// Thaws it.
    pub fn thaw(&self) -> bool {
        let thawed = match (&self.freeze, &self.state) {
            (Some(file), _) => put(file, b"0"),
            (None, Some(file)) => put(file, b"THAWED"),
            (None, None) => false,
        };
        if let Some(file) = self.marked().filter(|_| thawed) {
            let _ = fremovexattr(file, MARK);
        }
        thawed
    }

    /// Kills all of it.
    pub fn kill(&self) -> bool {
        self.kill.as_ref().is_some_and(|file| put(file, b"1"))
    }
}

fn put(file: &OwnedFd, text: &[u8]) -> bool {
    rustix::io::pwrite(file, text, 0).is_ok()
}

fn read<'a>(file: &OwnedFd, buffer: &'a mut [u8]) -> &'a [u8] {
    let length = rustix::io::pread(file, &mut *buffer, 0).unwrap_or(0);
    &buffer[..length]
}

fn has_line(text: &[u8], line: &[u8]) -> bool {
    text.split(|byte| *byte == b'\n').any(|other| other == line)
}
