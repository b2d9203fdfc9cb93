//! The socket of a virtual machine's port, and the thread that speaks vhost-user on it.
//!
//! - [`listener`]: how a monitor is met. [`device`]: what it says. [`early`]: what it says too early. [`moved`]: how a session goes on
//!   in another process. [`absent`]: which of the reasons of a port without queues is no fault.
//!
//! The protocol itself, its messages and their checks, is the crate `vhost`'s; here is what they mean. A thread for each
//! port, and sockets that block: a monitor that sends half a message keeps waiting nobody but its own port.
//!
//! Either side may go and come back at any time. The switch listens again, or connects again, until the port is removed. The settings
//! of the queues come anew with every connection; where they go on is in the guest's memory.

mod absent;
mod device;
mod early;
mod listener;
mod moved;

pub use absent::awaits_guest;
pub use moved::{Moved, MovedQueue};

use super::Socket;
use super::guest::Guest;
use super::touched::{All, Touched};
use crate::engine::sys::Wakeup;
use crate::ports::seldom::Seldom;
use device::Device;
use early::Enable;
use listener::{Listener, meet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use vhost::vhost_user::{BackendReqHandler, Error};

/// First wait before the socket is tried again; it doubles.
const RETRY_FIRST: Duration = Duration::from_millis(50);
/// Longest wait before the socket is tried again.
const RETRY_MAX: Duration = Duration::from_secs(1);
/// A session looks so often whether it is over, while nothing is said.
const MESSAGE_WAIT: Duration = Duration::from_secs(1);

/// What a monitor says that is refused, and starts and stops of its queues, cost the slow path and the log something: so many in each
/// [`PACE_SPAN`] are carried out at once, and each further one keeps its own monitor waiting for [`RETRY_FIRST`].
const PACED: u32 = 64;
const PACE_SPAN: Duration = Duration::from_secs(10);
/// Refusals that are logged in each [`TOLD_SPAN`].
const TOLD: u32 = 4;
const TOLD_SPAN: Duration = Duration::from_secs(60);

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
    touched: Arc<Touched>,
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
            touched: Arc::new(Touched::new(All::process())),
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

    /// Bytes of memory that are lent now, and bytes that were touched here first.
    pub fn memory(&self) -> (u64, u64) {
        self.0.touched.read()
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
    let mut seldom = Seldoms { pace: Seldom::new(PACED, PACE_SPAN), told: Seldom::new(TOLD, TOLD_SPAN) };
    match &speaker {
        None => tell(Told::Waits(absent::nobody(&socket.path, absent::NOT_YET))),
        Some(speaker) if !speaker.runs() => tell(Told::Waits(absent::not_started(&socket.path))),
        Some(_) => {}
    }
    while !stop.is_ended() {
        let spoke = match speaker.take() {
            Some(speaker) => Ok(Some(speaker)),
            None => {
                let listens = || listener.as_ref().map(Listener::copy).transpose();
                stop.hold(|| Ok(Moved { listener: listens()?, ..Moved::default() }));
                if stop.is_ended() {
                    break;
                }
                let waits = || tell(Told::Waits(absent::not_started(&socket.path)));
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
                let reason = speaker.speak(socket, stop, tell, listener.as_ref(), &mut seldom);
                if stop.left.load(Relaxed) {
                    break;
                }
                tell(Told::Waits(absent::nobody(&socket.path, &reason)));
                // One that comes and goes for ever costs this thread a little time only.
                stop.wait(None, RETRY_FIRST);
            }
            Err(error) if !socket.listens && absent::is_nobody(&error) => {
                tell(Told::Waits(absent::nobody(&socket.path, absent::NOBODY_LISTENS)));
                stop.wait(None, wait);
                wait = (wait * 2).min(RETRY_MAX);
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

/// Tells what was refused, or could not be made, since the last time: the monitor may go on, and has heard of it by a reply at most, and
/// whoever runs it should know why nothing comes. Returns whether there was anything.
fn tell_problem(device: &mut Device, socket: &Socket, tell: &Tell, told: &mut Seldom) -> bool {
    let Some(problem) = device.problem.take() else { return false };
    if let Some(untold) = told.again(Instant::now()) {
        let path = socket.path.display();
        tracing::warn!(socket = %path, problem, untold, "a virtual machine was refused something");
    }
    if device.running.is_none() {
        tell(Told::Waits(problem));
    }
    true
}

/// What a port's monitors may cause so often, over all their connections.
struct Seldoms {
    pace: Seldom,
    told: Seldom,
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
        let device = Arc::new(Mutex::new(Device::new(socket, Arc::clone(tell), Arc::clone(&stop.touched))));
        Ok(Speaker { handler: BackendReqHandler::from_stream(stream, Arc::clone(&device)), device, watched })
    }

    /// Whether the engine has queues of the guest.
    fn runs(&self) -> bool {
        self.device.lock().unwrap_or_else(PoisonError::into_inner).running.is_some()
    }

    /// Speaks with the monitor until the connection ends; returns why it did.
    fn speak(
        mut self,
        socket: &Socket,
        stop: &Stop,
        tell: &Tell,
        listener: Option<&Listener>,
        seldom: &mut Seldoms,
    ) -> String {
        let mut looked = Instant::now();
        // What another process lent queues for may be refused here.
        tell_problem(
            &mut self.device.lock().unwrap_or_else(PoisonError::into_inner),
            socket,
            tell,
            &mut seldom.told,
        );
        // The stream is known to whoever ends this before the flag is looked at: no end is missed.
        let reason = loop {
            if stop.is_ended() {
                break "the port is gone".to_string();
            }
            let is_said = stop.wait(Some(self.watched.as_fd()), MESSAGE_WAIT);
            // Also at one who always says something.
            if looked.elapsed() >= MESSAGE_WAIT {
                looked = Instant::now();
                let device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
                if let Err(reason) = device.look_at_memory() {
                    break reason.to_string();
                }
            }
            if !is_said {
                let grown = self.device.lock().unwrap_or_else(PoisonError::into_inner).grown();
                if let (Some(bytes), Some(untold)) =
                    (grown, grown.and_then(|_| seldom.told.again(Instant::now())))
                {
                    let (path, mib) = (socket.path.display(), bytes >> 20);
                    tracing::warn!(
                        socket = %path, mib, untold,
                        "a virtual machine's memory has grown since it was lent: what the switch touched first of it is charged to the switch; \
                         have it made beforehand (prealloc=on)"
                    );
                }
                stop.hold(|| self.moved(listener));
                continue;
            }
            let enable = Enable::next(&self.watched);
            let mut handled = self.handler.handle_request();
            let mut device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
            if let (Err(Error::InactiveFeature(_)), Some(enable)) = (&handled, enable) {
                handled = enable.carry_out(&mut device, &self.watched).map_err(Error::SocketError);
            }
            match handled {
                Ok(()) => {
                    let mut costs = device.settle();
                    costs |= tell_problem(&mut device, socket, tell, &mut seldom.told);
                    drop(device);
                    if costs && seldom.pace.again(Instant::now()).is_none() {
                        stop.wait(None, RETRY_FIRST);
                    }
                }
                // One that is killed resets its connection.
                Err(Error::Disconnected | Error::SocketBroken(_)) => break absent::GONE.to_string(),
                // A reply said so, if one was wanted; the protocol has no other way to refuse.
                Err(Error::ReqHandlerError(error)) => break error.to_string(),
                Err(error) => break device.problem.take().unwrap_or_else(|| error.to_string()),
            }
        };
        *stop.stream() = None;
        self.device.lock().unwrap_or_else(PoisonError::into_inner).withdraw();
        stop.touched.gone();
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
