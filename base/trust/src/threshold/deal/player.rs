//! A player: checks what it is dealt, and adds up its shares when the round is over.

use super::ledger::Ledger;
use super::messages::{Answer, Deal, DealAck, commitment_digest};
use super::{Digest, Fault, FaultKind, Round};
use crate::TrustError;
use crate::identity::KeyPair;
use crate::threshold::field::Scalar;
use crate::threshold::group::{GroupPublic, MemberSecret};
use crate::threshold::polynomial::public;
use std::collections::BTreeMap;

/// One player's part in a round.
#[derive(Debug)]
pub struct Player {
    round: Round,
    id: Digest,
    me: u32,
    /// What was acknowledged, by dealer: digest of the commitment, and the share.
    kept: BTreeMap<u32, (Digest, Scalar)>,
}

impl Player {
    /// A player of the round.
    ///
    /// # Errors
    /// [`TrustError::BadMembers`] when `me` is no player of it.
    pub fn new(round: Round, me: u32) -> Result<Player, TrustError> {
        if !round.players().contains_key(&me) {
            return Err(TrustError::BadMembers(format!("member {me} is no player of this round")));
        }
        Ok(Player { id: round.id(), round, me, kept: BTreeMap::new() })
    }

    /// Takes a deal, from the dealer's own session. The ack may leave when the deal is kept durably.
    ///
    /// # Errors
    /// A [`Fault`] of the dealer; it gets no ack, and must reveal the share.
    pub fn take(&mut self, deal: &Deal, key: &KeyPair) -> Result<DealAck, Fault> {
        let fault = |what| Fault { member: deal.dealer, what };
        if deal.round != self.id {
            return Err(fault(FaultKind::WrongRound));
        }
        if !self.round.dealers().contains_key(&deal.dealer) {
            return Err(fault(FaultKind::NotMember));
        }
        self.round.check_commitment(deal.dealer, &deal.commitment)?;
        let share = deal.share.scalar().map_err(|_| fault(FaultKind::BadShare))?;
        if public(&share) != Ok(deal.commitment.at(self.me)) {
            return Err(fault(FaultKind::BadShare));
        }
        let digest = commitment_digest(&deal.commitment);
        match self.kept.get(&deal.dealer) {
            Some((known, _)) if *known != digest => return Err(fault(FaultKind::Equivocated)),
            _ => self.kept.insert(deal.dealer, (digest, share)),
        };
        Ok(DealAck::sign(key, self.id, deal.dealer, self.me, digest))
    }

    /// The group that came out, and this player's share.
    ///
    /// # Errors
    /// [`TrustError::RoundOpen`] before the ledger is complete, [`TrustError::ShareLost`] when a share
    /// that was acknowledged is not here, [`TrustError::BadMembers`] for a ledger of another round.
    pub fn finish(&self, ledger: &Ledger) -> Result<(GroupPublic, MemberSecret), TrustError> {
        if ledger.round().id() != self.id {
            return Err(TrustError::BadMembers("the ledger is of another round".into()));
        }
        let group = ledger.outcome()?;
        let mut sum = Scalar::from_u32(0);
        for (weight, log) in ledger.chosen() {
            let share = match log.answers.get(&self.me) {
                Some(Answer::Revealed(share)) => share.scalar()?,
                _ => match self.kept.get(&log.dealer) {
                    Some((digest, share)) if *digest == commitment_digest(&log.commitment) => share.clone(),
                    _ => return Err(TrustError::ShareLost(log.dealer)),
                },
            };
            sum = sum.plus(&weight.times(&share));
        }
        let secret = MemberSecret::new(&group, self.me, sum)?;
        Ok((group, secret))
    }
}
