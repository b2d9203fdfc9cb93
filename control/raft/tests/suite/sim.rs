//! A group of replicas in one thread, from a seed: virtual time, simulated disks, a network that delays, holds and breaks.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use sha2::Digest as _;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use weir_base::world::{Disk, DiskFile, LockOutcome, Rng, SimDisk};
use weir_order::log::LogSettings;
use weir_order::{Completion, Engine, Entry, Position, Sink};
use weir_raft::net::{Accepted, Lane, Link, Transport};
use weir_raft::replica::{Opened, open};
use weir_raft::runtime::{Life, seed_randomness};
use weir_raft::{Replica, Settings, Timers};

pub const GROUP: &str = "sim";

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

/// What the whole group agreed on, as all sinks saw it, and a hash of everything in the order it happened.
#[derive(Default)]
pub struct Witness {
    pub order: BTreeMap<u64, u64>,
    pub violations: Vec<String>,
    trace: u32,
    events: u64,
}

impl Witness {
    pub fn event(&mut self, what: &str) {
        let stamp = Instant::now().duration_since(START.get().unwrap());
        self.trace = crc32c(self.trace, format!("{} {what}\n", stamp.as_nanos()).as_bytes());
        self.events += 1;
        if std::env::var_os("WEIR_RAFT_SIM_TRACE").is_some() {
            eprintln!("{:>10.3} {what}", stamp.as_secs_f64() * 1000.0);
        }
    }

    pub fn trace(&self) -> (u32, u64) {
        (self.trace, self.events)
    }

    pub fn violation(&mut self, what: String) {
        self.event(&what);
        self.violations.push(what);
    }
}

thread_local! {
    static START: std::cell::Cell<Option<Instant>> = const { std::cell::Cell::new(None) };
}

