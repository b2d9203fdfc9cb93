//! `make bench-ports`: what a packet costs the engine. The flow table alone; what a change costs at a million flows; a closed loop on one thread; the same to another switch, with
//! encapsulation; the same by a ring in memory, in the kernel's place; the work with encapsulation between rings in memory, on one processor and two; between the
//! vhost-user ports of two guests, beside Open vSwitch with DPDK and testpmd.
//!
//!   cargo run --release -p weir-switch --example ports [ROUNDS] [table|changes|closed|encap|wire [FLOWS]|rings [FLOWS]|memory|vhost [FLOWS_EACH_WAY]]
//!   cargo run --release -p weir-switch --example ports loop|geneve|vxlan|from-geneve|from-vxlan FLOWS BATCH BATCHES     the closed loop alone, for valgrind
//!   cargo run --release -p weir-switch --example ports rings geneve|vxlan FLOWS BATCHES          the work between memory rings alone, for valgrind
//!
//! The figure is processor time a packet of the thread that polls, while it has packets: what the generator does not give costs
//! nothing. The same generator, frames, processor, rings of 1,024 and batches of 32 for all; windows alternate.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a step that fails ends the bench

mod changes;
mod closed;
mod engine_process;
mod flows;
mod machine;
mod memory;
mod memory_guest;
mod rings;
mod switches;
mod table;
mod testpmd;
mod wire;

use machine::{HugePages, median, probe, state};
use std::path::{Path, PathBuf};
use std::time::Duration;
use switches::{Io, Ovs, Rig, VSWITCHD, Weir, Window};
use weir_model::resource::Encapsulation;

/// Huge pages for what is compared at once: four testpmd as generators, one as a switch, Open vSwitch twice at most.
const HUGE_PAGES: u64 = 1100;
const WINDOW: Duration = Duration::from_millis(600);
/// Flows that the table has.
const FLOWS: [u32; 4] = [1, 10_000, 1_000_000, 4_000_000];
/// Flows each way between virtual machines: the table has twice as many.
const FLOWS_EACH_WAY: [u32; 4] = [1, 10_000, 1_000_000, 2_000_000];
/// Windows whose polling thread had less of its processor are left out.
const SHARE_MIN: f64 = 0.9;
/// A comparison needs so many windows of each side.
const WINDOWS_MIN: usize = 3;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [role, first, second, flows, batch] if role == "engine" => {
            let (flows, batch) = (flows.parse().expect("flows"), batch.parse().expect("a batch"));
            return engine_process::run([first.into(), second.into()], flows, batch);
        }
        [role, rounds, huge, only @ ..] if role == "vhost" => {
            let only: Vec<u32> = only.iter().map(|flows| flows.parse().expect("flows")).collect();
            let counts = if only.is_empty() { &FLOWS_EACH_WAY[..] } else { &only };
            let most = (weir_switch::flow::FLOWS_LIMIT / 2) as u32;
            if let Some(flows) = counts.iter().find(|flows| !(1..=most).contains(*flows)) {
                return println!(
                    "NOT RUN bench ports vhost: {flows} flows each way: use 1 to {most}, the table holds twice as many"
                );
            }
            return vhost(rounds.parse().expect("rounds"), Path::new(huge), counts);
        }
        [role, format, flows, batches] if role == "rings" && format_of(format).is_some() => {
            let (flows, batches) = (flows.parse().expect("flows"), batches.parse().expect("batches"));
            return rings::batches(format_of(format).expect("a format"), flows, batches);
        }
        [role, flows, batch, batches]
            if role == "loop" || format_of(role).is_some() || back_of(role).is_some() =>
        {
            let (flows, batch) = (flows.parse().expect("flows"), batch.parse().expect("a batch"));
            let batches = batches.parse().expect("batches");
            let came = match (format_of(role), back_of(role)) {
                (Some(format), _) => closed::Closed::encapsulating(flows, batch, format).batches(batches),
                (_, Some(format)) => wire::FromWire::new(flows, format).batches(batches),
                (None, None) => closed::Closed::new(flows, batch).batches(batches),
            };
            return println!("{came} frames");
        }
        _ => {}
    }
    let rounds = arguments.first().and_then(|rounds| rounds.parse().ok()).unwrap_or(7);
    let wanted = |name: &str| arguments.get(1).is_none_or(|only| only == name);
    if wanted("table") {
        tables(rounds);
    }
    if wanted("changes") {
        changes::run();
    }
    if wanted("closed") {
        loops(rounds);
    }
    if wanted("encap") {
        encapsulated(rounds);
    }
    // Threads of their own, so that what follows is not bound to a processor.
    let only = || arguments.get(2).map(|flows| flows.parse().expect("flows"));
    if wanted("wire") {
        let only = only();
        std::thread::spawn(move || wire::run(rounds, only)).join().expect("it ends");
    }
    if wanted("rings") {
        let only = only();
        std::thread::spawn(move || rings::run(rounds, only)).join().expect("it ends");
    }
    if wanted("memory") {
        memory::run();
    }
    if wanted("vhost") {
        vhost_in_child(rounds, arguments.get(2));
    }
}

