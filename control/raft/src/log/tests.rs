mod crash;
mod desk;
mod suite;

use bytes::Bytes;
use openraft::storage::{IOFlushed, RaftLogReader, RaftLogStorage};
use weir_base::world::SimDisk;

use super::*;
use crate::types::{Batch, Payload, RaftEntry};

const SETTINGS: LogSettings = LogSettings { segment_bytes: 16_384, batch_bytes_max: 4096, log_id_if_new: 9 };

fn entry(term: u64, index: u64, bytes: usize) -> RaftEntry {
    let fill = (term * 31 + index * 7) as u8;
    RaftEntry { log_id: log_id(term, index), payload: Payload::Normal(Batch(Bytes::from(vec![fill; bytes]))) }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

/// Opens a log and runs its writer as a task.
fn open_running(disk: &SimDisk, cache_bytes_max: u64) -> LogStore {
    let OpenedLog { store, mut writer, mut writes, .. } =
        open(Arc::new(disk.restart()), SETTINGS, cache_bytes_max, false).unwrap();
    tokio::spawn(async move {
        let mut waiting = Vec::new();
        while writes.recv_many(&mut waiting, 64).await > 0 {
            writer.drain(&mut waiting);
            writer.idle();
        }
    });
    store
}

async fn append(store: &mut LogStore, entries: Vec<RaftEntry>) {
    use openraft::type_config::TypeConfigExt;
    let (done, flushed) = <crate::types::Types as TypeConfigExt>::oneshot();
    store.append(entries, IOFlushed::signal(done)).await.unwrap();
    flushed.await.unwrap().unwrap();
}

#[test]
fn notes_keep_what_they_say() {
    let vote = Vote::new_committed(7, 3);
    for notes in [
        Notes::default(),
        Notes { vote: Some(vote), purged: None },
        Notes { vote: Some(vote), purged: Some(log_id(5, 9)) },
    ] {
        assert_eq!(Notes::decode(&notes.encode()), Ok(notes));
    }
    assert!(Notes::decode(&[9, 0, 0]).is_err());
    bolero::check!().with_iterations(2000).with_type::<Vec<u8>>().for_each(|bytes| {
        if let Ok(notes) = Notes::decode(bytes) {
            assert_eq!(notes.encode(), bytes);
        }
    });
}

#[test]
fn the_vote_survives_the_removal_of_the_segment_it_was_written_in() {
    let disk = SimDisk::new(3);
    block_on(async {
        let mut store = open_running(&disk, 1 << 20);
        store.save_vote(&Vote::new_committed(4, 2)).await.unwrap();
        for index in 0..60 {
            append(&mut store, vec![entry(4, index, 1000)]).await;
        }
        store.purge(log_id(4, 55)).await.unwrap();
        append(&mut store, vec![entry(4, 60, 10)]).await;
        assert!(store.shared().counters().segments_removed > 0);
    });
    disk.cut_power();
    block_on(async {
        let mut store = open_running(&disk, 1 << 20);
        assert_eq!(store.read_vote().await.unwrap(), Some(Vote::new_committed(4, 2)));
        let state = store.get_log_state().await.unwrap();
        assert_eq!((state.last_purged_log_id, state.last_log_id), (Some(log_id(4, 55)), Some(log_id(4, 60))));
    });
}

#[test]
fn entries_leave_the_memory_and_come_back_from_disk() {
    let disk = SimDisk::new(4);
    block_on(async {
        let mut store = open_running(&disk, 5000);
        let written: Vec<RaftEntry> = (0..40).map(|index| entry(1, index, 900)).collect();
        for entry in &written {
            append(&mut store, vec![entry.clone()]).await;
        }
        assert!(store.shared().view().cached_bytes() <= 5000);
        assert_eq!(store.try_get_log_entries(..).await.unwrap(), written);
        let counters = store.shared().view().counters;
        assert!(counters.evicted >= 30 && counters.misses >= 30 && counters.hits >= 1, "{counters:?}");
        // A cut suffix that had left the memory is gone, and its indices are written anew.
        store.truncate_after(Some(log_id(1, 9))).await.unwrap();
        append(&mut store, vec![entry(2, 10, 20)]).await;
        let there = store.try_get_log_entries(9..).await.unwrap();
        assert_eq!(there, [written[9].clone(), entry(2, 10, 20)]);
    });
    disk.cut_power();
    block_on(async {
        let mut store = open_running(&disk, 5000);
        assert_eq!(store.try_get_log_entries(10..).await.unwrap(), [entry(2, 10, 20)]);
        assert_eq!(store.get_log_state().await.unwrap().last_log_id, Some(log_id(2, 10)));
    });
}

#[test]
fn a_snapshot_without_a_log_is_refused() {
    let disk = SimDisk::new(5);
    let error = open(Arc::new(disk), SETTINGS, 1000, true).err().unwrap();
    assert!(error.to_string().contains("the log is missing"), "{error}");
}

#[test]
fn a_failed_sync_is_told_to_everybody_from_then_on() {
    let disk = SimDisk::new(6);
    block_on(async {
        let mut store = open_running(&disk, 1 << 20);
        append(&mut store, vec![entry(1, 0, 10)]).await;
        disk.fail_syncs(1);
        assert!(store.save_vote(&Vote::new(2, 1)).await.is_err());
        assert!(store.save_vote(&Vote::new(2, 1)).await.is_err(), "the second sync would say Ok");
        assert_eq!(store.read_vote().await.unwrap(), None);
    });
}

/// Who sends a whole log to another replica lets all others go between any two messages: signs of life are due meanwhile.
#[test]
fn who_reads_a_whole_log_keeps_nobody_waiting() {
    use std::sync::atomic::{AtomicU64, Ordering};
    // All of it in memory, and nearly nothing of it.
    for cache_bytes_max in [1 << 30, 1] {
        let disk = SimDisk::new(31);
        block_on(async {
            const SETTINGS: LogSettings =
                LogSettings { segment_bytes: 4 << 20, batch_bytes_max: 2 << 20, log_id_if_new: 9 };
            let OpenedLog { mut store, mut writer, mut writes, .. } =
                open(Arc::new(disk.restart()), SETTINGS, cache_bytes_max, false).unwrap();
            tokio::spawn(async move {
                let mut waiting = Vec::new();
                while writes.recv_many(&mut waiting, 64).await > 0 {
                    writer.drain(&mut waiting);
                }
            });
            for index in 0..64 {
                append(&mut store, vec![entry(1, index, 1 << 20)]).await;
            }
            let read: Arc<AtomicU64> = Arc::default();
            let counted = Arc::clone(&read);
            let mut reader = store.clone();
            let sends = tokio::spawn(async move {
                let mut next = 0;
                while next < 64 {
                    let entries = reader.limited_get_log_entries(next, 64).await.unwrap();
                    next += entries.len() as u64;
                    counted.fetch_add(entries.len() as u64, Ordering::Relaxed);
                }
            });
            let (mut seen, mut most) = (0, 0);
            while !sends.is_finished() {
                tokio::task::yield_now().await;
                let now = read.load(Ordering::Relaxed);
                most = most.max(now - seen);
                seen = now;
            }
            assert_eq!(seen.max(read.load(Ordering::Relaxed)), 64);
            assert!(most <= 4, "{most} MiB were read while everybody else waited");
        });
    }
}
