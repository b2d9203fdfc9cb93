//! The queues of a virtual machine's port, as the engine reads and writes frames with them.
//!
//! A frame of the guest is copied once, into the engine's own memory, and only that copy is parsed, judged and sent: what the
//! guest writes over its own afterwards changes nothing (row A29). A frame for the guest is copied once, into its buffers. Whole
//! batches are read ahead. What was taken and what was written is shown at the end of the engine's turn, with one write and at most one
//! interrupt a queue, and one fence for all guests (row A20): a fence waits until every line that was written has come from
//! the processor that had it.
//!
//! What the guest did not negotiate it does not get: then checksums are completed and super-frames cut here.

use super::calls::{Batch, Calls};
use super::copy::{NUMBER_OF_BUFFERS, Source, copy_out, copy_short, write_header};
use super::feature;
use super::memory::Memory;
use super::offered::Event;
use super::ring::{Ahead, Nonsense, Queue};
use crate::engine::forward::Checked;
use crate::engine::forward::plain::ADDRESSES_BYTES;
use crate::engine::sys;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::sync::mpsc::Sender;
use std::time::Instant;
use weir_packet::checksum;
use weir_packet::segment::Segmenter;
use weir_packet::virtio::{
    FLAG_NEEDS_CSUM, GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, HEADER_BYTES,
    MAX_SEGMENT_HEADER_BYTES, MERGEABLE_HEADER_BYTES, Offload, Segmentation, VirtioNetHeader,
};

/// Largest frame for a guest, virtio header included, bytes.
const FRAME_BYTES_MAX: usize = 65_535 + 18 + MERGEABLE_HEADER_BYTES;
/// Why a guest did not get a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It has no room, or no queue yet.
    Full,
    /// Its buffers are too small for it.
    TooLarge,
    /// It wrote nonsense where the frame should go.
    Nonsense,
    /// Its queue is broken.
    Broken,
}

/// Of a frame that was sent to a guest, what did not get there: more than nothing only when it had to be cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Frames.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A pair of queues that runs.
#[derive(Debug)]
pub struct Pair {
    /// To the guest.
    pub receive: Queue,
    /// Interrupts the guest for it.
    pub receive_call: Option<Event>,
    /// From the guest.
    pub transmit: Queue,
    /// Interrupts the guest for it.
    pub transmit_call: Option<Event>,
    /// The guest's kicks for it.
    pub transmit_kick: Event,
}

/// See the module.
#[derive(Debug)]
pub struct Guest {
    memory: Arc<Memory>,
    pairs: Vec<Pair>,
    calls: &'static Calls,
    features: u64,
    header_bytes: usize,
    /// For frames that must be changed for this guest.
    scratch: Vec<u8>,
    /// Whether the engine looks at it in every turn.
    pub(crate) hot: bool,
    /// When it gave a frame last.
    pub(crate) gave: Instant,
    /// Whether the engine has noted that something may have to be shown.
    pub(crate) dirty: bool,
    /// Broken queues that were told of.
    broken_told: usize,
    /// Tells the session that nobody works with the queues any more.
    _held: Option<Sender<()>>,
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.publish();
    }
}

impl Guest {
    /// Of queues that lie in `memory`; `held` is dropped with it.
    ///
    /// # Errors
    /// The kernel has no way to interrupt it ([`Calls::shared`]).
    pub fn new(
        memory: Arc<Memory>,
        pairs: Vec<Pair>,
        features: u64,
        held: Option<Sender<()>>,
    ) -> io::Result<Guest> {
        let calls = Calls::shared()?;
        let is_long = features & (feature::VERSION_1 | feature::MRG_RXBUF) != 0;
        let header_bytes = if is_long { MERGEABLE_HEADER_BYTES } else { HEADER_BYTES };
        let mut guest = Guest {
            memory,
            pairs,
            calls,
            features,
            header_bytes,
            scratch: Vec::new(),
            hot: false,
            gave: Instant::now(),
            dirty: false,
            broken_told: 0,
            _held: held,
        };
        for pair in &mut guest.pairs {
            // What it gets is filled in when there is something: it need not say that there is room.
            pair.receive.ask_for_kicks(false);
        }
        Ok(guest)
    }

