//! The Byzantine order as the controller wants it (`group.order: bft`, rows B1, R1, R4, R6): every member takes proposals and reads,
//! and none is believed.
//!
//! **Who sends to switches.** One member does, so that switches hear everything once: the lowest that is there and serves. That is
//! each member's own view, and no right: a member whose updates are not acked while nobody sends them begins to send as well
//! ([`super::turns`]). The gate of a switch acks at once what it has, so two that send are as good as one.
//!
//! **Identity.** A member is known by an ed25519 key, in the list of founders. With it, it votes, links, and signs its events;
//! so no member can speak for another. `weir group identity` makes and prints it.
//!
//! **Time.** A proposer puts its time in, and the others refuse by their votes what is ahead of their own idea of it, which the clocks of a
//! majority lead ([`weir_base::ordered_time`]): a liar cannot let leases run out.
//!
//! **Members** begin with those of the settings and come and go by the word of a quorum of them ([`weir_bft::members`]). Each is asked by
//! whoever may ask it: `weir group add` and `remove` ask all.

use super::MemberAddress;
use crate::failure::Failure;
use crate::roles::controller::config::GroupConfig;
use crate::roles::state::{State, kept_key};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weir_base::world::RealDisk;
use weir_bft::{BftEngine, Change, Identity, Member, Members, Places, Settings, Timers};
use weir_controller::core::is_reasonable;
use weir_controller::driver::{Order, TimeKeeper};
use weir_model::event::SourceId;
use weir_model::join::to_hex;
use weir_order::{Completion, Engine, Error, Position, Sink, SnapshotInfo, Status, Waiting};
use weir_trust::identity::KeyPair;

/// After how many batches the members compare the digests of their states.
const DIGEST_EVERY: u64 = 64;
/// After how many batches each keeps its state: the same everywhere, so that one that lost its own finds enough that are equal.
pub const STATE_EVERY: u64 = 4096;
/// Largest batch, as that of a single controller.
const BATCH_BYTES_MAX: u64 = 16 << 20;
/// Threads for consensus and links.
const THREADS: usize = 2;
/// Where consensus keeps its votes, in the state directory.
pub const VOTES_FOLDER: &str = "group-votes";
/// The seed of this member's key, in the state directory.
const IDENTITY_FILE: &str = "group.identity";

/// This member's secret key, made when it is not there. The directory is made too.
///
/// # Errors
/// [`Failure`].
pub fn secret(state_dir: &Path) -> Result<[u8; 32], Failure> {
    let named = state_dir.display().to_string();
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(state_dir);
    made.map_err(Failure::io(named))?;
    kept_key::<32>(state_dir.join(IDENTITY_FILE)).map_err(|error| Failure::Input(error.to_string()))
}

/// The key by which the others know this member, hexadecimal.
///
/// # Errors
/// [`Failure`].
pub fn public(state_dir: &Path) -> Result<String, Failure> {
    Ok(to_hex(&KeyPair::from_seed(&secret(state_dir)?).public()))
}

/// See the module.
pub struct Everywhere {
    engine: BftEngine,
    /// Where the founders are.
    founders: BTreeMap<u64, MemberAddress>,
    own: u64,
}

/// A member that is ready to start.
pub struct Opening {
    disk: RealDisk,
    settings: Settings,
    identity: Identity,
    keys: Members,
    places: Places,
    founders: BTreeMap<u64, MemberAddress>,
}

fn wrong(error: impl std::fmt::Display) -> Failure {
    Failure::Input(error.to_string())
}

