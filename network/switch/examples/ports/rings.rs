//! Memory rings: packets go round through rings of places in shared buffers, and what stands between the rings is the engine's own
//! work on a plain packet for another switch: read, looked up, counted, given its Ethernet addresses and its tunnel header. No system call and no
//! copy takes part, so this is what the work itself costs, on one processor, and where another one has the packets in between.

use crate::flows::{self, Random};
use crate::machine::{median, probe, state, thread_cpu};
use crate::{SHARE_MIN, WINDOWS_MIN};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use weir_model::resource::Encapsulation;
use weir_packet::Plain;
use weir_packet::encap::InnerChecksum;
use weir_packet::virtio::VirtioNetHeader;
use weir_switch::engine::buffer::Buffer;
use weir_switch::engine::counters::Counters;
use weir_switch::engine::forward::plain::{Tally, encapsulate_plain, judge_plain, way_of};
use weir_switch::engine::forward::{self, Ahead, Checked, LastFlow, Lookup, Verdict};
use weir_switch::engine::path::port_zone;
use weir_switch::engine::sys;
use weir_switch::flow::FLOWS_LIMIT;
use weir_switch::flowtable::zeroed::prefetch_to_write;
use weir_switch::flowtable::{CompiledHop, FlowStore, Shadow, Tables};

/// Buffers, and places of a ring.
pub const BUFFERS: usize = 1024;
const BUFFER_BYTES: usize = 2048;
/// Where a frame begins in its buffer: as in the engine's arena, behind room for a tunnel header, so that what follows its headers begins a line.
const FRAME_AT: usize = 62;
const FRAME_BYTES: usize = 60;
/// Places that are taken at once.
pub const BATCH: usize = 32;
const WINDOW: Duration = Duration::from_millis(250);

/// A ring of places, of which one thread writes and one reads.
pub struct Ring {
    places: Box<[AtomicU32]>,
    written: Line,
    read: Line,
}

#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU32);

impl Ring {
    /// An empty one.
    pub fn new() -> Ring {
        let places = (0..BUFFERS).map(|_| AtomicU32::new(0)).collect();
        Ring { places, written: Line::default(), read: Line::default() }
    }

    /// Takes at most a batch; returns how many.
    #[inline]
    pub fn take(&self, places: &mut [u32; BATCH]) -> usize {
        let from = self.read.0.load(Ordering::Relaxed);
        let count = (self.written.0.load(Ordering::Acquire).wrapping_sub(from) as usize).min(BATCH);
        for (ahead, place) in places[..count].iter_mut().enumerate() {
            *place = self.places[(from as usize + ahead) % BUFFERS].load(Ordering::Relaxed);
        }
        // A line that is written without need is fetched from the other processor without need.
        if count > 0 {
            self.read.0.store(from.wrapping_add(count as u32), Ordering::Release);
        }
        count
    }

    /// There is always room: a ring has as many places as there are buffers.
    #[inline]
    pub fn put(&self, places: &[u32]) {
        let from = self.written.0.load(Ordering::Relaxed);
        for (ahead, place) in places.iter().enumerate() {
            self.places[(from as usize + ahead) % BUFFERS].store(*place, Ordering::Relaxed);
        }
        self.written.0.store(from.wrapping_add(places.len() as u32), Ordering::Release);
    }
}

/// The buffers. Whoever took a place from a ring has the buffer there alone.
pub struct Frames {
    start: *mut u8,
    _memory: Buffer,
}

// SAFETY: threads have different buffers of it, as the rings hand them over.
#[allow(unsafe_code)]
unsafe impl Send for Frames {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for Frames {}

impl Frames {
    /// With a frame in each.
    pub fn new() -> Frames {
        let mut memory = Buffer::new(BUFFERS * BUFFER_BYTES);
        let frame = flows::frame();
        for buffer in memory.chunks_exact_mut(BUFFER_BYTES) {
            buffer[FRAME_AT..FRAME_AT + frame.len()].copy_from_slice(&frame);
        }
        Frames { start: memory.as_mut_ptr(), _memory: memory }
    }

