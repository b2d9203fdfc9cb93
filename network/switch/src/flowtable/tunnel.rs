//! The way to another switch, and the header that packets on it begin with.

use std::net::IpAddr;
use weir_model::resource::Encapsulation;
use weir_packet::encap::{self, Half, InnerChecksum, MAX_ENCAP_BYTES};

/// The way to another switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tunnel {
    /// Its address.
    pub receiver: IpAddr,
    /// Format of the tunnel header, which says the UDP port.
    pub format: Encapsulation,
    vni: u32,
    token: u64,
    has_token: bool,
    half: Half,
}

impl Tunnel {
    /// The way to `receiver` for a network; VXLAN has no place for the token.
    /// `None` when the network's identifier is over 24 bits.
    pub fn new(receiver: IpAddr, vni: u32, format: Encapsulation, token: Option<u64>) -> Option<Tunnel> {
        let (token, has_token) = (token.unwrap_or_default(), token.is_some());
        let half = Half::Unsaid;
        (vni <= encap::MAX_VNI).then_some(Tunnel { receiver, format, vni, token, has_token, half })
    }

    /// Identifier of the network.
    pub fn vni(&self) -> u32 {
        self.vni
    }

    /// The same, for packets of which this half of the firewall says so; VXLAN has no place for it.
    #[must_use]
    pub fn saying(self, half: Half) -> Tunnel {
        Tunnel { half, ..self }
    }

    /// The tunnel header, the same for every packet that says the same of its inner checksum.
    #[inline]
    pub fn header(&self, checksum: InnerChecksum) -> TunnelHeader {
        let mut bytes = [0; MAX_ENCAP_BYTES];
        let token = self.has_token.then_some(self.token);
        match wire_format(self.format).encode(&mut bytes, self.vni, token, checksum) {
            Ok(length) => {
                if self.format == Encapsulation::Geneve {
                    encap::write_half(&mut bytes, self.half);
                }
                TunnelHeader { bytes, length }
            }
            // The identifier was checked, and the longest header fits.
            Err(_) => unreachable!("a header for {self:?} cannot be refused"),
        }
    }
}

/// Bytes of a tunnel header.
#[derive(Clone, Copy, Debug)]
pub struct TunnelHeader {
    bytes: [u8; MAX_ENCAP_BYTES],
    length: usize,
}

impl TunnelHeader {
    /// Writes it in front of the frame at `at` of a buffer, where there must be room. Returns where it begins.
    #[inline(always)]
    pub fn write_before(&self, buffer: &mut [u8], at: usize) -> usize {
        let from = at - self.length;
        let room = &mut buffer[from..at];
        // The usual lengths in registers: a copy of a length that is not known is a call.
        if let Some(room) = room.first_chunk_mut::<MAX_ENCAP_BYTES>() {
            *room = self.bytes;
        } else if let (Ok(room), Some(bytes)) =
            (<&mut [u8; encap::VXLAN_BYTES]>::try_from(&mut *room), self.bytes.first_chunk())
        {
            *room = *bytes;
        } else {
            room.copy_from_slice(self);
        }
        from
    }
}

impl std::ops::Deref for TunnelHeader {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// The packet crate's name of a format.
#[inline]
pub fn wire_format(format: Encapsulation) -> encap::Encapsulation {
    match format {
        Encapsulation::Geneve => encap::Encapsulation::Geneve,
        Encapsulation::Vxlan => encap::Encapsulation::Vxlan,
    }
}
