//! A plan in human words, for a dry run (pain 4: a plan is shown before it is applied).

use std::collections::BTreeMap;
use std::fmt;
use weir_model::{Change, Key, Label, Plan};

/// Puts and deletes of one kind of entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Entries put.
    pub put: usize,
    /// Entries deleted.
    pub delete: usize,
}

/// Which actuators a plan touches, and with what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanSummary {
    /// For each actuator and kind of entries, such as `ports`, how many.
    pub actuators: BTreeMap<Label, BTreeMap<&'static str, Counts>>,
    /// All updates.
    pub updates: usize,
    /// Updates that wait for another.
    pub waiting: usize,
}

/// Sums up a plan.
pub fn plan_summary(plan: &Plan) -> PlanSummary {
    let mut summary = PlanSummary { updates: plan.updates.len(), ..PlanSummary::default() };
    for planned in &plan.updates {
        let kinds = summary.actuators.entry(planned.update.target.clone()).or_default();
        let counts = kinds.entry(kind(&planned.update.key)).or_default();
        match planned.update.change {
            Change::Put(_) => counts.put += 1,
            Change::Delete => counts.delete += 1,
        }
        summary.waiting += usize::from(!planned.after.is_empty());
    }
    summary
}

fn kind(key: &Key) -> &'static str {
    match key {
        Key::Gateways => "gateway lists",
        Key::Network { .. } => "networks",
        Key::Policy { .. } => "policies",
        Key::Members { .. } => "member lists",
        Key::Route { .. } => "routes",
        Key::Port { .. } => "ports",
        Key::Location { .. } => "locations",
        Key::Repair { .. } => "repairs",
        Key::FileWall { .. } => "policies of FileWalls",
        Key::Sought { .. } => "questions for endpoints",
        Key::Virtual { .. } => "virtual addresses",
        Key::Turn { .. } => "turns",
        Key::Statement { .. } => "statements to other domains",
        Key::Controllers => "lists of controllers",
        Key::Switches { .. } => "lists of switches",
        Key::Underlays => "other underlays",
        Key::Plane { .. } => "orders of planes",
    }
}

impl fmt::Display for PlanSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.updates == 0 {
            return f.write_str("no switch changes");
        }
        let (updates, actuators) = (self.updates, self.actuators.len());
        writeln!(
            f,
            "{updates} updates at {actuators} switches, {} of them ordered after another",
            self.waiting
        )?;
        for (actuator, kinds) in &self.actuators {
            let kinds: Vec<String> = kinds
                .iter()
                .map(|(kind, counts)| match (counts.put, counts.delete) {
                    (put, 0) => format!("{kind} +{put}"),
                    (0, delete) => format!("{kind} -{delete}"),
                    (put, delete) => format!("{kind} +{put} -{delete}"),
                })
                .collect();
            writeln!(f, "  {actuator}: {}", kinds.join(", "))?;
        }
        Ok(())
    }
}
