//! What may be ordered: the state that judges a batch (rows R1, R4).
//!
//! Every replica has the same [`Tables`] after the same block, and votes for a block only when each of its batches is
//! [`Judgement::Fresh`] there. So a batch that was ordered is never ordered again, whoever proposes it, and, where operations
//! are signed events of sources, neither is an event: consensus refuses it, and no application sees it a second time.
//!
//! - A batch is fresh when its name is above the last of its origin: a later life, or a higher sequence in the same.
//! - An [`Approval`] of a change of members is fresh in the epoch that it would end, when the change can be. The one that makes them
//!   [`Roster::quorum`] ends the epoch: nothing is fresh behind it until the next has begun.
//! - With an [`Admission`], each operation must pass it, and when it is an event, be the next of its source.
//!
//! Invariant: what is judged stale stays stale for ever; what waits for a predecessor may become fresh.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use weir_order::batcher;
use weir_order::intake::{Ordered, SignedEvent, Source, Verify};

use crate::members::{Approval, Change, MEMBERS_MAX, Member, Roster};
use crate::wire::{Batch, Malformed, Name, Reader};

/// What operations must be, when they are signed events of the leaderless intake (row R4). The same on every replica.
#[derive(Clone)]
pub struct Admission {
    /// Says whether an event's signature is right.
    pub verify: Arc<dyn Verify + Send + Sync>,
    /// Sources that may ever send.
    pub sources_max: usize,
}

/// What a batch is after some block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    /// It may come next.
    Fresh,
    /// It, or an event in it, was ordered already.
    Stale,
    /// An event in it must wait for the one before, or it for the next epoch.
    Early,
    /// It is no batch of signed events, a signature is wrong, or it approves of a change that cannot be.
    Wrong,
}

/// What was ordered up to a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tables {
    origins: BTreeMap<u32, (u64, u64)>,
    sources: Option<Ordered>,
    roster: Roster,
    /// What each member approves of, in this epoch.
    approvals: BTreeMap<u32, Change>,
}

/// What blocks that are not committed yet add.
#[derive(Debug, Clone, Default)]
pub struct Overlay {
    origins: BTreeMap<u32, (u64, u64)>,
    sources: BTreeMap<Source, u64>,
    approvals: BTreeMap<u32, Change>,
    next: Option<BTreeMap<u32, Member>>,
}

impl Overlay {
    /// The members of the next epoch, when a block ends this one.
    pub fn next(&self) -> Option<&BTreeMap<u32, Member>> {
        self.next.as_ref()
    }
}

fn events(body: &Bytes) -> Option<Vec<SignedEvent>> {
    // The empty batch holds nothing: it only brings the order on. Nor does an approval.
    if body.is_empty() || Approval::is_one(body) {
        return Some(Vec::new());
    }
    let operations = batcher::decode(body).ok()?;
    operations.into_iter().map(|operation| SignedEvent::decode(&body.slice_ref(operation))).collect()
}

/// Whether a batch is made of rightly signed events. Depends on nothing but the batch, so the answer may be kept.
pub fn is_admissible(admission: Option<&Admission>, body: &Bytes) -> bool {
    let Some(admission) = admission else { return true };
    events(body).is_some_and(|events| {
        (body.is_empty() || Approval::is_one(body) || !events.is_empty())
            && events.iter().all(|event| admission.verify.is_right(event))
    })
}

impl Tables {
    /// Before everything.
    pub fn new(admission: Option<&Admission>, roster: Roster) -> Tables {
        let sources = admission.map(|rules| Ordered::new(rules.sources_max));
        Tables { origins: BTreeMap::new(), sources, roster, approvals: BTreeMap::new() }
    }

    /// The members.
    pub fn roster(&self) -> &Roster {
        &self.roster
    }

    /// The next epoch begins.
    pub fn enter(&mut self, roster: Roster) {
        self.roster = roster;
        self.approvals.clear();
    }

    fn judge_approval(&self, overlay: &mut Overlay, origin: u32, body: &Bytes) -> Judgement {
        let Ok(Approval { epoch, change }) = Approval::decode(body.clone()) else { return Judgement::Wrong };
        match epoch.cmp(&self.roster.epoch) {
            std::cmp::Ordering::Less => return Judgement::Stale,
            std::cmp::Ordering::Greater => return Judgement::Early,
            std::cmp::Ordering::Equal => {}
        }
        let Ok(next) = self.roster.after(&change) else { return Judgement::Wrong };
        let said = |id: &u32| overlay.approvals.get(id).or_else(|| self.approvals.get(id));
        let others = self.roster.members.keys().filter(|id| **id != origin && said(id) == Some(&change));
        if others.count() + 1 >= self.roster.quorum() {
            overlay.next = Some(next);
        }
        overlay.approvals.insert(origin, change);
        Judgement::Fresh
    }

