//! The messages of a round.

use super::verify_ack;
use crate::TrustError;
use crate::identity::{self, Context, KeyPair};
use crate::threshold::field::Scalar;
use crate::threshold::polynomial::Commitment;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use weir_base::codec::encode;
use weir_model::signed::{Digest, Signature};

/// A secret share on its way: 32 big-endian bytes, checked by whoever uses them. Never printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, zeroize::Zeroize, zeroize::ZeroizeOnDrop)]
pub struct SecretShare([u8; 32]);

impl std::fmt::Debug for SecretShare {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretShare(secret)")
    }
}

impl SecretShare {
    pub(super) fn new(scalar: &Scalar) -> SecretShare {
        SecretShare(scalar.to_bytes())
    }

    pub(super) fn scalar(&self) -> Result<Scalar, TrustError> {
        Scalar::from_bytes(&self.0).ok_or(TrustError::BadShare)
    }
}

/// Dealer to player, private: its share, and what the dealer commits to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deal {
    /// The round's name.
    pub round: Digest,
    /// The dealer.
    pub dealer: u32,
    /// The commitment, the same for all players.
    pub commitment: Commitment,
    /// The player's share.
    pub share: SecretShare,
}

/// Player to dealer: the share fits the commitment, and is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DealAck {
    /// The round's name.
    pub round: Digest,
    /// The dealer.
    pub dealer: u32,
    /// The player.
    pub player: u32,
    /// SHA-256 of the commitment.
    pub commitment: Digest,
    /// The player's signature over all of it.
    pub signature: Signature,
}

impl DealAck {
    pub(super) fn sign(
        key: &KeyPair,
        round: Digest,
        dealer: u32,
        player: u32,
        commitment: Digest,
    ) -> DealAck {
        let message = ack_message(&round, dealer, player, &commitment);
        let signature = key.sign(Context::DealAck, &message);
        DealAck { round, dealer, player, commitment, signature }
    }

    /// Checks the signature.
    ///
    /// # Errors
    /// [`TrustError::BadKey`] or [`TrustError::BadSignature`].
    pub fn verify(&self, key: &[u8; 32]) -> Result<(), TrustError> {
        verify_ack(key, &self.round, self.dealer, self.player, &self.commitment, &self.signature)
    }
}

pub(super) fn ack_message(round: &Digest, dealer: u32, player: u32, commitment: &Digest) -> Vec<u8> {
    encode(&(round, dealer, player, commitment))
}

pub(super) fn commitment_digest(commitment: &Commitment) -> Digest {
    Sha256::digest(encode(commitment)).into()
}

/// What a dealer answers for one player.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The player's signature of its ack.
    Acked(Signature),
    /// There is no ack, so here is the share, for all to see.
    Revealed(SecretShare),
}

/// Dealer to the order: its commitment, and an answer for every player.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DealLog {
    /// The round's name.
    pub round: Digest,
    /// The dealer.
    pub dealer: u32,
    /// The commitment.
    pub commitment: Commitment,
    /// An answer for every player.
    pub answers: BTreeMap<u32, Answer>,
    /// The dealer's signature over all of it.
    pub signature: Signature,
}

impl DealLog {
    pub(crate) fn sign(
        key: &KeyPair,
        round: Digest,
        dealer: u32,
        commitment: Commitment,
        answers: BTreeMap<u32, Answer>,
    ) -> DealLog {
        let message = encode(&(round, dealer, &commitment, &answers));
        let signature = key.sign(Context::DealLog, &message);
        DealLog { round, dealer, commitment, answers, signature }
    }

    pub(super) fn verify(&self, key: &[u8; 32]) -> Result<(), TrustError> {
        let message = encode(&(self.round, self.dealer, &self.commitment, &self.answers));
        identity::verify(key, Context::DealLog, &message, &self.signature)
    }
}
