//! The monitor as a plane's process of its host: what it is ordered to do with cgroups, and what it tells of the host (row O).
//!
//! ```text
//!  monitor (gate, journal) ◄── run/planes/monitor.sock ── agent ◄── controllers ◄── `weir monitor repair`
//!          └── acks and reports, signed with the host's key ─────────► controllers ──► `weir status`
//! ```
//!
//! The contract applies a specification before it is kept in the journal, and applies again what was kept, after a restart and after
//! faults. A freeze is a state, and bears that. A kill is something that is done: so what is done is written down ([`Book`]), by
//! the order's id, before it is done and after.
//!
//! Invariants
//! - A kill is done at most once for its id, whatever comes again, is replayed or is put back. One that was begun when the process
//!   ended, of which nobody knows whether it was done, is refused in words: whoever still wants it orders it again.
//! - A freeze is tried once for its id. What it froze is frozen for as long as the order stands, also after a restart, and is thawed
//!   when the order is withdrawn, taken over by a kill, or held by no order that is known here any more ([`UNHELD_LOOKS`]).
//! - What is refused leaves in force what was in force before: what could not be frozen whole is thawed, what could not be killed stays
//!   frozen where it was.
//! - Nothing here is needed for repair by policy.

mod told;

pub use told::{Telling, note};

use crate::ordered::{self, Ordered};
use crate::service::Monitor;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use weir_actuator::book::{Book, Known, Which};
use weir_actuator::{Actuator, Metric};
use weir_model::Version;
use weir_model::health::{REPAIRS_MAX, RepairAction};
use weir_planes::monitor::{HEALTH, Monitor as MonitorPlane, Report, Spec};

/// So often reports are asked for before a cgroup is thawed that is frozen by an order that nobody has given again. That happens when
/// the process ended between the freeze and its journal; the controllers send again what stands.
pub const UNHELD_LOOKS: u32 = 60;
/// Most cgroups of which it is remembered what was done.
pub const CGROUPS_MAX: usize = 4 * REPAIRS_MAX;
/// The file of that in the folder of the plane.
const FILE: &str = "repairs.json";
/// What is said of a kill that was begun, and no more is known.
pub const UNKNOWN: &str =
    "the monitor ended in the midst of it, and whether it was done is not known: order it again";
/// What is said when there is no monitor any more that could do it.
const ENDING: &str = "the monitor was ending: order it again";

/// What acts, and what is told.
pub trait Hands: Send + 'static {
    /// Whether it can act now.
    fn is_up(&self) -> bool {
        true
    }

    /// Carries something out, and writes down for people what came of it.
    ///
    /// # Errors
    /// Why it was not done, in words.
    fn carry_out(&self, version: u64, cgroup: &str, what: Ordered) -> Result<(), String>;

    /// Whether a cgroup is frozen.
    fn is_frozen(&self, cgroup: &str) -> bool;

    /// What is to be told of the host, if anything is known.
    fn report(&mut self) -> Option<Report>;
}

fn which(spec: &Spec) -> Which<'_, RepairAction> {
    (&spec.id, &spec.action)
}

/// Cgroups that are frozen by order now, for whoever else would thaw them.
#[derive(Clone, Debug, Default)]
pub struct Frozen(Arc<Mutex<BTreeSet<String>>>);

impl Frozen {
    /// Whether one of them is this.
    pub fn has(&self, cgroup: &str) -> bool {
        self.set().contains(cgroup)
    }

