//! Copies out of guests' memory and into it.
//!
//! Most frames are short, and each is copied once in and once out: a call of the library's copy would cost as much as the copy.

use super::chain::{Chain, Nonsense};
use super::memory::Memory;
use weir_packet::virtio::MERGEABLE_HEADER_BYTES;

/// Bytes that are copied at once, of a frame that is at most [`SHORT`].
const COPIED: usize = 16;
/// Longest frame that is copied here; the library's way is the better one for longer.
const SHORT: usize = 128;
/// Place of the number of buffers in the header.
pub const NUMBER_OF_BUFFERS: usize = 10;

/// Copies what a chain leads to; returns how many bytes that is.
#[inline(never)]
pub fn take_pieces(mut chain: Chain, memory: &Memory, room: &mut [u8]) -> Result<usize, Nonsense> {
    let mut used = 0;
    while let Some((address, length)) = chain.next(memory)? {
        copy_in(memory, address, length, room, &mut used)?;
    }
    Ok(used)
}

/// A frame that is being copied out.
pub struct Source<'a> {
    /// Goes in front.
    header: &'a [u8],
    /// The frame.
    pieces: &'a [libc::iovec],
    /// 0: the header, else the piece before it.
    piece: usize,
    /// Bytes of it that are done.
    offset: usize,
}

impl<'a> Source<'a> {
    /// Nothing of it is copied yet. The pieces must be live memory of ours for as long as this is.
    pub fn new(header: &'a [u8], pieces: &'a [libc::iovec]) -> Source<'a> {
        Source { header, pieces, piece: 0, offset: 0 }
    }

    /// Copies the next `bytes` bytes, which there are.
    #[inline]
    fn copy(&mut self, mut to: *mut u8, mut bytes: usize) {
        while bytes > 0 {
            let (start, length) = match self.piece {
                0 => (self.header.as_ptr(), self.header.len()),
                piece => {
                    let piece = &self.pieces[piece - 1];
                    (piece.iov_base.cast::<u8>().cast_const(), piece.iov_len)
                }
            };
            let now = (length - self.offset).min(bytes);
            // SAFETY: the source is live memory of ours, the target lent memory that the caller checked; they do not overlap.
            #[allow(unsafe_code)]
            unsafe {
                std::ptr::copy_nonoverlapping(start.add(self.offset), to, now);
            }
            to = to.wrapping_add(now);
            bytes -= now;
            self.offset += now;
            if self.offset == length {
                (self.piece, self.offset) = (self.piece + 1, 0);
            }
        }
    }
}

/// Writes a virtio header of so many bytes, of one buffer.
///
/// # Safety
/// The bytes from `to` on can be written.
#[inline(always)]
#[allow(unsafe_code)]
pub unsafe fn write_header(to: *mut u8, (first, last): (u64, u16), header_bytes: usize) {
    // SAFETY: the longest is `MERGEABLE_HEADER_BYTES`, of which the last two are written only if there are so many.
    unsafe {
        to.cast::<u64>().write_unaligned(first.to_le());
        to.add(8).cast::<u16>().write_unaligned(last.to_le());
        if header_bytes == MERGEABLE_HEADER_BYTES {
            to.add(NUMBER_OF_BUFFERS).cast::<u16>().write_unaligned(1_u16.to_le());
        }
    }
}

/// Copies, without a call if the frame is a short one: in pieces of [`COPIED`] bytes one behind the other, so that a field which
/// is read soon after nearly always was written in one piece.
///
/// # Safety
/// As `copy_nonoverlapping`.
#[inline(always)]
#[allow(unsafe_code)]
pub unsafe fn copy_short(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: every piece lies inside of the `length` bytes, also the last, which may overlap the one before; else it is the
    // caller's promise alone.
    unsafe {
        if !(COPIED..=SHORT).contains(&length) {
            return std::ptr::copy_nonoverlapping(from, to, length);
        }
        let copy = |at: usize| {
            let piece = from.add(at).cast::<[u8; COPIED]>().read_unaligned();
            to.add(at).cast::<[u8; COPIED]>().write_unaligned(piece);
        };
        // The smallest frames take no turn of the loop.
        copy(0);
        if length > 2 * COPIED {
            copy(COPIED);
        }
        if length > 3 * COPIED {
            copy(2 * COPIED);
        }
        if length > 4 * COPIED {
            copy(3 * COPIED);
        }
        let mut at = 4 * COPIED;
        while at + COPIED < length {
            copy(at);
            at += COPIED;
        }
        copy(length - COPIED);
    }
}

/// Copies the next `bytes` bytes of a frame to an address of a guest.
#[inline]
pub fn copy_out(
    memory: &Memory,
    mut address: u64,
    mut bytes: usize,
    source: &mut Source<'_>,
) -> Result<(), Nonsense> {
    while bytes > 0 {
        let (to, there) = memory.at(address, bytes as u32).ok_or(Nonsense)?;
        source.copy(to, there);
        address = address.wrapping_add(there as u64);
        bytes -= there;
    }
    Ok(())
}

#[inline]
fn copy_in(
    memory: &Memory,
    mut address: u64,
    mut length: u32,
    room: &mut [u8],
    used: &mut usize,
) -> Result<(), Nonsense> {
    if length as usize > room.len() - *used {
        return Err(Nonsense);
    }
    while length > 0 {
        let (from, there) = memory.at(address, length).ok_or(Nonsense)?;
        let to = &mut room[*used..*used + there];
        // SAFETY: `at` checked the source, the slice is the target; our own memory is never lent. The guest may write there
        // meanwhile: then these bytes are some mixture, and are judged as they were copied.
        #[allow(unsafe_code)]
        unsafe {
            copy_short(from, to.as_mut_ptr(), there);
        }
        *used += there;
        address = address.wrapping_add(there as u64);
        length -= there as u32;
    }
    Ok(())
}