/// A small hash; collisions only weaken the comparison of two traces.
fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(seed ^ 0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

pub fn id_of(batch: &[u8]) -> u64 {
    u64::from_le_bytes(batch[..8].try_into().unwrap())
}

/// The state of one replica's application: the ids of all batches, in order.
#[derive(Default)]
pub struct App {
    pub ids: Vec<u64>,
    pub at: Position,
    pub installs: u64,
    /// Corrupts what it applies, to diverge.
    pub rot: bool,
}

impl App {
    pub fn state(&self) -> Vec<u8> {
        self.ids.iter().flat_map(|id| id.to_le_bytes()).collect()
    }

    pub fn digest(&self) -> [u8; 32] {
        sha2::Sha256::digest(self.state()).into()
    }
}

struct Recorder {
    id: u64,
    app: Arc<Mutex<App>>,
    witness: Arc<Mutex<Witness>>,
    digest_every: u64,
    digests: mpsc::UnboundedSender<(Position, [u8; 32])>,
}

impl Sink for Recorder {
    fn committed(&mut self, entry: &Entry) {
        let (mut app, mut witness) = (locked(&self.app), locked(&self.witness));
        let (index, id) = (entry.position.index, id_of(&entry.batch));
        if index != app.at.index + 1 || entry.position.term < app.at.term {
            let what = format!("replica {} saw {:?} after {:?}", self.id, entry.position, app.at);
            witness.violation(what);
        }
        match witness.order.insert(index, id) {
            Some(other) if other != id => {
                let what = format!("replica {} has {id} at {index}, another had {other}", self.id);
                witness.violation(what);
            }
            _ => {}
        }
        witness.event(&format!("{} commits {index} {id}", self.id));
        app.at = entry.position;
        let rotten = app.rot;
        app.ids.push(if rotten { !id } else { id });
        if self.digest_every > 0 && index.is_multiple_of(self.digest_every) {
            self.digests.send((entry.position, app.digest())).unwrap();
        }
    }

    fn install(&mut self, at: Position, state: &mut dyn Read) -> io::Result<()> {
        let mut bytes = Vec::new();
        state.read_to_end(&mut bytes)?;
        let ids: Vec<u64> = bytes.chunks(8).map(id_of).collect();
        let (mut app, mut witness) = (locked(&self.app), locked(&self.witness));
        if ids.len() as u64 != at.index {
            witness.violation(format!("replica {} was given {} ids at {at:?}", self.id, ids.len()));
        }
        witness.event(&format!("{} installs {at:?}", self.id));
        *app = App { ids, at, installs: app.installs + 1, rot: false };
        Ok(())
    }
}

/// The network: who is cut off from whom, and how slow it is.
#[derive(Default)]
struct NetState {
    rng: Option<Rng>,
    cut: BTreeSet<(u64, u64)>,
    slow_ms: u64,
    break_permille: u64,
    links: Vec<(u64, u64, watch::Sender<bool>)>,
    doors: BTreeMap<u64, mpsc::Sender<Accepted>>,
}

#[derive(Clone)]
pub struct SimNet {
    state: Arc<Mutex<NetState>>,
    healed: Arc<watch::Sender<u64>>,
}

impl SimNet {
    fn new(seed: u64) -> SimNet {
        let state = NetState { rng: Some(Rng::new(seed)), ..NetState::default() };
        SimNet { state: Arc::new(Mutex::new(state)), healed: Arc::new(watch::Sender::new(0)) }
    }

    fn draw<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(locked(&self.state).rng.as_mut().unwrap())
    }

    fn delay(&self) -> Duration {
        let slow_ms = locked(&self.state).slow_ms;
        self.draw(|rng| {
            let us = match rng.below(100) {
                0 => 5000 + rng.below(30_000),
                _ => 50 + rng.below(500),
            };
            Duration::from_micros(us + rng.below(slow_ms * 1000 + 1))
        })
    }

    fn is_cut(&self, from: u64, to: u64) -> bool {
        locked(&self.state).cut.contains(&(from, to))
    }

    /// Cuts the network between the two sides, both ways or one.
    pub fn cut(&self, left: &[u64], right: &[u64], both: bool) {
        let mut state = locked(&self.state);
        for (l, r) in left.iter().flat_map(|l| right.iter().map(move |r| (*l, *r))) {
            state.cut.insert((l, r));
            if both {
                state.cut.insert((r, l));
            }
        }
    }

    pub fn heal(&self) {
        let mut state = locked(&self.state);
        state.cut.clear();
        (state.slow_ms, state.break_permille) = (0, 0);
        self.healed.send_modify(|count| *count += 1);
    }

    pub fn worsen(&self, slow_ms: u64, break_permille: u64) {
        let mut state = locked(&self.state);
        (state.slow_ms, state.break_permille) = (slow_ms, break_permille);
    }

    /// Breaks the links of a replica that crashed.
    fn down(&self, id: u64) {
        let mut state = locked(&self.state);
        state.doors.remove(&id);
        state.links.retain(|(from, to, broken)| {
            let hit = *from == id || *to == id;
            if hit {
                broken.send_replace(true);
            }
            !hit && !broken.is_closed()
        });
    }

    /// Carries frames one way, in order, as slowly as the network is; what is cut waits, as TCP's does.
    async fn carry(
        self,
        from: u64,
        to: u64,
        mut source: mpsc::Receiver<Bytes>,
        target: mpsc::Sender<Bytes>,
        broken: watch::Sender<bool>,
    ) {
        let mut seen = broken.subscribe();
        let mut free_at = Instant::now();
        loop {
            let frame = tokio::select! {
                biased;
                _ = seen.wait_for(|broken| *broken) => return,
                frame = source.recv() => frame,
            };
            let Some(frame) = frame else { break };
            let breaks = locked(&self.state).break_permille;
            if self.draw(|rng| rng.chance(breaks, 1000)) {
                break;
            }
            free_at = free_at.max(Instant::now() + self.delay());
            sleep_until(free_at).await;
            let mut healed = self.healed.subscribe();
            let patience = Instant::now() + Duration::from_secs(3);
            while self.is_cut(from, to) {
                tokio::select! {
                    biased;
                    _ = seen.wait_for(|broken| *broken) => return,
                    _ = healed.changed() => {}
                    () = sleep_until(patience) => {
                        broken.send_replace(true);
                        return;
                    }
                }
            }
            if *seen.borrow() || target.send(frame).await.is_err() {
                break;
            }
        }
        broken.send_replace(true);
    }
}

