//! Telling the other controllers of one whose session was ended for what came on it ([`super::super::told`]).

use super::{Driver, Input, One};
use crate::join;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use weir_base::numbers::Numbers;
use weir_base::world::RealDisk;
use weir_model::Label;
use weir_model::event::{Event, EventBody, SignedEvent, SourceId};
use weir_model::group::{AGENT, ConductReport};
use weir_model::session::ToController;
use weir_trust::identity::sign_event;

/// File of the numbers under which the agent reports, in the state directory.
const NUMBERS: &str = "agent.numbers";
/// Numbers that are reserved at once.
const NUMBERS_STEP: u64 = 64;

impl Driver {
    /// Tells what is due to every other controller that there is a session with.
    pub(super) fn tell_conduct(&mut self) {
        let now_ms = self.started.elapsed().as_millis() as u64;
        let Some(report) = self.told.due(now_ms, &self.shared.actuator) else { return };
        let controller = report.controller.clone();
        let is_other = |one: &&One| one.session.established() && one.address != controller;
        let others: Vec<u64> = self.sessions.iter().filter(is_other).map(|one| one.number).collect();
        if others.is_empty() {
            return;
        }
        self.told.told(now_ms, &controller);
        self.shared.metrics.session_conduct_reports.count();
        match self.sign_conduct(report) {
            Ok(event) => {
                tracing::warn!(controller, "the other controllers are told what it sends");
                for number in others {
                    self.step(number, Input::Say(Box::new(ToController::Event(event.clone()))));
                }
            }
            Err(why) => tracing::warn!(controller, why, "the other controllers are not told what it sends"),
        }
    }

    fn sign_conduct(&mut self, report: ConductReport) -> Result<SignedEvent, String> {
        let state_dir = &self.plan.state_dir;
        let words = |error: &dyn std::fmt::Display| error.to_string();
        let member = join::membership(state_dir).map_err(|error| words(&error))?;
        let member = member.ok_or("this host is no member of a domain")?;
        let key = join::identity(state_dir).map_err(|error| words(&error))?;
        if self.numbers.is_none() {
            let disk = RealDisk::open(state_dir).map_err(|error| words(&error))?;
            // Without its file the numbers go on from the clock.
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
            let numbers = Numbers::open(Arc::new(disk), NUMBERS, NUMBERS_STEP, since);
            self.numbers = Some(numbers.map_err(|error| words(&error))?);
        }
        let numbers = self.numbers.as_mut().ok_or("there are no numbers")?;
        let sequence = numbers.take().map_err(|error| words(&error))?;
        let agent = Label::new(AGENT).map_err(|error| words(&error))?;
        let source = SourceId::of_plane(&self.shared.actuator, &agent);
        let event = Event { source, sequence, body: EventBody::Conduct(report) };
        Ok(sign_event(&key, &member.domain, event, None))
    }
}
