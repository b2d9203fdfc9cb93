//! Between a guest and another switch with no kernel in between: the whole engine, with a ring of buffers in memory as its wire, as a device of
//! user space would have. Outer Ethernet, IPv4 and UDP headers are made and read as for AF_XDP, which does the same with a device's
//! rings. The guest's driver and whoever has the other ends of the rings are one thread on the other processor.
//!
//! Two ways: `wire`, from the guest into the ring; `from-wire`, from the ring to the guest.

use crate::closed;
use crate::flows::{self, Random};
use crate::machine::{median, probe, state, thread_cpu, time_each};
use crate::memory_guest::{MemoryGuest, RING};
use crate::rings::{BATCH, BUFFERS, Frames, Ring};
use crate::{SHARE_MIN, WINDOWS_MIN};
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weir_model::resource::Encapsulation;
use weir_packet::encap::InnerChecksum;
use weir_packet::outer::OuterHeader;
use weir_switch::engine::counters::{EngineDrop, EngineEvent};
use weir_switch::engine::path::UNDERLAY_ZONES;
use weir_switch::engine::wire::{Hop, Hops, Receiver, Wire, Wires};
use weir_switch::engine::{Engine, Shared, sys};
use weir_switch::flowtable::ZoneKey;
use weir_switch::flowtable::tunnel::Tunnel;

const WINDOW: Duration = Duration::from_millis(250);
/// Turns between two looks at the clock.
const TURNS: usize = 64;
const IP_AT: usize = 14;
const LENGTH_AT: usize = IP_AT + 2;
const ETHERNET: ([u8; 6], [u8; 6]) = ([2, 0, 0, 0, 1, 2], [2, 0, 0, 0, 1, 1]);
const PORTS: [u16; 2] = [6081, 4789];
/// The other switch.
const PEER: [u8; 4] = [192, 0, 2, 1];
const HERE: [u8; 4] = [127, 0, 0, 1];

/// The rings between the engine and who has their other ends: one way, or the other.
struct Rings {
    frames: Frames,
    /// From the engine; to it on the other way.
    filled: Ring,
    /// Back.
    free: Ring,
}

impl Rings {
    /// With every place free.
    fn new() -> Arc<Rings> {
        let rings = Rings { frames: Frames::new(), filled: Ring::new(), free: Ring::new() };
        rings.free.put(&(0..BUFFERS as u32).collect::<Vec<_>>());
        Arc::new(rings)
    }
}

/// The engine's end of both ways.
struct MemoryWire {
    out: Arc<Rings>,
    back: Arc<Rings>,
    /// Places that may be written into; the last ones first.
    places: [u32; BATCH],
    places_left: usize,
    filled: [u32; BATCH],
    filled_count: usize,
    /// Places that came, and how many of them were taken.
    came: [u32; BATCH],
    came_count: usize,
    came_taken: usize,
}

impl MemoryWire {
    fn new() -> (MemoryWire, Arc<Rings>, Arc<Rings>) {
        let (out, back) = (Rings::new(), Rings::new());
        let wire = MemoryWire {
            out: Arc::clone(&out),
            back: Arc::clone(&back),
            places: [0; BATCH],
            places_left: 0,
            filled: [0; BATCH],
            filled_count: 0,
            came: [0; BATCH],
            came_count: 0,
            came_taken: 0,
        };
        (wire, out, back)
    }

    fn place(&mut self) -> Option<u32> {
        if self.places_left == 0 {
            self.places_left = self.out.free.take(&mut self.places);
            for place in &self.places[..self.places_left] {
                self.out.frames.ask_for_start(*place);
            }
        }
        self.places_left = self.places_left.checked_sub(1)?;
        Some(self.places[self.places_left])
    }

    /// The place that comes next, if one does.
    fn next_came(&mut self) -> Option<u32> {
        if self.came_taken == self.came_count {
            self.back.free.put(&self.came[..self.came_count]);
            self.came_count = self.back.filled.take(&mut self.came);
            self.came_taken = 0;
            for place in &self.came[..self.came_count] {
                self.back.frames.ask_for_start(*place);
            }
        }
        (self.came_taken < self.came_count).then(|| self.came[self.came_taken])
    }
}

impl Wire for MemoryWire {
    fn put(&mut self, pieces: &[&[u8]]) -> bool {
        let Some(place) = self.place() else { return false };
        // SAFETY: taken from a ring, and put into the other one below.
        #[allow(unsafe_code)]
        let buffer = unsafe { self.out.frames.at(place) };
        let mut end = 0;
        for piece in pieces {
            buffer[end..end + piece.len()].copy_from_slice(piece);
            end += piece.len();
        }
        self.filled[self.filled_count] = place;
        self.filled_count += 1;
        if self.filled_count == BATCH {
            self.out.filled.put(&self.filled);
            self.filled_count = 0;
        }
        true
    }

    fn show(&mut self) -> io::Result<()> {
        self.out.filled.put(&self.filled[..self.filled_count]);
        self.filled_count = 0;
        Ok(())
    }

