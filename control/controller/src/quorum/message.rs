//! What members say to each other; postcard, over links that make sure who speaks.

use crate::core::BatchName;
use serde::{Deserialize, Serialize};
use weir_model::signed::{BatchHeader, BlsSignature, Signature};
use weir_trust::threshold::{Deal, DealAck, DealLog, ShareSignature};

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerMessage {
    /// Who I am.
    Identity {
        /// Public key of my identity.
        key: [u8; 32],
        /// Phase of the share that I have; 0: none.
        phase: u64,
    },
    /// A share of what I deal. Secret.
    Deal(Box<Deal>),
    /// I have your deal on disk.
    DealAck(DealAck),
    /// To the leader: order this.
    DealLog(Box<DealLog>),
    /// My share of a signature.
    Share {
        /// Phase of the share that it was made with.
        phase: u64,
        /// What is signed.
        header: BatchHeader,
        /// The share.
        share: ShareSignature,
        /// The member's signature with its identity that this is its share: who sends a bad one is found out before
        /// everybody.
        statement: Signature,
    },
    /// Send me the group's signature, if you have it.
    Want {
        /// Over which batch.
        batch: BatchName,
    },
    /// The group's signature.
    Signature {
        /// Over which batch.
        batch: BatchName,
        /// The signature.
        signature: BlsSignature,
    },
    /// I am here.
    Alive {
        /// Are you?
        ask: bool,
    },
}
