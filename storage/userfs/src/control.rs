//! What daemons and the command line say to each other: one socket a mount, in the state directory.
//!
//! A question is one line, the answer one line of JSON. The directory of a mount is named by its mount point with
//! `/` written as `-`; it is its owner's alone.

use crate::accelerate::Acceleration;
use crate::backend::Held;
use crate::error::Error;
use crate::segment::SegmentFigures;
use crate::stats::Count;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest question or answer.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// How long either side waits for the other.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// Name of the socket.
pub(crate) const SOCKET: &str = "control";

/// A question to a daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Question {
    /// How is it?
    Status,
    /// Unmount and end; `lazy` even while files are open.
    Unmount {
        /// Out of sight at once, over when the last file is closed.
        lazy: bool,
    },
}

/// An answer of a daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// To [`Question::Status`].
    Status(Box<Status>),
    /// It is done.
    Done,
    /// It is not, and why.
    Refused(String),
}

/// A mount, as its daemon sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Where it is mounted.
    pub mount: String,
    /// What is mounted.
    pub backend: String,
    /// The daemon.
    pub pid: u32,
    /// The process that keeps the mount when the daemon dies.
    #[serde(default)]
    pub keeper: Option<u32>,
    /// How often a daemon of this mount died and another took its place.
    #[serde(default)]
    pub deaths: u64,
    /// What it is of.
    #[serde(default)]
    pub version: crate::Version,
    /// What a person should know.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Processes that need no kernel for data, and those that cannot.
    pub acceleration: Acceleration,
    /// Operations that came through the kernel.
    pub operations: Vec<Count>,
    /// Shared memory, if the backend has it.
    pub segment: Option<SegmentFigures>,
    /// What is held for files that the kernel knows, where that grows with them.
    #[serde(default)]
    pub held: Option<Held>,
}

impl Status {
    /// Whether this process serves or keeps the mount.
    pub fn is_by(&self, process: u32) -> bool {
        self.pid == process || self.keeper == Some(process)
    }
}

/// Where daemons of this user keep their sockets.
pub fn state_directory() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(own) if !rustix::process::geteuid().is_root() => PathBuf::from(own).join("weir-fs"),
        _ => PathBuf::from("/run/weir-fs"),
    }
}

/// The directory of the mount at `point` in `state`.
pub fn mount_directory(state: &Path, point: &Path) -> PathBuf {
    state.join(point.to_string_lossy().trim_matches('/').replace('-', "--").replace('/', "-"))
}

/// Makes `directory`, for its owner alone.
pub(crate) fn make_private(directory: &Path) -> Result<(), Error> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder.create(directory).map_err(|error| Error::io(format!("making {}", directory.display()), error))
}

/// Reads one line of JSON.
pub(crate) fn receive<T: for<'a> Deserialize<'a>>(from: &UnixStream) -> std::io::Result<T> {
    let mut line = String::new();
    BufReader::new(from.take(LINE_BYTES_MAX)).read_line(&mut line)?;
    serde_json::from_str(&line).map_err(std::io::Error::other)
}

/// Writes one line of JSON.
pub(crate) fn send<T: Serialize>(mut to: &UnixStream, what: &T) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(what).map_err(std::io::Error::other)?;
    line.push(b'\n');
    to.write_all(&line)
}

/// Asks the daemon of the mount at `point`.
pub fn ask(state: &Path, point: &Path, question: &Question) -> Result<Answer, Error> {
    let socket = mount_directory(state, point).join(SOCKET);
    let stream = UnixStream::connect(socket).map_err(|_| Error::NotMounted(point.to_owned()))?;
    let talk = || -> std::io::Result<Answer> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        send(&stream, question)?;
        receive(&stream)
    };
    talk().map_err(|error| Error::io(format!("asking the daemon of {}", point.display()), error))
}

/// The status of all mounts in `state`, in the order of their names. Daemons that are gone are left out.
pub fn all(state: &Path) -> Vec<Status> {
    let Ok(found) = std::fs::read_dir(state) else { return Vec::new() };
    let asked = found.filter_map(|entry| {
        let stream = UnixStream::connect(entry.ok()?.path().join(SOCKET)).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        send(&stream, &Question::Status).ok()?;
        match receive(&stream).ok()? {
            Answer::Status(status) => Some(*status),
            Answer::Done | Answer::Refused(_) => None,
        }
    });
    let mut all: Vec<Status> = asked.collect();
    all.sort_by(|a, b| a.mount.cmp(&b.mount));
    all
}