    fn take(&mut self, most: usize, each: &mut dyn FnMut(&[u8]) -> bool) -> usize {
        let mut taken = 0;
        while taken < most
            && let Some(place) = self.next_came()
        {
            // SAFETY: taken from a ring, and put into the other one when the next ones are taken.
            #[allow(unsafe_code)]
            let buffer = unsafe { self.back.frames.at(place) };
            let length = u16::from_be_bytes([buffer[LENGTH_AT], buffer[LENGTH_AT + 1]]);
            if !each(&buffer[..IP_AT + usize::from(length)]) {
                break;
            }
            self.came_taken += 1;
            taken += 1;
        }
        taken
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn settle(&mut self) -> io::Result<()> {
        self.show()
    }
}

/// The wire as the engine gets it, which knows the way to the other switch of the flows.
fn wires(wire: MemoryWire) -> Box<Wires> {
    let here = IpAddr::from(HERE);
    let hop = Hop::new(ETHERNET, here, here, 64, PORTS, 1600).expect("a hop");
    let way = Receiver { way: Ok(Arc::new(hop)), used: Arc::default() };
    let hops = Arc::new(arc_swap::ArcSwap::from_pointee(Hops::new(1, [(here, way)])));
    Box::new(Wires::new(vec![Box::new(wire)], hops, None))
}

/// Takes a batch of datagrams out, and reads of each its outer length and its last bytes; returns how many, and what of them must add up.
fn take(rings: &Rings) -> usize {
    let mut places = [0; BATCH];
    let count = rings.filled.take(&mut places);
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
        let (wire, rings, _) = MemoryWire::new();
        let action = flows::action_to_underlay(format);
        let to = flows::To::Wire(wires(wire));
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
        time_each(length, || self.batches(64))
    }

    /// On two processors: nanoseconds a packet of turns that had some, the share of its processor that the engine had, the share of its time in
    /// which it had packets, and packets a second in millions.
    fn together(&mut self) -> (f64, f64, f64, f64) {
        let stop = AtomicBool::new(false);
        let (guest, rings, flows, random) = (&mut self.guest, &self.rings, self.flows, &mut self.random);
        let counters = &self.shared.counters;
        let of = |event: EngineEvent| counters.event(event).get() as f64;
        let engine = &mut self.engine;
        let full = || counters.by_sockets(weir_switch::engine::wire::BySockets::Full).get();
        let lost_before = full();
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
        assert_eq!(full(), lost_before, "the ring was full");
        // What is left is not the next window's.
        while {
            self.engine.turn().expect("a turn");
            while take(&self.rings) > 0 {}
            self.guest.unsent() > 0
        } {}
        shown
    }
}

/// The engine, its guest, and who fills the ring that it takes datagrams out of.
pub struct FromWire {
    engine: Engine,
    guest: MemoryGuest,
    rings: Arc<Rings>,
    shared: Arc<Shared>,
    filler: Filler,
    _link: flows::Link,
}

/// Writes datagrams of flows at random into free places.
struct Filler {
    datagram: Vec<u8>,
    /// Where the inner frame begins.
    inner: usize,
    flows: u32,
    random: Random,
}

impl Filler {
    fn new(flows: u32, format: Encapsulation) -> Filler {
        let tunnel = Tunnel::new(IpAddr::from(HERE), 7, format, Some(9)).expect("a network");
        let header = tunnel.header(InnerChecksum::Accepts);
        let header =
            if format == Encapsulation::Geneve { header } else { tunnel.header(InnerChecksum::Full) };
        let frame = closed::first_frame();
        let port = PORTS[usize::from(format == Encapsulation::Vxlan)];
        let (from, to) = (IpAddr::from(PEER), IpAddr::from(HERE));
        let outer = OuterHeader::new(ETHERNET, from, to, 64, port).expect("one family");
        let outer_bytes = outer.of(50_000, 0, &[&header, &frame], false);
        let datagram = [&outer_bytes[..outer.length()], &header, &frame].concat();
        let inner = datagram.len() - frame.len();
        Filler { datagram, inner, flows, random: Random(7) }
    }

    /// Fills what is free, at most a batch and `most`; returns how many.
    fn fill(&mut self, rings: &Rings, most: usize) -> usize {
        if most < BATCH {
            return 0;
        }
        let mut places = [0; BATCH];
        let count = rings.free.take(&mut places);
        for place in &places[..count] {
            // SAFETY: taken from a ring, and put into the other one below.
            #[allow(unsafe_code)]
            let buffer = unsafe { rings.frames.at(*place) };
            let buffer = &mut buffer[..self.datagram.len()];
            buffer.copy_from_slice(&self.datagram);
            if self.flows > 1 {
                let flow = (self.random.next() % u64::from(self.flows)) as u32;
                let (address, port) = flows::source(flow);
                let (address_at, port_at) =
                    (self.inner + flows::SOURCE_AT, self.inner + flows::SOURCE_PORT_AT);
                buffer[address_at..address_at + 4].copy_from_slice(&address);
                buffer[port_at..port_at + 2].copy_from_slice(&port.to_be_bytes());
            }
        }
        rings.filled.put(&places[..count]);
        count
    }
}

