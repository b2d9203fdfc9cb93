use super::*;
use crate::batch::{GroupSigner, SingleSigner, Verifier, frames, sign_batch};
use crate::identity::KeyPair;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use weir_model::entry::Vni;
use weir_model::{Change, Entry, Label, Version};

/// What is in force, by key: its version.
#[derive(Default)]
struct InHand {
    versions: BTreeMap<Key, u64>,
    /// Refused from this bucket on.
    full_at: Option<u8>,
}

impl Hands for InHand {
    fn apply(&mut self, _gate: &Gate, update: &Update) -> Result<(), Refusal> {
        if matches!((&update.key, self.full_at), (Key::Members { bucket, .. }, Some(most)) if *bucket >= most)
        {
            return Err(Refusal::Full { limit: 1 });
        }
        self.versions.insert(update.key.clone(), update.version.0);
        Ok(())
    }

    fn put_back(&mut self, gate: &Gate, keys: &BTreeSet<Key>) {
        for key in keys {
            match gate.get(key) {
                Some(known) => drop(self.versions.insert(key.clone(), known.version.0)),
                None => drop(self.versions.remove(key)),
            }
        }
    }
}

impl InHand {
    fn of(&self, bucket: u8) -> u64 {
        self.versions.get(&key(bucket)).copied().unwrap_or(0)
    }
}

fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

fn key(bucket: u8) -> Key {
    Key::Members { vni: Vni(1), tag: label("web"), bucket }
}

fn put(bucket: u8, version: u64) -> Update {
    Update {
        target: label("h1"),
        key: key(bucket),
        version: Version(version),
        expected: Version::ZERO,
        change: Change::Put(Entry::Members(Vec::new())),
    }
}

fn signer() -> SingleSigner {
    SingleSigner(KeyPair::from_seed(&[1; 32]))
}

fn frame(index: u64, updates: Vec<Update>) -> SignedUpdates {
    let (header, proven) = sign_batch(&signer(), &label("d"), 1, Version(index), updates).unwrap();
    frames(proven.into_iter().map(|proven| (header.clone(), proven)), 1000).remove(0)
}

fn kept(folder: &Path) -> Kept {
    let path = folder.join("gate");
    let verifier = || Verifier::new(label("d"), signer().group_key());
    Kept::open(Box::new(move || Gate::open(label("h1"), verifier(), &path))).unwrap()
}

fn results(taken: &Taken) -> Vec<bool> {
    taken.acks.iter().map(|ack| ack.result.is_ok()).collect()
}

#[test]
fn a_key_twice_in_a_frame_leaves_the_newer_version() {
    for together in [1, 100] {
        for versions in [[2, 1], [1, 2]] {
            let folder = tempfile::tempdir().unwrap();
            let (mut kept, mut hands) = (kept(folder.path()), InHand::default());
            let frame = frame(2, versions.map(|version| put(1, version)).to_vec());
            let taken = kept.take(&frame, together, &mut hands);
            assert_eq!(results(&taken), [true, versions[1] == 2], "{versions:?}");
            assert_eq!((hands.of(1), kept.gate().get(&key(1)).unwrap().version), (2, Version(2)));
        }
    }
}

#[test]
fn what_was_applied_together_and_cannot_be_kept_is_put_back_together() {
    let folder = tempfile::tempdir().unwrap();
    let (mut kept, mut hands) = (kept(folder.path()), InHand::default());
    assert!(kept.take(&frame(1, vec![put(1, 1)]), 100, &mut hands).failure.is_none());
    let writes = AtomicU32::new(0);
    kept.watch_writes(move |write| match (write, writes.fetch_add(1, Ordering::Relaxed)) {
        (Write::Before, 0) => Err(io::Error::other("no room")),
        _ => Ok(()),
    });
    hands.full_at = Some(9);
    // A refusal before the first that is applied is an answer; what comes behind is not.
    let whole = frame(2, vec![put(9, 2), put(1, 2), put(9, 2), put(2, 2)]);
    let taken = kept.take(&whole, 100, &mut hands);
    assert_eq!((results(&taken), taken.failure.is_some()), (vec![false], true));
    assert_eq!((hands.of(1), hands.of(2)), (1, 0), "as the gate has it");
    kept.mend(&mut hands).unwrap();
    assert_eq!(results(&kept.take(&whole, 100, &mut hands)), [false, true, false, true]);
    assert_eq!((hands.of(1), hands.of(2)), (2, 2));
}

/// A write that fails may be on the disk all the same: then it is in force when the gate was opened anew.
#[test]
fn a_failed_write_that_reached_the_disk_counts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gate");
    let (mut kept, mut hands) = (kept(folder.path()), InHand::default());
    let (first, second) = (frame(1, vec![put(1, 1)]), frame(2, vec![put(1, 2)]));
    assert!(kept.take(&first, 1, &mut hands).failure.is_none());
    let with_second = {
        let folder = tempfile::tempdir().unwrap();
        let other = folder.path().join("gate");
        std::fs::copy(&path, &other).unwrap();
        let mut other_kept = self::kept(folder.path());
        assert!(other_kept.take(&second, 1, &mut InHand::default()).failure.is_none());
        std::fs::read(&other).unwrap()
    };
    kept.watch_writes(|_| Err(io::Error::other("the disk is slow to say so")));
    assert!(kept.take(&second, 1, &mut hands).failure.is_some());
    assert_eq!(hands.of(1), 1);
    std::fs::write(&path, with_second).unwrap();
    kept.mend(&mut hands).unwrap();
    assert_eq!(hands.of(1), 2, "as the journal has it");
    assert_eq!(results(&kept.take(&second, 1, &mut hands)), [true]);
}

/// Whatever size parts have, together they are all that is in force, once and in order, and only the last says that it is.
#[test]
fn parts_are_all_of_it_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let mut kept = kept(folder.path());
    let all: Vec<Update> = (1..=10).map(|bucket| put(bucket, 1)).collect();
    assert!(kept.take(&frame(1, all), 100, &mut InHand::default()).failure.is_none());
    let even = |key: &Key| matches!(key, Key::Members { bucket, .. } if bucket % 2 == 0);
    for wanted in [|_: &Key| true, even] {
        let whole: Vec<Key> = kept.gate().iter().map(|(key, _)| key.clone()).filter(&wanted).collect();
        for most in 1..=12 {
            let (mut cursor, mut got) = (Cursor::default(), Vec::new());
            loop {
                let (part, is_last) =
                    cursor.part(kept.gate(), most, |key, _| wanted(key).then(|| key.clone()));
                assert!(part.len() == most || is_last && part.len() < most, "{most}: {}", part.len());
                got.extend(part);
                if is_last {
                    break;
                }
            }
            assert_eq!(got, whole, "{most}");
        }
    }
}
