//! `make bench-monitor`: the monitor beside the same monitor without priority, a daemon that polls `/proc`, earlyoom, a SWIM
//! library and corosync, on the same faults, interleaved in one run. Every fault is in a cage: cgroups that bound its
//! processes and memory. `make soak-monitor`: what is no fault raises no alarm.
//!
//!   cargo run --release -p weir-monitor --example bench [ROUNDS] [bombs|full|tail|hogs|cost|faults|hosts|guests]
//!   cargo run --release -p weir-monitor --example bench ROUNDS tail PROCESSES [pair]
//!   cargo run --release -p weir-monitor --example bench SECONDS soak [idle|busy]
#![allow(clippy::unwrap_used, clippy::expect_used)] // a step that fails ends the bench
#![allow(clippy::zombie_processes)] // cages end what is in them

mod bombs;
#[path = "../../tests/cage.rs"]
mod cage;
mod cost;
mod hogs;
mod hosts;
mod observer;
mod poller;
mod soak;
#[path = "../../tests/vm.rs"]
mod vm;
mod vms;

use std::time::Instant;

/// Rounds of the row that shows the slowest of a hundred, for each round of the others.
const TAIL_ROUNDS: usize = 20;
/// Rounds of hogs, for each round of the others: their slowest is a figure, too.
const HOG_ROUNDS: usize = 4;

/// Runs the bench.
fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "victim") {
        return victim();
    }
    match arguments.as_slice() {
        [role, argument] if role == "member" => return hosts::member(argument),
        [role, argument] if role == "swim" => return hosts::swim(argument),
        [seconds, role, only @ ..] if role == "soak" => {
            let _guardian = cage::Guardian::start();
            return soak::run(seconds.parse().expect("seconds"), only.first().map(String::as_str));
        }
        _ => {}
    }
    let _guardian = cage::Guardian::start();
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
    if wanted("tail") {
        let grown = arguments.get(2).and_then(|grown| grown.parse().ok());
        let pair = arguments.get(3).is_some_and(|only| only == "pair");
        bombs::tail(rounds * TAIL_ROUNDS, grown, pair);
    }
    if wanted("faults") {
        cost::faults();
    }
    if wanted("hogs") {
        hogs::run(rounds * HOG_ROUNDS);
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

/// Of a hundred runs the slowest but one; of fewer the slowest.
fn p99(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (sorted.len() * 99).div_ceil(100).max(1) - 1;
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

/// Prints the 99th percentiles of a row, and all values, so that several runs can be put together.
fn tail(metric: &str, unit: &str, weir: &[f64], peer: &str, other: &[f64]) {
    let (ours, theirs) = (p99(weir), p99(other));
    println!(
        "RESULT monitor {metric}_p99 weir={ours:.2}{unit} {peer}={theirs:.2}{unit} ratio={:.2}   # {} and {} runs",
        ours / theirs,
        weir.len(),
        other.len()
    );
    for (who, values) in [("weir", weir), (peer, other)] {
        let listed: Vec<String> = values.iter().map(|value| format!("{value:.2}")).collect();
        println!("SAMPLES monitor {metric} {who} {}", listed.join(" "));
    }
}

/// Prints a figure of Weir's own beside its goal.
fn figure(metric: &str, unit: &str, values: &[f64], goal: f64) {
    result(metric, unit, values, "goal", &[goal]);
}
