//! Checks of one resource by itself. A wrong one gets the field, the value, and what is allowed.

use super::*;
use crate::entry::VNI_MAX;
use std::collections::BTreeSet;

/// A field with a value that is not allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[error("{field}: '{value}' is not allowed: {allowed}")]
pub struct FieldError {
    /// Path of the field inside the resource, such as `dhcp.leaseS`.
    pub field: String,
    /// The value found.
    pub value: String,
    /// What would be right.
    pub allowed: String,
}

impl FieldError {
    /// A new one.
    pub fn new(field: impl Into<String>, value: impl fmt::Display, allowed: impl Into<String>) -> FieldError {
        FieldError { field: field.into(), value: value.to_string(), allowed: allowed.into() }
    }
}

fn check(right: bool, field: &str, value: impl fmt::Display, allowed: &str) -> Result<(), FieldError> {
    if right { Ok(()) } else { Err(FieldError::new(field, value, allowed)) }
}

/// How many there are, where that is what is wrong.
pub(super) fn counted(count: usize) -> String {
    format!("{count} of them")
}

pub(super) fn validate(resource: &Resource) -> Result<(), FieldError> {
    match resource {
        Resource::Network(network) => {
            check((MTU_MIN..=MTU_MAX).contains(&network.mtu), "mtu", network.mtu, "1280 to 65000 bytes")?;
            let vni = network.vni.map_or(1, |vni| vni.0);
            check((1..=VNI_MAX).contains(&vni), "vni", vni, "1 to 16777215")
        }
        Resource::Subnet(subnet) => validate_subnet(subnet),
        Resource::Endpoint(endpoint) => validate_endpoint(endpoint),
        Resource::Route(route) => check(
            route.prefix.trunc() == route.prefix,
            "prefix",
            route.prefix,
            &format!("a prefix without host bits, here {}", route.prefix.trunc()),
        ),
        Resource::FirewallRule(rule) => validate_rule(rule),
        Resource::Balancer(balancer) => super::balancer::validate(balancer),
    }
}

fn validate_subnet(subnet: &Subnet) -> Result<(), FieldError> {
    check(subnet.v4.is_some() || subnet.v6.is_some(), "v4", "", "at least one of v4 and v6 must be given")?;
    if let Some(net) = subnet.v4 {
        check(net.trunc() == net, "v4", net, &format!("a prefix without host bits, here {}", net.trunc()))?;
        check((8..=29).contains(&net.prefix_len()), "v4", net, "a prefix length from /8 to /29")?;
        let first = net.network();
        let usable =
            !first.is_loopback() && !first.is_multicast() && !first.is_link_local() && first.octets()[0] != 0;
        check(usable, "v4", net, "a unicast prefix that is neither loopback nor link-local")?;
    }
    if let Some(net) = subnet.v6 {
        check(net.trunc() == net, "v6", net, &format!("a prefix without host bits, here {}", net.trunc()))?;
        check((48..=120).contains(&net.prefix_len()), "v6", net, "a prefix length from /48 to /120")?;
        let first = net.network();
        let usable = !first.is_loopback() && !first.is_multicast() && !first.is_unicast_link_local();
        check(usable, "v6", net, "a unicast prefix that is neither loopback nor link-local")?;
    }
    let dhcp = &subnet.dhcp;
    check((60..=86_400 * 30).contains(&dhcp.lease_s), "dhcp.leaseS", dhcp.lease_s, "60 seconds to 30 days")?;
    check(
        dhcp.dns_servers.len() <= 4,
        "dhcp.dnsServers",
        counted(dhcp.dns_servers.len()),
        "at most 4 servers",
    )?;
    check(
        dhcp.ntp_servers.len() <= 4,
        "dhcp.ntpServers",
        counted(dhcp.ntp_servers.len()),
        "at most 4 servers",
    )?;
    check(dhcp.search.len() <= 6, "dhcp.search", counted(dhcp.search.len()), "at most 6 domains")?;
    for domain in &dhcp.search {
        let right = domain.len() <= 253 && domain.split('.').all(|label| Label::new(label).is_ok());
        check(
            right,
            "dhcp.search",
            domain,
            "a DNS name of lower-case labels joined by dots, without a final dot",
        )?;
    }
    Ok(())
}

