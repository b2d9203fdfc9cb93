//! What the machine does meanwhile: processor time of threads, processes that pause, how far the two processors are from each other.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use weir_switch::engine::sys;

/// Processor time that this thread has had.
pub fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Nanoseconds of this thread's processor time a frame, in a window of so long; `batches` says how many came out of some batches.
pub fn time_each(length: Duration, mut batches: impl FnMut() -> usize) -> f64 {
    let (start, before, mut came) = (Instant::now(), thread_cpu(), 0);
    while start.elapsed() < length {
        came += batches();
    }
    assert!(came > 0, "no frame came through");
    (thread_cpu() - before).as_nanos() as f64 / came as f64
}

/// Processor time that the thread of a process whose name begins so has had, nanoseconds.
pub fn cpu_ns(pid: u32, name: &str) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("a process");
    for task in tasks.filter_map(Result::ok) {
        let read = |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        if read("comm").starts_with(name) {
            let first = read("schedstat").split_whitespace().next().map(str::parse);
            return first.expect("a number").expect("a number");
        }
    }
    panic!("process {pid} has no thread '{name}'");
}

/// Has a process pause, or go on.
pub fn pause(pid: u32, pauses: bool) {
    let signal = if pauses { rustix::process::Signal::STOP } else { rustix::process::Signal::CONT };
    let pid = rustix::process::Pid::from_raw(pid as i32).expect("a process");
    rustix::process::kill_process(pid, signal).expect("a child of ours");
}

/// Round trip of a cache line between the two processors, nanoseconds: the median of many small groups. Some machines of this
/// kind change within seconds between 50 and 400.
pub fn probe() -> f64 {
    const GROUP: u32 = 16;
    const TRIPS: u32 = 500 * GROUP;
    let line = Arc::new(AtomicU32::new(0));
    let other = Arc::clone(&line);
    let answering = std::thread::spawn(move || {
        sys::pin_thread(1).expect("a second processor");
        for turn in 0..TRIPS {
            while other.load(Ordering::Acquire) != 2 * turn + 1 {
                std::hint::spin_loop();
            }
            other.store(2 * turn + 2, Ordering::Release);
        }
    });
    let asking = std::thread::spawn(move || {
        sys::pin_thread(0).expect("a processor");
        let mut trips = Vec::with_capacity((TRIPS / GROUP) as usize);
        for group in 0..TRIPS / GROUP {
            let start = Instant::now();
            for turn in group * GROUP..(group + 1) * GROUP {
                line.store(2 * turn + 1, Ordering::Release);
                while line.load(Ordering::Acquire) != 2 * turn + 2 {
                    std::hint::spin_loop();
                }
            }
            trips.push(start.elapsed().as_nanos() as f64 / f64::from(GROUP));
        }
        trips
    });
    answering.join().expect("it ends");
    median(&asking.join().expect("it ends"))
}

/// The state that a round trip belongs to.
pub fn state(trip_ns: f64) -> &'static str {
    match trip_ns {
        ..150.0 => "near",
        _ => "far",
    }
}

/// The middle one.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Huge pages for the time of the bench, and a file system of them.
pub struct HugePages {
    /// Where the file system is mounted.
    pub dir: tempfile::TempDir,
    before: u64,
}

const NR_HUGEPAGES: &str = "/proc/sys/vm/nr_hugepages";

impl HugePages {
    /// So many more of 2 MiB than there are; why not, if they cannot be had.
    pub fn reserve(pages: u64) -> Result<HugePages, String> {
        let read = || -> u64 {
            std::fs::read_to_string(NR_HUGEPAGES).unwrap_or_default().trim().parse().unwrap_or_default()
        };
        let before = read();
        std::fs::write(NR_HUGEPAGES, format!("{}", before + pages)).map_err(|error| error.to_string())?;
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        let huge = HugePages { dir, before };
        if read() < before + pages {
            return Err(format!("the kernel has no {pages} huge pages to give"));
        }
        mount(huge.dir.path())?;
        Ok(huge)
    }
}

fn mount(dir: &Path) -> Result<(), String> {
    let mounted = std::process::Command::new("mount")
        .args(["-t", "hugetlbfs", "-o", "pagesize=2M", "none"])
        .arg(dir)
        .status()
        .is_ok_and(|status| status.success());
    if mounted { Ok(()) } else { Err("no file system of huge pages can be mounted".into()) }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.dir.path()).status();
        let _ = std::fs::write(NR_HUGEPAGES, format!("{}", self.before));
    }
}
