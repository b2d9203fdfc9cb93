//! Which replicas are reached and which are not, and the pauses between tries.
//!
//! A replica counts as reached when it has answered something: one that takes connections and closes them is not. When it opens a link
//! itself it is there, and is tried at once.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Mutex, OnceLock};

use tokio::time::{Duration, Instant, sleep};
use weir_base::reconnect::{Line, Pauses, Reconnects};

use openraft::raft::AppendEntriesResponse;

use super::locked;
use super::message::{FULL, Response};
use crate::types::LogId;

/// The longest pause between two tries.
const PAUSE_MAX_MS: u64 = 5_000;
/// Replicas that are remembered.
const REPLICAS_MAX: usize = 256;

/// See the module.
pub struct Contacts {
    /// Set at the first question, by the clock of the runtime that asks.
    begun: OnceLock<Instant>,
    tried: Mutex<Reconnects<u64>>,
    /// In which term each replica said last what it has, and the last entry that it had then. Another term's leader may take entries back.
    acknowledged: Mutex<BTreeMap<u64, (u64, u64)>>,
    /// Replicas that lack what they had.
    lost: Mutex<BTreeMap<u64, String>>,
    /// Replicas whose disks are full, as they said last.
    full: Mutex<BTreeSet<u64>>,
    /// States on their way to replicas: bytes that are there, and all.
    sending: Mutex<BTreeMap<u64, (u64, u64)>>,
}

/// A state on its way; dropped when it is there, or not on its way any more.
pub(super) struct Sending<'c> {
    contacts: &'c Contacts,
    to: u64,
}

impl Sending<'_> {
    /// So many bytes are there.
    pub(super) fn sent(&self, bytes: u64) {
        if let Some((sent, _)) = locked(&self.contacts.sending).get_mut(&self.to) {
            *sent = bytes;
        }
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        locked(&self.contacts.sending).remove(&self.to);
    }
}

impl Contacts {
    /// No replica was tried yet. The first pause has `min_ms`. Jitter follows `seed`: another one for each replica.
    pub fn new(min_ms: u64, seed: u64) -> Contacts {
        let pauses = Pauses { min_ms, max_ms: PAUSE_MAX_MS.max(min_ms) };
        Contacts {
            begun: OnceLock::new(),
            tried: Mutex::new(Reconnects::seeded(pauses, REPLICAS_MAX, seed)),
            acknowledged: Mutex::default(),
            lost: Mutex::default(),
            full: Mutex::default(),
            sending: Mutex::default(),
        }
    }

    fn now_ms(&self) -> u64 {
        self.begun.get_or_init(Instant::now).elapsed().as_millis() as u64
    }

    /// Returns when it is time for the next try.
    pub(super) async fn pause(&self, to: u64) {
        let wait_ms = locked(&self.tried).wait_ms(&to, self.now_ms());
        if wait_ms > 0 {
            sleep(Duration::from_millis(wait_ms)).await;
        }
    }

    /// A try came to nothing.
    pub(super) fn failed(&self, to: u64, address: &str, error: &io::Error) {
        let line = locked(&self.tried).failed(&to, self.now_ms(), format!("{address}: {error}"));
        if let Some(Line { failures, pause_ms, problem }) = line {
            tracing::warn!(replica = to, failures, pause_ms, problem, "cannot connect to replica");
        }
    }

    /// It answered, or opened a link itself.
    pub(super) fn reached(&self, from: u64) {
        if let Some(failures) = locked(&self.tried).reached(&from) {
            tracing::info!(replica = from, failures, "connected to replica again");
        }
    }

    /// In a term, it has everything up to an entry.
    fn has(&self, replica: u64, term: u64, index: u64) {
        let mut acknowledged = locked(&self.acknowledged);
        let known = acknowledged.entry(replica).or_default();
        if (term, index) < *known {
            return;
        }
        *known = (term, index);
        drop(acknowledged);
        locked(&self.lost).remove(&replica);
    }

    /// It lacks an entry. One that said in the same term that it has it has lost its log, and with it how it voted: raft does not mend that.
    fn lacks(&self, replica: u64, term: u64, index: u64) {
        let known = locked(&self.acknowledged).get(&replica).copied();
        let had = known.is_some_and(|(then, known)| then == term && index <= known);
        if had && !locked(&self.lost).contains_key(&replica) {
            let why = format!(
                "it has lost its log (it had entry {index}, and has it no more), and with it how it voted: the others take its vote, fill it, and give \
                 it its vote again, by themselves where they are a majority without it. Where they are not: stop it, 'weir group remove {replica}', \
                 say 'weir state rejoin' for its state directory, start it with --join-group, and add it again ('weir group add')"
            );
            tracing::error!(replica, index, "replica lost its log");
            locked(&self.lost).insert(replica, why);
        }
    }

