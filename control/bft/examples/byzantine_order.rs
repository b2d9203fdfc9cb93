//! Measures a group of four processes (or as many as `WEIR_BFT_MEMBERS` says) on loopback, with authenticated, encrypted links between them and every write synced: throughput,
//! latency and CPU by the number of callers and the size of an operation, with the journals on disk and in memory; and how long
//! writes stand still after kill -9 of a replica.
//!
//!   cargo run --release -p weir-bft --example byzantine_order -- bench [tmpfs]
//!   cargo run --release -p weir-bft --example byzantine_order -- failover 5
//!
//! The clients are spread over the replicas, as every replica takes operations, over one connection for at most 16 callers each.

#![allow(missing_docs, dead_code, clippy::unwrap_used, clippy::expect_used)]

#[path = "../tests/suite/node.rs"]
mod node;

use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use node::{Client, OK, PUT, Place};

const PATIENCE: Duration = Duration::from_secs(30);
const CALLERS_OF_A_CONNECTION: usize = 16;
const WINDOW: Duration = Duration::from_secs(2);
const ROUNDS: usize = 3;
/// Members, unless `WEIR_BFT_MEMBERS` says how many.
const REPLICAS: u32 = 4;

fn replicas() -> u32 {
    std::env::var("WEIR_BFT_MEMBERS").map_or(REPLICAS, |count| count.parse().unwrap())
}

struct Group {
    place: Place,
    children: Vec<Option<Child>>,
    _dir: tempfile::TempDir,
}

impl Group {
    fn found(in_memory: bool) -> Group {
        let parent = if in_memory { PathBuf::from("/dev/shm") } else { std::env::current_dir().unwrap() };
        let dir = tempfile::tempdir_in(parent).unwrap();
        let base_port = 20_000 + (std::process::id() % 10) as u16 * 100;
        let place = Place { dir: dir.path().to_owned(), base_port, replicas: replicas(), patient: false };
        let mut group = Group { place, children: (0..replicas()).map(|_| None).collect(), _dir: dir };
        (1..=replicas()).for_each(|id| group.spawn(id));
        let until = Instant::now() + PATIENCE;
        for id in 1..=replicas() {
            let first = || {
                Client::connect(group.place.service(id), PATIENCE)
                    .and_then(|mut client| client.ask(PUT, &[&u64::from(id).to_le_bytes()]))
            };
            while !matches!(first(), Ok((OK, _))) {
                assert!(Instant::now() < until, "the group orders nothing");
                thread::sleep(Duration::from_millis(20));
            }
        }
        group
    }

    fn spawn(&mut self, id: u32) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let place = &self.place;
        command.arg("node").arg(&place.dir).arg(place.base_port.to_string()).arg(id.to_string());
        self.children[id as usize - 1] = Some(command.spawn().unwrap());
    }

    fn kill(&mut self, id: u32) {
        let mut child = self.children[id as usize - 1].take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// The largest resident memory of a replica, now.
    fn memory_mb(&self) -> f64 {
        let of = |pid: u32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap().to_owned();
            line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
        };
        self.children.iter().flatten().map(|child| of(child.id())).fold(0.0, f64::max)
    }

    /// CPU time of all replicas so far.
    fn cpu(&self) -> Duration {
        let pids = self.children.iter().flatten().map(Child::id);
        pids.map(|pid| cpu_of(&format!("/proc/{pid}/stat"))).sum()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for child in self.children.iter_mut().flatten() {
            let _gone = (child.kill(), child.wait());
        }
    }
}

