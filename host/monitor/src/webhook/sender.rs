//! Sends what is in the outbox, in order, until the receiver has taken it.
//!
//! Two threads: one takes entries and puts messages into the outbox, the other sends; so a receiver that is slow holds up nobody. A receiver that
//! is away, or has too much to do, is asked again with waits that double, with jitter, and never before the time that it asks for itself
//! (`Retry-After`). A message that it calls wrong is tried [`WRONG_TRIES_MAX`] times, because those behind it wait.

use super::alerts::{Firing, Message};
use super::outbox::{Limits, Outbox, replace};
use crate::audit::{self, Entry};
use crate::error::{Error, Result};
use crate::status::WebhookRow;
use std::fs::{DirBuilder, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver as Queue, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Most entries that wait to be put into the outbox; what finds no room is read from the log later.
const QUEUE_MAX: usize = 256;
/// Between two looks for alerts that nobody raised again.
const EXPIRE_EVERY: Duration = Duration::from_secs(1);
/// Tries of a message that the receiver calls wrong.
pub const WRONG_TRIES_MAX: u32 = 8;
/// Longest wait that a receiver may ask for.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);
/// Which alerts fire, beside the messages.
const FIRING: &str = "firing";
/// Held by who sends.
const LOCK: &str = "lock";

/// What a receiver says to a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It has it.
    Taken,
    /// Not now: it is away, has too much to do, or does not know us.
    Later {
        /// What is wrong.
        why: String,
        /// How long it wants to be left alone.
        after: Option<Duration>,
    },
    /// It will never take this message.
    Wrong {
        /// What is wrong.
        why: String,
    },
}

/// What an HTTP status means, with the header `Retry-After`.
pub fn judge(status: u16, retry_after: Option<&str>, now: SystemTime) -> Answer {
    let why = format!("it answers with status {status}");
    match status {
        200..=299 => Answer::Taken,
        400 | 413 | 414 | 415 | 422 | 431 => Answer::Wrong { why },
        _ => Answer::Later { why, after: retry_after.and_then(|text| wait_of(text.trim(), now)) },
    }
}

/// `Retry-After`: seconds, or a date.
fn wait_of(text: &str, now: SystemTime) -> Option<Duration> {
    let wait = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let now_s = now.duration_since(UNIX_EPOCH).ok()?.as_secs();
            Duration::from_secs(date_s(text)?.saturating_sub(now_s))
        }
    };
    Some(wait.min(RETRY_AFTER_MAX))
}

/// `Sun, 06 Nov 1994 08:49:37 GMT` as seconds since 1970.
fn date_s(text: &str) -> Option<u64> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let parts: Vec<&str> = text.split_ascii_whitespace().collect();
    let [_, day, month, year, time, "GMT"] = parts.as_slice() else { return None };
    let number = |text: &str, most: u64| text.parse::<u64>().ok().filter(|number| *number <= most);
    let month = MONTHS.iter().position(|name| name == month)? as u64;
    let (day, year) = (number(day, 31)?.checked_sub(1)?, number(year, 9999).filter(|year| *year >= 1970)?);
    let mut clock = time.split(':').map(|part| number(part, 60));
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    // The year begins in March here, so that the leap day is its last (the civil calendar: Howard Hinnant's algorithm).
    let (year, month) = if month < 2 { (year - 1, month + 10) } else { (year, month - 2) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day;
    Some(days.checked_sub(719_468)? * 86_400 + hour * 3600 + minute * 60 + second)
}

/// Who takes messages. A call ends within some seconds.
pub trait Receiver: Send {
    /// Sends one.
    fn post(&mut self, message: &[u8]) -> Answer;
}

/// How it is kept and sent.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How much waits at most.
    pub limits: Limits,
    /// The first wait after a failure.
    pub wait: Duration,
    /// The longest, unless the receiver asks for a longer one.
    pub wait_max: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        let (wait, wait_max) = (Duration::from_secs(1), Duration::from_secs(300));
        Settings { limits: Limits::default(), wait, wait_max }
    }
}

