//! To other switches: frames are gathered into messages that the kernel cuts again (UDP_SEGMENT), so that
//! one trip through the host's stack carries up to 64 datagrams (rows A19, A20).
//!
//! A message goes to one receiver and has datagrams of one size, but for a shorter last one. Small frames of
//! equal size share a message whatever their flow. Nothing of a frame is copied: a message is a list of
//! pointers to tunnel headers and into the frames, or to whole runs of datagrams that lie one behind the other.
//!
//! Invariants
//! - Frames to one receiver by one socket leave in the order in which they came.
//! - After [`Transmit::flush`] no pointer is held. Whoever appends flushes before the frames' memory is
//!   used again.
//!
//! Where there are [`Wires`], what is not cut from a super-frame goes by them, and by the sockets what they cannot carry ([`by_wire`]).
//!
//! The UDP source port tells the underlay which flows belong together. One socket has one port, so flows
//! are spread by their hash over a few sockets (`source_ports`); one port a flow would need a raw socket
//! and give up the kernel's segmentation.

mod by_wire;

use super::counters::{Counters, EngineDrop, EngineEvent};
use super::sys::{self, Control, RawAddress};
use super::wire::{Wire, Wires};
use crate::flowtable::tunnel::Tunnel;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use weir_model::resource::Encapsulation;

/// Datagrams of one message: what every kernel with UDP_SEGMENT takes.
pub const SEGMENTS_MAX: usize = 64;
/// Messages that are gathered at once.
pub const UNITS_MAX: usize = 16;
/// Pieces of one message: two a datagram.
const PIECES_MAX: usize = 2 * SEGMENTS_MAX;
/// Bytes of headers between two flushes.
const HEADER_BYTES: usize = 64 * 1024;
/// Largest datagrams' sum in one message over IPv4, bytes: the largest UDP payload.
const BYTES_MAX_V4: usize = 65_507;
/// The same over IPv6.
const BYTES_MAX_V6: usize = 65_487;
/// How long to wait for a socket that takes no more, milliseconds, before frames are dropped.
const FULL_WAIT_MS: i32 = 2;

/// One message to be.
struct Unit {
    socket: usize,
    receiver: IpAddr,
    address: RawAddress,
    ecn: u8,
    /// Size of every datagram but the last.
    segment_bytes: usize,
    segments: usize,
    bytes: usize,
    /// A shorter datagram ended it.
    closed: bool,
    /// Its datagrams were cut from a super-frame.
    cut: bool,
    pieces: [libc::iovec; PIECES_MAX],
    pieces_used: usize,
    control: Control,
}

impl Unit {
    fn empty() -> Unit {
        Unit {
            socket: 0,
            receiver: IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
            address: RawAddress::default(),
            ecn: 0,
            segment_bytes: 0,
            segments: 0,
            bytes: 0,
            closed: false,
            cut: false,
            pieces: [sys::piece(&[]); PIECES_MAX],
            pieces_used: 0,
            control: Control::default(),
        }
    }

    fn takes(&self, ecn: u8, length: usize, bytes_max: usize, cut: bool) -> bool {
        !self.closed
            && self.cut == cut
            && self.ecn == ecn
            && length <= self.segment_bytes
            && self.segments < SEGMENTS_MAX
            && self.bytes + length <= bytes_max
    }
}

/// The sockets of one format.
struct Sockets {
    fds: Vec<OwnedFd>,
    /// UDP port of the receivers.
    port: u16,
    /// Their own UDP ports, once there is a wire, which uses the same.
    own_ports: Vec<u16>,
}

/// See the module.
pub struct Transmit {
    sockets: [Sockets; 2],
    wires: Option<Box<Wires>>,
    is_v6: bool,
    units: Vec<Unit>,
    units_used: usize,
    headers: Box<[u8]>,
    headers_used: usize,
    counters: Arc<Counters>,
}

