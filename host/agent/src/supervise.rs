//! `weir host`: a small supervisor with two children, `weir agent` and `weir switch` (row A16), and perhaps a third, `weir
//! monitor` (row O).
//!
//! The children are apart from it in process groups and sessions of signals, so that neither a
//! terminal's interrupt nor the supervisor's own death reaches the switch: traffic goes on.
//!
//! - A child that dies is started again after a wait that doubles with each quick death.
//! - A switch that lives and does not answer is killed, and so started again; see [`silence`].
//! - A switch that is running already is adopted: it holds a lock (`flock`) on
//!   `<run_dir>/switch.lock`, and the supervisor waits until the lock is free before it starts one.
//! - An agent that a former supervisor left behind is ended: two of them would take the session from
//!   each other for ever. It holds `<run_dir>/agent.lock`, and nothing that traffic needs.
//! - The monitor is treated as the agent is: nothing that traffic needs depends on it.
//! - On SIGTERM or SIGINT agent and monitor are stopped, and the switch only when `stop_switch` is set;
//!   otherwise it stays, and the next supervisor adopts it. Under systemd the unit needs
//!   `KillMode=process` for that.

mod silence;

use crate::AgentError;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};
use tokio::sync::watch;

/// A child that lived this long starts again with the first wait, milliseconds.
pub const STEADY_MS: u64 = 10_000;
/// A child gets so long to end by itself before it is killed, milliseconds.
pub const GRACE_MS: u64 = 5_000;
/// How often a lock held by somebody else is tried, milliseconds.
pub const LOCK_RETRY_MS: u64 = 100;

/// File name in the run directory of the lock that a running agent holds.
pub const AGENT_LOCK: &str = "agent.lock";
/// File name in the run directory of the lock that a running monitor holds.
pub const MONITOR_LOCK: &str = "monitor.lock";
/// File name in the run directory of the lock that a running supervisor holds.
pub const SUPERVISOR_LOCK: &str = "supervisor.lock";

/// A role's right to its run directory, for as long as this lives.
#[derive(Debug)]
pub struct RunLock {
    _file: File,
}

impl RunLock {
    /// Takes the lock at `path`; `role` is for the message.
    ///
    /// # Errors
    /// [`AgentError::Running`], or the file cannot be made.
    pub fn take(path: &Path, role: &'static str) -> Result<RunLock, AgentError> {
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(|error| AgentError::file(parent, error))?;
        }
        let file = open_lock(path).map_err(|error| AgentError::file(path, error))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(RunLock { _file: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(AgentError::Running { role, lock: path.into() }),
            Err(error) => Err(AgentError::file(path, error.into())),
        }
    }
}

/// What to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildSpec {
    /// Name in logs.
    pub name: &'static str,
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

/// What the supervisor needs.
#[derive(Clone, Debug)]
pub struct SupervisorConfig {
    /// The agent.
    pub agent: ChildSpec,
    /// The switch.
    pub switch: ChildSpec,
    /// The monitor, and the lock that it holds while it runs.
    pub monitor: Option<(ChildSpec, PathBuf)>,
    /// The lock that a running supervisor holds.
    pub supervisor_lock: PathBuf,
    /// The lock that a running agent holds.
    pub agent_lock: PathBuf,
    /// The lock that a running switch holds.
    pub switch_lock: PathBuf,
    /// The switch's control socket.
    pub switch_socket: PathBuf,
    /// A switch that does not answer there for so long is replaced, milliseconds; 0: never.
    pub switch_answer_ms: u64,
    /// Whether the switch stops with the supervisor.
    pub stop_switch: bool,
    /// First wait before a dead child is started again, milliseconds.
    pub backoff_min_ms: u64,
    /// Longest wait before a dead child is started again, milliseconds.
    pub backoff_max_ms: u64,
}

/// Waits between starts.
#[derive(Clone, Debug)]
pub struct Backoff {
    min_ms: u64,
    max_ms: u64,
    next_ms: u64,
}

impl Backoff {
    /// Begins with the shortest wait.
    pub fn new(min_ms: u64, max_ms: u64) -> Backoff {
        Backoff { min_ms, max_ms, next_ms: min_ms }
    }

    /// The wait after a child that lived so long, milliseconds.
    pub fn after(&mut self, lived_ms: u64) -> u64 {
        if lived_ms >= STEADY_MS {
            self.next_ms = self.min_ms;
        }
        let wait_ms = self.next_ms;
        self.next_ms = self.next_ms.saturating_mul(2).min(self.max_ms);
        wait_ms
    }
}

