//! Who may say what: identities, group signatures over decided batches, the gate that every
//! actuator passes updates through, and the security token of packets.
//!
//! Papers: RoSCo and Cicero (rows R4, R5, R6, R12, C3), Andromeda
//! (row A18). No socket, thread or wall clock; randomness is given by the caller.
//!
//! Departure from the papers: a group signs the Merkle root of a decided batch, not each rule, so
//! that signing and verifying cost once a batch (DESIGN §1).

pub mod batch;
pub mod endorsement;
#[cfg(test)]
mod fixtures;
pub mod gate;
pub mod identity;
pub mod kept;
pub mod merkle;
pub mod owner;
pub mod said;
pub mod signer;
pub mod threshold;
pub mod token;

/// Why something is not trusted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrustError {
    /// The signature does not verify under the key.
    #[error("the signature does not verify")]
    BadSignature,
    /// The Merkle path does not lead to the signed root.
    #[error("the update is not under the signed root")]
    BadPath,
    /// The bytes are no public key.
    #[error("these bytes are not a public key")]
    BadKey,
    /// A secret share is not the member's, or is no number below the group order.
    #[error("the secret share does not fit the member's public key")]
    BadShare,
    /// The members, or a commitment for them, are impossible.
    #[error("{0}")]
    BadMembers(String),
    /// A round of dealing has no outcome yet.
    #[error("the round has {given} of the {wanted} dealers that it needs")]
    RoundOpen {
        /// Valid logs so far.
        given: usize,
        /// Logs needed.
        wanted: usize,
    },
    /// A player misses a share that it acknowledged.
    #[error("the share of dealer {0} is gone: keep shares before acknowledging them")]
    ShareLost(u32),
    /// An event's subject is too long.
    #[error("an event's subject has at most 253 bytes, not {0}")]
    LongSubject(usize),
    /// The batch belongs to another domain.
    #[error("the batch is of domain '{given}', this is '{wanted}'")]
    WrongDomain {
        /// Domain of the batch.
        given: String,
        /// Domain here.
        wanted: String,
    },
    /// Nobody said here which controllers may endorse.
    #[error("no list of controllers is in force here: only the group's key proves a batch")]
    NoControllers,
    /// Endorsements of another phase than that of the controllers in force.
    #[error(
        "the endorsements are of dealing {given} of the group's key, the controllers in force of dealing {wanted}"
    )]
    OtherPhase {
        /// Phase of the endorsements.
        given: u64,
        /// Phase here.
        wanted: u64,
    },
    /// Too few or too many endorsements.
    #[error("{wanted} to {max} controllers must endorse a batch, not {given}")]
    EndorsementCount {
        /// How many there are.
        given: usize,
        /// How many are enough.
        wanted: usize,
        /// How many there may be.
        max: usize,
    },
    /// An endorsement of somebody who is no controller of the phase, or a second one of the same.
    #[error("member {0} is not one of the controllers in force, or is there twice")]
    StrangeMember(u32),
    /// The batch has no update, or more than 2^20.
    #[error("a batch has 1 to 1048576 updates, not {0}")]
    BadCount(usize),
}
