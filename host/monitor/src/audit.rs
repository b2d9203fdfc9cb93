//! The audit log: one line an entry, each line chained to the one before by a hash, so that a line that was changed, taken
//! out or put in is found (`weir monitor audit`).
//!
//! Line: SHA-256 in hexadecimal, a space, the entry as JSON. The hash is over the hash of the line before (64 zeros before
//! the first) and the JSON. What the chain cannot show is that lines at the end were cut off; who needs that copies the
//! newest hash elsewhere: it is in the status and in the metrics' labels of `weir monitor`.

pub mod process;

pub use process::Process;

use crate::crash::{CrashEntry, NotRestarted, crash, not_restarted};
use crate::error::{Error, Result};
use crate::incident::{GuestIncident, Incident, Note};
use crate::kernel::comm_text;
use crate::policy::Policy;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

/// Longest line that is read, bytes.
pub const LINE_BYTES_MAX: u64 = 64 * 1024;
/// When a log is begun anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// Length at which the log is moved to `<file>.1`, and begun anew, bytes. The chain goes on.
    pub bytes_max: u64,
    /// So many older ones are kept, `<file>.1` (the newest of them) and so on.
    pub kept: u32,
}

impl Default for Rotation {
    fn default() -> Rotation {
        Rotation { bytes_max: 64 << 20, kept: 4 }
    }
}
/// The hash before the first line.
const START: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// An alarm, as it is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alarm {
    /// What was measured.
    pub measure: String,
    /// What was found.
    pub found: u64,
    /// What the policy allows.
    pub limit: u64,
    /// What the policy does.
    pub action: String,
    /// Whether it only says so.
    pub dry_run: bool,
    /// What came of it.
    pub outcome: String,
    /// Who is behind it.
    pub culprit: Option<Process>,
    /// Who forked the culprit.
    pub parent: Option<Process>,
    /// Weight of the culprit's tree: processes, or resident pages.
    pub weight: u64,
    /// Living processes of the culprit's tree.
    pub members: u32,
    /// Of these, protected ones.
    pub spared: u32,
    /// Processes signalled.
    pub signalled: u32,
    /// The first of the processes that were or would be killed.
    pub processes: Vec<u32>,
    /// When the limit was seen to be passed, ns of the host's monotonic clock.
    pub time_ns: u64,
    /// From the birth of the oldest of them to the alarm, us; 0 if it is not known.
    pub age_us: u64,
    /// Whether the cgroup was frozen meanwhile.
    pub frozen: bool,
    /// From the alarm to the freeze, us.
    pub freeze_us: u64,
    /// From the alarm to the last signal and the thaw, us.
    pub act_us: u64,
}

/// What an entry tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum What {
    /// The monitor has started.
    Started {
        /// How the kernel is heard.
        kernel: String,
        /// Why it is not the best way, if it is not.
        degraded: Option<String>,
        /// The policies.
        policies: Vec<String>,
    },
    /// An alarm.
    Alarm(Box<Alarm>),
    /// The culprit's tree is gone.
    Settled {
        /// From the alarm on, us.
        took_us: u64,
        /// Processes that were signalled again.
        again: u32,
    },
    /// It is not gone.
    Unsettled {
        /// Processes left.
        left: u32,
    },
    /// A counter moves again.
    Recovered,
    /// Events were lost, and the processes were looked at anew.
    Resynced {
        /// Events lost.
        lost: u64,
    },
    /// A host of the ring failed.
    HostFailed {
        /// Its name.
        host: String,
        /// Whether it was fenced; nothing if there is no program that fences.
        fenced: Option<bool>,
    },
    /// A host that had failed answers again.
    HostRecovered {
        /// Its name.
        host: String,
    },
    /// A one-shot or continuous query fired.
    Query {
        /// The query.
        query: String,
        /// Its value then.
        value: String,
    },
    /// A repair was ordered from above.
    Ordered {
        /// The cgroup.
        cgroup: String,
        /// What was ordered.
        order: String,
        /// The version of the order.
        version: u64,
        /// Why it could not be carried out, if it could not.
        problem: Option<String>,
    },
    /// A guest hangs, or has too many tasks.
    Guest(GuestAlarm),
    /// A process of a service crashed.
    Crashed(CrashEntry),
    /// A service that was started again is up.
    Restarted {
        /// The attempt, counted from 1.
        attempt: u32,
        /// From the command to the main process, us.
        took_us: u64,
        /// The main process.
        process: u32,
    },
    /// A service that was started again is not up.
    NotRestarted(NotRestarted),
    /// The monitor ends.
    Stopped,
}

