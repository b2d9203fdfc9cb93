//! Compares running digests of the replicas' states (row B1: a replica that diverged must not go on serving).
//!
//! Every replica's application digests its state after the same batches and tells the others. A pure core: it hears own and
//! others' digests and says when this replica's differs from one that a quorum of the voters has: a majority where replicas only
//! crash, 2f+1 of 3f+1 where they may lie.
//!
//! Invariants
//! - Of each voter at most [`PLACES_OF_ONE_MAX`] places are remembered, its newest. So a liar that names places far ahead pushes
//!   out nothing but its own.
//! - A digest counts for the one who said it: links are authenticated.
//!
//! Departure: the papers compare replies of replicas one by one; a digest of the state covers what no reply showed yet.

use std::collections::{BTreeMap, BTreeSet};

/// Places of one voter of which digests are remembered; older ones go.
pub const PLACES_OF_ONE_MAX: usize = 64;

/// A digest of a state.
pub type StateDigest = [u8; 32];

/// This replica's state is not that of the quorum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Divergence {
    /// The first batch known after which it differs.
    pub index: u64,
    /// The digest of this replica.
    pub own: StateDigest,
    /// The digest of the quorum.
    pub majority: StateDigest,
}

/// The digests heard.
#[derive(Debug, Default)]
pub struct Digests {
    own_id: u64,
    said: BTreeMap<u64, BTreeMap<u64, StateDigest>>,
    /// Places that were compared with a quorum that agreed with this replica.
    pub agreed: u64,
    /// Digests of those who have no say.
    pub strangers: u64,
}

impl Digests {
    /// Of replica `own_id`.
    pub fn new(own_id: u64) -> Digests {
        Digests { own_id, ..Digests::default() }
    }

    /// Hears the digest of replica `from` after batch `index`, and compares: `quorum` of the voters are right.
    pub fn heard(
        &mut self,
        from: u64,
        index: u64,
        digest: StateDigest,
        (voters, quorum): (&BTreeSet<u64>, usize),
    ) -> Option<Divergence> {
        if from != self.own_id && !voters.contains(&from) {
            self.strangers += 1;
            return None;
        }
        self.said.retain(|who, _| *who == self.own_id || voters.contains(who));
        let of_one = self.said.entry(from).or_default();
        let known = of_one.insert(index, digest) == Some(digest);
        while of_one.len() > PLACES_OF_ONE_MAX {
            of_one.pop_first();
        }
        if known { None } else { self.compare(index, voters, quorum) }
    }

    fn compare(&mut self, index: u64, voters: &BTreeSet<u64>, quorum: usize) -> Option<Divergence> {
        let own = *self.said.get(&self.own_id)?.get(&index)?;
        let majority = self.agreed_on(index, voters, quorum)?;
        if majority == own {
            self.agreed += 1;
            return None;
        }
        Some(Divergence { index, own, majority })
    }

    /// What `quorum` of the voters say after `index`.
    pub fn agreed_on(&self, index: u64, voters: &BTreeSet<u64>, quorum: usize) -> Option<StateDigest> {
        let mut counts: BTreeMap<StateDigest, usize> = BTreeMap::new();
        for (_, of_one) in self.said.iter().filter(|(who, _)| voters.contains(who)) {
            if let Some(digest) = of_one.get(&index) {
                *counts.entry(*digest).or_default() += 1;
            }
        }
        counts.into_iter().find(|(_, count)| *count >= quorum).map(|(digest, _)| digest)
    }

    /// This replica.
    pub fn own_id(&self) -> u64 {
        self.own_id
    }

    /// What this replica said after `index`.
    pub fn own(&self, index: u64) -> Option<StateDigest> {
        self.said.get(&self.own_id)?.get(&index).copied()
    }

    /// Who had `digest` after `index`.
    pub fn holders(&self, index: u64, digest: &StateDigest) -> Vec<u64> {
        let has = |of_one: &BTreeMap<u64, StateDigest>| of_one.get(&index) == Some(digest);
        self.said.iter().filter(|(_, of_one)| has(of_one)).map(|(who, _)| *who).collect()
    }

    /// Forgets this replica's own: its state was replaced.
    pub fn forget_own(&mut self) {
        self.said.remove(&self.own_id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: StateDigest = [1; 32];
    const B: StateDigest = [2; 32];

    fn voters(count: u64) -> BTreeSet<u64> {
        (1..=count).collect()
    }

    #[test]
    fn only_a_quorum_convicts() {
        let (three, mut digests) = (voters(3), Digests::new(1));
        assert_eq!(digests.heard(1, 10, B, (&three, 2)), None);
        assert_eq!(digests.heard(2, 10, A, (&three, 2)), None, "one against one");
        let divergence = digests.heard(3, 10, A, (&three, 2));
        assert_eq!(divergence, Some(Divergence { index: 10, own: B, majority: A }));
        assert_eq!(digests.holders(10, &A), [2, 3]);
        digests.forget_own();
        assert_eq!(digests.heard(1, 10, A, (&three, 2)), None);
        assert_eq!(digests.agreed, 1);

        let (four, mut digests) = (voters(4), Digests::new(1));
        for (who, digest) in [(1, B), (2, A), (3, A)] {
            assert_eq!(digests.heard(who, 10, digest, (&four, 3)), None, "two of four may be one and a liar");
        }
        assert_eq!(digests.heard(4, 10, A, (&four, 3)).map(|found| found.majority), Some(A));
    }

    #[test]
    fn learners_and_strangers_count_for_nothing() {
        let (three, mut digests) = (voters(3), Digests::new(1));
        digests.heard(1, 10, B, (&three, 2));
        for stranger in 4..10 {
            assert_eq!(digests.heard(stranger, 10, A, (&three, 2)), None);
        }
        assert_eq!(digests.strangers, 6);
        assert_eq!(digests.said.len(), 1, "and nothing of them is remembered");
    }

    #[test]
    fn a_digest_may_come_before_ones_own() {
        let (three, mut digests) = (voters(3), Digests::new(1));
        assert_eq!(digests.heard(2, 10, A, (&three, 2)), None);
        assert_eq!(digests.heard(3, 10, A, (&three, 2)), None);
        assert!(digests.heard(1, 10, B, (&three, 2)).is_some());
    }

    #[test]
    fn a_liar_with_places_far_ahead_pushes_out_only_its_own() {
        let (four, mut digests) = (voters(4), Digests::new(1));
        for (who, digest) in [(1, B), (2, A), (3, A)] {
            digests.heard(who, 10, digest, (&four, 3));
        }
        for index in 0..10_000 {
            digests.heard(4, u64::MAX - index, [index as u8; 32], (&four, 3));
        }
        assert_eq!(digests.said[&4].len(), PLACES_OF_ONE_MAX);
        assert!(digests.said.values().map(BTreeMap::len).sum::<usize>() <= PLACES_OF_ONE_MAX + 3);
        assert_eq!(digests.own(10), Some(B));
        assert_eq!(digests.holders(10, &A), [2, 3], "what the others said is still known");
        // Those two, and the liar when it says the truth once, convict.
        let mut honest = Digests::new(1);
        for index in 0..10_000 {
            honest.heard(4, u64::MAX - index, A, (&four, 3));
        }
        for who in [2, 3] {
            honest.heard(who, 64, A, (&four, 2));
        }
        assert!(honest.heard(1, 64, B, (&four, 2)).is_some());
    }
}
