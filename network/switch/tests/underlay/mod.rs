//! The underlay by AF_XDP beside the UDP sockets: with itself, with a switch that has sockets alone, and with the kernel's VXLAN.
use crate::lab::{Lab, lab, sh, try_sh, wait_for};
use crate::scripts::{TCP_SINK, TCP_SOURCE, UDP_ECHO, UDP_SIZES};
use crate::upgrade::half;
use crate::veth::GENERIC_XDP;
use weir_model::resource::Encapsulation;
use weir_switch::config::UnderlayBy;

/// Two hosts, of which those named have the underlay by AF_XDP, with an endpoint each.
fn pair(name: &str, format: Encapsulation, v6: bool, mtu: u16, wired: &[usize]) -> Option<Lab> {
    let mut lab = lab(name, 2, format, v6, mtu)?;
    for host in wired {
        lab.hosts[*host].config.engine.underlay = UnderlayBy::AfXdp;
    }
    lab.start_all();
    lab.add_endpoint(0, "a", "10.0.0.1/24");
    lab.add_endpoint(1, "b", "10.0.0.2/24");
    wired.iter().for_each(|host| wait_for_wire(&lab, *host));
    Some(lab)
}

fn wait_for_wire(lab: &Lab, host: usize) {
    wait_for("the wire", || way(lab, host) == ("af-xdp-copy".into(), String::new()));
}

/// How a host's underlay goes, and why.
fn way(lab: &Lab, host: usize) -> (String, String) {
    let counters = lab.hosts[host].counters();
    let name = counters.keys().find(|name| name.starts_with("underlay_way{")).expect("a way");
    let of = |label: &str| {
        name.split(&format!("{label}=\"")).nth(1).unwrap().split('"').next().unwrap().to_string()
    };
    (of("way"), of("reason"))
}

fn count(lab: &Lab, host: usize, name: &str) -> u64 {
    lab.hosts[host].counters()[name]
}

/// Waits until a host's single datagrams go by the wire: its receiver's next hop is asked for with the first.
fn wait_for_hop(lab: &Lab, host: usize) {
    wait_for("the next hop", || {
        lab.run("a", "ping -c 1 -W 5 10.0.0.2");
        count(lab, host, "engine_wire_segments") > 0
    });
}

fn bulk(lab: &Lab, megabytes: u32) {
    for (from, to, address, port) in [("a", "b", "10.0.0.2", "7001"), ("b", "a", "10.0.0.1", "7002")] {
        let _sink = lab.python(to, TCP_SINK, &[port]);
        let out = lab.run_python(from, TCP_SOURCE, &[address, port, &megabytes.to_string(), "0"]);
        assert_eq!(out.trim(), "equal", "from {from}");
    }
}

/// UDP of every so manieth size up to the endpoints' MTU, there and back.
fn sizes(lab: &Lab, last: usize, step: usize) {
    let _echo = lab.python("b", UDP_ECHO, &["7003"]);
    let out =
        lab.run_python("a", UDP_SIZES, &["10.0.0.2", "7003", "1", &last.to_string(), &step.to_string()]);
    assert_eq!(out.trim(), "equal");
}

fn assert_nothing_refused(lab: &Lab, host: usize) {
    let refused =
        |name: &str| name.starts_with("parse_errors") || name == "drops{reason=\"underlay-truncated\"}";
    for (name, value) in lab.hosts[host].counters() {
        assert!(!refused(&name) || value == 0, "host {host}: {name} {value}");
    }
}

#[test]
fn both_by_af_xdp_carry_everything() {
    for (format, v6) in [
        (Encapsulation::Geneve, false),
        (Encapsulation::Vxlan, false),
        (Encapsulation::Geneve, true),
        (Encapsulation::Vxlan, true),
    ] {
        let Some(lab) = pair("underlay-both", format, v6, 1500, &[0, 1]) else { return };
        wait_for_hop(&lab, 0);
        lab.run("a", "ping -c 3 -i 0.05 -W 5 10.0.0.2");
        lab.run("a", "ping -c 2 -i 0.05 -W 5 -M do -s 1472 10.0.0.2");
        lab.run("a", "ping -c 2 -i 0.05 -W 5 -s 8000 10.0.0.2");
        sizes(&lab, 1472, 13);
        bulk(&lab, 10);
        for host in [0, 1] {
            assert_nothing_refused(&lab, host);
            assert!(count(&lab, host, "engine_wire_segments") > 100, "{:?}", lab.hosts[host].counters());
            assert!(count(&lab, host, "engine_wire_datagrams") > 100);
            assert!(count(&lab, host, "underlay_by_sockets{reason=\"super-frame\"}") > 0);
        }
    }
}

