use super::*;

#[test]
fn text_has_each_series_once_and_each_family_together_in_base_units() {
    let metrics = Metrics::default();
    metrics.dhcp4_answered.add(3);
    metrics.session_up.set(1);
    let text = metrics.metrics_text();
    assert!(text.contains("weir_agent_dhcp_total{family=\"v4\",result=\"answered\"} 3\n"));
    assert!(text.contains("weir_agent_session_up 1\n"));
    assert_eq!(weir_base::exposition::check(&text), []);
    let series = text.lines().filter(|line| !line.starts_with('#') && !line.contains("_quorum_seconds"));
    assert_eq!(series.count(), metrics.rows().len());
    metrics.quorum.took(std::time::Duration::from_micros(1_500));
    metrics.quorum.took(std::time::Duration::ZERO);
    let text = metrics.metrics_text();
    for line in [
        "bucket{le=\"0.0001\"} 1",
        "bucket{le=\"0.001\"} 1",
        "bucket{le=\"0.002\"} 2",
        "sum 0.0015",
        "count 2",
    ] {
        assert!(text.contains(&format!("weir_agent_quorum_seconds_{line}\n")), "{text}");
    }
}
