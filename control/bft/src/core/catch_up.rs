//! Catches up with the others (row B1): a replica that was away, or lost its disk, takes committed blocks with their
//! certificates from another, or a whole state when the others no longer keep the blocks.
//!
//! A range is believed because its blocks hash to each other from the last that is committed here to one that 2f+1 members finalized.
//! A state is believed because f+1 members say that it has this digest, so one honest member does; it comes from one of them, and
//! is checked as a whole before it is taken over. A helper that sends anything else is found out, counted, and another is asked.

use std::collections::BTreeMap;

use bytes::Bytes;
use weir_order::Position;

use super::{Core, Known, Output, TERM, Tag, Tip, To};
use crate::rules::Tables;
use crate::wire::{Batch, Block, CHUNK_BYTES, Digest, Message, Offer};

/// Blocks that may be on their way to a member that is not behind.
const ON_THE_WAY: u64 = 4;

#[derive(Debug, Clone, Copy)]
struct Heard {
    height: u64,
    epoch: u64,
    since_ms: u64,
    last_ms: u64,
    serves: bool,
    behind: u64,
}

/// What is known of another member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// The height of its last committed block, as it says.
    pub height: u64,
    /// The last epoch that it knows of, as it says.
    pub epoch: u64,
    /// How many blocks it was behind this one then, what was on its way left out.
    pub behind: u64,
    /// How long ago it said so, ms.
    pub silent_ms: u64,
    /// Whether it serves, as it says.
    pub serves: bool,
}

#[derive(Debug)]
struct Transfer {
    offer: Offer,
    helpers: Vec<u32>,
    nth: usize,
    offset: u64,
    asked_ms: u64,
    adopting: bool,
}

/// How this replica catches up.
#[derive(Debug, Default)]
pub(super) struct Catching {
    heard: BTreeMap<u32, Heard>,
    helper: Option<u32>,
    asked_ms: u64,
    turn: usize,
    moved_ms: u64,
    told_ms: u64,
    offers: BTreeMap<u32, Vec<Offer>>,
    transfer: Option<Transfer>,
    /// States after this batch or a later one are taken over although this replica is not behind: its own is rotten.
    repair: Option<u64>,
    offers_asked_ms: u64,
    silent: bool,
    links_asked_ms: u64,
}

impl Catching {
    pub fn moved(&mut self, now_ms: u64) {
        self.moved_ms = now_ms;
    }

    /// Whoever is asked now is asked by other members.
    pub fn begin_anew(&mut self) {
        self.helper = None;
        self.offers.clear();
    }

    /// Who says that it knows of an epoch beyond `epoch`, to be asked for what leads there; nobody so soon after the last time.
    pub fn ask_links_of(&mut self, epoch: u64, (now_ms, ask_ms): (u64, u64)) -> Option<u32> {
        if self.links_asked_ms + ask_ms > now_ms {
            return None;
        }
        let ahead: Vec<u32> =
            self.heard.iter().filter(|(_, heard)| heard.epoch > epoch).map(|(who, _)| *who).collect();
        if ahead.is_empty() {
            return None;
        }
        self.links_asked_ms = now_ms;
        self.turn += 1;
        Some(ahead[self.turn % ahead.len()])
    }
}

impl Core {
    pub(super) fn heard_tip(&mut self, from: u32, (height, epoch, serves): (u64, u64, bool), now_ms: u64) {
        let own = self.tip.height;
        let behind = own.saturating_sub(height.saturating_add(ON_THE_WAY));
        let first = Heard { height, epoch, since_ms: now_ms, last_ms: now_ms, serves, behind };
        let heard = self.catching.heard.entry(from).or_insert(first);
        if heard.height <= own {
            heard.since_ms = now_ms;
        }
        (heard.height, heard.epoch, heard.last_ms) = (height, epoch, now_ms);
        (heard.serves, heard.behind) = (serves, behind);
    }

