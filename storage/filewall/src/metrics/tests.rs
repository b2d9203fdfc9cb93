//! Tests of counters.

use super::*;

#[test]
fn quantiles_are_bounds_of_their_class() {
    let totals = Totals::default();
    for latency_us in [3, 3, 3, 100] {
        totals.call(Op::Read);
        totals.reply(Op::Read, latency_us);
    }
    let read = &totals.snapshot().ops["READ"];
    assert_eq!((read.quantile_us(0.5), read.quantile_us(0.99)), (4, 128));
    assert_eq!((read.row.calls, read.row.replies, read.row.latency_us), (4, 4, 109));
}

#[test]
fn prometheus_gets_cumulative_classes() {
    let totals = Totals::default();
    totals.call(Op::Write);
    totals.reply(Op::Write, 1 << 40);
    let status = Status {
        policy_epoch: 2,
        policy_order: 0,
        policy_error: None,
        replicas: vec![("10.0.0.1:2049/export".to_string(), true)],
        replicas_behind: BTreeMap::new(),
        places: 0,
        policies: vec![PolicyRow {
            name: "p".into(),
            kind: "access".into(),
            seen: 5,
            answered: 1,
            delayed: 0,
            details: BTreeMap::new(),
        }],
        principals: Vec::new(),
        totals: totals.snapshot(),
    };
    let text = status.prometheus();
    let labels = "op=\"WRITE\",le=";
    assert!(text.contains(&format!("weir_filewall_reply_seconds_bucket{{{labels}\"+Inf\"}} 1")), "{text}");
    assert!(
        text.contains(&format!("weir_filewall_reply_seconds_bucket{{{labels}\"0.000001\"}} 0")),
        "{text}"
    );
    assert!(text.contains("weir_filewall_policy_answered_total{policy=\"p\",kind=\"access\"} 1"), "{text}");
}
