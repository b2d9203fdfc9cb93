//! `kind: audit`: writes chosen operations to a log, one JSON object a line.
//!
//! A line is written when the outcome is known: the server's status, or the policy that answered. A thread of its own
//! writes, so that a slow disk does not hold up calls; when its queue is full, lines are lost, and counted, or calls wait
//! (`when-full: wait`) where no line may be lost.
//!
//! Invariants, with `when-full: wait`
//! - A call goes on only when there is a place for its line: while the disk takes no lines, or [`QUEUE_MAX`] are on their way to it,
//!   calls wait.
//! - What the disk did not take is tried again until it does, from the byte on where it stopped.
//! - Old files are removed only if `keep-files` says so, and the lines that go with them are counted.

use super::error::PolicyError;
use super::explain::{Question, Step};
use super::home::Home;
use super::{Context, Policy, Verdict, does, ops};
use crate::message::{Asked, Call, Reply};
use crate::places::{Node, Place, Zones};
use crate::wire::nfs3::{Op, Status};
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Most lines that wait to be written.
pub const QUEUE_MAX: usize = 16_384;
/// Most old files, where it is not said how many are kept and none may be lost.
pub const FILES_MAX: usize = 10_000;
/// How long a call waits before it is looked again whether there is a place for its line, µs.
const WAIT_US: u64 = 20_000;
/// How long the disk is left alone when it has taken nothing.
const RETRY: Duration = Duration::from_millis(100);
/// How long a line waits for a place where so many calls were under way that there is none.
const PLACE_WAIT: Duration = Duration::from_secs(1);

/// The file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct AuditFile {
    /// Where lines go. A relative path begins at the folder of policies.
    pub file: PathBuf,
    /// Operations that are logged.
    pub ops: Vec<String>,
    /// Folders; everything if there are none.
    #[serde(default)]
    pub paths: Vec<String>,
    /// Roles whose calls are logged; everybody's if there are none.
    #[serde(default)]
    pub roles: Vec<String>,
    /// Which outcomes are logged.
    #[serde(default)]
    pub outcome: Outcome,
    /// How many old files are kept, `<file>.1` the newest; if it is not said 1, or all with `when-full: wait`.
    #[serde(default)]
    pub keep_files: Option<usize>,
    /// Length at which the file is renamed to `<file>.1` and begun anew, bytes; 64 MiB if it is not said.
    #[serde(default)]
    pub rotate_bytes: Option<u64>,
    /// What happens when lines come faster than the disk takes them.
    #[serde(default)]
    pub when_full: WhenFull,
}

/// Which outcomes are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// All.
    #[default]
    All,
    /// Calls that a policy answered.
    Denied,
}

/// What happens when lines come faster than the disk takes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WhenFull {
    /// Lines are lost and counted.
    #[default]
    Lose,
    /// The session waits.
    Wait,
}

/// A line.
#[derive(Debug, Serialize)]
struct Line {
    unix_ms: u64,
    client: String,
    user: String,
    uid: u32,
    op: &'static str,
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_to: Option<String>,
    /// `nfsstat3`.
    status: u32,
    /// Policy that answered in place of the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    denied_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    latency_us: Option<u64>,
}

/// The writing end and what it has lost; it is the policy's dynamic context.
#[derive(Debug)]
struct Writer {
    queue: SyncSender<Line>,
    path: PathBuf,
    how: How,
    lost: AtomicU64,
    /// Lines on their way to the disk.
    coming: Arc<AtomicU64>,
    counts: Arc<Counts>,
}

/// How a log is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct How {
    rotate_bytes: u64,
    keep_files: usize,
    when_full: WhenFull,
}

/// What became of lines.
#[derive(Debug, Default)]
struct Counts {
    written: AtomicU64,
    /// Given up because the disk did not take them.
    failed: AtomicU64,
    /// Written, and removed with old files.
    removed: AtomicU64,
    /// The disk takes nothing now.
    stuck: AtomicBool,
}

