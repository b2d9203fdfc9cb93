//! `kind: quota`: how much a user, a machine, or all together may write in an hour, a day, a week, or ever; and how many names
//! they may make. What is above is answered with `NFS3ERR_DQUOT`.
//!
//! What is counted is what was written through FileWall, not what lies on the server. A call is counted when it comes, so that
//! calls in flight cannot go beyond the limit together; a reply that says otherwise (an error, a short write),
//! a later policy's denial, or that the server never came to it (what stands behind an operation of a COMPOUND that fails, a call whose client
//! is gone while it waits) corrects it. Bytes are those of a WRITE, of a symbolic link's target, and what a file grows by when its length is
//! set. A CREATE of a name that is there already counts as one too.
//!
//! Invariants
//! - What is counted for a call is noted in it ([`Call::counted`], and its operation), and that is what is given back, once.
//! - It is given back to the period in which it was counted, and when that is over to none: a period's count never falls below what
//!   was written in it. At a border a call may so count for more than it wrote, never for less.
//! - A period that has begun does not end because somebody's clock was read a moment before: workers read it once for each batch.
//!
//! The counts are the policy's dynamic context, and it is persistent (paper 4.2.2): a thread of its own writes all of them
//! as one file, beside the old one and then in its place, within a second of a change and when the policy ends. So a
//! reader finds the state of one moment, whole; a killed FileWall loses at most the last second's counts.

use super::error::{CountsError, PolicyError};
use super::explain::{Question, Step};
use super::home::Home;
use super::rate::{Key, Per};
use super::{Context, Policy, Verdict};
use crate::message::{Asked, Call, Counted, Probe, Reply};
use crate::wire::make::at;
use crate::wire::nfs3::{Handle, Op, Status};
use crate::wire::xdr::get_u32;
use hashbrown::HashMap;
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Most users or machines whose counts are kept; the ones that come then share one.
pub const COUNTED_MAX: usize = 65_536;
/// Longest file of counts that is read, bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// How often changed counts are written.
const SAVE: Duration = Duration::from_secs(1);
const MADE: u32 = Op::Create.bit() | Op::Mkdir.bit() | Op::Symlink.bit() | Op::Mknod.bit() | Op::Link.bit();

/// The file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct QuotaFile {
    /// Who shares a quota.
    pub per: Per,
    /// Bytes that may be written in a period.
    #[serde(default)]
    pub bytes: Option<u64>,
    /// Names that may be made in a period.
    #[serde(default)]
    pub names: Option<u64>,
    /// The period. It begins at the full hour, day or (on Thursday) week of UTC.
    pub period: Period,
    /// File with the counts. A relative path begins at the folder of policies.
    pub state_file: PathBuf,
}

/// For how long is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Period {
    /// An hour.
    Hour,
    /// A day.
    Day,
    /// A week.
    Week,
    /// For ever.
    Ever,
}

impl Period {
    fn number(self, unix_ms: u64) -> u64 {
        const HOUR_MS: u64 = 3_600_000;
        match self {
            Period::Hour => unix_ms / HOUR_MS,
            Period::Day => unix_ms / (24 * HOUR_MS),
            Period::Week => unix_ms / (7 * 24 * HOUR_MS),
            Period::Ever => 0,
        }
    }
}

/// What was counted in a period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Count {
    period: u64,
    bytes: u64,
    names: u64,
}

impl Count {
    /// True if it goes on in this period: it is of this one, or of the next one, which others have seen begin.
    fn is_of(&self, period: u64) -> bool {
        self.period == period || self.period == period.saturating_add(1)
    }
}

/// The counts as they stand in their file.
type Saved = BTreeMap<String, Count>;

#[derive(Debug, Default)]
struct Counts {
    all: HashMap<Key, Count, foldhash::fast::RandomState>,
    changed: bool,
    failed: u64,
}

