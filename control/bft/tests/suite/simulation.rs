//! Whole groups from a seed, under everything that can happen to them and with one traitor of each kind. Checked: one order on all
//! honest members, nothing acknowledged is lost, nothing refused appears, nothing appears twice, and a healed group works again.
//!
//! `WEIR_BFT_SEEDS=2000` runs that many seeds of each kind; `WEIR_BFT_SEED=<n>` one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use commonware_runtime::deterministic::{Config, Context, Runner};
use commonware_runtime::{Clock, Runner as _, Spawner, Supervisor};
use weir_base::world::Rng;

use super::sim::{Fate, MEMBERS, Sim, propose, settings};
use super::traitor::{Kind, betray};

/// Seeds of each kind in the tests.
const SEEDS: u64 = 2;
/// Every so many batches each member keeps its state.
const STATE_EVERY: u64 = 16;
/// The member that betrays.
const TRAITOR: u32 = 4;

#[derive(Default)]
struct Tally {
    fates: BTreeMap<u64, Fate>,
    next_id: u64,
}

impl Tally {
    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.fates.insert(self.next_id, Fate::Unknown);
        self.next_id
    }
}

#[derive(Debug, PartialEq)]
struct Outcome {
    trace: String,
    committed: u64,
    counts: Counts,
    violations: Vec<String>,
}

/// What honest members counted since their last start, together.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
struct Counts {
    refused: u64,
    lies: u64,
    dropped: u64,
    malformed: u64,
    faults: u64,
    asked: u64,
    ranges: u64,
    states: u64,
    renamed: u64,
}

impl Counts {
    fn add(&mut self, other: &Counts) {
        self.refused += other.refused;
        self.lies += other.lies;
        self.dropped += other.dropped;
        self.malformed += other.malformed;
        self.faults += other.faults;
        self.asked += other.asked;
        self.ranges += other.ranges;
        self.states += other.states;
        self.renamed += other.renamed;
    }
}

fn counts(sim: &Sim, honest: &[u32]) -> Counts {
    let mut sum = Counts::default();
    for replica in honest.iter().filter_map(|id| sim.replica(*id)) {
        let counters = replica.counters();
        let core = counters.core;
        sum.add(&Counts {
            refused: core.refused,
            lies: core.lies,
            dropped: core.dropped,
            malformed: counters.malformed,
            faults: counters.faults,
            asked: core.asked,
            ranges: core.ranges,
            states: core.states,
            renamed: core.renamed,
        });
    }
    sum
}

/// What happens besides.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Trouble {
    None,
    /// Crashes, cuts, loss and delay, all members honest.
    Everything,
    /// Members lose their disks, one at a time, and the others forget.
    LostDisks,
}

struct Case {
    seed: u64,
    trouble: Trouble,
    traitor: Option<Kind>,
    canary: bool,
}

async fn client(
    context: Context,
    replicas: Arc<Mutex<BTreeMap<u32, weir_bft::Replica>>>,
    tally: Arc<Mutex<Tally>>,
    mut rng: Rng,
) {
    loop {
        let replica = {
            let replicas = replicas.lock().unwrap();
            let nth = rng.below(replicas.len() as u64) as usize;
            replicas.values().nth(nth).cloned()
        };
        if let Some(replica) = replica {
            let id = tally.lock().unwrap().new_id();
            let fate = propose(&context, &replica, id, rng.below(300) as usize).await;
            tally.lock().unwrap().fates.insert(id, fate);
        }
        context.sleep(Duration::from_millis(rng.below(40))).await;
    }
}

fn share(sim: &Sim, honest: &[u32], replicas: &Mutex<BTreeMap<u32, weir_bft::Replica>>) {
    let up = honest.iter().filter_map(|id| Some((*id, sim.replica(*id)?)));
    *replicas.lock().unwrap() = up.collect();
}

fn keep_states(sim: &Sim, honest: &[u32]) {
    for id in honest {
        let length = sim.machines[id].list.lock().unwrap().len() as u64;
        let index = length / STATE_EVERY * STATE_EVERY;
        if index > 0 {
            sim.snapshot(*id, index);
        }
    }
}

