//! Updates that come without a signature, and the group's controllers' shares of it: put together here, handed to the
//! switch as if a controller had done it (row C4, switch aggregation). A pure machine.
//!
//! The switch's gate checks what comes out as always, so nothing rests on this but that updates arrive.
//!
//! Shares of sessions that never sent a bad one are combined and handed on without a check: the gate makes one anyway, and
//! a change waits for one check instead of two. When the gate calls the result forged, its acks go no further, and the
//! batch is looked at again.
//!
//! Then, and with shares of those that sent a bad one, combinations are checked here: other ones with the share that came
//! last are tried, at most [`TRIES_MAX`] a share. Only the group's key is known here, and that is enough. The group's
//! signature is unique, so once it is known each other share is judged without a check: put in the place of a good one it
//! must give the same bytes. Who sent a bad one is named by its session, and asked last from then on.
//!
//! Endorsements ([`endorsements`]) come and are hoped with in the same way. The gate's word is needed there too, and a change
//! that they do not prove comes again from a controller, with the group's signature.
//!
//! What one session can make this cost is bounded, whatever it sends: each has its own places for batches and bytes, and when there are too
//! many batches the oldest of the session that began most of them goes. An update that is not under its header's root goes no further.
//! Combinations that came to nothing are charged to those whose shares they were of ([`Combined::costly`]), who may be honest
//! beside a liar, but not often: it is asked last from then on.
//!
//! Departure from Cicero: the signature is over the root of a batch, so this is done once a batch and not once a rule.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use weir_base::codec::{encode, encoded_bytes};
use weir_model::entry::ControllersEntry;
use weir_model::signed::{
    BlsSignature, GroupKey, GroupSignature, HeaderEndorsement, HeaderShare, SignedHeader, SignedUpdates,
    UnsignedUpdates,
};
use weir_model::update::{Ack, Refusal};
use weir_model::{Key, Version};
use weir_trust::batch::is_of;
use weir_trust::identity::Context;
use weir_trust::threshold::{GroupVerifier, ShareSignature, combine};

mod endorsements;

/// Batches that are remembered, the newest.
const BATCHES_MAX: usize = 1_024;
/// Frames of updates that wait for the signature of their batch.
const FRAMES_MAX: usize = 64;
/// Bytes of updates of one session that wait, or wait for the gate's word.
const WAITING_BYTES_MAX: usize = 64 << 20;
/// Shares or endorsements of one batch that are kept: more than a group has members.
const SHARES_MAX: usize = 64;
/// Combinations that are tried for one share.
const TRIES_MAX: usize = 64;

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharesCounters {
    /// Signatures put together, and sets of endorsements handed on.
    pub combined: u64,
    /// Signature checks.
    pub checks: u64,
    /// Shares and endorsements found to be bad.
    pub bad: u64,
    /// Frames and shares dropped because there were too many, or because the group has no threshold key.
    pub dropped: u64,
    /// Frames with an update that is not under its header's root.
    pub misplaced: u64,
}

#[derive(Default)]
struct Batch {
    /// Bytes that it holds, by session.
    bytes: BTreeMap<u64, usize>,
    /// By session.
    shares: BTreeMap<u64, HeaderShare>,
    /// By session.
    endorsements: BTreeMap<u64, HeaderEndorsement>,
    /// Sessions whose endorsements the gate did not take together.
    refused: BTreeSet<Vec<u64>>,
    /// Sessions whose endorsement was looked at, and whether it is good.
    judged: BTreeMap<u64, bool>,
    waiting: Vec<UnsignedUpdates>,
    signature: Option<GroupSignature>,
    /// Handed on with a signature that nobody checked yet.
    sent: Vec<UnsignedUpdates>,
    /// The gate or a check said so: the signature is right.
    proven: bool,
    /// The gate called it forged: from now on it is checked here first.
    doubted: bool,
    /// Sessions whose shares or endorsements made the unchecked signature.
    hoped: Vec<u64>,
}

/// An update, as its ack names it.
type Named = (Key, Version);

