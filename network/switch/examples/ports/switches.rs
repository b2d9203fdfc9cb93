//! The switches that are compared: Weir's engine, Open vSwitch with DPDK, testpmd. Each in a process of its own with two
//! vhost-user ports, its polling thread on processor 0, and a testpmd on processor 1 at the other end, between whose ports packets go
//! round. Only one pair runs at a time.

use crate::machine::{self, cpu_ns};
use crate::testpmd::{PATIENCE, Testpmd, ends_with_us};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Ethernet addresses that every switch writes.
const WRITTEN: [&str; 2] = ["02:00:00:00:00:08", "02:00:00:00:00:09"];

/// What a switch has done so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// Packets that it sent.
    pub packets: f64,
    /// Share of its time in which it had packets, or time of it: the unit is the switch's own.
    pub busy: f64,
    /// All of its time in the same unit.
    pub all: f64,
}

/// A switch and its generator.
pub struct Rig {
    switch: Box<dyn Switch>,
    generator: Testpmd,
}

/// What is asked of a switch.
pub trait Switch {
    /// Its processes.
    fn pid(&self) -> u32;
    /// The name of its polling thread.
    fn thread(&self) -> &'static str;
    /// What it has done so far.
    fn done(&mut self) -> Done;
    /// It is measured now: begin to count anew, where that is the only way.
    fn reset(&mut self) {}
}

/// What a window showed.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Processor time a packet of the polling thread while it had packets, nanoseconds.
    pub ns: f64,
    /// Millions of packets a second.
    pub rate: f64,
    /// Share of its processor that the polling thread had.
    pub share: f64,
    /// Share of its time in which it had packets.
    pub busy: f64,
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Rig {
    /// Connects a generator to the two sockets of a switch, and has packets of one flow go round, or packets of so many flows made
    /// in turn; pauses both then.
    pub fn new(
        name: &str,
        huge_dir: &Path,
        switch: Box<dyn Switch>,
        sockets: [PathBuf; 2],
        flows: u32,
    ) -> Rig {
        wait_for("the switch's sockets", || sockets.iter().all(|socket| socket.exists()));
        let device = |number: usize| {
            let (path, mac) = (sockets[number].display(), format!("02:00:00:00:00:0{}", number + 1));
            format!("net_virtio_user{number},path={path},queues=1,queue_size=1024,mac={mac}")
        };
        let around = ["--forward-mode=io", "--tx-ip=198.18.0.1,198.18.0.2"];
        let count = format!("--flowgen-flows={flows}");
        let (more, start) = match flows {
            1 => (around, "start tx_first 8"),
            _ => (["--forward-mode=flowgen", &count], "start"),
        };
        let mut generator = Testpmd::start(name, 1, huge_dir, [device(0), device(1)], &more);
        generator.say(start);
        let mut rig = Rig { switch, generator };
        let before = rig.switch.done().packets;
        wait_for("packets", || rig.switch.done().packets > before + 10_000.0);
        rig.run(false);
        rig
    }

    fn run(&self, runs: bool) {
        machine::pause(self.generator.pid(), !runs);
        machine::pause(self.switch.pid(), !runs);
    }

    /// Measures for so long.
    pub fn window(&mut self, length: Duration) -> Window {
        self.run(true);
        std::thread::sleep(Duration::from_millis(100));
        self.switch.reset();
        let cpu = |switch: &dyn Switch| cpu_ns(switch.pid(), switch.thread());
        let (start, cpu_before, before) = (Instant::now(), cpu(&*self.switch), self.switch.done());
        std::thread::sleep(length);
        let (wall, cpu_after, after) = (start.elapsed(), cpu(&*self.switch), self.switch.done());
        self.run(false);
        let packets = after.packets - before.packets;
        let busy = (after.busy - before.busy) / (after.all - before.all);
        let cpu_ns = (cpu_after - cpu_before) as f64;
        Window {
            ns: cpu_ns * busy / packets,
            rate: packets / wall.as_secs_f64() / 1e6,
            share: cpu_ns / wall.as_nanos() as f64,
            busy,
        }
    }
}

