//! From other switches: several messages at once, each of which the kernel may have joined from
//! datagrams of one sender (UDP_GRO).
//!
//! Datagrams of a [`Wire`] come one by one. They are copied out of its memory, which is the kernel's again at once, and those of one sender
//! that follow each other and are of one size lie one behind the other, as the kernel would have joined them: so what
//! becomes of them is the same.

use super::buffer::Buffer;
use super::counters::{Counters, EngineDrop, EngineEvent};
use super::sys::{self, Control, RawAddress};
use super::wire::Wire;
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use weir_model::resource::Encapsulation;
use weir_packet::{IpAddress, PacketError, outer};

/// Messages of one call.
pub const MESSAGES_MAX: usize = 8;
/// Room of one message, bytes.
pub const MESSAGE_BYTES: usize = 72 * 1024;
/// Frames of one look at a wire.
pub const WIRE_FRAMES_MAX: usize = 64;
/// Average length from which on messages are taken few at a time, bytes: each is written to its port while it is in the
/// processor's cache.
const LARGE_BYTES: usize = 16 * 1024;
/// How many large ones.
const LARGE_MESSAGES: usize = 2;

/// One received message: datagrams of one sender, of `segment_bytes` each but for a shorter last.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// Outer source address.
    pub sender: IpAddr,
    /// ECN bits of the outer header.
    pub ecn: u8,
    /// First byte in [`Receive::bytes`].
    pub start: usize,
    /// Bytes in all.
    pub length: usize,
    /// Bytes of one datagram.
    pub segment_bytes: usize,
    /// The buffer was too small for it.
    pub truncated: bool,
}

/// The buffers.
pub struct Receive {
    /// The received bytes.
    pub bytes: Buffer,
    /// Messages to ask for in one call.
    wanted: usize,
    headers: [libc::mmsghdr; MESSAGES_MAX],
    pieces: [libc::iovec; MESSAGES_MAX],
    addresses: [RawAddress; MESSAGES_MAX],
    controls: [Control; MESSAGES_MAX],
    /// What came by a wire the last time: messages with their formats, each of at least one frame.
    wired: Vec<(Message, Encapsulation)>,
}

// SAFETY: the raw pointers are set anew in each `receive` and used only during it.
#[allow(unsafe_code)]
unsafe impl Send for Receive {}

impl Default for Receive {
    fn default() -> Receive {
        Receive {
            bytes: Buffer::new(MESSAGES_MAX * MESSAGE_BYTES),
            wanted: MESSAGES_MAX,
            headers: [sys::empty_message(); MESSAGES_MAX],
            pieces: [sys::piece(&[]); MESSAGES_MAX],
            addresses: [RawAddress::default(); MESSAGES_MAX],
            controls: [Control::default(); MESSAGES_MAX],
            wired: Vec::with_capacity(WIRE_FRAMES_MAX),
        }
    }
}

impl Receive {
    /// Receives what is there, at most so many messages, without waiting; returns how many, and whether there may be more.
    ///
    /// # Errors
    /// `WouldBlock` when there is none.
    pub fn receive(&mut self, socket: BorrowedFd<'_>, most: usize) -> io::Result<(usize, bool)> {
        let wanted = self.wanted.min(most);
        for (number, room) in self.bytes.chunks_exact_mut(MESSAGE_BYTES).take(wanted).enumerate() {
            self.pieces[number] = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
            let header = &mut self.headers[number].msg_hdr;
            header.msg_name = (&raw mut self.addresses[number]).cast();
            header.msg_namelen = size_of::<RawAddress>() as libc::socklen_t;
            header.msg_iov = &raw mut self.pieces[number];
            header.msg_iovlen = 1;
            header.msg_control = (&raw mut self.controls[number]).cast();
            header.msg_controllen = size_of::<Control>();
            header.msg_flags = 0;
        }
        // SAFETY: every pointer was just set to memory of `self`, which is borrowed alone.
        #[allow(unsafe_code)]
        let count = unsafe { sys::receive_messages(socket, &mut self.headers[..wanted])? };
        let bytes: usize = self.headers[..count].iter().map(|header| header.msg_len as usize).sum();
        let full = count == wanted;
        self.wanted = if bytes >= count * LARGE_BYTES { LARGE_MESSAGES } else { MESSAGES_MAX };
        Ok((count, full))
    }

