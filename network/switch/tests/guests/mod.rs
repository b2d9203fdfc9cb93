//! Virtual machines' ports with a program that we did not write: testpmd of DPDK, whose virtio-user plays the monitor and
//! the driver.
//!
//! ```text
//!   testpmd a ── a.sock ── switch ─ h0 ═ underlay ═ h1 ─ switch ── b.sock ── testpmd b
//!                 (the switch listens)                    (testpmd listens)
//! ```

use crate::lab::{self, Lab, PATIENCE, label, wait_for};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use weir_model::entry::{PortEntry, Vni};
use weir_model::local::{Answer, PortStatus, Question};
use weir_model::resource::{AttachmentKind, DhcpOptions, Encapsulation, PortState};
use weir_model::{Entry, Key, MacAddr, Version};

const A: (usize, &str, &str) = (0, "a", "10.0.0.1");
const B: (usize, &str, &str) = (1, "b", "10.0.0.2");
/// Memory of one testpmd, MiB: without huge pages, which a small machine may not have.
const MEMORY_MIB: &str = "192";

/// Guests started so far: each has files of DPDK of its own.
static STARTED: AtomicU64 = AtomicU64::new(0);

/// A guest of testpmd.
struct Testpmd {
    child: Child,
    input: ChildStdin,
    output: Arc<Mutex<String>>,
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What testpmd counted at its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counted {
    received: u64,
    sent: u64,
}

impl Testpmd {
    /// Starts one that forwards in a mode of its own, with so many pairs of queues.
    fn start(socket: &Path, listens: bool, mac: &str, pairs: u16, mode: &[&str]) -> Testpmd {
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let server = if listens { ",server=1" } else { "" };
        let (path, queues) = (socket.display(), format!("{pairs}"));
        let device = format!("net_virtio_user0,path={path},queues={pairs},queue_size=1024,mac={mac}{server}");
        // Lines as they come, not blocks of them.
        let mut child = Command::new("stdbuf")
            .args(["-oL", "dpdk-testpmd"])
            .args(["-l", "0,1", "--no-pci", "--no-huge", "-m", MEMORY_MIB])
            .args(["--file-prefix", &format!("weir-{}-{number}", std::process::id())])
            .args(["--vdev", &device, "--", "-i", "--total-num-mbufs=8192", "--no-mlockall"])
            .args([&format!("--rxq={queues}"), &format!("--txq={queues}")])
            .args(mode)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("testpmd starts");
        let output = Arc::new(Mutex::new(String::new()));
        let (seen, stdout) = (Arc::clone(&output), child.stdout.take().expect("piped"));
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let mut seen = seen.lock().expect("not poisoned");
                seen.push_str(&line);
                seen.push('\n');
            }
        });
        let input = child.stdin.take().expect("piped");
        let mut testpmd = Testpmd { child, input, output };
        testpmd.until("its ports", "Done", 0);
        testpmd
    }

    fn say(&mut self, command: &str) {
        writeln!(self.input, "{command}").expect("testpmd lives");
        self.input.flush().expect("testpmd lives");
    }

    fn seen(&self, words: &str) -> usize {
        self.output.lock().expect("not poisoned").matches(words).count()
    }

    /// Waits until words were seen more often than `before`.
    fn until(&mut self, what: &str, words: &str, before: usize) {
        let start = Instant::now();
        while self.seen(words) <= before {
            let ended = self.child.try_wait().expect("asked");
            let output = self.output.lock().expect("not poisoned").clone();
            assert!(ended.is_none() && start.elapsed() < PATIENCE, "no {what} ({ended:?}): {output}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn counted(&mut self) -> Counted {
        // The line behind the numbers.
        let (head, last) = ("NIC statistics for port 0", "Tx-pps:");
        let before = self.seen(last);
        self.say("show port stats 0");
        self.until("statistics", last, before);
        let output = self.output.lock().expect("not poisoned");
        let block = output.rsplit(head).next().expect("a block");
        let number = |name: &str| {
            let rest = block.split(name).nth(1).expect("a counter").trim_start();
            rest.split_whitespace().next().expect("a number").parse().expect("a number")
        };
        Counted { received: number("RX-packets:"), sent: number("TX-packets:") }
    }
}

fn missing() -> Option<String> {
    let there =
        Command::new("which").arg("dpdk-testpmd").output().is_ok_and(|output| output.status.success());
    lab::missing().or_else(|| (!there).then(|| "needs dpdk-testpmd: scripts/install-deps".into()))
}

fn lab(name: &str) -> Option<Lab> {
    if let Some(reason) = missing() {
        println!("NOT RUN {name}: {reason}");
        return None;
    }
    let mut lab = Lab::new(2, Encapsulation::Geneve, false, 1500);
    lab.start_all();
    Some(lab)
}

/// Tells all switches of a guest; returns its socket.
fn add_guest(lab: &Lab, (host, name, ip): (usize, &str, &str), kind: AttachmentKind, pairs: u16) -> PathBuf {
    let socket = lab.dir.path().join(format!("{name}.sock"));
    let mac: MacAddr = lab.mac(host, ip).parse().expect("an address");
    let port = PortEntry {
        mac,
        addresses: vec![ip.parse().expect("an address")],
        tags: vec![],
        state: PortState::Up,
        netns: None,
        device: socket.display().to_string(),
        kind,
        queue_pairs: pairs,
        subnet: label("s"),
        dhcp: DhcpOptions::default(),
        policy_min: Version::ZERO,
    };
    let vni = Vni(7);
    for index in 0..lab.hosts.len() {
        lab.put(
            index,
            vec![
                (Key::Network { vni }, Entry::Network(lab.network.clone())),
                (Key::Policy { vni }, Entry::Policy(lab.policy.clone())),
            ],
        );
        if index == host {
            lab.put(index, vec![(Key::Port { vni, endpoint: label(name) }, Entry::Port(port.clone()))]);
        } else {
            lab.put_location(index, name, ip, &mac.to_string(), host);
        }
    }
    socket
}

fn status(lab: &Lab, host: usize, name: &str) -> Option<PortStatus> {
    match lab.hosts[host].question(Question::Ports) {
        Answer::Ports(ports) => ports.into_iter().find(|port| port.name.endpoint == label(name)),
        other => panic!("{other:?}"),
    }
}

fn is_up(lab: &Lab, host: usize, name: &str) -> bool {
    status(lab, host, name).is_some_and(|port| port.up)
}

fn start(
    lab: &Lab,
    (host, _, ip): (usize, &str, &str),
    socket: &Path,
    listens: bool,
    pairs: u16,
    mode: &[&str],
) -> Testpmd {
    Testpmd::start(socket, listens, &lab.mac(host, ip), pairs, mode)
}

/// Packets of `a` to `b` until so many more came, and the counters of all four agree.
fn carries(lab: &Lab, a: &mut Testpmd, b: &mut Testpmd, packets: u64) {
    let before = b.counted();
    b.say("start");
    a.say("start");
    wait_for("packets", || b.counted().received > before.received + packets);
    let stopped = a.seen("Accumulated forward statistics");
    a.say("stop");
    a.until("the end of sending", "Accumulated forward statistics", stopped);
    agree(lab, a, b);
    let stopped = b.seen("Accumulated forward statistics");
    b.say("stop");
    b.until("the end of receiving", "Accumulated forward statistics", stopped);
}

/// Waits until what a switch counted of its guest is what the guest counted.
fn agree(lab: &Lab, a: &mut Testpmd, b: &mut Testpmd) {
    let mut last = String::new();
    let start = Instant::now();
    loop {
        let (sent, received) = (a.counted().sent, b.counted().received);
        let ports = [status(lab, A.0, A.1), status(lab, B.0, B.1)];
        if let [Some(from), Some(to)] = &ports {
            if (from.rx_frames, to.tx_frames) == (sent, received) && received <= sent {
                return;
            }
            last = format!(
                "a sent {sent}, its switch took {}; the other gave {}, b got {received}",
                from.rx_frames, to.tx_frames
            );
        }
        if start.elapsed() > PATIENCE {
            lab.print_counters();
            panic!("the counters do not agree: {last}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn sends_to_b(lab: &Lab) -> Vec<String> {
    let peer = format!("--eth-peer=0,{}", lab.mac(B.0, B.2));
    let ips = format!("--tx-ip={},{}", A.2, B.2);
    vec!["--forward-mode=txonly".into(), peer, ips]
}

fn through_the_overlay(name: &str, pairs: u16) {
    let Some(lab) = lab(name) else { return };
    let sockets = [
        add_guest(&lab, A, AttachmentKind::VhostUser, pairs),
        add_guest(&lab, B, AttachmentKind::VhostUserClient, pairs),
    ];
    wait_for("the switch's socket", || sockets[0].exists());
    assert!(
        status(&lab, A.0, A.1).is_some_and(|port| !port.up && !port.reason.is_empty()),
        "nobody is there yet"
    );
    let mut b = start(&lab, B, &sockets[1], true, pairs, &["--forward-mode=rxonly"]);
    let mode = sends_to_b(&lab);
    let mode: Vec<&str> = mode.iter().map(String::as_str).collect();
    let mut a = start(&lab, A, &sockets[0], false, pairs, &mode);
    wait_for("both ports", || is_up(&lab, A.0, A.1) && is_up(&lab, B.0, B.1));
    carries(&lab, &mut a, &mut b, 50_000);
    let counters = lab.hosts[0].counters();
    assert!(counters["engine_port_reads"] >= 50_000, "{counters:?}");
    assert_eq!(counters["engine_guest_nonsense"], 0, "{counters:?}");
}

#[test]
fn packets_of_a_guest_reach_another_through_the_overlay() {
    through_the_overlay("packets_of_a_guest_reach_another_through_the_overlay", 1);
}

#[test]
fn guests_with_two_pairs_of_queues_reach_each_other() {
    through_the_overlay("guests_with_two_pairs_of_queues_reach_each_other", 2);
}

#[test]
fn guests_and_containers_reach_each_other_and_either_side_may_be_killed() {
    let Some(mut lab) = lab("guests_and_containers_reach_each_other_and_either_side_may_be_killed") else {
        return;
    };
    lab.add_endpoint(0, "c", "10.0.0.3/24");
    // On the same host as the container, and on the other.
    let near = (0, "near", "10.0.0.4");
    let sockets = [
        add_guest(&lab, near, AttachmentKind::VhostUser, 1),
        add_guest(&lab, B, AttachmentKind::VhostUserClient, 1),
    ];
    lab.put_location(1, "c", "10.0.0.3", &lab.mac(0, "10.0.0.3"), 0);
    let echo = ["--forward-mode=icmpecho", "--auto-start"];
    let mut first = start(&lab, near, &sockets[0], false, 1, &echo);
    let b = start(&lab, B, &sockets[1], true, 1, &echo);
    let answers = |lab: &Lab, ip: &str| {
        let ping = format!("ip netns exec {}c ping -c 3 -i 0.05 -W 2 -s 1200 {ip}", lab.prefix);
        wait_for(&format!("answers of {ip}"), || lab::try_sh(&ping).status.success());
    };
    answers(&lab, near.2);
    answers(&lab, B.2);
    // A virtual machine dies, and is started anew.
    let _ = first.child.kill();
    wait_for("the end of the guest", || status(&lab, 0, "near").is_some_and(|port| !port.up));
    drop(first);
    let _second = start(&lab, near, &sockets[0], false, 1, &echo);
    answers(&lab, near.2);
    // A switch dies; the monitor that listens is found again, with the guest's queues where they were.
    lab.hosts[1].kill();
    lab.hosts[1].start();
    wait_for("the guest's port", || is_up(&lab, B.0, B.1));
    answers(&lab, B.2);
    drop(b);
}

#[test]
fn guests_go_on_while_their_switches_are_replaced() {
    let Some(mut lab) = lab("guests_go_on_while_their_switches_are_replaced") else { return };
    let sockets = [
        add_guest(&lab, A, AttachmentKind::VhostUser, 2),
        add_guest(&lab, B, AttachmentKind::VhostUserClient, 2),
    ];
    wait_for("the switch's socket", || sockets[0].exists());
    let mut b = start(&lab, B, &sockets[1], true, 2, &["--forward-mode=rxonly"]);
    let mode = sends_to_b(&lab);
    let mode: Vec<&str> = mode.iter().map(String::as_str).collect();
    let mut a = start(&lab, A, &sockets[0], false, 2, &mode);
    wait_for("both ports", || is_up(&lab, A.0, A.1) && is_up(&lab, B.0, B.1));
    b.say("start");
    a.say("start");
    wait_for("packets", || b.counted().received > 10_000);
    for round in 0..6 {
        // Neither guest connects anew: the one that connects cannot, and of the one that listens it would be seen.
        lab.hosts[round % 2].upgrade();
        let counters = lab.hosts[round % 2].counters();
        assert_eq!(
            (counters["handover_guests_left"], counters["handover_taken_over"]),
            (0, 1),
            "round {round}"
        );
        assert!(is_up(&lab, A.0, A.1) && is_up(&lab, B.0, B.1), "round {round}");
        let before = b.counted().received;
        wait_for("packets", || b.counted().received > before + 20_000);
    }
    let stopped = a.seen("Accumulated forward statistics");
    a.say("stop");
    a.until("the end of sending", "Accumulated forward statistics", stopped);
    let counters = lab.hosts[0].counters();
    assert_eq!(counters["engine_guest_nonsense"], 0, "{counters:?}");
    assert_eq!(counters["engine_guest_queues_broken"], 0, "{counters:?}");
    // A device that stops and starts again speaks with the process that has it now.
    a.say("port stop all");
    a.until("the stop", "Stopping ports", 0);
    a.say("port start all");
    wait_for("the port", || is_up(&lab, A.0, A.1));
    let before = b.counted().received;
    a.say("start");
    wait_for("packets", || b.counted().received > before + 20_000);
}