async fn nemesis(sim: &mut Sim, case: &Case, honest: &[u32], rng: &mut Rng) {
    let id = honest[rng.below(honest.len() as u64) as usize];
    match case.trouble {
        Trouble::None => {}
        Trouble::LostDisks => match rng.below(8) {
            0 if sim.up().len() == honest.len() => sim.lose_disk(id).await,
            1..4 => restart(sim, honest).await,
            _ => keep_states(sim, honest),
        },
        Trouble::Everything => match rng.below(16) {
            0..3 => sim.crash(id, rng.chance(1, 2)).await,
            3 => {
                for id in honest {
                    sim.crash(*id, rng.chance(1, 2)).await;
                }
            }
            4..9 => restart(sim, honest).await,
            9 | 10 => {
                let (left, right): (Vec<u32>, Vec<u32>) = honest.iter().partition(|_| rng.chance(1, 2));
                sim.cut(&left, &right, rng.chance(3, 4)).await;
            }
            11 | 12 => sim.heal().await,
            13 => sim.link_all(1 + rng.below(20), rng.below(10), 1000 - rng.below(150)).await,
            _ => keep_states(sim, honest),
        },
    }
}

async fn restart(sim: &mut Sim, honest: &[u32]) {
    for id in honest {
        if sim.replica(*id).is_none()
            && let Err(what) = sim.start(*id).await
        {
            sim.witness.lock().unwrap().violation(format!("member {id} does not start: {what}"));
        }
    }
}

/// Whether all honest members have committed a last proposal of each, and have the same.
async fn agree(sim: &Sim, honest: &[u32], tally: &Arc<Mutex<Tally>>) -> Result<(), String> {
    for id in honest {
        let replica = sim.replica(*id).ok_or("it is down")?;
        let mut fate = Fate::Unknown;
        for _ in 0..6 {
            let proposal = tally.lock().unwrap().new_id();
            fate = propose(&sim.context, &replica, proposal, 8).await;
            tally.lock().unwrap().fates.insert(proposal, fate.clone());
            if matches!(fate, Fate::Committed(_)) {
                break;
            }
        }
        if !matches!(fate, Fate::Committed(_)) {
            let (status, counters) = (replica.replica_status(), replica.counters());
            return Err(format!("member {id} orders nothing: {fate:?}, {status:?}, {counters:?}"));
        }
    }
    for _ in 0..600 {
        let lengths: Vec<usize> =
            honest.iter().map(|id| sim.machines[id].list.lock().unwrap().len()).collect();
        if lengths.iter().all(|length| *length == lengths[0]) {
            return Ok(());
        }
        sim.context.sleep(Duration::from_millis(50)).await;
    }
    let states: Vec<String> = honest
        .iter()
        .filter_map(|id| {
            Some(format!("{:?} {:?}", sim.replica(*id)?.replica_status(), sim.replica(*id)?.counters()))
        })
        .collect();
    Err(format!("members do not catch up: {states:#?}"))
}

fn check(sim: &Sim, tally: &Tally) {
    let mut witness = sim.witness.lock().unwrap();
    let order = witness.order.clone();
    let placed: BTreeMap<u64, u64> = order.iter().map(|(index, id)| (*id, *index)).collect();
    for (id, fate) in &tally.fates {
        match (fate, placed.get(id)) {
            (Fate::Committed(index), place) if place != Some(index) => {
                witness.violation(format!("{id} was acknowledged at {index} and is at {place:?}"));
            }
            (Fate::Refused, Some(index)) => {
                witness.violation(format!("{id} was refused for certain and is at {index}"));
            }
            _ => {}
        }
    }
}

async fn play(context: Context, case: &Case) -> (u64, Counts, Vec<String>) {
    let mut rng = Rng::new(case.seed);
    let mut sim = Sim::new(context.child("sim"), case.seed, settings()).await;
    sim.canary = case.canary;
    let honest: Vec<u32> = (1..=MEMBERS).filter(|id| case.traitor.is_none() || *id != TRAITOR).collect();
    restart(&mut sim, &honest).await;
    if let Some(kind) = case.traitor {
        let channels = sim.channels(TRAITOR).await;
        betray(&sim, TRAITOR, kind, channels, rng.next_u64());
    }
    let (tally, replicas): (Arc<Mutex<Tally>>, Arc<Mutex<_>>) = Default::default();
    share(&sim, &honest, &replicas);
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (replicas, tally, rng) =
                (Arc::clone(&replicas), Arc::clone(&tally), Rng::new(rng.next_u64()));
            context.child("client").spawn(move |context| client(context, replicas, tally, rng))
        })
        .collect();
    let steps = if case.trouble == Trouble::None { 12 } else { 40 };
    for _ in 0..steps {
        context.sleep(Duration::from_millis(rng.below(300))).await;
        nemesis(&mut sim, case, &honest, &mut rng).await;
        share(&sim, &honest, &replicas);
    }
    sim.heal().await;
    restart(&mut sim, &honest).await;
    clients.iter().for_each(|client| client.abort());
    context.sleep(Duration::from_secs(2)).await;
    if let Err(what) = agree(&sim, &honest, &tally).await {
        sim.witness.lock().unwrap().violation(what);
    }
    check(&sim, &tally.lock().unwrap());
    let witness = sim.witness.lock().unwrap();
    (witness.order.len() as u64, counts(&sim, &honest), witness.violations.clone())
}

