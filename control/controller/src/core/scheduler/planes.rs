//! What planes beside the switch have in force, when their processes come and go while a session lasts.
//!
//! A plane's process is one of several behind an actuator's session. What it has in force counts while it is there: when it goes,
//! nothing of it is in force, and when it comes back, what it has is compared as an actuator's state is
//! ([`super::reconcile`]), for its keys alone. So a plane that starts again costs its own keys and ends no session.
//!
//! A delete of a plane is never taken as forgotten because the plane does not show it: it may be away, and come back with what it
//! was to delete.

use super::Scheduler;
use super::held::Held;
use super::reconcile::STATE_KEYS_MAX;
use crate::core::Output;
use weir_model::{Key, Label, Version};

impl Scheduler {
    /// Part of what a plane of an actuator has in force, or that its process is away. While the whole state is on its way, that
    /// tells it.
    pub fn plane_state(
        &mut self,
        label: &Label,
        session: u64,
        plane: &Label,
        (entries, last): (Option<Vec<(Key, Version)>>, bool),
        out: &mut Vec<Output>,
    ) {
        let Some(target) = self.targets.get_mut(label).filter(|target| target.session == Some(session))
        else {
            self.counters.stale_sessions += 1;
            return;
        };
        if target.collecting.is_some() {
            return;
        }
        let is_there = entries.is_some();
        let own = |key: &Key| matches!(key, Key::Plane { plane: of, .. } if of == plane);
        let parts = target.plane_parts.entry(plane.clone()).or_default();
        parts.extend(entries.into_iter().flatten().filter(|(key, _)| own(key)));
        if target.plane_parts.values().map(|parts| parts.len()).sum::<usize>() > STATE_KEYS_MAX {
            self.counters.states_failed += 1;
            self.disconnected(label, session);
            let reason = format!("the states of its planes have more than {STATE_KEYS_MAX} keys");
            out.push(Output::Close { target: label.clone(), session, reason });
            return;
        }
        if last && let Some(mut found) = target.plane_parts.remove(plane) {
            if !is_there {
                found.clear();
            }
            self.compare_plane(label, plane, found, is_there, out);
        }
    }

    fn compare_plane(
        &mut self,
        label: &Label,
        plane: &Label,
        mut found: std::collections::BTreeMap<Key, Version>,
        is_there: bool,
        out: &mut Vec<Output>,
    ) {
        let Some(target) = self.targets.get_mut(label) else { return };
        let first = Key::Plane { plane: plane.clone(), name: String::new() };
        let keys: Vec<Key> = target
            .slots
            .range(first..)
            .map(|(key, _)| key)
            .take_while(|key| matches!(key, Key::Plane { plane: of, .. } if of == plane))
            .cloned()
            .collect();
        // What was sent may have gone with the process.
        keys.iter().for_each(|key| target.take_back(key));
        if is_there {
            // What no process took before may go now.
            for key in keys.iter().filter(|key| target.refused.remove(*key)) {
                target.repairing.remove(key);
                if let Some(slot) = target.slots.get_mut(key) {
                    slot.refused = None;
                }
            }
        }
        let mut repairs = Vec::new();
        for key in &keys {
            let desired = self.desired(label, key).map(Held::version);
            match found.remove(key) {
                Some(version) if Some(version) > desired => {
                    repairs.push((key.clone(), version));
                    self.found(label, key, None, false, out);
                }
                Some(version) => self.found(label, key, Some(version), false, out),
                None => self.found(label, key, None, true, out),
            }
        }
        repairs.extend(found);
        self.counters.compared_unknown += repairs.len() as u64;
        if self.leads {
            self.mend(label, repairs, out);
        } else if let Some(target) = self.targets.get_mut(label) {
            target.ahead.extend(repairs);
        }
        for key in keys {
            self.evaluate(&(label.clone(), key));
        }
    }
}
