//! Endorsements: a batch proven by ordinary signatures of enough controllers, beside the group's one signature.
//!
//! A pairing check costs as much as thirty ed25519 checks, so with few controllers the signatures of `threshold` of them are
//! by far the cheaper proof. RoSCo proves updates that way; here it is one set of signatures a batch and not one an update.
//!
//! Who the controllers are is an entry in force at the actuator ([`weir_model::Key::Controllers`]), and only the group's key
//! can put it there. So trust rests on the one key that never changes, as with the other ways, and what is known of a phase
//! proves nothing in another one.
//!
//! Invariants
//! - Every signature that is given must verify and be of another member: so what is shown as endorsed by somebody is.
//! - Phase and header are under the signature, in a context of its own: no share, vote or event can be taken for it.

use crate::TrustError;
use crate::identity::{self, Context, KeyPair};
use std::collections::BTreeSet;
use weir_base::codec::encode;
use weir_model::entry::ControllersEntry;
use weir_model::session::CONTROLLERS_MAX;
use weir_model::signed::{BatchHeader, MemberSignature, Signature};

fn message(phase: u64, header: &BatchHeader) -> Vec<u8> {
    encode(&(phase, header))
}

/// Endorses a batch as a member of a phase.
pub fn endorse(identity: &KeyPair, phase: u64, header: &BatchHeader) -> Signature {
    identity.sign(Context::Endorsement, &message(phase, header))
}

/// Checks that the controller with this key endorsed a batch in a phase.
///
/// # Errors
/// [`TrustError::BadKey`] or [`TrustError::BadSignature`].
pub fn verify_one(
    public: &[u8; 32],
    phase: u64,
    header: &BatchHeader,
    signature: &Signature,
) -> Result<(), TrustError> {
    identity::verify(public, Context::Endorsement, &message(phase, header), signature)
}

/// Checks that enough of the controllers in force endorsed a batch.
///
/// # Errors
/// [`TrustError::OtherPhase`], [`TrustError::EndorsementCount`] or [`TrustError::StrangeMember`] before anything costly is
/// done, then those of [`identity::verify_all`].
pub fn verify(
    controllers: &ControllersEntry,
    header: &BatchHeader,
    phase: u64,
    signatures: &[MemberSignature],
) -> Result<(), TrustError> {
    if phase != controllers.phase {
        return Err(TrustError::OtherPhase { given: phase, wanted: controllers.phase });
    }
    let (given, wanted) = (signatures.len(), (controllers.threshold as usize).max(1));
    let max = controllers.members.len().min(CONTROLLERS_MAX);
    if !(wanted..=max).contains(&given) {
        return Err(TrustError::EndorsementCount { given, wanted, max });
    }
    let mut seen = BTreeSet::new();
    let mut keys = Vec::with_capacity(given);
    for one in signatures {
        match controllers.members.get(&one.member).filter(|_| seen.insert(one.member)) {
            Some(key) => keys.push((key, &one.signature)),
            None => return Err(TrustError::StrangeMember(one.member)),
        }
    }
    identity::verify_all(Context::Endorsement, &message(phase, header), &keys)
}

#[cfg(test)]
mod tests;
