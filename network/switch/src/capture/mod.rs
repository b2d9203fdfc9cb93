//! Captures (row A27): copies of frames of a port, or of the underlay, while somebody looks.
//!
//! The engine copies into a bounded ring; the control thread takes the copies out. Without a capture the
//! engine looks at one empty list.
//!
//! Frames of the underlay get outer Ethernet, IP and UDP headers made up from the sockets' addresses, so
//! that any reader of pcap files sees the tunnel; the Ethernet addresses in them are zero, and so is the UDP checksum.

use crate::engine::counters::{Counters, EngineEvent};
use crate::engine::ring::{FrameConsumer, FrameProducer, frame_ring};
use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Captures at the same time.
pub const CAPTURES_MAX: usize = 4;
/// Frames between the engine and the reader.
const RING_FRAMES: usize = 4096;
/// Bytes between the engine and the reader.
const RING_BYTES: usize = 4 * 1024 * 1024;
/// Longest outer headers: Ethernet, IPv6, UDP.
const OUTER_BYTES_MAX: usize = 14 + 40 + 8;

/// Where frames are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// Of a port, both ways.
    Port(usize),
    /// Of the underlay, both ways.
    Underlay,
}

/// What is known of a copied frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Nanoseconds of the Unix epoch.
    pub time_ns: u64,
    /// Bytes of the whole frame.
    pub length: u32,
}

/// The engine's end of a capture.
pub struct Tap {
    /// Number of the capture.
    pub id: u64,
    /// Where.
    pub point: Point,
    frames_left: u32,
    ends: Instant,
    snap_bytes: usize,
    producer: FrameProducer<Stamp>,
}

/// The reader's end.
pub type Reader = FrameConsumer<Stamp>;

/// Makes a capture.
pub fn capture(id: u64, point: Point, frames_max: u32, duration: Duration, snap_bytes: u32) -> (Tap, Reader) {
    let (producer, consumer) = frame_ring(RING_FRAMES, RING_BYTES);
    // Half the ring is the most that a frame can need.
    let snap_bytes = (snap_bytes as usize).clamp(1, RING_BYTES / 2);
    let ends = Instant::now() + duration;
    (Tap { id, point, frames_left: frames_max, ends, snap_bytes, producer }, consumer)
}

impl Tap {
    /// Whether it has all that it wants.
    pub fn is_over(&self) -> bool {
        self.frames_left == 0 || Instant::now() >= self.ends
    }

    /// Copies a frame, given in pieces.
    fn copy(&mut self, pieces: &[&[u8]], counters: &Counters) {
        if self.is_over() {
            return;
        }
        let length: usize = pieces.iter().map(|piece| piece.len()).sum();
        let mut kept: [&[u8]; 4] = [&[]; 4];
        let mut room = self.snap_bytes;
        for (place, piece) in kept.iter_mut().zip(pieces) {
            *place = &piece[..piece.len().min(room)];
            room -= place.len();
        }
        let time_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_nanos() as u64);
        match self.producer.push(Stamp { time_ns, length: length as u32 }, &kept) {
            Ok(()) => self.frames_left -= 1,
            Err(_) => counters.event(EngineEvent::CaptureLost).add(1),
        }
    }
}

/// The captures that the engine feeds.
#[derive(Default)]
pub struct Taps {
    taps: Vec<Tap>,
}

impl Taps {
    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.taps.is_empty()
    }

    /// Adds a capture.
    pub fn add(&mut self, tap: Tap) {
        self.taps.push(tap);
    }

    /// Ends a capture.
    pub fn remove(&mut self, id: u64) {
        self.taps.retain(|tap| tap.id != id);
    }

    /// Copies a frame of a port.
    #[cold]
    pub fn port(&mut self, port: usize, pieces: &[&[u8]], counters: &Counters) {
        for tap in self.taps.iter_mut().filter(|tap| tap.point == Point::Port(port)) {
            tap.copy(pieces, counters);
        }
    }

    /// Copies a datagram of the underlay: its tunnel header and the frame.
    #[cold]
    pub fn underlay(&mut self, outer: &Outer, pieces: [&[u8]; 2], counters: &Counters) {
        let mut room = [0; OUTER_BYTES_MAX];
        let header = outer.write(&mut room, pieces[0].len() + pieces[1].len());
        for tap in self.taps.iter_mut().filter(|tap| tap.point == Point::Underlay) {
            tap.copy(&[header, pieces[0], pieces[1]], counters);
        }
    }
}

/// Addresses of a datagram of the underlay.
#[derive(Clone, Copy, Debug)]
pub struct Outer {
    /// From.
    pub source: IpAddr,
    /// To.
    pub destination: IpAddr,
    /// UDP port, of both sides.
    pub port: u16,
    /// ECN bits.
    pub ecn: u8,
}

impl Outer {
    fn write<'a>(&self, room: &'a mut [u8; OUTER_BYTES_MAX], payload_bytes: usize) -> &'a [u8] {
        let udp_bytes = (payload_bytes + 8) as u16;
        let l4 = match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                room[12..14].copy_from_slice(&[0x08, 0x00]);
                room[14..24].copy_from_slice(&[0x45, self.ecn, 0, 0, 0, 0, 0x40, 0, 64, 17]);
                room[16..18].copy_from_slice(&(udp_bytes + 20).to_be_bytes());
                room[26..30].copy_from_slice(&source.octets());
                room[30..34].copy_from_slice(&destination.octets());
                let sum = weir_packet::checksum::checksum(&room[14..34]);
                room[24..26].copy_from_slice(&sum.to_be_bytes());
                34
            }
            (source, destination) => {
                let wide = |ip: IpAddr| match ip {
                    IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                    IpAddr::V6(v6) => v6.octets(),
                };
                room[12..14].copy_from_slice(&[0x86, 0xdd]);
                room[14..22].copy_from_slice(&[0x60, self.ecn << 4, 0, 0, 0, 0, 17, 64]);
                room[18..20].copy_from_slice(&udp_bytes.to_be_bytes());
                room[22..38].copy_from_slice(&wide(source));
                room[38..54].copy_from_slice(&wide(destination));
                54
            }
        };
        room[l4..l4 + 2].copy_from_slice(&self.port.to_be_bytes());
        room[l4 + 2..l4 + 4].copy_from_slice(&self.port.to_be_bytes());
        room[l4 + 4..l4 + 6].copy_from_slice(&udp_bytes.to_be_bytes());
        &room[..l4 + 8]
    }
}

#[cfg(test)]
mod tests;
