//! A plan in words.

use crate::network::{Link, Network};
use crate::plan::{FlowNote, Method, Operation, Plan, Reason, Step};
use crate::policy::{Action, Flow};
use std::fmt::Write as _;

impl Plan {
    /// The plan as lines of text: what is done for each flow and why, then every step with what it waits
    /// for and why. `flow_name` names flows.
    pub fn explain(&self, network: &Network, flow_name: &dyn Fn(Flow) -> String) -> String {
        let mut text = String::new();
        for note in &self.notes {
            let _ = writeln!(text, "flow {}: {}", flow_name(note.flow), method(note));
        }
        let _ = writeln!(
            text,
            "{} steps, at most {} one after the other, {} waits for packets to drain",
            self.steps.len(),
            self.depth(),
            self.drains()
        );
        for (at, step) in self.steps.iter().enumerate() {
            let _ = writeln!(text, "{:>4}  {}", at + 1, describe(network, step, &flow_name(step.flow)));
            for after in &step.after {
                let _ = writeln!(text, "        after {}: {}", after.step + 1, reason(network, after.reason));
            }
        }
        text
    }
}

fn method(note: &FlowNote) -> String {
    let how = match note.method {
        Method::InOrder => "rules are replaced in order".to_string(),
        Method::InOrderWithDrains => {
            "rules are replaced in order, with waits for packets to drain".to_string()
        }
        Method::OneByOne => "rules are replaced one by one, packets drain between them".to_string(),
        Method::Versions { version } => format!("two phases, new rules under version {version}"),
    };
    match &note.why {
        Some(why) => format!("{how}: {why}"),
        None => how,
    }
}

fn describe(network: &Network, step: &Step, flow: &str) -> String {
    match step.operation {
        Operation::Put { switch, version, action } => {
            let what = match action {
                Action::Forward(next) => format!("forward to {}", network.name(next)),
                Action::Deliver => "deliver".to_string(),
                Action::Drop => "drop".to_string(),
            };
            format!("{}: {what} {flow}{}", network.name(switch), of_version(version))
        }
        Operation::Remove { switch, version } => {
            format!("{}: remove the rule of {flow}{}", network.name(switch), of_version(version))
        }
        Operation::Stamp { switch, version } => {
            format!("{}: mark what enters of {flow} with version {version}", network.name(switch))
        }
        Operation::Drain => format!("wait until the packets of {flow} that entered before are gone"),
    }
}

fn of_version(version: u16) -> String {
    if version == 0 { String::new() } else { format!(", version {version}") }
}

fn reason(network: &Network, reason: Reason) -> String {
    let link = |link: Link| format!("{} to {}", network.name(link.from), network.name(link.to));
    match reason {
        Reason::BlackHole => {
            "a switch behind it on the new way has no rule before, packets would be lost".to_string()
        }
        Reason::Loop => {
            "a switch behind it on the new way sends the old way before, which may lead back".to_string()
        }
        Reason::Breach { source } => {
            format!("packets from {} would else break a rule of the policy on the way", network.name(source))
        }
        Reason::InFlight => "packets on the old way must be gone".to_string(),
        Reason::Capacity(at) => format!("the link {} has no room before", link(at)),
        Reason::KnownLoad(at) => format!("the link {} has little room, loads must come one by one", link(at)),
        Reason::VersionReady => "packets may carry a version only when every switch knows it".to_string(),
        Reason::Unused => "nobody may use the rule when it goes".to_string(),
        Reason::OneByOne => "no order of parallel steps exists".to_string(),
        Reason::Linear => "the plan is linear".to_string(),
    }
}
