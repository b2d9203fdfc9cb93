//! From what the core says to records: one for the core thread.

use super::Keeper;
use crate::aside::{Case, EntryName};
use crate::audit::links::batch_records;
use crate::audit::record::is_recorded;
use crate::audit::{EventRecord, KeysRecord, LeftOut, Misdeed, Record, SeenFault, Wrong, kind_of};
use crate::core::admission::Unauthentic;
use crate::core::keys::GroupKeys;
use crate::core::{DecidedHeader, Outcome, Output};
use std::collections::BTreeMap;
use weir_model::Version;
use weir_model::event::{SignedEvent, SourceId};
use weir_model::signed::{GroupSignature, Signature};
use weir_trust::threshold::Fault;

/// Gives the keeper what happens. Without a keeper it does nothing.
#[derive(Default)]
pub struct Observer {
    keeper: Option<Keeper>,
    /// The phase whose keys were recorded last.
    phase: u64,
    /// Faults of dealers that were recorded, as far as they are remembered.
    faults: Vec<(u64, Fault)>,
    /// How often each controller ordered what it may not.
    ordered: BTreeMap<SourceId, u64>,
    /// What says under which key batches are signed until the group has one, where the domain was converted.
    signed_before: Option<Record>,
}

impl Observer {
    /// For a keeper, if there is one.
    pub fn new(keeper: Option<Keeper>) -> Observer {
        Observer { keeper, ..Observer::default() }
    }

    /// With what says under which key batches are signed until the group has one.
    pub fn signed_before(self, signed_before: Option<Record>) -> Observer {
        Observer { signed_before, ..self }
    }

    /// The state that was taken over is one of a converted domain whose group has no key yet.
    pub fn signs_as_before(&mut self) {
        if let (Some(keeper), Some(record)) = (&self.keeper, self.signed_before.take()) {
            keeper.seen(record);
        }
    }

    /// The core took an entry of the order, and says this.
    pub fn ordered(&mut self, index: u64, outputs: &[Output], keys: &GroupKeys) {
        if self.keeper.is_none() {
            return;
        }
        let mut records: Vec<Record> = Vec::new();
        for output in outputs {
            match output {
                Output::Decided { event, outcome } => {
                    records.extend(self.misdeed(event, outcome));
                    records.push(Record::Event(Box::new(EventRecord::new(index, event, outcome))));
                }
                Output::Repaired { target, version, keys } => {
                    let (actuator, version, keys) = (target.clone(), *version, *keys);
                    records.push(Record::Repair { index, actuator, version, keys });
                }
                Output::Prepared { header, updates } => {
                    let updates = updates.iter().map(|proven| &proven.update);
                    records.extend(batch_records(index, &header.header, updates));
                    if let Some(signature) = header.signature() {
                        records.push(signed(header, signature.clone(), 0));
                    }
                }
                Output::KeysChanged => records.extend(self.keys(index, keys)),
                _ => {}
            }
        }
        if let Some(keeper) = &self.keeper {
            keeper.ordered(index, records);
        }
    }

    /// An entry of the order was set aside by a release before.
    pub fn set_aside(&mut self, index: u64, sha256: [u8; 32]) {
        if let Some(keeper) = &self.keeper {
            keeper.ordered(index, vec![Record::SetAside { index, sha256 }]);
        }
    }

    /// The members agreed to set an entry of the order aside. `keys`: theirs.
    pub fn left_out(&mut self, case: &Case, keys: &BTreeMap<u32, [u8; 32]>) {
        let Some(keeper) = &self.keeper else { return };
        let EntryName { index, sha256 } = case.entry;
        let promise =
            |(member, signature): (&u32, &Signature)| Some((*member, *keys.get(member)?, *signature));
        let promises = case.promises.iter().filter_map(promise).collect();
        let left_out = LeftOut { index, sha256, word: case.word.clone(), promises };
        keeper.ordered(index, vec![Record::LeftOut(Box::new(left_out))]);
    }

    /// The core says this of something that is not ordered.
    pub fn seen(&self, outputs: &[Output]) {
        let Some(keeper) = &self.keeper else { return };
        for output in outputs {
            match output {
                Output::Acked(acks) => keeper.seen(Record::Acks((**acks).clone())),
                Output::Forged { actuator, reason, count } if is_recorded(*count) => {
                    let who = SourceId::of_actuator(actuator);
                    let what = Wrong::ForgedAcks(reason.to_string());
                    keeper.seen(Record::Misdeed(Box::new(Misdeed { who, what, count: *count })));
                }
                _ => {}
            }
        }
    }

    /// The group's signature over a batch came.
    pub fn signed(&self, header: &DecidedHeader, signature: &GroupSignature, keys: &GroupKeys) {
        if let Some(keeper) = &self.keeper {
            keeper.seen(signed(header, signature.clone(), keys.phase()));
        }
    }

    /// A state was taken over.
    pub fn took_over(&mut self, index: u64, version: Version, keys: &GroupKeys) {
        let records = self.keys(index, keys);
        if let Some(keeper) = &self.keeper {
            keeper.took_over(index, version);
            records.into_iter().for_each(|record| keeper.seen(record));
        }
    }

    fn keys(&mut self, index: u64, keys: &GroupKeys) -> Vec<Record> {
        let mut records = Vec::new();
        for (phase, fault) in keys.faults().iter().filter(|fault| !self.faults.contains(fault)) {
            let fault = SeenFault { phase: *phase, member: fault.member, what: fault.what, proof: None };
            records.push(Record::Fault(Box::new(fault)));
        }
        self.faults = keys.faults().to_vec();
        if let (Some(group), Some(made_by)) = (keys.group(), keys.made_by())
            && keys.phase() != self.phase
        {
            self.phase = keys.phase();
            let members = made_by.round().players().clone();
            let record = KeysRecord { index, phase: self.phase, members, group: group.clone() };
            records.push(Record::Keys(Box::new(record)));
        }
        records
    }
}

impl Observer {
    /// A controller ordered what no operator signed. Its own signature over that was checked before.
    fn misdeed(&mut self, event: &SignedEvent, outcome: &Outcome) -> Option<Record> {
        let Outcome::Unauthentic(reason @ (Unauthentic::Unsigned | Unauthentic::Forged)) = outcome else {
            return None;
        };
        // Only of those that are registered, so they are few.
        let count = self.ordered.entry(event.event.source.clone()).or_default();
        *count += 1;
        let count = *count;
        let what = Wrong::Ordered {
            kind: kind_of(&event.event.body).to_owned(),
            sequence: event.event.sequence,
            reason: reason.to_string(),
        };
        let who = event.event.source.clone();
        is_recorded(count).then(|| Record::Misdeed(Box::new(Misdeed { who, what, count })))
    }
}

fn signed(header: &DecidedHeader, signature: GroupSignature, phase: u64) -> Record {
    Record::Signed { header: header.header.clone(), signature, phase }
}
