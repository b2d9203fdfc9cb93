//! The loop allocates nothing: this program's allocator counts, thread by thread.
#![allow(unsafe_code)] // an allocator is one

use crate::cage::policies;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::process::Command;
use std::sync::mpsc::sync_channel;
use weir_monitor::engine::Engine;
use weir_monitor::kernel::Kernel;
use weir_sensor::now_ns;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: all is passed on to the system's allocator; counting touches a constant-initialised cell of the thread, which
// needs no allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that ends has no cell any more, and counts no more.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn steps_allocate_nothing(name: &str, kernel: weir_monitor::Result<Kernel>) {
    let kernel = match kernel {
        Ok(kernel) => kernel,
        Err(reason) => return println!("NOT RUN {name}: {reason}"),
    };
    let text = "
kind: fork-bomb
name: dry
when: { living: 1, forks: 1, depth: 5, breadth: 500 }
cooldown-ms: 0
---
kind: memory-hog
name: host
when: { available-bytes: 1 }
";
    let (notes, _kept) = sync_channel(8);
    let queries = weir_monitor::query::compile(
        "on-demand a = rate(fork, 1s); on-demand b = top(3, exec.comm); every 10ms c when living() > 0 = living();",
    );
    let mut engine = Engine::new(kernel, policies(text), queries.unwrap(), notes).unwrap();
    engine.step(now_ns());
    let before = ALLOCATIONS.get();
    let mut here = 0;
    let mut alarms = 0;
    for round in 0..400 {
        if round % 20 == 0 {
            let start = ALLOCATIONS.get();
            drop(Command::new("true").status());
            here += ALLOCATIONS.get() - start;
        }
        engine.step(now_ns());
        alarms = engine.totals.alarms;
    }
    assert!(engine.totals.events > 0 && alarms > 0, "{:?}", engine.totals);
    assert_eq!(ALLOCATIONS.get() - before - here, 0, "allocations of 400 steps");
}

#[test]
fn steps_allocate_nothing_with_programs_in_the_kernel() {
    steps_allocate_nothing("steps_allocate_nothing_with_programs_in_the_kernel", Kernel::open());
}

#[test]
fn steps_allocate_nothing_with_the_connector() {
    steps_allocate_nothing(
        "steps_allocate_nothing_with_the_connector",
        Kernel::open_connector("a test".into()),
    );
}
