//! What a running monitor shows: to `weir monitor top`, and to Prometheus.

use crate::local::LATE_BOUNDS_US;
use serde::{Deserialize, Serialize};
use weir_base::exposition::{Exposition, Kind};

/// A policy now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PolicyRow {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: String,
    /// What it does.
    pub action: String,
    /// Whether it only says so.
    pub dry_run: bool,
    /// Living processes of its scope that were born in its window.
    pub living: u64,
    /// Processes forked in its window.
    pub forks: u64,
    /// Alarms since the start.
    pub alarms: u64,
    /// Processes of the service that ended by a fault.
    #[serde(default)]
    pub crashes: u64,
    /// Times that the service was brought up again.
    #[serde(default)]
    pub restarts: u64,
    /// The main process of the service, while it is up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub main: Option<u32>,
    /// Of what must make progress: how unlikely its silence is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<f64>,
}

/// A sensor of a box.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SensorRow {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: String,
    /// Its value; for events, how many there were.
    pub value: u64,
    /// Number of updates.
    pub updates: u64,
    /// Time since its last update, ms; nothing if it was never updated.
    pub age_ms: Option<u64>,
}

/// A box.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoxRow {
    /// Its name.
    pub name: String,
    /// The process that exported it.
    pub process: u32,
    /// The user whom its registration belongs to.
    pub user: u32,
    /// Why it cannot be read, if it cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Its sensors.
    pub sensors: Vec<SensorRow>,
}

/// The value of a query.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QueryRow {
    /// Its name.
    pub name: String,
    /// On-demand, once or every.
    pub kind: String,
    /// The value, or the rows of a table, as text.
    pub value: String,
    /// How often a one-shot or continuous query fired.
    pub fired: u64,
}

/// A host of the ring.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostRow {
    /// Its name.
    pub name: String,
    /// Whether it is taken for failed.
    pub failed: bool,
    /// How unlikely its silence is, if this host watches it: 1 is one in ten, 2 one in a hundred.
    pub level: Option<f64>,
    /// Of this host itself: it hears no majority of its neighbours, and judges nobody.
    #[serde(default)]
    pub alone: bool,
}

/// A guest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GuestRow {
    /// The name of its policy.
    pub name: String,
    /// The release of its kernel; empty while that is not found.
    pub release: String,
    /// Whether it is taken for failed, or fenced.
    pub failed: bool,
    /// How unlikely its silence is: 1 is one in ten, 2 one in a hundred.
    pub level: f64,
    /// Tasks at the last count, where the policy counts them.
    pub tasks: u64,
    /// Times that it was stimulated.
    pub stimuli: u64,
    /// Whether somebody has stopped it, or it has shut down: then its silence says nothing.
    #[serde(default)]
    pub stopped: bool,
    /// Periods that it was watched in.
    #[serde(default)]
    pub looks: u64,
    /// Times that it was given more time, because its emulator got no processor.
    #[serde(default)]
    pub starved: u64,
}

/// What is sent to the webhook.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebhookRow {
    /// Alerts that fire.
    pub firing: u64,
    /// Messages that wait to be taken.
    pub waiting: u64,
    /// Their bytes.
    pub waiting_bytes: u64,
    /// Messages that were taken.
    pub sent: u64,
    /// Tries that failed.
    pub failed: u64,
    /// Messages that gave way to newer ones, because too many waited.
    pub dropped: u64,
    /// Messages that were given up, because the receiver calls them wrong.
    pub refused: u64,
    /// Messages that wait, or waited, in memory only, because the disk took them not.
    pub unkept: u64,
    /// Why the newest try failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// How the kernel is heard.
    pub kernel: String,
    /// Why it is not the best way, if it is not.
    pub degraded: Option<String>,
    /// Steps of the loop.
    pub steps: u64,
    /// All steps together, us of the loop's thread.
    pub step_us: u64,
    /// Longest step, us.
    pub step_us_max: u64,
    /// Longest time that a step began too late, us.
    pub late_us_max: u64,
    /// All lateness together, us.
    #[serde(default)]
    pub late_us: u64,
    /// Steps by their lateness: the classes of [`LATE_BOUNDS_US`], and one for what is later.
    #[serde(default)]
    pub late: Vec<u64>,
    /// Periods that were skipped.
    pub skipped: u64,
    /// Steps after which the next was due at the quick pace.
    #[serde(default)]
    pub quick: u64,
    /// Processes that live.
    pub processes: u64,
    /// Processes forked.
    pub forks: u64,
    /// Processes that ended.
    pub exits: u64,
    /// Programs started.
    pub execs: u64,
    /// Victims of the out-of-memory killer.
    pub victims: u64,
    /// Processes that found no room in the tree.
    pub refused: u64,
    /// Events of the kernel.
    pub events: u64,
    /// Events lost.
    pub lost: u64,
    /// Times that the tree was compared with `/proc`.
    pub resyncs: u64,
    /// Alarms.
    pub alarms: u64,
    /// Signals sent.
    pub signals: u64,
    /// Killed processes that were given priority, so that they end soon.
    #[serde(default)]
    pub hurried: u64,
    /// Page faults of the loop that took no reading from a disk.
    #[serde(default)]
    pub faults_minor: u64,
    /// Page faults of the loop that did.
    #[serde(default)]
    pub faults_major: u64,
    /// Notes of the loop that found the queue full.
    pub notes_lost: u64,
    /// The hash of the newest line of the audit log.
    pub audit: String,
    /// Lines that could not be written to the audit log.
    pub audit_failed: u64,
    /// The policies.
    pub policies: Vec<PolicyRow>,
    /// The boxes.
    pub boxes: Vec<BoxRow>,
    /// The queries.
    pub queries: Vec<QueryRow>,
    /// The hosts of the ring.
    pub hosts: Vec<HostRow>,
    /// The guests.
    #[serde(default)]
    pub guests: Vec<GuestRow>,
    /// The webhook, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<WebhookRow>,
}