// SAFETY: the raw pointers in the units are used only between an append and the flush that follows it
// on the same thread; the engine is sent to its thread before the first append.
#[allow(unsafe_code)]
unsafe impl Send for Transmit {}

fn format_index(format: Encapsulation) -> usize {
    match format {
        Encapsulation::Geneve => 0,
        Encapsulation::Vxlan => 1,
    }
}

impl Transmit {
    /// For an underlay of one family, with the sending sockets and UDP ports of Geneve and VXLAN.
    pub fn new(
        is_v6: bool,
        geneve: (Vec<OwnedFd>, u16),
        vxlan: (Vec<OwnedFd>, u16),
        counters: Arc<Counters>,
    ) -> Transmit {
        let sockets = |(fds, port): (Vec<OwnedFd>, u16)| Sockets { fds, port, own_ports: Vec::new() };
        Transmit {
            sockets: [sockets(geneve), sockets(vxlan)],
            wires: None,
            is_v6,
            units: (0..UNITS_MAX).map(|_| Unit::empty()).collect(),
            units_used: 0,
            headers: vec![0; HEADER_BYTES].into_boxed_slice(),
            headers_used: 0,
            counters,
        }
    }

    /// Has datagrams go by wires where they can, or by the sockets alone; returns the wires before.
    ///
    /// # Errors
    /// A socket does not say which port it has; nothing has changed.
    pub fn set_wires(&mut self, wires: Option<Box<Wires>>) -> io::Result<Option<Box<Wires>>> {
        if wires.is_some() {
            for sockets in &mut self.sockets {
                let ports = sockets.fds.iter().map(|fd| sys::own_port(fd.as_fd()));
                sockets.own_ports = ports.collect::<io::Result<_>>()?;
            }
        }
        Ok(std::mem::replace(&mut self.wires, wires))
    }

    /// The wires, if there are some.
    #[inline]
    pub fn wires(&mut self) -> Option<&mut Wires> {
        self.wires.as_deref_mut()
    }

    /// The wire of a queue.
    #[inline]
    pub fn wire(&mut self, queue: usize) -> Option<&mut dyn Wire> {
        self.wires.as_deref_mut()?.queue(queue)
    }

    fn bytes_max(&self) -> usize {
        if self.is_v6 { BYTES_MAX_V6 } else { BYTES_MAX_V4 }
    }

    /// Whether nothing is gathered.
    pub fn is_empty(&self) -> bool {
        self.units_used == 0
    }

    /// Room for the headers of a datagram, to be filled and given to [`Transmit::append`]. Flushes when there
    /// is no room left.
    #[inline]
    pub fn header_room(&mut self, length: usize) -> &mut [u8] {
        if self.headers_used + length > self.headers.len() {
            self.flush();
        }
        &mut self.headers[self.headers_used..self.headers_used + length]
    }

    /// Appends a datagram: `header_bytes` of what [`Transmit::header_room`] gave, then `payload`.
    ///
    /// # Safety
    /// `payload` must stay as it is until the next flush, also when this call flushes.
    #[inline]
    #[allow(unsafe_code)]
    pub unsafe fn append(
        &mut self,
        tunnel: &Tunnel,
        flow_hash: u64,
        ecn: u8,
        header_bytes: usize,
        payload: &[u8],
    ) {
        // SAFETY: the caller's promise.
        unsafe { self.append_one(tunnel, flow_hash, ecn, header_bytes, payload, false) };
    }

    /// The same, for a datagram that was cut from a super-frame.
    ///
    /// # Safety
    /// As [`Transmit::append`].
    #[inline]
    #[allow(unsafe_code)]
    pub unsafe fn append_cut(
        &mut self,
        tunnel: &Tunnel,
        flow_hash: u64,
        ecn: u8,
        header_bytes: usize,
        payload: &[u8],
    ) {
        // SAFETY: the caller's promise.
        unsafe { self.append_one(tunnel, flow_hash, ecn, header_bytes, payload, true) };
    }

