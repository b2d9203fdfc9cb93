mod succession;

use super::*;
use crate::batch::{SingleSigner, frames, sign_batch};
use crate::identity::KeyPair;
use std::net::IpAddr;
use weir_model::entry::Vni;

struct World {
    dir: tempfile::TempDir,
    signer: SingleSigner,
}

impl World {
    fn new() -> World {
        World { dir: tempfile::tempdir().unwrap(), signer: SingleSigner(KeyPair::from_seed(&[1; 32])) }
    }

    fn verifier(&self) -> Verifier {
        use crate::batch::GroupSigner;
        Verifier::new(label("domain"), self.signer.group_key())
    }

    fn gate(&self) -> Gate {
        Gate::open(label("h1"), self.verifier(), &self.dir.path().join("gate")).unwrap()
    }

    fn frame(&self, epoch: u64, updates: Vec<Update>) -> SignedUpdates {
        let index = updates[0].version;
        let (header, proven) = sign_batch(&self.signer, &label("domain"), epoch, index, updates).unwrap();
        frames(proven.into_iter().map(|p| (header.clone(), p)), 1000).remove(0)
    }
}

fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

fn key(number: u8) -> Key {
    Key::Members { vni: Vni(1), tag: label("web"), bucket: number }
}

fn put(number: u8, version: u64) -> Update {
    let addresses: Vec<IpAddr> = vec![format!("10.0.{number}.{}", version % 250).parse().unwrap()];
    Update {
        target: label("h1"),
        key: key(number),
        version: Version(version),
        expected: Version::ZERO,
        change: Change::Put(Entry::Members(addresses)),
    }
}

fn delete(number: u8, version: u64) -> Update {
    Update { change: Change::Delete, ..put(number, version) }
}

fn results(gate: &mut Gate, frame: &SignedUpdates) -> Vec<Result<(), Refusal>> {
    take(gate, frame, |_| Ok(())).unwrap().into_iter().map(|ack| ack.result).collect()
}

#[test]
fn a_gate_that_follows_another_takes_its_place() {
    let world = World::new();
    let mut theirs = world.gate();
    results(&mut theirs, &world.frame(1, vec![put(1, 5)]));
    let mut ours = Gate::follow(label("h1"), world.verifier(), &world.dir.path().join("gate")).unwrap();
    assert_eq!(ours.digest(), theirs.digest());
    assert!(take(&mut ours, &world.frame(1, vec![put(2, 6)]), |_| Ok(())).is_err(), "it is not ours");
    results(&mut theirs, &world.frame(2, vec![put(2, 6)]));
    results(&mut theirs, &world.frame(2, vec![delete(1, 7)]));
    assert_eq!(ours.more().unwrap(), [put(2, 6), delete(1, 7)]);
    assert_eq!((ours.digest(), ours.epoch()), (theirs.digest(), 2));
    drop(theirs);
    ours.own().unwrap();
    assert_eq!(results(&mut ours, &world.frame(2, vec![put(3, 8)])), [Ok(())]);
    assert_eq!(world.gate().digest(), ours.digest());
}

#[test]
fn applies_once_and_acks_again() {
    let world = World::new();
    let mut gate = world.gate();
    let frame = world.frame(1, vec![put(1, 5), put(2, 5)]);
    let mut applied = 0;
    for _ in 0..3 {
        let acks = take(&mut gate, &frame, |_| {
            applied += 1;
            Ok(())
        });
        assert!(acks.unwrap().iter().all(|ack| ack.result.is_ok()));
    }
    assert_eq!(applied, 2);
    assert_eq!(gate.counters.repeated, 4);
    assert_eq!(gate.verifier.signature_checks, 1);
}

