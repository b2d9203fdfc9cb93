//! Packets to and from a switch that is not ours: Open vSwitch's user-space datapath, over Geneve with our security token as an option that it
//! is told of. (The kernel's VXLAN is in `forward`.)
use crate::lab::{Lab, lab, sh, try_sh, wait_for};
use crate::scripts::{TCP_SINK, TCP_SOURCE, UDP_ECHO, UDP_SIZES};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use weir_model::resource::Encapsulation;
use weir_trust::token::TokenKey;

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

/// An Open vSwitch in a host's namespace, with its files in a directory of its own.
struct Ovs {
    dir: PathBuf,
    netns: String,
    processes: Vec<Child>,
}

impl Drop for Ovs {
    fn drop(&mut self) {
        for process in self.processes.iter_mut().rev() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Ovs {
    fn start(lab: &Lab, host: usize) -> Ovs {
        let dir = lab.dir.path().join("ovs");
        std::fs::create_dir_all(&dir).expect("a directory");
        let mut ovs = Ovs { dir, netns: lab.hosts[host].netns.clone(), processes: vec![] };
        let at = |name: &str| ovs.dir.join(name).display().to_string();
        let (database, socket) = (at("conf.db"), format!("unix:{}", at("db.sock")));
        sh(&format!("ovsdb-tool create {database} {SCHEMA}"));
        let remote = format!("--remote=p{socket}");
        ovs.spawn("ovsdb-server", &[&database, &remote]);
        wait_for("the database", || ovs.dir.join("db.sock").exists());
        ovs.run("ovs-vsctl", "--no-wait init");
        ovs.spawn("ovs-vswitchd", &[&socket]);
        ovs
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.netns, "env"]);
        for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR"] {
            command.arg(format!("{variable}={}", self.dir.display()));
        }
        command.arg(program).stdin(Stdio::null());
        command
    }

    fn spawn(&mut self, program: &str, arguments: &[&str]) {
        let mut command = self.command(program);
        let control = self.dir.join(format!("{program}.ctl"));
        command.args(arguments).arg(format!("--unixctl={}", control.display()));
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        self.processes.push(child);
    }

    /// Runs one of its programs with words.
    fn run(&self, program: &str, words: &str) -> String {
        let mut command = self.command(program);
        if program == "ovs-vsctl" {
            command.arg(format!("--db=unix:{}", self.dir.join("db.sock").display())).arg("--timeout=30");
        }
        let output = command.args(words.split(' ')).output().expect("it runs");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {words}: {error}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

#[test]
fn open_vswitch_and_ours_understand_each_others_geneve() {
    let Some(mut lab) = lab("open vswitch", 2, Encapsulation::Geneve, false, 1500) else { return };
    for program in ["ovs-vswitchd", "ovsdb-server", "ovs-vsctl"] {
        if !try_sh(&format!("which {program}")).status.success() {
            return println!("NOT RUN open_vswitch_and_ours_understand_each_others_geneve: needs {program}");
        }
    }
    lab.hosts[0].start();
    lab.add_endpoint_to(&[0], 0, "a", "10.0.0.1/24");
    let (prefix, mac) = (lab.prefix.clone(), lab.mac(0, "10.0.0.1"));
    let [ours, peer] = [0, 1].map(|host| lab.hosts[host].netns.clone());
    // Its user-space datapath takes whole frames with whole checksums only.
    sh(&format!(
        "ip netns exec {ours} ethtool -K u0 tx off && ip netns exec {peer} ethtool -K u0 tx off gro off"
    ));
    sh(&format!(
        "ip netns add {prefix}b && ip -n {peer} link add q0 type veth peer name t0 netns {prefix}b && \
         ip -n {peer} link set q0 up && ip netns exec {prefix}b ethtool -K t0 tx off && \
         ip -n {prefix}b link set t0 address 02:00:00:00:00:99 up && \
         ip -n {prefix}b addr add 10.0.0.2/24 dev t0 && ip -n {prefix}b neigh add 10.0.0.1 lladdr {mac} dev t0"
    ));
    let ovs = Ovs::start(&lab, 1);
    ovs.run("ovs-vsctl", "add-br phy -- set bridge phy datapath_type=netdev -- add-port phy u0");
    sh(&format!(
        "ip -n {peer} addr flush dev u0 && ip -n {peer} addr add 192.0.2.2/24 dev phy && \
         ip -n {peer} link set phy mtu 1600 up"
    ));
    ovs.run(
        "ovs-vsctl",
        "add-br int -- set bridge int datapath_type=netdev fail_mode=secure -- add-port int q0 \
         -- add-port int gnv -- set interface gnv type=geneve options:remote_ip=192.0.2.1 options:key=7",
    );
    let token = TokenKey::new([9; 16]).token(7, "192.0.2.2".parse().expect("an address"));
    let management = format!("unix:{}", ovs.dir.join("int.mgmt").display());
    ovs.run("ovs-ofctl", &format!("add-tlv-map {management} {{class=0xff57,type=1,len=8}}->tun_metadata0"));
    let outwards = format!("in_port=q0,actions=set_field:{token:#x}->tun_metadata0,output:gnv");
    ovs.run("ovs-ofctl", &format!("add-flow {management} {outwards}"));
    ovs.run("ovs-ofctl", &format!("add-flow {management} in_port=gnv,actions=output:q0"));
    lab.put_location(0, "b", "10.0.0.2", "02:00:00:00:00:99", 1);
    lab.run("a", "ping -c 5 -i 0.2 -W 5 10.0.0.2");
    for (from, to, address, port) in [("a", "b", "10.0.0.2", "7001"), ("b", "a", "10.0.0.1", "7002")] {
        let _sink = lab.python(to, TCP_SINK, &[port]);
        let out = lab.run_python(from, TCP_SOURCE, &[address, port, "5", "0"]);
        assert_eq!(out.trim(), "equal", "from {from}");
    }
    let _echo = lab.python("b", UDP_ECHO, &["7003"]);
    assert_eq!(lab.run_python("a", UDP_SIZES, &["10.0.0.2", "7003", "1", "1472", "50"]).trim(), "equal");
    // Without the token it is a stranger, whatever else it says.
    let strange = format!("in_port=q0,actions=set_field:{:#x}->tun_metadata0,output:gnv", token ^ 1);
    ovs.run("ovs-ofctl", &format!("add-flow {management} {strange}"));
    lab.hosts[0].kill();
    lab.hosts[0].start();
    let ping = format!("ip netns exec {prefix}b ping -c 2 -i 0.2 -W 1 10.0.0.1");
    assert!(!try_sh(&ping).status.success(), "a packet without our token was taken");
}