/// Runs both children until `stop` becomes true.
///
/// # Errors
/// [`AgentError::Running`], or a lock's directory cannot be made.
pub async fn run(config: SupervisorConfig, stop: watch::Receiver<bool>) -> Result<(), AgentError> {
    // So whoever holds the agent's lock is nobody's child but a dead supervisor's.
    let _lock = RunLock::take(&config.supervisor_lock, "supervisor")?;
    for parent in [&config.agent_lock, &config.switch_lock].into_iter().filter_map(|lock| lock.parent()) {
        std::fs::create_dir_all(parent).map_err(|error| AgentError::file(parent, error))?;
    }
    let monitor = async {
        if let Some((spec, lock)) = &config.monitor {
            keep(spec, lock, &config, stop.clone()).await;
        }
    };
    let agent = keep(&config.agent, &config.agent_lock, &config, stop.clone());
    tokio::join!(agent, monitor, keep_switch(&config, stop.clone()));
    Ok(())
}

/// A receiver that becomes true on SIGTERM or SIGINT.
///
/// # Errors
/// The system does not let us listen for signals.
pub fn stop_on_signals() -> Result<watch::Receiver<bool>, AgentError> {
    use tokio::signal::unix::{SignalKind, signal};
    let failed = |source| AgentError::Socket { what: "signals".into(), source };
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let (sender, receiver) = watch::channel(false);
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        // Nobody listens any more: then it has stopped already.
        let _ = sender.send(true);
    });
    Ok(receiver)
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error means that nobody can say stop any more; that is no reason to stop.
    if stop.wait_for(|&stop| stop).await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn spawn(spec: &ChildSpec) -> Result<Child, AgentError> {
    Command::new(&spec.program)
        .args(&spec.arguments)
        .stdin(std::process::Stdio::null())
        .process_group(0)
        .kill_on_drop(false)
        .spawn()
        .map_err(|source| AgentError::Spawn { program: spec.program.display().to_string(), source })
}

/// Starts a child and waits for its end, which comes by us when `silence` is over first. A child when we were told to
/// stop before: it lives then.
async fn run_once(
    spec: &ChildSpec,
    silence: impl Future<Output = ()>,
    stop: &mut watch::Receiver<bool>,
) -> (Option<Child>, u64) {
    let started = Instant::now();
    let lived_ms = || started.elapsed().as_millis() as u64;
    match spawn(spec) {
        Ok(mut child) => {
            tracing::info!(child = spec.name, pid = child.id(), "started");
            let mut silence = pin!(silence);
            let mut killed = false;
            loop {
                tokio::select! {
                    status = child.wait() => {
                        match status {
                            Ok(status) => tracing::warn!(child = spec.name, %status, lived_ms = lived_ms(), "ended"),
                            Err(error) => tracing::warn!(child = spec.name, %error, "cannot be waited for"),
                        }
                        return (None, lived_ms());
                    }
                    () = &mut silence, if !killed => {
                        tracing::error!(child = spec.name, pid = child.id(), "does not answer: killed");
                        killed = true;
                        // An error means that it has ended, which the wait above sees.
                        let _ = child.start_kill();
                    }
                    () = stopped(stop) => return (Some(child), lived_ms()),
                }
            }
        }
        Err(error) => {
            tracing::error!(%error, "trying again");
            (None, lived_ms())
        }
    }
}

async fn pause(wait_ms: u64, stop: &mut watch::Receiver<bool>) -> bool {
    tokio::select! {
        () = tokio::time::sleep(Duration::from_millis(wait_ms)) => false,
        () = stopped(stop) => true,
    }
}

/// Keeps a child running that nothing depends on.
async fn keep(spec: &ChildSpec, lock: &Path, config: &SupervisorConfig, mut stop: watch::Receiver<bool>) {
    let mut backoff = Backoff::new(config.backoff_min_ms, config.backoff_max_ms);
    loop {
        if let Some(pid) = holder_if_taken(lock) {
            let (child, pid) = (spec.name, pid.as_raw_pid());
            tracing::warn!(child, pid, "a supervisor that died left it behind: it is ended");
            end_holder(lock, &[Signal::TERM, Signal::KILL]).await;
        }
        let (child, lived_ms) = run_once(spec, std::future::pending(), &mut stop).await;
        if let Some(child) = child {
            end_child(child, spec.name).await;
            return;
        }
        if pause(backoff.after(lived_ms), &mut stop).await {
            return;
        }
    }
}

