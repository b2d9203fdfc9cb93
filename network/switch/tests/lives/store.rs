//! What a switch has open outlives it, when somebody keeps it: here a thread of the test in place of the supervisor.

use crate::lab::{lab, sh, wait_for};
use crate::scripts::{UDP_SEQUENCE, UDP_SEQUENCE_SINK};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg,
};
use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};
use weir_base::codec::{decode, encode};
use weir_model::local::{FromStore, STORE_BYTES_MAX, STORE_FDS_MAX, STORE_SOCKET, ToStore};
use weir_model::resource::Encapsulation;

/// Names, words and descriptors.
pub type Kept = Arc<Mutex<BTreeMap<String, (Vec<u8>, Vec<OwnedFd>)>>>;

/// Keeps for one switch after the other.
pub fn keep(run_dir: &Path) -> Kept {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let listener = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
    std::fs::create_dir_all(run_dir).unwrap();
    rustix::net::bind(&listener, &SocketAddrUnix::new(run_dir.join(STORE_SOCKET)).unwrap()).unwrap();
    rustix::net::listen(&listener, 4).unwrap();
    let kept: Kept = Arc::default();
    let shelf = Arc::clone(&kept);
    std::thread::spawn(move || {
        while let Ok(socket) = rustix::net::accept(&listener) {
            let mut said: Vec<String> = Vec::new();
            while let Some((message, descriptors)) = receive(&socket) {
                let mut shelf = shelf.lock().unwrap();
                match message {
                    ToStore::Keep { name, bytes } => {
                        said.push(name.clone());
                        shelf.insert(name, (bytes, descriptors));
                    }
                    ToStore::Drop { name } => drop(shelf.remove(&name)),
                    ToStore::Settle => shelf.retain(|name, _| said.contains(name)),
                    ToStore::Give => {
                        for (name, (bytes, descriptors)) in shelf.iter() {
                            let message = FromStore::Kept { name: name.clone(), bytes: bytes.clone() };
                            send(&socket, &message, descriptors);
                        }
                        send(&socket, &FromStore::Done, &[]);
                    }
                    ToStore::Sync => send(&socket, &FromStore::Done, &[]),
                }
            }
        }
    });
    kept
}

fn receive(socket: &OwnedFd) -> Option<(ToStore, Vec<OwnedFd>)> {
    let mut bytes = vec![0; STORE_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(STORE_FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags).ok()?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(more) = message {
            descriptors.extend(more);
        }
    }
    if received.bytes == 0 { None } else { Some((decode(&bytes[..received.bytes]).unwrap(), descriptors)) }
}

fn send(socket: &OwnedFd, message: &FromStore, descriptors: &[OwnedFd]) {
    let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(OwnedFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(STORE_FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !borrowed.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&borrowed)));
    }
    // A switch that was killed meanwhile does not hear it.
    let _ = sendmsg(socket, &[IoSlice::new(&encode(message))], &mut control, SendFlags::NOSIGNAL);
}

#[test]
fn after_a_crash_the_next_switch_has_the_same_devices_and_what_waited_in_them() {
    let Some(mut lab) = lab("store", 2, Encapsulation::Geneve, false, 1500) else { return };
    let kept: Vec<Kept> = lab.hosts.iter().map(|host| keep(&host.config.run_dir)).collect();
    lab.start_all();
    lab.add_endpoint(0, "a", "10.0.0.1/24");
    lab.add_endpoint(1, "b", "10.0.0.2/24");
    let names = |host: usize| kept[host].lock().unwrap().keys().cloned().collect::<Vec<_>>();
    wait_for("TAP and underlay to be kept", || (0..2).all(|host| names(host).len() == 2));
    lab.run("a", "ping -c 2 -i 0.05 -W 5 10.0.0.2");
    let inside = |endpoint: &str, command: &str| {
        sh(&format!("ip netns exec {}{endpoint} {command}", lab.prefix)).trim().to_string()
    };
    let neighbour = || inside("a", "ip neighbour show 10.0.0.2");
    let sink = lab.python_with_input("b", UDP_SEQUENCE_SINK, &["7003"]);
    let mut prober = lab.spawn("a", &["python3", "-c", UDP_SEQUENCE, "10.0.0.2", "7003", "0.002"]);
    let sent = || inside("a", "cat /sys/class/net/t0/statistics/tx_packets").parse::<u64>().unwrap();
    let changes = |endpoint: &str| inside(endpoint, "cat /sys/class/net/t0/carrier_changes");
    let before = ["a", "b"].map(changes);
    for host in [0, 1, 0, 1] {
        let from = sent();
        wait_for("probes", || sent() > from + 20);
        lab.hosts[host].kill();
        let endpoint = ["a", "b"][host];
        assert_eq!(
            inside(endpoint, "cat /sys/class/net/t0/carrier"),
            "1",
            "nobody serves it, and it has a carrier"
        );
        assert!(neighbour().contains("lladdr"), "nobody was forgotten: {}", neighbour());
        lab.hosts[host].start();
        assert_eq!(names(host).len(), 2, "the next one keeps them too");
    }
    lab.run("a", "ping -c 2 -i 0.05 -W 5 10.0.0.2");
    assert_eq!(["a", "b"].map(changes), before, "no endpoint's kernel saw its carrier go");
    prober.kill().unwrap();
    prober.wait().unwrap();
    let lines = sink.finish();
    println!("{}", lines.last().expect("a line"));
}

#[test]
fn sockets_for_other_settings_are_opened_anew() {
    let Some(mut lab) = lab("store, other settings", 1, Encapsulation::Geneve, false, 1500) else { return };
    let kept = keep(&lab.hosts[0].config.run_dir);
    lab.start_all();
    lab.add_endpoint(0, "a", "10.0.0.1/24");
    wait_for("TAP and underlay to be kept", || kept.lock().unwrap().len() == 2);
    let words = || kept.lock().unwrap().get("underlay").map(|(words, _)| words.clone());
    let before = words();
    lab.hosts[0].kill();
    lab.hosts[0].config.engine.source_ports += 1;
    lab.hosts[0].start();
    // The old ones are let go first.
    wait_for("other sockets to be kept", || words().is_some_and(|words| Some(&words) != before.as_ref()));
}
