//! Endpoints behind a veth pair, whose frames the switch has by AF_XDP or by AF_PACKET.
use crate::lab::{Lab, lab, label, sh, try_sh, wait_for};
use crate::scripts::{TCP_SINK, TCP_SOURCE, UDP_ECHO, UDP_SIZES};
use crate::upgrade::half;
use weir_model::local::{Answer, PortStatus, Question};
use weir_model::resource::{AttachmentKind, Encapsulation};
use weir_switch::ports::{in_namespace, veth, xdp};

const KINDS: [AttachmentKind; 2] = [AttachmentKind::AfXdp, AttachmentKind::AfPacket];

/// Two hosts: `a` behind a pair, `b` behind a TAP.
fn pair(name: &str, kind: AttachmentKind, mtu: u16) -> Option<Lab> {
    let mut lab = lab(name, 2, Encapsulation::Geneve, false, mtu)?;
    lab.start_all();
    lab.add_endpoint_of(kind, 0, "a", "10.0.0.1/24");
    lab.add_endpoint(1, "b", "10.0.0.2/24");
    Some(lab)
}

fn status(lab: &Lab) -> PortStatus {
    match lab.hosts[0].question(Question::Ports) {
        Answer::Ports(ports) => ports.into_iter().find(|port| port.name.endpoint == label("a")).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// Both ways.
fn bulk(lab: &Lab, megabytes: u32) {
    for (from, to, address, port) in [("a", "b", "10.0.0.2", "7001"), ("b", "a", "10.0.0.1", "7002")] {
        let _sink = lab.python(to, TCP_SINK, &[port]);
        let out = lab.run_python(from, TCP_SOURCE, &[address, port, &megabytes.to_string(), "0"]);
        assert_eq!(out.trim(), "equal", "from {from}");
    }
}

/// What the kernel of an endpoint has counted of a protocol.
fn counted(lab: &Lab, endpoint: &str, protocol: &str, what: &str) -> u64 {
    let text = lab.run(endpoint, "cat /proc/net/snmp");
    let mut rows = text.lines().filter(|line| line.starts_with(protocol));
    let (names, values) = (rows.next().unwrap(), rows.next().unwrap());
    let named = names.split(' ').zip(values.split(' ')).find(|(name, _)| *name == what);
    named.unwrap().1.parse().unwrap()
}

/// Packets whose checksum the kernel of an endpoint found wrong.
fn wrong_checksums(lab: &Lab, endpoint: &str) -> u64 {
    ["Tcp:", "Udp:"].into_iter().map(|protocol| counted(lab, endpoint, protocol, "InCsumErrors")).sum()
}

#[test]
fn frames_of_a_pair_go_both_ways_with_right_checksums() {
    for kind in KINDS {
        let Some(lab) = pair("veth", kind, 1500) else { return };
        lab.run("a", "ping -c 3 -i 0.05 -W 5 10.0.0.2");
        lab.run("a", "ping -c 2 -i 0.05 -W 5 -M do -s 1472 10.0.0.2");
        lab.run("a", "ping -c 2 -i 0.05 -W 5 -s 8000 10.0.0.2");
        bulk(&lab, 20);
        let _echo = lab.python("b", UDP_ECHO, &["7003"]);
        assert_eq!(lab.run_python("a", UDP_SIZES, &["10.0.0.2", "7003", "1", "1472", "7"]).trim(), "equal");
        let status = status(&lab);
        assert!(status.up && status.reason.is_empty(), "{kind:?} is what was wanted: {status:?}");
        assert!(status.rx_frames > 0 && status.tx_frames > 0, "{status:?}");
        for endpoint in ["a", "b"] {
            assert_eq!(wrong_checksums(&lab, endpoint), 0, "{kind:?}, {endpoint}");
        }
        let offers = lab.run("a", "ethtool -k t0");
        let on = kind == AttachmentKind::AfPacket;
        for feature in ["tx-checksumming", "tcp-segmentation-offload"] {
            let line = format!("{feature}: {}", if on { "on" } else { "off" });
            assert!(offers.contains(&line), "'{line}' is not in {offers}");
        }
        let counters = lab.hosts[0].counters();
        assert_eq!(counters["engine_spread_frames"] > 0, on, "super-frames come by AF_PACKET alone");
    }
}

#[test]
fn large_frames_of_a_pair_take_several_chunks() {
    for kind in KINDS {
        let Some(lab) = pair("veth-large", kind, 9000) else { return };
        lab.run("a", "ping -c 2 -i 0.05 -W 5 -M do -s 8972 10.0.0.2");
        bulk(&lab, 20);
        let _echo = lab.python("b", UDP_ECHO, &["7003"]);
        // Around each number of chunks, and the largest.
        for size in [2006_u16, 4054, 6102, 8150, 8970] {
            let (from, to) = (size.to_string(), (size + 2).to_string());
            let out = lab.run_python("a", UDP_SIZES, &["10.0.0.2", "7003", &from, &to, "1"]);
            assert_eq!(out.trim(), "equal", "{kind:?}");
        }
        assert!(status(&lab).reason.is_empty(), "{:?}", status(&lab));
        assert_eq!(lab.hosts[0].counters()["drops{reason=\"port-read\"}"], 0);
    }
}

/// Holds an XDP program on a device in the kernel's generic mode, which lets frames pass. Argument: device.
pub const GENERIC_XDP: &str = r#"
import ctypes, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def bpf(command, attributes):
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    result = libc.syscall(321, command, buffer, len(attributes))
    assert result >= 0, (command, ctypes.get_errno())
    return result
code = struct.pack("<BBhiBBhi", 0xb7, 0, 0, 2, 0x95, 0, 0, 0)
code, license = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"GPL")
program = bpf(5, struct.pack("<IIQQIIQII16sII", 6, 2, ctypes.addressof(code), ctypes.addressof(license), 0, 0, 0, 0, 0, b"pass", 0, 37))
link = bpf(28, struct.pack("<IIII4Q", program, socket.if_nametoindex(sys.argv[1]), 37, 1 << 1, 0, 0, 0, 0))
print("ready", flush=True)
sys.stdin.read()
"#;

/// A device that has a program already takes no other of its driver's: AF_PACKET is taken, and the status says why.
#[test]
fn where_af_xdp_cannot_be_had_af_packet_is_taken_and_the_reason_told() {
    let Some(mut lab) = lab("veth-fallback", 2, Encapsulation::Geneve, false, 1500) else { return };
    if !cfg!(target_arch = "x86_64") {
        return println!("NOT RUN veth-fallback: it knows the system calls of x86-64 only");
    }
    lab.start_all();
    sh(&format!("ip netns add {}a", lab.prefix));
    lab.make_pair(0, "a", "10.0.0.1/24");
    let end = lab.host_end("a");
    let _held = lab.python_with_input("h0", GENERIC_XDP, &[&end]);
    lab.add_endpoint_there(AttachmentKind::AfXdp, 0, "a", "10.0.0.1/24");
    lab.add_endpoint(1, "b", "10.0.0.2/24");
    wait_for("another way", || status(&lab).up);
    let reason = status(&lab).reason;
    assert!(reason.contains("by AF_PACKET, not AF_XDP") && reason.contains(&end), "{reason}");
    lab.run("a", "ping -c 3 -i 0.05 -W 5 10.0.0.2");
    bulk(&lab, 5);
    let offers = lab.run("a", "ethtool -k t0");
    assert!(offers.contains("tx-checksumming: on"), "what AF_PACKET carries is offered again: {offers}");
}

/// While another process has the device's frames the port waits for it, as after a hand-over, and then has them by AF_XDP.
#[test]
fn a_device_that_another_process_has_is_waited_for() {
    let Some(mut lab) = lab("veth-busy", 2, Encapsulation::Geneve, false, 1500) else { return };
    lab.start_all();
    sh(&format!("ip netns add {}a", lab.prefix));
    lab.make_pair(0, "a", "10.0.0.1/24");
    let (end, host) = (lab.host_end("a"), lab.hosts[0].netns.clone());
    let name = end.clone();
    let other = in_namespace(Some(&host), move || {
        veth::prepare(&name)?;
        xdp::Socket::open(&name)
    });
    let other = other.unwrap().expect("a socket");
    assert!(!other.is_zero_copy(), "veth has no zero-copy");
    lab.add_endpoint_there(AttachmentKind::AfXdp, 0, "a", "10.0.0.1/24");
    lab.add_endpoint(1, "b", "10.0.0.2/24");
    wait_for("the reason", || status(&lab).reason.contains("is used by another process"));
    drop(other);
    wait_for("the port", || status(&lab).up);
    assert_eq!(status(&lab).reason, "");
    lab.run("a", "ping -c 3 -i 0.05 -W 5 10.0.0.2");
}

/// A burst while the switch stands still: what has no room is lost and counted, and nothing else.
#[test]
fn what_finds_no_room_is_counted() {
    const BURST: &str = r#"
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(int(sys.argv[1])):
    s.sendto(b"x" * 1000, ("10.0.0.2", 9))
"#;
    /// What the endpoint's kernel sends by itself meanwhile: router solicitations, and reports of multicast groups.
    const OWN_FRAMES_MAX: u64 = 8;
    // AF_XDP has as many places as chunks; AF_PACKET a buffer of bytes, which such a burst does not fill.
    let kind = AttachmentKind::AfXdp;
    let Some(mut lab) = pair("veth-burst", kind, 1500) else { return };
    lab.run("a", "ping -c 3 -i 0.05 -W 5 10.0.0.2");
    let lost = "port_rx_lost{network=\"red\",endpoint=\"a\"}";
    assert_eq!(lab.hosts[0].counters()[lost], 0);
    let pid = lab.hosts[0].child().id();
    sh(&format!("kill -STOP {pid}"));
    let sent = 3 * xdp::CHUNKS;
    lab.run_python("a", BURST, &[&sent.to_string()]);
    sh(&format!("kill -CONT {pid}"));
    wait_for("the count", || lab.hosts[0].counters()[lost] > 0);
    let counters = lab.hosts[0].counters();
    assert!(
        counters[lost] <= u64::from(sent - xdp::CHUNKS) + OWN_FRAMES_MAX,
        "those that had room are there: {counters:?}"
    );
    lab.run("a", "ping -c 3 -i 0.05 -W 5 10.0.0.2");
    bulk(&lab, 5);
}

#[test]
fn a_switch_that_was_killed_has_the_frames_of_a_pair_again() {
    for kind in KINDS {
        let Some(mut lab) = pair("veth-killed", kind, 1500) else { return };
        lab.run("a", "ping -c 3 -i 0.05 -W 5 10.0.0.2");
        lab.hosts[0].kill();
        lab.hosts[0].start();
        wait_for("the port", || status(&lab).up);
        lab.run("a", "ping -c 3 -i 0.05 -W 5 10.0.0.2");
        bulk(&lab, 5);
        assert!(status(&lab).reason.is_empty(), "{kind:?}: {:?}", status(&lab));
    }
}

/// When a hand-over fails, what came in its 2 s is there, as much as the rings hold. The endpoint's kernel tells, and not ping, whose own
/// buffer is too small for so many replies at once.
#[test]
fn nothing_is_lost_of_a_pair_when_a_hand_over_fails() {
    const PINGS: u64 = 400;
    for kind in KINDS {
        let Some(lab) = pair("veth-failed", kind, 1500) else { return };
        lab.run("a", "ping -c 3 -i 0.05 -W 5 10.0.0.2");
        let replies = || counted(&lab, "a", "Icmp:", "InEchoReps");
        let before = replies();
        let count = PINGS.to_string();
        let pings = lab.spawn("a", &["ping", "-q", "-c", &count, "-i", "0.005", "-W", "30", "10.0.0.2"]);
        assert!(!half(&lab, 0, "hang").wait().unwrap().success());
        wait_for("all replies", || replies() == before + PINGS);
        sh(&format!("kill -INT {}", pings.id()));
        pings.wait_with_output().unwrap();
        let counters = lab.hosts[0].counters();
        assert_eq!(counters["handovers_failed{phase=\"blackout\"}"], 1, "{kind:?}: {counters:?}");
        assert_eq!(counters["port_rx_lost{network=\"red\",endpoint=\"a\"}"], 0, "{kind:?}: {counters:?}");
    }
}

/// Whoever takes over gets the sockets: nothing that a container sends, or is sent, is lost, and the port is never down. When a hand-over fails traffic goes on.
#[test]
fn a_pair_goes_over_to_the_process_that_takes_over_and_back() {
    for kind in KINDS {
        let Some(mut lab) = pair("veth-upgrade", kind, 1500) else { return };
        lab.run("a", "ping -c 3 -i 0.05 -W 5 10.0.0.2");
        let pings = lab.spawn("a", &["ping", "-q", "-c", "400", "-i", "0.005", "-W", "30", "10.0.0.2"]);
        for round in 0..4 {
            lab.hosts[0].upgrade();
            let status = status(&lab);
            assert!(status.up && status.reason.is_empty(), "{kind:?}, round {round}: {status:?}");
        }
        let output = pings.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("400 received"), "{kind:?}: {text}");
        // One that has everything and stands still is killed, and the old one goes on.
        assert!(!half(&lab, 0, "hang").wait().unwrap().success());
        wait_for("the old one", || lab.hosts[0].counters()["handovers_failed{phase=\"blackout\"}"] == 1);
        // Before the streams: those may fill the rings of an engine that waits for its processor.
        let counters = lab.hosts[0].counters();
        assert_eq!(counters["port_rx_lost{network=\"red\",endpoint=\"a\"}"], 0, "{counters:?}");
        bulk(&lab, 20);
        lab.hosts[0].upgrade();
        bulk(&lab, 20);
        assert!(status(&lab).up);
        let counters = lab.hosts[0].counters();
        assert_eq!(counters["handover_taken_over"], 1, "{counters:?}");
    }
}

