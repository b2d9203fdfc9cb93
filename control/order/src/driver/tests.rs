use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use weir_base::world::{Clock, Disk, RealClock, RealDisk, SimClock, SimDisk};

use super::*;
use crate::batcher::{self, BatcherSettings};
use crate::engine::Entry;
use crate::log::LogSettings;

/// Long enough for any machine; nothing is measured by it.
const PATIENCE: Duration = Duration::from_secs(60);

fn settings() -> Settings {
    let log = LogSettings { segment_bytes: 16_384, batch_bytes_max: 4096, log_id_if_new: 1 };
    let mut settings = Settings { log, ..Settings::default() };
    settings.local.batch_bytes_max = 4096;
    settings
}

type Seen = Arc<Mutex<Vec<Entry>>>;

fn start(disk: Arc<dyn Disk>) -> (Arc<LocalEngine>, Seen, Opening) {
    let opened = OpenedLocal::open(disk, settings()).unwrap();
    let seen: Seen = Arc::default();
    let sink = Arc::clone(&seen);
    let opening = opened.opening().clone();
    let engine =
        opened.start(Box::new(move |entry: &Entry| sink.lock().unwrap().push(entry.clone()))).unwrap();
    (Arc::new(engine), seen, opening)
}

fn report_to<T: Send + 'static>(sender: &Sender<(u32, T)>, name: u32) -> impl FnOnce(T) + Send + 'static {
    let sender = sender.clone();
    move |result| sender.send((name, result)).unwrap()
}

#[test]
fn proposals_are_committed_seen_and_answered_in_order() {
    let disk = SimDisk::new(1);
    let (engine, seen, _) = start(Arc::new(disk.clone()));
    let (sender, answers) = channel();
    for name in 0..50 {
        let done = Completion::new(report_to(&sender, name));
        engine.propose(Bytes::from(vec![name as u8; 300]), done).unwrap();
    }
    for name in 0..50 {
        let (who, result) = answers.recv_timeout(PATIENCE).unwrap();
        assert_eq!((who, result.unwrap().index), (name, u64::from(name) + 1));
    }
    assert_eq!(engine.status().committed, Position { term: 1, index: 50 });
    drop(engine);
    let seen = seen.lock().unwrap();
    assert!(
        seen.iter()
            .enumerate()
            .all(|(nth, e)| e.batch == vec![nth as u8; 300] && e.position.index == nth as u64 + 1)
    );
    disk.cut_power();
    let opened = OpenedLocal::open(Arc::new(disk.restart()), settings()).unwrap();
    let replayed: Vec<Entry> = opened.replay().unwrap().map(|entry| entry.unwrap()).collect();
    assert_eq!(replayed, *seen);
    assert_eq!(opened.opening().recovery.torn_bytes, 0);
}

#[test]
fn snapshots_shorten_the_log_and_carry_the_state() {
    let disk = SimDisk::new(2);
    let (engine, _, _) = start(Arc::new(disk.clone()));
    let (sender, answers) = channel();
    for name in 1..=60 {
        engine.propose(Bytes::from(vec![0; 1000]), Completion::new(report_to(&sender, name))).unwrap();
        let at = answers.recv_timeout(PATIENCE).unwrap().1.unwrap();
        if name % 20 == 0 {
            engine.save_snapshot(at, &mut format!("state {name}").as_bytes()).unwrap();
        }
    }
    let beyond = Position { term: 1, index: 61 };
    assert!(matches!(engine.save_snapshot(beyond, &mut &b""[..]), Err(Error::Index { index: 61, .. })));
    let shared = Arc::clone(&engine.shared);
    drop(engine);
    assert_eq!(shared.snapshots_saved.load(Ordering::Relaxed), 3);
    assert!(shared.log.lock().unwrap().segments_removed > 0);

    let name = crate::snapshot::file_name(60);
    let opened = OpenedLocal::open(Arc::new(disk.clone()), settings()).unwrap();
    assert_eq!((opened.opening().replay_from, opened.replay().unwrap().count()), (61, 0));
    drop(opened);
    disk.flip_bit(&name, 45, 1).unwrap();
    let opened = OpenedLocal::open(Arc::new(disk.clone()), settings()).unwrap();
    assert_eq!(opened.opening().refused[0].file, name);
    assert_eq!((opened.opening().replay_from, opened.replay().unwrap().count()), (41, 20));
    let mut state = String::new();
    opened.snapshot().unwrap().unwrap().read_to_string(&mut state).unwrap();
    assert_eq!(state, "state 40");
    drop(opened);
    disk.flip_bit(&crate::snapshot::file_name(40), 45, 1).unwrap();
    let error = OpenedLocal::open(Arc::new(disk.clone()), settings()).err().unwrap();
    assert!(error.to_string().contains("are in no good snapshot"), "{error}");
}

