//! Local actuators: what a process of a plane on a host does to be one (DESIGN 1.7; rows A6, A9, C4).
//!
//! A host is one member of its domain, with one session to each controller. Behind its agent stand several local actuators: the
//! switch, and one process for each plane. Each passes what it is told through a gate of its own, keeps it in a journal of its
//! own, and acks with the host's key: so who says that something is in force is who put it there, and an agent that lies can
//! withhold, not forge.
//!
//! ```text
//!  controllers ◄── session ──► agent (hub) ◄─ run/planes/PLANE.sock ─► Runner ─► Machine ─► Actuator
//!                                  ▲                                               │ gate, journal, numbers
//!                                  └────── control.sock ──► switch                 └ acks and reports, signed
//! ```
//!
//! A plane implements [`Actuator`]: apply one specification, report, count. [`Machine`] is all else but sockets, [`Runner`] the
//! sockets, [`Service`] a process that serves as soon as its host has joined. [`suite!`] is what every actuator must pass, the switch
//! too, which has the gate, its journal, what becomes of a write that fails, and its signatures from the same places
//! ([`weir_trust::kept`], [`weir_trust::signer`]).
//!
//! Invariants
//! - An ack says `Ok` only after the actuator applied the specification and the journal has it.
//! - What the journal holds is applied before anything is served, and again after a fault.
//! - A specification that the actuator refuses, or at which it panics, leaves in force what was in force before.
//! - What could not be applied again is told to nobody as in force, and is tried again when it is sent again.
//! - One update is applied at a time.
//!
//! Departure: the host's list of controllers ([`weir_model::Key::Controllers`]) is the switch's to ack. A plane's gate takes it too, when
//! the agent has it to give, and then takes what enough of them endorsed; before that the hub keeps such batches from it, and controllers
//! send them again with the group's signature.

pub mod book;
pub mod driver;
pub mod machine;
pub mod metrics;
pub mod service;
pub mod suite;

pub use driver::{Runner, Serving};
pub use machine::{Identity, Machine};
pub use metrics::Metric;
pub use service::{Made, Service};

use std::collections::BTreeMap;
use std::path::PathBuf;
use weir_model::Version;
use weir_planes::Plane;

/// What a plane does on a host. The caller keeps and proves; this acts.
pub trait Actuator: Send + 'static {
    /// The vocabulary.
    type Plane: Plane;

    /// The names that this process takes; none means every name of its plane that no other process takes.
    fn names(&self) -> Option<Vec<String>> {
        None
    }

    /// Puts a specification in force under a name, in the place of the one before, or takes it away. It comes again after a restart
    /// and after faults, so doing it twice is doing it once. `version` names the order.
    ///
    /// # Errors
    /// Why it cannot be, for people; what was in force before must be in force then. A message is all that there is: it goes to the
    /// controllers in a refusal and is kept in books ([`book`]), and nobody decides by it.
    fn apply(
        &mut self,
        name: &str,
        spec: Option<&<Self::Plane as Plane>::Spec>,
        version: Version,
    ) -> Result<(), String>;

    /// What is to be told, by name. It is sent when it changed, and again from time to time.
    fn report(&mut self) -> BTreeMap<String, <Self::Plane as Plane>::Report> {
        BTreeMap::new()
    }

    /// What it counts besides.
    fn metrics(&self) -> Vec<Metric> {
        Vec::new()
    }
}

/// Why an actuator cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum ActuatorError {
    /// A file or socket.
    #[error("{what}: {source}")]
    Io {
        /// Which.
        what: String,
        /// Why.
        source: std::io::Error,
    },
    /// The key of the host's identity.
    #[error("the host's identity cannot be read: {0}")]
    Key(String),
    /// The plane has a name that is none.
    #[error("'{0}' is no name of a plane")]
    Name(String),
}

impl ActuatorError {
    fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> ActuatorError {
        let what = what.into();
        |source| ActuatorError::Io { what, source }
    }
}

/// Where an actuator keeps what it has, and where it is found.
#[derive(Clone, Debug)]
pub struct Folders {
    /// Its own folder, made when it is missing: journal and numbers.
    pub state: PathBuf,
    /// Run directory of the host.
    pub run: PathBuf,
}

#[cfg(test)]
mod tests;
