//! An observer that no variant can influence: a real-time thread with its own programs in the kernel that notes when a
//! cage's first process of interest was forked, when memory passed a line, and when the cage was empty.

use crate::cage::Cage;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use weir_monitor::kernel::{Kernel, What};
use weir_monitor::local::{Settings, settle};
use weir_sensor::now_ns;

#[derive(Default)]
pub struct Seen {
    /// The first fork in the cage after the start, ns.
    pub first_fork_ns: AtomicU64,
    /// The fork by which it had as many processes as the policy allows, ns.
    pub limit_fork_ns: AtomicU64,
    /// When its memory passed the line, ns.
    pub passed_ns: AtomicU64,
    /// When it was first seen empty after the first fork in it, ns.
    pub empty_ns: AtomicU64,
    /// Processes forked in the cage.
    pub forks: AtomicU64,
    stop: AtomicBool,
}

pub struct Observer {
    pub seen: Arc<Seen>,
    thread: Option<JoinHandle<()>>,
}

impl Observer {
    /// Observes a cage; so many `forks` and `line_bytes` of memory are the lines.
    pub fn start(cage: &Cage, forks: u64, line_bytes: u64) -> Observer {
        use std::os::unix::fs::MetadataExt;
        let cgroup = std::fs::metadata(&cage.folder).unwrap().ino();
        let usage = ["memory.current", "memory.usage_in_bytes"].map(|name| cage.memory().join(name));
        let usage = usage.into_iter().find(|file| file.exists()).unwrap();
        let events = cage.folder.join("cgroup.events");
        let seen = Arc::new(Seen::default());
        let mut kernel = Kernel::open().unwrap();
        kernel.fetch(|_| ());
        let shared = seen.clone();
        let thread = std::thread::spawn(move || {
            let settings = Settings { priority: Some(70), lock_memory: false, ..Settings::default() };
            settle(&settings).unwrap();
            while !shared.stop.load(Ordering::Acquire) {
                kernel.fetch(|event| {
                    if matches!(event.what, What::Fork { .. }) && event.cgroup == cgroup {
                        if shared.forks.fetch_add(1, Ordering::Relaxed) + 1 == forks {
                            shared.limit_fork_ns.store(event.time_ns, Ordering::Release);
                        }
                        let first = &shared.first_fork_ns;
                        let _ = first.compare_exchange(0, event.time_ns, Ordering::AcqRel, Ordering::Relaxed);
                    }
                });
                let empty =
                    || std::fs::read_to_string(&events).is_ok_and(|text| text.contains("populated 0"));
                if shared.first_fork_ns.load(Ordering::Acquire) != 0
                    && shared.empty_ns.load(Ordering::Relaxed) == 0
                    && empty()
                {
                    shared.empty_ns.store(now_ns(), Ordering::Release);
                }
                let used: u64 =
                    std::fs::read_to_string(&usage).unwrap_or_default().trim().parse().unwrap_or(0);
                if used >= line_bytes {
                    let passed = &shared.passed_ns;
                    let _ = passed.compare_exchange(0, now_ns(), Ordering::AcqRel, Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Observer { seen, thread: Some(thread) }
    }
}

impl Observer {
    /// When the cage was empty, ns; it waits for that.
    pub fn empty_ns(&self) -> u64 {
        crate::cage::until("an empty cage", || self.seen.empty_ns.load(Ordering::Acquire) != 0);
        self.seen.empty_ns.load(Ordering::Acquire)
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.seen.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}
