//! A FileWall as an actuator of its host: it verifies what is ordered of it, puts it in force, keeps it, and acks it itself.
//!
//! ```text
//!  FileWall (gate, journal) ◄── run/planes/filewall-NAME.sock ── agent ◄── controllers ◄── `weir filewall push`
//! ```
//!
//! Policies are put into the folder and in force as a whole, as [`Orders`] does it; what that refuses is the refusal that
//! whoever ordered it sees. A withdrawal leaves in force what is in force, as nobody's order.

use super::{KEPT_FILE, Orders};
use crate::failure::Failure;
use crate::roles::plane::{OfHost, Place};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use weir_actuator::service::Weak;
use weir_actuator::{Actuator, Service};
use weir_filewall::policy;
use weir_filewall::proxy::FileWall;
use weir_model::Version;
use weir_model::filewall::PolicySet;
use weir_planes::filewall::{FileWall as FileWallPlane, Report, Spec};

/// How often it is looked whether there are policies.
const LOOK: Duration = Duration::from_millis(100);

/// See the module.
pub struct Wall {
    orders: Orders,
    /// It, once it serves.
    serves: Option<Arc<FileWall>>,
    /// Of the order in force; 0 where none is.
    version: u64,
}

impl Wall {
    /// One that does not serve yet, with what was in force last.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn new(orders: Orders) -> Result<Wall, Failure> {
        let version = orders.mend()?.unwrap_or(0);
        Ok(Wall { orders, serves: None, version })
    }

    /// It serves from now on. What came since the version that it was started with is put in force.
    ///
    /// # Errors
    /// The policies in the folder are wrong.
    pub fn serve(&mut self, wall: Arc<FileWall>, started_with: u64) -> Result<(), Failure> {
        if self.version != started_with {
            wall.reload().map_err(|error| Failure::Input(error.to_string()))?;
        }
        wall.ordered(self.version);
        self.serves = Some(wall);
        Ok(())
    }
}

impl Actuator for Wall {
    type Plane = FileWallPlane;

    fn names(&self) -> Option<Vec<String>> {
        Some(vec![self.orders.wall.to_string()])
    }

    fn apply(&mut self, _name: &str, spec: Option<&Spec>, version: Version) -> Result<(), String> {
        let Some(spec) = spec else {
            tracing::warn!("the order of policies is withdrawn; they stay as they are");
            return Ok(());
        };
        let kept = self.orders.read(KEPT_FILE).map_err(|failure| failure.to_string())?;
        let set = PolicySet { version, files: spec.files.clone() };
        if kept.is_none_or(|kept| kept.version != version.0 || kept.files != set.files) {
            match &self.serves {
                Some(wall) => self.orders.take_into(wall, &set)?,
                None => self.orders.take(&set, || policy::load(&self.orders.folder, None).map(drop))?,
            }
        }
        self.version = version.0;
        if let Some(wall) = &self.serves {
            wall.ordered(version.0);
        }
        Ok(())
    }

    fn report(&mut self) -> BTreeMap<String, Report> {
        let report = Report { version: self.version };
        BTreeMap::from([(self.orders.wall.to_string(), report)])
    }
}

/// A FileWall that takes orders, and may not serve yet.
pub struct Ordered(Service<Wall>);

impl Ordered {
    /// Takes orders for a FileWall of a host, as soon as that has joined.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn start(host: OfHost, orders: Orders) -> Result<Ordered, Failure> {
        let place = Place::OfHost(orders.wall.clone());
        host.serve(place, move |_| Wall::new(orders.clone())).map(Ordered)
    }

    /// Waits for policies, if there are none from before: without any nothing is served. Gives their version.
    pub fn first(&self) -> u64 {
        let mut told = false;
        loop {
            self.0.wait();
            match self.0.with(|machine| machine.actuator().version) {
                Some(0) if !told => {
                    tracing::info!("waiting for the first order of policies");
                    told = true;
                }
                Some(0) | None => {}
                Some(version) => return version,
            }
            std::thread::sleep(LOOK);
        }
    }

    /// It serves from now on; see [`Wall::serve`].
    ///
    /// # Errors
    /// [`Failure`].
    pub fn serve(&self, wall: Arc<FileWall>, started_with: u64) -> Result<(), Failure> {
        self.0.with(|machine| machine.actuator().serve(wall, started_with)).unwrap_or(Ok(()))
    }

    /// Tells what it counts.
    pub fn metrics(&self) -> Weak<Wall> {
        self.0.weak()
    }
}

#[cfg(test)]
mod tests;
