//! Opening a replica, and founding a group.

use super::Group;
use super::order::{ByReplicaAddress, DIGEST_EVERY, Replicated};
use super::signing::{self, ReplicaPeers};
use crate::cli::Failure;
use crate::roles::controller::config::GroupConfig;
use crate::roles::state::State;
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use weir_api::pki;
use weir_base::world::RealDisk;
use weir_controller::driver::{Members, MembersThread, Order};
use weir_controller::quorum;
use weir_model::Label;
use weir_order::Sink;
use weir_raft::Settings;
use weir_raft::driver::{Identity, RaftEngine, TlsListener, TlsTransport, replica_name};

/// Largest batch, as that of a single controller.
const BATCH_BYTES_MAX: u64 = 16 << 20;
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
    let own = config.id.to_string();
    if let Some(was) = was.as_ref().filter(|was| **was != own) {
        return Err(Failure::Input(format!(
            "group.id: {} is of controller {was} of the group, not of {own}: use its own directory for each",
            state_dir.display()
        )));
    }
    let mut files = std::fs::read_dir(log).map_err(Failure::io(log.display().to_string()))?;
    let empty = files.next().is_none();
    if empty && was.is_some() {
        return Err(Failure::Input(format!(
            "{} is empty, and this controller was a member of the group: without its log it cannot know how it has \
             voted. Bring the log back; or remove controller {own} ('weir group remove {own}' at another one), delete {}, \
             start it with --join-group, and add it again ('weir group add')",
            log.display(),
            path.display()
        )));
    }
    let first = config.founders.keys().next();
    Ok(if empty && first == Some(&config.id) { Founding::Found } else { Founding::Nothing })
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
pub fn open(config: &GroupConfig, state_dir: &Path, state: &State) -> Result<(Founding, Opening), Failure> {
    let log = state_dir.join("group");
    std::fs::create_dir_all(&log).map_err(Failure::io(log.display().to_string()))?;
    let founding = look(config, state_dir, &log)?;
    let disk = RealDisk::open(&log).map_err(Failure::io(log.display().to_string()))?;
    let mut settings = Settings::new(config.id, state.domain.as_str());
    settings.timers = config.timers;
    settings.log.batch_bytes_max = BATCH_BYTES_MAX;
    settings.digest_every = DIGEST_EVERY;
    let identity = identity(config, state)?;
    let listening = format!("listening on {}", config.listen);
    let listener = TcpListener::bind(config.listen).map_err(Failure::io(listening.clone()))?;
    let listener = TlsListener::new(listener, &identity, FRAME_BYTES_MAX).map_err(Failure::io(listening))?;
    let transport = TlsTransport::new(&identity, FRAME_BYTES_MAX).map_err(wrong)?;
    let opening = Opening {
        disk,
        settings,
        transport: Arc::new(ByReplicaAddress(transport)),
        listener,
        own: config.own.clone(),
        member_file: state_dir.join(MEMBER_FILE),
        members: None,
        started: Arc::default(),
    };
    Ok((founding, opening))
}

/// A replica that is ready to start.
pub struct Opening {
    disk: RealDisk,
    settings: Settings,
    transport: Arc<ByReplicaAddress>,
    listener: TlsListener,
    own: super::MemberAddress,
    member_file: PathBuf,
    members: Option<Members>,
    started: Arc<OnceLock<Arc<Replicated>>>,
}

impl Opening {
    /// Where the group will be after the start.
    pub fn group(&self) -> impl FnOnce() -> Option<Group> + use<> {
        let (started, own, members) = (self.started.clone(), self.own.clone(), self.members.clone());
        move || started.get().map(|order| Group { order: order.clone(), own, members })
    }

    /// Prepares this member's part in the group's signatures, and signs with it. Comes before [`Opening::group`].
    ///
    /// # Errors
    /// [`Failure`].
    pub fn sign_with_shares(
        &mut self,
        state_dir: &Path,
        domain: &Label,
        at_switches: bool,
    ) -> Result<(MembersThread, Members), Failure> {
        let peers = Arc::new(ReplicaPeers(self.started.clone()));
        let (thread, members) = signing::open(state_dir, domain, (self.settings.id, at_switches), peers)?;
        self.members = Some(members.clone());
        Ok((thread, members))
    }

    /// Starts it.
    pub fn start(self, sink: Box<dyn Sink>) -> Result<Arc<dyn Order>, weir_order::Error> {
        let (listener, member) = (Box::new(self.listener), format!("{}\n", self.settings.id));
        let engine = RaftEngine::start(Arc::new(self.disk), self.settings, self.transport, listener, sink)?;
        // From now on the log is not empty, and must not be again.
        std::fs::write(&self.member_file, member).map_err(|error| weir_order::Error::Io {
            action: "writing",
            file: MEMBER_FILE.to_string(),
            dir: self.member_file.display().to_string(),
            source: Arc::new(error),
        })?;
        let order = Arc::new(Replicated(engine));
        // Set once, here.
        let _first = self.started.set(order.clone());
        if let Some(members) = self.members {
            order.engine().listen(Box::new(move |from, bytes| {
                if let Ok(from) = u32::try_from(from) {
                    members.input(quorum::Input::Peer { from, bytes: bytes.to_vec() });
                }
            }));
        }
        Ok(order)
    }
}

/// Founds the group.
///
/// # Errors
/// [`Failure`].
pub async fn found(group: &Group, config: &GroupConfig) -> Result<(), Failure> {
    let members: BTreeMap<u64, String> =
        config.founders.iter().map(|(id, address)| (*id, address.to_string())).collect();
    tracing::info!(members = members.len(), "this controller founds the group");
    match group.order.engine().initialize(members).await {
        // It was interrupted after it had founded the group.
        Ok(()) | Err(weir_raft::Error::Exists) => Ok(()),
        Err(error) => Err(wrong(error)),
    }
}
