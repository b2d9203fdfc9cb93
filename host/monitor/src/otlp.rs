//! Metrics in OpenTelemetry's protocol (OTLP 1.x, metrics, JSON over HTTP): `ExportMetricsServiceRequest`.
//!
//! They are made from the text that Prometheus reads, so that both show the same values under the same names. That text is our own:
//! lines that are not understood would be a fault of ours and are left out. No crate is used: the message is a few lines of JSON,
//! and the crates of OpenTelemetry bring an own runtime of exporters.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// A counter counts from here on, and what is told is its whole value.
const CUMULATIVE: u32 = 2;

/// Nanoseconds of the Unix epoch.
pub fn unix_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

#[derive(Default)]
struct Family {
    counter: bool,
    help: String,
    points: Vec<Value>,
    histogram: Option<Histogram>,
}

/// A histogram without labels of its own. The text counts all below each bound; the message wants the classes apart.
#[derive(Default)]
struct Histogram {
    below: Vec<(f64, u64)>,
    sum: f64,
    count: u64,
}

impl Histogram {
    fn take(&mut self, part: &str, labels: &Labels, value: f64) {
        match (part, labels.iter().find(|(key, _)| key == "le")) {
            // The class without an upper bound is what the others leave of the count.
            ("bucket", Some((_, bound))) if bound != "+Inf" => {
                self.below.extend(bound.parse().ok().map(|bound: f64| (bound, value as u64)));
            }
            ("sum", _) => self.sum = value,
            ("count", _) => self.count = value as u64,
            _ => {}
        }
    }

    fn point(&self, started_ns: u64, now_ns: u64) -> Value {
        let mut before = 0;
        let ends = self.below.iter().map(|(_, below)| *below).chain([self.count]);
        let classes: Vec<String> = ends
            .map(|below| below.saturating_sub(std::mem::replace(&mut before, below)).to_string())
            .collect();
        let bounds: Vec<f64> = self.below.iter().map(|(bound, _)| *bound).collect();
        json!({
            "startTimeUnixNano": started_ns.to_string(),
            "timeUnixNano": now_ns.to_string(),
            "count": self.count.to_string(),
            "sum": self.sum,
            "bucketCounts": classes,
            "explicitBounds": bounds,
        })
    }
}

/// The message for a text of metrics.
pub fn message(prometheus: &str, started_ns: u64, now_ns: u64) -> Value {
    let mut families: BTreeMap<&str, Family> = BTreeMap::new();
    for line in prometheus.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            families.entry(name).or_default().help = help.to_string();
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            let family = families.entry(name).or_default();
            family.counter = kind == "counter";
            family.histogram = (kind == "histogram").then(Histogram::default);
        } else if let Some((name, labels, value)) = point(line) {
            if let Some((base, part)) = name.rsplit_once('_')
                && let Some(histogram) = families.get_mut(base).and_then(|family| family.histogram.as_mut())
            {
                histogram.take(part, &labels, value);
                continue;
            }
            let attributes: Vec<Value> = labels
                .into_iter()
                .map(|(key, value)| json!({ "key": key, "value": { "stringValue": value } }))
                .collect();
            // 64-bit numbers are strings in this JSON.
            families.entry(name).or_default().points.push(json!({
                "attributes": attributes,
                "startTimeUnixNano": started_ns.to_string(),
                "timeUnixNano": now_ns.to_string(),
                "asDouble": value,
            }));
        }
    }
    let metric = |(name, family): (&str, Family)| {
        let mut metric = json!({ "name": name, "description": family.help });
        if let Some(histogram) = &family.histogram {
            metric["histogram"] = json!({
                "aggregationTemporality": CUMULATIVE,
                "dataPoints": [histogram.point(started_ns, now_ns)],
            });
            return metric;
        }
        match family.counter {
            true => {
                metric["sum"] = json!({
                    "aggregationTemporality": CUMULATIVE,
                    "isMonotonic": true,
                    "dataPoints": family.points,
                });
            }
            false => metric["gauge"] = json!({ "dataPoints": family.points }),
        }
        metric
    };
    let told =
        families.into_iter().filter(|(_, family)| !family.points.is_empty() || family.histogram.is_some());
    let metrics: Vec<Value> = told.map(metric).collect();
    let service = json!({ "key": "service.name", "value": { "stringValue": "weir-monitor" } });
    json!({ "resourceMetrics": [{
        "resource": { "attributes": [service] },
        "scopeMetrics": [{ "scope": { "name": "weir-monitor", "version": env!("CARGO_PKG_VERSION") }, "metrics": metrics }],
    }] })
}

