//! Identifiers of virtual networks.

use crate::MacAddr;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::Ipv6Addr;

/// Highest virtual network identifier: 24 bits on the wire.
pub const VNI_MAX: u32 = (1 << 24) - 1;

/// A virtual network identifier, 1 to [`VNI_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Vni(pub u32);

impl Vni {
    /// The Ethernet address of the network's router, the same on every host, locally administered.
    pub fn router_mac(self) -> MacAddr {
        let [_, a, b, c] = self.0.to_be_bytes();
        MacAddr([0x02, 0x57, 0x52, a, b, c])
    }

    /// The router's link-local address, the same on every host.
    pub fn router_link_local(self) -> Ipv6Addr {
        Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1)
    }
}

impl fmt::Display for Vni {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
