//! Whole groups from a seed, under everything that can happen to them. Checked: one order of all committed prefixes, nothing
//! acknowledged is lost, nothing refused appears, nothing appears twice, answers come in order, barriers see what was
//! acknowledged before them, and a healed group works again.
//!
//! `WEIR_RAFT_SEEDS=10000` runs that many seeds; `WEIR_RAFT_SEED=<n>` one, and `WEIR_RAFT_SIM_TRACE=1` prints what happens.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use weir_base::seeds::Seeds;
use weir_base::world::Rng;
use weir_raft::{Change, ReadKind};

use super::sim::{Fate, Options, Sim, barrier, propose, run};

const SEEDS: u64 = 200;
const BUSY: Duration = Duration::from_secs(4);

#[derive(Default)]
struct Tally {
    fates: BTreeMap<u64, Fate>,
    next_id: u64,
    acked_max: u64,
    /// The last acknowledged index of each replica's life, to see that answers come in order.
    barriers: u64,
}

/// How broken the world is on purpose.
#[derive(Clone, Copy, PartialEq)]
enum World {
    Sound,
    LyingDisks,
}

struct Outcome {
    trace: (u32, u64),
    committed: u64,
    barriers: u64,
}

type Shared<T> = Rc<RefCell<T>>;

/// Proposes, one after the other, to whoever leads.
async fn client(sim: Shared<Sim>, tally: Shared<Tally>, mut rng: Rng, until: Instant) {
    while Instant::now() < until {
        let target = {
            let sim = sim.borrow();
            let leads = sim.leader_now().filter(|_| rng.chance(19, 20));
            let any = sim.up();
            leads.or_else(|| any.get(rng.below(any.len() as u64) as usize).copied())
        };
        let replica = target.and_then(|id| sim.borrow().replica(id));
        if let Some(replica) = replica {
            let id = {
                let mut tally = tally.borrow_mut();
                tally.next_id += 1;
                let id = tally.next_id;
                tally.fates.insert(id, Fate::Unknown);
                id
            };
            let fate = propose(&replica, id, rng.below(400) as usize).await;
            let mut tally = tally.borrow_mut();
            if let Fate::Committed(position) = &fate {
                tally.acked_max = tally.acked_max.max(position.index);
            }
            tally.fates.insert(id, fate);
        }
        sleep(Duration::from_micros(rng.below(12_000))).await;
    }
}

/// Reads behind barriers, anywhere.
async fn reader(sim: Shared<Sim>, tally: Shared<Tally>, mut rng: Rng, until: Instant, kind: ReadKind) {
    while Instant::now() < until {
        let target = {
            let sim = sim.borrow();
            sim.leader_now().filter(|_| rng.chance(3, 4)).or_else(|| {
                let any = sim.up();
                any.get(rng.below(any.len() as u64) as usize).copied()
            })
        };
        let replica = target.and_then(|id| sim.borrow().replica(id).map(|replica| (id, replica)));
        if let Some((id, replica)) = replica {
            let acked = tally.borrow().acked_max;
            if let Some(position) = barrier(&replica, kind).await {
                tally.borrow_mut().barriers += 1;
                if position.index < acked {
                    let what =
                        format!("a barrier on {id} saw {} after {acked} was acknowledged", position.index);
                    sim.borrow().witness.lock().unwrap().violation(what);
                }
            }
        }
        sleep(Duration::from_micros(rng.below(15_000))).await;
    }
}

fn pick(rng: &mut Rng, from: &[u64]) -> Option<u64> {
    from.get(rng.below(from.len() as u64) as usize).copied()
}

