//! Usage reports and refusals.

use super::*;

fn cloud_with_pair() -> Cloud {
    let mut cloud = Cloud::with_switches();
    cloud.apply(red());
    cloud.apply(json!([endpoint("red", "a", "h1"), endpoint("red", "b", "h2")]));
    cloud
}

fn usage(last: u8, bytes: u64) -> Usage {
    Usage { vni: Vni(1), address: [10, 0, 0, last].into(), bytes }
}

fn report(host: &str, through_gateway: Vec<Usage>, direct: Vec<Usage>) -> EventBody {
    EventBody::Usage(UsageReport {
        actuator: label(host),
        window_ms: 1000,
        through_gateway,
        direct,
        turns: Vec::new(),
    })
}

const LOCATION: &str = "h1 location/1/10.0.0.3";

#[test]
fn a_destination_above_the_threshold_gets_a_direct_location() {
    let mut cloud = cloud_with_pair();
    // 2499 bytes in a second are less than 20 kbit/s.
    let plan = cloud.decide(report("h1", vec![usage(3, 2499)], vec![])).unwrap();
    assert_eq!(plan, Plan::default());
    let plan = cloud.decide(report("h1", vec![usage(3, 2500)], vec![])).unwrap();
    assert_eq!(after(&plan, &format!("+{LOCATION}")), ["h2 port/1/b @7"]);
    assert_eq!(offloads(&cloud.store).count(), 1);
    // Already there: nothing more to do.
    assert_eq!(cloud.decide(report("h1", vec![usage(3, 9999)], vec![])).unwrap(), Plan::default());
}

#[test]
fn a_host_is_believed_only_about_its_own_networks_and_others_endpoints() {
    let mut cloud = cloud_with_pair();
    let nowhere = Usage { vni: Vni(9), ..usage(3, 1 << 30) };
    let own = usage(2, 1 << 30);
    let unknown = usage(77, 1 << 30);
    assert_eq!(cloud.decide(report("h1", vec![nowhere, own, unknown], vec![])).unwrap(), Plan::default());
    // h3 has no port of the network.
    assert_eq!(cloud.decide(report("h3", vec![usage(3, 1 << 30)], vec![])).unwrap(), Plan::default());
    assert_eq!(offloads(&cloud.store).count(), 0);
    assert!(cloud.decide(report("g1", vec![usage(3, 1 << 30)], vec![])).is_err());
    assert!(cloud.decide(report("h1", vec![usage(3, 1); 1025], vec![])).is_err());
}

#[test]
fn an_idle_direct_location_goes() {
    let mut cloud = cloud_with_pair();
    cloud.decide(report("h1", vec![usage(3, 5000)], vec![])).unwrap();
    cloud.now_ms += 50_000;
    assert_eq!(cloud.decide(report("h1", vec![], vec![usage(3, 1)])).unwrap(), Plan::default());
    cloud.now_ms += 50_000;
    assert_eq!(cloud.decide(report("h1", vec![], vec![usage(3, 0)])).unwrap(), Plan::default());
    cloud.now_ms += 10_000;
    let plan = cloud.decide(report("h1", vec![], vec![usage(3, 0)])).unwrap();
    assert_eq!(lines(&plan), [format!("-{LOCATION}")]);
    assert_eq!(offloads(&cloud.store).count(), 0);
}

/// Controllers order only those that change something, so most seconds of a busy host cost the order nothing.
#[test]
fn of_a_busy_pair_one_report_in_a_quarter_of_the_idle_time_changes_anything() {
    let mut cloud = cloud_with_pair();
    let mut changing = Vec::new();
    for second in 0..600 {
        cloud.now_ms += 1000;
        let body = report("h1", vec![usage(3, if second == 0 { 5000 } else { 0 })], vec![usage(3, 5000)]);
        let version = Version(cloud.store.version().0 + 1);
        let event = Event { source: SourceId("test".into()), sequence: version.0, body: body.clone() };
        let mut view = cloud.store.view();
        let plan = cloud.app.decide(&mut view, version, cloud.now_ms, &event).unwrap().plan;
        if !plan.updates.is_empty() || !view.into_writes().is_empty() {
            changing.push(second);
            cloud.decide(body).unwrap();
        }
    }
    let idle_ms = FabricSettings::default().offload_idle_ms;
    assert_eq!(changing.len() as u64, 600_000_u64.div_ceil(idle_ms / 4), "{changing:?}");
    assert_eq!(offloads(&cloud.store).count(), 1, "and it stays direct");
}

#[test]
fn the_largest_are_offloaded_first_up_to_the_limit() {
    let mut cloud = cloud_with_pair();
    cloud.app = Deciders::new(FabricSettings { offloads_per_host_max: 1, ..FabricSettings::default() });
    cloud.apply(json!([endpoint("red", "c", "h3")]));
    let plan = cloud.decide(report("h1", vec![usage(3, 5000), usage(4, 6000)], vec![])).unwrap();
    assert_eq!(lines(&plan), ["+h1 location/1/10.0.0.4"]);
    assert_eq!(cloud.decide(report("h1", vec![usage(3, 9000)], vec![])).unwrap(), Plan::default());
}

