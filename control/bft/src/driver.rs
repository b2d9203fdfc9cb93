//! Where the replica meets the machine: a thread with commonware's runtime for consensus and the network, one that writes the
//! journal, one that writes the votes, one that makes spare segments, and authenticated, encrypted links over TCP between the members.
//!
//! The runtime is the one over io_uring, where the kernel has what it needs, else the one over tokio. A round of agreement is a dozen short steps, each of which waits for a message or a sync: over io_uring one
//! thread makes them all, where tokio has its workers hand them to each other.

mod contacts;
mod steady;

use std::collections::BTreeMap;
use std::io::Read;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use commonware_codec::{Copying, DecodeExt};
use commonware_cryptography::ChaCha20Poly1305;
use commonware_cryptography::ed25519::PublicKey;
use commonware_p2p::authenticated::lookup;
use commonware_p2p::{Address, AddressableManager, AddressableTrackedPeers};
use commonware_runtime::{Clock, Metrics, Network, Quota, Resolver, Runner, Spawner, iouring, tokio};
use commonware_stream::cups::{self, Cups};
use commonware_stream::sake::{self, Sake};
use commonware_utils::ordered::Map;
use commonware_utils::{NZU32, NZUsize};
use rand_chacha::rand_core::CryptoRng;
use rustix::time::{ClockId, clock_gettime};
use weir_base::world::{Disk, DiskLock, RealDisk};
use weir_order::log::Room;
use weir_order::{Completion, Engine, Error, Position, Sink, SnapshotInfo, Status};

use contacts::{Contacts, Telling};
use steady::Steady;

use crate::consensus::{Identity, epoch_of};
use crate::group::{Members, namespace};
use crate::lock::locked;
use crate::members::{MEMBERS_MAX, Member, Roster, SPARES_MAX};
use crate::replica::{self, CHANNELS, JournalWriter, Opened, Replica, Run, Tracks, message_bytes_max, open};
use crate::settings::Settings;
use crate::votes::VotesWriter;

/// Messages of one member that are taken in a second, on each channel. The network keeps room for so many of each member that there may be,
/// so no channel has more than it needs.
const MESSAGES_PER_S: [u32; CHANNELS.len()] = [4096, 2048, 256, 4096, 4096];

/// Who may be linked with beside the members: spares, who is to come, and who has just gone.
const VISITORS_MAX: usize = SPARES_MAX + 2;
/// Where the runtime would keep blobs; it wants a folder, though votes have a log of their own.
const UNUSED_FOLDER: &str = "runtime";
/// Operations of a ring that may be on their way: what is read from links and written to them.
const RING_ENTRIES: u32 = 1024;
/// How often, and for how long each time, a state waits for records that are not written yet.
const UNWRITTEN_TRIES: usize = 1000;
const UNWRITTEN_WAIT: Duration = Duration::from_millis(5);

/// By how much the clocks of two members may differ when they link. A member with a wrong clock is one that others must hear: both ends
/// prove in the same handshake, by keys made for it, that they are there now, so the time in it protects nothing that is kept here.
const ANY_CLOCK: Duration = Duration::from_secs(1_000 * 365 * 24 * 60 * 60);

/// Where a replica is, and where the others are.
#[derive(Debug, Clone)]
pub struct Places {
    /// Where this replica takes links.
    pub listen: SocketAddr,
    /// Where each member is reached, this one included.
    pub members: BTreeMap<u32, SocketAddr>,
    /// The folder of this replica's votes. It must be as durable as the replica's disk.
    pub votes: PathBuf,
    /// Whether both folders are in memory: then what is written is not handed to a thread of its own.
    pub in_memory: bool,
    /// Threads for consensus and the network, where the kernel has no io_uring that serves.
    pub threads: usize,
}