fn cpu_of(path: &str) -> Duration {
    let stat = std::fs::read_to_string(path).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

/// One connection with `callers` operations on their way at any time.
fn call(place: &Place, replica: u32, callers: usize, bytes: usize, until: Instant) -> Vec<Duration> {
    static NEXT: AtomicU64 = AtomicU64::new(100);
    let mut client = Client::connect(place.service(replica), PATIENCE).unwrap();
    let mut sent = std::collections::HashMap::new();
    let mut latencies = Vec::new();
    let rest = vec![7; bytes - 8];
    let put = |client: &mut Client| {
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        client.send(PUT, &[&id.to_le_bytes(), &rest]).unwrap()
    };
    for _ in 0..callers {
        sent.insert(put(&mut client), Instant::now());
    }
    while !sent.is_empty() {
        let (tag, status, _) = client.receive().unwrap();
        assert_eq!(status, OK, "an operation failed during the measurement");
        latencies.push(sent.remove(&tag).unwrap().elapsed());
        if Instant::now() < until {
            sent.insert(put(&mut client), Instant::now());
        }
    }
    latencies
}

fn measure(group: &Group, callers: usize, bytes: usize, window: Duration) -> (f64, Vec<Duration>, f64) {
    let connections = callers.div_ceil(CALLERS_OF_A_CONNECTION);
    let (start, cpu) = (Instant::now(), group.cpu());
    let until = start + window;
    let threads: Vec<_> = (0..connections)
        .map(|nth| {
            let place = group.place.clone();
            let replica = nth as u32 % replicas() + 1;
            thread::spawn(move || call(&place, replica, callers / connections, bytes, until))
        })
        .collect();
    let mut latencies: Vec<Duration> =
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    latencies.sort();
    let count = latencies.len() as f64;
    let cpu_us = (group.cpu() - cpu).as_secs_f64() * 1e6 / count;
    (count / start.elapsed().as_secs_f64(), latencies, cpu_us)
}

fn bench(in_memory: bool) {
    let group = Group::found(in_memory);
    let journal = if in_memory { "tmpfs" } else { "disk" };
    measure(&group, 16, 100, Duration::from_millis(500));
    for callers in [1, 16, 256] {
        for bytes in [100, 1400] {
            let mut rounds: Vec<_> = (0..ROUNDS).map(|_| measure(&group, callers, bytes, WINDOW)).collect();
            rounds.sort_by(|a, b| a.0.total_cmp(&b.0));
            let (rate, latencies, cpu_us) = &rounds[ROUNDS / 2];
            let at = |percent: usize| latencies[(latencies.len() - 1) * percent / 100].as_secs_f64() * 1e3;
            println!(
                "RESULT bft journal={journal} callers={callers} bytes={bytes} rate={rate:.0}ops/s p50={:.2}ms p99={:.2}ms \
                 servers={cpu_us:.1}us/op",
                at(50),
                at(99)
            );
        }
    }
    println!("RESULT bft journal={journal} memory of a replica={:.0}MB", group.memory_mb());
    let (start, cpu) = (Instant::now(), group.cpu());
    thread::sleep(WINDOW);
    let idle = (group.cpu() - cpu).as_secs_f64() / start.elapsed().as_secs_f64() * 100.0;
    println!("RESULT bft journal={journal} idle servers={idle:.1}% of a core");
}

#[derive(Default)]
struct Log {
    acked: Mutex<Vec<Instant>>,
    next: AtomicU64,
    stop: AtomicBool,
}

fn write(place: &Place, log: &Log, replica: u32) {
    let mut client = Client::connect(place.service(replica), PATIENCE).unwrap();
    while !log.stop.load(Ordering::Acquire) {
        let id = log.next.fetch_add(1, Ordering::Relaxed);
        if matches!(client.ask(PUT, &[&id.to_le_bytes(), &[7; 92]]), Ok((OK, _))) {
            log.acked.lock().unwrap().push(Instant::now());
        }
    }
}

/// The longest time without an answer on the three others after one replica was killed.
fn failover(rounds: u32) {
    let mut group = Group::found(false);
    let mut gaps = Vec::new();
    for round in 0..rounds {
        let victim = round % replicas() + 1;
        let log = Arc::new(Log::default());
        log.next.store(1 + u64::from(round + 1) * 10_000_000, Ordering::Relaxed);
        let writers: Vec<_> = (0..16)
            .map(|nth| {
                let (place, log) = (group.place.clone(), Arc::clone(&log));
                let replica = (victim + nth % (replicas() - 1)) % replicas() + 1;
                thread::spawn(move || write(&place, &log, replica))
            })
            .collect();
        thread::sleep(Duration::from_secs(1));
        let killed = Instant::now();
        group.kill(victim);
        thread::sleep(Duration::from_secs(2));
        log.stop.store(true, Ordering::Release);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        let mut acked: Vec<Instant> = log.acked.lock().unwrap().clone();
        acked.sort();
        let after: Vec<Instant> = acked.into_iter().filter(|at| *at >= killed).collect();
        let gap = std::iter::once(killed).chain(after.iter().copied()).zip(&after);
        let longest = gap.map(|(before, at)| at.duration_since(before)).max().expect("writes go on");
        println!("RESULT bft failover longest={}ms", longest.as_millis());
        gaps.push(longest);
        group.spawn(victim);
        thread::sleep(Duration::from_secs(2));
    }
    gaps.sort();
    println!("RESULT bft failover median={}ms", gaps[gaps.len() / 2].as_millis());
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["node", dir, port, id] => {
            let dir = PathBuf::from(dir);
            let place = Place { dir, base_port: port.parse().unwrap(), replicas: replicas(), patient: false };
            node::run(&place, id.parse().unwrap());
        }
        ["bench"] => bench(false),
        ["bench", "tmpfs"] => bench(true),
        ["failover", rounds] => failover(rounds.parse().unwrap()),
        _ => eprintln!("use: byzantine_order bench [tmpfs] | byzantine_order failover <rounds>"),
    }
}
