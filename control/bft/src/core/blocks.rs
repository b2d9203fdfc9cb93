//! Which blocks are right: building one when this replica leads, judging what others propose, and saying when a block may be final.

use std::collections::{BTreeSet, VecDeque};

use weir_order::Waiting;

use super::{Ancestry, Certifying, Core, Known, Leading, Output, Tag, To, Verifying, WAITING_MAX};
use crate::rules::{Judgement, Overlay};
use crate::wire::{Block, Digest, Message, Ref};

impl Core {
    /// Consensus asks this replica to propose behind `parent`.
    pub fn lead(&mut self, ticket: u64, parent: Digest, now_ms: u64, out: &mut Vec<Output>) {
        let timers = &self.settings.timers;
        let until_ms = now_ms + timers.idle.as_millis() as u64;
        let rest_until_ms = now_ms + timers.rest.as_millis() as u64;
        self.leading = Some(Leading { ticket, parent, until_ms, rest_until_ms });
        self.try_lead(now_ms, out);
    }

    pub(super) fn try_lead(&mut self, now_ms: u64, out: &mut Vec<Output>) {
        let Some(leading) = &self.leading else { return };
        let (ticket, parent, until_ms) = (leading.ticket, leading.parent, leading.until_ms);
        let nothing_ms = leading.nothing_ms(self.rests);
        let block = match self.ancestry(&parent) {
            Ancestry::Known { overlay, height, index } => self.build(parent, *overlay, height, index),
            Ancestry::Missing(digest) => {
                self.need(digest, self.me, now_ms);
                None
            }
            Ancestry::Dead => None,
        };
        let digest = match block {
            // Whoever keeps others busy by what nobody needs does not have them begin without those who come a moment later.
            Some(block)
                if now_ms < until_ms
                    && block.refs.iter().all(|one| self.put_off.contains(&one.name.origin)) =>
            {
                return;
            }
            Some(block) => {
                let (digest, number) = (block.digest(), self.store(Tag::Block, block.encode(), out));
                let known = Known { block, number: Some(number), from: self.me, judged: true };
                self.blocks.insert(digest, known);
                digest
            }
            // Nothing to order: the parent once more, which costs neither a block nor a record.
            None if now_ms >= nothing_ms => parent,
            None => return,
        };
        self.leading = None;
        out.push(Output::Proposed { ticket, digest });
    }

    /// Whether the group rests: then a leader that has nothing to propose holds its view for longer.
    pub fn set_rests(&mut self, rests: bool) {
        self.rests = rests;
    }

    /// Whose batches alone are no reason to propose at once: they go with those of others, or when the view has been held long enough.
    pub fn put_off(&mut self, members: BTreeSet<u32>) {
        self.put_off = members;
    }

    /// Whether anything waits to be ordered.
    pub fn is_ordering(&self) -> bool {
        !self.batches.is_empty()
    }

    /// Who waits for something to order.
    pub fn waiting(&self) -> Waiting {
        if !self.batches.is_empty() || !self.verifying.is_empty() || self.target.is_some() {
            return Waiting::Nobody;
        }
        match &self.leading {
            Some(leading) if leading.parent == self.tip.digest => Waiting::Own,
            Some(_) => Waiting::Nobody,
            None => Waiting::Other,
        }
    }

    /// A block of what waits, the oldest of each member first, one of each in turn.
    fn build(&mut self, parent: Digest, mut overlay: Overlay, height: u64, index: u64) -> Option<Block> {
        let mut queues: Vec<_> =
            self.pool.values().map(|of_origin| of_origin.keys().copied().collect::<VecDeque<_>>()).collect();
        // Each block begins with another member, so that none is always last.
        let turn = if queues.is_empty() { 0 } else { height as usize % queues.len() };
        queues.rotate_left(turn);
        let (mut refs, mut bytes) = (Vec::new(), 0);
        while refs.len() < self.settings.block_batches_max {
            let mut any = false;
            for queue in &mut queues {
                let Some((_, _, digest)) = queue.pop_front() else { continue };
                any = true;
                let Some(held) = self.batches.get(&digest).filter(|held| held.admissible) else { continue };
                let size = held.batch.body.len();
                let fits = refs.len() < self.settings.block_batches_max
                    && (refs.is_empty() || bytes + size <= self.settings.block_bytes_max);
                if !fits {
                    queue.clear();
                    continue;
                }
                let name = held.batch.name;
                if self.tables.judge(&mut overlay, &name, &held.batch.body) == Judgement::Fresh {
                    bytes += size;
                    refs.push(Ref { digest, name, bytes: size as u32 });
                }
                if overlay.next().is_some() {
                    break;
                }
            }
            if !any || overlay.next().is_some() {
                break;
            }
        }
        let next = overlay.next().cloned();
        let (height, first_index) = (height + 1, index + 1);
        if refs.is_empty() {
            return None;
        }
        Some(Block { epoch: self.epoch, parent, height, first_index, refs, next })
    }

