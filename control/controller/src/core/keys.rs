//! The group's threshold key as the order knows it (rows C3, C5): rounds of dealing, and the group in force.
//!
//! Everything public about the key goes through the domain's own order, so every replica comes to the same group at the
//! same place, and a crash of any of them, at any time, leaves a round that goes on or is begun anew. What is secret
//! stays with each replica ([`crate::quorum`]).
//!
//! Invariants
//! - A round begins on the group in force and with the next phase; phases are never used twice. A round that begins while
//!   another is open takes its place: the open one cannot come to an end any more.
//! - The group in force changes only when a round has the logs that it needs, and its key never changes after the first.
//! - The logs that made the group in force are kept, so that a member which slept can still put its share together.
//! - Whether controllers endorse batches with their own keys is decided in the order as well, so that all replicas plan the
//!   same list of controllers for the switches ([`GroupKeys::controllers`]).

use crate::Error;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use weir_model::Label;
use weir_model::entry::ControllersEntry;
use weir_model::signed::GroupKey;
use weir_trust::threshold::{DealLog, Fault, FaultKind, GroupPublic, Ledger, Progress, Round};

/// As many members at least make the first key of a domain that was converted: what one or two made, one would have known.
pub const FIRST_OF: usize = 3;
/// Most faults that are remembered, the newest.
pub const FAULTS_MAX: usize = 256;

/// One step, as the order carries it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyStep {
    /// A round begins.
    Begin(Round),
    /// What a dealer publishes.
    Log(DealLog),
    /// From now on controllers endorse batches with their own keys, or do not.
    Endorse(bool),
}

/// A round with its logs, in the order's order.
#[derive(Clone, Debug)]
pub struct Logged {
    ledger: Ledger,
    logs: Vec<DealLog>,
}

impl Logged {
    fn new(round: Round) -> Logged {
        Logged { ledger: Ledger::new(round), logs: Vec::new() }
    }

    /// Takes the next log; tells whether the round is complete.
    fn add(&mut self, log: DealLog) -> Result<bool, Fault> {
        let progress = self.ledger.add(&log)?;
        if !self.logs.iter().any(|known| known.dealer == log.dealer) {
            self.logs.push(log);
        }
        Ok(progress == Progress::Complete)
    }

    /// The round.
    pub fn round(&self) -> &Round {
        self.ledger.round()
    }

    /// Its logs, for a player that puts its share together.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Whether a dealer's log is there.
    pub fn has(&self, dealer: u32) -> bool {
        self.logs.iter().any(|log| log.dealer == dealer)
    }

    fn to_kept(&self) -> (Round, Vec<DealLog>) {
        (self.round().clone(), self.logs.clone())
    }

    fn of_kept((round, logs): (Round, Vec<DealLog>)) -> Result<Logged, Fault> {
        let mut logged = Logged::new(round);
        for log in logs {
            logged.add(log)?;
        }
        Ok(logged)
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct GroupKeys {
    /// Phase of the round that began last.
    begun: u64,
    in_force: Option<(Logged, GroupPublic)>,
    open: Option<Logged>,
    faults: Vec<(u64, Fault)>,
    endorses: bool,
    /// As many members at least make the first key.
    first_of: usize,
}

/// What a snapshot keeps.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct KeptKeys {
    begun: u64,
    in_force: Option<(Round, Vec<DealLog>)>,
    open: Option<(Round, Vec<DealLog>)>,
    faults: Vec<(u64, u32, FaultKind)>,
}

impl GroupKeys {
    /// Phase for the next round.
    pub fn next_phase(&self) -> u64 {
        self.begun + 1
    }

    /// The group that signs.
    pub fn group(&self) -> Option<&GroupPublic> {
        self.in_force.as_ref().map(|(_, group)| group)
    }

    /// The group's public key: the same in every phase.
    pub fn key(&self) -> Option<GroupKey> {
        self.group().map(|group| GroupKey::Threshold(group.key()))
    }

    /// Phase of the group that signs; 0 before there is one.
    pub fn phase(&self) -> u64 {
        self.in_force.as_ref().map_or(0, |(logged, _)| logged.round().phase())
    }

    /// Members of the group that signs.
    pub fn members(&self) -> BTreeSet<u32> {
        self.group().map(|group| group.members().clone()).unwrap_or_default()
    }

    /// The round that made the group in force, with its logs.
    pub fn made_by(&self) -> Option<&Logged> {
        self.in_force.as_ref().map(|(logged, _)| logged)
    }