    /// What is known of the other members that said anything.
    pub fn seen(&self, now_ms: u64) -> BTreeMap<u32, Seen> {
        let of = |heard: &Heard| {
            let silent_ms = now_ms.saturating_sub(heard.last_ms);
            Seen {
                height: heard.height,
                epoch: heard.epoch,
                behind: heard.behind,
                silent_ms,
                serves: heard.serves,
            }
        };
        self.catching.heard.iter().map(|(who, heard)| (*who, of(heard))).collect()
    }

    /// Whether this replica serves, which it tells the others.
    pub fn set_serves(&mut self, serves: bool) {
        self.catching.silent = !serves;
    }

    /// The application's state is rotten: one after `place` or later is taken over, though nothing is missing here.
    pub fn repair(&mut self, place: u64, now_ms: u64, out: &mut Vec<Output>) {
        let ask_ms = 5 * self.settings.timers.ask.as_millis() as u64;
        let catching = &mut self.catching;
        catching.repair = Some(place);
        if catching.transfer.is_none() && catching.offers_asked_ms + ask_ms <= now_ms {
            catching.offers_asked_ms = now_ms;
            catching.offers.clear();
            out.push(Output::Send { to: To::All, message: Message::WantOffers });
        }
    }

    /// The rotten state was replaced, or could not be.
    pub fn repaired(&mut self) {
        self.catching.repair = None;
        self.catching.transfer = None;
        self.counters.states += 1;
    }

    pub(super) fn catch_up(&mut self, now_ms: u64, out: &mut Vec<Output>) {
        let ask_ms = self.settings.timers.ask.as_millis() as u64;
        if self.catching.told_ms + 2 * ask_ms <= now_ms {
            self.catching.told_ms = now_ms;
            let (height, epoch) = (self.tip.height, self.frontier.epoch.max(self.epoch));
            let message = Message::Tip { height, epoch, serves: !self.catching.silent };
            out.push(Output::Send { to: To::All, message });
        }
        if self.catching.transfer.is_some() {
            return self.push_transfer(now_ms, ask_ms, out);
        }
        if self.catching.helper.is_some() && self.catching.asked_ms + 3 * ask_ms > now_ms {
            return;
        }
        let own = self.tip.height;
        let stuck = self.target.is_some() && self.catching.moved_ms + 2 * ask_ms <= now_ms;
        let ahead = |heard: &Heard| heard.height > own && heard.since_ms + 2 * ask_ms <= now_ms;
        let helpers: Vec<u32> = match self.catching.heard.iter().filter(|(_, heard)| ahead(heard)) {
            found if stuck => self.others().chain(found.map(|(who, _)| *who)).collect(),
            found => found.map(|(who, _)| *who).collect(),
        };
        let known: Vec<u32> = self.others().collect();
        let helpers: Vec<u32> = helpers.into_iter().filter(|who| known.contains(who)).collect();
        self.catching.helper = None;
        if helpers.is_empty() {
            return;
        }
        let helper = helpers[self.catching.turn % helpers.len()];
        self.catching.turn += 1;
        self.ask_range(helper, now_ms, out);
    }

    fn ask_range(&mut self, helper: u32, now_ms: u64, out: &mut Vec<Output>) {
        self.catching.helper = Some(helper);
        self.catching.asked_ms = now_ms;
        let message = Message::WantRange { above: self.tip.height };
        out.push(Output::Send { to: To::One(helper), message });
    }