    /// Consensus tells this replica to make its proposal known.
    pub fn relay(&mut self, digest: &Digest, to: To, out: &mut Vec<Output>) {
        if let Some(known) = self.blocks.get(digest) {
            out.push(Output::Send { to, message: Message::Block(known.block.clone()) });
        }
    }

    /// What blocks that are not committed add, up to and with `digest`.
    fn ancestry(&self, digest: &Digest) -> Ancestry {
        let mut path: Vec<&Known> = Vec::new();
        let mut at = *digest;
        while at != self.tip.digest {
            match self.blocks.get(&at) {
                Some(known) if known.block.height > self.tip.height => {
                    path.push(known);
                    at = known.block.parent;
                }
                Some(_) => return Ancestry::Dead,
                None if self.parents.contains_key(&at) => return Ancestry::Dead,
                None => return Ancestry::Missing(at),
            }
        }
        let mut overlay = Overlay::default();
        let (mut height, mut index) = (self.tip.height, self.tip.index);
        for known in path.into_iter().rev() {
            for named in &known.block.refs {
                let Some(held) = self.batches.get(&named.digest) else {
                    return Ancestry::Missing(named.digest);
                };
                // Blocks on the way were judged by 2f+1 members; this only repeats what they add.
                self.tables.judge(&mut overlay, &named.name, &held.batch.body);
            }
            height = known.block.height;
            index = known.block.last_index();
        }
        Ancestry::Known { overlay: Box::new(overlay), height, index }
    }

    /// Consensus asks whether `payload`, which `leader` proposes behind `parent`, is right.
    pub fn verify(
        &mut self,
        ticket: u64,
        leader: u32,
        parent: Digest,
        payload: Digest,
        now_ms: u64,
        out: &mut Vec<Output>,
    ) {
        if self.verifying.len() >= WAITING_MAX {
            self.verifying.pop_front();
        }
        self.verifying.push_back(Verifying { ticket, leader, parent, payload });
        self.try_verify(now_ms, out);
    }

    pub(super) fn try_verify(&mut self, now_ms: u64, out: &mut Vec<Output>) {
        for _ in 0..self.verifying.len() {
            let Some(waiting) = self.verifying.pop_front() else { return };
            match self.judge(&waiting, now_ms) {
                Some(right) => {
                    self.counters.refused += u64::from(!right);
                    if right {
                        self.keep_block(&waiting.payload, out);
                    }
                    out.push(Output::Verdict { ticket: waiting.ticket, right });
                }
                None => self.verifying.push_back(waiting),
            }
        }
    }

