//! Four real processes on loopback with authenticated links between them: kill -9, SIGSTOP, a lost disk, the end of all at once, and one
//! that lies.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use commonware_runtime::{Runner as _, Supervisor as _, tokio};
use weir_bft::driver::link_founder;
use weir_bft::{Settings, Timers};

use super::node::{self, CLOCK, CONVICTED, Client, GROUP, HAS, OK, PUT, Place, TAKEN, WHERE, identity};
use super::strangers::{EACH, Strangers};
use super::traitor::{Betrayal, Kind, betray};

const DIR: &str = "WEIR_BFT_NODE_DIR";
const ID: &str = "WEIR_BFT_NODE_ID";
const PORT: &str = "WEIR_BFT_NODE_PORT";
const NAME: &str = "suite::process::acknowledged_writes_survive_kills_stops_a_lost_disk_and_the_end_of_all";
const LIES: &str = "WEIR_BFT_NODE_LIES";
const PATIENCE: Duration = Duration::from_secs(120);
const REPLICAS: u32 = 4;

/// Moves the wall clock of a member by what the file `clock-ID` says; the monotonic clock is true.
fn faketime() -> String {
    format!("/usr/lib/{}-linux-gnu/faketime/libfaketimeMT.so.1", std::env::consts::ARCH)
}

/// Below the ephemeral range, so that no outgoing connection takes it, and apart for the groups of this process and of others.
fn base_port(nth: u16) -> u16 {
    14_000 + (std::process::id() % 15) as u16 * 400 + nth * 100
}

struct Group {
    place: Place,
    children: Vec<Option<Child>>,
}

impl Group {
    fn found(nth: u16) -> (Group, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let place = Place {
            dir: dir.path().to_owned(),
            base_port: base_port(nth),
            replicas: REPLICAS,
            patient: true,
        };
        (Group { place, children: (0..REPLICAS).map(|_| None).collect() }, dir)
    }

    fn spawn(&mut self, id: u32) {
        self.spawn_as(id, None);
    }

