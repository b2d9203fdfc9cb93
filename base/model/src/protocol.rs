//! Numbers of the sessions' protocol, and the digest by which both sides of a session compare what is in force.

use serde::{Deserialize, Serialize};

/// Number of this protocol. An agent speaks this one; controllers also take [`PROTOCOL_MIN`] and what is between.
pub const PROTOCOL: u32 = 13;

/// The oldest protocol that controllers take: frames are the same, and keys that came later are kept from whoever speaks it.
pub const PROTOCOL_MIN: u32 = 10;

/// The first protocol with [`crate::Key::Switches`] and [`crate::Key::Underlays`].
pub const SWITCHES_SINCE: u32 = 11;

/// The first protocol with [`crate::Key::Plane`] and [`crate::session::ToController::Plane`].
pub const PLANES_SINCE: u32 = 12;

/// The first protocol with [`crate::signed::GroupSignature::Succeeded`].
pub const SUCCESSIONS_SINCE: u32 = 13;

/// A digest over all (key, version) pairs in force, independent of their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StateDigest(pub u128);
