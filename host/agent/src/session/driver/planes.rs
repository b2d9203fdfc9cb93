//! The planes beside the switch, as the sessions see them: their states joined to the switch's, their acks and reports passed on, and
//! refusals where nobody takes an update. What is decided about them is the hub's ([`crate::hub`]).

use super::{Driver, Input, Session};
use crate::hub::driver::HubEvent;
use crate::hub::{Hub, PlaneState};
use crate::join;
use std::path::Path;
use weir_base::codec::{decode, encode};
use weir_model::local::{FromSwitch, ToSwitch};
use weir_model::session::{STATE_CHUNK_KEYS, ToController};
use weir_model::signed::SignedUpdates;
use weir_model::{Ack, Key};
use weir_trust::batch::Verifier;
use weir_trust::identity::sign_acks;

/// What of a frame is for the switch; the planes get theirs.
pub(super) fn part_of_switch(hub: &mut Hub, refusals: &mut Vec<Ack>, frame: ToSwitch) -> Option<ToSwitch> {
    let ToSwitch::Updates(updates) = frame else { return Some(frame) };
    let (switch, refused) = hub.route(updates);
    refusals.extend(refused);
    switch.map(ToSwitch::Updates)
}

/// The list of controllers as the group signed it, in the state directory: a process that comes later is given it.
const PROOF_FILE: &str = "controllers.proof";

/// The list that was kept; none where there is no file, one that cannot be read, or one of another group than this host trusts now,
/// which it was in before: then the next one is waited for, whatever its version.
pub(super) fn read_proof(state_dir: &Path) -> Option<SignedUpdates> {
    let bytes = std::fs::read(state_dir.join(PROOF_FILE)).ok()?;
    let proof = decode::<SignedUpdates>(&bytes);
    let proof = proof
        .inspect_err(|error| tracing::warn!(%error, "the list of controllers that was kept is damaged"))
        .ok()?;
    let domain = join::membership(state_dir).ok().flatten()?.domain;
    let mut verifier = Verifier::new(domain, join::group_key(state_dir)?);
    let is_ours = verifier.verify_header_by(&proof.header, None);
    is_ours
        .inspect_err(
            |error| tracing::info!(%error, "the list of controllers that was kept is of another group"),
        )
        .ok()?;
    Some(proof)
}

impl Driver {
    /// Keeps the list of controllers where another one came.
    pub(super) fn keep_proof(&mut self) {
        let Some(proof) = self.hub.proof() else { return };
        let header = &proof.header.header;
        if self.proof_kept.as_ref() == Some(header) {
            return;
        }
        self.proof_kept = Some(header.clone());
        let path = self.plan.state_dir.join(PROOF_FILE);
        if let Err(error) = weir_base::file::replace(&path, &encode(proof), 0o600) {
            tracing::warn!(path = %path.display(), %error, "the list of controllers is not kept for planes that come later");
        }
    }

    /// A process of a plane came, said something, or went.
    pub(super) fn plane_event(&mut self, event: HubEvent) {
        match event {
            HubEvent::Came { id, plane, names, sender } => {
                if !self.hub.came(id, (plane.clone(), names), sender) {
                    tracing::warn!(%plane, "there is no room for one more process of a plane");
                }
            }
            HubEvent::Frame { id, frame } => {
                if let Err(reason) = self.plane_says(id, frame) {
                    tracing::warn!(reason, "a plane's process is let go of");
                    self.plane_went(id);
                }
            }
            HubEvent::Went { id } => self.plane_went(id),
        }
        self.publish();
    }

    fn plane_went(&mut self, id: u64) {
        let now_ms = self.started.elapsed().as_millis() as u64;
        if let Some(state) = self.hub.went(id, now_ms) {
            self.tell_plane(&state);
        }
    }

    fn plane_says(&mut self, id: u64, frame: FromSwitch) -> Result<(), String> {
        match frame {
            FromSwitch::Contents { entries, last } => {
                if let Some(state) = self.hub.state(id, entries, last)? {
                    self.tell_plane(&state);
                }
            }
            FromSwitch::Changed { key: Key::Controllers, entry, .. } => self.hub.knows(id, entry.as_ref()),
            FromSwitch::Acks(acks) if acks.actuator != self.shared.actuator => {
                return Err(format!(
                    "it acks as {}, and this host is {}",
                    acks.actuator, self.shared.actuator
                ));
            }
            FromSwitch::Acks(acks) => {
                self.hub.acked(id, &acks.acks);
                self.switch_says(FromSwitch::Acks(acks));
            }
            FromSwitch::Event(event) => {
                let host = event.event.source.plane().map(|(host, _)| host);
                if host.as_ref() != Some(&self.shared.actuator) {
                    return Err(format!("it reports as {}", event.event.source.0));
                }
                self.tell_all(&FromSwitch::Event(event), Session::established);
            }
            _ => {}
        }
        Ok(())
    }

    /// Tells what a plane has now to every session; one that begins is told when it is established.
    fn tell_plane(&mut self, state: &PlaneState) {
        let changes = self.hub.changes;
        let there = self.sessions.iter_mut().filter(|one| one.session.established());
        let numbers: Vec<u64> = there
            .map(|one| {
                one.planes_seen = changes;
                one.number
            })
            .collect();
        numbers.into_iter().for_each(|number| self.say_plane(number, state));
    }

    fn say_plane(&mut self, number: u64, state: &PlaneState) {
        let plane = &state.plane;
        let say = |driver: &mut Driver, entries, last| {
            let frame = ToController::Plane { plane: plane.clone(), entries, last };
            driver.step(number, Input::Say(Box::new(frame)));
        };
        let Some(entries) = state.entries.as_ref().filter(|entries| !entries.is_empty()) else {
            return say(self, state.entries.clone(), true);
        };
        let mut chunks = entries.chunks(STATE_CHUNK_KEYS).peekable();
        while let Some(chunk) = chunks.next() {
            say(self, Some(chunk.to_vec()), chunks.peek().is_none());
        }
    }

    /// Tells a session that came about what changed since it greeted.
    pub(super) fn planes_since(&mut self, number: u64) {
        let changes = self.hub.changes;
        let Some(one) = self.sessions.iter_mut().find(|one| one.number == number) else { return };
        if std::mem::replace(&mut one.planes_seen, changes) == changes {
            return;
        }
        for state in self.hub.states() {
            self.say_plane(number, &state);
        }
    }

    /// Refuses what no process takes.
    pub(super) fn refuse(&mut self) {
        let now_ms = self.started.elapsed().as_millis() as u64;
        let mut refusals = std::mem::take(&mut self.refusals);
        refusals.extend(self.hub.due(now_ms));
        if refusals.is_empty() {
            return;
        }
        match join::identity(&self.plan.state_dir) {
            Ok(key) => {
                let acks = sign_acks(&key, &self.shared.actuator, refusals);
                self.tell_all(&FromSwitch::Acks(acks), Session::wants_acks);
            }
            Err(error) => tracing::warn!(%error, "updates that no plane takes are not refused"),
        }
    }
}

#[cfg(test)]
mod tests;
