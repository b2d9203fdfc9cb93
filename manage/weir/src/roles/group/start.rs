//! Opening a replica, and founding a group.

use super::aside::KeyOf;
use super::order::{ByReplicaAddress, DIGEST_EVERY, Replicated};
use super::signing::{self, ReplicaPeers};
use super::spares::Watching;
use super::{Engine, Group, clocks, everywhere};
use crate::failure::Failure;
use crate::roles::controller::config::{GroupConfig, Ordering};
use crate::roles::manifest;
use crate::roles::state::{State, write_secret};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use weir_api::pki;
use weir_base::ordered_time::Reading;
use weir_base::world::RealDisk;
use weir_controller::audit::Contradiction;
use weir_controller::driver::aside::AsidePlace;
use weir_controller::driver::{AsideInbox, Members, MembersThread, Order, TimeKeeper};
use weir_controller::quorum::{self, Way};
use weir_model::Label;
use weir_order::Sink;
use weir_raft::Settings;
use weir_raft::driver::{Identity, RaftEngine, TlsListener, TlsTransport, replica_name};
use weir_trust::identity::KeyPair;

/// Largest batch, as that of a single controller.
pub const BATCH_BYTES_MAX: u64 = 16 << 20;
/// Largest frame between replicas.
const FRAME_BYTES_MAX: usize = (BATCH_BYTES_MAX as usize) + (2 << 20);
/// Says in the state directory of which group it is a member, and under which number.
const MEMBER_FILE: &str = "member";

/// What is to be done once the controller runs.
#[derive(Debug, PartialEq, Eq)]
pub enum Founding {
    /// It has been a member before, waits to be added, or waits for the founder.
    Nothing,
    /// It founds the group.
    Found,
}

fn wrong(error: impl std::fmt::Display) -> Failure {
    Failure::Input(error.to_string())
}

