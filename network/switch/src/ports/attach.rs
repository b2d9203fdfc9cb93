//! The thread that attaches to the devices of ports. It enters their namespaces, so no other thread has
//! to; a device that is not there, or is used by somebody, is tried again.

use super::{PortError, enter, open_namespace, tap};
use crate::flow::PortIndex;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// First wait before another try; it doubles.
const RETRY_FIRST: Duration = Duration::from_millis(100);
/// Longest wait before another try.
const RETRY_MAX: Duration = Duration::from_secs(2);

/// A device to attach to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Name of the namespace; `None` means the process's own.
    pub netns: Option<String>,
    /// Name of the device.
    pub device: String,
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
    pub result: Result<OwnedFd, PortError>,
}

/// The handle of the thread; dropping it ends the thread.
#[derive(Debug)]
pub struct Attacher(Sender<Wish>);

struct Job {
    wish: u64,
    target: Target,
    next: Instant,
    wait: Duration,
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
                jobs.insert(port, Job { wish, target, next: Instant::now(), wait: RETRY_FIRST });
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
        let result = open(&job.target, home);
        let again = result.is_err();
        job.next = now + job.wait;
        job.wait = (job.wait * 2).min(RETRY_MAX);
        done(Attached { port: *port, wish: job.wish, result });
        again
    });
}

fn open(target: &Target, home: &OwnedFd) -> Result<OwnedFd, PortError> {
    let in_namespace = |namespace: &OwnedFd| {
        enter(namespace).map_err(|source| PortError::NoNamespace {
            name: target.netns.clone().unwrap_or_default(),
            source,
        })
    };
    match &target.netns {
        Some(name) => in_namespace(&open_namespace(name)?)?,
        None => in_namespace(home)?,
    }
    tap::open(&target.device, false)
}
