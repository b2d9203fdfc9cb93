//! The ring with real processes, as it stands in racks: three monitors, each in a network namespace of its own, at one bridge.
//!
//! ```text
//!   ns h1            ns h2            ns h3
//!   monitor          monitor          monitor          each: this program again, as a process of its own
//!   10.77.0.1        10.77.0.2        10.77.0.3
//!       └──── p1 ────────┤ p2 ───────────┘ p3
//!                   br0 in ns b
//!
//!   ip -n b link set p1 down        a cable is pulled; all of them: the switch between the hosts is away
//!   kill -STOP, -CONT, -KILL        a monitor stands still, goes on, is gone
//! ```
//! Whoever is fenced is written down by the fence program: `OF WHOM`. Right is: nobody healthy, and who is dead once.

use crate::cage::{PATIENCE, until};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};
use weir_monitor::local::Settings;
use weir_monitor::remote::RingFile;
use weir_monitor::service::{Config, Monitor};
use weir_monitor::status::HostRow;
use weir_sensor::Directory;

const CHILD: &str = "WEIR_TEST_RING_CHILD";
/// A host is suspect after half a second, so that a machine with two busy processors raises no suspicion by itself.
const RING: &str = "period-ms: 20\nperiods: 25\nk: 1\n";
const SILENCE: Duration = Duration::from_millis(500);

fn ip(line: &str) -> Result<(), String> {
    let done = Command::new("ip").args(line.split_whitespace()).output();
    let done = done.map_err(|error| format!("ip: {error}"))?;
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    if done.status.success() { Ok(()) } else { Err(format!("ip {line}: {said}")) }
}

/// A monitor that runs as a process of its own.
struct Host {
    folder: PathBuf,
    child: Option<(Child, ChildStdin)>,
}

/// The namespaces, the bridge and the monitors.
struct Rack {
    prefix: String,
    folder: tempfile::TempDir,
    hosts: Vec<Host>,
    seen: usize,
}