/// Looks at what an earlier life left.
fn look(config: &GroupConfig, state_dir: &Path, log: &Path) -> Result<Founding, Failure> {
    let path = state_dir.join(MEMBER_FILE);
    let was = match std::fs::read_to_string(&path) {
        Ok(text) => Some(text.trim().to_string()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(Failure::io(path.display().to_string())(error)),
    };
    let own = member_text(config);
    if let Some(was) = was.as_ref().filter(|was| **was != own) {
        return Err(Failure::Input(format!(
            "group.id, group.order: {} is of controller {was} of the group, not of {own}: use its own directory for each",
            state_dir.display()
        )));
    }
    // With lies to survive, votes are apart from the journal, and lost is what is lost of either.
    let votes_lost = config.order == Ordering::Bft
        && was.is_some()
        && !manifest::has_segments(&state_dir.join(everywhere::VOTES_FOLDER));
    let empty = !manifest::has_segments(log) || votes_lost;
    if empty && was.is_some() && config.order == Ordering::Bft {
        return Err(Failure::Input(format!(
            "{} or {} has no log, and this controller was a member of the group: without them it cannot know how it has \
             voted, and may vote otherwise now. Bring them back; or, when all others are known to be sound, say \
             'weir state rejoin --state {} --yes', and count this one as one that may lie until 'weir group list' shows it as not behind",
            log.display(),
            state_dir.join(everywhere::VOTES_FOLDER).display(),
            state_dir.display()
        )));
    }
    if empty && was.is_some() {
        return Err(Failure::Input(log_lost(log, state_dir, &own)));
    }
    let first = config.founders.keys().next();
    // Where all are founders, nobody has to say so.
    let founds = config.order == Ordering::Raft && empty && first == Some(&config.id);
    Ok(if founds { Founding::Found } else { Founding::Nothing })
}

/// Why one that has lost its log does not start, and the cure; docs/operate/group.md has the same.
fn log_lost(log: &Path, state_dir: &Path, own: &str) -> String {
    format!(
        "{} has no log, and this controller was a member of the group: without its log it cannot know how it has \
         voted. Bring the log back; or remove controller {own} ('weir group remove {own}' at another one), say \
         'weir state rejoin --state {} --yes', start it with --join-group, and add it again ('weir group add')",
        log.display(),
        state_dir.display()
    )
}

/// Which member it is, and of which order.
fn member_text(config: &GroupConfig) -> String {
    match config.order {
        Ordering::Raft => config.id.to_string(),
        Ordering::Bft => format!("{} (bft)", config.id),
    }
}

fn identity(config: &GroupConfig, state: &State) -> Result<Identity, Failure> {
    let made = state.authority.replica(&replica_name(config.id)).map_err(wrong)?;
    let chain = pki::chain(&made.certificate_pem).map_err(wrong)?;
    let authority = pki::chain(state.authority.certificate_pem()).map_err(wrong)?;
    let authority = authority.into_iter().next().ok_or_else(|| wrong("ca.crt holds no certificate"))?;
    Ok(Identity { chain, key: pki::key(&made).map_err(wrong)?, authority })
}

/// Prepares a replica; the second starts it, for [`weir_controller::driver::Controller::follow`], and the group is there
/// after that.
///
/// # Errors
/// [`Failure`].
pub fn open(
    config: &GroupConfig,
    state_dir: &Path,
    state: &State,
    (time, awaits_operators): (Arc<TimeKeeper>, Arc<AtomicBool>),
) -> Result<(Founding, Opening), Failure> {
    clocks::nobody_yet(&time);
    let log = state_dir.join("group");
    let founding = look(config, state_dir, &log)?;
    let disk = RealDisk::open(&log).map_err(Failure::io(log.display().to_string()))?;
    let prepared = match config.order {
        Ordering::Raft => Prepared::Raft(Box::new(prepare(config, state, disk)?)),
        Ordering::Bft => Prepared::Bft(Box::new(everywhere::open(
            config,
            state_dir,
            state,
            disk,
            !state_dir.join(MEMBER_FILE).exists(),
            (time.clone(), awaits_operators),
        )?)),
    };
    let opening = Opening {
        prepared,
        id: config.id,
        own: config.own.clone(),
        member: (state_dir.join(MEMBER_FILE), member_text(config)),
        members: None,
        time,
        aside: AsideInbox::default(),
        started: Arc::default(),
        watching: Arc::new(Watching::new(config)),
    };
    Ok((founding, opening))
}

fn prepare(config: &GroupConfig, state: &State, disk: RealDisk) -> Result<RaftOpening, Failure> {
    let mut settings = Settings::new(config.id, state.domain.as_str());
    settings.timers = config.timers;
    settings.log.batch_bytes_max = BATCH_BYTES_MAX;
    settings.digest_every = DIGEST_EVERY;
    // Who is added is to vote.
    settings.promotes = true;
    // But for spares, whom the order names.
    settings.awaits_spares = true;
    let identity = identity(config, state)?;
    let listening = format!("listening on {}", config.listen);
    let listener = TcpListener::bind(config.listen).map_err(Failure::io(listening.clone()))?;
    let listener = TlsListener::new(listener, &identity, FRAME_BYTES_MAX).map_err(Failure::io(listening))?;
    let transport = TlsTransport::new(&identity, FRAME_BYTES_MAX).map_err(wrong)?;
    Ok(RaftOpening { disk, settings, transport: Arc::new(ByReplicaAddress(transport)), listener })
}

/// A replica of raft that is ready to start.
struct RaftOpening {
    disk: RealDisk,
    settings: Settings,
    transport: Arc<ByReplicaAddress>,
    listener: TlsListener,
}

enum Prepared {
    Raft(Box<RaftOpening>),
    Bft(Box<everywhere::Opening>),
}

/// A replica that is ready to start.
pub struct Opening {
    prepared: Prepared,
    id: u64,
    own: super::MemberAddress,
    /// The file that says which member this is, and what it says.
    member: (PathBuf, String),
    members: Option<Members>,
    time: Arc<TimeKeeper>,
    aside: AsideInbox,
    started: Arc<OnceLock<Engine>>,
    watching: Arc<Watching>,
}

impl Opening {
    /// Where the group will be after the start.
    pub fn group(&self) -> impl FnOnce() -> Option<Group> + use<> {
        let (started, own, members) = (self.started.clone(), self.own.clone(), self.members.clone());
        let watching = self.watching.clone();
        let door = match &self.prepared {
            Prepared::Raft(ready) => Some(ready.listener.door()),
            Prepared::Bft(_) => None,
        };
        let aside = self.aside.clone();
        move || {
            let engine = started.get()?.clone();
            Some(Group { engine, own, members, door, aside, watching })
        }
    }

    /// How this member sets entries aside together with the others, with its key; `key_of`: those of all where some may crash only.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn aside(&self, state_dir: &Path, key: KeyPair, key_of: KeyOf) -> Result<AsidePlace, Failure> {
        let id = u32::try_from(self.id).map_err(wrong)?;
        let group = Arc::new(super::aside::Members { engine: self.started.clone(), id, key_of });
        let (keep, inbox) = (super::aside::keep(state_dir, "numbers"), self.aside.clone());
        Ok(AsidePlace { group, key: Arc::new(key), keep, inbox })
    }

    /// Prepares this member's part in the group's signatures, and signs with it. Comes before [`Opening::group`].
    ///
    /// # Errors
    /// [`Failure`].
    pub fn sign_with_shares(
        &mut self,
        state_dir: &Path,
        domain: &Label,
        way: Way,
    ) -> Result<(MembersThread, Members), Failure> {
        let peers = Arc::new(ReplicaPeers(self.started.clone()));
        let (thread, members) = signing::open(state_dir, domain, (self.id, way), peers)?;
        self.members = Some(members.clone());
        Ok((thread, members))
    }

    /// Starts it.
    pub fn start(self, sink: Box<dyn Sink>) -> Result<Arc<dyn Order>, weir_order::Error> {
        let engine = match self.prepared {
            Prepared::Raft(ready) => {
                let RaftOpening { disk, settings, transport, listener } = *ready;
                let engine =
                    RaftEngine::start(Arc::new(disk), settings, transport, Box::new(listener), sink)?;
                Engine::Raft(Arc::new(Replicated(engine)))
            }
            Prepared::Bft(ready) => Engine::Bft(Arc::new(ready.start(sink)?)),
        };
        // From now on the log is not empty, and must not be again.
        let (path, text) = self.member;
        remember(&path, &format!("{text}\n"))?;
        // Set once, here.
        let _first = self.started.set(engine.clone());
        let (members, time, aside) = (self.members, self.time, self.aside);
        let judges = members.clone();
        let watching = self.watching;
        let heard = watching.clone();
        let hears = move |from: u64, bytes: Bytes| {
            if heard.hears(from, &bytes) || aside.hear(from, &bytes) {
                return;
            }
            match (Reading::decode(&bytes), &members) {
                (Some(reading), _) => time.heard(from, reading),
                (None, Some(members)) => {
                    if let Ok(from) = u32::try_from(from) {
                        members.input(quorum::Input::Peer { from, bytes: bytes.to_vec() });
                    }
                }
                // Nobody signs with shares here: what is said of them is for nobody.
                (None, None) => {}
            }
        };
        match &engine {
            Engine::Raft(order) => order.engine().listen(Box::new(hears)),
            Engine::Bft(order) => {
                order.engine().listen(Box::new(move |from, bytes| hears(u64::from(from), bytes)));
                if let Some(judges) = judges {
                    order.engine().on_evidence(Box::new(move |evidence, convicted| {
                        let evidence = evidence.encode().to_vec();
                        watching.votes(convicted.member, convicted.key, &evidence);
                        let votes = Contradiction { member: convicted.member, evidence };
                        judges.input(quorum::Input::Contradicted(Box::new(votes)));
                    }));
                }
            }
        }
        Ok(match engine {
            Engine::Raft(order) => order,
            Engine::Bft(order) => order,
        })
    }
}

