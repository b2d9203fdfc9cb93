//! Making and resharing a group's key without a dealer that all trust (rows C3, C5).
//!
//! Joint Feldman dealing over an ordered log. In a round every dealer shares a secret of its own among the
//! players: a random one when the group is made, its share of the group's key when it is reshared.
//!
//! 1. A [`Dealer`] sends each player a [`Deal`], over a private authenticated session.
//! 2. A [`Player`] checks its share against the commitment and answers with a signed [`DealAck`].
//! 3. The dealer publishes a [`DealLog`] in the order: for each player the ack, or else the share itself,
//!    revealed. At most f shares may be revealed: an honest dealer never needs more.
//! 4. Everybody feeds the logs in their order to a [`Ledger`]. The first valid ones, as many as the round
//!    needs, are the outcome, so all come to the same one. A player then adds up its shares.
//!
//! Invariants
//! - Acks name the commitment, so a dealer that commits to different polynomials has no valid log.
//! - A resharing dealer's commitment must be to its own share of the key, so the key cannot change.
//! - No f liars learn the key: of each honest dealer they see their own f shares and at most f revealed
//!   ones, together 2f, and 2f+1 are needed.
//! - A round is named by the hash of all its facts; no message of one round counts in another.
//!
//! Known and accepted (Gennaro et al. 2007): a dealer that speaks last may bias some bits of a new key.
//! That does not help to forge signatures.
//!
//! A player keeps each deal durably before its ack leaves; after a restart the deals are fed in again and
//! give the same acks.

mod ledger;
mod messages;
mod player;

pub use ledger::{Ledger, Progress};
pub use messages::{Answer, Deal, DealAck, DealLog, SecretShare};
pub use player::Player;

use super::field::Scalar;
use super::group::{GroupPublic, MemberSecret, check_members};
use super::polynomial::{Commitment, Polynomial, random_scalar};
use super::{Fault, FaultKind, Randomness, faulty_max, threshold};
use crate::TrustError;
use crate::identity::{Context, KeyPair};
use messages::{ack_message, commitment_digest};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use weir_base::codec::encode;
use weir_model::Label;
use weir_model::signed::{Digest, Signature};

/// The public keys of members' identities, by id. Ids are 1 or more and never used again.
pub type Members = BTreeMap<u32, [u8; 32]>;

/// The facts of a round; all who take part must have the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    domain: Label,
    phase: u64,
    dealers: Members,
    players: Members,
    previous: Option<GroupPublic>,
}

impl Round {
    /// The round that makes a new group's key: its members are dealers and players.
    ///
    /// # Errors
    /// [`TrustError::BadMembers`].
    pub fn fresh(domain: Label, phase: u64, members: Members) -> Result<Round, TrustError> {
        check_members(members.keys().copied())?;
        Ok(Round { domain, phase, dealers: members.clone(), players: members, previous: None })
    }

    /// The round that gives `players` shares of the key of `previous`, dealt by `dealers`, members of it.
    ///
    /// # Errors
    /// [`TrustError::BadMembers`]: impossible players, dealers that are no members, or too few of them.
    pub fn reshare(
        domain: Label,
        phase: u64,
        previous: GroupPublic,
        dealers: Members,
        players: Members,
    ) -> Result<Round, TrustError> {
        check_members(players.keys().copied())?;
        check_members(dealers.keys().copied())?;
        if let Some(stranger) = dealers.keys().find(|dealer| !previous.members().contains(dealer)) {
            return Err(TrustError::BadMembers(format!(
                "dealer {stranger} has no share of the key; only members of the group deal"
            )));
        }
        if dealers.len() < previous.threshold() {
            let (given, wanted) = (dealers.len(), previous.threshold());
            return Err(TrustError::BadMembers(format!(
                "{given} dealers are not enough, {wanted} are needed"
            )));
        }
        Ok(Round { domain, phase, dealers, players, previous: Some(previous) })
    }

    /// Whether it is as [`Round::fresh`] or [`Round::reshare`] makes one; what came from elsewhere may not be.
    ///
    /// # Errors
    /// As these.
    pub fn check(&self) -> Result<(), TrustError> {
        match self.previous.clone() {
            None if self.dealers == self.players => {
                Round::fresh(self.domain.clone(), self.phase, self.players.clone()).map(drop)
            }
            None => Err(TrustError::BadMembers("of a new group all members deal, and nobody else".into())),
            Some(previous) => {
                let (dealers, players) = (self.dealers.clone(), self.players.clone());
                Round::reshare(self.domain.clone(), self.phase, previous, dealers, players).map(drop)
            }
        }
    }

    /// The domain.
    pub fn domain(&self) -> &Label {
        &self.domain
    }

    /// The group whose key is reshared; none for a new key.
    pub fn previous(&self) -> Option<&GroupPublic> {
        self.previous.as_ref()
    }

    /// The round's name: the hash of all its facts.
    pub fn id(&self) -> Digest {
        Sha256::new().chain_update(b"weir/round/1\0").chain_update(encode(self)).finalize().into()
    }

    /// Number of the membership change that it is for.
    pub fn phase(&self) -> u64 {
        self.phase
    }