/// A number of the monitor's: its name, kind and help, and what it is.
type Scalar = (&'static str, Kind, &'static str, u64);

/// Puts numbers in under one name, each with its labels.
fn family<'a, const N: usize>(
    text: &mut Exposition,
    (name, kind, help): (&str, Kind, &str),
    rows: impl Iterator<Item = ([(&'a str, &'a str); N], f64)>,
) {
    for (labels, value) in rows {
        text.put(&format!("weir_monitor_{name}"), kind, help, &labels, value);
    }
}

impl Status {
    /// As text for Prometheus.
    pub fn prometheus(&self) -> String {
        self.exposition().text()
    }

    /// As numbers for Prometheus, and what is wrong with them: nothing.
    pub fn exposition(&self) -> Exposition {
        let mut text = Exposition::new();
        self.scalars(&mut text);
        self.policies(&mut text);
        self.values(&mut text);
        self.watched(&mut text);
        self.webhook(&mut text);
        let bounds = LATE_BOUNDS_US.map(|us| us as f64 / 1e6);
        let counts: [u64; LATE_BOUNDS_US.len() + 1] =
            std::array::from_fn(|part| self.late.get(part).copied().unwrap_or(0));
        let help = "How much too late a step of the loop began.";
        text.histogram("weir_monitor_late_seconds", help, &[], &bounds, &counts, self.late_us as f64 / 1e6);
        text
    }

    fn scalars(&self, text: &mut Exposition) {
        let counter = Kind::Counter;
        let degraded = u64::from(self.degraded.is_some());
        let scalars: [Scalar; 15] = [
            ("degraded", Kind::Gauge, "1 when the kernel is not heard the best way.", degraded),
            ("steps_total", counter, "Steps of the loop.", self.steps),
            ("quick_steps_total", counter, "Steps after which the next was due soon.", self.quick),
            ("skipped_periods_total", counter, "Periods that were skipped.", self.skipped),
            ("processes", Kind::Gauge, "Processes that live.", self.processes),
            ("forks_total", counter, "Processes forked.", self.forks),
            ("exits_total", counter, "Processes that ended.", self.exits),
            ("execs_total", counter, "Programs started.", self.execs),
            ("oom_victims_total", counter, "Victims of the out-of-memory killer.", self.victims),
            ("events_lost_total", counter, "Events of the kernel that were lost.", self.lost),
            ("alarms_total", counter, "Alarms.", self.alarms),
            ("signals_total", counter, "Signals sent.", self.signals),
            ("hurried_total", counter, "Killed processes that were given priority.", self.hurried),
            ("notes_lost_total", counter, "Notes that found the queue full.", self.notes_lost),
            ("audit_failed_total", counter, "Lines not written to the audit log.", self.audit_failed),
        ];
        for (name, kind, help, value) in scalars {
            family(text, (name, kind, help), std::iter::once(([], value as f64)));
        }
        let step = ("step_seconds_total", counter, "All steps of the loop together.");
        family(text, step, std::iter::once(([], self.step_us as f64 / 1e6)));
        let faults = [("minor", self.faults_minor), ("major", self.faults_major)];
        let faults = faults.into_iter().map(|(kind, faults)| ([("kind", kind)], faults as f64));
        family(text, ("page_faults_total", counter, "Page faults of the loop."), faults);
    }

