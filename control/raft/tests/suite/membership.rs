//! Changes of the group, planned moves of its leader, and state transfer to who was away too long.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use weir_order::Engine;
use weir_raft::{Change, Error, ReadKind, Replica, Role};

use super::sim::{Fate, Options, Sim, barrier, commit_all, propose, run};

async fn fill(sim: &Sim, ids: std::ops::Range<u64>) -> Replica {
    commit_all(sim, ids, 300).await
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < end, "never: {what}");
        sleep(Duration::from_millis(10)).await;
    }
}

fn applied(sim: &Sim, id: u64) -> u64 {
    sim.machines[&id].app.lock().unwrap().at.index
}

#[test]
fn a_replica_joins_learns_votes_and_leaves() {
    run(41, async || {
        let mut options = Options::of(4);
        options.founders = 3;
        let mut sim = Sim::new(41, options);
        sim.found().await;
        let leader = fill(&sim, 1..50).await;
        let id = leader.replica_status().id;
        let add = Change::AddLearner { id: 4, address: "at 4".to_owned() };

        let follower = sim.replica(id % 3 + 1).unwrap();
        let error = follower.change(add.clone()).await.unwrap_err();
        assert!(matches!(error, Error::NotLeader { leader: Some(named) } if named == id), "{error}");
        let error = leader.change(Change::Promote { id: 4 }).await.unwrap_err();
        assert!(error.to_string().contains("is no learner"), "{error}");
        let error = leader.initialize([(1, String::new())].into()).await.unwrap_err();
        assert!(matches!(error, Error::Exists), "{error}");

        leader.change(add.clone()).await.unwrap();
        let error = leader.change(add).await.unwrap_err();
        assert!(error.to_string().contains("a member already, at at 4"), "{error}");
        until("the learner has everything", || applied(&sim, 4) == 49).await;
        assert_eq!(sim.replica(4).unwrap().replica_status().role, Role::Learner);
        until("the leader knows", || leader.replica_status().lag[&4].entries == 0).await;
        leader.change(Change::Promote { id: 4 }).await.unwrap();
        assert_eq!(leader.replica_status().voters.len(), 4);
        leader.change(Change::Remove { id: id % 3 + 1 }).await.unwrap();
        let status = leader.replica_status();
        assert!(status.voters.len() == 3 && !status.voters.contains_key(&(id % 3 + 1)), "{status:?}");
        assert!(matches!(propose(&leader, 50, 8).await, Fate::Committed(_)));
    });
}

#[test]
fn two_changes_at_once_are_one_too_many() {
    run(42, async || {
        let mut options = Options::of(5);
        options.founders = 3;
        let mut sim = Sim::new(42, options);
        sim.found().await;
        let leader = fill(&sim, 1..5).await;
        let add = |id| leader.change(Change::AddLearner { id, address: format!("at {id}") });
        let (first, second) = tokio::join!(add(4), add(5));
        assert!(first.is_ok(), "{first:?}");
        assert!(matches!(second, Err(Error::Busy)), "{second:?}");
        add(5).await.unwrap();
    });
}

#[test]
fn leadership_moves_without_a_lost_batch() {
    run(43, async || {
        let mut sim = Sim::new(43, Options::of(3));
        sim.found().await;
        let leader = fill(&sim, 1..30).await;
        let before = leader.replica_status().id;
        let to = before % 3 + 1;
        leader.transfer_leadership(Some(to)).await.unwrap();
        until("the chosen one leads", || sim.leader_now() == Some(to)).await;
        let error = leader.transfer_leadership(None).await.unwrap_err();
        assert!(matches!(error, Error::NotLeader { leader: Some(named) } if named == to), "{error}");
        let refused =
            leader.propose(bytes::Bytes::from_static(b"12345678"), weir_order::Completion::new(|_| ()));
        assert!(matches!(refused, Err(weir_order::Error::NotLeader { leader: Some(named) }) if named == to));
        fill(&sim, 30..40).await;
        let position = barrier(&sim.replica(to).unwrap(), ReadKind::Index).await.unwrap();
        assert_eq!(position.index, 39);
    });
}

#[test]
fn who_was_away_gets_a_state_in_chunks_that_go_on_after_a_break() {
    run(44, async || {
        let mut sim = Sim::new(44, Options::of(3));
        sim.found().await;
        let leader = fill(&sim, 1..10).await;
        let id = leader.replica_status().id;
        let away = id % 3 + 1;
        sim.crash(away, true);
        for round in 1..=3 {
            fill(&sim, round * 1000..round * 1000 + 400).await;
            sim.snapshot(id);
        }
        until("the log is purged", || leader.replica_status().purged_log_index.is_some()).await;
        // What is sent must be the same before and after the break.
        until("the last state is kept", || {
            leader.replica_status().snapshot.is_some_and(|at| at.index == 1209)
        })
        .await;
        // A try that waits for its time has an older state in hand.
        sleep(Duration::from_secs(20)).await;
        sim.start(away).unwrap();
        // About 10 KiB in chunks of 1 KiB: the receiver loses its power in the midst.
        until("chunks are sent", || leader.counters().network.chunks_sent >= 4).await;
        sim.crash(away, false);
        sim.start(away).unwrap();
        until("it has everything", || applied(&sim, away) == 1209).await;
        assert!(leader.counters().network.transfers_resumed >= 1, "{:?}", leader.counters());
        assert_eq!(sim.machines[&away].app.lock().unwrap().installs, 1);
        let replica = sim.replica(away).unwrap();
        assert_eq!(replica.replica_status().snapshot.unwrap().index, 1209);
        // And it starts from that state again.
        sim.crash(away, true);
        sim.start(away).unwrap();
        until("it has everything again", || applied(&sim, away) == 1209).await;
        assert!(sim.witness.lock().unwrap().violations.is_empty());
    });
}

