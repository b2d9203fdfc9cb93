//! What the peers' paths have in common: two host namespaces on an underlay and a tenant namespace on each.

use super::path::Endpoints;
use crate::{Netns, Result, Scope};
use std::net::{IpAddr, Ipv4Addr};

/// MTU between hosts: room for any encapsulation in use here.
pub(super) const UNDERLAY_MTU_BYTES: u32 = 1600;
/// MTU that tenants see.
pub(super) const TENANT_MTU_BYTES: u32 = 1500;

/// Two host namespaces joined by a veth pair named `under` on both sides.
pub(super) struct Hosts {
    pub(super) netns: [Netns; 2],
    /// Underlay addresses, without prefix length.
    pub(super) addresses: [String; 2],
}

impl Hosts {
    pub(super) fn create(scope: &Scope, short: &str) -> Result<Self> {
        let netns = [scope.netns(&format!("{short}-h1"))?, scope.netns(&format!("{short}-h2"))?];
        netns[0].veth("under", &netns[1], "under")?;
        for host in &netns {
            host.mtu("under", UNDERLAY_MTU_BYTES)?;
            host.up("under")?;
        }
        Ok(Self { netns, addresses: ["10.200.0.1".to_string(), "10.200.0.2".to_string()] })
    }

    /// Gives host `index` its underlay address on `link`.
    pub(super) fn address(&self, index: usize, link: &str) -> Result<()> {
        self.netns[index].address(link, format!("{}/24", self.addresses[index]))
    }
}

/// Two tenant namespaces; the path gives each a link `eth0`.
pub(super) struct Tenants {
    pub(super) netns: [Netns; 2],
}

impl Tenants {
    pub(super) fn create(scope: &Scope, short: &str) -> Result<Self> {
        Ok(Self { netns: [scope.netns(&format!("{short}-t1"))?, scope.netns(&format!("{short}-t2"))?] })
    }

    /// Addresses, MTU and permanent neighbours on both sides.
    pub(super) fn configure(&self) -> Result<Endpoints> {
        let addresses = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
        for (netns, address) in self.netns.iter().zip(addresses) {
            netns.mtu("eth0", TENANT_MTU_BYTES)?;
            netns.address("eth0", format!("{address}/24"))?;
            netns.up("eth0")?;
        }
        for index in 0..2 {
            let mac = self.netns[1 - index].mac("eth0")?;
            self.netns[index].neighbour("eth0", addresses[1 - index], &mac)?;
        }
        Ok(Endpoints {
            client: self.netns[0].clone(),
            client_address: IpAddr::V4(addresses[0]),
            server: self.netns[1].clone(),
            server_address: IpAddr::V4(addresses[1]),
        })
    }
}
