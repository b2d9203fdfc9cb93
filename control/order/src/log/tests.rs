use std::io;
use std::sync::Arc;

use bytes::Bytes;
use weir_base::world::{Disk, SimDisk};

use super::record::{Flaw, Kind, RecordHeader};
use super::segment::SegmentHeader;
use super::*;

const SETTINGS: LogSettings = LogSettings { segment_bytes: 8192, batch_bytes_max: 2048, log_id_if_new: 7 };

fn open(disk: &SimDisk) -> Result<(Log, Recovery), Error> {
    Log::open(Arc::new(disk.restart()), SETTINGS, 0)
}

fn entry(index: u64, bytes: usize) -> Entry {
    let batch = Bytes::from(vec![index as u8; bytes]);
    Entry { position: Position { term: 1, index }, batch }
}

fn append_synced(log: &mut Log, first: u64, count: u64, bytes: usize) {
    let entries: Vec<Entry> = (first..first + count).map(|index| entry(index, bytes)).collect();
    let mut rest = &entries[..];
    while !rest.is_empty() {
        let count = log.append(rest).unwrap();
        log.sync().unwrap();
        rest = &rest[count..];
    }
}

fn lengths(log: &Log) -> Vec<(u64, usize)> {
    let replay = log.replay(log.first_index()).unwrap();
    replay.map(|entry| entry.unwrap()).map(|entry| (entry.position.index, entry.batch.len())).collect()
}

/// Where record number `nth` (from 0) of equally long records begins in the first segment.
fn offset_of(nth: u64, bytes: usize) -> u64 {
    SEGMENT_HEADER_BYTES as u64 + nth * record_bytes(bytes) as u64
}

#[test]
fn entries_come_back_across_segments() {
    let disk = SimDisk::new(1);
    let (mut log, recovery) = open(&disk).unwrap();
    assert_eq!(recovery, Recovery { segments: 1, ..Recovery::default() });
    append_synced(&mut log, 1, 20, 1000);
    let wanted: Vec<_> = (1..=20).map(|index| (index, 1000)).collect();
    assert_eq!(lengths(&log), wanted);
    assert_eq!(log.counters().segments_created, 6, "3 records fit a segment");
    log.close().unwrap();
    disk.cut_power();
    let (log, recovery) = open(&disk).unwrap();
    assert_eq!(lengths(&log), wanted);
    assert_eq!((recovery.segments, recovery.entries, recovery.torn_bytes), (7, 20, 0));
    assert_eq!(log.replay(15).unwrap().count(), 6);
    assert!(matches!(log.replay(22), Err(Error::Index { .. })));
}

#[test]
fn settings_are_checked() {
    for (segment_bytes, batch_bytes_max) in [(4096, 100), (8192, 4096), (10_000, 100), (1 << 32, 2 << 30)] {
        let settings = LogSettings { segment_bytes, batch_bytes_max, log_id_if_new: 1 };
        assert!(matches!(Log::open(Arc::new(SimDisk::new(1)), settings, 0), Err(Error::Setting { .. })));
    }
}

#[test]
fn a_torn_tail_is_cut_and_counted_even_when_its_later_records_are_whole() {
    let disk = SimDisk::new(2);
    let (mut log, _) = open(&disk).unwrap();
    append_synced(&mut log, 1, 2, 100);
    // One write of three records, of which the disk got the second and third only.
    log.append(&[entry(3, 100), entry(4, 100), entry(5, 100)]).unwrap();
    disk.kill();
    let file = disk.restart().open(&segment::file_name(1)).unwrap();
    file.write_at(offset_of(2, 100), &[0; 60]).unwrap();
    let (mut log, recovery) = open(&disk).unwrap();
    assert_eq!(log.last().index, 2);
    assert_eq!(recovery.torn_records, 2);
    assert_eq!(log.counters().torn_bytes_cut, recovery.torn_bytes);
    assert!(recovery.torn_bytes > 300);
    // What was cut does not come back behind a shorter or equal successor.
    append_synced(&mut log, 3, 1, 100);
    disk.kill();
    assert_eq!(lengths(&open(&disk).unwrap().0), [(1, 100), (2, 100), (3, 100)]);
}

#[test]
fn every_flipped_bit_under_a_mark_is_refused_with_its_place() {
    let disk = SimDisk::new(3);
    let (mut log, _) = open(&disk).unwrap();
    append_synced(&mut log, 1, 3, 21);
    log.mark();
    disk.kill();
    let name = segment::file_name(1);
    let end = offset_of(3, 21);
    for offset in (0..64).chain(SEGMENT_HEADER_BYTES as u64 - 8..end) {
        for bit in 0..8 {
            disk.flip_bit(&name, offset, bit).unwrap();
            let Err(Error::Corrupt { file, offset: at, index, .. }) = open(&disk) else {
                panic!("bit {bit} of byte {offset} went unnoticed");
            };
            let nth = offset.saturating_sub(SEGMENT_HEADER_BYTES as u64) / record_bytes(21) as u64;
            let place = if offset < SEGMENT_HEADER_BYTES as u64 { 0 } else { offset_of(nth, 21) };
            assert_eq!((file, at, index), (name.clone(), place, nth));
            disk.flip_bit(&name, offset, bit).unwrap();
        }
    }
    assert_eq!(open(&disk).unwrap().0.last().index, 3);
}

