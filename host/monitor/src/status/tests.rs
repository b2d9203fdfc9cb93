use super::*;

#[test]
fn metrics_are_escaped_and_whole() {
    let sensor = SensorRow { name: "a".into(), value: 7, ..SensorRow::default() };
    let status = Status {
        kernel: "bpf".into(),
        forks: 12,
        policies: vec![PolicyRow {
            name: "containers".into(),
            alarms: 2,
            level: Some(0.5),
            ..PolicyRow::default()
        }],
        boxes: vec![BoxRow { name: "b\"\\x".into(), sensors: vec![sensor], ..BoxRow::default() }],
        queries: vec![
            QueryRow { name: "q".into(), value: "1.5".into(), ..QueryRow::default() },
            QueryRow { name: "table".into(), value: "a 1\nb 2".into(), ..QueryRow::default() },
        ],
        late: vec![3, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        late_us: 2_000_000,
        ..Status::default()
    };
    let text = status.prometheus();
    for line in [
        "weir_monitor_late_seconds_bucket{le=\"0.00005\"} 3",
        "weir_monitor_late_seconds_bucket{le=\"0.00025\"} 5",
        "weir_monitor_late_seconds_bucket{le=\"1\"} 5",
        "weir_monitor_late_seconds_bucket{le=\"+Inf\"} 6",
        "weir_monitor_late_seconds_sum 2",
        "weir_monitor_late_seconds_count 6",
        "weir_monitor_forks_total 12",
        "weir_monitor_degraded 0",
        "weir_monitor_policy_alarms_total{policy=\"containers\"} 2",
        "weir_monitor_policy_suspicion_level{policy=\"containers\"} 0.5",
        "weir_monitor_sensor_value{box=\"b\\\"\\\\x\",sensor=\"a\"} 7",
        "weir_monitor_query_value{query=\"q\"} 1.5",
    ] {
        assert!(text.lines().any(|other| other == line), "{line} in\n{text}");
    }
    assert!(!text.contains("table"));
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (_, value) = line.rsplit_once(' ').unwrap();
        value.parse::<f64>().unwrap();
    }
}

/// With one of everything that has numbers.
fn one_of_each() -> Status {
    let (name, level) = ("x".to_string(), Some(0.5));
    let sensor = SensorRow { name: name.clone(), ..SensorRow::default() };
    Status {
        policies: vec![PolicyRow { name: name.clone(), level, ..PolicyRow::default() }],
        boxes: vec![BoxRow { name: name.clone(), sensors: vec![sensor], ..BoxRow::default() }],
        queries: vec![QueryRow { name: name.clone(), value: "1".into(), ..QueryRow::default() }],
        hosts: vec![HostRow { name: name.clone(), level, ..HostRow::default() }],
        guests: vec![GuestRow { name, ..GuestRow::default() }],
        webhook: Some(WebhookRow::default()),
        ..Status::default()
    }
}

#[test]
fn metrics_are_in_base_units_each_with_what_it_is_and_none_twice() {
    let mut status = one_of_each();
    // Names of others: two boxes may have one.
    status.boxes.push(status.boxes[0].clone());
    let exposition = status.exposition();
    let problems: Vec<String> = exposition.problems().iter().map(ToString::to_string).collect();
    assert_eq!(problems, ["weir_monitor_sensor_value{box=\"x\",sensor=\"x\"} is there twice"]);
    assert_eq!(weir_base::exposition::check(&exposition.text()), []);
}

#[test]
fn the_metrics_and_their_documentation_are_the_same_and_the_dashboard_uses_them() {
    let names = |text: &str| -> std::collections::BTreeSet<String> {
        let word = |c: char| c.is_ascii_lowercase() || c == '_';
        text.split(|c| !word(c))
            .filter(|name| name.starts_with("weir_monitor_"))
            .map(str::to_string)
            .collect()
    };
    let told = names(&one_of_each().prometheus());
    let documented = names(include_str!("../../../../docs/operate/metrics.md"));
    assert_eq!(told, documented);
    let dashboard = include_str!("../../../../packaging/grafana/monitor.json");
    serde_json::from_str::<serde_json::Value>(dashboard).unwrap();
    assert!(names(dashboard).is_subset(&told));
}
