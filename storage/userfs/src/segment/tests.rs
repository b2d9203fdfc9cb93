//! Files in a segment against files that are vectors.

use super::{BLOCK_BYTES, NodeFields, Segment, What};
use crate::error::Errno;
use proptest::prelude::*;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::time::SystemTime;

#[derive(Debug, Clone)]
enum Step {
    Write { file: u64, offset: u64, bytes: Vec<u8> },
    Read { file: u64, offset: u64, bytes: usize },
    Resize { file: u64, size: u64 },
    Punch { file: u64, offset: u64, bytes: u64 },
    Renew { file: u64 },
    GiveBack,
}

fn step() -> impl Strategy<Value = Step> {
    // Around the ends of blocks, of the direct blocks and of the first index.
    let offset = prop_oneof![
        0..3 * BLOCK_BYTES,
        9 * BLOCK_BYTES..12 * BLOCK_BYTES,
        1030 * BLOCK_BYTES..1040 * BLOCK_BYTES
    ];
    let file = 1..4u64;
    prop_oneof![
        (file.clone(), offset.clone(), prop::collection::vec(1u8.., 0..9000))
            .prop_map(|(file, offset, bytes)| Step::Write { file, offset, bytes }),
        (file.clone(), offset.clone(), 0..9000usize).prop_map(|(file, offset, bytes)| Step::Read {
            file,
            offset,
            bytes
        }),
        (file.clone(), offset.clone()).prop_map(|(file, size)| Step::Resize { file, size }),
        (file.clone(), offset, 0..5 * BLOCK_BYTES).prop_map(|(file, offset, bytes)| Step::Punch {
            file,
            offset,
            bytes
        }),
        file.prop_map(|file| Step::Renew { file }),
        Just(Step::GiveBack),
    ]
}

fn apply(segment: &Segment, model: &mut [Vec<u8>], step: Step) {
    let now = SystemTime::now();
    match step {
        Step::Write { file, offset, bytes } => {
            let written = segment.record(file).unwrap().write(offset, &bytes, now).unwrap();
            assert_eq!(written, bytes.len());
            let (of, end) = (&mut model[file as usize], offset as usize + bytes.len());
            if !bytes.is_empty() {
                of.resize(of.len().max(end), 0);
                of[offset as usize..end].copy_from_slice(&bytes);
            }
        }
        Step::GiveBack => {
            segment.give_back(1).unwrap();
        }
        Step::Read { file, offset, bytes } => {
            let mut seen = vec![9; bytes];
            let got = segment.record(file).unwrap().read(offset, &mut seen).unwrap();
            let of = &model[file as usize];
            let from = (offset as usize).min(of.len());
            assert_eq!(seen[..got], of[from..of.len().min(from + bytes)]);
        }
        Step::Resize { file, size } => {
            segment.record(file).unwrap().resize(size).unwrap();
            model[file as usize].resize(size as usize, 0);
        }
        Step::Punch { file, offset, bytes } => {
            segment.record(file).unwrap().punch(offset, bytes).unwrap();
            let of = &mut model[file as usize];
            let (from, to) = ((offset as usize).min(of.len()), ((offset + bytes) as usize).min(of.len()));
            of[from..to].fill(0);
        }
        Step::Renew { file } => {
            let mut record = segment.record(file).unwrap();
            record.end();
            record.begin(now);
            model[file as usize].clear();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn files_are_what_was_written(steps in prop::collection::vec(step(), 1..60)) {
        let segment = Segment::create(8, 64 << 20).unwrap();
        let mut model = vec![Vec::new(); 4];
        for step in steps {
            apply(&segment, &mut model, step);
            for (file, of) in model.iter().enumerate().skip(1) {
                assert_eq!(segment.record(file as u64).unwrap().size(), of.len() as u64);
            }
        }
        for (file, of) in model.iter().enumerate().skip(1) {
            let mut all = vec![1; of.len()];
            prop_assert_eq!(segment.record(file as u64).unwrap().read(0, &mut all).unwrap(), of.len());
            prop_assert_eq!(&all, of);
            segment.record(file as u64).unwrap().end();
        }
        prop_assert_eq!(segment.figures().blocks_used, 0, "every block came back");
    }
}

#[test]
fn a_lock_is_held_once_and_a_full_segment_says_so() {
    let segment = Segment::create(8, 16 * BLOCK_BYTES).unwrap();
    let held = segment.record(1).unwrap();
    assert_eq!(segment.record(1).err(), Some(Errno(libc::EDEADLK)));
    drop(held);
    let mut record = segment.record(1).unwrap();
    let taken = record.write(0, &vec![1; 20 * BLOCK_BYTES as usize], SystemTime::now()).unwrap();
    assert_eq!(taken as u64, 15 * BLOCK_BYTES, "15 blocks and an index");
    assert_eq!(record.write(taken as u64, &[1], SystemTime::now()), Err(Errno::NO_SPACE));
    record.resize(BLOCK_BYTES).unwrap();
    assert_eq!(segment.figures().blocks_used, 1);
}

#[test]
fn data_and_holes_are_found() {
    let segment = Segment::create(8, 64 << 20).unwrap();
    let mut record = segment.record(1).unwrap();
    let far = (1 << 42) + 5;
    record.write(far, b"x", SystemTime::now()).unwrap();
    assert_eq!(record.seek(0, false), far - far % BLOCK_BYTES);
    assert_eq!(record.seek(0, true), 0);
    assert_eq!(record.seek(far, true), far + 1, "the end is a hole");
    record.punch(0, u64::MAX / 2).unwrap();
    assert_eq!(record.seek(0, false), far + 1, "nothing is left");
}

#[test]
fn what_is_read_without_the_lock_was_there_at_one_moment() {
    const BYTES: usize = 3 * BLOCK_BYTES as usize;
    let segment = Segment::create(4, 1 << 20).unwrap();
    segment.record(2).unwrap().begin(SystemTime::now());
    segment.record(2).unwrap().write(0, &[1; BYTES], SystemTime::now()).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..3000u32 {
                let mut record = segment.record(2).unwrap();
                // Its blocks go to the free list and come back in another order.
                if round % 7 == 0 {
                    record.resize(0).unwrap();
                }
                record.write(0, &vec![round as u8; BYTES], SystemTime::now()).unwrap();
            }
            done.store(true, std::sync::atomic::Ordering::Release);
        });
        let (mut seen, mut peeked) = (vec![0; BYTES], 0);
        while !done.load(std::sync::atomic::Ordering::Acquire) || peeked == 0 {
            let Some(bytes) = segment.peek(2, 0, &mut seen) else { continue };
            peeked += 1;
            assert!(bytes == BYTES || bytes == 0, "{bytes} bytes");
            assert!(seen[..bytes].iter().all(|byte| *byte == seen[0]), "bytes of two moments");
        }
    });
}

