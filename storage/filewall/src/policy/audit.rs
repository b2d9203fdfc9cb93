//! `kind: audit`: writes chosen operations to a log, one JSON object a line.
//!
//! A line is written when the outcome is known: the server's status, or the policy that answered. A thread of its own
//! writes, so that a slow disk does not hold up calls; when its queue is full, lines are lost, and counted, or calls wait
//! (`when-full: wait`) where no line may be lost.

use super::explain::{Question, Step};
use super::file::Home;
use super::{Context, Policy, Verdict, ops};
use crate::message::{Asked, Call, Reply};
use crate::places::{Node, ROOT, Zones};
use crate::wire::nfs3::{Op, Status};
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{SystemTime, UNIX_EPOCH};

/// Most lines that wait to be written.
pub const QUEUE_MAX: usize = 16_384;

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
    rotate_bytes: u64,
    lost: AtomicU64,
    written: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
}

/// The policy.
#[derive(Debug)]
pub struct Audit {
    ops: u32,
    nodes: Vec<Node>,
    roles: Vec<String>,
    outcome: Outcome,
    when_full: WhenFull,
    writer: Arc<Writer>,
}

impl Audit {
    /// Checks and compiles a file; its paths are added to `zones`. The log is opened.
    ///
    /// # Errors
    /// What is wrong, as text.
    pub fn compile(
        file: &AuditFile,
        home: Home<'_>,
        zones: &mut Zones,
        before: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<Audit, String> {
        let path = home.folder.join(&file.file);
        let rotate_bytes = file.rotate_bytes.unwrap_or(64 << 20);
        let before = before.and_then(|before| before.downcast::<Writer>().ok());
        let writer = match before.filter(|writer| writer.path == path && writer.rotate_bytes == rotate_bytes)
        {
            Some(writer) => writer,
            None if home.keeps => Arc::new(start(path, rotate_bytes)?),
            None => Arc::new(nowhere(path, rotate_bytes)),
        };
        Ok(Audit {
            ops: ops::parse(&file.ops)?,
            nodes: file.paths.iter().map(|path| zones.add(path)).collect::<Result<_, _>>()?,
            roles: file.roles.clone(),
            outcome: file.outcome,
            when_full: file.when_full,
            writer,
        })
    }

    fn wanted(&self, roles: &[Arc<str>], handle: &[u8], context: &Context<'_>) -> bool {
        if !self.roles.is_empty() && !self.roles.iter().any(|role| roles.iter().any(|own| **own == **role)) {
            return false;
        }
        self.nodes.is_empty() || {
            let place = context.places.get(handle).unwrap_or(ROOT);
            self.nodes.iter().any(|above| context.zones.within(place.node, *above))
        }
    }

    fn send(&self, line: Line) {
        let lost = match self.when_full {
            WhenFull::Wait => self.writer.queue.send(line).is_err(),
            WhenFull::Lose => match self.writer.queue.try_send(line) {
                Ok(()) => false,
                Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => true,
            },
        };
        if lost {
            self.writer.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A log that takes no line.
fn nowhere(path: PathBuf, rotate_bytes: u64) -> Writer {
    let (queue, _) = sync_channel(1);
    let (written, failed) = (Arc::default(), Arc::default());
    Writer { queue, path, rotate_bytes, lost: AtomicU64::new(0), written, failed }
}

fn start(path: PathBuf, rotate_bytes: u64) -> Result<Writer, String> {
    let file = open(&path).map_err(|error| format!("log {}: {error}", path.display()))?;
    let bytes = file.metadata().map_or(0, |metadata| metadata.len());
    let (queue, lines) = sync_channel(QUEUE_MAX);
    let (written, failed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let log = Log { path: path.clone(), file: BufWriter::new(file), bytes, rotate_bytes };
    let counters = (written.clone(), failed.clone());
    std::thread::Builder::new()
        .name("audit".to_string())
        .spawn(move || log.run(&lines, &counters.0, &counters.1))
        .map_err(|error| format!("no thread for the log: {error}"))?;
    Ok(Writer { queue, path, rotate_bytes, lost: AtomicU64::new(0), written, failed })
}

fn open(path: &Path) -> std::io::Result<File> {
    File::options().create(true).append(true).open(path)
}

struct Log {
    path: PathBuf,
    file: BufWriter<File>,
    bytes: u64,
    rotate_bytes: u64,
}

impl Log {
    fn run(mut self, lines: &Receiver<Line>, written: &AtomicU64, failed: &AtomicU64) {
        while let Ok(first) = lines.recv() {
            let mut count = 0;
            let mut result = Ok(());
            // All that are there go out together, then the file is what a reader sees.
            for line in std::iter::once(first).chain(lines.try_iter().take(QUEUE_MAX)) {
                result = result.and_then(|()| self.write(&line));
                count += 1;
            }
            match result.and_then(|()| self.file.flush()) {
                Ok(()) => written.fetch_add(count, Ordering::Relaxed),
                Err(error) => {
                    tracing::error!(file = %self.path.display(), %error, "the audit log cannot be written");
                    failed.fetch_add(count, Ordering::Relaxed)
                }
            };
        }
    }

    fn write(&mut self, line: &Line) -> std::io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        let bytes = text.len() as u64;
        if self.bytes > 0 && self.bytes + bytes > self.rotate_bytes {
            self.file.flush()?;
            let mut old = self.path.clone().into_os_string();
            old.push(".1");
            std::fs::rename(&self.path, old)?;
            self.file = BufWriter::new(open(&self.path)?);
            self.bytes = 0;
        }
        self.bytes += bytes;
        self.file.write_all(&text)
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

    fn request(&self, _call: &mut Call<'_>, _context: &Context<'_>) -> Verdict {
        Verdict::Forward
    }

    fn reply(&self, asked: &Asked, reply: &mut Reply<'_>, latency_us: u64, context: &Context<'_>) {
        let caller = &asked.caller;
        if self.outcome == Outcome::Denied || !self.wanted(&caller.roles, asked.handle.as_bytes(), context) {
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
        self.send(Line {
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
        });
    }

    fn answered(&self, call: &Call<'_>, by: &str, status: Status, _passed: bool, context: &Context<'_>) {
        if !self.wanted(&call.caller.roles, call.handle(0), context) {
            return;
        }
        self.send(Line {
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
        });
    }

    fn dynamic(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(self.writer.clone())
    }

    fn details(&self) -> BTreeMap<String, u64> {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("lines_written".to_string(), get(&self.writer.written)),
            ("lines_lost".to_string(), get(&self.writer.lost)),
            ("lines_failed".to_string(), get(&self.writer.failed)),
        ]
        .into()
    }

    fn explain(&self, question: &Question, _context: &Context<'_>) -> Step {
        if self.ops & question.op.bit() == 0 { Step::silent() } else { Step::forward("is logged") }
    }
}

#[cfg(test)]
mod tests;
