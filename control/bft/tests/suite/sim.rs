//! A whole group in one thread: replicas on commonware's deterministic runtime and simulated network, their disks those of
//! `weir_base`, and a witness that sees what every application is given.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use commonware_codec::{Copying, DecodeExt};
use commonware_cryptography::ed25519::PublicKey;
use commonware_p2p::simulated::{Config, Link, Network, Oracle, Receiver, Sender};
use commonware_runtime::deterministic::Context;
use commonware_runtime::{Clock, Handle, Quota, Spawner, Supervisor};
use commonware_utils::channel::oneshot;
use commonware_utils::{NZUsize, Probability};
use weir_base::world::{Disk, Rng, SimDisk};
use weir_bft::core::TERM;
use weir_bft::members::{Change, Member, Roster};
use weir_bft::replica::{CHANNELS, Opened, message_bytes_max, open};
use weir_bft::settings::{Settings, Timers};
use weir_bft::{Identity, Members, Replica};
use weir_order::log::LogSettings;
use weir_order::{Completion, Engine, Entry, Error, Position, Sink};

use super::counted::Counted;

/// Who founds the group.
pub const MEMBERS: u32 = 4;
/// All machines: some are to come.
pub const MACHINES: u32 = 6;
/// What a replica says that was removed.
pub const NO_MEMBER: &str = "no member of the group any more";
/// After how many batches members compare their states.
pub const DIGEST_EVERY: u64 = 16;

/// Longer than any simulation.
const NEVER: Duration = Duration::from_secs(1 << 20);

pub type Channels = [(Sender<PublicKey, Context>, Receiver<PublicKey>); 5];

/// What became of a proposal.
#[derive(Debug, Clone, PartialEq)]
pub enum Fate {
    Committed(u64),
    Refused,
    Unknown,
}

/// Sees what every application is given, and says what must not be.
#[derive(Default)]
pub struct Witness {
    /// The proposal at each index.
    pub order: BTreeMap<u64, u64>,
    places: BTreeMap<u64, u64>,
    /// The members of each epoch.
    pub epochs: BTreeMap<u64, Roster>,
    pub violations: Vec<String>,
}

impl Witness {
    pub fn violation(&mut self, what: String) {
        self.violations.push(what);
    }

    fn saw(&mut self, member: u32, index: u64, id: u64) {
        if let Some(other) = self.order.insert(index, id)
            && other != id
        {
            self.violation(format!("member {member} has {id} at {index}, another has {other}"));
        }
        // Nothing that a client wanted: it may be there often.
        if id == 0 {
            return;
        }
        if let Some(other) = self.places.insert(id, index)
            && other != index
        {
            self.violation(format!("member {member} has {id} at {index} and it was at {other}"));
        }
    }
}

/// An application: the list of all proposals.
struct App {
    replica: Arc<OnceLock<Replica>>,
    rotten: Arc<Mutex<bool>>,
    member: u32,
    applied: u64,
    list: Arc<Mutex<Vec<u64>>>,
    witness: Arc<Mutex<Witness>>,
    /// For the canary: leaves this one out.
    skips: Option<u64>,
}

pub fn id_of(batch: &Bytes) -> u64 {
    if batch.is_empty() { 0 } else { u64::from_le_bytes(batch[..8].try_into().unwrap()) }
}

/// A hash of a list, as 32 bytes.
fn digest(list: &[u64]) -> [u8; 32] {
    let sum = list.iter().fold(17_u64, |sum, id| (sum ^ id).wrapping_mul(0x0100_0000_01b3));
    let mut out = [0; 32];
    out[..8].copy_from_slice(&sum.to_le_bytes());
    out
}

pub fn batch_of(id: u64, bytes: usize) -> Bytes {
    let mut out = id.to_le_bytes().to_vec();
    out.resize(8 + bytes, id as u8);
    Bytes::from(out)
}

impl Sink for App {
    fn committed(&mut self, entry: &Entry) {
        let (index, id) = (entry.position.index, id_of(&entry.batch));
        if self.skips == Some(index) {
            return;
        }
        let mut witness = self.witness.lock().unwrap();
        if index != self.applied + 1 {
            witness.violation(format!("member {} is given {index} after {}", self.member, self.applied));
        }
        self.applied = index;
        witness.saw(self.member, index, id);
        let mut list = self.list.lock().unwrap();
        list.push(id);
        if index.is_multiple_of(DIGEST_EVERY)
            && let Some(replica) = self.replica.get()
        {
            replica.report_digest(entry.position, digest(&list));
        }
    }

