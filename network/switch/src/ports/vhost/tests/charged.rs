//! What control groups say of lent memory. These need root and control groups of version 2, as a host with systemd has them.

use super::super::driver::GUEST;
use super::super::memory::Memory;
use super::super::touched::{All, Touched};
use super::bounded::{map, sparse, touch};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

const MIB: u64 = 1 << 20;
const ROOT: &str = "/sys/fs/cgroup";

/// A control group of the switch, which this process is in, and one of a monitor.
struct Groups {
    before: PathBuf,
    both: PathBuf,
}

impl Groups {
    /// `None` with a line that says why.
    fn new(test: &str) -> Option<Groups> {
        match Groups::make() {
            Ok(groups) => Some(groups),
            Err(reason) => {
                println!("NOT RUN {test}: {reason}");
                None
            }
        }
    }

    fn make() -> Result<Groups, String> {
        let own = std::fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let own =
            own.lines().find_map(|line| line.strip_prefix("0::/")).ok_or("no control groups of version 2")?;
        let root = Path::new(ROOT);
        if !root.join("cgroup.controllers").exists() {
            return Err(format!("{ROOT} is not that of version 2"));
        }
        let both = root.join(format!("weir-charged-{}", std::process::id()));
        let groups = Groups { before: root.join(own), both };
        groups.prepare().map_err(|error| format!("no control group can be made: {error}"))?;
        Ok(groups)
    }

    fn prepare(&self) -> std::io::Result<()> {
        std::fs::write(Path::new(ROOT).join("cgroup.subtree_control"), "+memory")?;
        std::fs::create_dir(&self.both)?;
        std::fs::write(self.both.join("cgroup.subtree_control"), "+memory")?;
        std::fs::create_dir(self.both.join("switch"))?;
        std::fs::create_dir(self.both.join("monitor"))?;
        std::fs::write(self.both.join("switch/cgroup.procs"), std::process::id().to_string())
    }

    /// The monitor writes the first bytes of a memory file.
    fn monitor_touches(&self, file: &impl AsRawFd, bytes: u64) {
        let script = format!(
            "echo $$ > {}/monitor/cgroup.procs && dd if=/dev/zero of=/proc/{}/fd/{} bs=1M count={} conv=notrunc 2>&1",
            self.both.display(),
            std::process::id(),
            file.as_raw_fd(),
            bytes / MIB
        );
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        // What cannot be taken away stays until the machine ends, empty.
        let _ = std::fs::write(self.before.join("cgroup.procs"), std::process::id().to_string());
        for group in [self.both.join("switch"), self.both.join("monitor"), self.both.clone()] {
            let _ = std::fs::remove_dir(group);
        }
    }
}

/// The switch has read all of it.
fn read(memory: &Memory, bytes: u64) {
    for at in (0..bytes).step_by(4096) {
        let (page, _) = memory.at(GUEST + at, 1).unwrap();
        // SAFETY: a byte of lent memory.
        #[allow(unsafe_code)]
        unsafe {
            page.read_volatile();
        }
    }
}

#[test]
fn memory_that_another_control_group_is_charged_for_counts_for_nothing() {
    static ALL: All = All::new(128 * MIB);
    let Some(groups) = Groups::new("memory_that_another_control_group_is_charged_for_counts_for_nothing")
    else {
        return;
    };
    let port = Touched::new(&ALL);
    let file = sparse(64 * MIB);
    let memory = map(&file, 64 * MIB);
    port.lent(&memory, Instant::now()).unwrap();
    groups.monitor_touches(&file, 30 * MIB);
    read(&memory, 30 * MIB);
    assert!(memory.grown_bytes() >= 30 * MIB && memory.used_bytes() >= 30 * MIB, "it is used here");
    port.look(&memory).unwrap();
    assert!(port.read().1 < MIB, "{} bytes are counted of what the monitor is charged for", port.read().1);
    touch(&memory, 30 * MIB, 8 * MIB);
    port.look(&memory).unwrap();
    let counted = port.read().1;
    assert!((7 * MIB..=9 * MIB).contains(&counted), "{counted} bytes are counted of 8 MiB");
}
