//! Frames of virtual machines: whole batches, copied out of their memory one by one.
//!
//! A batch goes through three stages, so that what must be fetched from far is fetched for all of it at once (row A20): each
//! frame is copied and parsed, and the bucket of its flow asked for; then each one's flow is asked for; then each is judged and sent.
//! Nothing that a frame does can change what another of its batch is looked up in.
//!
//! A frame that is [`Plain`], asks nothing of the device and belongs to a flow that leads to a port here or to another switch goes a short way:
//! five fields are read of it, and one line of its flow. It is judged as any other would be, and whatever is not so goes the long way.
//!
//! Frames that go the short way one behind the other are a run. What is the same for them is done once a run: the port that they go to is
//! looked up, the flow, its rule and the port are counted. A frame is written to a guest from its parts: a new virtio header, the Ethernet
//! addresses from its flow, the rest from our copy; no part of the copy is written and read again soon after. So a frame's cost is
//! two copies of which the second is short, two descriptors, a hash, and a line each of the index and the flow.
//!
//! The order of frames is that of the guest, whichever way each of them goes.

use super::{FRAME_BYTES_MAX, HEADROOM, Origin, PORT_FRAMES_PER_TURN, Path, port_zone};
use crate::capture::Taps;
use crate::engine::Miss;
use crate::engine::counters::{Counters, EngineEvent};
use crate::engine::forward::plain::{
    ADDRESSES_BYTES, Tally, alter_plain, encapsulate_plain, judge_plain, way_of,
};
use crate::engine::forward::{Ahead, Checked, LastFlow, Lookup};
use crate::engine::hand::Hand;
use crate::engine::port::{self, Outlet, Ports, Served};
use crate::engine::ring::FrameProducer;
use crate::flow::PortIndex;
use crate::flowtable::FlowStore;
use crate::ports::vhost::ring::BATCH_MAX;
use std::time::Duration;
use weir_packet::virtio::{HEADER_BYTES, MERGEABLE_HEADER_BYTES, Offload, VirtioNetHeader, asks_nothing};
use weir_packet::{FlowKey, Fragment, Plain};

/// Frames that are longer end the batch: they are sent while they are in the processor's cache.
const BATCHED_BYTES_MAX: usize = 4096;
/// How long a guest that gives nothing is looked at, by an engine that does not sleep.
const PATIENCE: Duration = Duration::from_millis(10);

// A port's share of a turn is one batch of each of its queues.
const _: () = assert!(BATCH_MAX <= PORT_FRAMES_PER_TURN && MERGEABLE_HEADER_BYTES <= HEADROOM);

/// How a frame of a batch is dealt with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Way {
    /// The short way, if its flow allows; it is not parsed in full.
    #[default]
    Short,
    /// The long way; its flow is looked for ahead.
    Long,
    /// The long way; its flow is worked out when it is its turn: it is a fragment.
    Fragment,
}

/// A frame of a batch, in the arena: what is read of every one.
#[derive(Clone, Default)]
struct Staged {
    at: usize,
    length: usize,
    way: Way,
    /// Where its flow nearly certainly is.
    near: Option<u32>,
    /// Hash of the key.
    hash: u64,
    /// Of the long way only the key is filled in.
    plain: Plain,
}

impl Staged {
    fn ahead(&self) -> Option<Ahead> {
        let ahead = Ahead { key: self.plain.key, hash: self.hash, near: self.near };
        (self.way != Way::Fragment).then_some(ahead)
    }
}

/// Room for a batch, which is used again and again: a frame's fields are written where they stay.
#[derive(Default)]
pub(super) struct Stage {
    frames: Box<[Staged]>,
    /// As many, of those that go the long way: apart, so that the others lie close together.
    packets: Box<[Checked]>,
    used: usize,
}

impl Stage {
    /// For so many frames.
    pub(super) fn new(frames: usize) -> Stage {
        let packets = vec![Checked::default(); frames].into_boxed_slice();
        let frames = vec![Staged::default(); frames].into_boxed_slice();
        Stage { frames, packets, used: 0 }
    }
}