    /// Number of pairs of queues.
    pub fn pairs(&self) -> usize {
        self.pairs.len()
    }

    /// Bytes of the virtio header in front of each of its frames.
    pub fn header_bytes(&self) -> usize {
        self.header_bytes
    }

    /// Descriptors that become readable when the guest has something new.
    pub fn kicks(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.pairs.iter().map(|pair| pair.transmit_kick.as_fd())
    }

    /// Whether its memory was taken away: what was read since the last time is void.
    pub fn is_lost(&self) -> bool {
        self.memory.is_lost()
    }

    fn broken(&self) -> usize {
        let broken =
            |pair: &Pair| usize::from(pair.receive.is_broken()) + usize::from(pair.transmit.is_broken());
        self.pairs.iter().map(broken).sum()
    }

    /// Whether queues broke that were not told of.
    pub fn has_broken(&self) -> bool {
        self.broken() > self.broken_told
    }

    /// Queues that broke since the last time.
    pub fn take_broken(&mut self) -> usize {
        let now = self.broken();
        now - std::mem::replace(&mut self.broken_told, now)
    }

    /// Reads ahead in a queue of the guest, at most so many chains; returns how many there are.
    #[inline]
    pub fn begin(&mut self, pair: usize, most: usize) -> usize {
        self.pairs[pair].transmit.read_ahead(most)
    }

    /// The queue of the frames that it gives.
    #[inline]
    pub fn given(&mut self, pair: usize) -> &mut Queue {
        &mut self.pairs[pair].transmit
    }

    /// Asks for kicks again, or for none. Returns whether there is something already.
    pub fn ask_for_kicks(&mut self, wanted: bool) -> bool {
        let mut waits = false;
        for pair in &mut self.pairs {
            waits |= pair.transmit.ask_for_kicks(wanted);
        }
        waits
    }

    /// Sends a frame: its virtio header, then its pieces. `flow` chooses among several queues.
    ///
    /// # Errors
    /// Why the guest did not get it.
    #[inline]
    pub fn send(
        &mut self,
        header: &VirtioNetHeader,
        pieces: &[libc::iovec],
        flow: impl FnOnce() -> u32,
    ) -> Result<Lost, Refused> {
        let pair = match self.pairs.len() {
            0 => return Err(Refused::Full),
            1 => 0,
            several => flow() as usize % several,
        };
        if self.takes(header.flags, header.gso_type) {
            return self.put(pair, header, pieces).map(|()| Lost::default());
        }
        self.send_plainer(pair, header, pieces)
    }

    /// Whether the guest negotiated what the header asks of it.
    #[inline]
    fn takes(&self, flags: u8, gso_type: u8) -> bool {
        if flags & FLAG_NEEDS_CSUM == 0 && gso_type == GSO_NONE {
            return true;
        }
        let needed = match gso_type & !GSO_ECN {
            GSO_NONE => 0,
            GSO_TCPV4 => feature::GUEST_TSO4,
            GSO_TCPV6 => feature::GUEST_TSO6,
            GSO_UDP_L4 => feature::GUEST_USO4 | feature::GUEST_USO6,
            _ => return false,
        };
        let marked = if gso_type & GSO_ECN != 0 { feature::GUEST_ECN } else { 0 };
        let needed = needed | marked | feature::GUEST_CSUM;
        self.features & needed == needed
    }

    /// Completes or cuts a frame for a guest that would not understand it.
    #[cold]
    fn send_plainer(
        &mut self,
        pair: usize,
        header: &VirtioNetHeader,
        pieces: &[libc::iovec],
    ) -> Result<Lost, Refused> {
        let mut frame = std::mem::take(&mut self.scratch);
        frame.clear();
        for piece in pieces {
            // SAFETY: the caller's pieces are live memory of ours.
            #[allow(unsafe_code)]
            frame.extend_from_slice(unsafe {
                std::slice::from_raw_parts(piece.iov_base.cast::<u8>().cast_const(), piece.iov_len)
            });
        }
        let checked = Checked::new(&frame, header);
        let result = match checked {
            Ok(packet) => match packet.offload {
                Offload::Segment(cut) => self.cut(pair, &frame, &packet, &cut),
                Offload::Checksum { start, field } => {
                    // The places were checked against the frame.
                    let _ = checksum::complete(&mut frame, start, field, packet.parsed.payload_end);
                    self.put(pair, &VirtioNetHeader::default(), &[sys::piece(&frame)])
                        .map(|()| Lost::default())
                }
                Offload::Complete => self
                    .put(pair, &VirtioNetHeader::default(), &[sys::piece(&frame)])
                    .map(|()| Lost::default()),
            },
            // The engine made it, so it is right; a guest's own never comes here unchecked.
            Err(_) => Err(Refused::TooLarge),
        };
        self.scratch = frame;
        result
    }