impl Counts {
    /// Under which key somebody is counted: those who come when there are too many share one.
    fn shared(&self, key: Key) -> Key {
        if self.all.len() >= COUNTED_MAX && !self.all.contains_key(&key) { Key::All } else { key }
    }

    fn of(&mut self, key: Key, period: u64) -> &mut Count {
        if self.all.len() >= COUNTED_MAX && !self.all.contains_key(&key) {
            self.all.retain(|_, count| count.is_of(period));
        }
        let key = self.shared(key);
        let count = self.all.entry(key).or_default();
        if !count.is_of(period) {
            *count = Count { period, ..Count::default() };
        }
        count
    }

    /// What is counted for somebody in a period, for a look.
    fn seen(&self, key: Key, period: u64) -> Count {
        let count = self.all.get(&self.shared(key)).copied().unwrap_or_default();
        if count.is_of(period) { count } else { Count::default() }
    }
}

type Totals = HashMap<Key, Count, foldhash::fast::RandomState>;

/// The dynamic context: the counts, and the thread that keeps them.
#[derive(Debug)]
struct Memory {
    counts: Arc<Mutex<Counts>>,
    path: PathBuf,
    stop: Option<Sender<()>>,
    keeper: Option<JoinHandle<()>>,
}

impl Memory {
    /// The counts as they were saved last; nothing is kept.
    fn look(path: PathBuf) -> Result<Memory, PolicyError> {
        let counts = Counts { all: load(&path)?, ..Counts::default() };
        Ok(Memory { counts: Arc::new(Mutex::new(counts)), path, stop: None, keeper: None })
    }

    fn open(path: PathBuf) -> Result<Memory, PolicyError> {
        let counts = Arc::new(Mutex::new(Counts { all: load(&path)?, ..Counts::default() }));
        // What cannot be written shall be known now, not after a day.
        save(&path, &counts)?;
        let (stop, stopped) = channel();
        let (kept, file) = (counts.clone(), path.clone());
        let keeper = std::thread::Builder::new()
            .name("quota".to_string())
            .spawn(move || {
                loop {
                    let last = stopped.recv_timeout(SAVE) != Err(RecvTimeoutError::Timeout);
                    if lock(&kept).changed
                        && let Err(reason) = save(&file, &kept)
                    {
                        lock(&kept).failed += 1;
                        tracing::error!("quotas are not kept: {reason}");
                    }
                    if last {
                        return;
                    }
                }
            })
            .map_err(|error| PolicyError::Thread { of: "the counts", error })?;
        Ok(Memory { counts, path, stop: Some(stop), keeper: Some(keeper) })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
    }
}

fn lock(counts: &Mutex<Counts>) -> std::sync::MutexGuard<'_, Counts> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}

fn name_of(key: &Key) -> String {
    match key {
        Key::User(uid) => format!("user {uid}"),
        Key::Client(address) => format!("client {address}"),
        Key::All => "all".to_string(),
    }
}

fn key_of(name: &str) -> Option<Key> {
    match name.split_once(' ') {
        Some(("user", uid)) => uid.parse().ok().map(Key::User),
        Some(("client", address)) => address.parse().ok().map(Key::Client),
        None if name == "all" => Some(Key::All),
        _ => None,
    }
}

fn load(path: &Path) -> Result<Totals, PolicyError> {
    read(path).map_err(|why| PolicyError::Counts { path: path.to_path_buf(), why })
}

fn read(path: &Path) -> Result<Totals, CountsError> {
    let bytes = match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(HashMap::default()),
        Err(error) => return Err(error.into()),
        Ok(metadata) if metadata.len() > FILE_BYTES_MAX => return Err(CountsError::TooLong),
        Ok(_) => std::fs::read(path)?,
    };
    let saved: Saved = serde_json::from_slice(&bytes)?;
    let one = |(name, count): (String, Count)| match key_of(&name) {
        Some(key) => Ok((key, count)),
        None => Err(CountsError::Nobody(name)),
    };
    saved.into_iter().take(COUNTED_MAX).map(one).collect()
}