fn validate_endpoint(endpoint: &Endpoint) -> Result<(), FieldError> {
    if let Some(mac) = endpoint.mac {
        check(mac.is_unicast() && mac.0 != [0; 6], "mac", mac, "a unicast address that is not all zero")?;
    }
    check(
        endpoint.addresses.len() <= ADDRESSES_MAX,
        "addresses",
        counted(endpoint.addresses.len()),
        "at most 16",
    )?;
    let mut seen = BTreeSet::new();
    for address in &endpoint.addresses {
        let host = !address.is_multicast() && !address.is_unspecified() && !address.is_loopback();
        check(
            host && *address != IpAddr::V4(Ipv4Addr::BROADCAST),
            "addresses",
            address,
            "a unicast address",
        )?;
        check(seen.insert(*address), "addresses", address, "each address once")?;
    }
    check(endpoint.tags.len() <= TAGS_MAX, "tags", counted(endpoint.tags.len()), "at most 32 tags")?;
    endpoint.attachment.as_ref().map_or(Ok(()), validate_attachment)
}

fn validate_attachment(attachment: &Attachment) -> Result<(), FieldError> {
    let (pairs, is_device) = (attachment.queue_pairs, attachment.kind.is_device());
    let right = if is_device { pairs == 1 } else { (1..=QUEUE_PAIRS_MAX).contains(&pairs) };
    check(right, "attachment.queuePairs", pairs, "1 for a device, 1 to 8 for a virtual machine")?;
    if is_device {
        let socket = attachment.socket.as_deref().unwrap_or_default();
        check(attachment.socket.is_none(), "attachment.socket", socket, "none for a device: give its name")?;
        let device = &attachment.device;
        check(!device.is_empty(), "attachment.device", device, "it must be given")?;
        let right = device.len() <= 15
            && device != "."
            && device != ".."
            && device.bytes().all(|b| b.is_ascii_graphic() && b != b'/' && b != b':' && b != b'%');
        check(right, "attachment.device", device, "1 to 15 printable characters without '/', ':' and '%'")?;
        let netns = attachment.netns.as_deref().unwrap_or("x");
        let right = (1..=64).contains(&netns.len())
            && !netns.starts_with('.')
            && netns.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
        let wanted = "the name of a network namespace: letters, digits, '-', '_' and '.'";
        return check(right, "attachment.netns", netns, wanted);
    }
    let device = &attachment.device;
    check(device.is_empty(), "attachment.device", device, "none for a virtual machine: give a socket")?;
    let netns = attachment.netns.as_deref().unwrap_or_default();
    check(attachment.netns.is_none(), "attachment.netns", netns, "none for a virtual machine")?;
    let socket = attachment.socket.as_deref().unwrap_or_default();
    check(!socket.is_empty(), "attachment.socket", socket, "it must be given")?;
    let right = socket.len() <= SOCKET_BYTES_MAX
        && socket.starts_with('/')
        && !socket.ends_with('/')
        && socket.split('/').all(|part| part != "..")
        && socket.bytes().all(|b| b.is_ascii_graphic());
    let wanted = "an absolute path without '..', at most 107 printable characters";
    check(right, "attachment.socket", socket, wanted)
}

fn validate_rule(rule: &FirewallRule) -> Result<(), FieldError> {
    let has_ports = matches!(rule.protocol, Protocol::TCP | Protocol::UDP);
    check(
        rule.ports.is_empty() || has_ports,
        "ports",
        counted(rule.ports.len()),
        "ports only with protocol tcp or udp",
    )?;
    check(rule.ports.len() <= RULE_ITEMS_MAX, "ports", counted(rule.ports.len()), "at most 64 ranges")?;
    check(rule.peers.len() <= RULE_ITEMS_MAX, "peers", counted(rule.peers.len()), "at most 64 peers")?;
    check(rule.targets.len() <= TAGS_MAX, "targets", counted(rule.targets.len()), "at most 32 tags")?;
    for peer in &rule.peers {
        if let Peer::Prefix(net) = peer {
            let wanted = format!("a prefix without host bits, here {}", net.trunc());
            check(net.trunc() == *net, "peers.prefix", net, &wanted)?;
        }
    }
    Ok(())
}
