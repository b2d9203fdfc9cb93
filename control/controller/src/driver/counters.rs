//! What the driver counts, and what the core thread shows of the core; [`super::metrics`] writes it.

use crate::core::admission::Unauthentic;
use crate::core::scheduler::{LineStatus, SchedulerCounters, TargetStatus};
use crate::core::{Core, CoreCounters};
use std::sync::atomic::{AtomicU64, Ordering};

/// What was refused, by reason.
#[derive(Debug, Default)]
pub(super) struct Refused {
    /// Sessions, and TLS connections, of sources that were revoked.
    pub sessions_revoked: AtomicU64,
    /// Those with a certificate that was replaced.
    pub sessions_replaced: AtomicU64,
    /// Events that came here, of sources that were revoked.
    pub events_revoked: AtomicU64,
    /// Changes of keys that were asked for in sessions.
    pub rotations: AtomicU64,
    /// Those that were refused.
    pub rotations_refused: AtomicU64,
}

impl Refused {
    pub fn session(&self, reason: Unauthentic) {
        let counter = match reason {
            Unauthentic::Revoked => &self.sessions_revoked,
            _ => &self.sessions_replaced,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// What the driver counts itself.
#[derive(Debug, Default)]
pub(super) struct DriverCounters {
    pub overloads: AtomicU64,
    pub offers_failed: AtomicU64,
    pub unreadable: AtomicU64,
    pub snapshots_failed: AtomicU64,
    pub sessions_refused: AtomicU64,
    /// Addresses on the underlay that actuators said they have and may not.
    pub underlays_refused: AtomicU64,
    pub sessions_failed: AtomicU64,
    pub renewals: AtomicU64,
    pub renewals_refused: AtomicU64,
    pub intake_accepted: AtomicU64,
    pub intake_duplicates: AtomicU64,
    /// Reports of use that would have changed nothing.
    pub intake_idle: AtomicU64,
    pub intake_held: AtomicU64,
    pub intake_spared: AtomicU64,
    pub intake_taken_over: AtomicU64,
    pub intake_full: AtomicU64,
    pub intake_passed_over: AtomicU64,
    pub intake_unknown_source: AtomicU64,
    pub intake_bad_signature: AtomicU64,
    pub intake_not_its_own: AtomicU64,
    pub refused: Refused,
}

impl DriverCounters {
    /// Counts an event that came from outside and is not its source's.
    pub fn intake_unauthentic(&self, reason: Unauthentic) {
        let counter = match reason {
            Unauthentic::UnknownSource => &self.intake_unknown_source,
            Unauthentic::BadSignature => &self.intake_bad_signature,
            Unauthentic::NotItsOwn => &self.intake_not_its_own,
            Unauthentic::Revoked => &self.refused.events_revoked,
            Unauthentic::Replaced => &self.intake_bad_signature,
            // What only controllers say; they propose it themselves.
            Unauthentic::Unsigned
            | Unauthentic::NoOperator
            | Unauthentic::Forged
            | Unauthentic::BeyondRole
            | Unauthentic::NotInTime
            | Unauthentic::Unowned
            | Unauthentic::NumberUsed => &self.intake_not_its_own,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// What the core thread shows of the core, about once a second.
#[derive(Debug, Default)]
pub(super) struct Gauges {
    pub core: CoreCounters,
    pub scheduler: SchedulerCounters,
    pub targets: Vec<TargetStatus>,
    /// With linear consistency, what waits.
    pub line: Option<LineStatus>,
}

impl Gauges {
    pub fn of(core: &Core) -> Gauges {
        let scheduler = core.scheduler();
        let targets = scheduler.target_names().filter_map(|name| scheduler.target_status(name)).collect();
        Gauges {
            core: core.counters(),
            scheduler: scheduler.counters,
            targets,
            line: scheduler.line_status(),
        }
    }
}
