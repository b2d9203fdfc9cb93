//! Calls that go before long WRITEs of the same client, and those that must not.

use crate::played::{CALLER, client, getattr, read_record, remove, reply_to, server, wall, write_call};
use std::io::Write;
use std::net::TcpStream;
use weir_filewall::proxy::{FileWall, Limits};
use weir_filewall::wire::build::Record;
use weir_filewall::wire::nfs3::Op;
use weir_filewall::wire::xdr::get_u32;

const POLICY: &str = "kind: reorder\nlong-bytes: 1000\nwindow-us: 100000\n";
/// How often two calls are sent together until the first one is set aside: what comes apart is not reordered.
const ATTEMPTS: u32 = 2000;

/// Sends two calls together; the procedures in the order in which the server gets them. Both are answered.
fn order(stream: &mut TcpStream, upstream: &mut TcpStream, calls: [Vec<u8>; 2]) -> [u32; 2] {
    let xids = [0, 1].map(|number| get_u32(&calls[number], 4));
    stream.write_all(&calls.concat()).unwrap();
    let seen = [0, 1].map(|_| read_record(upstream).unwrap());
    // What the server says does not matter here: an error of the length that all of these may have.
    seen.iter().for_each(|call| {
        upstream.write_all(&reply_to(call, &[0, 0, 0, 70, 0, 0, 0, 0, 0, 0, 0, 0])).unwrap()
    });
    let mut answered = [0, 1].map(|_| get_u32(&read_record(stream).unwrap(), 0));
    answered.sort_unstable();
    assert_eq!(answered, xids, "each call has its answer");
    seen.map(|call| get_u32(&call, 20))
}

fn counter(wall: &FileWall, name: &str) -> u64 {
    wall.status().totals.counters[name]
}

#[test]
fn looks_at_other_files_go_before_long_writes_and_nothing_else_does() {
    let (address, connections) = server();
    let (wall, _folder) = wall(address, Some(POLICY), Limits::default());
    let mut stream = client(&wall);
    let data = vec![7; 2000];
    let other = |xid| Record::nfs3(xid, Op::Getattr, &CALLER).opaque(b"other").finish();
    stream.write_all(&getattr(1)).unwrap();
    let mut upstream = connections.recv_timeout(crate::played::BOUND).unwrap();
    let first = read_record(&mut upstream).unwrap();
    upstream.write_all(&reply_to(&first, &[0, 0, 0, 70])).unwrap();
    read_record(&mut stream).unwrap();
    let [write, look, removal] = [Op::Write, Op::Getattr, Op::Remove].map(|op| op as u32);
    let mut xid = 10;
    let mut next = || {
        xid += 2;
        [xid, xid + 1]
    };
    let overtaken = (0..ATTEMPTS).any(|_| {
        let [one, two] = next();
        let order = order(&mut stream, &mut upstream, [write_call(one, &data), other(two)]);
        assert!(order == [write, look] || order == [look, write]);
        order == [look, write]
    });
    assert!(overtaken, "no look went first in {ATTEMPTS} attempts");
    assert!(counter(&wall, "overtaken_total") > 0 && counter(&wall, "set_aside_total") > 0);
    for _ in 0..50 {
        let [one, two] = next();
        let same = order(&mut stream, &mut upstream, [write_call(one, &data), getattr(two)]);
        assert_eq!(same, [write, look], "the same file");
        let [one, two] = next();
        let name = order(&mut stream, &mut upstream, [write_call(one, &data), remove(two)]);
        assert_eq!(name, [write, removal], "a change of names");
        let [one, two] = next();
        let short = order(&mut stream, &mut upstream, [write_call(one, &data[..999]), other(two)]);
        assert_eq!(short, [write, look], "a short one is not set aside");
        let [one, two] = next();
        let writes = order(&mut stream, &mut upstream, [write_call(one, &data), write_call(two, &data)]);
        assert_eq!(writes, [write, write]);
    }
    // One that is alone waits for nobody, not even for its window.
    let before = counter(&wall, "overtaken_total");
    stream.write_all(&write_call(5, &data)).unwrap();
    let seen = read_record(&mut upstream).unwrap();
    assert_eq!((get_u32(&seen, 20), seen[seen.len() - 2000..].to_vec()), (write, data));
    assert_eq!(counter(&wall, "overtaken_total"), before);
    // Nor does one that another has overtaken: it goes when that one has gone out.
    assert_eq!(counter(&wall, "set_aside_expired_total"), 0);
}
