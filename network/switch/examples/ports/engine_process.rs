//! Weir's engine as a process, with two vhost-user ports at which testpmd is met.
//!
//! One flow is that of testpmd's `txonly` packets, which go round; many are those of its `flowgen`, which differ in their destination.

use crate::flows::{self, Random};
use std::cell::RefCell;
use std::io::BufRead;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_packet::IpAddress;
use weir_switch::engine::counters::EngineEvent;
use weir_switch::engine::polling::Polling;
use weir_switch::engine::port::{Device, Port};
use weir_switch::engine::{Command, sys};
use weir_switch::flowtable::Shadow;
use weir_switch::ports::vhost::Socket;
use weir_switch::ports::vhost::session::{Session, Told};

/// Addresses that testpmd writes in its mode `flowgen`: source, and the first destination.
const GENERATED_FROM: [u8; 4] = [10, 254, 0, 0];
const GENERATED_TO: [u8; 4] = [10, 253, 0, 0];

/// A flow from each port to the other, or so many of them.
fn fill(shadow: &mut Shadow, count: u32) {
    let mut order: Vec<u32> = (0..count).collect();
    // Neighbours of the generator's are none in memory.
    let mut random = Random(11);
    for at in (1..order.len()).rev() {
        order.swap(at, (random.next() % (at as u64 + 1)) as usize);
    }
    for port in [0_u16, 1] {
        let mut key = flows::key(usize::from(port), 0);
        for flow in &order {
            if count == 1 {
                (key.source, key.source_port) = (IpAddress::v4([198, 18, 0, 1]), 9);
            } else {
                (key.source, key.source_port) = (IpAddress::v4(GENERATED_FROM), 1000);
                let to = u32::from_be_bytes(GENERATED_TO) + flow;
                (key.destination, key.destination_port) = (IpAddress::v4(to.to_be_bytes()), 1001);
            }
            shadow.insert(key, flows::action(1 - port), 0).expect("room");
        }
    }
}

/// Runs the process: answers each line of its input with what it has sent and how long it was busy, nanoseconds.
pub fn run(sockets: [PathBuf; 2], count: u32, batch: usize) {
    let shared = flows::shared();
    let polling = Polling::always(Instant::now());
    let (engine, link) = flows::engine(&shared, polling, batch, |shadow| fill(shadow, count));
    let flows::Link { commands, returned, mut misses, injects: _injects } = link;
    // What the engine lets go of is dropped here.
    std::thread::spawn(move || returned.into_iter().for_each(drop));
    let mut sessions = Vec::new();
    for (number, path) in sockets.into_iter().enumerate() {
        let (commands, wake) = (commands.clone(), Arc::clone(&shared));
        let tell = move |told: Told| {
            let command = match told {
                Told::Runs(guest) => {
                    let device = Device::Guest(Box::new(RefCell::new(*guest)));
                    Command::SetPort(number, Box::new(Port { device, up: true, ethernet: None }))
                }
                Told::Waits(_) | Told::Failed(_) => Command::RemovePort(number),
            };
            commands.send(command).expect("the engine lives");
            wake.engine_wake.wake();
        };
        let socket = Socket { path, listens: true, pairs: 1 };
        sessions.push(Session::start(socket, Arc::new(tell)).expect("a session"));
    }
    std::thread::Builder::new()
        .name("weir-engine".into())
        .spawn(move || {
            sys::pin_thread(0).expect("a processor");
            engine.run().expect("it runs");
        })
        .expect("a thread");
    let seen = Arc::clone(&shared);
    std::thread::spawn(move || {
        // Packets of no flow, such as the driver's own.
        loop {
            while let Some((miss, _)) = misses.peek() {
                seen.load.done(miss.class);
                misses.pop();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    for _ in std::io::stdin().lock().lines() {
        let sent = |port: usize| shared.counters.port(port).tx.packets.get();
        println!("{} {}", sent(0) + sent(1), shared.counters.event(EngineEvent::BusyNs).get());
    }
    drop(sessions);
}