impl FromWire {
    /// With so many flows from another switch.
    pub fn new(count: u32, format: Encapsulation) -> FromWire {
        let shared = flows::shared();
        let (wire, _, rings) = MemoryWire::new();
        let zone = UNDERLAY_ZONES;
        let to = flows::To::Wire(wires(wire));
        let (mut engine, link) = flows::engine_to(&shared, flows::always(), 32, to, |shadow| {
            let sender = IpAddr::from(PEER).into();
            let half = weir_packet::encap::Half::Unsaid;
            shadow.set_zone(ZoneKey { sender, vni: 7, format, half }, zone);
            for flow in 0..count {
                shadow.insert(flows::key_in(zone, flow), flows::action(0), 0).expect("room");
            }
        });
        let guest = MemoryGuest::new(&closed::first_frame());
        closed::connect(&mut engine, &link, &shared, &[&guest]);
        FromWire { engine, guest, rings, shared, filler: Filler::new(count, format), _link: link }
    }

    /// On one processor, the other ends' part with it: has so many batches come, returns the frames that the guest got.
    pub fn batches(&mut self, count: usize) -> usize {
        let mut came = 0;
        for _ in 0..count {
            let mut under_way = self.filler.fill(&self.rings, BATCH);
            while under_way > 0 {
                self.engine.turn().expect("a turn");
                let taken = self.guest.take();
                (came, under_way) = (came + taken, under_way - taken);
            }
        }
        came
    }

    /// As [`ToWire::window`].
    pub fn window(&mut self, length: Duration) -> f64 {
        time_each(length, || self.batches(64))
    }

    /// As [`ToWire::together`].
    fn together(&mut self) -> (f64, f64, f64, f64) {
        let stop = AtomicBool::new(false);
        let (guest, rings, filler) = (&mut self.guest, &self.rings, &mut self.filler);
        let counters = &self.shared.counters;
        let of = |event: EngineEvent| counters.event(event).get() as f64;
        let engine = &mut self.engine;
        let lost =
            || EngineDrop::ALL.iter().map(|reason| counters.dropped(*reason).packets.get()).sum::<u64>();
        let lost_before = lost();
        let (shown, under_way) = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                sys::pin_thread(1).expect("a second processor");
                let mut under_way = 0;
                while !stop.load(Ordering::Relaxed) {
                    under_way -= guest.take();
                    under_way += filler.fill(rings, RING.min(BUFFERS) - BATCH - under_way);
                }
                under_way
            });
            let (start, cpu) = (Instant::now(), thread_cpu());
            let (busy, packets) = (of(EngineEvent::BusyNs), of(EngineEvent::WireDatagrams));
            while start.elapsed() < WINDOW {
                for _ in 0..TURNS {
                    engine.turn().expect("a turn");
                }
            }
            let wall = start.elapsed().as_nanos() as f64;
            let share = (thread_cpu() - cpu).as_nanos() as f64 / wall;
            let (busy, packets) = (of(EngineEvent::BusyNs) - busy, of(EngineEvent::WireDatagrams) - packets);
            stop.store(true, Ordering::Relaxed);
            let shown = (busy * share / packets, share, busy / wall, packets / wall * 1000.0);
            (shown, other.join().expect("it ends"))
        });
        // What is left is not the next window's, and every frame comes to the guest.
        let mut left = under_way;
        for _ in 0..2 * BUFFERS {
            self.engine.turn().expect("a turn");
            left -= self.guest.take();
        }
        assert_eq!((left, lost()), (0, lost_before), "frames were lost");
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
            let before = to_wire.event(EngineEvent::WireSegments);
            to_wire.together();
            assert!(to_wire.event(EngineEvent::WireSegments) > before, "no packet came through");
            windows(&format!("wire-{label}-{count}"), rounds, || to_wire.together());
            drop(to_wire);
            let mut from_wire = FromWire::new(count, format);
            from_wire.together();
            windows(&format!("from-wire-{label}-{count}"), rounds, || from_wire.together());
        }
    }
}

/// Windows of one row, and what they show.
fn windows(name: &str, rounds: usize, mut together: impl FnMut() -> (f64, f64, f64, f64)) {
    let mut windows = Vec::new();
    for round in 0..rounds {
        let before = probe();
        let (ns, share, busy, rate) = together();
        let after = probe();
        println!(
            "window {round} {name}: {ns:.1}ns a packet, {rate:.2} Mpps, {:.0} % of its processor, busy {:.0} %; \
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
        let of: Vec<f64> = windows.iter().filter(|(_, state)| *state == wanted).map(|(ns, _)| *ns).collect();
        let name = format!("{name}-{wanted}");
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