/// See the module.
pub struct Shares {
    key: Option<GroupVerifier>,
    /// By the encoding of the header.
    batches: BTreeMap<Vec<u8>, Batch>,
    /// By the session that began them, the oldest first.
    order: BTreeMap<u64, VecDeque<Vec<u8>>>,
    /// Bytes that wait, by session.
    bytes: BTreeMap<u64, usize>,
    /// Sessions that sent a bad share or endorsement.
    suspects: BTreeSet<u64>,
    /// Updates that were handed on unchecked, and under which header.
    unchecked: BTreeMap<Named, Vec<u8>>,
    /// Unchecked updates that went again with a checked signature: that the gate called them forged tells nobody anything.
    void: BTreeSet<Named>,
    /// Counters.
    pub counters: SharesCounters,
}

/// What a frame led to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Combined {
    /// For the switch. A frame without updates is the proof of a batch, of which updates may come.
    pub updates: Vec<SignedUpdates>,
    /// Sessions that were found to have sent a bad share or endorsement.
    pub bad: Vec<u64>,
    /// Sessions that made the host look at something that came to nothing.
    pub costly: Vec<u64>,
}

impl Combined {
    fn add(&mut self, other: Combined) {
        self.updates.extend(other.updates);
        self.bad.extend(other.bad);
        self.costly.extend(other.costly);
    }
}

impl Shares {
    /// For a group's key. Without a threshold key nothing is put together.
    pub fn new(key: Option<&GroupKey>) -> Shares {
        let key = match key {
            Some(GroupKey::Threshold(key)) => GroupVerifier::new(key).ok(),
            _ => None,
        };
        Shares {
            key,
            batches: BTreeMap::new(),
            order: BTreeMap::new(),
            bytes: BTreeMap::new(),
            suspects: BTreeSet::new(),
            unchecked: BTreeMap::new(),
            void: BTreeSet::new(),
            counters: SharesCounters::default(),
        }
    }

    /// A batch that something has come of.
    fn batch(&mut self, name: &[u8]) -> &mut Batch {
        self.batches.entry(name.to_vec()).or_default()
    }

    /// A batch that something comes of on a session.
    fn batch_by(&mut self, session: u64, name: &[u8]) -> &mut Batch {
        if !self.batches.contains_key(name) {
            if self.batches.len() >= BATCHES_MAX {
                self.forget_one();
            }
            self.order.entry(session).or_default().push_back(name.to_vec());
            self.batches.insert(name.to_vec(), Batch::default());
        }
        self.batch(name)
    }

    /// Forgets the oldest batch of the session that began most.
    fn forget_one(&mut self) {
        let most = self.order.iter().max_by_key(|(_, names)| names.len()).map(|(session, _)| *session);
        let Some(name) = most.and_then(|session| self.order.get_mut(&session)?.pop_front()) else { return };
        self.order.retain(|_, names| !names.is_empty());
        let Some(batch) = self.batches.remove(&name) else { return };
        self.counters.dropped += u64::from(!batch.waiting.is_empty());
        self.unchecked.retain(|_, of| *of != name);
        for (session, bytes) in batch.bytes {
            self.holds_less(session, bytes);
        }
    }

    fn holds_less(&mut self, session: u64, bytes: usize) {
        if let Some(held) = self.bytes.get_mut(&session) {
            *held = held.saturating_sub(bytes);
            if *held == 0 {
                self.bytes.remove(&session);
            }
        }
    }

    /// A batch holds no updates any more.
    fn holds_none(&mut self, name: &[u8]) {
        for (session, bytes) in std::mem::take(&mut self.batch(name).bytes) {
            self.holds_less(session, bytes);
        }
    }

    /// Updates came without a signature on a session.
    pub fn unsigned(&mut self, session: u64, updates: UnsignedUpdates) -> Combined {
        if self.key.is_none() {
            self.counters.dropped += 1;
            return Combined::default();
        }
        if !updates.updates.iter().all(|proven| is_of(&updates.header, proven)) {
            self.counters.misplaced += 1;
            return Combined { costly: vec![session], ..Combined::default() };
        }
        let name = encode(&updates.header);
        let bytes = encoded_bytes(&updates);
        let held = self.bytes.get(&session).copied().unwrap_or_default();
        let batch = self.batch_by(session, &name);
        let proven = batch.proven && batch.signature.is_some();
        let room = proven || held + bytes <= WAITING_BYTES_MAX;
        if room && (batch.signature.is_some() || batch.waiting.len() < FRAMES_MAX) {
            batch.waiting.push(updates);
            if !proven {
                *batch.bytes.entry(session).or_default() += bytes;
                *self.bytes.entry(session).or_default() += bytes;
            }
        } else {
            self.counters.dropped += 1;
        }
        Combined { updates: self.released(&name), ..Combined::default() }
    }