    #[inline(always)]
    #[allow(unsafe_code)]
    unsafe fn append_one(
        &mut self,
        tunnel: &Tunnel,
        flow_hash: u64,
        ecn: u8,
        header_bytes: usize,
        payload: &[u8],
        cut: bool,
    ) {
        let length = header_bytes + payload.len();
        if tunnel.receiver.is_ipv6() != self.is_v6 {
            self.counters.dropped(EngineDrop::UnderlayFamily).add(1, length as u64);
            return;
        }
        if length > self.bytes_max() {
            self.counters.dropped(EngineDrop::UnderlayTooBig).add(1, length as u64);
            return;
        }
        let unit = self.unit_for(tunnel, flow_hash, ecn, length, header_bytes, cut);
        // `unit_for` may have flushed: then the header was moved to the front.
        let header = &self.headers[self.headers_used..self.headers_used + header_bytes];
        let unit = &mut self.units[unit];
        if header_bytes > 0 {
            unit.pieces[unit.pieces_used] = sys::piece(header);
            unit.pieces_used += 1;
        }
        if !payload.is_empty() {
            unit.pieces[unit.pieces_used] = sys::piece(payload);
            unit.pieces_used += 1;
        }
        unit.closed = length < unit.segment_bytes;
        unit.segments += 1;
        unit.bytes += length;
        self.headers_used += header_bytes;
    }

    /// Appends datagrams that lie one behind the other, of `segment_bytes` each but for a shorter last: one piece for
    /// the kernel, however many they are.
    ///
    /// # Safety
    /// `datagrams` must stay as they are until the next flush, also when this call flushes.
    #[inline]
    #[allow(unsafe_code)]
    pub unsafe fn append_run(
        &mut self,
        tunnel: &Tunnel,
        flow_hash: u64,
        ecn: u8,
        datagrams: &[u8],
        segment_bytes: usize,
    ) {
        let bytes_max = self.bytes_max();
        let failed = match segment_bytes {
            _ if tunnel.receiver.is_ipv6() != self.is_v6 => Some(EngineDrop::UnderlayFamily),
            bytes if bytes == 0 || bytes > bytes_max => Some(EngineDrop::UnderlayTooBig),
            _ => None,
        };
        if let Some(reason) = failed {
            let packets = datagrams.len().div_ceil(segment_bytes.max(1)) as u64;
            self.counters.dropped(reason).add(packets, datagrams.len() as u64);
            return;
        }
        let mut rest = datagrams;
        while !rest.is_empty() {
            let first = rest.len().min(segment_bytes);
            let unit = self.unit_for(tunnel, flow_hash, ecn, first, 0, true);
            let unit = &mut self.units[unit];
            let room = (SEGMENTS_MAX - unit.segments).min((bytes_max - unit.bytes) / first);
            // A shorter one than those that are there ends the message.
            let count = if first < unit.segment_bytes { 1 } else { room };
            let (now, later) = rest.split_at(rest.len().min(count * first));
            unit.pieces[unit.pieces_used] = sys::piece(now);
            unit.pieces_used += 1;
            unit.closed = now.len() % unit.segment_bytes != 0;
            unit.segments += now.len().div_ceil(first);
            unit.bytes += now.len();
            rest = later;
        }
    }

