//! Locked memory: the loop takes no page faults, and what the process only reserves stays reserved.
#![allow(unsafe_code)] // reserves memory as an allocator does

use crate::cage::{policies, until};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::process::Command;
use weir_monitor::local::Settings;
use weir_monitor::service::{Config, Monitor};
use weir_sensor::Directory;

/// What some allocators reserve at once.
const RESERVED_BYTES: usize = 1 << 30;
/// Steps that are looked at together.
const STEPS: u64 = 200;

fn start(folder: &std::path::Path) -> Result<Monitor, String> {
    let text = "kind: fork-bomb\nname: host\naction: report\ncooldown-ms: 100\nwhen: { forks: 3, window-ms: 1000 }\n---\n\
                kind: memory-hog\nname: memory\nwhen: { available-bytes: 1 }\n";
    let queries = weir_monitor::query::compile(
        "on-demand forkers = top(3, fork.comm); on-demand programs = seen(exec.comm, \"true\");",
    );
    Monitor::start(Config {
        policies: policies(text),
        queries: queries.unwrap(),
        settings: Settings { period_ns: 2_000_000, ..Settings::default() },
        audit: folder.join("audit.log"),
        sensors: Directory::new(folder.join("sensors")),
        without_bpf: false,
        ring: None,
        on_entry: Box::new(|_| ()),
        webhook: None,
    })
    .map_err(|error| error.to_string())
}

fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

fn reserve() -> *mut core::ffi::c_void {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses touches no memory of this process.
    unsafe {
        mmap_anonymous(std::ptr::null_mut(), RESERVED_BYTES, access, MapFlags::PRIVATE | MapFlags::NORESERVE)
    }
    .unwrap()
}

#[test]
fn the_loop_takes_no_page_faults_and_reserved_memory_stays_reserved() {
    let folder = tempfile::tempdir().unwrap();
    let before = reserve();
    let monitor = match start(folder.path()) {
        Ok(monitor) => monitor,
        Err(reason) => {
            return println!(
                "NOT RUN the_loop_takes_no_page_faults_and_reserved_memory_stays_reserved: {reason}"
            );
        }
    };
    let after = reserve();
    let resident = resident_bytes();
    assert!(resident < RESERVED_BYTES as u64 / 2, "{resident} bytes are resident: reserved memory was made");

    // The kernel moves a page now and then, which is a fault for who touches it meanwhile. So a stretch without any is looked for.
    let mut stretches = Vec::new();
    until("a stretch of steps without a page fault", || {
        let start = monitor.status();
        until("more steps", || {
            drop(Command::new("true").status());
            monitor.status().steps >= start.steps + STEPS
        });
        let end = monitor.status();
        let faults = (end.faults_minor - start.faults_minor) + (end.faults_major - start.faults_major);
        stretches.push((end.steps - start.steps, end.alarms - start.alarms, faults));
        faults == 0 && end.alarms > start.alarms
    });
    println!("steps, alarms and faults of each stretch: {stretches:?}");
    monitor.stop();
    for mapped in [before, after] {
        // SAFETY: exactly this range was mapped, and nothing uses it.
        unsafe { rustix::mm::munmap(mapped, RESERVED_BYTES) }.unwrap();
    }
}