/// The policy.
#[derive(Debug)]
pub struct Audit {
    ops: u32,
    nodes: Vec<Node>,
    roles: Vec<String>,
    outcome: Outcome,
    writer: Arc<Writer>,
}

impl Audit {
    /// Checks and compiles a file; its paths are added to `zones`. The log is opened.
    ///
    /// # Errors
    /// What is wrong.
    pub fn compile(
        file: &AuditFile,
        home: Home<'_>,
        zones: &mut Zones,
        before: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<Audit, PolicyError> {
        let path = home.folder.join(&file.file);
        let all = if file.when_full == WhenFull::Wait { FILES_MAX } else { 1 };
        let how = How {
            rotate_bytes: file.rotate_bytes.unwrap_or(64 << 20),
            keep_files: file.keep_files.unwrap_or(all),
            when_full: file.when_full,
        };
        PolicyError::between("keep-files", how.keep_files as u64, 1, FILES_MAX as u64)?;
        let before = before.and_then(|before| before.downcast::<Writer>().ok());
        let writer = match before.filter(|writer| writer.path == path && writer.how == how) {
            Some(writer) => writer,
            None if home.keeps => Arc::new(start(path, how)?),
            None => Arc::new(nowhere(path, how)),
        };
        Ok(Audit {
            ops: ops::parse(&file.ops)?,
            nodes: file.paths.iter().map(|path| zones.add(path)).collect::<Result<_, _>>()?,
            roles: file.roles.clone(),
            outcome: file.outcome,
            writer,
        })
    }

    /// True if what a caller with these roles does is logged: to what is at a place, or has a name there. Where nobody knows the place, it is.
    fn wanted(
        &self,
        roles: &[Arc<str>],
        (place, name): (Option<Place>, &[u8]),
        context: &Context<'_>,
    ) -> bool {
        if !self.roles.is_empty() && !self.roles.iter().any(|role| roles.iter().any(|own| **own == **role)) {
            return false;
        }
        self.nodes.is_empty() || {
            let Some(place) = place else { return true };
            let named = if name.is_empty() { None } else { context.zones.step(place, name) };
            let places = [Some(place), named];
            let within = |node| self.nodes.iter().any(|above| context.zones.within(node, *above));
            places.into_iter().flatten().any(|place| within(place.node))
        }
    }

    fn waits(&self) -> bool {
        self.writer.how.when_full == WhenFull::Wait
    }

    /// True if there is a place for one more line.
    fn has_place(&self) -> bool {
        let Writer { counts, coming, .. } = &*self.writer;
        !counts.stuck.load(Ordering::Relaxed) && coming.load(Ordering::Acquire) < QUEUE_MAX as u64
    }

    fn send(&self, mut line: Line) {
        let writer = &self.writer;
        writer.coming.fetch_add(1, Ordering::AcqRel);
        let until = SystemTime::now() + PLACE_WAIT;
        loop {
            line = match writer.queue.try_send(line) {
                Ok(()) => return,
                // There is room for as many calls again as could be under way when the last place was taken.
                Err(TrySendError::Full(line)) if self.waits() && SystemTime::now() < until => line,
                Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => break,
            };
            std::thread::sleep(Duration::from_millis(1));
        }
        writer.coming.fetch_sub(1, Ordering::AcqRel);
        writer.lost.fetch_add(1, Ordering::Relaxed);
    }
}

/// A log that takes no line.
fn nowhere(path: PathBuf, how: How) -> Writer {
    let (queue, _) = sync_channel(1);
    Writer { queue, path, how, lost: AtomicU64::new(0), coming: Arc::default(), counts: Arc::default() }
}

fn start(path: PathBuf, how: How) -> Result<Writer, PolicyError> {
    let file = open(&path).map_err(PolicyError::file("log", &path))?;
    let bytes = file.metadata().map_or(0, |metadata| metadata.len());
    let (queue, lines) = sync_channel(2 * QUEUE_MAX);
    let (coming, counts): (Arc<AtomicU64>, Arc<Counts>) = (Arc::default(), Arc::default());
    let mut log = Log { path: path.clone(), file: Box::new(file), bytes, how, torn: false };
    let (done, told) = (coming.clone(), counts.clone());
    std::thread::Builder::new()
        .name("audit".to_string())
        .spawn(move || log.run(&lines, &done, &told))
        .map_err(|error| PolicyError::Thread { of: "the log", error })?;
    Ok(Writer { queue, path, how, lost: AtomicU64::new(0), coming, counts })
}

fn open(path: &Path) -> std::io::Result<File> {
    super::log_file(path)
}

/// Where the `number`th old file is.
fn old(path: &Path, number: usize) -> PathBuf {
    let mut old = path.as_os_str().to_owned();
    old.push(format!(".{number}"));
    old.into()
}

struct Log {
    path: PathBuf,
    file: Box<dyn Write + Send>,
    bytes: u64,
    how: How,
    /// The disk has taken a part of a line that was given up.
    torn: bool,
}

impl Log {
    /// Writes lines until nobody can send more.
    fn run(&mut self, lines: &Receiver<Line>, coming: &AtomicU64, counts: &Counts) {
        while let Ok(first) = lines.recv() {
            let mut batch = Vec::new();
            // All that are there go out together.
            for line in std::iter::once(first).chain(lines.try_iter().take(QUEUE_MAX)) {
                let mut text = serde_json::to_vec(&line).unwrap_or_default();
                text.push(b'\n');
                batch.push(text);
            }
            self.put(&batch, counts);
            coming.fetch_sub(batch.len() as u64, Ordering::AcqRel);
        }
    }

