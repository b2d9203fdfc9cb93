//! Open vSwitch's user-space datapath with Geneve tunnels, in each of its port modes.
//!
//! ```text
//! tenant1 eth0 ─ ten ┐ host1                 host2 ┌ ten ─ eth0 tenant2
//!                   int ─ gnv ┄┄ Geneve ┄┄ gnv ─ int
//!                   phy ─ under ═════════ under ─ phy
//! ```
//!
//! Each host has its own `ovsdb-server` and `ovs-vswitchd`, with sockets and database in the scope's run
//! directory; the system's service is neither used nor touched. `ovs-vswitchd` is pinned to its host's core, which
//! measured better for it than leaving it free. Checksum and segmentation offloads are off where it would
//! otherwise drop packets: version 3.1 cannot tunnel what has them.

use super::path::{Endpoints, Path};
use super::topology::{Hosts, TENANT_MTU_BYTES, Tenants, UNDERLAY_MTU_BYTES};
use crate::{Daemon, Error, Netns, Program, Result, Scope, system};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
const SWITCH: &str = "ovs-vswitchd";
/// Where Debian has the build with DPDK, without which there is no segmentation offload in user space.
const SWITCH_WITH_DPDK: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
/// How long its programs may take to answer.
const START_BOUND: Duration = Duration::from_secs(20);

/// How the datapath reads and writes packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Packet sockets on veth pairs.
    System,
    /// TAP devices for tenants, a packet socket for the underlay.
    Tap,
    /// The same, with `userspace-tso-enable`: tenants hand super-frames and partial checksums over.
    TapTso,
    /// AF_XDP sockets on veth pairs, in generic mode, polled by a thread on the host's core.
    AfXdp,
    /// The same in native mode: the program is the driver's, the socket copies still.
    AfXdpNative,
}

impl Mode {
    /// All modes.
    pub const ALL: [Mode; 5] = [Mode::System, Mode::Tap, Mode::TapTso, Mode::AfXdp, Mode::AfXdpNative];

    /// Its name as a path.
    pub fn name(self) -> &'static str {
        match self {
            Mode::System => "ovs-system",
            Mode::Tap => "ovs-tap",
            Mode::TapTso => "ovs-tap-tso",
            Mode::AfXdp => "ovs-afxdp",
            Mode::AfXdpNative => "ovs-afxdp-native",
        }
    }

    fn short(self) -> &'static str {
        match self {
            Mode::System => "os",
            Mode::Tap => "ot",
            Mode::TapTso => "og",
            Mode::AfXdp => "ox",
            Mode::AfXdpNative => "on",
        }
    }

    fn program(self) -> &'static str {
        if self == Mode::TapTso { SWITCH_WITH_DPDK } else { SWITCH }
    }

    fn has_tap(self) -> bool {
        matches!(self, Mode::Tap | Mode::TapTso)
    }

    fn polls(self) -> bool {
        matches!(self, Mode::AfXdp | Mode::AfXdpNative)
    }

    /// The interface settings of a port that is one end of a veth pair.
    fn veth_port(self) -> &'static [&'static str] {
        match self {
            Mode::System | Mode::Tap | Mode::TapTso => &["type=system"],
            Mode::AfXdp => &["type=afxdp", "options:xdp-mode=generic"],
            Mode::AfXdpNative => &["type=afxdp", "options:xdp-mode=native"],
        }
    }
}

/// One mode of Open vSwitch's user-space datapath.
#[derive(Debug)]
pub struct OpenVswitch {
    mode: Mode,
    version: String,
    daemons: Vec<Daemon>,
}

impl OpenVswitch {
    /// A path in `mode`, or why there is none here: not installed.
    pub fn new(mode: Mode) -> Result<Self> {
        let program = mode.program();
        system::require_installed(&[program, "ovsdb-server", "ovsdb-tool", "ovs-vsctl", "ethtool"])?;
        let text = system::run(program, &["--version"])?;
        let version =
            text.lines().next().and_then(|line| line.split_whitespace().last()).unwrap_or("unknown");
        Ok(Self { mode, version: version.to_string(), daemons: Vec::new() })
    }