/// Writes all counts beside the old file, and puts them in its place.
fn save(path: &Path, counts: &Mutex<Counts>) -> Result<(), PolicyError> {
    let saved: Saved = {
        let mut counts = lock(counts);
        counts.changed = false;
        counts.all.iter().map(|(key, count)| (name_of(key), *count)).collect()
    };
    let text = serde_json::to_vec(&saved).map_err(std::io::Error::other);
    text.and_then(|text| weir_base::file::replace(path, &text, 0o644)).map_err(|error| {
        lock(counts).changed = true;
        PolicyError::file("state file", path)(error)
    })
}

/// How many names an operation makes.
fn names_of(op: Op) -> u64 {
    u64::from(MADE & op.bit() != 0)
}

/// By how much a call makes files and names more.
enum Growth {
    /// Bytes and names.
    Of(u64, u64),
    /// The server must be asked how long the file is.
    Ask(Probe),
}

/// A length that is set counts as what the file grows by; in COMPOUNDs, where nobody asks how long it is, as a whole.
fn growth(call: &Call<'_>) -> Growth {
    let names = names_of(call.op());
    let size = match (call.op(), call.arguments.set.size) {
        (Op::Setattr, Some(size)) if size > 0 => size,
        (Op::Create, Some(size)) => return Growth::Of(size, names),
        _ => return Growth::Of(call.data_bytes(), names),
    };
    if call.compound.is_some() {
        return Growth::Of(size, names);
    }
    let probe = Probe { handle: Handle::new(call.handle(0)).unwrap_or(Handle::EMPTY), name: None };
    match call.told.iter().find(|told| told.probe == probe) {
        None => Growth::Ask(probe),
        Some(told) => {
            let word = |attributes: &[u8], at: usize| u64::from(get_u32(attributes, at));
            let own = told.attributes.as_ref();
            let own = own.map_or(0, |bytes| word(bytes, at::SIZE) << 32 | word(bytes, at::SIZE + 4));
            Growth::Of(size.saturating_sub(own), names)
        }
    }
}

/// The policy.
#[derive(Debug)]
pub struct Quota {
    per: Per,
    bytes: Option<u64>,
    names: Option<u64>,
    period: Period,
    memory: Arc<Memory>,
}

impl Quota {
    /// Checks and compiles a file; `before` is the dynamic context of the policy that it replaces.
    ///
    /// # Errors
    /// What is wrong.
    pub fn compile(
        file: &QuotaFile,
        home: Home<'_>,
        before: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<Quota, PolicyError> {
        if file.bytes.is_none() && file.names.is_none() {
            return Err(PolicyError::NoLimit { limits: "bytes, names" });
        }
        let path = home.folder.join(&file.state_file);
        let before = before.and_then(|before| before.downcast::<Memory>().ok());
        let memory = match before.filter(|before| before.path == path) {
            Some(before) => before,
            None if home.keeps => Arc::new(Memory::open(path)?),
            None => Arc::new(Memory::look(path)?),
        };
        Ok(Quota { per: file.per, bytes: file.bytes, names: file.names, period: file.period, memory })
    }

    /// Counts a call that fits; false if it does not.
    fn take(&self, key: Key, bytes: u64, names: u64, unix_ms: u64) -> bool {
        let mut counts = lock(&self.memory.counts);
        let count = counts.of(key, self.period.number(unix_ms));
        let fits = |used: u64, more: u64, limit: Option<u64>| {
            more == 0 || limit.is_none_or(|limit| used.saturating_add(more) <= limit)
        };
        if !fits(count.bytes, bytes, self.bytes) || !fits(count.names, names, self.names) {
            return false;
        }
        count.bytes = count.bytes.saturating_add(bytes);
        count.names = count.names.saturating_add(names);
        counts.changed = true;
        true
    }

    /// Takes back what was counted then and did not happen.
    fn give_back(&self, key: Key, bytes: u64, names: u64, unix_ms: u64) {
        let period = self.period.number(unix_ms);
        let mut counts = lock(&self.memory.counts);
        let key = counts.shared(key);
        if let Some(count) = counts.all.get_mut(&key).filter(|count| count.period == period) {
            count.bytes = count.bytes.saturating_sub(bytes);
            count.names = count.names.saturating_sub(names);
            counts.changed = true;
        }
    }
}

impl Policy for Quota {
    fn kind(&self) -> &'static str {
        "quota"
    }

