use super::*;
use crate::world::{Rng, SimDisk};

const NAME: &str = "numbers";

fn open(disk: &SimDisk, floor: u64) -> Numbers {
    Numbers::open(Arc::new(disk.clone()), NAME, 5, floor).unwrap()
}

#[test]
fn numbers_rise_from_the_floor_and_a_restart_skips_what_was_reserved() {
    let disk = SimDisk::new(1);
    let mut numbers = open(&disk, 0);
    assert_eq!((1..=7).map(|_| numbers.take().unwrap()).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(numbers.reservations, 2);
    assert_eq!(open(&disk, 0).take().unwrap(), 11);
    assert_eq!(open(&disk, 100).take().unwrap(), 100);
    assert_eq!(open(&disk, 3).take().unwrap(), 105);
    let mut last = Numbers::open(Arc::new(SimDisk::new(1)), NAME, 5, u64::MAX - 5).unwrap();
    assert_eq!((0..5).map(|_| last.take().unwrap()).max(), Some(u64::MAX - 1));
    assert!(last.take().is_err() && last.take().is_err());
}

#[test]
fn numbers_that_others_know_were_used_are_not_given_again() {
    let disk = SimDisk::new(1);
    let mut numbers = open(&disk, 10);
    assert_eq!(numbers.take().unwrap(), 10);
    // Below, within and beyond what is reserved.
    for (used, next) in [(9, 11), (12, 13), (1_000, 1_001), (1_000, 1_002)] {
        numbers.begin_behind(used);
        assert_eq!(numbers.take().unwrap(), next, "behind {used}");
    }
    assert_eq!(open(&disk, 0).take().unwrap(), 1_006, "what is given is reserved first");
    numbers.begin_behind(u64::MAX);
    assert!(numbers.take().is_err() && numbers.take().is_err());
}

#[test]
fn no_number_is_used_twice_whatever_ends_the_process() {
    for seed in 0..400 {
        let mut disk = SimDisk::new(seed);
        let mut rng = Rng::new(seed);
        let mut highest = 0;
        for _ in 0..12 {
            match rng.below(4) {
                0 => disk.cut_power_after(rng.below(12)),
                1 => disk.fail_syncs(1 + rng.below(2)),
                2 => disk.fail_writes(1, io::ErrorKind::StorageFull),
                _ => {}
            }
            let opened = Numbers::open(Arc::new(disk.clone()), NAME, 1 + rng.below(4), 0);
            if let Ok(mut numbers) = opened {
                assert!(!numbers.damaged, "seed {seed}");
                for _ in 0..rng.below(16) {
                    if let Ok(number) = numbers.take() {
                        assert!(number > highest, "seed {seed}: {number} after {highest}");
                        highest = number;
                    }
                }
            }
            if rng.chance(1, 2) {
                disk.kill();
            } else {
                disk.cut_power();
            }
            disk = disk.restart();
        }
        assert!(highest > 0, "seed {seed}: no number was given");
    }
}

#[test]
fn a_damaged_file_is_seen_and_the_floor_stands_for_it() {
    for bit in 0..FILE_BYTES as u64 * 8 {
        let disk = SimDisk::new(1);
        open(&disk, 9).take().unwrap();
        disk.flip_bit(NAME, bit / 8, (bit % 8) as u8).unwrap();
        let mut numbers = open(&disk, 7);
        assert!(numbers.damaged);
        assert_eq!(numbers.take().unwrap(), 7);
    }
    bolero::check!().with_iterations(2000).with_type::<Vec<u8>>().for_each(|bytes| {
        if let Some(number) = decode(bytes) {
            assert_eq!(encode(number), **bytes);
        }
    });
    assert_eq!(encode(0x0102), *b"weirnum1\x02\x01\0\0\0\0\0\0\x4c\xc1\x14\x1e");
}
