//! A host that fails, over a network of namespaces: how soon all others have declared it. Beside a SWIM library with its defaults for a
//! local network (foca), and corosync with its default token.
//!
//! ```text
//!  wxhealth-1 ─┐
//!  wxhealth-2 ─┼─ bridge in wxhealth-0        10.77.0.N/24; the third is ended by SIGKILL and its link taken down
//!  wxhealth-3 ─┤
//!  wxhealth-4 ─┘
//! ```

use crate::result;
use std::collections::BinaryHeap;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddrV4, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use weir_monitor::incident::Note;
use weir_monitor::local::Settings;
use weir_monitor::remote::{Remote, RingFile};
use weir_sensor::now_ns;

const HOSTS: usize = 4;
const FAILS: usize = 3;
const PREFIX: &str = "wxhealth-";
const PATIENCE: Duration = Duration::from_secs(30);

fn ip(arguments: &str) -> bool {
    let words: Vec<&str> = arguments.split_whitespace().collect();
    Command::new("ip").args(words).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// The namespaces; they go with it.
struct Network;

impl Network {
    fn new() -> Option<Network> {
        drop(Network);
        let made = Network;
        let mut good =
            ip(&format!("netns add {PREFIX}0")) && ip(&format!("-n {PREFIX}0 link add name br0 type bridge"));
        good = good && ip(&format!("-n {PREFIX}0 link set dev br0 up"));
        for host in 1..=HOSTS {
            let name = format!("{PREFIX}{host}");
            good = good
                && ip(&format!("netns add {name}"))
                && ip(&format!("-n {name} link set lo up"))
                && ip(&format!("-n {name} link add e0 type veth peer name p{host} netns {PREFIX}0"))
                && ip(&format!("-n {PREFIX}0 link set dev p{host} master br0 up"))
                && ip(&format!("-n {name} address add 10.77.0.{host}/24 dev e0"))
                && ip(&format!("-n {name} link set e0 up"));
        }
        good.then_some(made)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for host in 0..=HOSTS {
            ip(&format!("netns delete {PREFIX}{host}"));
        }
    }
}

/// A program in each namespace; what they say comes with the number of the host.
struct Members {
    children: Vec<Child>,
    said: Receiver<(usize, u64, String)>,
}

impl Members {
    fn start(command: impl Fn(usize) -> Command) -> Members {
        let (tell, said) = channel();
        let children = (1..=HOSTS).map(|host| start_one(host, command(host), tell.clone())).collect();
        Members { children, said }
    }

    /// Waits until `wanted` holds for a line of each of these hosts; gives the time of the last.
    fn wait(&self, mut hosts: Vec<usize>, wanted: impl Fn(&str) -> bool) -> Option<u64> {
        let limit = Instant::now() + PATIENCE;
        let mut last = 0;
        while !hosts.is_empty() {
            let left = limit.checked_duration_since(Instant::now())?;
            let Ok((host, time, line)) = self.said.recv_timeout(left) else { return None };
            if wanted(&line) && hosts.contains(&host) {
                hosts.retain(|other| *other != host);
                last = time;
            }
        }
        Some(last)
    }

    /// Ends one as a crash would; gives the time from then until the others have said `wanted`, ms.
    fn fail_one(mut self, wanted: impl Fn(&str) -> bool) -> f64 {
        while self.said.try_recv().is_ok() {}
        let start = now_ns();
        self.children[FAILS - 1].kill().unwrap();
        ip(&format!("-n {PREFIX}{FAILS} link set e0 down"));
        let others = (1..=HOSTS).filter(|host| *host != FAILS).collect();
        let last = self.wait(others, wanted);
        ip(&format!("-n {PREFIX}{FAILS} link set e0 up"));
        for child in &mut self.children {
            drop(child.kill());
            drop(child.wait());
        }
        last.map_or(f64::NAN, |last| last.saturating_sub(start) as f64 / 1e6)
    }
}

fn start_one(host: usize, mut command: Command, tell: Sender<(usize, u64, String)>) -> Child {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    std::thread::spawn(move || {
        for line in output.lines().map_while(Result::ok) {
            if tell.send((host, now_ns(), line)).is_err() {
                return;
            }
        }
    });
    child
}

fn within(host: usize) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &format!("{PREFIX}{host}")]);
    command
}

fn own(host: usize, role: &str, argument: &str) -> Command {
    let mut command = within(host);
    command.arg(std::env::current_exe().unwrap()).args([role, argument]);
    command
}

/// `bench member FILE`: a host's part in a ring.
pub fn member(file: &str) {
    let ring = RingFile::load(Path::new(file)).unwrap();
    let (tell, told) = std::sync::mpsc::sync_channel(64);
    let settings = Settings { lock_memory: false, ..Settings::default() };
    let sensors = weir_sensor::Directory::new(Path::new(file).with_extension("sensors"));
    let remote = Remote::start(&ring, settings, &sensors, tell).unwrap();
    let watched = || remote.view().iter().filter(|host| host.level.is_some_and(|level| level > 0.0)).count();
    while watched() == 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    println!("ready");
    for note in told {
        if let Note::HostFailed { host, .. } = note {
            println!("failed {}", host + 1);
        }
    }
}

