//! Pending calls, retransmissions, lost connections, and clients that mean harm.

use crate::played::{
    BOUND, CALLER, REMOVED, ROOT, ask, client, getattr, read_record, read_results, remove, reply_to, server,
    until, wall, write_call,
};
use std::io::{Read, Write};
use std::net::UdpSocket;
use weir_filewall::proxy::{FileWall, Limits, pending::PENDING_MAX};
use weir_filewall::wire::build::Record;
use weir_filewall::wire::make::Attributes;
use weir_filewall::wire::nfs3::Op;
use weir_filewall::wire::xdr::get_u32;

fn counter(wall: &FileWall, name: &str) -> u64 {
    wall.status().totals.counters[name]
}

/// Status of the results in a reply without its mark.
fn status(reply: &[u8]) -> u32 {
    get_u32(reply, 24)
}

#[test]
fn numbers_are_translated_and_replies_find_their_calls_in_any_order() {
    let (address, connections) = server();
    let (wall, _folder) = wall(address, None, Limits::default());
    let mut stream = client(&wall);
    for xid in [7, 8, 9] {
        stream.write_all(&remove(xid)).unwrap();
    }
    let mut upstream = connections.recv_timeout(BOUND).unwrap();
    let calls: Vec<Vec<u8>> = (0..3).map(|_| read_record(&mut upstream).unwrap()).collect();
    assert!(calls.iter().all(|call| get_u32(call, 4) == 0 && get_u32(call, 0) > 9));
    for call in calls.iter().rev() {
        upstream.write_all(&reply_to(call, &REMOVED)).unwrap();
    }
    let xids: Vec<u32> = (0..3).map(|_| get_u32(&read_record(&mut stream).unwrap(), 0)).collect();
    assert_eq!(xids, [9, 8, 7]);
    // A reply that nobody waits for, and one to a call that was answered, go nowhere.
    upstream.write_all(&reply_to(&calls[0], &REMOVED)).unwrap();
    until("the late reply", || counter(&wall, "late_replies_total") == 1);
    assert_eq!(counter(&wall, "pending"), 0);
}

#[test]
fn payloads_of_any_length_pass_both_ways() {
    let (address, connections) = server();
    let (wall, _folder) = wall(address, None, Limits::default());
    let mut stream = client(&wall);
    let served = std::thread::spawn(move || {
        let mut upstream = connections.recv_timeout(BOUND).unwrap();
        let mut seen = Vec::new();
        while let Some(call) = read_record(&mut upstream) {
            let data = &call[call.len() - (get_u32(&call, call.len() - 4) as usize).min(4)..];
            assert!(data.len() <= 4);
            seen.push(call.len());
            let length = get_u32(&call, call.len() - 4) as usize;
            let results = read_results(&vec![7; length]);
            upstream.write_all(&reply_to(&call, &results)).unwrap();
        }
        seen
    });
    for (xid, length) in [1usize, 4, 1000, 65_536, 1 << 20].into_iter().enumerate() {
        let call =
            Record::nfs3(xid as u32, Op::Read, &CALLER).opaque(b"handle").u64(0).u32(length as u32).finish();
        let reply = ask(&mut stream, &call);
        assert_eq!(reply.len(), 24 + 20 + length.next_multiple_of(4));
        assert!(reply[44..44 + length].iter().all(|byte| *byte == 7));
    }
    drop(stream);
    assert_eq!(served.join().unwrap().len(), 5);
}

#[test]
fn written_data_arrives_whole_also_from_fragments() {
    let (address, connections) = server();
    let (wall, _folder) = wall(address, None, Limits::default());
    let mut stream = client(&wall);
    let data: Vec<u8> = (0..100_000u32).map(|number| (number % 251) as u8).collect();
    let call = write_call(1, &data);
    stream.write_all(&call).unwrap();
    // The same call in three fragments.
    let record = &write_call(2, &data)[4..];
    for (number, piece) in record.chunks(record.len() / 3 + 1).enumerate() {
        let last = if number == 2 { 1u32 << 31 } else { 0 };
        stream.write_all(&(piece.len() as u32 | last).to_be_bytes()).unwrap();
        stream.write_all(piece).unwrap();
    }
    let mut upstream = connections.recv_timeout(BOUND).unwrap();
    for _ in 0..2 {
        let seen = read_record(&mut upstream).unwrap();
        assert_eq!(seen[4..], call[8..]);
    }
}