#[test]
fn refuses_forged_replayed_misaddressed_and_stale() {
    let world = World::new();
    let mut gate = world.gate();
    let first = world.frame(2, vec![put(1, 5)]);
    let second = world.frame(2, vec![delete(1, 6)]);
    assert_eq!(results(&mut gate, &first), [Ok(())]);
    assert_eq!(results(&mut gate, &second), [Ok(())]);
    let replay = results(&mut gate, &first);
    assert_eq!(replay, [Err(Refusal::Stale { in_force: Version(6) })]);

    let mut forged = world.frame(2, vec![put(2, 7)]);
    forged.updates[0].update.change = Change::Delete;
    assert_eq!(results(&mut gate, &forged), [Err(Refusal::Forged)]);
    let mut forged = world.frame(2, vec![put(2, 7)]);
    forged.header.header.epoch = 3;
    assert_eq!(results(&mut gate, &forged), [Err(Refusal::Forged)]);
    let stranger = World { signer: SingleSigner(KeyPair::from_seed(&[9; 32])), ..World::new() };
    assert_eq!(results(&mut gate, &stranger.frame(2, vec![put(2, 7)])), [Err(Refusal::Forged)]);
    let late = world.frame(2, vec![put(3, 7), put(2, 8)]);
    assert_eq!(
        results(&mut gate, &late),
        [Ok(()), Err(Refusal::Forged)],
        "no version is above its batch's index"
    );

    let other = Update { target: label("h2"), ..put(2, 9) };
    assert_eq!(results(&mut gate, &world.frame(2, vec![other])), [Err(Refusal::WrongTarget)]);
    let old = world.frame(1, vec![put(2, 10)]);
    assert_eq!(results(&mut gate, &old), [Err(Refusal::StaleEpoch { given: 1, current: 2 })]);
    let misfit = Update { key: Key::Gateways, ..put(2, 11) };
    assert_eq!(results(&mut gate, &world.frame(2, vec![misfit])), [Err(Refusal::Misfit)]);
    let missing = Update { expected: Version(3), ..put(5, 12) };
    let refused = results(&mut gate, &world.frame(2, vec![missing]));
    assert_eq!(refused, [Err(Refusal::Expected { expected: Version(3), in_force: Version(0) })]);
}

#[test]
fn no_version_goes_back_within_a_frame() {
    let world = World::new();
    let mut gate = world.gate();
    let frame = world.frame(1, vec![put(1, 6), put(2, 4), put(1, 5)]);
    let stale = Err(Refusal::Stale { in_force: Version(6) });
    assert_eq!(results(&mut gate, &frame), [Ok(()), Ok(()), stale.clone()]);
    assert_eq!(gate.get(&key(1)).unwrap().version, Version(6));
    assert_eq!(results(&mut gate, &frame), [Ok(()), Ok(()), stale], "nor when it comes again");
    let digest = gate.digest();
    drop(gate);
    assert_eq!(world.gate().digest(), digest);
}

#[test]
fn restart_is_where_it_was_and_a_failed_apply_leaves_nothing() {
    let world = World::new();
    let mut gate = world.gate();
    results(&mut gate, &world.frame(4, vec![put(1, 5), put(2, 5), put(3, 5)]));
    results(&mut gate, &world.frame(4, vec![delete(2, 6)]));
    let failing = world.frame(4, vec![put(7, 7)]);
    let acks = take(&mut gate, &failing, |_| Err(Refusal::Failed("no device".into()))).unwrap();
    assert_eq!(acks[0].result, Err(Refusal::Failed("no device".into())));
    assert!(gate.get(&key(7)).is_none());
    let (digest, epoch) = (gate.digest(), gate.epoch());
    drop(gate);

    let gate = world.gate();
    assert_eq!((gate.digest(), gate.epoch()), (digest, epoch));
    assert_eq!(gate.get(&key(2)).unwrap().entry, None);
    assert_eq!(gate.get(&key(3)).unwrap().version, Version(5));
    let sum = gate.iter().fold(0_u128, |sum, (key, found)| {
        let change = found.entry.clone().map_or(Change::Delete, Change::Put);
        sum.wrapping_add(content_digest(key, found.version, &change))
    });
    assert_eq!(StateDigest(sum), digest);
}

