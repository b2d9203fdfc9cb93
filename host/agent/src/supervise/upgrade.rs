//! The switch is replaced by another program under traffic (row A30; decision 0027): who asks for it, and what the supervisor
//! does.
//!
//! The supervisor starts the new process, with the rights and in the control group of the old one, and waits. The two hand over between
//! themselves. It has worked when the old one has ended and the new one lives; then that one is the supervisor's switch, and its
//! program is what a crash starts again. When the new one ends instead, the old one goes on. One that does neither in [`LIMIT`] is killed.
//!
//! Asked it is on `<run_dir>/supervisor.sock`, by `weir upgrade`; and by the supervisor itself when it begins and finds a
//! switch of another program running, which is what the restart of a service after an update comes to.

use super::{ChildSpec, holder, spawn};
use crate::AgentError;
use crate::wire::{read_frame, write_frame};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::io::unix::AsyncFd;
use tokio::net::{UnixListener, UnixStream};
use tokio::process::Child;
use tokio::sync::{mpsc, oneshot};

/// File name in the run directory of the supervisor's socket.
pub const SUPERVISOR_SOCKET: &str = "supervisor.sock";
/// How long a hand-over may take: the new process reads a checkpoint of millions of entries first.
pub const LIMIT: Duration = Duration::from_secs(180);
/// Requests that may wait.
pub(super) const REQUESTS_MAX: usize = 4;
/// How often the lock is looked at when nothing tells of the old process's end.
const LOOK: Duration = Duration::from_millis(20);
/// How long a client may take to say what it wants, and to take the answer.
const CLIENT_LIMIT: Duration = Duration::from_secs(5);

/// What a client asks of the supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToSupervisor {
    /// Replace the switch.
    Upgrade {
        /// The program; none: the one that the supervisor starts switches with, as it is on disk now.
        program: Option<String>,
    },
}

/// What it answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromSupervisor {
    /// Another process serves.
    Upgraded {
        /// Its number.
        pid: u32,
        /// From its start to the end of the old one, milliseconds.
        took_ms: u64,
    },
    /// The old one goes on, or is being started again.
    Failed(String),
}

/// A request with who waits for the answer.
pub(super) struct Request {
    pub(super) program: Option<PathBuf>,
    pub(super) answer: oneshot::Sender<FromSupervisor>,
}

/// Asks the supervisor of a run directory to replace its switch.
///
/// # Errors
/// [`AgentError::Socket`] when there is no supervisor, or it ends meanwhile.
pub async fn ask(run_dir: &Path, program: Option<&Path>) -> Result<FromSupervisor, AgentError> {
    let path = run_dir.join(SUPERVISOR_SOCKET);
    let failed = |source| AgentError::Socket { what: path.display().to_string(), source };
    let mut stream = UnixStream::connect(&path).await.map_err(failed)?;
    let program = program.map(|program| program.display().to_string());
    let other = |error: weir_base::codec::CodecError| failed(std::io::Error::other(error.to_string()));
    write_frame(&mut stream, &ToSupervisor::Upgrade { program }).await.map_err(other)?;
    read_frame(&mut stream).await.map_err(other)
}

/// Listens for requests, for ever.
pub(super) async fn listen(path: PathBuf, requests: mpsc::Sender<Request>) {
    // The lock of the supervisor is ours: whoever listened here is gone.
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).and_then(|listener| {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).map(|()| listener)
    });
    let listener = match listener {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(socket = %path.display(), %error, "nobody can ask for an upgrade");
            return std::future::pending().await;
        }
    };
    loop {
        match listener.accept().await {
            // One after the other: a switch is replaced once at a time.
            Ok((stream, _)) => {
                if let Err(error) = serve(stream, &requests).await {
                    tracing::warn!(%error, "a client of the supervisor");
                }
            }
            Err(error) => {
                tracing::warn!(%error, "a client of the supervisor cannot be accepted");
                tokio::time::sleep(LOOK).await;
            }
        }
    }
}

async fn serve(mut stream: UnixStream, requests: &mpsc::Sender<Request>) -> Result<(), String> {
    let slow = |_| "it takes too long".to_string();
    let asked = tokio::time::timeout(CLIENT_LIMIT, read_frame::<ToSupervisor>(&mut stream)).await;
    let ToSupervisor::Upgrade { program } = asked.map_err(slow)?.map_err(|error| error.to_string())?;
    let (answer, answered) = oneshot::channel();
    let request = Request { program: program.map(PathBuf::from), answer };
    let failed = |_| "the supervisor ends".to_string();
    requests.send(request).await.map_err(|_| "the supervisor ends".to_string())?;
    let answer = answered.await.map_err(failed)?;
    let written = async {
        write_frame(&mut stream, &answer).await.map_err(|error| error.to_string())?;
        stream.flush().await.map_err(|error| error.to_string())
    };
    tokio::time::timeout(CLIENT_LIMIT, written).await.map_err(slow)?
}

/// A process whose end is told at once.
pub(super) struct Watched(AsyncFd<OwnedFd>);

impl Watched {
    /// Of a process that lives.
    pub(super) fn new(pid: Pid) -> Option<Watched> {
        let descriptor = pidfd_open(pid, PidfdFlags::NONBLOCK).ok()?;
        crate::sys::watch(descriptor).map(Watched)
    }

    /// Returns when it has ended.
    pub(super) async fn ended(&self) {
        if self.0.readable().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Whether the process that holds a lock runs another program than this. Unknown is no.
pub(super) fn is_other_program(lock: &Path, program: &Path) -> bool {
    let exe = holder(lock).and_then(|pid| std::fs::metadata(format!("/proc/{}/exe", pid.as_raw_pid())).ok());
    match (exe, std::fs::metadata(program)) {
        (Some(runs), Ok(ours)) => (runs.dev(), runs.ino()) != (ours.dev(), ours.ino()),
        _ => false,
    }
}

/// Starts a process that takes over, and waits for what comes of it; `old_ends` returns when the old one has ended.
///
/// # Errors
/// Why the old one goes on, in words.
pub(super) async fn replace(
    spec: &ChildSpec,
    take_over: &str,
    lock: &Path,
    old_ends: impl Future<Output = ()>,
) -> Result<(Child, u64), String> {
    let mut spec = spec.clone();
    spec.arguments.push(take_over.into());
    let started = Instant::now();
    let mut new = spawn(&spec).map_err(|error| error.to_string())?;
    let pid = new.id();
    tracing::info!(child = spec.name, pid, program = %spec.program.display(), "started, to take over");
    tokio::select! {
        // A process that ended before the old one did has not taken over.
        biased;
        status = new.wait() => {
            let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
            Err(format!("the new process did not take over ({status}); its last lines in the log say why"))
        }
        () = old_ends => {
            let took_ms = started.elapsed().as_millis() as u64;
            let holds = holder(lock).map(|pid| pid.as_raw_pid().cast_unsigned());
            tracing::info!(child = spec.name, pid, took_ms, signed = holds == pid, "the old one has ended");
            Ok((new, took_ms))
        }
        () = tokio::time::sleep(LIMIT) => {
            // An error means that it has ended.
            let _ = new.kill().await;
            Err(format!("the new process did not take over within {} s: killed", LIMIT.as_secs()))
        }
    }
}

/// Returns when the process with this number has the lock, which nothing else tells of.
pub(super) async fn looked_for(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        tokio::time::sleep(LOOK).await;
    }
}