/// Prepares a member whose journal is in `disk`; `first`: it is started for the first time. `time` says which proposals are of their time,
/// and the other whether operators are waited for, before whom none is of what they order.
///
/// # Errors
/// [`Failure`].
pub fn open(
    config: &GroupConfig,
    state_dir: &Path,
    state: &State,
    disk: RealDisk,
    first: bool,
    (time, awaits_operators): (Arc<TimeKeeper>, Arc<AtomicBool>),
) -> Result<Opening, Failure> {
    let number = |id: u64| u32::try_from(id).map_err(wrong);
    let identity = Identity { id: number(config.id)?, secret: secret(state_dir)? };
    let own = identity.public().map_err(wrong)?;
    let listed = config.founder_keys.get(&config.id);
    if listed.is_some_and(|listed| *listed != own) {
        // The chain of members begins with the founders and their keys, also for one that was away.
        let founded = "once the group is founded, the number of a founder stays with its key: bring its state directory back, or give \
                       this controller another number (group.id)";
        return Err(Failure::Input(format!(
            "group.founders: the key of controller {} is not that of {}: it is {} ('weir group identity --state {}'); {founded}",
            config.id,
            state_dir.join(IDENTITY_FILE).display(),
            to_hex(&own),
            state_dir.display()
        )));
    }
    let mut keys = Members::default();
    let mut reached = BTreeMap::new();
    for (id, address) in &config.founders {
        let key = config.founder_keys.get(id).ok_or_else(|| wrong("a founder has no key"))?;
        keys.0.insert(number(*id)?, *key);
        reached.insert(number(*id)?, address.replica.parse().map_err(wrong)?);
    }
    let mut settings = Settings::new(state.domain.as_str());
    settings.timers = if config.wide { Timers::WAN } else { Timers::LAN };
    settings.log.batch_bytes_max = BATCH_BYTES_MAX;
    settings.digest_every = DIGEST_EVERY;
    settings.follows = config.joins || (listed.is_none() && first);
    settings.reasonable = Some(Arc::new(move |batch: &[u8]| {
        let is_right = |wall_ms, ordered_ms| time.is_right(wall_ms, ordered_ms);
        is_reasonable(batch, time.latest_ms(), is_right, awaits_operators.load(Ordering::SeqCst))
    }));
    let places = Places {
        listen: config.listen,
        members: reached,
        votes: state_dir.join(VOTES_FOLDER),
        in_memory: is_in_memory(state_dir),
        threads: THREADS,
    };
    Ok(Opening { disk, settings, identity, keys, places, founders: config.founders.clone() })
}

/// Whether a folder is one of memory, where nothing has to wait for a disk.
fn is_in_memory(folder: &Path) -> bool {
    const TMPFS: i64 = 0x0102_1994;
    const RAMFS: i64 = 0x8584_58f6;
    rustix::fs::statfs(folder).is_ok_and(|found| [TMPFS, RAMFS].contains(&found.f_type))
}

impl Opening {
    /// Starts it.
    ///
    /// # Errors
    /// [`weir_order::Error`].
    pub fn start(self, sink: Box<dyn Sink>) -> Result<Everywhere, Error> {
        let Opening { disk, settings, identity, keys, places, founders } = self;
        let own = u64::from(identity.id);
        let engine = BftEngine::start(Arc::new(disk), settings, &identity, &keys, places, sink);
        let engine = engine.map_err(|error| match error {
            weir_bft::Error::Order(error) => error,
            other => Error::Io {
                action: "opening",
                file: "the journal of the group".to_owned(),
                dir: "the state directory".to_owned(),
                source: Arc::new(std::io::Error::other(other.to_string())),
            },
        })?;
        Ok(Everywhere { engine, founders, own })
    }
}

impl Everywhere {
    /// The engine.
    pub fn engine(&self) -> &BftEngine {
        &self.engine
    }

    /// All members and where they are, and the epoch in which they are so.
    pub fn members(&self) -> (u64, BTreeMap<u64, MemberAddress>) {
        let status = self.engine.replica_status();
        let of = |(id, member): (&u32, &Member)| {
            let id = u64::from(*id);
            // A founder's address is in the settings of all.
            let founder = self.founders.get(&id).filter(|_| member.address.is_empty());
            (id, founder.cloned().unwrap_or_else(|| MemberAddress::read(&member.address)))
        };
        (status.epoch, status.roster.members.iter().map(of).collect())
    }

    /// Members that are not reached, and why.
    pub fn unreached(&self) -> BTreeMap<u64, String> {
        let unreached = self.engine.unreached();
        let why = |(id, address): (u64, MemberAddress)| {
            let at = address.replica.parse().ok()?;
            Some((id, format!("{}: {}", address.replica, unreached.get(&at)?)))
        };
        self.members().1.into_iter().filter(|(id, _)| *id != self.own).filter_map(why).collect()
    }

    /// Why nobody is linked with at an address.
    pub fn unreached_at(&self, replica: &str) -> Option<String> {
        self.engine.unreached().get(&replica.parse().ok()?).cloned()
    }

    /// Takes back this member's wish for a change that it has not given its word for yet.
    pub fn give_up_change(&self) {
        self.engine.give_up_change();
    }

    /// Keys by which the members are known, which sign their events as well.
    pub fn keys(&self) -> BTreeMap<u64, [u8; 32]> {
        let roster = self.engine.replica_status().roster;
        roster.members.iter().map(|(id, member)| (u64::from(*id), member.key)).collect()
    }

