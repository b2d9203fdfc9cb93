//! The end of an epoch and the begin of the next, and the links by which who was away follows (rows B1, C5).
//!
//! An epoch ends when its last block is committed here ([`crate::members`]). What waits is kept for the next, but for batches of those
//! who are members no more. Whoever knows of fewer epochs than others asks for links: each is proven by the members of the epoch
//! before it, so one member that answers is enough, and none is believed. Which members may offer states is known from them.

use super::{Core, Output, To};
use crate::members::{Link, Roster};
use crate::wire::Message;

impl Core {
    /// The members here.
    pub fn roster(&self) -> &Roster {
        self.tables.roster()
    }

    /// The last members that links from the founders lead to: of the epoch here, or of a later one when this replica is behind.
    pub fn frontier(&self) -> &Roster {
        &self.frontier
    }

    /// The members of the last epoch that is known, by links or by what was committed.
    pub fn latest(&self) -> &Roster {
        if self.frontier.epoch > self.epoch { &self.frontier } else { self.roster() }
    }

    /// Whether this replica is a member here.
    pub fn is_member(&self) -> bool {
        self.members.contains(&self.me)
    }

    /// The last block of an epoch was committed.
    pub(super) fn end_epoch(&mut self, link: Link, now_ms: u64, out: &mut Vec<Output>) {
        let Some(next) = Roster::behind(&self.group, &link.block) else { return };
        self.ended_ms = Some(now_ms);
        self.tip.digest = next.genesis;
        self.remember(next.genesis, None);
        self.tables.enter(next);
        if link.block.epoch == self.frontier.epoch {
            self.extend(link, out);
        }
        self.enter(out);
    }

    /// One link more; it was proven.
    fn extend(&mut self, link: Link, out: &mut Vec<Output>) -> bool {
        let Some(next) = Roster::behind(&self.group, &link.block) else { return false };
        let Some(keys) = self.frontier_keys.of_epoch(&next) else { return false };
        (self.frontier, self.frontier_keys) = (next, keys);
        out.push(Output::Link(Box::new(link)));
        true
    }

    /// The members in the tables are others than before.
    pub(super) fn enter(&mut self, out: &mut Vec<Output>) {
        let roster = self.tables.roster();
        if let Some(keys) = self.keys.of_epoch(roster) {
            self.keys = keys;
        }
        self.epoch = roster.epoch;
        self.members = roster.ids();
        self.counters.epochs += 1;
        // The old epoch's consensus asks no more, and nothing of it can be committed.
        self.leading = None;
        self.target = None;
        self.verifying.clear();
        self.certifying.clear();
        self.blocks.clear();
        self.unasked.clear();
        self.needs = Default::default();
        self.catching.begin_anew();
        let members = &self.members;
        let gone: Vec<_> = self
            .batches
            .iter()
            .filter(|(_, held)| !members.contains(&held.batch.name.origin))
            .map(|(digest, _)| *digest)
            .collect();
        for digest in gone {
            self.let_go(&digest);
            self.counters.dropped += 1;
        }
        if !self.is_member() {
            for own in std::mem::take(&mut self.own).into_values() {
                self.counters.failed += 1;
                out.push(Output::Done { ticket: own.ticket, result: Err(weir_order::Error::LeaderLost) });
            }
        }
        out.push(Output::Members);
    }

    /// Asks who knows of later epochs for what leads there.
    pub(super) fn ask_for_links(&mut self, now_ms: u64, out: &mut Vec<Output>) {
        let (epoch, ask_ms) = (self.frontier.epoch, 2 * self.settings.timers.ask.as_millis() as u64);
        if let Some(who) = self.catching.ask_links_of(epoch, (now_ms, ask_ms)) {
            out.push(Output::Send { to: To::One(who), message: Message::WantLinks { epoch } });
        }
    }

    /// Somebody sends links.
    pub(super) fn links(&mut self, from: u32, links: Vec<Link>, out: &mut Vec<Output>) {
        let before = self.frontier.epoch;
        for link in links {
            // What came meanwhile by other ways is left out.
            if link.block.epoch < self.frontier.epoch {
                continue;
            }
            let right = link.block.epoch == self.frontier.epoch
                && self
                    .frontier_keys
                    .certified(&link.certificate)
                    .is_some_and(|(_, certified)| certified == link.block.digest());
            if !right || !self.extend(link, out) {
                self.blame(from, "a link between epochs that its certificate does not prove", out);
                break;
            }
            self.counters.links += 1;
        }
        if self.frontier.epoch > before {
            out.push(Output::Members);
        }
    }
}