fn run(case: &Case) -> Outcome {
    let config = Config::new().with_seed(case.seed).with_timeout(Some(Duration::from_secs(600)));
    Runner::new(config).start(|context| async move {
        let (committed, counts, violations) = play(context.child("play"), case).await;
        Outcome { trace: context.auditor().state(), committed, counts, violations }
    })
}

/// Runs seeds and gives what honest members counted in all of them.
fn run_seeds(trouble: Trouble, traitor: Option<Kind>, share: u64) -> Counts {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("WEIR_BFT_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("WEIR_BFT_SEEDS").unwrap_or((SEEDS * share).div_ceil(2)),
    };
    let mut sum = Counts::default();
    for seed in seeds {
        let outcome = run(&Case { seed, trouble, traitor, canary: false });
        println!(
            "{trouble:?} {traitor:?} seed {seed}: {} committed, {:?}",
            outcome.committed, outcome.counts
        );
        assert!(outcome.violations.is_empty(), "seed {seed}: {:#?}", outcome.violations);
        assert!(outcome.committed >= 10, "seed {seed}: only {} were committed", outcome.committed);
        sum.add(&outcome.counts);
    }
    sum
}

#[test]
fn crashes_cuts_and_loss() {
    let counts = run_seeds(Trouble::Everything, None, 3);
    assert_eq!(counts.lies, 0, "an honest member was taken for a liar");
    assert!(counts.asked > 0 && counts.ranges > 0, "nobody had to catch up: {counts:?}");
}

#[test]
fn lost_disks() {
    let counts = run_seeds(Trouble::LostDisks, None, 2);
    assert_eq!(counts.lies, 0, "an honest member was taken for a liar");
    assert!(counts.states > 0, "nobody took over a state: {counts:?}");
}

#[test]
fn a_silent_member() {
    run_seeds(Trouble::None, Some(Kind::Silent), 1);
}

#[test]
fn a_member_that_says_different_things_to_different_members() {
    let counts = run_seeds(Trouble::None, Some(Kind::Equivocates), 2);
    assert!(counts.faults > 0, "nobody noticed two votes that exclude each other: {counts:?}");
}

#[test]
fn a_member_that_forges() {
    let counts = run_seeds(Trouble::None, Some(Kind::Forges), 1);
    assert!(counts.lies > 0, "nobody noticed a forged signature: {counts:?}");
    assert!(counts.refused > 0, "no wrong block came to a vote: {counts:?}");
}

#[test]
fn a_member_that_proposes_again_what_was_ordered() {
    let counts = run_seeds(Trouble::None, Some(Kind::Repeats), 2);
    assert!(counts.refused > 0, "no old batch came to a vote: {counts:?}");
}

#[test]
fn a_member_that_floods() {
    let counts = run_seeds(Trouble::None, Some(Kind::Floods), 1);
    assert!(counts.dropped > 0 && counts.malformed > 0, "there was no flood: {counts:?}");
}

#[test]
fn a_member_that_helps_with_lies() {
    let counts = run_seeds(Trouble::LostDisks, Some(Kind::LiesInTransfer), 3);
    assert!(counts.lies > 0, "nobody was lied to: {counts:?}");
    assert!(counts.states + counts.ranges > 0, "nobody caught up: {counts:?}");
}

#[test]
fn a_seed_gives_the_same_run_again() {
    let case = || Case { seed: 3, trouble: Trouble::Everything, traitor: None, canary: false };
    assert_eq!(run(&case()), run(&case()));
}

#[test]
fn the_canary_is_noticed() {
    let outcome = run(&Case { seed: 1, trouble: Trouble::None, traitor: None, canary: true });
    let noticed = outcome.violations.iter().any(|what| what.contains("is given 6 after 4"));
    assert!(noticed, "an application that loses a batch was not noticed: {:?}", outcome.violations);
}