    /// Has both lines of a frame and of the room in front of it fetched.
    #[inline]
    fn ask_for(&self, place: u32) {
        let buffer = self.start.wrapping_add(place as usize * BUFFER_BYTES);
        prefetch_to_write(buffer);
        prefetch_to_write(buffer.wrapping_add(FRAME_AT + 2));
    }

    /// Has the first lines of a buffer fetched.
    #[inline]
    pub fn ask_for_start(&self, place: u32) {
        let buffer = self.start.wrapping_add(place as usize * BUFFER_BYTES);
        prefetch_to_write(buffer);
        prefetch_to_write(buffer.wrapping_add(64));
    }

    /// A buffer.
    ///
    /// # Safety
    /// The place must have been taken from a ring, and not be put into one while this lives.
    #[allow(unsafe_code, clippy::mut_from_ref)]
    #[inline]
    pub unsafe fn at(&self, place: u32) -> &mut [u8] {
        // SAFETY: inside of the memory; the caller has it alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(place as usize * BUFFER_BYTES), BUFFER_BYTES) }
    }
}

/// A packet of a batch, as the engine stages those of a guest.
#[derive(Clone, Default)]
struct Staged {
    hash: u64,
    near: Option<u32>,
    plain: Plain,
}

/// The engine's work between two rings.
struct Work {
    store: Arc<FlowStore>,
    tables: Box<Tables>,
    counters: Counters,
    last: LastFlow,
    staged: Vec<Staged>,
}

impl Work {
    fn new(count: u32, format: Encapsulation) -> Work {
        let store = Arc::new(FlowStore::with_flows_max([8, 9], FLOWS_LIMIT));
        let (mut shadow, _) = Shadow::new(Arc::clone(&store));
        let action = flows::action_to_underlay(format);
        for flow in 0..count {
            shadow.insert(flows::key(0, flow), action, 0).expect("room");
        }
        let tables = shadow.publish().expect("tables");
        let staged = vec![Staged::default(); BATCH];
        Work { store, tables, counters: Counters::default(), last: LastFlow::default(), staged }
    }

    /// Has the packets at these places ready to be sent.
    fn batch(&mut self, frames: &Frames, places: &[u32]) {
        for place in places {
            frames.ask_for(*place);
        }
        self.read(frames, places);
        for staged in &mut self.staged[..places.len()] {
            staged.near = self.tables.prefetch_flow(&self.store, staged.hash, true);
        }
        let mut done = 0;
        while done < places.len() {
            done += self.pass(frames, &places[done..], done);
            if done < places.len() {
                self.pass_long(frames, places[done], done);
                done += 1;
            }
        }
    }

    #[inline(never)]
    fn read(&mut self, frames: &Frames, places: &[u32]) {
        for (place, staged) in places.iter().zip(&mut self.staged) {
            // SAFETY: taken from a ring by the caller of `batch`.
            #[allow(unsafe_code)]
            let frame = unsafe { &frames.at(*place)[FRAME_AT..FRAME_AT + FRAME_BYTES] };
            staged.hash = staged.plain.renew(port_zone(0), frame, self.store.seed()).expect("a plain frame");
            self.tables.prefetch_bucket(staged.hash);
        }
    }

    /// The short way, for the packets in front that can go it; returns how many those are.
    #[inline(never)]
    fn pass(&mut self, frames: &Frames, places: &[u32], first: usize) -> usize {
        let lookup = Lookup { tables: &self.tables, store: &self.store, counters: &self.counters, now_ms: 1 };
        let mut tally = Tally::new(&lookup);
        for (passed, (place, staged)) in places.iter().zip(&mut self.staged[first..]).enumerate() {
            let Staged { near, plain, .. } = staged;
            let Some((flow, brief)) = judge_plain(&lookup, *near, plain) else { return passed };
            let Some(way) = way_of(&lookup, brief) else { panic!("another hop") };
            tally.count(flow, brief, plain, FRAME_BYTES);
            // SAFETY: as above.
            #[allow(unsafe_code)]
            let buffer = unsafe { frames.at(*place) };
            let header = way.header(InnerChecksum::Accepts);
            encapsulate_plain(buffer, (FRAME_AT, FRAME_BYTES), plain, brief, header).expect("a frame");
        }
        places.len()
    }

