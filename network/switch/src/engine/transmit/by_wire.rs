//! Messages where there is a wire: each goes by it, or by its socket, in the order in which they were gathered.

use super::{Transmit, UNITS_MAX, send_these};
use crate::engine::counters::EngineEvent;
use crate::engine::wire::{BySockets, Hop};
use std::os::fd::AsFd;
use weir_model::resource::Encapsulation;
use weir_packet::encap::needs_outer_checksum;
use weir_packet::outer::OUTER_BYTES_MAX;

impl Transmit {
    /// Sends all that is gathered, by the wire where it can go by it.
    pub(super) fn flush_by_wire(&mut self) {
        let used = self.units_used;
        let Some(wires) = &mut self.wires else { return };
        let hops = wires.hops();
        let mut ways: [Result<&Hop, BySockets>; UNITS_MAX] = [Err(BySockets::Rests); UNITS_MAX];
        for (way, unit) in ways.iter_mut().zip(&self.units[..used]) {
            *way = wires.way(&hops, unit.receiver, unit.cut, unit.segment_bytes);
        }
        let mut first = 0;
        while first < used {
            match ways[first] {
                Ok(hop) => {
                    self.put_unit(first, hop);
                    first += 1;
                }
                Err(_) => {
                    let socket = self.units[first].socket;
                    let is_next = |at: &usize| ways[*at].is_err() && self.units[*at].socket == socket;
                    let same = (first..used).take_while(is_next).count();
                    // What was put before leaves before.
                    self.show();
                    for (unit, way) in self.units[first..].iter().zip(&ways[first..first + same]) {
                        if let Err(reason) = way {
                            self.counters.by_sockets(*reason).add(unit.segments as u64);
                        }
                    }
                    self.send(first, same);
                    first += same;
                }
            }
        }
        self.show();
    }

    fn show(&mut self) {
        if self.wires.as_mut().is_some_and(|wires| wires.show()) {
            self.counters.event(EngineEvent::UnderlaySends).add(1);
        }
    }

    /// Puts each datagram of a unit on the wire. Those that it has no room for go by the unit's socket.
    fn put_unit(&mut self, number: usize, hop: &Hop) {
        let unit = &self.units[number];
        let (which, socket) = (unit.socket >> 8, unit.socket & 0xff);
        let format = if which == 0 { Encapsulation::Geneve } else { Encapsulation::Vxlan };
        let Some(wires) = &mut self.wires else { return };
        let (header, source_port) = (hop.header(format), self.sockets[which].own_ports[socket]);
        let (mut sent, mut is_full) = (0, false);
        for (pieces, _, _) in unit.datagrams() {
            let [first, second] = pieces.map(|piece| slice_of(&piece));
            let with_checksum = which == 0 && needs_outer_checksum(first);
            let outer: [u8; OUTER_BYTES_MAX] =
                header.of(source_port, unit.ecn, &[first, second], with_checksum);
            if !wires.put(&[&outer[..header.length()], first, second]) {
                is_full = true;
                break;
            }
            sent += 1;
        }
        self.counters.event(EngineEvent::UnderlaySegments).add(sent as u64);
        self.counters.event(EngineEvent::WireSegments).add(sent as u64);
        if !is_full {
            return;
        }
        self.counters.by_sockets(BySockets::Full).add((unit.segments - sent) as u64);
        self.show();
        let unit = &self.units[number];
        let fd = self.sockets[which].fds[socket].as_fd();
        send_these(fd, unit, unit.datagrams().skip(sent), self.is_v6, &self.counters);
    }
}

/// What a piece of a unit points to.
#[inline]
fn slice_of<'a>(piece: &libc::iovec) -> &'a [u8] {
    if piece.iov_len == 0 {
        return &[];
    }
    // SAFETY: the pieces point to headers of the transmitter and to frames that the callers of `append` keep until this flush is over,
    // and what is returned is used during it alone.
    #[allow(unsafe_code)]
    unsafe {
        std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len)
    }
}
