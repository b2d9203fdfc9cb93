//! The report's arithmetic and lines, and the order of paths.

use super::report::figure;
use super::*;

fn note(name: &str, system: &str) -> PathNote {
    PathNote { name: name.into(), system: system.into(), text: "as it is".into() }
}

fn report(values: &[(&str, Metric, &[f64])]) -> Report {
    let mut report = Report::new("weir", 3);
    report.paths =
        vec![note("weir", "weir"), note("veth", "veth"), note("ovs-tap", "ovs"), note("ovs-afxdp", "ovs")];
    for (path, metric, values) in values {
        for (window, value) in values.iter().enumerate() {
            report.samples.push(Sample {
                path: (*path).to_string(),
                metric: *metric,
                value: *value,
                window: window as u32,
                busy_before: 0.0,
                busy_after: 0.3,
                attempts: 1,
                marked: window == 0,
            });
        }
    }
    report
}

#[test]
fn medians_of_odd_and_even_counts_and_of_nothing() {
    let report =
        report(&[("weir", Metric::Tcp1Flow, &[9.0, 1.0, 5.0]), ("veth", Metric::Tcp1Flow, &[4.0, 2.0])]);
    let summary = report.summary("weir", Metric::Tcp1Flow).unwrap();
    assert_eq!(
        (summary.median, summary.min, summary.max, summary.windows, summary.marked),
        (5.0, 1.0, 9.0, 3, 1)
    );
    assert_eq!(report.summary("veth", Metric::Tcp1Flow).unwrap().median, 3.0);
    assert!(report.summary("veth", Metric::Tcp8Flows).is_none());
}

#[test]
fn a_peer_is_compared_in_its_best_mode_whichever_way_is_better() {
    let report = report(&[
        ("weir", Metric::Tcp1Flow, &[10.0]),
        ("ovs-tap", Metric::Tcp1Flow, &[2.0]),
        ("ovs-afxdp", Metric::Tcp1Flow, &[4.0]),
        ("weir", Metric::LatencyP50, &[60.0]),
        ("ovs-tap", Metric::LatencyP50, &[40.0]),
        ("ovs-afxdp", Metric::LatencyP50, &[120.0]),
    ]);
    assert_eq!(
        report.result_lines(),
        [
            "RESULT net tcp_1_flow weir=10.0Gbit/s ovs=4.00Gbit/s ratio=2.50",
            "RESULT net latency_p50 weir=60.0us ovs=40.0us ratio=1.50",
        ]
    );
    assert_eq!(
        report.best_mode_lines(),
        ["BEST net tcp_1_flow ovs=ovs-afxdp", "BEST net latency_p50 ovs=ovs-tap"]
    );
    let verdicts: Vec<bool> = report.comparisons().iter().map(|row| row.ahead).collect();
    assert_eq!(verdicts, [true, false]);
}

#[test]
fn losing_rows_marks_and_gaps_are_in_the_page() {
    let mut report = report(&[
        ("weir", Metric::Udp64bReceived, &[100.0, 110.0, 120.0]),
        ("veth", Metric::Udp64bReceived, &[300.0]),
    ]);
    report.not_run.push(note("kernel-vxlan", "kernel-vxlan"));
    let page = report.markdown();
    assert!(page.contains("| behind |"), "{page}");
    assert!(page.contains("110 (100-120) *1"), "{page}");
    assert!(page.contains("no figure"), "{page}");
    assert!(page.contains("NOT RUN kernel-vxlan: as it is"), "{page}");
}

#[test]
fn the_report_is_written_and_reads_back() {
    let folder = tempfile::tempdir().unwrap();
    let report = report(&[("weir", Metric::Cpu8Flows, &[1.5])]);
    report.write(&folder.path().join("deep")).unwrap();
    let text = std::fs::read_to_string(folder.path().join("deep/net.json")).unwrap();
    assert!(text.contains("\"cpu_8_flows\""));
    assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
    assert!(folder.path().join("deep/net.md").exists());
}

#[test]
fn every_window_takes_every_path_and_begins_with_another() {
    let orders: Vec<Vec<usize>> = (0..4).map(|window| order(4, window)).collect();
    for taken in &orders {
        let mut sorted = taken.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [0, 1, 2, 3]);
    }
    assert_eq!(orders[0], [0, 1, 2, 3]);
    assert_eq!(orders[1], [0, 3, 2, 1]);
    assert_eq!(orders[2], [2, 3, 0, 1]);
}

#[test]
fn the_most_frequent_complaint_of_a_switch_is_told() {
    let log = "2026-01-01T00:00:00.000Z|00001|bridge|INFO|ready\n\
               2026-01-01T00:00:01.000Z|00002|netdev|WARN|once\n\
               2026-01-01T00:00:02.000Z|00003|netdev|WARN|gnv: dropped\n\
               2026-01-01T00:00:03.000Z|00004|netdev(handler1)|ERR|gnv: dropped\n";
    assert_eq!(ovs::complaint(log).as_deref(), Some("gnv: dropped"));
    assert_eq!(ovs::complaint("2026-01-01T00:00:00.000Z|00001|bridge|INFO|ready\n"), None);
}

#[test]
fn figures_keep_three_digits() {
    assert_eq!(
        [figure(123.4), figure(12.34), figure(1.234), figure(0.0634)],
        ["123", "12.3", "1.23", "0.06"]
    );
}
