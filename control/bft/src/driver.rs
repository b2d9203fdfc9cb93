//! Where the replica meets the machine: a thread with commonware's tokio runtime for consensus and the network, one that writes the
//! journal, one that makes spare segments, and authenticated, encrypted links over TCP between the members.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use commonware_codec::{Copying, DecodeExt};
use commonware_cryptography::ChaCha20Poly1305;
use commonware_cryptography::ed25519::PublicKey;
use commonware_p2p::authenticated::lookup;
use commonware_p2p::{Address, AddressableManager, AddressableTrackedPeers};
use commonware_runtime::{Quota, Runner, Supervisor, tokio};
use commonware_stream::cups::{self, Cups};
use commonware_stream::sake::{self, Sake};
use commonware_utils::ordered::Map;
use commonware_utils::{NZU32, NZUsize};
use weir_base::world::Disk;
use weir_order::log::prepare_spare;
use weir_order::{Completion, Engine, Error, Position, Sink, SnapshotInfo, Status};

use crate::consensus::{Identity, Members, namespace};
use crate::journal::locked;
use crate::members::{MEMBERS_MAX, Member};
use crate::replica::{CHANNELS, Opened, Replica, Tracks, message_bytes_max, open};
use crate::settings::Settings;

/// Messages of one member that are taken in a second, on each channel. The network keeps room for so many of each member that there may be,
/// so no channel has more than it needs.
const MESSAGES_PER_S: [u32; CHANNELS.len()] = [4096, 2048, 256, 4096, 4096];

/// Who may be linked with beside the members: who is to come, and who has just gone.
const VISITORS_MAX: usize = 2;
/// How often, and for how long each time, a state waits for records that are not written yet.
const UNWRITTEN_TRIES: usize = 1000;
const UNWRITTEN_WAIT: Duration = Duration::from_millis(5);

/// Where a replica is, and where the others are.
#[derive(Debug, Clone)]
pub struct Places {
    /// Where this replica takes links.
    pub listen: SocketAddr,
    /// Where each member is reached, this one included.
    pub members: BTreeMap<u32, SocketAddr>,
    /// The folder of consensus's own journal: its votes. It must be as durable as the replica's disk.
    pub votes: PathBuf,
    /// Threads for consensus and the network.
    pub threads: usize,
}

/// A replica on threads of its own. Dropping it stops the replica and waits for its journal to be closed.
pub struct BftEngine {
    replica: Replica,
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
) -> Result<lookup::Config<Links>, crate::Error> {
    let handshake = Cups::<_, ChaCha20Poly1305>::new(
        Sake {
            signer: identity.key()?,
            synchrony_bound: Duration::from_secs(10),
            max_handshake_age: Duration::from_secs(20),
            version: sake::Version::V1,
        },
        cups::Version::V1,
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
    // Members of one machine share its address.
    config.allowed_handshake_rate_per_ip = Quota::per_second(NZU32!(256));
    config.allowed_handshake_rate_per_subnet = Quota::per_second(NZU32!(1024));
    Ok(config)
}

type Links = Cups<Sake<commonware_cryptography::ed25519::PrivateKey>, ChaCha20Poly1305>;

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
        let network = network_config(&settings, identity, &places)?;
        make_folder(&places.votes)?;
        let opened = open(Arc::clone(&disk), settings, identity, members, sink, now.as_nanos() as u64, seed)?;
        let Opened { replica, run, writer, lock, .. } = opened;
        let runtime = tokio::Config::new()
            .with_worker_threads(places.threads.max(1))
            .with_storage_directory(&places.votes)
            .with_tcp_nodelay(Some(true));
        let (spares, wanted) = sync_channel(1);
        let founders = places.members;
        let consensus = spawn_thread("bft", move || {
            tokio::Runner::new(runtime).start(|context| async move {
                let (mut network, oracle) = lookup::Network::new(context.child("network"), network);
                let channels = CHANNELS.map(|number| {
                    let quota = NonZeroU32::new(MESSAGES_PER_S[number as usize]).unwrap_or(NonZeroU32::MIN);
                    network.register(number, Quota::per_second(quota))
                });
                network.start();
                let (mut directory, mut set) = (oracle.clone(), 0);
                let tracks: Tracks = Box::new(move |linked| {
                    let members = addresses(&linked.members, &founders);
                    let peers = AddressableTrackedPeers::new(members, addresses(&linked.visitors, &founders));
                    // Refused only when the network has ended.
                    let _heard = directory.track(set, peers);
                    set += 1;
                });
                run.run(context.child("replica"), channels, oracle, tracks, "votes").await;
            });
        })?;
        let journal = spawn_thread("bft-journal", move || {
            // A full channel means one is being made.
            writer.run(|| {
                let _full = spares.try_send(());
            });
            drop(lock);
        })?;
        let spare = spawn_thread("bft-spare", move || {
            while wanted.recv().is_ok() {
                // A failure costs only time: the log makes the segment itself when it needs it.
                if let Err(error) = prepare_spare(&*disk, segment_bytes) {
                    tracing::warn!(%error, "could not make a spare segment ahead of need");
                }
            }
        })?;
        Ok(BftEngine { replica, threads: Mutex::new(vec![consensus, journal, spare]) })
    }

    /// The replica's handle.
    pub fn replica(&self) -> &Replica {
        &self.replica
    }
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
) -> Map<PublicKey, Address> {
    let mut pairs = Vec::new();
    for (id, member) in members {
        let told = member.address.split(',').next().and_then(|text| text.parse::<SocketAddr>().ok());
        let founder = founders.get(id).filter(|_| member.address.is_empty()).copied();
        let (Ok(key), Some(address)) = (PublicKey::decode(Copying(&member.key)), told.or(founder)) else {
            tracing::warn!(
                member = id,
                address = member.address,
                "a member that cannot be reached: no address"
            );
            continue;
        };
        pairs.push((key, Address::from(address)));
    }
    Map::from_iter_dedup(pairs)
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
