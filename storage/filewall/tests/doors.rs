//! Strangers at the door: who says nothing, what they get, and what idle ones cost.

use crate::played::{
    BOUND, CALLER, REMOVED, ask, client, getattr, read_record, read_results, remove, reply_to, server, until,
    wall,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::time::Duration;
use weir_filewall::proxy::{FileWall, Limits};
use weir_filewall::wire::build::Record;
use weir_filewall::wire::nfs3::Op;
use weir_filewall::wire::xdr::get_u32;

fn counter(wall: &FileWall, name: &str) -> u64 {
    wall.status().totals.counters[name]
}

/// A call that is answered without the server: NULL of MOUNT.
fn null(xid: u32) -> Vec<u8> {
    Record::call(xid, 100_005, 3, 0, &CALLER).finish()
}

/// True if the other end has closed it.
fn is_over(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let read = stream.read(&mut [0; 1]);
    stream.set_nonblocking(false).unwrap();
    !matches!(read, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn silent_strangers_keep_nobody_out_and_end_by_themselves() {
    let (address, connections) = server();
    let limits = Limits { sessions: 4, first_call_us: 60_000_000, ..Limits::default() };
    let (wall, _folder) = wall(address, None, limits);
    // One that has spoken, and rests.
    let mut known = client(&wall);
    known.write_all(&remove(1)).unwrap();
    let mut upstream = connections.recv_timeout(BOUND).unwrap();
    let call = read_record(&mut upstream).unwrap();
    upstream.write_all(&reply_to(&call, &REMOVED)).unwrap();
    read_record(&mut known).unwrap();
    let mut silent: Vec<TcpStream> = Vec::new();
    for number in 0..3 {
        silent.push(client(&wall));
        until("a session more", || counter(&wall, "sessions_total") == number + 2);
    }
    // One byte, and the beginning of a record: neither is a call.
    silent[1].write_all(&[0x80]).unwrap();
    silent[2].write_all(&getattr(1)[..20]).unwrap();
    // All places are taken. Whoever comes and says something gets the place of the one that has been silent for longest.
    let mut served = Vec::new();
    for xid in 10..13 {
        let mut newcomer = client(&wall);
        newcomer.write_all(&getattr(xid)).unwrap();
        let mut upstream = connections.recv_timeout(BOUND).unwrap();
        let call = read_record(&mut upstream).unwrap();
        upstream.write_all(&reply_to(&call, &70u32.to_be_bytes())).unwrap();
        assert_eq!(get_u32(&read_record(&mut newcomer).unwrap(), 0), xid);
        served.push((newcomer, upstream));
    }
    for (number, silent) in silent.iter_mut().enumerate() {
        until("the end of a silent one", || is_over(silent));
        assert!(counter(&wall, "sessions_displaced_total") == 3, "{number}");
    }
    assert_eq!((counter(&wall, "sessions"), counter(&wall, "sessions_refused_total")), (4, 0));
    // All four have spoken: nobody leaves for a fifth one.
    let mut late = client(&wall);
    assert_eq!(late.read(&mut [0; 1]).unwrap_or(0), 0);
    assert_eq!(counter(&wall, "sessions_refused_total"), 1);
    known.write_all(&remove(2)).unwrap();
    let call = read_record(&mut upstream).unwrap();
    upstream.write_all(&reply_to(&call, &REMOVED)).unwrap();
    assert_eq!(get_u32(&read_record(&mut known).unwrap(), 0), 2, "who has spoken stays");
}

#[test]
fn a_session_without_a_call_ends_and_one_that_has_called_rests_for_as_long_as_it_likes() {
    let (address, _connections) = server();
    let limits = Limits { first_call_us: 300_000, sessions: 3, ..Limits::default() };
    let (wall, _folder) = wall(address, None, limits);
    let mut known = client(&wall);
    assert_eq!(get_u32(&ask(&mut known, &null(1)), 0), 1);
    let (mut silent, mut half) = (client(&wall), client(&wall));
    half.write_all(&getattr(1)[..20]).unwrap();
    until("both ends", || counter(&wall, "sessions_silent_total") == 2);
    assert!(silent.read(&mut [0; 1]).unwrap_or(0) == 0 && half.read(&mut [0; 1]).unwrap_or(0) == 0);
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(get_u32(&ask(&mut known, &null(2)), 0), 2);
    assert_eq!(counter(&wall, "sessions"), 1);
}

#[test]
fn portmap_over_udp_answers_at_most_twice_the_question() {
    let (address, _connections) = server();
    let (wall, _folder) = wall(address, None, Limits::default());
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(BOUND)).unwrap();
    let mut most = 0;
    for version in 2..=5u32 {
        for procedure in 0..=13u32 {
            // Without credentials: the shortest question.
            let xid = version * 100 + procedure;
            let words = [xid, 0, 2, 100_000, version, procedure, 0, 0, 0, 0];
            let call: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            socket.send_to(&call, wall.address).unwrap();
            let mut reply = [0; 4096];
            let length = socket.recv(&mut reply).unwrap();
            assert_eq!(get_u32(&reply, 0), xid);
            assert!(length <= 2 * call.len(), "{version} {procedure}: {length} bytes for {}", call.len());
            most = most.max(length);
        }
    }
    assert!(most > 0);
    // Over TCP, where nobody can say to be somebody else, the list is there.
    let list = ask(&mut client(&wall), &Record::call(1, 100_000, 2, 4, &CALLER).finish());
    assert!(list.len() > 80 && get_u32(&list, 20) == 0, "{} bytes", list.len());
}

const IDLE: usize = 500;
/// Resident memory that an idle session may have, bytes.
const IDLE_BYTES_MAX: usize = 64 << 10;
const IDLE_PART: &str = "WEIR_TEST_IDLE_PART";

fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// In a process of its own: what other tests have in memory is not counted.
#[test]
fn idle_sessions_give_their_memory_back() {
    let name = "idle_sessions_give_their_memory_back";
    let limit = getrlimit(Resource::Nofile);
    if limit.maximum.is_some_and(|most| most < 4096) {
        println!("NOT RUN {name}: at most {:?} open files, and 4096 are needed", limit.maximum);
        return;
    }
    if std::env::var_os(IDLE_PART).is_none() {
        // What is freed goes back to the system at once, so that the rest is what is kept.
        let run = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("doors::{name}"), "--nocapture"])
            .env(IDLE_PART, "1")
            .env("MALLOC_MMAP_THRESHOLD_", "65536")
            .output()
            .unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        return;
    }
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    let (address, connections) = server();
    let limits = Limits { sessions_per_client: IDLE, ..Limits::default() };
    let (wall, _folder) = wall(address, None, limits);
    let before = resident_bytes();
    let results = read_results(&vec![7; 200_000]);
    let mut most = 0;
    let sessions: Vec<(TcpStream, TcpStream)> = (0..IDLE as u32)
        .map(|xid| {
            let mut stream = client(&wall);
            let call = Record::nfs3(xid, Op::Read, &CALLER).opaque(b"handle").u64(0).u32(200_000).finish();
            stream.write_all(&call).unwrap();
            let mut upstream = connections.recv_timeout(BOUND).unwrap();
            let seen = read_record(&mut upstream).unwrap();
            upstream.write_all(&reply_to(&seen, &results)).unwrap();
            assert_eq!(read_record(&mut stream).unwrap().len(), 24 + results.len());
            most = most.max(resident_bytes().saturating_sub(before));
            (stream, upstream)
        })
        .collect();
    assert_eq!(counter(&wall, "sessions"), IDLE as u64);
    until("the memory of idle sessions", || resident_bytes().saturating_sub(before) < IDLE * IDLE_BYTES_MAX);
    println!("{} KiB at most, {} KiB idle", most >> 10, resident_bytes().saturating_sub(before) >> 10);
    // They are there, and work.
    let (mut stream, mut upstream) = sessions.into_iter().next().unwrap();
    stream.write_all(&getattr(9999)).unwrap();
    let seen = read_record(&mut upstream).unwrap();
    upstream.write_all(&reply_to(&seen, &70u32.to_be_bytes())).unwrap();
    assert_eq!(get_u32(&read_record(&mut stream).unwrap(), 0), 9999);
}
