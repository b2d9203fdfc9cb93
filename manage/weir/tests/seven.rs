//! Two of seven controllers at once: one hangs, and one is a program that lies. Five go on, which is as many as must decide and sign.

use crate::extra::Extra;
use crate::group::{Writer, connection, newcomer, wait_whole};
use crate::lab::{seven_lab, text};
use crate::liar;
use crate::namespaces::wait;
use crate::traitor::Kind;
use crate::traitor_orders;
use weir_lab::process::Signal;

const SCENARIO: &str = "seven::one_of_seven_hangs_and_one_lies_while_changes_go_on";

#[test]
fn one_of_seven_hangs_and_one_lies_while_changes_go_on() {
    if liar::lies() {
        return;
    }
    let Some(lab) = seven_lab("seven") else { return };
    wait_whole(&lab);
    let extra = Extra::begin();
    let echo = connection(&lab);
    if traitor_orders::can("seven: one that orders alone") {
        assert_eq!(traitor_orders::orders(&lab, "c6").1, 0, "decided by a controller's word alone");
    }
    let before = lab.programmed();
    let writer = Writer::begin(&lab, "seven");

    let hangs = lab.program("c7").unwrap();
    assert!(hangs.signal(Signal::STOP).unwrap());
    lab.kill("c6");
    for (number, kind) in (51..).zip([Kind::Floods, Kind::Forges, Kind::Equivocates]) {
        let lying = liar::begin(&lab, SCENARIO, kind, liar::OF_SEVEN);
        writer.goes_on();
        newcomer(&lab, &extra, number);
        if kind == Kind::Equivocates {
            wait("the liar to be convicted, whoever is asked", || {
                let faults = lab.weir(&["audit", "faults"]);
                text(&faults.stdout).contains("proven: both votes verify under its key")
            });
        }
        drop(lying);
        echo.goes_on();
    }
    assert!(hangs.signal(Signal::CONT).unwrap());
    writer.goes_on();
    writer.ends();
    assert!(echo.close() > 0);
    let after = lab.programmed();
    for (switch, entries) in before {
        assert!(entries.iter().all(|(key, version)| after[switch].get(key) == Some(version)), "{switch}");
    }
    lab.take_down();
}
