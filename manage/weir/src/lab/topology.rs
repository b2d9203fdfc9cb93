//! The lab's namespaces and links. The drawings are in `labs/*/README.md`.

use super::place::{
    CALLER_NUMBER, EXTERNAL_V4, EXTERNAL_V6, GATEWAY, GATEWAY_OUTSIDE_V4, GATEWAY_OUTSIDE_V6, HOSTS,
    OUTSIDE_V4, OUTSIDE_V6, Place, UNDERLAY_MTU_BYTES,
};
use weir_lab::{Netns, Result, Scope, system};

/// Name of the underlay's bridge, in its own namespace.
const BRIDGE: &str = "underlay";
/// Name of every member's device on the underlay.
pub const DEVICE: &str = "eth0";

/// Makes all namespaces but those of the guests, and joins them.
pub fn build(scope: &Scope, place: Place) -> Result<()> {
    let underlay = scope.netns("net")?;
    underlay.bridge(BRIDGE)?;
    underlay.mtu(BRIDGE, UNDERLAY_MTU_BYTES)?;
    for member in place.controllers().iter().chain(&HOSTS).chain([&GATEWAY]) {
        let netns = scope.netns(member.netns)?;
        netns.veth(DEVICE, &underlay, member.netns)?;
        netns.mtu(DEVICE, UNDERLAY_MTU_BYTES)?;
        netns.address(DEVICE, format!("{}/24", place.v4(member.number)))?;
        netns.address(DEVICE, format!("{}/64", place.v6(member.number)))?;
        netns.up(DEVICE)?;
        plug(&underlay, member.netns)?;
    }
    join_caller(place, &underlay)?;
    join_outside(scope, place)
}

/// Puts a link's end into the bridge.
fn plug(underlay: &Netns, link: &str) -> Result<()> {
    underlay.mtu(link, UNDERLAY_MTU_BYTES)?;
    underlay.attach(link, BRIDGE)?;
    underlay.up(link)
}

/// Joins the caller's own namespace, so that a person's shell reaches the controller.
fn join_caller(place: Place, underlay: &Netns) -> Result<()> {
    let link = format!("{}cli", place.prefix());
    let address = format!("{}/24", place.v4(CALLER_NUMBER));
    let peer = ["peer", "name", "cli", "netns", underlay.name()];
    system::run("ip", &[&["link", "add", "name", &link, "type", "veth"], &peer[..]].concat())?;
    system::run("ip", &["link", "set", "dev", &link, "mtu", &UNDERLAY_MTU_BYTES.to_string(), "up"])?;
    system::run("ip", &["address", "add", &address, "dev", &link])?;
    plug(underlay, "cli")
}

/// The outside behind the gateway: it knows the way back to the external addresses, and nothing of tenants.
fn join_outside(scope: &Scope, place: Place) -> Result<()> {
    let gateway = place.netns(GATEWAY.netns);
    let outside = scope.netns("out")?;
    gateway.veth("out0", &outside, DEVICE)?;
    for (netns, link, v4, v6) in [
        (&gateway, "out0", GATEWAY_OUTSIDE_V4, GATEWAY_OUTSIDE_V6),
        (&outside, DEVICE, OUTSIDE_V4, OUTSIDE_V6),
    ] {
        netns.address(link, format!("{v4}/24"))?;
        netns.address(link, format!("{v6}/64"))?;
        netns.up(link)?;
    }
    outside.route(&format!("{EXTERNAL_V4}/32"), GATEWAY_OUTSIDE_V4)?;
    outside.route(&format!("{EXTERNAL_V6}/128"), GATEWAY_OUTSIDE_V6)?;
    gateway.route("default", OUTSIDE_V4)?;
    gateway.route("default", OUTSIDE_V6)?;
    gateway.sysctl("net.ipv4.ip_forward", "1")?;
    gateway.sysctl("net.ipv6.conf.all.forwarding", "1")
}