fn tables(rounds: usize) {
    for count in FLOWS {
        let table = table::Table::new(count);
        let costs: Vec<table::Cost> = (0..rounds).map(|_| table.cost()).collect();
        let middle = |of: fn(&table::Cost) -> f64| median(&costs.iter().map(of).collect::<Vec<_>>());
        let (batched, single, map) = (middle(|c| c.batched), middle(|c| c.single), middle(|c| c.map));
        println!(
            "RESULT ports lookup-{count} weir={batched:.1}ns hashbrown={map:.1}ns ratio={:.2}   # one by one {single:.1}ns",
            batched / map
        );
    }
}

fn loops(rounds: usize) {
    for count in FLOWS {
        let mut batched = closed::Closed::new(count, 32);
        let mut single = closed::Closed::new(count, 1);
        let window = Duration::from_millis(200);
        let costs: Vec<(f64, f64)> =
            (0..rounds).map(|_| (batched.window(window), single.window(window))).collect();
        let weir = median(&costs.iter().map(|cost| cost.0).collect::<Vec<_>>());
        let one = median(&costs.iter().map(|cost| cost.1).collect::<Vec<_>>());
        println!(
            "RESULT ports closed-loop-{count} weir={weir:.1}ns batch_of_1={one:.1}ns ratio={:.2}",
            weir / one
        );
    }
    if !testpmd::is_there("valgrind") {
        return println!("NOT RUN bench ports instructions: needs valgrind: scripts/install-deps");
    }
    for count in [1, 10_000] {
        let (weir, one) = (closed::instructions("loop", count, 32), closed::instructions("loop", count, 1));
        println!(
            "RESULT ports instructions-{count} weir={weir:.0}/packet batch_of_1={one:.0}/packet ratio={:.2}",
            weir / one
        );
    }
}

fn format_of(name: &str) -> Option<Encapsulation> {
    match name {
        "geneve" => Some(Encapsulation::Geneve),
        "vxlan" => Some(Encapsulation::Vxlan),
        _ => None,
    }
}

/// The format of the way back.
fn back_of(name: &str) -> Option<Encapsulation> {
    name.strip_prefix("from-").and_then(format_of)
}

/// From a guest to another switch: with what the kernel does for a message, which carries up to 64 packets.
fn encapsulated(rounds: usize) {
    for format in ["geneve", "vxlan"] {
        let of = format_of(format).expect("a format");
        for count in [1, 10_000, 1_000_000] {
            let mut batched = closed::Closed::encapsulating(count, 32, of);
            let mut single = closed::Closed::encapsulating(count, 1, of);
            let mut by_wire = wire::ToWire::new(count, 32, of);
            let mut back = wire::FromWire::new(count, of);
            let window = Duration::from_millis(200);
            let costs: Vec<[f64; 4]> = (0..rounds)
                .map(|_| {
                    let wires = [by_wire.window(window), back.window(window)];
                    [batched.window(window), single.window(window), wires[0], wires[1]]
                })
                .collect();
            let [weir, one, wire, back] =
                [0, 1, 2, 3].map(|which| median(&costs.iter().map(|cost| cost[which]).collect::<Vec<_>>()));
            println!(
                "RESULT ports to-underlay-{format}-{count} weir={weir:.1}ns batch_of_1={one:.1}ns ratio={:.2}   # the kernel's part with it; \
                 by a ring in memory {wire:.1}ns, and back {back:.1}ns",
                weir / one
            );
        }
        if testpmd::is_there("valgrind") {
            let weir = closed::instructions(format, 1, 32);
            println!(
                "RESULT ports to-underlay-{format}-1-instructions weir={weir:.0}/packet   # without the kernel's"
            );
            let back = closed::instructions(&format!("from-{format}"), 1, 32);
            println!("RESULT ports from-wire-{format}-1-instructions weir={back:.0}/packet");
        }
    }
}

/// What is compared.
struct Side {
    name: &'static str,
    rig: Rig,
    windows: Vec<(Window, f64, f64)>,
}

fn missing() -> Option<String> {
    let programs = ["dpdk-testpmd", "stdbuf", "ovs-vsctl", "ovsdb-server", VSWITCHD];
    let gone = programs.into_iter().find(|program| !testpmd::is_there(program));
    gone.map(|program| format!("needs {program}: scripts/install-deps"))
}