#[test]
fn one_by_af_xdp_and_one_by_sockets_understand_each_other() {
    for (wired, v6) in [(0, false), (1, false), (0, true)] {
        let Some(lab) = pair("underlay-one", Encapsulation::Geneve, v6, 1500, &[wired]) else { return };
        lab.run("a", "ping -c 3 -i 0.05 -W 5 10.0.0.2");
        sizes(&lab, 1472, 13);
        bulk(&lab, 10);
        [0, 1].into_iter().for_each(|host| assert_nothing_refused(&lab, host));
        assert!(count(&lab, wired, "engine_wire_datagrams") > 100);
        assert_eq!(count(&lab, 1 - wired, "engine_wire_datagrams"), 0);
    }
}

#[test]
fn frames_of_several_chunks_go_by_af_xdp() {
    let Some(lab) = pair("underlay-large", Encapsulation::Geneve, false, 9000, &[0, 1]) else { return };
    wait_for_hop(&lab, 0);
    lab.run("a", "ping -c 2 -i 0.05 -W 5 -M do -s 8972 10.0.0.2");
    sizes(&lab, 8972, 211);
    bulk(&lab, 10);
    [0, 1].into_iter().for_each(|host| assert_nothing_refused(&lab, host));
}

#[test]
fn the_kernels_vxlan_understands_af_xdp() {
    let Some(mut lab) = lab("underlay vxlan", 2, Encapsulation::Vxlan, false, 1500) else { return };
    let is_there = lab.kernel_vxlan_peer(|lab| {
        lab.hosts[0].config.engine.underlay = UnderlayBy::AfXdp;
        lab.hosts[0].start();
        lab.add_endpoint_to(&[0], 0, "a", "10.0.0.1/24");
    });
    if !is_there {
        return println!("NOT RUN the_kernels_vxlan_understands_af_xdp: this kernel has no VXLAN device");
    }
    wait_for_wire(&lab, 0);
    wait_for_hop(&lab, 0);
    sizes(&lab, 1472, 29);
    bulk(&lab, 5);
    assert_nothing_refused(&lab, 0);
}

/// Sends to the UDP ports of a switch what is no datagram of one: plain, too large for one packet, and with an IP option. Argument: address.
const NONSENSE: &str = r#"
import os, socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("192.0.2.2", 0))
for port in (6081, 4789):
    for size in range(0, 200):
        s.sendto(os.urandom(size), (sys.argv[1], port))
    s.sendto(os.urandom(4000), (sys.argv[1], port))
s.setsockopt(socket.IPPROTO_IP, 4, b"\x01\x01\x01\x00")
for port in (6081, 4789):
    s.sendto(os.urandom(100), (sys.argv[1], port))
"#;

/// What the program does not take comes by the sockets, and nonsense ends nothing, whichever way it comes.
#[test]
fn fragments_and_options_come_by_the_sockets_and_nonsense_harms_nobody() {
    let Some(lab) = pair("underlay-nonsense", Encapsulation::Geneve, false, 1500, &[0]) else { return };
    wait_for_hop(&lab, 0);
    let counted = || (count(&lab, 0, "engine_wire_datagrams"), count(&lab, 0, "engine_underlay_receives"));
    let (wire, sockets) = counted();
    lab.run_python("h1", NONSENSE, &["192.0.2.1"]);
    wait_for("all of it", || {
        let (by_wire, by_sockets) = counted();
        by_wire >= wire + 400 && by_sockets >= sockets + 4
    });
    lab.run("a", "ping -c 3 -i 0.05 -W 5 10.0.0.2");
    bulk(&lab, 5);
}

/// Says "seen" when a frame to an Ethernet address and the UDP port of Geneve passes a device. Arguments: device, address.
const SEES: &str = r#"
import socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.bind((sys.argv[1], 0))
wanted = bytes.fromhex(sys.argv[2].replace(":", ""))
print("ready", flush=True)
while True:
    frame = s.recv(65536)
    if frame[:6] == wanted and frame[12:14] == b"\x08\x00" and frame[36:38] == (6081).to_bytes(2, "big"):
        break
print("seen", flush=True)
sys.stdin.read()
"#;

