//! Many random policy changes on real networks, each planned and then checked by samples, and what planning
//! costs: `make bench-plan`. Arguments: the number of changes (10,200 without one: of each hundred one or less is refused), and the first seed.
//!
//! Peers are the plan's own modes: how many changes do harm when all steps go at once (`none`), and how
//! many steps must be acknowledged one after the other (`linear`). Times are CPU time, medians.

use rustix::time::{ClockId, clock_gettime};
use weir_base::world::Rng;
use weir_plan::random::{FlowSettings, change_on};
use weir_plan::{
    Change, CheckSettings, LinkState, Method, Mode, Network, Plan, PlanError, Planner, ReversePath, Settings,
    check, plan, topology,
};

type Failure = Box<dyn std::error::Error>;

/// Name, text, and how many of a hundred changes are on it.
const ZOO: [(&str, &str, usize); 5] = [
    ("abilene", include_str!("../topologies/abilene.txt"), 40),
    ("deutschetelekom", include_str!("../topologies/deutschetelekom.txt"), 28),
    ("geant2012", include_str!("../topologies/geant2012.txt"), 28),
    ("cogentco", include_str!("../topologies/cogentco.txt"), 3),
    ("kdl", include_str!("../topologies/kdl.txt"), 1),
];

fn cpu_ms() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 * 1e3 + now.tv_nsec as f64 / 1e6
}

#[derive(Default)]
struct Counts {
    planned: usize,
    /// New policies that put too much on a link, or flows that want each other's room.
    refused: usize,
    unsafe_plans: usize,
    unsafe_without_order: usize,
    unsafe_reverse_path: usize,
    two_phase: usize,
    drains: usize,
    depths: Vec<f64>,
    steps: Vec<f64>,
    plan_ms: Vec<f64>,
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

fn change(network: &Network, seed: u64) -> Change {
    let mut rng = Rng::new(seed);
    let mut network = network.clone();
    if rng.chance(1, 2) {
        let links: Vec<_> = network.links().collect();
        for (link, state) in links {
            network.set_link(link.from, link.to, LinkState { capacity_kbps: Some(40), ..state });
        }
    }
    let settings = FlowSettings { sources_max: 6, rate_kbps: 1 + rng.below(9) };
    let flows = 1 + rng.below(3);
    change_on(&mut rng, network, flows, &settings)
}

fn count(counts: &mut Counts, change: &Change, plan: &Plan) {
    let settings = CheckSettings { states_max: 2_000, samples: 3, ..CheckSettings::default() };
    let harms = |plan: &Plan| usize::from(check(change, plan, &settings).is_err());
    counts.planned += 1;
    counts.unsafe_plans += harms(plan);
    counts.unsafe_without_order += harms(&plan.clone().with_mode(Mode::None));
    counts.unsafe_reverse_path += ReversePath.plan(change).map_or(0, |plan| harms(&plan));
    let by_version = |method: &Method| matches!(method, Method::Versions { .. });
    counts.two_phase += usize::from(plan.notes.iter().any(|note| by_version(&note.method)));
    counts.drains += usize::from(plan.drains() > 0);
    counts.depths.push(plan.depth() as f64);
    counts.steps.push(plan.steps.len() as f64);
}

/// One flow to one place from every switch, both ways of planning it on the whole of a network.
fn whole_network(name: &str, network: &Network, seed: u64) -> Result<(), Failure> {
    let mut times_ms = Vec::new();
    let mut steps = 0;
    for round in 0..9 {
        let mut rng = Rng::new(seed + round);
        let settings = FlowSettings { sources_max: 4 * network.switches().len() as u64, rate_kbps: 1 };
        let change = change_on(&mut rng, network.clone(), 1, &settings);
        let start = cpu_ms();
        let plan = plan(&change, &Settings::default())?;
        times_ms.push(cpu_ms() - start);
        steps = steps.max(plan.steps.len());
    }
    println!("RESULT plan whole_{name}_flow_of_all_sources weir={:.2}ms", median(&times_ms));
    println!("RESULT plan whole_{name}_steps_max weir={steps}");
    Ok(())
}

fn main() -> Result<(), Failure> {
    let changes: usize = std::env::args().nth(1).map_or(Ok(10_200), |text| text.parse())?;
    let first: u64 = std::env::args().nth(2).map_or(Ok(0), |text| text.parse())?;
    let mut total = Counts::default();
    for (name, text, share) in ZOO {
        let network = topology::parse(text)?;
        let mut counts = Counts::default();
        for seed in 0..(changes * share).div_ceil(100) as u64 {
            let change = change(&network, first + seed);
            let start = cpu_ms();
            let planned = plan(&change, &Settings::default());
            counts.plan_ms.push(cpu_ms() - start);
            match planned {
                Ok(plan) => count(&mut counts, &change, &plan),
                Err(PlanError::NewOverload { .. } | PlanError::NoRoom { .. }) => counts.refused += 1,
                Err(other) => return Err(other.into()),
            }
        }
        let (ms, depth, steps) = (median(&counts.plan_ms), median(&counts.depths), median(&counts.steps));
        println!("# {name}: {} planned, {} refused", counts.planned, counts.refused);
        println!("RESULT plan {name}_planning_p50 weir={ms:.3}ms");
        println!(
            "RESULT plan {name}_acks_in_a_row_p50 weir={depth} linear={steps} ratio={:.2}",
            depth / steps
        );
        total.planned += counts.planned;
        total.refused += counts.refused;
        total.unsafe_plans += counts.unsafe_plans;
        total.unsafe_without_order += counts.unsafe_without_order;
        total.unsafe_reverse_path += counts.unsafe_reverse_path;
        total.two_phase += counts.two_phase;
        total.drains += counts.drains;
        whole_network(name, &network, 1)?;
    }
    let percent = |part: usize| 100.0 * part as f64 / total.planned as f64;
    println!("RESULT plan changes_planned weir={} refused={}", total.planned, total.refused);
    println!(
        "RESULT plan violations weir={} reverse_path={} none={}",
        total.unsafe_plans, total.unsafe_reverse_path, total.unsafe_without_order
    );
    println!("RESULT plan with_drains weir={:.1}%", percent(total.drains));
    println!("RESULT plan in_two_phases weir={:.1}%", percent(total.two_phase));
    if total.unsafe_plans > 0 { Err("a plan does harm".into()) } else { Ok(()) }
}