#[test]
fn another_content_at_a_version_that_is_in_force_is_refused_and_has_another_digest() {
    let world = World::new();
    let mut gate = world.gate();
    assert_eq!(results(&mut gate, &world.frame(1, vec![put(1, 5)])), [Ok(())]);
    results(&mut gate, &world.frame(1, vec![delete(2, 5)]));
    let digest = gate.digest();
    let other =
        Update { change: Change::Put(Entry::Members(vec!["10.9.9.9".parse().unwrap()])), ..put(1, 5) };
    let stale = || Err(Refusal::Stale { in_force: Version(5) });
    for forked in [other.clone(), delete(1, 5), put(2, 5)] {
        assert_eq!(results(&mut gate, &world.frame(1, vec![forked])), [stale()]);
    }
    assert_eq!(results(&mut gate, &world.frame(1, vec![put(1, 5)])), [Ok(())], "the same once more");
    assert_eq!((gate.digest(), gate.counters.refused), (digest, 3));
    let dir = tempfile::tempdir().unwrap();
    let mut fork = Gate::open(label("h1"), world.verifier(), &dir.path().join("gate")).unwrap();
    results(&mut fork, &world.frame(1, vec![other]));
    results(&mut fork, &world.frame(1, vec![delete(2, 5)]));
    assert_ne!(fork.digest(), digest, "the same versions");
    let versions = |gate: &Gate| state_digest(gate.iter().map(|(key, found)| (key, found.version)));
    assert_eq!(versions(&fork), versions(&gate));
}

#[test]
fn compaction_and_dropped_tombstones_keep_the_meaning() {
    let world = World::new();
    let mut gate = world.gate();
    for version in 1..=40 {
        results(&mut gate, &world.frame(1, vec![put((version % 8) as u8, version)]));
    }
    results(&mut gate, &world.frame(1, vec![delete(3, 41)]));
    let digest = gate.digest();
    gate.compact().unwrap();
    drop(gate);
    let mut gate = world.gate();
    assert_eq!(gate.digest(), digest);
    gate.floor = Version(41);
    gate.in_force.remove(&key(3));
    let replay = results(&mut gate, &world.frame(1, vec![put(3, 35)]));
    assert_eq!(
        replay,
        [Err(Refusal::Stale { in_force: Version(41) })],
        "the floor guards dropped tombstones"
    );
}

#[test]
fn a_journal_cut_at_any_byte_opens_to_a_prefix() {
    let world = World::new();
    let mut gate = world.gate();
    for version in 1..=6 {
        results(&mut gate, &world.frame(1, vec![put(version as u8, version)]));
    }
    drop(gate);
    let path = world.dir.path().join("gate");
    let whole = std::fs::read(&path).unwrap();
    for cut in (0..whole.len()).step_by(7) {
        std::fs::write(&path, &whole[..cut]).unwrap();
        let gate = world.gate();
        let versions: Vec<u64> = gate.iter().map(|(_, v)| v.version.0).collect();
        assert_eq!(versions, (1..=versions.len() as u64).collect::<Vec<_>>(), "cut at {cut}");
    }
}

/// A group of four that signs with three shares, and the gate that has its key.
struct ThresholdWorld {
    dir: tempfile::TempDir,
    group: crate::threshold::simulation::Group,
}

impl ThresholdWorld {
    fn new() -> ThresholdWorld {
        ThresholdWorld { dir: tempfile::tempdir().unwrap(), group: crate::threshold::simulation::group(4, 1) }
    }

    fn gate(&self) -> Gate {
        let key = crate::batch::GroupSigner::group_key(&self.group);
        Gate::open(label("h1"), Verifier::new(label("domain"), key), &self.dir.path().join("gate")).unwrap()
    }

    fn frame(&self, index: u64) -> SignedUpdates {
        let updates = vec![put(1, index), put(2, index)];
        let (header, proven) = sign_batch(&self.group, &label("domain"), 1, Version(index), updates).unwrap();
        frames(proven.into_iter().map(|p| (header.clone(), p)), 1000).remove(0)
    }
}