    fn install(&mut self, at: Position, state: &mut dyn Read) -> std::io::Result<()> {
        let mut bytes = Vec::new();
        state.read_to_end(&mut bytes)?;
        let list: Vec<u64> =
            bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        let mut witness = self.witness.lock().unwrap();
        if list.len() as u64 != at.index {
            witness.violation(format!(
                "member {} is given a state of {} at {}",
                self.member,
                list.len(),
                at.index
            ));
        }
        for (index, id) in (1..).zip(&list) {
            witness.saw(self.member, index, *id);
        }
        self.applied = at.index;
        if let Some(replica) = self.replica.get() {
            replica.report_digest(at, digest(&list));
        }
        *self.list.lock().unwrap() = list;
        *self.rotten.lock().unwrap() = false;
        Ok(())
    }
}

pub struct Machine {
    pub identity: Identity,
    pub key: PublicKey,
    pub disk: SimDisk,
    pub lives: u64,
    /// Begins without being a member.
    pub follows: bool,
    pub replica: Option<Replica>,
    pub list: Arc<Mutex<Vec<u64>>>,
    /// Its state is not what was ordered.
    pub rotten: Arc<Mutex<bool>>,
    pub votes: SimDisk,
    /// Bytes written to both disks.
    pub written: Arc<AtomicU64>,
    tasks: Vec<Handle<()>>,
}

pub struct Sim {
    pub context: Context,
    pub oracle: Oracle<PublicKey, Context>,
    pub machines: BTreeMap<u32, Machine>,
    pub members: Members,
    pub witness: Arc<Mutex<Witness>>,
    pub settings: Settings,
    pub rng: Rng,
    pub canary: bool,
    /// Members that send no certificates; from their next start on.
    pub withhold: BTreeSet<u32>,
    cut: BTreeSet<(u32, u32)>,
}

pub fn identity(id: u32) -> Identity {
    Identity { id, secret: [id as u8; 32] }
}

pub fn settings() -> Settings {
    let log = LogSettings { segment_bytes: 256 << 10, batch_bytes_max: 64 << 10, log_id_if_new: 7 };
    let timers = Timers {
        idle: Duration::from_millis(50),
        rest: Duration::from_secs(5),
        leader: Duration::from_millis(200),
        certification: Duration::from_millis(400),
        skip: Duration::from_millis(1000),
        ask: Duration::from_millis(100),
        patience: Duration::from_millis(300),
    };
    let digest_every = DIGEST_EVERY;
    let settings = Settings::new("simulated");
    let votes_segment_bytes = 128 << 10;
    Settings {
        log,
        timers,
        votes_segment_bytes,
        block_batches_max: 8,
        held_batches_max: 64,
        digest_every,
        ..settings
    }
}

impl Sim {
    /// `cuts_off`: who votes wrongly is cut off by whoever sees it, as by real links, and for ever. Without, it goes on lying.
    pub async fn new(context: Context, seed: u64, settings: Settings, founders: u32, cuts_off: bool) -> Sim {
        let count = founders.max(MACHINES);
        let identities: Vec<Identity> = (1..=count).map(identity).collect();
        let founding = &identities[..founders as usize];
        let members = Members(founding.iter().map(|one| (one.id, one.public().unwrap())).collect());
        let config = Config {
            max_size: message_bytes_max(&settings) as u32,
            max_peers_per_set: std::num::NonZeroUsize::new(count as usize).unwrap(),
            disconnect_on_block: cuts_off,
            tracked_peer_sets: NZUsize!(1),
        };
        let key = |one: &Identity| PublicKey::decode(Copying(&one.public().unwrap())).unwrap();
        let keys: Vec<PublicKey> = identities.iter().map(key).collect();
        let (network, oracle) = Network::new_with_peers(context.child("network"), config, keys.clone()).await;
        network.start();
        let machines = identities.into_iter().zip(keys).map(|(identity, key)| {
            let disk = SimDisk::new(seed ^ u64::from(identity.id) << 32);
            let id = identity.id;
            let machine = Machine {
                identity,
                key,
                disk,
                lives: 0,
                follows: id > founders,
                replica: None,
                list: Arc::default(),
                rotten: Arc::default(),
                votes: SimDisk::new(seed ^ u64::from(id) << 40),
                written: Arc::default(),
                tasks: Vec::new(),
            };
            (id, machine)
        });
        let machines = machines.collect();
        let mut sim = Sim {
            context,
            oracle,
            machines,
            members,
            witness: Arc::default(),
            settings,
            rng: Rng::new(seed),
            canary: false,
            withhold: BTreeSet::new(),
            cut: BTreeSet::new(),
        };
        sim.link_all(1, 0, 1000).await;
        sim
    }

