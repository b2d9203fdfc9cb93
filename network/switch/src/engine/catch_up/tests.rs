use super::*;
use crate::engine::counters::EngineDrop;
use crate::engine::path::PORT_FRAMES_PER_TURN;
use crate::engine::polling::Polling;
use crate::engine::ring::{FrameConsumer, frame_ring};
use crate::engine::transmit::Transmit;
use crate::engine::{Channels, Command, MISSES_PER_CLASS_MAX, Miss, POLL_PERIOD, Shared, Underlay};
use crate::flowtable::Shadow;
use crate::testing::{self, Packet, ip};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use weir_packet::virtio::HEADER_BYTES;

/// An engine with one port whose other end is here, and no slow path but this.
struct Rig {
    engine: Engine,
    shared: Arc<Shared>,
    commands: SyncSender<Command>,
    misses: FrameConsumer<Miss>,
    endpoint: OwnedFd,
    _rest: Box<dyn std::any::Any>,
}

impl Rig {
    fn new() -> Rig {
        let shared = testing::shared();
        let (_, tables) = Shadow::new(Arc::clone(&shared.store));
        let (commands, for_engine) = sync_channel(8);
        let (returned, back) = sync_channel(8);
        let (for_misses, misses) = frame_ring(1024, 1 << 20);
        let (injects, for_injects) = frame_ring(1024, 1 << 20);
        let channels = Channels { commands: for_engine, returned, misses: for_misses, injects: for_injects };
        let counters = Arc::clone(&shared.counters);
        let underlay = Underlay {
            receivers: vec![],
            transmit: Transmit::new(false, (vec![], 6081), (vec![], 4789), counters),
            address: ip("127.0.0.1"),
            ports: [6081, 4789],
            partial_checksums: true,
        };
        let polling = Polling::always(Instant::now());
        let engine = Engine::new(Arc::clone(&shared), channels, underlay, tables, polling, 32).unwrap();
        let (port, endpoint) = testing::device();
        let mut rig = Rig { engine, shared, commands, misses, endpoint, _rest: Box::new((back, injects)) };
        rig.command(Command::SetPort(0, port));
        rig.turns(1);
        rig
    }

    /// Frames of so many flows, each its own, as they wait in a port's queue.
    fn send(&self, flows: u16) {
        for flow in 0..flows {
            let [high, low] = (1024 + flow).to_be_bytes();
            let udp = vec![high, low, 0, 9, 0, 8, 0, 0];
            let frame = Packet::new(ip("10.0.0.1"), ip("10.0.0.2"), 17, udp).build();
            let with_header = [&[0; HEADER_BYTES], &*frame].concat();
            rustix::io::write(&self.endpoint, &with_header).unwrap();
        }
    }

    fn command(&self, command: Command) {
        self.commands.send(command).unwrap();
        self.shared.engine_wake.wake();
    }

    /// Catches up for longer than a test takes.
    fn catch_up(&mut self) {
        self.command(Command::Resume);
        self.turns(1);
        assert!(self.engine.catch_up.is_on());
        self.engine.catch_up.until = Some(Instant::now() + Duration::from_secs(3600));
        self.engine.catch_up.until_most = self.engine.catch_up.until;
    }

    fn turns(&mut self, count: usize) {
        for _ in 0..count {
            // So that it asks the kernel in each.
            std::thread::sleep(POLL_PERIOD);
            self.engine.turn().unwrap();
        }
    }

    /// As the slow path takes them.
    fn take(&mut self, most: usize) -> usize {
        let mut taken = 0;
        while taken < most
            && let Some((miss, _)) = self.misses.peek()
        {
            self.misses.pop();
            self.shared.load.done(miss.class);
            taken += 1;
        }
        taken
    }

    fn dropped(&self) -> u64 {
        self.shared.counters.dropped(EngineDrop::SlowPathOverflow).packets.get()
    }
}

const FLOWS: u16 = MISSES_PER_CLASS_MAX as u16 + 100;
/// Turns in which all of them are read.
const TURNS: usize = FLOWS as usize / PORT_FRAMES_PER_TURN + 1;

#[test]
fn without_catching_up_what_comes_at_once_is_dropped() {
    let mut rig = Rig::new();
    rig.send(FLOWS);
    rig.turns(TURNS);
    assert_eq!(rig.dropped(), 100);
    assert_eq!(rig.take(usize::MAX), MISSES_PER_CLASS_MAX as usize);
}

#[test]
fn whoever_catches_up_reads_what_the_slow_path_has_room_for_and_loses_nothing() {
    let mut rig = Rig::new();
    rig.command(Command::Pause);
    rig.turns(2);
    rig.send(FLOWS);
    rig.turns(3);
    assert_eq!(rig.misses.waiting(), 0, "it is paused");
    rig.catch_up();
    let mut taken = 0;
    while taken < usize::from(FLOWS) {
        rig.turns(TURNS);
        let waiting = rig.misses.waiting();
        assert!(waiting == FRAMES || waiting == usize::from(FLOWS) - taken, "{waiting}");
        taken += rig.take(waiting / 2 + 1);
    }
    rig.send(1);
    rig.turns(1);
    assert_eq!((rig.take(usize::MAX), rig.dropped()), (1, 0));
}

#[test]
fn catching_up_ends_whatever_the_slow_path_does() {
    let mut rig = Rig::new();
    rig.catch_up();
    rig.send(FLOWS);
    rig.turns(2);
    assert_eq!(rig.misses.waiting(), FRAMES);
    rig.engine.catch_up.until_most = Some(Instant::now());
    rig.engine.catch_up.until = Some(Instant::now());
    rig.turns(TURNS);
    assert_eq!(rig.misses.waiting(), MISSES_PER_CLASS_MAX as usize);
    assert!(!rig.engine.catch_up.is_on());
}

/// As on a machine that has too much to do: the slow path's thread does not run while the time goes by.
#[test]
fn time_in_which_the_slow_path_does_nothing_does_not_count() {
    let (start, step) = (Instant::now(), CATCH_UP / 2);
    let mut catch_up = CatchUp::default();
    catch_up.begin();
    let left = |catch_up: &CatchUp, now: Instant| catch_up.until.unwrap().saturating_duration_since(now);
    let before = left(&catch_up, start);
    // The first look knows nothing of the time before.
    catch_up.put_off(start, 0, true);
    for look in 1..=8 {
        catch_up.put_off(start + step * look, 0, true);
    }
    assert_eq!(left(&catch_up, start + step * 8), before, "eight halves went by, and none counts");
    catch_up.put_off(start + step * 9, 1, true);
    assert_eq!(left(&catch_up, start + step * 9), before - step, "it took one");
    catch_up.put_off(start + step * 10, 1, false);
    assert_eq!(left(&catch_up, start + step * 10), before - step * 2, "it has nothing to do");
    catch_up.put_off(start + 10 * CATCH_UP_MOST, 1, true);
    assert!(left(&catch_up, start).abs_diff(CATCH_UP_MOST) < CATCH_UP, "it ends whatever happens");
}