    /// Takes what is there of a wire, at most so many frames, for our address and UDP ports (Geneve, VXLAN); returns how many there were.
    /// What is none of ours or makes no sense is counted.
    pub fn receive_by_wire(
        &mut self,
        wire: &mut dyn Wire,
        most: usize,
        own: (&IpAddress, &[u16; 2]),
        counters: &Counters,
    ) -> usize {
        self.wired.clear();
        let (wired, bytes, mut used) = (&mut self.wired, &mut self.bytes[..], 0);
        let came = wire.take(most.min(WIRE_FRAMES_MAX), &mut |frame| {
            let opened = outer::open(frame, own.0);
            let opened = opened.and_then(|opened| Ok((opened, format_of(opened.port, own.1)?)));
            let (opened, format) = match opened {
                Ok(opened) => opened,
                Err(reason) => {
                    counters.parse_error(reason).add(1, frame.len() as u64);
                    return true;
                }
            };
            let datagram = &frame[opened.start..opened.end];
            let Some(room) = bytes.get_mut(used..used + datagram.len()) else {
                let is_first = used == 0;
                if is_first {
                    counters.dropped(EngineDrop::UnderlayTruncated).add(1, datagram.len() as u64);
                }
                return is_first;
            };
            room.copy_from_slice(datagram);
            note(wired, &opened, format, used, datagram.len());
            used += datagram.len();
            true
        });
        counters.event(EngineEvent::WireDatagrams).add(came as u64);
        came
    }

    /// A message of the last [`Receive::receive_by_wire`].
    #[inline]
    pub fn wired(&self, number: usize) -> Option<(Message, Encapsulation)> {
        self.wired.get(number).copied()
    }

    /// What is known of a message of the last [`Receive::receive`].
    pub fn message(&self, number: usize) -> Message {
        let length = self.headers[number].msg_len as usize;
        let header = &self.headers[number].msg_hdr;
        let (segment, ecn) = self.controls[number].of_receive(header.msg_controllen);
        Message {
            sender: unmapped(self.addresses[number].ip()),
            ecn,
            start: number * MESSAGE_BYTES,
            length,
            segment_bytes: segment.filter(|size| *size > 0).unwrap_or(length).max(1),
            truncated: header.msg_flags & libc::MSG_TRUNC != 0,
        }
    }
}

/// The format of a UDP port, of those of Geneve and VXLAN.
fn format_of(port: u16, ports: &[u16; 2]) -> Result<Encapsulation, PacketError> {
    match port {
        port if port == ports[0] => Ok(Encapsulation::Geneve),
        port if port == ports[1] => Ok(Encapsulation::Vxlan),
        _ => Err(PacketError::OuterUnwanted),
    }
}

/// Notes a datagram of `length` bytes at `start`: as one more of the last message, if it goes on with it.
#[inline]
fn note(
    wired: &mut Vec<(Message, Encapsulation)>,
    opened: &outer::Opened,
    format: Encapsulation,
    start: usize,
    length: usize,
) {
    if let Some((last, of)) = wired.last_mut() {
        let is_same = last.sender == opened.sender && last.ecn == opened.ecn && *of == format;
        // A shorter one was its last.
        let is_open = last.length.is_multiple_of(last.segment_bytes);
        if is_same && is_open && length > 0 && length <= last.segment_bytes {
            last.length += length;
            return;
        }
    }
    let (sender, ecn, segment_bytes) = (opened.sender, opened.ecn, length.max(1));
    wired.push((Message { sender, ecn, start, length, segment_bytes, truncated: false }, format));
}

fn unmapped(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => v6.to_canonical(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests;
