//! What a new document is refused for at the door, beside what [`Resource::validate`] refuses everywhere: values that were
//! taken once and are in orders and stores for ever, so that whoever reads these must go on taking them.

use super::{FieldError, Resource};
use ipnet::{Ipv4Net, Ipv6Net};
use serde_json::Value;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Reserved since ever, and dropped by most stacks.
const RESERVED_V4: u8 = 240;
/// Deepest part of a document that is looked at.
const DEPTH_MAX: usize = 8;

impl Resource {
    /// Checks a document that a person gives now, which is this resource.
    ///
    /// # Errors
    /// The first wrong field, its value, and what is allowed.
    pub fn admit(&self, document: &Value) -> Result<(), FieldError> {
        if let Some((field, text)) = leading_zero(document, "", 0) {
            return Err(FieldError::new(field, text, "parts of an IPv4 address without zeros before them"));
        }
        match self {
            Resource::Subnet(subnet) => {
                subnet.v4.map_or(Ok(()), admit_v4)?;
                subnet.v6.map_or(Ok(()), admit_v6)
            }
            Resource::Endpoint(endpoint) => {
                endpoint.addresses.iter().try_for_each(|address| admit_address("addresses", *address))
            }
            Resource::Balancer(balancer) => admit_address("address", balancer.address),
            Resource::Network(_) | Resource::Route(_) | Resource::FirewallRule(_) => Ok(()),
        }
    }
}

fn is_reserved(address: Ipv4Addr) -> bool {
    address.octets()[0] >= RESERVED_V4
}

fn admit_v4(net: Ipv4Net) -> Result<(), FieldError> {
    if is_reserved(net.network()) {
        return Err(FieldError::new("v4", net, "a unicast prefix: 240.0.0.0/4 is reserved"));
    }
    Ok(())
}

fn is_global_or_local(address: Ipv6Addr) -> bool {
    // Global unicast (2000::/3 and what is not given out yet up to it) and unique local addresses. Below are the unspecified,
    // loopback and IPv4-mapped addresses and the translation prefixes.
    let first = address.segments()[0];
    (0x0100..0xfe00).contains(&first) && address.to_ipv4_mapped().is_none()
}

fn admit_v6(net: Ipv6Net) -> Result<(), FieldError> {
    if is_global_or_local(net.network()) {
        return Ok(());
    }
    let allowed = "a prefix of global (2000::/3) or unique local (fc00::/7) addresses; ::/8 holds the unspecified, loopback and IPv4-mapped ones";
    Err(FieldError::new("v6", net, allowed))
}

fn admit_address(field: &str, address: IpAddr) -> Result<(), FieldError> {
    let right = match address {
        IpAddr::V4(v4) => !is_reserved(v4),
        IpAddr::V6(v6) => is_global_or_local(v6),
    };
    if right { Ok(()) } else { Err(FieldError::new(field, address, "a unicast address of a subnet")) }
}

/// The first text that is an IPv4 address or prefix with a part such as `010`, which some read as octal: its field and text.
fn leading_zero(value: &Value, field: &str, depth: usize) -> Option<(String, String)> {
    match value {
        Value::String(text) => {
            let address = text.split('/').next().unwrap_or_default();
            let parts: Vec<&str> = address.split('.').collect();
            let number = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            let found = parts.len() == 4
                && parts.iter().all(number)
                && parts.iter().any(|part| part.len() > 1 && part.starts_with('0'));
            found.then(|| (field.to_owned(), text.clone()))
        }
        _ if depth >= DEPTH_MAX => None,
        Value::Array(items) => items.iter().find_map(|item| leading_zero(item, field, depth + 1)),
        Value::Object(fields) => fields.iter().find_map(|(name, value)| {
            let path = if field.is_empty() { name.clone() } else { format!("{field}.{name}") };
            leading_zero(value, &path, depth + 1)
        }),
        _ => None,
    }
}