struct SimTransport {
    id: u64,
    net: SimNet,
}

impl Transport for SimTransport {
    fn connect(&self, to: u64, _address: String, _lane: Lane) -> BoxFuture<'static, io::Result<Link>> {
        let (from, net) = (self.id, self.net.clone());
        Box::pin(async move {
            sleep(net.delay()).await;
            let door = locked(&net.state).doors.get(&to).cloned();
            let Some(door) = door.filter(|_| !net.is_cut(from, to) && !net.is_cut(to, from)) else {
                return Err(io::ErrorKind::ConnectionRefused.into());
            };
            let (a_out, a_take) = mpsc::channel(256);
            let (b_give, b_in) = mpsc::channel(256);
            let (b_out, b_take) = mpsc::channel(256);
            let (a_give, a_in) = mpsc::channel(256);
            let broken = watch::Sender::new(false);
            locked(&net.state).links.push((from, to, broken.clone()));
            tokio::spawn(net.clone().carry(from, to, a_take, b_give, broken.clone()));
            tokio::spawn(net.clone().carry(to, from, b_take, a_give, broken));
            let accepted = Accepted { from, link: Link { outgoing: b_out, incoming: b_in } };
            door.send(accepted).await.map_err(|_| io::Error::from(io::ErrorKind::ConnectionRefused))?;
            Ok(Link { outgoing: a_out, incoming: a_in })
        })
    }
}

/// A disk whose syncs say Ok and do nothing: the canary.
struct Lying(Arc<dyn Disk>);
struct LyingFile(Arc<dyn DiskFile>);

impl DiskFile for LyingFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, bytes)
    }
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(offset, bytes)
    }
    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
}

impl Disk for Lying {
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.0.create(name)
    }
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(LyingFile(self.0.open(name)?)))
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.remove(name)
    }
    fn list(&self) -> io::Result<Vec<String>> {
        self.0.list()
    }
    fn sync_dir(&self) -> io::Result<()> {
        self.0.sync_dir()
    }
    fn lock(&self, name: &str, holder: &str) -> io::Result<LockOutcome> {
        self.0.lock(name, holder)
    }
    fn describe(&self) -> String {
        self.0.describe()
    }
}

/// One replica's machine.
pub struct Machine {
    pub id: u64,
    pub disk: SimDisk,
    pub app: Arc<Mutex<App>>,
    pub replica: Option<Replica>,
    life: Life,
    /// How fast its clock runs, in percent.
    clock_percent: u64,
    /// How long a sync takes.
    pub sync_us: Arc<Mutex<u64>>,
}

pub struct Options {
    pub replicas: u64,
    pub founders: u64,
    pub lying: bool,
    pub digest_every: u64,
    pub lease_reads: bool,
    pub promotes: bool,
}

impl Options {
    pub fn of(replicas: u64) -> Options {
        Options {
            replicas,
            founders: replicas,
            lying: false,
            digest_every: 0,
            lease_reads: false,
            promotes: false,
        }
    }
}

pub struct Sim {
    pub rng: Rng,
    pub net: SimNet,
    pub machines: BTreeMap<u64, Machine>,
    pub witness: Arc<Mutex<Witness>>,
    options: Options,
}

/// Runs `work` in virtual time from `seed`.
pub fn run<T>(seed: u64, work: impl AsyncFnOnce() -> T) -> T {
    seed_randomness(seed);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        START.set(Some(Instant::now()));
        work().await
    })
}

impl Sim {
    pub fn new(seed: u64, options: Options) -> Sim {
        let mut rng = Rng::new(seed);
        let machines = (1..=options.replicas).map(|id| {
            let machine = Machine {
                id,
                disk: SimDisk::new(rng.next_u64()),
                app: Arc::default(),
                replica: None,
                life: Life::default(),
                clock_percent: 85 + rng.below(31),
                sync_us: Arc::new(Mutex::new(100)),
            };
            (id, machine)
        });
        let machines = machines.collect();
        let net = SimNet::new(rng.next_u64());
        Sim { rng, net, machines, witness: Arc::default(), options }
    }

