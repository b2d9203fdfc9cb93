//! Received frames for a port: those of one flow that follow each other go out as one super-frame (row A19).
//!
//! One port at a time: two tenants may have equal flows, so what is held for one port is written before a frame of another is taken. When a
//! look at the underlay ends nothing is held.

use super::super::Path;
use super::Datagram;
use crate::engine::counters::EngineEvent;
use crate::engine::forward::{self, Checked};
use crate::engine::port::{self, Device, Ports};
use crate::engine::receive::MESSAGE_BYTES;
use crate::engine::{Shared, sys};
use std::os::fd::AsFd;
use weir_packet::coalesce::{Checksums, CoalesceConfig, Coalescer, MAX_PARTS, Output, Place, Sink};
use weir_packet::virtio::{HEADER_BYTES, Offload, VirtioNetHeader};

/// Holds frames of a few flows to one port.
pub(in super::super) struct Joiner {
    pub(super) coalescer: Coalescer,
    port: usize,
}

impl Joiner {
    pub(in super::super) fn new() -> Joiner {
        let config = CoalesceConfig { join_udp: true, ..CoalesceConfig::default() };
        Joiner { coalescer: Coalescer::new(config), port: 0 }
    }
}

impl Path {
    /// Gives a received frame to the joiner of its port.
    #[inline]
    pub(super) fn join(&mut self, port: usize, at: Datagram, packet: &mut Checked) {
        let Datagram { buffer, start, length } = at;
        if let Some(addresses) = self.ports.ethernet(port) {
            let frame = &mut self.receive.bytes[start..start + length];
            // It cannot fail for a frame that was parsed.
            let _ = forward::set_ethernet(frame, packet, addresses);
        }
        if !self.taps.is_empty() {
            let frame = &self.receive.bytes[start..start + length];
            self.taps.port(port, &[frame], &self.shared.counters);
        }
        if self.joiner.port != port {
            self.join_end();
            self.joiner.port = port;
        }
        let bytes = &self.receive.bytes;
        let mut sink = DeviceSink { number: port, ports: &self.ports, shared: &self.shared, bytes };
        let checksums = match packet.offload {
            Offload::Checksum { start, field } => {
                Checksums::Partial { start: start as u16, offset: (field - start) as u16 }
            }
            _ => Checksums::Unknown,
        };
        let place = Place {
            port: port as u32,
            buffer: buffer as u32,
            start: (start - buffer * MESSAGE_BYTES) as u32,
            checksums,
        };
        self.joiner.coalescer.push(place, &bytes[start..start + length], &packet.parsed, &mut sink);
    }

    /// Writes all that the joiner holds.
    pub(in super::super) fn join_end(&mut self) {
        if self.joiner.coalescer.open_flows() > 0 {
            let (number, bytes) = (self.joiner.port, &self.receive.bytes);
            let mut sink = DeviceSink { number, ports: &self.ports, shared: &self.shared, bytes };
            self.joiner.coalescer.flush(&mut sink);
        }
        let done = self.joiner.coalescer.counters();
        self.shared.counters.event(EngineEvent::SuperFrames).set(done.super_frames);
        self.shared.counters.event(EngineEvent::MergedFrames).set(done.merged_frames);
    }
}

/// Writes joined frames to a device.
struct DeviceSink<'a> {
    number: usize,
    ports: &'a Ports,
    shared: &'a Shared,
    bytes: &'a [u8],
}

impl Sink for DeviceSink<'_> {
    #[inline]
    fn emit(&mut self, output: Output<'_>) {
        // Most frames leave alone, and most of the room for a super-frame's pieces would be cleared for nothing.
        match output.parts {
            [_] => self.write(&output, &mut [sys::piece(&[]); 2]),
            _ => self.write(&output, &mut [sys::piece(&[]); MAX_PARTS + 1]),
        }
    }
}

impl DeviceSink<'_> {
    /// `pieces` is room for the header and each part.
    fn write(&self, output: &Output<'_>, pieces: &mut [libc::iovec]) {
        let packets = output.parts.len() as u64;
        let headers = (output.header.len() - HEADER_BYTES) as u64 * packets;
        let bytes = headers + output.parts.iter().map(|part| u64::from(part.length)).sum::<u64>();
        let (ports, counters, number) = (self.ports, &self.shared.counters, self.number);
        let Some(device) = ports.device(number) else {
            return port::count_absent(counters, number, packets, bytes);
        };
        let pieces = &mut pieces[..=output.parts.len().min(MAX_PARTS)];
        pieces[0] = sys::piece(output.header);
        for (piece, part) in pieces[1..].iter_mut().zip(output.parts) {
            let start = part.buffer as usize * MESSAGE_BYTES + part.start as usize;
            *piece = sys::piece(&self.bytes[start..start + part.length as usize]);
        }
        if let Device::Tap(device) = device {
            // SAFETY: the pieces are of the header and of the receive buffers, borrowed during this call.
            #[allow(unsafe_code)]
            let result = unsafe { sys::write_pieces(device.as_fd(), pieces) };
            return port::count_write(counters, number, &result, packets, bytes);
        }
        let (virtio, headers) = output.header.split_at(HEADER_BYTES);
        // It was made of one.
        let Ok(virtio) = VirtioNetHeader::decode(virtio, HEADER_BYTES) else { return };
        // The virtio header goes by itself; a frame that leaves alone has its own headers in its one part.
        pieces[0] = sys::piece(headers);
        let pieces = &pieces[usize::from(headers.is_empty())..];
        match device {
            Device::Guest(guest) => {
                port::send(ports, counters, number, guest, &virtio, pieces, packets, bytes)
            }
            Device::Xdp(socket) => {
                port::send_xdp(ports, counters, number, socket, &virtio, pieces, packets, bytes);
            }
            Device::Tap(_) => {}
        }
    }
}
