//! Hosts in network namespaces with a switch process each, and endpoints behind them.
//!
//! ```text
//!   endpoint ns ── TAP t0 ── switch ─ host ns ─ veth u0 ══ bridge sw0 in the underlay ns ══ u0 ─ host ns ─ switch ── TAP t0 ── endpoint ns
//! ```
//! Namespaces have a prefix of their own and are deleted when the lab is dropped, also after a panic.

use std::io::BufReader;
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use weir_base::codec::{read_frame, write_frame};
use weir_model::entry::{LocationEntry, NetworkEntry, PolicyEntry, PortEntry, SubnetEntry, Vni};
use weir_model::event::Role;
use weir_model::join::{TrustFile, to_hex};
use weir_model::local::{Answer, FromSwitch, Question, ToSwitch};
use weir_model::resource::{Action, AttachmentKind, DhcpOptions, Encapsulation, PortState};
use weir_model::{Change, Entry, Key, Label, MacAddr, Update, Version};
use weir_switch::config::{EngineConfig, SwitchConfig};
use weir_switch::ports::{DeviceSpec, create_device};
use weir_trust::batch::{GroupSigner, SingleSigner, frames, sign_batch};
use weir_trust::identity::KeyPair;

/// Environment variable that makes the test binary a switch with these settings.
pub const CONFIG_VARIABLE: &str = "WEIR_TEST_SWITCH_CONFIG";
/// Environment variable that makes it take over from the one that serves.
pub const TAKE_OVER_VARIABLE: &str = "WEIR_TEST_SWITCH_TAKES_OVER";
/// How long anything may take before a test gives up.
pub const PATIENCE: Duration = Duration::from_secs(60);

static NUMBER: AtomicU32 = AtomicU32::new(0);
static VERSION: AtomicU64 = AtomicU64::new(1);

pub fn label(text: &str) -> Label {
    Label::new(text).expect("a label")
}

/// Why labs cannot be made here, if they cannot.
pub fn missing() -> Option<String> {
    // SAFETY: no arguments, no failure.
    #[allow(unsafe_code)]
    if unsafe { libc::geteuid() } != 0 {
        return Some("needs root".into());
    }
    for tool in ["ip", "ping", "python3", "ethtool"] {
        if !Command::new("which").arg(tool).output().is_ok_and(|o| o.status.success()) {
            return Some(format!("needs {tool}"));
        }
    }
    (!Path::new("/dev/net/tun").exists()).then(|| "needs /dev/net/tun".into())
}