async fn keep_switch(config: &SupervisorConfig, mut stop: watch::Receiver<bool>) {
    let mut backoff = Backoff::new(config.backoff_min_ms, config.backoff_max_ms);
    let limit = Some(Duration::from_millis(config.switch_answer_ms)).filter(|limit| !limit.is_zero());
    let silence = || silence::wait(&config.switch_socket, &config.switch_lock, limit);
    loop {
        match lock_is_free(&config.switch_lock) {
            Ok(true) => {
                let (child, lived_ms) = run_once(&config.switch, silence(), &mut stop).await;
                if let Some(child) = child {
                    if config.stop_switch {
                        end_child(child, config.switch.name).await;
                    } else {
                        tracing::info!(pid = child.id(), "the switch goes on without us");
                    }
                    return;
                }
                if pause(backoff.after(lived_ms), &mut stop).await {
                    return;
                }
            }
            Ok(false) => {
                let pid = holder(&config.switch_lock).map(Pid::as_raw_pid);
                tracing::info!(pid, "a switch is running: adopted");
                tokio::select! {
                    () = freed(&config.switch_lock) => {}
                    () = silence() => {
                        tracing::error!(child = config.switch.name, pid, "does not answer: killed");
                        end_holder(&config.switch_lock, &[Signal::KILL]).await;
                    }
                    () = stopped(&mut stop) => {
                        if config.stop_switch {
                            end_holder(&config.switch_lock, &[Signal::TERM, Signal::KILL]).await;
                        }
                        return;
                    }
                }
            }
            Err(error) => {
                tracing::error!(lock = %config.switch_lock.display(), %error, "trying again");
                if pause(backoff.after(0), &mut stop).await {
                    return;
                }
            }
        }
    }
}

/// Waits until nobody holds a lock, or it cannot be looked at.
async fn freed(lock: &Path) {
    while matches!(lock_is_free(lock), Ok(false)) {
        tokio::time::sleep(Duration::from_millis(LOCK_RETRY_MS)).await;
    }
}

fn open_lock(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

/// Whether nobody holds the lock. It is given back at once: the switch takes it itself, and of two
/// switches that start together the second ends.
fn lock_is_free(path: &Path) -> std::io::Result<bool> {
    let file = open_lock(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Who holds the lock, if somebody does.
fn holder_if_taken(path: &Path) -> Option<Pid> {
    // A lock that cannot be looked at is told by the child that wants it.
    if lock_is_free(path).unwrap_or(true) { None } else { holder(path) }
}

/// Who holds the lock, by the system's list of locks.
fn holder(path: &Path) -> Option<Pid> {
    let file = std::fs::metadata(path).ok()?;
    let (major, minor) = (rustix::fs::major(file.dev()), rustix::fs::minor(file.dev()));
    let place = format!("{major:02x}:{minor:02x}:{}", file.ino());
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let pid = locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        match fields[..] {
            [_, "FLOCK", _, _, pid, at, ..] if at == place => pid.parse().ok(),
            _ => None,
        }
    })?;
    Pid::from_raw(pid)
}

/// Asks a child to end, and kills it when it does not.
async fn end_child(mut child: Child, name: &str) {
    if let Some(pid) = child.id().and_then(|id| Pid::from_raw(id as i32)) {
        // An error means that it has ended, which the wait below sees.
        let _ = rustix::process::kill_process(pid, Signal::TERM);
    }
    let grace = Duration::from_millis(GRACE_MS);
    if tokio::time::timeout(grace, child.wait()).await.is_err() {
        tracing::warn!(child = name, "does not end: killed");
        let _ = child.kill().await;
    }
}

/// The same for a process that is not our child: an adopted switch, or a left agent. The descriptor holds on to the process, so that a number used
/// again meanwhile hits nobody else.
async fn end_holder(lock: &Path, signals: &[Signal]) {
    let Some(descriptor) = holder(lock).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
        return;
    };
    // Still the holder, now that the descriptor is fixed?
    if lock_is_free(lock).unwrap_or(true) {
        return;
    }
    for signal in signals {
        if pidfd_send_signal(&descriptor, *signal).is_err() {
            return;
        }
        let until = Instant::now() + Duration::from_millis(GRACE_MS);
        while Instant::now() < until {
            if lock_is_free(lock).unwrap_or(true) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(LOCK_RETRY_MS)).await;
        }
    }
}

#[cfg(test)]
mod tests;
