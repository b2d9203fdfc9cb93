//! From one order to another (rows R1, R2): how an order ends, what the next one begins with, and how the group's key takes the place of the
//! key that signed before. The steps, and what a crash leaves at each: `docs/decisions/0053-an-order-that-ends.md`.
//!
//! Invariants
//! - An order ends with an entry ([`EventBody::Converted`]) that it decided as any other. Nothing behind it is carried out, in a replay either;
//!   who waits for it hears nothing, so it may be asked again and is not done twice.
//! - What goes on has the same state (tables of clients, numbers that were used, versions, identities, operators), one epoch later. What is
//!   desired of actuators is signed again for that epoch at its own versions: what is in force stays in force, and what was on its way can go.
//! - Only a controller that is alone, and is believed, ends its order. In a group the event is refused, whoever says it.
//! - The end may be taken back, by the same controller in the same order ([`GroupOrder::Alone`]). Whoever orders that has seen that the group ordered
//!   nothing. It goes on two epochs later: above what the group may have sent.
//! - In a domain that was converted the key from before signs until the group has one of its own. Then, at the same place of the order at
//!   every member, the old key names the new one (ed25519: the same bytes everywhere), the epoch rises once more, and all is signed again.

use super::keys::FIRST_OF;
use super::step::{Output, Signer};
use super::{Core, Held, Item, Scheduler};
use std::sync::Arc;
use weir_base::codec::{decode, encode, encoded_bytes};
use weir_model::conversion::{
    CONVERSION_TABLE, Conversion, GroupOrder, LISTEN_BYTES_MAX, SUCCESSION_TABLE, Succeeded, Succession,
};
use weir_model::event::{Event, EventBody};
use weir_model::signed::{GroupKey, GroupSignature, PATH_MAX, Signature};
use weir_model::{Dependency, Label, Update, Version};
use weir_store::{Rejection, Store, View};

/// A conversion that was decided, and the epoch that it ended.
pub type Kept = (Conversion, u64);
/// The key in force, with the word of the one before.
pub(super) type Named = (Succession, Signature);

/// The conversion that was decided last, and was not taken back.
pub fn kept(store: &Store) -> Option<Kept> {
    let kept: Kept = decode(&store.get(CONVERSION_TABLE, b"")?.value).ok()?;
    (kept.0.order != GroupOrder::Alone).then_some(kept)
}

/// Whether an item of an order that has ended takes its end back.
pub(super) fn takes_back(item: &Item) -> bool {
    let Item::Event { event, .. } = item else { return false };
    matches!(&event.event.body, EventBody::Converted(conversion) if conversion.order == GroupOrder::Alone)
}

/// The succession in force.
pub(super) fn named(store: &Store) -> Option<Named> {
    store.get(SUCCESSION_TABLE, b"").and_then(|cell| decode(&cell.value).ok())
}

fn refused(problem: &str) -> Rejection {
    Rejection::Reference { resource: "conversion".to_string(), problem: problem.to_string() }
}

/// Takes the end of an order in, or what takes it back. `may_end`: it is that of a controller that is alone.
pub(super) fn decide(
    view: &mut View<'_>,
    (may_end, has_ended): (bool, bool),
    epoch: u64,
    event: &Event,
) -> Result<(), Rejection> {
    let EventBody::Converted(conversion) = &event.body else { return Ok(()) };
    if !may_end {
        return Err(refused("this is a group's order: only that of a controller that is alone is converted"));
    }
    match conversion.order {
        GroupOrder::Raft => {}
        GroupOrder::Bft => return Err(refused("an order becomes one over raft first")),
        GroupOrder::Alone if has_ended => {
            return view.put(CONVERSION_TABLE, b"", encode(&(&**conversion, epoch)));
        }
        GroupOrder::Alone => return Err(refused("this order has not ended: there is nothing to take back")),
    }
    if conversion.member == 0 || conversion.listen.len() > LISTEN_BYTES_MAX {
        return Err(refused("it needs the number of this controller, from 1, and an ADDRESS:PORT"));
    }
    view.put(CONVERSION_TABLE, b"", encode(&(&**conversion, epoch)))
}

impl Core {
    /// Whether this order may end here.
    pub(super) fn may_end(&self) -> bool {
        self.believes_one && self.keys.len() == 1 && matches!(self.signer, Signer::Key(_))
    }

    /// The conversion that ended this order: nothing is carried out any more.
    pub fn ended(&self) -> Option<&Conversion> {
        self.conversion.as_ref().filter(|(_, epoch)| *epoch == self.epoch).map(|(conversion, _)| conversion)
    }

