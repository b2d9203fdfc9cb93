use super::*;
use crate::analysis::{Settings, plan};
use crate::checker::{CheckSettings, check};
use crate::samples::{change, figure_2_2, figure_3_2, flow, policy};
use crate::{Change, Policy, random};
use weir_base::world::Rng;

fn rollout(mode: Mode) -> Rollout {
    Rollout::new(RolloutSettings { mode, drain_ms: 10, ..RolloutSettings::default() })
}

fn planned(change: &Change) -> Plan {
    plan(change, &Settings::default()).unwrap()
}

fn switches(released: &[Released]) -> Vec<u32> {
    released.iter().filter_map(|released| released.operation.switch()).map(|switch| switch.0).collect()
}

#[test]
fn a_step_goes_when_what_it_waits_for_is_acknowledged() {
    let mut rollout = rollout(Mode::Dependent);
    let first = rollout.add(planned(&figure_3_2()), 0).unwrap();
    assert_eq!(switches(&first), [1], "s2 alone");
    assert_eq!(rollout.acknowledge(99, 0), [], "unknown");
    let second = rollout.acknowledge(first[0].number, 0);
    assert_eq!(switches(&second), [2]);
    assert_eq!(rollout.acknowledge(first[0].number, 0), [], "repeated");
    assert_eq!(rollout.acknowledge(second[0].number + 1, 0), [], "not released");
    let third = rollout.acknowledge(second[0].number, 0);
    assert_eq!(switches(&third), [3]);
    assert_eq!(rollout.open(), 1);
    assert_eq!(rollout.acknowledge(third[0].number, 0), []);
    assert_eq!(rollout.open(), 0);
}

#[test]
fn modes_order_everything_or_nothing() {
    let mut none = rollout(Mode::None);
    assert_eq!(switches(&none.add(planned(&figure_3_2()), 0).unwrap()).len(), 3);
    let mut linear = rollout(Mode::Linear);
    let mut open = linear.add(planned(&figure_3_2()), 0).unwrap();
    open.extend(linear.add(planned(&figure_2_2()), 0).unwrap());
    let mut gone = 0;
    while let Some(next) = open.pop() {
        assert!(open.is_empty(), "one at a time");
        gone += 1;
        open = linear.acknowledge(next.number, 0);
    }
    assert_eq!((gone, linear.open()), (6, 0));
}

#[test]
fn drains_take_their_time() {
    let change = figure_3_2();
    let back = Change { old: change.new.clone(), new: Policy::default(), ..change };
    let mut plan = planned(&back);
    plan.steps.insert(0, Step { flow: Flow(1), operation: Operation::Drain, after: Vec::new() });
    for step in plan.steps.iter_mut().skip(1) {
        step.after = vec![crate::plan::After { step: 0, reason: crate::plan::Reason::InFlight }];
    }
    let mut rollout = rollout(Mode::Dependent);
    assert_eq!(rollout.add(plan, 100), Some(Vec::new()));
    assert_eq!(rollout.due_ms(), Some(110));
    assert_eq!(rollout.acknowledge(0, 105), [], "nobody acknowledges a drain");
    assert_eq!(rollout.tick(109), []);
    assert_eq!(rollout.tick(110).len(), 5);
}

#[test]
fn a_switch_and_a_flow_are_in_order_across_plans() {
    let change = figure_3_2();
    let back = Change { old: change.new.clone(), new: change.old.clone(), ..change.clone() };
    let mut rollout = rollout(Mode::Dependent);
    let first = rollout.add(planned(&change), 0).unwrap();
    assert_eq!(rollout.add(planned(&back), 0), Some(Vec::new()), "the flow's first change is not whole");
    let mut open = first;
    let mut order = Vec::new();
    while let Some(next) = open.pop() {
        order.extend(switches(std::slice::from_ref(&next)));
        open.extend(rollout.acknowledge(next.number, 0));
    }
    assert_eq!(order[..3], [1, 2, 3]);
    assert_eq!(order.len(), 6);
}

#[test]
fn a_plan_waits_for_room_that_an_earlier_one_leaves() {
    let network = crate::topology::parse("s a 10\ns b 10\na d 10\nb d 10\nt a 10").unwrap();
    let of = |rules: &str, at: &str| flow(&network, rules, &[(at, 8)]);
    let by_a = of("s>a a>d d!", "s");
    let by_b = of("s>b b>d a>d d!", "s");
    let elsewhere = of("t>a a>d d!", "t");
    let first = change(network.clone(), policy([by_a]), policy([by_b.clone()]));
    let second = change(network.clone(), policy([by_b.clone()]), policy([by_b, elsewhere]));
    let mut rollout = rollout(Mode::Dependent);
    let released = rollout.add(planned(&first), 0).unwrap();
    assert_eq!(switches(&released).len(), 1, "b, then s");
    assert_eq!(rollout.add(planned(&second), 0), Some(Vec::new()), "the link from a to d is not free");
    let mut open = released;
    let mut done = Vec::new();
    while let Some(next) = open.pop() {
        done.push(next.flow.0);
        open.extend(rollout.acknowledge(next.number, 0));
    }
    assert_eq!((done, rollout.open()), (vec![1, 1, 2, 2, 2], 0));
}

#[test]
fn too_large_a_plan_is_refused_and_counted() {
    let settings = RolloutSettings { steps_max: 2, ..RolloutSettings::default() };
    let mut rollout = Rollout::new(settings);
    assert_eq!(rollout.add(planned(&figure_3_2()), 0), None);
    assert_eq!((rollout.refused, rollout.open()), (1, 0));
}

/// What a rollout releases, with acknowledgements in random order, is an order that the plan allows: made
/// linear in it, the plan is safe; and it always comes to its end.
#[test]
fn any_order_of_acknowledgements_ends_and_is_safe() {
    for seed in 0..150 {
        let change = random::change(seed);
        let Ok(plan) = plan(&change, &Settings::default()) else { continue };
        let mut rng = Rng::new(seed);
        let mut rollout = rollout(Mode::Dependent);
        let mut now_ms = 0;
        let mut open = rollout.add(plan.clone(), now_ms).unwrap();
        let mut order = Vec::new();
        while rollout.open() > 0 {
            if !open.is_empty() && rng.chance(3, 4) {
                let next = open.swap_remove(rng.below(open.len() as u64) as usize);
                order.push(next.number as usize);
                open.extend(rollout.acknowledge(next.number, now_ms));
            } else {
                now_ms += 5;
                open.extend(rollout.tick(now_ms));
            }
        }
        let steps = plan.steps.iter().filter(|step| step.operation != Operation::Drain).count();
        assert_eq!(order.len(), steps);
        let mut places = order.clone();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), steps, "each once");
        let settings = CheckSettings { states_max: 20_000, samples: 5, ..CheckSettings::default() };
        assert!(check(&change, &plan, &settings).is_ok());
    }
}
