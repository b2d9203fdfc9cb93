//! What a process of the switch works with: opened by itself, or handed over by another one.

use super::{
    CHECKPOINT_FILE, CONNECTIONS_FILE, LOCK_FILE, NUMBERS_FILE, NUMBERS_RESERVED, Secrets, SwitchError,
    file_error, system,
};
use crate::config::SwitchConfig;
use crate::control::punt::PuntSocket;
use crate::control::{self, CONTROL_SOCKET, PUNT_SOCKET};
use crate::engine::port::{Device, Port};
use crate::engine::{Command, EXTERNAL, sys};
use crate::handover::message::CarriedTap;
use crate::handover::new::Taken;
use crate::handover::store::{Found, KeptUnderlay, Store};
use crate::handover::{self, HandoverError, KILL_LIMIT};
use crate::mark::{self, InHand, MARK_FILE, Mark};
use crate::ports;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_base::journal::Journal;
use weir_base::numbers::Numbers;
use weir_base::world::{Clock, RealClock, RealDisk};
use weir_model::resource::Encapsulation;
use weir_model::signed::GroupKey;
use weir_trust::batch::Verifier;
use weir_trust::gate::Gate;
use weir_trust::kept::OpenGate;

/// How often a lock is tried that a process holds which is ending.
const LOCK_LOOK: Duration = Duration::from_millis(2);
/// How long, and how often, an address is tried that has just been let go.
const RELEASE_LIMIT: Duration = Duration::from_secs(1);
const RELEASE_LOOK: Duration = Duration::from_millis(5);
/// Most frames of one device that are dropped because it was in hand, and the longest of them, bytes.
const WAITING_MAX: usize = 16_384;
const WAITING_BYTES_MAX: usize = 72 * 1024;
/// Linux's `IP_PMTUDISC_DO` and `IPV6_PMTUDISC_DO`: never fragment.
const PMTUDISC_DO: libc::c_int = 2;

pub(super) fn lock(run_dir: &Path) -> Result<OwnedFd, SwitchError> {
    use rustix::fs::{FlockOperation, flock};
    let path = run_dir.join(LOCK_FILE);
    let file = std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(|error| file_error("the lock", &path, error))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {
            let lock = file.into();
            handover::sign_lock(&lock).map_err(|error| file_error("the lock", &path, error))?;
            Ok(lock)
        }
        Err(rustix::io::Errno::WOULDBLOCK) => Err(SwitchError::Running(run_dir.to_path_buf())),
        Err(error) => Err(file_error("the lock", &path, error)),
    }
}

/// Waits until nobody holds the lock of the run directory, for as long as a process may take to end that was killed.
pub(super) fn wait_for_lock(run_dir: &Path) {
    let until = Instant::now() + KILL_LIMIT;
    while matches!(lock(run_dir), Err(SwitchError::Running(_))) && Instant::now() < until {
        std::thread::sleep(LOCK_LOOK);
    }
}

pub(super) fn gate_opener(config: &SwitchConfig, group_key: GroupKey) -> OpenGate {
    let (name, domain) = (config.name.clone(), config.domain.clone());
    let path = config.state_dir.join(CHECKPOINT_FILE);
    Box::new(move || Gate::open(name.clone(), Verifier::new(domain.clone(), group_key.clone()), &path))
}

/// Opens the numbers of events. Without the file, or with a damaged one, the clock keeps them rising.
pub(super) fn open_numbers(config: &SwitchConfig) -> Result<Numbers, SwitchError> {
    let path = config.state_dir.join(NUMBERS_FILE);
    let bad = |error| file_error("the numbers of events", &path, error);
    let disk = RealDisk::open(&config.state_dir).map_err(bad)?;
    let now_ms = RealClock::new().wall_ms();
    let numbers = Numbers::open(Arc::new(disk), NUMBERS_FILE, NUMBERS_RESERVED, now_ms).map_err(bad)?;
    if numbers.damaged {
        tracing::warn!(path = %path.display(), "the numbers of events are damaged: they go on from the clock");
    }
    Ok(numbers)
}

/// Opens the journal of connections. One that is not a journal is an error: it may be somebody's file.
pub(super) fn open_journal(config: &SwitchConfig) -> Result<(Journal, Vec<Vec<u8>>), SwitchError> {
    let path = config.state_dir.join(CONNECTIONS_FILE);
    Journal::open(&path).map_err(|error| file_error("the journal of connections", &path, error))
}

