//! COMPOUNDs of NFSv4: handles, places, what is cut and how it is answered, and what never reaches the server or the client.

use crate::played::{BOUND, CALLER, ask, client, read_record, reply_to, server, until, wall};
use std::io::Write;
use std::net::{TcpStream, UdpSocket};
use std::sync::mpsc::Receiver;
use weir_filewall::proxy::Limits;
use weir_filewall::wire::build::Record;
use weir_filewall::wire::nfs4::arguments::Argument;
use weir_filewall::wire::nfs4::{Op4, status};
use weir_filewall::wire::xdr::{get_u32, put_opaque, put_u32, put_u64};

/// One operation with its arguments.
pub struct Operation(pub Op4, pub Vec<u8>);

pub fn op(op: Op4) -> Operation {
    Operation(op, Vec::new())
}

pub fn named(op: Op4, name: &[u8]) -> Operation {
    let mut bytes = Vec::new();
    put_opaque(&mut bytes, name);
    Operation(op, bytes)
}

pub fn words(op: Op4, words: &[u32]) -> Operation {
    Operation(op, words.iter().flat_map(|word| word.to_be_bytes()).collect())
}

/// WRITE of some data, not to be durable, without a state.
fn write(data: &[u8]) -> Operation {
    let mut bytes = vec![0; 16 + 8 + 4];
    put_opaque(&mut bytes, data);
    Operation(Op4::Write, bytes)
}

pub fn compound(xid: u32, minor: u32, operations: &[Operation]) -> Vec<u8> {
    let mut record = Record::call(xid, 100_003, 4, 1, &CALLER).opaque(b"tag").u32(minor);
    record = record.u32(operations.len() as u32);
    for Operation(op, arguments) in operations {
        record = record.u32(op.number());
        record = arguments.chunks(4).fold(record, |record, word| record.u32(get_u32(word, 0)));
    }
    record.finish()
}