/// Runs a command and panics with its output if it fails.
pub fn sh(command: &str) -> String {
    let output = try_sh(command);
    assert!(
        output.status.success(),
        "{command}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn try_sh(command: &str) -> Output {
    Command::new("sh").arg("-c").arg(command).stdin(Stdio::null()).output().expect("sh runs")
}

/// Waits until something is so.
pub fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits for the end of a process, while something is so.
pub fn wait_child(child: &mut Child, is_so: impl FnMut() -> bool) -> Option<std::process::ExitStatus> {
    let (start, mut is_so) = (Instant::now(), is_so);
    loop {
        if let Some(status) = child.try_wait().expect("asked") {
            return Some(status);
        }
        if !is_so() || start.elapsed() > PATIENCE {
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A lab, or a line that says why the test is not run.
pub fn lab(name: &str, hosts: usize, format: Encapsulation, v6: bool, mtu: u16) -> Option<Lab> {
    match missing() {
        None => Some(Lab::new(hosts, format, v6, mtu)),
        Some(reason) => {
            println!("NOT RUN {name}: {reason}");
            None
        }
    }
}

fn mac_of(host: usize, ip: &str) -> MacAddr {
    let last = match ip.parse().expect("an address") {
        IpAddr::V4(v4) => v4.octets()[3],
        IpAddr::V6(v6) => v6.octets()[15],
    };
    MacAddr([2, 0, 0, 0, host as u8, last])
}

/// A program that runs in an endpoint until it is dropped.
pub struct Running(Child);

/// One that prints what it found when its input ends.
pub struct Watching(Running, BufReader<std::process::ChildStdout>);

impl Watching {
    /// Ends it; the lines that it printed.
    pub fn finish(mut self) -> Vec<String> {
        use std::io::BufRead;
        drop(self.0.0.stdin.take());
        self.1.lines().map(|line| line.expect("a line")).collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub struct Lab {
    pub prefix: String,
    pub dir: tempfile::TempDir,
    pub hosts: Vec<Host>,
    pub network: NetworkEntry,
    pub policy: PolicyEntry,
    pub signer: SingleSigner,
    v6: bool,
}

pub struct Host {
    pub name: String,
    pub netns: String,
    pub underlay: IpAddr,
    pub config: SwitchConfig,
    child: Option<Child>,
}

impl Drop for Lab {
    fn drop(&mut self) {
        for host in &mut self.hosts {
            host.kill();
        }
        let listed = try_sh("ip netns list");
        for line in String::from_utf8_lossy(&listed.stdout).lines() {
            if let Some(name) = line.split_whitespace().next().filter(|n| n.starts_with(&self.prefix)) {
                try_sh(&format!("ip netns pids {name} | xargs -r kill -9; ip netns del {name}"));
            }
        }
    }
}

impl Lab {
    /// `hosts` hosts on an underlay of one MTU, switches not started.
    pub fn new(hosts: usize, encapsulation: Encapsulation, v6: bool, mtu: u16) -> Lab {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("wxengine-{}-{number}-", std::process::id());
        let network = NetworkEntry {
            name: label("red"),
            mtu,
            encapsulation,
            external_access: true,
            subnets: vec![SubnetEntry {
                name: label("s"),
                v4: Some("10.0.0.0/24".parse().expect("a prefix")),
                router_v4: Some("10.0.0.254".parse().expect("an address")),
                v6: Some("fd10::/64".parse().expect("a prefix")),
                router_v6: Some("fd10::fe".parse().expect("an address")),
            }],
            forwarding: weir_model::resource::Forwarding::Routed,
        };
        let signer = SingleSigner(KeyPair::from_seed(&[7; 32]));
        let dir = tempfile::tempdir().expect("a directory");
        let policy =
            PolicyEntry { default_ingress: Action::Allow, default_egress: Action::Allow, rules: vec![] };
        let mut lab = Lab { prefix, dir, hosts: vec![], network, policy, signer, v6 };
        sh(&format!(
            "ip netns add {0}u && ip -n {0}u link add name sw0 type bridge && ip -n {0}u link set sw0 up mtu 9300",
            lab.prefix
        ));
        for index in 0..hosts {
            lab.add_host(index, mtu);
        }
        lab
    }

    fn add_host(&mut self, index: usize, mtu: u16) {
        let (prefix, netns) = (&self.prefix, format!("{}h{index}", self.prefix));
        let underlay: IpAddr =
            if self.v6 { format!("fd00::{}", index + 1) } else { format!("192.0.2.{}", index + 1) }
                .parse()
                .expect("an address");
        let underlay_mtu = mtu + 100;
        let (bits, nodad) = if self.v6 { (64, "nodad") } else { (24, "") };
        sh(&format!(
            "ip netns add {netns} && ip -n {netns} link set lo up && \
             ip -n {netns} link add u0 mtu {underlay_mtu} type veth peer name p{index} netns {prefix}u mtu {underlay_mtu} && \
             ip -n {prefix}u link set p{index} master sw0 up && \
             ip -n {netns} addr add {underlay}/{bits} dev u0 {nodad} && ip -n {netns} link set u0 up"
        ));
        let base = self.dir.path().join(format!("h{index}"));
        std::fs::create_dir_all(&base).expect("a directory");
        let trust = TrustFile {
            domain: label("lab"),
            group_key: self.signer.group_key().to_hex(),
            epoch: 1,
            dataplane_secret: to_hex(&[9; 16]),
        };
        let config = SwitchConfig {
            name: label(&format!("h{index}")),
            domain: label("lab"),
            role: Role::Host,
            underlay,
            geneve_port: 6081,
            vxlan_port: 4789,
            run_dir: base.join("run"),
            state_dir: base.join("state"),
            trust_file: base.join("trust.json"),
            identity_file: base.join("identity.seed"),
            external: None,
            underlay_from: Vec::new(),
            idle_reader: None,
            engine: EngineConfig::default(),
        };
        std::fs::write(&config.trust_file, serde_json::to_string(&trust).expect("JSON")).expect("written");
        std::fs::write(&config.identity_file, to_hex(&[index as u8 + 1; 32])).expect("written");
        self.hosts.push(Host { name: format!("h{index}"), netns, underlay, config, child: None });
    }

    /// The Ethernet address of an endpoint.
    pub fn mac(&self, host: usize, ip: &str) -> String {
        mac_of(host, ip).to_string()
    }

    /// Makes an endpoint's device, and gives it its address.
    pub fn make_device(&self, host: usize, name: &str, address: &str) {
        let netns = format!("{}{name}", self.prefix);
        let ip = address.split('/').next().expect("address/bits");
        let mac = mac_of(host, ip);
        let device = DeviceSpec { netns: Some(netns.clone()), name: "t0".into(), mac, mtu: self.network.mtu };
        create_device(&device).expect("a device");
        let nodad = if ip.contains(':') { "nodad" } else { "" };
        sh(&format!("ip -n {netns} addr add {address} dev t0 {nodad}"));
    }

    /// Makes host 1 a Linux bridge with the kernel's VXLAN device, no switch of ours, and endpoint `b` (10.0.0.2) behind it, which knows 10.0.0.1 of host 0 and
    /// is known there: `endpoint` makes host 0 ready, with 10.0.0.1. False if this kernel has no VXLAN device. Checksum offload is off, because
    /// between veth devices it would leave checksums to be completed by hardware that is not there.
    pub fn kernel_vxlan_peer(&mut self, endpoint: impl FnOnce(&mut Self)) -> bool {
        let (peer, prefix) = (self.hosts[1].netns.clone(), self.prefix.clone());
        let device = "vx0 type vxlan id 7 dstport 4789 local 192.0.2.2 dev u0";
        if !try_sh(&format!("ip -n {peer} link add {device}")).status.success() {
            return false;
        }
        endpoint(self);
        let mac = self.mac(0, "10.0.0.1");
        sh(&format!(
            "ip netns exec {peer} ethtool -K u0 tx off && \
             ip netns add {prefix}b && ip -n {peer} link add q0 type veth peer name t0 netns {prefix}b && \
             ip -n {peer} link add name sw1 type bridge && ip -n {peer} link set vx0 mtu 1500 master sw1 up && \
             ip -n {peer} link set q0 master sw1 up && ip -n {peer} link set sw1 up && \
             ip -n {prefix}b link set t0 address 02:00:00:00:00:99 up && \
             ip -n {prefix}b addr add 10.0.0.2/24 dev t0 && \
             ip -n {prefix}b neigh add 10.0.0.1 lladdr {mac} dev t0 && \
             ip netns exec {peer} bridge fdb append {mac} dev vx0 dst 192.0.2.1"
        ));
        self.put_location(0, "b", "10.0.0.2", "02:00:00:00:00:99", 1);
        true
    }

    /// Tells a host's switch where an address is.
    pub fn put_location(&self, to: usize, name: &str, ip: &str, mac: &str, host: usize) {
        let location = LocationEntry {
            endpoint: label(name),
            mac: mac.parse().expect("an Ethernet address"),
            host: label(&self.hosts[host].name),
            underlay: self.hosts[host].underlay,
        };
        let key = Key::Location { vni: Vni(7), address: ip.parse().expect("an address") };
        self.put(to, vec![(key, Entry::Location(location))]);
    }

    /// The host's end of an endpoint's veth pair.
    pub fn host_end(&self, name: &str) -> String {
        weir_model::resource::host_end(Some(&format!("{}{name}", self.prefix)), "t0")
    }

    /// Makes an endpoint's veth pair, as the agent does, and gives it its address.
    pub fn make_pair(&self, host: usize, name: &str, address: &str) {
        let (netns, end) = (format!("{}{name}", self.prefix), self.host_end(name));
        let ip = address.split('/').next().expect("address/bits");
        let (mac, mtu, of_host) = (mac_of(host, ip), self.network.mtu, &self.hosts[host].netns);
        sh(&format!(
            "ip -n {netns} link add t0 address {mac} mtu {mtu} txqueuelen 4096 type veth peer name {end} mtu {mtu} netns {of_host} && \
             ip -n {netns} link set t0 up && ip -n {netns} addr add {address} dev t0"
        ));
    }

    /// Makes an endpoint's namespace and device on a host, and tells all switches of it.
    pub fn add_endpoint(&mut self, host: usize, name: &str, address: &str) {
        self.add_endpoint_of(AttachmentKind::Tap, host, name, address);
    }

    /// The same with a device of another kind.
    pub fn add_endpoint_of(&mut self, kind: AttachmentKind, host: usize, name: &str, address: &str) {
        let all: Vec<usize> = (0..self.hosts.len()).collect();
        self.add_endpoint_with(kind, &all, host, name, address);
    }

    /// The same, but tells only some switches.
    pub fn add_endpoint_to(&mut self, told: &[usize], host: usize, name: &str, address: &str) {
        self.add_endpoint_with(AttachmentKind::Tap, told, host, name, address);
    }

    fn add_endpoint_with(
        &mut self,
        kind: AttachmentKind,
        told: &[usize],
        host: usize,
        name: &str,
        address: &str,
    ) {
        let netns = format!("{}{name}", self.prefix);
        sh(&format!("ip netns add {netns} && ip -n {netns} link set lo up"));
        match kind.is_veth() {
            true => self.make_pair(host, name, address),
            false => self.make_device(host, name, address),
        }
        self.tell_endpoint(kind, told, host, name, address);
    }

    /// Tells all switches of an endpoint whose namespace and device are there.
    pub fn add_endpoint_there(&mut self, kind: AttachmentKind, host: usize, name: &str, address: &str) {
        let all: Vec<usize> = (0..self.hosts.len()).collect();
        self.tell_endpoint(kind, &all, host, name, address);
    }

    fn tell_endpoint(
        &mut self,
        kind: AttachmentKind,
        told: &[usize],
        host: usize,
        name: &str,
        address: &str,
    ) {
        let netns = format!("{}{name}", self.prefix);
        let ip = address.split('/').next().expect("address/bits");
        let (vni, mac) = (Vni(7), mac_of(host, ip));
        let port = PortEntry {
            mac,
            addresses: vec![ip.parse().expect("an address")],
            tags: vec![],
            state: PortState::Up,
            netns: Some(netns),
            device: "t0".into(),
            kind,
            queue_pairs: 1,
            subnet: label("s"),
            dhcp: DhcpOptions::default(),
            policy_min: Version::ZERO,
        };
        for &index in told {
            let mut changes = vec![
                (Key::Network { vni }, Entry::Network(self.network.clone())),
                (Key::Policy { vni }, Entry::Policy(self.policy.clone())),
            ];
            if index == host {
                changes.push((Key::Port { vni, endpoint: label(name) }, Entry::Port(port.clone())));
            }
            self.put(index, changes);
            if index != host {
                self.put_location(index, name, ip, &mac.to_string(), host);
            }
        }
        let from = format!("ip -n {}{name} link show t0", self.prefix);
        wait_for("the carrier", || sh(&from).contains("LOWER_UP"));
    }

    /// Signs and sends entries to a host's switch, and waits for its acks.
    pub fn put(&self, host: usize, entries: Vec<(Key, Entry)>) {
        self.change(host, entries.into_iter().map(|(key, entry)| (key, Change::Put(entry))).collect());
    }

    pub fn change(&self, host: usize, changes: Vec<(Key, Change)>) {
        let version = Version(VERSION.fetch_add(1, Ordering::Relaxed));
        let updates = changes.into_iter().map(|(key, change)| Update {
            target: self.hosts[host].config.name.clone(),
            key,
            version,
            expected: Version::ZERO,
            change,
        });
        let (header, proven) =
            sign_batch(&self.signer, &label("lab"), 1, version, updates.collect()).expect("signed");
        let frame = frames(proven.into_iter().map(|p| (header.clone(), p)), 1000).remove(0);
        match self.hosts[host].ask(&ToSwitch::Updates(frame)) {
            FromSwitch::Acks(acks) => {
                for ack in &acks.acks {
                    assert_eq!(ack.result, Ok(()), "{}", ack.key);
                }
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn start_all(&mut self) {
        for host in &mut self.hosts {
            host.start();
        }
    }

    /// Runs a command in an endpoint's namespace; when it fails, the switches' counters are printed too.
    pub fn run(&self, endpoint: &str, command: &str) -> String {
        let output = try_sh(&format!("ip netns exec {}{endpoint} {command}", self.prefix));
        if !output.status.success() {
            self.print_counters();
        }
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{command}: {text}{}", String::from_utf8_lossy(&output.stderr));
        text
    }

    /// Runs a Python program in an endpoint to its end.
    pub fn run_python(&self, endpoint: &str, program: &str, arguments: &[&str]) -> String {
        let child = self.spawn(endpoint, &[&["python3", "-c", program], arguments].concat());
        let output = child.wait_with_output().expect("it ends");
        if !output.status.success() {
            self.print_counters();
        }
        assert!(output.status.success(), "{arguments:?} failed");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Starts a Python server in an endpoint, and waits until it says that it is ready.
    pub fn python(&self, endpoint: &str, program: &str, arguments: &[&str]) -> Running {
        use std::io::BufRead;
        let mut child = self.spawn(endpoint, &[&["python3", "-c", program], arguments].concat());
        let mut line = String::new();
        let stdout = child.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        assert_eq!(line.trim(), "ready");
        Running(child)
    }

    /// As [`Lab::python`], for a program that waits for the end of its input.
    pub fn python_with_input(&self, endpoint: &str, program: &str, arguments: &[&str]) -> Watching {
        use std::io::BufRead;
        let mut child = Command::new("ip")
            .args(["netns", "exec", &format!("{}{endpoint}", self.prefix), "python3", "-c", program])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        output.read_line(&mut line).expect("a line");
        assert_eq!(line.trim(), "ready");
        Watching(Running(child), output)
    }

    pub fn print_counters(&self) {
        for host in &self.hosts {
            let mut counters: Vec<_> = host.counters().into_iter().filter(|(_, value)| *value > 0).collect();
            counters.sort();
            println!("{}: {counters:?}", host.name);
        }
    }

    /// Starts a command in an endpoint's namespace.
    pub fn spawn(&self, endpoint: &str, command: &[&str]) -> Child {
        Command::new("ip")
            .args(["netns", "exec", &format!("{}{endpoint}", self.prefix)])
            .args(command)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts")
    }
}

impl Host {
    pub fn start(&mut self) {
        self.child = Some(self.spawn(false));
        wait_for("the control socket", || self.connect().is_some());
    }

    /// A process of the switch. All of `ip` and `env` become the next, so the child is the switch itself.
    fn spawn(&self, takes_over: bool) -> Child {
        let path = self.config.run_dir.with_file_name("switch.json");
        std::fs::write(&path, serde_json::to_string(&self.config).expect("JSON")).expect("written");
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.netns])
            // The switch takes SIGTERM itself; the test harness has threads that would not.
            .args(["env", "--block-signal=TERM"])
            .arg(std::env::current_exe().expect("the test binary"))
            .args(["--exact", "forward::a_switch_without_its_files_says_what_is_missing", "--nocapture"])
            .env(CONFIG_VARIABLE, &path)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        if takes_over {
            command.env(TAKE_OVER_VARIABLE, "1");
        }
        command.spawn().expect("the switch starts")
    }

    /// Starts a process that takes over from the one that serves, and does not wait for it.
    pub fn begin_upgrade(&self) -> Child {
        self.spawn(true)
    }

    /// Has another process take over, and waits until the old one has ended well.
    pub fn upgrade(&mut self) {
        let mut new = self.begin_upgrade();
        let mut old = self.child.take().expect("a switch runs");
        let status = wait_child(&mut old, || new.try_wait().expect("asked").is_none());
        assert!(status.is_some_and(|status| status.success()), "the old one leaves: {status:?}");
        self.child = Some(new);
    }

    /// The process that serves.
    pub fn child(&mut self) -> &mut Child {
        self.child.as_mut().expect("a switch runs")
    }

    /// Another process is the switch now; returns the one before.
    pub fn replace_child(&mut self, new: Child) -> Option<Child> {
        self.child.replace(new)
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Ends it with SIGTERM and tells whether it ended well.
    pub fn terminate(&mut self) -> bool {
        let Some(mut child) = self.child.take() else { return false };
        sh(&format!("kill -TERM {}", child.id()));
        child.wait().is_ok_and(|status| status.success())
    }

    pub fn socket(&self) -> PathBuf {
        self.config.run_dir.join("control.sock")
    }

    pub fn connect(&self) -> Option<UnixStream> {
        UnixStream::connect(self.socket()).ok()
    }

    pub fn ask(&self, frame: &ToSwitch) -> FromSwitch {
        let mut stream = self.connect().expect("connected");
        write_frame(&mut stream, frame).expect("written");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        read_frame(&mut BufReader::new(stream)).expect("an answer")
    }

    pub fn question(&self, question: Question) -> Answer {
        match self.ask(&ToSwitch::Ask { id: 5, question }) {
            FromSwitch::Answer { id: 5, answer } => answer,
            other => panic!("{other:?}"),
        }
    }

    pub fn counters(&self) -> std::collections::HashMap<String, u64> {
        match self.question(Question::Counters) {
            Answer::Counters(all) => all.into_iter().collect(),
            other => panic!("{other:?}"),
        }
    }
}