#[test]
fn a_client_that_connects_again_gets_the_reply_of_its_first_call() {
    let (address, connections) = server();
    let (wall, _folder) = wall(address, None, Limits::default());
    let mut first = client(&wall);
    first.write_all(&remove(5)).unwrap();
    let mut upstream = connections.recv_timeout(BOUND).unwrap();
    let call = read_record(&mut upstream).unwrap();
    drop(first);
    let mut second = client(&wall);
    second.write_all(&remove(5)).unwrap();
    until("the copy", || counter(&wall, "retransmissions_total") == 1);
    upstream.write_all(&reply_to(&call, &REMOVED)).unwrap();
    assert_eq!(get_u32(&read_record(&mut second).unwrap(), 0), 5);
    let mut third = client(&wall);
    assert_eq!(get_u32(&ask(&mut third, &remove(5)), 0), 5);
    assert_eq!(counter(&wall, "replayed_total"), 1);
    // The server has seen it once: its connection ended, and there is no other.
    assert!(read_record(&mut upstream).is_none());
    assert!(connections.try_recv().is_err());
}

#[test]
fn a_lost_server_ends_sessions_with_calls_pending_and_no_others() {
    let (address, connections) = server();
    let (wall, _folder) = wall(address, None, Limits::default());
    let (mut idle, mut busy) = (client(&wall), client(&wall));
    idle.write_all(&remove(1)).unwrap();
    let mut upstream = connections.recv_timeout(BOUND).unwrap();
    let call = read_record(&mut upstream).unwrap();
    upstream.write_all(&reply_to(&call, &REMOVED)).unwrap();
    read_record(&mut idle).unwrap();
    busy.write_all(&remove(2)).unwrap();
    let mut other = connections.recv_timeout(BOUND).unwrap();
    read_record(&mut other).unwrap();
    drop((upstream, other));
    assert!(read_record(&mut busy).is_none(), "the client connects again and sends again");
    until("both losses", || counter(&wall, "server_lost_total") == 2);
    idle.write_all(&remove(3)).unwrap();
    let mut upstream = connections.recv_timeout(BOUND).unwrap();
    let call = read_record(&mut upstream).unwrap();
    upstream.write_all(&reply_to(&call, &REMOVED)).unwrap();
    assert_eq!(get_u32(&read_record(&mut idle).unwrap(), 0), 3);
}

#[test]
fn a_server_that_never_answers_is_not_waited_for_for_ever() {
    let (address, connections) = server();
    let limits = Limits { call_timeout_us: 50_000, ..Limits::default() };
    let (wall, _folder) = wall(address, None, limits);
    let mut stream = client(&wall);
    stream.write_all(&getattr(1)).unwrap();
    let mut upstream = connections.recv_timeout(BOUND).unwrap();
    let call = read_record(&mut upstream).unwrap();
    until("the purge", || counter(&wall, "timeouts_total") == 1);
    assert_eq!(counter(&wall, "pending"), 0);
    upstream.write_all(&reply_to(&call, &REMOVED)).unwrap();
    until("the late reply", || counter(&wall, "late_replies_total") == 1);
}

#[test]
fn a_client_that_fills_the_pending_map_stalls_only_itself() {
    let (address, connections) = server();
    let (wall, _folder) = wall(address, None, Limits::default());
    let mut flood = client(&wall);
    let writer = std::thread::spawn(move || {
        for xid in 0..PENDING_MAX as u32 * 2 {
            flood.write_all(&getattr(xid)).unwrap();
        }
        flood
    });
    let mut upstream = connections.recv_timeout(BOUND).unwrap();
    until("a full map", || counter(&wall, "pending") == PENDING_MAX as u64);
    let mut other = client(&wall);
    other.write_all(&remove(1)).unwrap();
    let mut other_upstream = connections.recv_timeout(BOUND).unwrap();
    let call = read_record(&mut other_upstream).unwrap();
    other_upstream.write_all(&reply_to(&call, &REMOVED)).unwrap();
    assert_eq!(get_u32(&read_record(&mut other).unwrap(), 0), 1);
    // With replies, the rest goes on.
    let stale = 70u32.to_be_bytes();
    for _ in 0..PENDING_MAX * 2 {
        let call = read_record(&mut upstream).unwrap();
        upstream.write_all(&reply_to(&call, &stale)).unwrap();
    }
    let mut flood = writer.join().unwrap();
    for _ in 0..PENDING_MAX * 2 {
        assert_eq!(status(&read_record(&mut flood).unwrap()), 70);
    }
    assert!(counter(&wall, "stalls_total") >= 1);
}

