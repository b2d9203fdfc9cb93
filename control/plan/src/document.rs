//! A change as a person writes it: names instead of numbers.
//!
//! ```yaml
//! links: ["s1 s2 10000", "s2 s3"]     # switch switch [capacity in kbit/s], each both ways
//! failed: ["s2 s3"]
//! flows:
//!   web:
//!     version: 0                       # of the rules in force
//!     sources: { s1: 8000 }            # kbit/s
//!     old: { rules: { s1: s2, s2: deliver }, waypoints: [s2], avoid: [] }
//!     new: { rules: { s1: drop } }
//! ```
//! A rule is the neighbour to send to, `deliver` or `drop`. A flow without `old` is new, one without `new`
//! is deleted.

use crate::network::{Network, Switch};
use crate::policy::{Action, Flow, FlowPolicy, Policy};
use crate::topology::{self, TopologyError};
use crate::{Change, Versions};
use serde::Deserialize;
use std::collections::BTreeMap;

/// A change, as written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// The links: `switch switch [capacity in kbit/s]`.
    pub links: Vec<String>,
    /// Links that have failed: `switch switch`.
    #[serde(default)]
    pub failed: Vec<String>,
    /// The flows, by name.
    pub flows: BTreeMap<String, FlowDocument>,
}

/// One flow of a change.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowDocument {
    /// Version that its rules are in force under.
    #[serde(default)]
    pub version: u16,
    /// Where packets enter, and how much, kbit/s.
    #[serde(default)]
    pub sources: BTreeMap<String, u64>,
    /// What is in force.
    pub old: Option<PolicyDocument>,
    /// What shall be.
    pub new: Option<PolicyDocument>,
}

/// A flow under a policy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyDocument {
    /// For each switch a neighbour, `deliver` or `drop`.
    pub rules: BTreeMap<String, String>,
    /// Switches that packets must pass.
    #[serde(default)]
    pub waypoints: Vec<String>,
    /// Switches that packets may not pass.
    #[serde(default)]
    pub avoid: Vec<String>,
}

/// Why a document is no change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// The links are not as they should be.
    #[error("links: {0}")]
    Links(#[from] TopologyError),
    /// A name is no switch.
    #[error("{place}: '{name}' is no switch of any link")]
    NoSwitch {
        /// Where it says so.
        place: String,
        /// The name.
        name: String,
    },
    /// A failed link is not `switch switch`.
    #[error("failed: '{0}' is not 'switch switch'")]
    Failed(String),
    /// A flow has neither an old nor a new policy.
    #[error("flow {0}: it has neither 'old' nor 'new'")]
    NoPolicy(String),
}

impl Document {
    /// The change, and the flows' names by number.
    ///
    /// # Errors
    /// [`DocumentError`].
    pub fn change(&self) -> Result<(Change, Vec<String>), DocumentError> {
        let mut network = topology::parse(&self.links.join("\n"))?;
        for link in &self.failed {
            let words: Vec<&str> = link.split_whitespace().collect();
            let [one, other] = words[..] else { return Err(DocumentError::Failed(link.clone())) };
            let (one, other) = (switch(&network, "failed", one)?, switch(&network, "failed", other)?);
            network.fail_link(one, other);
        }
        let (mut old, mut new, mut versions) = (Policy::default(), Policy::default(), Versions::new());
        for (number, (name, flow)) in (0..).map(Flow).zip(&self.flows) {
            if flow.old.is_none() && flow.new.is_none() {
                return Err(DocumentError::NoPolicy(name.clone()));
            }
            versions.insert(number, flow.version);
            for (policy, given) in [(&mut old, &flow.old), (&mut new, &flow.new)] {
                if let Some(given) = given {
                    policy.flows.insert(number, flow_policy(&network, name, flow, given)?);
                }
            }
        }
        Ok((Change { network, old, new, versions }, self.flows.keys().cloned().collect()))
    }
}

fn switch(network: &Network, place: &str, name: &str) -> Result<Switch, DocumentError> {
    let unknown = || DocumentError::NoSwitch { place: place.to_string(), name: name.to_string() };
    network.find(name).ok_or_else(unknown)
}

fn flow_policy(
    network: &Network,
    name: &str,
    flow: &FlowDocument,
    given: &PolicyDocument,
) -> Result<FlowPolicy, DocumentError> {
    let place = format!("flow {name}");
    let mut policy = FlowPolicy::default();
    for (at, action) in &given.rules {
        let action = match action.as_str() {
            "deliver" => Action::Deliver,
            "drop" => Action::Drop,
            next => Action::Forward(switch(network, &place, next)?),
        };
        policy.rules.insert(switch(network, &place, at)?, action);
    }
    for (source, rate_kbps) in &flow.sources {
        policy.sources.insert(switch(network, &place, source)?, *rate_kbps);
    }
    for (set, names) in [(&mut policy.waypoints, &given.waypoints), (&mut policy.avoid, &given.avoid)] {
        for name in names {
            set.insert(switch(network, &place, name)?);
        }
    }
    Ok(policy)
}

#[cfg(test)]
mod tests;
