//! Counters and gauges of the controller as Prometheus text.

use super::audit::AuditStatus;
use super::shared::Shared;
use super::steps::BOUNDS_S;
use crate::core::CoreCounters;
use crate::core::scheduler::{LineStatus, SchedulerCounters, TargetStatus};
use std::sync::atomic::{AtomicU64, Ordering};
use weir_base::exposition::{Exposition, Kind};
use weir_base::ordered_time::State;

/// One metric name, its kind and help, and its samples: a label's value and a number.
fn put(text: &mut Exposition, name: &str, kind: Kind, help: &str, label: &str, samples: &[(&str, u64)]) {
    for (value, number) in samples {
        text.put(&format!("weir_controller_{name}"), kind, help, &[(label, value)], *number as f64);
    }
}

/// A number without labels.
fn one(text: &mut Exposition, name: &str, kind: Kind, help: &str, number: f64) {
    text.put(&format!("weir_controller_{name}"), kind, help, &[], number);
}

/// The text, and what is wrong with it: nothing.
pub(super) fn exposition(shared: &Shared) -> Exposition {
    let mut text = Exposition::new();
    let gauges = shared.gauges.load();
    let published = shared.published();
    one(&mut text, "version", Kind::Gauge, "Version of the store.", published.store.version().0 as f64);
    one(&mut text, "store_bytes", Kind::Gauge, "Bytes of keys and values.", published.store.bytes() as f64);
    let feed = shared.feed_bytes() as f64;
    one(&mut text, "feed_bytes", Kind::Gauge, "Bytes of changes kept for watchers.", feed);
    one(&mut text, "sessions", Kind::Gauge, "Open sessions.", shared.sessions.count() as f64);
    core(&mut text, &gauges.core);
    scheduler(&mut text, &gauges.scheduler);
    targets(&mut text, &gauges.targets);
    line(&mut text, gauges.line.as_ref());
    driver(&mut text, shared);
    identities(&mut text, shared, &gauges.core);
    steps(&mut text, shared);
    order(&mut text, shared);
    audit(&mut text, shared);
    clocks(&mut text, shared);
    text
}

pub(super) fn text(shared: &Shared) -> String {
    exposition(shared).text()
}

/// Differences may be below zero, and are shown in seconds.
fn clocks(text: &mut Exposition, shared: &Shared) {
    let (view, steps) = shared.time.view();
    for (member, ahead_ms) in &view.members_ms {
        let (name, member) = ("weir_controller_clock_ahead_seconds", member.to_string());
        let help = "By how much the clock of a controller is ahead of wall time as the group has it.";
        let ahead = *ahead_ms as f64 / 1_000.0;
        text.put(name, Kind::Gauge, help, &[("controller", &member)], ahead);
    }
    let help = "Whether the clocks are so far from ordered time that a person must say what is right.";
    one(text, "clock_asks", Kind::Gauge, help, f64::from(u8::from(view.state == State::Asks)));
    let help = "Times that ordered time followed the clocks at once.";
    one(text, "clock_steps_total", Kind::Counter, help, steps as f64);
}

fn core(text: &mut Exposition, core: &CoreCounters) {
    let events = [
        ("committed", core.committed),
        ("duplicate", core.duplicates),
        ("rejected", core.rejected),
        ("bad_signature", core.unauthentic.bad_signature),
        ("unknown_source", core.unauthentic.unknown_source),
        ("not_its_own", core.unauthentic.not_its_own),
        ("revoked", core.unauthentic.revoked),
        ("unsigned", core.unauthentic.unsigned),
        ("no_operator", core.unauthentic.no_operator),
        ("forged", core.unauthentic.forged),
        ("beyond_role", core.unauthentic.beyond_role),
        ("not_in_time", core.unauthentic.not_in_time),
        ("number_used", core.unauthentic.number_used),
        ("unowned", core.unauthentic.unowned),
        ("requests_again", core.requests_again),
    ];
    put(text, "events_total", Kind::Counter, "Events of the order, by outcome.", "outcome", &events);
    let others = [
        ("batches", core.batches),
        ("signatures", core.signatures),
        ("merged_updates", core.merged),
        ("repairs", core.repairs),
        ("invalid_dependencies", core.dependencies_invalid),
        ("forged_acks", core.acks_forged),
        ("requests", core.requests),
    ];
    put(text, "core_total", Kind::Counter, "What the core did.", "what", &others);
}

fn scheduler(text: &mut Exposition, counters: &SchedulerCounters) {
    let updates = [
        ("planned", counters.planned),
        ("superseded", counters.superseded),
        ("kept_beside", counters.kept_beside),
        ("slots_cut", counters.slots_cut),
        ("line_given_up", counters.line_given_up),
        ("line_cut", counters.line_cut),
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
    put(text, "updates_total", Kind::Counter, "What became of updates.", "what", &updates);
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
        Kind::Counter,
        "Comparisons with returning actuators.",
        "what",
        &reconciled,
    );
}

fn targets(text: &mut Exposition, targets: &[TargetStatus]) {
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
        put(text, name, Kind::Gauge, help, "actuator", &samples);
    }
}