    /// An event about it was decided.
    pub(super) fn converted(&mut self, conversion: &Conversion, out: &mut Vec<Output>) {
        self.know_conversion();
        if conversion.order == GroupOrder::Alone {
            self.epoch += 2;
            self.resign(true, "this controller goes on alone", out);
        }
    }

    /// What is in the store about it.
    pub(super) fn know_conversion(&mut self) {
        self.conversion = kept(&self.store);
        self.named = named(&self.store);
        if self.conversion.is_some() {
            Arc::make_mut(&mut self.group_keys).set_first_of(FIRST_OF);
        }
    }

    /// Goes on as the first member of a group, after the entry that ended the order of this controller.
    pub fn convert(&mut self) -> Option<Conversion> {
        let conversion = self.ended()?.clone();
        self.epoch += 1;
        self.resign(true, "this controller becomes a member of a group", &mut Vec::new());
        Some(conversion)
    }

    /// Whether the key from before still signs.
    pub fn signs_as_before(&self) -> bool {
        self.conversion.is_some() && self.group_keys.key().is_none()
    }

    /// The group has a key of its own for the first time: the one from before names it.
    pub(super) fn succeed(&mut self, out: &mut Vec<Output>) {
        let (Some(GroupKey::Threshold(key)), Signer::SharesAfter(before)) =
            (self.group_keys.key(), &self.signer)
        else {
            return;
        };
        if self.conversion.is_none() || self.named.is_some() {
            return;
        }
        let succession = Succession { domain: self.domain.clone(), number: 1, epoch: self.epoch + 1, key };
        let Some(by) = before.succeed(&succession) else { return };
        let version = Version(self.store.version().0 + 1);
        let mut view = self.store.view();
        if let Err(error) = view.put(SUCCESSION_TABLE, b"", encode(&(&succession, by))) {
            // Its size is fixed, and so is that of everything else of the table.
            unreachable!("the succession has no room: {error}");
        }
        let writes = view.into_writes();
        self.store.commit(version, writes);
        self.epoch = succession.epoch;
        tracing::info!(epoch = self.epoch, "the group's own key takes the place of the one from before");
        self.named = Some((succession, by));
        self.resign(false, "the group's own key signs from now on: everything is signed again", out);
    }

    /// A signature of the group as actuators take it, whichever key they were given.
    pub fn proven(&self, signature: GroupSignature) -> GroupSignature {
        match (&self.named, signature) {
            (Some((succession, by)), GroupSignature::Threshold(signature)) => {
                let succession = succession.clone();
                GroupSignature::Succeeded(Box::new(Succeeded { succession, by: *by, signature }))
            }
            (_, signature) => signature,
        }
    }

    /// Signs again what is desired, for the epoch of now. Sessions end: actuators tell anew what they have. Where replicas must come to the same, only
    /// what is a function of the order is kept (`whole` is false): what is to be deleted is found by what actuators tell.
    fn resign(&mut self, whole: bool, reason: &str, out: &mut Vec<Output>) {
        let wanted = |held: &&Held| whole || !held.is_delete();
        let taken = |held: &Held| (held.proven.update.clone(), held.after.to_vec());
        let kept: Vec<(Update, Vec<Dependency>)> = match whole {
            true => self.scheduler.held().filter(wanted).map(taken).collect(),
            false => self.scheduler.desired_held().filter(wanted).map(taken).collect(),
        };
        let targets: Vec<Label> = self.scheduler.target_names().cloned().collect();
        targets.iter().for_each(|target| self.scheduler.close(target, reason, out));
        let leads = self.scheduler.leads();
        let mut scheduler = Scheduler::new(self.scheduler.settings());
        scheduler.counters = self.scheduler.counters;
        scheduler.decided(self.store.version());
        targets.iter().for_each(|target| scheduler.add_target(target));
        self.scheduler = scheduler;
        let index = self.store.version();
        let mut rest = kept.into_iter();
        loop {
            let (updates, after): (Vec<Update>, Vec<Vec<Dependency>>) =
                rest.by_ref().take(1 << PATH_MAX).unzip();
            if updates.is_empty() {
                break;
            }
            let (header, proven) = self.sign_chunk(index, updates);
            let proven: Vec<_> = proven.into_iter().map(Arc::new).collect();
            out.push(Output::Prepared { header: header.clone(), updates: proven.clone() });
            if header.signature().is_none() {
                out.push(Output::Sign(header.clone()));
            }
            for (proven, after) in proven.into_iter().zip(after) {
                let bytes = encoded_bytes(&proven.update);
                self.scheduler.restore(Held { header: header.clone(), proven, after: after.into(), bytes });
            }
        }
        self.scheduler.lead(leads, out);
    }
}

#[cfg(test)]
mod tests;