/// A replica on threads of its own. Dropping it stops the replica and waits for its journal to be closed.
pub struct BftEngine {
    replica: Replica,
    contacts: Arc<Contacts>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

fn spawn_thread(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    thread::Builder::new().name(name.to_owned()).spawn(run).map_err(|error| Error::Io {
        action: "starting a thread for",
        file: name.to_owned(),
        dir: "this process".to_owned(),
        source: Arc::new(error),
    })
}

/// A segment that a log will need soon.
#[derive(Clone)]
struct Spare {
    disk: Arc<dyn Disk>,
    segment_bytes: u64,
    room: Arc<Room>,
}

/// Makes spare segments, and looks for room as long as a log has none. Ends when nobody asks any more.
fn make_spares(wanted: &Receiver<Spare>) {
    let mut short: Vec<Spare> = Vec::new();
    loop {
        let asked = match short.iter().map(|spare| spare.room.pause()).min() {
            Some(pause) => wanted.recv_timeout(pause),
            None => wanted.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        let mut spares = std::mem::take(&mut short);
        match asked {
            // What is short is tried when its pause is over.
            Ok(spare) if spares.iter().any(|known| Arc::ptr_eq(&known.room, &spare.room)) => {}
            Ok(spare) => spares.push(spare),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        for spare in spares {
            // A failure costs only time: the log makes the segment itself when it needs it.
            if let Err(error) = spare.room.prepare(&*spare.disk, spare.segment_bytes) {
                tracing::warn!(%error, "could not make a spare segment ahead of need");
            }
            if spare.room.is_short() {
                short.push(spare);
            }
        }
    }
}

/// The folder of votes. Votes of a form that this program does not read are not passed over: whoever forgets how it voted may vote again.
fn votes_disk(path: &Path) -> Result<Arc<dyn Disk>, crate::Error> {
    let io = |source| Error::Io {
        action: "opening",
        file: "the folder of votes".to_owned(),
        dir: path.display().to_string(),
        source: Arc::new(source),
    };
    let disk = RealDisk::open(path).map_err(io)?;
    if disk.list().map_err(io)?.iter().any(|name| epoch_of(name).is_some()) {
        let what = format!("{} has votes of an earlier version of this program", path.display());
        return Err(crate::Error::Journal { what });
    }
    Ok(Arc::new(disk))
}

fn random_seed() -> Result<[u8; 32], Error> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(|error| Error::Io {
        action: "reading random bytes for",
        file: "the replica".to_owned(),
        dir: "this machine".to_owned(),
        source: Arc::new(std::io::Error::other(error.to_string())),
    })?;
    Ok(seed)
}

fn network_config(
    settings: &Settings,
    identity: &Identity,
    places: &Places,
    contacts: &Arc<Contacts>,
) -> Result<lookup::Config<Upgrade>, crate::Error> {
    let handshake = Telling::new(
        Cups::<_, ChaCha20Poly1305>::new(
            Sake {
                signer: identity.key()?,
                synchrony_bound: ANY_CLOCK,
                max_handshake_age: ANY_CLOCK,
                version: sake::Version::V1,
            },
            cups::Version::V1,
        ),
        contacts.clone(),
    );
    let mut config = lookup::Config::local(
        handshake,
        &namespace(&settings.group),
        places.listen,
        NZUsize!(MEMBERS_MAX + VISITORS_MAX),
        message_bytes_max(settings) as u32,
        NZUsize!(1024),
    );
    // Who has just gone is among the visitors of the next set.
    config.tracked_peer_sets = NZUsize!(1);
    config.peer_connection_cooldown = Duration::from_millis(250);
    config.dial_frequency = Duration::from_millis(100);
    config.dial_timeout = Duration::from_secs(5);
    // A member is known by its key, wherever its links come from.
    config.bypass_ip_check = true;
    // Members of one machine share its address. Handshakes may take five seconds, and strangers hold theirs so long: those of one address, or of one
    // subnet, must not take all places, also when they begin with a second's worth at once (80 + 5 * 80 < 512).
    config.handshake_timeout = Duration::from_secs(5);
    config.max_concurrent_handshakes = NZU32!(512);
    config.allowed_handshake_rate_per_ip = Quota::per_second(NZU32!(64));
    config.allowed_handshake_rate_per_subnet = Quota::per_second(NZU32!(80));
    Ok(config)
}

type Upgrade = Telling<Cups<Sake<commonware_cryptography::ed25519::PrivateKey>, ChaCha20Poly1305>>;

impl BftEngine {
    /// Opens the replica in `disk` and starts it.
    pub fn start(
        disk: Arc<dyn Disk>,
        settings: Settings,
        identity: &Identity,
        members: &Members,
        places: Places,
        sink: Box<dyn Sink>,
    ) -> Result<BftEngine, crate::Error> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (seed, segment_bytes) = (random_seed()?, settings.log.segment_bytes);
        if let Some(id) = members.0.keys().find(|id| !places.members.contains_key(id)) {
            let what = format!("member {id} has no address; give it one");
            return Err(crate::Error::Members { what });
        }
        let contacts = Arc::new(Contacts::default());
        let network = network_config(&settings, identity, &places, &contacts)?;
        let kept = contacts.clone();
        make_folder(&places.votes)?;
        let votes_disk = votes_disk(&places.votes)?;
        let votes_segment_bytes = settings.votes_segment_bytes;
        let now_ns = now.as_nanos() as u64;
        let opened = open(
            Arc::clone(&disk),
            Arc::clone(&votes_disk),
            settings,
            identity,
            members,
            sink,
            now_ns,
            seed,
        )?;
        let Opened { replica, mut run, writer, votes, lock, .. } = opened;
        let (spares, wanted) = sync_channel::<Spare>(2);
        let (founders, in_memory) = (places.members, places.in_memory);
        let (storage, workers) = (places.votes.join(UNUSED_FOLDER), places.threads.max(1));
        let spare_of_journal = Spare { disk, segment_bytes, room: Arc::clone(writer.room()) };
        let spares_of_journal = spares.clone();
        // A full channel means one is being made.
        let spare_journal = move || drop(spares_of_journal.try_send(spare_of_journal.clone()));
        let room = Arc::clone(votes.room());
        let spare_of_votes = Spare { disk: votes_disk, segment_bytes: votes_segment_bytes, room };
        let spare_votes = move || drop(spares.try_send(spare_of_votes.clone()));
        let (mut threads, mut here) = (Vec::new(), None);
        if in_memory {
            here = Some(Here { journal: writer, votes, spare_journal, spare_votes, _lock: lock });
        } else {
            threads.push(spawn_thread("bft-journal", move || {
                writer.run(spare_journal);
                drop(lock);
            })?);
            threads.push(spawn_thread("bft-votes", move || votes.run(spare_votes))?);
        }
        let consensus = spawn_thread("bft", move || {
            if has_io_uring() {
                let runtime = iouring::Config::new()
                    .with_worker_threads(1)
                    .with_ring_config(iouring::RingConfig { size: RING_ENTRIES, ..Default::default() })
                    .with_idle_spinner(iouring::SpinnerConfig::disabled())
                    .with_storage_directory(storage)
                    .with_tcp_nodelay(Some(true));
                run.timed_by(thread_ns);
                iouring::Runner::new(runtime).start(|context| {
                    agree(Steady::new(context, contacts.clone()), network, (founders, contacts), run, here)
                });
            } else {
                tracing::info!(
                    "no io_uring that serves: consensus runs on tokio, which takes more processor time"
                );
                let runtime = tokio::Config::new()
                    .with_worker_threads(workers)
                    .with_storage_directory(storage)
                    .with_tcp_nodelay(Some(true));
                tokio::Runner::new(runtime).start(|context| {
                    agree(Steady::new(context, contacts.clone()), network, (founders, contacts), run, here)
                });
            }
        })?;
        // Before those that it asks: they end when nobody asks any more.
        threads.insert(0, consensus);
        threads.push(spawn_thread("bft-spare", move || make_spares(&wanted))?);
        Ok(BftEngine { replica, contacts: kept, threads: Mutex::new(threads) })
    }

    /// The replica's handle.
    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// Addresses at which a member is not reached, and why.
    pub fn unreached(&self) -> BTreeMap<SocketAddr, String> {
        self.contacts.unreached()
    }

    /// Tries to reach a member that failed, and links of others that were refused.
    pub fn contact_counts(&self) -> (u64, u64) {
        self.contacts.counts()
    }
}

/// Processor time of this thread: for consensus over io_uring, which has one; tokio's workers take turns.
fn thread_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Whether the kernel (6.1 and later, unless it is forbidden) has rings as the runtime makes them: the runtime itself would panic.
fn has_io_uring() -> bool {
    let mut ring = io_uring::IoUring::<io_uring::squeue::Entry>::builder();
    ring.setup_single_issuer().setup_defer_taskrun();
    ring.build(RING_ENTRIES).is_ok()
}

/// What is written without threads of its own.
struct Here<J, V> {
    journal: JournalWriter,
    votes: VotesWriter,
    spare_journal: J,
    spare_votes: V,
    _lock: DiskLock,
}

/// Orders until the replica is stopped.
async fn agree<E, J, V>(
    context: E,
    network: lookup::Config<Upgrade>,
    (founders, contacts): (BTreeMap<u32, SocketAddr>, Arc<Contacts>),
    run: Run,
    here: Option<Here<J, V>>,
) where
    E: Clock + CryptoRng + Spawner + Network + Resolver + Metrics,
    J: FnMut() + Send + 'static,
    V: FnMut() + Send + 'static,
{
    let Linked { channels, oracle, tracks } = link(&context, network, founders, contacts);
    let replica = run.run(context.child("replica"), channels, oracle, tracks);
    let Some(Here { journal, votes, spare_journal, spare_votes, _lock }) = here else {
        return replica.await;
    };
    context.child("votes").spawn(move |context| votes.run_here(context, spare_votes));
    let journal = context.child("journal").spawn(move |context| journal.run_here(context, spare_journal));
    replica.await;
    // It ends when the replica does, which has dropped its end; the votes' own end is that of the runtime.
    if let Err(error) = journal.await {
        tracing::warn!(%error, "the replica's journal did not end by itself");
    }
}

/// The links of a member with the others.
pub struct Linked<E: Clock> {
    /// A sender and a receiver for each of [`CHANNELS`].
    pub channels: [(lookup::Sender<PublicKey, E>, lookup::Receiver<PublicKey>); CHANNELS.len()],
    /// Takes whom to have nothing to do with.
    pub oracle: lookup::Oracle<PublicKey>,
    /// Is told who may be linked with.
    pub tracks: Tracks,
}

/// Links a member with the others, as far as `Linked::tracks` is told of them.
fn link<E>(
    context: &E,
    network: lookup::Config<Upgrade>,
    founders: BTreeMap<u32, SocketAddr>,
    contacts: Arc<Contacts>,
) -> Linked<E>
where
    E: Clock + CryptoRng + Spawner + Network + Resolver + Metrics,
{
    let (mut network, oracle) = lookup::Network::new(context.child("network"), network);
    let channels = CHANNELS.map(|number| {
        let quota = NonZeroU32::new(MESSAGES_PER_S[number as usize]).unwrap_or(NonZeroU32::MIN);
        network.register(number, Quota::per_second(quota))
    });
    network.start();
    let (mut directory, mut set) = (oracle.clone(), 0);
    let tracks: Tracks = Box::new(move |linked| {
        let members = addresses(&linked.members, &founders);
        let visitors = addresses(&linked.visitors, &founders);
        contacts.set_places(members.iter().chain(&visitors).map(|(key, at)| (key.clone(), *at)).collect());
        let reached = |places: Vec<(PublicKey, SocketAddr)>| {
            Map::from_iter_dedup(places.into_iter().map(|(key, at)| (key, Address::from(at))))
        };
        let peers = AddressableTrackedPeers::new(reached(members), reached(visitors));
        // Refused only when the network has ended.
        let _heard = directory.track(set, peers);
        set += 1;
    });
    Linked { channels, oracle, tracks }
}

/// Links a founder with the others without a replica: for programs that speak the protocol themselves, such as those that test it by lies.
///
/// # Errors
/// [`crate::Error::Members`]: the identity's secret is no key.
pub fn link_founder<E>(
    context: &E,
    settings: &Settings,
    identity: &Identity,
    members: &Members,
    places: Places,
) -> Result<Linked<E>, crate::Error>
where
    E: Clock + CryptoRng + Spawner + Network + Resolver + Metrics,
{
    let contacts = Arc::new(Contacts::default());
    let network = network_config(settings, identity, &places, &contacts)?;
    let mut linked = link(context, network, places.members, contacts);
    let members = Roster::founding(&settings.group, members).members;
    (linked.tracks)(&replica::Linked { members, visitors: BTreeMap::new() });
    Ok(linked)
}

fn make_folder(path: &Path) -> Result<(), Error> {
    std::fs::create_dir_all(path).map_err(|error| Error::Io {
        action: "making the folder",
        file: path.display().to_string(),
        dir: "this machine".to_owned(),
        source: Arc::new(error),
    })
}

/// Where members are: what is up to the first comma of a member's address, or the founder's in the settings.
fn addresses(
    members: &BTreeMap<u32, Member>,
    founders: &BTreeMap<u32, SocketAddr>,
) -> Vec<(PublicKey, SocketAddr)> {
    let mut pairs = Vec::new();
    for (id, member) in members {
        let told = member.address.split(',').next().and_then(|text| text.parse::<SocketAddr>().ok());
        let founder = founders.get(id).filter(|_| member.address.is_empty()).copied();
        let (Ok(key), Some(address)) = (PublicKey::decode(Copying(&member.key)), told.or(founder)) else {
            tracing::warn!(
                member = id,
                address = member.address,
                "controller has no address: not connecting to it"
            );
            continue;
        };
        pairs.push((key, address));
    }
    pairs
}

impl std::ops::Deref for BftEngine {
    type Target = Replica;