/// Weir's engine in a process of its own: see [`crate::engine_process`].
pub struct Weir {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    started: Instant,
}

impl Weir {
    /// With so many flows and frames in a batch.
    pub fn start(sockets: &[PathBuf; 2], flows: u32, batch: usize) -> Weir {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        ends_with_us(&mut command);
        let mut child = command
            .arg("engine")
            .args(sockets)
            .args([flows.to_string(), batch.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the engine starts");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Weir { child, input, output, started: Instant::now() }
    }
}

impl Switch for Weir {
    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn thread(&self) -> &'static str {
        "weir-engine"
    }

    fn done(&mut self) -> Done {
        let mut line = String::new();
        writeln!(self.input, "count").expect("the engine lives");
        self.output.read_line(&mut line).expect("the engine lives");
        let mut numbers = line.split_whitespace().map(|word| word.parse::<f64>().expect("a number"));
        let (packets, busy) = (numbers.next().expect("packets"), numbers.next().expect("busy"));
        Done { packets, busy, all: self.started.elapsed().as_nanos() as f64 }
    }
}

impl Drop for Weir {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// testpmd between two vhost ports: what moving a packet costs without looking at it.
pub struct Io {
    testpmd: Testpmd,
    started: Instant,
}

impl Io {
    /// On these sockets.
    pub fn start(huge_dir: &Path, sockets: &[PathBuf; 2]) -> Io {
        let device =
            |number: usize| format!("net_vhost{number},iface={},queues=1", sockets[number].display());
        let more = ["--forward-mode=io", "--auto-start"];
        let testpmd = Testpmd::start("io", 0, huge_dir, [device(0), device(1)], &more);
        Io { testpmd, started: Instant::now() }
    }
}

impl Switch for Io {
    fn pid(&self) -> u32 {
        self.testpmd.pid()
    }

    fn thread(&self) -> &'static str {
        "rte-worker"
    }

    fn done(&mut self) -> Done {
        let text = self.testpmd.ask("show fwd stats all", "for all ports+++");
        if !text.contains("MHz Clock") {
            // Of no packet it tells no cycles, either.
            return Done::default();
        }
        // Cycles of polls that had packets; the clock is in MHz.
        let number = |before: &str| {
            let rest = text.rsplit(before).next().expect("a figure");
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            digits.parse::<f64>().unwrap_or_default()
        };
        let clock_ghz = number(" at ") / 1000.0;
        Done {
            packets: number("packets="),
            busy: number("total cycles=") / clock_ghz,
            all: self.started.elapsed().as_nanos() as f64,
        }
    }
}

/// Open vSwitch with DPDK.
pub struct Ovs {
    dir: tempfile::TempDir,
    processes: Vec<Child>,
}

/// Where Debian's `openvswitch-switch-dpdk` has it, beside the one without DPDK.
pub const VSWITCHD: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

impl Ovs {
    /// Starts one with a rule that writes both Ethernet addresses, and with these settings of its caches. Returns it with its sockets.
    pub fn start(huge_dir: &Path, caches: &[&str]) -> (Ovs, [PathBuf; 2]) {
        let dir = tempfile::tempdir().expect("a directory");
        let mut ovs = Ovs { dir, processes: vec![] };
        let database = ovs.path("conf.db");
        ovs.run("ovsdb-tool", &["create", &database, SCHEMA]);
        let remote = format!("--remote=punix:{}", ovs.path("db.sock"));
        ovs.spawn(&["ovsdb-server"], &[&remote, &database]);
        wait_for("the database", || Path::new(&ovs.path("db.sock")).exists());
        let extra = format!(
            "--no-pci --file-prefix=weir-ports-ovs{} --huge-dir {}",
            ovs.dir.path().file_name().unwrap_or_default().display(),
            huge_dir.display()
        );
        ovs.vsctl(&["--no-wait", "init"]);
        let set = [
            "dpdk-init=true".to_string(),
            "dpdk-socket-mem=256".into(),
            "dpdk-lcore-mask=0x1".into(),
            "pmd-cpu-mask=0x1".into(),
            format!("dpdk-extra=\"{extra}\""),
        ];
        for pair in set.into_iter().chain(caches.iter().map(ToString::to_string)) {
            ovs.vsctl(&["--no-wait", "set", "Open_vSwitch", ".", &format!("other_config:{pair}")]);
        }
        let database = format!("unix:{}", ovs.path("db.sock"));
        // In a network namespace of its own: each makes a device of the same name.
        ovs.spawn(&["unshare", "--net", VSWITCHD], &[&database]);
        ovs.vsctl(&["add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev"]);
        for port in ["v0", "v1"] {
            ovs.vsctl(&["add-port", "br0", port, "--", "set", "Interface", port, "type=dpdkvhostuser"]);
        }
        let management = format!("unix:{}", ovs.path("br0.mgmt"));
        let [destination, source] = WRITTEN;
        for (from, to) in [("v0", "v1"), ("v1", "v0")] {
            let actions = format!("mod_dl_dst:{destination},mod_dl_src:{source},output:{to}");
            let flow = format!("priority=10,in_port={from},udp,actions={actions}");
            ovs.run("ovs-ofctl", &["add-flow", &management, &flow]);
        }
        let sockets = [ovs.dir.path().join("v0"), ovs.dir.path().join("v1")];
        (ovs, sockets)
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
            command.env(variable, self.dir.path());
        }
        command.args(arguments).stdin(Stdio::null());
        command
    }

