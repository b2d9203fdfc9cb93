//! Hostile bytes: no decoder panics, and none accepts what was not written.

use std::sync::Arc;

use bytes::Bytes;
use weir_base::world::{Disk, SimDisk};
use weir_order::log::record::{self, Kind, RecordHeader};
use weir_order::log::segment::{self, SEGMENT_HEADER_BYTES, SegmentHeader};
use weir_order::log::{Log, LogSettings};
use weir_order::{Entry, Position, batcher, snapshot};

const ITERATIONS: usize = 2000;
const SETTINGS: LogSettings = LogSettings { segment_bytes: 8192, batch_bytes_max: 2048, log_id_if_new: 3 };

#[test]
fn record() {
    bolero::check!().with_iterations(ITERATIONS).with_type::<(u32, Vec<u8>)>().for_each(|(seed, bytes)| {
        if let Ok((header, body)) = record::decode(bytes, *seed) {
            let mut again = Vec::new();
            record::encode(&header, body, *seed, &mut again);
            assert_eq!(again[..], bytes[..again.len()]);
        }
    });
}

#[test]
fn segment_header() {
    bolero::check!().with_iterations(ITERATIONS).with_type::<Vec<u8>>().for_each(|bytes| {
        let mut block = bytes.clone();
        block.resize(SEGMENT_HEADER_BYTES, 0);
        for bytes in [bytes, &block] {
            if let Ok(header) = segment::decode(bytes) {
                assert_eq!(segment::encode(&header), bytes[..SEGMENT_HEADER_BYTES]);
            }
        }
    });
}

#[test]
fn batch() {
    bolero::check!().with_iterations(ITERATIONS).with_type::<Vec<u8>>().for_each(|bytes| {
        if let Ok(operations) = batcher::decode(bytes) {
            let operations: Vec<Bytes> = operations.into_iter().map(Bytes::copy_from_slice).collect();
            assert_eq!(batcher::encode(&operations), bytes);
        }
    });
}

#[test]
fn snapshot_bytes() {
    let mut good = Vec::new();
    let output = |piece: &[u8]| {
        good.extend_from_slice(piece);
        Ok(())
    };
    snapshot::encode(Position { term: 1, index: 2 }, &mut &[5; 300][..], output).unwrap();
    bolero::check!().with_iterations(ITERATIONS).with_type::<(Vec<u8>, Vec<(u16, u8)>)>().for_each(
        |(bytes, changes)| {
            let mut changed = good.clone();
            for (at, with) in changes {
                let at = usize::from(*at) % good.len();
                changed[at] ^= with;
            }
            for bytes in [bytes, &changed] {
                let decoded = snapshot::Decoder::new(&bytes[..]).and_then(snapshot::Decoder::verify);
                assert_eq!(decoded.is_ok(), *bytes == good);
            }
        },
    );
}

fn entries() -> Vec<Entry> {
    (1..=4)
        .map(|index| Entry {
            position: Position { term: 1, index },
            batch: Bytes::from(vec![index as u8; 200]),
        })
        .collect()
}

fn write_file(disk: &SimDisk, bytes: &[u8]) {
    let file = disk.create(&segment::file_name(1)).unwrap();
    file.write_at(0, bytes).unwrap();
}

#[test]
fn recovery_of_a_changed_segment() {
    let disk = SimDisk::new(1);
    let (mut log, _) = Log::open(Arc::new(disk.clone()), SETTINGS, 0).unwrap();
    let wanted = entries();
    log.append(&wanted[..2]).unwrap();
    log.sync().unwrap();
    log.append(&wanted[2..]).unwrap();
    let good = disk.read_all(&segment::file_name(1)).unwrap();
    bolero::check!().with_iterations(ITERATIONS).with_type::<Vec<(u16, u8)>>().for_each(|changes| {
        let mut changed = good.clone();
        for (at, with) in changes {
            changed[usize::from(*at) % (SEGMENT_HEADER_BYTES + 1200)] ^= with;
        }
        let disk = SimDisk::new(1);
        write_file(&disk, &changed);
        if let Ok((log, recovery)) = Log::open(Arc::new(disk), SETTINGS, 0) {
            let there: Vec<Entry> = log.replay(1).unwrap().map(|entry| entry.unwrap()).collect();
            // Changed bytes in what is not proven durable look like a torn tail: a prefix stays.
            assert_eq!(there[..], wanted[..there.len()]);
            assert!(there.len() == wanted.len() || recovery.torn_bytes > 0 || there.len() >= 2);
        }
    });
}

#[test]
fn recovery_of_records_with_any_fields() {
    type Fields = (bool, u64, u64, u64, u64, Vec<u8>);
    bolero::check!().with_iterations(ITERATIONS).with_type::<(SegmentFields, Vec<Fields>)>().for_each(
        |(fields, records)| {
            let (first_sequence, first_index, term) = *fields;
            let header = SegmentHeader {
                log_id: 3,
                number: 1,
                segment_bytes: 8192,
                first_sequence,
                first_index,
                term,
            };
            let mut bytes = segment::encode(&header);
            for (mark, sequence, durable, index, term, body) in records {
                let body: &[u8] = if *mark { &[] } else { body };
                if sequence <= durable || bytes.len() + record::record_bytes(body.len()) > 8192 {
                    continue;
                }
                let kind = if *mark { Kind::Mark } else { Kind::Entry };
                let length = body.len() as u32;
                let (sequence, durable, index, term) = (*sequence, *durable, *index, *term);
                let header = RecordHeader { kind, tag: 0, length, sequence, durable, index, term };
                record::encode(&header, body, record::seed(3, 1), &mut bytes);
            }
            bytes.resize(8192, 0);
            let disk = SimDisk::new(1);
            write_file(&disk, &bytes);
            if let Ok((log, _)) = Log::open(Arc::new(disk), SETTINGS, 0) {
                let there: Vec<Entry> =
                    log.replay(log.first_index()).unwrap().map(|entry| entry.unwrap()).collect();
                assert_eq!(there.len() as u64, log.last().index + 1 - log.first_index());
            }
        },
    );
}

type SegmentFields = (u64, u64, u64);