    /// Links all members anew. Parts in a thousand of the messages arrive.
    pub async fn link_all(&mut self, latency_ms: u64, jitter_ms: u64, arrive: u64) {
        let all: Vec<u32> = self.machines.keys().copied().collect();
        let pairs: Vec<(u32, u32)> = all
            .iter()
            .flat_map(|from| all.iter().map(move |to| (*from, *to)))
            .filter(|(from, to)| from != to)
            .collect();
        for (from, to) in pairs {
            let (a, b) = (self.machines[&from].key.clone(), self.machines[&to].key.clone());
            let _none = self.oracle.remove_link(a.clone(), b.clone()).await;
            if self.cut.contains(&(from, to)) {
                continue;
            }
            let link = Link {
                latency: Duration::from_millis(latency_ms),
                jitter: Duration::from_millis(jitter_ms),
                success_rate: Probability::new(arrive, 1000).unwrap(),
            };
            self.oracle.add_link(a, b, link).await.unwrap();
        }
    }

    /// Cuts the links between two sides; one way only when `both` is false.
    pub async fn cut(&mut self, left: &[u32], right: &[u32], both: bool) {
        for a in left {
            for b in right {
                self.cut.insert((*a, *b));
                if both {
                    self.cut.insert((*b, *a));
                }
            }
        }
        self.link_all(1, 1, 1000).await;
    }

    pub async fn heal(&mut self) {
        self.cut.clear();
        self.link_all(1, 0, 1000).await;
    }

    pub async fn channels(&self, id: u32) -> Channels {
        let quota = Quota::per_second(commonware_utils::NZU32!(10_000));
        let control = self.oracle.control(self.machines[&id].key.clone());
        let mut channels = Vec::new();
        for (nth, number) in CHANNELS.into_iter().enumerate() {
            // Certificates have the second one.
            let withholds = nth == 1 && self.withhold.contains(&id);
            let quota = if withholds { Quota::with_period(NEVER).unwrap() } else { quota };
            channels.push(control.register(number, quota).await.unwrap());
        }
        channels.try_into().ok().unwrap()
    }

    pub async fn start(&mut self, id: u32) -> Result<(), String> {
        let channels = self.channels(id).await;
        let now_ns = self.context.current().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
        let (mut rng, canary) = (Rng::new(self.rng.next_u64()), self.canary);
        let machine = self.machines.get_mut(&id).unwrap();
        machine.disk = machine.disk.restart();
        machine.votes = machine.votes.restart();
        machine.lives += 1;
        machine.list.lock().unwrap().clear();
        *machine.rotten.lock().unwrap() = false;
        let own: Arc<OnceLock<Replica>> = Arc::default();
        let app = App {
            replica: Arc::clone(&own),
            rotten: Arc::clone(&machine.rotten),
            member: id,
            applied: 0,
            list: Arc::clone(&machine.list),
            witness: Arc::clone(&self.witness),
            skips: (canary && id == 2).then_some(5),
        };
        let counted = |disk: &SimDisk| -> Arc<dyn Disk> {
            Arc::new(Counted { disk: Arc::new(disk.clone()), written: Arc::clone(&machine.written) })
        };
        let (disk, votes) = (counted(&machine.disk), counted(&machine.votes));
        let settings = Settings { follows: machine.follows, ..self.settings.clone() };
        let mut founders = self.members.clone();
        if self.canary && id == 5 {
            // Another history: what it takes for the first members were never so.
            founders.0.insert(4, machine.identity.public().unwrap());
        }
        let app = Box::new(app);
        let opened = open(disk, votes, settings, &machine.identity, &founders, app, now_ns, [1; 32]);
        let Opened { replica, run, writer, votes, lock, .. } = opened.map_err(|error| error.to_string())?;
        // Only now: what was there before a start was compared already.
        drop(own.set(replica.clone()));
        machine.replica = Some(replica);
        let context =
            self.context.child("machine").with_attribute("member", id).with_attribute("life", machine.lives);
        let control = self.oracle.control(machine.key.clone());
        machine.tasks.push(context.child("replica").spawn(move |context| async move {
            run.run(context, channels, control, Box::new(|_| {})).await;
        }));
        let mut other = Rng::new(rng.next_u64());
        machine.tasks.push(context.child("votes").spawn(move |context| async move {
            let slow = Mutex::new(Rng::new(other.next_u64()));
            let time = move || Duration::from_micros(200 + slow.lock().unwrap().below(3000));
            votes.run_as_task(context, time).await;
        }));
        machine.tasks.push(context.child("writer").spawn(move |context| async move {
            let slow = Mutex::new(Rng::new(rng.next_u64()));
            let time = move || Duration::from_micros(200 + slow.lock().unwrap().below(3000));
            writer.run_as_task(context, time).await;
            drop(lock);
        }));
        Ok(())
    }

