//! Opening a replica: its lock, votes and journal, and what they say that it goes on from.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock};

use commonware_utils::channel::{mpsc, watch};
use weir_base::world::{Disk, DiskLock, LockOutcome};
use weir_order::{Error, Sink};

use super::agreeing::Agreeing;
use super::answers::Answers;
use super::epochs::{self, Membership};
use super::health::Health;
use super::{Inner, JournalWriter, Opened, Replica, Run};
use crate::consensus::{Identity, KeyRing};
use crate::core::{Beginning, Core};
use crate::group::Members;
use crate::journal::{self, OpenedJournal};
use crate::members::Roster;
use crate::rest::Rest;
use crate::rules::Overlay;
use crate::settings::Settings;
use crate::votes;

const LOCK: &str = "lock";

fn lock(disk: &dyn Disk) -> Result<DiskLock, Error> {
    let dir = disk.describe();
    match disk.lock(LOCK, &format!("pid {}", std::process::id())) {
        Ok(LockOutcome::Held(lock)) => Ok(lock),
        Ok(LockOutcome::Busy { holder }) => Err(Error::Locked { dir, holder }),
        Err(error) => {
            Err(Error::Io { action: "locking", file: LOCK.to_owned(), dir, source: Arc::new(error) })
        }
    }
}

/// Opens the replica whose journal and states are in `disk` and whose votes are in `votes`, or makes a new one. `sink` is given the newest state, every
/// batch behind it that has a certificate here, and then every other as soon as it is committed. `now_ns` is the time since 1970, and `seed`
/// any random bytes.
#[allow(clippy::too_many_arguments, reason = "each is another part of the world that the replica is given")]
pub fn open(
    disk: Arc<dyn Disk>,
    votes: Arc<dyn Disk>,
    settings: Settings,
    identity: &Identity,
    members: &Members,
    mut sink: Box<dyn Sink>,
    now_ns: u64,
    seed: [u8; 32],
) -> Result<Opened, crate::Error> {
    settings.check()?;
    let founding = Roster::founding(&settings.group, members);
    KeyRing::new(&settings.group, identity, &founding, seed)?;
    let lock = lock(&*disk)?;
    let (votes, votes_writer) = votes::open(votes, settings.votes_segment_bytes)?;
    let OpenedJournal { journal, writer, base, frontier, recent, loose, last_number, recovery } =
        journal::open(
            &disk,
            settings.log,
            settings.group.as_bytes(),
            &founding,
            settings.admission.clone(),
            &mut *sink,
        )?;
    let roster = base.tables.roster().clone();
    let keys = KeyRing::new(&settings.group, identity, &roster, seed)?;
    let latest = if frontier.epoch > roster.epoch { &frontier } else { &roster };
    let membership = Membership::new(latest.members.contains_key(&identity.id));
    if !settings.follows && !latest.members.contains_key(&identity.id) {
        return Err(epochs::no_member(identity.id, latest.epoch));
    }
    let (last_life, _) = base.tables.last_of(&Overlay::default(), identity.id);
    let beginning = Beginning {
        me: identity.id,
        keys: Box::new(keys.clone()),
        frontier,
        life: now_ns.max(last_life + 1),
        tip: base.tip,
        applied: base.applied,
        tables: base.tables,
        recent,
        last_number,
        batches: loose.batches,
        blocks: loose.blocks,
    };
    let health = Health::new(identity.id, &keys.ids(), settings.digest_every);
    let core = Core::new(settings.clone(), beginning);
    let (commands, commanded) = mpsc::unbounded_channel();
    let (writes, to_write) = mpsc::unbounded_channel();
    let (written, was_written) = mpsc::unbounded_channel();
    let (stop, stopped) = watch::channel(false);
    let rest = Arc::new(Rest::new(&settings.timers));
    let inner = Arc::new(Inner {
        id: identity.id,
        settings,
        journal,
        seen: Mutex::default(),
        open: AtomicU64::new(0),
        barriers: AtomicU64::new(0),
        peers: OnceLock::new(),
        evidence: OnceLock::new(),
        waits: OnceLock::new(),
        view: Arc::default(),
        rooms: [Arc::clone(writer.room()), Arc::clone(votes_writer.room())],
        room_refusals: AtomicU64::new(0),
        stop,
    });
    let mut run = Run {
        inner: Arc::clone(&inner),
        keys,
        votes,
        core,
        sink,
        commands: commanded,
        writes,
        written: was_written,
        stopped,
        answers: Answers::default(),
        unwritten: 0,
        now_ms: 0,
        ticked_ms: 0,
        health,
        identity: identity.clone(),
        membership,
        barriers: Vec::new(),
        barriers_in_flight: 0,
        agreeing: Agreeing::default(),
        turns: None,
        turns_before: 0,
        far_certificates: Arc::default(),
        rest,
        awake_ms: 0,
        links_left: VecDeque::new(),
        links_at_ms: 0,
    };
    run.publish();
    run.know_members();
    let writer = JournalWriter::new(writer, to_write, written);
    Ok(Opened { replica: Replica { inner, commands }, run, writer, votes: votes_writer, lock, recovery })
}
