//! An update on its way into a plan.

use std::net::IpAddr;
use weir_model::{Change, Key, Label};

/// An update without its dependencies.
pub(super) struct Issued {
    pub target: Label,
    pub key: Key,
    pub change: Change,
    /// Addresses that a port had before.
    pub addresses_before: Vec<IpAddr>,
}
