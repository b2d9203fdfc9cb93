//! The bytes on disk, held by hashes: a format that changes must change its version too, and these with it.

use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use sha2::{Digest, Sha256};
use weir_base::world::SimDisk;
use weir_order::batcher;
use weir_order::log::record::{self, Kind, RecordHeader};
use weir_order::log::segment::{self, SegmentHeader};
use weir_order::log::{Log, LogSettings};
use weir_order::{Entry, Position, snapshot};

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().take(16).fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn record(kind: Kind, body: &[u8]) -> Vec<u8> {
    let length = body.len() as u32;
    let header = RecordHeader { kind, tag: 0, length, sequence: 9, durable: 8, index: 7, term: 6 };
    let mut bytes = Vec::new();
    record::encode(&header, body, record::seed(5, 4), &mut bytes);
    bytes
}

#[test]
fn records_are_as_they_were() {
    assert_eq!(hash(&record(Kind::Entry, b"weir")), "af8e89f4f91fcf6b994d60716cc6e4ad");
    assert_eq!(hash(&record(Kind::Mark, b"")), "2c0540c4724353885ec1208f7b1a8070");
}

#[test]
fn segments_are_as_they_were() {
    let header = SegmentHeader {
        log_id: 1,
        number: 2,
        segment_bytes: 8192,
        first_sequence: 3,
        first_index: 4,
        term: 5,
    };
    assert_eq!(hash(&segment::encode(&header)), "bb3ac08ae559a5fc3133f5b20a7db5c1");
    assert_eq!(segment::file_name(0x2a), "log-000000000000002a.seg");
}

#[test]
fn a_whole_log_is_as_it_was() {
    let disk = SimDisk::new(1);
    let settings = LogSettings { segment_bytes: 8192, batch_bytes_max: 2048, log_id_if_new: 3 };
    let (mut log, _) = Log::open(Arc::new(disk.clone()), settings, 0).unwrap();
    for index in 1..=3 {
        let batch = Bytes::from(vec![index as u8; 100 * index as usize]);
        log.append(&[Entry { position: Position { term: 2, index }, batch }]).unwrap();
        log.sync().unwrap();
    }
    log.close().unwrap();
    assert_eq!(hash(&disk.read_all(&segment::file_name(1)).unwrap()), "938baeb7aaab407afe1b54e3b11e85e6");
}

#[test]
fn snapshots_are_as_they_were() {
    let mut bytes = Vec::new();
    let output = |piece: &[u8]| {
        bytes.extend_from_slice(piece);
        Ok(())
    };
    let state = vec![7; snapshot::CHUNK_BYTES_MAX + 5];
    snapshot::encode(Position { term: 3, index: 4 }, &mut &state[..], output).unwrap();
    assert_eq!(hash(&bytes), "ac15f3811d6cea1b6e06f2a758cdbb9d");
    assert_eq!(snapshot::file_name(0x2a), "snap-000000000000002a.snap");
}

#[test]
fn batches_are_as_they_were() {
    let batch = batcher::encode(&[Bytes::from_static(b"ab"), Bytes::new(), Bytes::from_static(b"c")]);
    assert_eq!(&batch[..], b"\x03\0\0\0\x02\0\0\0ab\0\0\0\0\x01\0\0\0c");
}
