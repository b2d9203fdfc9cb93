//! Who may say what: identities, group signatures over decided batches, the gate that every
//! actuator passes updates through, and the security token of packets.
//!
//! Papers: RoSCo and Cicero (rows R4, R5, R12, C3, first form: the group has one key), Andromeda
//! (row A18). No socket, thread or wall clock; randomness is given by the caller.
//!
//! Departure from the papers: a group signs the Merkle root of a decided batch, not each rule, so
//! that signing and verifying cost once a batch (DESIGN §1).

pub mod batch;
#[cfg(test)]
mod fixtures;
pub mod gate;
pub mod identity;
pub mod merkle;
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
    #[error("these 32 bytes are not a public key")]
    BadKey,
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
    /// The batch has no update, or more than 2^20.
    #[error("a batch has 1 to 1048576 updates, not {0}")]
    BadCount(usize),
}