#[test]
fn a_replica_that_lost_its_disk_is_filled_again() {
    run(45, async || {
        let mut sim = Sim::new(45, Options::of(3));
        sim.found().await;
        let leader = fill(&sim, 1..300).await;
        let id = leader.replica_status().id;
        for round in 0..2 {
            sim.snapshot(id);
            fill(&sim, 1000 * (round + 1)..1000 * (round + 1) + 50).await;
        }
        let lost = id % 3 + 1;
        sim.crash(lost, true);
        // A new disk under an old number could vote twice: it comes as a learner first.
        leader.change(Change::Remove { id: lost }).await.unwrap();
        sim.machines.get_mut(&lost).unwrap().disk = weir_base::world::SimDisk::new(7);
        sim.start(lost).unwrap();
        leader.change(Change::AddLearner { id: lost, address: format!("at {lost}") }).await.unwrap();
        until("it has everything", || applied(&sim, lost) == 399).await;
        leader.change(Change::Promote { id: lost }).await.unwrap();
        assert_eq!(leader.replica_status().voters.len(), 3);
    });
}

#[test]
fn waiting_reads_share_one_check() {
    run(46, async || {
        let mut sim = Sim::new(46, Options::of(3));
        sim.found().await;
        let leader = fill(&sim, 1..5).await;
        let (before, appends) = (leader.counters(), leader.log_counters().appends);
        let reads = futures_util::future::join_all((0..500).map(|_| barrier(&leader, ReadKind::Index))).await;
        assert!(reads.into_iter().all(|position| position.unwrap().index == 4));
        let after = leader.counters();
        assert_eq!(after.reads - before.reads, 500);
        assert!(after.read_checks - before.read_checks <= 4, "{after:?}");
        assert_eq!(leader.log_counters().appends, appends, "a read writes nothing");
    });
}

#[test]
fn a_spare_has_no_vote_until_it_takes_the_place_of_one_that_is_gone() {
    run(47, async || {
        let mut options = Options::of(4);
        options.founders = 3;
        let mut sim = Sim::new(47, options);
        sim.found().await;
        let leader = fill(&sim, 1..50).await;
        let id = leader.replica_status().id;
        let gone = id % 3 + 1;
        leader.set_spares(Some([4].into()));
        leader.change(Change::AddLearner { id: 4, address: "at 4".to_owned() }).await.unwrap();
        until("the spare has everything", || applied(&sim, 4) == 49).await;
        sim.crash(gone, true);
        sleep(Duration::from_secs(5)).await;
        let status = leader.replica_status();
        assert!(!status.voters.contains_key(&4) && status.voters.contains_key(&gone), "{status:?}");
        let not_a_voter = leader.change(Change::Replace { out: 4, id: 4 }).await.unwrap_err();
        assert!(not_a_voter.to_string().contains("has no vote"), "{not_a_voter}");
        leader.change(Change::Replace { out: gone, id: 4 }).await.unwrap();
        let status = leader.replica_status();
        assert!(status.voters.len() == 3 && status.voters.contains_key(&4), "{status:?}");
        assert!(!status.voters.contains_key(&gone) && !status.learners.contains_key(&gone), "{status:?}");
        // It votes: with another one gone the two go on.
        let other = (1..=3).find(|other| *other != id && *other != gone).unwrap();
        sim.crash(other, true);
        assert!(matches!(propose(&leader, 50, 8).await, Fate::Committed(_)));
    });
}

#[test]
fn learners_that_are_to_vote_get_their_votes_and_spares_do_not() {
    run(48, async || {
        let mut options = Options::of(5);
        options.founders = 3;
        options.promotes = true;
        let mut sim = Sim::new(48, options);
        sim.found().await;
        let leader = fill(&sim, 1..50).await;
        leader.set_spares(None);
        for id in [4, 5] {
            leader.change(Change::AddLearner { id, address: format!("at {id}") }).await.unwrap();
        }
        until("both have everything", || applied(&sim, 4) == 49 && applied(&sim, 5) == 49).await;
        sleep(Duration::from_secs(5)).await;
        assert_eq!(
            leader.replica_status().learners.len(),
            2,
            "before it is known which are spares, none votes"
        );
        leader.set_spares(Some([5].into()));
        until("one votes", || leader.replica_status().voters.contains_key(&4)).await;
        sleep(Duration::from_secs(5)).await;
        assert!(leader.replica_status().learners.contains_key(&5));
    });
}
