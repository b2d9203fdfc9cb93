//! What every actuator must pass, the switch and those of all planes: [`suite!`](crate::suite!) makes a test of each of these functions.
//!
//! A [`Subject`] says how the actuator of a plane is made, what may be ordered of it, and what is in force; a [`Driver`] says it of a
//! machine of another making. The suite plays the controllers, the disk and the end of the process.
//!
//! ```
//! # mod tests {
//! use weir_actuator::suite::echo::Toy;
//! weir_actuator::suite!(Toy);
//! # }
//! ```

pub mod echo;
mod subject;
mod world;

pub use subject::{Driver, Subject, Tried, Watch};
pub use world::{DOMAIN, HOST_SEED, Outcome};

use std::io;
use weir_model::entry::ControllersEntry;
use weir_model::update::Refusal;
use weir_model::{Change, Entry, Key, Version};
use weir_trust::batch::GroupSigner;
use weir_trust::identity::KeyPair;
use weir_trust::kept::Write;
use world::{Of, World, check, label, shown, signer};

/// The dealing whose members endorse.
const PHASE: u64 = 3;

/// Makes a test of each demand. The expression gives a [`Subject`](crate::suite::Subject) or a [`Driver`](crate::suite::Driver).
#[macro_export]
macro_rules! suite {
    ($subject:expr) => {
        $crate::suite_of! { $subject;
            it_acks_what_it_has_applied
            replays_are_acked_and_change_nothing
            older_versions_are_refused_in_any_order
            forgeries_are_refused_and_change_nothing
            a_frame_of_forgeries_leaves_what_is_right
            a_key_twice_in_a_frame_leaves_the_newer
            what_enough_controllers_endorsed_is_taken_and_no_less
            updates_of_an_epoch_that_is_over_are_refused
            updates_for_another_host_are_refused
            a_crash_at_any_write_loses_nothing_that_was_acked
            a_journal_that_is_cut_anywhere_is_brought_up_to_date
            it_starts_with_what_it_had
            what_was_withdrawn_while_it_was_down_goes
            other_planes_and_entries_are_refused_by_name
            a_refusal_is_told_and_what_was_in_force_stays
            a_host_with_another_name_lets_go_of_what_it_held
            entries_at_their_bounds_are_taken_and_none_beyond
        }
    };
}

/// Makes a test of each function of the suite that is named.
#[doc(hidden)]
#[macro_export]
macro_rules! suite_of {
    ($subject:expr; $($demand:ident)*) => {
        $(
            #[test]
            fn $demand() {
                if let Err(failure) = $crate::suite::$demand(&$subject) {
                    panic!("{failure}");
                }
            }
        )*
    };
}

/// An update is applied, kept and acked with the host's key; a newer one takes its place; a withdrawal takes it away.
///
/// # Errors
/// What was not so.
pub fn it_acks_what_it_has_applied<D: Driver>(driver: &D) -> Outcome {
    let mut world = World::new(driver)?;
    world.must_have(0, None)?;
    for number in 1..=2 {
        world.must_take(number.into(), Some(driver.entry(number)))?;
        world.must_have(number.into(), Some(&driver.entry(number)))?;
    }
    world.must_take(3, None)?;
    let left = world.after_withdrawal(driver.entry(2));
    world.must_have(3, left.as_ref())
}

/// The same frame again is acked, and nothing is done.
///
/// # Errors
/// What was not so.
pub fn replays_are_acked_and_change_nothing<D: Driver>(driver: &D) -> Outcome {
    let mut world = World::new(driver)?;
    world.must_take(1, Some(driver.entry(1)))?;
    let applied = world.machine()?.applied();
    for _ in 0..3 {
        world.must_take(1, Some(driver.entry(1)))?;
    }
    check(world.machine()?.applied() == applied, || "a replay is applied".into())?;
    world.must_have(1, Some(&driver.entry(1)))
}

