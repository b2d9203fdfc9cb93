//! Spares, and the watch over the other members: what [`weir_controller::watch`] must be told, and what it says is done here (rows C5, R6).
//!
//! Who is heard. Each member tells its clock to all others each second; with `order: bft` the order's own messages count beside that, so that one whose
//! order hangs is silent, too. A controller that was stopped itself begins anew: it knows nothing of who was there meanwhile.
//!
//! How words travel. With `order: bft` each member orders its own. With `raft` they go to the one that leads, signed.
//!
//! How a change is carried out. With `order: bft` each member gives its approval as for any other change, once; as many as decide make it so. With `raft` the
//! one that leads does it. Both wait until the spare has caught up.

mod replacing;
mod shown;

pub use replacing::watch;

use super::{Engine, Group, MemberAddress, clocks, known_by, reach};
use crate::roles::controller::config::GroupConfig;
use crate::roles::names::member_name;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use weir_api::ApiError;
use weir_base::codec::{decode, encode};
use weir_controller::core::group::{Member, Roster, Spare};
use weir_controller::driver::ControllerHandle;
use weir_controller::quorum::ShareProof;
use weir_controller::watch::Proof;
use weir_model::event::{SignedEvent, SourceId};
use weir_model::group::{GroupWord, SPARES_MAX};

/// How often a member looks at the others.
const LOOK: Duration = Duration::from_millis(250);
/// How long a new spare may take to catch up, and its name to be known.
const SPARE_BOUND: Duration = Duration::from_secs(60);
/// What a word of another controller begins with, among what they tell each other.
const WORD: &[u8] = b"weir group word\0";
/// Proofs that wait to be told.
const PROOFS_MAX: usize = 16;

/// How a proof begins.
const VOTES: u8 = 0;
const SHARE: u8 = 1;

/// What a member knows of the others, for [`watch`].
pub struct Watching {
    /// Where the controller is, once it runs.
    handle: Mutex<Option<ControllerHandle>>,
    heard: Mutex<BTreeMap<u64, Instant>>,
    proofs: Mutex<Vec<Proof>>,
    /// Spares that a command takes out just now.
    leaving: Mutex<BTreeSet<u64>>,
    after_ms: u64,
    spares: BTreeMap<u64, Spare>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watching {
    pub fn new(config: &GroupConfig) -> Watching {
        Watching {
            handle: Mutex::default(),
            heard: Mutex::default(),
            proofs: Mutex::default(),
            leaving: Mutex::default(),
            after_ms: config.replace_after_ms,
            spares: config.spares.clone(),
        }
    }

    /// Another member says something; gives whether it was a word for the order.
    pub fn hears(&self, from: u64, bytes: &[u8]) -> bool {
        locked(&self.heard).insert(from, Instant::now());
        let Some(word) = bytes.strip_prefix(WORD) else { return false };
        let handle = locked(&self.handle).clone();
        if let (Ok(event), Some(handle)) = (decode::<SignedEvent>(word), handle) {
            handle.take_group_word(event);
        }
        true
    }

    /// Votes of a member exclude each other.
    pub fn votes(&self, member: u32, key: [u8; 32], evidence: &[u8]) {
        let mut proofs = locked(&self.proofs);
        let member = u64::from(member);
        let known = proofs.iter().any(|(known, of, _)| (*known, *of) == (member, key));
        if !known && proofs.len() < PROOFS_MAX {
            proofs.push((member, key, [&[VOTES], evidence].concat()));
        }
    }
}

/// Whether a proof convicts a member of this domain under a key.
fn convicts(handle: &ControllerHandle, member: u64, key: &[u8; 32], proof: &[u8]) -> bool {
    let Some((kind, bytes)) = proof.split_first() else { return false };
    match *kind {
        VOTES => {
            let evidence = weir_bft::Evidence::decode(Bytes::copy_from_slice(bytes)).ok();
            let evidence = evidence.filter(|evidence| evidence.group == handle.domain().as_str());
            let found = evidence.and_then(|evidence| evidence.convicts());
            found.is_some_and(|found| u64::from(found.member) == member && found.key == *key)
        }
        SHARE => {
            let found = ShareProof::convicts(bytes, &handle.group_keys());
            found.is_some_and(|(of, with)| u64::from(of) == member && with == *key)
        }
        _ => false,
    }
}

fn source(id: u64) -> SourceId {
    SourceId::of_controller(&member_name(id))
}

impl Group {
    fn is_bft(&self) -> bool {
        matches!(self.engine, Engine::Bft(_))
    }

    fn handle(&self) -> Option<ControllerHandle> {
        locked(&self.watching.handle).clone()
    }