/// In a process of its own, so that huge pages are given back whatever becomes of it.
fn vhost_in_child(rounds: usize, only: Option<&String>) {
    if let Some(reason) = missing() {
        return println!("NOT RUN bench ports vhost: {reason}");
    }
    let huge = match HugePages::reserve(HUGE_PAGES) {
        Ok(huge) => huge,
        Err(reason) => return println!("NOT RUN bench ports vhost: {reason}"),
    };
    let mut child = std::process::Command::new(std::env::current_exe().expect("this program"));
    let _ = child.arg("vhost").arg(rounds.to_string()).arg(huge.dir.path()).args(only).status();
}

fn vhost(rounds: usize, huge: &Path, counts: &[u32]) {
    let dir = tempfile::tempdir().expect("a directory");
    let sockets =
        |name: &str| -> [PathBuf; 2] { [0, 1].map(|port| dir.path().join(format!("{name}{port}"))) };
    for &flows in counts {
        let weir = |name: &'static str, batch: usize| {
            let at = sockets(&format!("{name}-{flows}-"));
            let switch = Box::new(Weir::start(&at, flows, batch));
            Side { name, rig: Rig::new(name, huge, switch, at, flows), windows: vec![] }
        };
        let ovs = |name: &'static str, caches: &[&str]| {
            let (switch, at) = Ovs::start(huge, caches);
            Side { name, rig: Rig::new(name, huge, Box::new(switch), at, flows), windows: vec![] }
        };
        if flows > 1 {
            // Its first cache holds 8,192 flows; the second, which is off unless it is asked for, a million.
            let sides =
                vec![weir("weir", 32), ovs("ovs_dpdk", &[]), ovs("ovs_dpdk_smc", &["smc-enable=true"])];
            alternate(rounds, flows, sides);
            clear(huge);
            continue;
        }
        let at = sockets("io");
        let limit = Rig::new("limit", huge, Box::new(Io::start(huge, &at)), at, flows);
        // The one flow goes to the fastest cache at once.
        let ovs = ovs("ovs_dpdk", &["emc-insert-inv-prob=1"]);
        let limit = Side { name: "testpmd_io", rig: limit, windows: vec![] };
        alternate(rounds, flows, vec![weir("weir", 32), weir("one", 1), ovs, limit]);
        clear(huge);
    }
}

/// Removes the memory files of processes that were killed.
fn clear(huge: &Path) {
    for file in std::fs::read_dir(huge).expect("a directory").flatten() {
        let _ = std::fs::remove_file(file.path());
    }
}

/// Windows of all sides in turns, and what they show.
fn alternate(rounds: usize, flows: u32, mut sides: Vec<Side>) {
    for round in 0..rounds {
        for side in &mut sides {
            let before = probe();
            let window = side.rig.window(WINDOW);
            let after = probe();
            println!(
                "window {round} {} with {flows} flows: {:.1}ns a packet, {:.2} Mpps, {:.0} % of its processor, busy {:.0} %; \
                 between the processors {before:.0}ns ({}), then {after:.0}ns ({})",
                side.name,
                window.ns,
                window.rate,
                window.share * 100.0,
                window.busy * 100.0,
                state(before),
                state(after)
            );
            side.windows.push((window, before, after));
        }
    }
    for wanted in ["near", "far"] {
        compare(&sides, flows, wanted);
    }
}

/// Prints the medians of the windows that were in one state from end to end and had their processor.
fn compare(sides: &[Side], flows: u32, wanted: &str) {
    let of = |name: &str| -> Vec<f64> {
        let side = sides.iter().find(|side| side.name == name).expect("a side");
        let fit = |(window, before, after): &&(Window, f64, f64)| {
            [*before, *after].map(state) == [wanted; 2] && window.share >= SHARE_MIN
        };
        side.windows.iter().filter(fit).map(|(window, ..)| window.ns).collect()
    };
    let weir = of("weir");
    for peer in sides.iter().map(|side| side.name).filter(|name| *name != "weir") {
        let metric = if peer == "one" { "batching".to_string() } else { format!("vhost-{flows}") };
        let other = of(peer);
        let (ours, theirs) = (weir.len(), other.len());
        if ours.min(theirs) < WINDOWS_MIN {
            println!(
                "NOT RUN bench ports {metric}-{wanted} beside {peer}: {ours} and {theirs} windows were {wanted} from end to end \
                 and had their processor; {WINDOWS_MIN} are needed"
            );
            continue;
        }
        println!(
            "RESULT ports {metric}-{wanted} weir={:.1}ns {peer}={:.1}ns ratio={:.2}   # {ours} and {theirs} windows",
            median(&weir),
            median(&other),
            median(&weir) / median(&other)
        );
    }
}