    /// The long way: of a packet whose flow is not where it was looked for, because another has the same tag.
    #[cold]
    fn pass_long(&mut self, frames: &Frames, place: u32, staged: usize) {
        // SAFETY: as above.
        #[allow(unsafe_code)]
        let buffer = unsafe { frames.at(place) };
        let frame = &mut buffer[FRAME_AT..FRAME_AT + FRAME_BYTES];
        let mut packet = Checked::new(frame, &VirtioNetHeader::default()).expect("a frame");
        let Staged { hash, near, plain } = &self.staged[staged];
        let ahead = Ahead { key: plain.key, hash: *hash, near: *near };
        let lookup = Lookup { tables: &self.tables, store: &self.store, counters: &self.counters, now_ms: 1 };
        let last = &mut self.last;
        let verdict = forward::judge_ahead(&lookup, last, Some(port_zone(0)), &ahead, &packet, FRAME_BYTES);
        let Verdict::Forward { action, .. } = verdict else { panic!("a flow that was put is not found") };
        forward::alter(frame, &mut packet, action).expect("altered");
        let CompiledHop::Underlay(tunnel) = &action.hop else { panic!("another hop") };
        let header = tunnel.header(InnerChecksum::Accepts);
        buffer[FRAME_AT - header.len()..FRAME_AT].copy_from_slice(&header);
    }
}

/// What was sent comes back as a packet of another flow: read, and written into, as a receiver and a sender would.
fn turn(frames: &Frames, places: &[u32], flows: u32, random: &mut Random) {
    for place in places {
        // SAFETY: taken from a ring by the caller.
        #[allow(unsafe_code)]
        let buffer = unsafe { frames.at(*place) };
        let seen = buffer[FRAME_AT - 8];
        let (address, port) = flows::source((random.next() % u64::from(flows)) as u32);
        let frame = &mut buffer[FRAME_AT..FRAME_AT + FRAME_BYTES];
        frame[flows::SOURCE_AT..flows::SOURCE_AT + 4].copy_from_slice(&address);
        frame[flows::SOURCE_PORT_AT..flows::SOURCE_PORT_AT + 2].copy_from_slice(&port.to_be_bytes());
        frame[FRAME_BYTES - 1] = frame[FRAME_BYTES - 1].wrapping_add(seen | 1);
    }
}

/// What a window showed: nanoseconds a packet of the work, and the share of its processor that its thread had.
struct Window(f64, f64);

/// On one processor: what is sent comes back by the same thread, in time that does not count.
fn alone(work: &mut Work, flows: u32) -> Window {
    let (frames, to, back) = (Frames::new(), Ring::new(), Ring::new());
    let mut random = Random(31);
    let all: Vec<u32> = (0..BUFFERS as u32).collect();
    turn(&frames, &all, flows, &mut random);
    to.put(&all);
    let (start, cpu, mut busy, mut packets) = (Instant::now(), thread_cpu(), Duration::ZERO, 0);
    let mut places = [0; BATCH];
    while start.elapsed() < WINDOW {
        // A ring's worth at a time, so that the clock is read seldom.
        let from = Instant::now();
        let mut count = 0;
        while count < BUFFERS {
            let taken = to.take(&mut places);
            work.batch(&frames, &places[..taken]);
            back.put(&places[..taken]);
            count += taken;
        }
        busy += from.elapsed();
        packets += count;
        for _ in 0..BUFFERS / BATCH {
            let taken = back.take(&mut places);
            turn(&frames, &places[..taken], flows, &mut random);
            to.put(&places[..taken]);
        }
    }
    let share = (thread_cpu() - cpu).as_secs_f64() / start.elapsed().as_secs_f64();
    Window(busy.as_nanos() as f64 / packets as f64, share)
}

/// On two: another processor has each packet in between.
fn together(work: &mut Work, flows: u32) -> Window {
    let (frames, to, back) = (Frames::new(), Ring::new(), Ring::new());
    let all: Vec<u32> = (0..BUFFERS as u32).collect();
    turn(&frames, &all, flows, &mut Random(31));
    to.put(&all);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            sys::pin_thread(1).expect("a second processor");
            let (mut random, mut places) = (Random(37), [0; BATCH]);
            while !stop.load(Ordering::Relaxed) {
                let count = back.take(&mut places);
                if count == 0 {
                    std::hint::spin_loop();
                    continue;
                }
                turn(&frames, &places[..count], flows, &mut random);
                to.put(&places[..count]);
            }
        });
        let (start, cpu, mut busy, mut packets) = (Instant::now(), thread_cpu(), Duration::ZERO, 0);
        let mut places = [0; BATCH];
        let mut from = start;
        while start.elapsed() < WINDOW {
            let count = to.take(&mut places);
            if count == 0 {
                from = Instant::now();
                continue;
            }
            work.batch(&frames, &places[..count]);
            back.put(&places[..count]);
            let now = Instant::now();
            busy += now - from;
            from = now;
            packets += count;
        }
        let share = (thread_cpu() - cpu).as_secs_f64() / start.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        Window(busy.as_nanos() as f64 / packets.max(1) as f64, share)
    })
}

