//! Strict parsing of one Ethernet frame: every field is read once, every length is checked against the bytes.
//!
//! Rows A22 (the key of the flow table comes from here) and A24. Understood: Ethernet, one 802.1Q tag, ARP,
//! IPv4 with options, IPv6 with at most [`MAX_EXTENSION_HEADERS`] extension headers, TCP, UDP, ICMP, ICMPv6,
//! neighbour discovery. Anything else is [`Network::Other`] or [`Transport::Other`], not an error.
//!
//! Invariants of a [`Parsed`]: `l3_offset <= l4_offset <= payload_offset <= payload_end <= end <= frame.len()`.
//! Bytes between `end` and the end of the frame are Ethernet padding and belong to nobody.
//!
//! Checksums are not looked at here (a guest may leave them to us): see [`crate::checksum::verify`].

mod arp;
mod ipv4;
mod ipv6;
mod neighbor;
mod plain;
mod transport;

pub use arp::{ARP_BYTES, ARP_REPLY, ARP_REQUEST, Arp, parse_arp};
pub use ipv6::MAX_EXTENSION_HEADERS;
pub use neighbor::{NeighborMessage, parse_neighbor};
pub use plain::Plain;

use crate::PacketError;
use crate::address::{IpAddress, Mac};
use crate::bytes::{get_array, get16};

/// Length of an Ethernet header without a tag.
pub const ETHERNET_BYTES: usize = 14;
/// Length of an 802.1Q tag.
pub const VLAN_BYTES: usize = 4;
/// Length of an IPv4 header without options.
pub const IPV4_BYTES: usize = 20;
/// Length of an IPv6 header without extension headers.
pub const IPV6_BYTES: usize = 40;
/// Length of a TCP header without options.
pub const TCP_BYTES: usize = 20;
/// Length of a UDP header.
pub const UDP_BYTES: usize = 8;
/// Length of an ICMP or ICMPv6 header.
pub const ICMP_BYTES: usize = 8;

/// Ethertype of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// Ethertype of ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// Ethertype of an 802.1Q tag.
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// Ethertype of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;

/// IP protocol number of ICMP.
pub const PROTOCOL_ICMP: u8 = 1;
/// IP protocol number of TCP.
pub const PROTOCOL_TCP: u8 = 6;
/// IP protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;
/// IP protocol number of ICMPv6.
pub const PROTOCOL_ICMPV6: u8 = 58;

/// The bits of the TCP flag byte.
pub mod tcp_flags {
    /// No more data from the sender.
    pub const FIN: u8 = 0x01;
    /// Synchronise sequence numbers.
    pub const SYN: u8 = 0x02;
    /// Reset the connection.
    pub const RST: u8 = 0x04;
    /// Deliver at once.
    pub const PSH: u8 = 0x08;
    /// The acknowledgement number is valid.
    pub const ACK: u8 = 0x10;
    /// The urgent pointer is valid.
    pub const URG: u8 = 0x20;
    /// ECN echo.
    pub const ECE: u8 = 0x40;
    /// Congestion window reduced.
    pub const CWR: u8 = 0x80;

    /// Whether no connection has segments with these flags: none of SYN, ACK and RST, or a SYN with FIN or RST.
    #[inline(always)]
    pub const fn is_odd(flags: u8) -> bool {
        flags & (SYN | ACK | RST) == 0 || (flags & SYN != 0 && flags & (FIN | RST) != 0)
    }
}

/// What the Ethernet payload is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// Anything else, with a second VLAN tag too: only the Ethernet fields are set.
    Other,
    /// A well-formed ARP packet: see [`parse_arp`].
    Arp,
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// What the IP payload is. `Other` also for fragments after the first, which carry no transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Not understood, or no header in this fragment, or not IP.
    Other,
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// ICMP over IPv4.
    Icmpv4,
    /// ICMPv6 over IPv6.
    Icmpv6,
}

/// Which part of a datagram the packet is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fragment {
    /// Not fragmented (an IPv6 atomic fragment is whole too, RFC 6946).
    Whole,
    /// Offset zero, more to come: has the transport header.
    First,
    /// A later piece: has no transport header.
    Later,
}