    /// None as long as something is missing.
    fn judge(&mut self, waiting: &Verifying, now_ms: u64) -> Option<bool> {
        let Verifying { leader, parent, payload, .. } = *waiting;
        // The parent once more: nothing was there to order.
        if payload == parent {
            return Some(true);
        }
        // It was committed meanwhile; or it is an old block put behind another, which must not be.
        if let Some(was_behind) = self.parents.get(&payload) {
            return Some(*was_behind == Some(parent));
        }
        let Some(known) = self.blocks.get(&payload) else {
            self.need_block(payload, Some(leader), now_ms);
            return None;
        };
        let block = known.block.clone();
        if block.parent != parent || block.epoch != self.epoch {
            return Some(false);
        }
        let bytes: u64 = block.refs.iter().map(|named| u64::from(named.bytes)).sum();
        let fits = block.refs.len() == 1 || bytes <= self.settings.block_bytes_max as u64;
        if !fits || block.refs.len() > self.settings.block_batches_max {
            return Some(false);
        }
        let (mut overlay, height, index) = match self.ancestry(&parent) {
            Ancestry::Known { overlay, height, index } => (*overlay, height, index),
            Ancestry::Missing(digest) => {
                self.need(digest, leader, now_ms);
                return None;
            }
            Ancestry::Dead => return Some(false),
        };
        if block.height != height + 1 || block.first_index != index + 1 {
            return Some(false);
        }
        // What was ordered is known by its name: nobody waits for it to come again.
        if block.refs.iter().any(|named| self.tables.is_passed(&overlay, &named.name)) {
            return Some(false);
        }
        let mut missing = false;
        for named in &block.refs {
            if !self.batches.contains_key(&named.digest) {
                self.need_batch(named.digest, leader, now_ms);
                missing = true;
            }
        }
        if missing {
            return None;
        }
        for named in &block.refs {
            let held = self.batches.get(&named.digest)?;
            let same = held.batch.name == named.name && held.batch.body.len() == named.bytes as usize;
            if !same
                // What was ahead of its time when it came may be of its time by now.
                || !(held.admissible || self.settings.is_admissible(&held.batch.body))
                || self.tables.judge(&mut overlay, &named.name, &held.batch.body) != Judgement::Fresh
            {
                return Some(false);
            }
        }
        // Who ends the epoch, and with whom the next begins, follows from what was approved of.
        if block.next.as_ref() != overlay.next() {
            return Some(false);
        }
        if let Some(known) = self.blocks.get_mut(&payload) {
            known.judged = true;
        }
        Some(true)
    }

    /// Consensus asks whether `payload`, which 2f+1 members hold right, may be finalized.
    pub fn certify(&mut self, ticket: u64, payload: Digest, now_ms: u64, out: &mut Vec<Output>) {
        if self.certifying.len() >= WAITING_MAX {
            self.certifying.pop_front();
        }
        self.certifying.push_back(Certifying { ticket, payload });
        self.try_certify(now_ms, out);
    }

    pub(super) fn try_certify(&mut self, now_ms: u64, out: &mut Vec<Output>) {
        for _ in 0..self.certifying.len() {
            let Some(waiting) = self.certifying.pop_front() else { return };
            self.keep_block(&waiting.payload, out);
            if self.is_durable(&waiting.payload, now_ms) {
                out.push(Output::Verdict { ticket: waiting.ticket, right: true });
            } else {
                self.certifying.push_back(waiting);
            }
        }
    }

    /// Writes a block down, if that was not done yet, and gives its record.
    pub(super) fn keep_block(&mut self, digest: &Digest, out: &mut Vec<Output>) -> Option<u64> {
        let known = self.blocks.get(digest)?;
        let body = match known.number {
            Some(number) => return Some(number),
            None => known.block.encode(),
        };
        let number = self.store(Tag::Block, body, out);
        self.blocks.get_mut(digest)?.number = Some(number);
        Some(number)
    }

    fn is_durable(&mut self, payload: &Digest, now_ms: u64) -> bool {
        if self.parents.contains_key(payload) {
            return true;
        }
        let Some(known) = self.blocks.get(payload) else {
            self.need_block(*payload, None, now_ms);
            return false;
        };
        let mut durable = known.number.is_some_and(|number| number <= self.stored);
        let from = known.from;
        let missing: Vec<Digest> = known
            .block
            .refs
            .iter()
            .filter(|named| match self.batches.get(&named.digest) {
                Some(held) => {
                    durable &= held.number <= self.stored;
                    false
                }
                None => true,
            })
            .map(|named| named.digest)
            .collect();
        for digest in &missing {
            self.need_batch(*digest, from, now_ms);
        }
        durable && missing.is_empty()
    }

    /// Records up to `number` are durable.
    pub fn stored(&mut self, number: u64, now_ms: u64, out: &mut Vec<Output>) {
        self.stored = self.stored.max(number);
        self.try_certify(now_ms, out);
    }

    /// Consensus no longer waits for these.
    pub fn forget(&mut self, is_gone: impl Fn(u64) -> bool) {
        self.verifying.retain(|waiting| !is_gone(waiting.ticket));
        self.certifying.retain(|waiting| !is_gone(waiting.ticket));
        if self.leading.as_ref().is_some_and(|leading| is_gone(leading.ticket)) {
            self.leading = None;
        }
    }
}
