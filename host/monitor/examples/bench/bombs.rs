//! Fork bombs: how soon noticed, how soon gone, and what an innocent program needs meanwhile.

use crate::cage::{Cage, PATIENCE, policies};
use crate::observer::Observer;
use crate::poller::Poller;
use crate::{figure, result};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use weir_monitor::audit::{Alarm, Entry, What};
use weir_monitor::local::Settings;
use weir_monitor::service::{Config, Monitor};
use weir_sensor::Directory;

/// Most processes of a bomb.
const CAP: u32 = 500;
/// As many processes as a bomb is let have before it is repaired, where that is measured.
const GROWN: [u32; 2] = [400, 1400];
/// The bomb: it doubles and stays, and each spins.
const BOMB: &str = "f() { f & f & while :; do :; done; }; f";

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    Weir,
    /// The same monitor without pinning, priority and locked memory.
    Ordinary,
    Poller,
    /// Nobody; after a second the bench ends it.
    Nobody,
}

/// A monitor of one policy, and its entries.
pub struct Running {
    pub monitor: Monitor,
    pub entries: Receiver<Entry>,
    _folder: tempfile::TempDir,
}

pub fn monitor(text: &str, ordinary: bool) -> Running {
    let folder = tempfile::tempdir().unwrap();
    let (tell, entries) = channel();
    let last = std::thread::available_parallelism().unwrap().get() - 1;
    let settings = match ordinary {
        true => Settings { priority: None, lock_memory: false, ..Settings::default() },
        false => Settings { cpu: Some(last), ..Settings::default() },
    };
    let monitor = Monitor::start(Config {
        policies: policies(text),
        queries: Vec::new(),
        settings,
        audit: folder.path().join("audit.log"),
        sensors: Directory::new(folder.path().join("sensors")),
        without_bpf: false,
        ring: None,
        on_entry: Box::new(move |entry| drop(tell.send(entry.clone()))),
        webhook: None,
    })
    .unwrap();
    Running { monitor, entries, _folder: folder }
}

/// What came of an alarm.
pub struct Repair {
    pub alarm: Alarm,
    /// From the alarm to the end of the last process, us.
    pub took_us: u64,
    /// Processes that were signalled again.
    again: u32,
}

impl Running {
    /// The first alarm, once its culprit's tree is gone.
    pub fn repair(&self) -> Repair {
        let mut alarm = None;
        let limit = Instant::now() + PATIENCE;
        while let Ok(entry) = self.entries.recv_timeout(limit.saturating_duration_since(Instant::now())) {
            match (entry.what, &alarm) {
                (What::Alarm(found), None) => alarm = Some(found),
                (What::Settled { took_us, again }, Some(found)) => {
                    return Repair { alarm: (**found).clone(), took_us, again };
                }
                _ => {}
            }
        }
        panic!("no alarm that settled: {alarm:?}");
    }

    /// What may have held a repair up.
    fn circumstances(&self, repair: &Repair) -> String {
        let (status, alarm) = (self.monitor.status(), &repair.alarm);
        format!(
            "{} ms: {} members, {} signalled, {} again, {} hurried; frozen {} after {} us, acted {} us; {} events lost, {} periods \
             skipped, at most {} us late, longest step {} us",
            repair.took_us / 1000,
            alarm.members,
            alarm.signalled,
            repair.again,
            status.hurried,
            alarm.frozen,
            alarm.freeze_us,
            alarm.act_us,
            status.lost,
            status.skipped,
            status.late_us_max,
            status.step_us_max
        )
    }
}

fn victim() -> Child {
    let own = std::env::current_exe().unwrap();
    Command::new(own).arg("victim").stdout(Stdio::piped()).spawn().unwrap()
}

fn victim_ms(child: Child) -> f64 {
    let output = child.wait_with_output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim().parse().unwrap()
}

/// From the first fork: noticed, gone; and the victim's time, all in ms.
struct Measured {
    noticed: f64,
    gone: f64,
    victim: f64,
}