#[test]
fn a_groups_threshold_signature_opens_the_gate_and_is_checked_once_a_batch() {
    let world = ThresholdWorld::new();
    let mut gate = world.gate();
    assert_eq!(results(&mut gate, &world.frame(1)), [Ok(()), Ok(())]);
    assert_eq!(gate.verifier.signature_checks, 1);
    let digest = gate.digest();
    drop(gate);
    assert_eq!(world.gate().digest(), digest, "the journal has the threshold signature too");
}

#[test]
fn what_fewer_than_the_threshold_or_one_key_signed_is_forged() {
    use crate::identity::Context;
    use weir_base::codec::encode;
    use weir_model::signed::GroupSignature;
    let world = ThresholdWorld::new();
    let mut gate = world.gate();
    let mut few = world.frame(1);
    let shares = world.group.shares(Context::Batch, &encode(&few.header.header), 2);
    few.header.signature = GroupSignature::Threshold(crate::threshold::combine(&shares).unwrap());
    assert_eq!(results(&mut gate, &few), [Err(Refusal::Forged), Err(Refusal::Forged)]);
    let single = World::new().frame(1, vec![put(1, 1)]);
    assert_eq!(results(&mut gate, &single), [Err(Refusal::Forged)], "a signature of another kind");
    let mut changed = world.frame(1);
    changed.header.header.epoch = 2;
    assert_eq!(results(&mut gate, &changed), [Err(Refusal::Forged), Err(Refusal::Forged)]);
    assert_eq!(gate.counters.forged, 5);
}

#[test]
fn what_another_domains_group_signed_changes_nothing() {
    let (world, other) = (World::new(), SingleSigner(KeyPair::from_seed(&[2; 32])));
    let mut gate = world.gate();
    let frame = |signer: &SingleSigner, domain: &str| {
        let (header, proven) = sign_batch(signer, &label(domain), 1, Version(1), vec![put(1, 1)]).unwrap();
        frames(proven.into_iter().map(|p| (header.clone(), p)), 10).remove(0)
    };
    // In its own name, in this domain's, and what this domain's group signed for another domain.
    for forged in [frame(&other, "other"), frame(&other, "domain"), frame(&world.signer, "other")] {
        assert_eq!(results(&mut gate, &forged), [Err(Refusal::Forged)]);
    }
    assert_eq!((gate.counters.forged, gate.iter().count()), (3, 0));
    assert_eq!(results(&mut gate, &world.frame(1, vec![put(1, 1)])), [Ok(())]);
}

/// A group of four whose switch knows the controllers of a phase.
impl ThresholdWorld {
    fn controllers(phase: u64) -> weir_model::entry::ControllersEntry {
        let members = crate::threshold::simulation::members(1..=4);
        weir_model::entry::ControllersEntry { phase, threshold: 3, members }
    }

    /// An update of the list of controllers, under the group's key.
    fn told(&self, index: u64, change: Change) -> SignedUpdates {
        let update = Update { key: Key::Controllers, change, ..put(1, index) };
        let signed = sign_batch(&self.group, &label("domain"), 1, Version(index), vec![update]);
        let (header, proven) = signed.unwrap();
        frames(proven.into_iter().map(|p| (header.clone(), p)), 1000).remove(0)
    }

    fn tells(&self, index: u64, phase: u64) -> SignedUpdates {
        self.told(index, Change::Put(Entry::Controllers(ThresholdWorld::controllers(phase))))
    }
}

/// The same frame, endorsed by members instead.
fn endorsed(mut frame: SignedUpdates, phase: u64, members: &[u32]) -> SignedUpdates {
    use weir_model::signed::MemberSignature;
    let header = &frame.header.header;
    let by = |member: &u32| MemberSignature {
        member: *member,
        signature: crate::endorsement::endorse(
            &crate::threshold::simulation::identity(*member),
            phase,
            header,
        ),
    };
    let signatures = members.iter().map(by).collect();
    frame.header.signature = GroupSignature::Members { phase, signatures };
    frame
}