#[test]
fn one_directory_has_one_holder() {
    let path = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(path.path()).unwrap());
    let (engine, _, _) = start(Arc::clone(&disk));
    let error = OpenedLocal::open(Arc::clone(&disk), settings()).err().unwrap();
    let pid = format!("pid {}", std::process::id());
    assert!(matches!(&error, Error::Locked { holder, .. } if *holder == pid), "{error}");
    drop(engine);
    assert!(OpenedLocal::open(disk, settings()).is_ok());
}

#[test]
fn a_failed_sync_stops_the_engine_and_says_so() {
    let disk = SimDisk::new(3);
    let (engine, seen, _) = start(Arc::new(disk.clone()));
    let (sender, answers) = channel();
    disk.fail_syncs(1);
    for name in 0..2 {
        engine.propose(Bytes::from_static(b"x"), Completion::new(report_to(&sender, name))).unwrap();
        let (_, result) = answers.recv_timeout(PATIENCE).unwrap();
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Poisoned { .. }) && !error.is_definite(), "{error}");
    }
    assert!(!engine.status().healthy);
    assert_eq!(engine.counters().failed, 2);
    assert!(seen.lock().unwrap().is_empty());
}

#[test]
fn a_sink_that_blocks_makes_overload_explicit() {
    let disk = SimDisk::new(4);
    let opened = OpenedLocal::open(Arc::new(disk), settings()).unwrap();
    let (open_gate, gate) = channel::<()>();
    let gate = Mutex::new(gate);
    let engine = opened
        .start(Box::new(move |_: &Entry| {
            // An error once the gate is open for good.
            let (Ok(()) | Err(_)) = gate.lock().unwrap().recv();
        }))
        .unwrap();
    let (sender, answers) = channel();
    let (mut taken, mut refused) = (0, 0);
    // More than the channel, the core and one write hold together.
    for name in 0..1000 {
        match engine.propose(Bytes::from_static(b"x"), Completion::new(report_to(&sender, name))) {
            Ok(()) => taken += 1,
            Err(Error::Overloaded { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(refused > 0);
    assert_eq!(engine.counters().overloads, refused);
    drop(open_gate);
    // Taken ones are all answered; some may be refused by the core, explicitly too.
    for _ in 0..taken {
        match answers.recv_timeout(PATIENCE).unwrap().1 {
            Ok(_) | Err(Error::Overloaded { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn the_submitter_answers_every_operation_in_order() {
    for linger_ns in [0, 1_000_000] {
        let disk = SimDisk::new(5);
        let (engine, seen, _) = start(Arc::new(disk));
        let batching = BatcherSettings { linger_ns, operations_max: 7, ..BatcherSettings::default() };
        let clock: Arc<dyn Clock> = Arc::new(RealClock::new());
        let submitter = Submitter::new(engine.clone(), clock, batching).unwrap();
        let (sender, answers) = channel();
        for name in 0..200_u32 {
            let reply = report_to(&sender, name);
            submitter.submit(Bytes::copy_from_slice(&name.to_le_bytes()), Box::new(reply));
        }
        let mut last = None;
        for name in 0..200 {
            let (who, result) = answers.recv_timeout(PATIENCE).unwrap();
            let at = Some(result.unwrap());
            assert!(who == name && at > last, "{who} at {at:?} after {last:?}");
            last = at;
        }
        let counters = submitter.counters();
        assert_eq!(counters.operations, 200);
        let seen = seen.lock().unwrap();
        assert_eq!(counters.batches, seen.len() as u64);
        let operations: Vec<u32> = seen
            .iter()
            .flat_map(|entry| {
                batcher::decode(&entry.batch).unwrap().into_iter().map(<[u8]>::to_vec).collect::<Vec<_>>()
            })
            .map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap()))
            .collect();
        assert!(operations.iter().copied().eq(0..200));
    }
}

#[test]
fn dropping_the_submitter_finishes_what_lingers_and_ends_the_engine() {
    let disk = SimDisk::new(6);
    let (engine, _, _) = start(Arc::new(disk.clone()));
    let batching = BatcherSettings { linger_ns: u64::MAX, ..BatcherSettings::default() };
    // The simulated clock stands still, so that only the drop can end the linger.
    let submitter = Submitter::new(engine, Arc::new(SimClock::new(0)), batching).unwrap();
    let (sender, answers) = channel();
    for name in 0..3 {
        submitter.submit(Bytes::from_static(b"x"), Box::new(report_to(&sender, name)));
    }
    drop(submitter);
    for name in 0..3 {
        let (who, result) = answers.recv_timeout(PATIENCE).unwrap();
        assert_eq!((who, result.unwrap().batch.index), (name, 1));
    }
    // The engine went with the last completion; its lock is free as soon as its threads ended.
    let free = (0..6000).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        OpenedLocal::open(Arc::new(disk.clone()), settings()).is_ok()
    });
    assert!(free);
}
