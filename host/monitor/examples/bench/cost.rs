//! What watching costs: the watched, and the machine.

use crate::{figure, result};
use rustix::time::{ClockId, clock_gettime};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weir_monitor::engine::Engine;
use weir_monitor::kernel::Kernel;
use weir_monitor::local::{Punctuality, Settings, run as run_loop};
use weir_sensor::{Kind, SensorBox, Shape, View};

const UPDATES: u32 = 1_000_000;

fn ns_each(times: u32, mut run: impl FnMut()) -> f64 {
    let started = Instant::now();
    for _ in 0..times {
        run();
    }
    started.elapsed().as_secs_f64() * 1e9 / f64::from(times)
}

/// Updates and reads of a box, beside a read of `/proc/stat`.
fn sensors(rounds: usize) {
    let made = SensorBox::create("bench", Shape::default(), 1_000_000).unwrap();
    let counter = made.add("counter", Kind::Counter).unwrap();
    let event = made.add("event", Kind::Event).unwrap();
    let view = View::of_process("bench", made.memory()).unwrap();
    let stat = std::fs::File::open("/proc/stat").unwrap();
    let (mut count, mut record, mut read, mut pread) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut buffer = vec![0; 16 * 1024];
    for _ in 0..rounds {
        count.push(ns_each(UPDATES, || made.count(counter, 1)));
        record.push(ns_each(UPDATES, || {
            made.record(event, &[7; 40]);
        }));
        read.push(ns_each(UPDATES, || {
            std::hint::black_box(view.value(counter.slot()));
        }));
        pread.push(ns_each(10_000, || {
            std::hint::black_box(std::os::unix::fs::FileExt::read_at(&stat, &mut buffer, 0).unwrap());
        }));
    }
    figure("counter_update", "ns", &count, 100.0);
    figure("event_update", "ns", &record, 100.0);
    result("read_of_a_value", "ns", &read, "pread_proc_stat", &pread);
}

/// What a loop took: processor time of its thread, percent of a core; that of its steps alone (the rest is the kernel's, which wakes
/// it); steps and forks, each second.
struct Cost {
    percent: f64,
    in_steps: f64,
    steps: f64,
    forks: f64,
}

fn cost_of(settings: Settings) -> Cost {
    let (notes, _kept) = std::sync::mpsc::sync_channel(64);
    let text = "kind: fork-bomb\nname: host\naction: report\nwhen: { living: 512, depth: 64 }\n";
    let queries =
        weir_monitor::query::compile("on-demand a = rate(fork, 1s); on-demand b = top(5, fork.parent);");
    let kernel = Kernel::open().unwrap();
    let mut engine = Engine::new(kernel, crate::cage::policies(text), queries.unwrap(), notes).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let ended = stop.clone();
    let thread = std::thread::spawn(move || {
        weir_monitor::local::settle(&settings).unwrap();
        let started = clock_gettime(ClockId::ThreadCPUTime);
        let wall = Instant::now();
        run_loop(&mut engine, &settings, &stop, &Arc::new(Punctuality::default()), |_, _| ());
        let ended = clock_gettime(ClockId::ThreadCPUTime);
        let used = (ended.tv_sec - started.tv_sec) as f64 + (ended.tv_nsec - started.tv_nsec) as f64 / 1e9;
        let (took, totals) = (wall.elapsed().as_secs_f64(), engine.totals);
        Cost {
            percent: used / took * 100.0,
            in_steps: totals.step_ns as f64 / 1e7 / took,
            steps: totals.steps as f64 / took,
            forks: totals.tree.forks as f64 / took,
        }
    });
    std::thread::sleep(Duration::from_secs(3));
    ended.store(true, Ordering::Release);
    thread.join().unwrap()
}

/// Processor time of the loop, percent of a core: at a period that never changes, and at the pace that it has by itself (`quick_ms`).
fn loop_cost(rounds: usize, period_ms: u64, quick_ms: u64, goal: f64) {
    let ns = |ms: u64| ms * 1_000_000;
    let last = std::thread::available_parallelism().map_or(0, |cores| cores.get() - 1);
    let settings = Settings {
        lock_memory: false,
        cpu: Some(last),
        period_ns: ns(period_ms),
        quick_period_ns: ns(quick_ms),
        ..Settings::default()
    };
    let all: Vec<Cost> = (0..rounds).map(|_| cost_of(settings)).collect();
    let of = |what: fn(&Cost) -> f64| all.iter().map(what).collect::<Vec<f64>>();
    let pace = if period_ms == quick_ms { "" } else { "_and_quicker_in_trouble" };
    figure(&format!("loop_of_{period_ms}ms{pace}"), "%_of_a_core", &of(|cost| cost.percent), goal);
    let middle = |what: fn(&Cost) -> f64| crate::spread(&of(what)).1;
    println!(
        "  in its steps {:.2} % of it all; {:.0} steps and {:.0} forks each second",
        middle(|cost| cost.in_steps),
        middle(|cost| cost.steps),
        middle(|cost| cost.forks)
    );
}

/// A loop of forks, with the kernel's programs attached and without.
fn forks(rounds: usize) {
    let run = || {
        let started = Instant::now();
        let loop_ = "i=0; while [ $i -lt 2000 ]; do (:); i=$((i+1)); done";
        assert!(Command::new("sh").args(["-c", loop_]).status().unwrap().success());
        started.elapsed().as_secs_f64() * 1e6 / 2000.0
    };
    let (mut with, mut without) = (Vec::new(), Vec::new());
    run();
    for _ in 0..rounds * 2 {
        without.push(run());
        let _attached = Kernel::open().unwrap();
        with.push(run());
    }
    result("fork_exit_wait", "us", &with, "unwatched", &without);
}

pub fn run(rounds: usize) {
    sensors(rounds);
    loop_cost(rounds, 10, 10, 1.0);
    loop_cost(rounds, 10, 1, 1.0);
    // The pace of trouble, which lasts half of the time at most.
    loop_cost(rounds, 1, 1, 5.0);
    forks(rounds);
}

/// Page faults of the loop of a whole monitor, in a minute in which programs start and end and a policy reports.
pub fn faults() {
    let text = "kind: fork-bomb\nname: host\naction: report\nwhen: { forks: 20, window-ms: 1000 }\n---\n\
                kind: memory-hog\nname: memory\nwhen: { available-bytes: 1 }\n";
    let running = crate::bombs::monitor(text, false);
    crate::cage::until("its first steps", || running.monitor.status().steps > 10);
    let before = running.monitor.status();
    let until = Instant::now() + Duration::from_secs(60);
    while Instant::now() < until {
        assert!(Command::new("true").status().unwrap().success());
        std::thread::sleep(Duration::from_millis(20));
    }
    let after = running.monitor.status();
    let of = |status: &weir_monitor::status::Status| (status.faults_minor + status.faults_major) as f64;
    figure("page_faults_of_the_loop_in_a_minute", "", &[of(&after) - of(&before)], 0.0);
    println!(
        "  {} steps, {} alarms; from its start on {} minor and {} major faults",
        after.steps - before.steps,
        after.alarms - before.alarms,
        after.faults_minor,
        after.faults_major
    );
}