/// The device of the outside.
#[derive(Clone, Debug)]
pub(super) struct Outside {
    pub(super) name: String,
    pub(super) device: Arc<OwnedFd>,
    pub(super) mac: [u8; 6],
}

/// Makes the device of the outside.
pub(super) fn open_outside(config: &SwitchConfig) -> Result<Option<Outside>, SwitchError> {
    let Some(external) = &config.external else { return Ok(None) };
    let (device, mac) = ports::create_external(&external.device, external.mtu, &external.addresses)?;
    Ok(Some(Outside { name: external.device.clone(), device: Arc::new(device), mac }))
}

/// The device of the outside that another process had, or a new one if it is not the one that is wanted.
pub(super) fn adopt_outside(
    config: &SwitchConfig,
    taken: &mut Taken,
) -> Result<Option<Outside>, SwitchError> {
    let Some(external) = &config.external else { return Ok(None) };
    match taken.taps.remove(&None).filter(|(tap, _)| tap.device == external.device) {
        Some((tap, device)) => {
            let mac = ports::tap::mac(device.as_fd(), &tap.device)?;
            Ok(Some(Outside { name: tap.device, device: Arc::new(device), mac }))
        }
        None => open_outside(config),
    }
}

/// The device of the outside that a crashed process had, as the settings want it now, or a new one.
fn outside_again(config: &SwitchConfig, found: &mut Taken) -> Result<Option<Outside>, SwitchError> {
    found
        .taps
        .retain(|_, (tap, device)| ports::tap::is_at(device.as_fd(), tap.netns.as_deref(), &tap.device));
    let is_kept = found.taps.contains_key(&None);
    let outside = adopt_outside(config, found)?;
    if let (true, Some(external)) = (is_kept, &config.external) {
        ports::settle_external(&external.device, external.mtu, &external.addresses)?;
    }
    Ok(outside)
}

/// The command that gives the outside to the engine.
pub(super) fn outside_port(outside: &Outside) -> Command {
    // The kernel takes a frame for its own by the destination alone.
    let router = [0x02, 0x57, 0x52, 0, 0, 0];
    let device = Device::Tap(Arc::clone(&outside.device));
    Command::SetPort(EXTERNAL, Box::new(Port { device, up: true, ethernet: Some((outside.mac, router)) }))
}

/// Sockets with their formats.
pub(super) type Sockets = Vec<(OwnedFd, Encapsulation)>;

pub(super) fn copies(sockets: &Sockets) -> io::Result<Sockets> {
    sockets.iter().map(|(socket, format)| Ok((socket.try_clone()?, *format))).collect()
}

/// Opens sockets where others have just been let go: a program that is about to begin may have copies of them for a moment, between its fork and
/// its exec.
fn open_released(config: &SwitchConfig) -> Result<(Sockets, Sockets), SwitchError> {
    let until = Instant::now() + RELEASE_LIMIT;
    loop {
        match open_sockets(config) {
            Err(SwitchError::Underlay { source, .. })
                if source.kind() == io::ErrorKind::AddrInUse && Instant::now() < until =>
            {
                std::thread::sleep(RELEASE_LOOK);
            }
            result => return result,
        }
    }
}

/// What a switch works with: opened by itself, or handed over.
pub(super) struct Given {
    pub(super) lock: OwnedFd,
    pub(super) control: UnixListener,
    pub(super) punt: PuntSocket,
    pub(super) receivers: Sockets,
    pub(super) senders: Sockets,
    pub(super) outside: Option<Outside>,
    pub(super) gate: Gate,
    pub(super) journal: (Journal, Vec<Vec<u8>>),
    /// Where the switch's own clock begins.
    pub(super) start: Instant,
    /// Where the supervisor keeps what is open.
    pub(super) store: Store,
    /// What a crashed process had open, until the ports take it.
    pub(super) found: Taken,
    /// Whether another process still has the rest.
    pub(super) taken: bool,
    /// What is in hand, for the process after this one.
    pub(super) mark: Mark,
    /// Frames that were dropped because the process before this one had their device in hand when it ended.
    pub(super) left_waiting: u64,
}

