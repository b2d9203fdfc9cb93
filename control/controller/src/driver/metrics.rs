//! Counters and gauges of the controller as Prometheus text.

use super::audit::AuditStatus;
use super::identities::Refused;
use super::shared::Shared;
use crate::core::admission::Unauthentic;
use crate::core::scheduler::{SchedulerCounters, TargetStatus};
use crate::core::{Core, CoreCounters};
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_base::ordered_time::State;

/// What the driver counts itself.
#[derive(Debug, Default)]
pub(super) struct DriverCounters {
    pub overloads: AtomicU64,
    pub offers_failed: AtomicU64,
    pub snapshots_failed: AtomicU64,
    pub sessions_refused: AtomicU64,
    /// Addresses on the underlay that actuators said they have and may not.
    pub underlays_refused: AtomicU64,
    pub sessions_failed: AtomicU64,
    pub renewals: AtomicU64,
    pub renewals_refused: AtomicU64,
    pub intake_accepted: AtomicU64,
    pub intake_duplicates: AtomicU64,
    pub intake_held: AtomicU64,
    pub intake_spared: AtomicU64,
    pub intake_taken_over: AtomicU64,
    pub intake_full: AtomicU64,
    pub intake_passed_over: AtomicU64,
    intake_unknown_source: AtomicU64,
    intake_bad_signature: AtomicU64,
    intake_not_its_own: AtomicU64,
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
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// What the core thread shows of the core, about once a second.
#[derive(Debug, Default)]
pub(super) struct Gauges {
    core: CoreCounters,
    scheduler: SchedulerCounters,
    targets: Vec<TargetStatus>,
}

impl Gauges {
    pub fn of(core: &Core) -> Gauges {
        let scheduler = core.scheduler();
        let targets = scheduler.target_names().filter_map(|name| scheduler.target_status(name)).collect();
        Gauges { core: core.counters(), scheduler: scheduler.counters, targets }
    }
}

/// One metric name, its kind and help, and its samples.
fn put(text: &mut String, name: &str, kind: &str, help: &str, samples: &[(String, u64)]) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "# HELP weir_controller_{name} {help}\n# TYPE weir_controller_{name} {kind}");
    for (labels, value) in samples {
        let _ = writeln!(text, "weir_controller_{name}{labels} {value}");
    }
}

fn by(label: &str, samples: &[(&str, u64)]) -> Vec<(String, u64)> {
    samples.iter().map(|(name, value)| (format!("{{{label}=\"{name}\"}}"), *value)).collect()
}

pub(super) fn text(shared: &Shared) -> String {
    let mut text = String::new();
    let gauges = shared.gauges.load();
    let published = shared.published();
    let one = |value| vec![(String::new(), value)];
    put(&mut text, "version", "gauge", "Version of the store.", &one(published.store.version().0));
    put(&mut text, "store_bytes", "gauge", "Bytes of keys and values.", &one(published.store.bytes()));
    let feed = shared.feed_bytes() as u64;
    put(&mut text, "feed_bytes", "gauge", "Bytes of changes kept for watchers.", &one(feed));
    put(&mut text, "sessions", "gauge", "Open sessions.", &one(shared.sessions.count() as u64));
    core(&mut text, &gauges.core);
    scheduler(&mut text, &gauges.scheduler);
    targets(&mut text, &gauges.targets);
    driver(&mut text, shared);
    identities(&mut text, shared, &gauges.core);
    steps(&mut text, shared);
    order(&mut text, shared);
    audit(&mut text, shared);
    clocks(&mut text, shared);
    text
}

/// Differences may be below zero, and are shown in seconds.
fn clocks(text: &mut String, shared: &Shared) {
    let (view, steps) = shared.time.view();
    let name = "weir_controller_clock_ahead_seconds";
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "# HELP {name} By how much the clock of a controller is ahead of wall time as the group has it.\n# TYPE {name} gauge"
    );
    for (member, ahead_ms) in &view.members_ms {
        let _ = writeln!(text, "{name}{{controller=\"{member}\"}} {}", *ahead_ms as f64 / 1_000.0);
    }
    let help = "Whether the clocks are so far from ordered time that a person must say what is right.";
    put(text, "clock_asks", "gauge", help, &[(String::new(), u64::from(view.state == State::Asks))]);
    let help = "Times that ordered time followed the clocks at once.";
    put(text, "clock_steps_total", "counter", help, &[(String::new(), steps)]);
}

