//! A controller's part in the group's signatures: its secrets on disk, its links to the others, and what is shown of it.
//!
//! In the state directory `quorum` (mode 0700): `identity`, the seed of the key by which this member is known in rounds of
//! dealing, and with which it endorses; `share` and `round`, see `weir_controller::quorum::kept`. None of it is in the file of the domain's keys, and
//! none ever leaves the machine but deals, to the member for whom each is.

use super::{Engine, Group};
use crate::failure::Failure;
use crate::roles::state::kept_key;
use bytes::Bytes;
use std::collections::BTreeSet;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use weir_api::ApiError;
use weir_api::types::GroupSigning;
use weir_base::world::RealDisk;
use weir_controller::core::keys::FIRST_OF;
use weir_controller::driver::{ControllerHandle, Members, MembersThread, Peers, members};
use weir_controller::quorum::kept::Kept;
use weir_controller::quorum::{Input, Me, Quorum, Way};
use weir_model::Label;
use weir_trust::identity::KeyPair;

/// How long new shares may take.
const DEALING_BOUND: Duration = Duration::from_secs(45);
/// How often it is looked whether they are there.
const DEALING_LOOK: Duration = Duration::from_millis(50);

/// The other members, over the replica's links.
pub struct ReplicaPeers(pub(super) Arc<OnceLock<Engine>>);

impl Peers for ReplicaPeers {
    fn tell(&self, to: u32, message: Vec<u8>) {
        if let Some(engine) = self.0.get() {
            engine.tell(to, Bytes::from(message));
        }
    }
}

/// Reads this member's secrets, or makes its identity.
///
/// # Errors
/// [`Failure`].
pub fn open(
    state_dir: &Path,
    domain: &Label,
    (id, way): (u64, Way),
    peers: Arc<dyn Peers>,
) -> Result<(MembersThread, Members), Failure> {
    let wrong = |error: &dyn std::fmt::Display| Failure::Input(error.to_string());
    let dir = state_dir.join("quorum");
    let named = dir.display().to_string();
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    made.map_err(Failure::io(named.clone()))?;
    let identity = kept_key::<32>(dir.join("identity")).map_err(|error| wrong(&error))?;
    let disk = RealDisk::open(&dir).map_err(Failure::io(named))?;
    let id = u32::try_from(id).map_err(|error| wrong(&error))?;
    let me = Me { domain: domain.clone(), id, identity: KeyPair::from_seed(&identity), way };
    let randomness = |bytes: &mut [u8]| {
        // It gave some for the identity, and does not cease to.
        assert!(getrandom::fill(bytes).is_ok(), "the system gives no randomness");
    };
    let quorum = Quorum::new(me, Kept::new(Arc::new(disk)), Box::new(randomness));
    Ok(members(quorum, peers))
}

/// How far a dealing is.
struct Dealt {
    /// Who has shares, as the order knows it.
    members: BTreeSet<u64>,
    /// Of which dealing.
    phase: u64,
    /// The next one is under way.
    is_open: bool,
    /// Of which dealing this controller has its own share.
    own_phase: u64,
}

impl Dealt {
    fn is_done(&self, voters: &BTreeSet<u64>, after: u64) -> bool {
        self.members == *voters && !self.is_open && self.phase > after && self.own_phase == self.phase
    }
}

impl Group {
    /// Tells this member's part who leads and who is in the group.
    pub(super) fn tell_members(&self) {
        let Some(members) = &self.members else { return };
        let number = |id: u64| u32::try_from(id).ok();
        let leader = self.engine.leader().and_then(number);
        let voters = self.engine.voters().into_iter().filter_map(number).collect();
        members.input(Input::Group { leader, voters });
    }

    /// How the group signs, as this member knows it; nothing when all have the same key.
    pub fn signing(&self, handle: &ControllerHandle) -> Option<GroupSigning> {
        let status = self.members.as_ref()?.status();
        let keys = handle.group_keys();
        let why = |lied: bool| if lied { "it lied in this dealing" } else { "it is silent" };
        let level = |id: &u32| status.suspicion.get(id).copied().unwrap_or(0) as f64 / 1000.0;
        let passed_over = status.passed_over.iter();
        let faults = keys.faults().iter().chain(&status.faults);
        Some(GroupSigning {
            key: keys.key().map(|key| key.to_hex()),
            phase: keys.phase(),
            threshold: keys.group().map_or(0, |group| group.threshold() as u64),
            members: keys.members().into_iter().collect(),
            dealing: keys.open().map(|open| open.round().phase()),
            own_share: status.share_phase,
            aggregator: status.aggregator,
            passed_over: passed_over
                .map(|(id, lied)| format!("controller {id}: {} (suspicion {:.1})", why(*lied), level(id)))
                .collect(),
            waiting: status.waiting as u64,
            faults: faults.map(|(phase, fault)| format!("in dealing {phase}, {fault}")).collect(),
        })
    }

    /// Returns when the members have shares of a dealing later than `after`, and nobody else has: as the order knows it, and this
    /// controller its own.
    pub async fn shares_dealt(&self, handle: &ControllerHandle, after: u64) -> Result<(), ApiError> {
        let Some(own) = &self.members else { return Ok(()) };
        if handle.is_converted()
            && handle.group_keys().key().is_none()
            && self.engine.voters().len() < FIRST_OF
        {
            // The key from before signs until there are as many as a group has at least.
            return Ok(());
        }
        let until = Instant::now() + DEALING_BOUND;
        while Instant::now() < until {
            let keys = handle.group_keys();
            let dealt = Dealt {
                members: keys.members().into_iter().map(u64::from).collect(),
                phase: keys.phase(),
                is_open: keys.open().is_some(),
                own_phase: own.status().share_phase,
            };
            if dealt.is_done(&self.engine.voters(), after) {
                return Ok(());
            }
            self.tell_members();
            tokio::time::sleep(DEALING_LOOK).await;
        }
        Err(ApiError::unavailable(format!(
            "the members of the group, this controller among them, have no new shares of its key after {} s: those that 'weir group list' shows must \
             run and be reached; the shares are dealt as soon as they are",
            DEALING_BOUND.as_secs()
        )))
    }

    /// Deals new shares of the same key.
    pub async fn refresh(&self, handle: &ControllerHandle) -> Result<(), ApiError> {
        let Some(members) = &self.members else {
            return Err(ApiError::conflict(
                "the controllers of this group share one key: it is not dealt (group.signatures in the settings)",
            ));
        };
        if !handle.leads() {
            return Err(self.not_leader(self.engine.leader()));
        }
        let before = handle.group_keys().phase();
        members.input(Input::Refresh);
        self.shares_dealt(handle, before).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dealing_is_done_when_the_answering_controller_has_its_share_too() {
        let voters = BTreeSet::from([1, 2, 3]);
        let done = || Dealt { members: voters.clone(), phase: 4, is_open: false, own_phase: 4 };
        assert!(done().is_done(&voters, 3));
        for not_yet in [
            Dealt { own_phase: 3, ..done() },
            Dealt { is_open: true, ..done() },
            Dealt { members: BTreeSet::from([1, 2]), ..done() },
            Dealt { members: BTreeSet::from([1, 2, 3, 4]), ..done() },
        ] {
            assert!(!not_yet.is_done(&voters, 3));
        }
        assert!(!done().is_done(&voters, 4), "that is the dealing before");
    }
}
