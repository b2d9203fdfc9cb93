//! What can go wrong with a group, beside what every order knows ([`weir_order::Error`]).

/// A change of the group, or a planned move of its leader, that did not happen.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The order's own failure.
    #[error(transparent)]
    Order(#[from] weir_order::Error),
    /// This replica does not lead, so it can change nothing.
    #[error("this replica does not lead the group; ask {}", leader.map_or("again later, no leader is known".to_owned(), |id| format!("replica {id}")))]
    NotLeader {
        /// The leader, when known.
        leader: Option<u64>,
    },
    /// Another change is under way.
    #[error("another change of the group is under way: wait for it, changes are made one at a time")]
    Busy,
    /// The group has its members already.
    #[error("the group exists already: add replicas one at a time instead")]
    Exists,
    /// The change makes no sense with the members of now.
    #[error("{what}")]
    Member {
        /// What is wrong and what would be right.
        what: String,
    },
    /// A learner has not caught up.
    #[error(
        "replica {id} is {lag} entries behind and may be {limit}: wait until it has caught up, then promote it"
    )]
    Behind {
        /// The learner.
        id: u64,
        /// Entries that it lacks.
        lag: u64,
        /// The limit.
        limit: u64,
    },
    /// A change was proposed and its outcome is not known.
    #[error("the leader was lost during the change; look at the members, then repeat it if it is missing")]
    Unknown,
    /// No replica can take over.
    #[error("no other voter has caught up enough to lead")]
    NoSuccessor,
    /// A state to install, or to send, is not as it should be.
    #[error("repair of this replica: {what}")]
    Repair {
        /// What is wrong.
        what: String,
    },
}