fn weir(folder: &Path) -> f64 {
    let hosts: Vec<String> = (1..=HOSTS).map(|host| format!("h{host}: \"10.77.0.{host}:4054\"")).collect();
    std::fs::write(folder.join("key"), [7; 32]).unwrap();
    let file = |host: usize| folder.join(format!("ring-{host}.yaml"));
    for host in 1..=HOSTS {
        let text = format!(
            "own: h{host}\nhosts: {{ {} }}\nkey-file: {}\nk: 1\nperiod-ms: 20\nperiods: 5\n",
            hosts.join(", "),
            folder.join("key").display()
        );
        std::fs::write(file(host), text).unwrap();
    }
    let members = Members::start(|host| own(host, "member", &file(host).display().to_string()));
    members.wait((1..=HOSTS).collect(), |line| line == "ready").unwrap();
    // What the start itself shook has settled.
    std::thread::sleep(Duration::from_secs(2));
    members.fail_one(|line| line == format!("failed {FAILS}"))
}

/// `bench swim HOST`: a member of foca's cluster.
pub fn swim(host: &str) {
    let address = |host: usize| SocketAddrV4::new([10, 77, 0, host as u8].into(), 7946);
    let host: usize = host.parse().unwrap();
    let config = foca::Config::new_lan(std::num::NonZeroU32::new(HOSTS as u32).unwrap());
    let rng: rand::rngs::StdRng = rand::make_rng();
    let mut foca = foca::Foca::new(address(host), config, rng, foca::PostcardCodec);
    let socket = UdpSocket::bind(address(host)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let mut runtime = foca::AccumulatingRuntime::new();
    let mut timers: BinaryHeap<(std::cmp::Reverse<Instant>, usize)> = BinaryHeap::new();
    let mut events = Vec::new();
    let mut announced = Instant::now() - Duration::from_secs(1);
    let mut ready = false;
    loop {
        if !ready && announced.elapsed() > Duration::from_millis(500) {
            announced = Instant::now();
            for other in (1..=HOSTS).filter(|other| *other != host) {
                drop(foca.announce(address(other), &mut runtime));
            }
        }
        let mut bytes = [0; 2048];
        if let Ok((length, _)) = socket.recv_from(&mut bytes) {
            drop(foca.handle_data(&bytes[..length], &mut runtime));
        }
        while timers.peek().is_some_and(|(at, _)| at.0 <= Instant::now()) {
            if let Some((_, number)) = timers.pop()
                && let Some(event) = Option::take(&mut events[number])
            {
                drop(foca.handle_timer(event, &mut runtime));
            }
        }
        while let Some((to, data)) = runtime.to_send() {
            drop(socket.send_to(&data, to));
        }
        while let Some((after, event)) = runtime.to_schedule() {
            timers.push((std::cmp::Reverse(Instant::now() + after), events.len()));
            events.push(Some(event));
        }
        while let Some(told) = runtime.to_notify() {
            if let foca::OwnedNotification::MemberDown(who) = told {
                println!("failed {}", who.ip().octets()[3]);
            }
        }
        if !ready && foca.num_members() == HOSTS - 1 {
            ready = true;
            println!("ready");
        }
    }
}

fn swim_row() -> f64 {
    let members = Members::start(|host| own(host, "swim", &host.to_string()));
    members.wait((1..=HOSTS).collect(), |line| line == "ready").unwrap();
    std::thread::sleep(Duration::from_secs(2));
    members.fail_one(|line| line == format!("failed {FAILS}"))
}

fn corosync(folder: &Path) -> f64 {
    let nodes: Vec<String> = (1..=HOSTS)
        .map(|host| {
            format!(" node {{\n  nodeid: {host}\n  name: h{host}\n  ring0_addr: 10.77.0.{host}\n }}\n")
        })
        .collect();
    let start = |host: usize| {
        let state = folder.join(format!("corosync-{host}"));
        std::fs::create_dir_all(&state).unwrap();
        let conf = state.join("corosync.conf");
        // A brace ends its line there.
        let text = format!(
            "totem {{\n version: 2\n cluster_name: wxhealth\n transport: udpu\n}}\nnodelist {{\n{}}}\n\
             logging {{\n to_stderr: yes\n to_logfile: no\n to_syslog: no\n}}\nsystem {{\n state_dir: {}\n}}\n",
            nodes.concat(),
            state.display()
        );
        std::fs::write(&conf, text).unwrap();
        let mut command = within(host);
        // One a machine is what it allows itself, by a file in /run. It says what it does on its standard error.
        let shell = "mount -t tmpfs tmpfs /run && exec corosync -f -c \"$0\" 2>&1";
        command.args(["sh", "-c", shell, &conf.display().to_string()]);
        command
    };
    let members = Members::start(start);
    let formed = |line: &str| line.contains("embers[4]: 1 2 3 4");
    if members.wait((1..=HOSTS).collect(), formed).is_none() {
        let failed = members.fail_one(|_| true);
        return failed * f64::NAN;
    }
    std::thread::sleep(Duration::from_secs(2));
    members.fail_one(|line| line.contains("embers[3]: 1 2 4"))
}

/// All rows.
pub fn run(rounds: usize) {
    let Some(_network) = Network::new() else {
        return println!("NOT RUN bench hosts: no network namespaces");
    };
    let folder = tempfile::tempdir().unwrap();
    let has_corosync = Command::new("corosync").arg("-v").output().is_ok();
    if !has_corosync {
        println!("NOT RUN bench hosts corosync: it is not installed");
    }
    let (mut own, mut swim, mut token) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        own.push(weir(folder.path()));
        swim.push(swim_row());
        if has_corosync {
            token.push(corosync(folder.path()));
        }
    }
    result("host_failure_declared_by_all", "ms", &own, "foca_lan_defaults", &swim);
    if has_corosync {
        result("host_failure_declared_by_all", "ms", &own, "corosync_default_token", &token);
    }
    crate::figure("host_failure_declared_by_all", "ms", &own, 200.0);
}
