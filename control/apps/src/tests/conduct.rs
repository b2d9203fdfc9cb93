//! What hosts tell of controllers.

use super::*;
use crate::orders::{CONDUCT_MAX, conduct_of};
use weir_model::group::{BadConduct, CONDUCT_EACH_MS, ConductReport};
use weir_model::session::CONTROLLERS_MAX;

fn report(host: &str, controller: &str, ended: u64) -> EventBody {
    let (actuator, controller) = (label(host), controller.to_owned());
    EventBody::Conduct(ConductReport {
        actuator,
        controller,
        what: BadConduct::Forgeries,
        ended,
        forgeries: 17,
    })
}

#[test]
fn the_newest_report_of_a_host_about_a_controller_is_kept_and_decides_nothing() {
    let mut cloud = Cloud::with_switches();
    assert_eq!(cloud.decide(report("h1", "a:1", 1)).unwrap(), Plan::default());
    let early = cloud.decide(report("h1", "a:1", 2)).unwrap_err().to_string();
    assert!(early.contains("once in 30 s"), "{early}");
    cloud.decide(report("h1", "b:1", 1)).unwrap();
    cloud.decide(report("h2", "a:1", 1)).unwrap();
    cloud.now_ms += CONDUCT_EACH_MS;
    cloud.decide(report("h1", "a:1", 2)).unwrap();
    let kept = conduct_of(&cloud.store, &label("h1"));
    let seen: Vec<(&str, u64)> =
        kept.iter().map(|one| (one.report.controller.as_str(), one.report.ended)).collect();
    assert_eq!(seen, [("a:1", 2), ("b:1", 1)]);
    assert!(
        cloud.decide(report("h9", "a:1", 1)).unwrap_err().to_string().contains("no actuator of this name")
    );
    cloud.decide(EventBody::Removed { actuator: label("h1") }).unwrap();
    assert_eq!(
        (conduct_of(&cloud.store, &label("h1")).len(), conduct_of(&cloud.store, &label("h2")).len()),
        (0, 1)
    );
}

#[test]
fn one_host_has_little_room_however_many_controllers_it_names() {
    let mut cloud = Cloud::with_switches();
    let mut taken = 0;
    for round in 0..4 {
        for number in 0..100 {
            taken += usize::from(cloud.decide(report("h1", &format!("c{round}-{number}:1"), 1)).is_ok());
        }
        assert!(conduct_of(&cloud.store, &label("h1")).len() <= CONDUCT_MAX);
        cloud.now_ms += CONDUCT_EACH_MS;
    }
    assert_eq!(taken, 4 * CONTROLLERS_MAX);
}
