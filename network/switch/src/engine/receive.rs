//! From other switches: several messages at once, each of which the kernel may have joined from
//! datagrams of one sender (UDP_GRO).

use super::buffer::Buffer;
use super::sys::{self, Control, RawAddress};
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

/// Messages of one call.
pub const MESSAGES_MAX: usize = 8;
/// Room of one message, bytes.
pub const MESSAGE_BYTES: usize = 72 * 1024;
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

fn unmapped(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => v6.to_canonical(),
        v4 => v4,
    }
}