    /// Writes lines; where none may be lost, as often as it takes.
    fn put(&mut self, batch: &[Vec<u8>], counts: &Counts) {
        let (mut number, mut done) = (0, 0);
        let mut complained = false;
        while let Some(line) = batch.get(number) {
            let begun = done > 0;
            match self.step(line, &mut done, counts) {
                Ok(()) => {
                    counts.written.fetch_add(1, Ordering::Relaxed);
                    (number, done) = (number + 1, 0);
                }
                Err(error) => {
                    if !std::mem::replace(&mut complained, true) {
                        tracing::error!(file = %self.path.display(), %error, "the audit log cannot be written");
                    }
                    if self.how.when_full == WhenFull::Lose {
                        self.torn |= begun || done > 0;
                        counts.failed.fetch_add((batch.len() - number) as u64, Ordering::Relaxed);
                        return;
                    }
                    counts.stuck.store(true, Ordering::Relaxed);
                    std::thread::sleep(RETRY);
                }
            }
        }
        counts.stuck.store(false, Ordering::Relaxed);
    }

    /// Writes what is left of a line behind its first `done` bytes.
    fn step(&mut self, line: &[u8], done: &mut usize, counts: &Counts) -> std::io::Result<()> {
        if *done == 0 && self.bytes > 0 && self.bytes + line.len() as u64 > self.how.rotate_bytes {
            self.rotate(counts)?;
        }
        if self.torn {
            self.file.write_all(b"\n")?;
            self.torn = false;
        }
        while *done < line.len() {
            match self.file.write(&line[*done..]) {
                Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
                Ok(bytes) => {
                    *done += bytes;
                    self.bytes += bytes as u64;
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The file becomes the newest old one; the oldest goes if there are too many.
    fn rotate(&mut self, counts: &Counts) -> std::io::Result<()> {
        let there = (1..=self.how.keep_files).take_while(|number| old(&self.path, *number).exists()).count();
        if there == self.how.keep_files {
            let oldest = old(&self.path, there);
            let lines = BufReader::new(File::open(&oldest)?).split(b'\n').count();
            if self.how.when_full == WhenFull::Wait && self.how.keep_files == FILES_MAX {
                return Err(std::io::Error::other(format!(
                    "there are {FILES_MAX} old files: move them away"
                )));
            }
            counts.removed.fetch_add(lines as u64, Ordering::Relaxed);
            std::fs::remove_file(&oldest)?;
        }
        for number in (1..=there.min(self.how.keep_files - 1)).rev() {
            std::fs::rename(old(&self.path, number), old(&self.path, number + 1))?;
        }
        std::fs::rename(&self.path, old(&self.path, 1))?;
        self.file = Box::new(open(&self.path)?);
        self.bytes = 0;
        Ok(())
    }
}

fn join(directory: String, name: Option<&[u8]>) -> String {
    match name {
        Some(name) if !name.is_empty() => {
            format!("{}/{}", directory.trim_end_matches('/'), String::from_utf8_lossy(name))
        }
        _ => directory,
    }
}

fn unix_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0))
}

impl Policy for Audit {
    fn kind(&self) -> &'static str {
        "audit"
    }

