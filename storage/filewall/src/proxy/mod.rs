//! The machine around the chain: listeners, workers, sessions, the way to the server.
//!
//! - [`buffer`], [`flow`]: bytes in and out, records, bodies that are not copied.
//! - [`session`], [`calls`], [`replies`]: a client, and what happens to its calls.
//! - [`asking`]: calls of our own, and answers that policies make.
//! - [`compound`], [`compound_replies`]: the same for NFSv4.
//! - [`pending`]: the pending map. - [`retransmit`]: operations that must happen once.
//! - [`settle`]: what nobody knows the outcome of. - [`server`]: the server's address and connections to it. - [`mounter`]: mounts.
//! - [`door`]: who has a session, and who must leave. - [`worker`]: threads. - [`reload`]: policies that change while calls go on.
//!
//! A session has its own connection to the server, so that its calls are answered as if it spoke to it directly, and one
//! slow client holds up nobody else. TCP clients are served from connections that a thread accepts and hands to the workers in
//! turn; each address of a UDP client is a session too, with a TCP connection to the server. NFS, MOUNT and PORTMAP are
//! served on every port.
//!
//! Departures from the paper: policies of one call run to completion one after another, without buffers between them, so
//! nothing is dropped between policies; the pending map belongs to a session, not to the whole process, so that it needs no lock
//! and one client cannot fill another's.

mod aside;
mod asking;
pub mod buffer;
mod calls;
mod compound;
mod compound_replies;
pub mod door;
pub mod env;
pub mod flow;
pub mod inbox;
mod known;
pub mod mounter;
pub mod names;
mod outcome;
pub mod pending;
mod reload;
mod replies;
pub mod retransmit;
pub mod server;
pub mod session;
mod settle;
pub mod worker;

pub use server::Server;

use crate::error::{Error, Result};
use crate::metrics::{PrincipalRow, Status, Totals};
use crate::policy::{self, Chain};
use crate::replicate::{Plan, Router, Servers};
use crate::wire::nfs3::Handle;
use crate::wire::portmap::Ports;
use arc_swap::ArcSwap;
use door::{Admitted, Door, Ticket};
use inbox::{Delivery, Inbox};
use mounter::Job;
use retransmit::Retransmits;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use weir_base::journal::Journal;
use worker::{Datagrams, Worker};

/// Longest datagram, bytes.
pub const MAX_DATAGRAM_BYTES: usize = 65_536;

/// Bounds that an operator may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most sessions.
    pub sessions: usize,
    /// Most sessions of one client address (IPv6: of one /64).
    pub sessions_per_client: usize,
    /// After how long a session ends from which no call has come yet, µs.
    pub first_call_us: u64,
    /// After how long a pending call is purged, µs.
    pub call_timeout_us: u64,
    /// After how long without a datagram the session of a UDP client ends, µs.
    pub datagram_idle_us: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sessions: 4096,
            sessions_per_client: 256,
            first_call_us: 10_000_000,
            call_timeout_us: 120_000_000,
            datagram_idle_us: 60_000_000,
        }
    }
}

/// What to serve, where, under which policies.
#[derive(Clone, Debug)]
pub struct Config {
    /// The server.
    pub server: Server,
    /// Address to listen at.
    pub listen: IpAddr,
    /// Port of NFS and MOUNT, over TCP and UDP; 0 for any.
    pub port: u16,
    /// Port of PORTMAP, over TCP and UDP; `None` if it is not served.
    pub portmap_port: Option<u16>,
    /// Whether UDP is served.
    pub udp: bool,
    /// Number of workers.
    pub workers: usize,
    /// File or folder of policies; without it everything is let through.
    pub policy: Option<PathBuf>,
    /// Whether changes of them are put in force by themselves, or by [`FileWall::reload`] alone.
    pub watch: bool,
    /// Bounds.
    pub limits: Limits,
}

