use super::*;
use crate::checker::{CheckSettings, Violation, check};
use crate::network::Link;
use crate::plan::{Method, Mode, Operation, Reason};
use crate::samples::{change, figure_2_2, figure_3_1, figure_3_2, figure_3_3, flow, policy, switch};
use crate::{random, topology};
use weir_base::world::Rng;

fn planned(change: &Change) -> Plan {
    plan(change, &Settings::default()).unwrap()
}

fn is_safe(change: &Change, plan: &Plan) {
    match check(change, plan, &CheckSettings::default()) {
        Ok(checked) => assert!(checked.is_complete(), "{checked:?}"),
        Err(found) => panic!("{}\n{}", found.describe(&change.network), explained(change, plan)),
    }
}

fn explained(change: &Change, plan: &Plan) -> String {
    plan.explain(&change.network, &|flow| format!("f{}", flow.0))
}

/// The steps that put rules, by switch name, with what they wait for, directly or not.
fn order(change: &Change, plan: &Plan) -> Vec<(String, Vec<String>)> {
    let name =
        |at: usize| plan.steps[at].operation.switch().map(|switch| change.network.name(switch).to_string());
    let mut behind: Vec<BTreeSet<usize>> = Vec::new();
    for step in &plan.steps {
        let mut all: BTreeSet<usize> = step.after.iter().map(|after| after.step).collect();
        step.after.iter().for_each(|after| all.extend(&behind[after.step]));
        behind.push(all);
    }
    let puts = (0..plan.steps.len()).filter(|at| matches!(plan.steps[*at].operation, Operation::Put { .. }));
    let mut order: Vec<(String, Vec<String>)> = puts
        .map(|at| (name(at).unwrap(), behind[at].iter().filter_map(|first| name(*first)).collect()))
        .collect();
    order.iter_mut().for_each(|(_, firsts)| firsts.sort());
    order.sort();
    order
}

fn named(order: &[(&str, &[&str])]) -> Vec<(String, Vec<String>)> {
    let own = |(at, firsts): &(&str, &[&str])| {
        (at.to_string(), firsts.iter().map(|first| first.to_string()).collect())
    };
    order.iter().map(own).collect()
}

#[test]
fn figure_2_2_goes_from_s2_to_s4() {
    let change = figure_2_2();
    let plan = planned(&change);
    assert_eq!(order(&change, &plan), named(&[("s2", &[]), ("s3", &["s2"]), ("s4", &["s2", "s3"])]));
    assert_eq!(plan.notes[0].method, Method::InOrder);
    is_safe(&change, &plan);
}

#[test]
fn a_new_flow_is_set_up_in_two_rounds_however_long_its_way_is() {
    let network = topology::parse("s1 s2\ns2 s3\ns3 s4\ns4 s5").unwrap();
    let old = flow(&network, "", &[]);
    let new = flow(&network, "s1>s2 s2>s3 s3>s4 s4>s5 s5!", &[("s1", 1)]);
    let change = change(network, policy([old]), policy([new]));
    let plan = planned(&change);
    let all: &[&str] = &["s2", "s3", "s4", "s5"];
    assert_eq!(
        order(&change, &plan),
        named(&[("s1", all), ("s2", &[]), ("s3", &[]), ("s4", &[]), ("s5", &[])])
    );
    is_safe(&change, &plan);
}

#[test]
fn a_way_around_waits_only_where_packets_pass() {
    // From s1 straight to s4, then by s2 and s3, where nobody was before; s5 enters at s3.
    let network = topology::parse("s1 s4\ns1 s2\ns2 s3\ns3 s4\ns5 s3").unwrap();
    let old = flow(&network, "s1>s4 s4! s5>s3 s3>s4", &[("s1", 1), ("s5", 1)]);
    let new = flow(&network, "s1>s2 s2>s3 s3! s5>s3", &[("s1", 1), ("s5", 1)]);
    let change = change(network, policy([old]), policy([new]));
    let plan = planned(&change);
    assert_eq!(order(&change, &plan), named(&[("s1", &["s2", "s3"]), ("s2", &[]), ("s3", &[])]));
    is_safe(&change, &plan);
}