    fn ops(&self) -> u32 {
        self.ops
    }

    fn needs_handles(&self) -> bool {
        true
    }

    fn needs_names(&self) -> bool {
        true
    }

    fn tells_removals(&self) -> bool {
        !matches!(self.ops & does::REMOVALS, 0 | does::REMOVALS)
    }

    fn request(&self, _call: &mut Call<'_>, _context: &Context<'_>) -> Verdict {
        if self.waits() && !self.has_place() { Verdict::Wait(WAIT_US) } else { Verdict::Forward }
    }

    fn reply(&self, asked: &Asked, reply: &mut Reply<'_>, latency_us: u64, context: &Context<'_>) {
        let caller = &asked.caller;
        // Of a LINK the name is in the second folder, which is in the same zone.
        let name = asked.name.as_deref().filter(|_| asked.op != Op::Link).unwrap_or_default();
        let place = asked.place.or_else(|| context.places.get(asked.handle.as_bytes()));
        if self.outcome == Outcome::Denied || !self.wanted(&caller.roles, (place, name), context) {
            return;
        }
        let directory_to = asked.handle_to.map(|handle| context.places.path(handle.as_bytes()));
        let directory = context.places.path(asked.handle.as_bytes());
        let (path, path_to) = if asked.op == Op::Link {
            (directory, directory_to.map(|path| join(path, asked.name.as_deref())))
        } else {
            (
                join(directory, asked.name.as_deref()),
                directory_to.map(|path| join(path, asked.name_to.as_deref())),
            )
        };
        let line = Line {
            unix_ms: unix_ms(),
            client: caller.address.to_string(),
            user: caller.label(),
            uid: caller.uid,
            op: asked.op.name(),
            path,
            path_to,
            status: reply.results.status,
            denied_by: None,
            latency_us: Some(latency_us),
        };
        self.send(line);
    }

    fn answered(&self, call: &Call<'_>, by: &str, status: Status, _passed: bool, context: &Context<'_>) {
        let name = if call.arguments.name_count > 0 && call.op() != Op::Link { call.name(0) } else { &[] };
        let place = call.places.map_or_else(|| context.places.get(call.handle(0)), |places| places[0]);
        if !self.wanted(&call.caller.roles, (place, name), context) {
            return;
        }
        let line = Line {
            unix_ms: call.now.unix_ms,
            client: call.caller.address.to_string(),
            user: call.caller.label(),
            uid: call.caller.uid,
            op: call.op().name(),
            path: join(context.places.path(call.handle(0)), Some(call.name(0))),
            path_to: None,
            status: status.number(),
            denied_by: Some(by.to_string()),
            latency_us: None,
        };
        self.send(line);
    }

    fn dynamic(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(self.writer.clone())
    }

    fn details(&self) -> BTreeMap<String, u64> {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("lines_written".to_string(), get(&self.writer.counts.written)),
            ("lines_lost".to_string(), get(&self.writer.lost)),
            ("lines_failed".to_string(), get(&self.writer.counts.failed)),
            ("lines_removed".to_string(), get(&self.writer.counts.removed)),
        ]
        .into()
    }

    fn explain(&self, question: &Question, _context: &Context<'_>) -> Step {
        if self.ops & does::always(question.op) == 0 { Step::silent() } else { Step::forward("is logged") }
    }
}

#[cfg(test)]
mod tests;