/// Updates that come in any order leave the newest in force.
///
/// # Errors
/// What was not so.
pub fn older_versions_are_refused_in_any_order<D: Driver>(driver: &D) -> Outcome {
    for order in [[1, 3, 2], [2, 1, 3], [3, 1, 2], [3, 2, 1]] {
        let mut world = World::new(driver)?;
        let mut highest = 0;
        for version in order {
            let answer = world.put(version, Some(driver.entry(version as u32)))?;
            let wanted = match version > highest {
                true => Ok(()),
                false => Err(Refusal::Stale { in_force: Version(highest) }),
            };
            check(answer == wanted, || format!("{order:?}: {version} is answered by {answer:?}"))?;
            highest = highest.max(version);
        }
        world.must_have(3, Some(&driver.entry(3)))?;
        // What was deleted does not come back.
        world.must_take(5, None)?;
        let answer = world.put(4, Some(driver.entry(4)))?;
        check(answer.is_err(), || "an update from before a withdrawal is taken".into())?;
    }
    Ok(())
}

/// What another group signed, and what was changed on its way, is refused.
///
/// # Errors
/// What was not so.
pub fn forgeries_are_refused_and_change_nothing<D: Driver>(driver: &D) -> Outcome {
    let mut world = World::new(driver)?;
    world.must_take(1, Some(driver.entry(1)))?;
    let right = world.frame(1, vec![world.of(2, Some(driver.entry(2)))])?;
    let other = signer(9);
    let mut forged = Vec::new();
    for change in 0..5 {
        let mut frame = right.clone();
        match change {
            0 => frame.header.signature = other.sign(&weir_base::codec::encode(&frame.header.header)),
            1 => frame.updates[0].update.change = Change::Put(driver.entry(3)),
            2 => frame.updates[0].update.version = Version(3),
            3 => frame.header.header.epoch += 1,
            _ => frame.updates[0].leaf += 1,
        }
        forged.push(frame);
    }
    for (number, frame) in forged.iter().enumerate() {
        let answers = world.take(frame)?;
        check(answers == [Err(Refusal::Forged)], || format!("forgery {number} is answered by {answers:?}"))?;
    }
    world.must_have(1, Some(&driver.entry(1)))?;
    let answers = world.take(&right)?;
    check(answers == [Ok(())], || format!("what is right is answered by {answers:?}"))
}

/// In a frame of forged updates the one that is right is taken, and it alone.
///
/// # Errors
/// What was not so.
pub fn a_frame_of_forgeries_leaves_what_is_right<D: Driver>(driver: &D) -> Outcome {
    let mut world = World::new(driver)?;
    let [first, second] = driver.keys()?;
    let mut updates = Vec::new();
    for (key, version) in [(first, 1), (second.clone(), 2)] {
        updates.push(Of { key, ..world.of(version, Some(driver.entry(version as u32))) });
    }
    let right = world.frame(1, updates)?;
    let mut frame = right.clone();
    frame.updates[1].update.version = Version(1);
    for number in 0..64 {
        let mut forged = right.updates[0].clone();
        forged.update.change = Change::Put(driver.entry(number + 3));
        frame.updates.push(forged);
    }
    let answers = world.take(&frame)?;
    check(answers.len() == 66 && answers[0] == Ok(()), || format!("what is right: {:?}", answers.first()))?;
    let taken = answers.iter().filter(|answer| answer.is_ok()).count();
    check(taken == 1, || format!("{taken} of a frame with one right update are taken"))?;
    world.must_have(1, Some(&driver.entry(1)))?;
    let found = driver.in_force(world.machine()?, &second);
    check(found.is_none(), || "a forged update is in force".into())
}

/// Of two updates of a key in one frame the newer stays, in whatever order they come.
///
/// # Errors
/// What was not so.
pub fn a_key_twice_in_a_frame_leaves_the_newer<D: Driver>(driver: &D) -> Outcome {
    for versions in [[2, 1], [1, 2]] {
        let mut world = World::new(driver)?;
        let updates = versions.map(|version| world.of(version.into(), Some(driver.entry(version))));
        let frame = world.frame(1, updates.to_vec())?;
        world.take(&frame)?;
        world.must_have(2, Some(&driver.entry(2)))?;
    }
    Ok(())
}