    /// Wants other members, with this one's word; returns when it is so.
    ///
    /// # Errors
    /// Why it cannot be; that the replica has ended.
    pub async fn change(&self, change: Change) -> Result<(), weir_bft::Error> {
        let (done, is_done) = tokio::sync::oneshot::channel();
        self.engine.change(change, Box::new(move |result| drop(done.send(result))));
        is_done.await.unwrap_or(Err(weir_bft::Error::Order(Error::Stopped)))
    }

    /// The members that are there and serve, as this one sees it.
    pub fn live(&self) -> Vec<u64> {
        self.engine.live().into_iter().map(u64::from).collect()
    }

    /// Who sends to switches, as this member sees it.
    pub fn leader(&self) -> Option<u64> {
        self.live().first().copied()
    }

    /// How many of those who are there come before this member; nothing when it is not one of them.
    pub fn rank(&self) -> Option<usize> {
        self.live().iter().position(|id| *id == self.own)
    }
}

impl Engine for Everywhere {
    fn propose(&self, batch: Bytes, done: Completion) -> Result<(), Error> {
        self.engine.propose(batch, done)
    }

    fn status(&self) -> Status {
        Status { leader: self.leader(), ..Engine::status(&self.engine) }
    }

    fn save_snapshot(&self, at: Position, state: &mut dyn Read) -> Result<SnapshotInfo, Error> {
        Engine::save_snapshot(&self.engine, at, state)
    }
}

impl Order for Everywhere {
    fn barrier(&self, done: Completion) -> Result<(), Error> {
        self.engine.barrier(done)
    }

    fn digest_every(&self) -> u64 {
        DIGEST_EVERY
    }

    fn report_digest(&self, at: Position, digest: [u8; 32]) {
        self.engine.report_digest(at, digest);
    }

    fn is_everywhere(&self) -> bool {
        true
    }

    fn before(&self, number: u64) -> Vec<u64> {
        let mut live = self.live();
        let first = number % (live.len() as u64).max(1);
        live.rotate_left(first as usize);
        // Who does not serve is last.
        let own = live.iter().position(|id| *id == self.own).unwrap_or(live.len());
        live.truncate(own);
        live
    }

    fn waiting(&self) -> Waiting {
        self.engine.waiting()
    }

    fn on_waiting(&self, hears: Box<dyn Fn() + Send + Sync>) {
        self.engine.on_waiting(hears);
    }

    fn source_of(&self, replica: u64) -> Option<SourceId> {
        Some(SourceId::of_controller(&crate::roles::names::member_name(replica)))
    }

    fn wants_state(&self, index: u64) -> bool {
        self.engine.wants_state(index)
    }

    fn fenced(&self) -> Option<String> {
        self.engine.replica_status().fenced
    }

    fn full(&self) -> Option<String> {
        self.engine.replica_status().full
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let (counters, log) = (self.engine.counters(), self.engine.log_counters());
        let rooms = self.engine.room_counters();
        let core = counters.core;
        vec![
            ("batches", core.committed),
            ("blocks", core.blocks),
            ("failed", core.failed),
            ("appended_bytes", log.appended_bytes),
            ("syncs", log.syncs),
            ("failed_writes", log.failed_writes),
            ("overloads", core.overloads),
            ("refused", core.refused),
            ("repeated", core.repeated),
            ("dropped", core.dropped),
            ("lies", core.lies + counters.faults),
            ("malformed", counters.malformed),
            ("ranges", core.ranges),
            ("states", core.states),
            ("reads", counters.reads),
            ("read_checks", counters.read_checks),
            ("digests_agreed", counters.digests_agreed),
            ("divergences", counters.divergences),
            ("repairs", counters.repairs),
            ("wishes_refused", counters.wishes_refused),
            ("room_refusals", counters.room_refusals),
            ("room_tries", rooms.iter().map(|room| room.tried).sum()),
            ("room_waits", rooms.iter().map(|room| room.waited).sum()),
            ("agreements", counters.agreements),
            ("unheard", counters.unheard),
            ("far_certificates", counters.far_certificates),
            ("agreement_cpu_us", counters.agreement_cpu_ns / 1_000),
            ("epochs", core.epochs),
            ("epoch_pause_ms", core.epoch_pause_ms),
            ("links", core.links),
            ("links_failed", self.engine.contact_counts().0),
            ("links_refused", self.engine.contact_counts().1),
        ]
    }
}
