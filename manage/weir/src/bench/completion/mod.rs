//! `weir bench completion`: what controllers cost the flows whose rules they set up (rows C6 to C8; Lembke, Cicero, Figs
//! 3.13 and 3.14). The steps are measured in this run, with the code that controllers and switches run and with groups of
//! real processes; the networks, which are far larger than a machine, are simulated with them.
//!
//! - Sizes of the control plane: one to ten controllers.
//! - A pod: one controller, groups with either order, and each way to sign; rules that
//!   stay, and rules that are set up and torn down for each flow.
//! - Two pods and what joins them: one domain of twelve controllers beside three of four.
//! - Data centres of four pods at the places of Deutsche Telekom's network, and of others of the Internet Topology Zoo up to 754 places, with the
//!   delays of their distances: one controller for all beside a domain a pod.

pub(super) mod costs;
pub(super) mod places;
mod simulation;
pub(super) mod traffic;

use super::order::median;
use crate::failure::Failure;
use clap::Args;
use costs::{Costs, Order};
use places::{Places, ZOO};
use simulation::{Control, Outcome, Proof, Simulation};
use std::path::PathBuf;
use std::process::ExitCode;
use traffic::{Flow, SECOND_NS, Workload, flows};

/// Mean time of a Hadoop flow beside the paper's one controller, nanoseconds.
const PAPER_FLOW_NS: f64 = 33.6e6;
/// Other ways to sign than by the group's signature alone.
const PROOFS: [(&str, Proof); 2] =
    [("bft-at-switches", Proof::AtSwitches), ("bft-endorsed", Proof::Endorsed)];
/// Controllers of groups whose ordering is measured.
const RAFT_SIZES: [usize; 3] = [3, 5, 9];
const BFT_SIZES: [usize; 3] = [4, 7, 10];
/// Largest group that is simulated.
const SIZE_MAX: usize = 12;

#[derive(Debug, Args)]
pub struct Completion {
    /// Flows of each simulation
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    flows: u32,
    /// New flows a second in each pod
    #[arg(long, default_value_t = 250, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
    /// Simulations of each kind, with flows of their own
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Where the groups that are measured keep their state
    #[arg(long, default_value = "/var/tmp")]
    folder: PathBuf,
}