    fn run(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.command(program, arguments).output().expect("it runs");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {arguments:?}: {error}{}", self.complaints());
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn vsctl(&self, arguments: &[&str]) {
        let database = format!("--db=unix:{}", self.path("db.sock"));
        self.run("ovs-vsctl", &[&["--timeout=30", &database], arguments].concat());
    }

    /// What its programs warn of and complain about.
    fn complaints(&self) -> String {
        let logs = (0..self.processes.len()).map(|nth| self.path(&format!("{nth}.log")));
        let text: String = logs.filter_map(|log| std::fs::read_to_string(log).ok()).collect();
        let lines =
            text.lines().filter(|line| ["|WARN|", "|ERR|", "|EMER|"].iter().any(|of| line.contains(of)));
        lines.map(|line| format!("\n{line}")).collect()
    }

    fn spawn(&mut self, program: &[&str], arguments: &[&str]) {
        let mut command = self.command(program[0], &[&program[1..], arguments].concat());
        ends_with_us(&mut command);
        let log = std::fs::File::create(self.path(&format!("{}.log", self.processes.len()))).expect("a file");
        command.stdout(Stdio::null()).stderr(log);
        command.args(["--pidfile", "--unixctl", &self.path(&format!("{}.ctl", self.processes.len()))]);
        self.processes.push(command.spawn().expect("it starts"));
    }
}

impl Switch for Ovs {
    fn pid(&self) -> u32 {
        self.processes[1].id()
    }

    fn thread(&self) -> &'static str {
        "pmd-"
    }

    fn done(&mut self) -> Done {
        let text = self.run("ovs-appctl", &["-t", &self.path("1.ctl"), "dpif-netdev/pmd-stats-show"]);
        let number = |name: &str| -> f64 {
            let rest = text.split(name).nth(1).unwrap_or_default().trim_start();
            rest.split_whitespace().next().unwrap_or_default().parse().unwrap_or_default()
        };
        let busy = number("processing cycles:");
        Done { packets: number("packets received:"), busy, all: busy + number("idle cycles:") }
    }
}

impl Drop for Ovs {
    fn drop(&mut self) {
        for process in self.processes.iter_mut().rev() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
