//! The votes after crashes, renewals and failures; the decoder against any bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use commonware_runtime::{
    Blob as _, Clock as _, ReadOptions, Runner as _, Spawner as _, Storage as _, Supervisor as _,
    WriteOptions, deterministic,
};
use weir_base::world::{Rng, SimDisk};

use super::record::{Change, Contents, PIECE_BYTES_MAX, RECORD_BYTES_MAX, decode, encode, records, whole};
use super::{Votes, VotesWriter, open};

const SEGMENT_BYTES: u64 = 128 << 10;

fn opened(disk: &SimDisk) -> (Votes, VotesWriter) {
    open(Arc::new(disk.clone()), SEGMENT_BYTES).unwrap()
}

/// All blobs of a partition as they are.
async fn contents(votes: &Votes, partition: &str) -> Contents {
    let mut all = Contents::new();
    for name in votes.scan(partition).await.unwrap_or_default() {
        let (blob, length) = votes.open(partition, &name).await.unwrap();
        let bytes = blob.read_at(0, length as usize, ReadOptions::default()).await.unwrap();
        all.insert((partition.to_owned(), name), bytes.coalesce().as_ref().to_vec());
    }
    all
}

#[test]
fn any_bytes_are_changes_or_are_refused() {
    bolero::check!().for_each(|bytes: &[u8]| {
        if let Ok(changes) = decode(Bytes::copy_from_slice(bytes)) {
            assert_eq!(&encode(&changes)[..], bytes, "changes have one encoding");
        }
    });
}

#[test]
fn a_large_blob_is_made_again_from_records_that_are_each_short_enough() {
    let key = ("p".to_owned(), vec![1; 8]);
    let blob: Vec<u8> = (0..5 * RECORD_BYTES_MAX + 77).map(|nth| nth as u8).collect();
    let records = records(whole(&key, &blob));
    assert!(records.len() > 5);
    let mut made = Contents::new();
    for record in records {
        assert!(record.len() <= RECORD_BYTES_MAX);
        decode(record).unwrap().iter().for_each(|change| change.apply(&mut made));
    }
    assert_eq!(made, Contents::from([(key, blob)]));
}

#[test]
fn one_piece_with_the_longest_names_fits_a_record() {
    let key = ("p".repeat(super::record::NAME_BYTES_MAX), vec![1; super::record::NAME_BYTES_MAX]);
    let change = Change::Write { key, offset: 0, bytes: Bytes::from(vec![0; PIECE_BYTES_MAX]) };
    assert!(change.encoded_bytes() <= RECORD_BYTES_MAX);
}

/// Consensus-like work on votes whose machine loses power at any moment: what comes back is what was there at one moment, at or after the last
/// completed sync.
fn survives(seed: u64) {
    deterministic::Runner::seeded(seed).start(|_context| async move {
        let mut rng = Rng::new(seed);
        let mut disk = SimDisk::new(seed);
        // Every state since the last completed sync, oldest first.
        let mut states = vec![Contents::new()];
        let mut next_view = 1_u64;
        for _life in 0..6 {
            let (votes, mut writer) = opened(&disk);
            let found = contents(&votes, "votes-1").await;
            assert!(states.contains(&found), "seed {seed}: a state that never was after the last sync");
            states = vec![found];
            let steps = 1 + rng.below(120);
            for step in 0..steps {
                let mut state = states.last().unwrap().clone();
                if rng.below(4) == 0 || state.is_empty() {
                    next_view += 1;
                    let name = next_view.to_be_bytes();
                    drop(votes.open("votes-1", &name).await.unwrap());
                    state.insert(("votes-1".to_owned(), name.to_vec()), Vec::new());
                } else if rng.below(10) == 0 {
                    let (key, _) = state.pop_first().unwrap();
                    votes.remove("votes-1", Some(&key.1)).await.unwrap();
                } else {
                    let nth = rng.below(state.len() as u64) as usize;
                    let key = state.keys().nth(nth).unwrap().clone();
                    let (blob, length) = votes.open("votes-1", &key.1).await.unwrap();
                    let bytes = vec![rng.below(256) as u8; 1 + rng.below(3000) as usize];
                    let offset = rng.below(length + 1);
                    let held = state.get_mut(&key).unwrap();
                    if rng.below(8) == 0 {
                        blob.resize(offset).await.unwrap();
                        held.resize(offset as usize, 0);
                    } else {
                        blob.write_at(offset, bytes.clone(), WriteOptions::default()).await.unwrap();
                        super::record::write(held, offset as usize, &bytes);
                    }
                }
                states.push(state.clone());
                if rng.below(3) == 0 && !state.is_empty() {
                    let (blob, _) = votes.open("votes-1", &state.keys().next().unwrap().1).await.unwrap();
                    // Asked for and not waited for, or waited for.
                    let asked = blob.start_sync().await;
                    if rng.below(12) == 0 && step + 1 == steps {
                        break;
                    }
                    writer.write_what_waits();
                    asked.await.unwrap();
                    states = vec![state];
                }
            }
            drop((votes, writer));
            disk.cut_power();
            disk = disk.restart();
        }
    });
}

