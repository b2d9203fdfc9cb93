//! Updates that come without a signature, and the group's controllers' shares of it: put together here, handed to the
//! switch as if a controller had done it (row C4, switch aggregation). A pure machine.
//!
//! The switch's gate checks what comes out as always, so nothing rests on this but that updates arrive.
//!
//! Only the group's key is known here, and that is enough: shares are combined and the result is checked once. When it is
//! wrong, other combinations with the share that came last are tried, at most [`TRIES_MAX`] a share. The group's signature
//! is unique, so once it is known each other share is judged without a check: put in the place of a good one it must
//! give the same bytes. Who sent a bad one is named by its session, and asked last from then on.
//!
//! Departure from Cicero: the signature is over the root of a batch, so this is done once a batch and not once a rule.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use weir_base::codec::encode;
use weir_model::signed::{
    BlsSignature, GroupKey, GroupSignature, HeaderShare, SignedHeader, SignedUpdates, UnsignedUpdates,
};
use weir_trust::identity::Context;
use weir_trust::threshold::{GroupVerifier, ShareSignature, combine};

/// Batches that are remembered, the newest.
const BATCHES_MAX: usize = 1_024;
/// Frames of updates that wait for the signature of their batch.
const FRAMES_MAX: usize = 64;
/// Shares of one batch that are kept: more than a group has members.
const SHARES_MAX: usize = 64;
/// Combinations that are tried for one share.
const TRIES_MAX: usize = 64;

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharesCounters {
    /// Signatures put together.
    pub combined: u64,
    /// Signature checks.
    pub checks: u64,
    /// Shares found to be bad.
    pub bad: u64,
    /// Frames and shares dropped because there were too many, or because the group has no threshold key.
    pub dropped: u64,
}

#[derive(Default)]
struct Batch {
    /// By session.
    shares: BTreeMap<u64, HeaderShare>,
    waiting: Vec<UnsignedUpdates>,
    signature: Option<BlsSignature>,
}

/// See the module.
pub struct Shares {
    key: Option<GroupVerifier>,
    /// By the encoding of the header.
    batches: BTreeMap<Vec<u8>, Batch>,
    order: VecDeque<Vec<u8>>,
    /// Sessions that sent a bad share.
    suspects: BTreeSet<u64>,
    /// Counters.
    pub counters: SharesCounters,
}

/// What a frame led to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Combined {
    /// For the switch.
    pub updates: Vec<SignedUpdates>,
    /// Sessions that were found to have sent a bad share.
    pub bad: Vec<u64>,
}

impl Shares {
    /// For a group's key. Without a threshold key nothing is put together.
    pub fn new(key: Option<&GroupKey>) -> Shares {
        let key = match key {
            Some(GroupKey::Threshold(key)) => GroupVerifier::new(key).ok(),
            _ => None,
        };
        let (batches, order, suspects) = (BTreeMap::new(), VecDeque::new(), BTreeSet::new());
        Shares { key, batches, order, suspects, counters: SharesCounters::default() }
    }

    fn batch(&mut self, name: &[u8]) -> &mut Batch {
        if !self.batches.contains_key(name) {
            if self.order.len() >= BATCHES_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                let unfinished = self.batches.remove(&oldest).is_some_and(|batch| !batch.waiting.is_empty());
                self.counters.dropped += u64::from(unfinished);
            }
            self.order.push_back(name.to_vec());
        }
        self.batches.entry(name.to_vec()).or_default()
    }

    /// Updates came without a signature.
    pub fn unsigned(&mut self, updates: UnsignedUpdates) -> Combined {
        if self.key.is_none() {
            self.counters.dropped += 1;
            return Combined::default();
        }
        let name = encode(&updates.header);
        let batch = self.batch(&name);
        if batch.signature.is_some() || batch.waiting.len() < FRAMES_MAX {
            batch.waiting.push(updates);
        } else {
            self.counters.dropped += 1;
        }
        Combined { updates: self.released(&name), bad: Vec::new() }
    }

    /// A share came on a session.
    pub fn share(&mut self, session: u64, share: HeaderShare) -> Combined {
        if self.key.is_none() {
            self.counters.dropped += 1;
            return Combined::default();
        }
        let name = encode(&share.header);
        let batch = self.batch(&name);
        if batch.shares.len() >= SHARES_MAX && !batch.shares.contains_key(&session) {
            self.counters.dropped += 1;
            return Combined::default();
        }
        batch.shares.insert(session, share);
        let done = batch.signature.is_some();
        let good = if done { None } else { self.try_combine(&name, session) };
        match good {
            Some((signature, used)) => {
                self.counters.combined += 1;
                self.batch(&name).signature = Some(signature);
                let bad = self.judge(&name, &signature, &used);
                Combined { updates: self.released(&name), bad }
            }
            None => Combined::default(),
        }
    }

    /// Tries combinations with the newest share; gives the signature and the sessions whose shares made it.
    fn try_combine(&mut self, name: &[u8], newest: u64) -> Option<(BlsSignature, Vec<u64>)> {
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
        let mut tries = 0;
        let mut found = None;
        choose(&fit, wanted, &mut Vec::new(), &mut |chosen| {
            let sessions: Vec<u64> = chosen.iter().copied().chain([newest]).collect();
            let shares: Vec<ShareSignature> =
                sessions.iter().map(|session| as_share(&batch.shares[session])).collect();
            tries += 1;
            if let Ok(signature) = combine(&shares)
                && verifier.verify(Context::Batch, name, &signature).is_ok()
            {
                found = Some((signature, sessions));
            }
            found.is_some() || tries >= TRIES_MAX
        });
        self.counters.checks += tries as u64;
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
        let Some(signature) = batch.signature else { return Vec::new() };
        let signed = |updates: UnsignedUpdates| {
            let signature = GroupSignature::Threshold(signature);
            SignedUpdates {
                header: SignedHeader { header: updates.header, signature },
                updates: updates.updates,
            }
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