/// Labels with their values.
type Labels = Vec<(String, String)>;

/// Name, labels and value of a line such as `name{a="b"} 5`.
fn point(line: &str) -> Option<(&str, Labels, f64)> {
    if line.starts_with('#') {
        return None;
    }
    let (left, value) = line.rsplit_once(' ')?;
    let value: f64 = value.parse().ok()?;
    if !value.is_finite() {
        return None;
    }
    match left.split_once('{') {
        None => Some((left, Vec::new(), value)),
        Some((name, labels)) => Some((name, pairs(labels.strip_suffix('}')?)?, value)),
    }
}

/// Labels, of which values may hold anything, escaped.
fn pairs(text: &str) -> Option<Labels> {
    let mut found = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (key, after) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut letters = after.char_indices();
        let end = loop {
            match letters.next()? {
                (_, '\\') => match letters.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (at, '"') => break at,
                (_, other) => value.push(other),
            }
        };
        found.push((key.to_string(), value));
        rest = after[end + 1..].trim_start_matches(',');
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{PolicyRow, Status};

    #[test]
    fn the_message_has_all_that_the_text_has() {
        let odd = "a \"b\\c\n}{=,";
        let policy = PolicyRow { name: odd.into(), alarms: 3, ..PolicyRow::default() };
        let late = vec![3, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        let status = Status {
            forks: 7,
            processes: 5,
            policies: vec![policy],
            late,
            late_us: 2_000_000,
            ..Status::default()
        };
        let message = message(&status.prometheus(), 1, 2);
        let metrics = message["resourceMetrics"][0]["scopeMetrics"][0]["metrics"].as_array().unwrap();
        let named = |name: &str| metrics.iter().find(|metric| metric["name"] == name).unwrap();
        let forks = &named("weir_monitor_forks_total")["sum"];
        assert_eq!((&forks["isMonotonic"], &forks["dataPoints"][0]["asDouble"]), (&json!(true), &json!(7.0)));
        assert_eq!(forks["dataPoints"][0]["timeUnixNano"], "2");
        assert_eq!(named("weir_monitor_processes")["gauge"]["dataPoints"][0]["asDouble"], 5.0);
        let alarms = &named("weir_monitor_policy_alarms_total")["sum"]["dataPoints"][0];
        assert_eq!(alarms["attributes"][0]["value"]["stringValue"], odd);
        let late = &named("weir_monitor_late_seconds")["histogram"]["dataPoints"][0];
        assert_eq!((&late["count"], &late["sum"]), (&json!("6"), &json!(2.0)));
        let classes = ["3", "0", "2", "0", "0", "0", "0", "0", "0", "0", "0", "0", "1"];
        assert_eq!(late["bucketCounts"], json!(classes));
        assert_eq!(late["explicitBounds"].as_array().unwrap().len(), classes.len() - 1);
        let is_line = |line: &&str| !line.starts_with('#') && !line.starts_with("weir_monitor_late_seconds");
        let lines = status.prometheus().lines().filter(is_line).count();
        let points = |metric: &Value| {
            let data = metric.get("sum").or(metric.get("gauge"));
            data.map_or(0, |data| data["dataPoints"].as_array().unwrap().len())
        };
        assert_eq!(metrics.iter().map(points).sum::<usize>(), lines);
    }

    #[test]
    fn any_text_is_taken() {
        bolero::check!().with_type::<String>().for_each(|text| {
            message(text, 0, 0);
            pairs(text);
        });
    }
}
