//! Endorsements: controllers' own signatures over a batch, of which enough prove it (`weir_trust::endorsement`).
//!
//! Who the controllers are, and how many are enough, is an entry in force at the switch; the agent knows it from its mirror. Of
//! another phase than that entry's, or without it, nothing is handed on: the switch would take nothing.
//!
//! As with shares, the first ones are handed on unchecked, for the gate checks them anyway. When it calls them forged, each is
//! judged by itself; who sent a bad one is named by its session, and from then on what it sends is checked here first. A set
//! that the gate did not take is not tried again.

use super::{Batch, Combined, SHARES_MAX, Shares};
use std::collections::BTreeSet;
use weir_base::codec::encode;
use weir_model::entry::ControllersEntry;
use weir_model::signed::{GroupSignature, HeaderEndorsement, MemberSignature, SignedHeader, SignedUpdates};
use weir_trust::endorsement::verify_one;

/// Sessions with endorsements, each of another member.
fn distinct<'b>(
    endorsements: impl Iterator<Item = (&'b u64, &'b HeaderEndorsement)>,
) -> Vec<(u64, MemberSignature)> {
    let mut members = BTreeSet::new();
    let others = endorsements.filter(|(_, one)| members.insert(one.by.member));
    others.map(|(session, one)| (*session, one.by)).collect()
}

fn is_good(one: &HeaderEndorsement, known: &ControllersEntry) -> bool {
    let key = known.members.get(&one.by.member);
    key.is_some_and(|key| verify_one(key, one.phase, &one.header, &one.by.signature).is_ok())
}

/// Endorsements that nobody has looked at, of sessions that nobody suspects.
fn hopes(batch: &Batch, known: &ControllersEntry, suspects: &BTreeSet<u64>) -> Vec<(u64, MemberSignature)> {
    distinct(batch.endorsements.iter().filter(|(session, one)| {
        one.phase == known.phase && known.members.contains_key(&one.by.member) && !suspects.contains(session)
    }))
}

impl Shares {
    /// An endorsement came on a session; these controllers are in force at the switch.
    pub fn endorsement(
        &mut self,
        session: u64,
        endorsement: HeaderEndorsement,
        known: Option<&ControllersEntry>,
    ) -> Combined {
        let Some(known) = known.filter(|_| self.key.is_some()) else {
            self.counters.dropped += 1;
            return Combined::default();
        };
        let name = encode(&endorsement.header);
        let batch = self.batch_by(session, &name);
        if batch.endorsements.len() >= SHARES_MAX && !batch.endorsements.contains_key(&session) {
            self.counters.dropped += 1;
            return Combined::default();
        }
        // The first of a phase counts, so that looking at it is done once.
        if batch.endorsements.get(&session).is_some_and(|first| first.phase == endorsement.phase) {
            return Combined::default();
        }
        batch.judged.remove(&session);
        batch.endorsements.insert(session, endorsement);
        if batch.signature.is_some() {
            return Combined::default();
        }
        self.prove(&name, known)
    }

    /// Hands a batch on when there are enough endorsements of it.
    pub(super) fn prove(&mut self, name: &[u8], known: &ControllersEntry) -> Combined {
        let Some(batch) = self.batches.get(name) else { return Combined::default() };
        let enough = (known.threshold as usize).max(1);
        let of_phase = |one: &HeaderEndorsement| one.phase == known.phase;
        if batch.endorsements.values().filter(|one| of_phase(one)).count() < enough {
            return Combined::default();
        }
        let hoped = hopes(batch, known, &self.suspects);
        let mut bad = Vec::new();
        let mut chosen = if batch.doubted || hoped.len() < enough {
            bad = self.judge_endorsements(name, known);
            let Some(batch) = self.batches.get(name) else { return Combined::default() };
            let good = batch
                .endorsements
                .iter()
                .filter(|(session, one)| of_phase(one) && batch.judged.get(session) == Some(&true));
            distinct(good)
        } else {
            hoped
        };
        chosen.truncate(enough);
        let (sessions, signatures): (Vec<u64>, Vec<MemberSignature>) = chosen.into_iter().unzip();
        let batch = self.batch(name);
        if signatures.len() < enough || batch.refused.contains(&sessions) {
            return Combined { bad, ..Combined::default() };
        }
        batch.signature = Some(GroupSignature::Members { phase: known.phase, signatures });
        batch.hoped = sessions;
        self.counters.combined += 1;
        let mut updates = self.released(name);
        if updates.is_empty() {
            updates.extend(self.proof(name));
        }
        Combined { updates, bad, costly: Vec::new() }
    }

    /// The proof alone: an update that goes after those of other switches comes a round trip later, and the switch has looked
    /// at the proof by then.
    fn proof(&self, name: &[u8]) -> Option<SignedUpdates> {
        let batch = self.batches.get(name)?;
        let header = batch.endorsements.values().next()?.header.clone();
        let signature = batch.signature.clone()?;
        Some(SignedUpdates { header: SignedHeader { header, signature }, updates: Vec::new() })
    }

    /// Checks what came of a batch and nobody has looked at; gives the sessions that sent something bad.
    fn judge_endorsements(&mut self, name: &[u8], known: &ControllersEntry) -> Vec<u64> {
        let Some(batch) = self.batches.get_mut(name) else { return Vec::new() };
        let mut bad = Vec::new();
        for (session, one) in batch.endorsements.iter().filter(|(_, one)| one.phase == known.phase) {
            if batch.judged.contains_key(session) {
                continue;
            }
            self.counters.checks += 1;
            let good = is_good(one, known);
            batch.judged.insert(*session, good);
            if !good {
                bad.push(*session);
            }
        }
        self.counters.bad += bad.len() as u64;
        self.suspects.extend(&bad);
        bad
    }
}

#[cfg(test)]
mod tests;
