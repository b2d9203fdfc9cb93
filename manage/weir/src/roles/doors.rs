//! The doors of a controller: the API with the store, sessions, and in a group the other replicas.
//!
//! Each has places of its own, so that strangers at one do not fill another, and all together have no more than there are descriptors for,
//! beside those that log, audit and snapshots need. Whoever is revoked, forgotten, or whose certificate is over, loses its connections.

use std::sync::Arc;
use weir_admission::{Door, Limits, descriptors};
use weir_controller::driver::{ControllerHandle, Published};
use weir_model::Label;
use weir_model::event::SourceId;

/// Most sessions.
const SESSIONS_MAX: usize = 16_384;
/// Most connections of one name to the API and the store.
const API_PER_NAME_MAX: usize = 1_024;
/// Most sessions of one name: one, and those that are about to be replaced.
const SESSIONS_PER_NAME_MAX: usize = 16;

/// See the module.
#[derive(Debug)]
pub struct Doors {
    /// Of the API and the store.
    pub api: Arc<Door>,
    /// Of sessions.
    pub sessions: Arc<Door>,
    /// Of other replicas; they have their own limits.
    pub replicas: Option<Arc<Door>>,
}

impl Doors {
    /// As many places as there are descriptors for.
    pub fn open(descriptors: usize, replicas: Option<Arc<Door>>) -> Doors {
        let kept = replicas.as_ref().map_or(0, |door| door.limits().connections_max());
        let left = descriptors::for_connections(descriptors).saturating_sub(kept);
        let api = Limits { known_per_name_max: API_PER_NAME_MAX, ..Limits::default() };
        let sessions = Limits {
            known_max: SESSIONS_MAX,
            known_per_name_max: SESSIONS_PER_NAME_MAX,
            ..Limits::default()
        };
        let api = api.within(left / 3);
        let sessions = sessions.within(left.saturating_sub(api.connections_max()));
        Doors { api: Door::new("api", api), sessions: Door::new("sessions", sessions), replicas }
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<Door>> {
        [&self.api, &self.sessions].into_iter().chain(&self.replicas).cloned().collect()
    }

    /// Ends what is open of whoever is not taken any more, as soon as the order says so. Never ends.
    pub async fn end_untaken(&self, handle: ControllerHandle) {
        let mut versions = handle.versions();
        // Kept, so that what is compared by its address is still there; not the store, whose old versions would stay with it.
        let mut seen = None;
        loop {
            let now = handle.published();
            let parts = (now.joined.clone(), now.identities.clone());
            let same = |(joined, identities): &(Arc<_>, Arc<_>)| {
                Arc::ptr_eq(joined, &parts.0) && Arc::ptr_eq(identities, &parts.1)
            };
            if !seen.as_ref().is_some_and(same) {
                let goes = |name: &str| !is_taken(&now, name);
                let ended = self.api.end(goes) + self.sessions.end(goes);
                if ended > 0 {
                    tracing::info!(ended, "connections of who is not taken any more are ended");
                }
                seen = Some(parts);
            }
            drop(now);
            if versions.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}

/// Whether somebody known at a door is taken still: an actuator that has joined and was not revoked, or an operator.
pub fn is_taken(known: &Published, name: &str) -> bool {
    let source = SourceId(name.to_owned());
    let Some(actuator) = source.actuator() else { return true };
    let joined = Label::new(actuator).is_ok_and(|actuator| known.joined.contains_key(&actuator));
    joined && known.identities.row(&source).is_none_or(|row| row.revoked.is_none())
}
