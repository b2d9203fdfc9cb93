//! Asks for batches and blocks that are needed and were not sent: first whoever proposes them, then the others in turn.

use std::collections::BTreeMap;

use super::{Core, Output, To};
use crate::wire::{Digest, Message, WANTED_MAX};

/// How long what is needed may be on its way by itself.
const GRACE_MS: u64 = 4;
/// Needs at once.
const NEEDS_MAX: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Batch,
    Block,
}

#[derive(Debug)]
struct Need {
    kind: Kind,
    prefer: Option<u32>,
    tries: usize,
    next_ms: u64,
}

/// What is needed.
#[derive(Debug, Default)]
pub(super) struct Needs(BTreeMap<Digest, Need>);

impl Needs {
    /// It came. Whether it was needed.
    pub fn met(&mut self, digest: &Digest) -> bool {
        self.0.remove(digest).is_some()
    }

    pub fn wake_at_ms(&self) -> Option<u64> {
        self.0.values().map(|need| need.next_ms).min()
    }
}

impl Core {
    /// Needs what an ancestry lacks: the one or the other.
    pub(super) fn need(&mut self, digest: Digest, prefer: u32, now_ms: u64) {
        let named =
            self.blocks.values().any(|known| known.block.refs.iter().any(|named| named.digest == digest));
        let kind = if named { Kind::Batch } else { Kind::Block };
        self.add_need(digest, kind, Some(prefer), now_ms);
    }

    pub(super) fn need_block(&mut self, digest: Digest, prefer: Option<u32>, now_ms: u64) {
        self.add_need(digest, Kind::Block, prefer, now_ms);
    }

    pub(super) fn need_batch(&mut self, digest: Digest, prefer: u32, now_ms: u64) {
        self.add_need(digest, Kind::Batch, Some(prefer), now_ms);
    }

    fn add_need(&mut self, digest: Digest, kind: Kind, prefer: Option<u32>, now_ms: u64) {
        let room = self.needs.0.len() < NEEDS_MAX;
        if room && !self.needs.0.contains_key(&digest) {
            let need = Need { kind, prefer, tries: 0, next_ms: now_ms + GRACE_MS };
            self.needs.0.insert(digest, need);
        }
    }

    pub(super) fn ask_for_needs(&mut self, now_ms: u64, out: &mut Vec<Output>) {
        let others: Vec<u32> = self.others().collect();
        let ask_ms = self.settings.timers.ask.as_millis() as u64;
        if others.is_empty() {
            return;
        }
        // Whoever still waits for it says so again.
        self.needs.0.retain(|_, need| need.next_ms > now_ms || need.tries < 2 * others.len());
        let mut batches: BTreeMap<u32, Vec<Digest>> = BTreeMap::new();
        for (digest, need) in self.needs.0.iter_mut().filter(|(_, need)| need.next_ms <= now_ms) {
            let preferred = need.prefer.filter(|who| need.tries == 0 && others.contains(who));
            // Begins elsewhere for each digest, so that one member is not asked for everything.
            let turn = (usize::from(digest[0]) + need.tries) % others.len();
            let whom = preferred.unwrap_or(others[turn]);
            need.tries += 1;
            need.next_ms = now_ms + ask_ms;
            self.counters.asked += 1;
            match need.kind {
                Kind::Batch => batches.entry(whom).or_default().push(*digest),
                Kind::Block => {
                    out.push(Output::Send { to: To::One(whom), message: Message::WantBlock(*digest) })
                }
            }
        }
        for (whom, digests) in batches {
            for some in digests.chunks(WANTED_MAX) {
                let message = Message::WantBatches(some.to_vec());
                out.push(Output::Send { to: To::One(whom), message });
            }
        }
    }
}
