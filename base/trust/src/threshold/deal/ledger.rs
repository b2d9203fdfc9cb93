//! What everybody makes of the dealers' logs, in the order's order: who dealt rightly, and the group.

use super::messages::{Answer, DealLog, commitment_digest};
use super::{Digest, Fault, FaultKind, Round, verify_ack};
use crate::TrustError;
use crate::threshold::field::{Scalar, weights_at_zero};
use crate::threshold::group::GroupPublic;
use crate::threshold::polynomial::{Commitment, public};
use std::collections::BTreeMap;

/// The logs of a round so far.
#[derive(Clone, Debug)]
pub struct Ledger {
    round: Round,
    id: Digest,
    /// The first valid log of each dealer, at most as many as the round needs.
    logs: BTreeMap<u32, DealLog>,
}

/// What a log did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It counts; this many more are needed.
    Needs(usize),
    /// The round has its outcome, from this log or from earlier ones.
    Complete,
}

impl Ledger {
    /// An empty ledger.
    pub fn new(round: Round) -> Ledger {
        Ledger { id: round.id(), round, logs: BTreeMap::new() }
    }

    /// The round.
    pub fn round(&self) -> &Round {
        &self.round
    }

    fn progress(&self) -> Progress {
        match self.round.dealers_needed() - self.logs.len() {
            0 => Progress::Complete,
            more => Progress::Needs(more),
        }
    }

    /// Takes the next log of the order. Logs after the round is complete change nothing.
    ///
    /// # Errors
    /// A [`Fault`] of the dealer, provable where its signature verified; the log does not count.
    pub fn add(&mut self, log: &DealLog) -> Result<Progress, Fault> {
        self.check(log)?;
        match self.logs.get(&log.dealer) {
            Some(known) if known.commitment != log.commitment => {
                return Err(Fault { member: log.dealer, what: FaultKind::Equivocated });
            }
            Some(_) => {}
            None if self.progress() == Progress::Complete => {}
            None => {
                self.logs.insert(log.dealer, log.clone());
            }
        }
        Ok(self.progress())
    }

    fn check(&self, log: &DealLog) -> Result<(), Fault> {
        let fault = |what| Fault { member: log.dealer, what };
        let key = self.round.dealers().get(&log.dealer).ok_or(fault(FaultKind::NotMember))?;
        if log.round != self.id {
            return Err(fault(FaultKind::WrongRound));
        }
        log.verify(key).map_err(|_| fault(FaultKind::BadSignature))?;
        self.round.check_commitment(log.dealer, &log.commitment)?;
        if !log.answers.keys().eq(self.round.players().keys()) {
            return Err(fault(FaultKind::BadLog));
        }
        let revealed = log.answers.values().filter(|answer| matches!(answer, Answer::Revealed(_))).count();
        if revealed > self.round.reveals_max() {
            return Err(fault(FaultKind::BadLog));
        }
        let digest = commitment_digest(&log.commitment);
        for (player, answer) in &log.answers {
            self.check_answer(log, &digest, *player, answer).map_err(|_| fault(FaultKind::BadLog))?;
        }
        Ok(())
    }

    fn check_answer(
        &self,
        log: &DealLog,
        digest: &Digest,
        player: u32,
        answer: &Answer,
    ) -> Result<(), TrustError> {
        match answer {
            Answer::Acked(signature) => {
                let key = self.round.players().get(&player).ok_or(TrustError::BadKey)?;
                verify_ack(key, &self.id, log.dealer, player, digest, signature)
            }
            Answer::Revealed(share) if public(&share.scalar()?)? == log.commitment.at(player) => Ok(()),
            Answer::Revealed(_) => Err(TrustError::BadShare),
        }
    }

    /// The logs that make the outcome, each with what it counts for. Complete rounds only.
    pub(super) fn chosen(&self) -> Vec<(Scalar, &DealLog)> {
        let weights = match self.round.previous {
            None => vec![Scalar::from_u32(1); self.logs.len()],
            Some(_) => weights_at_zero(&self.logs.keys().copied().collect::<Vec<u32>>()),
        };
        weights.into_iter().zip(self.logs.values()).collect()
    }

    /// The group that came out.
    ///
    /// # Errors
    /// [`TrustError::RoundOpen`] before enough dealers' logs were valid.
    ///
    /// # Panics
    /// When resharing would change the group's key: the checks of commitments exclude it.
    pub fn outcome(&self) -> Result<GroupPublic, TrustError> {
        if self.progress() != Progress::Complete {
            let wanted = self.round.dealers_needed();
            return Err(TrustError::RoundOpen { given: self.logs.len(), wanted });
        }
        let chosen = self.chosen();
        let parts: Vec<(Scalar, &Commitment)> =
            chosen.iter().map(|(weight, log)| (weight.clone(), &log.commitment)).collect();
        let members = self.round.players().keys().copied().collect();
        let group = GroupPublic::new(members, Commitment::weighted(&parts))?;
        if let Some(previous) = &self.round.previous {
            assert_eq!(previous.key(), group.key(), "resharing keeps the group's key");
        }
        Ok(group)
    }
}
