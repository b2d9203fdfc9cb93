//! An application whose counter stands still.

use crate::cage::{Watched, policies};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use weir_monitor::audit::What;
use weir_monitor::dataplane::Reader;
use weir_monitor::remote::RingFile;
use weir_sensor::{Directory, Kind, SensorBox, Shape};

const POLICY: &str =
    "kind: stalled\nname: web\nbox: web\nsensor: requests\nperiods: 3\nperiod-ms: 50\naction: report\n";

#[test]
fn a_counter_that_stands_still_is_an_alarm_and_its_recovery_is_told() {
    let watched = match Watched::start(POLICY, false) {
        Ok(watched) => watched,
        Err(reason) => {
            return println!(
                "NOT RUN a_counter_that_stands_still_is_an_alarm_and_its_recovery_is_told: {reason}"
            );
        }
    };
    let made = SensorBox::create("web", Shape::default(), 1_000_000).unwrap();
    let requests = made.add("requests", Kind::Counter).unwrap();
    made.export(&Directory::new(watched.folder.path().join("sensors"))).unwrap();
    let alarm = watched.wait_for_alarm("web");
    assert_eq!((alarm.measure.as_str(), alarm.outcome.as_str()), ("silent-ns", "reported"), "{alarm:?}");
    watched.wait_for("the recovery", |entry| {
        made.count(requests, 1);
        entry.what == What::Recovered
    });
    let status = watched.monitor.status();
    assert_eq!(
        (status.boxes[0].name.as_str(), status.boxes[0].sensors[0].name.as_str()),
        ("web", "requests")
    );
}

#[test]
fn a_counter_that_is_only_referred_to_is_watched_without_any_update() {
    const NAME: &str = "a_counter_that_is_only_referred_to_is_watched_without_any_update";
    let watched = match Watched::start(POLICY, false) {
        Ok(watched) => watched,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let requests = AtomicU64::new(1);
    let made = SensorBox::create("web", Shape::default(), 1_000_000).unwrap();
    made.refer("requests", (&raw const requests) as u64).unwrap();
    made.export(&Directory::new(watched.folder.path().join("sensors"))).unwrap();
    watched.wait_for_alarm("web");
    watched.wait_for("the recovery", |entry| {
        requests.fetch_add(1, Ordering::Relaxed);
        entry.what == What::Recovered
    });
    let shown = watched.monitor.status().boxes[0].sensors[0].value;
    assert!(shown > 1 && shown <= requests.load(Ordering::Relaxed), "{shown}");
}

/// A packet core: it gives a reader its idle slots, until it is told to stop.
struct Core(Arc<AtomicBool>, Option<std::thread::JoinHandle<()>>);

impl Core {
    fn start(mut reader: Reader) -> Core {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Acquire) {
                reader.slot();
                reader.answer();
                std::thread::sleep(reader.period());
            }
        });
        Core(stop, Some(thread))
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
        self.1.take().map(|thread| thread.join());
    }
}