    /// The members, as what is said of them is judged by; and the number of that list.
    fn roster(&self, handle: &ControllerHandle) -> (u64, Roster) {
        let keys = handle.group_keys();
        let shares = keys.made_by().map(|made_by| made_by.round().players().clone()).unwrap_or_default();
        let (number, engine_keys) = match &self.engine {
            Engine::Raft(order) => (order.engine().replica_status().membership_log_index, BTreeMap::new()),
            Engine::Bft(order) => (Some(order.members().0), order.keys()),
        };
        let known = |id: u64| {
            let share = u32::try_from(id).ok().and_then(|id| shares.get(&id));
            let keys = engine_keys.get(&id).into_iter().chain(share).copied().collect();
            (id, Member { source: source(id), keys })
        };
        let members: BTreeMap<u64, Member> = self.engine.voters().into_iter().map(known).collect();
        let count = members.len();
        let decide = clocks::quorum(self.is_bft(), count);
        let (believed, least) = match self.is_bft() {
            true => (count.saturating_sub(1) / 3 + 1, weir_bft::members::MEMBERS_MIN),
            false => (1, 2),
        };
        (number.unwrap_or_default(), Roster { members, decide, believed, least })
    }

    /// For how long each other member and spare was not heard, milliseconds.
    fn silent_ms(&self, spares: &BTreeMap<u64, Spare>, now: Instant) -> BTreeMap<u64, u64> {
        let own = self.engine.id();
        let others = self.engine.voters().into_iter().chain(spares.keys().copied()).filter(|id| *id != own);
        let seen = match &self.engine {
            Engine::Bft(order) => order.engine().replica_status().others,
            Engine::Raft(_) => BTreeMap::new(),
        };
        let mut heard = locked(&self.watching.heard);
        let of = |id: u64| {
            // Who was never heard is not heard since now.
            let told = heard.entry(id).or_insert(now);
            let told_ms = now.saturating_duration_since(*told).as_millis() as u64;
            let ordered = u32::try_from(id).ok().and_then(|id| seen.get(&id)).map(|seen| seen.silent_ms);
            let is_spare = spares.contains_key(&id);
            // Where some may lie, spares say nothing but how far they are.
            let silent_ms = match ordered {
                Some(ordered_ms) if is_spare => ordered_ms,
                Some(ordered_ms) => ordered_ms.max(told_ms),
                None => told_ms,
            };
            (id, silent_ms)
        };
        others.map(of).collect()
    }

    /// Says a word: orders it, or hands it to the one that orders.
    fn say(&self, handle: &ControllerHandle, word: GroupWord) {
        let event = match handle.group_word(word) {
            Ok(event) => event,
            Err(error) => return tracing::warn!(%error, "a word about the group is not said"),
        };
        match self.engine.leader() {
            Some(leader) if !self.is_bft() && leader != self.engine.id() => {
                let bytes = [WORD, &encode(&event)].concat();
                // What is lost is said again.
                if let Some(to) = u32::try_from(leader).ok().filter(|_| bytes.len() <= TELL_BYTES_MAX) {
                    self.engine.tell(to, bytes.into());
                }
            }
            _ => handle.take_group_word(event),
        }
    }

    /// Spares as the members of the order know them: the engine links with them, and gives them no vote.
    fn keep_spares(&self, handle: &ControllerHandle, spares: &BTreeMap<u64, Spare>) {
        match &self.engine {
            Engine::Bft(order) => {
                let known = spares.iter().filter_map(|(id, spare)| {
                    let (key, address) = (spare.key?, spare.address.clone());
                    Some((u32::try_from(*id).ok()?, weir_bft::Member { key, address }))
                });
                order.engine().set_spares(known.collect());
            }
            Engine::Raft(order) => {
                let leaving = locked(&self.watching.leaving).clone();
                // Who leads has all that was ordered; whoever does not, gives no votes either.
                let known = handle.leads().then(|| spares.keys().copied().chain(leaving).collect());
                order.engine().set_spares(known);
            }
        }
    }

    /// How far a spare is that is not in the order's own list.
    fn spare_lag(&self, id: u64) -> (Option<u64>, Option<u64>) {
        let Engine::Bft(order) = &self.engine else { return (None, None) };
        let others = order.engine().replica_status().others;
        let seen = u32::try_from(id).ok().and_then(|id| others.get(&id).copied());
        match seen {
            Some(seen) if seen.silent_ms <= SILENT_MS => (Some(seen.behind), None),
            Some(seen) => (None, Some(seen.silent_ms)),
            None => (None, None),
        }
    }

    /// Makes a controller that is there a spare.
    pub(super) async fn add_as_spare(
        &self,
        id: u64,
        key: Option<&str>,
        address: &MemberAddress,
    ) -> Result<(), ApiError> {
        let key = match &self.engine {
            Engine::Raft(order) => {
                let probed = order.engine().probe(id, address.to_string()).await;
                probed.map_err(|error| self.refused(error))?;
                None
            }
            Engine::Bft(_) => {
                let member = known_by(key, address)?;
                let id = u32::try_from(id).map_err(|error| ApiError::invalid(error.to_string()))?;
                reach(id, address).await?;
                Some(member.key)
            }
        };
        self.add_spare(id, Spare { key, address: address.to_string() }).await
    }

