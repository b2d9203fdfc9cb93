//! Paths through the kernel alone: a plain veth pair, and two bridges joined by kernel VXLAN.
//!
//! ```text
//! plain veth       tenant1 eth0 ───────────────────────────────── eth0 tenant2
//!
//! kernel VXLAN     tenant1 eth0 ─ port ┐ host1            host2 ┌ port ─ eth0 tenant2
//!                                     br0 ─ vx0            vx0 ─ br0
//!                                            └ under ═══ under ┘
//! ```

use super::path::{Endpoints, Path};
use super::topology::{Hosts, TENANT_MTU_BYTES, Tenants};
use crate::{Netns, Result, Scope};

/// Two namespaces joined by a veth pair: the limit of this machine.
#[derive(Debug, Default)]
pub struct PlainVeth;

impl Path for PlainVeth {
    fn name(&self) -> &str {
        "veth"
    }

    fn conditions(&self) -> String {
        "one veth pair, no overlay, offloads as the kernel has them".to_string()
    }

    fn set_up(&mut self, scope: &Scope) -> Result<Endpoints> {
        let tenants = Tenants::create(scope, "pv")?;
        tenants.netns[0].veth("eth0", &tenants.netns[1], "eth0")?;
        tenants.configure()
    }
}

/// A bridge a host, joined by kernel VXLAN with a static forwarding table.
#[derive(Debug, Default)]
pub struct KernelVxlan;

impl Path for KernelVxlan {
    fn name(&self) -> &str {
        "kernel-vxlan"
    }

    fn conditions(&self) -> String {
        "Linux bridge and kernel VXLAN, static forwarding table, offloads as the kernel has them".to_string()
    }

    fn set_up(&mut self, scope: &Scope) -> Result<Endpoints> {
        let hosts = Hosts::create(scope, "vx")?;
        let tenants = Tenants::create(scope, "vx")?;
        for (index, host) in hosts.netns.iter().enumerate() {
            hosts.address(index, "under")?;
            vxlan_bridge(host, &hosts.addresses[index])?;
            tenants.netns[index].veth("eth0", host, "port")?;
            host.attach("port", "br0")?;
            host.up("port")?;
        }
        let endpoints = tenants.configure()?;
        for (index, host) in hosts.netns.iter().enumerate() {
            let mac = tenants.netns[1 - index].mac("eth0")?;
            let remote = &hosts.addresses[1 - index];
            host.run("bridge", &["fdb", "replace", &mac, "dev", "vx0", "dst", remote, "self", "permanent"])?;
            host.run("bridge", &["fdb", "replace", &mac, "dev", "vx0", "master", "static"])?;
        }
        Ok(endpoints)
    }
}

fn vxlan_bridge(host: &Netns, local: &str) -> Result<()> {
    host.bridge("br0")?;
    host.mtu("br0", TENANT_MTU_BYTES)?;
    let vxlan = [
        "link",
        "add",
        "name",
        "vx0",
        "type",
        "vxlan",
        "id",
        "77",
        "dstport",
        "4789",
        "local",
        local,
        "nolearning",
    ];
    host.ip(&vxlan)?;
    host.mtu("vx0", TENANT_MTU_BYTES)?;
    host.attach("vx0", "br0")?;
    host.up("vx0")
}