#[test]
fn records_that_are_none_end_the_session_or_are_refused() {
    let (address, connections) = server();
    let (wall, _folder) = wall(address, None, Limits::default());
    let mut long = client(&wall);
    long.write_all(&(0x7fff_ffffu32 | 1 << 31).to_be_bytes()).unwrap();
    assert_eq!(long.read(&mut [0; 1]).unwrap_or(0), 0, "a record that is too long");
    let mut endless = client(&wall);
    // It may be cut off before all is written.
    let _ = endless.write_all(&[0; 4].repeat(5000));
    assert_eq!(endless.read(&mut [0; 1]).unwrap_or(0), 0, "fragments that never end");
    let mut garbage = client(&wall);
    let call = Record::nfs3(3, Op::Getattr, &CALLER).opaque(b"handle").u32(1).finish();
    assert_eq!(get_u32(&ask(&mut garbage, &call), 20), 4, "GARBAGE_ARGS for a call with a tail");
    let call = Record::call(4, 100_003, 2, 1, &CALLER).finish();
    assert_eq!(get_u32(&ask(&mut garbage, &call), 20), 2, "PROG_MISMATCH for NFSv2");
    let call = Record::call(5, 100_227, 3, 1, &CALLER).finish();
    assert_eq!(get_u32(&ask(&mut garbage, &call), 20), 1, "PROG_UNAVAIL for what is not served");
    assert!(connections.try_recv().is_err(), "the server has seen nothing of it");
}

#[test]
fn a_denied_write_is_answered_and_its_data_goes_nowhere() {
    let (address, connections) = server();
    let (wall, _folder) = wall(address, Some("kind: read-only"), Limits::default());
    let mut stream = client(&wall);
    assert_eq!(status(&ask(&mut stream, &write_call(1, &vec![1; 500_000]))), 30);
    stream.write_all(&getattr(2)).unwrap();
    let mut upstream = connections.recv_timeout(BOUND).unwrap();
    assert_eq!(get_u32(&read_record(&mut upstream).unwrap(), 20), 1, "the first call that the server sees");
}

#[test]
fn a_call_above_the_rate_waits_and_goes_on() {
    let (address, connections) = server();
    let policy = "kind: rate\nper: user\ncalls-per-s: 20\nburst-ms: 50";
    let (wall, _folder) = wall(address, Some(policy), Limits::default());
    let mut stream = client(&wall);
    for xid in 0..4 {
        stream.write_all(&getattr(xid)).unwrap();
    }
    let mut upstream = connections.recv_timeout(BOUND).unwrap();
    for _ in 0..4 {
        read_record(&mut upstream).unwrap();
    }
    assert!(wall.status().policies[0].delayed >= 3);
}

#[test]
fn policies_change_under_a_session_and_wrong_ones_do_not() {
    let (address, connections) = server();
    let (wall, folder) = wall(address, Some("kind: statistics"), Limits::default());
    let path = folder.path().join("p.yaml");
    let mut stream = client(&wall);
    stream.write_all(&write_call(1, b"data")).unwrap();
    let mut upstream = connections.recv_timeout(BOUND).unwrap();
    read_record(&mut upstream).unwrap();
    std::fs::write(&path, "kind: read-only").unwrap();
    wall.reload().unwrap();
    assert_eq!(status(&ask(&mut stream, &write_call(2, b"data"))), 30);
    std::fs::write(&path, "kind: read-onli").unwrap();
    assert!(wall.reload().unwrap_err().to_string().contains("'read-onli'"));
    assert_eq!(status(&ask(&mut stream, &write_call(3, b"data"))), 30, "the last good ones stay");
    assert!(wall.status().policy_error.is_some());
    // Without being told, it sees that the file has changed.
    std::fs::write(&path, "kind: access\ndefault: deny\n").unwrap();
    until("the reload", || wall.status().policy_error.is_none());
    assert_eq!(status(&ask(&mut stream, &write_call(4, b"data"))), 13);
}