    /// Makes a controller a spare, with this one's word; returns when it is one and has caught up.
    ///
    /// # Errors
    /// What is wrong with it, or that others do not say so.
    async fn add_spare(&self, id: u64, spare: Spare) -> Result<(), ApiError> {
        let handle = &self.ready()?;
        let (_, roster) = self.roster(handle);
        if roster.members.contains_key(&id) {
            return Err(ApiError::conflict(format!(
                "id: controller {id} is in the group and votes: 'weir group remove {id}' first"
            )));
        }
        let known = handle.group_words().spares(&roster);
        if known.len() >= SPARES_MAX && !known.contains_key(&id) {
            return Err(ApiError::conflict(format!(
                "a group has at most {SPARES_MAX} spares: remove one first"
            )));
        }
        let Spare { key, address } = spare.clone();
        self.order(handle, GroupWord::Spare { id, key, address }).await?;
        let until = Instant::now() + SPARE_BOUND;
        while Instant::now() < until {
            let named = handle.group_words().spares(&self.roster(handle).1);
            if named.get(&id) == Some(&spare) && self.has_caught_up(id) {
                return Ok(());
            }
            tokio::time::sleep(LOOK).await;
        }
        Err(ApiError::uncertain(format!(
            "controller {id} is named as a spare here, and after {} s others do not say so, or it has not caught up: look whether it runs with \
             --join-group and is reached ('weir group list' shows how far it is). It becomes one by itself; 'weir group remove {id}' takes that back",
            SPARE_BOUND.as_secs()
        )))
    }

    fn has_caught_up(&self, id: u64) -> bool {
        match &self.engine {
            Engine::Bft(_) => self.spare_lag(id).0 == Some(0),
            Engine::Raft(order) => {
                let status = order.engine().replica_status();
                status.lag.get(&id).is_some_and(|lag| lag.heard && lag.entries <= CAUGHT_UP_ENTRIES)
            }
        }
    }

    /// Whether a controller is a spare, as this one knows.
    pub fn is_spare(&self, id: u64) -> bool {
        self.handle()
            .is_some_and(|handle| handle.group_words().spares(&self.roster(&handle).1).contains_key(&id))
    }

    /// A spare is to be none any more.
    ///
    /// # Errors
    /// Why it is one still.
    pub async fn remove_spare(&self, id: u64) -> Result<(), ApiError> {
        let handle = &self.ready()?;
        locked(&self.watching.leaving).insert(id);
        let removed = self.take_spare_out(handle, id).await;
        locked(&self.watching.leaving).remove(&id);
        removed
    }

    async fn take_spare_out(&self, handle: &ControllerHandle, id: u64) -> Result<(), ApiError> {
        // First out of the order's list: what is in it and no spare gets a vote.
        if let Engine::Raft(order) = &self.engine {
            self.keep_spares(handle, &handle.group_words().spares(&self.roster(handle).1));
            if order.engine().replica_status().learners.contains_key(&id) {
                self.change(weir_raft::Change::Remove { id }).await?;
            }
        }
        self.order(handle, GroupWord::NoSpare { id }).await?;
        let until = Instant::now() + SPARE_BOUND;
        while self.is_spare(id) {
            if Instant::now() >= until {
                return Err(ApiError::unavailable(format!(
                    "this controller says that {id} is no spare any more, and others do not: ask again"
                )));
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// A spare is to vote: with `raft` it gets its vote as any other that was added.
    pub(super) async fn no_spare(&self, id: u64) -> Result<(), ApiError> {
        if self.is_spare(id) {
            let handle = &self.ready()?;
            self.order(handle, GroupWord::NoSpare { id }).await?;
        }
        Ok(())
    }

    fn ready(&self) -> Result<ControllerHandle, ApiError> {
        self.handle().ok_or_else(|| ApiError::unavailable("this controller starts; ask again"))
    }

    /// Orders a word of this controller, and waits until it is decided.
    async fn order(&self, handle: &ControllerHandle, word: GroupWord) -> Result<(), ApiError> {
        let event = handle.group_word(word).map_err(|error| ApiError::unavailable(error.to_string()))?;
        match handle.submit(event).await {
            Ok(_) => Ok(()),
            Err(weir_controller::Error::Order(weir_order::Error::NotLeader { leader })) => {
                Err(self.not_leader(leader))
            }
            Err(error) => Err(ApiError::unavailable(error.to_string())),
        }
    }
}

/// Largest message between members.
const TELL_BYTES_MAX: usize = 64 << 10;
/// A spare that was not heard for so long is shown as silent, milliseconds.
const SILENT_MS: u64 = 3_000;
/// Entries up to which a spare of raft has caught up: some are always on their way.
const CAUGHT_UP_ENTRIES: u64 = 64;
