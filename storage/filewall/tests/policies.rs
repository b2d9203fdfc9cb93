//! Policies of a FileWall that runs: files that are damaged meanwhile, modules that loop, and what servers and clients ask for too much.

use crate::disk::disk;
use crate::files::Client;
use crate::played::{
    BOUND, CALLER, ask, client, config_of_many, getattr, read_record, read_results, reply_to, server,
    server_at, until, wall, wall_with_context, write_call,
};
use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weir_filewall::proxy::{FileWall, Limits};
use weir_filewall::replicate::Plan;
use weir_filewall::wire::build::Record;
use weir_filewall::wire::nfs3::{LISTING_BYTES_MAX, Op};
use weir_filewall::wire::nfs4::Op4;
use weir_filewall::wire::xdr::{get_u32, put_opaque, put_u32};

const ROFS: u32 = 30;
const JUKEBOX: u32 = 10_008;
const SERVERFAULT: u32 = 10_006;

fn counter(wall: &FileWall, name: &str) -> u64 {
    wall.status().totals.counters[name]
}

fn status(reply: &[u8]) -> u32 {
    get_u32(reply, 24)
}

#[test]
fn a_running_wall_keeps_its_policies_when_their_file_is_emptied_cut_or_moved_away() {
    let (address, _connections) = server();
    let whole = "kind: statistics\n---\nkind: read-only\n";
    let (wall, folder) = wall(address, Some(whole), Limits::default());
    let path = folder.path().join("p.yaml");
    let away = folder.path().join("p.yaml.away");
    let mut stream = client(&wall);
    let mut xid = 0;
    let mut holds = |what: &str| {
        xid += 1;
        assert_eq!(status(&ask(&mut stream, &write_call(xid, b"data"))), ROFS, "{what}");
    };
    holds("at first");
    let damages: [(&str, &dyn Fn()); 4] = [
        ("emptied", &|| std::fs::write(&path, "").unwrap()),
        ("cut at '---'", &|| std::fs::write(&path, "kind: statistics\n---\n").unwrap()),
        ("cut in a word", &|| std::fs::write(&path, "kind: statistics\n---\nkind: read-o").unwrap()),
        ("moved away", &|| std::fs::rename(&path, &away).unwrap()),
    ];
    for (what, damage) in damages {
        let refusals = counter(&wall, "policy_refusals_total");
        damage();
        // It sees that by itself, and says so.
        until(what, || counter(&wall, "policy_refusals_total") > refusals);
        assert!(wall.status().policy_error.is_some(), "{what}");
        holds(what);
        assert!(wall.reload().is_err(), "{what}");
        holds(what);
        std::fs::write(&away, whole).unwrap();
        std::fs::rename(&away, &path).unwrap();
        wall.reload().unwrap();
        assert_eq!(wall.status().policy_error, None);
        holds("whole again");
    }
    assert_eq!(counter(&wall, "policy_kinds_lost_total"), 0);
}

/// Whoever carries orders out changes his files while the machine's owner changes one of his own.
#[test]
fn an_owners_file_that_changes_with_an_order_is_in_force_too() {
    let (address, _connections) = server();
    let (wall, folder) = wall(address, Some("kind: statistics\n"), Limits::default());
    let at = |name: &str| folder.path().join(name);
    let own = "kind: read-only\n";
    // Before the order's files are read, between that and its end, and each time somebody else's file is left as it is.
    for before in [true, false] {
        let ordered = at("ordered.yaml");
        wall.change_policies(
            |file| file == ordered,
            || {
                if before {
                    std::fs::write(at("own.yaml"), own).unwrap();
                }
                std::fs::write(&ordered, "kind: statistics\nname: ordered\n").unwrap();
                wall.reload().unwrap();
                if !before {
                    std::fs::write(at("own.yaml"), own).unwrap();
                }
            },
        );
        let denies = || wall.status().policies.iter().any(|row| row.kind == "read-only");
        until("the owner's file", denies);
        std::fs::remove_file(at("own.yaml")).unwrap();
        until("that it is gone", || wall.status().policies.iter().all(|row| row.kind != "read-only"));
    }
}

