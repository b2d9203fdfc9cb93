//! Encapsulation of tenant frames: VXLAN (RFC 7348) and Geneve (RFC 8926) with Weir's security token (row A18).
//!
//! Only the tunnel header is made here: the outer UDP, IP and Ethernet headers are the kernel's, [`crate::outer`]'s or
//! [`crate::build::udp_datagram`]'s. Decoding is strict: a datagram that is not exactly what we speak is an error with
//! its reason, so that a peer's mistake is counted and not guessed at.

mod geneve;
mod vxlan;

pub use geneve::{
    ACCEPTS_OPTION_TYPE, GENEVE_BYTES, GENEVE_CHECKSUM_BYTES, GENEVE_PORT, GENEVE_TOKEN_BYTES, InnerChecksum,
    PARTIAL_OPTION_TYPE, TOKEN_OPTION_CLASS, TOKEN_OPTION_TYPE, decode_geneve, encode_geneve,
    needs_outer_checksum, write_half,
};
pub use vxlan::{VXLAN_BYTES, VXLAN_PORT, decode_vxlan, encode_vxlan};

use crate::PacketError;

/// Longest tunnel header that we write.
pub const MAX_ENCAP_BYTES: usize = GENEVE_BYTES + GENEVE_TOKEN_BYTES + GENEVE_CHECKSUM_BYTES;

/// Largest VNI.
pub const MAX_VNI: u32 = 0x00ff_ffff;

/// Which tunnel header a network uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Encapsulation {
    /// 8 bytes; what the Linux kernel and most switches speak.
    Vxlan,
    /// 8 bytes, 12 more with a token, and 4 more with the checksum option.
    Geneve,
}

impl Encapsulation {
    /// UDP port that the protocol is known under.
    pub const fn port(self) -> u16 {
        match self {
            Encapsulation::Vxlan => VXLAN_PORT,
            Encapsulation::Geneve => GENEVE_PORT,
        }
    }

    /// Writes the tunnel header and returns its length. VXLAN has no place for a token or the checksum option and leaves
    /// them out.
    ///
    /// # Errors
    /// `VniRange`, `BufferTooSmall`.
    #[inline]
    pub fn encode(
        self,
        buffer: &mut [u8],
        vni: u32,
        token: Option<u64>,
        checksum: InnerChecksum,
    ) -> Result<usize, PacketError> {
        match self {
            Encapsulation::Vxlan => encode_vxlan(buffer, vni),
            Encapsulation::Geneve => encode_geneve(buffer, vni, token, checksum),
        }
    }

    /// Reads the tunnel header at the start of a UDP payload.
    ///
    /// # Errors
    /// The `Vxlan...` and `Geneve...` reasons.
    #[inline]
    pub fn decode(self, datagram: &[u8]) -> Result<Decapsulated, PacketError> {
        match self {
            Encapsulation::Vxlan => decode_vxlan(datagram),
            Encapsulation::Geneve => decode_geneve(datagram),
        }
    }
}

/// What the half of a firewall decided that is where the packet comes from. A connection is judged at both its ends, where each
/// knows only its own rules; this is what one end must know of the other, so that what is dead at one is dead at both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Half {
    /// Nothing: VXLAN has no place for it, and switches of older releases do not say it.
    #[default]
    Unsaid,
    /// The rules there allow the packet to open a conversation, and let the receiver open none there.
    Opens,
    /// They allow both, and no conversation that the receiver opened is remembered.
    Mutual,
    /// They allow both, and the packet is of a conversation that the receiver opened.
    Answers,
    /// The packet passes only as one of a conversation that the receiver opened.
    Replies,
}

impl Half {
    /// Of its three parts; a packet that may neither open nor reply is not sent.
    #[inline]
    pub const fn new(opens: bool, accepts: bool, remembers: bool) -> Half {
        match (opens, accepts, remembers) {
            (true, false, _) => Half::Opens,
            (true, true, false) => Half::Mutual,
            (true, true, true) => Half::Answers,
            (false, ..) => Half::Replies,
        }
    }

    /// Whether the sender's rules allow the packet to open a conversation.
    #[inline]
    pub const fn opens(self) -> bool {
        !matches!(self, Half::Replies)
    }

    /// Whether the sender's rules allow the receiver to open a conversation of the same addresses and ports.
    #[inline]
    pub const fn accepts(self) -> bool {
        !matches!(self, Half::Opens)
    }

    /// Whether the sender remembers that the receiver did so.
    #[inline]
    pub const fn remembers(self) -> bool {
        matches!(self, Half::Answers | Half::Replies)
    }
}

/// What a tunnel header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decapsulated {
    /// Virtual network identifier, 24 bits.
    pub vni: u32,
    /// Where the tenant's Ethernet frame starts in the datagram.
    pub inner_offset: usize,
    /// The security token, if the peer sent one.
    pub token: Option<u64>,
    /// What the peer says about inner checksums.
    pub checksum: InnerChecksum,
    /// What the sender's half of the firewall decided.
    pub half: Half,
    /// Geneve: a control packet, which must not be forwarded to a tenant.
    pub oam: bool,
}

/// The outer UDP source port of a flow, from its hash: 49152 to 65535 (RFC 7348 §5, RFC 8926 §3.3), so that the
/// underlay spreads flows and keeps each one's order.
#[inline]
pub fn source_port(flow_hash: u64) -> u16 {
    0xc000 | (flow_hash >> 50) as u16
}

/// ECN bits of the outer header for a packet with ECN bits `inner` (RFC 6040 §4.1, normal mode).
#[inline]
pub const fn ecn_outer(inner: u8) -> u8 {
    inner & 3
}

/// ECN bits of the inner header after decapsulation (RFC 6040 §4.2); `None`: drop, congestion was marked on a
/// packet whose transport would not see it.
#[inline]
pub const fn ecn_inner(inner: u8, outer: u8) -> Option<u8> {
    match (inner & 3, outer & 3) {
        (0, 3) => None,
        (0, _) => Some(0),
        (_, 3) => Some(3),
        (2, 1) => Some(1),
        (inner, _) => Some(inner),
    }
}

#[inline]
fn check_vni(vni: u32) -> Result<(), PacketError> {
    if vni > MAX_VNI { Err(PacketError::VniRange) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
