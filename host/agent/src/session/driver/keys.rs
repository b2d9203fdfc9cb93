//! Carrying out a change of keys: which controller is asked for the next step, and what its answers lead to. [`Rotation`] says what the step is.
//!
//! The controller that took a step, or began the change, is asked for the next one; in a group over raft that is the one that leads. One that
//! refuses or says nothing is not asked again before the others were.

use super::super::rotation::{Rotation, Step};
use super::{Driver, Input, One};
use crate::AgentError;
use std::time::{Instant, SystemTime};
use weir_model::local::ToSwitch;
use weir_model::session::ToActuator;

impl Driver {
    pub(super) fn changes_keys(&self) -> bool {
        self.rotation.as_ref().is_some_and(Rotation::is_open)
    }

    /// Does the next step of a change of keys, if one is under way.
    pub(super) fn rotate(&mut self) {
        let established = |one: &&One| one.session.established();
        let there: Vec<u64> = self.sessions.iter().filter(established).map(|one| one.number).collect();
        let anew = there.iter().any(|number| *number >= self.anew_from);
        let Some(rotation) = self.rotation.as_mut().filter(|_| !there.is_empty()) else { return };
        match rotation.step(Instant::now(), anew) {
            Ok(Step::Wait) => {}
            Ok(Step::TellSwitch) => {
                // A switch that does not take frames now is told again.
                if let Some(switch) = &self.switch {
                    let _later = switch.try_send(ToSwitch::ReadIdentity);
                }
            }
            Ok(Step::Say(frame)) => {
                let takes = self.takes_changes.take();
                let whom = there.iter().rev().find(|number| {
                    let mut one = self.sessions.iter().filter(|one| one.number == **number);
                    one.any(|one| Some(&one.address) == takes.as_ref())
                });
                let whom = whom.copied().unwrap_or_else(|| {
                    self.turn += 1;
                    there[self.turn % there.len()]
                });
                self.step(whom, Input::Say(frame));
            }
            Err(error) => tracing::warn!(%error, "the keys cannot be changed"),
        }
    }

    pub(super) fn hear_of_keys(&mut self, frame: ToActuator) -> Result<(), AgentError> {
        let Some(rotation) = &mut self.rotation else { return Ok(()) };
        match frame {
            ToActuator::RotateKeys => {
                tracing::info!("this actuator changes its keys");
                rotation.begin()?;
            }
            ToActuator::Rotated { key, certificate_pem } => {
                if let Some(new) = rotation.known(&key, &certificate_pem, SystemTime::now())? {
                    tracing::info!("the new keys are known and in use");
                    self.publish_certificate();
                    self.plan.settings.identity = new;
                    self.begin_anew();
                }
            }
            ToActuator::Settled { key } if rotation.settled(&key)? => {
                self.shared.metrics.keys_changed.count();
                tracing::info!("the old keys are not taken any more");
            }
            ToActuator::NotRotated(reason) => {
                rotation.refused(Instant::now());
                self.shared.metrics.keys_not_changed.count();
                tracing::warn!(reason, "the keys are not changed yet; it is asked again");
            }
            _ => {}
        }
        Ok(())
    }

    /// Makes a session with the new certificate beside each; the old one ends when the new one is there.
    pub(super) fn begin_anew(&mut self) {
        self.anew_from = self.next_number;
        let mut addresses: Vec<String> = self.sessions.iter().map(|one| one.address.clone()).collect();
        addresses.dedup();
        // One that is not established would come with the old certificate.
        for old in self.sessions.extract_if(.., |one| !one.session.established()) {
            self.counted += old.session.counters;
        }
        addresses.into_iter().for_each(|address| self.add(address));
        self.publish();
    }
}
