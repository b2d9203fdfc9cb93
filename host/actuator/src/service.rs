//! A plane's process in the one loop, whatever it is besides: as soon as its host has joined it serves, and until then it tries again.
//!
//! What a process does beside the plane (filtering calls, repairing by policy) does not wait for this. Whose it is, where it keeps what
//! it has and what acts are read anew at each try, because a host joins while the process runs.
//!
//! Invariants
//! - Tries have pauses that double, to [`PAUSE_MAX`]; why it does not serve is logged once for each reason.
//! - When it is dropped nothing is applied any more, also when it was about to begin.

use crate::machine::Machine;
use crate::{Actuator, ActuatorError, Folders, Identity, Runner, Serving};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use weir_model::Label;
use weir_planes::Plane;

/// Between two tries, the first and the longest.
pub const PAUSE_MIN: Duration = Duration::from_millis(500);
/// See [`PAUSE_MIN`].
pub const PAUSE_MAX: Duration = Duration::from_secs(16);

/// What serves.
pub struct Made<A: Actuator> {
    /// Whose it is, and whom it believes.
    pub identity: Identity,
    /// Where it keeps what it has, and where it is found.
    pub folders: Folders,
    /// Tells several processes of one plane apart.
    pub instance: Option<Label>,
    /// What acts.
    pub actuator: A,
}

/// Makes what serves; an error says why that cannot be yet.
pub type Make<A> = Box<dyn FnMut() -> Result<Made<A>, String> + Send>;

struct Slot<A: Actuator> {
    ends: bool,
    serving: Option<Serving<A>>,
}

struct Shared<A: Actuator> {
    slot: Mutex<Slot<A>>,
    changed: Condvar,
    tries: AtomicU64,
}

/// See the module.
pub struct Service<A: Actuator>(Arc<Shared<A>>);

impl<A: Actuator> Shared<A> {
    fn slot(&self) -> MutexGuard<'_, Slot<A>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, work: impl FnOnce(&mut Machine<A>) -> T) -> Option<T> {
        self.slot().serving.as_ref().map(|serving| serving.with(work))
    }

    fn wait(&self) {
        let waited = self.changed.wait_while(self.slot(), |slot| !slot.ends && slot.serving.is_none());
        drop(waited);
    }
}

impl<A: Actuator> Service<A> {
    /// Begins in a thread of its own.
    ///
    /// # Errors
    /// [`ActuatorError::Io`] when there are no threads.
    pub fn start(make: Make<A>) -> Result<Service<A>, ActuatorError> {
        let slot = Mutex::new(Slot { ends: false, serving: None });
        let shared = Arc::new(Shared { slot, changed: Condvar::new(), tries: AtomicU64::new(0) });
        let service = Service(shared.clone());
        let thread = std::thread::Builder::new().name(format!("{}-plane", A::Plane::NAME));
        let spawned = thread.spawn(move || attach(&shared, make));
        spawned.map_err(ActuatorError::io("starting a plane"))?;
        Ok(service)
    }

    /// Does something with the machine, between two updates; nothing while it does not serve.
    pub fn with<T>(&self, work: impl FnOnce(&mut Machine<A>) -> T) -> Option<T> {
        self.0.with(work)
    }

    /// Waits until it serves.
    pub fn wait(&self) {
        self.0.wait();
    }

    /// Tries that failed.
    pub fn tries(&self) -> u64 {
        self.0.tries.load(Ordering::Relaxed)
    }

    /// For whoever tells of it and must not keep it.
    pub fn weak(&self) -> Weak<A> {
        Weak(Arc::downgrade(&self.0))
    }
}

impl<A: Actuator> Drop for Service<A> {
    fn drop(&mut self) {
        let serving = {
            let mut slot = self.0.slot();
            slot.ends = true;
            slot.serving.take()
        };
        self.0.changed.notify_all();
        drop(serving);
    }
}

/// A service as long as somebody keeps it.
pub struct Weak<A: Actuator>(std::sync::Weak<Shared<A>>);

impl<A: Actuator> Clone for Weak<A> {
    fn clone(&self) -> Weak<A> {
        Weak(self.0.clone())
    }
}

impl<A: Actuator> Weak<A> {
    /// As [`Service::with`].
    pub fn with<T>(&self, work: impl FnOnce(&mut Machine<A>) -> T) -> Option<T> {
        self.0.upgrade()?.with(work)
    }

    /// Waits until it serves or ends.
    pub fn wait(&self) {
        self.0.upgrade().into_iter().for_each(|shared| shared.wait());
    }

    /// Its metrics as Prometheus text; nothing while it does not serve.
    pub fn metrics_text(&self) -> String {
        self.with(|machine| machine.metrics_text()).unwrap_or_default()
    }
}

fn begin<A: Actuator>(made: Made<A>) -> Result<Serving<A>, String> {
    let Made { identity, folders, instance, actuator } = made;
    let runner = Runner::new(identity, &folders, instance.as_ref(), actuator);
    runner.and_then(Runner::start).map_err(|error| error.to_string())
}

fn attach<A: Actuator>(shared: &Shared<A>, mut make: Make<A>) {
    let (mut pause, mut told) = (PAUSE_MIN, String::new());
    loop {
        if shared.slot().ends {
            return;
        }
        match make().and_then(begin) {
            Ok(serving) => {
                let mut slot = shared.slot();
                if !slot.ends {
                    slot.serving = Some(serving);
                    shared.changed.notify_all();
                }
                return;
            }
            Err(reason) => {
                shared.tries.fetch_add(1, Ordering::Relaxed);
                if reason != told {
                    let plane = A::Plane::NAME;
                    tracing::warn!(plane, reason, "the controllers are told nothing yet; all else goes on");
                    told = reason;
                }
            }
        }
        let waited = shared.changed.wait_timeout_while(shared.slot(), pause, |slot| !slot.ends);
        if waited.unwrap_or_else(PoisonError::into_inner).0.ends {
            return;
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}