    /// A share came on a session.
    pub fn share(&mut self, session: u64, share: HeaderShare) -> Combined {
        if self.key.is_none() {
            self.counters.dropped += 1;
            return Combined::default();
        }
        let name = encode(&share.header);
        let batch = self.batch_by(session, &name);
        if batch.shares.len() >= SHARES_MAX && !batch.shares.contains_key(&session) {
            self.counters.dropped += 1;
            return Combined::default();
        }
        batch.shares.insert(session, share);
        if batch.signature.is_some() {
            return Combined::default();
        }
        self.complete(&name, session)
    }

    /// Goes on with a batch whose newest share is that of a session.
    fn complete(&mut self, name: &[u8], newest: u64) -> Combined {
        let checks = self.counters.checks;
        let Some((signature, used, proven)) = self.try_combine(name, newest) else {
            let is_its = self.counters.checks > checks && self.suspects.contains(&newest);
            return Combined {
                costly: is_its.then_some(newest).into_iter().collect(),
                ..Combined::default()
            };
        };
        self.counters.combined += 1;
        let batch = self.batch(name);
        (batch.signature, batch.proven) = (Some(GroupSignature::Threshold(signature)), proven);
        let mut bad = Vec::new();
        if proven {
            // A share that a false signature was made of may also say what no other does: it is asked last, at least.
            let hoped = std::mem::take(&mut batch.hoped);
            self.suspects.extend(hoped.into_iter().filter(|session| !used.contains(session)));
            bad = self.judge(name, &signature, &used);
            self.holds_none(name);
        } else {
            batch.hoped = used;
        }
        Combined { updates: self.released(name), bad, costly: Vec::new() }
    }

    /// The switch, where these controllers are in force, answered. `None`: the answer is for the controllers. Else it is for
    /// nobody, and this is to be done.
    pub fn acked(&mut self, acks: &[Ack], known: Option<&ControllersEntry>) -> Option<Combined> {
        let named = |ack: &Ack| (ack.key.clone(), ack.version);
        let forged = acks.iter().any(|ack| ack.result == Err(Refusal::Forged));
        let name = acks.iter().find_map(|ack| self.unchecked.get(&named(ack)).cloned());
        if forged && !acks.is_empty() && acks.iter().all(|ack| self.void.contains(&named(ack))) {
            acks.iter().for_each(|ack| {
                self.void.remove(&named(ack));
            });
            return Some(Combined::default());
        }
        let name = name?;
        let sent = std::mem::take(&mut self.batch(&name).sent);
        let updates = || sent.iter().flat_map(|frame| &frame.updates).map(|proven| &proven.update);
        for update in updates() {
            self.unchecked.remove(&(update.key.clone(), update.version));
        }
        if !forged {
            self.batch(&name).proven = true;
            self.holds_none(&name);
            return None;
        }
        if self.void.len() >= BATCHES_MAX {
            self.void.clear();
        }
        self.void.extend(updates().map(|update| (update.key.clone(), update.version)));
        acks.iter().for_each(|ack| {
            self.void.remove(&named(ack));
        });
        let batch = self.batch(&name);
        let mut done = Combined::default();
        match batch.signature {
            // Of another phase they are refused and nobody's fault.
            Some(GroupSignature::Members { .. }) => {
                batch.refused.insert(std::mem::take(&mut batch.hoped));
            }
            _ => done.costly.clone_from(&batch.hoped),
        }
        (batch.signature, batch.doubted) = (None, true);
        batch.waiting.extend(sent);
        let sessions: Vec<u64> = batch.shares.keys().copied().collect();
        for session in sessions {
            if self.batch(&name).signature.is_none() {
                let combined = self.complete(&name, session);
                done.add(combined);
            }
        }
        if let Some(known) = known.filter(|_| self.batch(&name).signature.is_none()) {
            let proven = self.prove(&name, known);
            done.add(proven);
        }
        Some(done)
    }