fn one(variant: Variant) -> Measured {
    let cage = Cage::new(CAP, 1 << 30).unwrap();
    let text = format!(
        "kind: fork-bomb\nname: cage\ncgroup: {}\ndry-run: false\nwhen: {{ living: 24, window-ms: 500 }}\n",
        cage.folder.display()
    );
    let running = match variant {
        Variant::Weir => Some(monitor(&text, false)),
        Variant::Ordinary => Some(monitor(&text, true)),
        Variant::Poller | Variant::Nobody => None,
    };
    let poller = (variant == Variant::Poller).then(|| Poller::start(&cage, 24, u64::MAX));
    let observer = Observer::start(&cage, 24, u64::MAX);
    let victim = victim();
    std::thread::sleep(Duration::from_millis(100));
    let mut bomb = cage.start(BOMB);
    let mut noticed_ns = 0;
    if let Some(running) = &running {
        noticed_ns = running.repair().alarm.time_ns;
    } else {
        let limit = Instant::now() + Duration::from_secs(1);
        while variant == Variant::Nobody && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(10));
        }
        if variant == Variant::Nobody {
            std::fs::write(cage.folder.join("cgroup.kill"), "1").unwrap();
        }
    }
    bomb.wait().unwrap();
    let gone_ns = observer.empty_ns();
    if let Some(poller) = &poller {
        noticed_ns = poller.noticed_ns.load(Ordering::Acquire);
    }
    let first_ns = observer.seen.first_fork_ns.load(Ordering::Acquire);
    let since = |ns: u64| ns.saturating_sub(first_ns) as f64 / 1e6;
    Measured { noticed: since(noticed_ns), gone: since(gone_ns), victim: victim_ms(victim) }
}

/// Bombs that are repaired as soon as they are noticed.
pub fn early(rounds: usize) {
    let variants = [Variant::Weir, Variant::Ordinary, Variant::Poller, Variant::Nobody];
    let mut all: Vec<Vec<Measured>> = variants.iter().map(|_| Vec::new()).collect();
    let mut ideal = Vec::new();
    for _ in 0..rounds {
        ideal.push(victim_ms(victim()));
        for (at, variant) in variants.iter().enumerate() {
            all[at].push(one(*variant));
        }
    }
    let of = |at: usize, what: fn(&Measured) -> f64| all[at].iter().map(what).collect::<Vec<f64>>();
    for (at, peer) in [(1, "ordinary"), (2, "poller")] {
        result("fork_bomb_noticed", "ms", &of(0, |m| m.noticed), peer, &of(at, |m| m.noticed));
        result("fork_bomb_gone", "ms", &of(0, |m| m.gone), peer, &of(at, |m| m.gone));
        result("victim_time", "ms", &of(0, |m| m.victim), peer, &of(at, |m| m.victim));
    }
    result("victim_time", "ms", &of(0, |m| m.victim), "nobody_for_1s", &of(3, |m| m.victim));
    result("victim_time", "ms", &of(0, |m| m.victim), "ideal", &ideal);
    figure("fork_bomb_noticed", "ms", &of(0, |m| m.noticed), 20.0);
    figure("fork_bomb_gone", "ms", &of(0, |m| m.gone), 100.0);
}

/// A mass of processes that is already there when it is repaired.
pub fn full(rounds: usize) {
    for count in [100_u32, 500, 1000, 1500] {
        let mut took: [Vec<f64>; 2] = Default::default();
        let mut slowest = (0, String::new());
        for _ in 0..rounds {
            for (at, action) in ["freeze-kill", "kill-cgroup"].into_iter().enumerate() {
                let cage = Cage::new(count + 10, 2 << 30).unwrap();
                let text = format!(
                    "kind: fork-bomb\nname: cage\ncgroup: {}\naction: {action}\ndry-run: false\n\
                     when: {{ living: {count}, window-ms: 600000 }}\n",
                    cage.folder.display()
                );
                let running = monitor(&text, false);
                let mut bomb = cage.start(BOMB);
                let repair = running.repair();
                took[at].push(repair.took_us as f64 / 1e3);
                if at == 0 && repair.took_us > slowest.0 {
                    slowest = (repair.took_us, running.circumstances(&repair));
                }
                bomb.wait().unwrap();
            }
        }
        result(&format!("repair_{count}_processes"), "ms", &took[0], "cgroup_kill", &took[1]);
        println!("  slowest repair of {count}: {}", slowest.1);
        if count == 1500 {
            figure("repair_1500_processes", "ms", &took[0], 300.0);
        }
    }
}