fn core(text: &mut String, core: &CoreCounters) {
    let events = [
        ("committed", core.committed),
        ("duplicate", core.duplicates),
        ("rejected", core.rejected),
        ("bad_signature", core.unauthentic.bad_signature),
        ("unknown_source", core.unauthentic.unknown_source),
        ("not_its_own", core.unauthentic.not_its_own),
        ("revoked", core.unauthentic.revoked),
    ];
    put(text, "events_total", "counter", "Events of the order, by outcome.", &by("outcome", &events));
    let others = [
        ("batches", core.batches),
        ("signatures", core.signatures),
        ("merged_updates", core.merged),
        ("repairs", core.repairs),
        ("invalid_dependencies", core.dependencies_invalid),
        ("forged_acks", core.acks_forged),
    ];
    put(text, "core_total", "counter", "What the core did.", &by("what", &others));
}

fn scheduler(text: &mut String, counters: &SchedulerCounters) {
    let updates = [
        ("planned", counters.planned),
        ("superseded", counters.superseded),
        ("kept_beside", counters.kept_beside),
        ("slots_cut", counters.slots_cut),
        ("sent", counters.sent),
        ("resent", counters.resent),
        ("acked", counters.acked),
        ("acks_unknown", counters.acks_unknown),
        ("acks_ahead", counters.acks_ahead),
        ("refused", counters.refused),
        ("retried", counters.retried),
        ("rings_cut", counters.rings_cut),
        ("rings_kept", counters.rings_kept),
        ("tombstones_forgotten", counters.tombstones_forgotten),
    ];
    put(text, "updates_total", "counter", "What became of updates.", &by("what", &updates));
    let reconciled = [
        ("sessions_in_sync", counters.sessions_in_sync),
        ("sessions_as_left", counters.sessions_as_left),
        ("sessions_compared", counters.sessions_compared),
        ("keys_same", counters.compared_same),
        ("keys_different", counters.compared_different),
        ("keys_unknown", counters.compared_unknown),
        ("keys_ahead", counters.compared_ahead),
        ("keys_forked", counters.compared_forked),
        ("sessions_doubted", counters.sessions_doubted),
        ("states_failed", counters.states_failed),
        ("stale_sessions", counters.stale_sessions),
    ];
    put(
        text,
        "reconciled_total",
        "counter",
        "Comparisons with returning actuators.",
        &by("what", &reconciled),
    );
}

fn targets(text: &mut String, targets: &[TargetStatus]) {
    type Get = fn(&TargetStatus) -> u64;
    let gauges: [(&str, &str, Get); 6] = [
        ("actuator_connected", "Whether the actuator has a session.", |t| u64::from(t.connected)),
        ("actuator_keys", "Keys desired.", |t| t.keys as u64),
        ("actuator_lag", "Keys whose desired version is not acked.", |t| t.lag as u64),
        ("actuator_refused", "Keys whose update is refused.", |t| t.refused as u64),
        ("actuator_desired_version", "Highest version desired.", |t| t.desired.0),
        ("actuator_acked_version", "Everything up to this version is acked.", |t| t.acked.0),
    ];
    for (name, help, get) in gauges {
        let samples: Vec<_> = targets.iter().map(|t| (t.target.as_str(), get(t))).collect();
        put(text, name, "gauge", help, &by("actuator", &samples));
    }
}

fn driver(text: &mut String, shared: &Shared) {
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let counters = &shared.counters;
    let driver = [
        ("overloads", load(&counters.overloads)),
        ("own_events_failed", load(&counters.offers_failed)),
        ("snapshots_failed", load(&counters.snapshots_failed)),
        ("sessions_refused", load(&counters.sessions_refused)),
        ("underlays_refused", load(&counters.underlays_refused)),
        ("sessions_failed", load(&counters.sessions_failed)),
        ("certificates_renewed", load(&counters.renewals)),
        ("certificates_not_renewed", load(&counters.renewals_refused)),
        ("sessions_opened", load(&shared.sessions.opened)),
        ("sessions_replaced", load(&shared.sessions.replaced)),
        ("sessions_overflowed", load(&shared.sessions.overflowed)),
        ("updates_unreadable", load(&shared.sessions.unreadable)),
        ("answers_dropped", load(&shared.sessions.answers_dropped)),
    ];
    put(text, "driver_total", "counter", "What happened around the core.", &by("what", &driver));
    let intake = [
        ("accepted", load(&counters.intake_accepted)),
        ("duplicate", load(&counters.intake_duplicates)),
        ("bad_signature", load(&counters.intake_bad_signature)),
        ("unknown_source", load(&counters.intake_unknown_source)),
        ("not_its_own", load(&counters.intake_not_its_own)),
        ("held", load(&counters.intake_held)),
        ("spared", load(&counters.intake_spared)),
        ("taken_over", load(&counters.intake_taken_over)),
        ("no_room", load(&counters.intake_full)),
        ("passed_over", load(&counters.intake_passed_over)),
    ];
    let help = "Events of actuators that came here, before they are ordered, by what was made of them.";
    put(text, "intake_total", "counter", help, &by("outcome", &intake));
}

