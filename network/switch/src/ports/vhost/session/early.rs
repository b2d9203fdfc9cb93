//! Queues that a monitor enables before it has said with which features.
//!
//! QEMU enables the queues of a device first thing on a connection, sets features and queues when the guest's driver starts, and does
//! not enable them again. The crate `vhost` refuses that message; what it says is looked at before the crate takes it.

use super::device::Device;
use rustix::net::{RecvFlags, recv};
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use vhost::vhost_user::VhostUserBackendReqHandlerMut;

const SET_VRING_ENABLE: u32 = 18;
/// Flags of a message: a reply is wanted; this is one.
const NEED_REPLY: u32 = 1 << 3;
const REPLY: u32 = 1 << 2;
/// Version 1.
const VERSION: u32 = 1;
/// Header (request, flags, size) and content (queue, state).
const WORDS: usize = 5;

/// What a message to enable or disable a queue says.
pub(super) struct Enable {
    queue: u32,
    state: u32,
    wants_reply: bool,
}

impl Enable {
    /// The message that is next on a connection, if it is such a one and there as a whole, as monitors send it.
    pub(super) fn next(stream: &UnixStream) -> Option<Enable> {
        let mut bytes = [0; 4 * WORDS];
        let (_, length) = recv(stream, &mut bytes[..], RecvFlags::PEEK | RecvFlags::DONTWAIT).ok()?;
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32::from_le_bytes(bytes.try_into().ok()?);
        }
        let [request, flags, size, queue, state] = words;
        let is_one = length == bytes.len() && (request, size) == (SET_VRING_ENABLE, 8);
        is_one.then_some(Enable { queue, state, wants_reply: flags & NEED_REPLY != 0 })
    }

    /// Does what it says, in place of the crate, which has taken it and refused.
    pub(super) fn carry_out(&self, device: &mut Device, mut stream: &UnixStream) -> io::Result<()> {
        let done = self.state <= 1 && device.set_vring_enable(self.queue, self.state == 1).is_ok();
        if self.wants_reply {
            let words = [SET_VRING_ENABLE, VERSION | REPLY, 8, u32::from(!done), 0];
            let reply: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            stream.write_all(&reply)?;
        }
        Ok(())
    }
}
