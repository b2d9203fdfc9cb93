//! A queue of the underlay's device as the engine's [`Wire`].

use super::{CHUNK_BYTES, Received, Socket};
use crate::engine::wire::Wire;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Largest frame that is put together of several chunks, bytes.
const PIECED_BYTES_MAX: usize = 16 * 1024;

impl Wire for Socket {
    #[inline]
    fn put(&mut self, pieces: &[&[u8]]) -> bool {
        let total: usize = pieces.iter().map(|piece| piece.len()).sum();
        if total > CHUNK_BYTES {
            let mut all = std::mem::take(&mut self.scratch);
            all.clear();
            pieces.iter().for_each(|piece| all.extend_from_slice(piece));
            let put = self.put_slices(&[&all]).is_ok();
            self.scratch = all;
            return put;
        }
        if (self.free.is_empty() || self.to_send.room() == 0) && self.kick().is_err() {
            return false;
        }
        if self.to_send.room() == 0 {
            return false;
        }
        let Some(chunk) = self.free.pop() else { return false };
        let mut at = 0;
        for piece in pieces {
            // SAFETY: a free chunk of our memory, in which all pieces have room.
            #[allow(unsafe_code)]
            unsafe {
                let to = self.memory.start().add(chunk as usize + at);
                std::ptr::copy_nonoverlapping(piece.as_ptr(), to, piece.len());
            }
            at += piece.len();
        }
        self.to_send.put(libc::xdp_desc { addr: chunk, len: total as u32, options: 0 });
        true
    }

    fn show(&mut self) -> io::Result<()> {
        self.kick()
    }

    #[inline]
    fn take(&mut self, most: usize, each: &mut dyn FnMut(&[u8]) -> bool) -> usize {
        let mut taken = 0;
        while taken < most && self.received.waiting() > 0 {
            let piece = self.received.peek(0);
            let (at, bytes) = (piece.addr as usize, piece.len as usize);
            let is_inside = at.checked_add(bytes).is_some_and(|end| end <= self.memory.bytes());
            if piece.options & libc::XDP_PKT_CONTD != 0 || !is_inside {
                if !self.take_pieced(each) {
                    break;
                }
                taken += 1;
                continue;
            }
            // SAFETY: inside of our memory; the kernel is done with the chunk, and gets it again below.
            #[allow(unsafe_code)]
            let frame = unsafe { std::slice::from_raw_parts(self.memory.start().add(at), bytes) };
            if !each(frame) {
                break;
            }
            self.to_fill.put(piece.addr & !(CHUNK_BYTES as u64 - 1));
            self.received.take(1);
            taken += 1;
        }
        if taken > 0 {
            self.give_back();
        }
        if self.to_fill.needs_wakeup() {
            self.wake_device();
        }
        taken
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.parts.socket.as_fd())
    }

    fn settle(&mut self) -> io::Result<()> {
        self.kick()?;
        self.wait_sent()
    }
}

impl Socket {
    /// Has a device that found no chunk to fill look again.
    #[cold]
    fn wake_device(&self) {
        // SAFETY: no memory is handed over. It fails for a device that is gone, which sending tells.
        #[allow(unsafe_code)]
        unsafe {
            let (fd, flags) = (self.parts.socket.as_fd().as_raw_fd(), libc::MSG_DONTWAIT);
            libc::recvfrom(fd, std::ptr::null_mut(), 0, flags, std::ptr::null_mut(), std::ptr::null_mut());
        }
    }

    /// Takes a frame of several chunks, or one that makes no sense; false if there is none, or it is not wanted now. One that is
    /// larger than any may be comes as no bytes, which whoever takes it counts as what it is.
    #[cold]
    fn take_pieced(&mut self, each: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        // It may stay: then it is put together anew the next time.
        let mut all = std::mem::take(&mut self.scratch);
        all.resize(PIECED_BYTES_MAX, 0);
        let result = match self.receive(&mut all) {
            Received::Nothing => false,
            Received::TooLarge => each(&[]),
            Received::Frame(bytes) => each(&all[..bytes]),
        };
        self.scratch = all;
        result
    }
}