/// A pair that is made anew, as the agent does when somebody removed it, is found.
#[test]
fn a_pair_that_is_made_anew_is_attached_to() {
    for kind in KINDS {
        let Some(lab) = pair("veth-anew", kind, 1500) else { return };
        lab.run("a", "ping -c 3 -i 0.05 -W 5 10.0.0.2");
        sh(&format!("ip -n {}a link del t0", lab.prefix));
        wait_for("the port to be down", || !status(&lab).up);
        lab.make_pair(0, "a", "10.0.0.1/24");
        wait_for("the port", || status(&lab).up);
        lab.run("a", "ping -c 3 -i 0.05 -W 5 10.0.0.2");
        bulk(&lab, 5);
    }
}

/// The host's own stack gets no frame of an endpoint, with a switch or without.
#[test]
fn a_container_does_not_reach_its_hosts_own_stack() {
    for kind in KINDS {
        let Some(mut lab) = lab("veth-wall", 1, Encapsulation::Geneve, false, 1500) else { return };
        lab.start_all();
        let (netns, host) = (format!("{}a", lab.prefix), lab.hosts[0].netns.clone());
        sh(&format!("ip netns add {netns}"));
        lab.make_pair(0, "a", "10.0.0.1/24");
        let end = lab.host_end("a");
        sh(&format!("ip -n {host} link set {end} up && ip -n {host} addr add 10.0.0.77/32 dev lo"));
        sh(&format!("ip -n {host} route add 10.0.0.1/32 dev {end}"));
        let mac = sh(&format!("ip netns exec {host} cat /sys/class/net/{end}/address"));
        sh(&format!("ip -n {netns} neigh replace 10.0.0.77 lladdr {} dev t0", mac.trim()));
        let ping = format!("ip netns exec {netns} ping -c 1 -W 1 10.0.0.77");
        assert!(try_sh(&ping).status.success(), "without a wall the host answers");
        lab.add_endpoint_there(kind, 0, "a", "10.0.0.1/24");
        wait_for("the port", || status(&lab).up);
        assert!(!try_sh(&ping).status.success(), "{kind:?}: the host answered beside the switch");
        lab.hosts[0].kill();
        assert!(!try_sh(&ping).status.success(), "{kind:?}: the host answered in place of the switch");
    }
}
