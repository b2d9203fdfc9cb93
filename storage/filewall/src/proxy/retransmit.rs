//! Operations that must happen once (CREATE, REMOVE, RENAME, …), remembered across sessions (row F: exactly once).
//!
//! A client whose connection broke sends its pending calls again on a new one. If such a call had reached the server, a second
//! execution would fail or do something else. So each is remembered under the client's address and a hash of the call
//! (transaction number, credentials, arguments): while it is pending, a copy waits for the same reply; after that, it is answered
//! from memory. In NFSv4.1 the place in a session's slot, which is among the arguments, makes a call what it is, and a copy may come
//! with another transaction number and another tag (RFC 8881, 2.10.6.1): these do not count there.
//!
//! When the connection to the server breaks, or FileWall ends, nobody knows whether the server has carried out what was
//! pending. A copy of such a call is settled by looking ([`super::settle`]). With a file, all this outlives the process, so that a
//! second FileWall takes over what the first one had begun: a call is written down before it is forwarded, its reply before
//! it is sent. It is not synced: it is for the end of a process, not of a machine.

use super::names::SessionKey;
use super::server::random;
use crate::wire::xdr::set_u32;
use foldhash::quality::FixedState;
use hashbrown::HashMap;
use std::collections::VecDeque;
use std::hash::{BuildHasher, Hash, Hasher};
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use weir_base::journal::Journal;

/// Most calls that are remembered; the oldest answered ones are forgotten first.
pub const REMEMBERED_MAX: usize = 65_536;
/// Longest reply that is remembered, bytes. Those of all such operations are shorter.
pub const REPLY_BYTES_MAX: usize = 1024;
/// How long a reply is remembered, µs.
pub const REMEMBERED_US: u64 = 120_000_000;
/// Most copies of one call that wait for its reply.
pub const WAITERS_MAX: usize = 4;
const SHARDS: usize = 16;

/// Name of a call.
pub type Key = (u64, u64);

/// A copy that waits for the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// Worker of its session.
    pub worker: usize,
    /// Its session.
    pub session: SessionKey,
    /// Its transaction number: where a copy is known by a session's slot, it may have another one than the first.
    pub xid: u32,
}

/// When a call is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Before it is decided whether it goes on: one that is new, or unknown, stays so.
    Before,
    /// It goes on: one that is new, or unknown, is pending from now on.
    Forward,
}

/// What is known of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// Nothing.
    New,
    /// It is pending; the copy waits.
    Pending,
    /// It is pending and too many copies wait already; this one is dropped.
    Crowded,
    /// It was answered with this record.
    Answered(Arc<[u8]>),
    /// It was forwarded once, and nobody knows what became of it.
    Unknown,
}

#[derive(Debug)]
enum State {
    Pending(Vec<Waiter>),
    Unknown(u64),
    Answered(Arc<[u8]>, u64),
}

#[derive(Debug, Default)]
struct Shard {
    calls: HashMap<Key, State, foldhash::fast::RandomState>,
    answered: VecDeque<(Key, u64)>,
}

/// The memory.
#[derive(Debug)]
pub struct Retransmits {
    seeds: (FixedState, FixedState),
    shards: Vec<Mutex<Shard>>,
    journal: Option<Mutex<Journal>>,
    seed: Key,
}

/// Length at which the file is written anew, bytes.
const FILE_BYTES_MAX: u64 = 64 << 20;
const IS_SEED: u8 = 0;
const IS_PENDING: u8 = 1;
const IS_ANSWERED: u8 = 2;

fn line(kind: u8, key: Key, rest: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend_from_slice(&key.0.to_le_bytes());
    bytes.extend_from_slice(&key.1.to_le_bytes());
    bytes.extend_from_slice(rest);
    bytes
}

fn unline(bytes: &[u8]) -> Option<(u8, Key, &[u8])> {
    let (head, rest) = bytes.split_at_checked(17)?;
    let word = |at: usize| Some(u64::from_le_bytes(head[at..at + 8].try_into().ok()?));
    Some((head[0], (word(1)?, word(9)?), rest))
}

impl Default for Retransmits {
    fn default() -> Self {
        let seed = || u64::from(random()) << 32 | u64::from(random());
        Self {
            seeds: (FixedState::with_seed(seed()), FixedState::with_seed(seed())),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            journal: None,
            seed: (0, 0),
        }
    }
}

