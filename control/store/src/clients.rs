//! Clients and the outcomes that they may ask for again, so that a request that is repeated after a
//! lost answer is done once (the trap of row B1 that the survey names).
//!
//! A client is opened in the order and gets a number that nobody had before. It numbers its requests,
//! and says with each batch below which number it has all outcomes; what it may still ask for is kept.
//! All of this is state: it is in snapshots and in the digest, so any replica answers a repetition.
//!
//! Bounds: [`CLIENTS_MAX`] clients, each with [`OUTCOMES_MAX`] outcomes of [`OUTCOME_BYTES_MAX`] bytes. A client that
//! does not settle is refused, never forgotten in part. A client idle for [`IDLE_MS_MAX`], or the one
//! idle longest when there are too many, is forgotten as a whole, and then refused as unknown: so
//! a repetition is never taken for a new request.

use crate::Outcome;
use crate::digest::{Part, of_part};
use crate::operation::Refusal;
use imbl::{OrdMap, OrdSet};
use std::sync::Arc;
use weir_base::codec::encode;

/// Most clients.
pub const CLIENTS_MAX: usize = 65_536;
/// Most outcomes of one client that it did not settle.
pub const OUTCOMES_MAX: usize = 8_192;
/// Most bytes of such outcomes, encoded, unless the last alone is larger.
pub const OUTCOME_BYTES_MAX: u64 = 4 << 20;
/// A client that asked for nothing in so long is forgotten.
pub const IDLE_MS_MAX: u64 = 24 * 3600 * 1000;
/// Most clients that one batch forgets.
const FORGET_MAX: usize = 64;

#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub outcome: Arc<Outcome>,
    bytes: u64,
    digest: u128,
}

#[derive(Clone, Debug)]
pub(crate) struct Client {
    /// Who opened it; nobody else may use its number.
    pub principal: u64,
    pub settled_below: u64,
    pub last_ms: u64,
    pub outcomes: OrdMap<u64, Kept>,
    bytes: u64,
    /// Of the outcomes.
    digest: u128,
}

impl Client {
    fn digest(&self, id: u64) -> u128 {
        let head = encode(&(id, self.principal, self.settled_below, self.last_ms));
        of_part(Part::Client, &head).wrapping_add(self.digest)
    }

    fn settle(&mut self, below: u64) {
        self.settled_below = self.settled_below.max(below);
        while let Some((sequence, kept)) = self.outcomes.get_min() {
            if *sequence >= self.settled_below {
                break;
            }
            self.bytes -= kept.bytes;
            self.digest = self.digest.wrapping_sub(kept.digest);
            let sequence = *sequence;
            self.outcomes.remove(&sequence);
        }
    }

    fn keep(&mut self, id: u64, sequence: u64, outcome: Arc<Outcome>) {
        let encoding = encode(&(id, sequence, &*outcome));
        let (bytes, digest) = (encoding.len() as u64, of_part(Part::Reply, &encoding));
        self.bytes += bytes;
        self.digest = self.digest.wrapping_add(digest);
        self.outcomes.insert(sequence, Kept { outcome, bytes, digest });
    }
}

/// What is known of a request before it is done.
pub(crate) enum Known {
    New,
    Done(Arc<Outcome>),
    Refused(Refusal),
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clients {
    pub by_id: OrdMap<u64, Client>,
    /// By the time of the last batch.
    idle: OrdSet<(u64, u64)>,
    digest: u128,
}

impl Clients {
    pub fn digest(&self) -> u128 {
        self.digest
    }

    /// Makes a client known, in the place of the one idle longest when there are too many.
    pub fn open(&mut self, id: u64, principal: u64, now_ms: u64) {
        if self.by_id.len() >= CLIENTS_MAX {
            let longest = self.idle.get_min().map(|(_, id)| *id);
            longest.into_iter().for_each(|id| self.close(id));
        }
        self.restore(id, principal, 0, now_ms, Vec::new());
    }

    pub fn restore(
        &mut self,
        id: u64,
        principal: u64,
        settled_below: u64,
        last_ms: u64,
        outcomes: Vec<(u64, Outcome)>,
    ) {
        let outcomes_none = OrdMap::new();
        let mut client =
            Client { principal, settled_below, last_ms, outcomes: outcomes_none, bytes: 0, digest: 0 };
        outcomes.into_iter().for_each(|(sequence, outcome)| client.keep(id, sequence, Arc::new(outcome)));
        self.digest = self.digest.wrapping_add(client.digest(id));
        self.idle.insert((last_ms, id));
        self.by_id.insert(id, client);
    }

    pub fn close(&mut self, id: u64) {
        if let Some(client) = self.by_id.remove(&id) {
            self.digest = self.digest.wrapping_sub(client.digest(id));
            self.idle.remove(&(client.last_ms, id));
        }
    }

    /// Forgets clients that were idle for too long.
    pub fn forget_idle(&mut self, now_ms: u64) {
        for _ in 0..FORGET_MAX {
            let Some(&(last_ms, id)) = self.idle.get_min() else { return };
            if now_ms.saturating_sub(last_ms) < IDLE_MS_MAX {
                return;
            }
            self.close(id);
        }
    }

    /// A batch of a client begins.
    pub fn begin(&mut self, id: u64, principal: u64, settled_below: u64, now_ms: u64) -> Result<(), Refusal> {
        let found = self.by_id.get_mut(&id).filter(|client| client.principal == principal);
        let Some(client) = found else { return Err(Refusal::UnknownClient { client: id }) };
        let before = client.digest(id);
        if client.last_ms != now_ms {
            self.idle.remove(&(client.last_ms, id));
            self.idle.insert((now_ms, id));
            client.last_ms = now_ms;
        }
        client.settle(settled_below);
        self.digest = self.digest.wrapping_sub(before).wrapping_add(client.digest(id));
        Ok(())
    }

    pub fn look(&self, id: u64, sequence: u64) -> Known {
        let Some(client) = self.by_id.get(&id) else {
            return Known::Refused(Refusal::UnknownClient { client: id });
        };
        let settled_below = client.settled_below;
        if sequence < settled_below {
            return Known::Refused(Refusal::Settled { sequence, settled_below });
        }
        if let Some(kept) = client.outcomes.get(&sequence) {
            return Known::Done(kept.outcome.clone());
        }
        let outcomes = client.outcomes.len();
        if outcomes >= OUTCOMES_MAX || client.bytes >= OUTCOME_BYTES_MAX {
            return Known::Refused(Refusal::Unsettled { outcomes: outcomes as u64, bytes: client.bytes });
        }
        Known::New
    }

    pub fn keep(&mut self, id: u64, sequence: u64, outcome: &Outcome) {
        // The request itself may have closed the client.
        let Some(client) = self.by_id.get_mut(&id) else { return };
        let before = client.digest;
        client.keep(id, sequence, Arc::new(outcome.clone()));
        self.digest = self.digest.wrapping_sub(before).wrapping_add(client.digest);
    }
}