/// An alarm about a guest, as it is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestAlarm {
    /// What was measured: `silent-ns`, `panic` or `tasks`.
    pub measure: String,
    /// What was found.
    pub found: u64,
    /// What the policy allows.
    pub limit: u64,
    /// The program with the most tasks, where tasks were counted.
    pub program: String,
    /// The process, as the guest numbers it, whose tree holds half of them; 0 if there is none.
    #[serde(default)]
    pub process: u32,
    /// What the policy does.
    pub action: String,
    /// Whether it only says so.
    pub dry_run: bool,
    /// Whether the guest was made sure to do no more before anything else was done; nothing if that was not tried.
    pub fenced: Option<bool>,
    /// What came of it: `reported`, `acted` or `unable`.
    pub outcome: String,
    /// Whether the program of the fail-over was run and succeeded; nothing if there is none.
    pub failed_over: Option<bool>,
    /// From the alarm to the fence, us.
    pub fence_us: u64,
    /// From the alarm to the end of it all, us.
    pub act_us: u64,
}

/// An entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its number, from 1 on: what `weir monitor explain` takes.
    pub number: u64,
    /// When, ms since 1970.
    pub unix_ms: u64,
    /// The policy, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

/// Turns a note of the loop into what is written; `queries` and `hosts` are the names that notes give by number.
pub fn what(
    note: &Note,
    policies: &[Policy],
    queries: &[String],
    hosts: &[String],
) -> (Option<String>, What) {
    let name = |at: usize| policies.get(at).map(|policy| policy.common().name.clone());
    match note {
        Note::Incident(incident) => {
            (name(incident.policy), What::Alarm(Box::new(alarm(incident, policies.get(incident.policy)))))
        }
        Note::Settled { policy, took_ns, again } => {
            (name(*policy), What::Settled { took_us: took_ns / 1000, again: *again })
        }
        Note::Unsettled { policy, left } => (name(*policy), What::Unsettled { left: *left }),
        Note::Recovered { policy } => (name(*policy), What::Recovered),
        Note::Query { query, value } => {
            let query = queries.get(*query).cloned().unwrap_or_default();
            (None, What::Query { query, value: value.text() })
        }
        Note::HostFailed { host, fenced } => {
            let host = hosts.get(usize::from(*host)).cloned().unwrap_or_default();
            (None, What::HostFailed { host, fenced: *fenced })
        }
        Note::HostRecovered { host } => {
            (None, What::HostRecovered { host: hosts.get(usize::from(*host)).cloned().unwrap_or_default() })
        }
        Note::Resynced { lost } => (None, What::Resynced { lost: *lost }),
        Note::Crashed(found) => (name(found.policy), What::Crashed(crash(found))),
        Note::Restarted { policy, attempt, took_ns, process } => {
            let (attempt, process) = (*attempt, *process);
            (name(*policy), What::Restarted { attempt, took_us: took_ns / 1000, process })
        }
        Note::NotRestarted { policy, attempt, why, next } => {
            (name(*policy), What::NotRestarted(not_restarted(*attempt, *why, *next)))
        }
        Note::Guest(incident) => {
            (name(incident.policy), What::Guest(guest_alarm(incident, policies.get(incident.policy))))
        }
    }
}

fn guest_alarm(incident: &GuestIncident, policy: Option<&Policy>) -> GuestAlarm {
    let (measure, found, limit) = incident.reason.parts();
    GuestAlarm {
        measure: measure.to_string(),
        found,
        limit,
        program: comm_text(&incident.comm),
        process: incident.process,
        action: policy.map_or("", Policy::action_name).to_string(),
        dry_run: policy.is_none_or(|policy| policy.common().dry_run),
        fenced: incident.fenced,
        outcome: incident.outcome.name().to_string(),
        failed_over: incident.failed_over,
        fence_us: incident.fence_ns / 1000,
        act_us: incident.act_ns / 1000,
    }
}