/// Writes a plain frame, behind room for its virtio header, that could not be written the short way.
#[inline(never)]
fn write_plain(
    ports: &Ports,
    counters: &Counters,
    number: PortIndex,
    frame: &mut [u8],
    ethernet: &[u8; ADDRESSES_BYTES],
) {
    frame[HEADER_BYTES..HEADER_BYTES + ADDRESSES_BYTES].copy_from_slice(ethernet);
    let (header, length) = (VirtioNetHeader::default(), frame.len() - HEADER_BYTES);
    port::write(ports, counters, usize::from(number), &header, frame, 1, length as u64);
}

/// What frames that go the long way are staged with.
struct Long<'a> {
    number: usize,
    zone: u32,
    taps: &'a mut Taps,
    last_flow: &'a LastFlow,
    store: &'a FlowStore,
    counters: &'a Counters,
}

impl Long<'_> {
    /// Parses a frame; returns how many packets and bytes it is. `None` if it is refused, which is counted.
    #[inline(never)]
    fn stage(
        &mut self,
        header: &[u8],
        frame: &[u8],
        staged: &mut Staged,
        packet: &mut Checked,
    ) -> Option<(u64, u64)> {
        // What a longer header has behind is for the other direction.
        let virtio = VirtioNetHeader::decode(header, HEADER_BYTES).ok()?;
        if let Err(reason) = packet.renew(frame, &virtio) {
            self.counters.parse_error(reason).add(1, frame.len() as u64);
            return None;
        }
        if !self.taps.is_empty() {
            self.taps.port(self.number, &[frame], self.counters);
        }
        let is_whole = packet.parsed.fragment == Fragment::Whole;
        staged.way = if is_whole { Way::Long } else { Way::Fragment };
        staged.plain.key = FlowKey::new(self.zone, &packet.parsed);
        staged.hash = self.last_flow.hash(self.store, &staged.plain.key);
        Some(packet.weight(frame.len()))
    }
}

impl Path {
    /// Looks at every guest that had something of late, or kicked; returns how many frames there were. Guests that have nothing are waited for,
    /// unless the engine `looks` for packets anyway. Those whose memory is gone are left to `failed`.
    pub fn serve_guests(
        &mut self,
        looks: bool,
        misses: &mut FrameProducer<Miss>,
        mut failed: impl FnMut(&mut Path, usize),
    ) -> usize {
        let (mut at, mut frames) = (0, 0);
        while let Some(number) = self.ports.hot(at) {
            if self.reads_no_more(misses) {
                break;
            }
            let (served, count) = self.serve_guest(number, misses);
            frames += count;
            if served == Served::Failed {
                failed(self, number);
                // Nothing is read from it any more.
                self.ports.cool(at);
            } else if count > 0 || (looks && self.is_patient(number)) || !self.ports.cool(at) {
                at += 1;
            }
        }
        frames
    }

    /// Whether a guest that gave nothing may give something soon.
    fn is_patient(&self, number: usize) -> bool {
        let silent = |gave| self.now.saturating_duration_since(gave);
        self.ports.guest(number).is_some_and(|guest| silent(guest.borrow().gave) < PATIENCE)
    }