#[test]
fn datagrams_are_a_session_too() {
    let (address, connections) = server();
    let (wall, _folder) = wall(address, None, Limits::default());
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(BOUND)).unwrap();
    let call = &remove(5)[4..];
    socket.send_to(call, wall.address).unwrap();
    let mut upstream = connections.recv_timeout(BOUND).unwrap();
    let seen = read_record(&mut upstream).unwrap();
    // Retransmitted while it is pending: the server does not see it.
    socket.send_to(call, wall.address).unwrap();
    until("the copy", || counter(&wall, "retransmissions_total") == 1);
    upstream.write_all(&reply_to(&seen, &REMOVED)).unwrap();
    let mut reply = [0; 2048];
    let length = socket.recv(&mut reply).unwrap();
    assert_eq!((get_u32(&reply, 0), length), (5, 36));
    // Retransmitted after the reply was lost: answered from memory.
    socket.send_to(call, wall.address).unwrap();
    assert_eq!(socket.recv(&mut reply).unwrap(), 36);
    assert_eq!(counter(&wall, "replayed_total"), 1);
    // A small file and its payload fit a datagram.
    let read = Record::nfs3(6, Op::Read, &CALLER).opaque(b"handle").u64(0).u32(1000).datagram();
    socket.send_to(&read, wall.address).unwrap();
    let seen = read_record(&mut upstream).unwrap();
    upstream.write_all(&reply_to(&seen, &read_results(&[9; 1000]))).unwrap();
    assert_eq!(socket.recv(&mut reply).unwrap(), 1044);
    assert!(reply[44..1044].iter().all(|byte| *byte == 9));
}

#[test]
fn sessions_are_bounded_by_client() {
    let (address, _connections) = server();
    let limits = Limits { sessions_per_client: 2, ..Limits::default() };
    let (wall, _folder) = wall(address, None, limits);
    let (mut one, mut two) = (client(&wall), client(&wall));
    // NULL of MOUNT: who has spoken keeps its place.
    let null = Record::call(1, 100_005, 3, 0, &CALLER).finish();
    for stream in [&mut one, &mut two] {
        ask(stream, &null);
    }
    assert_eq!(counter(&wall, "sessions"), 2);
    let mut third = client(&wall);
    assert_eq!(third.read(&mut [0; 1]).unwrap_or(0), 0);
    assert_eq!(counter(&wall, "sessions_refused_total"), 1);
    drop(one);
    until("the end of one", || counter(&wall, "sessions") == 1);
    let mut fourth = client(&wall);
    fourth.write_all(&remove(1)).unwrap();
    until("its call", || counter(&wall, "pending") == 1);
}

#[test]
fn a_call_that_may_have_happened_is_settled_by_looking() {
    let (address, connections) = server();
    let (wall, _folder) = wall(address, None, Limits::default());
    // What the server says to the question, and whether it sees the call again.
    let gone: &[u8] = &[0, 0, 0, 2, 0, 0, 0, 0];
    let there: &[u8] = &[0, 0, 0, 0, 0, 0, 0, 4, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0];
    for (xid, said, again) in [(5, gone, false), (6, there, true)] {
        let mut stream = client(&wall);
        stream.write_all(&remove(xid)).unwrap();
        let mut upstream = connections.recv_timeout(BOUND).unwrap();
        read_record(&mut upstream).unwrap();
        drop(upstream);
        assert!(read_record(&mut stream).is_none(), "nobody knows what became of it");
        let mut stream = client(&wall);
        stream.write_all(&remove(xid)).unwrap();
        let mut upstream = connections.recv_timeout(BOUND).unwrap();
        let question = read_record(&mut upstream).unwrap();
        assert_eq!(get_u32(&question, 20), Op::Lookup as u32);
        upstream.write_all(&reply_to(&question, said)).unwrap();
        if again {
            let call = read_record(&mut upstream).unwrap();
            assert_eq!(get_u32(&call, 20), Op::Remove as u32);
            upstream.write_all(&reply_to(&call, &REMOVED)).unwrap();
        }
        let reply = read_record(&mut stream).unwrap();
        assert_eq!((get_u32(&reply, 0), status(&reply)), (xid, 0));
        // From then on it is answered from memory.
        assert_eq!(status(&ask(&mut stream, &remove(xid))), 0);
    }
    assert_eq!((counter(&wall, "settled_total"), counter(&wall, "replayed_total")), (1, 2));
    assert_eq!(counter(&wall, "pending"), 0);
}

