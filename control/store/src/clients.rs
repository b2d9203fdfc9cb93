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
//!
//! Where entries are bounded ([`crate::Meter`]), so is what one principal has, [`PRINCIPAL_CLIENTS_MAX`] clients with
//! [`PRINCIPAL_BYTES_MAX`] of outcomes, and what all have, [`OUTCOMES_BYTES_MAX`]. Room is made by forgetting clients that have
//! been idle for [`ROOM_IDLE_MS`], the principal's own where its own bound is met; one that is at work is never forgotten for
//! another, so what does not fit is refused.

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
/// Most clients of one principal.
pub const PRINCIPAL_CLIENTS_MAX: usize = 16_384;
/// Most bytes of outcomes, encoded, that all clients of one principal have not settled, unless the last alone is larger.
pub const PRINCIPAL_BYTES_MAX: u64 = 64 << 20;
/// The same of all principals.
pub const OUTCOMES_BYTES_MAX: u64 = 192 << 20;
/// A client that asked for nothing in so long may be forgotten to make room.
pub const ROOM_IDLE_MS: u64 = 10 * 60 * 1000;

/// What a principal has.
#[derive(Clone, Debug, Default)]
struct Share {
    /// Its clients, by the time of their last batch.
    idle: OrdSet<(u64, u64)>,
    bytes: u64,
}

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
    /// And how many bytes it has, encoded.
    Done(Arc<Outcome>, u64),
    Refused(Refusal),
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clients {
    pub by_id: OrdMap<u64, Client>,
    /// By the time of the last batch.
    idle: OrdSet<(u64, u64)>,
    shares: OrdMap<u64, Share>,
    /// Of all outcomes.
    bytes: u64,
    digest: u128,
}

impl Clients {
    pub fn digest(&self) -> u128 {
        self.digest
    }

    /// Makes a client known, in the place of the one idle longest when there are too many. `bounded`: only of one that
    /// is idle for long enough.
    pub fn open(&mut self, id: u64, principal: u64, now_ms: u64, bounded: bool) -> Result<(), Refusal> {
        if bounded {
            let own = |clients: &Clients| clients.shares.get(&principal).map_or(0, |share| share.idle.len());
            if own(self) >= PRINCIPAL_CLIENTS_MAX && !self.make_room(Some(principal), now_ms) {
                let what = "number of clients of one principal";
                return Err(Refusal::too_large(what, own(self) + 1, PRINCIPAL_CLIENTS_MAX));
            }
            if self.by_id.len() >= CLIENTS_MAX && !self.make_room(None, now_ms) {
                return Err(Refusal::too_large("number of clients", self.by_id.len() + 1, CLIENTS_MAX));
            }
        } else if self.by_id.len() >= CLIENTS_MAX {
            let longest = self.idle.get_min().map(|(_, id)| *id);
            longest.into_iter().for_each(|id| self.close(id));
        }
        self.restore(id, principal, 0, now_ms, Vec::new());
        Ok(())
    }

    /// Forgets the client that is idle longest, of a principal or of all, if that is long enough.
    fn make_room(&mut self, principal: Option<u64>, now_ms: u64) -> bool {
        let longest = match principal {
            Some(principal) => self.shares.get(&principal).and_then(|share| share.idle.get_min()),
            None => self.idle.get_min(),
        };
        let Some(&(last_ms, id)) = longest else { return false };
        let is_idle = now_ms.saturating_sub(last_ms) >= ROOM_IDLE_MS;
        if is_idle {
            self.close(id);
        }
        is_idle
    }

    /// Room for another outcome of a client, or why there is none.
    pub fn reserve(&mut self, id: u64, now_ms: u64) -> Result<(), Refusal> {
        let Some(principal) = self.by_id.get(&id).map(|client| client.principal) else { return Ok(()) };
        let own = |clients: &Clients| clients.shares.get(&principal).map_or(0, |share| share.bytes);
        for _ in 0..FORGET_MAX {
            let (whose, what, value, limit) = if own(self) >= PRINCIPAL_BYTES_MAX {
                let what = "bytes of outcomes that the clients of this principal did not settle (raise settled_below)";
                (Some(principal), what, own(self), PRINCIPAL_BYTES_MAX)
            } else if self.bytes >= OUTCOMES_BYTES_MAX {
                let what = "bytes of outcomes that all clients together did not settle";
                (None, what, self.bytes, OUTCOMES_BYTES_MAX)
            } else {
                return Ok(());
            };
            // The one that asks has just begun a batch: it is not idle.
            if !self.make_room(whose, now_ms) {
                return Err(Refusal::TooLarge { what: what.to_owned(), value, limit });
            }
        }
        let what = "bytes of outcomes that clients did not settle".to_owned();
        Err(Refusal::TooLarge { what, value: self.bytes, limit: OUTCOMES_BYTES_MAX })
    }

    fn share(&mut self, principal: u64) -> &mut Share {
        self.shares.entry(principal).or_default()
    }

    fn grew(&mut self, principal: u64, before: u64, after: u64) {
        self.bytes = self.bytes.wrapping_sub(before).wrapping_add(after);
        let share = self.share(principal);
        share.bytes = share.bytes.wrapping_sub(before).wrapping_add(after);
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
        self.share(principal).idle.insert((last_ms, id));
        self.grew(principal, 0, client.bytes);
        self.by_id.insert(id, client);
    }

    pub fn close(&mut self, id: u64) {
        if let Some(client) = self.by_id.remove(&id) {
            self.digest = self.digest.wrapping_sub(client.digest(id));
            self.idle.remove(&(client.last_ms, id));
            self.grew(client.principal, client.bytes, 0);
            let share = self.share(client.principal);
            share.idle.remove(&(client.last_ms, id));
            if share.idle.is_empty() {
                self.shares.remove(&client.principal);
            }
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
        let (before, bytes, last_ms) = (client.digest(id), client.bytes, client.last_ms);
        client.last_ms = now_ms;
        client.settle(settled_below);
        let (after, bytes_after) = (client.digest(id), client.bytes);
        self.digest = self.digest.wrapping_sub(before).wrapping_add(after);
        self.grew(principal, bytes, bytes_after);
        if last_ms != now_ms {
            self.idle.remove(&(last_ms, id));
            self.idle.insert((now_ms, id));
            let share = self.share(principal);
            share.idle.remove(&(last_ms, id));
            share.idle.insert((now_ms, id));
        }
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
            return Known::Done(kept.outcome.clone(), kept.bytes);
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
        let (before, bytes, principal) = (client.digest, client.bytes, client.principal);
        client.keep(id, sequence, Arc::new(outcome.clone()));
        let (after, bytes_after) = (client.digest, client.bytes);
        self.digest = self.digest.wrapping_sub(before).wrapping_add(after);
        self.grew(principal, bytes, bytes_after);
    }
}
