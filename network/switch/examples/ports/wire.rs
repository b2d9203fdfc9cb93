//! From a guest to another switch with no kernel in between: the whole engine, whose transmitter puts each datagram into a ring of
//! buffers in memory, with the outer Ethernet, IPv4 and UDP headers in front, as it would for a device of user space. The guest's driver and
//! whoever takes the datagrams out are one thread on the other processor.

use crate::closed;
use crate::flows::{self, Random};
use crate::machine::{median, probe, state, thread_cpu};
use crate::memory_guest::{MemoryGuest, RING};
use crate::rings::{BATCH, BUFFERS, Frames, Ring};
use crate::{SHARE_MIN, WINDOWS_MIN};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weir_model::resource::Encapsulation;
use weir_switch::engine::counters::EngineEvent;
use weir_switch::engine::transmit::Wire;
use weir_switch::engine::{Engine, Shared, sys};

const WINDOW: Duration = Duration::from_millis(250);
/// Turns between two looks at the clock.
const TURNS: usize = 64;
const OUTER_BYTES: usize = 42;
const IP_AT: usize = 14;
const LENGTH_AT: usize = IP_AT + 2;
const SUM_AT: usize = IP_AT + 10;
const UDP_AT: usize = 34;

/// The rings between the engine and who takes its datagrams.
struct Rings {
    frames: Frames,
    sent: Ring,
    free: Ring,
}

/// The engine's end of them.
struct MemoryWire {
    rings: Arc<Rings>,
    /// Places that may be written into; the last ones first.
    places: [u32; BATCH],
    places_left: usize,
    filled: [u32; BATCH],
    filled_count: usize,
    /// Outer headers for Geneve and VXLAN, whose lengths are those of nothing.
    outer: [[u8; OUTER_BYTES]; 2],
    sums: [u32; 2],
}

/// Outer headers with no lengths and no checksum, and the sum of the IPv4 header's words.
fn outer(port: u16) -> ([u8; OUTER_BYTES], u32) {
    let mut bytes = [0; OUTER_BYTES];
    bytes[..12].copy_from_slice(&[2, 0, 0, 0, 1, 2, 2, 0, 0, 0, 1, 1]);
    bytes[12..14].copy_from_slice(&[8, 0]);
    bytes[IP_AT..UDP_AT]
        .copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1]);
    bytes[UDP_AT..UDP_AT + 2].copy_from_slice(&40_000_u16.to_be_bytes());
    bytes[UDP_AT + 2..UDP_AT + 4].copy_from_slice(&port.to_be_bytes());
    let words = bytes[IP_AT..UDP_AT].as_chunks().0;
    (bytes, words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum())
}

impl MemoryWire {
    /// With every place free.
    fn new() -> (MemoryWire, Arc<Rings>) {
        let rings = Rings { frames: Frames::new(), sent: Ring::new(), free: Ring::new() };
        rings.free.put(&(0..BUFFERS as u32).collect::<Vec<_>>());
        let rings = Arc::new(rings);
        let [(geneve, geneve_sum), (vxlan, vxlan_sum)] = [6081, 4789].map(outer);
        let wire = MemoryWire {
            rings: Arc::clone(&rings),
            places: [0; BATCH],
            places_left: 0,
            filled: [0; BATCH],
            filled_count: 0,
            outer: [geneve, vxlan],
            sums: [geneve_sum, vxlan_sum],
        };
        (wire, rings)
    }

    fn place(&mut self) -> Option<u32> {
        if self.places_left == 0 {
            self.places_left = self.rings.free.take(&mut self.places);
            for place in &self.places[..self.places_left] {
                self.rings.frames.ask_for_start(*place);
            }
        }
        self.places_left = self.places_left.checked_sub(1)?;
        Some(self.places[self.places_left])
    }
}