    fn start_host(&mut self, scope: &Scope, hosts: &Hosts, tenants: &Tenants, index: usize) -> Result<()> {
        let host = &hosts.netns[index];
        let switch = Switch::start(scope, self.mode, host, index, &mut self.daemons)?;
        let mut underlay = vec!["--", "set", "interface", "under"];
        underlay.extend_from_slice(self.mode.veth_port());
        switch.add_bridge("phy", &[&["--", "add-port", "phy", "under"], underlay.as_slice()].concat())?;
        hosts.address(index, "phy")?;
        host.mtu("phy", UNDERLAY_MTU_BYTES)?;
        host.up("phy")?;
        let remote = format!("options:remote_ip={}", hosts.addresses[1 - index]);
        let tunnel = ["--", "add-port", "int", "gnv", "--", "set", "interface", "gnv", "type=geneve"];
        switch.add_bridge("int", &[&tunnel[..], &[remote.as_str(), "options:key=77"]].concat())?;
        self.add_tenant(&switch, host, &tenants.netns[index])
    }

    fn add_tenant(&self, switch: &Switch, host: &Netns, tenant: &Netns) -> Result<()> {
        if self.mode.has_tap() {
            let mtu = format!("mtu_request={TENANT_MTU_BYTES}");
            switch.vsctl(&[
                "add-port",
                "int",
                "ten",
                "--",
                "set",
                "interface",
                "ten",
                "type=internal",
                &mtu,
            ])?;
            // The device goes to the tenant; the switch keeps reading and writing its descriptor.
            host.move_link("ten", tenant)?;
            tenant.ip(&["link", "set", "dev", "ten", "name", "eth0"])?;
            return Ok(());
        }
        tenant.veth("eth0", host, "ten")?;
        host.up("ten")?;
        tenant.offloads_off("eth0")?;
        host.offloads_off("ten")?;
        let port = ["add-port", "int", "ten", "--", "set", "interface", "ten"];
        switch.vsctl(&[&port[..], self.mode.veth_port()].concat())
    }

    fn signal_switches(&self, signal: Signal) -> Result<()> {
        for daemon in self.daemons.iter().filter(|daemon| daemon.name().contains("vswitchd")) {
            daemon.signal(signal)?;
        }
        Ok(())
    }
}

impl Path for OpenVswitch {
    fn name(&self) -> &str {
        self.mode.name()
    }

    fn system(&self) -> &str {
        "ovs"
    }

    fn conditions(&self) -> String {
        let ports = match self.mode {
            Mode::System => "system ports, offloads off",
            Mode::Tap => "TAP tenant ports, system underlay port",
            Mode::TapTso => "TAP tenant ports with userspace-tso-enable, system underlay port",
            Mode::AfXdp => "AF_XDP ports in generic mode, polling thread on the host's core, offloads off",
            Mode::AfXdpNative => {
                "AF_XDP ports in native mode, polling thread on the host's core, offloads off"
            }
        };
        format!(
            "Open vSwitch {} user-space datapath, Geneve, {ports}; pinned to the host's core",
            self.version
        )
    }

    fn set_up(&mut self, scope: &Scope) -> Result<Endpoints> {
        let hosts = Hosts::create(scope, self.mode.short())?;
        let tenants = Tenants::create(scope, self.mode.short())?;
        for host in &hosts.netns {
            host.offloads_off("under")?;
        }
        for index in 0..2 {
            self.start_host(scope, &hosts, &tenants, index)?;
        }
        tenants.configure()
    }

    fn pause(&mut self) -> Result<()> {
        self.signal_switches(Signal::STOP)
    }

    fn resume(&mut self) -> Result<()> {
        self.signal_switches(Signal::CONT)
    }

    fn complaint(&self) -> Option<String> {
        let logs = self.daemons.iter().filter_map(|daemon| std::fs::read_to_string(daemon.log_path()).ok());
        complaint(&logs.collect::<String>())
    }

    fn tear_down(&mut self) -> Result<()> {
        // The switch goes before its database, the other way round from the start.
        while let Some(mut daemon) = self.daemons.pop() {
            daemon.stop()?;
        }
        Ok(())
    }
}

