//! Measures a group of three processes on loopback, with TLS between them and every write synced: throughput, latency and
//! CPU by the number of callers, and how long writes stand still after kill -9 of the leader.
//!
//!   cargo run --release -p weir-raft --example raft_order -- bench
//!   cargo run --release -p weir-raft --example raft_order -- failover 5
//!
//! The clients go straight to the leader, over one connection for at most 16 callers each; operations have 100 bytes.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

#[path = "../tests/suite/node.rs"]
mod node;

use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use node::{Client, FOUND, HAS, OK, PUT, Place};

const PATIENCE: Duration = Duration::from_secs(30);
const CONNECTIONS_MAX: usize = 16;
const WINDOW: Duration = Duration::from_secs(2);

struct Group {
    place: Place,
    children: Vec<Option<Child>>,
    _dir: tempfile::TempDir,
}

impl Group {
    fn found() -> Group {
        let dir = tempfile::tempdir_in(std::env::current_dir().unwrap()).unwrap();
        let base_port = 29_000 + (std::process::id() % 20) as u16 * 100;
        let place = Place { dir: dir.path().to_owned(), base_port, replicas: 3 };
        place.make_identities();
        let mut group = Group { place, children: (0..3).map(|_| None).collect(), _dir: dir };
        (1..=3).for_each(|id| group.spawn(id));
        let until = Instant::now() + PATIENCE;
        let found = || {
            Client::connect(group.place.service(1), PATIENCE).and_then(|mut client| client.ask(FOUND, &[]))
        };
        while !matches!(found(), Ok((OK, _))) {
            assert!(Instant::now() < until, "the group cannot be founded");
            thread::sleep(Duration::from_millis(20));
        }
        group
    }

    fn spawn(&mut self, id: u64) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let place = &self.place;
        command.arg("node").arg(&place.dir).arg(place.base_port.to_string()).arg(id.to_string());
        self.children[id as usize - 1] = Some(command.spawn().unwrap());
    }

    fn kill(&mut self, id: u64) {
        let mut child = self.children[id as usize - 1].take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn leader(&self) -> u64 {
        node::wait_for_leader(&self.place, &[], PATIENCE).expect("somebody leads")
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
fn call(place: &Place, leader: u64, callers: usize, until: Instant) -> Vec<Duration> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let mut client = Client::connect(place.service(leader), PATIENCE).unwrap();
    let mut sent = std::collections::HashMap::new();
    let mut latencies = Vec::new();
    let put = |client: &mut Client| {
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        client.send(PUT, &[&id.to_le_bytes(), &[7; 92]]).unwrap()
    };
    for _ in 0..callers {
        sent.insert(put(&mut client), Instant::now());
    }
    while !sent.is_empty() {
        let (tag, status, _) = client.receive().unwrap();
        assert_eq!(status, OK, "the leader was lost during the measurement: measure again");
        latencies.push(sent.remove(&tag).unwrap().elapsed());
        if Instant::now() < until {
            sent.insert(put(&mut client), Instant::now());
        }
    }
    latencies
}

fn measure(group: &Group, callers: usize, window: Duration) -> (f64, Vec<Duration>, f64) {
    let leader = group.leader();
    let connections = callers.min(CONNECTIONS_MAX);
    let (start, cpu) = (Instant::now(), group.cpu());
    let until = start + window;
    let threads: Vec<_> = (0..connections)
        .map(|_| {
            let place = group.place.clone();
            thread::spawn(move || call(&place, leader, callers / connections, until))
        })
        .collect();
    let mut latencies: Vec<Duration> =
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    latencies.sort();
    let count = latencies.len() as f64;
    let cpu_us = (group.cpu() - cpu).as_secs_f64() * 1e6 / count;
    (count / start.elapsed().as_secs_f64(), latencies, cpu_us)
}

fn bench() {
    let group = Group::found();
    measure(&group, 16, Duration::from_millis(500));
    for callers in [1, 16, 256] {
        let mut rounds: Vec<_> = (0..3).map(|_| measure(&group, callers, WINDOW)).collect();
        rounds.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (rate, latencies, cpu_us) = &rounds[1];
        let at = |percent: usize| latencies[(latencies.len() - 1) * percent / 100].as_secs_f64() * 1e3;
        println!(
            "callers {callers:>4}  {rate:>8.0} ops/s  p50 {:>6.2} ms  p99 {:>6.2} ms  servers {cpu_us:>6.1} us CPU/op",
            at(50),
            at(99)
        );
    }
}

#[derive(Default)]
struct Log {
    acked: Mutex<Vec<(u64, Instant)>>,
    next: AtomicU64,
    stop: AtomicBool,
}

fn write(place: &Place, log: &Log) {
    let mut target = 1;
    while !log.stop.load(Ordering::Acquire) {
        let connected = Client::connect(place.service(target), Duration::from_millis(320));
        if let Ok(mut client) = connected {
            while !log.stop.load(Ordering::Acquire) {
                let id = log.next.fetch_add(1, Ordering::Relaxed);
                match client.ask(PUT, &[&id.to_le_bytes(), &[7; 92]]) {
                    Ok((OK, _)) => log.acked.lock().unwrap().push((id, Instant::now())),
                    _ => break,
                }
            }
        }
        target = target % place.replicas + 1;
        thread::sleep(Duration::from_millis(3));
    }
}

fn failover(rounds: usize) {
    let mut group = Group::found();
    let mut gaps = Vec::new();
    for _ in 0..rounds {
        group.leader();
        let log = Arc::new(Log::default());
        log.next.store(1 + gaps.len() as u64 * 10_000_000, Ordering::Relaxed);
        let place = group.place.clone();
        let writers: Vec<_> = (0..16)
            .map(|_| {
                let (place, log) = (place.clone(), Arc::clone(&log));
                thread::spawn(move || write(&place, &log))
            })
            .collect();
        thread::sleep(Duration::from_secs(1));
        let leader = group.leader();
        let killed = Instant::now();
        group.kill(leader);
        thread::sleep(Duration::from_secs(2));
        log.stop.store(true, Ordering::Release);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        let acked = log.acked.lock().unwrap().clone();
        let after =
            acked.iter().map(|(_, at)| *at).filter(|at| *at > killed + Duration::from_millis(20)).min();
        gaps.push(after.expect("writes go on").duration_since(killed));
        let mut client = Client::connect(place.service(group.leader()), PATIENCE).unwrap();
        let lost =
            acked.iter().filter(|(id, _)| client.ask(HAS, &[&id.to_le_bytes()]).unwrap() != (OK, 1)).count();
        println!(
            "fail-over {:>4} ms, lost {lost} of {} acknowledged",
            gaps[gaps.len() - 1].as_millis(),
            acked.len()
        );
        group.spawn(leader);
        thread::sleep(Duration::from_millis(500));
    }
    gaps.sort();
    println!(
        "median {} ms, longest {} ms",
        gaps[gaps.len() / 2].as_millis(),
        gaps[gaps.len() - 1].as_millis()
    );
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["node", dir, port, id] => {
            let place = Place { dir: PathBuf::from(dir), base_port: port.parse().unwrap(), replicas: 3 };
            node::run(&place, id.parse().unwrap());
        }
        ["bench"] => bench(),
        ["failover", rounds] => failover(rounds.parse().unwrap()),
        _ => eprintln!("use: raft_order bench | raft_order failover <rounds>"),
    }
}
