//! The socket of a virtual machine's port, and the thread that speaks vhost-user on it.
//!
//! The protocol itself, its messages and their checks, is the crate `vhost`'s; here is what they mean. A thread for each
//! port, and sockets that block: a monitor that sends half a message keeps waiting nobody but its own port.
//!
//! Either side may go and come back at any time. The switch listens again, or connects again, until the port is removed. The settings
//! of the queues come anew with every connection; where they go on is in the guest's memory.

mod moved;

pub use moved::{Moved, MovedQueue};

use super::guest::{Guest, Pair};
use super::memory::{Lent, Memory};
use super::ring::{Addresses, Queue};
use super::{Socket, feature};
use crate::engine::sys::Wakeup;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{
    BackendReqHandler, Error, GpuBackend, Result as Reply, VhostUserBackendReqHandlerMut,
};

/// First wait before the socket is tried again; it doubles.
const RETRY_FIRST: Duration = Duration::from_millis(50);
/// Longest wait before the socket is tried again.
const RETRY_MAX: Duration = Duration::from_secs(1);
/// A session looks so often whether it is over, while nothing is said.
const MESSAGE_WAIT: Duration = Duration::from_secs(1);
/// How long the engine may keep queues that are asked for. It lets go of them in its next turn; should it be stuck, the
/// guest's memory stays mapped for it.
const LET_GO_BOUND: Duration = Duration::from_secs(10);
/// Mode of the socket that the switch listens on: its own user and group, which a folder with the set-group-ID bit gives.
const SOCKET_MODE: u32 = 0o660;

/// What a session tells.
#[derive(Debug)]
pub enum Told {
    /// The guest's queues, to be worked with.
    Runs(Box<Guest>),
    /// There are none, for this reason; those that were given are to be let go.
    Waits(String),
    /// The socket cannot be had, for this reason; it is tried again.
    Failed(String),
}

/// Tells what became of a port's socket.
pub type Tell = Arc<dyn Fn(Told) + Send + Sync>;

/// Ends a session's thread.
#[derive(Debug)]
struct Stop {
    ended: AtomicBool,
    wake: Wakeup,
    stream: Mutex<Option<UnixStream>>,
    /// Who wants to know what the session is, which is to stand still.
    asked: Mutex<Option<Sender<Moved>>>,
    frozen: AtomicBool,
    /// The session goes on in another process.
    left: AtomicBool,
}

impl Stop {
    fn new() -> io::Result<Stop> {
        Ok(Stop {
            ended: AtomicBool::new(false),
            wake: Wakeup::new()?,
            stream: Mutex::new(None),
            asked: Mutex::new(None),
            frozen: AtomicBool::new(false),
            left: AtomicBool::new(false),
        })
    }

    fn stream(&self) -> MutexGuard<'_, Option<UnixStream>> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_ended(&self) -> bool {
        self.ended.load(Relaxed)
    }

    /// Waits for the end, at most so long, or until `also` has input; returns whether it has.
    fn wait(&self, also: Option<BorrowedFd<'_>>, timeout: Duration) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let wake = self.wake.fd();
        let mut fds = vec![PollFd::new(&wake, PollFlags::IN)];
        if let Some(also) = &also {
            fds.push(PollFd::new(also, PollFlags::IN));
        }
        let timeout =
            Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
        // A signal ends the wait early, which the callers' loops allow for.
        let _ = poll(&mut fds, Some(&timeout));
        fds.get(1).is_some_and(|fd| !fd.revents().is_empty())
    }
}

/// A port's socket. Dropping it ends the thread and the connection.
#[derive(Debug)]
pub struct Session(Arc<Stop>);

impl Session {
    /// Starts to meet virtual machines at a socket.
    ///
    /// # Errors
    /// When there is no thread or wakeup.
    pub fn start(socket: Socket, tell: Tell) -> io::Result<Session> {
        let stop = Arc::new(Stop::new()?);
        let seen = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("weir-vhost".into());
        thread.spawn(move || run(&socket, &seen, &tell, None, None))?;
        Ok(Session(stop))
    }

