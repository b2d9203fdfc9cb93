//! Neighbour discovery messages (RFC 4861): solicitation, advertisement, router solicitation.

use super::{Fragment, Parsed, Transport};
use crate::PacketError;
use crate::address::Mac;
use crate::bytes::get_array;

const ROUTER_SOLICITATION: u8 = 133;
const NEIGHBOR_SOLICITATION: u8 = 135;
const NEIGHBOR_ADVERTISEMENT: u8 = 136;
const OPTION_SOURCE_LINK_LAYER: u8 = 1;
const OPTION_TARGET_LINK_LAYER: u8 = 2;

/// A neighbour discovery message that a network answers or learns from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NeighborMessage {
    /// A host asks for routers.
    RouterSolicitation {
        /// Ethernet address of the asker, if it says so.
        source_mac: Option<Mac>,
    },
    /// A host asks who has `target`.
    Solicitation {
        /// The IPv6 address in question.
        target: [u8; 16],
        /// Ethernet address of the asker; absent in duplicate address detection.
        source_mac: Option<Mac>,
    },
    /// A host says where `target` is.
    Advertisement {
        /// The IPv6 address in question.
        target: [u8; 16],
        /// Ethernet address of the target.
        target_mac: Option<Mac>,
        /// The solicited flag.
        solicited: bool,
        /// The override flag.
        replaces: bool,
    },
}

/// Reads a neighbour discovery message; `None` when the packet is something else.
/// The checksum is the caller's to verify ([`crate::checksum::verify`]).
///
/// # Errors
/// [`PacketError::NeighborTruncated`], `NeighborHopLimit`, `NeighborOption`, `NeighborTarget`.
pub fn parse_neighbor(frame: &[u8], parsed: &Parsed) -> Result<Option<NeighborMessage>, PacketError> {
    parsed.check(frame)?;
    let kind = parsed.icmp_type;
    let ours = matches!(kind, ROUTER_SOLICITATION | NEIGHBOR_SOLICITATION | NEIGHBOR_ADVERTISEMENT);
    if parsed.transport != Transport::Icmpv6 || parsed.fragment != Fragment::Whole || !ours {
        return Ok(None);
    }
    if parsed.ttl != 255 {
        return Err(PacketError::NeighborHopLimit);
    }
    let body = &frame[parsed.l4_offset..parsed.end];
    if kind == ROUTER_SOLICITATION {
        let source_mac = link_layer_option(&body[8..], OPTION_SOURCE_LINK_LAYER)?;
        return Ok(Some(NeighborMessage::RouterSolicitation { source_mac }));
    }
    if body.len() < 24 {
        return Err(PacketError::NeighborTruncated);
    }
    let target: [u8; 16] = get_array(body, 8);
    if target[0] == 0xff {
        return Err(PacketError::NeighborTarget);
    }
    Ok(Some(if kind == NEIGHBOR_SOLICITATION {
        let source_mac = link_layer_option(&body[24..], OPTION_SOURCE_LINK_LAYER)?;
        NeighborMessage::Solicitation { target, source_mac }
    } else {
        let target_mac = link_layer_option(&body[24..], OPTION_TARGET_LINK_LAYER)?;
        let (solicited, replaces) = (body[4] & 0x40 != 0, body[4] & 0x20 != 0);
        NeighborMessage::Advertisement { target, target_mac, solicited, replaces }
    }))
}

/// Walks the options, each a multiple of 8 bytes, and returns the first link-layer address of `kind`.
fn link_layer_option(mut options: &[u8], kind: u8) -> Result<Option<Mac>, PacketError> {
    let mut found = None;
    while !options.is_empty() {
        let length = options.get(1).copied().map_or(0, usize::from) * 8;
        if length == 0 || length > options.len() {
            return Err(PacketError::NeighborOption);
        }
        if options[0] == kind && length == 8 && found.is_none() {
            found = Some(get_array(options, 2));
        }
        options = &options[length..];
    }
    Ok(found)
}
