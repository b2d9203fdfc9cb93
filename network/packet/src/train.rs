//! Trains: segments of one super-frame that follow each other, recognised by their headers' bytes.
//!
//! Row A19. Who cuts a super-frame writes headers that differ only in what counts up: the IPv4 identification, with it the
//! IPv4 checksum, and the TCP sequence. With a partial checksum the transport checksum depends on the length alone. So the
//! whole header of the next segment, tunnel header included, can be foretold, and one comparison says that everything
//! that was decided about the first one holds for it too. What differs in any bit is no train, and is parsed.

use crate::bytes::{get16, get32, put16, put32};
use crate::checksum;
use crate::headers::{Fragment, Network, Parsed, Transport};

/// Longest header, tunnel header included, that a train may have: a longer one is not foretold.
pub const MAX_TRAIN_HEADER_BYTES: usize = 192;

const IPV4_IDENTIFICATION: usize = 4;
const IPV4_CHECKSUM: usize = 10;
const TCP_SEQUENCE: usize = 4;

/// Foretells the headers of the segments that follow one.
#[derive(Debug, Clone, Copy)]
pub struct Train {
    header: [u8; MAX_TRAIN_HEADER_BYTES],
    header_bytes: usize,
    payload_bytes: usize,
    /// Place of the IPv4 header.
    ipv4: Option<usize>,
    /// Place of the TCP header.
    tcp: Option<usize>,
}

impl Train {
    /// A train that begins with `datagram`, a tunnel header of `inner_offset` bytes and a frame, whose
    /// [`crate::parse`] is `parsed` and whose transport checksum is partial. `None` if nothing can follow it.
    #[inline]
    pub fn new(datagram: &[u8], inner_offset: usize, parsed: &Parsed) -> Option<Train> {
        let header_bytes = inner_offset + parsed.payload_offset;
        let known = matches!(parsed.transport, Transport::Tcp | Transport::Udp)
            && parsed.fragment == Fragment::Whole
            && !parsed.has_options
            && inner_offset + parsed.payload_end == datagram.len();
        if !known || header_bytes > MAX_TRAIN_HEADER_BYTES || header_bytes >= datagram.len() {
            return None;
        }
        let mut header = [0; MAX_TRAIN_HEADER_BYTES];
        header[..header_bytes].copy_from_slice(&datagram[..header_bytes]);
        Some(Train {
            header,
            header_bytes,
            payload_bytes: datagram.len() - header_bytes,
            ipv4: (parsed.network == Network::Ipv4).then_some(inner_offset + parsed.l3_offset),
            tcp: (parsed.transport == Transport::Tcp).then_some(inner_offset + parsed.l4_offset),
        })
    }

    /// Length of the headers, tunnel header included, of every datagram of the train.
    #[inline]
    pub fn header_bytes(&self) -> usize {
        self.header_bytes
    }

    /// Whether `datagram` is the next of the train. If not, the train is over.
    #[inline]
    pub fn takes(&mut self, datagram: &[u8]) -> bool {
        if datagram.len() != self.header_bytes + self.payload_bytes {
            return false;
        }
        if let Some(l3) = self.ipv4 {
            let identification = get16(&self.header, l3 + IPV4_IDENTIFICATION);
            let next = identification.wrapping_add(1);
            let sum = checksum::update(get16(&self.header, l3 + IPV4_CHECKSUM), identification, next);
            put16(&mut self.header, l3 + IPV4_IDENTIFICATION, next);
            put16(&mut self.header, l3 + IPV4_CHECKSUM, sum);
        }
        if let Some(l4) = self.tcp {
            let sequence = get32(&self.header, l4 + TCP_SEQUENCE).wrapping_add(self.payload_bytes as u32);
            put32(&mut self.header, l4 + TCP_SEQUENCE, sequence);
        }
        self.header[..self.header_bytes] == datagram[..self.header_bytes]
    }
}

#[cfg(test)]
mod tests;
