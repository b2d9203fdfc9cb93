//! What a monitor shows: its status, put together from the loop's snapshot and from what the other threads keep.

use super::{BOXES_MAX, Shared, Snapshot, lock};
use crate::guest::watch::{GuestView, Watchers};
use crate::kernel;
use crate::query::Answer;
use crate::remote::Remote;
use crate::status::{BoxRow, GuestRow, HostRow, PolicyRow, QueryRow, SensorRow, Status};
use std::sync::atomic::Ordering;
use weir_sensor::{Kind, Registration, View, now_ns};

impl Shared {
    /// The boxes that are registered now, and the kernel's.
    fn box_rows(&self) -> Vec<BoxRow> {
        let own = self.kernel_box.as_ref().map(|view| BoxRow {
            name: kernel::BOX.to_string(),
            process: std::process::id(),
            sensors: sensor_rows(view),
            ..BoxRow::default()
        });
        let registered = self.sensors.list().unwrap_or_default();
        registered.iter().take(BOXES_MAX).map(box_row).chain(own).collect()
    }

    fn query_rows(&self, snapshot: &Snapshot) -> Vec<QueryRow> {
        let named = self.queries.iter().zip(&self.query_kinds).zip(&snapshot.answers);
        let row = |((name, kind), answer): ((&String, &&str), &Option<Answer>)| QueryRow {
            name: name.clone(),
            kind: (*kind).to_string(),
            value: answer.as_ref().map_or(String::new(), |answer| answer.value.text()),
            fired: answer.map_or(0, |answer| answer.fired),
        };
        named.map(row).collect()
    }

    fn host_rows(&self) -> Vec<HostRow> {
        let view = lock(&self.remote).as_ref().map_or(Vec::new(), Remote::view);
        view.into_iter()
            .map(|host| HostRow {
                name: host.name,
                failed: host.failed,
                level: host.level,
                alone: host.alone,
            })
            .collect()
    }

    fn guest_rows(&self) -> Vec<GuestRow> {
        let views = lock(&self.guests).as_ref().map_or(Vec::new(), Watchers::views);
        let row = |(at, view): (usize, GuestView)| GuestRow {
            name: self.policies[at].common().name.clone(),
            release: view.release,
            failed: view.failed,
            level: view.level,
            tasks: view.tasks,
            stimuli: view.stimuli,
            stopped: view.stopped,
            looks: view.looks,
            starved: view.starved,
        };
        views.into_iter().map(row).collect()
    }

    /// All of it.
    pub(super) fn status(&self) -> Status {
        let snapshot = *lock(&self.snapshot);
        let totals = snapshot.totals;
        let policies = self.policies.iter().enumerate().map(|(at, policy)| PolicyRow {
            name: policy.common().name.clone(),
            kind: policy.kind().to_string(),
            action: policy.action_name().to_string(),
            dry_run: policy.common().dry_run,
            living: snapshot.living[at],
            forks: snapshot.forks[at],
            alarms: self.alarms[at].load(Ordering::Relaxed),
            crashes: self.crashes[at].load(Ordering::Relaxed),
            restarts: self.restarts[at].load(Ordering::Relaxed),
            main: Some(snapshot.mains[at]).filter(|process| *process != 0),
            level: snapshot.levels[at],
        });
        Status {
            kernel: self.kernel.clone(),
            degraded: self.degraded.clone(),
            steps: totals.steps,
            step_us: totals.step_ns / 1000,
            step_us_max: totals.step_ns_max / 1000,
            late_us_max: self.punctuality.late_ns_max.load(Ordering::Relaxed) / 1000,
            late_us: self.punctuality.late_ns.load(Ordering::Relaxed) / 1000,
            late: self.punctuality.late.iter().map(|class| class.load(Ordering::Relaxed)).collect(),
            skipped: self.punctuality.skipped.load(Ordering::Relaxed),
            quick: self.punctuality.quick.load(Ordering::Relaxed),
            processes: totals.tree.living,
            forks: totals.tree.forks,
            exits: totals.tree.exits,
            execs: totals.tree.execs,
            victims: totals.tree.victims,
            refused: totals.tree.refused,
            events: totals.events,
            lost: totals.lost,
            resyncs: totals.resyncs,
            // Those of guests are raised by threads of their own.
            alarms: self.alarms.iter().map(|alarms| alarms.load(Ordering::Relaxed)).sum(),
            signals: totals.signals,
            hurried: totals.hurried,
            faults_minor: self.punctuality.faults_minor.load(Ordering::Relaxed),
            faults_major: self.punctuality.faults_major.load(Ordering::Relaxed),
            notes_lost: totals.notes_lost,
            audit: lock(&self.writer).log.hash().to_string(),
            audit_failed: self.audit_failed.load(Ordering::Relaxed),
            policies: policies.collect(),
            boxes: self.box_rows(),
            queries: self.query_rows(&snapshot),
            hosts: self.host_rows(),
            guests: self.guest_rows(),
            webhook: self.webhook.as_ref().map(|webhook| webhook.row()),
        }
    }
}

fn box_row(registration: &Registration) -> BoxRow {
    let mut row = BoxRow {
        name: registration.name.clone(),
        process: registration.process,
        user: registration.user,
        ..BoxRow::default()
    };
    match registration.open() {
        Ok(view) => row.sensors = sensor_rows(&view),
        Err(error) => row.error = Some(error.to_string()),
    }
    row
}

/// The sensors of a box as they are shown.
fn sensor_rows(view: &View) -> Vec<SensorRow> {
    let now = now_ns();
    let row = |sensor: weir_sensor::Sensor| SensorRow {
        value: match sensor.kind {
            Kind::Event => sensor.updates,
            Kind::Reference => view.follow(sensor.slot).unwrap_or(0),
            Kind::Counter | Kind::Gauge => sensor.value,
        },
        age_ms: (sensor.updates > 0).then(|| now.saturating_sub(sensor.time_ns) / 1_000_000),
        kind: sensor.kind.name().to_string(),
        updates: sensor.updates,
        name: sensor.name,
    };
    view.sensors().into_iter().map(row).collect()
}
