//! Mounts, daemons and shared memory, and whether they belong together.

use super::Finding;
use crate::control::{SOCKET, Status};
use crate::mount::SUBTYPE;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// How long a mount may take to say how large it is. One whose daemon hangs never does.
const PATIENCE: Duration = Duration::from_secs(2);
/// What the memory of segments is called in `/proc/PID/maps`.
const MEMORY: &str = "/memfd:weir-userfs";

pub(super) fn findings(state: &Path, answered: &[Status]) -> Vec<Finding> {
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let points = mount_points(&table);
    let mut all: Vec<Finding> =
        points.iter().map(|point| of_point(point, state, answered, size_of_mount(point))).collect();
    all.extend(answered.iter().filter(|status| !points.contains(&PathBuf::from(&status.mount))).map(nowhere));
    all.extend(left_over(state, answered));
    let processes = Process::all();
    all.extend(orphans(&processes, answered));
    all.extend(memory_of_nobody(&processes));
    all.extend(answered.iter().flat_map(versions));
    all
}

/// Where file systems of ours are mounted.
pub(crate) fn mount_points(table: &[u8]) -> Vec<PathBuf> {
    let of_line = |line: &[u8]| {
        let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        // As many optional words as there are, then a dash.
        let dash = words.iter().position(|word| *word == b"-")?;
        let (point, kind, source) = (words.get(4)?, words.get(dash + 1)?, words.get(dash + 2)?);
        let source = unescaped(source);
        let ours = *kind == format!("fuse.{SUBTYPE}").as_bytes()
            || (*kind == b"fuse"
                && source.as_os_str().as_bytes().starts_with(format!("{SUBTYPE}#").as_bytes()));
        ours.then(|| unescaped(point))
    };
    table.split(|byte| *byte == b'\n').filter_map(of_line).collect()
}

/// Blanks and their like are octal numbers there.
fn unescaped(word: &[u8]) -> PathBuf {
    let mut path = Vec::with_capacity(word.len());
    let mut at = 0;
    while at < word.len() {
        let number = word.get(at + 1..at + 4).filter(|_| word[at] == b'\\');
        let number = number.and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = number.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        path.push(byte.unwrap_or(word[at]));
        at += if byte.is_some() { 4 } else { 1 };
    }
    PathBuf::from(std::ffi::OsString::from_vec(path))
}

/// Asks the file system something that its daemon must answer. Nothing when it does not in time.
fn size_of_mount(point: &Path) -> Option<rustix::io::Result<()>> {
    let (tell, told) = mpsc::channel();
    let asked = point.to_owned();
    let asking = std::thread::Builder::new().name("statfs".to_owned());
    // One that hangs stays so until its mount answers, or we end.
    asking.spawn(move || tell.send(rustix::fs::statfs(&asked).map(drop))).ok()?;
    told.recv_timeout(PATIENCE).ok()
}

fn of_point(
    point: &Path,
    state: &Path,
    answered: &[Status],
    answer: Option<rustix::io::Result<()>>,
) -> Finding {
    let what = format!("mount {}", point.display());
    let unmount = format!(
        "'weir fs unmount {0}' takes it away, as a new mount there does; umount -l {0} too, or fusermount3 -uz {0}",
        point.display()
    );
    let known = answered.iter().find(|status| Path::new(&status.mount) == point);
    match (answer, known) {
        (Some(Ok(())), Some(status)) => {
            Finding::good(what, format!("{}, served by process {}", status.backend, status.pid))
        }
        (Some(Ok(())), None) => Finding::note(
            what,
            format!("it is served, but by no daemon whose socket is in {}", state.display()),
            "name its folder with --state, or ask as its user",
        ),
        (Some(Err(rustix::io::Errno::NOTCONN | rustix::io::Errno::CONNABORTED)), _) => Finding::wrong(
            what,
            "its daemon is gone: programs see 'transport endpoint is not connected'",
            unmount,
        ),
        (Some(Err(error)), _) => Finding::note(what, error.to_string(), "ask as its user"),
        (None, _) => Finding::wrong(
            what,
            format!("it has not answered for {} s", PATIENCE.as_secs()),
            format!("see what its daemon waits for; {unmount} gives it up"),
        ),
    }
}

/// A daemon whose mount is out of sight.
fn nowhere(status: &Status) -> Finding {
    Finding::wrong(
        format!("daemon {}", status.pid),
        format!("it serves {}, where nothing of its is mounted", status.mount),
        format!(
            "it ends when the last file is closed that is open there; mounts of another namespace are seen there; 'kill {}' ends it now",
            status.pid
        ),
    )
}

