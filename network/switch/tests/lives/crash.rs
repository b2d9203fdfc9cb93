//! A process of the switch that ends by a fault at a frame, with more such frames in the device's queue: a real process, ended by a real
//! signal while it has that device in hand. A thread of the test keeps its descriptors, as the supervisor does.

use super::store::{Kept, keep};
use super::with_gateway;
use crate::lab::{Host, Lab, lab, sh, wait_for};
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use weir_model::resource::Encapsulation;
use weir_switch::mark::{MARK_FILE, name_of};

/// Sends datagrams as fast as it can. Arguments: address, port.
const FLOOD: &str = r#"
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect((sys.argv[1], int(sys.argv[2])))
while True:
    try: s.send(b"x" * 64)
    except OSError: pass
"#;
/// Name of the engine's thread.
const ENGINE: &str = "weir-engine";
/// Times that a process is looked at before a test gives up.
const LOOKS_MAX: usize = 5_000;

fn signal(child: &Child, name: &str) {
    sh(&format!("kill -{name} {}", child.id()));
}

/// The threads of a process: their numbers and states.
fn threads(child: &Child) -> Vec<(i32, char)> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
    let read = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).ok()?;
        let number = task.file_name().to_str()?.parse().ok()?;
        Some((number, stat.rsplit_once(") ")?.1.chars().next()?))
    };
    tasks.flatten().filter_map(read).collect()
}

/// A fault of the engine's thread.
fn fault(child: &Child) {
    let name = |number: i32| std::fs::read_to_string(format!("/proc/{}/task/{number}/comm", child.id()));
    let is_engine = |(number, _): &(i32, char)| name(*number).is_ok_and(|name| name.trim() == ENGINE);
    let (engine, _) = threads(child).into_iter().find(is_engine).expect("the engine's thread");
    // SAFETY: numbers, no pointers.
    #[allow(unsafe_code)]
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, child.id(), engine, libc::SIGABRT) };
    assert_eq!(sent, 0);
}

/// The hash of the name of the device that a host's switch has in hand.
fn in_hand(host: &Host) -> Option<u64> {
    let bytes = std::fs::read(host.config.run_dir.join(MARK_FILE)).unwrap();
    let word = |at: usize| Some(u64::from_ne_bytes(*bytes.get(at * 8..)?.first_chunk()?));
    let place = usize::try_from(word(0)?).unwrap().checked_sub(1)?;
    word(1 + place)
}

/// Ends a host's switch by a fault while it has a device in hand, of which more waits than the queue has room for. `lost` says what the queue
/// had no room for.
fn crash(host: &mut Host, device: u64, lost: impl Fn() -> u64, mut flood: Child) {
    for look in 0.. {
        assert!(look < LOOKS_MAX, "the device is never in hand");
        signal(host.child(), "STOP");
        wait_for("its threads to stand still", || {
            threads(host.child()).iter().all(|(_, state)| *state == 'T')
        });
        if in_hand(host) == Some(device) {
            break;
        }
        signal(host.child(), "CONT");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let before = lost();
    wait_for("the queue to be full", || lost() > before);
    flood.kill().unwrap();
    flood.wait().unwrap();
    // At the engine's thread, as a fault of its own is: it does nothing more before it ends.
    fault(host.child());
    signal(host.child(), "CONT");
    let status = host.child().wait().unwrap();
    assert_eq!(status.signal(), Some(6), "it ends by the fault");
}

fn statistic(lab: &Lab, netns: &str, device: &str, name: &str) -> u64 {
    let path = format!("/sys/class/net/{device}/statistics/{name}");
    sh(&format!("ip netns exec {}{netns} cat {path}", lab.prefix)).trim().parse().unwrap()
}

/// A number that nothing changes any more: nothing is on its way.
fn settled(number: impl Fn() -> u64) -> u64 {
    let mut last = number();
    for _ in 0..LOOKS_MAX {
        std::thread::sleep(std::time::Duration::from_millis(100));
        let now = number();
        if now == last {
            return now;
        }
        last = now;
    }
    panic!("it never settles")
}

#[test]
fn a_frame_that_ends_the_switch_is_not_given_to_the_next_one_and_others_go_on() {
    let Some(mut lab) = lab("crash", 2, Encapsulation::Geneve, false, 1500) else { return };
    let kept: Vec<Kept> = lab.hosts.iter().map(|host| keep(&host.config.run_dir)).collect();
    lab.start_all();
    lab.add_endpoint(0, "a", "10.0.0.1/24");
    lab.add_endpoint(0, "c", "10.0.0.3/24");
    lab.add_endpoint(1, "b", "10.0.0.2/24");
    wait_for("the devices to be kept", || kept[0].lock().unwrap().len() == 3);
    for endpoint in ["a", "c"] {
        lab.run(endpoint, "ping -c 1 -W 5 10.0.0.2");
    }
    let flood = lab.spawn("a", &["python3", "-c", FLOOD, "10.0.0.2", "7009"]);
    let device = name_of(Some(&format!("{}a", lab.prefix)), "t0");
    let mut host = lab.hosts.remove(0);
    crash(&mut host, device, || statistic(&lab, "a", "t0", "tx_dropped"), flood);
    // What another endpoint sends while nobody serves is there for the next process.
    let meanwhile = lab.spawn("c", &["ping", "-c", "1", "-W", "50", "10.0.0.2"]);
    let arrived = |lab: &Lab| statistic(lab, "b", "t0", "rx_packets");
    let before = settled(|| arrived(&lab));
    host.start();
    lab.hosts.insert(0, host);
    assert!(
        meanwhile.wait_with_output().unwrap().status.success(),
        "what waited in another device is served"
    );
    lab.run("c", "ping -c 3 -i 0.05 -W 5 10.0.0.2");
    let left = lab.hosts[0].counters()["engine_left_waiting"];
    assert!(left >= 1_000, "the queue of the device in hand is dropped: {left}");
    let came = arrived(&lab) - before;
    assert!(came < 100, "and none of it came through: {came}");
    lab.run("a", "ping -c 3 -i 0.05 -W 5 10.0.0.2");
}

#[test]
fn a_gateway_is_not_given_again_what_ended_it() {
    let Some(mut lab) = with_gateway("crash of a gateway") else { return };
    lab.add_endpoint(0, "a", "10.0.0.1/24");
    sh(&format!("ip -n {}a route add default via 10.0.0.254", lab.prefix));
    lab.hosts[2].kill();
    let kept = keep(&lab.hosts[2].config.run_dir);
    lab.hosts[2].start();
    wait_for("the outside to be kept", || kept.lock().unwrap().len() == 2);
    lab.run("a", "ping -c 1 -W 5 198.51.100.2");
    let flood = lab.spawn("o", &["python3", "-c", FLOOD, "203.0.113.7", "7009"]);
    let netns = lab.hosts[2].netns.trim_start_matches(&lab.prefix).to_string();
    let mut gateway = lab.hosts.remove(2);
    crash(&mut gateway, name_of(None, "wext0"), || statistic(&lab, &netns, "wext0", "tx_dropped"), flood);
    let before = settled(|| statistic(&lab, "o", "o0", "rx_packets"));
    gateway.start();
    lab.hosts.push(gateway);
    lab.run("a", "ping -c 3 -i 0.05 -W 5 198.51.100.2");
    let left = lab.hosts[2].counters()["engine_left_waiting"];
    assert!(left >= 1_000, "what waited outside is dropped: {left}");
    let answered = statistic(&lab, "o", "o0", "rx_packets") - before;
    assert!(answered < 100, "and not answered: {answered}");
}