#[test]
fn each_kind_that_protects_is_missed_when_it_is_gone() {
    let (address, _connections) = server();
    let all = [
        ("identities", "kind: identities\nusers: {ann: {uid: 5}}"),
        ("handles", "kind: handles\nkey-file: key"),
        ("read-only", "kind: read-only"),
        ("access", "kind: access\ndefault: allow"),
        ("remap", "kind: remap\nusers: {1: 2}"),
        ("rate", "kind: rate\nper: all\ncalls-per-s: 1000"),
        ("quota", "kind: quota\nper: user\nbytes: 9\nperiod: day\nstate-file: quota.json"),
        ("machines", "kind: machines\nlimit: 5\nidle-s: 60"),
        ("audit", "kind: audit\nfile: audit.log\nops: [all]\noutcome: all\nwhen-full: lose"),
    ];
    let open = "kind: statistics";
    let text = |from: usize| {
        let kept = all[from..].iter().map(|(_, text)| *text);
        kept.chain([open]).collect::<Vec<_>>().join("\n---\n")
    };
    let (wall, folder) = wall(address, Some(&text(0)), Limits::default());
    let path = folder.path().join("p.yaml");
    // One goes after the other.
    for (gone, (kind, _)) in (1..).zip(&all) {
        std::fs::write(&path, text(gone)).unwrap();
        wall.reload().unwrap_or_else(|error| panic!("{kind}: {error}"));
        assert_eq!(counter(&wall, "policy_kinds_lost_total"), gone as u64, "{kind}");
    }
    // What protects nothing is not missed.
    std::fs::write(&path, "kind: none\n").unwrap();
    wall.reload().unwrap();
    assert_eq!(counter(&wall, "policy_kinds_lost_total"), all.len() as u64);
}

#[test]
fn giant_counts_of_listings_are_made_small_and_the_session_goes_on() {
    let (address, connections) = server();
    let (wall, _folder) = wall(address, Some("kind: statistics"), Limits::default());
    let mut stream = client(&wall);
    let mut upstream: Option<TcpStream> = None;
    let mut exchange = |call: &[u8], results: &[u8]| {
        stream.write_all(call).unwrap();
        let upstream = upstream.get_or_insert_with(|| connections.recv_timeout(BOUND).unwrap());
        let seen = read_record(upstream).unwrap();
        upstream.write_all(&reply_to(&seen, results)).unwrap();
        (seen, read_record(&mut stream).expect("the session goes on"))
    };
    let most = LISTING_BYTES_MAX as u32;
    // No attributes, a verifier, no entries, the end.
    let listed = [0u32, 0, 0, 0, 0, 1].map(u32::to_be_bytes).concat();
    for (xid, count) in [(1, u32::MAX), (2, i32::MAX as u32), (3, most + 1), (4, most), (5, 4096)] {
        let wanted = count.min(most);
        let call = Record::nfs3(xid, Op::Readdir, &CALLER).opaque(b"handle").u64(0).u64(0).u32(count);
        let (seen, reply) = exchange(&call.finish(), &listed);
        assert_eq!((get_u32(&seen, seen.len() - 4), status(&reply)), (wanted, 0));
        let call = Record::nfs3(xid + 10, Op::Readdirplus, &CALLER).opaque(b"handle").u64(0).u64(0);
        let (seen, reply) = exchange(&call.u32(count).u32(count).finish(), &listed);
        let asked = [8, 4].map(|behind| get_u32(&seen, seen.len() - behind));
        assert_eq!((asked, status(&reply)), ([wanted; 2], 0));
        // NFSv4: PUTFH, READDIR with its `dircount` and `maxcount`, then a bitmap of one word.
        let words = [0, 0, 0, 0, count, count, 1, 1 << 1];
        let call = Record::call(xid + 20, 100_003, 4, 1, &CALLER).opaque(b"tag").u32(0).u32(2);
        let call = call.u32(Op4::PutFh.number()).opaque(b"root").u32(Op4::ReadDir.number());
        let call = words.into_iter().fold(call, Record::u32);
        let mut results = 0u32.to_be_bytes().to_vec();
        put_opaque(&mut results, b"tag");
        let words = [2, Op4::PutFh.number(), 0, Op4::ReadDir.number(), 0, 0, 0, 0, 1];
        words.into_iter().for_each(|word| put_u32(&mut results, word));
        let (seen, reply) = exchange(&call.finish(), &results);
        let asked = [16, 12].map(|behind| get_u32(&seen, seen.len() - behind));
        assert_eq!((asked, status(&reply)), ([wanted; 2], 0), "{count}");
    }
    let (_, reply) = exchange(&getattr(99), &70u32.to_be_bytes());
    assert_eq!(status(&reply), 70);
    assert_eq!(counter(&wall, "bad_records_total"), 0);
}