impl Rack {
    fn new() -> Result<Rack, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("it needs root".into());
        }
        let (prefix, folder) = (format!("wxring{}", std::process::id()), tempfile::tempdir().unwrap());
        let mut rack = Rack { prefix: prefix.clone(), folder, hosts: Vec::new(), seen: 0 };
        ip(&format!("netns add {prefix}b"))?;
        ip(&format!("-n {prefix}b link add br0 type bridge"))?;
        ip(&format!("-n {prefix}b link set br0 up"))?;
        let root = rack.folder.path().to_path_buf();
        std::fs::write(root.join("key"), "0123456789abcdef0123").unwrap();
        for number in 1..=3 {
            ip(&format!("netns add {prefix}h{number}"))?;
            ip(&format!("-n {prefix}b link add p{number} type veth peer name e0 netns {prefix}h{number}"))?;
            ip(&format!("-n {prefix}b link set p{number} master br0 up"))?;
            ip(&format!("-n {prefix}h{number} link set lo up"))?;
            ip(&format!("-n {prefix}h{number} addr add 10.77.0.{number}/24 dev e0"))?;
            ip(&format!("-n {prefix}h{number} link set e0 up"))?;
            let folder = root.join(format!("h{number}"));
            std::fs::create_dir(&folder).unwrap();
            let (fence, log) = (folder.join("fence"), root.join("fenced"));
            std::fs::write(&fence, format!("#!/bin/sh\necho \"h{number} $1\" >> {}\n", log.display()))
                .unwrap();
            std::fs::set_permissions(&fence, std::fs::Permissions::from_mode(0o755)).unwrap();
            let all = "{ h1: 10.77.0.1:4054, h2: 10.77.0.2:4054, h3: 10.77.0.3:4054 }";
            let file = format!(
                "own: h{number}\nhosts: {all}\nkey-file: {}\nfence: {}\n{RING}",
                root.join("key").display(),
                fence.display()
            );
            std::fs::write(folder.join("ring.yaml"), file).unwrap();
            rack.hosts.push(Host { folder, child: None });
        }
        for number in 1..=3 {
            rack.start(number)?;
        }
        rack.wait_for("a ring without suspicion", |rows| rows.iter().all(|row| !row.failed && !row.alone));
        rack.rest(Duration::from_millis(600));
        Ok(rack)
    }

    fn start(&mut self, number: usize) -> Result<(), String> {
        let host = &mut self.hosts[number - 1];
        let said = format!("/run/netns/{}h{number} {}", self.prefix, host.folder.display());
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "ring::child_monitor", "--nocapture"])
            .env(CHILD, said)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let input = child.stdin.take().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let answer = lines.find(|line| line.contains("monitor:")).unwrap_or_default();
        host.child = Some((child, input));
        if answer.contains("monitor: up") { Ok(()) } else { Err(answer) }
    }

    fn signal(&self, number: usize, signal: rustix::process::Signal) {
        let (child, _) = self.hosts[number - 1].child.as_ref().unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).unwrap();
    }

    fn kill(&mut self, number: usize) {
        let (mut child, _) = self.hosts[number - 1].child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn port(&self, number: usize, state: &str) {
        ip(&format!("-n {}b link set p{number} {state}", self.prefix)).unwrap();
    }

    fn ports(&self, state: &str) {
        (1..=3).for_each(|number| self.port(number, state));
    }

    /// What the monitors that run show of the ring.
    fn rows(&self) -> Vec<HostRow> {
        let running = self.hosts.iter().filter(|host| host.child.is_some());
        let read = |host: &Host| std::fs::read(host.folder.join("status")).unwrap_or_default();
        running
            .flat_map(|host| serde_json::from_slice::<Vec<HostRow>>(&read(host)).unwrap_or_default())
            .collect()
    }

    fn wait_for(&self, what: &str, wanted: impl Fn(&[HostRow]) -> bool) {
        until(what, || {
            let rows = self.rows();
            // Three rows of each.
            rows.len() == 3 * self.hosts.iter().filter(|host| host.child.is_some()).count() && wanted(&rows)
        });
    }

    /// Lets some time pass in which nothing is to happen.
    fn rest(&self, long: Duration) {
        std::thread::sleep(long);
    }

    /// Who was fenced by whom since the last time.
    fn fenced(&mut self) -> Vec<String> {
        let log = std::fs::read_to_string(self.folder.path().join("fenced")).unwrap_or_default();
        let new: Vec<String> = log.lines().skip(self.seen).map(str::to_string).collect();
        self.seen += new.len();
        new
    }

    fn whom(&mut self) -> Vec<String> {
        self.fenced().into_iter().map(|line| line.split(' ').nth(1).unwrap().to_string()).collect()
    }
}

impl Drop for Rack {
    fn drop(&mut self) {
        for host in &mut self.hosts {
            if let Some((mut child, _)) = host.child.take() {
                drop(child.kill());
                drop(child.wait());
            }
        }
        for end in ["b", "h1", "h2", "h3"] {
            drop(ip(&format!("netns del {}{end}", self.prefix)));
        }
    }
}

/// What the tests below start: a monitor in a namespace, which ends with the end of its input.
#[test]
fn child_monitor() {
    let Ok(said) = std::env::var(CHILD) else { return };
    let (netns, folder) = said.split_once(' ').unwrap();
    let folder = Path::new(folder);
    let netns = std::fs::File::open(netns).unwrap();
    // The threads that it starts are in it, too.
    let kind = Some(rustix::thread::LinkNameSpaceType::Network);
    rustix::thread::move_into_link_name_space(netns.as_fd(), kind).unwrap();
    let started = Monitor::start(Config {
        policies: Vec::new(),
        queries: Vec::new(),
        settings: Settings { priority: Some(20), lock_memory: false, ..Settings::default() },
        audit: folder.join("audit.log"),
        sensors: Directory::new(folder.join("sensors")),
        without_bpf: false,
        ring: Some(RingFile::load(&folder.join("ring.yaml")).unwrap()),
        on_entry: Box::new(|_| ()),
        webhook: None,
    });
    let monitor = match started {
        Ok(monitor) => monitor,
        Err(error) => return println!("monitor: {error}"),
    };
    println!("monitor: up");
    let (ended, end) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        let _ = std::io::stdin().lines().count();
        drop(ended);
    });
    while end.recv_timeout(Duration::from_millis(20)) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
        let rows = serde_json::to_vec(&monitor.status().hosts).unwrap();
        let (aside, file) = (folder.join("status.new"), folder.join("status"));
        std::fs::File::create(&aside).unwrap().write_all(&rows).unwrap();
        std::fs::rename(aside, file).unwrap();
    }
    monitor.stop();
}