fn identities(text: &mut String, shared: &Shared, core: &CoreCounters) {
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let refused = &shared.counters.refused;
    let counts = [
        ("session_revoked", load(&refused.sessions_revoked)),
        ("session_replaced", load(&refused.sessions_replaced)),
        ("event_revoked", load(&refused.events_revoked)),
        ("ordered_event_revoked", core.unauthentic.revoked),
        ("acks_revoked", core.acks_revoked),
        ("acks_forged", core.acks_forged),
        ("rotation_asked", load(&refused.rotations)),
        ("rotation_refused", load(&refused.rotations_refused)),
    ];
    put(
        text,
        "identities_total",
        "counter",
        "What was asked and refused of whom, by reason.",
        &by("what", &counts),
    );
    let published = shared.published();
    let revoked = published.identities.rows().filter(|(_, row)| row.revoked.is_some()).count();
    let help = "Hosts, gateways and controllers that are revoked.";
    put(text, "identities_revoked", "gauge", help, &[(String::new(), revoked as u64)]);
}

fn steps(text: &mut String, shared: &Shared) {
    let read = shared.steps.read();
    let of = |value: usize, unit: u64| read.map(|(name, values)| (name, values[value] / unit));
    let help = "Steps of changes that were made: order, decide, sign, ack.";
    put(text, "steps_total", "counter", help, &by("step", &of(0, 1)));
    let help = "Time from the beginning of a step to its end, microseconds, of all together.";
    put(text, "step_us_total", "counter", help, &by("step", &of(1, 1_000)));
    let help = "Longest time of a step, microseconds.";
    put(text, "step_us_max", "gauge", help, &by("step", &of(2, 1_000)));
}

fn order(text: &mut String, shared: &Shared) {
    if let Some(engine) = shared.engine() {
        let log = engine.counts();
        let healthy = u64::from(engine.status().healthy);
        let help = "Whether the log can order more; 0 asks for a look at the disk and a restart.";
        put(text, "log_healthy", "gauge", help, &[(String::new(), healthy)]);
        let leads = u64::from(shared.leads());
        put(text, "leads", "gauge", "Whether this controller leads.", &[(String::new(), leads)]);
        let fenced = u64::from(engine.fenced().is_some());
        let help =
            "Whether this controller serves nothing, because its state differs from that of the others.";
        put(text, "fenced", "gauge", help, &[(String::new(), fenced)]);
        let full = u64::from(engine.full().is_some());
        let help = "Whether this controller takes nothing new, because its disk is full; it goes on by itself when there is room.";
        put(text, "disk_full", "gauge", help, &[(String::new(), full)]);
        let help = "Events of actuators that wait for this controller's turn.";
        put(text, "intake_waiting", "gauge", help, &[(String::new(), shared.held() as u64)]);
        put(text, "log_total", "counter", "What the log did.", &by("what", &log));
    }
    if let Some(submitter) = shared.submitter.load_full() {
        let counters = submitter.counters();
        let batcher = [
            ("operations", counters.operations),
            ("batches", counters.batches),
            ("overloads", counters.overloads),
            ("failed", counters.failed),
        ];
        put(text, "batcher_total", "counter", "What the batcher did.", &by("what", &batcher));
    }
}

fn audit(text: &mut String, shared: &Shared) {
    let Some(audit) = shared.audit() else { return };
    let status = audit.status();
    let one = |value| vec![(String::new(), value)];
    let help = "Whether the audit is kept; 0 asks for a look at the disk and a restart.";
    put(text, "audit_healthy", "gauge", help, &one(u64::from(!status.failed)));
    put(text, "audit_links", "gauge", "Links of the audit on disk.", &one(kept(&status)));
    let done = [
        ("links", status.links),
        ("records", status.records),
        ("bytes", status.bytes),
        ("syncs", status.syncs),
        ("waits", status.waits),
    ];
    put(text, "audit_total", "counter", "What the audit wrote.", &by("what", &done));
}

fn kept(status: &AuditStatus) -> u64 {
    if status.last == 0 { 0 } else { status.last + 1 - status.first }
}