    /// The unit that a datagram goes into: the newest of its receiver and socket if it takes it, else a new one.
    #[inline]
    fn unit_for(
        &mut self,
        tunnel: &Tunnel,
        flow_hash: u64,
        ecn: u8,
        length: usize,
        header_bytes: usize,
        cut: bool,
    ) -> usize {
        let format = format_index(tunnel.format);
        let among = self.sockets[format].fds.len();
        // The bits that the flow table does not use for its buckets.
        let socket = format << 8 | ((flow_hash >> 32) as usize % among);
        let bytes_max = self.bytes_max();
        let newest = self.units[..self.units_used]
            .iter()
            .rposition(|unit| unit.socket == socket && unit.receiver == tunnel.receiver);
        if let Some(index) = newest
            && self.units[index].takes(ecn, length, bytes_max, cut)
        {
            return index;
        }
        if self.units_used == UNITS_MAX {
            let from = self.headers_used;
            self.flush();
            // The header that was just filled must stay: it becomes the first one.
            self.headers.copy_within(from..from + header_bytes, 0);
        }
        let port = self.sockets[format].port;
        let unit = &mut self.units[self.units_used];
        unit.socket = socket;
        unit.receiver = tunnel.receiver;
        unit.address = RawAddress::new(SocketAddr::new(tunnel.receiver, port));
        unit.ecn = ecn;
        unit.segment_bytes = length;
        unit.segments = 0;
        unit.bytes = 0;
        unit.closed = false;
        unit.cut = cut;
        unit.pieces_used = 0;
        self.units_used += 1;
        self.units_used - 1
    }

    /// Forgets what is gathered.
    #[cold]
    pub fn let_go(&mut self) {
        (self.units_used, self.headers_used) = (0, 0);
    }

    /// Sends all that is gathered.
    pub fn flush(&mut self) {
        if self.wires.is_some() {
            self.flush_by_wire();
            self.units_used = 0;
            self.headers_used = 0;
            return;
        }
        let mut first = 0;
        while first < self.units_used {
            let socket = self.units[first].socket;
            let same =
                self.units[first..self.units_used].iter().take_while(|unit| unit.socket == socket).count();
            self.send(first, same);
            first += same;
        }
        self.units_used = 0;
        self.headers_used = 0;
    }

    /// Sends units that share a socket.
    fn send(&mut self, first: usize, count: usize) {
        let socket = self.units[first].socket;
        let fd = self.sockets[socket >> 8].fds[socket & 0xff].as_fd();
        let mut messages = [sys::empty_message(); UNITS_MAX];
        for (message, unit) in messages.iter_mut().zip(&mut self.units[first..first + count]) {
            fill_message(message, unit, self.is_v6);
        }
        let (mut done, mut waited) = (0, false);
        while done < count {
            // SAFETY: the messages point to units of `self`, to headers of `self`, and to frames that
            // the callers of `append` keep until this flush is over.
            #[allow(unsafe_code)]
            let result = unsafe { sys::send_messages(fd, &mut messages[done..count]) };
            match result {
                Ok(sent) => {
                    for unit in &self.units[first + done..first + done + sent] {
                        count_sent(&self.counters, unit);
                    }
                    done += sent.max(1);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !waited => {
                    waited = true;
                    sys::wait_writable(fd, FULL_WAIT_MS);
                }
                Err(error) => {
                    let unit = &self.units[first + done];
                    if wants_single(&error) && unit.segments > 1 {
                        self.counters.event(EngineEvent::SegmentationFallbacks).add(1);
                        send_singly(fd, unit, self.is_v6, &self.counters);
                    } else {
                        count_failed(&self.counters, unit.segments, unit.bytes, &error);
                    }
                    done += 1;
                }
            }
        }
    }
}

fn count_sent(counters: &Counters, unit: &Unit) {
    counters.event(EngineEvent::UnderlaySends).add(1);
    counters.event(EngineEvent::UnderlaySegments).add(unit.segments as u64);
}

fn count_failed(counters: &Counters, segments: usize, bytes: usize, error: &io::Error) {
    let reason = match error.raw_os_error() {
        Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => EngineDrop::UnderlayFull,
        Some(libc::EMSGSIZE) => EngineDrop::UnderlayTooBig,
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ENETDOWN) => EngineDrop::UnderlayUnreachable,
        _ => EngineDrop::UnderlaySend,
    };
    counters.dropped(reason).add(segments as u64, bytes as u64);
}

/// Whether the kernel refused the segmentation and not the datagrams: no checksum offload on the way
/// (`EIO`), or a kernel that says so otherwise (`EINVAL`).
fn wants_single(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL))
}

