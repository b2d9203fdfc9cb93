//! ARP for IPv4 over Ethernet (RFC 826).

use crate::PacketError;
use crate::address::Mac;
use crate::bytes::{get_array, get16};

/// Length of an ARP packet for IPv4 over Ethernet.
pub const ARP_BYTES: usize = 28;
/// Operation "who has".
pub const ARP_REQUEST: u16 = 1;
/// Operation "is at".
pub const ARP_REPLY: u16 = 2;

/// The fields of an ARP packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arp {
    /// [`ARP_REQUEST`] or [`ARP_REPLY`]; others are left to the caller.
    pub operation: u16,
    /// Ethernet address of the sender.
    pub sender_mac: Mac,
    /// IPv4 address of the sender.
    pub sender_ip: [u8; 4],
    /// Ethernet address of the target, zero in a request.
    pub target_mac: Mac,
    /// IPv4 address that is asked for or answered.
    pub target_ip: [u8; 4],
}

/// Reads an ARP packet; `packet` starts behind the Ethernet header (`&frame[parsed.l3_offset..]`).
///
/// # Errors
/// [`PacketError::ArpTruncated`], [`PacketError::ArpFormat`].
pub fn parse_arp(packet: &[u8]) -> Result<Arp, PacketError> {
    if packet.len() < ARP_BYTES {
        return Err(PacketError::ArpTruncated);
    }
    if packet[..6] != [0, 1, 8, 0, 6, 4] {
        return Err(PacketError::ArpFormat);
    }
    Ok(Arp {
        operation: get16(packet, 6),
        sender_mac: get_array(packet, 8),
        sender_ip: get_array(packet, 14),
        target_mac: get_array(packet, 18),
        target_ip: get_array(packet, 24),
    })
}