#[test]
fn damage_in_a_sealed_segment_and_missing_segments_are_refused() {
    let disk = SimDisk::new(4);
    let (mut log, _) = open(&disk).unwrap();
    append_synced(&mut log, 1, 9, 1000);
    log.close().unwrap();
    disk.kill();
    let bytes = disk.read_all(&segment::file_name(2)).unwrap();
    disk.flip_bit(&segment::file_name(2), offset_of(1, 1000) + 70, 1).unwrap();
    let error = open(&disk).err().unwrap();
    assert!(matches!(&error, Error::Corrupt { index: 4, .. }), "{error}");
    let text = error.to_string();
    for part in ["log-0000000000000002.seg", "byte 5152", "restore the directory", "checksum"] {
        assert!(text.contains(part), "{text}");
    }
    disk.restart().remove(&segment::file_name(2)).unwrap();
    let error = open(&disk).err().unwrap();
    assert!(error.to_string().contains("segment 2 is missing"), "{error}");

    let again = disk.restart().create(&segment::file_name(2)).unwrap();
    again.write_at(0, &bytes[..6000]).unwrap();
    let error = open(&disk).err().unwrap();
    assert!(error.to_string().contains("6000 bytes instead of 8192"), "{error}");
}

#[test]
fn a_log_behind_its_snapshot_is_refused() {
    let disk = SimDisk::new(5);
    let (mut log, _) = open(&disk).unwrap();
    append_synced(&mut log, 1, 2, 10);
    disk.kill();
    let at = |floor| Log::open(Arc::new(disk.restart()), SETTINGS, floor);
    assert!(at(2).is_ok());
    assert!(matches!(at(3), Err(Error::Corrupt { index: 2, .. })));
    let empty = Log::open(Arc::new(SimDisk::new(1)), SETTINGS, 3);
    assert!(empty.err().unwrap().to_string().contains("the log is missing"));
}

#[test]
fn nothing_is_acknowledged_after_a_failed_sync_and_reopening_makes_sure() {
    for seed in 0..100 {
        let disk = SimDisk::new(seed);
        let (mut log, _) = open(&disk).unwrap();
        append_synced(&mut log, 1, 1, 700);
        log.append(&[entry(2, 700)]).unwrap();
        disk.fail_syncs(1);
        assert!(matches!(log.sync(), Err(Error::Poisoned { .. })));
        assert!(matches!(log.sync(), Err(Error::Poisoned { .. })), "the second sync would say Ok");
        assert!(matches!(log.append(&[entry(3, 10)]), Err(Error::Poisoned { .. })));
        assert!(!log.is_healthy());
        drop(log);
        // The record reads back from memory; once it was replayed it must not be lost any more.
        disk.kill();
        let (log, _) = open(&disk).unwrap();
        assert_eq!(log.last().index, 2);
        disk.cut_power();
        assert_eq!(open(&disk).unwrap().0.last().index, 2, "seed {seed}");
    }
}

#[test]
fn a_full_disk_is_told_and_survived() {
    let disk = SimDisk::new(6);
    let (mut log, _) = open(&disk).unwrap();
    append_synced(&mut log, 1, 3, 1000);
    disk.set_capacity_bytes(disk.used_bytes() + 5000);
    for _ in 0..3 {
        let error = log.append(&[entry(4, 1000)]).unwrap_err();
        assert!(matches!(error, Error::DiskFull { .. }) && error.is_definite(), "{error}");
    }
    assert!(log.is_healthy());
    append_synced(&mut log, 4, 1, 10);
    disk.set_capacity_bytes(u64::MAX);
    append_synced(&mut log, 5, 3, 1000);
    disk.cut_power();
    assert_eq!(
        lengths(&open(&disk).unwrap().0),
        [(1, 1000), (2, 1000), (3, 1000), (4, 10), (5, 1000), (6, 1000), (7, 1000)]
    );
}