impl Retransmits {
    /// A memory that outlives the process. What was pending when the one before ended is unknown now.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(path: &Path) -> std::io::Result<Retransmits> {
        let (mut journal, lines) = Journal::open(path)?;
        let mut memory = Retransmits::default();
        let found = lines.iter().find_map(|bytes| unline(bytes).filter(|(kind, ..)| *kind == IS_SEED));
        let seeds = match found {
            Some((_, seeds, _)) => seeds,
            None => {
                let seed = || u64::from(random()) << 32 | u64::from(random());
                let seeds = (seed(), seed());
                journal.append(&[line(IS_SEED, seeds, b"")])?;
                seeds
            }
        };
        memory.seed = seeds;
        memory.seeds = (FixedState::with_seed(seeds.0), FixedState::with_seed(seeds.1));
        for (kind, key, rest) in lines.iter().filter_map(|bytes| unline(bytes)) {
            let state = match kind {
                IS_PENDING => State::Unknown(0),
                IS_ANSWERED => State::Answered(rest.into(), 0),
                _ => continue,
            };
            memory.with(key, |shard| {
                if shard.calls.insert(key, state).is_none() {
                    shard.answered.push_back((key, 0));
                }
            });
        }
        let mut kept = vec![line(IS_SEED, seeds, b"")];
        kept.extend(memory.lines());
        journal.rewrite(kept.iter().map(Vec::as_slice))?;
        memory.journal = Some(Mutex::new(journal));
        Ok(memory)
    }

    /// Everything that is remembered, as lines of the file.
    fn lines(&self) -> Vec<Vec<u8>> {
        let mut lines = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            lines.extend(shard.calls.iter().map(|(key, state)| match state {
                State::Answered(reply, _) => line(IS_ANSWERED, *key, reply),
                State::Pending(_) | State::Unknown(_) => line(IS_PENDING, *key, b""),
            }));
        }
        lines
    }

    /// Writes a line. One that is lost costs the certainty about one call, which is said.
    fn write(&self, bytes: Vec<u8>) {
        let Some(journal) = &self.journal else { return };
        let mut journal = journal.lock().unwrap_or_else(PoisonError::into_inner);
        let mut done = journal.append(&[bytes]);
        if journal.length_bytes > FILE_BYTES_MAX {
            let mut lines = vec![line(IS_SEED, self.seed, b"")];
            lines.extend(self.lines());
            done = done.and(journal.rewrite(lines.iter().map(Vec::as_slice)));
        }
        if let Err(error) = done {
            tracing::error!(%error, "what happens once cannot be written down");
        }
    }

    /// The name of a call: its record as the client sent it, or those parts of it that make copies the same.
    pub fn key(&self, client: IpAddr, parts: &[&[u8]]) -> Key {
        let hash = |seed: &FixedState| {
            let mut hasher = seed.build_hasher();
            client.hash(&mut hasher);
            parts.hash(&mut hasher);
            hasher.finish()
        };
        (hash(&self.seeds.0), hash(&self.seeds.1))
    }

    fn with<T>(&self, key: Key, work: impl FnOnce(&mut Shard) -> T) -> T {
        let shard = &self.shards[(key.0 % SHARDS as u64) as usize];
        work(&mut shard.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What is known of a call; `waiter` is its copy at hand.
    pub fn known(&self, key: Key, look: Look, waiter: Waiter, now_us: u64) -> Known {
        let known = self.with(key, |shard| {
            shard.forget(now_us);
            let known = match shard.calls.get_mut(&key) {
                None => Known::New,
                Some(State::Unknown(_)) => Known::Unknown,
                Some(State::Answered(reply, _)) => Known::Answered(reply.clone()),
                Some(State::Pending(waiters)) if waiters.len() < WAITERS_MAX => {
                    waiters.push(waiter);
                    Known::Pending
                }
                Some(State::Pending(_)) => Known::Crowded,
            };
            if look == Look::Forward && matches!(known, Known::New | Known::Unknown) {
                shard.calls.insert(key, State::Pending(Vec::new()));
            }
            known
        });
        if look == Look::Forward && known == Known::New {
            self.write(line(IS_PENDING, key, b""));
        }
        known
    }

    /// A pending call was answered; returns the copies that wait. The reply is remembered if `keeps`, and it is no longer than
    /// [`REPLY_BYTES_MAX`].
    pub fn answered(&self, key: Key, reply: &[u8], keeps: bool, now_us: u64) -> (Arc<[u8]>, Vec<Waiter>) {
        let reply: Arc<[u8]> = reply.into();
        let keeps = keeps && reply.len() <= REPLY_BYTES_MAX;
        let waiters = self.with(key, |shard| {
            if !keeps {
                return shard.calls.remove(&key);
            }
            shard.answered.push_back((key, now_us));
            shard.calls.insert(key, State::Answered(reply.clone(), now_us))
        });
        if self.journal.is_some() && keeps {
            self.write(line(IS_ANSWERED, key, &reply));
        }
        match waiters {
            Some(State::Pending(waiters)) => (reply, waiters),
            _ => (reply, Vec::new()),
        }
    }

    /// Nobody knows what became of a pending call; returns the copies that wait.
    pub fn abandoned(&self, key: Key, now_us: u64) -> Vec<Waiter> {
        let before = self.with(key, |shard| {
            shard.answered.push_back((key, now_us));
            shard.calls.insert(key, State::Unknown(now_us))
        });
        match before {
            Some(State::Pending(waiters)) => waiters,
            _ => Vec::new(),
        }
    }

    /// Number of calls that are remembered.
    pub fn len(&self) -> usize {
        let count = |shard: &Mutex<Shard>| shard.lock().unwrap_or_else(PoisonError::into_inner).calls.len();
        self.shards.iter().map(count).sum()
    }

    /// True if none is remembered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Appends a remembered reply with the transaction number of a copy.
pub fn put_again(reply: &[u8], xid: u32, out: &mut Vec<u8>) {
    let begin = out.len();
    out.extend_from_slice(reply);
    set_u32(out, begin + 4, xid);
}

impl Shard {
    fn forget(&mut self, now_us: u64) {
        while let Some((key, at)) = self.answered.front().copied() {
            if now_us.saturating_sub(at) < REMEMBERED_US && self.answered.len() < REMEMBERED_MAX / SHARDS {
                break;
            }
            self.answered.pop_front();
            let since = match self.calls.get(&key) {
                Some(State::Answered(_, since) | State::Unknown(since)) => Some(*since),
                _ => None,
            };
            if since == Some(at) {
                self.calls.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests;