/// Whoever has the list of controllers, which the group alone signs, takes what enough of them endorsed, also after a restart; what
/// fewer, others or those of another dealing endorsed is refused, and so is such a list that is endorsed.
///
/// # Errors
/// What was not so.
pub fn what_enough_controllers_endorsed_is_taken_and_no_less<D: Driver>(driver: &D) -> Outcome {
    let mut world = World::new(driver)?;
    let update = |world: &World<'_, D>, version: u64| world.of(version, Some(driver.entry(version as u32)));
    let before = world.endorsed(PHASE, &[11, 12], vec![update(&world, 1)])?;
    let answers = world.take(&before)?;
    check(answers == [Err(Refusal::Forged)], || format!("without a list it is answered by {answers:?}"))?;
    let members = [11, 12, 13].map(|member| (u32::from(member), KeyPair::from_seed(&[member; 32]).public()));
    let list = Entry::Controllers(ControllersEntry { phase: PHASE, threshold: 2, members: members.into() });
    let list = Of { key: Key::Controllers, ..world.of(1, Some(list)) };
    let frame = world.endorsed(PHASE, &[11, 12], vec![list.clone()])?;
    world.take(&frame)?;
    let answers = world.take(&before)?;
    check(answers == [Err(Refusal::Forged)], || format!("an endorsed list counts: {answers:?}"))?;
    let frame = world.frame(1, vec![list])?;
    world.take(&frame)?;
    for version in 1..3 {
        let strange: [(u64, &[u8]); 4] =
            [(PHASE, &[11]), (PHASE, &[11, 11]), (PHASE, &[11, 14]), (PHASE + 1, &[11, 12])];
        for (phase, by) in strange {
            let frame = world.endorsed(phase, by, vec![update(&world, version)])?;
            let answers = world.take(&frame)?;
            check(answers == [Err(Refusal::Forged)], || format!("{by:?} in {phase}: {answers:?}"))?;
        }
        let frame = world.endorsed(PHASE, &[13, 11], vec![update(&world, version)])?;
        let answers = world.take(&frame)?;
        check(answers == [Ok(())], || format!("what is endorsed is answered by {answers:?}"))?;
        world.must_have(version, Some(&driver.entry(version as u32)))?;
        world.start()?;
        world.must_have(version, Some(&driver.entry(version as u32)))?;
    }
    Ok(())
}

/// After an epoch began, updates of the one before are refused, also after a restart.
///
/// # Errors
/// What was not so.
pub fn updates_of_an_epoch_that_is_over_are_refused<D: Driver>(driver: &D) -> Outcome {
    let mut world = World::new(driver)?;
    let newer = world.frame(2, vec![world.of(1, Some(driver.entry(1)))])?;
    let answers = world.take(&newer)?;
    check(answers == [Ok(())], || format!("epoch 2 is answered by {answers:?}"))?;
    for restarts in 0..2 {
        let older = world.frame(1, vec![world.of(2 + restarts, Some(driver.entry(2)))])?;
        let answers = world.take(&older)?;
        let wanted = Err(Refusal::StaleEpoch { given: 1, current: 2 });
        check(answers == [wanted], || format!("epoch 1 is answered by {answers:?}"))?;
        world.start()?;
    }
    world.must_have(1, Some(&driver.entry(1)))
}

/// What is signed for another host is not taken here.
///
/// # Errors
/// What was not so.
pub fn updates_for_another_host_are_refused<D: Driver>(driver: &D) -> Outcome {
    let mut world = World::new(driver)?;
    let elsewhere = Of { host: label("h2")?, ..world.of(1, Some(driver.entry(1))) };
    let frame = world.frame(1, vec![elsewhere])?;
    let answers = world.take(&frame)?;
    check(answers == [Err(Refusal::WrongTarget)], || format!("it is answered by {answers:?}"))?;
    world.must_have(0, None)
}