    pub(super) fn range(
        &mut self,
        from: u32,
        blocks: Vec<Block>,
        batches: Vec<Batch>,
        certificate: Bytes,
        now_ms: u64,
        out: &mut Vec<Output>,
    ) {
        if self.catching.helper != Some(from) {
            return;
        }
        self.catching.helper = None;
        // What came meanwhile by other ways is left out.
        let own = self.tip.height;
        let skip: usize =
            blocks.iter().filter(|block| block.height <= own).map(|block| block.refs.len()).sum();
        let fresh: Vec<Block> = blocks.into_iter().filter(|block| block.height > own).collect();
        let batches: Vec<Batch> = batches.into_iter().skip(skip).collect();
        if fresh.is_empty() {
            return;
        }
        let Some(view) = self.proven(&fresh, &batches, &certificate) else {
            return self.blame(from, "a range of blocks that its certificate does not prove", out);
        };
        self.counters.ranges += 1;
        let mut batches = batches.into_iter();
        let mut last = self.tip.digest;
        for block in fresh {
            for (named, batch) in block.refs.iter().zip(&mut batches) {
                self.needs.met(&named.digest);
                if !self.batches.contains_key(&named.digest) {
                    let number = self.store(Tag::Batch, batch.encode(), out);
                    self.hold(named.digest, batch, number);
                }
            }
            last = block.digest();
            self.needs.met(&last);
            self.blocks.entry(last).or_insert(Known { block, number: None, from, judged: true });
        }
        // A target above stays what is wanted next.
        let above = self.target.take().filter(|target| target.view > view);
        let epoch = self.epoch;
        self.finalized(view, last, certificate, now_ms, out);
        if let Some(target) = above.filter(|_| self.epoch == epoch) {
            self.finalized(target.view, target.digest, target.certificate, now_ms, out);
        }
        let heard = self.catching.heard.get(&from).map_or(0, |heard| heard.height);
        if heard > self.tip.height {
            self.ask_range(from, now_ms, out);
        }
    }

    /// The view of the certificate, when the blocks lead from the tip to what it certifies and the batches are theirs.
    fn proven(&mut self, blocks: &[Block], batches: &[Batch], certificate: &Bytes) -> Option<u64> {
        let (mut parent, mut height, mut index) = (self.tip.digest, self.tip.height, self.tip.index);
        let mut digests: Vec<Digest> = Vec::new();
        for block in blocks {
            if block.epoch != self.epoch
                || block.parent != parent
                || block.height != height + 1
                || block.first_index != index + 1
            {
                return None;
            }
            (parent, height, index) = (block.digest(), block.height, block.last_index());
            digests.extend(block.refs.iter().map(|named| named.digest));
        }
        let same = batches.len() == digests.len()
            && batches.iter().zip(&digests).all(|(batch, digest)| batch.digest(&self.group) == *digest);
        let (view, certified) = self.keys.certified(certificate)?;
        (same && certified == parent).then_some(view)
    }

    pub(super) fn offers(&mut self, from: u32, offers: Vec<Offer>, now_ms: u64, out: &mut Vec<Output>) {
        if self.catching.transfer.is_some() {
            return;
        }
        let first = self.catching.offers.is_empty();
        self.catching.offers.insert(from, offers);
        if self.catching.helper == Some(from) {
            self.catching.helper = None;
        }
        if first && self.catching.repair.is_none() {
            out.push(Output::Send { to: To::All, message: Message::WantOffers });
        }
        // One honest member at least says so, of the last epoch that is known.
        let latest = self.latest();
        let enough = latest.faulty_max() + 1;
        let mut who: BTreeMap<Offer, Vec<u32>> = BTreeMap::new();
        for (member, offers) in self.catching.offers.iter().filter(|(id, _)| latest.members.contains_key(id))
        {
            for offer in offers {
                let said = who.entry(*offer).or_default();
                if !said.contains(member) {
                    said.push(*member);
                }
            }
        }
        let above = self.catching.repair.map_or(self.applied, |place| place.saturating_sub(1));
        let bytes_max = self.settings.state_bytes_max;
        let good = who.into_iter().rev().find(|(offer, helpers)| {
            offer.index > above && offer.file_bytes <= bytes_max && helpers.len() >= enough
        });
        let Some((offer, helpers)) = good else { return };
        self.catching.offers.clear();
        let transfer = Transfer { offer, helpers, nth: 0, offset: 0, asked_ms: now_ms, adopting: false };
        self.catching.transfer = Some(transfer);
        self.ask_chunk(now_ms, out);
    }

