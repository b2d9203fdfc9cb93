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
//!   and the plane is tried again ([`weir_actuator::service`]).
//! - When it ends, nothing is done by order any more.
//! - What releases before ordered of the host's switch is done and undone as it was ([`before`]).

mod before;

use super::plane::{self, OfHost};
use crate::failure::Failure;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weir_actuator::{Service, service};
use weir_model::Label;
use weir_monitor::plane::{Acting, Repairer, Telling};
use weir_monitor::service::Monitor;

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

/// A monitor that is, or is about to be, a plane's process; until it is dropped.
pub struct Attached(Service<Repairer<Acting>>);

impl Attached {
    /// Has a monitor obey and tell its host's controllers, as soon as the host has joined.
    ///
    /// # Errors
    /// [`Failure::Io`] when there are no threads.
    pub fn start(monitor: &Arc<Monitor>, place: Place, telling: Telling) -> Result<Attached, Failure> {
        let acting = Arc::downgrade(monitor);
        let at = plane::Place::At(place.audit.with_file_name(FOLDER));
        let make = move |folder: &Path| {
            let repairer = Repairer::open(folder, Acting::new(acting.clone(), telling.clone()));
            repairer.map_err(Failure::io(folder.display().to_string()))
        };
        let service = place.host.clone().serve(at, make)?;
        if !place.host.has_switch() {
            return Ok(Attached(service));
        }
        let (serves, watched) = (service.weak(), Arc::downgrade(monitor));
        let thread = std::thread::Builder::new().name("monitor-before".into());
        let work = move || {
            serves.wait();
            // Nothing when it was told to end.
            if let Some(frozen) = serves.with(|machine| machine.actuator().frozen()) {
                before::follow(watched, &place, frozen);
            }
        };
        thread.spawn(work).map_err(Failure::io("starting the monitor's plane"))?;
        Ok(Attached(service))
    }

    /// Tells what it counts.
    pub fn metrics(&self) -> service::Weak<Repairer<Acting>> {
        self.0.weak()
    }
}