#[test]
fn figure_3_1_updates_s2_before_s1() {
    let change = figure_3_1();
    let plan = planned(&change);
    assert_eq!(order(&change, &plan), named(&[("s1", &["s2"]), ("s2", &[])]));
    is_safe(&change, &plan);
}

#[test]
fn figure_3_2_goes_from_s2_to_s4() {
    let change = figure_3_2();
    let plan = planned(&change);
    assert_eq!(order(&change, &plan), named(&[("s2", &[]), ("s3", &["s2"]), ("s4", &["s2", "s3"])]));
    is_safe(&change, &plan);
}

#[test]
fn figure_3_3_moves_s2_before_s1() {
    let change = figure_3_3();
    let plan = planned(&change);
    let puts = order(&change, &plan);
    let s1 = puts.iter().find(|(at, _)| at == "s1").unwrap();
    assert!(s1.1.contains(&"s2".to_string()), "{}", explained(&change, &plan));
    let (s4, s5) = (switch(&change.network, "s4"), switch(&change.network, "s5"));
    let capacity = Reason::Capacity(Link { from: s4, to: s5 });
    let reasons: Vec<Reason> =
        plan.steps.iter().flat_map(|step| step.after.iter().map(|a| a.reason)).collect();
    assert!(reasons.contains(&capacity), "{reasons:?}");
    is_safe(&change, &plan);
}

/// Fig 3.4: two flows that share nothing.
#[test]
fn disjoint_flows_go_in_parallel() {
    let network = topology::parse("a1 a2\na2 a3\na1 a3\nb1 b2\nb2 b3\nb1 b3\na3 b3").unwrap();
    let old = policy([flow(&network, "a1>a3 a3!", &[("a1", 1)]), flow(&network, "b1>b3 b3!", &[("b1", 1)])]);
    let new = policy([
        flow(&network, "a1>a2 a2>a3 a3!", &[("a1", 1)]),
        flow(&network, "b1>b2 b2>b3 b3!", &[("b1", 1)]),
    ]);
    let change = change(network, old, new);
    let plan = planned(&change);
    assert_eq!(order(&change, &plan), named(&[("a1", &["a2"]), ("a2", &[]), ("b1", &["b2"]), ("b2", &[])]));
    assert_eq!(plan.depth(), 2);
    is_safe(&change, &plan);
}

/// A packet that passed s1 by its old rule must not meet the new rule of s3, which leads past the firewall.
fn moving_firewall() -> Change {
    let network = topology::parse("s1 f1\nf1 s3\ns3 f2\nf2 d\ns3 d\ns1 s3\ns1 f2").unwrap();
    let old = flow(&network, "s1>s3 s3>f2 f2>d d!", &[("s1", 1)]);
    let new = flow(&network, "s1>f1 f1>s3 s3>d d!", &[("s1", 1)]);
    let (mut old, mut new) = (old, new);
    old.waypoints.insert(switch(&network, "f2"));
    new.waypoints.insert(switch(&network, "f1"));
    change(network, policy([old]), policy([new]))
}

#[test]
fn a_firewall_that_moves_needs_more_than_an_order() {
    let change = moving_firewall();
    let plan = planned(&change);
    // s3 must come before s1 on the new way, but after it for packets on the old way: only an order against
    // the new way is left, with a drain.
    assert_eq!(plan.notes[0].method, Method::OneByOne, "{}", explained(&change, &plan));
    assert!(plan.drains() > 0);
    is_safe(&change, &plan);
    let mut without: Plan = plan.clone();
    // The last drain is for rules that go.
    let last = without.steps.iter().rposition(|step| step.operation == Operation::Drain);
    for (at, step) in without.steps.iter_mut().enumerate() {
        if step.operation == Operation::Drain && Some(at) != last {
            step.operation = Operation::Stamp { switch: switch(&change.network, "d"), version: 0 };
        }
    }
    let found = check(&change, &without, &CheckSettings::default()).unwrap_err();
    assert_eq!(found.what, Violation::Breach, "the drain is what keeps packets in flight safe");
}