    /// Whether controllers endorse batches with their own keys.
    pub fn endorses(&self) -> bool {
        self.endorses
    }

    /// The controllers whose own signatures switches shall take: the members of the group in force, by the keys with which
    /// they were dealt their shares. Nothing when they do not endorse.
    pub fn controllers(&self) -> Option<ControllersEntry> {
        let (logged, group) = self.in_force.as_ref().filter(|_| self.endorses)?;
        let members = logged.round().players().iter().map(|(id, key)| (*id, *key)).collect();
        Some(ControllersEntry { phase: logged.round().phase(), threshold: group.threshold() as u32, members })
    }

    /// As many members at least make the first key.
    pub fn first_of(&self) -> usize {
        self.first_of
    }

    pub(super) fn set_first_of(&mut self, count: usize) {
        self.first_of = count;
    }

    /// The round that goes on.
    pub fn open(&self) -> Option<&Logged> {
        self.open.as_ref()
    }

    /// What dealers were found to have done, with the phase: the newest [`FAULTS_MAX`].
    pub fn faults(&self) -> &[(u64, Fault)] {
        &self.faults
    }

    /// Takes the next step of the order; tells whether anything changed.
    pub(crate) fn step(&mut self, domain: &Label, step: KeyStep) -> bool {
        match step {
            KeyStep::Begin(round) => self.begin(domain, round),
            KeyStep::Log(log) => self.log(log),
            KeyStep::Endorse(endorses) => std::mem::replace(&mut self.endorses, endorses) != endorses,
        }
    }

    fn begin(&mut self, domain: &Label, round: Round) -> bool {
        let fits = round.domain() == domain
            && round.phase() == self.next_phase()
            && round.previous() == self.group()
            && (round.previous().is_some() || round.players().len() >= self.first_of)
            && round.check().is_ok();
        if fits {
            self.begun = round.phase();
            self.open = Some(Logged::new(round));
        } else {
            // Two leaders may want the same, one after the other.
            tracing::info!(phase = round.phase(), "ignoring a resharing round that does not fit");
        }
        fits
    }

    fn log(&mut self, log: DealLog) -> bool {
        let Some(open) = self.open.as_mut().filter(|open| open.round().id() == log.round) else {
            return false;
        };
        match open.add(log) {
            Ok(false) => {}
            Ok(true) => self.complete(),
            Err(fault) => {
                tracing::warn!(%fault, "invalid dealer log");
                let phase = self.begun;
                self.faults.push((phase, fault));
                let surplus = self.faults.len().saturating_sub(FAULTS_MAX);
                self.faults.drain(..surplus);
            }
        }
        true
    }

    fn complete(&mut self) {
        let Some(open) = self.open.take() else { return };
        match open.ledger().outcome() {
            Ok(group) => {
                tracing::info!(phase = open.round().phase(), members = ?group.members(), "the group has its key");
                self.in_force = Some((open, group));
            }
            Err(error) => unreachable!("a complete round has an outcome: {error}"),
        }
    }

    pub(super) fn to_kept(&self) -> KeptKeys {
        KeptKeys {
            begun: self.begun,
            in_force: self.in_force.as_ref().map(|(logged, _)| logged.to_kept()),
            open: self.open.as_ref().map(Logged::to_kept),
            faults: self.faults.iter().map(|(phase, fault)| (*phase, fault.member, fault.what)).collect(),
        }
    }

    pub(super) fn set_endorses(&mut self, endorses: bool) {
        self.endorses = endorses;
    }

    pub(super) fn of_kept(kept: KeptKeys) -> Result<GroupKeys, Error> {
        let damaged =
            |error: &dyn std::fmt::Display| Error::SnapshotDamaged(format!("the group's key: {error}"));
        let logged = |kept: Option<(Round, Vec<DealLog>)>| {
            kept.map(Logged::of_kept).transpose().map_err(|error| damaged(&error))
        };
        let in_force = match logged(kept.in_force)? {
            Some(logged) => {
                let group = logged.ledger().outcome().map_err(|error| damaged(&error))?;
                Some((logged, group))
            }
            None => None,
        };
        let fault = |(phase, member, what)| (phase, Fault { member, what });
        Ok(GroupKeys {
            begun: kept.begun,
            in_force,
            open: logged(kept.open)?,
            faults: kept.faults.into_iter().map(fault).collect(),
            endorses: false,
            first_of: 0,
        })
    }
}

#[cfg(test)]
pub(super) mod tests;
