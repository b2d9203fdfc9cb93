//! What people order: requests that their authors sign, and not the controller that hands them on (rows R4, R12; DESIGN §6).
//!
//! A controller's word orders nothing that is an operator's to order, once the domain has operators: an event of a controller is then
//! an operator's request only as a [`Said`], which every replica checks for itself when it decides. What is a controller's own to tell
//! stays its own. Who may say what, in such a domain:
//!
//! | event | whose word it is |
//! |---|---|
//! | `Intent`, `Apply`, `Order`, `Repair`, `FileWall` | an operator's, of either role |
//! | `Removed` | an operator's who is an admin |
//! | `Domain`: `Known`, `Forgotten` | an admin's |
//! | `Identity`: `Revoked`, `Introduced`, `Operator`, `Token` made or voided | an admin's |
//! | `JoinedBy` | whose token is used: it carries the signature of the token's key |
//! | `Joined` | nobody's, but of an actuator that is known with the very same facts |
//! | `Identity`: `Token` used | nobody's: `JoinedBy` uses the token |
//! | `Identity`: `Rotated`, `Settled` | whose key it is: they carry the keys' own signatures |
//! | `Domain`: `Forwarded`, `Heard` | the other domain's: they carry its signatures |
//! | `Approval`: given or refused | an operator's, of either role: which one counts, the needs say |
//! | `Approval`: needed | an admin's |
//! | `Domain`: `Controllers`, `Speaks`, `Refused`, `Rule` | a controller's own, as before |
//! | `Identity`: `Certified` | a controller's own, until certificates count by their owners' word ([`crate::event::NewRule`]); then nobody's |
//! | `Identity`: `Operator` founded | a controller's, and refused where there are operators; f+1 must say it where one is not believed |
//! | `Clock` | a controller's: no replica votes for one that is not what its own clocks say, and while ordered time is wrong no request is in time |
//! | `Group` | a controller's own: what follows from it needs as many as cannot all lie, or as many as decide |
//! | `Converted` | a controller's that is alone, and nobody's in a group |
//! | `Usage`, `Health`, `PacketIn`, `Report`, `Conduct` | the actuator's that tells of itself, and no controller's |
//!
//! Invariants
//! - A request has one author and one level: there is no request in a request, and the decoder descends into none.
//! - The author's signature is over domain, author, number, both times, and the hash of the body: so a body in the envelope of another
//!   request, and a request of another domain, are nobody's.
//! - A request dies: it is good for [`LIFE_MAX_MS`] at most. So one that a controller holds back is not decided later, and a domain has to
//!   remember few of the numbers that were used.
//! - A number has the time of its making above [`NUMBER_TIME_BITS`]: no controller that proposes a number can use up those to come.
//!
//! Of which requests more operators than the author must say so, [`crate::approval`] has.
//!
//! Departure from the papers, which say only that clients sign (2.3.2, 2.6.5, 3.3.2): an operator's key is an ed25519 key, no token of
//! somebody who vouches for a person.

use crate::approval::Approval;
use crate::domain::DomainEvent;
use crate::event::{EventBody, SourceId};
use crate::identity::{IdentityEvent, TokenChange};

pub use crate::event::{JoinedBy, Said};
pub use crate::operator::{
    Founders, OPERATOR_KEYS_MAX, OPERATORS_MAX, OperatorChange, OperatorFacts, OperatorRole,
};

/// How long a request is good for at most, milliseconds.
pub const LIFE_MAX_MS: u64 = 600_000;
/// How far the clock of who makes a request may be ahead of the domain's, milliseconds.
pub const AHEAD_MAX_MS: u64 = 120_000;
/// Bits of a request's number below the milliseconds of its making: a person's programs tell apart by them what they ask at once.
pub const NUMBER_TIME_BITS: u32 = 10;

impl Said {
    /// Who asks.
    pub fn author(&self) -> &SourceId {
        &self.event.source
    }

    /// The author's number for it.
    pub fn number(&self) -> u64 {
        self.event.sequence
    }

    /// What is wanted.
    pub fn body(&self) -> &EventBody {
        &self.event.body
    }

