//! `kind: rate`: how many calls and bytes a second a user, a machine, or all together may ask for.
//!
//! A token bucket for each. A call above the rate is delayed, by not reading further from its session until there are
//! tokens, or answered with `NFS3ERR_JUKEBOX`, after which clients try again by themselves. An operation of a COMPOUND is one call,
//! whatever it is for.

use super::error::PolicyError;
use super::explain::{Question, Step};
use super::{Context, Policy, Verdict, does, ops};
use crate::identity::Principal;
use crate::message::Call;
use crate::wire::nfs3::{ALL_OPS, Op, Status};
use hashbrown::HashMap;
use serde::Deserialize;
use std::any::Any;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Most buckets of one policy; when there are more, the full ones are forgotten, and if that is not enough, all.
pub const BUCKETS_MAX: usize = 65_536;
/// Longest delay of one call, µs.
const DELAY_US_MAX: u64 = 10_000_000;

/// The file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct RateFile {
    /// Who shares a bucket.
    pub per: Per,
    /// Calls a second.
    #[serde(default)]
    pub calls_per_s: Option<u64>,
    /// Bytes read and written a second.
    #[serde(default)]
    pub bytes_per_s: Option<u64>,
    /// How much may be saved up, in milliseconds of the rate; 1000 if it is not said.
    #[serde(default)]
    pub burst_ms: Option<u64>,
    /// What happens to a call above the rate.
    #[serde(default)]
    pub over: Over,
    /// Operations that are counted; all if there are none.
    #[serde(default)]
    pub ops: Vec<String>,
}

/// Who shares a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Per {
    /// A user on all machines.
    User,
    /// A machine.
    Client,
    /// Everybody together.
    All,
}

/// What happens to a call above the rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Over {
    /// It waits.
    #[default]
    Delay,
    /// The client is told to try again.
    Jukebox,
}

/// Whose bucket, or whose quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    User(u32),
    Client(IpAddr),
    All,
}

impl Per {
    /// Whose calls those of `caller` are.
    pub(super) fn key(self, caller: &Principal) -> Key {
        match self {
            Per::User => Key::User(caller.uid),
            Per::Client => Key::Client(caller.address),
            Per::All => Key::All,
        }
    }
}

/// Tokens in millionths, so that small rates do not round to nothing.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    calls: i128,
    bytes: i128,
    at_us: u64,
}

type Buckets = Mutex<HashMap<Key, Bucket, foldhash::fast::RandomState>>;

/// The policy.
#[derive(Debug)]
pub struct Rate {
    per: Per,
    calls_per_s: Option<u64>,
    bytes_per_s: Option<u64>,
    burst_us: u64,
    over: Over,
    ops: u32,
    buckets: Arc<Buckets>,
    forgotten: AtomicU64,
}

impl Rate {
    /// Checks and compiles a file; `before` is the dynamic context of the policy that it replaces.
    ///
    /// # Errors
    /// What is wrong.
    pub fn compile(file: &RateFile, before: Option<Arc<dyn Any + Send + Sync>>) -> Result<Rate, PolicyError> {
        if file.calls_per_s.is_none() && file.bytes_per_s.is_none() {
            return Err(PolicyError::NoLimit { limits: "calls-per-s, bytes-per-s" });
        }
        if file.calls_per_s == Some(0) || file.bytes_per_s == Some(0) {
            return Err(PolicyError::NoRate);
        }
        let burst_ms = file.burst_ms.unwrap_or(1000);
        PolicyError::between("burst-ms", burst_ms, 1, 3_600_000)?;
        Ok(Rate {
            per: file.per,
            calls_per_s: file.calls_per_s,
            bytes_per_s: file.bytes_per_s,
            burst_us: burst_ms * 1000,
            over: file.over,
            ops: if file.ops.is_empty() { ALL_OPS & !Op::Null.bit() } else { ops::parse(&file.ops)? },
            buckets: before.and_then(|before| before.downcast().ok()).unwrap_or_default(),
            forgotten: AtomicU64::new(0),
        })
    }

