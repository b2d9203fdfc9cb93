//! Super-frames read with gaps, so that the headers of their segments fit between the pieces of their payload.
//!
//! A super-frame for another switch leaves as datagrams of tunnel header, headers and a piece of payload each. Read as one
//! block, it is sent as two pieces of memory a datagram, and the kernel copies each piece by itself into memory that no
//! cache holds. Read with gaps, headers are written into the gaps, and the whole train of datagrams is one piece. The many
//! pieces are then on the reading side, where the kernel copies into memory that is warm (row A19).
//!
//! How large the gaps must be is known only after the read, so it is foretold: a port whose last super-frames had one
//! [`Shape`] likely gives another of it. A frame that is of another shape after all is closed up ([`Shape::close`]), and
//! the port is read without gaps until its super-frames agree again. A frame that fits into the first piece, as one
//! without segmentation does, is not concerned.
//!
//! ```text
//!            at
//!             |<--first piece-->|          |<-payload->|           |<-payload->|
//!   [ tunnel ][ headers, payload ][ gap    ][ payload   ][ gap     ][ payload   ] ...
//! ```
//!
//! Invariant: whoever looks at more of a frame than its first piece has closed it up, or knows where the gaps are.

use crate::engine::sys;
use crate::engine::transmit::SEGMENTS_MAX;
use weir_packet::Fragment;
use weir_packet::virtio::{HEADER_BYTES, Offload};

use super::{Checked, FRAME_BYTES_MAX, PORTS_MAX};

/// Longest tunnel header and headers together for which gaps are left, bytes.
const GAP_BYTES_MAX: usize = 224;
/// Smallest payload of a segment for which gaps are left, bytes: with a smaller one a super-frame is more datagrams than one
/// message holds.
const PAYLOAD_BYTES_MIN: usize = FRAME_BYTES_MAX.div_ceil(SEGMENTS_MAX);
/// Super-frames of one shape that a port must have given before it is read with gaps.
const AGREED: u8 = 2;
/// Small frames in a row after which a port is read without gaps again until its next super-frame: a read of many pieces
/// costs most of a microsecond, which requests and replies would feel.
const SMALL_MAX: u8 = 4;
/// Most pieces of a frame.
const PIECES_MAX: usize = SEGMENTS_MAX + 1;
/// Most bytes that a frame takes, gaps included.
pub(super) const SPREAD_BYTES_MAX: usize = FRAME_BYTES_MAX + SEGMENTS_MAX * GAP_BYTES_MAX;

/// How a super-frame is cut, and what goes in front of each segment. All in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    tunnel: u16,
    headers: u16,
    payload: u16,
}

impl Shape {
    /// Of a super-frame that is sent behind `tunnel` bytes of tunnel header; `None` if gaps do not pay for it.
    pub(super) fn of(packet: &Checked, tunnel: usize) -> Option<Shape> {
        let Offload::Segment(cut) = packet.offload else { return None };
        let headers = packet.parsed.payload_offset;
        let pays = cut.payload_bytes >= PAYLOAD_BYTES_MIN
            && tunnel + headers <= GAP_BYTES_MAX
            && packet.parsed.fragment == Fragment::Whole;
        let payload = u16::try_from(cut.payload_bytes).ok()?;
        pays.then_some(Shape { tunnel: tunnel as u16, headers: headers as u16, payload })
    }

    /// Whether a frame of `length` bytes that was read with these gaps is of this shape.
    #[inline]
    pub(super) fn fits(&self, packet: &Checked, length: usize) -> bool {
        matches!(packet.offload, Offload::Segment(cut) if cut.payload_bytes == usize::from(self.payload))
            && packet.parsed.payload_offset == usize::from(self.headers)
            && packet.parsed.payload_end == length
    }

    /// Bytes in front of the payload of each segment but the first.
    #[inline]
    pub(super) fn gap(&self) -> usize {
        usize::from(self.tunnel) + usize::from(self.headers)
    }

