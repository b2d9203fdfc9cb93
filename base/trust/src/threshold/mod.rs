//! Threshold signatures of a group of controllers (rows C3, C5; RoSCo R5, R6): BLS over BLS12-381, with
//! signatures in G1 and keys in G2.
//!
//! - [`deal`]: how a group gets its key without a dealer, and new shares of the same key when members are
//!   added, removed, replaced, or refreshed. A pure step machine over private messages and an ordered log.
//! - [`group`]: the group's public side, and a member's secret share that signs.
//! - [`collect`]: shares become one signature; a bad share is found and its sender named.
//!
//! Invariants
//! - Fewer than [`threshold`] shares tell nothing about the key and sign nothing.
//! - Resharing never changes the group's key; shares of different phases do not mix.
//! - What a member is blamed for is provable: it signed it, or it does not verify under its public key.
//!
//! Departures from Cicero: the threshold is 2f+1 (the paper takes a majority), so that the shares which
//! slow members force dealers to reveal, at most f, never add up to a key together with f liars. The key
//! is made over the domain's own ordered log instead of a DKG library with its own agreement.
//!
//! The curve and its constant-time numbers are blst's; what is ours is the protocol on top
//! (docs/decisions/0008).

pub mod collect;
pub mod deal;
mod field;
pub mod group;
mod polynomial;
#[cfg(test)]
pub(crate) mod simulation;

pub use collect::{Collector, combine};
pub use deal::{Answer, Deal, DealAck, DealLog, Dealer, Ledger, Members, Player, Progress, Round};
pub use group::{GroupPublic, GroupVerifier, MemberSecret, ShareSignature, verify_group};
pub use polynomial::Commitment;

/// Most members of a group.
pub const MEMBERS_MAX: usize = 64;

/// Where secret randomness comes from: fills the bytes it is given. The caller chooses; a simulation
/// gives a seeded one.
pub type Randomness<'r> = dyn FnMut(&mut [u8]) + 'r;

/// Most members of `members` that may lie: f of 3f+1.
pub fn faulty_max(members: usize) -> usize {
    members.saturating_sub(1) / 3
}

/// How many shares make a signature of a group of `members`: 2f+1, and more than half.
pub fn threshold(members: usize) -> usize {
    (2 * faulty_max(members) + 1).max((members + 1).div_ceil(2))
}

/// A finding: this member did that.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("member {member}: {what}")]
pub struct Fault {
    /// Who.
    pub member: u32,
    /// What.
    pub what: FaultKind,
}

/// What a member did.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    thiserror::Error,
    serde::Serialize,
    serde::Deserialize,
)]
pub enum FaultKind {
    /// It is in no role that may send this.
    #[error("it is not a member that may send this; only dealers deal, and only members sign")]
    NotMember,
    /// The message is of another round.
    #[error("the message is of another round")]
    WrongRound,
    /// A signature over its message does not verify.
    #[error("its signature does not verify")]
    BadSignature,
    /// Its signature share does not verify under its public key.
    #[error("its signature share does not verify under its public key")]
    BadSignatureShare,
    /// The group's signature that it put together does not verify.
    #[error("the group's signature that it put together does not verify")]
    BadGroupSignature,
    /// The share it dealt is not the one it committed to.
    #[error("the share that it dealt does not fit its commitment")]
    BadShare,
    /// Its commitment has a wrong length, or does not commit to the share that it holds of the key.
    #[error("its commitment is not to its share of the group's key, or has a wrong length")]
    BadCommitment,
    /// It signed or dealt two different things where one is allowed.
    #[error("it said two different things in one round")]
    Equivocated,
    /// Its log does not answer for every player, or reveals more than f shares.
    #[error("its log does not answer for every player, or reveals too many shares")]
    BadLog,
}