/// Results of a COMPOUND that went well, each with its own.
pub fn results(status: u32, outcomes: &[(Op4, u32, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_u32(&mut bytes, status);
    put_opaque(&mut bytes, b"tag");
    put_u32(&mut bytes, outcomes.len() as u32);
    for (op, status, results) in outcomes {
        put_u32(&mut bytes, op.number());
        put_u32(&mut bytes, *status);
        bytes.extend_from_slice(results);
    }
    bytes
}

/// What a server answers to a COMPOUND whose operations `one` carries out, each with its results and its status, up to the first that fails.
pub fn carried_out(
    tag: &[u8],
    operations: &[Argument],
    mut one: impl FnMut(&Argument, &mut Vec<u8>) -> u32,
) -> Vec<u8> {
    let (mut out, mut count, mut last) = (Vec::new(), 0, status::OK);
    for argument in operations {
        let mut body = Vec::new();
        last = one(argument, &mut body);
        put_u32(&mut out, argument.op.number());
        put_u32(&mut out, last);
        count += 1;
        if last != status::OK {
            if argument.op == Op4::SetAttr {
                // Which attributes were set stands there also when none were.
                put_u32(&mut out, 0);
            }
            break;
        }
        out.extend_from_slice(&body);
    }
    let mut bytes = Vec::new();
    put_u32(&mut bytes, last);
    put_opaque(&mut bytes, tag);
    put_u32(&mut bytes, count);
    bytes.extend_from_slice(&out);
    bytes
}

fn opaque(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_opaque(&mut out, bytes);
    out
}

/// Where the operations of a call begin, behind their number; the credentials of [`CALLER`] have no groups.
pub fn operations_of(call: &[u8]) -> &[u8] {
    // Head 24, AUTH_SYS 8 + 24, verifier 8, tag 8, minor 4.
    &call[24 + 8 + 24 + 8 + 8 + 4..]
}

/// Status and number of results of a reply, and what follows.
pub fn answer(reply: &[u8]) -> (u32, u32, &[u8]) {
    (get_u32(reply, 24), get_u32(reply, 36), &reply[40..])
}

struct Place {
    stream: TcpStream,
    connections: Receiver<TcpStream>,
    upstream: Option<TcpStream>,
    wall: weir_filewall::proxy::FileWall,
    _folder: tempfile::TempDir,
}

impl Place {
    fn new(policy: &str) -> Place {
        let (address, connections) = server();
        let (wall, folder) = wall(address, Some(policy), Limits::default());
        let stream = client(&wall);
        Place { stream, connections, upstream: None, wall, _folder: folder }
    }

    /// Sends a call, plays the server with these results, and gives what the server saw and the client got.
    fn exchange(&mut self, call: &[u8], results: &[u8]) -> (Vec<u8>, Vec<u8>) {
        self.stream.write_all(call).unwrap();
        let upstream = self.upstream.get_or_insert_with(|| self.connections.recv_timeout(BOUND).unwrap());
        let seen = read_record(upstream).unwrap();
        upstream.write_all(&reply_to(&seen, results)).unwrap();
        (seen, read_record(&mut self.stream).unwrap())
    }

    /// Walks from the server's root into the export, whose handle is `root`; the handle that the client gets.
    fn enter(&mut self, root: &[u8]) -> Vec<u8> {
        let call = compound(1, 0, &[op(Op4::PutRootFh), named(Op4::Lookup, b"export"), op(Op4::GetFh)]);
        let done =
            [(Op4::PutRootFh, 0, Vec::new()), (Op4::Lookup, 0, Vec::new()), (Op4::GetFh, 0, opaque(root))];
        let (_, reply) = self.exchange(&call, &results(0, &done));
        let (status, count, rest) = answer(&reply);
        assert_eq!((status, count), (0, 3));
        let bytes = get_u32(rest, 24) as usize;
        rest[28..28 + bytes].to_vec()
    }
}

const RULES: &str = "kind: handles\nkey-file: key\n---\nkind: access\ndefault: allow\nrules:\n- {deny: [all], paths: [/secret]}\n\
                     - {deny: [changes], paths: [/frozen], answer: rofs}\n";

#[test]
fn handles_are_replaced_and_a_cut_compound_is_completed() {
    let mut place = Place::new(RULES);
    let handle = place.enter(b"root of the export");
    assert_eq!(handle.len(), 64);
    assert!(!handle.windows(4).any(|bytes| bytes == b"root"));
    let call = compound(2, 0, &[named(Op4::PutFh, &handle), named(Op4::Lookup, b"secret"), op(Op4::GetFh)]);
    let (seen, reply) = place.exchange(&call, &results(0, &[(Op4::PutFh, 0, Vec::new())]));
    let sent =
        [1u32.to_be_bytes().to_vec(), 22u32.to_be_bytes().to_vec(), opaque(b"root of the export")].concat();
    assert_eq!(operations_of(&seen), sent, "the server sees its own handle, and nothing of what is denied");
    let (status, count, rest) = answer(&reply);
    assert_eq!((status, count), (13, 2));
    assert_eq!((get_u32(rest, 0), get_u32(rest, 4), get_u32(rest, 8), get_u32(rest, 12)), (22, 0, 15, 13));
    assert_eq!(rest.len(), 16);
    // A place that is learnt holds for later calls: a folder in which nothing may be changed.
    let call = compound(3, 0, &[named(Op4::PutFh, &handle), named(Op4::Lookup, b"frozen"), op(Op4::GetFh)]);
    let done = [
        (Op4::PutFh, 0, Vec::new()),
        (Op4::Lookup, 0, Vec::new()),
        (Op4::GetFh, 0, opaque(b"the frozen folder")),
    ];
    let (_, reply) = place.exchange(&call, &results(0, &done));
    let frozen = answer(&reply).2[28..92].to_vec();
    let call = compound(4, 0, &[named(Op4::PutFh, &frozen), named(Op4::Remove, b"file")]);
    let (_, reply) = place.exchange(&call, &results(0, &[(Op4::PutFh, 0, Vec::new())]));
    assert_eq!((answer(&reply).0, answer(&reply).1), (30, 2));
    // A server that fails before the cut is passed on as it is.
    let (_, reply) = place.exchange(
        &compound(5, 0, &[named(Op4::PutFh, &frozen), named(Op4::Remove, b"file")]),
        &results(70, &[(Op4::PutFh, 70, Vec::new())]),
    );
    assert_eq!((answer(&reply).0, answer(&reply).1), (70, 1));
}

#[test]
fn only_the_export_can_be_reached_and_only_by_own_handles() {
    let mut place = Place::new("kind: handles\nkey-file: key\n");
    let handle = place.enter(b"root");
    let call = compound(2, 0, &[op(Op4::PutRootFh), named(Op4::Lookup, b"other")]);
    let (_, reply) = place.exchange(&call, &results(0, &[(Op4::PutRootFh, 0, Vec::new())]));
    assert_eq!((answer(&reply).0, answer(&reply).1), (2, 2));
    let call = compound(3, 0, &[op(Op4::PutRootFh), named(Op4::Remove, b"export")]);
    let (_, reply) = place.exchange(&call, &results(0, &[(Op4::PutRootFh, 0, Vec::new())]));
    assert_eq!(answer(&reply).0, 13);
    for forged in [b"root".to_vec(), vec![7; 64]] {
        let reply = ask(&mut place.stream, &compound(4, 0, &[named(Op4::PutFh, &forged), op(Op4::GetFh)]));
        assert_eq!((answer(&reply).0, answer(&reply).1), (10001, 1));
    }
    // The handle of the root leads to the export in both versions, and nowhere else.
    let call = compound(5, 0, &[op(Op4::PutRootFh), op(Op4::GetFh)]);
    let done = [(Op4::PutRootFh, 0, Vec::new()), (Op4::GetFh, 0, opaque(b"pseudo"))];
    let (_, reply) = place.exchange(&call, &results(0, &done));
    let above = answer(&reply).2[20..84].to_vec();
    let call = compound(6, 0, &[named(Op4::PutFh, &above), named(Op4::Lookup, b"other")]);
    let (_, reply) = place.exchange(&call, &results(0, &[(Op4::PutFh, 0, Vec::new())]));
    assert_eq!(answer(&reply).0, 2);
    let getattr = |xid, handle: &[u8]| {
        Record::nfs3(xid, weir_filewall::wire::nfs3::Op::Getattr, &CALLER).opaque(handle).finish()
    };
    assert_eq!(get_u32(&ask(&mut place.stream, &getattr(7, &above)), 24), 10001);
    let (seen, _) = place.exchange(&getattr(8, &handle), &70u32.to_be_bytes());
    assert!(seen.ends_with(&opaque(b"root")), "a handle of the export is good in both versions");
}

#[test]
fn the_public_handle_is_the_roots_and_a_handle_that_is_compared_is_the_servers() {
    let mut place = Place::new(RULES);
    let root = place.enter(b"root-handle");
    let call = compound(2, 0, &[op(Op4::PutPubFh), named(Op4::Lookup, b"export"), op(Op4::GetFh)]);
    let done = [
        (Op4::PutRootFh, 0, Vec::new()),
        (Op4::Lookup, 0, Vec::new()),
        (Op4::GetFh, 0, opaque(b"root-handle")),
    ];
    let (seen, reply) = place.exchange(&call, &results(0, &done));
    assert_eq!(get_u32(operations_of(&seen), 4), Op4::PutRootFh.number());
    let (status, count, rest) = answer(&reply);
    assert_eq!((status, count, get_u32(rest, 0)), (0, 3, Op4::PutPubFh.number()));
    assert_eq!(rest[rest.len() - root.len()..], root);
    // The kind of a file, and its handle.
    let compares = |handle: &[u8]| {
        let values = [&2u32.to_be_bytes(), opaque(handle).as_slice()].concat();
        let bits = [1, 1 << 19 | 1 << 1].map(u32::to_be_bytes).concat();
        Operation(Op4::Verify, [bits, opaque(&values)].concat())
    };
    let done = [(Op4::PutFh, 0, Vec::new()), (Op4::Verify, 0, Vec::new())];
    let call = compound(3, 0, &[named(Op4::PutFh, &root), compares(&root)]);
    let (seen, reply) = place.exchange(&call, &results(0, &done));
    let server = compound(3, 0, &[named(Op4::PutFh, b"root-handle"), compares(b"root-handle")]);
    assert_eq!(operations_of(&seen), operations_of(&server[4..]));
    assert_eq!(answer(&reply).0, 0);
    let mut forged = root.clone();
    forged[20] ^= 1;
    let call = compound(4, 0, &[named(Op4::PutFh, &root), compares(&forged)]);
    let (seen, reply) = place.exchange(&call, &results(0, &done[..1]));
    assert_eq!(operations_of(&seen).len(), 8 + opaque(b"root-handle").len());
    assert_eq!(answer(&reply).0, 10001);
}

#[test]
fn a_listing_shows_the_way_only_and_is_cut_where_handles_grow() {
    let mut place = Place::new("kind: handles\nkey-file: key\n");
    let entries = |names: &[&str]| {
        let mut bytes = vec![0; 8];
        for (number, name) in names.iter().enumerate() {
            put_u32(&mut bytes, 1);
            put_u64(&mut bytes, number as u64 + 1);
            put_opaque(&mut bytes, name.as_bytes());
            // Type, and the handle.
            let attributes = [2u32.to_be_bytes().to_vec(), opaque(name.as_bytes())].concat();
            [1u32, 1 << 1 | 1 << 19].iter().for_each(|word| put_u32(&mut bytes, *word));
            put_opaque(&mut bytes, &attributes);
        }
        put_u32(&mut bytes, 0);
        put_u32(&mut bytes, 1);
        bytes
    };
    let list = |maxcount: u32| words(Op4::ReadDir, &[0, 0, 0, 0, 512, maxcount, 1, 1 << 1 | 1 << 19]);
    let call = compound(1, 0, &[op(Op4::PutRootFh), list(4096)]);
    let done = [(Op4::PutRootFh, 0, Vec::new()), (Op4::ReadDir, 0, entries(&["a", "export", "z"]))];
    let (_, reply) = place.exchange(&call, &results(0, &done));
    let shown = |name: &[u8]| reply.windows(name.len()).any(|bytes| bytes == name);
    assert!(shown(b"export") && !shown(b"\0\0\0\x01a") && !shown(b"\0\0\0\x01z"));
    let handle = place.enter(b"root");
    let call = compound(3, 0, &[named(Op4::PutFh, &handle), list(400)]);
    let names = ["one", "two", "three", "four"];
    let done = [(Op4::PutFh, 0, Vec::new()), (Op4::ReadDir, 0, entries(&names))];
    let (_, reply) = place.exchange(&call, &results(0, &done));
    let rest = answer(&reply).2;
    assert!(rest.len() - 16 <= 400, "{} bytes", rest.len() - 16);
    let count =
        names.iter().filter(|name| rest.windows(name.len()).any(|bytes| bytes == name.as_bytes())).count();
    assert!((1..4).contains(&count), "{count}");
    assert_eq!(&rest[rest.len() - 8..], [0; 8], "there is more");
}

#[test]
fn payloads_pass_in_the_middle_of_a_compound() {
    let mut place = Place::new("kind: handles\nkey-file: key\n");
    let handle = place.enter(b"root");
    let data: Vec<u8> = (0..300_001u32).map(|number| (number >> 3) as u8).collect();
    let call = compound(2, 0, &[named(Op4::PutFh, &handle), write(&data), words(Op4::GetAttr, &[1, 1 << 4])]);
    let size = [words(Op4::GetAttr, &[1, 1 << 4, 8, 0, 300_001]).1].concat();
    let done = [
        (Op4::PutFh, 0, Vec::new()),
        (Op4::Write, 0, words(Op4::Write, &[300_001, 0, 1, 2]).1),
        (Op4::GetAttr, 0, size),
    ];
    let (seen, reply) = place.exchange(&call, &results(0, &done));
    assert_eq!(
        operations_of(&seen)[4..16],
        [22u32, 4, u32::from_be_bytes(*b"root")].map(u32::to_be_bytes).concat()
    );
    assert_eq!(seen[seen.len() - 12 - 300_004..][..300_001], data);
    assert_eq!((answer(&reply).0, answer(&reply).1), (0, 3));
    let call = compound(3, 0, &[named(Op4::PutFh, &handle), words(Op4::Read, &[0, 0, 0, 0, 0, 0, 300_001])]);
    let read = [1u32.to_be_bytes().to_vec(), opaque(&data)].concat();
    let (_, reply) = place.exchange(&call, &results(0, &[(Op4::PutFh, 0, Vec::new()), (Op4::Read, 0, read)]));
    assert_eq!(reply[reply.len() - 300_004..][..300_001], data);
}

#[test]
fn a_denied_write_of_nfsv4_goes_nowhere_and_uses_up_its_slot() {
    let mut place = Place::new("kind: read-only\n");
    let sequence = || words(Op4::Sequence, &[1, 2, 3, 4, 5, 0, 0, 0]);
    let call =
        compound(1, 1, &[sequence(), named(Op4::PutFh, b"root"), write(&[1; 100_000]), op(Op4::GetFh)]);
    let slots = words(Op4::Sequence, &[1, 2, 3, 4, 5, 0, 0, 0, 0x201]).1;
    let done = [(Op4::Sequence, 0, slots), (Op4::PutFh, 0, Vec::new())];
    let (seen, reply) = place.exchange(&call, &results(0, &done));
    assert!(seen.len() < 300, "{} bytes", seen.len());
    let (status, count, rest) = answer(&reply);
    assert_eq!((status, count), (30, 3));
    assert_eq!(get_u32(rest, 40), 0, "nothing is said of callbacks that are down");
    assert_eq!(get_u32(rest, rest.len() - 4), 30);
}

#[test]
fn there_is_no_way_back_past_filewall() {
    let mut place = Place::new("kind: statistics\n");
    let mut arguments = vec![0; 8];
    put_opaque(&mut arguments, b"a client");
    put_u32(&mut arguments, 0x4000_0000);
    put_opaque(&mut arguments, b"tcp");
    put_opaque(&mut arguments, b"10.0.0.1.8.1");
    put_u32(&mut arguments, 1);
    let call = compound(1, 0, &[Operation(Op4::SetClientId, arguments)]);
    let (seen, _) = place.exchange(&call, &results(0, &[(Op4::SetClientId, 0, vec![0; 16])]));
    assert_eq!(get_u32(operations_of(&seen), 8 + 8 + 12), 0, "the program of callbacks");
    let channel = [0u32, 1000, 1000, 1000, 8, 8, 0];
    let session = [&[0, 1, 1, 3][..], &channel, &channel, &[0x4000_0000, 1, 0]].concat();
    let call = compound(2, 1, &[words(Op4::CreateSession, &session)]);
    let granted = [&[0u32; 4][..], &[1, 1], &channel, &channel].concat();
    let done = [(Op4::CreateSession, 0, words(Op4::CreateSession, &granted).1)];
    let (seen, reply) = place.exchange(&call, &results(0, &done));
    assert_eq!(get_u32(operations_of(&seen), 8 + 12), 1, "no callbacks on this connection");
    assert_eq!(answer(&reply).0, 0);
    // LAYOUTGET, OPENATTR, and what nobody knows.
    for (number, minor, said) in [(50u32, 1, 10004), (19, 0, 10004), (4711, 0, 10044)] {
        let record = Record::call(3, 100_003, 4, 1, &CALLER).opaque(b"tag").u32(minor).u32(1).u32(number);
        let reply = ask(&mut place.stream, &record.finish());
        assert_eq!((answer(&reply).0, answer(&reply).1), (said, 1), "operation {number}");
    }
    let reply = ask(&mut place.stream, &compound(4, 2, &[op(Op4::PutRootFh)]));
    assert_eq!((answer(&reply).0, answer(&reply).1), (10021, 0));
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(BOUND)).unwrap();
    socket.send_to(&compound(5, 0, &[op(Op4::PutRootFh)])[4..], place.wall.address).unwrap();
    let mut reply = [0; 100];
    socket.recv(&mut reply).unwrap();
    assert_eq!([20, 24, 28].map(|at| get_u32(&reply, at)), [2, 3, 3], "versions over UDP");
}

#[test]
fn nfsv4_is_refused_where_a_policy_cannot_do_it() {
    let mut place = Place::new("kind: remap\nname: office\nusers: {1: 2}\n---\nkind: statistics\n");
    let reply = ask(&mut place.stream, &compound(1, 0, &[op(Op4::PutRootFh)]));
    assert_eq!([20, 24, 28].map(|at| get_u32(&reply, at)), [2, 3, 3], "a client falls back to version 3");
    assert!(place.connections.try_recv().is_err(), "the server hears nothing");
    assert_eq!(place.wall.status().totals.counters["nfs4_refused_total"], 1);
}

#[test]
fn a_compound_above_the_rate_waits_where_it_is() {
    let mut place =
        Place::new("kind: rate\nper: user\ncalls-per-s: 20\nburst-ms: 50\n---\nkind: statistics\n");
    let file = || [named(Op4::PutFh, b"root"), words(Op4::GetAttr, &[1, 2]), words(Op4::Access, &[1])];
    (0..3).for_each(|xid| place.stream.write_all(&compound(xid, 0, &file())).unwrap());
    let mut upstream = place.connections.recv_timeout(BOUND).unwrap();
    for _ in 0..3 {
        let seen = read_record(&mut upstream).unwrap();
        assert_eq!(get_u32(operations_of(&seen), 0), 3);
    }
    let status = place.wall.status();
    assert!(status.policies[0].delayed >= 4);
    assert_eq!(status.policies[1].seen, 6, "each operation was shown once");
    until("all to be pending", || place.wall.status().totals.counters["pending"] == 3);
}

#[test]
fn clients_are_told_of_the_longest_payload_that_passes() {
    let mut place = Place::new("kind: statistics\n");
    let limits = [1u32, 1 << 30 | 1 << 31, 16, 0, 64 << 20, 0, 4096];
    let call = compound(1, 0, &[op(Op4::PutRootFh), words(Op4::GetAttr, &[1, 1 << 30 | 1 << 31])]);
    let done = [(Op4::PutRootFh, 0, Vec::new()), (Op4::GetAttr, 0, words(Op4::GetAttr, &limits).1)];
    let (_, reply) = place.exchange(&call, &results(0, &done));
    let told = [16, 12, 8, 4].map(|behind| get_u32(&reply, reply.len() - behind));
    assert_eq!(told, [0, 1 << 20, 0, 4096]);
}
