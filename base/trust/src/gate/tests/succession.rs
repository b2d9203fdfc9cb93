//! A group's key that takes the place of one controller's.

use super::*;
use crate::batch::GroupSigner;
use crate::threshold::simulation::{Group, group};
use weir_model::conversion::{Succeeded, Succession};
use weir_model::signed::{BlsKey, GroupKey};

/// A domain that one controller signs, and a group that comes after it.
struct Converts {
    world: World,
    group: Group,
}

fn key_of(group: &Group) -> BlsKey {
    match group.group_key() {
        GroupKey::Threshold(key) => key,
        GroupKey::Single(_) => unreachable!("a group has a threshold key"),
    }
}

impl Converts {
    fn new() -> Converts {
        Converts { world: World::new(), group: group(4, 7) }
    }

    fn succession(&self, group: &Group) -> Succession {
        Succession { domain: label("domain"), number: 1, epoch: 3, key: key_of(group) }
    }

    /// What `group` decided in `epoch`, with the old key's word for it.
    fn frame(&self, group: &Group, epoch: u64, updates: Vec<Update>) -> SignedUpdates {
        let succession = self.succession(group);
        let by = self.world.signer.succeed(&succession).unwrap();
        self.under((succession, by), group, epoch, updates)
    }

    fn under(
        &self,
        (succession, by): (Succession, weir_model::signed::Signature),
        group: &Group,
        epoch: u64,
        updates: Vec<Update>,
    ) -> SignedUpdates {
        let index = updates[0].version;
        let (mut header, proven) = sign_batch(group, &label("domain"), epoch, index, updates).unwrap();
        let GroupSignature::Threshold(signature) = header.signature else { panic!("{header:?}") };
        header.signature = GroupSignature::Succeeded(Box::new(Succeeded { succession, by, signature }));
        frames(proven.into_iter().map(|p| (header.clone(), p)), 1000).remove(0)
    }
}

#[test]
fn a_key_that_the_old_one_named_takes_its_place_for_good() {
    let converts = Converts::new();
    let mut gate = converts.world.gate();
    assert_eq!(results(&mut gate, &converts.world.frame(2, vec![put(1, 1)])), vec![Ok(())]);
    // Not under the old key's word alone: the group has signed nothing.
    let plain = |epoch, updates: Vec<Update>| {
        let (header, proven) =
            sign_batch(&converts.group, &label("domain"), epoch, updates[0].version, updates).unwrap();
        frames(proven.into_iter().map(|p| (header.clone(), p)), 1000).remove(0)
    };
    assert_eq!(results(&mut gate, &plain(3, vec![put(1, 2)])), vec![Err(Refusal::Forged)]);
    assert_eq!(results(&mut gate, &converts.frame(&converts.group, 3, vec![put(1, 2)])), vec![Ok(())]);
    // The new key needs no word any more.
    assert_eq!(results(&mut gate, &plain(3, vec![put(1, 3)])), vec![Ok(())]);
    // The old key signs nothing of this epoch or a later one, and what it signed before is over.
    for epoch in [3, 4] {
        let old = converts.world.frame(epoch, vec![put(1, 9)]);
        assert_eq!(results(&mut gate, &old), vec![Err(Refusal::Forged)], "epoch {epoch}");
    }
    let before = converts.world.frame(2, vec![put(1, 9)]);
    assert_eq!(results(&mut gate, &before), vec![Err(Refusal::StaleEpoch { given: 2, current: 3 })]);
    // Nor does it name another key.
    let other = group(4, 8);
    assert_eq!(results(&mut gate, &converts.frame(&other, 5, vec![put(1, 9)])), vec![Err(Refusal::Forged)]);
    // The journal has it, also when it was written anew and nothing of the new key's is left in it.
    gate.compact().unwrap();
    drop(gate);
    let mut gate = converts.world.gate();
    assert_eq!(results(&mut gate, &converts.frame(&other, 5, vec![put(1, 9)])), vec![Err(Refusal::Forged)]);
    assert_eq!(results(&mut gate, &plain(3, vec![put(1, 4)])), vec![Ok(())]);
}

#[test]
fn a_word_of_another_domain_epoch_or_key_is_nobodys() {
    let converts = Converts::new();
    let mut gate = converts.world.gate();
    let forged = |gate: &mut Gate, frame: &SignedUpdates| {
        assert_eq!(results(gate, frame), vec![Err(Refusal::Forged)]);
    };
    let group = &converts.group;
    // Of an epoch before the one that it begins with.
    forged(&mut gate, &converts.frame(group, 2, vec![put(1, 1)]));
    let right = converts.succession(group);
    let elsewhere = Succession { domain: label("other"), ..right.clone() };
    let by = converts.world.signer.succeed(&elsewhere).unwrap();
    forged(&mut gate, &converts.under((elsewhere, by), group, 3, vec![put(1, 1)]));
    // Signed by somebody else.
    let by = SingleSigner(KeyPair::from_seed(&[9; 32])).succeed(&right).unwrap();
    forged(&mut gate, &converts.under((right.clone(), by), group, 3, vec![put(1, 1)]));
    // The word is right, and another group signed the batch.
    let by = converts.world.signer.succeed(&right).unwrap();
    forged(
        &mut gate,
        &converts.under((right, by), &crate::threshold::simulation::group(4, 8), 3, vec![put(1, 1)]),
    );
    // Nothing of it is followed.
    assert_eq!(results(&mut gate, &converts.world.frame(3, vec![put(1, 1)])), vec![Ok(())]);
}

#[test]
fn who_joined_since_trusts_the_new_key_alone() {
    let converts = Converts::new();
    let verifier = Verifier::new(label("domain"), converts.group.group_key());
    let mut gate = Gate::open(label("h1"), verifier, &converts.world.dir.path().join("joined")).unwrap();
    assert_eq!(results(&mut gate, &converts.frame(&converts.group, 3, vec![put(1, 1)])), vec![Ok(())]);
    assert_eq!(results(&mut gate, &converts.world.frame(4, vec![put(1, 2)])), vec![Err(Refusal::Forged)]);
    let other = group(4, 8);
    assert_eq!(results(&mut gate, &converts.frame(&other, 3, vec![put(1, 2)])), vec![Err(Refusal::Forged)]);
}