/// The fields of a frame, each read once. Offsets are in bytes from the start of the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parsed {
    /// Where the frame goes.
    pub destination_mac: Mac,
    /// Where the frame comes from.
    pub source_mac: Mac,
    /// Tag control information of the 802.1Q tag.
    pub vlan_tci: Option<u16>,
    /// Ethertype, behind the tag if there is one.
    pub ethertype: u16,
    /// Kind of the Ethernet payload.
    pub network: Network,
    /// Kind of the IP payload.
    pub transport: Transport,
    /// Place of the packet in its datagram.
    pub fragment: Fragment,
    /// IP protocol of the payload, behind all extension headers that are here.
    pub protocol: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// Type of service or traffic class; the low two bits are ECN.
    pub tos: u8,
    /// IPv4: "don't fragment". IPv6: true.
    pub dont_fragment: bool,
    /// Whether the IPv4 header has options, or the IPv6 header extension headers.
    pub has_options: bool,
    /// IPv4 identification, or that of the IPv6 fragment header.
    pub identification: u32,
    /// Offset of this piece in its datagram, in bytes.
    pub fragment_offset: u16,
    /// Offset of the first byte behind this piece in its datagram; zero of a packet that is whole.
    pub fragment_end: u16,
    /// Whether another piece comes behind this one.
    pub more_fragments: bool,
    /// Start of the network header.
    pub l3_offset: usize,
    /// Start of the transport header.
    pub l4_offset: usize,
    /// Start of what the transport header carries.
    pub payload_offset: usize,
    /// End of what the transport header carries (a UDP length may end before the packet).
    pub payload_end: usize,
    /// End of the IP packet by its own length field; of the frame when it is not IP.
    pub end: usize,
    /// IP source address.
    pub source: IpAddress,
    /// IP destination address.
    pub destination: IpAddress,
    /// TCP or UDP source port, else 0.
    pub source_port: u16,
    /// TCP or UDP destination port, else 0.
    pub destination_port: u16,
    /// TCP flag byte ([`tcp_flags`]), else 0.
    pub tcp_flags: u8,
    /// ICMP type, else 0.
    pub icmp_type: u8,
    /// ICMP code, else 0.
    pub icmp_code: u8,
    /// ICMP echo identifier, else 0.
    pub icmp_id: u16,
}

impl Default for Parsed {
    fn default() -> Parsed {
        Parsed::NOTHING
    }
}

impl Parsed {
    /// Of an empty frame.
    const NOTHING: Parsed = Parsed {
        destination_mac: [0; 6],
        source_mac: [0; 6],
        vlan_tci: None,
        ethertype: 0,
        network: Network::Other,
        transport: Transport::Other,
        fragment: Fragment::Whole,
        protocol: 0,
        ttl: 0,
        tos: 0,
        dont_fragment: false,
        has_options: false,
        identification: 0,
        fragment_offset: 0,
        fragment_end: 0,
        more_fragments: false,
        l3_offset: 0,
        l4_offset: 0,
        payload_offset: 0,
        payload_end: 0,
        end: 0,
        source: IpAddress([0; 16]),
        destination: IpAddress([0; 16]),
        source_port: 0,
        destination_port: 0,
        tcp_flags: 0,
        icmp_type: 0,
        icmp_code: 0,
        icmp_id: 0,
    };

    /// Whether the frame carries IP.
    #[inline]
    pub fn is_ip(&self) -> bool {
        matches!(self.network, Network::Ipv4 | Network::Ipv6)
    }

    /// Whether the frame carries IPv6.
    #[inline]
    pub fn is_v6(&self) -> bool {
        self.network == Network::Ipv6
    }

    /// VLAN identifier (1-4094; 0 is a priority tag), if tagged.
    #[inline]
    pub fn vlan_id(&self) -> Option<u16> {
        self.vlan_tci.map(|tci| tci & 0x0fff)
    }

    /// The two ECN bits.
    #[inline]
    pub fn ecn(&self) -> u8 {
        self.tos & 3
    }

    /// Length of the IP packet.
    #[inline]
    pub fn l3_length(&self) -> usize {
        self.end - self.l3_offset
    }

    /// Length of the transport payload.
    #[inline]
    pub fn payload_length(&self) -> usize {
        self.payload_end - self.payload_offset
    }

    /// Whether this is an ICMP or ICMPv6 error, which carries a piece of the packet that caused it.
    #[inline]
    pub fn is_icmp_error(&self) -> bool {
        match self.transport {
            Transport::Icmpv4 => matches!(self.icmp_type, 3 | 4 | 5 | 11 | 12),
            Transport::Icmpv6 => self.icmp_type < 128,
            _ => false,
        }
    }