    fn cut(
        &mut self,
        pair: usize,
        frame: &[u8],
        packet: &Checked,
        cut: &Segmentation,
    ) -> Result<Lost, Refused> {
        let Ok(mut segmenter) = Segmenter::new(frame, &packet.parsed, cut) else {
            return Err(Refused::TooLarge);
        };
        let mut header = VirtioNetHeader::default();
        if self.features & feature::GUEST_CSUM != 0 {
            segmenter = segmenter.leave_partial(&packet.parsed);
            header = VirtioNetHeader {
                gso_type: GSO_NONE,
                gso_size: 0,
                hdr_len: 0,
                ..packet.offload.header(&packet.parsed)
            };
        }
        let mut headers = [0; MAX_SEGMENT_HEADER_BYTES];
        let headers = &mut headers[..packet.parsed.payload_offset];
        let mut lost = Lost::default();
        while let Some(payload) = segmenter.next_into(headers) {
            let payload = &frame[payload];
            let bytes = (headers.len() + payload.len()) as u64;
            if self.put(pair, &header, &[sys::piece(headers), sys::piece(payload)]).is_err() {
                lost.packets += 1;
                lost.bytes += bytes;
            }
        }
        Ok(lost)
    }

    /// Copies a frame into the guest's next buffers.
    #[inline]
    fn put(&mut self, pair: usize, header: &VirtioNetHeader, pieces: &[libc::iovec]) -> Result<(), Refused> {
        if let [piece] = pieces
            && self.put_whole(pair, header, piece)
        {
            return Ok(());
        }
        self.put_pieces(pair, header, pieces)
    }

    /// Copies a frame of one piece into one buffer of the guest, if the next one has room for it and is of one piece, too: the
    /// nearly certain case. Returns whether it did.
    #[inline]
    fn put_whole(&mut self, pair: usize, header: &VirtioNetHeader, piece: &libc::iovec) -> bool {
        let total = self.header_bytes + piece.iov_len;
        let queue = &mut self.pairs[pair].receive;
        let Some(Ahead { start, head, .. }) = queue.room(total) else { return false };
        // SAFETY: `total` bytes from `start` are lent memory, and ours is none of it; the piece is live memory of ours.
        #[allow(unsafe_code)]
        unsafe {
            write_header(start, header.words(), self.header_bytes);
            copy_short(piece.iov_base.cast::<u8>().cast_const(), start.add(self.header_bytes), piece.iov_len);
        }
        queue.finish(head, total as u32);
        true
    }

    /// Writes a frame of which nothing is left to do, its Ethernet addresses and what follows them, into one buffer of the guest, if the
    /// next one has room for it and is of one piece. Returns whether it did. `flow` chooses among several queues.
    #[inline(always)]
    pub fn put_plain(
        &mut self,
        ethernet: &[u8; ADDRESSES_BYTES],
        rest: &[u8],
        flow: impl FnOnce() -> u32,
    ) -> bool {
        let header_bytes = self.header_bytes;
        let total = header_bytes + ADDRESSES_BYTES + rest.len();
        let pair = match &mut self.pairs[..] {
            [pair] => pair,
            [] => return false,
            several => {
                let count = several.len();
                &mut several[flow() as usize % count]
            }
        };
        let Some(Ahead { start, head, .. }) = pair.receive.room(total) else { return false };
        // SAFETY: `total` bytes from `start` are lent memory, and ours is none of it.
        #[allow(unsafe_code)]
        unsafe {
            write_header(start, (0, 0), header_bytes);
            let to = start.add(header_bytes);
            to.cast::<[u8; ADDRESSES_BYTES]>().write_unaligned(*ethernet);
            copy_short(rest.as_ptr(), to.add(ADDRESSES_BYTES), rest.len());
        }
        pair.receive.finish(head, total as u32);
        true
    }

