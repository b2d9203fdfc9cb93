#![allow(clippy::unwrap_used)]

use super::super::aside::{LEFT_OUT_FILE, SET_ASIDE_FILE, write_wishes};
use super::*;
use crate::aside::Wish;
use bytes::Bytes;
use weir_base::world::RealDisk;
use weir_order::Position;
use weir_store::Batch;

fn entry(index: u64, ticket: u64) -> Entry {
    let call = Operation::Call { procedure: "a/p".into(), arguments: vec![1, 2, 3] };
    let item = Item::Operations { now_ms: 1, origin: 1, ticket, batch: Batch::once([call]) };
    let batch = weir_order::batcher::encode(&[Bytes::from(weir_base::codec::encode(&item))]);
    Entry { position: Position { term: 1, index }, batch }
}

fn tried(dir: &tempfile::TempDir) -> Result<Carrying, Error> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(dir.path()).unwrap());
    let key = Arc::new(weir_trust::identity::KeyPair::from_seed(&[3; 32]));
    Carrying::open(disk.clone(), Label::new("prod").unwrap(), AsidePlace::alone(disk, key))
}

fn open(dir: &tempfile::TempDir) -> Carrying {
    tried(dir).unwrap()
}

fn begin(carrying: &mut Carrying, entry: &Entry) -> Way {
    carrying.begin(entry, &Operators::default())
}

fn wish(dir: &tempfile::TempDir, entry: EntryName) {
    let disk = RealDisk::open(dir.path()).unwrap();
    let wish = Wish { entry, word: None, not_carried_out: false };
    write_wishes(&disk, &[(entry.index, wish)].into()).unwrap();
}

#[test]
fn an_entry_that_ended_the_process_is_told_tried_and_then_not_any_more() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(open(&dir).ended_at(), None);
    for times in 1..=ENDS_MAX {
        let mut carrying = open(&dir);
        // What is before it is carried out each time, and does not make it forgotten.
        begin(&mut carrying, &entry(7, 1));
        carrying.done();
        assert_eq!(begin(&mut carrying, &entry(8, 2)), Way::CarryOut);
        drop(carrying);
        let ended = open(&dir).ended_at().unwrap();
        assert_eq!((ended.index, ended.times), (8, times));
    }
    let mut carrying = open(&dir);
    assert_eq!(begin(&mut carrying, &entry(8, 2)), Way::Wait);
    let error = carrying.look(&entry(8, 2), &Operators::default()).unwrap_err().to_string();
    for words in ["3 times", "entry 8", "call a/p (3 bytes)", "set-aside", &to_hex(&digest(&entry(8, 2)))] {
        assert!(error.contains(words), "'{error}' does not say '{words}'");
    }
    // Another entry at its place is another matter.
    assert_eq!(begin(&mut open(&dir), &entry(8, 3)), Way::CarryOut);
}

#[test]
fn an_entry_that_is_done_is_not_told() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..=ENDS_MAX {
        let mut carrying = open(&dir);
        begin(&mut carrying, &entry(8, 2));
        carrying.done();
    }
    assert_eq!(open(&dir).ended_at(), None);
}

#[test]
fn only_the_entry_that_is_meant_is_set_aside_and_stays_so() {
    let dir = tempfile::tempdir().unwrap();
    let meant = EntryName { index: 8, sha256: digest(&entry(8, 2)) };
    wish(&dir, meant);
    let mut carrying = open(&dir);
    // Another one at its place: neither is it carried out nor the other one left out, until the operator says which.
    assert_eq!(begin(&mut carrying, &entry(8, 3)), Way::Wait);
    let error = carrying.look(&entry(8, 3), &Operators::default()).unwrap_err().to_string();
    assert!(error.contains("another entry") && error.contains(&to_hex(&meant.sha256)), "{error}");
    assert!(!dir.path().join(LEFT_OUT_FILE).exists(), "nothing is promised");
    let Way::SetAside(case) = begin(&mut open(&dir), &entry(8, 2)) else { panic!("it is set aside") };
    assert!(case.agreed && case.entry == meant);
    // What the operator wanted may go: what was agreed stays.
    write_wishes(&RealDisk::open(dir.path()).unwrap(), &[].into()).unwrap();
    let mut carrying = open(&dir);
    assert!(matches!(begin(&mut carrying, &entry(8, 2)), Way::SetAside(_)));
    assert_eq!(begin(&mut carrying, &entry(9, 2)), Way::CarryOut);
    std::fs::write(dir.path().join(LEFT_OUT_FILE), "none").unwrap();
    assert!(matches!(tried(&dir), Err(Error::SetAside { .. })));
}

#[test]
fn what_a_release_before_set_aside_stays_so() {
    let dir = tempfile::tempdir().unwrap();
    let meant = digest(&entry(8, 2));
    std::fs::write(dir.path().join(SET_ASIDE_FILE), format!("8 {}\n", to_hex(&meant))).unwrap();
    let mut carrying = open(&dir);
    assert_eq!(begin(&mut carrying, &entry(8, 2)), Way::SetAsideBefore(meant));
    assert_eq!(begin(&mut carrying, &entry(8, 3)), Way::CarryOut);
    std::fs::write(dir.path().join(SET_ASIDE_FILE), "8 abc\n").unwrap();
    assert!(matches!(tried(&dir), Err(Error::SetAside { .. })));
}

#[test]
fn whatever_is_in_the_files_is_read_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let files =
        [CARRYING_FILE, SET_ASIDE_FILE, super::super::aside::WANTED_FILE, super::super::aside::CARRIED_FILE];
    bolero::check!().with_iterations(300).with_type::<[Vec<u8>; 4]>().for_each(|contents| {
        for (file, content) in files.iter().zip(contents) {
            std::fs::write(dir.path().join(file), content).unwrap();
        }
        let _read = tried(&dir);
    });
}
