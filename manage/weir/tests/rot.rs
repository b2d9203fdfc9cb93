//! A controller whose state rots in memory is found out by the digests of the others, serves nothing, is given their state, and
//! serves again; in a group that survives crashes and in one that survives lies.

use crate::group::{Writer, leader, same_state, wait_whole};
use crate::lab::{Lab, byzantine_lab, group_lab};
use crate::namespaces::wait;
use weir_api::client::{Client, Context};

/// A counter of a controller.
fn counter(lab: &Lab, controller: &str, name: &str) -> Option<u64> {
    let client = Client::new(Context { others: vec![], ..lab.context_of(controller) }).unwrap();
    let metrics = client.metrics().ok()?;
    metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

const DIVERGENCES: &str = "weir_controller_log_total{what=\"divergences\"}";
const REPAIRS: &str = "weir_controller_log_total{what=\"repairs\"}";
const FENCED: &str = "weir_controller_fenced";

/// The state of `victim` rots while writes go on.
fn rots(lab: &Lab, victim: &str) {
    let mut before = (0, 0);
    wait(&format!("the counters of {victim}"), || {
        let found = counter(lab, victim, DIVERGENCES).zip(counter(lab, victim, REPAIRS));
        before = found.unwrap_or_default();
        found.is_some()
    });
    std::fs::write(lab.folder().join(victim).join("state/rot-state"), "").unwrap();
    wait(&format!("{victim} to be fenced"), || {
        counter(lab, victim, DIVERGENCES).is_some_and(|count| count > before.0)
    });
    wait(&format!("{victim} to be repaired"), || {
        counter(lab, victim, REPAIRS).is_some_and(|count| count > before.1)
            && counter(lab, victim, FENCED) == Some(0)
    });
}

fn scenario(lab: &Lab, name: &str) {
    if !cfg!(debug_assertions) {
        println!("NOT RUN {name}: this build has no way to let a state rot");
        return;
    }
    wait_whole(lab);
    let writer = Writer::begin(lab, name);
    // One that follows, then the one that leads.
    let first = leader(lab, "");
    let follower = lab.controllers().iter().copied().find(|one| *one != first).unwrap();
    rots(lab, follower);
    writer.goes_on();
    wait_whole(lab);
    let first = leader(lab, "");
    rots(lab, &first);
    writer.goes_on();
    wait_whole(lab);
    writer.ends();
    same_state(lab);
    let log = std::fs::read_to_string(lab.log(follower)).unwrap();
    assert!(log.contains("fenced") && log.contains("repaired"), "the log says so");
}

#[test]
fn a_rotten_state_is_fenced_and_repaired_where_some_may_crash() {
    let Some(lab) = group_lab("rot_raft") else { return };
    scenario(&lab, "rot-raft");
}

#[test]
fn a_rotten_state_is_fenced_and_repaired_where_some_may_lie() {
    let Some(lab) = byzantine_lab("rot_bft") else { return };
    scenario(&lab, "rot-bft");
}
