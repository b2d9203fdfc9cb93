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
//! - A host without a switch has agent and monitor alone.
//! - The monitor is treated as the agent is: nothing that traffic needs depends on it.
//! - What a switch has open is kept here as well ([`store`]), so that the next one after a crash gets the same devices and sockets.
//! - On SIGTERM or SIGINT agent and monitor are stopped, and the switch only when `stop_switch` is set;
//!   otherwise it stays, and the next supervisor adopts it. A switch of another program is taken over from, under traffic, by one
//!   of ours: see [`upgrade`]. Under systemd the unit needs
//!   `KillMode=process` for that.

mod silence;
mod store;
pub mod upgrade;

use crate::AgentError;
use crate::switchless::NO_SWITCH;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use store::Store;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};
use upgrade::{FromSupervisor, Request, Watched};

/// A child that lived this long starts again with the first wait, milliseconds: so one that always lives a little longer is started
/// so often and no oftener, and nobody behind it waits.
pub const STEADY_MS: u64 = 2_000;
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
    /// The switch; nothing on a host that has none.
    pub switch: Option<ChildSpec>,
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
    /// The argument with which a switch takes over from the one that runs.
    pub take_over: &'static str,
    /// Whether a switch of another program, which is found running, is taken over from.
    pub replaces_others: bool,
    /// A switch that is found running has other settings than these: it is taken over from too, or it is told that it goes on with them.
    pub other_settings: bool,
    /// Where upgrades are asked for.
    pub upgrade_socket: PathBuf,
    /// Where the switch's descriptors are kept.
    pub store_socket: PathBuf,
    /// First wait between two starts of a child that dies, milliseconds.
    pub backoff_min_ms: u64,
    /// Longest wait between two starts of a child that dies, milliseconds.
    pub backoff_max_ms: u64,
}

/// Waits between starts: none after the first death, then ever longer ones, counted from the start of the child that died: what
/// they bound is how often a child is started, and one that has served for longer than that need not be waited for.
#[derive(Clone, Debug)]
pub struct Backoff {
    min_ms: u64,
    max_ms: u64,
    next_ms: u64,
}

impl Backoff {
    /// Begins without a wait.
    pub fn new(min_ms: u64, max_ms: u64) -> Backoff {
        Backoff { min_ms, max_ms, next_ms: 0 }
    }

