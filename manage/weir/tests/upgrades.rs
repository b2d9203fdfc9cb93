//! Switches of real hosts that are replaced under traffic by other programs, and back (row A30).

use crate::echo::{Echo, connects, ping_all};
use crate::lab::{Lab, lab};
use crate::namespaces::{BOUND, wait, within};
use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;
use weir_lab::Netns;

/// Pause between two probes: a receiver that is not run for half a second loses none.
const PROBE: Duration = Duration::from_millis(2);
/// How long the last probe may take.
const PROBE_WAIT: Duration = Duration::from_millis(500);

/// Numbered datagrams from one namespace to another.
struct Probes {
    stop: Arc<AtomicBool>,
    sender: JoinHandle<u64>,
    receiver: JoinHandle<BTreeSet<u64>>,
}

impl Probes {
    fn begin(from: &Netns, to: &Netns, target: SocketAddr) -> Probes {
        let bound = within(to, || UdpSocket::bind(target).unwrap());
        let sending = within(from, || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.connect(target).unwrap();
            socket
        });
        bound.set_read_timeout(Some(PROBE_WAIT)).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&stop);
        let receiver = std::thread::spawn(move || {
            let (mut seen, mut number) = (BTreeSet::new(), [0; 8]);
            loop {
                match bound.recv(&mut number) {
                    Ok(_) => seen.insert(u64::from_le_bytes(number)),
                    Err(_) if over.load(Relaxed) => return seen,
                    Err(_) => continue,
                };
            }
        });
        let over = Arc::clone(&stop);
        let sender = std::thread::spawn(move || {
            let mut number = 0_u64;
            while !over.load(Relaxed) {
                sending.send(&number.to_le_bytes()).unwrap();
                number += 1;
                std::thread::sleep(PROBE);
            }
            number
        });
        Probes { stop, sender, receiver }
    }

    /// How many were sent from the first that came on, and which of them did not come.
    fn end(self) -> (u64, Vec<u64>) {
        self.stop.store(true, Relaxed);
        let sent = self.sender.join().unwrap();
        let seen = self.receiver.join().unwrap();
        let first = *seen.first().unwrap();
        (sent - first, (first..sent).filter(|number| !seen.contains(number)).collect())
    }
}

/// Has the supervisor of a member replace its switch; returns what the command says.
fn upgrade(lab: &Lab, member: &str, binary: Option<&Path>) -> String {
    let before = lab.child(member, "switch").unwrap().pid;
    let run = lab.run_folder(member).display().to_string();
    let mut arguments = vec!["upgrade", "--run", &run];
    let binary = binary.map(|path| path.display().to_string());
    if let Some(binary) = &binary {
        arguments.extend(["--binary", binary]);
    }
    let output = lab.weir(&arguments);
    let said = crate::lab::text(&output.stdout);
    assert!(output.status.success(), "{said}{}", crate::lab::text(&output.stderr));
    // Its number is in its file as soon as it serves, which may be a moment behind the answer.
    wait("another process to serve", || {
        lab.child(member, "switch").is_some_and(|after| after.pid != before && after.alive())
    });
    said
}

/// The program that a member's switch runs, if one runs.
fn program(lab: &Lab, member: &str) -> Option<PathBuf> {
    let pid = lab.child(member, "switch")?.pid;
    std::fs::read_link(format!("/proc/{pid}/exe")).ok()
}

#[test]
fn switches_are_replaced_by_another_program_and_back_and_connections_go_on() {
    let Some(lab) = lab("switch_upgrades") else { return };
    lab.kill("nginx-red-db");
    let echo = Echo::open(&lab.netns("red-app"), &lab.netns("red-db"), lab.v4("red-db"), 5432);
    let outwards = Echo::open(&lab.netns("red-app"), &lab.netns("out"), crate::extra::ip("192.0.2.2"), 7000);
    let target = SocketAddr::new(crate::extra::ip("192.0.2.2"), 7001);
    let probes = Probes::begin(&lab.netns("red-app"), &lab.netns("out"), target);
    let before = lab.programmed();
    let own = PathBuf::from(env!("CARGO_BIN_EXE_weir"));
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("weir");
    std::fs::copy(&own, &other).unwrap();
    for (member, binary) in
        [("h2", &other), ("h3", &other), ("g1", &other), ("h2", &own), ("g1", &own), ("h3", &own)]
    {
        let said = upgrade(&lab, member, Some(binary));
        assert!(said.contains("upgraded"), "{said}");
        assert_eq!(program(&lab, member).as_ref(), Some(binary), "{member}");
        echo.goes_on();
        outwards.goes_on();
        let counters = lab.counters(member);
        assert_eq!(counters["handover_taken_over"], 1, "{member}");
        assert_eq!(counters["drops{reason=\"slow-path-overflow\"}"], 0, "{member}");
    }
    // Whatever came in a blackout has waited: at this pace no queue was full.
    let (sent, lost) = probes.end();
    assert!(sent > 500 && lost.is_empty(), "of {sent}: {lost:?}");
    // A supervisor that begins and finds a switch of another program takes over from it.
    upgrade(&lab, "h2", Some(&other));
    lab.kill("h2");
    echo.goes_on();
    lab.start("h2");
    wait("a switch of the new supervisor's program", || program(&lab, "h2").as_ref() == Some(&own));
    echo.goes_on();
    // One of its own program is adopted.
    let pid = lab.child("h2", "switch").unwrap().pid;
    lab.kill("h2");
    lab.start("h2");
    lab.wait_in_step();
    assert_eq!(lab.child("h2", "switch").unwrap().pid, pid);
    // A program that is no switch changes nothing.
    let run = lab.run_folder("h2").display().to_string();
    let output = lab.weir(&["upgrade", "--run", &run, "--binary", "/bin/false"]);
    assert_eq!(output.status.code(), Some(1), "{}", crate::lab::text(&output.stdout));
    assert_eq!(lab.child("h2", "switch").unwrap().pid, pid);
    echo.goes_on();
    assert!(connects(&lab.netns("blue-app"), crate::extra::ip("192.0.2.2"), 80, BOUND));
    assert!(ping_all(&lab.netns("red-app"), lab.v4("red-web")));
    lab.wait_in_step();
    assert_eq!(lab.programmed(), before, "keys and versions of each switch");
    assert!(echo.close() > 0 && outwards.close() > 0);
    lab.start("nginx-red-db");
}