    fn policies(&self, text: &mut Exposition) {
        type Of = fn(&PolicyRow) -> Option<f64>;
        let crashes = "Processes of a service that ended by a fault.";
        let level = "How unlikely the silence of an application is.";
        let families: [(&str, Kind, &str, Of); 5] = [
            ("policy_alarms_total", Kind::Counter, "Alarms of a policy.", |row| Some(row.alarms as f64)),
            ("policy_crashes_total", Kind::Counter, crashes, |row| Some(row.crashes as f64)),
            ("policy_restarts_total", Kind::Counter, "Times that a service was brought up again.", |row| {
                Some(row.restarts as f64)
            }),
            ("policy_living", Kind::Gauge, "Living processes born in a policy's window.", |row| {
                Some(row.living as f64)
            }),
            ("policy_suspicion_level", Kind::Gauge, level, |row| row.level),
        ];
        for (name, kind, help, of) in families {
            let rows = self.policies.iter();
            let rows = rows.filter_map(|row| Some(([("policy", row.name.as_str())], of(row)?)));
            family(text, (name, kind, help), rows);
        }
    }

    /// Values of sensors and of queries.
    fn values(&self, text: &mut Exposition) {
        let sensors = self.boxes.iter().flat_map(|row| row.sensors.iter().map(move |sensor| (row, sensor)));
        let sensors = sensors.map(|(row, sensor)| {
            ([("box", row.name.as_str()), ("sensor", sensor.name.as_str())], sensor.value as f64)
        });
        family(text, ("sensor_value", Kind::Gauge, "Value of a sensor."), sensors);
        let queries = self.queries.iter();
        let queries =
            queries.filter_map(|row| Some(([("query", row.name.as_str())], row.value.parse().ok()?)));
        family(text, ("query_value", Kind::Gauge, "Value of a query, where it is a number."), queries);
    }

    /// Hosts of the ring, and guests.
    fn watched(&self, text: &mut Exposition) {
        type OfHost = fn(&HostRow) -> Option<f64>;
        let truth = |is: bool| f64::from(u8::from(is));
        let alone = "1 when this host hears no majority of its neighbours, and judges nobody.";
        let hosts: [(&str, &str, OfHost); 3] = [
            ("host_failed", "1 when a host of the ring is taken for failed.", |row| {
                Some(f64::from(u8::from(row.failed)))
            }),
            ("host_alone", alone, |row| Some(f64::from(u8::from(row.alone)))),
            ("host_suspicion_level", "How unlikely the silence of a watched host is.", |row| row.level),
        ];
        for (name, help, of) in hosts {
            let rows = self.hosts.iter().filter_map(|row| Some(([("host", row.name.as_str())], of(row)?)));
            family(text, (name, Kind::Gauge, help), rows);
        }
        let guests = |of: fn(&GuestRow) -> f64| {
            self.guests.iter().map(move |row| ([("guest", row.name.as_str())], of(row)))
        };
        let failed = ("guest_failed", Kind::Gauge, "1 when a guest is taken for failed, or fenced.");
        family(
            text,
            failed,
            self.guests.iter().map(|row| ([("guest", row.name.as_str())], truth(row.failed))),
        );
        let level = ("guest_suspicion_level", Kind::Gauge, "How unlikely the silence of a guest is.");
        family(text, level, guests(|row| row.level));
        let help = "Times that a guest's emulator got no processor.";
        family(text, ("guest_starved_total", Kind::Counter, help), guests(|row| row.starved as f64));
    }

    fn webhook(&self, text: &mut Exposition) {
        let Some(row) = &self.webhook else { return };
        let (counter, gauge) = (Kind::Counter, Kind::Gauge);
        let scalars: [Scalar; 8] = [
            ("webhook_firing", gauge, "Alerts that fire.", row.firing),
            ("webhook_waiting", gauge, "Alerts that wait to be taken.", row.waiting),
            ("webhook_waiting_bytes", gauge, "Bytes of alerts that wait.", row.waiting_bytes),
            ("webhook_sent_total", counter, "Alerts that the webhook took.", row.sent),
            ("webhook_failed_total", counter, "Tries that the webhook did not take.", row.failed),
            ("webhook_dropped_total", counter, "Alerts that gave way to newer ones.", row.dropped),
            ("webhook_refused_total", counter, "Alerts that the webhook calls wrong.", row.refused),
            ("webhook_unkept_total", counter, "Alerts that waited in memory only.", row.unkept),
        ];
        for (name, kind, help, value) in scalars {
            family(text, (name, kind, help), std::iter::once(([], value as f64)));
        }
    }
}

#[cfg(test)]
mod tests;