    fn spawn_as(&mut self, id: u32, lies: Option<usize>) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let clock = self.place.dir.join(format!("clock-{id}"));
        if clock.exists() {
            command.env("LD_PRELOAD", faketime()).env("FAKETIME_TIMESTAMP_FILE", clock);
            command
                .env("FAKETIME_CACHE_DURATION", "1")
                .env("FAKETIME_DONT_RESET", "1")
                .env("DONT_FAKE_MONOTONIC", "1");
        }
        if let Some(kind) = lies {
            command.env(LIES, kind.to_string());
        }
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

impl Group {
    /// How many descriptors a replica has open.
    fn descriptors(&self, id: u32) -> usize {
        let pid = self.children[id as usize - 1].as_ref().unwrap().id();
        std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
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
        match number(LIES) {
            Some(kind) => lie(&place, id, LIARS[kind as usize]),
            None => node::run(&place, id),
        }
        return;
    }
    let (mut group, _dir) = Group::found(0);
    let place = group.place.clone();
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

/// What the lying process does, one after the other. Whoever votes wrongly is cut off by the others as long as they run, so that comes last.
const LIARS: [Kind; 5] = [Kind::LiesInTransfer, Kind::Floods, Kind::Repeats, Kind::Forges, Kind::Equivocates];

/// Is the founder `id`, with its key and its links, and no replica.
fn lie(place: &Place, id: u32, kind: Kind) {
    let (founders, places) = node::members(place, id);
    let storage = places.votes.join("none");
    let settings = Settings { timers: Timers::WAN, ..Settings::new(GROUP) };
    let runtime = tokio::Config::new().with_worker_threads(1).with_storage_directory(storage);
    tokio::Runner::new(runtime).start(|context| async move {
        let me = identity(id);
        let linked = link_founder(&context, &settings, &me, &founders, places).unwrap();
        let betrayal = Betrayal { group: GROUP.to_owned(), me, founders, kind, seed: 7 };
        betray(context.child("traitor"), betrayal, linked.channels).await;
    });
}

/// The last member is a program that lies, over real links: the others order on, in one order, and have no false word against each other.
#[test]
fn one_process_of_four_lies() {
    let (mut group, _dir) = Group::found(1);
    let (place, honest) = (group.place.clone(), 1..REPLICAS);
    honest.clone().for_each(|id| group.spawn(id));
    let log = Arc::new(Log::default());
    let honest_place = Place { replicas: REPLICAS - 1, ..place.clone() };
    let writers: Vec<_> = (0..6)
        .map(|nth| {
            let (place, log) = (honest_place.clone(), Arc::clone(&log));
            thread::spawn(move || write(&place, &log, nth % (REPLICAS - 1) + 1))
        })
        .collect();
    wait_for_acks(&log, 20);
    for (nth, kind) in LIARS.into_iter().enumerate() {
        let in_transfer = kind == Kind::LiesInTransfer;
        if in_transfer {
            // As long as it is honest one of the others may miss something.
            group.spawn(REPLICAS);
            wait_until_at_the_end(&place, REPLICAS);
            group.kill(1);
            wait_for_acks(&log, 60);
            group.kill(REPLICAS);
        }
        group.spawn_as(REPLICAS, Some(nth));
        if in_transfer {
            group.spawn(1);
            wait_until_at_the_end(&place, 1);
        }
        wait_for_acks(&log, 60);
        if kind == Kind::Equivocates {
            wait_for_conviction(&place);
        }
        group.kill(REPLICAS);
    }
    log.stop.store(true, Ordering::Release);
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    check(&honest_place, &log);
    for id in honest {
        let bits = ask(&place, id, CONVICTED);
        assert!(bits & !(1 << REPLICAS) == 0, "replica {id} has votes against honest ones: {bits:b}");
    }
}

fn ask(place: &Place, id: u32, kind: u8) -> u64 {
    let until = Instant::now() + PATIENCE;
    loop {
        let answer =
            Client::connect(place.service(id), PATIENCE).and_then(|mut client| client.ask(kind, &[]));
        if let Ok((OK, number)) = answer {
            return number;
        }
        assert!(Instant::now() < until, "replica {id} does not answer");
        thread::sleep(Duration::from_millis(50));
    }
}

fn wait_for_conviction(place: &Place) {
    let until = Instant::now() + PATIENCE;
    while (1..REPLICAS).all(|id| ask(place, id, CONVICTED) == 0) {
        assert!(Instant::now() < until, "nobody convicts the member that votes for two blocks of a view");
        thread::sleep(Duration::from_millis(50));
    }
}

/// How far clocks are off, hours.
const OFFSETS_H: [i64; 6] = [0, -87_600, 1, 87_600, -1, 0];

/// By how much a member's clock is off; its file is read once a second.
fn set_clock(place: &Place, id: u32, offset_h: i64) {
    let aside = place.dir.join("clock-new");
    std::fs::write(&aside, format!("{offset_h:+}h\n")).unwrap();
    std::fs::rename(aside, place.dir.join(format!("clock-{id}"))).unwrap();
}

/// Waits until a member's clock is wrong as it should be.
fn wait_for_clock(place: &Place, id: u32, offset_h: i64) {
    let until = Instant::now() + PATIENCE;
    loop {
        let (told_s, true_s) = (ask(place, id, CLOCK), SystemTime::now().duration_since(UNIX_EPOCH).unwrap());
        let off_s = told_s as i64 - true_s.as_secs() as i64;
        if (off_s - offset_h * 3_600).abs() < 60 {
            return;
        }
        assert!(Instant::now() < until, "the clock of {id} is {off_s} s off, and should be {offset_h} hours");
        thread::sleep(Duration::from_millis(100));
    }
}

/// Members whose clocks are years and hours off, each another way, that jump and step back, and that come back with a wrong clock: the group
/// orders on, and everybody has all of it.
#[test]
fn members_whose_clocks_are_wrong_order_on() {
    if !std::path::Path::new(&faketime()).exists() {
        let name = "members_whose_clocks_are_wrong_order_on";
        return println!("NOT RUN {name}: {} is missing (Debian's package faketime)", faketime());
    }
    let (mut group, _dir) = Group::found(3);
    let place = group.place.clone();
    (1..=REPLICAS).for_each(|id| set_clock(&place, id, OFFSETS_H[id as usize]));
    (1..=REPLICAS).for_each(|id| group.spawn(id));
    let log = Arc::new(Log::default());
    let writers: Vec<_> = (0..4)
        .map(|nth| {
            let (place, log) = (place.clone(), Arc::clone(&log));
            thread::spawn(move || write(&place, &log, nth % REPLICAS + 1))
        })
        .collect();
    wait_for_acks(&log, 40);
    for round in 0..OFFSETS_H.len() {
        let offset_h = |id: u32| OFFSETS_H[(round + id as usize) % OFFSETS_H.len()];
        (1..=REPLICAS).for_each(|id| set_clock(&place, id, offset_h(id)));
        (1..=REPLICAS).for_each(|id| wait_for_clock(&place, id, offset_h(id)));
        wait_for_acks(&log, 20);
        // One comes back, by the clock that it has now, and is needed at once.
        let (again, away) = (round as u32 % REPLICAS + 1, (round as u32 + 1) % REPLICAS + 1);
        group.kill(again);
        wait_for_acks(&log, 10);
        group.spawn(again);
        group.kill(away);
        wait_for_acks(&log, 10);
        group.spawn(away);
    }
    log.stop.store(true, Ordering::Release);
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    check(&place, &log);
}

/// Waits until a replica has what another had.
fn wait_until_at_the_end(place: &Place, id: u32) {
    let (end, until) = (ask(place, 2, WHERE), Instant::now() + PATIENCE);
    while ask(place, id, WHERE) < end {
        assert!(Instant::now() < until, "replica {id} does not catch up");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Descriptors that a member has at most: handshakes under way (512), links, the service, and files.
const DESCRIPTORS_MAX: usize = 512 + 150;

/// Strangers come to two listeners of four, silent ones and such that say what is no handshake: members find each other all the same, and the
/// descriptors are bounded.
#[test]
fn members_find_each_other_beside_strangers_and_descriptors_are_bounded() {
    let (mut group, _dir) = Group::found(2);
    let place = group.place.clone();
    (1..=REPLICAS).for_each(|id| group.spawn(id));
    let log = Arc::new(Log::default());
    let writer = {
        let (place, log) = (place.clone(), Arc::clone(&log));
        thread::spawn(move || write(&place, &log, 1))
    };
    wait_for_acks(&log, 20);
    let strangers = Strangers::begin(vec![place.peer(1), place.peer(2)]);
    let until = Instant::now() + PATIENCE;
    while strangers.opened() < 4 * EACH as u64 {
        assert!(Instant::now() < until, "too few strangers come in");
        thread::sleep(Duration::from_millis(50));
    }
    // One of the two comes back, and then it is needed for every quorum.
    for (again, away) in [(1, 3), (2, 4)] {
        group.kill(again);
        wait_for_acks(&log, 20);
        group.spawn(again);
        group.kill(away);
        wait_for_acks(&log, 20);
        group.spawn(away);
        wait_for_acks(&log, 20);
        for id in 1..=REPLICAS {
            let open = group.descriptors(id);
            assert!(open <= DESCRIPTORS_MAX, "replica {id} has {open} descriptors open");
        }
    }
    drop(strangers);
    log.stop.store(true, Ordering::Release);
    writer.join().unwrap();
    check(&place, &log);
}
