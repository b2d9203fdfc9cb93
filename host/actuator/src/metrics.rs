//! What an actuator counts, in the two forms in which it is told: to whoever asks its socket, and as Prometheus text where its
//! process serves that.

use weir_base::exposition::{Exposition, Kind};
use weir_model::Label;

/// A number of a plane, told with the label `plane`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name behind `weir_plane_`; that of a counter ends in `_total`.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// What it says, in a sentence.
    pub help: &'static str,
    /// The label `what`, where several are under one name.
    pub what: Option<&'static str>,
    /// How much.
    pub value: u64,
}

impl Metric {
    /// What only rises.
    pub const fn counter(name: &'static str, help: &'static str, value: u64) -> Metric {
        Metric { name, kind: Kind::Counter, help, what: None, value }
    }

    /// How something is now.
    pub const fn gauge(name: &'static str, help: &'static str, value: u64) -> Metric {
        Metric { name, kind: Kind::Gauge, help, what: None, value }
    }

    /// One of several under its name.
    pub const fn of(self, what: &'static str) -> Metric {
        Metric { what: Some(what), ..self }
    }
}

/// As counters by name with labels.
pub fn counters(plane: &Label, metrics: &[Metric]) -> Vec<(String, u64)> {
    let named = |metric: &Metric| {
        let what = metric.what.map(|what| format!(",what=\"{what}\"")).unwrap_or_default();
        (format!("plane_{}{{plane=\"{plane}\"{what}}}", metric.name), metric.value)
    };
    metrics.iter().map(named).collect()
}

/// As Prometheus text.
pub fn text(plane: &Label, metrics: &[Metric]) -> String {
    let mut text = Exposition::new();
    for metric in metrics {
        let mut labels = vec![("plane", plane.as_str())];
        labels.extend(metric.what.map(|what| ("what", what)));
        let name = format!("weir_plane_{}", metric.name);
        text.put(&name, metric.kind, metric.help, &labels, metric.value as f64);
    }
    text.text()
}
