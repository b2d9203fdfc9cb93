use super::*;

#[test]
fn paths_of_cgroups_stay_below_the_mount() {
    for good in ["machines/web", "a", "system.slice/x.service"] {
        assert_eq!(cgroup_problem(good), None, "{good}");
    }
    let long = "x".repeat(CGROUP_BYTES_MAX + 1);
    for bad in ["", "/a", "a/../b", "..", "a//b", "a/", ".", "a\nb", &long] {
        assert!(cgroup_problem(bad).is_some(), "{bad}");
    }
}

#[test]
fn reports_are_bounded() {
    let note = HealthNote {
        number: 1,
        unix_ms: 2,
        severity: Severity::Warning,
        policy: "p".into(),
        text: "t".repeat(TEXT_BYTES_MAX),
    };
    let name = Label::new("h1").unwrap();
    let report = HealthReport {
        actuator: name,
        kernel: "bpf".into(),
        alarms: 0,
        notes: vec![note.clone(); NOTES_MAX],
    };
    assert_eq!(report.problem(), None);
    let many = HealthReport { notes: vec![note.clone(); NOTES_MAX + 1], ..report.clone() };
    assert!(many.problem().is_some());
    let long = HealthNote { text: "t".repeat(TEXT_BYTES_MAX + 1), ..note };
    assert!(HealthReport { notes: vec![long], ..report }.problem().is_some());
}