#[test]
fn a_failed_write_leaves_no_trace() {
    for seed in 0..100 {
        let disk = SimDisk::new(seed);
        let (mut log, _) = open(&disk).unwrap();
        append_synced(&mut log, 1, 1, 50);
        disk.fail_writes(1, io::ErrorKind::StorageFull);
        let error = log.append(&[entry(2, 600), entry(3, 600)]).unwrap_err();
        assert!(error.is_definite(), "{error}");
        append_synced(&mut log, 2, 1, 600);
        disk.cut_power();
        assert_eq!(lengths(&open(&disk).unwrap().0), [(1, 50), (2, 600)], "seed {seed}");

        // Not even wiping works: the fate is open, until wiping works.
        let (mut log, _) = open(&disk).unwrap();
        disk.fail_writes(2, io::ErrorKind::StorageFull);
        let error = log.append(&[entry(3, 600), entry(4, 600)]).unwrap_err();
        assert!(!error.is_definite(), "{error}");
        append_synced(&mut log, 3, 1, 600);
        disk.cut_power();
        assert_eq!(lengths(&open(&disk).unwrap().0), [(1, 50), (2, 600), (3, 600)], "seed {seed}");
    }
}

#[test]
fn truncation_keeps_every_entry_above() {
    let disk = SimDisk::new(8);
    let (mut log, _) = open(&disk).unwrap();
    append_synced(&mut log, 1, 10, 1000);
    log.truncate_below(0).unwrap();
    assert_eq!(log.first_index(), 1);
    log.truncate_below(5).unwrap();
    assert_eq!((log.first_index(), log.counters().segments_removed), (4, 1));
    log.truncate_below(6).unwrap();
    assert_eq!(log.first_index(), 7);
    log.truncate_below(1000).unwrap();
    assert_eq!(log.first_index(), 10, "the active segment stays");
    disk.cut_power();
    let (log, _) = open(&disk).unwrap();
    assert_eq!(lengths(&log), [(10, 1000)]);
}

#[test]
fn a_spare_is_used_and_leftovers_are_removed() {
    let disk = SimDisk::new(9);
    let (mut log, _) = open(&disk).unwrap();
    prepare_spare(&disk, 8192).unwrap();
    prepare_spare(&disk, 8192).unwrap();
    assert_eq!(disk.list().unwrap().last().unwrap(), "spare");
    append_synced(&mut log, 1, 4, 1000);
    assert_eq!(disk.list().unwrap(), [segment::file_name(1), segment::file_name(2), PROOF_FILE.to_owned()]);
    for name in ["spare", "spare.tmp", "segment.tmp"] {
        disk.create(name).unwrap();
    }
    disk.kill();
    open(&disk).unwrap();
    assert_eq!(
        disk.restart().list().unwrap(),
        [segment::file_name(1), segment::file_name(2), PROOF_FILE.to_owned()]
    );
}

#[test]
fn marks_are_written_once_and_do_not_pile_up() {
    let disk = SimDisk::new(10);
    let (mut log, _) = open(&disk).unwrap();
    log.mark();
    assert_eq!(log.counters().marks, 0, "there is nothing to say of an empty log");
    log.append(&[entry(1, 1)]).unwrap();
    log.mark();
    assert_eq!(log.counters().marks, 0, "not durable yet");
    log.sync().unwrap();
    log.mark();
    log.mark();
    assert_eq!(log.counters().marks, 1);
    log.append(&[entry(2, 1)]).unwrap();
    log.mark();
    assert_eq!(log.counters().marks, 1, "the second is not durable yet");
    log.close().unwrap();
    let bytes = disk.read_all(&segment::file_name(1)).unwrap();
    for _ in 0..5 {
        disk.kill();
        open(&disk).unwrap();
    }
    assert_eq!(disk.read_all(&segment::file_name(1)).unwrap(), bytes);
}

#[test]
fn record_flaws_have_their_names() {
    let header =
        RecordHeader { kind: Kind::Entry, tag: 0, length: 3, sequence: 2, durable: 1, index: 1, term: 1 };
    let seed = record::seed(1, 1);
    let mut bytes = Vec::new();
    record::encode(&header, b"abc", seed, &mut bytes);
    assert_eq!(bytes.len(), record_bytes(3));
    assert_eq!(record::decode(&bytes, seed), Ok((header, &b"abc"[..])));
    assert_eq!(record::decode(&bytes, record::seed(1, 2)), Err(Flaw::HeaderChecksum));
    assert_eq!(record::decode(&bytes, record::seed(2, 1)), Err(Flaw::HeaderChecksum));
    assert_eq!(record::decode(&bytes[..bytes.len() - 1], seed), Err(Flaw::Short));
    assert_eq!(record::decode(&bytes[..10], seed), Err(Flaw::Short));
    assert_eq!(record::decode(&[0; 48], seed), Err(Flaw::Zeros));
    bytes[0] ^= 1;
    assert_eq!(record::decode(&bytes, seed), Err(Flaw::Magic));
    bytes[0] ^= 1;
    bytes[50] ^= 1;
    assert_eq!(record::decode(&bytes, seed), Err(Flaw::BodyChecksum));
}