    /// The wait after a child that lived so long, milliseconds.
    pub fn after(&mut self, lived_ms: u64) -> u64 {
        if lived_ms >= STEADY_MS {
            self.next_ms = 0;
        }
        let wait_ms = self.next_ms.saturating_sub(lived_ms);
        self.next_ms = self.next_ms.saturating_mul(2).clamp(self.min_ms, self.max_ms);
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
    let (sender, requests) = mpsc::channel(upgrade::REQUESTS_MAX);
    let store = Store::listen(&config.store_socket);
    let switch = async {
        match &config.switch {
            Some(spec) => keep_switch(&config, spec.clone(), &store, requests, stop.clone()).await,
            None => no_switch(requests, stop.clone()).await,
        }
    };
    let kept = async { tokio::join!(agent, monitor, switch) };
    tokio::select! {
        _ = kept => {}
        () = upgrade::listen(config.upgrade_socket.clone(), sender) => {}
    }
    // Whoever asks now is told that nobody is here.
    let _ = std::fs::remove_file(&config.upgrade_socket);
    let _ = std::fs::remove_file(&config.store_socket);
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

/// Starts a child and waits for its end. A child when we were told to stop before: it lives then.
async fn run_once(spec: &ChildSpec, stop: &mut watch::Receiver<bool>) -> (Option<Child>, u64) {
    let started = Instant::now();
    let lived_ms = || started.elapsed().as_millis() as u64;
    match spawn(spec) {
        Ok(mut child) => {
            tracing::info!(child = spec.name, pid = child.id(), "started");
            tokio::select! {
                status = child.wait() => {
                    match status {
                        Ok(status) => tracing::warn!(child = spec.name, %status, lived_ms = lived_ms(), "ended"),
                        Err(error) => tracing::warn!(child = spec.name, %error, "cannot be waited for"),
                    }
                    (None, lived_ms())
                }
                () = stopped(stop) => (Some(child), lived_ms()),
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
        let (child, lived_ms) = run_once(spec, &mut stop).await;
        if let Some(child) = child {
            end_child(child, spec.name).await;
            return;
        }
        if pause(backoff.after(lived_ms), &mut stop).await {
            return;
        }
    }
}

/// The switch that runs.
struct Running {
    /// Its number, if that is known.
    pid: Option<u32>,
    how: How,
}

/// How its end is noticed.
enum How {
    /// Our child.
    Child(Child),
    /// One that an earlier supervisor started; without the rest the lock is looked at.
    Adopted(Option<Watched>),
}

impl Running {
    fn adopt(lock: &Path) -> Running {
        let pid = holder(lock);
        tracing::info!(pid = pid.map(Pid::as_raw_pid), "a switch is running: adopted");
        let number = pid.map(|pid| pid.as_raw_pid().cast_unsigned());
        Running { pid: number, how: How::Adopted(pid.and_then(Watched::new)) }
    }

    fn child(child: Child) -> Running {
        Running { pid: child.id(), how: How::Child(child) }
    }

    fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Returns when it has ended.
    async fn ended(&mut self, lock: &Path) {
        match &mut self.how {
            How::Child(child) => match child.wait().await {
                Ok(status) => tracing::warn!(child = "switch", %status, "ended"),
                Err(error) => tracing::warn!(child = "switch", %error, "cannot be waited for"),
            },
            How::Adopted(Some(watched)) => watched.ended().await,
            How::Adopted(None) => freed(lock).await,
        }
    }

    async fn end(self, config: &SupervisorConfig) {
        match self.how {
            How::Child(child) => end_child(child, "switch").await,
            How::Adopted(_) => end_holder(&config.switch_lock, &[Signal::TERM, Signal::KILL]).await,
        }
    }
}

/// What happened to a switch that ran.
enum Happened {
    Ended,
    Stopped,
}

/// Refuses upgrades of what is not there.
async fn no_switch(mut requests: mpsc::Receiver<Request>, mut stop: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            Some(request) = requests.recv() => {
                // Who asked may have gone.
                let _ = request.answer.send(FromSupervisor::Failed(NO_SWITCH.into()));
            }
            () = stopped(&mut stop) => return,
        }
    }
}

async fn keep_switch(
    config: &SupervisorConfig,
    mut spec: ChildSpec,
    store: &Store,
    mut requests: mpsc::Receiver<Request>,
    mut stop: watch::Receiver<bool>,
) {
    let mut backoff = Backoff::new(config.backoff_min_ms, config.backoff_max_ms);
    loop {
        let started = Instant::now();
        let running = match lock_is_free(&config.switch_lock) {
            Ok(true) => spawn(&spec).map(Running::child).map_err(|error| error.to_string()),
            Ok(false) => Ok(Running::adopt(&config.switch_lock)),
            Err(error) => Err(format!("{}: {error}", config.switch_lock.display())),
        };
        let mut lived_ms = 0;
        match running {
            Ok(mut running) => {
                if let How::Child(child) = &running.how {
                    tracing::info!(child = spec.name, pid = child.id(), "started");
                } else if let Some(why) = other(config, &spec) {
                    tracing::info!(program = %spec.program.display(), why, "the switch is taken over from");
                    let mut tried = spec.clone();
                    if let FromSupervisor::Failed(reason) =
                        replace(config, &mut tried, None, &mut running).await
                    {
                        tracing::error!(
                            reason,
                            why,
                            "the switch that runs goes on as it is: stop it, or start the machine anew, for what was set to be in force"
                        );
                    }
                }
                let happened =
                    watch_switch(config, store, &mut spec, &mut running, &mut requests, &mut stop).await;
                lived_ms = started.elapsed().as_millis() as u64;
                if let Happened::Stopped = happened {
                    if config.stop_switch {
                        running.end(config).await;
                    } else {
                        tracing::info!("the switch goes on without us");
                    }
                    return;
                }
                store.ended(running.pid());
            }
            Err(error) => tracing::error!(error, "trying again"),
        }
        if pause(backoff.after(lived_ms), &mut stop).await {
            return;
        }
    }
}

/// Why a switch that was found running is to be taken over from, if it is.
fn other(config: &SupervisorConfig, spec: &ChildSpec) -> Option<&'static str> {
    if config.other_settings {
        return Some("it has other settings");
    }
    let is_other = config.replaces_others && upgrade::is_other_program(&config.switch_lock, &spec.program);
    is_other.then_some("it is of another program")
}

/// Watches a switch until it has ended, or we are to stop. Who takes over meanwhile takes its place.
async fn watch_switch(
    config: &SupervisorConfig,
    store: &Store,
    spec: &mut ChildSpec,
    running: &mut Running,
    requests: &mut mpsc::Receiver<Request>,
    stop: &mut watch::Receiver<bool>,
) -> Happened {
    let limit = Some(Duration::from_millis(config.switch_answer_ms)).filter(|limit| !limit.is_zero());
    let silence = || silence::wait(&config.switch_socket, &config.switch_lock, limit);
    let mut silent = Box::pin(silence());
    let mut killed = false;
    loop {
        tokio::select! {
            () = running.ended(&config.switch_lock) => return Happened::Ended,
            () = &mut silent, if !killed => {
                tracing::error!(child = spec.name, "does not answer: killed");
                killed = true;
                match &mut running.how {
                    // An error means that it has ended, which the wait above sees.
                    How::Child(child) => drop(child.start_kill()),
                    How::Adopted(_) => end_holder(&config.switch_lock, &[Signal::KILL]).await,
                }
            }
            Some(request) = requests.recv() => {
                let answer = replace(config, spec, request.program, running).await;
                if let FromSupervisor::Upgraded { pid, .. } = answer {
                    store.expect(pid);
                    silent = Box::pin(silence());
                    killed = false;
                }
                // Who asked may have gone.
                let _ = request.answer.send(answer);
            }
            () = stopped(stop) => return Happened::Stopped,
        }
    }
}

/// Has a process take over from the one that runs.
async fn replace(
    config: &SupervisorConfig,
    spec: &mut ChildSpec,
    program: Option<PathBuf>,
    running: &mut Running,
) -> FromSupervisor {
    let lock = &config.switch_lock;
    let mut new = spec.clone();
    new.program = program.unwrap_or(new.program);
    let before = holder(lock);
    let old_ends = async {
        match running.how {
            How::Child(_) | How::Adopted(Some(_)) => running.ended(lock).await,
            // The lock is handed over, so it is never free.
            How::Adopted(None) => upgrade::looked_for(|| holder(lock) != before).await,
        }
    };
    match upgrade::replace(&new, config.take_over, lock, old_ends).await {
        Ok((child, took_ms)) => {
            let pid = child.id().unwrap_or_default();
            (*running, *spec) = (Running::child(child), new);
            FromSupervisor::Upgraded { pid, took_ms }
        }
        Err(reason) => {
            tracing::error!(reason, "no upgrade");
            FromSupervisor::Failed(reason)
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

/// Who holds the lock: whoever says so in it and has it open; else, by the system's list of locks, whoever took it. That
/// is another one when the lock was handed over.
fn holder(path: &Path) -> Option<Pid> {
    let file = std::fs::metadata(path).ok()?;
    let place = (file.dev(), file.ino());
    let signed = std::fs::read_to_string(path).ok()?.trim().parse().ok().and_then(Pid::from_raw);
    signed.filter(|pid| has_open(*pid, place)).or_else(|| listed(place))
}

/// Whether a process has a file open.
fn has_open(pid: Pid, place: (u64, u64)) -> bool {
    let Ok(open) = std::fs::read_dir(format!("/proc/{}/fd", pid.as_raw_pid())) else { return false };
    let files = open.flatten().filter_map(|entry| std::fs::metadata(entry.path()).ok());
    files.map(|file| (file.dev(), file.ino())).any(|file| file == place)
}

fn listed((device, inode): (u64, u64)) -> Option<Pid> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let place = format!("{major:02x}:{minor:02x}:{inode}");
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
