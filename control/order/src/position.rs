//! Where an entry is in the order.

/// A place in the order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The term (raft), epoch or view (bft), or incarnation (local) in which the entry was ordered.
    pub term: u64,
    /// 1 for the first entry, then without gaps. 0 is the place before all entries.
    pub index: u64,
}
