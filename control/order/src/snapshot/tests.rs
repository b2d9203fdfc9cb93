use std::io::{self, Read};
use std::sync::Arc;

use weir_base::world::{Disk, Rng, SimDisk};

use super::*;

fn store(disk: &SimDisk) -> SnapshotStore {
    SnapshotStore::open(Arc::new(disk.restart())).unwrap()
}

fn at(index: u64) -> Position {
    Position { term: 1, index }
}

fn state(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = vec![0; bytes];
    Rng::new(seed).fill(&mut state);
    state
}

fn read(store: &SnapshotStore) -> Vec<u8> {
    let mut bytes = Vec::new();
    store.read_newest().unwrap().unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn states_of_any_size_come_back() {
    for (nth, bytes) in
        [0, 1, CHUNK_BYTES_MAX, CHUNK_BYTES_MAX + 1, 3 * CHUNK_BYTES_MAX].into_iter().enumerate()
    {
        let disk = SimDisk::new(1);
        let info = store(&disk).save(at(nth as u64 + 1), &mut &state(bytes, 4)[..]).unwrap();
        disk.cut_power();
        let store = store(&disk);
        assert_eq!((store.newest(), info.bytes), (Some(info), bytes as u64));
        assert_eq!(read(&store), state(bytes, 4));
    }
}

#[test]
fn a_saved_snapshot_survives_a_power_cut_at_once() {
    for seed in 0..50 {
        let disk = SimDisk::new(seed);
        store(&disk).save(at(1), &mut &b"state"[..]).unwrap();
        disk.cut_power();
        assert_eq!(read(&store(&disk)), b"state", "seed {seed}");
    }
}

#[test]
fn the_newest_two_are_kept_and_the_log_above_the_older() {
    let disk = SimDisk::new(2);
    let mut store = store(&disk);
    assert_eq!((store.newest(), store.log_needed_above()), (None, None));
    assert!(store.read_newest().unwrap().is_none());
    store.save(at(10), &mut &b"a"[..]).unwrap();
    assert_eq!(store.log_needed_above(), None);
    for (index, needed_above) in [(20, 10), (35, 20), (36, 35)] {
        store.save(at(index), &mut &b"b"[..]).unwrap();
        assert_eq!(store.log_needed_above(), Some(needed_above));
    }
    assert_eq!(disk.list().unwrap(), [file_name(35), file_name(36)]);
    assert!(matches!(store.save(at(36), &mut &b"c"[..]), Err(Error::Index { index: 36, .. })));
}

#[test]
fn a_damaged_newest_falls_back_and_says_so() {
    let disk = SimDisk::new(3);
    let mut first = store(&disk);
    first.save(at(10), &mut &b"older"[..]).unwrap();
    first.save(at(20), &mut &b"newer"[..]).unwrap();
    let length = disk.read_all(&file_name(20)).unwrap().len() as u64;
    for offset in 0..length {
        disk.flip_bit(&file_name(20), offset, (offset % 8) as u8).unwrap();
        let store = store(&disk);
        assert_eq!(store.newest().unwrap().at, at(10), "byte {offset}");
        assert_eq!(store.refused()[0].file, file_name(20));
        assert_eq!(read(&store), b"older");
        disk.flip_bit(&file_name(20), offset, (offset % 8) as u8).unwrap();
    }
    disk.flip_bit(&file_name(20), 50, 0).unwrap();
    let mut store = store(&disk);
    store.save(at(20), &mut &b"again"[..]).unwrap();
    assert_eq!((read(&store), store.log_needed_above()), (b"again".to_vec(), Some(10)));
    assert!(store.refused().is_empty());
}

#[test]
fn a_shortened_or_lengthened_file_is_refused() {
    let mut bytes = Vec::new();
    let output = |piece: &[u8]| {
        bytes.extend_from_slice(piece);
        Ok(())
    };
    encode(at(1), &mut &state(1000, 1)[..], output).unwrap();
    assert!(Decoder::new(&bytes[..]).unwrap().verify().is_ok());
    for length in 0..bytes.len() {
        let result = Decoder::new(&bytes[..length]).and_then(Decoder::verify);
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::InvalidData, "{length} bytes");
    }
    bytes.push(0);
    assert!(Decoder::new(&bytes[..]).unwrap().verify().is_err());
}

struct Broken;

impl Read for Broken {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::Error::other("no state"))
    }
}

#[test]
fn failures_leave_the_older_ones_and_no_leftovers() {
    let disk = SimDisk::new(5);
    let mut store = store(&disk);
    store.save(at(1), &mut &b"good"[..]).unwrap();
    assert!(matches!(store.save(at(2), &mut Broken), Err(Error::SnapshotSource { .. })));
    disk.set_capacity_bytes(disk.used_bytes() + 100);
    assert!(matches!(store.save(at(2), &mut &state(500, 1)[..]), Err(Error::DiskFull { .. })));
    disk.set_capacity_bytes(u64::MAX);
    disk.fail_syncs(1);
    assert!(matches!(store.save(at(2), &mut &b"x"[..]), Err(Error::Io { .. })));
    assert_eq!(disk.list().unwrap(), [file_name(1)]);
    assert_eq!(read(&store), b"good");
    store.save(at(2), &mut &b"better"[..]).unwrap();
    assert_eq!(read(&store), b"better");
}

/// Releases to come read what this one writes. A hash that differs means a new format: raise [`format::SNAPSHOT_VERSION`], and read the
/// one before.
#[test]
fn a_snapshot_keeps_its_bytes() {
    use sha2::{Digest as _, Sha256};
    let disk = SimDisk::new(1);
    store(&disk).save(at(300), &mut &state(CHUNK_BYTES_MAX + 5, 4)[..]).unwrap();
    let digest: [u8; 32] = Sha256::digest(disk.read_all(&file_name(300)).unwrap()).into();
    assert_eq!(
        (format::SNAPSHOT_VERSION, &digest[..8]),
        (1, &[0x16, 0x35, 0x06, 0x63, 0x43, 0x6d, 0x42, 0x8b][..]),
        "{digest:02x?}"
    );
}
