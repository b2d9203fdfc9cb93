//! Where an address of a network is: what gateways and hosts hold of it, and what domains tell each other.

use crate::{Label, MacAddr};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Where an address is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocationEntry {
    /// Name of the endpoint.
    pub endpoint: Label,
    /// Its Ethernet address.
    pub mac: MacAddr,
    /// Name of the host.
    pub host: Label,
    /// The host's address on the underlay.
    pub underlay: IpAddr,
}
