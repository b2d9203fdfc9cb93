//! What the switches shall do with each flow.

use crate::network::Switch;
use std::collections::{BTreeMap, BTreeSet};

/// A flow: packets that switches treat alike, such as all to one destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow(pub u32);

/// What a switch does with a packet of a flow. A packet that finds no rule is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Sends it to a neighbour.
    Forward(Switch),
    /// Hands it to its destination.
    Deliver,
    /// Drops it because it shall not pass.
    Drop,
}

/// One flow under a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowPolicy {
    /// The rule of each switch that has one.
    pub rules: BTreeMap<Switch, Action>,
    /// Where packets enter, and how much, kbit/s. While a policy replaces another, every source of either
    /// counts as sending, at the higher of its two rates.
    pub sources: BTreeMap<Switch, u64>,
    /// Switches that every delivered packet must have passed, such as a firewall.
    pub waypoints: BTreeSet<Switch>,
    /// Switches that no packet may pass.
    pub avoid: BTreeSet<Switch>,
}

/// What the switches shall do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// The flows.
    pub flows: BTreeMap<Flow, FlowPolicy>,
}

/// Under which version the rules of each flow are in force; 0 for flows that are not named.
pub type Versions = BTreeMap<Flow, u16>;
