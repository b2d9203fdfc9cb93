use super::super::*;
use super::*;
use bytes::Bytes;
use weir_base::world::RealDisk;

const SETTINGS: LogSettings = LogSettings { segment_bytes: 8192, batch_bytes_max: 2048, log_id_if_new: 7 };

fn open(dir: &tempfile::TempDir) -> Result<(Log, Recovery), Error> {
    Log::open(Arc::new(RealDisk::open(dir.path()).unwrap()), SETTINGS, 0)
}

fn append(log: &mut Log, first: u64, count: u64) {
    for index in first..first + count {
        let batch = Bytes::from(vec![index as u8; 1_000]);
        log.append(&[Entry { position: Position { term: 1, index }, batch }]).unwrap();
        log.sync().unwrap();
    }
    log.mark();
}

fn written(entries: u64) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (mut log, _) = open(&dir).unwrap();
    append(&mut log, 1, entries);
    // As after a kill: it is not closed.
    drop(log);
    dir
}

fn refused(dir: &tempfile::TempDir, words: &str) {
    let error = open(dir).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains(words), "'{error}' does not say '{words}'");
}

fn segment(dir: &tempfile::TempDir, number: u64) -> std::path::PathBuf {
    dir.path().join(segment::file_name(number))
}

#[test]
fn a_log_that_has_lost_segments_is_refused() {
    let dir = written(10);
    let newest = (1..).take_while(|number| segment(&dir, *number).exists()).last().unwrap();
    assert!(newest >= 3);
    let aside = tempfile::tempdir().unwrap();
    let kept = aside.path().join("kept");
    std::fs::rename(segment(&dir, newest), &kept).unwrap();
    refused(&dir, "is missing: log.proof says");
    std::fs::rename(&kept, segment(&dir, newest)).unwrap();
    assert_eq!(open(&dir).unwrap().0.last().index, 10);
    for number in 1..=newest {
        std::fs::remove_file(segment(&dir, number)).unwrap();
    }
    refused(&dir, "is missing: log.proof says");
}

#[test]
fn a_log_that_is_older_than_it_was_is_refused() {
    let dir = written(4);
    let newest = (1..).take_while(|number| segment(&dir, *number).exists()).last().unwrap();
    let old = std::fs::read(segment(&dir, newest)).unwrap();
    let (mut log, _) = open(&dir).unwrap();
    append(&mut log, 5, 1);
    assert_eq!(log.active_segment(), newest);
    drop(log);
    std::fs::write(segment(&dir, newest), old).unwrap();
    refused(&dir, "proves that records up to");
}

/// The records that were acknowledged last are zeroed: not a torn tail.
#[test]
fn records_lost_at_the_tail_are_told() {
    let dir = written(4);
    let newest = (1..).take_while(|number| segment(&dir, *number).exists()).last().unwrap();
    let mut bytes = std::fs::read(segment(&dir, newest)).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[end - 900..=end].fill(0);
    std::fs::write(segment(&dir, newest), bytes).unwrap();
    refused(&dir, "proves that records up to");
}

#[test]
fn a_log_of_another_place_is_refused() {
    let (dir, other) = (written(2), tempfile::tempdir().unwrap());
    let settings = LogSettings { log_id_if_new: 8, ..SETTINGS };
    let disk = Arc::new(RealDisk::open(other.path()).unwrap());
    append(&mut Log::open(disk, settings, 0).unwrap().0, 1, 2);
    std::fs::copy(segment(&other, 1), segment(&dir, 1)).unwrap();
    refused(&dir, "another log");
}

#[test]
fn a_log_of_an_earlier_release_gets_its_proof() {
    let dir = written(3);
    std::fs::remove_file(dir.path().join(FILE)).unwrap();
    assert_eq!(open(&dir).unwrap().0.last().index, 3);
    assert!(dir.path().join(FILE).exists());
}

/// Each bit of each copy: another one stands for it; all: refused.
#[test]
fn a_damaged_copy_is_not_believed() {
    let dir = written(3);
    let good = std::fs::read(dir.path().join(FILE)).unwrap();
    let disk = RealDisk::open(dir.path()).unwrap();
    let said = |bytes: &[u8]| {
        std::fs::write(dir.path().join(FILE), bytes).unwrap();
        read(&disk)
    };
    let whole = said(&good).unwrap().unwrap();
    for at in SLOT_AT.into_iter().chain([NOTE_AT]) {
        for bit in 0..8 * SLOT_BYTES {
            let mut bytes = good.clone();
            bytes[at as usize + bit / 8] ^= 1 << (bit % 8);
            let found = said(&bytes).unwrap().unwrap();
            assert!(found.count <= whole.count && found.said.sequence <= whole.said.sequence);
            assert_eq!(found.said.log_id, 7);
        }
    }
    assert!(said(&[0; 12_288]).is_err_and(|error| error.to_string().contains("both of its copies")));
    assert!(said(&[]).is_err());
}

#[test]
fn whatever_is_in_the_file_is_read_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    bolero::check!().with_iterations(300).with_type::<Vec<u8>>().for_each(|bytes| {
        std::fs::write(dir.path().join(FILE), bytes).unwrap();
        let _read = read(&RealDisk::open(dir.path()).unwrap());
    });
}