/// NOENT and EXIST, in the shape of a REMOVE or MKDIR, and of a RENAME.
fn failed(status: u32, words: usize) -> Vec<u8> {
    [status.to_be_bytes().to_vec(), vec![0; words * 4]].concat()
}

#[test]
fn a_copy_that_its_first_one_has_overtaken_is_settled_by_a_second_look() {
    let (address, connections) = server();
    let (wall, _folder) = wall(address, None, Limits::default());
    let gone: &[u8] = &[0, 0, 0, 2, 0, 0, 0, 0];
    let there: &[u8] = &[0, 0, 0, 0, 0, 0, 0, 4, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0];
    let call = |xid: u32, op: Op| {
        let record = Record::nfs3(xid, op, &CALLER).opaque(b"handle").opaque(b"name");
        match op {
            Op::Mkdir => (0..6).fold(record, |record, _| record.u32(0)).finish(),
            Op::Rename => record.opaque(b"other").opaque(b"new").finish(),
            _ => record.finish(),
        }
    };
    // What the first look shows, what the server says to the copy, what the second look shows, what the client gets.
    for (xid, (op, first, said, second, status_wanted)) in [
        (Op::Remove, there, failed(2, 2), gone, 0),
        (Op::Remove, there, failed(2, 2), there, 2),
        (Op::Mkdir, gone, failed(17, 2), there, 0),
        (Op::Mkdir, gone, failed(17, 2), gone, 17),
        (Op::Rename, there, failed(2, 4), there, 0),
        (Op::Rename, there, failed(2, 4), gone, 2),
    ]
    .into_iter()
    .enumerate()
    {
        let xid = xid as u32 + 100;
        let mut stream = client(&wall);
        stream.write_all(&call(xid, op)).unwrap();
        let mut upstream = connections.recv_timeout(BOUND).unwrap();
        read_record(&mut upstream).unwrap();
        drop(upstream);
        assert!(read_record(&mut stream).is_none(), "nobody knows what became of it");
        let mut stream = client(&wall);
        stream.write_all(&call(xid, op)).unwrap();
        // Behind it comes a WRITE whose data is not there yet: the second look must not get into it.
        let write = write_call(1000 + xid, &[7; 4000]);
        stream.write_all(&write[..1000]).unwrap();
        let mut upstream = connections.recv_timeout(BOUND).unwrap();
        let question = read_record(&mut upstream).unwrap();
        assert_eq!(get_u32(&question, 20), Op::Lookup as u32);
        upstream.write_all(&reply_to(&question, first)).unwrap();
        let copy = read_record(&mut upstream).unwrap();
        assert_eq!(get_u32(&copy, 20), op as u32);
        upstream.write_all(&reply_to(&copy, &said)).unwrap();
        stream.write_all(&write[1000..]).unwrap();
        let mut seen = [read_record(&mut upstream).unwrap(), read_record(&mut upstream).unwrap()];
        seen.sort_by_key(|record| get_u32(record, 20));
        let [question, written] = seen;
        assert_eq!((get_u32(&question, 20), get_u32(&written, 20)), (Op::Lookup as u32, Op::Write as u32));
        assert!(written.ends_with(&[7; 4000]));
        upstream.write_all(&reply_to(&question, second)).unwrap();
        let reply = read_record(&mut stream).unwrap();
        assert_eq!((get_u32(&reply, 0), status(&reply)), (xid, status_wanted), "{op}");
        // From then on it is answered from memory.
        assert_eq!(status(&ask(&mut stream, &call(xid, op))), status_wanted);
    }
    assert_eq!(counter(&wall, "settled_total"), 3);
}

const ROLES: &str = "
kind: identities
users: {dev: {uid: 1001, roles: [developer]}}
roles: {developer: {}}
---
kind: rbac
state-file: rbac.state
initial: [developer]
rules: 'permit (principal in Role::\"developer\", action, resource);'
";