    fn settings(&self, id: u64, percent: u64) -> Settings {
        let mut settings = Settings::new(id, GROUP);
        let scale = |ms: u64| ms * percent / 100;
        settings.timers =
            Timers { heartbeat_ms: scale(20), election_min_ms: scale(80), election_max_ms: scale(160) };
        settings.log = LogSettings { segment_bytes: 32_768, batch_bytes_max: 4096, log_id_if_new: id };
        settings.cache_bytes_max = 8192;
        settings.snapshot_chunk_bytes = 1024;
        settings.snapshot_bytes_per_s = 1 << 20;
        settings.digest_every = self.options.digest_every;
        settings.lease_reads = self.options.lease_reads;
        settings.promotes = self.options.promotes;
        settings
    }

    /// Starts a replica from whatever is on its disk. The error says why it could not.
    pub fn start(&mut self, id: u64) -> Result<(), String> {
        let percent = self.machines[&id].clock_percent;
        let settings = self.settings(id, percent);
        let seed = self.rng.next_u64();
        let machine = self.machines.get_mut(&id).unwrap();
        machine.disk = machine.disk.restart();
        *locked(&machine.app) = App::default();
        machine.life = Life::default();
        let (door, links) = mpsc::channel(64);
        let mut disk: Arc<dyn Disk> = Arc::new(machine.disk.clone());
        if self.options.lying {
            disk = Arc::new(Lying(disk));
        }
        let (digests, mut digested) = mpsc::unbounded_channel();
        let recorder = Recorder {
            id,
            app: Arc::clone(&machine.app),
            witness: Arc::clone(&self.witness),
            digest_every: self.options.digest_every,
            digests,
        };
        let transport = Arc::new(SimTransport { id, net: self.net.clone() });
        let (spare_disk, segment_bytes) = (Arc::clone(&disk), settings.log.segment_bytes);
        let opened =
            open(disk, settings, transport, links, Box::new(recorder)).map_err(|error| error.to_string())?;
        let Opened { replica, run, mut writer, mut writes, .. } = opened;
        locked(&self.witness).event(&format!("{id} starts"));
        locked(&self.net.state).doors.insert(id, door);
        machine.life.spawn(run.run());
        let (sync_us, mut rng) = (Arc::clone(&machine.sync_us), Rng::new(seed));
        machine.life.spawn(async move {
            let mut waiting = Vec::new();
            let room = Arc::clone(writer.room());
            loop {
                tokio::select! {
                    biased;
                    count = writes.recv_many(&mut waiting, 64), if !writer.is_waiting() => {
                        if count == 0 {
                            return;
                        }
                    }
                    () = sleep(room.pause()), if room.is_short() => {
                        // A crash may have come between.
                        let _dead = room.prepare(&*spare_disk, segment_bytes);
                        if room.has_next() {
                            writer.drain(&mut Vec::new());
                        }
                        continue;
                    }
                }
                if writer.wants_spare() && !room.is_short() {
                    let _dead = room.prepare(&*spare_disk, segment_bytes);
                }
                let us = *locked(&sync_us);
                sleep(Duration::from_micros(us / 2 + rng.below(us + 1))).await;
                writer.drain(&mut waiting);
                if writes.is_empty() {
                    writer.idle();
                }
            }
        });
        let reporter = replica.clone();
        machine.life.spawn(async move {
            while let Some((at, digest)) = digested.recv().await {
                reporter.report_digest(at, digest);
            }
        });
        machine.replica = Some(replica);
        Ok(())
    }