    /// Ends the connection; a new one is taken.
    pub fn disconnect(&self) {
        if let Some(stream) = &*self.0.stream() {
            // It fails for one that is closed already.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.0.ended.store(true, Relaxed);
        self.0.wake.wake();
        if !self.0.left.load(Relaxed) {
            self.disconnect();
        }
    }
}

fn run(
    socket: &Socket,
    stop: &Stop,
    tell: &Tell,
    mut listener: Option<Listener>,
    mut speaker: Option<Speaker>,
) {
    let mut wait = RETRY_FIRST;
    while !stop.is_ended() {
        let spoke = match speaker.take() {
            Some(speaker) => Ok(Some(speaker)),
            None => {
                let listens = || listener.as_ref().map(Listener::copy).transpose();
                stop.hold(|| Ok(Moved { listener: listens()?, ..Moved::default() }));
                if stop.is_ended() {
                    break;
                }
                let path = socket.path.display();
                let waits = || {
                    tell(Told::Waits(format!("the virtual machine at '{path}' has not started its device")))
                };
                meet(socket, &mut listener, stop).and_then(|stream| {
                    stream
                        .inspect(|_| waits())
                        .map(|stream| Speaker::new(socket, stream, stop, tell))
                        .transpose()
                })
            }
        };
        match spoke {
            Ok(None) => {}
            Ok(Some(speaker)) => {
                wait = RETRY_FIRST;
                let path = socket.path.display();
                let reason = speaker.speak(socket, stop, tell, listener.as_ref());
                if stop.left.load(Relaxed) {
                    break;
                }
                tell(Told::Waits(format!("no virtual machine is at '{path}': {reason}")));
                // One that comes and goes for ever costs this thread a little time only.
                stop.wait(None, RETRY_FIRST);
            }
            Err(error) => {
                tell(Told::Failed(format!("socket '{}': {error}", socket.path.display())));
                stop.wait(None, wait);
                wait = (wait * 2).min(RETRY_MAX);
            }
        }
    }
    if let Some(listener) = &mut listener {
        listener.left = stop.left.load(Relaxed);
    }
}

/// The socket that a switch listens on. It removes the file that it made, and no other.
struct Listener {
    socket: UnixListener,
    path: std::path::PathBuf,
    file: (u64, u64),
    /// Another process listens on it.
    left: bool,
}

impl Listener {
    fn new(path: &Path) -> io::Result<Listener> {
        remove_stale(path)?;
        let socket = UnixListener::bind(path)?;
        socket.set_nonblocking(true)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(SOCKET_MODE))?;
        let made = std::fs::symlink_metadata(path)?;
        Ok(Listener { socket, path: path.to_path_buf(), file: (made.dev(), made.ino()), left: false })
    }

    fn is_there(&self) -> bool {
        std::fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.file)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if !self.left && self.is_there() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Removes a socket that nobody listens on, which a process that was killed leaves behind.
fn remove_stale(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::other(
                "there is a file that is no socket: remove it, or choose another path",
            ));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(io::Error::other("another process listens there: end it, or choose another path")),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        Err(error) => Err(error),
    }
}