/// A row: a name and how the network is controlled.
type Row = (&'static str, Control);

fn control(order: Order, members: usize) -> Control {
    Control {
        order,
        members,
        proof: Proof::Aggregated,
        domain_a_pod: false,
        torn_down: false,
        link_bits: 0.0,
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn percentile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (sorted.len() as f64 * share) as usize;
    sorted.get(at.min(sorted.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}

impl Completion {
    /// With the usual options.
    pub fn usual() -> Completion {
        Completion { flows: 5_000, rate: 250, rounds: 5, folder: PathBuf::from("/var/tmp") }
    }

    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self) -> Result<ExitCode, Failure> {
        let folder = self.folder.join(format!("weir-bench-completion-{}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(Failure::io(folder.display().to_string()))?;
        let measured = measure(&folder);
        std::fs::remove_dir_all(&folder).map_err(Failure::io(folder.display().to_string()))?;
        let costs = measured?;
        describe(&costs);
        self.sizes(&costs);
        self.pod(&costs);
        self.pods(&costs);
        self.wide(&costs)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Simulates rows with the same flows, and prints each beside the first.
    fn rows(&self, what: &str, places: &Places, workload: Workload, rows: &[Row], costs: &Costs) {
        let rate = f64::from(self.rate) * f64::from(places.pods() * places.centres());
        let mut found: Vec<Vec<Outcome>> = rows.iter().map(|_| Vec::new()).collect();
        for seed in 0..u64::from(self.rounds) {
            let flows: Vec<Flow> = flows(workload, places, self.flows as usize, rate, seed);
            for ((_, control), found) in rows.iter().zip(&mut found) {
                found.push(Simulation::run(*control, costs, places, &flows));
            }
        }
        let figure =
            |outcomes: &[Outcome], of: &dyn Fn(&Outcome) -> f64| median(outcomes.iter().map(of)) / 1e6;
        let Some(((first, _), base)) = rows.first().zip(found.first()) else { return };
        for ((word, _), outcomes) in rows.iter().zip(&found) {
            let print = |metric: &str, of: &dyn Fn(&Outcome) -> f64| {
                let (own, other) = (figure(outcomes, of), figure(base, of));
                let ratio = own / other;
                say!(
                    "RESULT completion {what}_{metric} weir-{word}={own:.2}ms weir-{first}={other:.2}ms ratio={ratio:.3}"
                );
            };
            print("setup-mean", &|outcome| mean(&outcome.setup_ns));
            print("flow-mean", &|outcome| mean(&outcome.completion_ns));
            print("flow-p99", &|outcome| percentile(&outcome.completion_ns, 0.99));
            let events = outcomes.first().map(|outcome| outcome.events.clone()).unwrap_or_default();
            if events.len() > 1 {
                let (most, all) = (events.iter().max().copied().unwrap_or(0), events.iter().sum::<u64>());
                say!(
                    "# {what}: the busiest of {} domains ordered {most} events, all together {all}",
                    events.len()
                );
            }
        }
    }

    /// The time of a flow's set-up by the size of the control plane.
    fn sizes(&self, costs: &Costs) {
        let places = Places::pods_of_one(1);
        let settings =
            |order, members| Control { torn_down: true, link_bits: 1e9, ..control(order, members) };
        let rate = f64::from(self.rate) / 10.0;
        let flows = flows(Workload::Hadoop, &places, self.flows as usize, rate, 1);
        let setup = |control| mean(&Simulation::run(control, costs, &places, &flows).setup_ns) / 1e6;
        let one = setup(settings(Order::Local, 1));
        for members in 1..=10 {
            let print = |word: &str, control: Control| {
                let own = setup(control);
                say!(
                    "RESULT completion size-{members}_setup-mean weir-{word}={own:.2}ms weir-local={one:.2}ms ratio={:.2}",
                    own / one
                );
            };
            if members == 1 {
                print("local", settings(Order::Local, 1));
            }
            if members >= 3 {
                print("raft", settings(Order::Raft, members));
            }
            if members >= 4 {
                print("bft", settings(Order::Bft, members));
                for (word, proof) in PROOFS {
                    print(word, Control { proof, ..settings(Order::Bft, members) });
                }
            }
        }
    }

    fn pod(&self, costs: &Costs) {
        let places = Places::pods_of_one(1);
        let paper_bits = link_of_paper(costs, &places, self);
        for workload in [Workload::Hadoop, Workload::Web] {
            for (kept, torn_down) in [("rules-stay", false), ("each-flow", true)] {
                for (link, link_bits) in [("paper-links", paper_bits), ("1G-links", 1e9)] {
                    let settings =
                        |order, members| Control { torn_down, link_bits, ..control(order, members) };
                    let rows = [
                        ("local", settings(Order::Local, 1)),
                        ("raft", settings(Order::Raft, 3)),
                        ("bft", settings(Order::Bft, 4)),
                    ];
                    let proofs =
                        PROOFS.map(|(word, proof)| (word, Control { proof, ..settings(Order::Bft, 4) }));
                    let rows = [&rows[..], &proofs[..]].concat();
                    self.rows(
                        &format!("pod_{}_{kept}_{link}", workload.word()),
                        &places,
                        workload,
                        &rows,
                        costs,
                    );
                }
            }
        }
    }

    fn pods(&self, costs: &Costs) {
        let places = Places::pods_of_one(2);
        for torn_down in [false, true] {
            let settings =
                |members, proof| Control { torn_down, proof, link_bits: 1e9, ..control(Order::Bft, members) };
            let three = |proof| Control { domain_a_pod: true, ..settings(4, proof) };
            let rows = [
                ("one-domain-of-12", settings(SIZE_MAX, Proof::Aggregated)),
                ("three-domains-of-4", three(Proof::Aggregated)),
                ("one-domain-of-12-endorsed", settings(SIZE_MAX, Proof::Endorsed)),
                ("three-domains-of-4-endorsed", three(Proof::Endorsed)),
            ];
            let kept = if torn_down { "each-flow" } else { "rules-stay" };
            self.rows(&format!("two-pods_hadoop_{kept}"), &places, Workload::Hadoop, &rows, costs);
        }
    }

    fn wide(&self, costs: &Costs) -> Result<(), Failure> {
        for zoo in ZOO {
            let word = zoo.word;
            let places = Places::zoo(zoo)
                .ok_or_else(|| Failure::Input(format!("the places of the network {word} cannot be read")))?;
            for torn_down in [false, true] {
                let settings =
                    |order, members| Control { torn_down, link_bits: 1e9, ..control(order, members) };
                let a_pod = |proof| Control { domain_a_pod: true, proof, ..settings(Order::Bft, 4) };
                let rows = [
                    ("one-controller", settings(Order::Local, 1)),
                    ("a-domain-a-pod", a_pod(Proof::Aggregated)),
                    ("a-domain-a-pod-endorsed", a_pod(Proof::Endorsed)),
                ];
                let kept = if torn_down { "each-flow" } else { "rules-stay" };
                self.rows(&format!("wide_{word}_web_{kept}"), &places, Workload::Web, &rows, costs);
            }
        }
        Ok(())
    }
}

/// With which links flows of Hadoop last as long beside one controller as the paper's, bits a second.
fn link_of_paper(costs: &Costs, places: &Places, bench: &Completion) -> f64 {
    let rate = f64::from(bench.rate);
    let flows = flows(Workload::Hadoop, places, bench.flows as usize, rate, 0);
    let control = Control { torn_down: true, link_bits: 1e9, ..control(Order::Local, 1) };
    let setup_ns = mean(&Simulation::run(control, costs, places, &flows).setup_ns);
    let bits = Workload::Hadoop.mean_bytes() * 8.0 / ((PAPER_FLOW_NS - setup_ns) / SECOND_NS);
    say!(
        "# links of {:.1} Mbit/s: flows of Hadoop last {:.1} ms beside one controller, as the paper's",
        bits / 1e6,
        PAPER_FLOW_NS / 1e6
    );
    bits
}

fn measure(folder: &std::path::Path) -> Result<Costs, Failure> {
    let sizes: Vec<usize> = (3..=SIZE_MAX).collect();
    let mut costs = Costs::measure(&sizes, folder)?;
    for members in RAFT_SIZES {
        costs.measure_order(Order::Raft, members, folder)?;
    }
    for members in BFT_SIZES {
        costs.measure_order(Order::Bft, members, folder)?;
    }
    costs.measure_order(Order::Local, 1, folder)?;
    Ok(costs)
}

/// What was measured, for who reads the figures.
fn describe(costs: &Costs) {
    let us = |ns: f64| ns / 1e3;
    say!(
        "# us: hop {:.1}, sync {:.0}, sign {:.1}, verify {:.1}, decide {:.0}, take at a switch {:.0} under one key, {:.0} under a group's",
        us(costs.hop_ns),
        us(costs.sync_ns),
        us(costs.sign_ns),
        us(costs.verify_ns),
        us(costs.decide_ns),
        us(costs.take_single_ns),
        us(costs.take_group_ns)
    );
    for (members, signing) in &costs.signing {
        say!(
            "# {members} members, us: a share {:.0}, a signature of them {:.0}, endorsements checked {:.0}",
            us(signing.share_ns),
            us(signing.combine_ns),
            us(signing.endorsed_ns)
        );
    }
    for ((order, members), found) in &costs.ordering {
        say!(
            "# {order:?} of {members}, us of a processor: a batch {:.0} and {:.0}, for which nobody waits {:.0} and {:.0}, an event more {:.1} and {:.1} (leader and others); one write took {:.2} ms with all on this machine",
            us(found.batch_leader_ns),
            us(found.batch_member_ns),
            us(found.late_leader_ns),
            us(found.late_member_ns),
            us(found.event_leader_ns),
            us(found.event_member_ns),
            found.measured_ns / 1e6
        );
    }
}
