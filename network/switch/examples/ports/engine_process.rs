//! Weir's engine as a process, with two vhost-user ports at which testpmd is met.
//!
//! With many flows each packet becomes one of the next flow of a random order, so that packets which go round
//! visit all of them. A packet of no flow becomes one of a random flow: the packets start as one flow, and would go through
//! the order in lockstep.

use crate::flows::{self, Random};
use std::cell::RefCell;
use std::io::BufRead;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_packet::IpAddress;
use weir_packet::rewrite::{Endpoint, Rewrite};
use weir_switch::engine::counters::EngineEvent;
use weir_switch::engine::polling::Polling;
use weir_switch::engine::port::{Device, Port};
use weir_switch::engine::{Command, Inject, sys};
use weir_switch::flowtable::{CompiledAction, Shadow};
use weir_switch::ports::vhost::Socket;
use weir_switch::ports::vhost::session::{Session, Told};

/// The last bit of the flow of port 1 is set.
fn fill(shadow: &mut Shadow, count: u32) {
    if count <= 1 {
        for port in [0_u16, 1] {
            let mut key = flows::key(usize::from(port), 0);
            key.source = IpAddress::v4([198, 18, 0, 1]);
            key.source_port = 9;
            shadow.insert(key, flows::action(1 - port), 0).expect("room");
        }
        return;
    }
    let half = count / 2;
    let mut order: Vec<u32> = (0..half).collect();
    let mut random = Random(11);
    for at in (1..order.len()).rev() {
        order.swap(at, (random.next() % (at as u64 + 1)) as usize);
    }
    for port in [0_u16, 1] {
        for flow in 0..half {
            let (address, source_port) = flows::source(order[flow as usize]);
            let source = Endpoint { address: IpAddress::v4(address), port: Some(source_port) };
            let rewrite = Some(Rewrite { source: Some(source), destination: None });
            let action = CompiledAction { rewrite, ..flows::action(1 - port) };
            shadow.insert(flows::key(usize::from(port), flow), action, 0).expect("room");
        }
    }
}

/// Runs the process: answers each line of its input with what it has sent and how long it was busy, nanoseconds.
pub fn run(sockets: [PathBuf; 2], count: u32, batch: usize) {
    let shared = flows::shared();
    let polling = Polling::always(Instant::now());
    let (engine, link) = flows::engine(&shared, polling, batch, |shadow| fill(shadow, count));
    let flows::Link { commands, returned, mut misses, mut injects } = link;
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
        let mut random = Random(13);
        loop {
            while let Some((miss, frame)) = misses.peek() {
                let mut frame = frame.to_vec();
                let (address, port) = flows::source((random.next() % u64::from(count / 2).max(1)) as u32);
                if count > 1 && frame.len() >= flows::SOURCE_PORT_AT + 2 {
                    frame[flows::SOURCE_AT..flows::SOURCE_AT + 4].copy_from_slice(&address);
                    frame[flows::SOURCE_PORT_AT..flows::SOURCE_PORT_AT + 2]
                        .copy_from_slice(&port.to_be_bytes());
                    let again = Inject::Again {
                        ingress: miss.ingress,
                        key: miss.key,
                        virtio: miss.virtio,
                        generation: 0,
                    };
                    let _ = injects.push(again, &[&frame]);
                }
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