fn driver(text: &mut Exposition, shared: &Shared) {
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let counters = &shared.counters;
    let driver = [
        ("overloads", load(&counters.overloads)),
        ("own_events_failed", load(&counters.offers_failed)),
        ("proposals_unreadable", load(&counters.unreadable)),
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
    put(text, "driver_total", Kind::Counter, "What happened around the core.", "what", &driver);
    let intake = [
        ("accepted", load(&counters.intake_accepted)),
        ("duplicate", load(&counters.intake_duplicates)),
        ("idle", load(&counters.intake_idle)),
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
    put(text, "intake_total", Kind::Counter, help, "outcome", &intake);
}

fn identities(text: &mut Exposition, shared: &Shared, core: &CoreCounters) {
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
        Kind::Counter,
        "What was asked and refused of whom, by reason.",
        "what",
        &counts,
    );
    let published = shared.published();
    let revoked = published.identities.rows().filter(|(_, row)| row.revoked.is_some()).count();
    let operators = published.operators.rows().count();
    one(text, "operators", Kind::Gauge, "Operators whose requests are taken.", operators as f64);
    let help = "Hosts, gateways and controllers that are revoked.";
    one(text, "identities_revoked", Kind::Gauge, help, revoked as f64);
}

/// Of linear consistency; without it nothing waits in line.
fn line(text: &mut Exposition, line: Option<&LineStatus>) {
    let help = "Updates that wait in line, with linear consistency.";
    one(text, "line_updates", Kind::Gauge, help, line.map_or(0.0, |line| line.length as f64));
    let help = "For how long the first update of the line has been that, with linear consistency; 'weir status' names its host.";
    one(text, "line_held_seconds", Kind::Gauge, help, line.map_or(0.0, |line| line.for_ms as f64 / 1e3));
}

fn steps(text: &mut Exposition, shared: &Shared) {
    let help = "Time from the beginning of a step of a change to its end: order, decide, sign, ack.";
    for (step, counts, sum_ns) in shared.steps.read() {
        let name = "weir_controller_step_seconds";
        text.histogram(name, help, &[("step", step)], &BOUNDS_S, &counts, sum_ns as f64 / 1e9);
    }
}

fn order(text: &mut Exposition, shared: &Shared) {
    if let Some(engine) = shared.engine() {
        let log = engine.counts();
        let healthy = u64::from(engine.status().healthy);
        let help = "Whether the log can order more; 0 asks for a look at the disk and a restart.";
        one(text, "log_healthy", Kind::Gauge, help, healthy as f64);
        let leads = u64::from(shared.leads());
        one(text, "leads", Kind::Gauge, "Whether this controller leads.", leads as f64);
        let fenced = u64::from(engine.fenced().is_some());
        let help =
            "Whether this controller serves nothing, because its state differs from that of the others.";
        one(text, "fenced", Kind::Gauge, help, fenced as f64);
        let full = u64::from(engine.full().is_some());
        let help = "Whether this controller takes nothing new, because its disk is full; it goes on by itself when there is room.";
        one(text, "disk_full", Kind::Gauge, help, full as f64);
        let help = "Events of actuators that wait for this controller's turn.";
        one(text, "intake_waiting", Kind::Gauge, help, shared.held() as f64);
        // What lasts is in seconds, under a name of its own: a number of one unit is no sum with those of another.
        let (lasting, counted): (Vec<_>, Vec<_>) =
            log.into_iter().partition(|(what, _)| in_seconds(what).is_some());
        put(text, "log_total", Kind::Counter, "What the log did.", "what", &counted);
        for (what, number) in lasting {
            if let Some((stem, divisor)) = in_seconds(what) {
                let help = "How long what the log did took, all together.";
                let name = "weir_controller_log_seconds_total";
                text.put(name, Kind::Counter, help, &[("what", stem)], number as f64 / divisor);
            }
        }
    }
    if let Some(submitter) = shared.submitter.load_full() {
        let counters = submitter.counters();
        let batcher = [
            ("operations", counters.operations),
            ("batches", counters.batches),
            ("overloads", counters.overloads),
            ("failed", counters.failed),
        ];
        put(text, "batcher_total", Kind::Counter, "What the batcher did.", "what", &batcher);
    }
}

/// What of the log's counts is a time: its name without the unit, and how many of that are a second.
fn in_seconds(what: &str) -> Option<(&str, f64)> {
    let of = |unit, divisor| what.strip_suffix(unit).map(|stem| (stem, divisor));
    of("_us", 1e6).or_else(|| of("_ms", 1e3)).or_else(|| of("_ns", 1e9))
}

fn audit(text: &mut Exposition, shared: &Shared) {
    let Some(audit) = shared.audit() else { return };
    let status = audit.status();
    let help = "Whether the audit is kept; 0 asks for a look at the disk and a restart.";
    one(text, "audit_healthy", Kind::Gauge, help, f64::from(u8::from(!status.failed)));
    one(text, "audit_links", Kind::Gauge, "Links of the audit on disk.", kept(&status) as f64);
    one(text, "audit_bytes_total", Kind::Counter, "Bytes that the audit wrote.", status.bytes as f64);
    let done = [
        ("links", status.links),
        ("records", status.records),
        ("syncs", status.syncs),
        ("waits", status.waits),
    ];
    put(text, "audit_total", Kind::Counter, "What the audit wrote.", "what", &done);
}

fn kept(status: &AuditStatus) -> u64 {
    if status.last == 0 { 0 } else { status.last + 1 - status.first }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lasts_is_in_seconds() {
        assert_eq!(in_seconds("agreement_cpu_us"), Some(("agreement_cpu", 1e6)));
        assert_eq!(in_seconds("epoch_pause_ms"), Some(("epoch_pause", 1e3)));
        assert_eq!(in_seconds("epochs"), None);
    }
}
