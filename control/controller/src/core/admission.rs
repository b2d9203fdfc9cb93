//! Who may say what: the source of an event must be registered, its signature right, and what it says its own
//! to say (rows R4 and R12; DESIGN §6).
//!
//! Registered are the controllers, by configuration, with the keys of their identities; and every actuator
//! that joined, with the identity that it joined with. Changes of keys, and revocations, are events themselves (`identities`). A controller may say everything: its API speaks for
//! those whom it has authenticated. But once the domain has operators ([`operators`](super::operators)), what is an operator's to order is
//! taken only with an operator's signature, and what is an actuator's to tell only from that; who may say what is in
//! [`weir_model::said`]. An actuator may tell of itself only what it saw. A plane of an actuator is a source with the keys of
//! that actuator, and may only report of itself.
//!
//! This is asked twice, and each time over all that the answer depends on:
//! - at the intake, by the replica to which the source speaks, so that what is forged takes no place in the order;
//! - when the event is decided, by every replica, in a replay of the log as well. There the answer is part of what
//!   the order means: a replica that skipped it in a replay would accept then what it refused before, when
//!   somebody else proposed something forged. A check costs some tens of microseconds, about as much as deciding on
//!   a small event. Snapshots hold no events, so nothing is checked again in them.

use super::identities::Registered;
pub use super::sources::{SourceKeys, Unauthentic};
use weir_model::Label;
use weir_model::event::{EventBody, SignedEvent};
use weir_model::group::{AGENT, ConductReport};
use weir_model::identity::IdentityEvent;
use weir_model::plane::PlaneReport;
use weir_model::said::{Word, word_of};
use weir_trust::identity::verify_event;

/// What was dropped, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnauthenticCounters {
    /// Events of sources that are not registered.
    pub unknown_source: u64,
    /// Events whose signature is wrong.
    pub bad_signature: u64,
    /// Events that their source may not say.
    pub not_its_own: u64,
    /// Events of sources that were revoked.
    pub revoked: u64,
    /// Events signed with a key that was replaced.
    pub replaced: u64,
    /// What is an operator's to order, of controllers, without an operator's signature.
    pub unsigned: u64,
    /// Requests of who is no operator.
    pub no_operator: u64,
    /// Requests, and joins by a token, that are not signed by who is said to say them.
    pub forged: u64,
    /// Requests that their author's role may not order.
    pub beyond_role: u64,
    /// Requests that are over, or good for too long.
    pub not_in_time: u64,
    /// Requests under a number that was used.
    pub number_used: u64,
    /// Certificates that a controller tells where they count by their owners' word.
    pub unowned: u64,
}

impl UnauthenticCounters {
    /// Counts one.
    pub fn count(&mut self, reason: Unauthentic) {
        match reason {
            Unauthentic::UnknownSource => self.unknown_source += 1,
            Unauthentic::BadSignature => self.bad_signature += 1,
            Unauthentic::NotItsOwn => self.not_its_own += 1,
            Unauthentic::Revoked => self.revoked += 1,
            Unauthentic::Replaced => self.replaced += 1,
            Unauthentic::Unsigned => self.unsigned += 1,
            Unauthentic::NoOperator => self.no_operator += 1,
            Unauthentic::Forged => self.forged += 1,
            Unauthentic::BeyondRole => self.beyond_role += 1,
            Unauthentic::NotInTime => self.not_in_time += 1,
            Unauthentic::NumberUsed => self.number_used += 1,
            Unauthentic::Unowned => self.unowned += 1,
        }
    }
}

/// Whether an event may be decided on, at this wall time, milliseconds of the Unix epoch; 0: none is known.
///
/// # Errors
/// Why it is to be dropped.
pub fn admit(
    domain: &Label,
    known: Registered<'_>,
    wall_ms: u64,
    signed: &SignedEvent,
) -> Result<(), Unauthentic> {
    let event = &signed.event;
    let keys = known.keys_of(&event.source)?;
    if let Some((actuator, plane)) = event.source.plane() {
        let own = |report: &PlaneReport| report.actuator == actuator && report.plane == plane;
        let of_agent = |report: &ConductReport| report.actuator == actuator && plane.as_str() == AGENT;
        let may = match &event.body {
            EventBody::Report(report) => own(report),
            EventBody::Conduct(report) => of_agent(report),
            _ => false,
        };
        if !may {
            return Err(Unauthentic::NotItsOwn);
        }
    } else if !known.is_configured(&event.source) {
        let name = event.source.actuator().and_then(|name| Label::new(name).ok());
        let name = name.ok_or(Unauthentic::UnknownSource)?;
        if event.body.witness() != Some(&name) {
            return Err(Unauthentic::NotItsOwn);
        }
    }
    if !keys.iter().any(|public| verify_event(public, domain, signed).is_ok()) {
        return Err(Unauthentic::BadSignature);
    }
    // Behind the signature: who is told to have ordered it has.
    if known.operators.in_force() && known.is_configured(&event.source) {
        controller_may_say(known, &event.body)?;
    }
    match &event.body {
        EventBody::Said(said) => known.operators.admit(domain, wall_ms, said),
        _ => Ok(()),
    }
}

/// Whether a controller may say something by its own word, where operators sign what they order.
pub(super) fn controller_may_say(known: Registered<'_>, body: &EventBody) -> Result<(), Unauthentic> {
    match (word_of(body), body) {
        (Word::Controller, EventBody::Identity(about))
            if known.operators.owners_certificates()
                && matches!(**about, IdentityEvent::Certified { .. }) =>
        {
            Err(Unauthentic::Unowned)
        }
        (Word::Controller, _) => Ok(()),
        (Word::Known, EventBody::Joined(facts)) if known.joined.get(&facts.name) == Some(facts) => Ok(()),
        (Word::Actuator, _) => Err(Unauthentic::NotItsOwn),
        (Word::Operator(_) | Word::Known | Word::Nobody, _) => Err(Unauthentic::Unsigned),
    }
}
