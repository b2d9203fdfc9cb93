use super::*;
use proptest::prelude::*;

#[test]
fn a_text_has_each_family_once_with_help_and_type() {
    let mut exposition = Exposition::new();
    exposition.put("weir_flows", Kind::Gauge, "Flows installed.", &[], 7.0);
    exposition.put("weir_drops_total", Kind::Counter, "Packets dropped.", &[("reason", "no \"route\"")], 3.0);
    exposition.put("weir_busy_seconds_total", Kind::Counter, "Time of turns.", &[], 0.25);
    exposition.put("weir_drops_total", Kind::Counter, "Packets dropped.", &[("reason", "fault")], 1.0);
    exposition.histogram("weir_update_seconds", "Time of updates.", &[], &[0.001, 0.1], &[2, 0, 1], 3.5);
    let wanted = "# HELP weir_busy_seconds_total Time of turns.\n# TYPE weir_busy_seconds_total counter\n\
        weir_busy_seconds_total 0.25\n\
        # HELP weir_drops_total Packets dropped.\n# TYPE weir_drops_total counter\n\
        weir_drops_total{reason=\"no \\\"route\\\"\"} 3\nweir_drops_total{reason=\"fault\"} 1\n\
        # HELP weir_flows Flows installed.\n# TYPE weir_flows gauge\nweir_flows 7\n\
        # HELP weir_update_seconds Time of updates.\n# TYPE weir_update_seconds histogram\n\
        weir_update_seconds_bucket{le=\"0.001\"} 2\nweir_update_seconds_bucket{le=\"0.1\"} 2\n\
        weir_update_seconds_bucket{le=\"+Inf\"} 3\nweir_update_seconds_sum 3.5\nweir_update_seconds_count 3\n";
    assert_eq!(exposition.text(), wanted);
    assert_eq!((exposition.problems(), check(wanted)), (vec![], vec![]));
}

#[test]
fn what_makes_a_text_wrong_is_left_out_and_told() {
    let mut exposition = Exposition::new();
    exposition.put("weir_flows", Kind::Gauge, "Flows.", &[], 1.0);
    exposition.put("weir_flows", Kind::Gauge, "Flows.", &[], 2.0);
    exposition.put("weir_flows", Kind::Counter, "Flows.", &[("a", "b")], 3.0);
    exposition.put("weir flows", Kind::Gauge, "Flows.", &[], 4.0);
    exposition.put("weir_ports", Kind::Gauge, "Ports.", &[("0", "b")], 5.0);
    let told = exposition.problems();
    assert_eq!(exposition.text(), "# HELP weir_flows Flows.\n# TYPE weir_flows gauge\nweir_flows 1\n");
    assert!(told.contains(&Problem::Twice("weir_flows".into())), "{told:?}");
    assert!(told.contains(&Problem::Name("weir flows".into())), "{told:?}");
    assert!(told.contains(&Problem::Name("weir_ports, label 0".into())), "{told:?}");
    assert!(told.contains(&Problem::Total("weir_flows".into(), "counter".into())), "{told:?}");
    assert_eq!(check(&exposition.text()), vec![]);
}

#[test]
fn units_and_kinds_are_in_the_name() {
    let of = |name: &str, kind| {
        let mut exposition = Exposition::new();
        exposition.put(name, kind, "Something.", &[], 1.0);
        assert_eq!(exposition.problems(), check(&exposition.text()), "{name}");
        exposition.problems()
    };
    for name in
        ["weir_step_us", "weir_busy_ns", "weir_pause_ms", "weir_late_microseconds", "weir_step_seconds_max"]
    {
        assert!(matches!(of(name, Kind::Gauge)[..], [Problem::Unit(..)]), "{name}");
    }
    assert!(matches!(of("weir_things", Kind::Counter)[..], [Problem::Total(..)]));
    assert!(matches!(of("weir_things_total", Kind::Gauge)[..], [Problem::Total(..)]));
    for name in ["weir_status", "weir_bytes", "weir_maximum", "weir_minions"] {
        assert_eq!(of(name, Kind::Gauge), []);
    }
}

#[test]
fn a_text_of_anybody_is_read() {
    let wrong = |text: &str| check(text).into_iter().map(|problem| problem.to_string()).collect::<Vec<_>>();
    let begin = "# HELP a A.\n# TYPE a gauge\n";
    assert_eq!(wrong(&format!("{begin}a 1\n")), Vec::<String>::new());
    assert_eq!(
        wrong(&format!("{begin}a{{x=\"1\",y=\"2\"}} 1\na{{y=\"2\",x=\"1\"}} 1\n")).len(),
        1,
        "one series"
    );
    assert_eq!(wrong(&format!("{begin}a{{x=\"}},\\\"\"}} 1\n")), Vec::<String>::new());
    assert_eq!(wrong("# TYPE a gauge\na 1\n"), ["a has no HELP"]);
    assert_eq!(wrong("a 1\n"), ["a has no TYPE"]);
    assert_eq!(wrong(&format!("{begin}a 1\n{begin}a{{x=\"1\"}} 1\n")), ["a is there twice"]);
    let apart = format!("{begin}a 1\n# HELP b B.\n# TYPE b gauge\nb 1\na{{x=\"1\"}} 1\n");
    assert_eq!(wrong(&apart), ["a is there twice"]);
    for line in ["a", "a one", "a{x=1} 1", "a{x=\"1} 1", "a{ 1", "{} 1", "a{x=\"1\"}1", "a{x=\"1\\\"} 1"] {
        assert!(matches!(check(&format!("{begin}{line}\n"))[..], [Problem::Line(_)]), "{line}");
    }
}

proptest! {
    /// Whatever is put in, the text is one that reads back without a problem of its form.
    #[test]
    fn every_text_reads_back(
        rows in proptest::collection::vec(("[a-c_ 0]{0,3}", "\\PC{0,6}", "[a-b0]{1,2}", "(?s).{0,6}", any::<f64>(), 0..3_u8), 0..20),
    ) {
        let mut exposition = Exposition::new();
        for (name, help, label, value, number, kind) in &rows {
            let labels = [(label.as_str(), value.as_str())];
            match kind {
                0 => exposition.put(name, Kind::Gauge, help, &labels, *number),
                1 => exposition.put(&format!("{name}_total"), Kind::Counter, help, &labels, *number),
                _ => exposition.histogram(name, help, &labels, &[1.0], &[1, 2], *number),
            }
        }
        for problem in check(&exposition.text()) {
            prop_assert!(matches!(problem, Problem::NoHelp(_)), "{problem}: {}", exposition.text());
        }
    }

    #[test]
    fn no_text_is_too_wrong_to_be_read(text in "(?s)(a|b|#|HELP|TYPE| |\\{|\\}|\"|=|,|\\\\|\n|1|é){0,40}") {
        check(&text);
    }
}
