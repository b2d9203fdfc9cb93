use super::*;
use weir_monitor::audit::What;

fn entry(what: What) -> audit::Entry {
    audit::Entry { number: 7, unix_ms: 1000, policy: Some("p".into()), what }
}

#[test]
fn what_is_told_is_bounded_and_what_is_of_no_interest_is_not_told() {
    let failed = entry(What::HostFailed { host: "ä".repeat(400), fenced: Some(true) });
    let told = note(&failed).unwrap();
    assert_eq!((told.number, told.severity), (7, Severity::Critical));
    assert!(told.text.len() <= TEXT_BYTES_MAX && told.text.len() > TEXT_BYTES_MAX - 4, "{}", told.text.len());
    assert!(note(&entry(What::Settled { took_us: 5, again: 0 })).is_some());
    assert_eq!(note(&entry(What::Stopped)), None);
    let fired = entry(What::Query { query: "forkers".into(), value: "5".into() });
    assert_eq!(note(&fired), None, "a query that fires is no fault");
    assert!(webhook::severity(&fired).is_some(), "who asked to be told by a webhook is told");
    let report = HealthReport {
        actuator: Label::new("h1").unwrap(),
        kernel: String::new(),
        alarms: 1,
        notes: vec![told; NOTES_MAX],
    };
    assert_eq!(report.problem(), None);
}

#[test]
fn all_repairs_come_after_all_other_keys() {
    let repair = Key::Repair { host: Label::new("0").unwrap(), cgroup: String::new() };
    assert!(last_of_others() < repair && Key::Gateways < last_of_others());
}

#[test]
fn what_came_of_an_order_before_a_restart_is_known_from_the_log() {
    let ordered = |number: u64, cgroup: &str, order: &str, version: u64, problem: Option<&str>| {
        let (cgroup, order, problem) = (cgroup.into(), order.into(), problem.map(str::to_string));
        let what = What::Ordered { cgroup, order, version, problem };
        (String::new(), audit::Entry { number, ..entry(what) })
    };
    let log = [
        ordered(1, "web", "freeze", 5, None),
        ordered(2, "web", "thaw", 9, None),
        ordered(3, "web", "kill", 9, Some("it is gone")),
        ordered(4, "db", "freeze", 7, None),
    ];
    let kill = (9, RepairAction::Kill);
    let done = Done(BTreeMap::from([
        ("web".to_string(), kill),
        ("db".to_string(), (7, RepairAction::Freeze)),
        ("lost".to_string(), (11, RepairAction::Kill)),
    ]));
    let found = unsaid(&done, &log);
    assert_eq!(found["web"], (9, Err("it is gone".to_string())));
    assert_eq!(found["db"], (7, Ok(())));
    assert!(matches!(&found["lost"], (11, Err(why)) if why.contains("not known")), "{found:?}");
}