/// What s1 sends is denied before and after; what s2 sends is allowed now. Until s1 denies its own, and
/// what it let through has drained, s2 must deny for it.
#[test]
fn what_is_denied_before_and_after_never_gets_through() {
    let network = topology::parse("s1 s2\ns2 s3").unwrap();
    let sources = [("s1", 1), ("s2", 1)];
    let old = flow(&network, "s1>s2 s2x s3!", &sources);
    let new = flow(&network, "s1x s2>s3 s3!", &sources);
    let change = change(network, policy([old]), policy([new]));
    let plan = planned(&change);
    assert_eq!(order(&change, &plan), named(&[("s1", &[]), ("s2", &["s1"])]));
    assert_eq!(plan.notes[0].method, Method::InOrderWithDrains);
    is_safe(&change, &plan);
    let found = check(&change, &plan.with_mode(Mode::None), &CheckSettings::default()).unwrap_err();
    assert_eq!((found.what, found.source), (Violation::Leak, change.network.find("s1")));
}

/// Two sources that turn each other's ways: nothing in place works.
fn crossing() -> Change {
    // Old: s>a>b>d, new: s>b>a>d, and the waypoint of the old way is between a and b, as is the new one's.
    let network = topology::parse("s a\ns b\na x\nx b\nb d\nb y\ny a\na d").unwrap();
    let mut old = flow(&network, "s>a a>x x>b b>d d!", &[("s", 1)]);
    let mut new = flow(&network, "s>b b>y y>a a>d d!", &[("s", 1)]);
    old.waypoints.insert(switch(&network, "x"));
    new.waypoints.insert(switch(&network, "y"));
    change(network, policy([old]), policy([new]))
}

#[test]
fn where_no_order_exists_versions_are_used_and_it_says_why() {
    let change = crossing();
    let plan = planned(&change);
    assert_eq!(plan.notes[0].method, Method::Versions { version: 1 }, "{}", explained(&change, &plan));
    let why = plan.notes[0].why.clone().unwrap();
    assert!(why.contains("none of the orders of its"), "{why}");
    assert_eq!(plan.versions[&Flow(1)], 1);
    is_safe(&change, &plan);
    let settings = Settings { versions: false, ..Settings::default() };
    assert!(matches!(super::plan(&change, &settings), Err(PlanError::NoOrder { .. })));
}

#[test]
fn flows_that_want_each_others_room_are_refused() {
    let network = topology::parse("s a 10\ns b 10\na d 10\nb d 10").unwrap();
    let of = |by: &str| flow(&network, &format!("s>{by} {by}>d d!"), &[("s", 8)]);
    let (old, new) = (policy([of("a"), of("b")]), policy([of("b"), of("a")]));
    let change = change(network.clone(), old, new);
    let error = super::plan(&change, &Settings::default()).unwrap_err();
    assert!(matches!(error, PlanError::NoRoom { .. }), "{error}");
}

/// Three flows around a ring of rooms: each goes where the one before it leaves, and one room is free.
#[test]
fn flows_follow_each_other_into_free_room() {
    let network = topology::parse("s a 10\ns b 10\ns c 10\na d 10\nb d 10\nc d 10").unwrap();
    let of = |by: &str| flow(&network, &format!("s>{by} {by}>d d!"), &[("s", 8)]);
    let change = change(network.clone(), policy([of("a"), of("b")]), policy([of("b"), of("c")]));
    let plan = planned(&change);
    is_safe(&change, &plan);
    for mode in [Mode::None, Mode::Linear] {
        let checked = check(&change, &plan.clone().with_mode(mode), &CheckSettings::default());
        assert_eq!(checked.is_ok(), mode == Mode::Linear, "{mode:?}");
    }
}