    /// Ends a member as it is; with `power`, what its journal had not synced is gone or torn.
    pub async fn crash(&mut self, id: u32, power: bool) {
        let machine = self.machines.get_mut(&id).unwrap();
        for task in machine.tasks.drain(..) {
            task.abort();
            let _aborted = task.await;
        }
        machine.replica = None;
        for disk in [&machine.disk, &machine.votes] {
            if power { disk.cut_power() } else { disk.kill() }
        }
    }

    /// The member comes back with empty disks.
    pub async fn lose_disk(&mut self, id: u32) {
        self.crash(id, false).await;
        let seed = self.rng.next_u64();
        let machine = self.machines.get_mut(&id).unwrap();
        machine.disk = SimDisk::new(seed);
        machine.votes = SimDisk::new(!seed);
    }

    pub fn up(&self) -> Vec<u32> {
        self.machines.iter().filter(|(_, machine)| machine.replica.is_some()).map(|(id, _)| *id).collect()
    }

    pub fn replica(&self, id: u32) -> Option<Replica> {
        self.machines[&id].replica.clone()
    }

    /// Who an operator takes for the members: those of the last epoch that anybody knows; and the witness sees all of them.
    pub fn roster(&self) -> Roster {
        let statuses = self.up().into_iter().filter_map(|id| Some((id, self.replica(id)?.replica_status())));
        let mut witness = self.witness.lock().unwrap();
        for (id, status) in statuses {
            let roster = status.roster;
            let known = witness.epochs.entry(roster.epoch).or_insert_with(|| roster.clone()).clone();
            if known != roster {
                witness.violation(format!("member {id} has {roster:?}, another has {known:?}"));
            }
        }
        let founding = || Roster::founding(&self.settings.group, &self.members);
        witness.epochs.last_key_value().map_or_else(founding, |(_, roster)| roster.clone())
    }

    /// What the member of a machine is told of it.
    pub fn member(&self, id: u32) -> Member {
        let key = self.machines[&id].identity.public().unwrap();
        Member { key, address: format!("192.0.2.{id}:1") }
    }

    /// An operator asks every member for a change; those that are down miss it.
    pub fn ask_for(&self, change: &Change) {
        for replica in self.up().into_iter().filter_map(|id| self.replica(id)) {
            replica.change(change.clone(), Box::new(|_| {}));
        }
    }

    /// Machines whose replica found that it was removed are stopped, and may be added again.
    pub async fn bury(&mut self) {
        for id in self.up() {
            let failure = self.replica(id).and_then(|replica| replica.replica_status().failure);
            if failure.is_some_and(|what| what.contains(NO_MEMBER)) {
                self.crash(id, false).await;
                self.machines.get_mut(&id).unwrap().follows = true;
            }
        }
    }

    pub fn is_rotten(&self, id: u32) -> bool {
        *self.machines[&id].rotten.lock().unwrap()
    }

    /// A bit of a member's state changes by itself.
    pub fn rot(&self, id: u32) {
        let machine = &self.machines[&id];
        if let Some(one) = machine.list.lock().unwrap().first_mut() {
            *one ^= 1 << 40;
            *machine.rotten.lock().unwrap() = true;
        }
    }

    /// Keeps the application's state of a member at `index`, which it must have reached.
    pub fn snapshot(&self, id: u32, index: u64) {
        let machine = &self.machines[&id];
        let (Some(replica), list) = (&machine.replica, machine.list.lock().unwrap().clone()) else { return };
        if (list.len() as u64) < index || *machine.rotten.lock().unwrap() {
            return;
        }
        let bytes: Vec<u8> = list[..index as usize].iter().flat_map(|id| id.to_le_bytes()).collect();
        let at = Position { term: TERM, index };
        match replica.save_snapshot(at, &mut &bytes[..]) {
            // It has a newer one, has not written all of it yet, or its disk is dead.
            Ok(_)
            | Err(
                Error::Index { .. }
                | Error::Stopped
                | Error::Io { .. }
                | Error::Overloaded { .. }
                | Error::Fenced { .. },
            ) => {}
            Err(error) => {
                self.witness.lock().unwrap().violation(format!("member {id} keeps no state: {error}"))
            }
        }
    }
}

/// Proposes on a replica and waits for the fate.
pub async fn propose(context: &Context, replica: &Replica, id: u64, bytes: usize) -> Fate {
    let (answer, answered) = oneshot::channel();
    let done = Completion::new(move |result| drop(answer.send(result)));
    if let Err(error) = replica.propose(batch_of(id, bytes), done) {
        return if error.is_definite() { Fate::Refused } else { Fate::Unknown };
    }
    tokio::select! {
        biased;
        result = answered => match result {
            Ok(Ok(position)) => Fate::Committed(position.index),
            Ok(Err(error)) if error.is_definite() => Fate::Refused,
            _ => Fate::Unknown,
        },
        () = context.sleep(Duration::from_secs(20)) => Fate::Unknown,
    }
}