#[test]
fn what_was_synced_survives_power_cuts_and_nothing_is_half_there() {
    (0..200).for_each(survives);
}

#[test]
fn the_log_stays_as_long_as_what_is_live() {
    deterministic::Runner::default().start(|_context| async move {
        let disk = SimDisk::new(1);
        let (votes, mut writer) = opened(&disk);
        for view in 1..3000_u64 {
            let (blob, _) = votes.open("votes-1", &view.to_be_bytes()).await.unwrap();
            blob.write_at(0, vec![view as u8; 1500], WriteOptions::default()).await.unwrap();
            if view > 20 {
                votes.remove("votes-1", Some(&(view - 20).to_be_bytes())).await.unwrap();
            }
            let asked = blob.start_sync().await;
            writer.write_what_waits();
            asked.await.unwrap();
        }
        let segments = weir_base::world::Disk::list(&disk).unwrap();
        assert!(segments.len() <= 3, "{segments:?}");
        drop((votes, writer));
        let (votes, _writer) = opened(&disk.restart());
        let kept = contents(&votes, "votes-1").await;
        let views: Vec<u64> =
            kept.keys().map(|(_, name)| u64::from_be_bytes(name[..].try_into().unwrap())).collect();
        assert_eq!(views, (2980..3000).collect::<Vec<_>>());
        assert!(kept.values().all(|blob| blob.len() == 1500));
    });
}

#[test]
fn after_a_failed_sync_nothing_is_acknowledged_any_more() {
    deterministic::Runner::default().start(|_context| async move {
        let disk = SimDisk::new(1);
        let (votes, mut writer) = opened(&disk);
        let (blob, _) = votes.open("votes-1", b"1").await.unwrap();
        disk.fail_syncs(1);
        for _ in 0..2 {
            let asked = blob.start_sync().await;
            writer.write_what_waits();
            assert!(asked.await.is_err());
        }
        drop(writer);
        assert!(blob.sync().await.is_err(), "nobody writes");
    });
}

#[test]
fn epochs_that_are_long_over_are_forgotten() {
    deterministic::Runner::default().start(|_context| async move {
        let (votes, _writer) = opened(&SimDisk::new(1));
        for partition in ["votes-1", "votes-2"] {
            drop(votes.open(partition, b"1").await.unwrap());
        }
        votes.retain(|partition| partition == "votes-2");
        assert!(votes.scan("votes-1").await.is_err());
        assert_eq!(votes.scan("votes-2").await.unwrap(), [b"1"]);
    });
}

#[test]
fn who_waits_for_a_moment_that_has_passed_lets_others_go_first() {
    deterministic::Runner::default().start(|context| async move {
        let (votes, _writer) = opened(&SimDisk::new(1));
        let rest = Arc::new(crate::rest::Rest::new(&crate::Timers::LAN));
        let pace = crate::rest::Pace::new(context.child("clock"), rest);
        let keeping = super::Keeping::new(context.child("keeping"), votes, pace);
        let (passed, went) = (context.current(), Arc::new(AtomicBool::new(false)));
        let own = went.clone();
        let other =
            context.child("other").spawn(move |_context| async move { own.store(true, Ordering::Relaxed) });
        for _ in 0..2 {
            keeping.sleep_until(passed).await; // who goes first of those that can is chance
        }
        assert!(went.load(Ordering::Relaxed), "the other task had its turn");
        other.await.unwrap();
    });
}