/// So many batches on one processor, for valgrind.
pub fn batches(format: Encapsulation, flows: u32, count: usize) {
    let mut work = Work::new(flows, format);
    let (frames, mut random) = (Frames::new(), Random(31));
    let all: Vec<u32> = (0..BUFFERS as u32).collect();
    turn(&frames, &all, flows, &mut random);
    for places in all.chunks(BATCH).cycle().take(count) {
        work.batch(&frames, places);
    }
}

/// A row: its windows, with the state of the machine if it says anything of them.
struct Row {
    name: String,
    windows: Vec<(f64, &'static str)>,
}

/// Runs the rows and prints the medians; those of so many flows alone, if it is said.
pub fn run(rounds: usize, only: Option<u32>) {
    sys::pin_thread(0).expect("a processor");
    let mut rows: Vec<Row> = Vec::new();
    for (format, label) in [(Encapsulation::Geneve, "geneve"), (Encapsulation::Vxlan, "vxlan")] {
        for flows in [1, 10_000, 1_000_000].into_iter().filter(|flows| only.is_none_or(|only| only == *flows))
        {
            let mut work = Work::new(flows, format);
            let mut one = Row { name: format!("rings-{label}-{flows}-one-core"), windows: vec![] };
            let mut two = Row { name: format!("rings-{label}-{flows}-two-cores"), windows: vec![] };
            for _ in 0..rounds {
                let Window(ns, share) = alone(&mut work, flows);
                if share >= SHARE_MIN {
                    one.windows.push((ns, "any"));
                }
                let before = probe();
                let Window(ns, share) = together(&mut work, flows);
                let after = probe();
                println!(
                    "window {}: {ns:.1}ns a packet; between the processors {before:.0}ns ({}), then {after:.0}ns ({})",
                    two.name,
                    state(before),
                    state(after)
                );
                if share >= SHARE_MIN && state(before) == state(after) {
                    two.windows.push((ns, state(before)));
                }
            }
            rows.extend([one, two]);
        }
    }
    for row in &rows {
        for wanted in ["any", "near", "far"] {
            let of: Vec<f64> =
                row.windows.iter().filter(|(_, state)| *state == wanted).map(|(ns, _)| *ns).collect();
            if of.len() >= WINDOWS_MIN {
                println!(
                    "RESULT ports {}-{wanted} weir={:.1}ns   # {} windows",
                    row.name,
                    median(&of),
                    of.len()
                );
            } else if wanted != "any" && row.name.ends_with("two-cores") {
                println!(
                    "NOT RUN bench ports {}-{wanted}: {} windows were so from end to end; {WINDOWS_MIN} are needed",
                    row.name,
                    of.len()
                );
            }
        }
    }
}
