//! What the API needs to let people order: whether a request must be signed, and would be admitted, and its way into the order. What a request is,
//! [`weir_model::said`] says; who the operators are, `core::operators`.

use super::handle::ControllerHandle;
use super::locking::locked;
use super::shared::{Published, Shared};
use crate::Error;
use crate::core::admission::{Unauthentic, admit};
use crate::core::approvals::{Waiting, waiting};
use crate::core::clock::wall_of;
use crate::core::operators::{Asked, asked, awaited, awaits_word, founding};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weir_model::Version;
use weir_model::event::{EventBody, NewRule, SourceId};
use weir_model::operator::Founders;
use weir_model::said::{JoinedBy, Said, Word, word_of};
use weir_store::Rejection;
use weir_trust::said::digest;

/// How often a controller says who the first operators are, at most.
const TOLD_AGAIN_MS: u64 = 2_000;

impl Shared {
    /// Wall time as the group has it, milliseconds of the Unix epoch.
    pub(super) fn wall_ms(&self, published: &Published) -> u64 {
        wall_of(&published.store, published.now_ms.max(self.ordered_now_ms()))
    }

    /// Whether the settings name operators and the order does not yet.
    pub(super) fn awaits_operators(&self) -> bool {
        self.awaits_operators.load(Ordering::SeqCst)
    }

    /// Notes what a batch, or a state, says of it.
    pub(super) fn note_operators(&self, in_force: bool) {
        self.awaits_operators.store(!self.operators.is_empty() && !in_force, Ordering::SeqCst);
    }

    /// Says who the first operators are, by the settings, until the order has it from as many controllers as must say so; and then that
    /// certificates count by their owners' word.
    pub(super) fn tell_operators(self: &Arc<Self>) {
        let known = self.published();
        let wants_rule = known.operators.in_force() && !known.operators.owners_certificates();
        if !(self.awaits_operators() || wants_rule) || !(self.leads() || self.everywhere) {
            return;
        }
        let now_ms = self.clock.now_ns() / 1_000_000;
        {
            let mut told_ms = locked(&self.operators_told_ms);
            if told_ms.is_some_and(|at_ms| now_ms.saturating_sub(at_ms) < TOLD_AGAIN_MS) {
                return;
            }
            *told_ms = Some(now_ms);
        }
        if wants_rule {
            self.offer(EventBody::Rule(NewRule::OwnersCertificates));
        } else if awaits_word(&known.store, self.source(), &self.operators)
            && let Some(about) = founding(&self.operators)
        {
            self.offer(EventBody::Identity(Box::new(about)));
        }
    }
}

impl ControllerHandle {
    /// Whether this is an operator's to order, and needs an operator's signature here.
    pub fn must_be_signed(&self, body: &EventBody) -> bool {
        let operators = self.published().operators.in_force() || self.shared.awaits_operators();
        operators && matches!(word_of(body), Word::Operator(_))
    }

    /// Whether the settings name operators and the order does not yet: until it does, nobody orders anything here.
    pub fn awaits_operators(&self) -> bool {
        self.shared.awaits_operators()
    }

    /// Whether a request would be admitted as things are known here, and at which version it was decided already.
    ///
    /// # Errors
    /// Why it would be dropped.
    pub fn check_said(&self, said: &Said) -> Result<Option<Version>, Unauthentic> {
        let published = self.published();
        let domain = self.domain();
        match asked(&published.store, said, &digest(domain, said)) {
            Asked::At(version) => return Ok(Some(version)),
            Asked::Used => return Err(Unauthentic::NumberUsed),
            Asked::Never => {}
        }
        published.operators.admit(domain, self.shared.wall_ms(&published), said).map(|()| None)
    }

    /// Hands an operator's request on. One that was decided already has the answer of that time.
    ///
    /// # Errors
    /// [`Error::Unauthentic`]: it is not its author's, or not in time; nothing changed. Else as [`ControllerHandle::propose`].
    pub async fn submit_said(&self, said: Said) -> Result<Version, Error> {
        let refused = |reason| {
            let (sender, sequence) = (said.author().0.clone(), said.number());
            Error::Unauthentic { sender, sequence, reason }
        };
        if let Some(version) = self.check_said(&said).map_err(refused)? {
            return Ok(version);
        }
        let subject = said.author().0.clone();
        self.submit_own(EventBody::Said(Box::new(said)), Some(subject)).await
    }

    /// The request of an operator that waits for approvals, if it does; [`ControllerHandle::submit_said`] has ordered it then.
    pub fn waits(&self, digest: &[u8; 32]) -> Option<(Waiting, Said)> {
        waiting(&self.store(), digest)
    }

    /// What a request is known by: the SHA-256 of all that its author signs.
    pub fn digest_of(&self, said: &Said) -> [u8; 32] {
        digest(self.domain(), said)
    }

    /// Orders something by this controller's own word, for somebody whom the API authenticated.
    ///
    /// # Errors
    /// [`Error::Unauthentic`] at once, where it is an operator's to order and operators sign. Else as [`ControllerHandle::propose`].
    pub async fn submit_own(&self, body: EventBody, subject: Option<String>) -> Result<Version, Error> {
        let event = self.shared.own_event(body, subject)?;
        let published = self.published();
        if self.shared.awaits_operators() && awaited(&event.event.body) {
            let (sender, sequence, reason) =
                (event.event.source.0, event.event.sequence, Unauthentic::Unsigned);
            return Err(Error::Unauthentic { sender, sequence, reason });
        }
        if published.operators.in_force() {
            // What would be dropped takes no place in the order, and names nobody a liar who is none.
            let known = published.registered(self.shared.keys());
            let taken = admit(self.domain(), known, self.shared.wall_ms(&published), &event);
            if let Err(reason @ (Unauthentic::Unsigned | Unauthentic::NotItsOwn)) = taken {
                let (sender, sequence) = (event.event.source.0, event.event.sequence);
                return Err(Error::Unauthentic { sender, sequence, reason });
            }
        }
        self.submit(event).await
    }

    /// Orders that an actuator joined, by the word of who has its token.
    ///
    /// # Errors
    /// As [`ControllerHandle::propose`].
    pub async fn joined_by(&self, by: JoinedBy) -> Result<Version, Error> {
        let subject = SourceId::of_actuator(&by.facts.name).0;
        self.submit_own(EventBody::JoinedBy(Box::new(by)), Some(subject)).await
    }

    /// Says who the first operators are, while there are none. Where one controller is not believed, this is the word of one of the f+1
    /// that must say it: whether they are in force then, [`Published::operators`] tells. A controller whose settings name them says it
    /// by itself.
    ///
    /// # Errors
    /// [`Error::Rejected`]: there are some, or what is wrong with these. Else as [`ControllerHandle::propose`].
    pub async fn first_operators(
        &self,
        founders: &Founders,
        subject: Option<String>,
    ) -> Result<Version, Error> {
        let about = founding(founders).ok_or_else(|| Rejection::Reference {
            resource: "operators".into(),
            problem: "none of them is an admin: the first must be".into(),
        })?;
        self.submit_own(EventBody::Identity(Box::new(about)), subject).await
    }
}