#[test]
fn a_direct_location_follows_its_endpoint_and_goes_with_either_side() {
    let mut cloud = cloud_with_pair();
    let offload = |cloud: &mut Cloud| cloud.decide(report("h1", vec![usage(3, 5000)], vec![])).unwrap();
    offload(&mut cloud);
    let plan = cloud.apply(json!([endpoint("red", "b", "h3")]));
    assert_eq!(after(&plan, &format!("+{LOCATION}")), ["h3 port/1/b @9"]);
    assert!(after(&plan, "-h2 port/1/b").contains(&format!("{LOCATION} @9")));
    // It comes to the host itself, and goes away again.
    let plan = cloud.apply(json!([endpoint("red", "b", "h1")]));
    assert!(lines(&plan).contains(&format!("-{LOCATION}")), "{:?}", lines(&plan));
    assert_eq!(offloads(&cloud.store).count(), 0);
    cloud.apply(json!([endpoint("red", "b", "h2")]));
    offload(&mut cloud);
    // The network leaves the sender's host.
    let plan = cloud.apply(json!([endpoint("red", "a", "h3")]));
    assert!(lines(&plan).contains(&format!("-{LOCATION}")), "{:?}", lines(&plan));
    cloud.apply(json!([endpoint("red", "a", "h1")]));
    offload(&mut cloud);
    let plan = cloud.try_delete(&["endpoint/red/b"]).unwrap();
    assert!(after(&plan, "-h2 port/1/b").iter().any(|line| line.starts_with(LOCATION)));
    assert_eq!(offloads(&cloud.store).count(), 0);
}

fn refuse(cloud: &mut Cloud, key: Key, version: u64, refusal: Refusal) -> Plan {
    let actuator = label("h1");
    cloud.decide(EventBody::Refused { actuator, key, version: Version(version), refusal }).unwrap()
}

#[test]
fn a_stale_update_is_issued_again_above_what_is_in_force() {
    let mut cloud = cloud_with_pair();
    let key = Key::Policy { vni: Vni(1) };
    let stale = |in_force: u64| Refusal::Stale { in_force: Version(in_force) };
    assert_eq!(refuse(&mut cloud, key.clone(), 7, stale(7)), Plan::default());
    cloud.apply(json!([network("blue")]));
    let plan = refuse(&mut cloud, key.clone(), 7, stale(8));
    assert_eq!(lines(&plan), ["+h1 policy/1"]);
    assert_eq!(plan.updates[0].update.version, Version(10));
    // The refusal of a version that was replaced since means nothing.
    assert_eq!(refuse(&mut cloud, key.clone(), 7, stale(8)), Plan::default());
    // What is in force cannot be reached: it is only remembered.
    assert_eq!(refuse(&mut cloud, key.clone(), 10, stale(1_000)), Plan::default());
    let refusals = actuator(&cloud.store, &label("h1")).unwrap().refusals;
    assert_eq!(refusals.len(), 1);
    assert_eq!((refusals[0].version, refusals[0].reissues, refusals[0].reissued), (Version(10), 1, None));
}

#[test]
fn a_failure_is_remembered_until_the_key_changes_and_no_more_than_the_limit() {
    let mut cloud = cloud_with_pair();
    let key = Key::Port { vni: Vni(1), endpoint: label("a") };
    let plan = refuse(&mut cloud, key, 7, Refusal::Failed("no such namespace".into()));
    assert_eq!(plan, Plan::default());
    let count = |cloud: &Cloud| actuator(&cloud.store, &label("h1")).unwrap().refusals.len();
    assert_eq!(count(&cloud), 1);
    cloud.apply(json!([with(endpoint("red", "a", "h1"), json!({"state": "down"}))]));
    assert_eq!(count(&cloud), 0);
    for n in 0..REFUSALS_MAX + 5 {
        let key = Key::Port { vni: Vni(1), endpoint: label(&format!("p{n}")) };
        refuse(&mut cloud, key, 7, Refusal::Full { limit: 1 });
    }
    assert_eq!(count(&cloud), REFUSALS_MAX);
}

#[test]
fn a_key_that_nobody_wants_is_deleted_and_asking_for_ever_does_not_help() {
    let mut cloud = cloud_with_pair();
    let key = Key::Port { vni: Vni(77), endpoint: label("ghost") };
    let mut version = 3;
    let mut updates = 0;
    for _ in 0..REISSUES_MAX + 3 {
        let refusal = Refusal::Stale { in_force: Version(version) };
        let plan = refuse(&mut cloud, key.clone(), version, refusal);
        updates += plan.updates.len() as u32;
        if let Some(planned) = plan.updates.first() {
            assert_eq!(line(&planned.update), "-h1 port/77/ghost");
            version = planned.update.version.0;
        }
        // It says that a later one is in force, again and again.
        cloud.apply(json!([with(network("blue"), json!({"mtu": 2000 + version}))]));
        version += 1;
    }
    assert_eq!(updates, REISSUES_MAX);
}

#[test]
fn old_tombstones_are_forgotten() {
    let mut cloud = Cloud::with_switches();
    cloud.apply(json!([network("red"), subnet("red", "10.0.0.0/16")]));
    let count = TOMBSTONES_MAX as usize / 4;
    let name = |n: usize| format!("e{n:05}");
    for _ in 0..6 {
        // Other addresses each time, so that each leaves tombstones of its own.
        let all: Vec<Value> = (0..count)
            .map(|n| json!({"kind": "endpoint", "network": "red", "name": name(n), "subnet": "main", "host": "h9"}))
            .collect();
        cloud.apply(all.into());
        let ids: Vec<String> = (0..count).map(|n| format!("endpoint/red/{}", name(n))).collect();
        cloud.try_delete(&ids.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
    }
    let status = actuator(&cloud.store, &label("g1")).unwrap();
    assert_eq!(
        desired(&cloud.store, &label("g1")).filter(|d| d.2.is_none()).count() as u64,
        status.tombstones
    );
    assert!(status.tombstones <= TOMBSTONES_MAX);
}