#[test]
fn a_policy_that_looks_for_names_does_not_take_a_copy_for_a_new_call() {
    let (address, connections) = server();
    let (wall, _folder) = wall(address, Some(ROLES), Limits::default());
    let attributes = |folder: bool| {
        let mode = 0o755;
        Attributes { folder, mode, uid: 1001, gid: 100, size: 3, fsid: 7, fileid: 5, time: (1, 1) }.bytes()
    };
    let of_folder = [vec![0; 4], attributes(true).to_vec()].concat();
    let there = [&[0, 0, 0, 0, 0, 0, 0, 4, 1, 2, 3, 4, 0, 0, 0, 1][..], &attributes(false), &[0; 4]].concat();
    let gone = vec![0, 0, 0, 2, 0, 0, 0, 0];
    // Answers what is asked, until the call itself comes.
    let serve = |upstream: &mut std::net::TcpStream, looked: &[u8]| loop {
        let call = read_record(upstream).unwrap();
        let results = match get_u32(&call, 20) {
            number if number == Op::Getattr as u32 => &of_folder[..],
            number if number == Op::Lookup as u32 => looked,
            _ => return call,
        };
        upstream.write_all(&reply_to(&call, results)).unwrap();
    };
    // Its answer is lost on the way to the client: the copy gets the same, although the name is gone.
    let mut stream = client(&wall);
    stream.write_all(&remove(5)).unwrap();
    let mut upstream = connections.recv_timeout(BOUND).unwrap();
    let call = serve(&mut upstream, &there);
    upstream.write_all(&reply_to(&call, &REMOVED)).unwrap();
    assert_eq!(status(&read_record(&mut stream).unwrap()), 0);
    assert_eq!(status(&ask(&mut client(&wall), &remove(5))), 0);
    // Nobody knows what became of it, and it has happened.
    stream.write_all(&remove(6)).unwrap();
    serve(&mut upstream, &there);
    drop(upstream);
    assert!(read_record(&mut stream).is_none());
    let mut stream = client(&wall);
    stream.write_all(&remove(6)).unwrap();
    let mut upstream = connections.recv_timeout(BOUND).unwrap();
    let question = read_record(&mut upstream).unwrap();
    assert_eq!(get_u32(&question, 20), Op::Lookup as u32);
    upstream.write_all(&reply_to(&question, &gone)).unwrap();
    assert_eq!(status(&read_record(&mut stream).unwrap()), 0, "it has happened");
    assert_eq!((counter(&wall, "settled_total"), counter(&wall, "replayed_total")), (1, 1));
    // A new one for a name that is not there.
    stream.write_all(&remove(7)).unwrap();
    let question = read_record(&mut upstream).unwrap();
    upstream.write_all(&reply_to(&question, &gone)).unwrap();
    assert_eq!(status(&read_record(&mut stream).unwrap()), 2);
}

#[test]
fn the_roots_handle_is_known_to_a_filewall_that_has_just_begun_and_after_a_change_of_paths() {
    let (address, connections) = server();
    let rules =
        |path: &str| format!("kind: access\ndefault: allow\nrules: [{{deny: [changes], paths: [{path}]}}]\n");
    let (wall, folder) = wall(address, Some(&rules("/closed")), Limits::default());
    let mut client = client(&wall);
    let look = |xid: u32, handle: &[u8]| Record::nfs3(xid, Op::Getattr, &CALLER).opaque(handle).finish();
    let mut upstream = None;
    let mut forwarded = |call: Vec<u8>| {
        client.write_all(&call).unwrap();
        let upstream = upstream.get_or_insert_with(|| connections.recv_timeout(BOUND).unwrap());
        let seen = read_record(upstream).unwrap();
        // ROFS stands for any answer of the server.
        upstream.write_all(&reply_to(&seen, &30u32.to_be_bytes())).unwrap();
        status(&read_record(&mut client).unwrap())
    };
    assert_eq!(forwarded(look(1, ROOT)), 30, "a client that has mounted before");
    std::fs::write(folder.path().join("p.yaml"), rules("/elsewhere")).unwrap();
    wall.reload().unwrap();
    assert_eq!(forwarded(look(2, ROOT)), 30);
    let mut other = crate::played::client(&wall);
    assert_eq!(status(&ask(&mut other, &look(3, b"anything"))), 70, "it must be looked up");
}
