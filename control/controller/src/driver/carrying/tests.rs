#![allow(clippy::unwrap_used)]

use super::*;
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

fn open(dir: &tempfile::TempDir) -> Carrying {
    Carrying::open(Arc::new(RealDisk::open(dir.path()).unwrap())).unwrap()
}

#[test]
fn an_entry_that_ended_the_process_is_told_tried_and_then_not_any_more() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(open(&dir).ended_at(), None);
    for times in 1..=ENDS_MAX {
        let mut carrying = open(&dir);
        // What is before it is carried out each time, and does not make it forgotten.
        carrying.begin(&entry(7, 1)).unwrap();
        carrying.done();
        assert_eq!(carrying.begin(&entry(8, 2)).unwrap(), Way::CarryOut);
        drop(carrying);
        let ended = open(&dir).ended_at().unwrap();
        assert_eq!((ended.index, ended.times), (8, times));
    }
    let error = open(&dir).begin(&entry(8, 2)).unwrap_err().to_string();
    for words in ["3 times", "entry 8", "call a/p (3 bytes)", "set-aside", &to_hex(&digest(&entry(8, 2)))] {
        assert!(error.contains(words), "'{error}' does not say '{words}'");
    }
    // Another entry at its place is another matter.
    assert_eq!(open(&dir).begin(&entry(8, 3)).unwrap(), Way::CarryOut);
}

#[test]
fn an_entry_that_is_done_is_not_told() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..=ENDS_MAX {
        let mut carrying = open(&dir);
        carrying.begin(&entry(8, 2)).unwrap();
        carrying.done();
    }
    assert_eq!(open(&dir).ended_at(), None);
}

#[test]
fn only_the_entry_that_is_meant_is_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    let meant = digest(&entry(8, 2));
    std::fs::write(dir.path().join(SET_ASIDE_FILE), format!("8 {}\n", to_hex(&meant))).unwrap();
    let mut carrying = open(&dir);
    assert_eq!(carrying.begin(&entry(8, 2)).unwrap(), Way::SetAside(meant));
    assert_eq!(carrying.begin(&entry(8, 3)).unwrap(), Way::CarryOut);
    assert_eq!(carrying.begin(&entry(9, 2)).unwrap(), Way::CarryOut);
    std::fs::write(dir.path().join(SET_ASIDE_FILE), "8 abc\n").unwrap();
    let disk = Arc::new(RealDisk::open(dir.path()).unwrap());
    assert!(matches!(Carrying::open(disk), Err(Error::SetAside { .. })));
}

#[test]
fn whatever_is_in_the_files_is_read_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    bolero::check!().with_iterations(300).with_type::<(Vec<u8>, Vec<u8>)>().for_each(|(carrying, aside)| {
        std::fs::write(dir.path().join(CARRYING_FILE), carrying).unwrap();
        std::fs::write(dir.path().join(SET_ASIDE_FILE), aside).unwrap();
        let _read = Carrying::open(Arc::new(RealDisk::open(dir.path()).unwrap()));
    });
}
