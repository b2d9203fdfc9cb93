//! What every actuator must pass, whatever its plane: [`suite!`](crate::suite!) makes a test of each of these functions.
//!
//! A [`Subject`] says how the actuator is made, what may be ordered of it, and what is in force; the suite plays the
//! controllers, the disk and the end of the process.
//!
//! ```
//! # mod tests {
//! use weir_actuator::suite::echo::Toy;
//! weir_actuator::suite!(Toy);
//! # }
//! ```

pub mod echo;

use crate::machine::Write;
use crate::{Actuator, Identity, Machine};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use weir_model::plane::{NAME_BYTES_MAX, SPEC_BYTES_MAX};
use weir_model::signed::{SignedAcks, SignedUpdates};
use weir_model::update::Refusal;
use weir_model::{Change, Entry, Key, Label, Update, Version};
use weir_planes::Plane;
use weir_trust::batch::{GroupSigner, SingleSigner, frames, sign_batch};
use weir_trust::identity::{KeyPair, verify_acks};

/// Makes a test of each demand. The expression gives a [`Subject`](crate::suite::Subject).
#[macro_export]
macro_rules! suite {
    ($subject:expr) => {
        $crate::suite_of! { $subject;
            it_acks_what_it_has_applied
            replays_are_acked_and_change_nothing
            older_versions_are_refused_in_any_order
            forgeries_are_refused_and_change_nothing
            a_frame_of_forgeries_leaves_what_is_right
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

/// An actuator to be tried.
pub trait Subject {
    /// It.
    type Actuator: Actuator;

    /// Makes it, with this folder for what it keeps itself. It is made again in the same folder after a crash.
    fn make(&self, folder: &Path) -> Self::Actuator;

    /// Two names that it takes.
    fn names(&self) -> [String; 2];

    /// A specification that it takes; for each number another one.
    fn spec(&self, number: u32) -> Vec<u8>;

    /// A specification that the vocabulary allows and the actuator refuses.
    fn refused(&self) -> Vec<u8>;

    /// The specification in force under a name, if one is.
    fn in_force(&self, actuator: &mut Self::Actuator, name: &str) -> Option<Vec<u8>>;

    /// Whether what is withdrawn stays as it is, as nobody's.
    const KEEPS_WITHDRAWN: bool = false;
}

/// What a demand ends with.
pub type Outcome = Result<(), String>;

/// A folder that is removed when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Folder, String> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("weir-actuator-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

fn label(text: &str) -> Result<Label, String> {
    Label::new(text).map_err(|error| error.to_string())
}

fn signer(seed: u8) -> SingleSigner {
    SingleSigner(KeyPair::from_seed(&[seed; 32]))
}

fn check(is_so: bool, text: impl FnOnce() -> String) -> Outcome {
    if is_so { Ok(()) } else { Err(text()) }
}

/// One update of a frame.
#[derive(Clone)]
struct Of {
    host: Label,
    key: Key,
    version: u64,
    spec: Option<Vec<u8>>,
}

/// An actuator on a host, and controllers.
struct World<'s, S: Subject> {
    subject: &'s S,
    folder: Folder,
    host: Label,
    machine: Option<Machine<S::Actuator>>,
    name: String,
}

impl<'s, S: Subject> World<'s, S> {
    fn new(subject: &'s S) -> Result<World<'s, S>, String> {
        let [name, _] = subject.names();
        let mut world = World { subject, folder: Folder::new()?, host: label("h1")?, machine: None, name };
        world.start()?;
        Ok(world)
    }

    fn machine(&mut self) -> Result<&mut Machine<S::Actuator>, String> {
        self.machine.as_mut().ok_or_else(|| "the process is down".into())
    }

    /// The process ends, at once.
    fn kill(&mut self) {
        self.machine = None;
    }

    /// It starts on what is in its folders.
    fn start(&mut self) -> Outcome {
        self.kill();
        let own = self.folder.0.join("own");
        std::fs::create_dir_all(&own).map_err(|error| error.to_string())?;
        let identity = Identity {
            actuator: self.host.clone(),
            domain: label("prod")?,
            group: signer(1).group_key(),
            read_key: Box::new(|| Ok(KeyPair::from_seed(&[2; 32]))),
        };
        let actuator = self.subject.make(&own);
        let machine = Machine::open(identity, &self.folder.0.join("state"), actuator);
        self.machine = Some(machine.map_err(|error| error.to_string())?);
        Ok(())
    }

    fn key(&self, name: &str) -> Result<Key, String> {
        let plane = label(<S::Actuator as Actuator>::Plane::NAME)?;
        Ok(Key::Plane { plane, name: name.into() })
    }

    fn of(&self, version: u64, spec: Option<Vec<u8>>) -> Result<Of, String> {
        Ok(Of { host: self.host.clone(), key: self.key(&self.name)?, version, spec })
    }

    /// A frame as the group signs it.
    fn frame(&self, epoch: u64, updates: Vec<Of>) -> Result<SignedUpdates, String> {
        let index = updates.iter().map(|of| of.version).max().unwrap_or(1);
        let update = |of: Of| Update {
            target: of.host,
            key: of.key,
            version: Version(of.version),
            expected: Version::ZERO,
            change: of.spec.map_or(Change::Delete, |spec| Change::Put(Entry::Plane(spec))),
        };
        let updates = updates.into_iter().map(update).collect();
        let (header, proven) = sign_batch(&signer(1), &label("prod")?, epoch, Version(index), updates)
            .map_err(|error| error.to_string())?;
        let whole = proven.len();
        let mut made = frames(proven.into_iter().map(|proven| (header.clone(), proven)), whole);
        made.pop().ok_or_else(|| "no frame".to_string())
    }

    /// Takes a frame; what was answered, checked for whose it is.
    fn take(&mut self, frame: &SignedUpdates) -> Result<Vec<Result<(), Refusal>>, String> {
        let host = self.host.clone();
        let Some(acks) = self.machine()?.take(frame) else { return Ok(Vec::new()) };
        let SignedAcks { actuator, .. } = &acks;
        check(*actuator == host, || format!("it acks as {actuator}"))?;
        let signed = verify_acks(&KeyPair::from_seed(&[2; 32]).public(), &acks);
        signed.map_err(|error| format!("the acks are not the host's: {error}"))?;
        Ok(acks.acks.into_iter().map(|ack| ack.result).collect())
    }

    fn put(&mut self, version: u64, spec: Option<Vec<u8>>) -> Result<Result<(), Refusal>, String> {
        let frame = self.frame(1, vec![self.of(version, spec)?])?;
        let mut answers = self.take(&frame)?;
        answers.pop().ok_or_else(|| format!("version {version} is not answered"))
    }

    fn must_take(&mut self, version: u64, spec: Option<Vec<u8>>) -> Outcome {
        let answer = self.put(version, spec)?;
        check(answer.is_ok(), || format!("version {version} is refused: {answer:?}"))
    }

    /// Asserts what is in force, and what is told of it.
    fn must_have(&mut self, version: u64, spec: Option<&[u8]>) -> Outcome {
        let (subject, name, key) = (self.subject, self.name.clone(), self.key(&self.name)?);
        let machine = self.machine()?;
        let found = subject.in_force(machine.actuator(), &name);
        let told = machine.state().into_iter().find(|(known, _)| *known == key).map(|(_, version)| version);
        check(found.as_deref() == spec, || {
            let text = |bytes: Option<&[u8]>| bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
            format!("in force is {:?}, wanted is {:?}", text(found.as_deref()), text(spec))
        })?;
        let wanted = (version > 0).then_some(Version(version));
        check(told == wanted, || format!("it tells {told:?}, wanted is {wanted:?}"))
    }

    /// What is in force when this was withdrawn.
    fn after_withdrawal(&self, before: Vec<u8>) -> Option<Vec<u8>> {
        S::KEEPS_WITHDRAWN.then_some(before)
    }
}

/// An update is applied, kept and acked with the host's key; a newer one takes its place; a withdrawal takes it away.
///
/// # Errors
/// What was not so.
pub fn it_acks_what_it_has_applied<S: Subject>(subject: &S) -> Outcome {
    let mut world = World::new(subject)?;
    world.must_have(0, None)?;
    for number in 1..=2 {
        world.must_take(number.into(), Some(subject.spec(number)))?;
        world.must_have(number.into(), Some(&subject.spec(number)))?;
    }
    world.must_take(3, None)?;
    let left = world.after_withdrawal(subject.spec(2));
    world.must_have(3, left.as_deref())
}

/// The same frame again is acked, and nothing is done.
///
/// # Errors
/// What was not so.
pub fn replays_are_acked_and_change_nothing<S: Subject>(subject: &S) -> Outcome {
    let mut world = World::new(subject)?;
    world.must_take(1, Some(subject.spec(1)))?;
    let applied = world.machine()?.counters.applied;
    for _ in 0..3 {
        world.must_take(1, Some(subject.spec(1)))?;
    }
    check(world.machine()?.counters.applied == applied, || "a replay is applied".into())?;
    world.must_have(1, Some(&subject.spec(1)))
}

/// Updates that come in any order leave the newest in force.
///
/// # Errors
/// What was not so.
pub fn older_versions_are_refused_in_any_order<S: Subject>(subject: &S) -> Outcome {
    for order in [[1, 3, 2], [2, 1, 3], [3, 1, 2], [3, 2, 1]] {
        let mut world = World::new(subject)?;
        let mut highest = 0;
        for version in order {
            let answer = world.put(version, Some(subject.spec(version as u32)))?;
            let wanted = match version > highest {
                true => Ok(()),
                false => Err(Refusal::Stale { in_force: Version(highest) }),
            };
            check(answer == wanted, || format!("{order:?}: {version} is answered by {answer:?}"))?;
            highest = highest.max(version);
        }
        world.must_have(3, Some(&subject.spec(3)))?;
        // What was deleted does not come back.
        world.must_take(5, None)?;
        let answer = world.put(4, Some(subject.spec(4)))?;
        check(answer.is_err(), || "an update from before a withdrawal is taken".into())?;
    }
    Ok(())
}

/// What another group signed, and what was changed on its way, is refused.
///
/// # Errors
/// What was not so.
pub fn forgeries_are_refused_and_change_nothing<S: Subject>(subject: &S) -> Outcome {
    let mut world = World::new(subject)?;
    world.must_take(1, Some(subject.spec(1)))?;
    let right = world.frame(1, vec![world.of(2, Some(subject.spec(2)))?])?;
    let other = signer(9);
    let mut forged = Vec::new();
    for change in 0..5 {
        let mut frame = right.clone();
        match change {
            0 => frame.header.signature = other.sign(&weir_base::codec::encode(&frame.header.header)),
            1 => frame.updates[0].update.change = Change::Put(Entry::Plane(subject.spec(3))),
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
    world.must_have(1, Some(&subject.spec(1)))?;
    let answers = world.take(&right)?;
    check(answers == [Ok(())], || format!("what is right is answered by {answers:?}"))
}

/// In a frame of forged updates the one that is right is taken, and it alone.
///
/// # Errors
/// What was not so.
pub fn a_frame_of_forgeries_leaves_what_is_right<S: Subject>(subject: &S) -> Outcome {
    let mut world = World::new(subject)?;
    let [first, second] = subject.names();
    let mut updates = Vec::new();
    for (name, version) in [(&first, 1), (&second, 2)] {
        updates.push(Of { key: world.key(name)?, ..world.of(version, Some(subject.spec(version as u32)))? });
    }
    let right = world.frame(1, updates)?;
    let mut frame = right.clone();
    frame.updates[1].update.version = Version(1);
    for number in 0..64 {
        let mut forged = right.updates[0].clone();
        forged.update.change = Change::Put(Entry::Plane(subject.spec(number + 3)));
        frame.updates.push(forged);
    }
    let answers = world.take(&frame)?;
    check(answers.len() == 66 && answers[0] == Ok(()), || format!("what is right: {:?}", answers.first()))?;
    let taken = answers.iter().filter(|answer| answer.is_ok()).count();
    check(taken == 1, || format!("{taken} of a frame with one right update are taken"))?;
    world.must_have(1, Some(&subject.spec(1)))?;
    let found = subject.in_force(world.machine()?.actuator(), &second);
    check(found.is_none(), || "a forged update is in force".into())
}

/// After an epoch began, updates of the one before are refused, also after a restart.
///
/// # Errors
/// What was not so.
pub fn updates_of_an_epoch_that_is_over_are_refused<S: Subject>(subject: &S) -> Outcome {
    let mut world = World::new(subject)?;
    let newer = world.frame(2, vec![world.of(1, Some(subject.spec(1)))?])?;
    let answers = world.take(&newer)?;
    check(answers == [Ok(())], || format!("epoch 2 is answered by {answers:?}"))?;
    for restarts in 0..2 {
        let older = world.frame(1, vec![world.of(2 + restarts, Some(subject.spec(2)))?])?;
        let answers = world.take(&older)?;
        let wanted = Err(Refusal::StaleEpoch { given: 1, current: 2 });
        check(answers == [wanted], || format!("epoch 1 is answered by {answers:?}"))?;
        world.start()?;
    }
    world.must_have(1, Some(&subject.spec(1)))
}

/// What is signed for another host is not taken here.
///
/// # Errors
/// What was not so.
pub fn updates_for_another_host_are_refused<S: Subject>(subject: &S) -> Outcome {
    let mut world = World::new(subject)?;
    let elsewhere = Of { host: label("h2")?, ..world.of(1, Some(subject.spec(1)))? };
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
pub fn a_crash_at_any_write_loses_nothing_that_was_acked<S: Subject>(subject: &S) -> Outcome {
    let updates = 4_u32;
    for fails_at in 0..2 * updates {
        for ends in [true, false] {
            let mut world = World::new(subject)?;
            let mut writes = 0;
            // Before the first write, after it, before the second one, and so on.
            world.machine()?.watch_writes(move |_: Write| {
                let number = writes;
                writes += 1;
                if number == fails_at { Err(io::Error::other("no room")) } else { Ok(()) }
            });
            let mut acked = 0;
            for version in 1..=updates {
                let spec = (version != 3).then(|| subject.spec(version));
                let frame = world.frame(1, vec![world.of(version.into(), spec)?])?;
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
            let told = world.machine()?.state().first().map_or(0, |(_, version)| version.0);
            check(told >= acked.into(), || format!("{acked} is acked and {told} is told"))?;
            // Nothing is answered: the controllers send it again.
            for version in acked + 1..=updates {
                world.must_take(version.into(), (version != 3).then(|| subject.spec(version)))?;
            }
            world.must_have(updates.into(), Some(&subject.spec(updates)))?;
        }
    }
    Ok(())
}

/// After a loss of power the journal may end anywhere, while what the actuator keeps itself is newer.
///
/// # Errors
/// What was not so.
pub fn a_journal_that_is_cut_anywhere_is_brought_up_to_date<S: Subject>(subject: &S) -> Outcome {
    let mut world = World::new(subject)?;
    let journal = world.folder.0.join("state/gate");
    let length = || std::fs::metadata(&journal).map(|meta| meta.len()).map_err(|error| error.to_string());
    world.must_take(1, Some(subject.spec(1)))?;
    let before = length()?;
    world.must_take(2, Some(subject.spec(2)))?;
    let after = length()?;
    let whole = std::fs::read(&journal).map_err(|error| error.to_string())?;
    let step = ((after - before) / 48).max(1) as usize;
    for cut in (0..=after).rev().step_by(step).chain([before]) {
        world.kill();
        std::fs::write(&journal, &whole[..cut as usize]).map_err(|error| error.to_string())?;
        world.start()?;
        let told = world.machine()?.state().first().map_or(0, |(_, version)| version.0);
        let kept = if cut == after { 2 } else { u64::from(cut >= before) };
        check(told == kept, || format!("cut at {cut} of {after} it tells {told}, and has kept {kept}"))?;
        world.must_take(2, Some(subject.spec(2)))?;
        world.must_have(2, Some(&subject.spec(2)))?;
    }
    Ok(())
}

/// A restart finds what was in force, without any controller.
///
/// # Errors
/// What was not so.
pub fn it_starts_with_what_it_had<S: Subject>(subject: &S) -> Outcome {
    let mut world = World::new(subject)?;
    world.must_take(1, Some(subject.spec(1)))?;
    for version in 2..5 {
        world.start()?;
        world.must_have(version - 1, Some(&subject.spec(version as u32 - 1)))?;
        world.must_take(version, Some(subject.spec(version as u32)))?;
    }
    world.start()?;
    world.must_have(4, Some(&subject.spec(4)))?;
    check(world.machine()?.problems().is_empty(), || "something was not applied".into())
}

/// A withdrawal that comes first thing after a restart takes away what the restart put in force.
///
/// # Errors
/// What was not so.
pub fn what_was_withdrawn_while_it_was_down_goes<S: Subject>(subject: &S) -> Outcome {
    let mut world = World::new(subject)?;
    world.must_take(1, Some(subject.spec(1)))?;
    world.start()?;
    world.must_take(2, None)?;
    let left = world.after_withdrawal(subject.spec(1));
    world.must_have(2, left.as_deref())?;
    // And stays away.
    world.start()?;
    world.must_have(2, left.as_deref())?;
    let answer = world.put(1, Some(subject.spec(1)))?;
    check(answer.is_err(), || "what was withdrawn is taken again".into())
}

/// What is for another plane, for the switch, or is no entry of a plane is refused in words.
///
/// # Errors
/// What was not so.
pub fn other_planes_and_entries_are_refused_by_name<S: Subject>(subject: &S) -> Outcome {
    let mut world = World::new(subject)?;
    let keys = [Key::Plane { plane: label("nobody")?, name: world.name.clone() }, Key::Gateways];
    for (version, key) in (1..).zip(keys) {
        let of = Of { key, ..world.of(version, None)? };
        let frame = world.frame(1, vec![of])?;
        let answers = world.take(&frame)?;
        let own = <S::Actuator as Actuator>::Plane::NAME;
        check(matches!(&answers[..], [Err(Refusal::Failed(why))] if why.contains(own)), || {
            format!("it is answered by {answers:?}")
        })?;
    }
    let answer = world.put(3, Some(b"\xffno specification".to_vec()))?;
    check(matches!(&answer, Err(Refusal::Failed(why)) if why.starts_with("spec")), || {
        format!("what is no specification is answered by {answer:?}")
    })?;
    world.must_have(0, None)
}

/// What the actuator refuses is told with its reason, and what was in force before is in force.
///
/// # Errors
/// What was not so.
pub fn a_refusal_is_told_and_what_was_in_force_stays<S: Subject>(subject: &S) -> Outcome {
    let mut world = World::new(subject)?;
    world.must_take(1, Some(subject.spec(1)))?;
    let answer = world.put(2, Some(subject.refused()))?;
    check(matches!(&answer, Err(Refusal::Failed(why)) if !why.is_empty()), || {
        format!("what is to be refused is answered by {answer:?}")
    })?;
    world.must_have(1, Some(&subject.spec(1)))?;
    world.start()?;
    world.must_have(1, Some(&subject.spec(1)))?;
    world.must_take(3, Some(subject.spec(3)))?;
    world.must_have(3, Some(&subject.spec(3)))
}

/// A host that is made anew under another name, on the same disk, tells what it still has, so that it is taken away, and takes
/// nothing more for the old name.
///
/// # Errors
/// What was not so.
pub fn a_host_with_another_name_lets_go_of_what_it_held<S: Subject>(subject: &S) -> Outcome {
    let mut world = World::new(subject)?;
    world.must_take(1, Some(subject.spec(1)))?;
    let before = world.frame(1, vec![world.of(2, Some(subject.spec(2)))?])?;
    world.host = label("h2")?;
    world.start()?;
    world.must_have(1, Some(&subject.spec(1)))?;
    let answers = world.take(&before)?;
    check(answers == [Err(Refusal::WrongTarget)], || format!("the old name is answered by {answers:?}"))?;
    world.must_take(3, None)?;
    let left = world.after_withdrawal(subject.spec(1));
    world.must_have(3, left.as_deref())
}

/// The largest specification and the longest name pass the gate; one byte more of either is refused before anything reads it.
///
/// # Errors
/// What was not so.
pub fn entries_at_their_bounds_are_taken_and_none_beyond<S: Subject>(subject: &S) -> Outcome {
    let mut world = World::new(subject)?;
    // JSON may have spaces at its end.
    let padded = |bytes: usize| {
        let mut spec = subject.spec(1);
        spec.resize(bytes, b' ');
        spec
    };
    let most = <<S::Actuator as Actuator>::Plane as Plane>::SPEC_BYTES_MAX;
    world.must_take(1, Some(padded(most)))?;
    let answer = world.put(2, Some(padded(SPEC_BYTES_MAX + 1)))?;
    check(answer == Err(Refusal::Misfit), || format!("one byte more is answered by {answer:?}"))?;
    for name in ["x".repeat(NAME_BYTES_MAX + 1), String::new(), "a\nb".into()] {
        let of = Of { key: world.key(&name)?, ..world.of(3, Some(subject.spec(1)))? };
        let frame = world.frame(1, vec![of])?;
        let answers = world.take(&frame)?;
        check(answers == [Err(Refusal::Misfit)], || format!("name {name:?} is answered by {answers:?}"))?;
    }
    Ok(())
}