/// Sixty flows, each of which takes the way that the next one leaves: they go from the last to the first.
#[test]
fn a_long_row_of_flows_moves_up_one_by_one() {
    let ways = 60;
    let links: Vec<String> = (0..=ways).map(|way| format!("s m{way} 10\nm{way} d 10")).collect();
    let network = topology::parse(&links.join("\n")).unwrap();
    let of = |way: usize| flow(&network, &format!("s>m{way} m{way}>d d!"), &[("s", 8)]);
    let (old, new) = (policy((0..ways).map(of)), policy((1..=ways).map(of)));
    let change = change(network.clone(), old, new);
    let plan = planned(&change);
    assert!(plan.depth() >= ways, "{}", plan.depth());
    let settings = CheckSettings { samples: 5, ..CheckSettings::default() };
    assert!(check(&change, &plan, &settings).is_ok());
    assert!(check(&change, &plan.with_mode(Mode::None), &settings).is_err());
}

/// A flow is deleted, and another takes its room.
#[test]
fn room_is_free_when_a_deleted_flow_is_gone() {
    let network = topology::parse("s a 10\ns b 10\na d 10\nb d 10").unwrap();
    let of = |by: &str| flow(&network, &format!("s>{by} {by}>d d!"), &[("s", 8)]);
    let mut new = policy([of("a"), of("a")]);
    new.flows.remove(&Flow(1));
    let change = change(network.clone(), policy([of("a"), of("b")]), new);
    let plan = planned(&change);
    is_safe(&change, &plan);
    assert!(check(&change, &plan.with_mode(Mode::None), &CheckSettings::default()).is_err());
}

#[test]
fn faulty_new_policies_are_refused_with_what_is_wrong() {
    let network = topology::parse("a b 10\nb c 10\na c 10").unwrap();
    let refused = |rules: &str, rate: u64| {
        let new = flow(&network, rules, &[("a", rate)]);
        let change = change(network.clone(), policy([]), policy([new]));
        super::plan(&change, &Settings::default()).unwrap_err().to_string()
    };
    assert!(refused("a>b b>a", 1).contains("round a loop through"));
    assert!(refused("a>b b>c", 1).contains("to c, which has no rule"));
    assert!(refused("a>b b>c c!", 11).contains("puts 11 kbit/s on the link a to b, which carries 10"));
    let mut new = flow(&network, "a>b b>c c!", &[("a", 1)]);
    new.avoid.insert(switch(&network, "b"));
    let change = change(network.clone(), policy([]), policy([new]));
    assert!(matches!(super::plan(&change, &Settings::default()), Err(PlanError::NewBreach { .. })));
}

#[test]
fn an_explanation_names_steps_and_reasons() {
    let change = figure_3_3();
    let text = explained(&change, &planned(&change));
    assert!(text.contains("the link s4 to s5 has no room before"), "{text}");
    let text = explained(&crossing(), &planned(&crossing()));
    assert!(text.contains("two phases, new rules under version 1: the new rule of"), "{text}");
}

#[test]
fn every_plan_of_a_random_change_is_safe() {
    let settings = CheckSettings { states_max: 20_000, samples: 5, ..CheckSettings::default() };
    let mut methods = BTreeMap::new();
    let mut refused = 0;
    for seed in 0..1_500 {
        let change = random::change(seed);
        let plan = match plan(&change, &Settings::default()) {
            Ok(plan) => plan,
            Err(PlanError::NoRoom { .. } | PlanError::NewOverload { .. }) => {
                refused += 1;
                continue;
            }
            Err(other) => panic!("seed {seed}: {other}"),
        };
        for note in &plan.notes {
            let kind = match note.method {
                Method::Versions { .. } => "versions",
                Method::InOrder => "in order",
                Method::InOrderWithDrains => "with drains",
                Method::OneByOne => "one by one",
            };
            *methods.entry(kind).or_insert(0) += 1;
        }
        for mode in [Mode::Dependent, Mode::Linear] {
            let plan = plan.clone().with_mode(mode);
            if let Err(found) = check(&change, &plan, &settings) {
                panic!("seed {seed}: {}\n{}", found.describe(&change.network), explained(&change, &plan));
            }
        }
    }
    // The random changes reach every way of planning.
    assert_eq!(methods.len(), 4, "{methods:?}, {refused} refused");
    assert!(refused < 500, "{refused}");
}