    fn set(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the module.
pub struct Repairer<H: Hands> {
    hands: H,
    book: Book<RepairAction>,
    frozen: Frozen,
    /// Frozen by an order of which nothing was heard since the start.
    unheld: BTreeSet<String>,
    looks: u32,
    refused_again: u64,
}

impl<H: Hands> Repairer<H> {
    /// One that remembers in a folder what it did.
    ///
    /// # Errors
    /// What it did cannot be read.
    pub fn open(folder: &Path, hands: H) -> std::io::Result<Repairer<H>> {
        let book = Book::open(folder, FILE, CGROUPS_MAX)?;
        let unheld: BTreeSet<String> = book.held().map(str::to_string).collect();
        let frozen = Frozen(Arc::new(Mutex::new(unheld.clone())));
        Ok(Repairer { hands, book, frozen, unheld, looks: 0, refused_again: 0 })
    }

    /// What is frozen by order.
    pub fn frozen(&self) -> Frozen {
        self.frozen.clone()
    }

    /// What acts.
    pub fn hands(&self) -> &H {
        &self.hands
    }

    /// What is known of an order.
    pub fn known(&self, cgroup: &str, spec: &Spec) -> Option<&Known<RepairAction>> {
        self.book.find(cgroup, which(spec))
    }

    fn mark(&mut self, cgroup: &str, by: Option<u64>) {
        self.book.mark(cgroup, by);
        match by {
            Some(_) => drop(self.frozen.set().insert(cgroup.to_string())),
            None => drop(self.frozen.set().remove(cgroup)),
        }
    }

    /// Has it written down before it is done. What cannot be written down is not done.
    fn begin(&mut self, cgroup: &str, spec: &Spec, version: Version) -> Result<(), String> {
        self.book.begin(cgroup, which(spec), version.0);
        self.book.keep().map_err(|error| {
            self.book.forget(cgroup, which(spec));
            format!("nothing was done, because it cannot be written down: {error}")
        })
    }

    /// Has it written down what came of it. Where that fails a kill counts as one of which nobody knows after a restart.
    fn end(&mut self, cgroup: &str, spec: &Spec, outcome: Result<(), String>) -> Result<(), String> {
        self.book.end(cgroup, which(spec), outcome.clone());
        self.keep();
        outcome
    }

    fn keep(&self) {
        if let Err(error) = self.book.keep() {
            tracing::error!(%error, "what was done by order is not kept");
        }
    }

    fn withdraw(&mut self, cgroup: &str, version: Version) -> Result<(), String> {
        if self.book.held_by(cgroup).is_some() {
            self.hands.carry_out(version.0, cgroup, Ordered::Thaw)?;
            self.mark(cgroup, None);
            self.keep();
        }
        Ok(())
    }

    fn freeze(&mut self, cgroup: &str, spec: &Spec, version: Version) -> Result<(), String> {
        let before = self.book.held_by(cgroup);
        match self.book.find(cgroup, which(spec)).and_then(|known| known.outcome.clone()) {
            Some(Err(reason)) => {
                self.refused_again += 1;
                return Err(reason);
            }
            Some(Ok(())) if before.is_some() && self.hands.is_frozen(cgroup) => {
                if before != Some(version.0) {
                    // An order before this one held it last.
                    self.mark(cgroup, Some(version.0));
                    self.keep();
                }
                return Ok(());
            }
            _ => {}
        }
        self.mark(cgroup, Some(version.0));
        if let Err(error) = self.begin(cgroup, spec, version) {
            self.mark(cgroup, before);
            return Err(error);
        }
        let outcome = self.hands.carry_out(version.0, cgroup, Ordered::Freeze);
        if outcome.is_err() {
            // Some of it may be frozen, or be when it next runs.
            let holds = before.is_none() && self.hands.carry_out(version.0, cgroup, Ordered::Thaw).is_err();
            self.mark(cgroup, if holds { Some(version.0) } else { before });
        }
        self.end(cgroup, spec, outcome)
    }

    fn kill(&mut self, cgroup: &str, spec: &Spec, version: Version) -> Result<(), String> {
        if let Some(known) = self.book.find(cgroup, which(spec)) {
            let outcome = known.outcome.clone().unwrap_or_else(|| Err(UNKNOWN.into()));
            self.refused_again += u64::from(outcome.is_err());
            if outcome.is_ok() {
                // Perhaps what was in force before it was put back meanwhile.
                self.withdraw(cgroup, version)?;
            }
            return outcome;
        }
        if self.book.is_too_old(cgroup, version.0) {
            return Err("later orders for this cgroup were carried out: order it again".into());
        }
        self.begin(cgroup, spec, version)?;
        let frozen_by = self.book.held_by(cgroup);
        if frozen_by.is_some() {
            // The kill reaches who is frozen, too.
            let _logged = self.hands.carry_out(version.0, cgroup, Ordered::Thaw);
        }
        let outcome = self.hands.carry_out(version.0, cgroup, Ordered::Kill);
        match frozen_by {
            Some(_) if outcome.is_ok() => self.mark(cgroup, None),
            // The order before is in force as it was.
            Some(before) => drop(self.hands.carry_out(before, cgroup, Ordered::Freeze)),
            None => {}
        }
        self.end(cgroup, spec, outcome)
    }

    /// Thaws what is frozen by orders that nobody knows any more.
    fn look_after_unheld(&mut self) {
        if self.unheld.is_empty() {
            return;
        }
        self.looks = self.looks.saturating_add(1);
        if self.looks < UNHELD_LOOKS || !self.hands.is_up() {
            return;
        }
        for cgroup in std::mem::take(&mut self.unheld) {
            tracing::warn!(cgroup, "it is frozen, and no order for that is known any more");
            let version = self.book.held_by(&cgroup).unwrap_or_default();
            if let Err(error) = self.withdraw(&cgroup, Version(version)) {
                tracing::error!(cgroup, error, "it stays frozen");
            }
        }
    }
}

impl<H: Hands> Actuator for Repairer<H> {
    type Plane = MonitorPlane;

    fn apply(&mut self, cgroup: &str, spec: Option<&Spec>, version: Version) -> Result<(), String> {
        if !self.hands.is_up() {
            return Err(ENDING.into());
        }
        let outcome = match spec {
            None => self.withdraw(cgroup, version),
            Some(spec) if spec.action == RepairAction::Freeze => self.freeze(cgroup, spec, version),
            Some(spec) => self.kill(cgroup, spec, version),
        };
        self.unheld.remove(cgroup);
        outcome
    }

    fn report(&mut self) -> BTreeMap<String, Report> {
        self.look_after_unheld();
        self.hands.report().map(|report| (HEALTH.to_string(), report)).into_iter().collect()
    }

    fn metrics(&self) -> Vec<Metric> {
        vec![
            Metric::gauge(
                "cgroups_frozen",
                "Cgroups that orders hold frozen.",
                self.frozen.set().len() as u64,
            ),
            Metric::gauge(
                "orders_remembered",
                "Cgroups of which it is remembered what was done by order.",
                self.book.len() as u64,
            ),
            Metric::counter(
                "orders_refused_again_total",
                "Orders that came again after they were refused or failed.",
                self.refused_again,
            ),
        ]
    }
}

/// A monitor that acts, and what it tells. The monitor is not held: that it ends must not wait for this.
pub struct Acting {
    monitor: Weak<Monitor>,
    telling: Telling,
}

impl Acting {
    /// That of a monitor.
    pub fn new(monitor: Weak<Monitor>, telling: Telling) -> Acting {
        Acting { monitor, telling }
    }
}

impl Hands for Acting {
    fn is_up(&self) -> bool {
        self.monitor.strong_count() > 0
    }

    fn carry_out(&self, version: u64, cgroup: &str, what: Ordered) -> Result<(), String> {
        let monitor = self.monitor.upgrade().ok_or(ENDING)?;
        monitor.carry_out(version, cgroup, what).map_err(|error| error.to_string())
    }

    fn is_frozen(&self, cgroup: &str) -> bool {
        ordered::is_frozen(cgroup)
    }

    fn report(&mut self) -> Option<Report> {
        let status = self.monitor.upgrade()?.status();
        Some(self.telling.report(&status))
    }
}

#[cfg(test)]
mod tests;