/// Everything that can happen.
async fn nemesis(sim: Shared<Sim>, mut rng: Rng, until: Instant, churn: bool) {
    let all: Vec<u64> = sim.borrow().machines.keys().copied().collect();
    while Instant::now() < until {
        sleep(Duration::from_millis(rng.below(250))).await;
        let Some(id) = pick(&mut rng, &all) else { return };
        match rng.below(20) {
            0..4 => {
                let power = rng.chance(1, 2);
                // The leader is the more interesting victim.
                let victim = sim.borrow().leader_now().filter(|_| rng.chance(1, 2)).unwrap_or(id);
                sim.borrow_mut().crash(victim, power);
            }
            4 => {
                for id in &all {
                    sim.borrow_mut().crash(*id, rng.chance(1, 2));
                }
            }
            5..10 => {
                let down: Vec<u64> =
                    all.iter().copied().filter(|id| sim.borrow().replica(*id).is_none()).collect();
                for id in down {
                    start(&sim, id);
                }
            }
            10 | 11 => {
                let (left, right): (Vec<u64>, Vec<u64>) = all.iter().partition(|_| rng.chance(1, 2));
                sim.borrow().net.cut(&left, &right, rng.chance(3, 4));
            }
            12 => {
                let leader = sim.borrow().leader_now().unwrap_or(id);
                let others: Vec<u64> = all.iter().copied().filter(|other| *other != leader).collect();
                sim.borrow().net.cut(&[leader], &others, rng.chance(3, 4));
            }
            13 | 14 => sim.borrow().net.heal(),
            15 => sim.borrow().net.worsen(rng.below(60), rng.below(30)),
            16 => {
                let sync_us = if rng.chance(1, 2) { 100 } else { rng.below(60_000) };
                *sim.borrow().machines[&id].sync_us.lock().unwrap() = sync_us;
            }
            17 => {
                let disk = sim.borrow().machines[&id].disk.clone();
                disk.set_capacity_bytes(disk.used_bytes() + rng.below(8192));
            }
            18 => sim.borrow().snapshot(id),
            _ => {
                let leader = sim.borrow().leader_now();
                let replica = leader.and_then(|id| sim.borrow().replica(id));
                let Some(replica) = replica else { continue };
                let change = match rng.below(4) {
                    _ if !churn => None,
                    0 => Some(Change::AddLearner { id, address: format!("at {id}") }),
                    1 | 2 => Some(Change::Promote { id }),
                    _ if replica.replica_status().voters.len() > 3 => Some(Change::Remove { id }),
                    _ => None,
                };
                tokio::spawn(async move {
                    // Whether it may, or comes through, depends on everything else.
                    let limit = Duration::from_secs(2);
                    let _any = match change {
                        Some(change) => timeout(limit, replica.change(change)).await,
                        None => timeout(limit, replica.transfer_leadership(None)).await,
                    };
                });
            }
        }
    }
}

fn start(sim: &Shared<Sim>, id: u64) {
    let disk = sim.borrow().machines[&id].disk.clone();
    disk.set_capacity_bytes(u64::MAX);
    let started = sim.borrow_mut().start(id);
    if let Err(what) = started {
        let what = format!("replica {id} does not start: {what}");
        sim.borrow().witness.lock().unwrap().violation(what);
    }
}