/// A connection; `None` when there is none yet.
fn meet(socket: &Socket, listener: &mut Option<Listener>, stop: &Stop) -> io::Result<Option<UnixStream>> {
    if !socket.listens {
        return UnixStream::connect(&socket.path).map(Some);
    }
    if listener.as_ref().is_some_and(|listener| !listener.is_there()) {
        // Somebody removed it, and nobody could find it any more.
        *listener = None;
    }
    let listener = match listener {
        Some(listener) => listener,
        None => listener.insert(Listener::new(&socket.path)?),
    };
    // Whoever comes when this is over is met by the process that goes on.
    if !stop.wait(Some(listener.socket.as_fd()), RETRY_MAX) || stop.is_ended() {
        return Ok(None);
    }
    match listener.socket.accept() {
        Ok((stream, _)) => {
            stream.set_nonblocking(false)?;
            Ok(Some(stream))
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// A connection with a monitor.
struct Speaker {
    handler: BackendReqHandler<Mutex<Device>>,
    device: Arc<Mutex<Device>>,
    /// The connection, to wait for it.
    watched: UnixStream,
}

impl Speaker {
    fn new(socket: &Socket, stream: UnixStream, stop: &Stop, tell: &Tell) -> io::Result<Speaker> {
        let watched = stream.try_clone()?;
        *stop.stream() = Some(stream.try_clone()?);
        let device = Arc::new(Mutex::new(Device::new(socket, Arc::clone(tell))));
        Ok(Speaker { handler: BackendReqHandler::from_stream(stream, Arc::clone(&device)), device, watched })
    }

    /// Speaks with the monitor until the connection ends; returns why it did.
    fn speak(mut self, socket: &Socket, stop: &Stop, tell: &Tell, listener: Option<&Listener>) -> String {
        // The stream is known to whoever ends this before the flag is looked at: no end is missed.
        let reason = loop {
            if stop.is_ended() {
                break "the port is gone".to_string();
            }
            if !stop.wait(Some(self.watched.as_fd()), MESSAGE_WAIT) {
                stop.hold(|| self.moved(listener));
                continue;
            }
            let handled = self.handler.handle_request();
            let mut device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
            match handled {
                Ok(()) => {
                    device.settle();
                    // A refusal that the monitor was told by a reply; it may go on, and whoever runs it should know why not.
                    if let Some(problem) = device.problem.take() {
                        tracing::warn!(socket = %socket.path.display(), problem, "a virtual machine was refused something");
                        if device.running.is_none() {
                            tell(Told::Waits(problem));
                        }
                    }
                }
                Err(Error::Disconnected) => break "it has gone".to_string(),
                // Monitors enable or disable queues before they say with which features: QEMU when it makes the device,
                // DPDK first thing on a new connection. It means nothing, because they do it again when the queues are set up.
                Err(Error::InactiveFeature(_)) => {}
                // A reply said so, if one was wanted; the protocol has no other way to refuse.
                Err(Error::ReqHandlerError(error)) => break error.to_string(),
                Err(error) => break device.problem.take().unwrap_or_else(|| error.to_string()),
            }
        };
        *stop.stream() = None;
        self.device.lock().unwrap_or_else(PoisonError::into_inner).withdraw();
        reason
    }

    /// What the connection is, between two messages.
    fn moved(&self, listener: Option<&Listener>) -> io::Result<Moved> {
        let moved = self.device.lock().unwrap_or_else(PoisonError::into_inner).moved()?;
        Ok(Moved {
            stream: Some(self.watched.try_clone()?.into()),
            listener: listener.map(Listener::copy).transpose()?,
            ..moved
        })
    }
}

/// Settings of one queue.
#[derive(Debug, Default)]
struct Setting {
    size: u16,
    addresses: Option<Addresses>,
    kick: Option<Arc<OwnedFd>>,
    call: Option<Arc<OwnedFd>>,
    enabled: bool,
}

/// The device as the monitor sets it up.
struct Device {
    tell: Tell,
    pairs: u16,
    features: u64,
    protocol_features: u64,
    memory: Option<Arc<Memory>>,
    settings: Vec<Setting>,
    /// The pairs that the engine works with, and what ends when it has let go of them.
    running: Option<(Vec<usize>, Receiver<()>)>,
    /// Whether nothing was changed since the pairs were last looked at.
    settled: bool,
    /// Why the last message was refused.
    problem: Option<String>,
}

impl Device {
    fn new(socket: &Socket, tell: Tell) -> Device {
        let settings = (0..2 * socket.pairs).map(|_| Setting::default()).collect();
        Device {
            tell,
            pairs: socket.pairs,
            features: 0,
            protocol_features: 0,
            memory: None,
            settings,
            running: None,
            settled: true,
            problem: None,
        }
    }

    fn offered(&self) -> u64 {
        if self.pairs > 1 { feature::OFFERED | feature::MQ } else { feature::OFFERED }
    }

    fn refuse<T>(&mut self, problem: impl Into<String>) -> Reply<T> {
        self.problem = Some(problem.into());
        Err(Error::InvalidParam)
    }

    /// Takes the queues back from the engine, and waits until it has let go of them.
    fn withdraw(&mut self) {
        self.settled = false;
        let Some((_, let_go)) = self.running.take() else { return };
        (self.tell)(Told::Waits("the virtual machine is setting up its device".into()));
        if let_go.recv_timeout(LET_GO_BOUND) == Err(RecvTimeoutError::Timeout) {
            tracing::error!("the engine does not let go of a virtual machine's queues");
        }
    }

    /// The settings of a queue, to be changed. If it runs, it runs no more.
    fn change(&mut self, index: u32) -> Reply<&mut Setting> {
        let runs = |pairs: &Vec<usize>| pairs.contains(&(index as usize / 2));
        if self.running.as_ref().is_some_and(|(pairs, _)| runs(pairs)) {
            self.withdraw();
        }
        self.settled = false;
        let count = self.settings.len();
        if index as usize >= count {
            return self.refuse(format!("there are {count} queues, and {index} is not one of them"));
        }
        Ok(&mut self.settings[index as usize])
    }

    /// Gives the engine what can run, if that is more than what runs.
    fn settle(&mut self) {
        if std::mem::replace(&mut self.settled, true) {
            return;
        }
        let Some(memory) = self.memory.clone() else { return };
        let ready: Vec<usize> = (0..usize::from(self.pairs)).filter(|pair| self.is_ready(*pair)).collect();
        let runs = self.running.as_ref().map(|(pairs, _)| pairs.clone()).unwrap_or_default();
        if ready == runs {
            return;
        }
        self.withdraw();
        self.settled = true;
        if ready.is_empty() {
            return;
        }
        match ready.iter().map(|pair| self.pair(*pair, &memory)).collect::<Result<Vec<_>, String>>() {
            Ok(pairs) => {
                let (held, let_go) = channel();
                self.running = Some((ready, let_go));
                let guest = Guest::new(memory, pairs, self.features, Some(held));
                (self.tell)(Told::Runs(Box::new(guest)));
            }
            Err(problem) => (self.tell)(Told::Waits(problem)),
        }
    }

    fn is_ready(&self, pair: usize) -> bool {
        // Without the protocol's features a queue is enabled as soon as it can be kicked.
        let always = self.features & feature::PROTOCOL_FEATURES == 0;
        let ready = |setting: &Setting| {
            setting.size > 0
                && setting.addresses.is_some()
                && setting.kick.is_some()
                && (always || setting.enabled)
        };
        ready(&self.settings[2 * pair]) && ready(&self.settings[2 * pair + 1])
    }

    fn pair(&self, pair: usize, memory: &Memory) -> Result<Pair, String> {
        let [receive, transmit] = [&self.settings[2 * pair], &self.settings[2 * pair + 1]];
        let queue = |setting: &Setting| {
            let addresses = setting.addresses.unwrap_or_default();
            Queue::new(memory, setting.size, addresses, self.features & feature::EVENT_IDX != 0)
        };
        let Some(transmit_kick) = transmit.kick.clone() else { return Err("a queue has no kick".into()) };
        Ok(Pair {
            receive: queue(receive)?,
            receive_call: receive.call.clone(),
            transmit: queue(transmit)?,
            transmit_call: transmit.call.clone(),
            transmit_kick,
        })
    }

    fn reset(&mut self) {
        self.withdraw();
        self.settings = (0..2 * self.pairs).map(|_| Setting::default()).collect();
    }

    fn event(&mut self, file: Option<File>) -> Reply<Option<Arc<OwnedFd>>> {
        let Some(file) = file else { return Ok(None) };
        match as_event(file.into()) {
            Ok(event) => Ok(Some(Arc::new(event))),
            Err(error) => self.refuse(error.to_string()),
        }
    }
}

/// Checks that a descriptor is an event, and makes it one that blocks nobody.
fn as_event(file: OwnedFd) -> io::Result<OwnedFd> {
    use std::os::fd::AsRawFd;
    let what = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    if what.as_os_str() != "anon_inode:[eventfd]" {
        let text = format!("a queue's event is '{}': it must be an eventfd", what.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    rustix::io::ioctl_fionbio(file.as_fd(), true)?;
    Ok(file)
}

fn unsupported<T>() -> Reply<T> {
    Err(Error::InvalidOperation("this is a network device, which has no such thing"))
}

impl VhostUserBackendReqHandlerMut for Device {
    fn set_owner(&mut self) -> Reply<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Reply<()> {
        self.reset();
        Ok(())
    }

    fn reset_device(&mut self) -> Reply<()> {
        self.reset();
        Ok(())
    }

    fn get_features(&mut self) -> Reply<u64> {
        Ok(self.offered())
    }

    fn set_features(&mut self, features: u64) -> Reply<()> {
        self.withdraw();
        let unknown = features & !self.offered();
        if unknown != 0 {
            return self.refuse(format!("features {unknown:#x} are wanted that were not offered"));
        }
        self.features = features;
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy_listening: Option<bool>,
    ) -> Reply<Option<Vec<u64>>> {
        self.withdraw();
        self.memory = None;
        let lent = |region: &VhostUserMemoryRegion| Lent {
            guest: region.guest_phys_addr,
            user: region.user_addr,
            length: region.memory_size,
            offset: region.mmap_offset,
        };
        let lent = regions.iter().map(lent).zip(files.into_iter().map(OwnedFd::from)).collect();
        match Memory::map(lent) {
            Ok(memory) => {
                self.memory = Some(Arc::new(memory));
                Ok(None)
            }
            Err(error) => self.refuse(error.to_string()),
        }
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Reply<()> {
        let size = u16::try_from(num).ok().filter(|size| *size > 0);
        match size {
            Some(size) => self.change(index).map(|setting| setting.size = size),
            None => self.refuse(format!("queue {index} has {num} descriptors: 1 to 32768 are right")),
        }
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptors: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Reply<()> {
        let addresses = Addresses { descriptors, available, used };
        self.change(index).map(|setting| setting.addresses = Some(addresses))
    }

    fn set_vring_base(&mut self, index: u32, _base: u32) -> Reply<()> {
        // Frames are done with in order, so what the guest's memory says was given back is the base; after a
        // restart of either side it is the only number that is right.
        self.change(index).map(drop)
    }

    fn get_vring_base(&mut self, index: u32) -> Reply<VhostUserVringState> {
        let setting = self.change(index)?;
        setting.kick = None;
        let (size, addresses) = (setting.size, setting.addresses);
        let position = match (&self.memory, addresses) {
            (Some(memory), Some(addresses)) => Queue::position(memory, size, addresses).unwrap_or(0),
            _ => 0,
        };
        Ok(VhostUserVringState::new(index, u32::from(position)))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Reply<()> {
        let Some(kick) = self.event(fd)? else {
            return self.refuse("a queue without a kick is wanted to be looked at all the time: give it one");
        };
        self.change(index.into()).map(|setting| setting.kick = Some(kick))
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Reply<()> {
        let call = self.event(fd)?;
        self.change(index.into()).map(|setting| setting.call = call)
    }

    fn set_vring_err(&mut self, _index: u8, _fd: Option<File>) -> Reply<()> {
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Reply<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::REPLY_ACK)
    }

    fn set_protocol_features(&mut self, features: u64) -> Reply<()> {
        self.protocol_features = features;
        Ok(())
    }

    fn get_queue_num(&mut self) -> Reply<u64> {
        // The protocol's number for network devices is that of pairs.
        Ok(u64::from(self.pairs))
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Reply<()> {
        self.change(index).map(|setting| setting.enabled = enable)
    }

    fn get_config(&mut self, _offset: u32, _size: u32, _flags: VhostUserConfigFlags) -> Reply<Vec<u8>> {
        unsupported()
    }

    fn set_config(&mut self, _offset: u32, _buf: &[u8], _flags: VhostUserConfigFlags) -> Reply<()> {
        unsupported()
    }

    fn set_gpu_socket(&mut self, _gpu_backend: GpuBackend) -> Reply<()> {
        unsupported()
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Reply<File> {
        unsupported()
    }

    fn get_inflight_fd(&mut self, _inflight: &VhostUserInflight) -> Reply<(VhostUserInflight, File)> {
        unsupported()
    }

    fn set_inflight_fd(&mut self, _inflight: &VhostUserInflight, _file: File) -> Reply<()> {
        unsupported()
    }

    fn get_max_mem_slots(&mut self) -> Reply<u64> {
        unsupported()
    }

    fn add_mem_region(
        &mut self,
        _region: &VhostUserSingleMemoryRegion,
        _fd: File,
        _postcopy_listening: Option<bool>,
    ) -> Reply<Option<u64>> {
        unsupported()
    }

    fn remove_mem_region(&mut self, _region: &VhostUserSingleMemoryRegion) -> Reply<()> {
        unsupported()
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _fd: File,
    ) -> Reply<Option<File>> {
        unsupported()
    }

    fn check_device_state(&mut self) -> Reply<()> {
        unsupported()
    }

    fn get_shmem_config(&mut self) -> Reply<VhostUserShMemConfig> {
        unsupported()
    }

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Reply<()> {
        unsupported()
    }
}