    /// Length of the tunnel header.
    #[inline]
    pub(super) fn tunnel(&self) -> usize {
        usize::from(self.tunnel)
    }

    /// Payload of a segment.
    #[inline]
    fn payload(&self) -> usize {
        usize::from(self.payload)
    }

    /// Bytes of one datagram.
    #[inline]
    pub(super) fn datagram(&self) -> usize {
        self.gap() + self.payload()
    }

    /// Bytes of the frame that lie without a gap.
    #[inline]
    pub(super) fn first(&self) -> usize {
        usize::from(self.headers) + self.payload()
    }

    /// Reads a frame to `at`, virtio header in front, with gaps behind the first piece. Returns the bytes read.
    ///
    /// # Errors
    /// `WouldBlock` when there is none.
    pub(super) fn read(
        &self,
        device: std::os::fd::BorrowedFd<'_>,
        memory: &mut [u8],
        at: usize,
    ) -> std::io::Result<usize> {
        let room = &mut memory[at - HEADER_BYTES..at + SPREAD_BYTES_MAX];
        let mut pieces = [sys::piece(&[]); PIECES_MAX];
        let (first, mut rest) = room.split_at_mut(HEADER_BYTES + self.first());
        pieces[0] = sys::piece(first);
        let (mut used, mut left) = (1, FRAME_BYTES_MAX - self.first());
        while left > 0 && used < PIECES_MAX {
            let (_, behind) = rest.split_at_mut(self.gap());
            let (piece, behind) = behind.split_at_mut(self.payload().min(left));
            pieces[used] = sys::piece(piece);
            left -= piece.len();
            used += 1;
            rest = behind;
        }
        // SAFETY: the pieces are parts of `memory`, which is borrowed alone; none overlaps another.
        #[allow(unsafe_code)]
        unsafe {
            sys::read_pieces(device, &pieces[..used])
        }
    }

    /// Closes the gaps of a frame of `length` bytes at `at`.
    #[cold]
    pub(super) fn close(&self, memory: &mut [u8], at: usize, length: usize) {
        let (mut done, mut from) = (self.first(), at + self.first() + self.gap());
        while done < length {
            let bytes = self.payload().min(length - done);
            memory.copy_within(from..from + bytes, at + done);
            done += bytes;
            from += bytes + self.gap();
        }
    }
}

/// What is foretold of each port's next super-frame.
pub(super) struct Shapes(Box<[Guess]>);

#[derive(Clone, Copy, Default)]
struct Guess {
    shape: Option<Shape>,
    agreed: u8,
    /// Small frames since the last super-frame.
    small: u8,
}

impl Default for Shapes {
    fn default() -> Shapes {
        Shapes(vec![Guess::default(); PORTS_MAX + 1].into_boxed_slice())
    }
}

impl Shapes {
    /// The gaps to read the next frame of a port with.
    #[inline]
    pub(super) fn of_port(&self, port: usize) -> Option<Shape> {
        let guess = &self.0[port];
        guess.shape.filter(|_| guess.agreed >= AGREED)
    }

    /// A port gave a super-frame of this shape.
    #[inline]
    pub(super) fn saw(&mut self, port: usize, shape: Option<Shape>) {
        let guess = &mut self.0[port];
        if guess.shape == shape {
            guess.agreed = guess.agreed.saturating_add(1);
            guess.small = 0;
        } else {
            *guess = Guess { shape, agreed: 0, small: 0 };
        }
    }

    /// A port that was read with gaps gave a frame that has no use for them.
    #[inline]
    pub(super) fn small(&mut self, port: usize) {
        let guess = &mut self.0[port];
        guess.small += 1;
        if guess.small >= SMALL_MAX {
            (guess.agreed, guess.small) = (AGREED - 1, 0);
        }
    }

    /// A port gave a frame that was not of the shape that it was read with.
    #[cold]
    pub(super) fn forget(&mut self, port: usize) {
        self.0[port] = Guess::default();
    }
}

#[cfg(test)]
mod tests;