    #[inline(never)]
    fn put_pieces(
        &mut self,
        pair: usize,
        header: &VirtioNetHeader,
        pieces: &[libc::iovec],
    ) -> Result<(), Refused> {
        let mut bytes = [0; MERGEABLE_HEADER_BYTES];
        // It has room for it.
        let _ = header.encode(&mut bytes, HEADER_BYTES);
        let header = &bytes[..self.header_bytes];
        let total = header.len() + pieces.iter().map(|piece| piece.iov_len).sum::<usize>();
        if total > FRAME_BYTES_MAX {
            return Err(Refused::TooLarge);
        }
        let queue = &mut self.pairs[pair].receive;
        let merges = self.features & feature::MRG_RXBUF != 0;
        let mut source = Source::new(header, pieces);
        let (mut done, mut chains, mut first) = (0, 0_u16, std::ptr::null_mut::<u8>());
        while done < total {
            if chains >= queue.waiting() && queue.look() <= chains {
                return Err(if queue.is_broken() { Refused::Broken } else { Refused::Full });
            }
            if chains > 0 && !merges {
                return Err(Refused::TooLarge);
            }
            let (head, mut chain) = queue.chain_to_write(chains);
            let before = done;
            let result = loop {
                if done == total {
                    break Ok(());
                }
                let (address, length) = match chain.next(&self.memory) {
                    Ok(Some(piece)) => piece,
                    Ok(None) => break Ok(()),
                    Err(nonsense) => break Err(nonsense),
                };
                let bytes = (length as usize).min(total - done);
                if done == 0 {
                    match self.memory.at(address, length) {
                        Some((start, there)) if there >= header.len() => first = start,
                        _ => break Err(Nonsense),
                    }
                }
                if copy_out(&self.memory, address, bytes, &mut source).is_err() {
                    break Err(Nonsense);
                }
                done += bytes;
            };
            let written = (done - before) as u32;
            queue.give_back(chains, head, written);
            chains += 1;
            if result.is_err() || written == 0 {
                return Err(spoil(queue, chains));
            }
        }
        if self.header_bytes == MERGEABLE_HEADER_BYTES {
            // SAFETY: the first piece has the whole header in lent memory, checked above.
            #[allow(unsafe_code)]
            unsafe {
                first.add(NUMBER_OF_BUFFERS).cast::<u16>().write_unaligned(chains.to_le());
            }
        }
        queue.advance(chains);
        Ok(())
    }

    /// Shows the guest what it got, and what was taken of it; returns how many interrupts that took.
    pub fn publish(&mut self) -> u64 {
        if !self.show() {
            return 0;
        }
        fence(Ordering::SeqCst);
        let mut batch = Batch::default();
        self.interrupt(&mut batch);
        batch.give()
    }

    /// The first half of [`Guest::publish`]: returns whether there was anything to show. Then the second follows, behind a full fence.
    #[inline]
    pub fn show(&mut self) -> bool {
        self.dirty = false;
        self.pairs.iter_mut().fold(false, |any, pair| any | pair.receive.show() | pair.transmit.show())
    }

    /// Has what will be written next fetched before it is needed.
    #[inline]
    pub fn prepare(&mut self) {
        for pair in &mut self.pairs {
            pair.receive.prepare_room();
        }
    }

    /// The second half: adds the interrupts for what was shown, where the guest wants them, to those that are given together.
    #[inline]
    pub fn interrupt(&mut self, batch: &mut Batch) {
        let mut ask = |queue: &mut Queue, call: &Option<Event>| {
            if let (true, Some(call)) = (queue.wants_interrupt(), call) {
                batch.add(self.calls, call);
            }
        };
        for pair in &mut self.pairs {
            ask(&mut pair.receive, &pair.receive_call);
            ask(&mut pair.transmit, &pair.transmit_call);
        }
    }
}

/// Gives back chains that led to nonsense, empty.
#[cold]
fn spoil(queue: &mut Queue, chains: u16) -> Refused {
    for ahead in 0..chains {
        let (head, _) = queue.chain_to_write(ahead);
        queue.give_back(ahead, head, 0);
    }
    queue.advance(chains);
    Refused::Nonsense
}