#[test]
fn many_random_changes_are_unsafe_without_an_order() {
    let settings = CheckSettings { states_max: 20_000, samples: 5, ..CheckSettings::default() };
    let (mut broken, mut all) = (0, 0);
    for seed in 0..300 {
        let change = random::change(seed);
        let Ok(plan) = plan(&change, &Settings::default()) else { continue };
        if plan.depth() > 1 {
            all += 1;
            broken += usize::from(check(&change, &plan.with_mode(Mode::None), &settings).is_err());
        }
    }
    assert!(broken * 3 > all, "{broken} of {all}");
}

/// Flows between parallel ways of 10 kbit/s: the way and the rate of each, before and after.
fn parallel_ways(rng: &mut Rng) -> Vec<(usize, usize, u64)> {
    let flows = 2 + rng.below(4);
    (0..flows).map(|_| (rng.below(3) as usize, rng.below(3) as usize, 1 + rng.below(6))).collect()
}

fn loads(flows: &[(usize, usize, u64)], moved: &[usize]) -> [u64; 3] {
    let mut loads = [0; 3];
    for (at, (old, new, rate)) in flows.iter().enumerate() {
        loads[if moved.contains(&at) { *new } else { *old }] += rate;
    }
    loads
}

/// Whether the flows that are left can move one after the other, in some order.
fn some_sequence_fits(flows: &[(usize, usize, u64)], moved: &mut Vec<usize>, limits: [u64; 3]) -> bool {
    let within = |loads: [u64; 3]| loads.iter().zip(limits).all(|(load, limit)| *load <= limit);
    if moved.len() == flows.len() {
        return true;
    }
    (0..flows.len()).filter(|at| !moved.contains(at)).collect::<Vec<usize>>().into_iter().any(|at| {
        moved.push(at);
        let fits = within(loads(flows, moved)) && some_sequence_fits(flows, moved, limits);
        moved.pop();
        fits
    })
}

#[test]
fn room_is_found_exactly_when_some_sequence_of_flows_fits() {
    let network = topology::parse("s m0 10\ns m1 10\ns m2 10\nm0 d 10\nm1 d 10\nm2 d 10").unwrap();
    let (mut fits, mut not) = (0, 0);
    for seed in 0..2_000 {
        let flows = parallel_ways(&mut Rng::new(seed));
        let of = |way: usize, rate: u64| flow(&network, &format!("s>m{way} m{way}>d d!"), &[("s", rate)]);
        let old = policy(flows.iter().map(|(old, _, rate)| of(*old, *rate)));
        let new = policy(flows.iter().map(|(_, new, rate)| of(*new, *rate)));
        let change = change(network.clone(), old, new);
        let limits = loads(&flows, &[]).map(|load| load.max(10));
        match plan(&change, &Settings::default()) {
            Ok(plan) => {
                is_safe(&change, &plan);
                fits += 1;
            }
            Err(PlanError::NoRoom { .. }) => {
                assert!(!some_sequence_fits(&flows, &mut Vec::new(), limits), "seed {seed}: {flows:?}");
                not += 1;
            }
            Err(PlanError::NewOverload { .. }) => {}
            Err(other) => panic!("seed {seed}: {other}"),
        }
    }
    assert!(fits > 100 && not > 20, "{fits} {not}");
}

#[test]
fn reverse_path_alone_keeps_loops_away_but_not_capacities() {
    for (change, safe) in
        [(figure_2_2(), true), (figure_3_1(), true), (figure_3_2(), true), (figure_3_3(), false)]
    {
        let plan = ReversePath.plan(&change).unwrap();
        assert_eq!(check(&change, &plan, &CheckSettings::default()).is_ok(), safe);
    }
    assert!(Analysed::default().plan(&figure_3_3()).is_ok());
}
