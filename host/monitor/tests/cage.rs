//! A cage: one cgroup of version 2 (to freeze and kill), one of `pids` and one of `memory` of version 1 (to bound), or all in
//! one where only version 2 is there. What is in it cannot take more than the cage allows, and ends with it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use weir_monitor::controls;
use weir_monitor::local::Settings;
use weir_monitor::policy::{self, Policy};
use weir_monitor::query;
use weir_monitor::remote::RingFile;
use weir_monitor::service::{Config, Monitor};
use weir_sensor::Directory;

const V1: &str = "/sys/fs/cgroup";
/// What every monitor of these tests is asked.
const QUERIES: &str =
    "on-demand processes = living(); once busy = count(fork) >= 5; on-demand forkers = top(3, fork.comm);";
/// Generous: a loaded machine is no failure.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub struct Cage {
    pub name: String,
    pub folder: PathBuf,
    bounds: Vec<PathBuf>,
}

impl Cage {
    /// Makes one, or says why that is not possible here.
    pub fn new(processes: u32, memory_bytes: u64) -> Result<Cage, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if !rustix::process::geteuid().is_root() {
            return Err("it needs root".into());
        }
        let mount = controls::mount().ok_or("cgroups of version 2 are not mounted")?;
        let name = format!("wxmonitor-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mut cage = Cage { folder: mount.join(&name), name, bounds: Vec::new() };
        let make = |folder: &Path| {
            std::fs::create_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))
        };
        make(&cage.folder)?;
        let limits = [
            ("pids", "pids.max", "pids.max", u64::from(processes)),
            ("memory", "memory.limit_in_bytes", "memory.max", memory_bytes),
        ];
        for (controller, v1_file, v2_file, limit) in limits {
            let v1 = Path::new(V1).join(controller);
            let file = if v1.is_dir() {
                let folder = v1.join(&cage.name);
                make(&folder)?;
                cage.bounds.push(folder.clone());
                folder.join(v1_file)
            } else {
                cage.folder.join(v2_file)
            };
            std::fs::write(&file, limit.to_string())
                .map_err(|error| format!("{}: {error}", file.display()))?;
        }
        Ok(cage)
    }

    /// The folder that bounds memory.
    pub fn memory(&self) -> PathBuf {
        let v1 = Path::new(V1).join("memory").join(&self.name);
        if v1.is_dir() { v1 } else { self.folder.clone() }
    }

    /// Starts a shell command inside.
    pub fn start(&self, command: &str) -> Child {
        let enter: String = self
            .bounds
            .iter()
            .chain([&self.folder])
            .map(|folder| format!("echo $$ > {}/cgroup.procs && ", folder.display()))
            .collect();
        Command::new("sh")
            .args(["-c", &format!("{enter} exec sh -c \"$1\""), "sh", command])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// The processes inside that are not only waiting to be reaped.
    pub fn processes(&self) -> Vec<u32> {
        let text = std::fs::read_to_string(self.folder.join("cgroup.procs")).unwrap_or_default();
        let lives = |process: &u32| {
            let stat = std::fs::read(format!("/proc/{process}/stat")).unwrap_or_default();
            weir_monitor::kernel::proc::parse_stat(&stat).is_some_and(|stat| stat.state != b'Z')
        };
        text.lines().filter_map(|line| line.parse().ok()).filter(lives).collect()
    }
}

impl Drop for Cage {
    fn drop(&mut self) {
        let limit = Instant::now() + PATIENCE;
        for folder in self.bounds.iter().chain([&self.folder]) {
            // Orphans go when whoever adopted them reaps them.
            while folder.exists() && Instant::now() < limit {
                drop(std::fs::write(self.folder.join("cgroup.freeze"), "0"));
                drop(std::fs::write(self.folder.join("cgroup.kill"), "1"));
                if std::fs::remove_dir(folder).is_err() {
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        }
    }
}

/// Ends what is in the cages of this process when this process ends, however that happens: until it is dropped it waits for the
/// end of a pipe.
#[allow(dead_code, reason = "the tests' runner ends their cages itself")]
pub struct Guardian(Child);

#[allow(dead_code, reason = "as above")]
impl Guardian {
    pub fn start() -> Guardian {
        let mount = controls::mount().unwrap_or_default();
        let cages = format!("{}/wxmonitor-{}-*", mount.display(), std::process::id());
        let script = format!(
            "trap '' INT TERM; cat > /dev/null; for cage in {cages}; do \
             [ -d \"$cage\" ] && echo 0 > \"$cage/cgroup.freeze\" && echo 1 > \"$cage/cgroup.kill\"; done; sleep 1; \
             rmdir {cages} {V1}/*/wxmonitor-{}-* 2> /dev/null",
            std::process::id()
        );
        let child = Command::new("sh").args(["-c", &script]).stdin(Stdio::piped()).spawn().unwrap();
        // It must get a processor while a bomb has them all.
        let process = rustix::process::Pid::from_child(&child);
        let _ = rustix::process::setpriority_process(Some(process), -20);
        Guardian(child)
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        drop(self.0.wait());
    }
}

/// Waits for a condition.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let limit = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < limit, "still waiting for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Policies from the text of a file.
pub fn policies(text: &str) -> Vec<Policy> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.yaml");
    std::fs::write(&file, text).unwrap();
    policy::load(&file).unwrap()
}

/// A monitor of these policies with its files in a folder of its own.
pub struct Watched {
    pub monitor: Monitor,
    pub folder: tempfile::TempDir,
}

impl Watched {
    pub fn start(text: &str, without_bpf: bool) -> Result<Watched, String> {
        Watched::start_in(text, without_bpf, None)
    }

    /// The same on a host of a ring.
    pub fn start_in(text: &str, without_bpf: bool, ring: Option<RingFile>) -> Result<Watched, String> {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings { period_ns: 5_000_000, lock_memory: false, ..Settings::default() };
        let monitor = Monitor::start(Config {
            policies: policies(text),
            queries: query::compile(QUERIES).unwrap(),
            settings,
            audit: folder.path().join("audit.log"),
            sensors: Directory::new(folder.path().join("sensors")),
            without_bpf,
            ring,
            on_entry: Box::new(|_| ()),
            webhook: None,
        })
        .map_err(|error| error.to_string())?;
        Ok(Watched { monitor, folder })
    }
}
