//! Four real processes on loopback with authenticated links between them: kill -9, SIGSTOP, a lost disk, and the end of all at once.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::node::{self, Client, HAS, OK, PUT, Place, TAKEN};

const DIR: &str = "WEIR_BFT_NODE_DIR";
const ID: &str = "WEIR_BFT_NODE_ID";
const PORT: &str = "WEIR_BFT_NODE_PORT";
const NAME: &str = "suite::process::acknowledged_writes_survive_kills_stops_a_lost_disk_and_the_end_of_all";
const PATIENCE: Duration = Duration::from_secs(120);
const REPLICAS: u32 = 4;

/// Below the ephemeral range, so that no outgoing connection takes it, and apart for processes of one machine.
fn base_port() -> u16 {
    14_000 + (std::process::id() % 60) as u16 * 100
}

struct Group {
    place: Place,
    children: Vec<Option<Child>>,
}

impl Group {
    fn spawn(&mut self, id: u32) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", NAME, "--nocapture", "--test-threads=1"]);
        command.env(DIR, &self.place.dir).env(ID, id.to_string()).env(PORT, self.place.base_port.to_string());
        command.stdout(Stdio::null());
        self.children[id as usize - 1] = Some(command.spawn().unwrap());
    }

    fn kill(&mut self, id: u32) {
        if let Some(mut child) = self.children[id as usize - 1].take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn signal(&self, id: u32, name: &str) {
        let pid = self.children[id as usize - 1].as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for child in self.children.iter_mut().flatten() {
            // Also after a failed assertion.
            let _gone = (child.kill(), child.wait());
        }
    }
}

#[derive(Default)]
struct Log {
    acked: Mutex<Vec<u64>>,
    next: AtomicU64,
    stop: AtomicBool,
}

/// Writes unique ids to one replica after the other; each takes them.
fn write(place: &Place, log: &Log, first: u32) {
    let mut target = first;
    while !log.stop.load(Ordering::Acquire) {
        if let Ok(mut client) = Client::connect(place.service(target), Duration::from_secs(2)) {
            while !log.stop.load(Ordering::Acquire) {
                let id = log.next.fetch_add(1, Ordering::Relaxed);
                match client.ask(PUT, &[&id.to_le_bytes(), &[7; 92]]) {
                    Ok((OK, _)) => log.acked.lock().unwrap().push(id),
                    _ => break,
                }
            }
        }
        target = target % place.replicas + 1;
        thread::sleep(Duration::from_millis(3));
    }
}

fn wait_for_acks(log: &Log, more: usize) {
    let (from, until) = (log.acked.lock().unwrap().len(), Instant::now() + PATIENCE);
    while log.acked.lock().unwrap().len() < from + more {
        assert!(
            Instant::now() < until,
            "the group orders nothing: {} of {more}",
            log.acked.lock().unwrap().len() - from
        );
        thread::sleep(Duration::from_millis(10));
    }
}

/// Everything acknowledged is on every replica.
fn check(place: &Place, log: &Log) {
    let (acked, until) = (log.acked.lock().unwrap().clone(), Instant::now() + PATIENCE);
    for replica in 1..=place.replicas {
        let mut missing = acked.clone();
        while !missing.is_empty() {
            assert!(Instant::now() < until, "replica {replica} lacks {} of {}", missing.len(), acked.len());
            let Ok(mut client) = Client::connect(place.service(replica), PATIENCE) else { continue };
            missing.retain(|id| !matches!(client.ask(HAS, &[&id.to_le_bytes()]), Ok((OK, 1))));
            if !missing.is_empty() {
                thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

#[test]
fn acknowledged_writes_survive_kills_stops_a_lost_disk_and_the_end_of_all() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    if let (Ok(dir), Some(id), Some(port)) = (std::env::var(DIR), number(ID), number(PORT)) {
        let place =
            Place { dir: PathBuf::from(dir), base_port: port as u16, replicas: REPLICAS, patient: true };
        node::run(&place, id);
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let place =
        Place { dir: dir.path().to_owned(), base_port: base_port(), replicas: REPLICAS, patient: true };
    let mut group = Group { place: place.clone(), children: (0..REPLICAS).map(|_| None).collect() };
    (1..=REPLICAS).for_each(|id| group.spawn(id));
    let log = Arc::new(Log::default());
    let writers: Vec<_> = (0..8)
        .map(|nth| {
            let (place, log) = (place.clone(), Arc::clone(&log));
            thread::spawn(move || write(&place, &log, nth % REPLICAS + 1))
        })
        .collect();
    wait_for_acks(&log, 100);
    group.kill(2);
    wait_for_acks(&log, 100);
    group.spawn(2);
    wait_for_acks(&log, 100);
    group.signal(3, "-STOP");
    wait_for_acks(&log, 100);
    group.signal(3, "-CONT");
    wait_for_acks(&log, 100);
    (1..=REPLICAS).for_each(|id| group.kill(id));
    (1..=REPLICAS).for_each(|id| group.spawn(id));
    wait_for_acks(&log, 100);
    // Its blocks and votes are gone: it takes everything from the others.
    group.kill(1);
    std::fs::remove_dir_all(place.disk(1)).unwrap();
    wait_for_acks(&log, 100);
    group.spawn(1);
    wait_for_acks(&log, 100);
    log.stop.store(true, Ordering::Release);
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    check(&place, &log);
    let taken = Client::connect(place.service(1), PATIENCE).unwrap().ask(TAKEN, &[]).unwrap();
    assert!(taken.1 > 0, "it has everything, but not from the others");
}