impl Settings {
    /// The wait after so many failures in a row: between half of it and all of it.
    fn pause(&self, failures: u32, after: Option<Duration>, random: u64) -> Duration {
        let whole = self.wait.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(self.wait_max);
        let half = whole / 2;
        let spread = u64::try_from((whole - half).as_nanos()).unwrap_or(u64::MAX).saturating_add(1);
        (half + Duration::from_nanos(random % spread)).max(after.unwrap_or_default())
    }
}

/// What the two threads share.
struct State {
    outbox: Outbox,
    row: WebhookRow,
    stop: bool,
}

struct Shared {
    state: Mutex<State>,
    /// Something waits, or it is the end.
    changed: Condvar,
    /// An entry found no room in the queue.
    missed: AtomicBool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A webhook that runs.
pub struct Webhook {
    shared: Arc<Shared>,
    queue: Option<SyncSender<Entry>>,
    threads: Vec<JoinHandle<()>>,
    /// The lock; given back when this is dropped.
    _held: File,
}

/// Takes the lock of an outbox, whose folder is made.
fn hold(folder: &Path) -> Result<File> {
    let failed = |error: std::io::Error| Error::io(format!("locking the outbox {}", folder.display()), error);
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(folder.join(LOCK))
        .map_err(failed)?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).map_err(|_| {
        let text = "another monitor sends from it: end that one, or give this one a log of its own (--audit)";
        failed(std::io::Error::other(text))
    })?;
    Ok(file)
}

impl Webhook {
    /// The folder of a log's outbox.
    pub fn folder(audit: &Path) -> PathBuf {
        let mut name = audit.as_os_str().to_os_string();
        name.push(".webhook");
        PathBuf::from(name)
    }

    /// Starts one for the log of a monitor that is not started yet: what the log has and was never put into the outbox is sent, too. A log
    /// that has no outbox yet begins with its next entry.
    ///
    /// # Errors
    /// [`Error::Io`]: the outbox cannot be used.
    pub fn start(audit: &Path, receiver: Box<dyn Receiver>, settings: Settings) -> Result<Webhook> {
        let folder = Webhook::folder(audit);
        // Before anything of it is touched: another monitor with the same log may run.
        let held = hold(&folder)?;
        let outbox = Outbox::open(&folder, settings.limits)?;
        // A log that is not there, or is damaged, is the monitor's to judge.
        let newest = audit::read_all(audit).unwrap_or_default().last().map_or(0, |(_, entry)| entry.number);
        let mut firing = read_firing(&folder).unwrap_or_else(|| Firing::after(newest));
        // Of another log, which was moved away.
        firing.last = firing.last.min(newest);
        firing.begin_anew(unix_ms());
        let row = WebhookRow::default();
        let state = Mutex::new(State { outbox, row, stop: false });
        let shared = Arc::new(Shared { state, changed: Condvar::new(), missed: AtomicBool::new(true) });
        let (queue, entries) = sync_channel(QUEUE_MAX);
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            let thread = std::thread::Builder::new().name(name.to_string()).spawn(run);
            thread.map_err(|error| Error::io(format!("starting the thread {name}"), error))
        };
        let keeper = Keeper { shared: shared.clone(), audit: audit.to_path_buf(), folder, firing };
        // What the log has from here on is told, whenever this ends.
        keeper.keep_firing();
        let sending = shared.clone();
        let threads = vec![
            spawn("webhook-outbox", Box::new(move || keeper.run(&entries)))?,
            spawn("webhook-sender", Box::new(move || send(&sending, receiver, &settings)))?,
        ];
        Ok(Webhook { shared, queue: Some(queue), threads, _held: held })
    }

    /// Takes an entry of the log, at once.
    pub fn tell(&self, entry: &Entry) {
        let Some(queue) = &self.queue else { return };
        if let Err(TrySendError::Full(_)) = queue.try_send(entry.clone()) {
            self.shared.missed.store(true, Ordering::Release);
        }
    }

    /// What it shows.
    pub fn row(&self) -> WebhookRow {
        let state = self.shared.lock();
        let (waiting, waiting_bytes) = state.outbox.waiting();
        WebhookRow {
            waiting: waiting as u64,
            waiting_bytes,
            dropped: state.outbox.dropped,
            unkept: state.outbox.unkept,
            ..state.row.clone()
        }
    }
}