/// Ends all trouble and waits until the group works and all members have the same.
async fn heal(sim: &Shared<Sim>, tally: &Shared<Tally>) -> Result<(), String> {
    let all: Vec<u64> = sim.borrow().machines.keys().copied().collect();
    sim.borrow().net.heal();
    for id in all {
        sim.borrow().machines[&id].disk.restart().set_capacity_bytes(u64::MAX);
        let healthy =
            sim.borrow().replica(id).is_some_and(|replica| replica.replica_status().failure.is_none());
        if !healthy {
            sim.borrow_mut().crash(id, false);
            start(sim, id);
        }
        *sim.borrow().machines[&id].sync_us.lock().unwrap() = 100;
    }
    let works = async {
        loop {
            let leader = sim.borrow().leader_now().and_then(|id| sim.borrow().replica(id));
            if let Some(leader) = leader {
                let id = {
                    let mut tally = tally.borrow_mut();
                    tally.next_id += 1;
                    tally.next_id
                };
                let fate = propose(&leader, id, 8).await;
                tally.borrow_mut().fates.insert(id, fate.clone());
                if let Fate::Committed(position) = fate {
                    let status = leader.replica_status();
                    let members: Vec<u64> =
                        status.voters.keys().chain(status.learners.keys()).copied().collect();
                    if same(sim, &members, position.index).await {
                        return;
                    }
                }
            }
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(Duration::from_secs(120), works).await.map_err(|_| {
        let sim = sim.borrow();
        let status: Vec<String> = sim
            .machines
            .values()
            .map(|machine| format!("{:?}", machine.replica.as_ref().map(|replica| replica.replica_status())))
            .collect();
        format!("the healed group does not work again: {status:#?}")
    })
}

async fn same(sim: &Shared<Sim>, members: &[u64], index: u64) -> bool {
    let all = async {
        loop {
            let caught_up =
                members.iter().all(|id| sim.borrow().machines[id].app.lock().unwrap().at.index >= index);
            if caught_up {
                return;
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(10), all).await.is_ok()
}

fn judge(sim: &Sim, tally: &Tally) -> Result<(), String> {
    let witness = sim.witness.lock().unwrap();
    if let Some(first) = witness.violations.first() {
        return Err(format!("{first} (and {} more)", witness.violations.len() - 1));
    }
    let mut seen = BTreeMap::new();
    for (index, id) in &witness.order {
        if let Some(other) = seen.insert(id, index) {
            return Err(format!("{id} is at {other} and at {index}"));
        }
    }
    for (id, fate) in &tally.fates {
        match (fate, seen.get(id)) {
            (Fate::Committed(position), Some(index)) if position.index == **index => {}
            (Fate::Refused, None) | (Fate::Unknown, _) => {}
            (fate, there) => return Err(format!("{id} was told {fate:?} and is at {there:?}")),
        }
    }
    for machine in sim.machines.values() {
        let app = machine.app.lock().unwrap();
        let wrong = app.ids.iter().zip(1..).find(|(id, index)| witness.order.get(index) != Some(id));
        if let Some((id, index)) = wrong {
            return Err(format!("the state of {} has {id} at {index}", machine.id));
        }
    }
    Ok(())
}

fn live(seed: u64, world: World) -> Result<Outcome, String> {
    run(seed, async || {
        let mut rng = Rng::new(seed);
        let mut options = Options::of(if seed.is_multiple_of(2) { 3 } else { 5 });
        let churn = seed.is_multiple_of(3) && options.replicas == 5;
        if churn {
            options.founders = 3;
        }
        options.lying = world == World::LyingDisks;
        options.lease_reads = seed.is_multiple_of(5);
        let kind = if options.lease_reads { ReadKind::Lease } else { ReadKind::Index };
        let mut sim = Sim::new(rng.next_u64(), options);
        sim.found().await;
        let (sim, tally) = (Rc::new(RefCell::new(sim)), Shared::<Tally>::default());
        let until = Instant::now() + BUSY;
        let local = tokio::task::LocalSet::new();
        for _ in 0..3 {
            let (sim, tally) = (Rc::clone(&sim), Rc::clone(&tally));
            local.spawn_local(client(sim, tally, Rng::new(rng.next_u64()), until));
        }
        for _ in 0..2 {
            let (sim, tally) = (Rc::clone(&sim), Rc::clone(&tally));
            local.spawn_local(reader(sim, tally, Rng::new(rng.next_u64()), until, kind));
        }
        local.spawn_local(nemesis(Rc::clone(&sim), Rng::new(rng.next_u64()), until, churn));
        local.await;
        let early = judge(&sim.borrow(), &tally.borrow());
        early?;
        heal(&sim, &tally).await?;
        let (sim, tally) = (sim.borrow(), tally.borrow());
        judge(&sim, &tally)?;
        let committed = tally.fates.values().filter(|fate| matches!(fate, Fate::Committed(_))).count() as u64;
        let trace = sim.witness.lock().unwrap().trace();
        Ok(Outcome { trace, committed, barriers: tally.barriers })
    })
}

#[test]
fn groups_keep_their_promises_whatever_happens() {
    let seeds = Seeds::of(env!("CARGO_MANIFEST_DIR"), "groups", "WEIR_RAFT", SEEDS);
    let (mut committed, mut barriers, mut failed) = (0, 0, Vec::new());
    for seed in seeds.all() {
        match live(*seed, World::Sound) {
            Ok(outcome) => {
                committed += outcome.committed;
                barriers += outcome.barriers;
            }
            Err(what) => {
                seeds.keep(*seed);
                failed.push(format!("seed {seed}: {what}"));
            }
        }
    }
    assert!(
        failed.is_empty(),
        "{} of {} seeds failed:\n{}",
        failed.len(),
        seeds.all().len(),
        failed.join("\n")
    );
    let count = seeds.all().len() as u64;
    assert!(
        committed > 50 * count && barriers > 20 * count,
        "{committed} commits and {barriers} barriers only"
    );
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in [1, 2, 15] {
        let (first, second) = (live(seed, World::Sound).unwrap(), live(seed, World::Sound).unwrap());
        assert_eq!(first.trace, second.trace, "seed {seed}");
    }
}

#[test]
fn acknowledging_before_the_sync_is_caught() {
    let caught = (0..12).find_map(|seed| live(seed, World::LyingDisks).err());
    let what = caught.expect("nobody noticed that the disks lie");
    assert!(
        what.contains(" is at ")
            || what.contains("another had")
            || what.contains("not start")
            || what.contains("barrier")
            || what.contains("does not work"),
        "{what}"
    );
}
