//! The thread that attaches to the devices of ports. It enters their namespaces, so no other thread has
//! to; a device that is not there, or is used by somebody, is tried again. Where AF_XDP is wanted and cannot be had, AF_PACKET is
//! taken, and the reason told.

use super::{PortError, enter, open_namespace, packet, tap, veth, xdp};
use crate::flow::PortIndex;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use weir_model::resource::{AttachmentKind, host_end};

/// First wait before another try; it doubles.
const RETRY_FIRST: Duration = Duration::from_millis(100);
/// Longest wait before another try.
const RETRY_MAX: Duration = Duration::from_secs(2);
/// Tries after which a device whose frames somebody else has by AF_XDP is had by AF_PACKET: a switch that has just ended has let
/// go of it by then.
const BUSY_TRIES_MAX: u32 = 5;

/// A device to attach to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Name of the namespace; `None` means the process's own.
    pub netns: Option<String>,
    /// Name of the device.
    pub device: String,
    /// A TAP, or which way to have the frames of a veth pair.
    pub kind: AttachmentKind,
}

impl Target {
    /// Name of the device that the switch opens.
    pub fn opened(&self) -> String {
        match self.kind.is_veth() {
            true => host_end(self.netns.as_deref(), &self.device),
            false => self.device.clone(),
        }
    }
}

/// A device that was attached to.
#[derive(Debug)]
pub enum Opened {
    /// A TAP.
    Tap(OwnedFd),
    /// AF_PACKET; why it is not AF_XDP, if that was wanted.
    Packet(Arc<OwnedFd>, Option<String>),
    /// AF_XDP.
    Xdp(Box<xdp::Socket>),
}

enum Wish {
    Attach(PortIndex, u64, Target),
    Forget(PortIndex),
}

/// What came of a try.
#[derive(Debug)]
pub struct Attached {
    /// The port.
    pub port: PortIndex,
    /// The caller's number of the wish: an answer to an older one is void.
    pub wish: u64,
    /// The device, or why there is none yet; it is tried again then.
    pub result: Result<Opened, PortError>,
}

/// The handle of the thread; dropping it ends the thread.
#[derive(Debug)]
pub struct Attacher(Sender<Wish>);

struct Job {
    wish: u64,
    target: Target,
    next: Instant,
    wait: Duration,
    tries: u32,
}

impl Attacher {
    /// Starts the thread. `done` is called in it with each result.
    ///
    /// # Errors
    /// When there is no thread or the own namespace cannot be opened.
    pub fn start(done: impl Fn(Attached) + Send + 'static) -> io::Result<Attacher> {
        let (sender, wishes) = channel();
        let home: OwnedFd = std::fs::File::open("/proc/thread-self/ns/net")?.into();
        std::thread::Builder::new().name("weir-attach".into()).spawn(move || run(&wishes, &home, &done))?;
        Ok(Attacher(sender))
    }

    /// Attaches to a device; an earlier wish for the port is void.
    pub fn attach(&self, port: PortIndex, wish: u64, target: Target) {
        // The thread lives as long as the sender.
        let _ = self.0.send(Wish::Attach(port, wish, target));
    }

    /// Stops trying.
    pub fn forget(&self, port: PortIndex) {
        let _ = self.0.send(Wish::Forget(port));
    }
}

fn run(wishes: &Receiver<Wish>, home: &OwnedFd, done: &dyn Fn(Attached)) {
    // At most one job a port, so at most `PORTS_MAX`.
    let mut jobs: BTreeMap<PortIndex, Job> = BTreeMap::new();
    loop {
        let now = Instant::now();
        let wait = jobs.values().map(|job| job.next.saturating_duration_since(now)).min();
        match wishes.recv_timeout(wait.unwrap_or(RETRY_MAX)) {
            Ok(Wish::Attach(port, wish, target)) => {
                jobs.insert(port, Job { wish, target, next: Instant::now(), wait: RETRY_FIRST, tries: 0 });
            }
            Ok(Wish::Forget(port)) => {
                jobs.remove(&port);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        try_due(&mut jobs, home, done);
    }
}

fn try_due(jobs: &mut BTreeMap<PortIndex, Job>, home: &OwnedFd, done: &dyn Fn(Attached)) {
    let now = Instant::now();
    jobs.retain(|port, job| {
        if job.next > now {
            return true;
        }
        job.tries += 1;
        let result = open(&job.target, home, job.tries < BUSY_TRIES_MAX);
        let again = result.is_err();
        job.next = now + job.wait;
        job.wait = (job.wait * 2).min(RETRY_MAX);
        done(Attached { port: *port, wish: job.wish, result });
        again
    });
}

fn go_to(netns: Option<&str>, home: &OwnedFd) -> Result<(), PortError> {
    let in_namespace = |namespace: &OwnedFd| {
        enter(namespace)
            .map_err(|source| PortError::NoNamespace { name: netns.unwrap_or_default().to_string(), source })
    };
    match netns {
        Some(name) => in_namespace(&open_namespace(name)?),
        None => in_namespace(home),
    }
}

fn open(target: &Target, home: &OwnedFd, is_patient: bool) -> Result<Opened, PortError> {
    if target.kind.is_veth() {
        return open_veth(target, home, is_patient);
    }
    go_to(target.netns.as_deref(), home)?;
    tap::open(&target.device, false).map(Opened::Tap)
}

/// Opens the host's end of a veth pair, and tells the other end what it may leave to us.
fn open_veth(target: &Target, home: &OwnedFd, is_patient: bool) -> Result<Opened, PortError> {
    let offer = |on: bool| {
        go_to(target.netns.as_deref(), home)?;
        veth::set_offloads(&target.device, on)
    };
    let name = target.opened();
    let mut why = None;
    if target.kind == AttachmentKind::AfXdp {
        // First: a frame that says nothing of its checksum must have one.
        let opened = offer(false).and_then(|()| go_to(None, home)).and_then(|()| {
            veth::prepare(&name)?;
            xdp::Socket::open(&name)
        });
        match opened {
            Ok(socket) => return Ok(Opened::Xdp(Box::new(socket))),
            Err(error @ (PortError::NoDevice(_) | PortError::NoNamespace { .. })) => return Err(error),
            Err(error @ PortError::Busy(_)) if is_patient => return Err(error),
            Err(error) => why = Some(error.to_string()),
        }
    }
    go_to(None, home)?;
    veth::prepare(&name)?;
    let socket = packet::open(&name)?;
    offer(true)?;
    let why = why.map(|why| format!("by AF_PACKET, not AF_XDP: {why}"));
    Ok(Opened::Packet(Arc::new(socket), why))
}