impl Drop for Webhook {
    fn drop(&mut self) {
        drop(self.queue.take());
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so itself.
            drop(thread.join());
        }
    }
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Which alerts fire, as the last monitor left it; nothing if there was none, or if nobody can read it.
fn read_firing(folder: &Path) -> Option<Firing> {
    let file = folder.join(FIRING);
    let read = std::fs::read(&file).ok()?;
    let parsed = serde_json::from_slice(&read);
    parsed
        .inspect_err(
            |error| tracing::error!(file = %file.display(), %error, "which alerts fire is forgotten"),
        )
        .ok()
}

/// Puts messages into the outbox.
struct Keeper {
    shared: Arc<Shared>,
    audit: PathBuf,
    folder: PathBuf,
    firing: Firing,
}

impl Keeper {
    fn run(mut self, entries: &Queue<Entry>) {
        let mut expired = Instant::now();
        loop {
            if self.shared.missed.swap(false, Ordering::AcqRel) {
                self.catch_up();
            }
            match entries.recv_timeout(EXPIRE_EVERY) {
                Ok(entry) => {
                    // An entry before it may have found no room.
                    if entry.number > self.firing.last + 1 {
                        self.catch_up();
                    }
                    self.take(&entry);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if expired.elapsed() >= EXPIRE_EVERY {
                expired = Instant::now();
                let over = self.firing.expire(unix_ms());
                self.put(&over);
            }
        }
    }

    /// Takes what the log has and was not taken.
    fn catch_up(&mut self) {
        match audit::read_all(&self.audit) {
            Ok(entries) => {
                let last = self.firing.last;
                for (_, entry) in entries.iter().filter(|(_, entry)| entry.number > last) {
                    self.take(entry);
                }
            }
            Err(Error::Io { error, .. }) if error.kind() == std::io::ErrorKind::NotFound => {}
            // Perhaps a line is being written.
            Err(error) => {
                tracing::debug!(%error, "the audit log is read for the webhook in a moment");
                self.shared.missed.store(true, Ordering::Release);
            }
        }
    }

    fn take(&mut self, entry: &Entry) {
        let messages = self.firing.take(entry);
        self.put(&messages);
    }

    /// The messages first: after a kill in between they are sent twice, not never.
    fn put(&mut self, messages: &[Message]) {
        if messages.is_empty() {
            return;
        }
        let mut state = self.shared.lock();
        for message in messages {
            match serde_json::to_vec(message) {
                Ok(bytes) => state.outbox.push(&bytes),
                Err(error) => tracing::error!(%error, "an alert cannot be written"),
            }
        }
        state.row.firing = self.firing.count() as u64;
        drop(state);
        self.shared.changed.notify_all();
        self.keep_firing();
    }

    fn keep_firing(&self) {
        let written = serde_json::to_vec(&self.firing).map_err(std::io::Error::other).and_then(|bytes| {
            replace(&self.folder.join(format!("{FIRING}.new")), &self.folder.join(FIRING), &bytes)
        });
        if let Err(error) = written {
            tracing::warn!(folder = %self.folder.display(), %error, "DEGRADED: which alerts fire is not kept");
        }
    }
}

/// Sends, until the end.
fn send(shared: &Shared, mut receiver: Box<dyn Receiver>, settings: &Settings) {
    let random = RandomState::new();
    let (mut failures, mut wrong) = (0_u32, (0_u64, 0_u32));
    loop {
        let mut state = shared.lock();
        let (number, message) = loop {
            if state.stop {
                return;
            }
            match state.outbox.first() {
                Some(found) => break found,
                None => state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(state);
        let answer = receiver.post(&message);
        let mut state = shared.lock();
        let (why, after) = match answer {
            Answer::Taken => {
                state.outbox.remove(number);
                state.row.sent += 1;
                state.row.problem = None;
                failures = 0;
                continue;
            }
            Answer::Later { why, after } => (why, after),
            Answer::Wrong { why } => {
                wrong = if wrong.0 == number { (number, wrong.1 + 1) } else { (number, 1) };
                if wrong.1 >= WRONG_TRIES_MAX {
                    tracing::error!(number, why, "an alert is given up: the webhook does not take it");
                    state.outbox.remove(number);
                    state.row.refused += 1;
                    (failures, wrong) = (0, (0, 0));
                    continue;
                }
                (why, None)
            }
        };
        failures = failures.saturating_add(1);
        state.row.failed += 1;
        let pause = settings.pause(failures, after, random.hash_one((number, failures)));
        // Once for each cause, not for each try.
        if state.row.problem.as_deref() != Some(why.as_str()) {
            tracing::warn!(why, ?pause, "the webhook takes no alerts: they wait");
        }
        state.row.problem = Some(why);
        let until = Instant::now() + pause;
        // What comes meanwhile waits behind it.
        while !state.stop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_mean_taken_later_or_never() {
        let now = UNIX_EPOCH + Duration::from_secs(784_111_770);
        for status in [200, 202, 204] {
            assert_eq!(judge(status, None, now), Answer::Taken);
        }
        for status in [301, 302, 401, 403, 404, 408, 425, 429, 500, 503] {
            assert!(matches!(judge(status, None, now), Answer::Later { after: None, .. }), "{status}");
        }
        for status in [400, 413, 422] {
            assert!(matches!(judge(status, Some("5"), now), Answer::Wrong { .. }), "{status}");
        }
        let after = |text: &str| match judge(503, Some(text), now) {
            Answer::Later { after, .. } => after.map(|after| after.as_secs()),
            other => panic!("{other:?}"),
        };
        assert_eq!(after("120"), Some(120));
        assert_eq!(after("Sun, 06 Nov 1994 08:49:37 GMT"), Some(7));
        assert_eq!(after("Sat, 05 Nov 1994 08:49:37 GMT"), Some(0), "it is over");
        assert_eq!(after("99999999999"), Some(3600));
        assert_eq!(after("Fri, 31 Dec 9999 23:59:59 GMT"), Some(3600));
        for odd in ["", "soon", "-1", "Sun, 06 Nov 1994 08:49:37 CET", "Sun, 00 Nov 1994 08:49:37 GMT"] {
            assert_eq!(after(odd), None, "{odd}");
        }
    }

    #[test]
    fn any_date_is_read_without_harm() {
        bolero::check!().with_type::<String>().for_each(|text| {
            let _ = wait_of(text, UNIX_EPOCH);
        });
    }

    #[test]
    fn waits_double_with_jitter_up_to_a_limit() {
        let settings = Settings::default();
        for (failures, most_s) in [(1, 1), (2, 2), (5, 16), (9, 256), (10, 300), (u32::MAX, 300)] {
            let (least, most) = (Duration::from_secs(most_s) / 2, Duration::from_secs(most_s));
            for random in [0, 1, 12_345_678_901, u64::MAX] {
                let pause = settings.pause(failures, None, random);
                assert!((least..=most).contains(&pause), "{failures}: {pause:?}");
            }
        }
        assert_eq!(settings.pause(1, Some(Duration::from_secs(40)), 7), Duration::from_secs(40));
    }
}
