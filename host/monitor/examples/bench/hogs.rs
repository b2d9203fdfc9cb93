//! Memory hogs: from the line to the alarm, and to their end.

use crate::bombs::monitor;
use crate::cage::{Cage, until};
use crate::observer::Observer;
use crate::poller::Poller;
use crate::{figure, result};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use weir_sensor::now_ns;

const CAGE_BYTES: u64 = 1 << 30;
const LINE_BYTES: u64 = 600 << 20;
/// How long earlyoom is waited for: it looks at the whole machine, in which others give memory back meanwhile.
const EARLYOOM_PATIENCE: Duration = Duration::from_secs(10);
/// A controller and its hogs, each of which `tail` feeds until it ends.
const HOGS: &str =
    "while :; do tail /dev/zero & tail /dev/zero & tail /dev/zero & tail /dev/zero & wait; done";

/// When the hogs were noticed and gone after the line was passed; and, where that is told, when all of them had been told to end; ms.
type Hog = (f64, f64, Option<f64>);

fn one(by: &str) -> Option<Hog> {
    let cage = Cage::new(50, CAGE_BYTES).unwrap();
    let text = format!(
        "kind: memory-hog\nname: cage\ncgroup: {}\nmemory: {}\ndry-run: false\nwhen: {{ used-bytes: {LINE_BYTES} }}\n",
        cage.folder.display(),
        cage.memory().display()
    );
    let observer = Observer::start(&cage, u64::MAX, LINE_BYTES);
    let running = (by == "weir").then(|| monitor(&text, false));
    let poller = (by == "poller").then(|| Poller::start(&cage, usize::MAX, LINE_BYTES / 4096));
    let earlyoom = if by == "earlyoom" { Some(EarlyOom::start()?) } else { None };
    let mut hogs = cage.start(HOGS);
    let mut act_ns = None;
    let noticed_ns = match (&running, &poller, &earlyoom) {
        (Some(running), ..) => {
            let alarm = running.repair().alarm;
            act_ns = Some(alarm.act_us * 1000);
            alarm.time_ns
        }
        (_, Some(poller), _) => {
            hogs.wait().unwrap();
            poller.noticed_ns.load(Ordering::Acquire)
        }
        (_, _, Some(earlyoom)) => {
            let limit = Instant::now() + EARLYOOM_PATIENCE;
            while earlyoom.noticed_ns.load(Ordering::Acquire) == 0 && Instant::now() < limit {
                std::thread::sleep(Duration::from_millis(5));
            }
            std::fs::write(cage.folder.join("cgroup.kill"), "1").unwrap();
            earlyoom.noticed_ns.load(Ordering::Acquire)
        }
        _ => return None,
    };
    hogs.wait().unwrap();
    if noticed_ns == 0 {
        println!("NOT RUN monitor memory_hog {by}: it noticed nothing in {} s", EARLYOOM_PATIENCE.as_secs());
        return None;
    }
    until("an empty cage", || cage.processes().is_empty());
    let gone_ns = now_ns();
    let passed_ns = observer.seen.passed_ns.load(Ordering::Acquire);
    if passed_ns == 0 {
        println!("NOT RUN monitor memory_hog {by}: it ended them before the line was seen to be passed");
        return None;
    }
    // The observer looks each millisecond: who looks between two of its looks is not later than it.
    let since = |ns: u64| ns.saturating_sub(passed_ns) as f64 / 1e6;
    Some((since(noticed_ns), since(gone_ns), act_ns.map(|act_ns| since(noticed_ns + act_ns))))
}

/// earlyoom knows only the whole machine, so it is given a line as far below what is available now as the hogs' line is
/// above nothing; and it only says what it would kill (`--dryrun`), because it could choose another program.
struct EarlyOom {
    noticed_ns: Arc<AtomicU64>,
    child: Child,
}

impl EarlyOom {
    fn start() -> Option<EarlyOom> {
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
        let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:")).unwrap();
        let available_kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
        let at_kib = available_kib - LINE_BYTES / 1024;
        let started = Command::new("earlyoom")
            .args(["--dryrun", "-r", "0", "-M", &format!("{at_kib},{}", at_kib / 2)])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = match started {
            Ok(child) => child,
            Err(error) => {
                println!("NOT RUN monitor memory_hog earlyoom: {error}");
                return None;
            }
        };
        let noticed_ns = Arc::new(AtomicU64::new(0));
        let (output, noticed) = (child.stderr.take().unwrap(), noticed_ns.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if line.contains("low memory") {
                    let _ = noticed.compare_exchange(0, now_ns(), Ordering::AcqRel, Ordering::Relaxed);
                }
            }
        });
        std::thread::sleep(std::time::Duration::from_millis(300));
        Some(EarlyOom { noticed_ns, child })
    }
}

impl Drop for EarlyOom {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

pub fn run(rounds: usize) {
    let peers = ["weir", "poller", "earlyoom"];
    let mut all: Vec<Vec<Hog>> = peers.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for (at, by) in peers.into_iter().enumerate() {
            all[at].extend(one(by));
        }
    }
    let of = |at: usize, what: fn(&Hog) -> f64| all[at].iter().map(what).collect::<Vec<f64>>();
    result("memory_hog_noticed", "ms", &of(0, |m| m.0), "poller", &of(1, |m| m.0));
    result("memory_hog_gone", "ms", &of(0, |m| m.1), "poller", &of(1, |m| m.1));
    if !all[2].is_empty() {
        result("memory_hog_noticed", "ms", &of(0, |m| m.0), "earlyoom", &of(2, |m| m.0));
    }
    figure("memory_hog_noticed", "ms", &of(0, |m| m.0), 10.0);
    figure("memory_hog_acted", "ms", &all[0].iter().filter_map(|m| m.2).collect::<Vec<f64>>(), 10.0);
    crate::tail("memory_hog_noticed", "ms", &of(0, |m| m.0), "poller", &of(1, |m| m.0));
    crate::tail("memory_hog_gone", "ms", &of(0, |m| m.1), "poller", &of(1, |m| m.1));
}
