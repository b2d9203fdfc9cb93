//! Bits that flip under a log at rest.

use std::sync::Arc;

use weir_base::world::{Disk, Rng, SimDisk};
use weir_order::log::record::{self, Kind};
use weir_order::log::segment::{self, SEGMENT_HEADER_BYTES};
use weir_order::{Error, OpenedLocal, Settings};

use super::machine::{Broken, LOG, Life};

/// The bytes of all records that a later record proves durable, as ranges.
fn proven(disk: &SimDisk) -> Vec<(String, u64, u64)> {
    let mut ranges = Vec::new();
    for (name, bytes) in segments(disk) {
        let header = segment::decode(&bytes).unwrap();
        let seed = record::seed(header.log_id, header.number);
        let mut at = SEGMENT_HEADER_BYTES;
        while let Ok((header, _)) = record::decode(&bytes[at..], seed) {
            let next = at + record::record_bytes(header.length as usize);
            let last = record::decode_header(&bytes[next..], seed).is_err();
            if !(last && header.kind == Kind::Mark) {
                ranges.push((name.clone(), at as u64, next as u64));
            }
            at = next;
        }
    }
    ranges
}

fn segments(disk: &SimDisk) -> Vec<(String, Vec<u8>)> {
    let names = disk.restart().list().unwrap();
    let segments = names.into_iter().filter(|name| segment::number_of(name).is_some());
    segments.map(|name| (name.clone(), disk.read_all(&name).unwrap())).collect()
}

#[test]
fn a_flipped_bit_in_what_was_synced_is_always_refused() {
    let mut flips = 0;
    for seed in 0..150 {
        let mut life = Life::new(seed, Broken::No);
        life.run(40).unwrap();
        life.settle().unwrap();
        let disk = &life.disk;
        let ranges = proven(disk);
        let mut rng = Rng::new(seed);
        let mut settings = Settings { log: LOG, ..Settings::default() };
        settings.local.batch_bytes_max = LOG.batch_bytes_max;
        for _ in 0..20.min(ranges.len() * 20) {
            let (name, start, end) = &ranges[rng.below(ranges.len() as u64) as usize];
            let (offset, bit) = (start + rng.below(end - start), rng.below(8) as u8);
            disk.flip_bit(name, offset, bit).unwrap();
            let before = segments(disk);
            match OpenedLocal::open(Arc::new(disk.restart()), settings) {
                Err(Error::Corrupt { file, offset: at, .. }) => {
                    assert_eq!((file, at), (name.clone(), *start), "seed {seed}, byte {offset}");
                }
                Err(error) => panic!("seed {seed}, byte {offset} bit {bit} of {name}: {error}"),
                Ok(_) => panic!("seed {seed}: bit {bit} of byte {offset} of {name} went unnoticed"),
            }
            assert!(before == segments(disk), "a damaged log is left as it is");
            disk.flip_bit(name, offset, bit).unwrap();
            flips += 1;
        }
        life.run(3).unwrap();
    }
    assert!(flips > 2000, "only {flips} bits were flipped");
}
