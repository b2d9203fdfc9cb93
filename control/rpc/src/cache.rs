//! A cache of entries with a bound on their age for each request (row B9; Botelho §IV-E).
//!
//! - A read with bound 0 asks the store. Another gets what is here when it is young enough, else asks.
//! - Writes go through: what was written is here afterwards, what was refused for a conflict is forgotten.
//! - A write based on a stale entry is refused by its version; [`Cache::update`] reads anew and tries again.
//!
//! The age of an entry counts from when the store was asked, not from its answer, so the bound holds
//! whatever the answer took.
//!
//! Departure: the paper caches a table as a whole or not at all. This cache takes any table, is bounded by
//! entries, and drops those used longest ago.

use crate::Error;
use crate::client::Client;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use weir_model::Version;
use weir_store::{Action, Answer, Condition, Query, Select, Selected};

/// Most tries of an update.
pub const UPDATE_ATTEMPTS_MAX: u32 = 32;

/// A value and its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cached {
    /// The version.
    pub version: Version,
    /// The bytes.
    pub value: Arc<[u8]>,
}

/// What a cache counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounters {
    /// Reads answered from here.
    pub hits: u64,
    /// Reads that asked the store.
    pub misses: u64,
    /// Updates that were refused because others had changed the entry, and tried again.
    pub conflicts: u64,
    /// Entries dropped for room.
    pub dropped: u64,
}

type Name = (Arc<str>, Arc<[u8]>);

struct Entry {
    /// `None`: it is not there, which is known too.
    cached: Option<Cached>,
    /// When the store was asked.
    asked: Instant,
    /// When it answered.
    known: Instant,
    used: u64,
}

#[derive(Default)]
struct Entries {
    by_name: HashMap<Name, Entry>,
    by_use: BTreeMap<u64, Name>,
    uses: u64,
    counters: CacheCounters,
}

/// See the module. Clones share it.
#[derive(Clone)]
pub struct Cache {
    client: Client,
    entries: Arc<Mutex<Entries>>,
    entries_max: usize,
}

impl Entries {
    fn get(&mut self, name: &Name, age_max: Duration) -> Option<Option<Cached>> {
        let entry = self.by_name.get_mut(name)?;
        if entry.asked.elapsed() > age_max {
            return None;
        }
        self.uses += 1;
        self.by_use.remove(&entry.used);
        entry.used = self.uses;
        self.by_use.insert(entry.used, name.clone());
        Some(entry.cached.clone())
    }

    fn put(&mut self, name: Name, cached: Option<Cached>, asked: Instant, entries_max: usize) {
        let meanwhile = self.by_name.get(&name).filter(|entry| entry.known > asked);
        let version = |cached: &Option<Cached>| cached.as_ref().map(|cached| cached.version);
        let found = meanwhile.map(|entry| (version(&entry.cached), version(&cached)));
        match found {
            // A slow answer must not take the place of a newer one.
            Some((Some(old), Some(new))) if old > new => return,
            // Who knows which came first: an entry, or its absence.
            Some((Some(_), None) | (None, Some(_))) => return self.forget(&name),
            _ => self.forget(&name),
        }
        while self.by_name.len() >= entries_max {
            let Some((_, oldest)) = self.by_use.pop_first() else { return };
            self.by_name.remove(&oldest);
            self.counters.dropped += 1;
        }
        self.uses += 1;
        self.by_use.insert(self.uses, name.clone());
        self.by_name.insert(name, Entry { cached, asked, known: Instant::now(), used: self.uses });
    }

    fn forget(&mut self, name: &Name) {
        if let Some(entry) = self.by_name.remove(name) {
            self.by_use.remove(&entry.used);
        }
    }
}

impl Cache {
    /// A cache of at most so many entries.
    pub fn new(client: Client, entries_max: usize) -> Cache {
        Cache { client, entries: Arc::default(), entries_max }
    }

    fn entries(&self) -> std::sync::MutexGuard<'_, Entries> {
        // A panic elsewhere leaves the two maps as they were between two calls.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was counted.
    pub fn counters(&self) -> CacheCounters {
        self.entries().counters
    }

