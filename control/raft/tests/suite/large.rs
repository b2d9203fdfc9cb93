//! A replica is added to a group with a large state: the leader keeps its office, and the replica gets its vote by itself.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::TcpListener;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use bytes::Bytes;
use weir_base::world::RealDisk;
use weir_order::log::LogSettings;
use weir_order::{Completion, Engine, Entry, Position, Sink};
use weir_raft::driver::{RaftEngine, TlsListener, TlsTransport};
use weir_raft::{Change, Settings, Timers};

use super::node::Place;
use super::sim::{Options, Sim, commit_all, run};

const BATCH_BYTES: usize = 1 << 20;
const BATCHES: u64 = 48;
/// Only against a test that hangs.
const PATIENCE: Duration = Duration::from_secs(240);

/// A state of all bytes of all batches.
#[derive(Clone, Default)]
struct Bytewise(Arc<Mutex<(Position, Vec<u8>)>>);

impl Sink for Bytewise {
    fn committed(&mut self, entry: &Entry) {
        let mut state = self.0.lock().unwrap();
        state.0 = entry.position;
        state.1.extend_from_slice(&entry.batch);
    }

    fn install(&mut self, at: Position, state: &mut dyn Read) -> io::Result<()> {
        let mut bytes = Vec::new();
        state.read_to_end(&mut bytes)?;
        *self.0.lock().unwrap() = (at, bytes);
        Ok(())
    }
}

fn start(place: &Place, id: u64, state: &Bytewise) -> RaftEngine {
    let identity = place.identity(id);
    let frame = 8 << 20;
    let listener = TlsListener::new(TcpListener::bind(place.peer(id)).unwrap(), &identity, frame).unwrap();
    let transport = Arc::new(TlsTransport::new(&identity, frame).unwrap());
    let disk = Arc::new(RealDisk::open(&place.dir.join(format!("large-{id}"))).unwrap());
    let mut settings = Settings::new(id, "large");
    // Long ones: other tests run beside, and what keeps a leader's thread is looked at in the tests of the log.
    settings.timers = Timers { heartbeat_ms: 100, election_min_ms: 3_000, election_max_ms: 6_000 };
    settings.log = LogSettings { segment_bytes: 8 << 20, batch_bytes_max: 2 << 20, log_id_if_new: id };
    settings.cache_bytes_max = 2 << 20;
    settings.promotes = true;
    RaftEngine::start(disk, settings, transport, Box::new(listener), Box::new(state.clone())).unwrap()
}

fn commit(engine: &RaftEngine, fill: u8) {
    let until = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < until, "nothing is committed");
        let (told, answer) = mpsc::channel();
        let done = Completion::new(move |result| drop(told.send(result)));
        let batch = Bytes::from(vec![fill; BATCH_BYTES]);
        match engine.propose(batch, done).map(|()| answer.recv_timeout(PATIENCE).unwrap()) {
            Ok(Ok(_)) => return,
            Ok(Err(error)) | Err(error) => assert!(error.is_definite(), "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_replica_that_is_added_to_a_large_state_gets_its_vote_and_the_leader_keeps_its_office() {
    let dir = tempfile::tempdir().unwrap();
    let base_port = 29_100 + (std::process::id() % 30) as u16 * 60;
    let place = Place { dir: dir.path().to_owned(), base_port, replicas: 4 };
    place.make_identities();
    let states: Vec<Bytewise> = (0..4).map(|_| Bytewise::default()).collect();
    let engines: Vec<RaftEngine> = (1..=4).map(|id| start(&place, id, &states[id as usize - 1])).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let founders: BTreeMap<u64, String> = (1..=3).map(|id| (id, place.peer(id).to_string())).collect();
    runtime.block_on(engines[0].initialize(founders)).unwrap();
    let leads = |engine: &&RaftEngine| engine.status().leader == Some(engine.replica_status().id);
    until("nobody leads", || engines[..3].iter().any(|engine| leads(&engine)));
    let nth = engines[..3].iter().position(|engine| leads(&engine)).unwrap();
    let (leader, state) = (&engines[nth], &states[nth]);
    for fill in 0..BATCHES {
        commit(leader, fill as u8);
        if fill == BATCHES / 3 || fill == BATCHES * 2 / 3 {
            let (at, bytes) = state.0.lock().unwrap().clone();
            leader.save_snapshot(at, &mut &bytes[..]).unwrap();
        }
    }
    until("nothing is purged", || leader.replica_status().purged_log_index.is_some());
    let before = leader.replica_status();
    let address = place.peer(4).to_string();
    runtime.block_on(leader.change(Change::AddLearner { id: 4, address })).unwrap();
    until("it never votes", || leader.replica_status().voters.contains_key(&4));
    until("it lacks something", || states[3].0.lock().unwrap().1.len() == BATCHES as usize * BATCH_BYTES);
    assert_eq!(states[3].0.lock().unwrap().1, state.0.lock().unwrap().1);
    let after = leader.replica_status();
    assert_eq!((after.term, after.leader), (before.term, before.leader), "the leader lost its office");
    assert!(leader.counters().network.chunks_sent > 0, "no state was sent");
    assert!(after.sending.is_empty());
}

#[test]
fn who_was_added_gets_its_vote_by_itself_also_from_another_leader() {
    for seed in 0..10 {
        run(500 + seed, async || {
            let mut sim = Sim::new(500 + seed, Options { founders: 3, promotes: true, ..Options::of(4) });
            sim.found().await;
            let leader = commit_all(&sim, 1..200, 300).await;
            let id = leader.replica_status().id;
            sim.snapshot(id);
            commit_all(&sim, 1_000..1_200, 300).await;
            sim.snapshot(id);
            commit_all(&sim, 2_000..2_050, 300).await;
            let leader = sim.leader().await.and_then(|id| sim.replica(id)).unwrap();
            leader.change(Change::AddLearner { id: 4, address: "at 4".to_owned() }).await.unwrap();
            // While its state is on its way.
            tokio::time::sleep(Duration::from_millis(sim.rng.below(60))).await;
            let id = leader.replica_status().id;
            sim.crash(id, false);
            let end = tokio::time::Instant::now() + Duration::from_secs(60);
            loop {
                assert!(tokio::time::Instant::now() < end, "seed {seed}: it never gets a vote");
                let now = sim.leader_now().and_then(|id| sim.replica(id));
                if now.is_some_and(|leader| leader.replica_status().voters.contains_key(&4)) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            sim.start(id).unwrap();
            commit_all(&sim, 3_000..3_010, 300).await;
            assert!(sim.witness.lock().unwrap().violations.is_empty());
        });
    }
}
