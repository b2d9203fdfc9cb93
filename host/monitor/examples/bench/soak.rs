//! `make soak-monitor`: no false alarm. A monitor watches the host, an application's counter and a guest for ten minutes in which nothing
//! happens, and ten in which every processor is busy, there and in the guest.

use crate::cage::{Cage, Watched};
use crate::vm;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weir_monitor::audit::What;
use weir_sensor::{Directory, Kind, SensorBox, Shape};

const POLICIES: &str = "\
kind: fork-bomb
name: host
action: report
when: { living: 512, depth: 64, window-ms: 500 }
---
kind: memory-hog
name: memory
action: report
when: { available-bytes: 134217728 }
---
kind: stalled
name: application
box: application
sensor: work
periods: 5
period-ms: 200
action: report
";

/// So many seconds of each, or of one of them.
pub fn run(seconds: u64, only: Option<&str>) {
    let mut text = POLICIES.to_string();
    let mut guest = vm::Vm::boot().inspect_err(|reason| println!("NOT RUN soak guest: {reason}")).ok();
    if let Some(guest) = &guest {
        let console = guest.folder.path().join("console");
        text.push_str(&format!(
            "---\nkind: guest\nname: guest\nmemory-file: {}\nqmp: {}\nstimulus: console:{}\nperiod-ms: 50\nperiods: 3\n\
             watch-ms: 250\n",
            guest.memory.display(),
            guest.folder.path().join("qmp").display(),
            console.display()
        ));
    }
    let watched = match Watched::start(&text, false) {
        Ok(watched) => watched,
        Err(reason) => return println!("NOT RUN soak: {reason}"),
    };
    let stop = Arc::new(AtomicBool::new(false));
    let application = application(&watched, stop.clone());
    let mut alarms = 0;
    let wanted = |busy: &bool| only.is_none_or(|only| (only == "busy") == *busy);
    for busy in [false, true].into_iter().filter(wanted) {
        let cage = Cage::new(50, 256 << 20).ok();
        if busy {
            let cores = std::thread::available_parallelism().map_or(2, usize::from);
            if let Some(cage) = &cage {
                let _ = (0..cores).map(|_| cage.start("exec cat /dev/zero > /dev/null")).collect::<Vec<_>>();
            }
            if let Some(guest) = &mut guest {
                guest.say("busy");
            }
        }
        let until = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < until {
            std::thread::sleep(Duration::from_secs(1));
        }
        let recent = watched.monitor.recent();
        let found: Vec<_> =
            recent.iter().filter(|entry| matches!(entry.what, What::Alarm(_) | What::Guest(_))).collect();
        let status = watched.monitor.status();
        let stimuli: u64 = status.guests.iter().map(|guest| guest.stimuli).sum();
        let starved: u64 = status.guests.iter().map(|guest| guest.starved).sum();
        println!(
            "RESULT soak {}_alarms weir={}  # {seconds} s, {} steps, {stimuli} stimuli of the guest up to now, \
             {starved} times without a processor, at most {} us late",
            if busy { "busy" } else { "idle" },
            found.len() - alarms,
            status.steps,
            status.late_us_max
        );
        for entry in &found[alarms..] {
            println!("  {entry:?}");
        }
        alarms = found.len();
    }
    stop.store(true, Ordering::Release);
    application.join().unwrap();
    assert_eq!(alarms, 0, "false alarms");
}

/// An application that works, and says so each 50 ms.
fn application(watched: &Watched, stop: Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    let made = SensorBox::create("application", Shape::default(), 50_000_000).unwrap();
    let work = made.add("work", Kind::Counter).unwrap();
    made.export(&Directory::new(watched.folder.path().join("sensors"))).unwrap();
    std::thread::spawn(move || {
        while !stop.load(Ordering::Acquire) {
            made.count(work, 1);
            std::thread::sleep(Duration::from_millis(50));
        }
    })
}