    /// Who deals.
    pub fn dealers(&self) -> &Members {
        &self.dealers
    }

    /// Who gets shares.
    pub fn players(&self) -> &Members {
        &self.players
    }

    /// Threshold of the group that comes out.
    pub fn threshold(&self) -> usize {
        threshold(self.players.len())
    }

    /// Most shares that a dealer may reveal.
    pub fn reveals_max(&self) -> usize {
        faulty_max(self.players.len())
    }

    /// How many dealers' logs make the outcome: all that surely come for a new key, exactly the old
    /// threshold for shares of an old one.
    pub fn dealers_needed(&self) -> usize {
        match &self.previous {
            None => self.dealers.len() - faulty_max(self.dealers.len()),
            Some(previous) => previous.threshold(),
        }
    }

    /// Whether a dealer may commit to this.
    fn check_commitment(&self, dealer: u32, commitment: &Commitment) -> Result<(), Fault> {
        let own = match &self.previous {
            None => true,
            Some(previous) => previous.member_key(dealer) == Some(commitment.at_zero()),
        };
        if commitment.threshold() == self.threshold() && own {
            Ok(())
        } else {
            Err(Fault { member: dealer, what: FaultKind::BadCommitment })
        }
    }
}

/// One dealer's part in a round.
pub struct Dealer {
    round: Round,
    id: Digest,
    me: u32,
    polynomial: Polynomial,
    commitment: Commitment,
    digest: Digest,
    acks: BTreeMap<u32, Signature>,
}

impl std::fmt::Debug for Dealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Dealer {{ member: {}, phase: {}, acks: {} }}", self.me, self.round.phase, self.acks.len())
    }
}

impl Dealer {
    /// Begins to deal: a random secret in a fresh round, `share` in a resharing one.
    ///
    /// # Errors
    /// [`TrustError::BadMembers`] when `me` is no dealer of the round, [`TrustError::BadShare`] when a
    /// share is missing, given without need, or not the dealer's.
    pub fn new(
        round: Round,
        me: u32,
        share: Option<&MemberSecret>,
        randomness: &mut Randomness<'_>,
    ) -> Result<Dealer, TrustError> {
        if !round.dealers.contains_key(&me) {
            return Err(TrustError::BadMembers(format!("member {me} is no dealer of this round")));
        }
        let secret: Scalar = match (&round.previous, share) {
            (None, None) => random_scalar(randomness),
            (Some(_), Some(share)) if share.member() == me => share.share().clone(),
            _ => return Err(TrustError::BadShare),
        };
        let polynomial = Polynomial::random(secret, round.threshold(), randomness);
        let commitment = polynomial.commitment()?;
        round.check_commitment(me, &commitment).map_err(|_| TrustError::BadShare)?;
        let digest = commitment_digest(&commitment);
        Ok(Dealer { id: round.id(), round, me, polynomial, commitment, digest, acks: BTreeMap::new() })
    }

    /// What to send to a player, over a private session; nothing for who is no player.
    pub fn deal(&self, player: u32) -> Option<Deal> {
        self.round.players.contains_key(&player).then(|| Deal {
            round: self.id,
            dealer: self.me,
            commitment: self.commitment.clone(),
            share: SecretShare::new(&self.polynomial.at(player)),
        })
    }

    /// Takes a player's ack.
    ///
    /// # Errors
    /// A [`Fault`] of the player.
    pub fn take_ack(&mut self, ack: &DealAck) -> Result<(), Fault> {
        let fault = |what| Fault { member: ack.player, what };
        let key = self.round.players.get(&ack.player).ok_or(fault(FaultKind::NotMember))?;
        if ack.round != self.id || ack.dealer != self.me || ack.commitment != self.digest {
            return Err(fault(FaultKind::WrongRound));
        }
        ack.verify(key).map_err(|_| fault(FaultKind::BadSignature))?;
        self.acks.insert(ack.player, ack.signature);
        Ok(())
    }

    /// Players that have not acknowledged yet.
    pub fn missing(&self) -> impl Iterator<Item = u32> {
        self.round.players.keys().copied().filter(|player| !self.acks.contains_key(player))
    }

    /// What to publish, once at most f players are missing: their shares are revealed. The caller waits
    /// for more acks as long as it cares to; nothing while too many are missing.
    pub fn log(&self, key: &KeyPair) -> Option<DealLog> {
        if self.missing().count() > self.round.reveals_max() {
            return None;
        }
        let answer = |player: &u32| match self.acks.get(player) {
            Some(ack) => Answer::Acked(*ack),
            None => Answer::Revealed(SecretShare::new(&self.polynomial.at(*player))),
        };
        let answers = self.round.players.keys().map(|player| (*player, answer(player))).collect();
        Some(DealLog::sign(key, self.id, self.me, self.commitment.clone(), answers))
    }
}

/// Checks an ack's signature over its facts.
fn verify_ack(
    key: &[u8; 32],
    round: &Digest,
    dealer: u32,
    player: u32,
    commitment: &Digest,
    signature: &Signature,
) -> Result<(), TrustError> {
    let message = ack_message(round, dealer, player, commitment);
    crate::identity::verify(key, Context::DealAck, &message, signature)
}

#[cfg(test)]
mod tests;
