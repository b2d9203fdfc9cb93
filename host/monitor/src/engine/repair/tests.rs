use super::*;
use crate::kernel::Kernel;
use crate::tree::STOPPED;
use std::process::{Child, Command};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

fn sleeper() -> Child {
    Command::new("sleep").arg("1000").spawn().unwrap()
}

/// Where a process is, once the kernel has told of it.
fn place_of(engine: &mut Engine, child: &Child) -> Place {
    for _ in 0..6000 {
        engine.take_events();
        if let Some(place) = engine.tree.find(child.id()) {
            return place;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("process {} is not in the tree", child.id());
}

fn signals_reach_each_once_and_nobody_else(kernel: Kernel) {
    let (notes, _kept) = sync_channel(8);
    let mut engine = Engine::new(kernel, Vec::new(), Vec::new(), notes).unwrap();
    let (mut gone, mut there, mut innocent) = (sleeper(), sleeper(), sleeper());
    let [gone_at, there_at, innocent_at] =
        [&gone, &there, &innocent].map(|child| place_of(&mut engine, child));
    // It ends without the loop having heard of it, and its number is free.
    gone.kill().unwrap();
    gone.wait().unwrap();
    let members = [
        (gone_at, gone.id()),
        (there_at, there.id()),
        (there_at, there.id()),
        // A number that has passed to another process.
        (gone_at, innocent.id()),
    ];
    engine.members.extend(members);
    assert_eq!(engine.kill_members(), 1, "only one of them lives, and is signalled once");
    assert_eq!(engine.kill_members(), 0, "what dies already is not signalled again");
    assert_eq!(engine.totals.signals, 1);
    there.wait().unwrap();
    assert!(innocent.try_wait().unwrap().is_none(), "an innocent process was killed");

    // One that was stopped and is not killed after all goes on.
    engine.members.clear();
    engine.members.push((innocent_at, innocent.id()));
    assert_eq!(engine.signal_members(Signal::STOP, STOPPED), 1);
    engine.stopped = true;
    engine.release_halted();
    assert_eq!(engine.tree.get(innocent_at).unwrap().signals, 0);
    let state = || engine.proc.stat(innocent.id()).unwrap().state;
    for _ in 0..6000 {
        if state() != b'T' {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_ne!(state(), b'T');
    innocent.kill().unwrap();
    innocent.wait().unwrap();
}

#[test]
fn signals_reach_each_once_and_nobody_else_with_programs_in_the_kernel() {
    match Kernel::open() {
        Ok(kernel) if kernel.way() == Way::Bpf => signals_reach_each_once_and_nobody_else(kernel),
        other => println!(
            "NOT RUN signals_reach_each_once_and_nobody_else_with_programs_in_the_kernel: {:?}",
            other.map(|kernel| kernel.degraded)
        ),
    }
}

#[test]
fn signals_reach_each_once_and_nobody_else_with_the_connector() {
    match Kernel::open_connector("a test".into()) {
        Ok(kernel) => signals_reach_each_once_and_nobody_else(kernel),
        Err(reason) => {
            println!("NOT RUN signals_reach_each_once_and_nobody_else_with_the_connector: {reason}");
        }
    }
}