    /// An entry, at most so old; 0 asks the store.
    ///
    /// # Errors
    /// As [`Client::read`], and [`Error::Refused`].
    pub async fn get(&self, table: &str, key: &[u8], staleness_ms: u64) -> Result<Option<Cached>, Error> {
        let name: Name = (table.into(), key.into());
        if staleness_ms > 0 {
            let mut entries = self.entries();
            if let Some(cached) = entries.get(&name, Duration::from_millis(staleness_ms)) {
                entries.counters.hits += 1;
                return Ok(cached);
            }
        }
        self.entries().counters.misses += 1;
        let asked = Instant::now();
        let query = Query::Get { table: table.into(), key: key.into(), select: Select::Whole };
        let cached = match self.client.read(query, 0).await?.1 {
            Answer::Found(found) => match found.value {
                Selected::Whole(value) => Some(Cached { version: found.version, value: value.into() }),
                Selected::Columns(_) | Selected::Nothing => {
                    return Err(Error::Unavailable("the server left out the value".into()));
                }
            },
            Answer::Absent { .. } => None,
            Answer::Refused(refusal) => return Err(refusal.into()),
            other => {
                return Err(Error::Unavailable(format!("the server's answer is of another kind: {other:?}")));
            }
        };
        self.entries().put(name, cached.clone(), asked, self.entries_max);
        Ok(cached)
    }

    /// Writes through. `Ok(Err(version))`: the condition does not hold, this version is there.
    ///
    /// # Errors
    /// As [`Client::write`]; the entry is forgotten then.
    pub async fn put(
        &self,
        table: &str,
        key: &[u8],
        condition: Condition,
        value: &[u8],
    ) -> Result<Result<Version, Version>, Error> {
        let name: Name = (table.into(), key.into());
        let asked = Instant::now();
        let put = Action::Put { value: value.into(), ttl_ms: 0 };
        let written = self.client.write(table, key, condition, put).await;
        let mut entries = self.entries();
        match &written {
            Ok(Ok(version)) => {
                let cached = Cached { version: *version, value: value.into() };
                entries.put(name, Some(cached), asked, self.entries_max);
            }
            Ok(Err(_)) | Err(_) => entries.forget(&name),
        }
        written
    }

    /// Deletes through; says the version at which that was done.
    ///
    /// # Errors
    /// As [`Client::write`]; the entry is forgotten then.
    pub async fn remove(&self, table: &str, key: &[u8]) -> Result<Version, Error> {
        let written = self.client.write(table, key, Condition::Always, Action::Remove).await;
        self.entries().forget(&(table.into(), key.into()));
        written?.map_err(|found| Error::Unavailable(format!("a write without condition found {found}")))
    }

    /// Changes an entry: reads it, at most so old, and writes what `change` makes of it, if nobody changed it
    /// meanwhile; else reads it anew and tries again. `None` from `change` leaves the entry as it is. Gives what
    /// is there then.
    ///
    /// # Errors
    /// As [`Client::write`]; [`Error::Contended`] after [`UPDATE_ATTEMPTS_MAX`] tries.
    pub async fn update(
        &self,
        table: &str,
        key: &[u8],
        staleness_ms: u64,
        mut change: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
    ) -> Result<Option<Cached>, Error> {
        let mut staleness_ms = staleness_ms;
        for _ in 0..UPDATE_ATTEMPTS_MAX {
            let seen = self.get(table, key, staleness_ms).await?;
            let Some(value) = change(seen.as_ref().map(|seen| &seen.value[..])) else { return Ok(seen) };
            let version = seen.map_or(Version::ZERO, |seen| seen.version);
            if let Ok(version) = self.put(table, key, Condition::Version(version), &value).await? {
                return Ok(Some(Cached { version, value: value.into() }));
            }
            self.entries().counters.conflicts += 1;
            staleness_ms = 0;
        }
        Err(Error::Contended { attempts: UPDATE_ATTEMPTS_MAX })
    }
}