/// A bomb that is let grow to a mass ([`GROWN`]) of spinning processes before it is a fault, on a host with work to do: what the slowest
/// of a hundred repairs is like, with priority and without. Times are from the fork by which there were too many.
///
/// The daemon that polls `/proc` needs tens of seconds for each: without it (`pair`) a hundred runs take minutes.
pub fn tail(rounds: usize, only: Option<u32>, pair: bool) {
    let variants = if pair { &TAIL[..2] } else { &TAIL[..] };
    for grown in GROWN.into_iter().filter(|grown| only.is_none_or(|only| only == *grown)) {
        tail_of(grown, rounds, variants);
    }
}

/// What else the host does: twice as many programs compute as there are processors.
fn work() -> Cage {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let cage = Cage::new(50, 256 << 20).unwrap();
    for _ in 0..cores * 2 {
        drop(cage.start("exec cat /dev/zero > /dev/null"));
    }
    cage
}

/// The variants of a tail, and what is measured of each, ms after the fork by which there were too many.
const TAIL: [(Variant, &str); 3] =
    [(Variant::Weir, "weir"), (Variant::Ordinary, "ordinary"), (Variant::Poller, "poller")];
const TAIL_METRICS: [&str; 3] = ["noticed", "acted", "gone"];

fn tail_of(grown: u32, rounds: usize, variants: &[(Variant, &str)]) {
    let mut all: [[Vec<f64>; TAIL_METRICS.len()]; TAIL.len()] = Default::default();
    let mut slowest: [(f64, String); TAIL.len()] = Default::default();
    let _work = work();
    for _ in 0..rounds {
        for (at, (variant, _)) in variants.iter().enumerate() {
            let (found, circumstances) = one_of_tail(*variant, grown);
            for (to, value) in all[at].iter_mut().zip(found) {
                to.push(value);
            }
            if found[2] >= slowest[at].0 {
                slowest[at] = (found[2], circumstances);
            }
        }
    }
    for ((_, who), (_, circumstances)) in variants.iter().zip(slowest) {
        println!("  slowest repair of {grown}, {who}: {circumstances}");
    }
    for (which, metric) in TAIL_METRICS.into_iter().enumerate() {
        let metric = format!("bomb_of_{grown}_{metric}");
        for (at, (_, peer)) in variants.iter().enumerate().skip(1) {
            let (weir, other) = (&all[0][which], &all[at][which]);
            result(&metric, "ms", weir, peer, other);
            crate::tail(&metric, "ms", weir, peer, other);
        }
    }
}

fn one_of_tail(variant: Variant, grown: u32) -> ([f64; TAIL_METRICS.len()], String) {
    let cage = Cage::new(grown + 100, 2 << 30).unwrap();
    let text = format!(
        "kind: fork-bomb\nname: cage\ncgroup: {}\ndry-run: false\nwhen: {{ living: {grown}, window-ms: 600000 }}\n",
        cage.folder.display()
    );
    let running = (variant != Variant::Poller).then(|| monitor(&text, variant == Variant::Ordinary));
    let poller = (variant == Variant::Poller).then(|| Poller::start(&cage, grown as usize, u64::MAX));
    // The shell that enters the cage is one of them and was not forked there.
    let observer = Observer::start(&cage, u64::from(grown) - 1, u64::MAX);
    let mut bomb = cage.start(BOMB);
    let (noticed_ns, acted_ns, circumstances) = match (&running, &poller) {
        (Some(running), _) => {
            let repair = running.repair();
            let noticed_ns = repair.alarm.time_ns;
            // What follows is the kernel's, which ends them one by one.
            (noticed_ns, noticed_ns + repair.alarm.act_us * 1000, running.circumstances(&repair))
        }
        (_, Some(poller)) => {
            let (noticed_ns, acted_ns) = poller.wait();
            // If it never does, it is done for it.
            std::fs::write(cage.folder.join("cgroup.kill"), "1").unwrap();
            (noticed_ns, acted_ns, "cgroup.kill".to_string())
        }
        _ => unreachable!("one of them watches"),
    };
    let gone_ns = observer.empty_ns();
    bomb.wait().unwrap();
    let limit_ns = observer.seen.limit_fork_ns.load(Ordering::Acquire);
    let since = |ns: u64| ns.saturating_sub(limit_ns) as f64 / 1e6;
    ([since(noticed_ns), since(acted_ns), since(gone_ns)], circumstances)
}
