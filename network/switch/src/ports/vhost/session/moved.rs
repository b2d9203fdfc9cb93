//! A session that goes on in another process (row A30): the virtual machine monitor notices nothing.
//!
//! What moves is the connection itself, the listening socket, the memory files, the events, and the settings. Where the
//! queues go on is in the guest's memory. A session is frozen between two messages; one whose monitor has sent
//! half a message is not handed over, and its monitor finds the connection closed, as after a crash.

use super::device::{Device, Setting};
use super::listener::Listener;
use super::{Session, Speaker, Stop, Tell, run};
use crate::ports::vhost::Socket;
use crate::ports::vhost::memory::Lent;
use crate::ports::vhost::offered::Event;
use crate::ports::vhost::ring::Addresses;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use vhost::vhost_user::BackendReqHandler;

/// A frozen thread looks so often whether it is to go on.
const FROZEN_LOOK: Duration = Duration::from_millis(100);

/// Requests of the protocol that the library keeps something of.
const GET_FEATURES: u32 = 1;
const SET_FEATURES: u32 = 2;
const GET_PROTOCOL_FEATURES: u32 = 15;
const SET_PROTOCOL_FEATURES: u32 = 16;
/// Flags of a message: version 1.
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 12;

/// Settings of a queue, with its events.
#[derive(Debug, Default)]
pub struct MovedQueue {
    /// Descriptors; zero: not told yet.
    pub size: u16,
    /// Where its parts are.
    pub addresses: Option<Addresses>,
    /// The guest's kicks.
    pub kick: Option<OwnedFd>,
    /// Interrupts the guest.
    pub call: Option<OwnedFd>,
    /// Whether it may be used.
    pub enabled: bool,
}

/// What a session is, between two messages.
#[derive(Debug, Default)]
pub struct Moved {
    /// The connection.
    pub stream: Option<OwnedFd>,
    /// Where it listens.
    pub listener: Option<OwnedFd>,
    /// Features of virtio; zero: not told yet.
    pub features: u64,
    /// Features of the protocol.
    pub protocol_features: u64,
    /// The memory that is lent.
    pub memory: Vec<(Lent, OwnedFd)>,
    /// The queues.
    pub queues: Vec<MovedQueue>,
}

impl Stop {
    /// If the session is to be frozen, tells what it is and waits until it may go on, or is over.
    pub(super) fn hold(&self, what: impl FnOnce() -> io::Result<Moved>) {
        // Whoever wakes this thread has said before what for.
        self.wake.clear();
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(asked) = asked else { return };
        match what() {
            // Nobody waits any more: then it is thawed soon.
            Ok(moved) => drop(asked.send(moved)),
            Err(error) => {
                tracing::warn!(%error, "a virtual machine's descriptors cannot be copied: it is not handed over");
            }
        }
        while self.frozen.load(Relaxed) && !self.is_ended() {
            self.wait(None, FROZEN_LOOK);
        }
        self.wake.clear();
    }
}

impl Session {
    /// Asks the session to stand still; what it is comes by the channel when it does.
    pub fn freeze(&self) -> Receiver<Moved> {
        let (sender, receiver) = channel();
        *self.0.asked.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        self.0.frozen.store(true, Relaxed);
        self.0.wake.wake();
        receiver
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        *self.0.asked.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.0.frozen.store(false, Relaxed);
        self.0.wake.wake();
    }

    /// It goes on in another process: its end here closes descriptors and nothing else.
    pub fn leave(&self) {
        self.0.left.store(true, Relaxed);
    }

    /// Goes on with what another process had. If the guest's queues run, that is told before this returns.
    ///
    /// # Errors
    /// When a descriptor is not what it should be, or there is no thread; nothing has been changed at the guest then.
    pub fn resume(socket: Socket, moved: Moved, tell: Tell) -> io::Result<Session> {
        let stop = Arc::new(Stop::new()?);
        let Moved { stream, listener, .. } = &moved;
        let listener = listener.as_ref().map(OwnedFd::try_clone).transpose()?.map(UnixListener::from);
        let listener = listener.map(|listener| Listener::of(listener, &socket.path)).transpose()?;
        let stream = stream.as_ref().map(OwnedFd::try_clone).transpose()?.map(UnixStream::from);
        let speaker = match stream {
            Some(stream) => Some(Speaker::resume(&socket, stream, moved, &stop, &tell)?),
            None => None,
        };
        let seen = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("weir-vhost".into());
        thread.spawn(move || run(&socket, &seen, &tell, listener, speaker))?;
        Ok(Session(stop))
    }
}