impl Wire for MemoryWire {
    fn put(&mut self, _: IpAddr, format: Encapsulation, ecn: u8, pieces: &[&[u8]]) -> bool {
        let Some(place) = self.place() else { return false };
        let which = usize::from(format == Encapsulation::Vxlan);
        // SAFETY: taken from a ring, and put into the other one below.
        #[allow(unsafe_code)]
        let buffer = unsafe { self.rings.frames.at(place) };
        buffer[..OUTER_BYTES].copy_from_slice(&self.outer[which]);
        let mut end = OUTER_BYTES;
        for piece in pieces {
            buffer[end..end + piece.len()].copy_from_slice(piece);
            end += piece.len();
        }
        let length = (end - IP_AT) as u16;
        let sum = self.sums[which] + u32::from(length) + u32::from(ecn);
        let folded = (sum & 0xffff) + (sum >> 16);
        buffer[IP_AT + 1] = ecn;
        buffer[LENGTH_AT..LENGTH_AT + 2].copy_from_slice(&length.to_be_bytes());
        buffer[SUM_AT..SUM_AT + 2].copy_from_slice(&(!(folded as u16)).to_be_bytes());
        let udp = (end - UDP_AT) as u16;
        buffer[UDP_AT + 4..UDP_AT + 6].copy_from_slice(&udp.to_be_bytes());
        self.filled[self.filled_count] = place;
        self.filled_count += 1;
        if self.filled_count == BATCH {
            self.show();
        }
        true
    }

    fn show(&mut self) {
        self.rings.sent.put(&self.filled[..self.filled_count]);
        self.filled_count = 0;
    }
}

/// Takes a batch of datagrams out, and reads of each its outer length and its last bytes; returns how many, and what of them must add up.
fn take(rings: &Rings) -> usize {
    let mut places = [0; BATCH];
    let count = rings.sent.take(&mut places);
    for place in &places[..count] {
        // SAFETY: taken from a ring, and put into the other one below.
        #[allow(unsafe_code)]
        let buffer = unsafe { rings.frames.at(*place) };
        let length = u16::from_be_bytes([buffer[LENGTH_AT], buffer[LENGTH_AT + 1]]);
        let end = IP_AT + usize::from(length);
        // The inner frame ends so.
        assert_eq!(buffer[end - 18..end], [0; 18], "a datagram is whole");
    }
    rings.free.put(&places[..count]);
    count
}

/// The engine, its guest, and who takes what it sends.
pub struct ToWire {
    engine: Engine,
    guest: MemoryGuest,
    rings: Arc<Rings>,
    shared: Arc<Shared>,
    flows: u32,
    random: Random,
    _link: flows::Link,
}

/// Has the guest send a batch of packets of flows at random.
fn send(guest: &mut MemoryGuest, random: &mut Random, flows: u32) {
    if flows > 1 {
        for ahead in 0..BATCH {
            let (address, port) = flows::source((random.next() % u64::from(flows)) as u32);
            guest.write_next(ahead, flows::SOURCE_AT, &address);
            guest.write_next(ahead, flows::SOURCE_PORT_AT, &port.to_be_bytes());
        }
    }
    guest.send(BATCH as u16);
}

impl ToWire {
    /// With so many flows to another switch.
    pub fn new(count: u32, batch: usize, format: Encapsulation) -> ToWire {
        let shared = flows::shared();
        let (wire, rings) = MemoryWire::new();
        let action = flows::action_to_underlay(format);
        let to = flows::To::Wire(Box::new(wire));
        let (mut engine, link) = flows::engine_to(&shared, flows::always(), batch, to, |shadow| {
            for flow in 0..count {
                shadow.insert(flows::key(0, flow), action, 0).expect("room");
            }
        });
        let guest = MemoryGuest::new(&closed::first_frame());
        closed::connect(&mut engine, &link, &shared, &[&guest]);
        ToWire { engine, guest, rings, shared, flows: count, random: Random(7), _link: link }
    }

    fn event(&self, event: EngineEvent) -> usize {
        self.shared.counters.event(event).get() as usize
    }

    /// On one processor, the driver's and the taker's part with it: sends so many batches, returns the frames that came out.
    pub fn batches(&mut self, count: usize) -> usize {
        let mut came = 0;
        for _ in 0..count {
            send(&mut self.guest, &mut self.random, self.flows);
            while {
                self.engine.turn().expect("a turn");
                self.guest.unsent() > 0
            } {}
            while let taken @ 1.. = take(&self.rings) {
                came += taken;
            }
        }
        came
    }

    /// On one processor, for so long: nanoseconds a frame.
    pub fn window(&mut self, length: Duration) -> f64 {
        let (start, before, mut came) = (Instant::now(), thread_cpu(), 0);
        while start.elapsed() < length {
            came += self.batches(64);
        }
        assert!(came > 0, "no frame came through");
        (thread_cpu() - before).as_nanos() as f64 / came as f64
    }

