//! `make bench-monitor`: the monitor beside the same monitor without priority, a daemon that polls `/proc`, and earlyoom, on
//! the same faults, interleaved in one run. Every fault is in a cage: cgroups that bound its processes and memory.
//!
//!   cargo run --release -p weir-monitor --example bench [ROUNDS] [bombs|full|hogs|cost|hosts|guests]
#![allow(clippy::unwrap_used, clippy::expect_used)] // a step that fails ends the bench
#![allow(clippy::zombie_processes)] // cages end what is in them

mod bombs;
#[allow(dead_code)] // the tests use more of it
#[path = "../../tests/cage.rs"]
mod cage;
mod cost;
mod hogs;
mod hosts;
mod observer;
mod poller;
#[allow(dead_code)] // the tests use more of it
#[path = "../../tests/vm.rs"]
mod vm;
mod vms;

use std::time::Instant;

/// Runs the bench.
fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "victim") {
        return victim();
    }
    match arguments.as_slice() {
        [role, argument] if role == "member" => return hosts::member(argument),
        [role, argument] if role == "swim" => return hosts::swim(argument),
        _ => {}
    }
    let rounds = arguments.first().and_then(|rounds| rounds.parse().ok()).unwrap_or(5);
    let wanted = |name: &str| arguments.get(1).is_none_or(|only| only == name);
    if let Err(reason) = cage::Cage::new(10, 64 << 20) {
        println!("NOT RUN bench monitor: {reason}");
        return;
    }
    if wanted("cost") {
        cost::run(rounds);
    }
    if wanted("bombs") {
        bombs::early(rounds);
    }
    if wanted("full") {
        bombs::full(rounds);
    }
    if wanted("hogs") {
        hogs::run(rounds);
    }
    if wanted("hosts") {
        hosts::run(rounds);
    }
    if wanted("guests") {
        vms::run(rounds);
    }
}

/// A fixed piece of work: what an innocent program needs for it is what a fault costs others. Prints milliseconds.
fn victim() {
    let started = Instant::now();
    let mut state = 1_u64;
    for _ in 0..1_000_000_000_u64 {
        state = std::hint::black_box(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
    println!("{}", started.elapsed().as_secs_f64() * 1e3);
}

/// Least, median and most.
fn spread(values: &[f64]) -> (f64, f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.as_slice() {
        [] => (f64::NAN, f64::NAN, f64::NAN),
        [least, .., most] => (*least, sorted[sorted.len() / 2], *most),
        [one] => (*one, *one, *one),
    }
}

/// Prints a row: Weir's median, a peer's, their ratio, and both ranges.
fn result(metric: &str, unit: &str, weir: &[f64], peer: &str, other: &[f64]) {
    let ((least, middle, most), (other_least, other_middle, other_most)) = (spread(weir), spread(other));
    println!(
        "RESULT monitor {metric} weir={middle:.2}{unit} {peer}={other_middle:.2}{unit} ratio={:.2}   \
         # weir {least:.2} to {most:.2}, {peer} {other_least:.2} to {other_most:.2}, {} and {} runs",
        middle / other_middle,
        weir.len(),
        other.len()
    );
}

/// Prints a figure of Weir's own beside its goal.
fn figure(metric: &str, unit: &str, values: &[f64], goal: f64) {
    result(metric, unit, values, "goal", &[goal]);
}
