//! Rules that are in force from some event of the order on, so that those before it are decided as they were. Each is a cell of one
//! table, and so part of every snapshot and digest; none ends.

use weir_model::event::{EventBody, NewRule};
use weir_store::{Rejection, Store, View};

/// The table; the watch feed leaves it out.
pub(super) const RULES_TABLE: &str = "rules";

/// A rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// A joined actuator has an address of its own.
    UnderlaysApart,
    /// What an operator is to order carries an operator's signature.
    SignedRequests,
    /// Certificates count by the word of their owners' keys, and no controller tells any. Only where requests are signed.
    OwnersCertificates,
}

impl Rule {
    fn key(self) -> &'static [u8] {
        match self {
            Rule::UnderlaysApart => b"underlays-apart",
            Rule::SignedRequests => b"signed-requests",
            Rule::OwnersCertificates => b"owners-certificates",
        }
    }

    /// Whether it is in force.
    pub fn holds(self, view: &View<'_>) -> bool {
        view.get(RULES_TABLE, self.key()).is_some()
    }

    /// Whether it is in force in a store.
    pub fn holds_in(self, store: &Store) -> bool {
        store.get(RULES_TABLE, self.key()).is_some()
    }

    /// Puts it in force.
    pub fn put(self, view: &mut View<'_>) -> Result<(), Rejection> {
        if self.holds(view) { Ok(()) } else { view.put(RULES_TABLE, self.key(), vec![1]) }
    }
}

/// Decides on a rule that a controller puts in force.
pub(super) fn decide(view: &mut View<'_>, body: &EventBody) -> Result<(), Rejection> {
    match body {
        EventBody::Rule(NewRule::OwnersCertificates) if Rule::SignedRequests.holds(view) => {
            Rule::OwnersCertificates.put(view)
        }
        EventBody::Rule(NewRule::OwnersCertificates) => Err(Rejection::Reference {
            resource: "rules".into(),
            problem: "this one is for domains whose operators sign what they order".into(),
        }),
        _ => Ok(()),
    }
}
