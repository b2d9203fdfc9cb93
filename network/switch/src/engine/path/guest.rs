//! Frames of virtual machines: whole batches, copied out of their memory one by one.

use super::{FRAME_BYTES_MAX, HEADROOM, Origin, PORT_FRAMES_PER_TURN, Path};
use crate::engine::Miss;
use crate::engine::counters::EngineEvent;
use crate::engine::port::Served;
use crate::engine::ring::FrameProducer;
use crate::ports::vhost::guest::Taken;
use crate::ports::vhost::ring::BATCH;
use weir_packet::virtio::{HEADER_BYTES, MERGEABLE_HEADER_BYTES, VirtioNetHeader};

// A port's share of a turn is one batch of each of its queues.
const _: () = assert!(BATCH <= PORT_FRAMES_PER_TURN && MERGEABLE_HEADER_BYTES <= HEADROOM);

impl Path {
    /// Looks at every guest that had something in its last turn, or kicked. Those whose memory is gone are left to `failed`.
    pub fn serve_guests(
        &mut self,
        misses: &mut FrameProducer<Miss>,
        mut failed: impl FnMut(&mut Path, usize),
    ) {
        let mut at = 0;
        while let Some(number) = self.ports.hot(at) {
            let (served, count) = self.serve_guest(number, misses);
            if served == Served::Failed {
                failed(self, number);
                // Nothing is read from it any more.
                self.ports.cool(at);
            } else if count > 0 || !self.ports.cool(at) {
                at += 1;
            }
        }
    }

    /// Takes a batch of each queue of a guest; returns how many chains there were.
    fn serve_guest(&mut self, number: usize, misses: &mut FrameProducer<Miss>) -> (Served, usize) {
        let Some(guest) = self.ports.guest(number) else { return (Served::Done, 0) };
        let guest = guest.borrow();
        let (pairs, header_bytes) = (guest.pairs(), guest.header_bytes());
        drop(guest);
        let mut all = 0;
        for pair in 0..pairs {
            let Some(guest) = self.ports.guest(number) else { return (Served::Done, all) };
            let count = guest.borrow_mut().begin(pair);
            for _ in 0..count {
                self.take_of_guest(number, pair, header_bytes, misses);
            }
            all += count;
            let Some(guest) = self.ports.guest(number) else { return (Served::Done, all) };
            let mut guest = guest.borrow_mut();
            let counters = &self.shared.counters;
            counters.event(EngineEvent::PortReads).add(count as u64);
            counters.event(EngineEvent::GuestInterrupts).add(u64::from(guest.finish(pair)));
            counters.event(EngineEvent::GuestQueuesBroken).add(guest.take_broken() as u64);
            if guest.is_lost() {
                counters.event(EngineEvent::GuestMemoryLost).add(1);
                return (Served::Failed, all);
            }
        }
        (Served::Done, all)
    }

    #[inline]
    fn take_of_guest(
        &mut self,
        number: usize,
        pair: usize,
        header_bytes: usize,
        misses: &mut FrameProducer<Miss>,
    ) {
        let at = self.arena_place();
        let Some(guest) = self.ports.guest(number) else { return };
        let room = &mut self.arena[at - header_bytes..at + FRAME_BYTES_MAX];
        let bytes = match guest.borrow_mut().take(pair, room) {
            Taken::Frame(bytes) => bytes,
            Taken::Nothing => return,
            Taken::Nonsense => {
                self.shared.counters.event(EngineEvent::GuestNonsense).add(1);
                return;
            }
        };
        self.turn_bytes += bytes as u64;
        // What a longer header has behind is for the other direction.
        let header = &self.arena[at - header_bytes..at - header_bytes + HEADER_BYTES];
        let Ok(virtio) = VirtioNetHeader::decode(header, HEADER_BYTES) else { return };
        self.take_frame(Origin::port(number), at, bytes - header_bytes, None, &virtio, misses);
    }
}