    /// The life and sequence of an origin's last batch.
    pub fn last_of(&self, overlay: &Overlay, origin: u32) -> (u64, u64) {
        overlay.origins.get(&origin).or_else(|| self.origins.get(&origin)).copied().unwrap_or_default()
    }

    /// Whether a name was passed by already, so that its batch can never be ordered.
    pub fn is_passed(&self, overlay: &Overlay, name: &Name) -> bool {
        (name.life, name.sequence) <= self.last_of(overlay, name.origin)
    }

    /// Judges a batch that [`is_admissible`] behind `overlay`, and adds it there when it is fresh.
    pub fn judge(&self, overlay: &mut Overlay, name: &Name, body: &Bytes) -> Judgement {
        if self.is_passed(overlay, name) {
            return Judgement::Stale;
        }
        if overlay.next.is_some() {
            return Judgement::Early;
        }
        if Approval::is_one(body) {
            let judgement = self.judge_approval(overlay, name.origin, body);
            if judgement == Judgement::Fresh {
                overlay.origins.insert(name.origin, (name.life, name.sequence));
            }
            return judgement;
        }
        let mut fresh: BTreeMap<Source, u64> = BTreeMap::new();
        if let Some(sources) = &self.sources {
            let Some(events) = events(body) else { return Judgement::Wrong };
            for event in events {
                let before = fresh.get(&event.source).or_else(|| overlay.sources.get(&event.source));
                let last = before.copied().unwrap_or_else(|| sources.last(&event.source));
                if event.sequence <= last {
                    return Judgement::Stale;
                }
                if event.sequence > last + 1 {
                    return Judgement::Early;
                }
                fresh.insert(event.source, event.sequence);
            }
        }
        overlay.sources.extend(fresh);
        overlay.origins.insert(name.origin, (name.life, name.sequence));
        Judgement::Fresh
    }

    /// Takes a batch that was ordered. Its signatures were checked by those who voted for it.
    pub fn ordered(&mut self, batch: &Batch) {
        let name = &batch.name;
        let last = self.origins.entry(name.origin).or_default();
        *last = (*last).max((name.life, name.sequence));
        if Approval::is_one(&batch.body) {
            if let Ok(approval) = Approval::decode(batch.body.clone()) {
                self.approvals.insert(name.origin, approval.change);
            }
            return;
        }
        if let Some(sources) = &mut self.sources {
            let all_right = |_: &SignedEvent| true;
            for event in events(&batch.body).into_iter().flatten() {
                // What it drops was refused by the vote already, but for a source too many.
                let _counted = sources.admit(&event.encode(), &all_right);
            }
        }
    }

    /// The bytes for a snapshot; equal tables have equal bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&(self.origins.len() as u32).to_le_bytes());
        for (origin, (life, sequence)) in &self.origins {
            out.extend_from_slice(&origin.to_le_bytes());
            out.extend_from_slice(&life.to_le_bytes());
            out.extend_from_slice(&sequence.to_le_bytes());
        }
        let sources = self.sources.as_ref().map(Ordered::encode).unwrap_or_default();
        out.extend_from_slice(&(sources.len() as u32).to_le_bytes());
        out.extend_from_slice(&sources);
        out.extend_from_slice(&self.roster.encode());
        out.extend_from_slice(&(self.approvals.len() as u32).to_le_bytes());
        for (origin, change) in &self.approvals {
            let approval = Approval { epoch: self.roster.epoch, change: change.clone() }.encode();
            out.extend_from_slice(&origin.to_le_bytes());
            out.extend_from_slice(&(approval.len() as u32).to_le_bytes());
            out.extend_from_slice(&approval);
        }
        out
    }

    /// Reads what [`Tables::encode`] wrote, under the same rules.
    pub fn decode(bytes: Bytes, admission: Option<&Admission>) -> Result<Tables, Malformed> {
        let mut from = Reader(bytes);
        let count = from.count(crate::members::MEMBERS_EVER_MAX, "too many origins")?;
        let mut origins = BTreeMap::new();
        for _ in 0..count {
            origins.insert(from.u32()?, (from.u64()?, from.u64()?));
        }
        let length = from.u32()? as usize;
        let sources = from.bytes(length)?;
        let roster = Roster::take(&mut from)?;
        let count = from.count(MEMBERS_MAX, "too many approvals")?;
        let mut approvals = BTreeMap::new();
        for _ in 0..count {
            let origin = from.u32()?;
            let length = from.u32()? as usize;
            approvals.insert(origin, Approval::decode(from.bytes(length)?)?.change);
        }
        from.end()?;
        let sources = match admission {
            Some(rules) => {
                let read = Ordered::decode(&sources, rules.sources_max);
                Some(read.ok_or(Malformed("the table of sources cannot be read"))?)
            }
            None if sources.is_empty() => None,
            None => return Err(Malformed("it has a table of sources, and this replica has no admission")),
        };
        Ok(Tables { origins, sources, roster, approvals })
    }
}
