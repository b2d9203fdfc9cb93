//! What is ordered when a domain goes from one order to another (rows R1, R2): the last entry of the order that ends, and the word of the key
//! that signed until then for the one that signs from then on.
//!
//! Invariants
//! - Nothing that stands behind a [`Conversion`] in its order is carried out, but one that takes it back. The order that goes on begins with the state that it leaves,
//!   under the next epoch: so a controller that still runs the one before, from a backup say, signs nothing that an actuator takes.
//! - A [`Succession`] is of one domain, names the epoch from which on the new key signs, and is signed by the key before: whoever trusts
//!   that one needs nobody else's word.

use serde::{Deserialize, Serialize};

pub use crate::signed::{Succeeded, Succession};

/// The order that goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GroupOrder {
    /// Over raft: some controllers may crash.
    Raft,
    /// Byzantine: some may lie.
    Bft,
    /// That of the controller that is alone: the end of its order is taken back, before the group has ordered anything.
    Alone,
}

/// This order ends here, and another one goes on with its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conversion {
    /// The order that goes on.
    pub order: GroupOrder,
    /// The number of this controller in the group; 0 with [`GroupOrder::Alone`].
    pub member: u64,
    /// Where the other controllers connect, `ADDRESS:PORT`; at most [`LISTEN_BYTES_MAX`]. Empty with [`GroupOrder::Alone`].
    pub listen: String,
    /// Whether the controllers are in different places.
    pub wide: bool,
}

/// Longest [`Conversion::listen`], bytes.
pub const LISTEN_BYTES_MAX: usize = 64;

/// Table of the store with the one entry, under the empty key: the [`Conversion`] that was ordered last, and the epoch that it ended.
pub const CONVERSION_TABLE: &str = "conversion";
/// Table of the store with the one entry, under the empty key: the [`Succession`] in force.
pub const SUCCESSION_TABLE: &str = "succession";