#[derive(Debug, Clone)]
enum NameStep {
    Put { folder: u64, name: String, inode: u64 },
    Take { folder: u64, name: String },
    Make { folder: u64, name: String },
}

fn name_step() -> impl Strategy<Value = NameStep> {
    // Few names, so that they meet; some too long for the table.
    let name = prop_oneof![9 => "[ab]{1,3}", 1 => Just("n".repeat(115)), 1 => Just("n".repeat(116))];
    let folder = 1..4u64;
    prop_oneof![
        (folder.clone(), name.clone(), 2..30u64).prop_map(|(folder, name, inode)| NameStep::Put {
            folder,
            name,
            inode
        }),
        (folder.clone(), name.clone()).prop_map(|(folder, name)| NameStep::Take { folder, name }),
        (folder, name).prop_map(|(folder, name)| NameStep::Make { folder, name }),
    ]
}

proptest! {
    #[test]
    fn names_are_as_in_a_map(steps in prop::collection::vec(name_step(), 1..200)) {
        let segment = Segment::create_with_names(64, 1 << 20).unwrap();
        let (mut model, mut made) = (HashMap::new(), Vec::new());
        let mut names = segment.names().unwrap();
        for spare in 32..64 {
            prop_assert!(names.set_aside(spare));
        }
        for step in steps {
            match step {
                NameStep::Put { folder, name, inode } => {
                    names.put(folder, OsStr::new(&name), inode);
                    model.insert((folder, name), inode);
                }
                NameStep::Take { folder, name } => {
                    names.take(folder, OsStr::new(&name));
                    model.remove(&(folder, name));
                }
                NameStep::Make { folder, name } => {
                    if model.contains_key(&(folder, name.clone())) {
                        continue;
                    }
                    let fields = NodeFields { mode: 0o100_644, links: 1, ..NodeFields::default() };
                    if let Some(inode) = names.make(folder, OsStr::new(&name), fields) {
                        made.push((inode, What::Made(folder, OsString::from(&name))));
                        model.insert((folder, name), inode);
                    }
                }
            }
            for ((folder, name), inode) in &model {
                let wanted = (name.len() <= 115).then_some(*inode);
                prop_assert_eq!(names.find(*folder, OsStr::new(name)), wanted);
            }
            prop_assert_eq!(names.find(1, OsStr::new("none")), None);
        }
        let told: Vec<_> = names.events().into_iter().map(|event| (event.inode, event.what)).collect();
        prop_assert_eq!(told, made);
        names.taken();
        prop_assert!(names.events().is_empty());
    }
}

fn memory_blocks(segment: &Segment) -> i64 {
    rustix::fs::fstat(segment.memory()).unwrap().st_blocks / (BLOCK_BYTES as i64 / 512)
}

#[test]
fn memory_of_a_removed_file_is_given_back_and_taken_again() {
    const BLOCKS: u64 = 2000;
    let segment = Segment::create(16, 4096 * BLOCK_BYTES).unwrap();
    let now = SystemTime::now();
    let all = vec![7; (BLOCKS * BLOCK_BYTES) as usize];
    for round in 0..3 {
        let before = memory_blocks(&segment);
        segment.record(1).unwrap().begin(now);
        segment.record(1).unwrap().write(0, &all, now).unwrap();
        assert!(memory_blocks(&segment) >= before + BLOCKS as i64 - 200, "round {round}");
        segment.record(1).unwrap().end();
        assert!(segment.blocks_idle() >= BLOCKS);
        segment.give_back(100).unwrap();
        assert_eq!(segment.blocks_idle(), 100);
        assert!(memory_blocks(&segment) < 200, "round {round}: {} blocks", memory_blocks(&segment));
        assert_eq!(segment.figures().blocks_used, 0);
    }
    // All of them can be had at once.
    let record = || segment.record(2).unwrap();
    record().begin(now);
    let most = 4096 - 10;
    for block in 0..most {
        assert_eq!(record().write(block * BLOCK_BYTES, &[1; BLOCK_BYTES as usize], now), Ok(4096));
    }
    let mut seen = [0; 4096];
    for block in 0..most {
        record().read(block * BLOCK_BYTES, &mut seen).unwrap();
        assert_eq!(seen, [1; 4096]);
    }
}