    fn ask_chunk(&mut self, now_ms: u64, out: &mut Vec<Output>) {
        let Some(transfer) = &mut self.catching.transfer else { return };
        transfer.asked_ms = now_ms;
        let message = Message::WantChunk { index: transfer.offer.index, offset: transfer.offset };
        let helper = transfer.helpers[transfer.nth % transfer.helpers.len()];
        out.push(Output::Send { to: To::One(helper), message });
    }

    fn push_transfer(&mut self, now_ms: u64, ask_ms: u64, out: &mut Vec<Output>) {
        let Some(transfer) = &self.catching.transfer else { return };
        if !transfer.adopting && transfer.asked_ms + 5 * ask_ms <= now_ms {
            self.next_helper(now_ms, out);
        }
    }

    /// Begins anew with another helper; when all were tried, with other offers.
    fn next_helper(&mut self, now_ms: u64, out: &mut Vec<Output>) {
        let Some(transfer) = &mut self.catching.transfer else { return };
        transfer.nth += 1;
        transfer.offset = 0;
        transfer.adopting = false;
        if transfer.nth >= transfer.helpers.len() {
            self.catching.transfer = None;
            return;
        }
        self.ask_chunk(now_ms, out);
    }

    pub(super) fn chunk(
        &mut self,
        from: u32,
        index: u64,
        offset: u64,
        bytes: Bytes,
        now_ms: u64,
        out: &mut Vec<Output>,
    ) {
        let Some(transfer) = &mut self.catching.transfer else { return };
        let helper = transfer.helpers[transfer.nth % transfer.helpers.len()];
        let expected = from == helper && index == transfer.offer.index && offset == transfer.offset;
        if !expected || transfer.adopting {
            return;
        }
        let left = transfer.offer.file_bytes - offset;
        if bytes.len() as u64 != left.min(CHUNK_BYTES as u64) {
            self.blame(from, "a piece of a state that is too short or too long", out);
            return self.next_helper(now_ms, out);
        }
        transfer.offset += bytes.len() as u64;
        out.push(Output::WriteChunk { offset, bytes });
        if transfer.offset < transfer.offer.file_bytes {
            return self.ask_chunk(now_ms, out);
        }
        transfer.adopting = true;
        out.push(Output::Adopt { offer: transfer.offer });
    }

    /// The state that came is not what f+1 members say it is, or cannot be taken.
    pub fn adopt_failed(&mut self, now_ms: u64, out: &mut Vec<Output>) {
        let Some(transfer) = &self.catching.transfer else { return };
        let helper = transfer.helpers[transfer.nth % transfer.helpers.len()];
        self.blame(helper, "a state that is not the one it had said", out);
        self.next_helper(now_ms, out);
    }

    /// The state that came is right, and cannot be taken over yet: it is asked for again.
    pub fn adopt_failed_here(&mut self) {
        self.catching.transfer = None;
    }

    /// The state was taken over: it stands after `tip`, within the next block up to `applied`.
    pub fn adopted(&mut self, tip: Tip, tables: Tables, applied: u64, now_ms: u64, out: &mut Vec<Output>) {
        self.catching.transfer = None;
        self.catching.repair = None;
        self.counters.states += 1;
        self.tip = tip;
        self.tables = tables;
        self.applied = applied;
        if self.tables.roster().epoch != self.epoch {
            self.enter(out);
        }
        self.remember(tip.digest, None);
        self.blocks.retain(|_, known| known.block.height > tip.height);
        self.catching.moved(now_ms);
        // Whether own proposals are in the state is not known.
        for own in std::mem::take(&mut self.own).into_values() {
            self.counters.failed += 1;
            out.push(Output::Done { ticket: own.ticket, result: Err(weir_order::Error::LeaderLost) });
        }
        self.retry(now_ms, out);
    }

    /// The last committed place.
    pub fn committed(&self) -> Position {
        Position { term: if self.tip.index == 0 { 0 } else { TERM }, index: self.tip.index }
    }
}
