//! An application whose counter stands still.

use crate::cage::Watched;
use weir_monitor::audit::What;
use weir_sensor::{Directory, Kind, SensorBox, Shape};

const POLICY: &str =
    "kind: stalled\nname: web\nbox: web\nsensor: requests\nperiods: 3\nperiod-ms: 50\naction: report\n";

#[test]
fn a_counter_that_stands_still_is_an_alarm_and_its_recovery_is_told() {
    let watched = match Watched::start(POLICY, false) {
        Ok(watched) => watched,
        Err(reason) => {
            return println!(
                "NOT RUN a_counter_that_stands_still_is_an_alarm_and_its_recovery_is_told: {reason}"
            );
        }
    };
    let made = SensorBox::create("web", Shape::default(), 1_000_000).unwrap();
    let requests = made.add("requests", Kind::Counter).unwrap();
    made.export(&Directory::new(watched.folder.path().join("sensors"))).unwrap();
    let alarm = watched.wait_for_alarm("web");
    assert_eq!((alarm.measure.as_str(), alarm.outcome.as_str()), ("silent-ns", "reported"), "{alarm:?}");
    watched.wait_for("the recovery", |entry| {
        made.count(requests, 1);
        entry.what == What::Recovered
    });
    let status = watched.monitor.status();
    assert_eq!(
        (status.boxes[0].name.as_str(), status.boxes[0].sensors[0].name.as_str()),
        ("web", "requests")
    );
}
