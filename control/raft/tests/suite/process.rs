//! Three real processes on loopback with TLS between them: kill -9, SIGSTOP, and the end of all at once.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::node::{self, Client, FOUND, HAS, OK, PUT, Place};

const DIR: &str = "WEIR_RAFT_NODE_DIR";
const ID: &str = "WEIR_RAFT_NODE_ID";
const PORT: &str = "WEIR_RAFT_NODE_PORT";
const NAME: &str = "suite::process::acknowledged_writes_survive_kills_stops_and_the_end_of_all";
const PATIENCE: Duration = Duration::from_secs(60);

/// Below the ephemeral range, so that no outgoing connection takes it, and apart for the groups of this process and of others.
fn base_port(nth: u16) -> u16 {
    21_000 + (std::process::id() % 80) as u16 * 100 + nth * 10
}

struct Group {
    place: Place,
    children: Vec<Option<Child>>,
}

impl Group {
    /// Three replicas of a new group, with a leader.
    fn found(nth: u16) -> (Group, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let place = Place { dir: dir.path().to_owned(), base_port: base_port(nth), replicas: 3 };
        place.make_identities();
        let mut group = Group { place: place.clone(), children: (0..3).map(|_| None).collect() };
        (1..=3).for_each(|id| group.spawn(id));
        let until = Instant::now() + PATIENCE;
        while !matches!(
            Client::connect(place.service(1), PATIENCE).and_then(|mut client| client.ask(FOUND, &[])),
            Ok((OK, _))
        ) {
            assert!(Instant::now() < until, "the group cannot be founded");
            thread::sleep(Duration::from_millis(20));
        }
        group.leader(&[]);
        (group, dir)
    }

    /// How many descriptors a replica has open.
    fn descriptors(&self, id: u64) -> usize {
        let pid = self.children[id as usize - 1].as_ref().unwrap().id();
        std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
    }