/// What all threads share.
#[derive(Debug)]
pub struct Shared {
    /// The server.
    pub server: Server,
    /// Bounds.
    pub limits: Limits,
    /// Ports that PORTMAP hands out.
    pub ports: Ports,
    /// The chain in force.
    pub chain: Arc<ArcSwap<Chain>>,
    /// Counters.
    pub totals: Totals,
    /// Operations that must happen once.
    pub retransmits: Retransmits,
    /// What is known of NFSv4.
    pub four: compound::Shared4,
    /// Jobs for the MOUNT helper.
    pub mounter: SyncSender<Job>,
    /// Told to stop.
    pub stop: AtomicBool,
    listen: IpAddr,
    policy: Option<PathBuf>,
    policy_error: Mutex<Option<String>>,
    /// The files of policies as they were when they were read last.
    policy_files: Mutex<reload::Fingerprint>,
    policy_order: AtomicU64,
    inboxes: Vec<Inbox>,
    /// Who has a session.
    pub door: Door,
    /// The servers behind, where there are several.
    router: Option<Arc<Router>>,
    /// What clients have mounted, for a second FileWall.
    mounts: Option<Mutex<Journal>>,
    /// Held while the context is ours.
    _lock: Option<std::fs::File>,
}

impl Shared {
    /// Puts something into a worker's inbox.
    pub fn deliver(&self, worker: usize, delivery: Delivery) {
        if let Some(inbox) = self.inboxes.get(worker) {
            inbox.deliver(delivery);
        }
    }

    /// Gives a client that comes to a worker a seat; `None` if there are too many. Who must leave for it is told to.
    pub(crate) fn admit(&self, client: IpAddr) -> Option<Ticket> {
        match self.door.admit(client) {
            Admitted::Full => {
                Totals::count(&self.totals.sessions_refused_total);
                None
            }
            Admitted::Seat { ticket, displaced, end } => {
                match displaced {
                    true => Totals::count(&self.totals.sessions_displaced_total),
                    false => Totals::count(&self.totals.sessions),
                }
                if let Some((worker, session)) = end {
                    self.deliver(worker, Delivery::End { session });
                }
                Some(ticket)
            }
        }
    }

    /// Writes down what a client has mounted. What is lost must be mounted again when this process has ended.
    pub fn note_mount(&self, handle: &Handle, path: &[u8]) {
        let Some(journal) = &self.mounts else { return };
        let mut journal = journal.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = journal.append(&[mount_line(handle, path)]) {
            tracing::error!(%error, "a mount cannot be written down");
        }
    }

    /// A session has ended, or was never made.
    pub(crate) fn release(&self, ticket: Ticket) {
        if self.door.release(ticket) {
            Totals::down(&self.totals.sessions, 1);
        }
    }

    /// Our address as a UDP client sees it: the one that we listen at, or the one on the way to it.
    fn own_address_for(&self, client: SocketAddr) -> IpAddr {
        if !self.listen.is_unspecified() {
            return self.listen;
        }
        UdpSocket::bind((self.listen, 0))
            .and_then(|socket| socket.connect(client).and_then(|()| socket.local_addr()))
            .map_or(self.listen, |address| address.ip())
    }
}

/// A running FileWall. Dropping it stops it.
#[derive(Debug)]
pub struct FileWall {
    shared: Arc<Shared>,
    /// Where NFS and MOUNT are served.
    pub address: SocketAddr,
    /// Where PORTMAP is served.
    pub portmap_address: Option<SocketAddr>,
    listeners: Vec<SocketAddr>,
    threads: Vec<JoinHandle<()>>,
}

struct Sockets {
    tcp: TcpListener,
    portmap_tcp: Option<TcpListener>,
    datagrams: Datagrams,
}