#[test]
fn a_change_of_neighbour_route_and_mtu_is_followed() {
    let Some(lab) = pair("underlay-neighbour", Encapsulation::Geneve, false, 1500, &[0, 1]) else { return };
    wait_for_hop(&lab, 0);
    let netns = lab.hosts[0].netns.clone();
    let mac = sh(&format!("ip netns exec {} cat /sys/class/net/u0/address", lab.hosts[1].netns));
    let mut pings = lab.spawn("a", &["ping", "-q", "-i", "0.02", "10.0.0.2"]);
    let sees = |address: &str| {
        let watching = lab.python_with_input("u", SEES, &["p0", address]);
        move || assert_eq!(watching.finish(), ["seen"])
    };
    let (first, second) = ("02:00:00:00:00:77", "02:00:00:00:00:78");
    let seen = sees(first);
    sh(&format!("ip -n {netns} neigh replace 192.0.2.2 lladdr {first} dev u0 nud permanent"));
    seen();
    let seen = sees(second);
    sh(&format!(
        "ip -n {netns} neigh replace 192.0.2.77 lladdr {second} dev u0 nud permanent && \
         ip -n {netns} route add 192.0.2.2/32 via 192.0.2.77 dev u0"
    ));
    let before = count(&lab, 0, "engine_wire_segments");
    seen();
    wait_for("frames by the wire", || count(&lab, 0, "engine_wire_segments") > before + 5);
    let mac = mac.trim();
    sh(&format!(
        "ip -n {netns} route replace 192.0.2.2/32 dev u0 mtu 600 && \
         ip -n {netns} neigh replace 192.0.2.2 lladdr {mac} dev u0 nud reachable"
    ));
    lab.run("a", "ping -c 3 -i 0.05 -W 5 10.0.0.2");
    let large = "underlay_by_sockets{reason=\"mtu\"}";
    wait_for("larger ones by sockets", || {
        // The sockets do not fragment either: none arrives.
        try_sh(&format!("ip netns exec {}a ping -c 1 -W 1 -s 1000 10.0.0.2", lab.prefix));
        count(&lab, 0, large) > 0
    });
    sh(&format!("ip -n {netns} route replace blackhole 192.0.2.2/32"));
    let other = "underlay_by_sockets{reason=\"other-way\"}";
    wait_for("none by the wire", || count(&lab, 0, other) > 0);
    sh(&format!("ip -n {netns} route del blackhole 192.0.2.2/32"));
    lab.run("a", "ping -c 3 -i 0.05 -W 5 10.0.0.2");
    pings.kill().unwrap();
    pings.wait().unwrap();
}

/// Nothing that comes while one process takes over from another is lost; when a hand-over fails the old one goes on by the wire.
#[test]
fn nothing_is_lost_when_a_switch_is_replaced() {
    let Some(mut lab) = pair("underlay-upgrade", Encapsulation::Geneve, false, 1500, &[0, 1]) else { return };
    wait_for_hop(&lab, 0);
    let pings = lab.spawn("a", &["ping", "-q", "-c", "800", "-i", "0.005", "-W", "30", "10.0.0.2"]);
    for round in 0..4 {
        lab.hosts[round % 2].upgrade();
        wait_for_wire(&lab, round % 2);
    }
    let text = String::from_utf8_lossy(&pings.wait_with_output().unwrap().stdout).into_owned();
    lab.print_counters();
    assert!(text.contains("800 received"), "{text}");
    assert_eq!(lab.hosts[0].counters()["handover_taken_over"], 1);
    wait_for_hop(&lab, 0);
    // One that has everything and stands still is killed, and the old one goes on.
    assert!(!half(&lab, 0, "hang").wait().unwrap().success());
    wait_for("the old one", || count(&lab, 0, "handovers_failed{phase=\"blackout\"}") == 1);
    wait_for_wire(&lab, 0);
    let (sent, came) = (count(&lab, 0, "engine_wire_segments"), count(&lab, 0, "engine_wire_datagrams"));
    lab.run("a", "ping -c 20 -i 0.01 -W 5 10.0.0.2");
    assert!(count(&lab, 0, "engine_wire_segments") >= sent + 20);
    assert!(count(&lab, 0, "engine_wire_datagrams") >= came + 20);
    bulk(&lab, 5);
    for host in [0, 1] {
        assert_eq!(count(&lab, host, "underlay_wire_lost"), 0);
    }
}

