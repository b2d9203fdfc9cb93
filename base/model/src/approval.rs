//! Approvals: which requests of operators wait until several of them have signed, and what they say of one that waits (rows R4, R12).
//!
//! A domain's [`Needs`] say of how many operators, of which role, each kind of request needs the word; its author is one of them. A request
//! of which more than one is needed is ordered and then waits: its place in the order is that of its author, and it is decided on when the last
//! one that it needs has said so. Who approves signs the digest of the whole request (`weir_trust::said::digest`), so what was approved
//! is what is done. Of which kinds a request is, and so what it needs, says [`crate::request`].
//!
//! Tokens, and controllers that are added, are no kinds: whoever asks for one needs the answer at once.

use crate::operator::OperatorRole;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Most operators of which a request may need the word.
pub const APPROVALS_MAX: u8 = 8;
/// For how long a request waits at most, seconds.
pub const WAIT_MAX_S: u32 = 604_800;
/// For how long at least.
pub const WAIT_MIN_S: u32 = 60;
/// For how long, where nothing else is said.
pub const WAIT_S: u32 = 86_400;

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum RequestKind {
    /// Any change of resources, of what planes have, repairs, and policies of FileWalls.
    Apply,
    /// A change that deletes a resource, or withdraws something from a plane.
    Delete,
    /// A change that deletes a network.
    DeleteNetwork,
    /// A host or gateway is forgotten.
    Forget,
    /// Keys are revoked.
    Revoke,
    /// Another domain becomes known, or known otherwise.
    Domain,
    /// Another domain is forgotten.
    DomainForget,
    /// Who the operators are, and what needs approvals.
    Operators,
}

impl RequestKind {
    /// All of them.
    pub const ALL: [RequestKind; 8] = [
        RequestKind::Apply,
        RequestKind::Delete,
        RequestKind::DeleteNetwork,
        RequestKind::Forget,
        RequestKind::Revoke,
        RequestKind::Domain,
        RequestKind::DomainForget,
        RequestKind::Operators,
    ];

    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            RequestKind::Apply => "apply",
            RequestKind::Delete => "delete",
            RequestKind::DeleteNetwork => "delete-network",
            RequestKind::Forget => "forget",
            RequestKind::Revoke => "revoke",
            RequestKind::Domain => "domain",
            RequestKind::DomainForget => "domain-forget",
            RequestKind::Operators => "operators",
        }
    }
}

impl fmt::Display for RequestKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Of whom a kind of request needs the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Need {
    /// Of how many operators, the author among them: 2 to [`APPROVALS_MAX`].
    pub approvals: u8,
    /// Of which role each of them is at least.
    pub role: OperatorRole,
}

/// What needs approvals, and for how long it waits for them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Needs {
    /// By kind; a kind that is not here needs its author alone.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub kinds: BTreeMap<RequestKind, Need>,
    /// For how long a request waits, seconds of ordered time: [`WAIT_MIN_S`] to [`WAIT_MAX_S`].
    pub wait_s: u32,
}

impl Default for Needs {
    fn default() -> Needs {
        Needs { kinds: BTreeMap::new(), wait_s: WAIT_S }
    }
}

impl Needs {
    /// What is wrong with them, by themselves.
    pub fn problem(&self) -> Option<String> {
        let wrong = |need: &&Need| !(2..=APPROVALS_MAX).contains(&need.approvals);
        if let Some((kind, need)) = self.kinds.iter().find(|(_, need)| wrong(need)) {
            return Some(format!(
                "{kind}: {} approvals cannot be needed: 2 to {APPROVALS_MAX}, the author among them; leave a kind out that needs its author alone",
                need.approvals
            ));
        }
        (!(WAIT_MIN_S..=WAIT_MAX_S).contains(&self.wait_s))
            .then(|| format!("a request cannot wait for {} s: {WAIT_MIN_S} to {WAIT_MAX_S}", self.wait_s))
    }

    /// All that is needed of operators: each with how many of which role there must be.
    pub fn all(&self) -> impl Iterator<Item = (RequestKind, Need)> + '_ {
        let most = self.kinds.values().map(|need| need.approvals).max();
        let operators =
            most.map(|approvals| (RequestKind::Operators, Need { approvals, role: OperatorRole::Admin }));
        self.kinds.iter().map(|(kind, need)| (*kind, *need)).chain(operators)
    }
}

/// What an operator says of requests that wait, or of what has to wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Approval {
    /// The request with this digest shall be done.
    Given([u8; 32]),
    /// It shall not be done: it waits no longer.
    Refused([u8; 32]),
    /// From now on this needs approvals.
    Needed(Needs),
}
