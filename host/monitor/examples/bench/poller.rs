//! A peer: a daemon such as many write, of ordinary priority, that reads `/proc` ten times a second, counts the processes
//! of a cgroup and their memory, and kills the cgroup when there are too many.

use crate::cage::{Cage, PATIENCE};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weir_sensor::now_ns;

/// As often as earlyoom at most.
const PERIOD: Duration = Duration::from_millis(100);

pub struct Poller {
    /// When it noticed, ns.
    pub noticed_ns: Arc<AtomicU64>,
    /// When it had killed for the first time, ns.
    pub acted_ns: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Poller {
    pub fn start(cage: &Cage, processes: usize, pages: u64) -> Poller {
        let (noticed_ns, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let acted_ns = Arc::new(AtomicU64::new(0));
        let (noticed, acted, stopped) = (noticed_ns.clone(), acted_ns.clone(), stop.clone());
        let (name, kill) = (cage.name.clone(), cage.folder.join("cgroup.kill"));
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Acquire) {
                let (found, resident) = look(&name);
                if found >= processes || resident >= pages {
                    let _ = noticed.compare_exchange(0, now_ns(), Ordering::AcqRel, Ordering::Relaxed);
                    std::fs::write(&kill, "1").unwrap();
                    let _ = acted.compare_exchange(0, now_ns(), Ordering::AcqRel, Ordering::Relaxed);
                }
                std::thread::sleep(PERIOD);
            }
        });
        Poller { noticed_ns, acted_ns, stop, thread: Some(thread) }
    }
}

impl Poller {
    /// When it noticed and when it had acted, ns; or now, twice, when it has not acted for as long as anybody waits.
    pub fn wait(&self) -> (u64, u64) {
        let limit = Instant::now() + PATIENCE;
        while self.acted_ns.load(Ordering::Acquire) == 0 {
            if Instant::now() > limit {
                return (now_ns(), now_ns());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        (self.noticed_ns.load(Ordering::Acquire), self.acted_ns.load(Ordering::Acquire))
    }
}

/// The living processes of a cgroup and their resident pages, process by process.
fn look(name: &str) -> (usize, u64) {
    let (mut found, mut resident) = (0, 0);
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let folder: PathBuf = entry.path();
        let Ok(cgroup) = std::fs::read_to_string(folder.join("cgroup")) else { continue };
        if cgroup.contains(name) {
            let statm = std::fs::read_to_string(folder.join("statm")).unwrap_or_default();
            let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
            found += usize::from(pages > 0);
            resident += pages;
        }
    }
    (found, resident)
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}
