//! What can go wrong with a group that must survive lies, beside what every order knows ([`weir_order::Error`]).

/// Why a replica cannot be opened or go on.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The order's own failure.
    #[error(transparent)]
    Order(#[from] weir_order::Error),
    /// The members make no group.
    #[error("the members make no group: {what}")]
    Members {
        /// What is wrong and what would be right.
        what: String,
    },
    /// This replica is no member, and is not to follow.
    #[error(
        "controller {id} is no member of the group any more (epoch {epoch}): the others removed it. Stop it; to bring it back, start it \
         with --join-group and add it again ('weir group add')"
    )]
    NoMember {
        /// Its number.
        id: u32,
        /// The last epoch that it knows of.
        epoch: u64,
    },
    /// The change of members cannot be.
    #[error(transparent)]
    Change(#[from] crate::members::Refused),
    /// Another change of members came first.
    #[error("another change of members came first: look at 'weir group list', and ask again")]
    Overtaken,
    /// The journal says something that this program did not write.
    #[error(
        "the journal of this replica is not one of its group: {what}; move the directory aside and let the replica \
         catch up from the others"
    )]
    Journal {
        /// What was found.
        what: String,
    },
}