    /// Takes a batch of each queue of a guest; returns how many chains there were.
    fn serve_guest(&mut self, number: usize, misses: &mut FrameProducer<Miss>) -> (Served, usize) {
        self.hold(number);
        let Some(guest) = self.ports.guest(number) else { return (Served::Done, 0) };
        let pairs = guest.borrow().pairs();
        let mut all = 0;
        for pair in 0..pairs {
            let Some(guest) = self.ports.guest(number) else { return (Served::Done, all) };
            let mut queues = guest.borrow_mut();
            let header_bytes = queues.header_bytes();
            let count = queues.begin(pair, self.batch);
            if count == 0 && !queues.has_broken() && !queues.is_lost() {
                continue;
            }
            drop(queues);
            // It is put back below; nothing in between looks for it.
            let mut stage = std::mem::take(&mut self.stage);
            let (origin, mut left) = (Origin::port(number), count);
            while left > 0 {
                let filled = self.fill_stage(number, pair, left, &mut stage);
                if filled == 0 {
                    break;
                }
                left -= filled;
                let Stage { frames, packets, used } = &mut stage;
                let frames = &mut frames[..*used];
                self.ask_for_flows(frames);
                let mut passed = 0;
                while passed < frames.len() {
                    passed += self.pass_run(&mut frames[passed..]);
                    let (Some(frame), Some(packet)) = (frames.get(passed), packets.get_mut(passed)) else {
                        break;
                    };
                    self.pass_staged(&origin, header_bytes, frame, packet, misses);
                    passed += 1;
                }
            }
            self.stage = stage;
            all += count;
            let Some(guest) = self.ports.guest(number) else { return (Served::Done, all) };
            let mut guest = guest.borrow_mut();
            self.ports.note(number, &mut guest);
            // What came meanwhile is fetched while other guests are served.
            guest.begin(pair, self.batch);
            guest.gave = self.now;
            let counters = &self.shared.counters;
            counters.event(EngineEvent::PortReads).add(count as u64);
            counters.event(EngineEvent::GuestQueuesBroken).add(guest.take_broken() as u64);
            if guest.is_lost() {
                counters.event(EngineEvent::GuestMemoryLost).add(1);
                return (Served::Failed, all);
            }
        }
        (Served::Done, all)
    }

    /// Copies frames that were read ahead into the arena and parses them, as many as there is room for and at most `most`.
    /// Returns how many chains that were.
    // Each stage is a function of its own, so that what its loop needs stays in registers.
    #[inline(never)]
    fn fill_stage(&mut self, number: usize, pair: usize, most: usize, stage: &mut Stage) -> usize {
        stage.used = 0;
        let mut at = self.arena_place();
        let Some(guest) = self.ports.guest(number) else { return most };
        let mut guest = guest.borrow_mut();
        let header_bytes = guest.header_bytes();
        let queue = guest.given(pair);
        let (counters, store, tables) = (&*self.shared.counters, &*self.shared.store, &*self.tables);
        let (zone, is_uncaught, arena) = (port_zone(number), self.taps.is_empty(), &mut self.arena[..]);
        let mut long =
            Long { number, zone, taps: &mut self.taps, last_flow: &self.last_flow, store, counters };
        let (mut chains, mut read_bytes, mut all_packets, mut all_bytes) = (0, 0, 0, 0);
        let most = most.min(usize::from(queue.known()));
        while chains < most {
            let Some(staged) = stage.frames.get_mut(stage.used) else { break };
            let Some(room) = arena.get_mut(at - header_bytes..at + FRAME_BYTES_MAX) else { break };
            queue.ask_behind(chains);
            let bytes = queue.copy(queue.ahead(chains), room);
            chains += 1;
            if bytes <= header_bytes || bytes > room.len() {
                counters.event(EngineEvent::GuestNonsense).add(1);
                continue;
            }
            let (header, frame) = room[..bytes].split_at(header_bytes);
            let length = frame.len();
            self.hand = Hand::Arena { at, length };
            read_bytes += bytes as u64;
            let asks =
                !is_uncaught || !header.first_chunk().is_some_and(|header| asks_nothing(header, length));
            let hash = if asks { None } else { staged.plain.renew(zone, frame, store.seed()) };
            let (packets, bytes) = if let Some(hash) = hash {
                (staged.way, staged.hash) = (Way::Short, hash);
                (1, length as u64)
            } else {
                match long.stage(header, frame, staged, &mut stage.packets[stage.used]) {
                    Some(weight) => weight,
                    None => continue,
                }
            };
            (all_packets, all_bytes) = (all_packets + packets, all_bytes + bytes);
            tables.prefetch_bucket(staged.hash);
            (staged.at, staged.length) = (at, length);
            stage.used += 1;
            at = (at + length).next_multiple_of(super::CACHE_LINE_BYTES) + HEADROOM;
            if length > BATCHED_BYTES_MAX {
                break;
            }
        }
        queue.take(chains);
        self.turn_bytes += read_bytes;
        counters.port(number).rx.add(all_packets, all_bytes);
        chains
    }