#[test]
fn segment_headers_name_what_is_wrong() {
    let header = SegmentHeader {
        log_id: 1,
        number: 2,
        segment_bytes: 8192,
        first_sequence: 3,
        first_index: 4,
        term: 5,
    };
    let bytes = segment::encode(&header);
    assert_eq!(segment::decode(&bytes), Ok(header));
    assert!(segment::decode(&bytes[..100]).unwrap_err().to_string().contains("100 bytes"));
    let zero = SegmentHeader { number: 0, ..header };
    assert!(segment::decode(&segment::encode(&zero)).unwrap_err().to_string().contains("impossible"));
    assert_eq!(segment::number_of(&segment::file_name(0xabc)), Some(0xabc));
    for name in ["log-1.seg", "log-.seg", "log-000000000000000G.seg", "log-00000000000000AB.seg", "spare"] {
        assert_eq!(segment::number_of(name), None, "{name}");
    }
}

#[test]
fn a_log_is_short_before_a_write_fails_and_what_goes_makes_room_for_what_comes() {
    let disk = SimDisk::new(41);
    let (mut log, _) = open(&disk).unwrap();
    let room = Arc::clone(log.room());
    append_synced(&mut log, 1, 3, 1000);
    append_synced(&mut log, 4, 2, 1000);
    disk.set_capacity_bytes(disk.used_bytes() + 4000);
    assert!(log.wants_spare() && !room.is_short());
    log.prepare_next();
    assert!(room.is_short() && !room.has_next());
    assert!(matches!(room.refusal(), Some(Error::DiskFull { .. })));
    // The reserve.
    append_synced(&mut log, 6, 1, 1000);
    let error = log.append(&[entry(7, 1000)]).unwrap_err();
    assert!(error.is_no_room() && log.is_healthy());
    // An old segment goes, and is the next one: nothing else may take its room between.
    let used = disk.used_bytes();
    log.truncate_below(3).unwrap();
    assert_eq!(disk.used_bytes(), used);
    assert!(!room.is_short());
    append_synced(&mut log, 7, 3, 1000);
    disk.cut_power();
    assert_eq!(open(&disk).unwrap().0.last().index, 9);
    assert_eq!(room.counters().shortages, 1);
}

#[test]
fn tries_for_room_come_farther_and_farther_apart() {
    let disk = SimDisk::new(42);
    let (log, _) = open(&disk).unwrap();
    disk.set_capacity_bytes(disk.used_bytes());
    let mut pauses = Vec::new();
    for _ in 0..12 {
        log.prepare_next();
        pauses.push(log.room().pause());
    }
    assert!(
        pauses.is_sorted() && pauses[0] == room::RETRY_MIN && pauses[11] == room::RETRY_MAX,
        "{pauses:?}"
    );
    disk.set_capacity_bytes(u64::MAX);
    log.prepare_next();
    assert_eq!((log.room().is_short(), log.room().pause()), (false, room::RETRY_MIN));
}

/// Power goes at any change while an old segment becomes the next one.
#[test]
fn a_segment_that_becomes_the_next_one_survives_power_cuts() {
    for cut in 0..12 {
        for seed in 0..10 {
            let disk = SimDisk::new(1000 + seed);
            let (mut log, _) = open(&disk).unwrap();
            append_synced(&mut log, 1, 8, 1000);
            disk.set_capacity_bytes(disk.used_bytes());
            log.prepare_next();
            assert!(log.room().is_short());
            disk.cut_power_after(cut);
            let _cut = log.truncate_below(6);
            disk.cut_power();
            disk.set_capacity_bytes(u64::MAX);
            let (log, _) = open(&disk).unwrap();
            let found = lengths(&log);
            assert_eq!(found.last(), Some(&(8, 1000)), "cut {cut} seed {seed}");
            assert!(found.windows(2).all(|pair| pair[0].0 + 1 == pair[1].0));
        }
    }
}

/// Releases to come read what this one writes. A hash that differs means a new format: raise [`segment::LOG_VERSION`], and read the one
/// before.
#[test]
fn the_log_keeps_its_bytes() {
    use sha2::{Digest as _, Sha256};
    let disk = SimDisk::new(1);
    let (mut log, _) = open(&disk).unwrap();
    append_synced(&mut log, 1, 3, 100);
    log.close().unwrap();
    let bytes = disk.read_all(&segment::file_name(1)).unwrap();
    let written = SEGMENT_HEADER_BYTES + 3 * record_bytes(100);
    let digest: [u8; 32] = Sha256::digest(&bytes[..written]).into();
    assert_eq!(
        (segment::LOG_VERSION, &digest[..8]),
        (1, &[0xe9, 0x13, 0xdb, 0xc0, 0x71, 0x60, 0x71, 0x70][..]),
        "{digest:02x?}"
    );
}