/// Folders of daemons that do not answer.
fn left_over(state: &Path, answered: &[Status]) -> Vec<Finding> {
    let living: BTreeSet<PathBuf> = answered
        .iter()
        .map(|status| crate::control::mount_directory(state, Path::new(&status.mount)))
        .collect();
    let Ok(folders) = std::fs::read_dir(state) else { return Vec::new() };
    let dead = folders.filter_map(|folder| {
        let path = folder.ok()?.path();
        (!living.contains(&path) && path.join(SOCKET).exists()).then_some(path)
    });
    dead.map(|path| {
        let refused = std::os::unix::net::UnixStream::connect(path.join(SOCKET)).is_err();
        let what = format!("socket {}", path.display());
        if refused {
            Finding::note(
                what,
                "its daemon is gone",
                format!("the next mount there takes its place; 'rm -r {}' removes it", path.display()),
            )
        } else {
            Finding::wrong(what, "its daemon takes questions and does not answer", "end that daemon")
        }
    })
    .collect()
}

/// A process, as far as it says something of us.
struct Process {
    id: u32,
    /// The words of its command.
    command: Vec<Vec<u8>>,
    /// Segments that it has in memory, by the number of their file.
    segments: BTreeSet<u64>,
}

impl Process {
    /// All that we may look at.
    fn all() -> Vec<Process> {
        let Ok(found) = std::fs::read_dir("/proc") else { return Vec::new() };
        let ids = found.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        ids.filter_map(|id: u32| {
            let command = std::fs::read(format!("/proc/{id}/cmdline")).ok()?;
            // A process of others shows no memory.
            let maps = std::fs::read_to_string(format!("/proc/{id}/maps")).unwrap_or_default();
            let words = command.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
            Some(Process { id, command: words, segments: segments(&maps) })
        })
        .collect()
    }

    /// Whether it is `weir fs serve`.
    fn is_daemon(&self) -> bool {
        let program = self.command.first().map(|word| Path::new(std::ffi::OsStr::from_bytes(word)));
        program.and_then(Path::file_name).is_some_and(|name| name == "weir")
            && self.command.windows(2).any(|pair| pair == [b"fs".to_vec(), b"serve".to_vec()])
    }

    /// Whether it serves a file system: programs that are accelerated never keep the device open.
    fn serves(&self) -> bool {
        let Ok(files) = std::fs::read_dir(format!("/proc/{}/fd", self.id)) else { return false };
        files
            .filter_map(|file| std::fs::read_link(file.ok()?.path()).ok())
            .any(|target| target == Path::new("/dev/fuse"))
    }
}

fn segments(maps: &str) -> BTreeSet<u64> {
    let ours = maps.lines().filter(|line| line.contains(MEMORY));
    ours.filter_map(|line| line.split_whitespace().nth(4)?.parse().ok()).collect()
}

fn orphans(processes: &[Process], answered: &[Status]) -> Vec<Finding> {
    let lost = processes
        .iter()
        .filter(|process| process.is_daemon() && !answered.iter().any(|status| status.is_by(process.id)));
    lost.map(|process| {
        Finding::note(
            format!("daemon {}", process.id),
            "it is a daemon that cannot be asked here: of another --state, or its socket was removed",
            format!("'kill {}' lets it unmount and end", process.id),
        )
    })
    .collect()
}

/// Segments that processes hold and nobody serves.
fn memory_of_nobody(processes: &[Process]) -> Vec<Finding> {
    let mut holders: BTreeMap<u64, Vec<&Process>> = BTreeMap::new();
    for process in processes {
        for segment in &process.segments {
            holders.entry(*segment).or_default().push(process);
        }
    }
    let lost = holders.values().filter(|holders| !holders.iter().any(|process| process.serves()));
    lost.map(|holders| {
        let ids: Vec<String> = holders.iter().map(|process| process.id.to_string()).collect();
        Finding::wrong(
            "shared memory",
            format!("processes {} hold files of a daemon that is gone", ids.join(", ")),
            "the memory is free when they end: what they have open there cannot be used any more",
        )
    })
    .collect()
}

/// Whether the daemon and the library that it puts into programs are those of this program.
fn versions(status: &Status) -> Vec<Finding> {
    let what = format!("daemon {}", status.pid);
    let again = format!("'weir fs unmount {0}' and mount it again", status.mount);
    let own = crate::version();
    let shown = |text: &str| if text.is_empty() { "an earlier one".to_owned() } else { text.to_owned() };
    let mut all = Vec::new();
    if status.version.program != own.program {
        let found = format!("its version is {}, ours {}", shown(&status.version.program), own.program);
        all.push(Finding::wrong(what.clone(), found, again.clone()));
    } else if status.version.library != own.library {
        let found = format!(
            "the library that it puts into programs is {}, ours {}",
            shown(&status.version.library),
            own.library
        );
        all.push(Finding::wrong(what.clone(), found, again.clone()));
    } else {
        all.push(Finding::good(what.clone(), format!("version {}, library {}", own.program, own.library)));
    }
    let program = std::fs::read_link(format!("/proc/{}/exe", status.pid)).unwrap_or_default();
    if program.as_os_str().as_bytes().ends_with(b" (deleted)") {
        all.push(Finding::note(what, "its program was replaced or removed since it began", again));
    }
    all
}

#[cfg(test)]
mod tests;
