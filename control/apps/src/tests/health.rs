//! What monitors tell, and repairs that are ordered.

use super::*;
use weir_model::health::{
    HealthNote, HealthReport, REPAIRS_MAX, RepairAction, RepairEntry, RepairOrder, Severity,
};

fn report(host: &str, alarms: u64) -> EventBody {
    let note = HealthNote {
        number: alarms,
        unix_ms: 5,
        severity: Severity::Critical,
        policy: "bombs".into(),
        text: "a bomb".into(),
    };
    EventBody::Health(HealthReport { actuator: label(host), kernel: "bpf".into(), alarms, notes: vec![note] })
}

fn order(host: &str, cgroup: &str, action: Option<RepairAction>) -> EventBody {
    EventBody::Repair(RepairOrder { actuator: label(host), cgroup: cgroup.into(), action })
}

#[test]
fn the_newest_report_of_a_host_is_kept_and_goes_with_it() {
    let mut cloud = Cloud::with_switches();
    assert_eq!(cloud.decide(report("h1", 1)).unwrap(), Plan::default());
    cloud.now_ms += 5;
    cloud.decide(report("h1", 2)).unwrap();
    let kept = health(&cloud.store, &label("h1")).unwrap();
    assert_eq!((kept.report.alarms, kept.told_ms), (2, 1_005));
    assert!(cloud.decide(report("h9", 1)).unwrap_err().to_string().contains("no actuator of this name"));
    let EventBody::Health(mut long) = report("h1", 3) else { unreachable!() };
    long.kernel = "x".repeat(1000);
    assert!(cloud.decide(EventBody::Health(long)).is_err());
    cloud.decide(EventBody::Removed { actuator: label("h1") }).unwrap();
    assert_eq!(health(&cloud.store, &label("h1")), None);
}

#[test]
fn a_repair_goes_to_its_host_alone_and_stands_until_it_is_withdrawn() {
    let mut cloud = Cloud::with_switches();
    let plan = cloud.decide(order("h1", "machines/web", Some(RepairAction::Freeze))).unwrap();
    assert_eq!(lines(&plan), ["+h1 repair/h1/machines/web"]);
    let key = Key::Repair { host: label("h1"), cgroup: "machines/web".into() };
    let version = cloud.store.version();
    let entry = RepairEntry { action: RepairAction::Freeze, version };
    assert_eq!(cloud.entry("h1", key.clone()), Some(Entry::Repair(entry.clone())));
    assert_eq!(repairs_of(&cloud.store, &label("h1")).collect::<Vec<_>>(), [("machines/web".into(), entry)]);
    // The same again is a new order: it is carried out once more.
    let plan = cloud.decide(order("h1", "machines/web", Some(RepairAction::Freeze))).unwrap();
    assert_eq!(lines(&plan), ["+h1 repair/h1/machines/web"]);
    let plan = cloud.decide(order("h1", "machines/web", None)).unwrap();
    assert_eq!(lines(&plan), ["-h1 repair/h1/machines/web"]);
    assert_eq!(cloud.entry("h1", key), None);
    let again = cloud.decide(order("h1", "machines/web", None)).unwrap_err().to_string();
    assert!(again.contains("no repair of cgroup 'machines/web'"), "{again}");
}

#[test]
fn what_is_no_cgroup_of_a_member_is_refused_and_repairs_are_bounded() {
    let mut cloud = Cloud::with_switches();
    let kill = Some(RepairAction::Kill);
    assert!(cloud.decide(order("h9", "a", kill)).unwrap_err().to_string().contains("no actuator"));
    assert!(cloud.decide(order("h1", "../a", kill)).unwrap_err().to_string().contains("below the mount"));
    for number in 0..REPAIRS_MAX {
        cloud.decide(order("h1", &format!("c{number}"), kill)).unwrap();
    }
    let error = cloud.decide(order("h1", "more", kill)).unwrap_err().to_string();
    assert!(error.contains(&REPAIRS_MAX.to_string()), "{error}");
    cloud.decide(order("h1", "c0", kill)).unwrap();
    cloud.decide(order("h2", "more", kill)).unwrap();
    cloud.decide(EventBody::Removed { actuator: label("h1") }).unwrap();
    assert_eq!(repairs_of(&cloud.store, &label("h1")).count(), 0);
    assert_eq!(repairs_of(&cloud.store, &label("h2")).count(), 1);
}