/// A policy with a module, in a folder that is there before FileWall begins.
fn with_module(address: SocketAddr, module: &str) -> (FileWall, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("m.wat"), module).unwrap();
    std::fs::write(folder.path().join("p.yaml"), "kind: module\nfile: m.wat\nops: [READ]\n").unwrap();
    std::fs::create_dir(folder.path().join("context")).unwrap();
    let wall = wall_with_context(address, folder.path(), &folder.path().join("context"));
    (wall, folder)
}

#[test]
fn a_module_whose_reply_loops_is_cut_off_and_nothing_of_the_reply_gets_out() {
    let (address, connections) = server();
    let module = "(module (memory (export \"memory\") 1) (func (export \"request\") (result i32) (i32.const 0)) \
                  (func (export \"reply\") (loop $again (br $again))))";
    let (wall, _folder) = with_module(address, module);
    let mut stream = client(&wall);
    let read = |xid| Record::nfs3(xid, Op::Read, &CALLER).opaque(b"handle").u64(0).u32(4096).finish();
    stream.write_all(&read(1)).unwrap();
    let mut upstream = connections.recv_timeout(BOUND).unwrap();
    let seen = read_record(&mut upstream).unwrap();
    upstream.write_all(&reply_to(&seen, &read_results(b"MARK and more"))).unwrap();
    let reply = read_record(&mut stream).unwrap();
    assert_eq!((get_u32(&reply, 0), status(&reply)), (1, SERVERFAULT));
    assert!(!reply.windows(4).any(|bytes| bytes == b"MARK"));
    // The next calls are served: others as ever, and those that the module sees are cut off one by one.
    stream.write_all(&getattr(2)).unwrap();
    let seen = read_record(&mut upstream).unwrap();
    upstream.write_all(&reply_to(&seen, &70u32.to_be_bytes())).unwrap();
    assert_eq!(status(&read_record(&mut stream).unwrap()), 70);
    assert_eq!(wall.status().policies[0].details["cut_off"], 1);
}

