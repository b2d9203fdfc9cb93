//! The engine in a closed loop on one thread: two guests in memory, whose driver costs next to nothing. No other processor takes
//! part, so no placement can move the figure: what a change of the engine costs shows here first.

use crate::flows::{self, Random};
use crate::machine::time_each;
use crate::memory_guest::MemoryGuest;
use std::cell::RefCell;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use weir_model::resource::Encapsulation;
use weir_switch::engine::counters::EngineEvent;
use weir_switch::engine::port::{Device, Port};
use weir_switch::engine::{Command, Engine, Shared, sys};

/// Frames that are sent at once.
const BATCH: u16 = 32;

/// See the module.
pub struct Closed {
    engine: Engine,
    guests: [MemoryGuest; 2],
    flows: u32,
    random: Random,
    shared: Arc<Shared>,
    /// Where the messages for another switch end.
    sink: Option<UdpSocket>,
    /// Packets that went there so far.
    sent: usize,
    _link: flows::Link,
}

/// A frame of the first flow.
pub fn first_frame() -> Vec<u8> {
    let mut frame = flows::frame();
    let (address, port) = flows::source(0);
    frame[flows::SOURCE_AT..flows::SOURCE_AT + 4].copy_from_slice(&address);
    frame[flows::SOURCE_PORT_AT..flows::SOURCE_PORT_AT + 2].copy_from_slice(&port.to_be_bytes());
    frame
}

/// Gives an engine ports to these guests.
pub fn connect(engine: &mut Engine, link: &flows::Link, shared: &Shared, guests: &[&MemoryGuest]) {
    for (number, guest) in guests.iter().enumerate() {
        let device = Device::Guest(Box::new(RefCell::new(guest.queues())));
        let port = Port { device, up: true, ethernet: None };
        link.commands.send(Command::SetPort(number, Box::new(port))).expect("the engine takes it");
    }
    shared.engine_wake.wake();
    engine.turn().expect("a turn");
}

impl Closed {
    /// With so many flows from the first guest to the second, and an engine that takes `batch` frames at once.
    pub fn new(count: u32, batch: usize) -> Closed {
        Closed::with(count, batch, None)
    }

    /// With so many flows from the first guest to another switch: a socket of this host, which drops all that it cannot hold and holds
    /// little.
    pub fn encapsulating(count: u32, batch: usize, format: Encapsulation) -> Closed {
        Closed::with(count, batch, Some(format))
    }

    fn with(count: u32, batch: usize, format: Option<Encapsulation>) -> Closed {
        let shared = flows::shared();
        let sink = format.map(|_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket"));
        let port = sink.as_ref().map_or(9, |sink| sink.local_addr().expect("bound").port());
        if let Some(sink) = &sink {
            // Messages stay whole to the end, as on the way to another host's switch.
            sys::set_option(sink.as_fd(), libc::SOL_UDP, sys::UDP_GRO, 1).expect("set");
            sys::set_option(sink.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, 1).expect("set");
        }
        let action = format.map_or_else(|| flows::action(1), flows::action_to_underlay);
        let (mut engine, link) =
            flows::engine_to(&shared, flows::always(), batch, flows::To::Ports([port; 2]), |shadow| {
                for flow in 0..count {
                    shadow.insert(flows::key(0, flow), action, 0).expect("room");
                }
            });
        let frame = first_frame();
        let guests = [MemoryGuest::new(&frame), MemoryGuest::new(&frame)];
        connect(&mut engine, &link, &shared, &guests.each_ref());
        let mut closed =
            Closed { engine, guests, flows: count, random: Random(7), shared, sink, sent: 0, _link: link };
        closed.batches(64);
        closed
    }

    /// Sends batches through; returns the frames that came out.
    pub fn batches(&mut self, count: usize) -> usize {
        let mut came = 0;
        for _ in 0..count {
            if self.flows > 1 {
                for ahead in 0..usize::from(BATCH) {
                    let (address, port) = flows::source((self.random.next() % u64::from(self.flows)) as u32);
                    self.guests[0].write_next(ahead, flows::SOURCE_AT, &address);
                    self.guests[0].write_next(ahead, flows::SOURCE_PORT_AT, &port.to_be_bytes());
                }
            }
            self.guests[0].send(BATCH);
            while {
                self.engine.turn().expect("a turn");
                self.guests[0].unsent() > 0
            } {}
            came += self.guests[1].take();
        }
        if self.sink.is_some() {
            let sent = self.shared.counters.event(EngineEvent::UnderlaySegments).get() as usize;
            came = sent - std::mem::replace(&mut self.sent, sent);
        }
        came
    }

    /// Nanoseconds a frame, in a window of so long.
    pub fn window(&mut self, length: Duration) -> f64 {
        time_each(length, || self.batches(64))
    }
}

/// Instructions a frame of the closed loop, with those of the driver and without the kernel's: of a long run less those of a short one. `way`
/// is `loop`, the format of a tunnel, or `from-` and that for the way back.
pub fn instructions(way: &str, flows: u32, batch: usize) -> f64 {
    const MORE: usize = 400;
    let run = |batches: usize| -> f64 {
        let output = std::process::Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(std::env::current_exe().expect("this program"))
            .args([way.to_string(), flows.to_string(), batch.to_string(), batches.to_string()])
            .output()
            .expect("valgrind runs");
        let text = String::from_utf8_lossy(&output.stderr);
        let count = text.split("Collected :").nth(1).and_then(|rest| rest.split_whitespace().next());
        count.and_then(|count| count.parse().ok()).expect("valgrind counts")
    };
    (run(100 + MORE) - run(100)) / (MORE * usize::from(BATCH)) as f64
}
