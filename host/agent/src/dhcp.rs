//! DHCP for the ports of this host (row A15, pain 12): the directory says which address an endpoint
//! has, so there is nothing to lease, store or flood.
//!
//! Both families are pure functions from a port and its message to the answer. An endpoint always
//! gets its own address, however often and whatever it asks for; leases exist only because clients
//! want them, and make clients come back for changed options.
//!
//! Departures from the RFCs: a DECLINE changes nothing, because no other endpoint of the network can
//! have the address (the switch drops what is not the port's own); it is counted and logged.

pub mod v4;
pub mod v6;

use crate::frame::UdpFrame;
use crate::mirror::PortContext;
use dhcproto::Name;
use weir_model::resource::MTU_MIN;

/// Port of a DHCPv4 server.
pub const SERVER_PORT_V4: u16 = 67;
/// Port of a DHCPv4 client.
pub const CLIENT_PORT_V4: u16 = 68;
/// Port of a DHCPv6 server.
pub const SERVER_PORT_V6: u16 = 547;
/// Port of a DHCPv6 client.
pub const CLIENT_PORT_V6: u16 = 546;
/// Most search domains that are told.
pub const SEARCH_MAX: usize = 16;

/// Why a message has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// It breaks the protocol's form.
    #[error("malformed: {0}")]
    Malformed(&'static str),
    /// It is well formed and wants no answer, or none from us.
    #[error("{0}")]
    Ignored(&'static str),
}

/// The domains that an endpoint searches: its network's own first, then the subnet's, without those
/// that are no domain names.
fn search_domains(port: &PortContext) -> Vec<Name> {
    std::iter::once(port.zone())
        .chain(port.port.dhcp.search.iter().map(|domain| domain.trim_end_matches('.').to_string()))
        .filter(|domain| !domain.is_empty())
        .filter_map(|domain| Name::from_ascii(format!("{domain}.")).ok())
        .take(SEARCH_MAX)
        .collect()
}

/// Times at which a client renews and rebinds, seconds (RFC 2131 4.4.5, RFC 8415 14.2).
fn renewal_times_s(lease_s: u32) -> (u32, u32) {
    (lease_s / 2, (u64::from(lease_s) * 7 / 8) as u32)
}

/// Checks what both families share: the frame is from the port's endpoint.
fn from_endpoint(port: &PortContext, frame: &UdpFrame<'_>) -> Result<(), NoAnswer> {
    if frame.source_mac == port.port.mac { Ok(()) } else { Err(NoAnswer::Ignored("another source address")) }
}

/// Largest UDP payload that passes the port in one packet of the family.
fn payload_max(port: &PortContext, header_bytes: usize) -> usize {
    usize::from(port.network.mtu.max(MTU_MIN)) - header_bytes
}

#[cfg(test)]
mod tests;
