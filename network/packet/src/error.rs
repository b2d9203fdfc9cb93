//! The one error of this crate: the exact reason why a frame, header or request was refused.

macro_rules! reasons {
    ($($variant:ident, $label:literal, $message:literal;)*) => {
        /// Why a packet was refused. Carries no data, so that it is a counter index and a metric label.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum PacketError {
            $(#[doc = $message] #[error($message)] $variant,)*
        }

        impl PacketError {
            /// Every reason, in the order of [`PacketError::index`].
            pub const ALL: &'static [PacketError] = &[$(PacketError::$variant,)*];

            /// The stable metric label of the reason.
            pub const fn as_str(self) -> &'static str {
                match self { $(PacketError::$variant => $label,)* }
            }
        }
    };
}

reasons! {
    EthernetTruncated, "ethernet_truncated", "frame is shorter than the 14 bytes of an Ethernet header";
    VlanTruncated, "vlan_truncated", "frame ends inside its 802.1Q tag";
    ArpTruncated, "arp_truncated", "ARP packet is shorter than 28 bytes";
    ArpFormat, "arp_format", "ARP packet is not Ethernet/IPv4 (types 1 and 0x0800, lengths 6 and 4)";
    Ipv4Truncated, "ipv4_truncated", "frame ends inside the IPv4 header";
    Ipv4Version, "ipv4_version", "ethertype says IPv4 but the version nibble is not 4";
    Ipv4HeaderLength, "ipv4_header_length", "IPv4 header length is below 20 bytes";
    Ipv4TotalLengthShort, "ipv4_total_length_short", "IPv4 total length is below the header length";
    Ipv4TotalLengthLong, "ipv4_total_length_long", "IPv4 total length reaches beyond the frame";
    Ipv4Options, "ipv4_options", "an IPv4 option has a length below 2 or beyond the header";
    Ipv4Checksum, "ipv4_checksum", "IPv4 header checksum is wrong";
    Ipv6Truncated, "ipv6_truncated", "frame ends inside the IPv6 header";
    Ipv6Version, "ipv6_version", "ethertype says IPv6 but the version nibble is not 6";
    Ipv6PayloadLength, "ipv6_payload_length", "IPv6 payload length reaches beyond the frame";
    Ipv6ExtensionTruncated, "ipv6_extension_truncated", "an IPv6 extension header reaches beyond the packet";
    Ipv6ExtensionChain, "ipv6_extension_chain", "more than 8 IPv6 extension headers";
    Ipv6ExtensionOrder, "ipv6_extension_order", "hop-by-hop options not first, or a second fragment header";
    Ipv6RoutingType, "ipv6_routing_type", "IPv6 routing header of type 0, which RFC 5095 forbids";
    Ipv6MappedAddress, "ipv6_mapped_address", "IPv6 address of the form ::ffff:a.b.c.d, which must not be on the wire";
    SourceMulticast, "source_multicast", "IP source address is multicast or broadcast";
    FragmentOverrun, "fragment_overrun", "fragment ends beyond the 65535 bytes that a packet may have";
    FragmentLength, "fragment_length", "a fragment that is not the last has a length that is no multiple of 8";
    FragmentTiny, "fragment_tiny", "fragment at offset 8 would overwrite the TCP header (RFC 1858)";
    TcpTruncated, "tcp_truncated", "packet ends inside the TCP header";
    TcpDataOffset, "tcp_data_offset", "TCP data offset is below 20 bytes";
    TcpFlags, "tcp_flags", "TCP flags that no segment of a connection has: none of SYN, ACK and RST, or a SYN with FIN or RST";
    TcpChecksum, "tcp_checksum", "TCP checksum is wrong";
    UdpTruncated, "udp_truncated", "packet ends inside the UDP header";
    UdpLengthShort, "udp_length_short", "UDP length is below 8 bytes";
    UdpLengthLong, "udp_length_long", "UDP length reaches beyond the packet";
    UdpChecksum, "udp_checksum", "UDP checksum is wrong, or absent over IPv6";
    IcmpTruncated, "icmp_truncated", "ICMP message is shorter than 8 bytes";
    IcmpChecksum, "icmp_checksum", "ICMP checksum is wrong";
    IcmpEmbedded, "icmp_embedded", "packet inside the ICMP error is missing or malformed";
    NeighborTruncated, "neighbor_truncated", "neighbour discovery message is too short for its type";
    NeighborHopLimit, "neighbor_hop_limit", "neighbour discovery message with a hop limit other than 255";
    NeighborOption, "neighbor_option", "neighbour discovery option of length zero or beyond the message";
    NeighborTarget, "neighbor_target", "neighbour discovery target is a multicast address";
    VxlanTruncated, "vxlan_truncated", "datagram is shorter than the 8 bytes of a VXLAN header";
    VxlanFlags, "vxlan_flags", "VXLAN flags are not exactly 0x08: VNI missing, or an extension that we do not speak";
    GeneveTruncated, "geneve_truncated", "datagram ends inside the Geneve header or its options";
    GeneveVersion, "geneve_version", "Geneve version is not 0";
    GeneveProtocol, "geneve_protocol", "Geneve payload is not Ethernet (0x6558)";
    GeneveOption, "geneve_option", "a Geneve option reaches beyond the option area";
    GeneveCritical, "geneve_critical", "a Geneve option that we do not know is marked critical";
    GeneveToken, "geneve_token", "the security token option is not 8 bytes or is there twice";
    GeneveChecksum, "geneve_checksum", "Geneve checksum option has a body or is there twice";
    VniRange, "vni_range", "VNI is above 24 bits";
    VirtioTruncated, "virtio_truncated", "buffer is shorter than its virtio-net header";
    VirtioFlags, "virtio_flags", "virtio-net header has flags other than NEEDS_CSUM and DATA_VALID";
    VirtioChecksum, "virtio_checksum", "NEEDS_CSUM does not point at the checksum of a TCP or UDP header in the frame";
    VirtioGsoType, "virtio_gso_type", "gso_type is unknown or does not fit the frame's protocol";
    VirtioGsoSize, "virtio_gso_size", "gso_size is zero or would cut the frame into more than 2048 segments";
    VirtioGsoChecksum, "virtio_gso_checksum", "a segmentation request without NEEDS_CSUM";
    VirtioGsoFlags, "virtio_gso_flags", "a segmentation request on a SYN or RST";
    VirtioHeaderLength, "virtio_header_length", "hdr_len is beyond the frame, or the headers exceed 256 bytes";
    TtlZero, "ttl_zero", "TTL or hop limit is zero already";
    TtlExpired, "ttl_expired", "TTL or hop limit would become zero";
    NotAnswerable, "not_answerable", "no error or answer may be sent for this packet (RFC 1122, RFC 4443)";
    NotTranslatable, "not_translatable", "packet cannot be rewritten this way: address families differ or no port field";
    BufferTooSmall, "buffer_too_small", "output buffer is too small for the packet";
    PacketTooLarge, "packet_too_large", "packet would exceed 65535 bytes";
    OuterUnwanted, "outer_unwanted", "outer frame is no whole UDP datagram to this switch, or has IP options or fragments";
    FrameMismatch, "frame_mismatch", "the parsed description belongs to another, longer frame";
}

impl PacketError {
    /// How many reasons there are: the size of a counter array.
    pub const COUNT: usize = PacketError::ALL.len();

    /// Position in [`PacketError::ALL`], for a flat array of counters.
    pub const fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests;