impl Sockets {
    fn bind(config: &Config) -> Result<Sockets> {
        let wrong = |what: &str, port: u16, error| {
            Error::io(format!("listen at {} for {what}", SocketAddr::new(config.listen, port)), error)
        };
        let tcp = TcpListener::bind((config.listen, config.port))
            .map_err(|error| wrong("NFS", config.port, error))?;
        let port = tcp.local_addr().map_err(|error| wrong("NFS", config.port, error))?.port();
        let mut datagrams = Datagrams::default();
        if config.udp {
            datagrams.udp =
                Some(udp(config.listen, port).map_err(|error| wrong("NFS over UDP", port, error))?);
        }
        let mut portmap_tcp = None;
        if let Some(port) = config.portmap_port {
            let hint = "PORTMAP (another portmapper may run here; --no-portmap leaves it to that one)";
            let listener =
                TcpListener::bind((config.listen, port)).map_err(|error| wrong(hint, port, error))?;
            let port = listener.local_addr().map_err(|error| wrong(hint, port, error))?.port();
            datagrams.portmap = Some(udp(config.listen, port).map_err(|error| wrong(hint, port, error))?);
            portmap_tcp = Some(listener);
        }
        Ok(Sockets { tcp, portmap_tcp, datagrams })
    }
}

fn udp(address: IpAddr, port: u16) -> std::io::Result<UdpSocket> {
    let socket = UdpSocket::bind((address, port))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

impl FileWall {
    /// Loads the policies, opens the ports, and starts.
    ///
    /// # Errors
    /// [`Error`]: a policy is wrong, or the system refuses something.
    pub fn start(config: Config) -> Result<FileWall> {
        Self::start_group(config, &Plan::default())
    }

    /// Like [`FileWall::start`], in front of several servers.
    ///
    /// # Errors
    /// [`Error`]: a policy or the plan is wrong, or the system refuses something.
    pub fn start_group(mut config: Config, plan: &Plan) -> Result<FileWall> {
        let (mut retransmits, mut mounts, mut lock) = (Retransmits::default(), None, None);
        if let Some(folder) = &plan.context {
            lock = Some(take_over(folder, plan.standby)?);
            let opened = |name: &str| {
                let path = folder.join(name);
                move |error| Error::io(format!("open {}", path.display()), error)
            };
            retransmits = Retransmits::open(&folder.join("once")).map_err(opened("once"))?;
            mounts = Some(Journal::open(&folder.join("mounts")).map_err(opened("mounts"))?);
        }
        let policy_files = config.policy.as_deref().map(reload::fingerprint).unwrap_or_default();
        let mut chain = match &config.policy {
            Some(path) => policy::load(path, None)?,
            None => Chain::new(Vec::new(), Default::default(), Default::default(), None),
        };
        if let Some(folder) = &plan.context {
            let path = folder.join("places");
            let kept = chain.keep_places(&path);
            kept.map_err(|error| Error::io(format!("open {}", path.display()), error))?;
        }
        let mut router = None;
        let plan = &match chain.servers() {
            Some(servers) => planned(plan, servers)?,
            None => plan.clone(),
        };
        if !plan.is_empty() || chain.servers().is_some() {
            let (started, address) = Router::start(&config.server, plan)?;
            config.server.address = address.ip();
            config.server.nfs_port = address.port();
            config.server.mount_port = Some(address.port());
            router = Some(started);
        }
        if router.is_some() {
            chain.context().places.set_ambiguous();
        }
        if let Some(reason) = chain.refuses_nfs4() {
            tracing::warn!("{reason}");
        }
        let mounts = match mounts {
            Some((mut journal, lines)) => {
                for (handle, path) in lines.iter().filter_map(|line| mount_of(line)) {
                    chain.knows_mount(&handle, path);
                }
                let known = chain.context().places.mounts();
                let kept: Vec<_> = known.iter().map(|(handle, path)| mount_line(handle, path)).collect();
                let rewritten = journal.rewrite(kept.iter().map(Vec::as_slice));
                rewritten.map_err(|error| Error::io("write down what is mounted", error))?;
                Some(Mutex::new(journal))
            }
            None => None,
        };
        if !chain.context().zones.trivial() || chain.knows_files() {
            // Else the first calls by handles of mounts, which clients have from the process before, would have to wait.
            mounter::find_root(&config.server, &chain);
        }
        let sockets = Sockets::bind(&config)?;
        let address = sockets.tcp.local_addr().map_err(|error| Error::io("own address", error))?;
        let portmap_address = sockets.portmap_tcp.as_ref().and_then(|listener| listener.local_addr().ok());
        let ports = Ports {
            tcp: address.port(),
            udp: if config.udp { address.port() } else { 0 },
            portmap: portmap_address.map_or(0, |address| address.port()),
        };
        let (mounter, jobs) = sync_channel(mounter::JOBS_MAX);
        let (mut inboxes, mut ends) = (Vec::new(), Vec::new());
        for _ in 0..config.workers.max(1) {
            let (inbox, end) = inbox::inbox().map_err(|error| Error::io("make an inbox", error))?;
            inboxes.push(inbox);
            ends.push(end);
        }
        let shared = Arc::new(Shared {
            server: config.server,
            limits: config.limits,
            ports,
            chain: Arc::new(ArcSwap::from_pointee(chain)),
            totals: Totals::default(),
            retransmits,
            four: compound::Shared4::default(),
            mounter,
            stop: AtomicBool::new(false),
            listen: config.listen,
            policy: config.policy,
            policy_error: Mutex::default(),
            policy_files: Mutex::new(policy_files),
            policy_order: AtomicU64::new(0),
            inboxes,
            door: Door::new(config.limits.sessions, config.limits.sessions_per_client),
            router,
            mounts,
            _lock: lock,
        });
        let mut wall =
            FileWall { shared, address, portmap_address, listeners: Vec::new(), threads: Vec::new() };
        let mut datagrams = Some(sockets.datagrams);
        for (number, end) in ends.into_iter().enumerate() {
            let worker = Worker::new(number, wall.shared.clone(), end, datagrams.take().unwrap_or_default())
                .map_err(|error| Error::io("start a worker", error))?;
            wall.spawn(format!("filewall-{number}"), move |_| worker.run())?;
        }
        // The helper ends with the process: it may be waiting for a server that does not answer.
        let helper = wall.shared.clone();
        std::thread::Builder::new()
            .name("filewall-mount".to_string())
            .spawn(move || mounter::run(&jobs, &helper))
            .map_err(|error| Error::io("start a thread", error))?;
        for listener in [Some(sockets.tcp), sockets.portmap_tcp].into_iter().flatten() {
            wall.listeners.extend(listener.local_addr().ok());
            wall.spawn("filewall-accept".to_string(), move |shared| accept(&listener, shared))?;
        }
        if wall.shared.policy.is_some() && config.watch {
            wall.spawn("filewall-reload".to_string(), reload::watch)?;
        }
        Ok(wall)
    }

    fn spawn(&mut self, name: String, work: impl FnOnce(&Shared) + Send + 'static) -> Result<()> {
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().name(name).spawn(move || work(&shared));
        self.threads.push(thread.map_err(|error| Error::io("start a thread", error))?);
        Ok(())
    }

    /// Reads the policies again, now. What is wrong is said, and the chain before stays in force.
    ///
    /// # Errors
    /// [`Error::Policy`] or [`Error::Io`].
    pub fn reload(&self) -> Result<()> {
        reload::reload(&self.shared)
    }

    /// Changes files of policies that belong together and are `theirs`, and puts them in force by [`FileWall::reload`], while FileWall reads none by
    /// itself. Other files in the folder are somebody else's: what happens to them meanwhile is put in force afterwards.
    pub fn change_policies<T>(&self, theirs: impl Fn(&Path) -> bool, work: impl FnOnce() -> T) -> T {
        reload::change(&self.shared, theirs, work)
    }

    /// Notes the version of the order that the policies in force come from, to be shown.
    pub fn ordered(&self, version: u64) {
        self.shared.policy_order.store(version, Ordering::Relaxed);
    }

    /// What it has done.
    pub fn status(&self) -> Status {
        let chain = self.shared.chain.load();
        let principal = |principal: &Arc<crate::identity::Principal>| PrincipalRow {
            client: principal.address.to_string(),
            user: principal.label(),
            roles: principal.roles.iter().map(ToString::to_string).collect(),
            usage: principal.usage.snapshot(),
        };
        Status {
            policy_epoch: chain.epoch(),
            policy_order: self.shared.policy_order.load(Ordering::Relaxed),
            policy_error: self.shared.policy_error.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            replicas: self.shared.router.as_ref().map(|router| router.members()).unwrap_or_default(),
            replicas_behind: self.shared.router.as_ref().map(|router| router.behind()).unwrap_or_default(),
            places: chain.places_known(),
            policies: chain.rows(),
            principals: chain.principals().all().iter().map(principal).collect(),
            totals: self.shared.totals.snapshot(),
        }
    }
}

impl Drop for FileWall {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(router) = &self.shared.router {
            router.stop();
        }
        self.shared.inboxes.iter().for_each(Inbox::ring);
        for address in &self.listeners {
            // A connection wakes the thread that accepts.
            let ip = match address.ip() {
                IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
                IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]),
                ip => ip,
            };
            let _ = std::net::TcpStream::connect((ip, address.port()));
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// The plan with the servers that a policy names.
fn planned(plan: &Plan, servers: &Servers) -> Result<Plan> {
    let wrong = |reason: &str| {
        Err(Error::Server { text: "kind: replication".to_string(), reason: reason.to_string() })
    };
    let Some(context) = &plan.context else {
        return wrong("it needs a folder for what must outlive FileWall (--context FOLDER)");
    };
    if !plan.is_empty() {
        return wrong("the servers are given twice: by a policy, and by --replica or --redirect");
    }
    Ok(Plan {
        replicas: servers.replicas.clone(),
        redirects: servers.redirects.clone(),
        state_file: context.join("names"),
        ..plan.clone()
    })
}

/// How long a second FileWall waits when the first has ended: what that one sent is carried out by the server meanwhile, so that
/// what it did not live to answer is settled by what has happened, and not overtaken by it.
const BEFORE_TAKING_OVER: std::time::Duration = std::time::Duration::from_millis(500);

/// Makes the context ours. With `standby`, waits until the one that has it ends.
fn take_over(folder: &std::path::Path, standby: bool) -> Result<std::fs::File> {
    let wrong = |error: std::io::Error| Error::io(format!("context {}", folder.display()), error);
    std::fs::create_dir_all(folder).map_err(wrong)?;
    let lock =
        std::fs::OpenOptions::new().create(true).append(true).open(folder.join("lock")).map_err(wrong)?;
    if standby {
        tracing::info!(context = %folder.display(), "standing by");
        lock.lock().map_err(wrong)?;
        tracing::info!("taking over");
        std::thread::sleep(BEFORE_TAKING_OVER);
        return Ok(lock);
    }
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(std::fs::TryLockError::WouldBlock) => Err(wrong(std::io::Error::new(
            std::io::ErrorKind::AddrInUse,
            "another FileWall has it; --standby waits for its end",
        ))),
        Err(std::fs::TryLockError::Error(error)) => Err(wrong(error)),
    }
}

/// A mount as a line of the context: the length of the handle, the handle, the path.
fn mount_line(handle: &Handle, path: &[u8]) -> Vec<u8> {
    let handle = handle.as_bytes();
    // Handles have at most 128 bytes.
    [&[u8::try_from(handle.len()).unwrap_or(0)], handle, path].concat()
}

fn mount_of(line: &[u8]) -> Option<(Handle, &[u8])> {
    let (length, rest) = line.split_first()?;
    let (handle, path) = rest.split_at_checked(usize::from(*length))?;
    Some((Handle::new(handle)?, path))
}

/// Accepts connections and hands them to the workers in turn.
fn accept(listener: &TcpListener, shared: &Shared) {
    let mut next = 0;
    loop {
        let accepted = listener.accept();
        if shared.stop.load(Ordering::Relaxed) {
            return;
        }
        match accepted {
            Ok((stream, address)) => {
                if let Some(ticket) = shared.admit(address.ip()) {
                    shared.deliver(next, Delivery::Connection(stream, address, ticket));
                    next = (next + 1) % shared.inboxes.len();
                }
            }
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be accepted");
                // Usually there are too many open files; others must close some first.
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
        }
    }
}