    fn full(&self, rate: Option<u64>) -> i128 {
        // One call must fit even where the burst is short; a long payload goes into debt instead.
        (i128::from(rate.unwrap_or(0)) * i128::from(self.burst_us)).max(1_000_000)
    }

    /// Takes one call of `bytes` from the bucket; `Err` is how long it must wait, µs.
    fn take(&self, key: Key, bytes: u64, now_us: u64) -> Result<(), u64> {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= BUCKETS_MAX && !buckets.contains_key(&key) {
            self.forget(&mut buckets, now_us);
        }
        let full = (self.full(self.calls_per_s), self.full(self.bytes_per_s));
        let bucket = buckets.entry(key).or_insert(Bucket { calls: full.0, bytes: full.1, at_us: now_us });
        let passed = i128::from(now_us.saturating_sub(bucket.at_us));
        bucket.at_us = bucket.at_us.max(now_us);
        let mut wait_us = 0;
        if let Some(rate) = self.calls_per_s {
            bucket.calls = (bucket.calls + passed * i128::from(rate)).min(full.0);
            wait_us = wait_us.max(missing_us(1_000_000 - bucket.calls, rate));
        }
        if let Some(rate) = self.bytes_per_s {
            bucket.bytes = (bucket.bytes + passed * i128::from(rate)).min(full.1);
            if bytes > 0 {
                wait_us = wait_us.max(missing_us(1 - bucket.bytes, rate));
            }
        }
        if wait_us > 0 {
            return Err(wait_us.min(DELAY_US_MAX));
        }
        bucket.calls -= if self.calls_per_s.is_some() { 1_000_000 } else { 0 };
        bucket.bytes -= if self.bytes_per_s.is_some() { i128::from(bytes) * 1_000_000 } else { 0 };
        Ok(())
    }

    fn forget(&self, buckets: &mut HashMap<Key, Bucket, foldhash::fast::RandomState>, now_us: u64) {
        let before = buckets.len();
        buckets.retain(|_, bucket| now_us.saturating_sub(bucket.at_us) < self.burst_us);
        if buckets.len() >= BUCKETS_MAX {
            buckets.clear();
        }
        self.forgotten.fetch_add((before - buckets.len()) as u64, Ordering::Relaxed);
    }
}

/// How long until `missing` tokens have come at `rate`, µs.
fn missing_us(missing: i128, rate: u64) -> u64 {
    if missing <= 0 {
        return 0;
    }
    u64::try_from(missing / i128::from(rate) + 1).unwrap_or(u64::MAX)
}

impl Policy for Rate {
    fn kind(&self) -> &'static str {
        "rate"
    }

    fn ops(&self) -> u32 {
        self.ops
    }

    fn counts_operations(&self) -> bool {
        true
    }

    fn tells_removals(&self) -> bool {
        !matches!(self.ops & does::REMOVALS, 0 | does::REMOVALS)
    }

    fn request(&self, call: &mut Call<'_>, _context: &Context<'_>) -> Verdict {
        match (self.take(self.per.key(call.caller), call.data_bytes(), call.now.steady_us), self.over) {
            (Ok(()), _) => Verdict::Forward,
            (Err(wait_us), Over::Delay) => Verdict::Wait(wait_us),
            (Err(_), Over::Jukebox) => Verdict::Answer(Status::Jukebox),
        }
    }

    fn dynamic(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(self.buckets.clone())
    }

    fn details(&self) -> BTreeMap<String, u64> {
        let buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner).len();
        [
            ("buckets".to_string(), buckets as u64),
            ("buckets_forgotten".to_string(), self.forgotten.load(Ordering::Relaxed)),
        ]
        .into()
    }

    fn explain(&self, question: &Question, _context: &Context<'_>) -> Step {
        if self.ops & does::always(question.op) == 0 {
            return Step::silent();
        }
        let rate = |rate: Option<u64>, unit: &str| rate.map(|rate| format!("{rate} {unit}/s"));
        let rates: Vec<String> = [rate(self.calls_per_s, "calls"), rate(self.bytes_per_s, "bytes")]
            .into_iter()
            .flatten()
            .collect();
        Step::forward(format!("as long as {:?} stays within {}", self.per, rates.join(" and ")))
    }
}

#[cfg(test)]
mod tests;