    /// Ends a replica where it stands: a kill, or a power cut.
    pub fn crash(&mut self, id: u64, power: bool) {
        let machine = self.machines.get_mut(&id).unwrap();
        if machine.replica.take().is_none() {
            return;
        }
        locked(&self.witness).event(&format!("{id} crashes, power {power}"));
        machine.life.end();
        self.net.down(id);
        if power {
            machine.disk.cut_power();
        } else {
            machine.disk.kill();
        }
    }

    /// Starts all and founds the group.
    pub async fn found(&mut self) {
        for id in 1..=self.options.replicas {
            self.start(id).unwrap();
        }
        let members = (1..=self.options.founders).map(|id| (id, format!("at {id}"))).collect();
        self.machines[&1].replica.as_ref().unwrap().initialize(members).await.unwrap();
        self.leader().await.expect("a first leader");
    }

    pub fn up(&self) -> Vec<u64> {
        self.machines.values().filter(|machine| machine.replica.is_some()).map(|machine| machine.id).collect()
    }

    pub fn replica(&self, id: u64) -> Option<Replica> {
        self.machines[&id].replica.clone()
    }

    /// Who leads now, as itself says.
    pub fn leader_now(&self) -> Option<u64> {
        self.up().into_iter().find(|id| {
            let replica = self.machines[id].replica.as_ref().unwrap();
            replica.leader().borrow().leader == Some(*id)
        })
    }

    /// Waits for a leader.
    pub async fn leader(&self) -> Option<u64> {
        let wait = async {
            loop {
                if let Some(id) = self.leader_now() {
                    return id;
                }
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(Duration::from_secs(60), wait).await.ok()
    }

    /// Saves a snapshot of a replica's state.
    pub fn snapshot(&self, id: u64) {
        let Some(replica) = self.replica(id) else { return };
        let (at, state) = {
            let app = locked(&self.machines[&id].app);
            (app.at, app.state())
        };
        let saved = replica.save_snapshot(at, &mut &state[..]);
        locked(&self.witness).event(&format!("{id} snapshot at {} {}", at.index, saved.is_ok()));
    }
}

/// What became of a proposal.
#[derive(Debug, Clone)]
pub enum Fate {
    Committed(Position),
    Refused,
    Unknown,
}

/// Proposes a batch with this id and waits for its fate.
pub async fn propose(replica: &Replica, id: u64, bytes: usize) -> Fate {
    let mut batch = id.to_le_bytes().to_vec();
    batch.resize(8 + bytes, 7);
    let (sender, answer) = oneshot::channel();
    let done = Completion::new(move |result| {
        let _gone = sender.send(result);
    });
    if let Err(error) = replica.propose(Bytes::from(batch), done) {
        assert!(error.is_definite() || matches!(error, weir_order::Error::Stopped), "{error}");
        return Fate::Refused;
    }
    match timeout(Duration::from_secs(2), answer).await {
        Ok(Ok(Ok(position))) => Fate::Committed(position),
        Ok(Ok(Err(error))) if error.is_definite() => Fate::Refused,
        _ => Fate::Unknown,
    }
}

/// Has all of these committed, by whoever leads, and gives who led last.
pub async fn commit_all(sim: &Sim, ids: std::ops::Range<u64>, bytes: usize) -> Replica {
    let mut last = None;
    for id in ids {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            assert!(Instant::now() < end, "{id} is never committed");
            let leader = sim.leader_now().and_then(|id| sim.replica(id));
            if let Some(leader) = leader {
                match propose(&leader, id, bytes).await {
                    Fate::Committed(_) => {
                        last = Some(leader);
                        break;
                    }
                    Fate::Refused => {}
                    Fate::Unknown => panic!("{id} is lost"),
                }
            }
            sleep(Duration::from_millis(5)).await;
        }
    }
    last.unwrap()
}

/// Passes a barrier; gives what was applied then.
pub async fn barrier(replica: &Replica, kind: weir_raft::ReadKind) -> Option<Position> {
    let (sender, answer) = oneshot::channel();
    let done = Completion::new(move |result| {
        let _gone = sender.send(result);
    });
    replica.read_barrier(kind, done).ok()?;
    timeout(Duration::from_secs(2), answer).await.ok()?.ok()?.ok()
}