    /// What it answered in a term to entries behind `prev` up to `last`.
    pub(super) fn heard(
        &self,
        (replica, term): (u64, u64),
        response: &Response,
        prev: Option<LogId>,
        last: Option<LogId>,
    ) {
        match (response, prev, last) {
            (Response::Append(AppendEntriesResponse::Success), _, Some(last)) => {
                if prev != Some(last) && locked(&self.full).remove(&replica) {
                    tracing::info!(replica, "disk space available again");
                }
                self.has(replica, term, last.index());
            }
            // A full disk took what it must.
            (Response::Append(AppendEntriesResponse::PartialSuccess(Some(taken))), ..) => {
                self.has(replica, term, taken.index());
            }
            (Response::Refused(why), ..) if why == FULL && locked(&self.full).insert(replica) => {
                tracing::warn!(replica, "disk full: refusing new entries");
            }
            (Response::Append(AppendEntriesResponse::Conflict), Some(prev), _) => {
                self.lacks(replica, term, prev.index());
            }
            _ => {}
        }
    }

    /// Whether a replica is known to lack what it had acknowledged.
    pub fn is_lost(&self, replica: u64) -> bool {
        locked(&self.lost).contains_key(&replica)
    }

    /// Replicas whose disks are full, as they said last.
    pub fn full(&self) -> BTreeSet<u64> {
        locked(&self.full).clone()
    }

    /// Another leader asks them anew.
    pub fn forget_full(&self) {
        locked(&self.full).clear();
    }

    /// Those that lack what they had acknowledged.
    pub fn lost(&self) -> BTreeSet<u64> {
        locked(&self.lost).keys().copied().collect()
    }

    /// A state of so many bytes begins its way to a replica.
    pub(super) fn sending(&self, to: u64, bytes: u64) -> Sending<'_> {
        locked(&self.sending).insert(to, (0, bytes));
        Sending { contacts: self, to }
    }

    /// States on their way: bytes that are there, and all.
    pub fn on_the_way(&self) -> BTreeMap<u64, (u64, u64)> {
        locked(&self.sending).clone()
    }

    /// It is a member anew, with nothing.
    pub fn begins(&self, replica: u64) {
        locked(&self.full).remove(&replica);
        locked(&self.acknowledged).remove(&replica);
        locked(&self.lost).remove(&replica);
    }

    /// Replicas that are not reached or have lost their log, and why.
    pub fn unreached(&self) -> BTreeMap<u64, String> {
        let mut unreached = locked(&self.tried).unreached(self.now_ms());
        unreached.extend(
            self.full()
                .into_iter()
                .map(|id| (id, "its disk is full: it takes nothing new until there is room".to_owned())),
        );
        unreached.extend(locked(&self.lost).clone());
        unreached
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_that_lacks_what_it_had_is_told_of_until_it_is_added_again_or_has_it_back() {
        let contacts = Contacts::new(20, 1);
        contacts.lacks(2, 3, 7);
        assert!(contacts.unreached().is_empty(), "it may never have had it");
        contacts.has(2, 3, 7);
        contacts.lacks(2, 3, 8);
        assert!(contacts.unreached().is_empty(), "it never had that one");
        contacts.lacks(2, 4, 7);
        assert!(contacts.unreached().is_empty(), "another leader took it back");
        contacts.lacks(2, 3, 7);
        assert!(contacts.unreached()[&2].contains("weir group remove 2"));
        contacts.has(2, 3, 3);
        assert!(contacts.unreached().contains_key(&2), "an old answer proves nothing");
        contacts.has(2, 3, 9);
        assert!(contacts.unreached().is_empty());
        contacts.lacks(2, 3, 1);
        contacts.begins(2);
        assert!(contacts.unreached().is_empty());
        contacts.lacks(2, 3, 1);
        assert!(contacts.unreached().is_empty(), "one that was added again begins without");
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_refuses_is_not_tried_all_the_time() {
        let contacts = Contacts::new(20, 1);
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let (begun, mut tries) = (Instant::now(), 0);
        while begun.elapsed() < Duration::from_secs(600) {
            contacts.pause(4).await;
            tries += 1;
            contacts.failed(4, "192.0.2.4:7445", &refused);
        }
        assert!(tries < 300, "{tries} tries in ten minutes");
        assert!(contacts.unreached()[&4].contains("192.0.2.4:7445"));
        contacts.reached(4);
        assert!(contacts.unreached().is_empty());
        let before = begun.elapsed();
        contacts.pause(4).await;
        assert_eq!(begun.elapsed(), before, "who opens a link itself is tried at once");
    }
}
