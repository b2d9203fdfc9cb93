//! What the controllers are told of one of them whose session was ended for what came on it. Pure: who signs and sends is the driver.
//!
//! It is this host's word: the others show it, and decide nothing by it. Who floods again and again costs one report in [`EACH_MS`].

use std::collections::BTreeMap;
use weir_model::Label;
use weir_model::group::{BadConduct, CONTROLLER_BYTES_MAX, ConductReport};
use weir_model::session::CONTROLLERS_MAX;

/// A controller is reported once in so long, milliseconds: less often than the controllers take it.
pub const EACH_MS: u64 = 60_000;
/// Controllers of which something is remembered. Those of a group that changes are more than it has at once.
const REMEMBERED_MAX: usize = 2 * CONTROLLERS_MAX;

/// What a session said of its controller's conduct when it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// What came.
    pub what: BadConduct,
    /// Sessions with it that ended so.
    pub ended: u64,
    /// Forgeries that came on them.
    pub forgeries: u64,
}

#[derive(Debug, Default)]
struct About {
    waits: Option<Ended>,
    told_ms: Option<u64>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Told {
    about: BTreeMap<String, About>,
    /// Reports that were told.
    pub reports: u64,
}

impl Told {
    /// A session ended. What was not told yet of the same controller is told by this.
    pub fn ended(&mut self, controller: &str, ended: Ended) {
        if controller.len() > CONTROLLER_BYTES_MAX {
            return;
        }
        if !self.about.contains_key(controller) && self.about.len() >= REMEMBERED_MAX {
            let quiet = self.about.iter().filter(|(_, about)| about.waits.is_none());
            let oldest = quiet.min_by_key(|(_, about)| about.told_ms).map(|(name, _)| name.clone());
            match oldest {
                Some(name) => drop(self.about.remove(&name)),
                None => return,
            }
        }
        self.about.entry(controller.to_owned()).or_default().waits = Some(ended);
    }

    /// The next report that is due.
    pub fn due(&self, now_ms: u64, actuator: &Label) -> Option<ConductReport> {
        let is_due = |about: &About| about.told_ms.is_none_or(|told_ms| now_ms >= told_ms + EACH_MS);
        let (controller, about) =
            self.about.iter().find(|(_, about)| about.waits.is_some() && is_due(about))?;
        let Ended { what, ended, forgeries } = about.waits?;
        let controller = controller.clone();
        Some(ConductReport { actuator: actuator.clone(), controller, what, ended, forgeries })
    }

    /// It was told to others.
    pub fn told(&mut self, now_ms: u64, controller: &str) {
        if let Some(about) = self.about.get_mut(controller) {
            (about.waits, about.told_ms) = (None, Some(now_ms));
            self.reports += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controller_is_reported_once_in_a_while_by_what_ended_last_and_few_are_remembered() {
        let (h1, mut told) = (Label::new("h1").unwrap(), Told::default());
        let ended = |count| Ended { what: BadConduct::Forgeries, ended: count, forgeries: 17 * count };
        assert_eq!(told.due(0, &h1), None);
        told.ended("a:1", ended(1));
        let report = told.due(5, &h1).unwrap();
        assert_eq!((report.controller.as_str(), report.ended, report.forgeries), ("a:1", 1, 17));
        assert_eq!(told.due(6, &h1).as_ref(), Some(&report), "until somebody was told");
        told.told(6, "a:1");
        told.ended("a:1", ended(2));
        told.ended("a:1", ended(3));
        assert_eq!(told.due(5 + EACH_MS, &h1), None);
        assert_eq!(told.due(6 + EACH_MS, &h1).unwrap().ended, 3);
        told.told(6 + EACH_MS, "a:1");
        assert_eq!(told.due(u64::MAX, &h1), None);
        (0..100).for_each(|number| told.ended(&format!("b:{number}"), ended(1)));
        assert_eq!(told.about.len(), REMEMBERED_MAX);
        assert!(!told.about.contains_key("a:1"), "who is quiet makes room");
    }
}