    fn spawn(&mut self, id: u64) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", NAME, "--nocapture", "--test-threads=1"]);
        command.env(DIR, &self.place.dir).env(ID, id.to_string()).env(PORT, self.place.base_port.to_string());
        command.stdout(Stdio::null());
        self.children[id as usize - 1] = Some(command.spawn().unwrap());
    }

    fn kill(&mut self, id: u64) {
        if let Some(mut child) = self.children[id as usize - 1].take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn signal(&self, id: u64, name: &str) {
        let pid = self.children[id as usize - 1].as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    fn leader(&self, skip: &[u64]) -> u64 {
        node::wait_for_leader(&self.place, skip, PATIENCE).expect("somebody leads")
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

/// Writes unique ids to whoever takes them.
fn write(place: &Place, log: &Log) {
    let mut target = 1;
    while !log.stop.load(Ordering::Acquire) {
        let Ok(mut client) = Client::connect(place.service(target), Duration::from_millis(300)) else {
            target = target % place.replicas + 1;
            thread::sleep(Duration::from_millis(3));
            continue;
        };
        while !log.stop.load(Ordering::Acquire) {
            let id = log.next.fetch_add(1, Ordering::Relaxed);
            match client.ask(PUT, &[&id.to_le_bytes(), &[7; 92]]) {
                Ok((OK, _)) => log.acked.lock().unwrap().push(id),
                other => {
                    let named = other.ok().map_or(0, |(_, leader)| leader);
                    target = if named > 0 { named } else { target % place.replicas + 1 };
                    thread::sleep(Duration::from_millis(3));
                    break;
                }
            }
        }
    }
}

fn wait_for_acks(log: &Log, more: usize) {
    let (from, until) = (log.acked.lock().unwrap().len(), Instant::now() + PATIENCE);
    while log.acked.lock().unwrap().len() < from + more {
        assert!(Instant::now() < until, "no {more} acknowledgements more");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Every acknowledged write is seen behind a barrier.
fn check(group: &Group, log: &Log) {
    let acked = log.acked.lock().unwrap().clone();
    let until = Instant::now() + PATIENCE;
    'again: loop {
        assert!(Instant::now() < until, "the group cannot be read");
        let leader = group.leader(&[]);
        let Ok(mut client) = Client::connect(group.place.service(leader), Duration::from_secs(5)) else {
            continue;
        };
        for id in &acked {
            match client.ask(HAS, &[&id.to_le_bytes()]) {
                Ok((OK, there)) => assert_eq!(there, 1, "{id} was acknowledged and is lost"),
                _ => continue 'again,
            }
        }
        return;
    }
}

#[test]
fn acknowledged_writes_survive_kills_stops_and_the_end_of_all() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let (Ok(dir), Some(id), Some(port)) = (std::env::var(DIR), number(ID), number(PORT)) {
        let place = Place { dir: PathBuf::from(dir), base_port: port as u16, replicas: 3 };
        node::run(&place, id);
        return;
    }
    let (mut group, _dir) = Group::found(0);
    let place = group.place.clone();
    let log = Arc::new(Log::default());
    let writers: Vec<_> = (0..8)
        .map(|_| {
            let (place, log) = (place.clone(), Arc::clone(&log));
            thread::spawn(move || write(&place, &log))
        })
        .collect();
    wait_for_acks(&log, 200);
    for round in 0..2 {
        let leader = group.leader(&[]);
        group.kill(leader);
        wait_for_acks(&log, 200);
        group.spawn(leader);
        wait_for_acks(&log, 200);
        let leader = group.leader(&[]);
        group.signal(leader, "-STOP");
        wait_for_acks(&log, 200);
        group.signal(leader, "-CONT");
        wait_for_acks(&log, 200);
        if round == 0 {
            (1..=3).for_each(|id| group.kill(id));
            (1..=3).for_each(|id| group.spawn(id));
            wait_for_acks(&log, 200);
        }
    }
    log.stop.store(true, Ordering::Release);
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    check(&group, &log);
}

/// Connections to each listener that strangers hold.
const STRANGERS: usize = 200;
/// Descriptors that a replica has at most: twice the places of strangers (a displaced one may take a moment to end), links, the service, and files.
const DESCRIPTORS_MAX: usize = 2 * 64 + 100;

/// Holds connections that say nothing, and opens those again that end, until it is told to stop.
fn hold_silent(peers: &[std::net::SocketAddr], opened: &AtomicU64, stop: &AtomicBool) {
    let mut held: Vec<Vec<std::net::TcpStream>> = peers.iter().map(|_| Vec::new()).collect();
    while !stop.load(Ordering::Acquire) {
        for (peer, held) in peers.iter().zip(&mut held) {
            let is_open = |stream: &std::net::TcpStream| matches!(stream.peek(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock);
            held.retain(is_open);
            for _ in 0..10.min(STRANGERS - held.len()) {
                let Ok(stream) = std::net::TcpStream::connect_timeout(peer, Duration::from_millis(300))
                else {
                    break;
                };
                stream.set_nonblocking(true).unwrap();
                opened.fetch_add(1, Ordering::Relaxed);
                held.push(stream);
            }
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Strangers that say nothing come to every listener all the time, from the members' own address.
#[test]
fn members_find_each_other_beside_silent_strangers_and_descriptors_are_bounded() {
    let (mut group, _dir) = Group::found(1);
    let place = group.place.clone();
    let (log, opened) = (Arc::new(Log::default()), Arc::new(AtomicU64::new(0)));
    let peers: Vec<_> = (1..=3).map(|id| place.peer(id)).collect();
    let strangers = {
        let (log, opened) = (Arc::clone(&log), Arc::clone(&opened));
        thread::spawn(move || hold_silent(&peers, &opened, &log.stop))
    };
    let until = Instant::now() + PATIENCE;
    while opened.load(Ordering::Relaxed) < 9 * STRANGERS as u64 {
        assert!(Instant::now() < until, "too few strangers come in");
        thread::sleep(Duration::from_millis(20));
    }
    let writer = {
        let (place, log) = (place.clone(), Arc::clone(&log));
        thread::spawn(move || write(&place, &log))
    };
    wait_for_acks(&log, 50);
    for id in 1..=3 {
        let other = id % 3 + 1;
        group.kill(id);
        wait_for_acks(&log, 20);
        group.spawn(id);
        // Without the other one, nothing is acknowledged before it has found the third.
        group.kill(other);
        wait_for_acks(&log, 20);
        group.spawn(other);
        wait_for_acks(&log, 20);
        for id in 1..=3 {
            let open = group.descriptors(id);
            assert!(open <= DESCRIPTORS_MAX, "replica {id} has {open} descriptors open");
        }
    }
    log.stop.store(true, Ordering::Release);
    writer.join().unwrap();
    strangers.join().unwrap();
    check(&group, &log);
}
