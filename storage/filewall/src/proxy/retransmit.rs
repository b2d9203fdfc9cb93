//! Operations that must happen once (CREATE, REMOVE, RENAME, …), remembered across sessions (row F: exactly once).
//!
//! A client whose connection broke sends its pending calls again on a new one. If such a call had reached the server, a second
//! execution would fail or do something else. So each is remembered under the client's address and a hash of the call
//! (transaction number, credentials, arguments): while it is pending, a copy waits for the same reply; after that, it is answered
//! from memory.
//!
//! What is not covered: when the connection to the server breaks, nobody knows whether the server has carried out what was
//! pending. The call is then forgotten and the client's retransmission goes to the server, whose own memory of replies
//! decides, as without FileWall.

use super::worker::SessionKey;
use hashbrown::HashMap;
use std::collections::VecDeque;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

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
}

/// What is known of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// Nothing: it is pending from now on.
    New,
    /// It is pending; the copy waits.
    Pending,
    /// It is pending and too many copies wait already; this one is dropped.
    Crowded,
    /// It was answered with this record.
    Answered(Arc<[u8]>),
}

#[derive(Debug)]
enum State {
    Pending(Vec<Waiter>),
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
    seeds: (RandomState, RandomState),
    shards: Vec<Mutex<Shard>>,
}

impl Default for Retransmits {
    fn default() -> Self {
        Self {
            seeds: (RandomState::new(), RandomState::new()),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }
}

impl Retransmits {
    /// The name of a call: its record as the client sent it.
    pub fn key(&self, client: IpAddr, record: &[u8]) -> Key {
        let hash = |seed: &RandomState| {
            let mut hasher = seed.build_hasher();
            client.hash(&mut hasher);
            record.hash(&mut hasher);
            hasher.finish()
        };
        (hash(&self.seeds.0), hash(&self.seeds.1))
    }

    fn with<T>(&self, key: Key, work: impl FnOnce(&mut Shard) -> T) -> T {
        let shard = &self.shards[(key.0 % SHARDS as u64) as usize];
        work(&mut shard.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What is known of a call; one that is new is pending from now on.
    pub fn begin(&self, key: Key, waiter: Waiter, now_us: u64) -> Known {
        self.with(key, |shard| {
            shard.forget(now_us);
            match shard.calls.get_mut(&key) {
                None => {
                    shard.calls.insert(key, State::Pending(Vec::new()));
                    Known::New
                }
                Some(State::Answered(reply, _)) => Known::Answered(reply.clone()),
                Some(State::Pending(waiters)) if waiters.len() < WAITERS_MAX => {
                    waiters.push(waiter);
                    Known::Pending
                }
                Some(State::Pending(_)) => Known::Crowded,
            }
        })
    }

    /// A pending call was answered; returns the copies that wait.
    pub fn answered(&self, key: Key, reply: &[u8], now_us: u64) -> (Arc<[u8]>, Vec<Waiter>) {
        let reply: Arc<[u8]> = reply.into();
        let waiters = self.with(key, |shard| {
            if reply.len() > REPLY_BYTES_MAX {
                return shard.calls.remove(&key);
            }
            shard.answered.push_back((key, now_us));
            shard.calls.insert(key, State::Answered(reply.clone(), now_us))
        });
        match waiters {
            Some(State::Pending(waiters)) => (reply, waiters),
            _ => (reply, Vec::new()),
        }
    }

    /// Nobody knows what became of a pending call; returns the copies that wait.
    pub fn abandoned(&self, key: Key) -> Vec<Waiter> {
        match self.with(key, |shard| shard.calls.remove(&key)) {
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

impl Shard {
    fn forget(&mut self, now_us: u64) {
        while let Some((key, at)) = self.answered.front().copied() {
            if now_us.saturating_sub(at) < REMEMBERED_US && self.answered.len() < REMEMBERED_MAX / SHARDS {
                break;
            }
            self.answered.pop_front();
            if matches!(self.calls.get(&key), Some(State::Answered(_, since)) if *since == at) {
                self.calls.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests;