#[test]
fn the_program_ends_with_a_switch_that_is_killed() {
    let Some(mut lab) = pair("underlay-killed", Encapsulation::Geneve, false, 1500, &[0, 1]) else { return };
    wait_for_hop(&lab, 0);
    let shown = format!("ip -n {} link show u0", lab.hosts[0].netns);
    assert!(sh(&shown).contains("xdp"));
    lab.hosts[0].kill();
    wait_for("the program to be off", || !sh(&shown).contains("xdp"));
    lab.hosts[0].config.engine.underlay = UnderlayBy::Sockets;
    lab.hosts[0].start();
    lab.run("a", "ping -c 3 -i 0.05 -W 5 10.0.0.2");
    assert_eq!(count(&lab, 0, "engine_wire_datagrams"), 0);
    lab.hosts[0].kill();
    lab.hosts[0].config.engine.underlay = UnderlayBy::AfXdp;
    lab.hosts[0].start();
    wait_for_wire(&lab, 0);
    wait_for_hop(&lab, 0);
    bulk(&lab, 5);
}

/// The device is made anew, as when a card's driver is: sockets carry everything meanwhile.
#[test]
fn a_device_that_comes_back_is_had_again() {
    let Some(lab) = pair("underlay-device", Encapsulation::Geneve, false, 1500, &[0]) else { return };
    wait_for_hop(&lab, 0);
    let (netns, prefix) = (lab.hosts[0].netns.clone(), lab.prefix.clone());
    sh(&format!("ip -n {netns} link del u0"));
    wait_for("the reason", || way(&lab, 0).1.contains("no device has the address"));
    sh(&format!(
        "ip -n {netns} link add u0 mtu 1600 type veth peer name p0 netns {prefix}u mtu 1600 && \
         ip -n {prefix}u link set p0 master sw0 up && ip -n {netns} addr add 192.0.2.1/24 dev u0 && \
         ip -n {netns} link set u0 up"
    ));
    wait_for_wire(&lab, 0);
    let before = count(&lab, 0, "engine_wire_segments");
    wait_for("the next hop", || {
        try_sh(&format!("ip netns exec {prefix}a ping -c 1 -W 1 10.0.0.2"));
        count(&lab, 0, "engine_wire_segments") > before
    });
    lab.run("a", "ping -c 3 -i 0.05 -W 5 10.0.0.2");
}

#[test]
fn each_queue_of_a_device_has_a_socket() {
    let Some(mut lab) = lab("underlay-queues", 2, Encapsulation::Geneve, false, 1500) else { return };
    for host in &mut lab.hosts {
        host.config.engine.underlay = UnderlayBy::AfXdp;
        let set = try_sh(&format!("ip netns exec {} ethtool -L u0 rx 2 tx 2", host.netns));
        if !set.status.success() {
            return println!("NOT RUN each_queue_of_a_device_has_a_socket: its veth pairs have one queue");
        }
    }
    for host in 0..2 {
        let (prefix, port) = (lab.prefix.clone(), format!("p{host}"));
        sh(&format!("ip netns exec {prefix}u ethtool -L {port} rx 2 tx 2"));
    }
    lab.start_all();
    lab.add_endpoint(0, "a", "10.0.0.1/24");
    lab.add_endpoint(1, "b", "10.0.0.2/24");
    for host in 0..2 {
        wait_for_wire(&lab, host);
        assert_eq!(count(&lab, host, "underlay_wire_queues"), 2);
    }
    wait_for_hop(&lab, 0);
    sizes(&lab, 1472, 101);
    bulk(&lab, 5);
    assert_nothing_refused(&lab, 0);
}

#[test]
fn where_it_cannot_be_had_sockets_carry_everything_and_the_reason_is_told() {
    let Some(mut lab) = lab("underlay-refused", 2, Encapsulation::Geneve, false, 1500) else { return };
    if !cfg!(target_arch = "x86_64") {
        return println!("NOT RUN underlay-refused: it knows the system calls of x86-64 only");
    }
    lab.hosts[0].config.engine.underlay = UnderlayBy::AfXdp;
    let held = lab.python_with_input("h0", GENERIC_XDP, &["u0"]);
    lab.hosts[1].config.engine.underlay = UnderlayBy::AfXdp;
    lab.start_all();
    lab.add_endpoint(0, "a", "10.0.0.1/24");
    lab.add_endpoint(1, "b", "10.0.0.2/24");
    wait_for("the reason", || {
        way(&lab, 0).1.contains("device 'u0': attaching the XDP program failed: File exists")
    });
    assert_eq!(way(&lab, 0).0, "sockets");
    lab.run("a", "ping -c 3 -i 0.05 -W 5 10.0.0.2");
    bulk(&lab, 5);
    drop(held);
    // It is tried again.
    wait_for_wire(&lab, 0);
    lab.hosts[0].kill();
    lab.hosts[0].config.underlay = "127.0.0.1".parse().unwrap();
    lab.hosts[0].start();
    wait_for("the reason", || way(&lab, 0).1.contains("device 'lo': it is a loopback device"));
}
