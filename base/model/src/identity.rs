//! Identities: by which keys and certificates those who take part are known, and how these change (rows R4, R12).
//!
//! A source has a key that signs what it says, and shows certificates whose keys the order knows by their hashes. A change of
//! either is an event, so every replica takes and refuses the same from the same place in the order on.
//!
//! A key is changed in two steps, so that nothing signed with either is lost: [`IdentityEvent::Rotated`] makes the new one known,
//! and both are taken; [`IdentityEvent::Settled`] says that the old one is not used any more. Each carries signatures of the keys
//! themselves, so that no controller can change another's key, or a switch's.

use crate::operator::OperatorChange;
use crate::signed::Signature;
use crate::source::{Role, SourceId};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Longest reason of a revocation, bytes.
pub const REASON_BYTES_MAX: usize = 256;

/// SHA-256 of the public key in a certificate: its SubjectPublicKeyInfo, DER.
pub type KeyHash = [u8; 32];

/// Object identifier of the extension of a certificate, and of the attribute of a request for one, in which the identity of its owner says
/// that the key is its own: an OCTET STRING of the 64 bytes of an ed25519 signature (`weir_trust::owner`).
pub const OWNER_OID: [u64; 3] = [2, 25, 6_112_907_558_201_346];

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
    /// A join token was made, used or voided. A token is for one name in one role, and serves one key.
    Token {
        /// For whom it is.
        whose: SourceId,
        /// Which.
        id: TokenId,
        /// What became of it.
        change: TokenChange,
    },
    /// Who may order what, as a person, changes.
    Operator {
        /// Whose: a source as [`SourceId::of_operator`] names it.
        whose: SourceId,
        /// What becomes of it.
        change: OperatorChange,
    },
}

/// Why an address cannot be a switch's on the underlay; nothing when it can.
pub fn underlay_problem(address: IpAddr) -> Option<&'static str> {
    match address.to_canonical() {
        address if address.is_unspecified() => Some("it is the unspecified address"),
        address if address.is_loopback() => Some("it is an address of the loopback"),
        address if address.is_multicast() => Some("it is a multicast address"),
        IpAddr::V4(v4) if v4.is_broadcast() => Some("it is the broadcast address"),
        IpAddr::V4(v4) if v4.octets()[0] == 0 => Some("it is in 0.0.0.0/8, which names this network"),
        IpAddr::V4(v4) if v4.octets()[0] >= 240 => Some("it is in 240.0.0.0/4, which is reserved"),
        IpAddr::V4(v4) if v4.is_link_local() => Some("it is of one link only"),
        IpAddr::V6(v6) if v6.is_unicast_link_local() => Some("it is of one link only"),
        _ if address.to_canonical() != address => Some("it is an IPv4 address written as IPv6"),
        _ => None,
    }
}

/// A join token, by what is no secret of it.
pub type TokenId = [u8; 16];

/// What becomes of a join token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TokenChange {
    /// It was made.
    Made {
        /// The role in which its bearer joins.
        role: Role,
        /// When it is over, seconds of the Unix epoch.
        until_s: u64,
        /// Where its bearer's address on the underlay may be; nothing means where it speaks from.
        underlay: Option<IpNet>,
    },
    /// Its bearer joins with this identity, and has shown that the key is its own.
    Used {
        /// The ed25519 key.
        key: [u8; 32],
    },
    /// It is not taken any more.
    Voided,
    /// It was made, with a key that its bearer has: who joins by it does so with [`crate::event::JoinedBy`].
    MadeWithKey {
        /// The role in which its bearer joins.
        role: Role,
        /// When it is over, seconds of the Unix epoch.
        until_s: u64,
        /// Where its bearer's address on the underlay may be; nothing means that the bearer says it.
        underlay: Option<IpNet>,
        /// The ed25519 key.
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
            | IdentityEvent::Introduced { whose, .. }
            | IdentityEvent::Token { whose, .. }
            | IdentityEvent::Operator { whose, .. } => whose,
            IdentityEvent::Rotated(rotation) => &rotation.whose,
        }
    }
}