    /// The least number of a request that is made at this time. Any of the 1,024 from here on will do that the author has not used.
    pub fn number_at(made_ms: u64) -> u64 {
        made_ms.saturating_mul(1 << NUMBER_TIME_BITS)
    }

    /// What is wrong with its times and its number at this wall time, milliseconds of the Unix epoch; 0: no time is known.
    pub fn time_problem(&self, now_ms: u64) -> Option<&'static str> {
        let Said { made_ms, until_ms, .. } = self;
        if until_ms <= made_ms || until_ms - made_ms > LIFE_MAX_MS {
            return Some("a request is over after it was made, and 600000 ms after that at the latest");
        }
        if self.number() >> NUMBER_TIME_BITS > *made_ms {
            return Some("its number is of a later time than it was made");
        }
        match now_ms {
            0 => None,
            now_ms if now_ms > *until_ms => Some("its time is over"),
            now_ms if *made_ms > now_ms.saturating_add(AHEAD_MAX_MS) => {
                Some("it was made more than 120000 ms later than now: a clock is wrong")
            }
            _ => None,
        }
    }
}

/// Whose word an event is, in a domain whose operators sign their requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// An operator's, of this role or a higher one.
    Operator(OperatorRole),
    /// A controller's: it tells what it sees, or what carries the signatures of others.
    Controller,
    /// An actuator's, of itself.
    Actuator,
    /// An actuator that joins, as it is known already.
    Known,
    /// Nobody's.
    Nobody,
}

/// Whose word a body is: the table of the module.
pub fn word_of(body: &EventBody) -> Word {
    use OperatorRole::{Admin, Operator};
    match body {
        EventBody::Intent(_)
        | EventBody::Apply(_)
        | EventBody::Order(_)
        | EventBody::Repair(_)
        | EventBody::FileWall(_) => Word::Operator(Operator),
        EventBody::Removed { .. } => Word::Operator(Admin),
        EventBody::Domain(about) => match &**about {
            DomainEvent::Known(_) | DomainEvent::Forgotten { .. } => Word::Operator(Admin),
            DomainEvent::Controllers(_) | DomainEvent::Forwarded { .. } | DomainEvent::Heard { .. } => {
                Word::Controller
            }
        },
        EventBody::Identity(about) => match &**about {
            IdentityEvent::Revoked { .. } | IdentityEvent::Introduced { .. } => Word::Operator(Admin),
            IdentityEvent::Operator { change, .. } => match change {
                OperatorChange::Founded(_) => Word::Controller,
                OperatorChange::Added(_) | OperatorChange::Changed(_) | OperatorChange::Removed => {
                    Word::Operator(Admin)
                }
            },
            IdentityEvent::Token { change, .. } => match change {
                TokenChange::Made { .. } | TokenChange::MadeWithKey { .. } | TokenChange::Voided => {
                    Word::Operator(Admin)
                }
                TokenChange::Used { .. } => Word::Nobody,
            },
            IdentityEvent::Certified { .. } | IdentityEvent::Rotated(_) | IdentityEvent::Settled { .. } => {
                Word::Controller
            }
        },
        EventBody::Approval(about) => match &**about {
            Approval::Given(_) | Approval::Refused(_) => Word::Operator(Operator),
            Approval::Needed(_) => Word::Operator(Admin),
        },
        EventBody::Speaks { .. }
        | EventBody::Rule(_)
        | EventBody::Refused { .. }
        | EventBody::Clock { .. }
        | EventBody::JoinedBy(_)
        | EventBody::Group(_)
        | EventBody::Converted(_)
        | EventBody::Said(_) => Word::Controller,
        EventBody::Joined(_) => Word::Known,
        EventBody::Usage(_)
        | EventBody::Health(_)
        | EventBody::PacketIn(_)
        | EventBody::Report(_)
        | EventBody::Conduct(_) => Word::Actuator,
    }
}

impl OperatorRole {
    /// Whether an operator of this role may order this.
    pub fn may_order(self, body: &EventBody) -> bool {
        matches!(word_of(body), Word::Operator(least) if self >= least)
    }
}

#[cfg(test)]
mod tests;
