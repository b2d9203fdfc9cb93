//! A replica of a group whose clock was years ahead, and which has lost its disk since: what it says next is taken, although the clock alone
//! would give it numbers that the order has passed long ago.

use super::app::{TestApp, endpoint, keys, label, transaction};
use super::recovery::{runtime, settings, signer};
use bytes::Bytes;
use std::io::Read;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use weir_base::world::{Clock, RealClock, SimDisk};
use weir_controller::core::scheduler::SchedulerSettings;
use weir_controller::core::{Core, CoreSettings, Input, WINDOW, decode_batch};
use weir_controller::driver::{Controller, Order, Signing};
use weir_model::event::SourceId;
use weir_order::{Completion, Engine, Entry, Error, Position, Sink, SnapshotInfo, Status};

/// Milliseconds of the Unix epoch: in 2026, and in 2100.
const NOW_MS: u64 = 1_795_000_000_000;
const AHEAD_MS: u64 = 4_102_444_800_000;

/// The wall clock stands still.
struct At(RealClock, u64);

impl Clock for At {
    fn now_ns(&self) -> u64 {
        self.0.now_ns()
    }

    fn wall_ms(&self) -> u64 {
        self.1
    }
}

/// What the others have.
type Log = Arc<Mutex<Vec<Entry>>>;

/// An order that outlives the replica.
struct Ordered {
    log: Log,
    asked: Mutex<Sender<(Option<Bytes>, Completion)>>,
}

fn last(log: &[Entry]) -> Position {
    log.last().map_or(Position { term: 1, index: 0 }, |entry| entry.position)
}

impl Ordered {
    /// Brings what was ordered before, as entries or as a state behind them, and goes on.
    fn start(log: Log, state: Option<Vec<u8>>, mut sink: Box<dyn Sink>) -> Arc<dyn Order> {
        let before = log.lock().unwrap().clone();
        match state {
            Some(state) => sink.install(last(&before), &mut &state[..]).unwrap(),
            None => before.iter().for_each(|entry| sink.committed(entry)),
        }
        let (asked, asks) = channel::<(Option<Bytes>, Completion)>();
        let kept = log.clone();
        std::thread::spawn(move || {
            for (batch, done) in asks {
                let mut at = last(&kept.lock().unwrap());
                if let Some(batch) = batch {
                    at.index += 1;
                    let entry = Entry { position: at, batch };
                    kept.lock().unwrap().push(entry.clone());
                    sink.committed(&entry);
                }
                done.finish(Ok(at));
            }
        });
        Arc::new(Ordered { log, asked: Mutex::new(asked) })
    }

    fn ask(&self, batch: Option<Bytes>, done: Completion) {
        self.asked.lock().unwrap().send((batch, done)).unwrap();
    }
}

impl Engine for Ordered {
    fn propose(&self, batch: Bytes, done: Completion) -> Result<(), Error> {
        self.ask(Some(batch), done);
        Ok(())
    }

    fn status(&self) -> Status {
        Status { committed: last(&self.log.lock().unwrap()), leader: Some(1), healthy: true }
    }

    fn save_snapshot(&self, at: Position, _state: &mut dyn Read) -> Result<SnapshotInfo, Error> {
        Ok(SnapshotInfo { at, bytes: 0, sha256: [0; 32] })
    }
}

impl Order for Ordered {
    fn barrier(&self, done: Completion) -> Result<(), Error> {
        self.ask(None, done);
        Ok(())
    }

    fn digest_every(&self) -> u64 {
        0
    }

    fn report_digest(&self, _at: Position, _digest: [u8; 32]) {}

    fn counts(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// One life of the replica, on a new disk: it follows, leads, and says so much.
fn life(log: &Log, wall_ms: u64, state: Option<Vec<u8>>, events: u64) {
    let (disk, clock) = (Arc::new(SimDisk::new(1)), Arc::new(At(RealClock::new(), wall_ms)));
    let apps: Vec<weir_controller::core::SharedApp> = vec![Arc::new(TestApp)];
    let log = log.clone();
    let start = |sink| Ok(Ordered::start(log, state, sink));
    let controller =
        Controller::follow(settings(), disk, clock, Signing::Key(signer()), apps, start).unwrap();
    let handle = controller.handle();
    runtime().block_on(async {
        handle.barrier().await.unwrap();
        handle.lead(true).await.unwrap();
        for number in 0..events {
            let mutations = vec![endpoint("n1", &format!("e{}", number % 200), "h1")];
            let version = handle.propose(transaction(mutations)).await;
            assert!(version.is_ok(), "event {number} of {events}: {version:?}");
        }
    });
    controller.shutdown();
}

/// The state as every replica keeps it, which says nothing of who took it.
fn agreed_state(log: &Log) -> Vec<u8> {
    let core_settings = CoreSettings {
        domain: label("d"),
        epoch: 1,
        source: SourceId("controller/c2".into()),
        keys: keys(),
        believes_one: true,
        scheduler: SchedulerSettings::default(),
    };
    let mut core = Core::new(core_settings, signer(), vec![Arc::new(TestApp)]);
    for entry in log.lock().unwrap().iter() {
        core.step(Input::Ordered(decode_batch(&entry.batch).unwrap()), &mut Vec::new());
    }
    core.agreed_snapshot().to_bytes()
}

#[test]
fn a_replica_that_lost_its_disk_and_whose_clock_was_ahead_is_heard() {
    for from_state in [false, true] {
        let log = Log::default();
        // Every place of the window that remembers numbers has one from then.
        life(&log, AHEAD_MS, None, WINDOW + 10);
        let state = || from_state.then(|| agreed_state(&log));
        life(&log, NOW_MS, state(), 20);
        // And once more, with what was said under numbers that no clock gives.
        life(&log, NOW_MS, state(), 20);
    }
}