impl Given {
    /// Opens all of it, when no other process serves.
    pub(super) fn fresh(config: &SwitchConfig, secrets: &Secrets) -> Result<Given, SwitchError> {
        let lock = lock(&config.run_dir)?;
        let mut store = Store::new(&config.run_dir);
        let Found { underlay, taken: mut found } = store.find();
        let (receivers, senders) = match underlay.map(|kept| sockets_again(config, kept)) {
            Some(Some(sockets)) => sockets,
            Some(None) => {
                // They are bound to what the settings say no more, or in another number.
                store.release_underlay();
                open_released(config)?
            }
            None => open_sockets(config)?,
        };
        let (mark, in_hand) = open_mark(&config.run_dir);
        let left_waiting = in_hand.map_or(0, |in_hand| drop_waiting(in_hand, &found, &receivers));
        let gate = gate_opener(config, secrets.group_key.clone())();
        let checkpoint = config.state_dir.join(CHECKPOINT_FILE);
        Ok(Given {
            lock,
            control: control::listen(&config.run_dir.join(CONTROL_SOCKET))
                .map_err(system("opening the control socket"))?,
            punt: PuntSocket::bind(&config.run_dir.join(PUNT_SOCKET))
                .map_err(system("opening the punt socket"))?,
            receivers,
            senders,
            outside: outside_again(config, &mut found)?,
            gate: gate.map_err(|error| file_error("the checkpoint", &checkpoint, error))?,
            journal: open_journal(config)?,
            start: Instant::now(),
            store,
            found,
            taken: false,
            mark,
            left_waiting,
        })
    }

    /// Takes what another process handed over first, and follows its files.
    pub(super) fn taken(
        config: &SwitchConfig,
        secrets: &Secrets,
        fixed: handover::Fixed,
        now_ms: u64,
    ) -> Result<Given, SwitchError> {
        let count = usize::from(config.engine.source_ports);
        let of = |format| fixed.senders.iter().filter(|(_, of)| *of == format).count();
        if fixed.receivers.len() != 2
            || of(Encapsulation::Geneve) != count
            || of(Encapsulation::Vxlan) != count
        {
            let text =
                format!("the settings say {count} source ports, the other process has others: restart");
            return Err(HandoverError::Own(text).into());
        }
        let path = config.state_dir.join(CHECKPOINT_FILE);
        let verifier = Verifier::new(config.domain.clone(), secrets.group_key.clone());
        let gate = Gate::follow(config.name.clone(), verifier, &path);
        let connections = config.state_dir.join(CONNECTIONS_FILE);
        // Its records are those of connections that come by the socket, with more of them.
        let journal = Journal::follow(&connections).map(|(journal, _)| (journal, Vec::new()));
        let control = UnixListener::from(fixed.control);
        control.set_nonblocking(true).map_err(system("taking the control socket"))?;
        Ok(Given {
            lock: fixed.lock,
            control,
            punt: PuntSocket::on(fixed.punt.into(), &config.run_dir.join(PUNT_SOCKET))
                .map_err(system("taking the punt socket"))?,
            receivers: fixed.receivers,
            senders: fixed.senders,
            outside: None,
            gate: gate.map_err(|error| file_error("the checkpoint", &path, error))?,
            journal: journal
                .map_err(|error| file_error("the journal of connections", &connections, error))?,
            start: Instant::now().checked_sub(Duration::from_millis(now_ms)).unwrap_or_else(Instant::now),
            store: Store::new(&config.run_dir),
            found: Taken::default(),
            taken: true,
            mark: open_mark(&config.run_dir).0,
            left_waiting: 0,
        })
    }
}

/// The mark of the run directory. Without it what waits after a crash is served, whatever it is.
fn open_mark(run_dir: &Path) -> (Mark, Option<InHand>) {
    Mark::open(run_dir).unwrap_or_else(|error| {
        let path = run_dir.join(MARK_FILE);
        tracing::warn!(path = %path.display(), %error, "what is in hand is not marked for the process after this one");
        (Mark::none(), None)
    })
}

