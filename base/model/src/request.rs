//! Of which kinds a request of an operator is, and so of whom it needs the word: [`crate::approval`].

use crate::approval::{Approval, Need, Needs, RequestKind};
use crate::domain::DomainEvent;
use crate::event::{EventBody, Mutation, Wanted};
use crate::identity::IdentityEvent;
use crate::operator::OperatorRole;
use crate::plane::PlaneOrder;
use crate::resource::Kind;
use std::collections::BTreeSet;

impl Needs {
    /// Of whom a request for this needs the word; none where its author's is enough.
    ///
    /// Who the operators are, and the needs themselves, need as many as the kind that needs most, and all of them admins: else one could
    /// make the others.
    pub fn of(&self, body: &EventBody) -> Option<Need> {
        let both = |one: Need, other: Need| Need {
            approvals: one.approvals.max(other.approvals),
            role: one.role.max(other.role),
        };
        let kinds = kinds_of(body);
        if kinds.contains(&RequestKind::Operators) {
            let most = self.kinds.values().copied().reduce(both)?;
            return Some(Need { role: OperatorRole::Admin, ..most });
        }
        kinds.iter().filter_map(|kind| self.kinds.get(kind)).copied().reduce(both)
    }
}

/// Of which kinds a request for this is.
pub fn kinds_of(body: &EventBody) -> BTreeSet<RequestKind> {
    use RequestKind::{Apply, Delete, DeleteNetwork, Domain, DomainForget, Forget, Operators, Revoke};
    let network = |mutation: &Mutation| mutation.id.kind == Kind::Network;
    let gone = |mutation: &&Mutation| mutation.wanted == Wanted::Absent;
    let withdrawn = |order: &PlaneOrder| order.spec.is_none();
    let mut kinds = BTreeSet::new();
    let (mutations, orders, replace_all) = match body {
        EventBody::Intent(transaction) => (&transaction.mutations[..], &[][..], transaction.replace_all),
        EventBody::Apply(apply) => {
            (&apply.resources.mutations[..], &apply.orders[..], apply.resources.replace_all)
        }
        EventBody::Order(order) => {
            kinds.extend([Apply].into_iter().chain(withdrawn(order).then_some(Delete)));
            return kinds;
        }
        EventBody::FileWall(order) => {
            kinds.extend([Apply].into_iter().chain(order.files.is_none().then_some(Delete)));
            return kinds;
        }
        EventBody::Repair(_) => return [Apply].into(),
        EventBody::Removed { .. } => return [Forget].into(),
        EventBody::Domain(about) => {
            return match &**about {
                DomainEvent::Known(_) => [Domain].into(),
                DomainEvent::Forgotten { .. } => [DomainForget].into(),
                _ => kinds,
            };
        }
        EventBody::Identity(about) => {
            return match &**about {
                IdentityEvent::Revoked { .. } => [Revoke].into(),
                IdentityEvent::Operator { .. } => [Operators].into(),
                _ => kinds,
            };
        }
        EventBody::Approval(about) => {
            return match &**about {
                Approval::Needed(_) => [Operators].into(),
                Approval::Given(_) | Approval::Refused(_) => kinds,
            };
        }
        _ => return kinds,
    };
    kinds.insert(Apply);
    // What is not named goes, whatever it is.
    if replace_all
        || mutations.iter().any(|mutation| gone(&mutation))
        || orders.iter().any(|change| withdrawn(&change.order))
    {
        kinds.insert(Delete);
    }
    if replace_all || mutations.iter().filter(gone).any(network) {
        kinds.insert(DeleteNetwork);
    }
    kinds
}

#[cfg(test)]
mod tests;