#[test]
fn endorsements_of_the_controllers_in_force_open_the_gate() {
    let world = ThresholdWorld::new();
    let mut gate = world.gate();
    let forged = [Err(Refusal::Forged), Err(Refusal::Forged)];
    let right = |index, phase| endorsed(world.frame(index), phase, &[1, 2, 4]);
    assert_eq!(results(&mut gate, &right(1, 1)), forged, "nobody said who the controllers are");
    assert_eq!(results(&mut gate, &world.tells(2, 1)), [Ok(())]);
    assert_eq!(results(&mut gate, &right(3, 1)), [Ok(()), Ok(())]);
    assert_eq!(results(&mut gate, &endorsed(world.frame(4), 1, &[1, 2])), forged, "too few");
    assert_eq!(results(&mut gate, &endorsed(world.frame(4), 1, &[1, 2, 2])), forged, "one twice");
    assert_eq!(results(&mut gate, &right(4, 2)), forged, "of a phase to come");
    let mut changed = right(4, 1);
    changed.header.header.epoch = 2;
    assert_eq!(results(&mut gate, &changed), forged);
    assert_eq!((gate.counters.endorsed, gate.counters.endorsed_badly), (2, 10));

    // Another phase: what the old one endorsed counts no more, and comes with the group's signature.
    assert_eq!(results(&mut gate, &world.tells(5, 2)), [Ok(())]);
    assert_eq!(results(&mut gate, &right(6, 1)), forged);
    assert_eq!(results(&mut gate, &right(6, 2)), [Ok(()), Ok(())]);
    assert_eq!(results(&mut gate, &world.frame(7)), [Ok(()), Ok(())]);

    // And it is the same after a restart, and nobody's word when the list is gone.
    drop(gate);
    let mut gate = world.gate();
    assert_eq!(results(&mut gate, &right(8, 2)), [Ok(()), Ok(())]);
    assert_eq!(results(&mut gate, &world.told(9, Change::Delete)), [Ok(())]);
    assert_eq!(results(&mut gate, &right(10, 2)), forged);
}

#[test]
fn a_proof_is_looked_at_once_and_before_its_updates_come() {
    let world = ThresholdWorld::new();
    let mut gate = world.gate();
    assert_eq!(results(&mut gate, &world.tells(1, 1)), [Ok(())]);
    let (frame, checks) = (endorsed(world.frame(2), 1, &[1, 2, 4]), gate.verifier.signature_checks);
    assert!(gate.proves(&frame.header));
    assert!(!gate.proves(&endorsed(world.frame(2), 1, &[1, 2]).header), "too few");
    assert_eq!(gate.verifier.signature_checks, checks + 2);
    assert_eq!(results(&mut gate, &frame), [Ok(()), Ok(())]);
    assert_eq!(gate.verifier.signature_checks, checks + 2);

    // What was looked at in time counts no more in another phase.
    let late = endorsed(world.frame(3), 1, &[1, 2, 4]);
    assert!(gate.proves(&late.header));
    assert_eq!(results(&mut gate, &world.tells(4, 2)), [Ok(())]);
    assert_eq!(results(&mut gate, &late), [Err(Refusal::Forged), Err(Refusal::Forged)]);
}

#[test]
fn no_number_of_controllers_says_who_the_controllers_are() {
    let world = ThresholdWorld::new();
    let mut gate = world.gate();
    assert_eq!(results(&mut gate, &endorsed(world.tells(1, 1), 1, &[1, 2, 3, 4])), [Err(Refusal::Forged)]);
    assert_eq!(results(&mut gate, &world.tells(1, 1)), [Ok(())]);
    for lie in [world.tells(2, 2), world.told(2, Change::Delete)] {
        assert_eq!(results(&mut gate, &endorsed(lie, 1, &[1, 2, 3, 4])), [Err(Refusal::Forged)]);
    }
    let Some(Entry::Controllers(known)) = &gate.get(&Key::Controllers).unwrap().entry else { panic!() };
    assert_eq!(*known, ThresholdWorld::controllers(1));
    // What else such a batch has counts.
    let updates = vec![put(1, 3), Update { key: Key::Controllers, ..put(2, 3) }];
    let (header, proven) = sign_batch(&world.group, &label("domain"), 1, Version(3), updates).unwrap();
    let mixed = frames(proven.into_iter().map(|p| (header.clone(), p)), 10).remove(0);
    assert_eq!(results(&mut gate, &endorsed(mixed, 1, &[2, 3, 4])), [Ok(()), Err(Refusal::Forged)]);
}

