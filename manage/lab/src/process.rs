//! Programs that stay: started in a namespace, written down, and ended by exactly that identity.
//!
//! A process is identified by pid, start time (from `/proc/<pid>/stat`) and boot id. A signal goes through a
//! pidfd that was opened before the identity was compared, so a pid that was given to somebody else in between
//! is never hit. `ip netns exec`, `sh` (see [`crate::private`]), `taskset` and `nice` replace themselves by the program, so the pid we get is
//! the program's own.

use crate::{Error, Netns, Result, private, system};
pub use rustix::process::Signal;
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a program may take to end after SIGTERM, then after SIGKILL.
const STOP_BOUND: Duration = Duration::from_secs(5);
/// How much of a log is quoted in an error, in bytes.
const LOG_QUOTE_BYTES: usize = 800;

/// A program to start: what, where, on which core.
#[derive(Debug, Clone)]
pub struct Program {
    words: Vec<OsString>,
    netns: Option<Netns>,
    core: Option<u32>,
    environment: Vec<(String, String)>,
}

impl Program {
    /// A program by name or path, without arguments, in the caller's namespace.
    pub fn new(program: impl Into<OsString>) -> Self {
        Self { words: vec![program.into()], netns: None, core: None, environment: Vec::new() }
    }

    /// One more argument.
    pub fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.words.push(argument.into());
        self
    }

    /// More arguments.
    pub fn args<A: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.words.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// The namespace to run in.
    pub fn netns(mut self, netns: &Netns) -> Self {
        self.netns = Some(netns.clone());
        self
    }

    /// The only core to run on.
    pub fn core(mut self, core: u32) -> Self {
        self.core = Some(core);
        self
    }

    /// An environment variable.
    pub fn env(mut self, key: &str, value: impl Into<String>) -> Self {
        self.environment.push((key.to_string(), value.into()));
        self
    }

    /// The command that enters the namespace and core and becomes the program.
    pub fn command(&self) -> Command {
        let mut words: Vec<OsString> = Vec::new();
        if let Some(netns) = &self.netns {
            words.extend(private::words(netns.name()));
        }
        if let Some(core) = self.core {
            words.extend(["taskset".into(), "-c".into(), core.to_string().into()]);
        }
        words.extend(self.words.iter().cloned());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).envs(self.environment.iter().map(|(key, value)| (key, value)));
        command
    }
}

/// What is written down of a started process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Process id.
    pub pid: i32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// Boot in which it was started.
    pub boot_id: String,
    /// The command line, for people.
    pub command: String,
}

impl Record {
    /// The record of a running process.
    pub fn of(pid: i32, command: String) -> Result<Self> {
        let (_, start_ticks) = stat(pid)
            .ok_or_else(|| Error::io(format!("read /proc/{pid}/stat"), std::io::ErrorKind::NotFound))?;
        Ok(Self { pid, start_ticks, boot_id: boot_id(), command })
    }

    /// True while this very process runs (a zombie does not). One whose first thread has ended runs as long as another has not: its
    /// locks and sockets are still its own.
    pub fn alive(&self) -> bool {
        matches!(stat(self.pid), Some((state, ticks))
            if ticks == self.start_ticks && (!matches!(state, 'Z' | 'X') || has_threads(self.pid)))
            && self.boot_id == boot_id()
    }