    /// Tries combinations with the newest share; gives the signature, the sessions whose shares made it, and whether it
    /// was checked.
    fn try_combine(&mut self, name: &[u8], newest: u64) -> Option<(BlsSignature, Vec<u64>, bool)> {
        let verifier = self.key.as_ref()?;
        let batch = self.batches.get(name)?;
        let last = batch.shares.get(&newest)?;
        let mut fit: Vec<u64> = batch
            .shares
            .iter()
            .filter(|(session, share)| {
                **session != newest
                    && (share.phase, share.threshold) == (last.phase, last.threshold)
                    && share.member != last.member
            })
            .map(|(session, _)| *session)
            .collect();
        fit.sort_by_key(|session| self.suspects.contains(session));
        let wanted = (last.threshold as usize).checked_sub(1)?;
        let (mut tries, mut checks) = (0, 0);
        let mut found = None;
        choose(&fit, wanted, &mut Vec::new(), &mut |chosen| {
            let sessions: Vec<u64> = chosen.iter().copied().chain([newest]).collect();
            let shares: Vec<ShareSignature> =
                sessions.iter().map(|session| as_share(&batch.shares[session])).collect();
            let hopes = !batch.doubted && !sessions.iter().any(|session| self.suspects.contains(session));
            tries += 1;
            checks += u64::from(!hopes);
            if let Ok(signature) = combine(&shares)
                && (hopes || verifier.verify(Context::Batch, name, &signature).is_ok())
            {
                found = Some((signature, sessions, !hopes));
            }
            found.is_some() || tries >= TRIES_MAX
        });
        self.counters.checks += checks;
        found
    }

    /// Which of the other shares are bad: in the place of a good one they give another signature.
    fn judge(&mut self, name: &[u8], signature: &BlsSignature, used: &[u64]) -> Vec<u64> {
        let Some(batch) = self.batches.get(name) else { return Vec::new() };
        let good: Vec<ShareSignature> = used.iter().map(|session| as_share(&batch.shares[session])).collect();
        let (phase, threshold) = match used.first().map(|session| &batch.shares[session]) {
            Some(share) => (share.phase, share.threshold),
            None => return Vec::new(),
        };
        let others = batch.shares.iter().filter(|(session, share)| {
            !used.contains(session) && (share.phase, share.threshold) == (phase, threshold)
        });
        let is_bad = |share: &HeaderShare| {
            let mut tried = good.clone();
            // A member that is among the good already has sent its right share; this is not its.
            if tried.iter().any(|good| good.member == share.member) {
                return tried.iter().all(|good| *good != as_share(share));
            }
            tried.pop();
            tried.push(as_share(share));
            combine(&tried).as_ref() != Ok(signature)
        };
        let bad: Vec<u64> = others.filter(|(_, share)| is_bad(share)).map(|(session, _)| *session).collect();
        self.counters.bad += bad.len() as u64;
        self.suspects.extend(&bad);
        bad
    }

    /// What waited for a signature that is there.
    fn released(&mut self, name: &[u8]) -> Vec<SignedUpdates> {
        let Some(batch) = self.batches.get_mut(name) else { return Vec::new() };
        let Some(signature) = batch.signature.clone() else { return Vec::new() };
        if !batch.proven {
            let room = FRAMES_MAX.saturating_sub(batch.sent.len());
            for frame in batch.waiting.iter().take(room) {
                for proven in &frame.updates {
                    self.unchecked.insert((proven.update.key.clone(), proven.update.version), name.to_vec());
                }
                batch.sent.push(frame.clone());
            }
        }
        let signed = |updates: UnsignedUpdates| SignedUpdates {
            header: SignedHeader { header: updates.header, signature: signature.clone() },
            updates: updates.updates,
        };
        std::mem::take(&mut batch.waiting).into_iter().map(signed).collect()
    }
}

fn as_share(share: &HeaderShare) -> ShareSignature {
    ShareSignature { member: share.member, signature: share.signature }
}

/// Gives each choice of `wanted` of `from`, the first ones first, until `take` says that it is enough.
fn choose(from: &[u64], wanted: usize, chosen: &mut Vec<u64>, take: &mut impl FnMut(&[u64]) -> bool) -> bool {
    if wanted == 0 {
        return take(chosen);
    }
    for (at, one) in from.iter().enumerate() {
        if from.len() - at < wanted {
            return false;
        }
        chosen.push(*one);
        let enough = choose(&from[at + 1..], wanted - 1, chosen, take);
        chosen.pop();
        if enough {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests;