/// Says in a file of which group this is a member, whole or not at all. One that says so already is left alone: on a full disk it could not be written, and
/// a member that was emptied would not start again.
fn remember(path: &Path, text: &str) -> Result<(), weir_order::Error> {
    if std::fs::read_to_string(path).is_ok_and(|found| found == text) {
        return Ok(());
    }
    write_secret(path, text).map_err(|error| weir_order::Error::Io {
        action: "writing",
        file: MEMBER_FILE.to_string(),
        dir: path.display().to_string(),
        source: Arc::new(std::io::Error::other(error.to_string())),
    })
}

/// Founds the group.
///
/// # Errors
/// [`Failure`].
pub async fn found(group: &Group, config: &GroupConfig) -> Result<(), Failure> {
    let members: BTreeMap<u64, String> =
        config.founders.iter().map(|(id, address)| (*id, address.to_string())).collect();
    tracing::info!(members = members.len(), "this controller founds the group");
    let Engine::Raft(order) = &group.engine else { return Ok(()) };
    match order.engine().initialize(members).await {
        // It was interrupted after it had founded the group.
        Ok(()) | Err(weir_raft::Error::Exists) => Ok(()),
        Err(error) => Err(wrong(error)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Where the same is told: the refusal, the page, and the log of the others.
    #[test]
    fn one_that_has_lost_its_log_has_one_cure_wherever_it_is_told() {
        let page = include_str!("../../../../../docs/operate/group.md");
        let page = page.split_once("**It has lost its log.**").unwrap().1;
        let page = page.split_once("If the whole directory is gone").unwrap().0;
        let others = include_str!("../../../../../control/raft/src/net/contacts.rs");
        let others = others.split_once("it has lost its log (it had entry").unwrap().1;
        let refusal = log_lost(Path::new("/s/group"), Path::new("/s"), "3");
        for told in [page, &refusal, others] {
            let mut from = 0;
            for step in ["weir group remove", "weir state rejoin", "--join-group", "weir group add"] {
                let at =
                    told[from..].find(step).unwrap_or_else(|| panic!("no '{step}' after {from} in: {told}"));
                from += at + step.len();
            }
        }
    }

    /// No step needs what one before it has deleted.
    #[test]
    fn a_copy_of_the_domains_keys_is_kept_for_who_comes_back() {
        let page = include_str!("../../../../../docs/operate/group.md");
        let mut lines = page.lines().skip_while(|line| !line.contains("Delete `domain-keys.json`"));
        assert!(lines.next().unwrap().contains("keep one copy in a safe place"));
        let after: Vec<&str> = lines.collect();
        assert!(after[0].contains("is added, needs it"), "{}", after[0]);
        assert!(after.iter().any(|line| line.contains("`domain-keys.json` in its place again")));
    }

    #[test]
    fn a_member_file_that_says_so_already_is_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(MEMBER_FILE);
        remember(&path, "2\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "2\n");
        // Nothing can be written aside: as on a full disk.
        std::fs::create_dir(path.with_extension("new")).unwrap();
        remember(&path, "2\n").unwrap();
        assert!(remember(&path, "3\n").is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "2\n", "whole or not at all");
    }
}
