//! Who may say what: the source of an event must be registered, its signature right, and what it says its own
//! to say (rows R4 and R12; DESIGN §6).
//!
//! Registered are the controllers, by configuration, with the keys of their identities; and every actuator
//! that joined, with the identity that it joined with. Changes of keys, and revocations, are events themselves (`identities`). A controller may say everything: its API speaks for
//! those whom it has authenticated. An actuator may tell of itself only what it saw. A plane of an actuator is a source with the keys of
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
use weir_model::plane::PlaneReport;
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
        }
    }
}

/// Whether an event may be decided on.
///
/// # Errors
/// Why it is to be dropped.
pub fn admit(domain: &Label, known: Registered<'_>, signed: &SignedEvent) -> Result<(), Unauthentic> {
    let event = &signed.event;
    let keys = known.keys_of(&event.source)?;
    if let Some((actuator, plane)) = event.source.plane() {
        let own = |report: &PlaneReport| report.actuator == actuator && report.plane == plane;
        if !matches!(&event.body, EventBody::Report(report) if own(report)) {
            return Err(Unauthentic::NotItsOwn);
        }
    } else if !known.is_configured(&event.source) {
        let name = event.source.actuator().and_then(|name| Label::new(name).ok());
        let name = name.ok_or(Unauthentic::UnknownSource)?;
        if event.body.witness() != Some(&name) {
            return Err(Unauthentic::NotItsOwn);
        }
    }
    match keys.iter().any(|public| verify_event(public, domain, signed).is_ok()) {
        true => Ok(()),
        false => Err(Unauthentic::BadSignature),
    }
}
