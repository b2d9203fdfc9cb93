//! A plan: steps, and for each the steps that must come first, with reasons.

use crate::network::{Link, Switch};
use crate::policy::{Action, Flow, Versions};
use std::collections::BTreeSet;

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// Puts the flow's rule of a version into a switch.
    Put {
        /// The switch.
        switch: Switch,
        /// Version of packets that it is for.
        version: u16,
        /// The rule.
        action: Action,
    },
    /// Removes the flow's rule of a version from a switch.
    Remove {
        /// The switch.
        switch: Switch,
        /// Version of packets that it was for.
        version: u16,
    },
    /// Has a source mark the packets of the flow that enter there with a version.
    Stamp {
        /// The source.
        switch: Switch,
        /// The version.
        version: u16,
    },
    /// Waits until all packets of the flow are gone that entered before: no switch does anything.
    Drain,
}

impl Operation {
    /// The switch that does it.
    pub fn switch(self) -> Option<Switch> {
        match self {
            Operation::Put { switch, .. }
            | Operation::Remove { switch, .. }
            | Operation::Stamp { switch, .. } => Some(switch),
            Operation::Drain => None,
        }
    }
}

/// Why a step waits for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// A switch behind it on the new way has no rule yet: packets would be lost there.
    BlackHole,
    /// A switch behind it on the new way still sends the old way, which may lead back.
    Loop,
    /// Packets that come the old way would go around a waypoint, through a switch that they must avoid, or
    /// arrive where they must not.
    Breach {
        /// Where these packets enter.
        source: Switch,
    },
    /// Packets on the old way must be gone.
    InFlight,
    /// The link has no room before that flow has left it.
    Capacity(Link),
    /// The link has so little room that the flow's loads must come one after the other.
    KnownLoad(Link),
    /// Packets may carry a version only when every switch knows it.
    VersionReady,
    /// Nobody may use a rule any more when it goes.
    Unused,
    /// One step at a time: no order of parallel steps exists.
    OneByOne,
    /// The plan is linear, by its mode.
    Linear,
}

/// A step that must be acknowledged first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct After {
    /// Its place in the plan.
    pub step: usize,
    /// Why.
    pub reason: Reason,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The flow.
    pub flow: Flow,
    /// What it does.
    pub operation: Operation,
    /// What must come first.
    pub after: Vec<After>,
}

/// How a flow is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Method {
    /// Rules are replaced, the switches nearest to the destination first.
    InOrder,
    /// The same, and between some steps packets must drain.
    InOrderWithDrains,
    /// Rules are replaced one by one in an order that a search found, and packets drain between them.
    OneByOne,
    /// Rules of a new version are put beside the old ones, then the sources switch over.
    Versions {
        /// The new version.
        version: u16,
    },
}

/// What was done for a flow, and why not something simpler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowNote {
    /// The flow.
    pub flow: Flow,
    /// How it is changed.
    pub method: Method,
    /// Why not in order, for any other method.
    pub why: Option<String>,
}

/// A change's steps and their partial order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The steps: each after all that it waits for.
    pub steps: Vec<Step>,
    /// One for each flow that changes.
    pub notes: Vec<FlowNote>,
    /// Versions in force when the plan is done.
    pub versions: Versions,
    /// Links with a capacity whose load the plan changes on the way or in the end.
    pub links: BTreeSet<Link>,
}

/// How much of a plan's order is kept (rows R1, R2, R3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// None of it: all steps at once. A baseline, unsafe.
    None,
    /// One step at a time.
    Linear,
    /// What the plan says; all else in parallel.
    #[default]
    Dependent,
}

impl Plan {
    /// The plan under a mode. Without order there is nothing that a drain could wait for, so drains go too.
    pub fn with_mode(mut self, mode: Mode) -> Plan {
        match mode {
            Mode::Dependent => {}
            Mode::None => {
                self.steps.retain(|step| step.operation != Operation::Drain);
                self.steps.iter_mut().for_each(|step| step.after.clear());
            }
            Mode::Linear => {
                for (at, step) in self.steps.iter_mut().enumerate().skip(1) {
                    step.after = vec![After { step: at - 1, reason: Reason::Linear }];
                }
            }
        }
        self
    }

    /// The longest chain of steps: how many must be acknowledged one after the other.
    pub fn depth(&self) -> usize {
        let mut depths: Vec<usize> = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            depths.push(1 + step.after.iter().map(|after| depths[after.step]).max().unwrap_or(0));
        }
        depths.into_iter().max().unwrap_or(0)
    }

    /// How many drains it has.
    pub fn drains(&self) -> usize {
        self.steps.iter().filter(|step| step.operation == Operation::Drain).count()
    }
}
