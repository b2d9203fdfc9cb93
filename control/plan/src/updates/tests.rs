use super::*;
use crate::plan::Operation;
use crate::samples::{figure_3_2, figure_3_3};
use crate::{Change, Policy, Settings, plan};
use weir_model::entry::Vni;
use weir_model::update::Reason as Model;
use weir_model::{Change as Changed, Key, Label, Version};

/// A stand-in for a front end's rules: one key a switch and flow.
fn update(change: &Change, step: &Step) -> Update {
    let switch = step.operation.switch().unwrap();
    Update {
        target: Label::new(change.network.name(switch).to_string()).unwrap(),
        key: Key::Policy { vni: Vni(step.flow.0) },
        version: Version(7),
        expected: Version::ZERO,
        change: Changed::Delete,
    }
}

#[test]
fn updates_wait_for_what_their_steps_wait_for() {
    let change = figure_3_2();
    let plan = plan(&change, &Settings::default()).unwrap();
    let updates = plan.updates(|step| update(&change, step)).unwrap().updates;
    let waits: Vec<(String, Vec<(String, Model)>)> = updates
        .iter()
        .map(|planned| {
            let after = planned.after.iter().map(|first| (first.target.to_string(), first.reason));
            (planned.update.target.to_string(), after.collect())
        })
        .collect();
    let first = |at: &str| vec![(at.to_string(), Model::NextSwitchFirst)];
    assert_eq!(
        waits,
        [("s2".to_string(), vec![]), ("s3".to_string(), first("s2")), ("s4".to_string(), first("s3"))]
    );
    assert!(updates.iter().flat_map(|planned| &planned.after).all(|first| first.version == Version(7)));
}

#[test]
fn room_is_a_reason_and_drains_are_refused() {
    let change = figure_3_3();
    let whole = plan(&change, &Settings::default()).unwrap();
    let updates = whole.updates(|step| update(&change, step)).unwrap().updates;
    let reasons: Vec<Model> =
        updates.iter().flat_map(|planned| &planned.after).map(|first| first.reason).collect();
    assert_eq!(reasons, [Model::RoomOnLink]);
    let mut drained = whole.clone();
    drained.steps[0].operation = Operation::Drain;
    assert_eq!(drained.updates(|step| update(&change, step)), Err(NeedsDrains(1)));
    let nothing = Change { old: Policy::default(), new: Policy::default(), ..change };
    assert_eq!(
        plan(&nothing, &Settings::default()).unwrap().updates(|_| unreachable!()).unwrap().updates,
        []
    );
}