#[test]
fn a_server_whose_handles_leave_no_room_is_told_of_and_no_handle_of_nothing_goes_out() {
    let (address, connections) = server();
    let (wall, _folder) = wall(address, Some("kind: handles\nkey-file: key\n"), Limits::default());
    let mut stream = client(&wall);
    let mount = |xid| Record::call(xid, 100_005, 3, 1, &CALLER).opaque(b"/export").finish();
    let mounted = ask(&mut stream, &mount(1));
    assert_eq!(status(&mounted), 0);
    let root = mounted[32..32 + get_u32(&mounted, 28) as usize].to_vec();
    let look = |xid| Record::nfs3(xid, Op::Lookup, &CALLER).opaque(&root).opaque(b"name").finish();
    let mut upstream: Option<TcpStream> = None;
    // Handles of 64 bytes, which NFSv3 allows, and one that there is room for.
    for (xid, bytes, said) in [(2, vec![0xab; 64], SERVERFAULT), (3, vec![0xab; 32], 0)] {
        stream.write_all(&look(xid)).unwrap();
        let upstream = upstream.get_or_insert_with(|| connections.recv_timeout(BOUND).unwrap());
        let seen = read_record(upstream).unwrap();
        let mut results = 0u32.to_be_bytes().to_vec();
        put_opaque(&mut results, &bytes);
        [0, 0].into_iter().for_each(|word| put_u32(&mut results, word));
        upstream.write_all(&reply_to(&seen, &results)).unwrap();
        let reply = read_record(&mut stream).unwrap();
        assert_eq!(status(&reply), said, "{} bytes", bytes.len());
        let shown = |mark: &[u8]| reply.windows(mark.len()).any(|bytes| bytes == mark);
        assert!(!shown(&[0xab; 8]) && !shown(&[0; 60]));
        assert_eq!(said == 0, reply.len() > 64);
    }
    assert_eq!(wall.status().policies[0].details["server_handles_too_long"], 1);
}

/// A way to a server that can be shut: nobody listens there then, and connections end.
struct Gate {
    address: SocketAddr,
    open: Arc<AtomicBool>,
}

impl Gate {
    fn new(to: SocketAddr) -> Gate {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let open = Arc::new(AtomicBool::new(true));
        let is_open = open.clone();
        std::thread::spawn(move || {
            let (mut listener, mut streams) = (Some(listener), Vec::<TcpStream>::new());
            loop {
                std::thread::sleep(Duration::from_millis(2));
                if !is_open.load(Ordering::Relaxed) {
                    listener = None;
                    streams.drain(..).for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
                    continue;
                }
                listener = listener.or_else(|| TcpListener::bind(address).ok());
                let Some(listener) = &listener else { continue };
                listener.set_nonblocking(true).unwrap();
                let Ok((client, _)) = listener.accept() else { continue };
                client.set_nonblocking(false).unwrap();
                let server = TcpStream::connect(to).unwrap();
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    std::thread::spawn(move || std::io::copy(&mut from, &mut to));
                }
                streams.extend([client, server]);
            }
        });
        Gate { address, open }
    }

    fn set(&self, open: bool) {
        self.open.store(open, Ordering::Relaxed);
        until("the gate", || TcpStream::connect(self.address).is_ok() == open);
    }
}

#[test]
fn who_uses_a_folder_of_a_server_that_is_down_waits_and_nobody_else() {
    let (first, _here) = disk(1);
    let (second, _there) = disk(2);
    let gate = Gate::new(second);
    let context = tempfile::tempdir().unwrap();
    let config = config_of_many(server_at(first));
    let plan = Plan {
        redirects: vec![("/elsewhere".to_string(), server_at(gate.address))],
        state_file: context.path().join("names"),
        context: Some(context.path().to_path_buf()),
        ..Plan::default()
    };
    let wall = FileWall::start_group(config, &plan).unwrap();
    let mut client = Client::new(&wall, 0);
    let root = client.mount();
    let own = client.handle(Op::Create, &root, "own");
    assert_eq!(client.write(&own, "data").status, 0);
    let inside = client.handle(Op::Lookup, &root, "elsewhere");
    assert_eq!(client.call(Op::Create, &inside, Some("file"), None).status, 0);
    gate.set(false);
    for _ in 0..3 {
        assert_eq!(client.call(Op::Lookup, &inside, Some("file"), None).status, JUKEBOX);
        assert_eq!(client.call(Op::Create, &inside, Some("new"), None).status, JUKEBOX);
        // On the same connection, the other server goes on.
        assert_eq!(client.call(Op::Read, &own, None, None).data, b"data");
        assert_eq!(client.write(&own, "data").status, 0);
    }
    gate.set(true);
    until("the server to be back", || client.call(Op::Lookup, &inside, Some("file"), None).status == 0);
}