fn alarm(incident: &Incident, policy: Option<&Policy>) -> Alarm {
    let (measure, found, limit) = incident.reason.parts();
    let common = policy.map(Policy::common);
    let age_ns = if incident.first_ns == 0 { 0 } else { incident.time_ns.saturating_sub(incident.first_ns) };
    Alarm {
        measure: measure.to_string(),
        found,
        limit,
        action: common.map_or("", |common| common.action.name()).to_string(),
        dry_run: common.is_none_or(|common| common.dry_run),
        outcome: incident.outcome.name().to_string(),
        culprit: Process::of(&incident.culprit),
        parent: Process::of(&incident.parent),
        weight: incident.weight,
        members: incident.members,
        spared: incident.spared,
        signalled: incident.signalled,
        processes: incident.listed.iter().copied().filter(|process| *process != 0).collect(),
        time_ns: incident.time_ns,
        age_us: age_ns / 1000,
        frozen: incident.frozen,
        freeze_us: incident.freeze_ns / 1000,
        act_us: incident.act_ns / 1000,
    }
}

fn chain(before: &str, json: &str) -> String {
    let digest = Sha256::new().chain_update(before).chain_update(json).finalize();
    digest.iter().fold(String::with_capacity(64), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// An open log.
#[derive(Debug)]
pub struct Log {
    path: PathBuf,
    file: File,
    hash: String,
    number: u64,
    bytes: u64,
    rotation: Rotation,
    /// The lock; given back when this is dropped.
    _held: File,
}

/// Takes the lock of a log, which is a file beside it: one that rotates is another file each time.
fn hold(path: &Path) -> Result<File> {
    let mut name = path.as_os_str().to_os_string();
    name.push(".lock");
    let lock = PathBuf::from(name);
    let failed =
        |error: std::io::Error| Error::io(format!("locking the audit log {}", path.display()), error);
    let flags = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    let file = std::os::unix::fs::OpenOptionsExt::custom_flags(
        OpenOptions::new().write(true).create(true).truncate(false),
        flags,
    )
    .open(&lock)
    .map_err(failed)?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).map_err(|_| {
        let text = "another monitor writes it: end that one, or give this one a log of its own (--audit)";
        failed(std::io::Error::other(text))
    })?;
    Ok(file)
}

impl Log {
    /// Opens or creates a log, and checks it.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Audit`] when it is damaged: move it away to begin anew.
    pub fn open(path: &Path) -> Result<Log> {
        Log::open_with(path, Rotation::default())
    }

    /// The same, begun anew when it is told here.
    ///
    /// # Errors
    /// As [`Log::open`].
    pub fn open_with(path: &Path, rotation: Rotation) -> Result<Log> {
        let failed = |error| Error::io(format!("opening the audit log {}", path.display()), error);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        // Before it is read: what another writes meanwhile would break the chain.
        let held = hold(path)?;
        let (mut hash, mut number) = (START.to_string(), 0);
        let older = rotated(path, 1);
        for file in [&older, path] {
            if file.exists() {
                let read = read(file)?;
                if let Some((newest_hash, newest)) = read.last() {
                    (hash, number) = (newest_hash.clone(), newest.number);
                }
            }
        }
        let file = OpenOptions::new().append(true).create(true).open(path).map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        Ok(Log { path: path.to_path_buf(), file, hash, number, bytes, rotation, _held: held })
    }

    /// The hash of the newest line.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// Writes an entry and syncs it; returns it.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&mut self, unix_ms: u64, policy: Option<String>, what: What) -> Result<Entry> {
        let failed = |path: &Path| {
            let what = format!("writing the audit log {}", path.display());
            move |error: std::io::Error| Error::io(what, error)
        };
        // A log that cannot be moved is written on: an entry matters more than a length.
        if (self.bytes >= self.rotation.bytes_max || self.was_moved())
            && let Err(error) = self.begin_anew()
        {
            tracing::warn!(%error, path = %self.path.display(), "the audit log is not begun anew");
        }
        let entry = Entry { number: self.number + 1, unix_ms, policy, what };
        let json = serde_json::to_string(&entry)
            .map_err(|error| failed(&self.path)(std::io::Error::other(error)))?;
        let hash = chain(&self.hash, &json);
        let line = format!("{hash} {json}\n");
        if let Err(error) = self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data()) {
            // Half a line would break the chain for good.
            let mended = self.file.set_len(self.bytes);
            if let Err(error) = mended {
                tracing::error!(%error, path = %self.path.display(), "half a line stays in the audit log");
            }
            return Err(failed(&self.path)(error));
        }
        self.bytes += line.len() as u64;
        self.hash = hash;
        self.number = entry.number;
        Ok(entry)
    }
}