/// Drops what waits in the device that a crashed process had in hand: it may be what ended it.
fn drop_waiting(in_hand: InHand, found: &Taken, receivers: &Sockets) -> u64 {
    let mut room = vec![0; WAITING_BYTES_MAX];
    let mut drain = |device: BorrowedFd<'_>| {
        let waiting = (0..WAITING_MAX).take_while(|_| sys::read(device, &mut room).is_ok());
        waiting.count() as u64
    };
    let (what, count) = match in_hand {
        InHand::Underlay => {
            let sockets = receivers.iter().map(|(socket, _)| drain(socket.as_fd()));
            ("the underlay".to_string(), sockets.sum())
        }
        InHand::Device(name) => {
            let is_it = |tap: &CarriedTap| mark::name_of(tap.netns.as_deref(), &tap.device) == name;
            match found.taps.values().find(|(tap, _)| is_it(tap)) {
                Some((tap, device)) => (tap.device.clone(), drain(device.as_fd())),
                None => return 0,
            }
        }
    };
    tracing::warn!(what, count, "in hand when the last process ended: what waited there is dropped");
    count
}

/// The sockets of the underlay that a crashed process had, if they are what the settings say. What came meanwhile waits in them.
fn sockets_again(
    config: &SwitchConfig,
    (of, fds): (KeptUnderlay, Vec<OwnedFd>),
) -> Option<(Sockets, Sockets)> {
    if of != underlay_of(config) {
        return None;
    }
    let mut fds = fds.into_iter();
    let receivers: Sockets = fds.by_ref().take(of.receivers.len()).zip(of.receivers).collect();
    let senders: Sockets = fds.zip(of.senders).collect();
    let again = receivers.iter().chain(&senders).try_for_each(|(socket, _)| {
        let socket = UdpSocket::from(socket.try_clone()?);
        set_options(&socket, config.underlay, config.engine.socket_buffer_bytes)
    });
    again.ok().map(|()| (receivers, senders))
}

/// What the sockets of the underlay are, by the settings, in the order in which [`open_sockets`] makes them.
pub(super) fn underlay_of(config: &SwitchConfig) -> KeptUnderlay {
    let formats = [Encapsulation::Geneve, Encapsulation::Vxlan];
    let count = usize::from(config.engine.source_ports);
    KeptUnderlay {
        address: (config.underlay, config.geneve_port, config.vxlan_port),
        receivers: formats.to_vec(),
        senders: formats.iter().flat_map(|format| std::iter::repeat_n(*format, count)).collect(),
    }
}

/// Opens the sockets of the underlay: those that receive, and those that send.
///
/// # Errors
/// [`SwitchError::Underlay`].
pub(super) fn open_sockets(config: &SwitchConfig) -> Result<(Sockets, Sockets), SwitchError> {
    let address = config.underlay;
    let (mut receivers, mut senders) = (Vec::new(), Vec::new());
    for (format, port) in
        [(Encapsulation::Geneve, config.geneve_port), (Encapsulation::Vxlan, config.vxlan_port)]
    {
        let receiver = open_socket(config, SocketAddr::new(address, port))?;
        if config.engine.source_ports == 1 {
            senders.push((receiver.try_clone().map_err(system("copying a descriptor"))?, format));
        } else {
            for _ in 0..config.engine.source_ports {
                senders.push((open_socket(config, SocketAddr::new(address, 0))?, format));
            }
        }
        receivers.push((receiver, format));
    }
    Ok((receivers, senders))
}

pub(super) fn open_socket(config: &SwitchConfig, address: SocketAddr) -> Result<OwnedFd, SwitchError> {
    let failed = |source| SwitchError::Underlay { address, source };
    let socket = UdpSocket::bind(address).map_err(failed)?;
    socket.set_nonblocking(true).map_err(failed)?;
    set_options(&socket, address.ip(), config.engine.socket_buffer_bytes).map_err(failed)?;
    Ok(socket.into())
}

pub(super) fn set_options(socket: &UdpSocket, address: IpAddr, buffer_bytes: u32) -> io::Result<()> {
    let fd = socket.as_fd();
    let bytes = i32::try_from(buffer_bytes).unwrap_or(i32::MAX);
    sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes)?;
    sys::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, bytes)?;
    sys::set_option(fd, libc::SOL_UDP, sys::UDP_GRO, 1)?;
    if address.is_ipv6() {
        sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, PMTUDISC_DO)?;
        sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)
    } else {
        sys::set_option(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, PMTUDISC_DO)?;
        sys::set_option(fd, libc::IPPROTO_IP, libc::IP_RECVTOS, 1)
    }
}