fn fill_message(message: &mut libc::mmsghdr, unit: &mut Unit, is_v6: bool) {
    let segment = (unit.segments > 1).then_some(unit.segment_bytes as u16);
    let control_bytes = unit.control.for_send(segment, unit.ecn, is_v6);
    let header = &mut message.msg_hdr;
    header.msg_name = (&raw mut unit.address).cast();
    header.msg_namelen = unit.address.length();
    header.msg_iov = unit.pieces.as_mut_ptr();
    header.msg_iovlen = unit.pieces_used;
    if control_bytes > 0 {
        header.msg_control = (&raw mut unit.control).cast();
        header.msg_controllen = control_bytes;
    }
}

/// The datagrams of a unit. Each is a header and a payload, one of them, or a part of a run.
#[derive(Clone)]
struct Datagrams<'a> {
    unit: &'a Unit,
    number: usize,
    /// Where the next one begins: a piece, and a place in it.
    at: usize,
    offset: usize,
}

/// A datagram: its pieces, how many of them there are, and its length.
type Datagram = ([libc::iovec; 2], usize, usize);

impl Iterator for Datagrams<'_> {
    type Item = Datagram;

    #[inline]
    fn next(&mut self) -> Option<Datagram> {
        let unit = self.unit;
        if self.number == unit.segments {
            return None;
        }
        let left = unit.bytes - self.number * unit.segment_bytes;
        let wanted = left.min(unit.segment_bytes);
        self.number += 1;
        let (mut pieces, mut used, mut length) = ([sys::piece(&[]); 2], 0, 0);
        while length < wanted && used < pieces.len() && self.at < unit.pieces_used {
            let piece = &unit.pieces[self.at];
            let bytes = (piece.iov_len - self.offset).min(wanted - length);
            // The place is within the piece, so the sum is within the same memory.
            pieces[used] = libc::iovec {
                iov_base: piece.iov_base.cast::<u8>().wrapping_add(self.offset).cast(),
                iov_len: bytes,
            };
            used += 1;
            length += bytes;
            self.offset += bytes;
            if self.offset == piece.iov_len {
                (self.at, self.offset) = (self.at + 1, 0);
            }
        }
        Some((pieces, used, length))
    }
}

impl Unit {
    fn datagrams(&self) -> Datagrams<'_> {
        Datagrams { unit: self, number: 0, at: 0, offset: 0 }
    }
}

/// Sends each datagram of a unit by itself.
fn send_singly(fd: BorrowedFd<'_>, unit: &Unit, is_v6: bool, counters: &Counters) {
    send_these(fd, unit, unit.datagrams(), is_v6, counters);
}

/// Sends some datagrams of a unit.
fn send_these(
    fd: BorrowedFd<'_>,
    unit: &Unit,
    datagrams: impl Iterator<Item = Datagram>,
    is_v6: bool,
    counters: &Counters,
) {
    let mut control = Control::default();
    let control_bytes = control.for_send(None, unit.ecn, is_v6);
    let mut address = unit.address;
    for (mut pieces, used, length) in datagrams {
        let mut message = [sys::empty_message()];
        let header = &mut message[0].msg_hdr;
        header.msg_name = (&raw mut address).cast();
        header.msg_namelen = address.length();
        header.msg_iov = pieces.as_mut_ptr();
        header.msg_iovlen = used;
        if control_bytes > 0 {
            header.msg_control = (&raw mut control).cast();
            header.msg_controllen = control_bytes;
        }
        // SAFETY: as in `send`: the pointers are to this unit and to frames that live until the flush is over.
        #[allow(unsafe_code)]
        match unsafe { sys::send_messages(fd, &mut message) } {
            Ok(_) => {
                counters.event(EngineEvent::UnderlaySends).add(1);
                counters.event(EngineEvent::UnderlaySegments).add(1);
            }
            Err(error) => count_failed(counters, 1, length, &error),
        }
    }
}

#[cfg(test)]
mod tests;