impl Log {
    /// Whether somebody else has moved the log away, as programs that rotate logs do, or deleted it.
    fn was_moved(&self) -> bool {
        use std::os::unix::fs::MetadataExt;
        let which = |status: std::fs::Metadata| (status.dev(), status.ino());
        let (own, there) =
            (self.file.metadata().map(which), std::fs::symlink_metadata(&self.path).map(which));
        match (own, there) {
            (Ok(own), Ok(there)) => own != there,
            (_, Err(error)) => error.kind() == std::io::ErrorKind::NotFound,
            (Err(_), Ok(_)) => false,
        }
    }

    /// Moves the log and those before it on by one, and begins a new one.
    fn begin_anew(&mut self) -> std::io::Result<()> {
        if !self.was_moved() {
            for number in (1..self.rotation.kept).rev() {
                let (from, to) = (rotated(&self.path, number), rotated(&self.path, number + 1));
                match std::fs::rename(from, to) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
            std::fs::rename(&self.path, rotated(&self.path, 1))?;
        }
        let flags = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
        let mut options = OpenOptions::new();
        options.append(true).create(true);
        self.file = std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, flags).open(&self.path)?;
        self.bytes = self.file.metadata()?.len();
        // The names are kept as surely as the lines.
        self.path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
    }
}

/// The name of an older log: 1 is the newest of them.
fn rotated(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(format!(".{number}"));
    PathBuf::from(name)
}

/// Reads a log with the older ones that are left, oldest first, and checks that the chain goes through all of them.
///
/// # Errors
/// [`Error::Io`], [`Error::Audit`].
pub fn read_all(path: &Path) -> Result<Vec<(String, Entry)>> {
    let older = (1..=Rotation::default().kept).map(|number| rotated(path, number));
    let older: Vec<PathBuf> = older.take_while(|file| file.exists()).collect();
    let mut all: Vec<(String, Entry)> = Vec::new();
    for file in older.iter().rev().map(PathBuf::as_path).chain([path]) {
        let entries = match read_after(file, all.last()) {
            // One that was moved a moment ago is begun anew with the next entry.
            Err(Error::Io { error, .. })
                if error.kind() == std::io::ErrorKind::NotFound && file == path && !all.is_empty() =>
            {
                break;
            }
            other => other?,
        };
        all.extend(entries);
    }
    Ok(all)
}

/// Reads a log, with the hash of each line, and checks the chain. The first line of a log that continues another is
/// believed to do so. A last line without its end, as a crash leaves it, is refused like any other damage.
///
/// # Errors
/// [`Error::Io`], [`Error::Audit`].
pub fn read(path: &Path) -> Result<Vec<(String, Entry)>> {
    read_after(path, None)
}

/// The same, of a log that goes on after an entry.
fn read_after(path: &Path, before: Option<&(String, Entry)>) -> Result<Vec<(String, Entry)>> {
    let failed = |error| Error::io(format!("reading the audit log {}", path.display()), error);
    let mut reader = BufReader::new(File::open(path).map_err(failed)?);
    let mut entries: Vec<(String, Entry)> = Vec::new();
    let mut line = Vec::new();
    loop {
        line.clear();
        let taken =
            std::io::Read::take(&mut reader, LINE_BYTES_MAX).read_until(b'\n', &mut line).map_err(failed)?;
        if taken == 0 {
            return Ok(entries);
        }
        let number = entries.len() + 1;
        let wrong = |reason: String| Error::Audit { path: path.to_path_buf(), line: number, reason };
        let (hash, entry) = parse(&line, entries.last().or(before)).map_err(wrong)?;
        entries.push((hash, entry));
    }
}

fn parse(line: &[u8], before: Option<&(String, Entry)>) -> std::result::Result<(String, Entry), String> {
    let line = line.strip_suffix(b"\n").ok_or("the line has no end")?;
    let text = std::str::from_utf8(line).map_err(|_| "it is no text")?;
    let (hash, json) = text.split_once(' ').ok_or("there is no hash")?;
    let entry: Entry = serde_json::from_str(json).map_err(|error| error.to_string())?;
    match before {
        Some((newest, last)) => {
            if chain(newest, json) != hash {
                return Err("its hash does not follow from the line before: one of them was changed".into());
            }
            if entry.number != last.number + 1 {
                return Err(format!("entry {} follows entry {}", entry.number, last.number));
            }
        }
        None if entry.number == 1 && chain(START, json) != hash => {
            return Err("its hash is not that of a first line: it was changed".into());
        }
        None => {}
    }
    Ok((hash.to_string(), entry))
}

#[cfg(test)]
mod tests;