    /// Whether this is an ICMP or ICMPv6 echo request or reply.
    #[inline]
    pub fn is_icmp_echo(&self) -> bool {
        match self.transport {
            Transport::Icmpv4 => matches!(self.icmp_type, 0 | 8),
            Transport::Icmpv6 => matches!(self.icmp_type, 128 | 129),
            _ => false,
        }
    }

    /// Refuses a frame that cannot be the one that was parsed.
    #[inline]
    pub(crate) fn check(&self, frame: &[u8]) -> Result<(), PacketError> {
        let ordered = self.l3_offset <= self.l4_offset
            && self.l4_offset <= self.payload_offset
            && self.payload_offset <= self.payload_end
            && self.payload_end <= self.end;
        if ordered && self.end <= frame.len() { Ok(()) } else { Err(PacketError::FrameMismatch) }
    }
}

/// Reads one Ethernet frame.
///
/// # Errors
/// The first thing that is wrong with it; see the messages of [`PacketError`].
#[inline]
pub fn parse(frame: &[u8]) -> Result<Parsed, PacketError> {
    let mut parsed = Parsed::default();
    parse_into(frame, &mut parsed)?;
    Ok(parsed)
}

/// The same into a place where the fields stay: for who reads many frames, and would copy each. What was there is gone, also after
/// an error.
///
/// # Errors
/// As [`parse`].
#[inline]
pub fn parse_into(frame: &[u8], parsed: &mut Parsed) -> Result<(), PacketError> {
    parse_ethernet(frame, parsed)?;
    match parsed.ethertype {
        ETHERTYPE_IPV4 => ipv4::parse(frame, parsed),
        ETHERTYPE_IPV6 => ipv6::parse(frame, parsed),
        ETHERTYPE_ARP => {
            parse_arp(&frame[parsed.l3_offset..])?;
            parsed.network = Network::Arp;
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Reads the Ethernet header and at most one tag.
#[inline]
fn parse_ethernet(frame: &[u8], parsed: &mut Parsed) -> Result<(), PacketError> {
    if frame.len() < ETHERNET_BYTES {
        return Err(PacketError::EthernetTruncated);
    }
    let mut ethertype = get16(frame, 12);
    let mut l3_offset = ETHERNET_BYTES;
    let mut vlan_tci = None;
    if ethertype == ETHERTYPE_VLAN {
        l3_offset += VLAN_BYTES;
        if frame.len() < l3_offset {
            return Err(PacketError::VlanTruncated);
        }
        vlan_tci = Some(get16(frame, 14));
        ethertype = get16(frame, 16);
    }
    *parsed = Parsed {
        destination_mac: get_array(frame, 0),
        source_mac: get_array(frame, 6),
        vlan_tci,
        ethertype,
        l3_offset,
        l4_offset: l3_offset,
        payload_offset: l3_offset,
        payload_end: frame.len(),
        end: frame.len(),
        ..Parsed::NOTHING
    };
    Ok(())
}

/// Records a fragment's place and refuses those that no honest sender makes.
fn set_fragment(
    parsed: &mut Parsed,
    offset: u16,
    more: bool,
    identification: u32,
) -> Result<(), PacketError> {
    parsed.identification = identification;
    parsed.fragment_offset = offset;
    parsed.fragment = match (offset, more) {
        (0, false) => return Ok(()),
        (0, true) => Fragment::First,
        _ => Fragment::Later,
    };
    let length = parsed.end - parsed.l4_offset;
    if more && !length.is_multiple_of(8) {
        return Err(PacketError::FragmentLength);
    }
    if usize::from(offset) + length > usize::from(u16::MAX) {
        return Err(PacketError::FragmentOverrun);
    }
    parsed.fragment_end = offset + length as u16;
    parsed.more_fragments = more;
    Ok(())
}

/// Reads the transport header at `l4_offset`, unless the packet is a later fragment.
#[inline]
fn parse_payload(frame: &[u8], parsed: &mut Parsed) -> Result<(), PacketError> {
    parsed.payload_offset = parsed.l4_offset;
    parsed.payload_end = parsed.end;
    if parsed.source.is_multicast() || parsed.source.is_broadcast() {
        return Err(PacketError::SourceMulticast);
    }
    if parsed.fragment == Fragment::Later {
        let tiny = parsed.fragment_offset == 8 && parsed.protocol == PROTOCOL_TCP;
        return if tiny { Err(PacketError::FragmentTiny) } else { Ok(()) };
    }
    transport::parse(frame, parsed)
}

#[cfg(test)]
mod tests;