    fn deref(&self) -> &Replica {
        &self.replica
    }
}

impl Engine for BftEngine {
    fn propose(&self, batch: Bytes, done: Completion) -> Result<(), Error> {
        self.replica.propose(batch, done)
    }

    fn status(&self) -> Status {
        self.replica.status()
    }

    /// As the replica does it, but waits for records that are on their way to the disk.
    fn save_snapshot(&self, at: Position, state: &mut dyn Read) -> Result<SnapshotInfo, Error> {
        for _ in 0..UNWRITTEN_TRIES {
            match self.replica.save_snapshot(at, state) {
                // Nothing of `state` was read yet.
                Err(Error::Overloaded { .. }) => thread::sleep(UNWRITTEN_WAIT),
                result => return result,
            }
        }
        self.replica.save_snapshot(at, state)
    }
}

impl Drop for BftEngine {
    fn drop(&mut self) {
        self.replica.stop();
        let own = thread::current().id();
        let mut threads = locked(&self.threads);
        if threads.iter().any(|handle| handle.thread().id() == own) {
            // The last reference was dropped by a completion: a thread cannot wait for itself.
            return;
        }
        for handle in threads.drain(..) {
            if handle.join().is_err() {
                tracing::error!("a thread of the replica panicked");
            }
        }
    }
}