/// One host's switch and its database.
struct Switch {
    database: String,
}

impl Switch {
    fn start(
        scope: &Scope,
        mode: Mode,
        host: &Netns,
        index: usize,
        daemons: &mut Vec<Daemon>,
    ) -> Result<Self> {
        let name = format!("{}-h{}", mode.name(), index + 1);
        let folder = scope.folder().join(&name);
        std::fs::create_dir_all(&folder)
            .map_err(|error| Error::io(format!("make {}", folder.display()), error))?;
        let file = |leaf: &str| text(&folder.join(leaf));
        let database = format!("unix:{}", file("db.sock"));
        system::run("ovsdb-tool", &["create", &file("conf.db"), SCHEMA])?;
        let server = own_folders(Program::new("ovsdb-server").netns(host), &folder).args([
            file("conf.db"),
            format!("--remote=punix:{}", file("db.sock")),
            format!("--unixctl={}", file("ovsdb.ctl")),
        ]);
        let server = scope.start(&format!("{name}-ovsdb"), &server)?;
        server.wait_until("ovsdb-server socket", START_BOUND, || Ok(folder.join("db.sock").exists()))?;
        daemons.push(server);
        let switch = Self { database };
        switch.vsctl_now(&["init"])?;
        if mode == Mode::TapTso {
            switch.vsctl_now(&["set", "Open_vSwitch", ".", "other_config:userspace-tso-enable=true"])?;
        }
        if mode.polls() {
            let mask = format!("other_config:pmd-cpu-mask=0x{:x}", 1 << index);
            switch.vsctl_now(&["set", "Open_vSwitch", ".", &mask])?;
        }
        let core = u32::try_from(index).unwrap_or(0);
        let vswitchd = own_folders(Program::new(mode.program()).netns(host).core(core), &folder)
            .args([switch.database.clone(), format!("--unixctl={}", file("vswitchd.ctl"))]);
        let vswitchd = scope.start(&format!("{name}-vswitchd"), &vswitchd)?;
        vswitchd.wait_until("ovs-vswitchd control socket", START_BOUND, || {
            Ok(folder.join("vswitchd.ctl").exists())
        })?;
        daemons.push(vswitchd);
        Ok(switch)
    }

    /// Adds a bridge of the user-space datapath, with more settings in the same transaction.
    fn add_bridge(&self, bridge: &str, more: &[&str]) -> Result<()> {
        let first =
            ["add-br", bridge, "--", "set", "bridge", bridge, "datapath_type=netdev", "fail_mode=standalone"];
        self.vsctl(&[&first[..], more].concat())
    }

    /// Changes the configuration and waits until the switch has taken it.
    fn vsctl(&self, args: &[&str]) -> Result<()> {
        let database = format!("--db={}", self.database);
        let bound = format!("--timeout={}", START_BOUND.as_secs());
        system::run("ovs-vsctl", &[&[database.as_str(), bound.as_str()], args].concat())?;
        Ok(())
    }

    /// Changes the configuration before the switch runs.
    fn vsctl_now(&self, args: &[&str]) -> Result<()> {
        self.vsctl(&[&["--no-wait"], args].concat())
    }
}

/// The warning or error that is most often in a log of lines `time|number|module|level|text`.
pub(super) fn complaint(log: &str) -> Option<String> {
    let mut counts = BTreeMap::<&str, usize>::new();
    for line in log.lines().filter(|line| line.contains("|WARN|") || line.contains("|ERR|")) {
        *counts.entry(line.splitn(5, '|').last()?).or_default() += 1;
    }
    let most = counts.into_iter().max_by_key(|(_, count)| *count)?;
    Some(most.0.to_string())
}

/// Its sockets, logs and database in `folder` and nowhere else.
fn own_folders(program: Program, folder: &FilePath) -> Program {
    program.env("OVS_RUNDIR", text(folder)).env("OVS_LOGDIR", text(folder)).env("OVS_DBDIR", text(folder))
}

fn text(path: &FilePath) -> String {
    PathBuf::from(path).to_string_lossy().into_owned()
}