    fn ops(&self) -> u32 {
        MADE | Op::Write.bit() | Op::Setattr.bit()
    }

    fn request(&self, call: &mut Call<'_>, _context: &Context<'_>) -> Verdict {
        let (bytes, names) = match growth(call) {
            Growth::Of(bytes, names) => (bytes, names),
            Growth::Ask(probe) => {
                call.probe = Some(Box::new(probe));
                return Verdict::Ask;
            }
        };
        // What the reply may take back again.
        let first = call.counted.unix_ms;
        call.counted = Counted { bytes, unix_ms: if first == 0 { call.now.unix_ms } else { first } };
        if self.take(self.per.key(call.caller), bytes, names, call.now.unix_ms) {
            Verdict::Forward
        } else {
            Verdict::Answer(Status::Dquot)
        }
    }

    fn reply(&self, asked: &Asked, reply: &mut Reply<'_>, _latency_us: u64, _context: &Context<'_>) {
        if reply.results.status != 0 {
            return self.undone(asked);
        }
        let written = u64::from(reply.results.count);
        let Counted { bytes, unix_ms } = asked.counted;
        if asked.op == Op::Write && written < bytes {
            self.give_back(self.per.key(&asked.caller), bytes - written, 0, unix_ms);
        }
    }

    fn undone(&self, asked: &Asked) {
        let Counted { bytes, unix_ms } = asked.counted;
        self.give_back(self.per.key(&asked.caller), bytes, names_of(asked.op), unix_ms);
    }

    fn answered(&self, call: &Call<'_>, _by: &str, _status: Status, passed: bool, _context: &Context<'_>) {
        if passed {
            let Counted { bytes, unix_ms } = call.counted;
            self.give_back(self.per.key(call.caller), bytes, names_of(call.op()), unix_ms);
        }
    }

    fn dynamic(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(self.memory.clone())
    }

    fn details(&self) -> BTreeMap<String, u64> {
        let counts = lock(&self.memory.counts);
        let sum = |value: fn(&Count) -> u64| counts.all.values().map(value).sum();
        [
            ("bytes".to_string(), sum(|count| count.bytes)),
            ("names".to_string(), sum(|count| count.names)),
            ("saves_failed".to_string(), counts.failed),
        ]
        .into()
    }

    fn explain(&self, question: &Question, _context: &Context<'_>) -> Step {
        if self.ops() & question.op.bit() == 0 {
            return Step::silent();
        }
        let period = self.period.number(question.unix_ms);
        let count = lock(&self.memory.counts).seen(self.per.key(&question.caller), period);
        let says = |used: u64, limit: Option<u64>, unit: &str| {
            limit.map(|limit| format!("{used} of {limit} {unit}"))
        };
        let said = [says(count.bytes, self.bytes, "bytes"), says(count.names, self.names, "names")];
        let reason = format!("{} are used", said.into_iter().flatten().collect::<Vec<_>>().join(" and "));
        let full = match question.op {
            Op::Write | Op::Setattr => self.bytes.is_some_and(|limit| count.bytes >= limit),
            _ => self.names.is_some_and(|limit| count.names >= limit),
        };
        if full { Step::answer(Status::Dquot, reason) } else { Step::forward(reason) }
    }
}

#[cfg(test)]
mod tests;
