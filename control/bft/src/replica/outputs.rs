//! What a replica does of what its core says.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use commonware_cryptography::ed25519::PublicKey;
use commonware_cryptography::sha256;
use commonware_p2p::{Recipients, Sender};
use commonware_runtime::IoBuf;
use weir_order::{Error, Position};

use super::{Answer, Run, message_bytes_max};
use crate::core::{Output, To};
use crate::journal::Write;
use crate::lock::locked;
use crate::wire::Message;

/// Between two tries to keep a link that found no room.
const LINKS_AGAIN_MS: u64 = 1_000;

impl Run {
    pub(super) fn perform<S: Sender<PublicKey = PublicKey>>(
        &mut self,
        out: &mut Vec<Output>,
        sender: &mut S,
    ) -> Result<(), String> {
        while !out.is_empty() {
            for output in std::mem::take(out) {
                self.perform_one(output, out, sender)?;
            }
        }
        self.publish();
        Ok(())
    }

    fn perform_one<S: Sender<PublicKey = PublicKey>>(
        &mut self,
        output: Output,
        out: &mut Vec<Output>,
        sender: &mut S,
    ) -> Result<(), String> {
        let journal = Arc::clone(&self.inner.journal);
        match output {
            Output::Send { to, message } => self.send(sender, to, &message),
            Output::Store { number, tag, body, sync } => {
                let write = Write::Append { number, tag, body, sync };
                self.unwritten += write.bytes();
                self.writes.send(write).map_err(|_| "the journal ended".to_owned())?;
            }
            Output::Proposed { ticket, digest } => {
                if let Some(Answer::Propose(answer)) = self.answers.waiting.remove(&ticket) {
                    // Consensus may have gone on without.
                    let _late = answer.send(sha256::Digest(digest));
                }
            }
            Output::Verdict { ticket, right } => {
                if let Some(Answer::Verdict(answer)) = self.answers.waiting.remove(&ticket) {
                    let _late = answer.send(right);
                }
            }
            Output::Committed { entry } => {
                self.sink.committed(&entry);
                locked(&self.inner.seen).status.applied = entry.position;
            }
            Output::Chained(chained) => journal.chained(chained),
            Output::Done { ticket, result } => {
                self.done(ticket, result);
                self.pass_barriers(out);
            }
            Output::ServeRange { to, above } => {
                let range = journal.range(above).map_err(|error| error.to_string())?;
                let message = range.unwrap_or_else(|| journal.offers());
                let empty = matches!(&message, Message::Offers(offers) if offers.is_empty());
                if !empty {
                    self.send(sender, To::One(to), &message);
                }
            }
            Output::ServeOffers { to } => self.send(sender, To::One(to), &journal.offers()),
            Output::ServeChunk { to, index, offset } => {
                if let Some(message) = journal.chunk(index, offset) {
                    self.send(sender, To::One(to), &message);
                }
            }
            Output::WriteChunk { offset, bytes } => {
                match journal.write_chunk(offset, &bytes) {
                    Ok(()) => {}
                    // It is asked for once more, later.
                    Err(error) if error.is_no_room() => {
                        tracing::warn!(replica = self.inner.id, %error, "no disk space for the incoming snapshot");
                        self.core.adopt_failed_here();
                    }
                    Err(error) => return Err(error.to_string()),
                }
            }
            Output::Adopt { offer } => self.adopt(&offer, out)?,
            Output::Link(link) => {
                self.links_left.push_back(*link);
                self.links_at_ms = 0;
                self.keep_links()?;
            }
            Output::Members => self.membership.moved = true,
            Output::ServeLinks { to, epoch } => {
                if let Some(message) = journal.links(epoch) {
                    self.send(sender, To::One(to), &message);
                }
            }
            Output::Blame { who, what } => {
                tracing::warn!(
                    replica = self.inner.id,
                    who,
                    what,
                    "protocol violation by a controller: it sent what no honest one sends"
                );
            }
        }
        Ok(())
    }

    /// Makes links durable, in order; those without room on the disk wait, and nothing behind them is forgotten meanwhile.
    pub(super) fn keep_links(&mut self) -> Result<(), String> {
        if self.now_ms < self.links_at_ms {
            return Ok(());
        }
        self.links_at_ms = self.now_ms + LINKS_AGAIN_MS;
        while let Some(link) = self.links_left.front() {
            match self.inner.journal.keep_link(link) {
                Ok(()) => drop(self.links_left.pop_front()),
                Err(error) if error.is_no_room() => break,
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    }

    pub(super) fn done(&mut self, ticket: u64, result: Result<Position, Error>) {
        match self.answers.waiting.remove(&ticket) {
            Some(Answer::Done(done, _)) => {
                self.inner.open.fetch_sub(1, Ordering::Relaxed);
                done.finish(result);
            }
            Some(Answer::Barrier(waiting, _)) => {
                self.barriers_in_flight -= 1;
                self.inner.barriers.fetch_sub(waiting.len() as u64, Ordering::Relaxed);
                // Fenced meanwhile: what was applied is not what it should be.
                let result = match self.health.fence() {
                    Some(what) => Err(Error::Fenced { what }),
                    None => result,
                };
                locked(&self.inner.seen).counters.reads += waiting.len() as u64;
                waiting.into_iter().for_each(|done| done.finish(result.clone()));
            }
            Some(Answer::Approval) => self.approved(result),
            _ => {}
        }
    }

    pub(super) fn send<S: Sender<PublicKey = PublicKey>>(
        &mut self,
        sender: &mut S,
        to: To,
        message: &Message,
    ) {
        let recipients = match to {
            To::All => Recipients::All,
            To::One(id) => match self.membership.key_of(id) {
                Some(key) => Recipients::One(key.clone()),
                None => return,
            },
        };
        let bytes = message.encode();
        if bytes.len() > message_bytes_max(&self.inner.settings) {
            locked(&self.inner.seen).counters.unsendable += 1;
            return;
        }
        // What does not get through is asked for, or said again.
        let _reached = sender.send(recipients, IoBuf::from(bytes), false);
    }
}
