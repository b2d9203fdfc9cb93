//! What other members say: batches and blocks that come, and questions that are answered, all of it bounded by member.

use crate::rules::Overlay;
use crate::wire::{Batch, Block, CHUNK_BYTES, Message};

use super::{Core, Known, Output, Tag, To};

/// Bytes of answers to one member in [`ANSWERS_MS`].
const ANSWERS_BYTES_MAX: usize = 16 << 20;
const ANSWERS_MS: u64 = 100;
/// What any answer costs at least.
const ANSWER_BYTES_LEAST: usize = 16 << 10;
/// Blocks of one member that are kept and that nobody asked for.
const BLOCKS_OF_ONE_MAX: usize = 64;

impl Core {
    /// Another member says something, or one who was or will be: such may ask, and say how far they are.
    pub fn heard(&mut self, from: u32, message: Message, now_ms: u64, out: &mut Vec<Output>) {
        let is_known = self.others().any(|other| other == from);
        let says = matches!(
            message,
            Message::Batch(_)
                | Message::Block(_)
                | Message::Range { .. }
                | Message::Offers(_)
                | Message::Chunk { .. }
        );
        if says && !is_known {
            return;
        }
        match message {
            Message::Batch(batch) => self.batch(from, batch, now_ms, out),
            Message::Block(block) => self.block(from, block, now_ms, out),
            Message::WantBatches(digests) => {
                for digest in digests {
                    let Some(held) = self.batches.get(&digest) else { continue };
                    let batch = held.batch.clone();
                    if self.may_answer(from, batch.body.len(), now_ms) {
                        out.push(Output::Send { to: To::One(from), message: Message::Batch(batch) });
                    }
                }
            }
            Message::WantBlock(digest) if self.may_answer(from, 0, now_ms) => {
                self.relay(&digest, To::One(from), out);
            }
            Message::Tip { height, epoch, serves } => self.heard_tip(from, (height, epoch, serves), now_ms),
            Message::WantRange { above }
                if above < self.tip.height && self.may_answer(from, 1 << 20, now_ms) =>
            {
                out.push(Output::ServeRange { to: from, above });
            }
            Message::WantRange { .. } | Message::WantBlock(_) => {}
            Message::Range { blocks, batches, certificate } => {
                self.range(from, blocks, batches, certificate, now_ms, out);
            }
            Message::WantOffers => {
                if self.may_answer(from, 0, now_ms) {
                    out.push(Output::ServeOffers { to: from });
                }
            }
            Message::Offers(offers) => self.offers(from, offers, now_ms, out),
            Message::WantChunk { index, offset } => {
                if self.may_answer(from, CHUNK_BYTES, now_ms) {
                    out.push(Output::ServeChunk { to: from, index, offset });
                }
            }
            Message::Chunk { index, offset, bytes } => self.chunk(from, index, offset, bytes, now_ms, out),
            Message::WantLinks { epoch } => {
                if self.may_answer(from, 1 << 20, now_ms) {
                    out.push(Output::ServeLinks { to: from, epoch });
                }
            }
            Message::Links(links) => self.links(from, links, out),
        }
    }

    /// Whether a member may have another answer of so many bytes now: who asks for more than a disk and a link give would
    /// keep this replica from its work.
    fn may_answer(&mut self, who: u32, bytes: usize, now_ms: u64) -> bool {
        let (since_ms, spent) = self.answered.entry(who).or_default();
        if *since_ms + ANSWERS_MS <= now_ms {
            (*since_ms, *spent) = (now_ms, 0);
        }
        *spent += bytes + ANSWER_BYTES_LEAST;
        let may = *spent <= ANSWERS_BYTES_MAX;
        self.counters.withheld += u64::from(!may);
        may
    }

    fn batch(&mut self, from: u32, batch: Batch, now_ms: u64, out: &mut Vec<Output>) {
        let digest = batch.digest(&self.group);
        let asked = self.needs.met(&digest);
        if self.batches.contains_key(&digest) {
            return;
        }
        let origin = batch.name.origin;
        if !self.members.contains(&origin) {
            // Of one who was a member when it was sent, or will be.
            self.counters.dropped += 1;
            return;
        }
        if batch.body.len() as u64 > self.settings.proposal_bytes_max() {
            return self.blame(from, "a batch of nobody, or one that is too large", out);
        }
        if !asked {
            let passed = self.tables.is_passed(&Overlay::default(), &batch.name);
            let (held, bytes) = self.pool.get(&origin).map_or((0, 0), |of_origin| {
                (of_origin.len(), of_origin.values().map(|bytes| *bytes as usize).sum::<usize>())
            });
            let full = held >= self.settings.held_batches_max
                || bytes + batch.body.len() > self.settings.held_bytes_max;
            if passed || full {
                self.counters.dropped += 1;
                return;
            }
        }
        if !self.keys.is_right(origin, &digest, &batch.signature) {
            return self.blame(from, "a batch with a forged signature", out);
        }
        // Asked for by a block that may be durable already.
        let number = self.store_now(Tag::Batch, batch.encode(), asked, out);
        self.hold(digest, batch, number);
        self.retry(now_ms, out);
    }

    fn block(&mut self, from: u32, block: Block, now_ms: u64, out: &mut Vec<Output>) {
        // Of another epoch: what was missed of it comes as a range.
        if block.epoch != self.epoch {
            return;
        }
        let digest = block.digest();
        let asked = self.needs.met(&digest);
        // One with a place that is taken is kept too, as long as there is room: it may be asked about, and then be refused.
        if self.blocks.contains_key(&digest) || self.parents.contains_key(&digest) {
            return;
        }
        if !asked {
            let of_one = self.unasked.entry(from).or_default();
            of_one.push_back(digest);
            if of_one.len() > BLOCKS_OF_ONE_MAX
                && let Some(oldest) = of_one.pop_front()
                && self.blocks.get(&oldest).is_some_and(|known| !known.judged)
            {
                self.blocks.remove(&oldest);
                self.counters.dropped += 1;
            }
        }
        self.blocks.insert(digest, Known { block, number: None, from, judged: false });
        self.retry(now_ms, out);
    }
}
