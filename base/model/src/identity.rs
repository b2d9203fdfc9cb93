//! Identities: by which keys and certificates those who take part are known, and how these change (rows R4, R12).
//!
//! A source has a key that signs what it says, and shows certificates whose keys the order knows by their hashes. A change of
//! either is an event, so every replica takes and refuses the same from the same place in the order on.
//!
//! A key is changed in two steps, so that nothing signed with either is lost: [`IdentityEvent::Rotated`] makes the new one known,
//! and both are taken; [`IdentityEvent::Settled`] says that the old one is not used any more. Each carries signatures of the keys
//! themselves, so that no controller can change another's key, or a switch's.

use crate::event::SourceId;
use crate::signed::Signature;
use serde::{Deserialize, Serialize};

/// Longest reason of a revocation, bytes.
pub const REASON_BYTES_MAX: usize = 256;

/// SHA-256 of the public key in a certificate: its SubjectPublicKeyInfo, DER.
pub type KeyHash = [u8; 32];

/// A source takes another key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rotation {
    /// Whose.
    pub whose: SourceId,
    /// The ed25519 key that signs until now.
    pub old: [u8; 32],
    /// The one that signs from now on.
    pub new: [u8; 32],
    /// The old key's signature over domain, source and both keys.
    pub by_old: Signature,
    /// The new key's, so that nobody takes a key that is another's.
    pub by_new: Signature,
}

/// Something about identities.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum IdentityEvent {
    /// A certificate was signed for a source, or seen in its session. The two newest keys are taken.
    Certified {
        /// For whom.
        whose: SourceId,
        /// Its key.
        key: KeyHash,
        /// When it is over, seconds of the Unix epoch.
        until_s: u64,
    },
    /// A source's key changes: old and new are taken.
    Rotated(Rotation),
    /// Only the new key is taken, and of certificates only the newest.
    Settled {
        /// Whose.
        whose: SourceId,
        /// The key that stays.
        key: [u8; 32],
        /// Its signature over domain, source and key.
        by_key: Signature,
    },
    /// Nothing of a source is taken any more, and none of its keys ever again.
    Revoked {
        /// Whose.
        whose: SourceId,
        /// Why; at most [`REASON_BYTES_MAX`].
        reason: String,
    },
    /// A controller that came later than the settings were written has this key.
    Introduced {
        /// Whose.
        whose: SourceId,
        /// Its ed25519 key.
        key: [u8; 32],
    },
}

impl IdentityEvent {
    /// Whom it is about.
    pub fn whose(&self) -> &SourceId {
        match self {
            IdentityEvent::Certified { whose, .. }
            | IdentityEvent::Settled { whose, .. }
            | IdentityEvent::Revoked { whose, .. }
            | IdentityEvent::Introduced { whose, .. } => whose,
            IdentityEvent::Rotated(rotation) => &rotation.whose,
        }
    }
}
