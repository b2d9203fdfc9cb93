//! Compares running digests of the replicas' states (row B1: a replica that diverged must not go on serving).
//!
//! Every replica's application digests its state after the same batches and tells the others. A pure core: it hears own and
//! others' digests and says when this replica's differs from what a majority of the voters has.
//!
//! Departure: the papers compare replies of replicas one by one; a digest of the state covers what no reply showed yet.

use std::collections::{BTreeMap, BTreeSet};

/// Places of which digests are remembered; older ones go.
pub const PLACES_MAX: usize = 64;

/// This replica's state is not that of the majority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Divergence {
    /// The first batch known after which it differs.
    pub index: u64,
    /// The digest of this replica.
    pub own: [u8; 32],
    /// The digest of the majority.
    pub majority: [u8; 32],
}

/// The digests heard.
#[derive(Debug, Default)]
pub struct Digests {
    own_id: u64,
    places: BTreeMap<u64, BTreeMap<u64, [u8; 32]>>,
    /// Places that were compared with a majority that agreed with this replica.
    pub agreed: u64,
}

impl Digests {
    /// Of replica `own_id`.
    pub fn new(own_id: u64) -> Digests {
        Digests { own_id, places: BTreeMap::new(), agreed: 0 }
    }

    /// Hears the digest of replica `from` after batch `index`, and compares.
    pub fn heard(
        &mut self,
        from: u64,
        index: u64,
        digest: [u8; 32],
        voters: &BTreeSet<u64>,
    ) -> Option<Divergence> {
        let oldest = self.places.first_key_value().map_or(0, |(oldest, _)| *oldest);
        if self.places.len() >= PLACES_MAX && index < oldest {
            return None;
        }
        let place = self.places.entry(index).or_default();
        let known = place.insert(from, digest) == Some(digest);
        if self.places.len() > PLACES_MAX {
            self.places.pop_first();
        }
        if known { None } else { self.compare(index, voters) }
    }

    fn compare(&mut self, index: u64, voters: &BTreeSet<u64>) -> Option<Divergence> {
        let place = self.places.get(&index)?;
        let own = *place.get(&self.own_id)?;
        let mut counts: BTreeMap<[u8; 32], usize> = BTreeMap::new();
        for (_, digest) in place.iter().filter(|(id, _)| voters.contains(id)) {
            *counts.entry(*digest).or_default() += 1;
        }
        let (majority, _) = counts.into_iter().find(|(_, count)| *count > voters.len() / 2)?;
        if majority == own {
            self.agreed += 1;
            return None;
        }
        Some(Divergence { index, own, majority })
    }

    /// Who had `digest` after `index`.
    pub fn holders(&self, index: u64, digest: &[u8; 32]) -> Vec<u64> {
        let place = self.places.get(&index);
        place.into_iter().flatten().filter(|(_, heard)| *heard == digest).map(|(id, _)| *id).collect()
    }

    /// Forgets this replica's own: its state was replaced.
    pub fn forget_own(&mut self) {
        for place in self.places.values_mut() {
            place.remove(&self.own_id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: [u8; 32] = [1; 32];
    const B: [u8; 32] = [2; 32];

    fn voters(count: u64) -> BTreeSet<u64> {
        (1..=count).collect()
    }

    #[test]
    fn only_a_majority_convicts() {
        let mut digests = Digests::new(1);
        assert_eq!(digests.heard(1, 10, B, &voters(3)), None);
        assert_eq!(digests.heard(2, 10, A, &voters(3)), None, "one against one");
        let divergence = digests.heard(3, 10, A, &voters(3));
        assert_eq!(divergence, Some(Divergence { index: 10, own: B, majority: A }));
        assert_eq!(digests.holders(10, &A), [2, 3]);
        digests.forget_own();
        assert_eq!(digests.heard(1, 10, A, &voters(3)), None);
        assert_eq!(digests.agreed, 1);
    }

    #[test]
    fn learners_and_strangers_count_for_nothing() {
        let mut digests = Digests::new(1);
        digests.heard(1, 10, B, &voters(3));
        for stranger in 4..10 {
            assert_eq!(digests.heard(stranger, 10, A, &voters(3)), None);
        }
    }

    #[test]
    fn a_digest_may_come_before_ones_own() {
        let mut digests = Digests::new(1);
        assert_eq!(digests.heard(2, 10, A, &voters(3)), None);
        assert_eq!(digests.heard(3, 10, A, &voters(3)), None);
        assert!(digests.heard(1, 10, B, &voters(3)).is_some());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut digests = Digests::new(1);
        for index in 0..10_000 {
            digests.heard(2, index, A, &voters(3));
        }
        assert_eq!(digests.places.len(), PLACES_MAX);
        assert_eq!(digests.heard(2, 1, A, &voters(3)), None);
        assert_eq!(digests.places.len(), PLACES_MAX);
    }
}
