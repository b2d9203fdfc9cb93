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
    let series = text.lines().filter(|line| !line.starts_with('#'));
    assert_eq!(series.count(), metrics.rows().len());
}
