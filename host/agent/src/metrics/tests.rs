use super::*;
use std::collections::HashSet;

#[test]
fn text_has_each_series_once_and_each_family_together() {
    let metrics = Metrics::default();
    metrics.dhcp4_answered.add(3);
    metrics.session_up.set(1);
    let text = metrics.metrics_text();
    assert!(text.contains("weir_agent_dhcp_total{family=\"v4\",result=\"answered\"} 3\n"));
    assert!(text.contains("weir_agent_session_up 1\n"));
    let mut series = HashSet::new();
    let mut families = HashSet::new();
    for line in text.lines() {
        if let Some(family) = line.strip_prefix("# TYPE ") {
            assert!(families.insert(family.to_string()), "{family} is declared twice");
        } else if !line.starts_with('#') {
            let name = line.rsplit_once(' ').unwrap().0;
            assert!(series.insert(name.to_string()), "{name} is there twice");
        }
    }
    assert_eq!(series.len(), metrics.rows().len());
}