#[test]
fn what_the_packet_core_finds_is_acted_on_and_the_monitor_looks_itself_when_the_core_is_gone() {
    const NAME: &str =
        "what_the_packet_core_finds_is_acted_on_and_the_monitor_looks_itself_when_the_core_is_gone";
    let text = POLICY.replace("action:", "context: dataplane\naction:");
    let watched = match Watched::start(&text, false) {
        Ok(watched) => watched,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let sensors = Directory::new(watched.folder.path().join("sensors"));
    let reader = Reader::new(&policies(&text), None, &sensors).unwrap().unwrap();
    let core = Core::start(reader);
    let made = SensorBox::create("web", Shape::default(), 1_000_000).unwrap();
    let requests = made.add("requests", Kind::Counter).unwrap();
    made.export(&sensors).unwrap();
    let alarms = || {
        let recent = watched.monitor.recent();
        recent.iter().filter(|entry| matches!(entry.what, What::Alarm(_))).count()
    };
    let stall_and_recover = || {
        let before = alarms();
        crate::cage::until("an alarm", || alarms() > before);
        let moved = watched.monitor.recent().len();
        crate::cage::until("the recovery", || {
            made.count(requests, 1);
            watched.monitor.recent().iter().skip(moved).any(|entry| entry.what == What::Recovered)
        });
    };
    stall_and_recover();
    drop(core);
    stall_and_recover();
}

/// The ring's file of a host; each host has an address of this test's own. Packet cores answer.
fn ring(folder: &Path, own: &str, more: &str) -> RingFile {
    let [.., high, low] = std::process::id().to_be_bytes();
    let host = |(at, name): (usize, &str)| format!("{name}: \"127.{}.{low}.{}:4054\"", high | 1, at + 1);
    let hosts: Vec<String> = ["h1", "h2", "h3"].into_iter().enumerate().map(host).collect();
    let (key, path) = (folder.join("key"), folder.join(format!("{own}.yaml")));
    std::fs::write(&key, [7; 16]).unwrap();
    let text = format!(
        "own: {own}\nhosts: {{ {} }}\nkey-file: {}\nperiods: 1000\nresponder: dataplane\n{more}",
        hosts.join(", "),
        key.display()
    );
    std::fs::write(&path, text).unwrap();
    RingFile::load(&path).unwrap()
}

#[test]
fn an_application_of_another_host_is_watched_through_the_packet_core_there() {
    const NAME: &str = "an_application_of_another_host_is_watched_through_the_packet_core_there";
    let folder = tempfile::tempdir().unwrap();
    let views = "views: [{ host: h2, box: web, sensors: [requests], every-ms: 20 }]\n";
    // A look at the ring's own pace is no sign of a failure: the other host is busy with this test, too.
    let text = POLICY.replace("box: web", "box: h2.web").replace("period-ms: 50", "period-ms: 2000");
    let watched = match Watched::start_in(&text, false, Some(ring(folder.path(), "h1", views))) {
        Ok(watched) => watched,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let there = Directory::new(folder.path().join("h2"));
    let other = ring(folder.path(), "h2", "");
    let _core = Core::start(Reader::new(&[], Some(&other), &there).unwrap().unwrap());
    let made = SensorBox::create("web", Shape::default(), 1_000_000).unwrap();
    made.export(&there).unwrap();
    // Added after the export: the policy waits for it.
    let requests = made.add("requests", Kind::Counter).unwrap();
    let alarm = watched.wait_for_alarm("web");
    assert_eq!((alarm.measure.as_str(), alarm.outcome.as_str()), ("silent-ns", "reported"), "{alarm:?}");
    watched.wait_for("the recovery", |entry| {
        made.count(requests, 1);
        entry.what == What::Recovered
    });
    let status = watched.monitor.status();
    let copy = status.boxes.iter().find(|row| row.name == "h2.web").unwrap();
    assert!(copy.sensors[0].value > 0, "{copy:?}");
}

#[test]
fn the_kernels_own_box_is_watched_and_nobody_takes_its_name() {
    const NAME: &str = "the_kernels_own_box_is_watched_and_nobody_takes_its_name";
    // No victim of the out-of-memory killer for as long: that is no failure, but it is silence.
    let text = POLICY.replace("box: web", "box: kernel").replace("sensor: requests", "sensor: victim");
    let watched = match Watched::start(&text, false) {
        Ok(watched) if watched.monitor.status().kernel == "bpf" => watched,
        Ok(watched) => return println!("NOT RUN {NAME}: {:?}", watched.monitor.status().degraded),
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let made = SensorBox::create("kernel", Shape::default(), 1_000_000).unwrap();
    let victim = made.add("victim", Kind::Counter).unwrap();
    made.export(&Directory::new(watched.folder.path().join("sensors"))).unwrap();
    let own = |name: &str| {
        let status = watched.monitor.status();
        let kernel = status.boxes.iter().rfind(|row| row.name == "kernel")?;
        Some(kernel.sensors.iter().find(|sensor| sensor.name == name)?.value)
    };
    watched.wait_for_alarm("web");
    let after = watched.monitor.status().steps + 200;
    // On a quiet machine nobody else forks.
    assert!(std::process::Command::new("true").status().unwrap().success());
    crate::cage::until("some looks more", || {
        made.count(victim, 1);
        watched.monitor.status().steps >= after
    });
    let recovered = watched.monitor.recent().iter().any(|entry| entry.what == What::Recovered);
    // Another test's cage may give the kernel a victim at any moment, which explains a recovery.
    assert!(!recovered || own("victim") > Some(0), "the other box was taken for the kernel's");
    assert!(own("fork") > Some(0));
}
