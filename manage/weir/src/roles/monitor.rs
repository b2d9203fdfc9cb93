//! The monitor of a host in the one loop (row O): a plane's process, which verifies what is ordered, does it once, keeps it, acks it and
//! reports by itself ([`weir_monitor::plane`]).
//!
//! ```text
//!  monitor ── reports, acks ──► run/planes/monitor.sock ──► agent ──► controllers ──► `weir status`
//!  monitor ◄── signed updates ──────────┘
//! ```
//!
//! Invariants
//! - Nothing here is needed for repair by policy: a host that has not joined yet, or whose state cannot be written, has a monitor,
//!   which tries again with pauses that double ([`PAUSE_MAX`]) and says why once.
//! - When it ends, nothing is done by order any more.
//! - What releases before ordered of the host's switch is done and undone as it was ([`before`]).

mod before;

use super::plane::{OfHost, failure};
use crate::failure::Failure;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use weir_actuator::{Folders, Runner, Serving};
use weir_model::Label;
use weir_monitor::plane::{Acting, Frozen, Repairer, Telling};
use weir_monitor::service::Monitor;

/// Between two tries, the first and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(16);
/// Folder beside the audit log of what the plane keeps: the monitor's unit may write there.
const FOLDER: &str = "plane";

/// Whose monitor it is.
#[derive(Clone, Debug)]
pub struct Place {
    /// The host.
    pub host: OfHost,
    /// Its name in the domain.
    pub name: Label,
    /// The monitor's audit log.
    pub audit: PathBuf,
}

#[derive(Default)]
struct Slot {
    ends: bool,
    serving: Option<Serving<Repairer<Acting>>>,
}

#[derive(Default)]
struct Shared {
    slot: Mutex<Slot>,
    changed: Condvar,
}

/// A monitor that is, or is about to be, a plane's process; until it is dropped.
pub struct Attached(Arc<Shared>);

impl Shared {
    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits; whether it is to go on.
    fn pause(&self, pause: Duration) -> bool {
        let waited = self.changed.wait_timeout_while(self.slot(), pause, |slot| !slot.ends);
        !waited.unwrap_or_else(PoisonError::into_inner).0.ends
    }
}

impl Attached {
    /// Has a monitor obey and tell its host's controllers, as soon as the host has joined.
    ///
    /// # Errors
    /// [`Failure::Io`] when there are no threads.
    pub fn start(monitor: &Arc<Monitor>, place: Place, telling: Telling) -> Result<Attached, Failure> {
        let shared = Arc::new(Shared::default());
        let (attached, monitor) = (Attached(shared.clone()), Arc::downgrade(monitor));
        let thread = std::thread::Builder::new().name("monitor-plane".into());
        let work = move || attach(&shared, &monitor, &place, &telling);
        thread.spawn(work).map_err(Failure::io("starting the monitor's plane"))?;
        Ok(attached)
    }
}

impl Drop for Attached {
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

fn attach(shared: &Shared, monitor: &Weak<Monitor>, place: &Place, telling: &Telling) {
    let (mut pause, mut told) = (PAUSE_MIN, String::new());
    loop {
        match serve(monitor.clone(), place, telling.clone()) {
            Ok((serving, frozen)) => {
                let mut slot = shared.slot();
                if slot.ends {
                    return;
                }
                slot.serving = Some(serving);
                drop(slot);
                before::follow(monitor.clone(), place, frozen);
                return;
            }
            Err(error) => {
                let reason = error.to_string();
                if reason != told {
                    tracing::warn!(reason, "the controllers are told nothing yet; the monitor goes on");
                    told = reason;
                }
            }
        }
        if !shared.pause(pause) {
            return;
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

fn serve(
    monitor: Weak<Monitor>,
    place: &Place,
    telling: Telling,
) -> Result<(Serving<Repairer<Acting>>, Frozen), Failure> {
    let identity = place.host.identity()?;
    let folders = Folders { state: place.audit.with_file_name(FOLDER), run: place.host.run().to_path_buf() };
    let repairer = Repairer::open(&folders.state, Acting::new(monitor, telling));
    let repairer = repairer.map_err(Failure::io(folders.state.display().to_string()))?;
    let frozen = repairer.frozen();
    let runner = Runner::new(identity, &folders, None, repairer).map_err(failure)?;
    Ok((runner.start().map_err(failure)?, frozen))
}