/// The journal fails, or the process ends, before or after each write. Nothing that was acked is lost, nothing is acked that is
/// not kept, and what comes again is put in force.
///
/// # Errors
/// What was not so.
pub fn a_crash_at_any_write_loses_nothing_that_was_acked<D: Driver>(driver: &D) -> Outcome {
    let updates = 4_u32;
    for fails_at in 0..2 * updates {
        for ends in [true, false] {
            let mut world = World::new(driver)?;
            let mut writes = 0;
            // Before the first write, after it, before the second one, and so on.
            world.machine()?.watch_writes(Box::new(move |_: Write| {
                let number = writes;
                writes += 1;
                if number == fails_at { Err(io::Error::other("no room")) } else { Ok(()) }
            }));
            let mut acked = 0;
            for version in 1..=updates {
                let spec = (version != 3).then(|| driver.entry(version));
                let frame = world.frame(1, vec![world.of(version.into(), spec)])?;
                let answers = world.take(&frame)?;
                match answers.first() {
                    Some(Ok(())) => acked = version,
                    Some(Err(refusal)) => return Err(format!("version {version} is refused: {refusal}")),
                    None => break,
                }
            }
            check(acked == fails_at / 2, || format!("write {fails_at} fails and {acked} are acked"))?;
            if ends {
                world.start()?;
            }
            let told = world.told()?;
            check(told >= acked.into(), || format!("{acked} is acked and {told} is told"))?;
            if !driver.keeps_withdrawn() {
                let (found, wanted) =
                    (world.found()?, (!matches!(told, 0 | 3)).then(|| driver.entry(told as u32)));
                check(found == wanted, || {
                    let (found, wanted) = (shown(found.as_ref()), shown(wanted.as_ref()));
                    format!("write {fails_at} failed, {told} is told, in force is {found} and not {wanted}")
                })?;
            }
            // Nothing is answered: the controllers send it again.
            for version in acked + 1..=updates {
                world.must_take(version.into(), (version != 3).then(|| driver.entry(version)))?;
            }
            world.must_have(updates.into(), Some(&driver.entry(updates)))?;
        }
    }
    Ok(())
}

/// After a loss of power the journal may end anywhere, while what the actuator keeps itself is newer.
///
/// # Errors
/// What was not so.
pub fn a_journal_that_is_cut_anywhere_is_brought_up_to_date<D: Driver>(driver: &D) -> Outcome {
    let mut world = World::new(driver)?;
    let journal = driver.journal(&world.folder.0);
    let length = || std::fs::metadata(&journal).map(|meta| meta.len()).map_err(|error| error.to_string());
    world.must_take(1, Some(driver.entry(1)))?;
    let before = length()?;
    world.must_take(2, Some(driver.entry(2)))?;
    let after = length()?;
    let whole = std::fs::read(&journal).map_err(|error| error.to_string())?;
    let step = ((after - before) / 48).max(1) as usize;
    for cut in (0..=after).rev().step_by(step).chain([before]) {
        world.kill();
        std::fs::write(&journal, &whole[..cut as usize]).map_err(|error| error.to_string())?;
        world.start()?;
        let told = world.told()?;
        let kept = if cut == after { 2 } else { u64::from(cut >= before) };
        check(told == kept, || format!("cut at {cut} of {after} it tells {told}, and has kept {kept}"))?;
        world.must_take(2, Some(driver.entry(2)))?;
        world.must_have(2, Some(&driver.entry(2)))?;
    }
    Ok(())
}

/// A restart finds what was in force, without any controller.
///
/// # Errors
/// What was not so.
pub fn it_starts_with_what_it_had<D: Driver>(driver: &D) -> Outcome {
    let mut world = World::new(driver)?;
    world.must_take(1, Some(driver.entry(1)))?;
    for version in 2..5 {
        world.start()?;
        world.must_have(version - 1, Some(&driver.entry(version as u32 - 1)))?;
        world.must_take(version, Some(driver.entry(version as u32)))?;
    }
    world.start()?;
    world.must_have(4, Some(&driver.entry(4)))?;
    check(world.machine()?.problems().is_empty(), || "something was not applied".into())
}