    /// Has the flows of a batch fetched.
    #[inline(never)]
    fn ask_for_flows(&self, staged: &mut [Staged]) {
        let (tables, store) = (&*self.tables, &*self.shared.store);
        for frame in staged.iter_mut().filter(|frame| frame.way != Way::Fragment) {
            frame.near = tables.prefetch_flow(store, frame.hash, frame.way == Way::Short);
        }
    }

    /// The short way, for the frames in front that can go it. Returns how many those are; nothing has become of the next one.
    #[inline(never)]
    fn pass_run(&mut self, staged: &mut [Staged]) -> usize {
        let (tables, store, counters) = (&*self.tables, &*self.shared.store, &*self.shared.counters);
        let lookup = Lookup { tables, store, counters, now_ms: self.now_ms };
        let (ports, arena) = (&self.ports, &mut self.arena[..]);
        let (peers, transmit, arena_used) = (&self.peers, &mut self.transmit, &mut self.arena_used);
        let (mut tally, mut outlet) = (Tally::new(&lookup), None::<Outlet<'_>>);
        for (passed, Staged { at, length, way, near, plain, hash }) in staged.iter_mut().enumerate() {
            if *way != Way::Short {
                return passed;
            }
            self.hand = Hand::Arena { at: *at, length: *length };
            let Some((flow, brief)) = judge_plain(&lookup, *near, plain) else { return passed };
            if let Some(to) = way_of(&lookup, brief) {
                tally.count(flow, brief, plain, *length);
                let header = to.header(peers.inner_checksum(&to.tunnel, &Offload::Complete, lookup.now_ms));
                let Some(from) = encapsulate_plain(arena, (*at, *length), plain, brief, header) else {
                    continue;
                };
                *arena_used = *at + *length;
                let (datagram, ecn) = (&arena[from..*arena_used], Plain::ecn(&arena[*at..*arena_used]));
                // SAFETY: the arena up to `arena_used` stays as it is until `flush`, which sends first: what of a batch is written into
                // it after this lies behind.
                #[allow(unsafe_code)]
                unsafe {
                    transmit.append(&to.tunnel, *hash, ecn, 0, datagram);
                }
                continue;
            }
            let is_turned = outlet.as_ref().is_some_and(|outlet| outlet.port == brief.port());
            if !is_turned && !ports.turn_to(&mut outlet, counters, brief.port()) {
                return passed;
            }
            let Some(to) = &mut outlet else { return passed };
            tally.count(flow, brief, plain, *length);
            let Some(frame) = arena.get_mut(*at..*at + *length) else { continue };
            let Some((ethernet, rest)) = alter_plain(frame, plain, brief) else { continue };
            if !to.send(ethernet, rest) {
                let ethernet = *ethernet;
                outlet = None;
                write_plain(
                    ports,
                    counters,
                    brief.port(),
                    &mut arena[*at - HEADER_BYTES..*at + *length],
                    &ethernet,
                );
            }
        }
        staged.len()
    }

    /// The long way.
    #[inline(never)]
    fn pass_staged(
        &mut self,
        origin: &Origin,
        header_bytes: usize,
        staged: &Staged,
        packet: &mut Checked,
        misses: &mut FrameProducer<Miss>,
    ) {
        let (at, length) = (staged.at, staged.length);
        self.hand = Hand::Arena { at, length };
        if staged.way == Way::Short {
            let header = &self.arena[at - header_bytes..at - header_bytes + HEADER_BYTES];
            let Ok(virtio) = VirtioNetHeader::decode(header, HEADER_BYTES) else { return };
            if let Err(reason) = packet.renew(&self.arena[at..at + length], &virtio) {
                // What is plain is never refused.
                self.shared.counters.parse_error(reason).add(1, length as u64);
                return;
            }
        }
        let ahead = staged.ahead();
        self.pass(origin, at, length, None, packet, ahead.as_ref(), misses);
    }
}