impl Listener {
    /// Of a socket that listens already.
    fn of(socket: UnixListener, path: &std::path::Path) -> io::Result<Listener> {
        use std::os::unix::fs::MetadataExt;
        socket.set_nonblocking(true)?;
        let file = std::fs::symlink_metadata(path).map_or((0, 0), |made| (made.dev(), made.ino()));
        Ok(Listener { socket, path: path.to_path_buf(), file, left: false })
    }

    pub(super) fn copy(&self) -> io::Result<OwnedFd> {
        self.socket.try_clone().map(OwnedFd::from)
    }
}

impl Device {
    /// What it is, to go on elsewhere.
    pub(super) fn moved(&self) -> io::Result<Moved> {
        let copy = |event: &Option<Event>| event.as_ref().map(Event::copy).transpose();
        let queue = |setting: &Setting| {
            Ok(MovedQueue {
                size: setting.size,
                addresses: setting.addresses,
                kick: copy(&setting.kick)?,
                call: copy(&setting.call)?,
                enabled: setting.enabled,
            })
        };
        Ok(Moved {
            stream: None,
            listener: None,
            features: self.features,
            protocol_features: self.protocol_features,
            memory: self.memory.as_ref().map(|memory| memory.lent()).transpose()?.unwrap_or_default(),
            queues: self.settings.iter().map(queue).collect::<io::Result<_>>()?,
        })
    }

    /// Has the settings of another process.
    fn take(&mut self, moved: Moved) -> io::Result<()> {
        if moved.queues.len() != self.settings.len() {
            let text =
                format!("{} queues are handed over to a port of {}", moved.queues.len(), self.settings.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        if !moved.memory.is_empty() {
            self.borrow(moved.memory)?;
        }
        let event = |event: Option<OwnedFd>| event.map(Event::offered).transpose();
        for (setting, queue) in self.settings.iter_mut().zip(moved.queues) {
            *setting = Setting {
                size: queue.size,
                addresses: queue.addresses,
                kick: event(queue.kick)?,
                call: event(queue.call)?,
                enabled: queue.enabled,
            };
        }
        self.settled = false;
        self.settle();
        Ok(())
    }
}

impl Speaker {
    /// Goes on with a connection that another process had. What the library remembers of it is private to it: it is told again by the
    /// messages that it came from, on a pair of sockets, whose place the connection then takes.
    fn resume(
        socket: &Socket,
        stream: UnixStream,
        moved: Moved,
        stop: &Stop,
        tell: &Tell,
    ) -> io::Result<Speaker> {
        let watched = stream.try_clone()?;
        *stop.stream() = Some(stream.try_clone()?);
        let device = Arc::new(Mutex::new(Device::new(socket, Arc::clone(tell), Arc::clone(&stop.touched))));
        let (ours, mut monitor) = UnixStream::pair()?;
        let mut handler = BackendReqHandler::from_stream(ours, Arc::clone(&device));
        let mut say = |request: u32, value: Option<u64>| -> io::Result<()> {
            let size = if value.is_some() { 8_u32 } else { 0 };
            let mut message = Vec::with_capacity(HEADER_BYTES + 8);
            for word in [request, VERSION, size] {
                message.extend_from_slice(&word.to_ne_bytes());
            }
            if let Some(value) = value {
                message.extend_from_slice(&value.to_ne_bytes());
            }
            monitor.write_all(&message)?;
            handler.handle_request().map_err(|error| io::Error::other(error.to_string()))?;
            if value.is_none() {
                monitor.read_exact(&mut [0; HEADER_BYTES + 8])?;
            }
            Ok(())
        };
        say(GET_FEATURES, None)?;
        if moved.features != 0 {
            say(SET_FEATURES, Some(moved.features))?;
        }
        if moved.protocol_features != 0 {
            say(GET_PROTOCOL_FEATURES, None)?;
            say(SET_PROTOCOL_FEATURES, Some(moved.protocol_features))?;
        }
        // SAFETY: both descriptors are open and stay their owners': the handler's number names the connection from now on,
        // and its end of the pair is closed.
        #[allow(unsafe_code)]
        let replaced = unsafe { libc::dup3(stream.as_raw_fd(), handler.as_raw_fd(), libc::O_CLOEXEC) };
        if replaced < 0 {
            return Err(io::Error::last_os_error());
        }
        device.lock().unwrap_or_else(PoisonError::into_inner).take(moved)?;
        Ok(Speaker { handler, device, watched })
    }
}
