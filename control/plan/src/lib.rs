//! Plans of network changes: in which order the switches may be updated so that no packet suffers on the
//! way (RoSCo and Cicero: rows R1, R2, R3, C1, C2; Figs 2.2, 3.1 to 3.4).
//!
//! A change leads from one [`Policy`] to another on a [`Network`]. A [`Plan`] has the steps of the change
//! and, for each, the steps that must be acknowledged first and why. Whatever the order in which switches
//! apply what the plan allows at once, and wherever packets are meanwhile:
//! - no packet loops;
//! - no packet of a source that is served before and after is lost (no black hole);
//! - no packet that is delivered went around its waypoints, and none passes a switch that it must avoid,
//!   by the old policy's rules or by the new one's; none is delivered that neither policy delivers;
//! - no link carries more than its capacity, or than it carried before, in any state of the switches.
//!
//! - [`plan`] finds such a plan, and says what it did and why ([`Plan::explain`]).
//! - [`check`] explores, independently of the planner, every interleaving of a small plan and samples of a
//!   large one.
//! - [`Mode`] makes a plan linear or takes its order away; [`Planner`] is where another analysis is plugged
//!   in: [`ReversePath`] is Cicero's own.
//! - [`Rollout`] releases the steps of several changes, each switch in order across them.
//!
//! Known limit: capacities are checked for states, as in Cicero; what is in flight on an old way when
//! another flow arrives is left to the buffers.

mod analysis;
mod checker;
pub mod document;
mod explain;
mod network;
mod plan;
mod policy;
pub mod random;
mod rollout;
#[cfg(test)]
mod samples;
pub mod topology;
mod updates;
#[cfg(test)]
mod zoo;

pub use analysis::{Analysed, PlanError, Planner, ReversePath, Settings, plan};
pub use checker::{CheckSettings, Checked, Finding, Violation, check};
pub use network::{Link, LinkState, Network, Switch};
pub use plan::{After, FlowNote, Method, Mode, Operation, Plan, Reason, Step};
pub use policy::{Action, Flow, FlowPolicy, Policy, Versions};
pub use rollout::{Released, Rollout, RolloutSettings};
pub use updates::NeedsDrains;

/// A change to plan: from one policy to another.
#[derive(Clone, Debug)]
pub struct Change {
    /// The network.
    pub network: Network,
    /// What is in force.
    pub old: Policy,
    /// What shall be.
    pub new: Policy,
    /// Under which version each flow's rules are in force; 0 when it is not named.
    pub versions: Versions,
}