    /// On two processors: nanoseconds a packet of turns that had some, the share of its processor that the engine had, the share of its time in
    /// which it had packets, and packets a second in millions.
    fn together(&mut self) -> (f64, f64, f64, f64) {
        let stop = AtomicBool::new(false);
        let (guest, rings, flows, random) = (&mut self.guest, &self.rings, self.flows, &mut self.random);
        let counters = &self.shared.counters;
        let of = |event: EngineEvent| counters.event(event).get() as f64;
        let engine = &mut self.engine;
        let dropped = counters.dropped(weir_switch::engine::counters::EngineDrop::UnderlayFull);
        let lost_before = dropped.packets.get();
        let shown = std::thread::scope(|scope| {
            scope.spawn(|| {
                sys::pin_thread(1).expect("a second processor");
                let mut under_way = 0;
                while !stop.load(Ordering::Relaxed) {
                    under_way -= take(rings);
                    // Of the places the engine may hold a batch.
                    if under_way + 2 * BATCH <= RING.min(BUFFERS) {
                        send(guest, random, flows);
                        under_way += BATCH;
                    }
                }
            });
            let (start, cpu) = (Instant::now(), thread_cpu());
            let (busy, packets) = (of(EngineEvent::BusyNs), of(EngineEvent::UnderlaySegments));
            while start.elapsed() < WINDOW {
                for _ in 0..TURNS {
                    engine.turn().expect("a turn");
                }
            }
            let wall = start.elapsed().as_nanos() as f64;
            let share = (thread_cpu() - cpu).as_nanos() as f64 / wall;
            let (busy, packets) =
                (of(EngineEvent::BusyNs) - busy, of(EngineEvent::UnderlaySegments) - packets);
            stop.store(true, Ordering::Relaxed);
            // Time that others had of the processor is none of the engine's.
            (busy * share / packets, share, busy / wall, packets / wall * 1000.0)
        });
        assert_eq!(dropped.packets.get(), lost_before, "the ring was full");
        // What is left is not the next window's.
        while {
            self.engine.turn().expect("a turn");
            while take(&self.rings) > 0 {}
            self.guest.unsent() > 0
        } {}
        shown
    }
}

/// Runs the rows and prints the medians; those of so many flows alone, if it is said.
pub fn run(rounds: usize, only: Option<u32>) {
    sys::pin_thread(0).expect("a processor");
    for (format, label) in [(Encapsulation::Geneve, "geneve"), (Encapsulation::Vxlan, "vxlan")] {
        for count in [1, 10_000, 1_000_000].into_iter().filter(|count| only.is_none_or(|only| only == *count))
        {
            let mut to_wire = ToWire::new(count, 32, format);
            let before = to_wire.event(EngineEvent::UnderlaySegments);
            to_wire.together();
            assert!(to_wire.event(EngineEvent::UnderlaySegments) > before, "no packet came through");
            let mut windows = Vec::new();
            for round in 0..rounds {
                let before = probe();
                let (ns, share, busy, rate) = to_wire.together();
                let after = probe();
                println!(
                    "window {round} wire-{label}-{count}: {ns:.1}ns a packet, {rate:.2} Mpps, {:.0} % of its processor, busy {:.0} %; \
                     between the processors {before:.0}ns ({}), then {after:.0}ns ({})",
                    share * 100.0,
                    busy * 100.0,
                    state(before),
                    state(after)
                );
                if share >= SHARE_MIN && state(before) == state(after) {
                    windows.push((ns, state(before)));
                }
            }
            for wanted in ["near", "far"] {
                let of: Vec<f64> =
                    windows.iter().filter(|(_, state)| *state == wanted).map(|(ns, _)| *ns).collect();
                let name = format!("wire-{label}-{count}-{wanted}");
                if of.len() >= WINDOWS_MIN {
                    println!("RESULT ports {name} weir={:.1}ns   # {} windows", median(&of), of.len());
                } else {
                    println!(
                        "NOT RUN bench ports {name}: {} windows were so from end to end; {WINDOWS_MIN} are needed",
                        of.len()
                    );
                }
            }
        }
    }
}
