//! What the words of the planes mean for the order of updates: all that the loop asks about a key or an entry beyond which it is.
//!
//! A plan says what each of its updates waits for. What no plan can say, because it depends on what is in force when an update goes, the
//! loop adds; it does so without a word of a network: by the answers here. A kind of entries with such a rule of its own says it here.

use crate::entry::{Entry, Key, Vni};
use crate::update::{Change, Reason, Update};
use std::net::IpAddr;

/// What only one key of an actuator has at a time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Claim {
    /// An address of a network.
    Address(Vni, IpAddr),
    /// A device: namespace and name.
    Device(Option<String>, String),
}

/// With which others a key shares the way to its actuator: however much of one share waits, the others take their turns.
pub type Share = Option<Vni>;

/// Why a key that wants a claim waits for the one that has it.
pub const LETS_GO: Reason = Reason::PortLetsGo;
/// Why the last part of something goes before what it is a part of.
pub const PART_GONE: Reason = Reason::PortGoneBeforeNetwork;
/// Waits that may be cut when updates wait for each other all round, the cheapest first: for a moment somebody sends where nobody
/// is, or a newer key takes what an older one has. What a policy depends on is never cut.
pub const CUTS: [Reason; 3] =
    [Reason::LocationGoneBeforePort, Reason::PortLetsGo, Reason::PortBeforeLocation];
/// No key comes before this one.
pub const FIRST: Key = Key::Gateways;

/// The share of a key.
pub fn share(key: &Key) -> Share {
    key.vni()
}

/// Whether entries of a key claim something.
pub fn can_claim(key: &Key) -> bool {
    matches!(key, Key::Port { .. })
}

/// What an update claims for its key; nothing when it deletes it.
pub fn claims(update: &Update) -> Vec<Claim> {
    let (Key::Port { vni, .. }, Change::Put(Entry::Port(port))) = (&update.key, &update.change) else {
        return Vec::new();
    };
    let addresses = port.addresses.iter().map(|address| Claim::Address(*vni, *address));
    addresses.chain([Claim::Device(port.netns.clone(), port.device.clone())]).collect()
}

/// The name by which a refusal names a key that claims.
pub fn claimant(key: &Key) -> Option<&str> {
    match key {
        Key::Port { endpoint, .. } => Some(endpoint.as_str()),
        _ => None,
    }
}

/// What a key is a part of: where both are deleted, the part is first.
pub fn whole(part: &Key) -> Option<Key> {
    match part {
        Key::Port { vni, .. } => Some(Key::Network { vni: *vni }),
        _ => None,
    }
}

/// Whether a key may be deleted only when another is gone, whichever decisions deleted them.
pub fn outlives(key: &Key, other: &Key) -> bool {
    match (key, other) {
        (Key::Network { vni: of } | Key::Policy { vni: of }, Key::Port { vni, .. }) => vni == of,
        _ => false,
    }
}

/// Whether any key may be deleted only after others: see [`outlives`].
pub fn may_outlive(key: &Key) -> bool {
    matches!(key, Key::Network { .. } | Key::Policy { .. })
}

/// Whether an update waits in vain for another key to be let go of, of which `desired` says what it shall be now: for an address to be forgotten that
/// comes back to the waiting update's own actuator, for another key there. For the same key it is well: its newer update takes the
/// place of the one that waits.
pub fn is_futile<'d>(waiting: &Update, reason: Reason, desired: impl FnOnce() -> Option<&'d Change>) -> bool {
    let (Reason::LocationGoneBeforePort, Key::Port { endpoint, .. }) = (reason, &waiting.key) else {
        return false;
    };
    matches!(desired(), Some(Change::Put(Entry::Location(location)))
        if location.host == waiting.target && location.endpoint != *endpoint)
}

/// Whether nobody waits for an actuator that has no session for this reason: it is told when it is back, before anything else counts
/// there. So one that is dead keeps nobody else from going on.
pub fn only_of_connected(reason: Reason) -> bool {
    reason == Reason::ReceiverFirst
}

#[cfg(test)]
mod tests;