/// A withdrawal that comes first thing after a restart takes away what the restart put in force.
///
/// # Errors
/// What was not so.
pub fn what_was_withdrawn_while_it_was_down_goes<D: Driver>(driver: &D) -> Outcome {
    let mut world = World::new(driver)?;
    world.must_take(1, Some(driver.entry(1)))?;
    world.start()?;
    world.must_take(2, None)?;
    let left = world.after_withdrawal(driver.entry(1));
    world.must_have(2, left.as_ref())?;
    // And stays away.
    world.start()?;
    world.must_have(2, left.as_ref())?;
    let answer = world.put(1, Some(driver.entry(1)))?;
    check(answer.is_err(), || "what was withdrawn is taken again".into())
}

/// What is for another plane, for the switch, or is no entry of a plane is refused in words.
///
/// # Errors
/// What was not so.
pub fn other_planes_and_entries_are_refused_by_name<D: Driver>(driver: &D) -> Outcome {
    let mut world = World::new(driver)?;
    for (version, (key, entry, said)) in (1..).zip(driver.strange()?) {
        let frame = world.frame(1, vec![Of { key, ..world.of(version, Some(entry)) }])?;
        let answers = world.take(&frame)?;
        check(matches!(&answers[..], [Err(Refusal::Failed(why))] if why.contains(said)), || {
            format!("'{said}' is not in {answers:?}")
        })?;
    }
    world.must_have(0, None)
}

/// What the actuator refuses is told with its reason, and what was in force before is in force.
///
/// # Errors
/// What was not so.
pub fn a_refusal_is_told_and_what_was_in_force_stays<D: Driver>(driver: &D) -> Outcome {
    let mut world = World::new(driver)?;
    world.must_take(1, Some(driver.entry(1)))?;
    let answer = world.put(2, Some(driver.refused()))?;
    check(matches!(&answer, Err(Refusal::Failed(why)) if !why.is_empty()), || {
        format!("what is to be refused is answered by {answer:?}")
    })?;
    world.must_have(1, Some(&driver.entry(1)))?;
    world.start()?;
    world.must_have(1, Some(&driver.entry(1)))?;
    world.must_take(3, Some(driver.entry(3)))?;
    world.must_have(3, Some(&driver.entry(3)))
}

/// A host that is made anew under another name, on the same disk, tells what it still has, so that it is taken away, and takes
/// nothing more for the old name.
///
/// # Errors
/// What was not so.
pub fn a_host_with_another_name_lets_go_of_what_it_held<D: Driver>(driver: &D) -> Outcome {
    let mut world = World::new(driver)?;
    world.must_take(1, Some(driver.entry(1)))?;
    let before = world.frame(1, vec![world.of(2, Some(driver.entry(2)))])?;
    world.host = label("h2")?;
    world.start()?;
    world.must_have(1, Some(&driver.entry(1)))?;
    let answers = world.take(&before)?;
    check(answers == [Err(Refusal::WrongTarget)], || format!("the old name is answered by {answers:?}"))?;
    world.must_take(3, None)?;
    let left = world.after_withdrawal(driver.entry(1));
    world.must_have(3, left.as_ref())
}

/// The largest specification and the longest name pass the gate; one byte more of either is refused before anything reads it.
///
/// # Errors
/// What was not so.
pub fn entries_at_their_bounds_are_taken_and_none_beyond<D: Driver>(driver: &D) -> Outcome {
    let mut world = World::new(driver)?;
    world.must_take(1, Some(driver.largest()))?;
    for (version, (key, entry)) in (2..).zip(driver.misfits()?) {
        let what = format!("{key:?}");
        let frame = world.frame(1, vec![Of { key, ..world.of(version, Some(entry)) }])?;
        let answers = world.take(&frame)?;
        check(answers == [Err(Refusal::Misfit)], || format!("{what} is answered by {answers:?}"))?;
    }
    Ok(())
}
