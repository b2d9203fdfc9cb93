use super::*;
use crate::analysis::{Settings, plan};
use crate::plan::{Mode, Operation};
use crate::samples::{figure_2_2, figure_3_1, figure_3_2, figure_3_3};

fn without_order(change: &Change) -> Finding {
    let plan = plan(change, &Settings::default()).unwrap().with_mode(Mode::None);
    let explored = *check(change, &plan, &CheckSettings::default()).unwrap_err();
    // Samples find it too.
    let sampling = CheckSettings { steps_max: 0, samples: 200, ..CheckSettings::default() };
    assert!(check(change, &plan, &sampling).is_err());
    explored
}

#[test]
fn the_loop_of_figure_2_2_is_found() {
    let found = without_order(&figure_2_2());
    assert!(matches!(found.what, Violation::Loop), "{found:?}");
}

#[test]
fn the_breach_of_figure_3_1_is_found() {
    let change = figure_3_1();
    let found = without_order(&change);
    assert_eq!(found.what, Violation::Breach);
    assert_eq!(found.source, change.network.find("s1"));
}

#[test]
fn the_loop_of_figure_3_2_is_found() {
    assert_eq!(without_order(&figure_3_2()).what, Violation::Loop);
}

#[test]
fn the_overload_of_figure_3_3_is_found() {
    let change = figure_3_3();
    let found = without_order(&change);
    assert_eq!(found.what, Violation::Overload);
    let link = found.link.unwrap();
    assert_eq!((Some(link.from), Some(link.to)), (change.network.find("s4"), change.network.find("s5")));
    assert!(found.describe(&change.network).starts_with("Overload, on the link s4 to s5"), "{found:?}");
}

#[test]
fn plans_that_do_not_end_right_are_found() {
    let change = figure_2_2();
    let whole = plan(&change, &Settings::default()).unwrap();
    let what = |plan: &Plan| check(&change, plan, &CheckSettings::default()).unwrap_err().what;
    let mut short = whole.clone();
    short.steps.pop();
    assert_eq!(what(&short), Violation::WrongEnd);
    let mut astray = whole.clone();
    let Operation::Put { switch, version, .. } = astray.steps[0].operation else { panic!("a put") };
    astray.steps[0].operation = Operation::Remove { switch, version };
    assert_eq!(what(&astray), Violation::WrongEnd);
    let mut circle = whole.clone();
    let last = circle.steps.len() - 1;
    circle.steps[0].after.push(crate::plan::After { step: last, reason: crate::plan::Reason::Loop });
    assert_eq!(what(&circle), Violation::NoOrder);
    let mut nowhere = whole;
    nowhere.steps[0].after.push(crate::plan::After { step: 99, reason: crate::plan::Reason::Loop });
    assert_eq!(what(&nowhere), Violation::NoOrder);
}

#[test]
fn nothing_to_do_is_checked_too() {
    let change = figure_2_2();
    let idle = Change { old: change.new.clone(), ..change };
    let plan = plan(&idle, &Settings::default()).unwrap();
    assert!(plan.steps.is_empty());
    assert!(check(&idle, &plan, &CheckSettings::default()).unwrap().is_complete());
}