#[test]
fn a_frame_of_forgeries_costs_one_check_and_what_is_wrong_by_itself_or_known_costs_none() {
    let world = ThresholdWorld::new();
    let mut gate = world.gate();
    let updates: Vec<Update> = (0..=255).map(|number| put(number, 5)).collect();
    let signed = |epoch, index, updates: Vec<Update>| {
        let (header, proven) =
            sign_batch(&world.group, &label("domain"), epoch, Version(index), updates).unwrap();
        frames(proven.into_iter().map(|p| (header.clone(), p)), 1000).remove(0)
    };
    let right = signed(1, 5, updates);
    let mut forged = right.clone();
    forged.header.header.epoch = 2;
    let checks = |gate: &Gate| gate.verifier.signature_checks;
    let all = |results: Vec<Result<(), Refusal>>, want: Result<(), Refusal>| {
        assert_eq!(results.len(), 256);
        assert!(results.iter().all(|result| *result == want), "{results:?}");
    };
    for _ in 0..3 {
        all(results(&mut gate, &forged), Err(Refusal::Forged));
        assert_eq!(checks(&gate), 1, "one for the frame, and none when it comes again");
    }
    all(results(&mut gate, &right), Ok(()));
    assert_eq!(checks(&gate), 2, "the right one under nearly the same header is looked at");

    // Versions that no batch of this index has, and updates of another root: no signature makes them right.
    let mut wrong = forged.clone();
    wrong.header.header.epoch = 3;
    for proven in &mut wrong.updates {
        proven.update.version = Version(6);
    }
    all(results(&mut gate, &wrong), Err(Refusal::Forged));
    let mut wrong = forged.clone();
    wrong.header.header.epoch = 4;
    wrong.updates.rotate_left(1);
    for (leaf, proven) in wrong.updates.iter_mut().enumerate() {
        proven.leaf = leaf as u32;
    }
    all(results(&mut gate, &wrong), Err(Refusal::Forged));
    assert_eq!(checks(&gate), 2);

    // What is in force, and what is older, under headers that nobody has looked at: that is so whoever says it.
    let again = signed(1, 6, (0..=255).map(|number| put(number, 5)).collect());
    all(results(&mut gate, &again), Ok(()));
    let old = signed(1, 7, (0..=255).map(|number| put(number, 4)).collect());
    all(results(&mut gate, &old), Err(Refusal::Stale { in_force: Version(5) }));
    assert_eq!(checks(&gate), 2);
    // Another value at the version in force is told of only when the group said so.
    let mut fork = signed(1, 8, (0..=255).map(|number: u8| put(number.wrapping_add(1), 5)).collect());
    for proven in &mut fork.updates {
        proven.update.change = Change::Delete;
    }
    all(results(&mut gate, &fork), Err(Refusal::Forged));
    let fork = signed(1, 9, (0..=255).map(|number| delete(number, 5)).collect());
    all(results(&mut gate, &fork), Err(Refusal::Stale { in_force: Version(5) }));
    assert_eq!(checks(&gate), 3);
}

#[test]
fn forgeries_that_are_remembered_are_bounded_and_hide_nothing_that_is_right() {
    use crate::batch::FORGERIES_REMEMBERED;
    let world = World::new();
    let mut gate = world.gate();
    let stranger = World { signer: SingleSigner(KeyPair::from_seed(&[9; 32])), ..World::new() };
    for version in 1..=3 * FORGERIES_REMEMBERED as u64 {
        assert_eq!(results(&mut gate, &stranger.frame(1, vec![put(1, version)])), [Err(Refusal::Forged)]);
    }
    assert_eq!(results(&mut gate, &world.frame(1, vec![put(1, 9)])), [Ok(())]);
    assert_eq!(gate.verifier.signature_checks, 3 * FORGERIES_REMEMBERED as u64 + 1);
}
