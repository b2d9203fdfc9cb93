use super::*;
use crate::durations::Durations;
use crate::engine::counters::{EngineDrop, EngineEvent};
use std::time::Duration;
use weir_base::exposition::check;

/// The page that says what each is.
const PAGE: &str = include_str!("../../../../../docs/operate/metrics.md");

/// Families of a text, with their kinds.
fn families(text: &str) -> Vec<(&str, &str)> {
    text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect()
}

/// A counter of each family.
fn one_of_each() -> Vec<(String, u64)> {
    FAMILIES.iter().map(|(name, ..)| ((*name).to_string(), 3)).collect()
}

#[test]
fn metrics_have_help_types_and_base_units() {
    let mut durations = Durations::default();
    for us in [60, 70, 2_000] {
        durations.add(Duration::from_micros(us));
    }
    let mut counters = vec![
        ("drops{reason=\"no-route\"}".to_string(), 3),
        ("flows".to_string(), 7),
        ("drops{reason=\"rule\",network=\"red\",rule=\"web\"}".to_string(), 1),
        ("engine_busy_ns".to_string(), 1_500_000_000),
        ("handover_blackout_us".to_string(), 2_500),
        ("update_us_max".to_string(), 9),
        ("of_tomorrow".to_string(), 4),
    ];
    counters.extend(durations.counters("update_us"));
    let text = metrics_text(&counters);
    assert_eq!(check(&text), []);
    for line in [
        "# TYPE weir_switch_drops_total counter",
        "weir_switch_drops_total{reason=\"no-route\"} 3",
        "weir_switch_drops_total{reason=\"rule\",network=\"red\",rule=\"web\"} 1",
        "weir_switch_flows 7",
        "weir_switch_engine_busy_seconds_total 1.5",
        "weir_switch_handover_blackout_seconds 0.0025",
        "weir_switch_of_tomorrow_total 4",
        "# TYPE weir_switch_update_seconds histogram",
        "weir_switch_update_seconds_bucket{le=\"0.00005\"} 0",
        "weir_switch_update_seconds_bucket{le=\"0.0001\"} 2",
        "weir_switch_update_seconds_bucket{le=\"0.0025\"} 3",
        "weir_switch_update_seconds_bucket{le=\"+Inf\"} 3",
        "weir_switch_update_seconds_sum 0.00213",
        "weir_switch_update_seconds_count 3",
    ] {
        assert!(text.lines().any(|own| own == line), "{line} is not in\n{text}");
    }
    assert!(!text.contains("_max"), "{text}");
}

#[test]
fn every_family_is_in_base_units_and_on_the_page_and_the_page_names_no_other() {
    let exposition = exposition(&one_of_each());
    assert_eq!(exposition.problems(), []);
    let text = exposition.text();
    assert_eq!(check(&text), []);
    let told = families(&text);
    assert_eq!(told.len(), FAMILIES.len());
    for (name, kind) in &told {
        let row = format!("| `{name}` | {kind} |");
        let packets = row.replace("_bytes_total", "_total");
        assert!(PAGE.contains(&row) || PAGE.contains(&packets), "docs/operate/metrics.md has no row {row}");
    }
    for line in PAGE.lines() {
        let Some(name) = line.strip_prefix("| `weir_switch_").and_then(|rest| rest.split('`').next()) else {
            continue;
        };
        let name = format!("weir_switch_{name}");
        let is_told = name == "weir_switch_up" || told.iter().any(|(told, _)| *told == name);
        assert!(is_told, "{name} is in docs/operate/metrics.md and is not told");
    }
}

#[test]
fn the_families_are_sorted_and_hold_what_the_engine_counts() {
    assert!(FAMILIES.is_sorted_by(|(one, ..), (next, ..)| one < next));
    let is_there = |name: &str| FAMILIES.iter().any(|(family, ..)| *family == name);
    for event in EngineEvent::ALL {
        assert!(is_there(&format!("engine_{}", event.as_str())), "{event:?}");
    }
    assert!(!EngineDrop::ALL.is_empty() && is_there("drops"));
}
