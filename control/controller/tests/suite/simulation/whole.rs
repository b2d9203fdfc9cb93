//! Linear consistency, with nobody who refuses: whenever something comes into force, all events before its own are in force as a whole, and none
//! was left out. So what actuators have at every ack are the states after a prefix of whole events, and a part of the next one.

use super::*;
use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};
use weir_model::signed::ProvenUpdate;

type Node = (Label, Key);

/// The oracle.
#[derive(Default)]
pub(super) struct Whole {
    decided: BTreeMap<Version, BTreeSet<Node>>,
    /// The event that is coming into force, and what of it is not yet.
    at: Version,
    left: BTreeSet<Node>,
}

impl Whole {
    /// Updates were decided; a replay tells them again.
    pub(super) fn decide(&mut self, updates: &[Arc<ProvenUpdate>]) {
        for update in updates.iter().map(|proven| &proven.update) {
            let node = (update.target.clone(), update.key.clone());
            self.decided.entry(update.version).or_default().insert(node);
        }
    }

    /// Updates came into force, all since the last time; gives what is wrong with it.
    pub(super) fn apply(&mut self, mut applied: Vec<(Version, Node)>) -> Vec<String> {
        applied.sort();
        let mut wrong = Vec::new();
        for (version, node) in applied {
            if self.left.is_empty()
                && let Some((next, nodes)) = self.decided.range((Excluded(self.at), Unbounded)).next()
            {
                (self.at, self.left) = (*next, nodes.clone());
            }
            if self.at != version || !self.left.remove(&node) {
                let left: Vec<String> = self.left.iter().map(|(at, key)| format!("{at} {key}")).collect();
                let (at, key) = node;
                wrong.push(format!(
                    "{at} {key} is in force at {version} while {} has {left:?} to come",
                    self.at
                ));
            }
        }
        wrong
    }

    /// What never came.
    fn rest(&self) -> usize {
        self.left.len() + self.decided.range((Excluded(self.at), Unbounded)).count()
    }
}

impl Simulation {
    /// Nobody refuses anything, and the oracle looks.
    fn whole(seed: u64, mode: Mode) -> Simulation {
        let mut simulation = Simulation::new(seed, mode);
        simulation.refuses = false;
        simulation.whole = Some(Whole::default());
        simulation
    }
}

#[test]
fn at_every_ack_the_states_are_a_prefix_of_whole_events() {
    Seeds::of(env!("CARGO_MANIFEST_DIR"), "whole", "WEIR_SIM", 120).each(|seed| {
        let mut simulation = Simulation::whole(seed, Mode::Linear);
        (0..400).for_each(|_| simulation.step());
        simulation.heal();
        simulation.check_converged();
        let rest = simulation.whole.as_ref().unwrap().rest();
        let (violations, counters) = (&simulation.violations, simulation.core.scheduler().counters);
        assert!(violations.is_empty(), "{:#?}", &violations[..violations.len().min(5)]);
        assert_eq!((rest, counters.line_cut, counters.line_given_up), (0, 0, 0));
    });
}

#[test]
fn the_oracle_of_whole_events_catches_other_modes() {
    for mode in [Mode::Dependent, Mode::None] {
        let caught = (0..20).filter(|seed| {
            let mut simulation = Simulation::whole(*seed, mode);
            (0..400).for_each(|_| simulation.step());
            simulation.violations.iter().any(|violation| violation.contains("to come"))
        });
        assert!(caught.count() > 10, "{mode:?}: the oracle misses events that are not whole");
    }
}
