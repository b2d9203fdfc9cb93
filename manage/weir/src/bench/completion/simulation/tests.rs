use super::super::costs::{Ordering, Signing};
use super::super::traffic::{Workload, flows};
use super::*;

fn costs() -> Costs {
    let ordering = |batch_ns: f64| Ordering {
        batch_leader_ns: batch_ns,
        batch_member_ns: batch_ns / 2.0,
        event_leader_ns: 20_000.0,
        event_member_ns: 10_000.0,
        late_leader_ns: batch_ns / 4.0,
        late_member_ns: batch_ns / 4.0,
        measured_ns: 0.0,
    };
    Costs {
        hop_ns: 30_000.0,
        sync_ns: 300_000.0,
        sign_ns: 20_000.0,
        verify_ns: 40_000.0,
        decide_ns: 200_000.0,
        take_single_ns: 60_000.0,
        take_group_ns: 900_000.0,
        signing: (3..=12)
            .map(|members| {
                let combine_ns = 900_000.0 + 3e4 * members as f64;
                (members, Signing { share_ns: 140_000.0, combine_ns, endorsed_ns: 2e4 * members as f64 })
            })
            .collect(),
        ordering: [
            ((Order::Local, 1), ordering(50_000.0)),
            ((Order::Raft, 3), ordering(100_000.0)),
            ((Order::Raft, 9), ordering(300_000.0)),
            ((Order::Bft, 4), ordering(400_000.0)),
            ((Order::Bft, 10), ordering(1_000_000.0)),
        ]
        .into(),
    }
}

fn control(order: Order, members: usize) -> Control {
    Control { order, members, proof: Proof::Aggregated, domain_a_pod: false, torn_down: true, link_bits: 1e9 }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[test]
fn every_flow_ends_and_every_event_is_ordered_once_in_each_domain_it_concerns() {
    let (costs, places) = (costs(), Places::pods_of_one(2));
    let flows = flows(Workload::Web, &places, 500, 100.0, 1);
    let crossing = flows.iter().filter(|flow| flow.from.pod != flow.to.pod).count();
    assert!(crossing > 20, "{crossing} flows between pods");
    let one = Simulation::run(control(Order::Bft, 4), &costs, &places, &flows);
    assert_eq!((one.completion_ns.len(), one.setup_ns.len()), (500, 500));
    assert_eq!(one.events, [1_000], "each is set up and removed");
    let many = Control { domain_a_pod: true, ..control(Order::Bft, 4) };
    let many = Simulation::run(many, &costs, &places, &flows);
    assert_eq!(many.completion_ns.len(), 500);
    // A flow between pods concerns both and what joins them; any other only its own pod.
    assert_eq!(many.events.iter().sum::<u64>() as usize, 2 * (500 + 2 * crossing));
    assert_eq!(many.events[2] as usize, 2 * crossing);
    assert!(many.setup_ns.iter().chain(&one.setup_ns).all(|ns| *ns > 0.0));
}

#[test]
fn rules_that_stay_are_set_up_once_for_a_pair_of_racks() {
    let (costs, places) = (costs(), Places::pods_of_one(1));
    let flows = flows(Workload::Hadoop, &places, 3_000, 100.0, 2);
    let pairs: BTreeSet<_> = flows.iter().map(|flow| (flow.from, flow.to)).collect();
    let kept = Control { torn_down: false, ..control(Order::Raft, 3) };
    let kept = Simulation::run(kept, &costs, &places, &flows);
    assert_eq!(kept.events, [pairs.len() as u64]);
    assert!(kept.setup_ns.len() >= pairs.len() && kept.setup_ns.len() < 3_000);
    let each = Simulation::run(control(Order::Raft, 3), &costs, &places, &flows);
    assert!(mean(&each.completion_ns) > mean(&kept.completion_ns));
}

#[test]
fn a_flow_alone_takes_the_sum_of_its_steps() {
    let (costs, places) = (costs(), Places::pods_of_one(1));
    let flows = flows(Workload::Hadoop, &places, 1, 1.0, 3);
    let found = Simulation::run(control(Order::Local, 1), &costs, &places, &flows);
    // Event, order, decision, then two switches at once, and when both have acknowledged, the first. Acks come together.
    let heard = costs.sign_ns + costs.hop_ns;
    let ordered = costs.verify_ns + 50_000.0 + 20_000.0 + costs.sync_ns + costs.decide_ns + costs.sign_ns;
    let take = costs.hop_ns + costs.take_single_ns + costs.sign_ns;
    let expected = heard + ordered + 2.0 * take + costs.hop_ns + 2.0 * costs.verify_ns;
    assert!((found.setup_ns[0] - expected).abs() < 1.0, "{} instead of {expected}", found.setup_ns[0]);
}

#[test]
fn work_that_nobody_waits_for_fills_gaps_and_is_done_in_the_end() {
    let mut worker = Worker::default();
    worker.later(1_000.0);
    assert_eq!(worker.run(600.0, 100.0), 700.0, "600 ns of it were done before");
    assert_eq!((worker.run(700.0, 100.0), worker.late_ns), (800.0, 400.0));
    worker.later(LATE_MAX_NS);
    assert_eq!(worker.run(800.0, 100.0), 1_300.0, "what is beyond the most is done first");
}

#[test]
fn more_controllers_are_slower_and_overload_is_seen() {
    let (costs, places) = (costs(), Places::pods_of_one(1));
    let few = flows(Workload::Hadoop, &places, 300, 20.0, 4);
    let setup = |order, members, flows: &[Flow]| {
        mean(&Simulation::run(control(order, members), &costs, &places, flows).setup_ns)
    };
    let (one, four, ten) =
        (setup(Order::Local, 1, &few), setup(Order::Bft, 4, &few), setup(Order::Bft, 10, &few));
    assert!(one < four && four < ten, "{one} {four} {ten}");
    // Decisions alone take longer than there is time.
    let many = flows(Workload::Hadoop, &places, 3_000, 20_000.0, 4);
    assert!(setup(Order::Bft, 4, &many) > 10.0 * four);
}

#[test]
fn an_endorsed_flow_alone_waits_for_no_signature_of_the_group() {
    let (costs, places) = (costs(), Places::pods_of_one(1));
    let flows = flows(Workload::Hadoop, &places, 1, 1.0, 3);
    let settings = Control { proof: Proof::Endorsed, ..control(Order::Bft, 4) };
    let found = Simulation::run(settings, &costs, &places, &flows);
    let heard = costs.sign_ns + costs.hop_ns;
    // Three rounds of votes, and what all have to do for a batch.
    let ordered = costs.verify_ns + 400_000.0 + 20_000.0 + 3.0 * (costs.sync_ns + costs.hop_ns);
    let decided = costs.decide_ns + costs.sign_ns;
    let proven = costs.hop_ns + costs.take_single_ns - costs.verify_ns + costs.sign_ns;
    // The switch that is told last has looked at the proof by then.
    let acked = 80_000.0 + proven + costs.hop_ns + 2.0 * costs.verify_ns;
    let expected = heard + ordered + decided + acked + proven;
    assert!((found.setup_ns[0] - expected).abs() < 1.0, "{} instead of {expected}", found.setup_ns[0]);
}