    /// Sends a signal to this very process; true if it was still there.
    pub fn signal(&self, signal: Signal) -> Result<bool> {
        let Some(pid) = Pid::from_raw(self.pid) else { return Ok(false) };
        let fd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => fd,
            Err(rustix::io::Errno::SRCH) => return Ok(false),
            Err(error) => return Err(Error::io(format!("open process {}", self.pid), error)),
        };
        if !self.alive() {
            return Ok(false);
        }
        match pidfd_send_signal(&fd, signal) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::SRCH) => Ok(false),
            Err(error) => Err(Error::io(format!("signal process {}", self.pid), error)),
        }
    }

    /// Ends this very process: SIGTERM, then SIGKILL. True if it was still there.
    pub fn stop(&self, mut reap: impl FnMut()) -> Result<bool> {
        if !self.signal(Signal::TERM)? {
            reap();
            return Ok(false);
        }
        // A stopped process handles SIGTERM only when it goes on.
        self.signal(Signal::CONT)?;
        if !self.wait_gone(&mut reap) {
            self.signal(Signal::KILL)?;
            if !self.wait_gone(&mut reap) {
                let what = format!("the end of `{}` after SIGKILL", self.command);
                return Err(system::timeout(what, STOP_BOUND, String::new()));
            }
        }
        Ok(true)
    }

    /// Waits for the end, also when the person has interrupted us: cleaning up is what they asked for.
    fn wait_gone(&self, reap: &mut impl FnMut()) -> bool {
        let begin = Instant::now();
        loop {
            reap();
            if !self.alive() {
                return true;
            }
            if begin.elapsed() > STOP_BOUND {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A program that was started by a [`crate::Scope`]. Dropping it leaves it running: the scope ends it.
#[derive(Debug)]
pub struct Daemon {
    name: String,
    record: Record,
    record_path: PathBuf,
    log_path: PathBuf,
    child: Child,
}

impl Daemon {
    /// Starts `program`; writes `<name>.proc` and `<name>.log` in `folder`.
    pub(crate) fn start(folder: &Path, name: &str, program: &Program) -> Result<Self> {
        use std::os::unix::process::CommandExt;
        let log_path = folder.join(format!("{name}.log"));
        let log = File::options()
            .create(true)
            .append(true)
            .open(&log_path)
            .map_err(|error| Error::io(format!("open {}", log_path.display()), error))?;
        let log_again = log.try_clone().map_err(|error| Error::io("share the log file", error))?;
        let mut command = program.command();
        let line = system::command_line(&command);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(log_again)
            .process_group(0)
            .spawn()
            .map_err(|error| system::spawn_error(&command, error))?;
        let record_path = folder.join(format!("{name}.proc"));
        let recorded = pid_of(&child).and_then(|pid| Record::of(pid, line)).and_then(|record| {
            write_record(&record_path, &record)?;
            Ok(record)
        });
        match recorded {
            Ok(record) => Ok(Self { name: name.to_string(), record, record_path, log_path, child }),
            Err(error) => {
                // Not written down is not allowed to live.
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    /// Process id.
    pub fn pid(&self) -> i32 {
        self.record.pid
    }

    /// What was written down of it.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Its name in the scope.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where its output goes.
    pub fn log_path(&self) -> &Path {
        &self.log_path
    }

    /// True while it runs.
    pub fn alive(&self) -> bool {
        self.record.alive()
    }

    /// Polls `condition` until it is true; an error at once when the program ends, with the end of its log.
    pub fn wait_until(
        &self,
        what: &str,
        bound: Duration,
        mut condition: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let waited = system::wait_for(what, bound, || {
            if condition()? {
                return Ok(true);
            }
            if self.alive() {
                return Ok(false);
            }
            Err(Error::Command {
                command: self.record.command.clone(),
                status: "ended early".into(),
                stderr: self.log_end(),
            })
        });
        match waited {
            Err(Error::Timeout { what, .. }) => Err(system::timeout(
                what,
                bound,
                format!("see {}: {}", self.log_path.display(), self.log_end()),
            )),
            other => other,
        }
    }

    /// Sends it a signal; true if it was still there.
    pub fn signal(&self, signal: Signal) -> Result<bool> {
        self.record.signal(signal)
    }

    /// Ends it with SIGKILL at once, as a crash would.
    pub fn kill(&mut self) -> Result<()> {
        self.record.signal(Signal::KILL)?;
        let _ = self.child.wait();
        self.forget()
    }

    /// Ends it: SIGTERM, then SIGKILL.
    pub fn stop(&mut self) -> Result<()> {
        let child = &mut self.child;
        self.record.stop(|| {
            let _ = child.try_wait();
        })?;
        self.forget()
    }

    fn forget(&self) -> Result<()> {
        remove_if_there(&self.record_path)
    }

    fn log_end(&self) -> String {
        let bytes = std::fs::read(&self.log_path).unwrap_or_default();
        String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(LOG_QUOTE_BYTES)..]).trim().to_string()
    }
}

/// Removes a file; one that is not there is fine.
pub(crate) fn remove_if_there(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io(format!("remove {}", path.display()), error))
        }
        _ => Ok(()),
    }
}

/// Reads a `.proc` file.
pub(crate) fn read_record(path: &Path) -> Result<Record> {
    let text = std::fs::read(path).map_err(|error| Error::io(format!("read {}", path.display()), error))?;
    serde_json::from_slice(&text)
        .map_err(|error| Error::io(format!("{} is not a process record", path.display()), error))
}

fn write_record(path: &Path, record: &Record) -> Result<()> {
    let text = serde_json::to_vec(record).map_err(|error| Error::io("write a process record", error))?;
    std::fs::write(path, text).map_err(|error| Error::io(format!("write {}", path.display()), error))
}

fn pid_of(child: &Child) -> Result<i32> {
    i32::try_from(child.id()).map_err(|_| Error::io("process id", std::io::ErrorKind::InvalidData))
}

/// State letter and start time of a process, from the text after its parenthesised name.
fn stat(pid: i32) -> Option<(char, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let after_name = &text[text.rfind(')')? + 1..];
    let mut fields = after_name.split_whitespace();
    let state = fields.next()?.chars().next()?;
    // State is field 3 of the file and the start time is field 22.
    let start_ticks = fields.nth(18)?.parse().ok()?;
    Some((state, start_ticks))
}

/// Whether a process has more threads than its first.
fn has_threads(pid: i32) -> bool {
    std::fs::read_dir(format!("/proc/{pid}/task")).is_ok_and(|tasks| tasks.count() > 1)
}

fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_string()
}