#[test]
fn nobody_healthy_is_fenced_and_who_is_dead_once() {
    const NAME: &str = "nobody_healthy_is_fenced_and_who_is_dead_once";
    let mut rack = match Rack::new() {
        Ok(rack) => rack,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let sound = |rows: &[HostRow]| rows.iter().all(|row| !row.failed && !row.alone);
    let nobody: [String; 0] = [];
    assert_eq!(rack.fenced(), nobody, "at the start");

    // The switch between the hosts is away for a second, and for three.
    for away in [1, 3] {
        rack.ports("down");
        rack.rest(Duration::from_secs(away));
        assert_eq!(rack.fenced(), nobody, "while the switch is away for {away} s");
        rack.ports("up");
        rack.wait_for("a ring that is whole again", sound);
        rack.rest(SILENCE * 3);
        assert_eq!(rack.fenced(), nobody, "after the switch was away for {away} s");
    }

    // It flaps: shorter and longer than the silence that makes suspect, not in step with it.
    for flap in 0..12_u64 {
        rack.ports("down");
        rack.rest(Duration::from_millis(70 + 90 * (flap % 7)));
        rack.ports("up");
        rack.rest(Duration::from_millis(30 + 110 * (flap % 5)));
    }
    rack.wait_for("a ring that is whole again", sound);
    rack.rest(SILENCE * 3);
    assert_eq!(rack.fenced(), nobody, "after it flapped");

    // A monitor stands still for less than that silence.
    for number in 1..=3 {
        rack.signal(number, rustix::process::Signal::STOP);
        rack.rest(SILENCE / 5);
        rack.signal(number, rustix::process::Signal::CONT);
        rack.rest(SILENCE * 2);
    }
    assert_eq!(rack.fenced(), nobody, "after short stops");

    // And for longer: it looks dead, and is fenced; when it goes on, it takes nobody else for dead.
    rack.signal(3, rustix::process::Signal::STOP);
    let mut fenced = Vec::new();
    until("the fence of who stands still", || {
        fenced.extend(rack.whom());
        !fenced.is_empty()
    });
    rack.rest(SILENCE * 2);
    rack.signal(3, rustix::process::Signal::CONT);
    rack.wait_for("that it is taken back", sound);
    rack.rest(SILENCE * 3);
    fenced.extend(rack.whom());
    assert_eq!(fenced, ["h3"], "only who stood still, and once");

    // A host dies.
    rack.kill(2);
    rack.port(2, "down");
    let died = Instant::now();
    until("the fence of the dead", || {
        fenced.extend(rack.whom());
        fenced.len() > 1
    });
    println!("fenced {} ms after its end", died.elapsed().as_millis());
    rack.rest(SILENCE * 6);
    fenced.extend(rack.whom());
    assert_eq!(fenced, ["h3", "h2"], "the dead is fenced once, and nobody else");
    rack.wait_for("that all know", |rows| {
        rows.iter().filter(|row| row.name == "h2").all(|row| row.failed)
            && rows.iter().filter(|row| row.name != "h2").all(|row| !row.failed)
    });
    assert!(died.elapsed() < PATIENCE, "it waited for nothing else");
}
