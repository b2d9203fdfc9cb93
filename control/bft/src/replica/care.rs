//! What a replica does beside ordering: barriers, words of other members, and the care for its application's state.

use std::sync::Arc;

use bytes::Bytes;
use commonware_cryptography::ed25519::PublicKey;
use commonware_p2p::{Recipients, Sender};
use commonware_runtime::IoBuf;
use weir_order::{Entry, Position};

use super::health::Do;
use super::words::Word;
use super::{Answer, BARRIERS_IN_FLIGHT_MAX, EVIDENCE_MAX, Run};
use crate::core::{Output, TERM, of_application};
use crate::evidence::{Conflict, Evidence};
use crate::lock::locked;
use crate::wire::Offer;

impl Run {
    /// Orders an empty batch for the reads that wait, unless enough are on their way.
    pub(super) fn pass_barriers(&mut self, out: &mut Vec<Output>) {
        if self.barriers.is_empty() || self.barriers_in_flight >= BARRIERS_IN_FLIGHT_MAX {
            return;
        }
        self.barriers_in_flight += 1;
        locked(&self.inner.seen).counters.read_checks += 1;
        let ticket = self.answers.add(Answer::Barrier(std::mem::take(&mut self.barriers), self.now_ms));
        self.core.propose(ticket, Bytes::new(), self.now_ms, out);
    }

    pub(super) fn heard_word(&mut self, from: &PublicKey, bytes: Bytes) {
        let known = self.membership.id_of(from).filter(|from| self.core.latest().members.contains_key(from));
        let Some(from) = known else { return };
        match Word::decode(bytes) {
            Ok(Word::Tell(bytes)) => {
                if let Some(hears) = self.inner.peers.get() {
                    hears(from, bytes);
                }
            }
            Ok(Word::Digest { index, digest }) => self.health.heard(from, index, digest),
            Ok(Word::WantState { index }) => {
                self.health.wish(from, index, self.core.committed().index, self.now_ms);
            }
            Err(error) => {
                locked(&self.inner.seen).counters.malformed += 1;
                tracing::debug!(replica = self.inner.id, from, %error, "a word is none");
            }
        }
    }

    /// Whether this replica's state is what it should be, and what to do when it is not.
    pub(super) fn look_after<S: Sender<PublicKey = PublicKey>>(
        &mut self,
        out: &mut Vec<Output>,
        words: &mut S,
    ) {
        let mut todo = Vec::new();
        self.health.tick(self.core.committed().index, self.now_ms, &mut todo);
        self.obey(todo, out, words);
        let fence = self.health.fence();
        self.core.set_serves(fence.is_none());
        let mut seen = locked(&self.inner.seen);
        match (&seen.status.fenced, &fence) {
            (None, Some(what)) => tracing::error!(replica = self.inner.id, what, "fenced"),
            (Some(_), None) => {
                tracing::warn!(
                    replica = self.inner.id,
                    "repaired: installed the other controllers' snapshot"
                );
            }
            _ => {}
        }
        seen.status.fenced = fence;
        seen.status.others = self.core.seen(self.now_ms);
        seen.wanted = self.health.wanted();
        seen.counters.digests_agreed = self.health.agreed();
        seen.counters.divergences = self.health.divergences;
        seen.counters.repairs = self.health.repairs;
        seen.counters.wishes_refused = self.health.wishes_refused;
    }

    pub(super) fn obey<S: Sender<PublicKey = PublicKey>>(
        &mut self,
        todo: Vec<Do>,
        out: &mut Vec<Output>,
        words: &mut S,
    ) {
        for one in todo {
            match one {
                Do::Say(word) => {
                    // Who does not hear it hears the next.
                    let _reached = words.send(Recipients::All, IoBuf::from(word.encode()), false);
                }
                Do::Pump(count) => {
                    for _ in 0..count.min(self.inner.settings.digest_every * 2) {
                        let ticket = self.answers.add(Answer::Pumped);
                        self.core.propose(ticket, Bytes::new(), self.now_ms, out);
                    }
                }
                Do::Fetch(place) => self.core.repair(place, self.now_ms, out),
            }
        }
    }

    /// A state that f+1 members offer came.
    pub(super) fn adopt(&mut self, offer: &Offer, out: &mut Vec<Output>) -> Result<(), String> {
        let journal = Arc::clone(&self.inner.journal);
        let applied = self.core.applied().index;
        let between = match self.health.is_fenced() && offer.index <= applied {
            false => None,
            // The application is given what is behind it once more, from this replica's own journal.
            true => match journal.batches_between(offer.index, applied) {
                Some(between) => Some(between),
                // They are on their way to the disk: once more then.
                None => {
                    self.core.adopt_failed_here();
                    return Ok(());
                }
            },
        };
        let (base, mut state) = match journal.adopt(offer) {
            Ok(adopted) => adopted,
            Err(error) => {
                tracing::warn!(replica = self.inner.id, %error, "rejected a received snapshot");
                self.core.adopt_failed(self.now_ms, out);
                return Ok(());
            }
        };
        let at = Position { term: TERM, index: base.applied };
        self.sink.install(at, &mut state).map_err(|error| error.to_string())?;
        tracing::info!(replica = self.inner.id, index = at.index, "installed a snapshot");
        if self.health.is_fenced() {
            self.health.taken(at.index);
        }
        let Some(between) = between else {
            locked(&self.inner.seen).status.applied = at;
            self.core.adopted(base.tip, base.tables, base.applied, self.now_ms, out);
            self.forget();
            return Ok(());
        };
        for (index, number) in between {
            let batch = of_application(journal.body(number).map_err(|error| error.to_string())?);
            self.sink.committed(&Entry { position: Position { term: TERM, index }, batch });
        }
        self.core.repaired();
        self.forget();
        Ok(())
    }

    /// A member's votes exclude each other: the first ones of each kind and epoch are kept, if they convict it. What is only said by
    /// whom the links say it is counts, and proves nothing to others.
    pub(super) fn fault(&mut self, conflict: Conflict, votes: Bytes) {
        let (group, roster) = (self.inner.settings.group.clone(), self.core.roster().clone());
        let evidence = Evidence { group, roster, conflict, votes };
        let convicted = evidence.convicts();
        let mut seen = locked(&self.inner.seen);
        seen.counters.faults += 1;
        let Some(convicted) = convicted else { return };
        let cell = (convicted.member, convicted.epoch, conflict as u8);
        if seen.evidence.contains_key(&cell) || seen.evidence.len() == EVIDENCE_MAX {
            return;
        }
        tracing::warn!(
            member = convicted.member,
            view = convicted.view,
            ?conflict,
            "a member signed votes that exclude each other"
        );
        seen.evidence.insert(cell, evidence.clone());
        drop(seen);
        if let Some(hears) = self.inner.evidence.get() {
            hears(&evidence, convicted);
        }
    }
}
