//! What FileWall knows of owners and names: what it need not ask, and what it must never believe.

use crate::files::{Client, Shared, files};
use crate::played::{
    BOUND, CALLER, ROOT, client, left_behind, read_record, reply_to, server, until, wall, wall_with_context,
};
use std::io::Write;
use std::net::TcpStream;
use weir_filewall::proxy::{FileWall, Limits};
use weir_filewall::wire::build::{Caller, Record};
use weir_filewall::wire::make::{Attributes, Made};
use weir_filewall::wire::nfs3::Op;
use weir_filewall::wire::xdr::get_u32;

const ALICE: u32 = 1001;
const BOB: u32 = 1002;
const ADMIN: u32 = 1003;
const ACCES: u32 = 13;
const STALE: u32 = 70;

/// Everybody may do all with what is theirs, look at the rest, and make things; an administrator may do all.
fn policy(more: &str) -> String {
    format!(
        "kind: identities
users: {{alice: {{uid: {ALICE}, roles: [user]}}, bob: {{uid: {BOB}, roles: [user]}}, ann: {{uid: {ADMIN}, roles: [admin]}}}}
roles: {{user: {{}}, admin: {{}}}}
---
kind: rbac
state-file: rbac.state
initial: [user, admin]
administrators: [admin]
{more}
rules: |
  permit (principal in Role::\"user\", action in Action::\"looks\", resource);
  permit (principal in Role::\"user\", action in [Action::\"READDIR\", Action::\"READDIRPLUS\", Action::\"CREATE\",
    Action::\"MKDIR\"], resource);
  permit (principal in Role::\"user\", action, resource) when {{ resource.owner == principal.name }};
  permit (principal in Role::\"admin\", action, resource);
"
    )
}

fn detail(wall: &FileWall, name: &str) -> u64 {
    wall.status().policies[0].details[name]
}

fn taken(files: &Shared) -> Vec<Op> {
    files.lock().unwrap().taken()
}

/// A name of somebody's in the root, behind FileWall's back.
fn make(files: &Shared, name: &str, uid: u32) -> Vec<u8> {
    files.lock().unwrap().make(ROOT, name, uid, false)
}

#[test]
fn who_takes_away_what_was_seen_before_costs_no_question() {
    let (address, files) = files();
    let (wall, _folder) = wall(address, Some(&policy("")), Limits::default());
    let mut alice = Client::new(&wall, ALICE);
    // Made, looked up, listed: each of them is enough.
    let folder = alice.handle(Op::Mkdir, ROOT, "folder");
    alice.handle(Op::Create, &folder, "made");
    for name in ["looked-up", "listed"] {
        files.lock().unwrap().make(&folder, name, ALICE, false);
    }
    alice.handle(Op::Lookup, &folder, "looked-up");
    alice.call(Op::Readdirplus, &folder, None, None);
    taken(&files);
    for name in ["made", "looked-up", "listed"] {
        assert_eq!(alice.call(Op::Remove, &folder, Some(name), None).status, 0, "{name}");
    }
    assert_eq!(alice.call(Op::Rmdir, ROOT, Some("folder"), None).status, 0);
    assert_eq!(taken(&files), [Op::Remove, Op::Remove, Op::Remove, Op::Rmdir]);
    assert_eq!((detail(&wall, "names_not_asked"), files.lock().unwrap().names.len()), (4, 0));
    // What was not seen is asked for, and what is not there is said.
    make(&files, "unseen", ALICE);
    assert_eq!(alice.call(Op::Remove, ROOT, Some("unseen"), None).status, 0);
    assert_eq!(alice.call(Op::Remove, ROOT, Some("unseen"), None).status, 2);
    assert_eq!(taken(&files), [Op::Lookup, Op::Remove, Op::Lookup]);
}

#[test]
fn a_name_that_leads_to_somebody_elses_now_is_judged_as_theirs() {
    let (address, files) = files();
    let (wall, _folder) = wall(address, Some(&policy("")), Limits::default());
    let (mut alice, mut bob) = (Client::new(&wall, ALICE), Client::new(&wall, BOB));
    let mut ann = Client::new(&wall, ADMIN);
    let removes = |client: &mut Client, name: &str| client.call(Op::Remove, ROOT, Some(name), None).status;
    // Removed, and made anew by another one.
    alice.handle(Op::Create, ROOT, "one");
    assert_eq!(removes(&mut alice, "one"), 0);
    bob.handle(Op::Create, ROOT, "one");
    assert_eq!(removes(&mut alice, "one"), ACCES);
    // Another one's moved to where mine was.
    alice.handle(Op::Create, ROOT, "two");
    bob.handle(Op::Create, ROOT, "bobs");
    let moved = ann.call(Op::Rename, ROOT, Some("bobs"), Some((ROOT, "two")));
    assert_eq!((moved.status, removes(&mut alice, "two")), (0, ACCES));
    // Mine moved away, and another one's in its place.
    alice.handle(Op::Create, ROOT, "three");
    assert_eq!(alice.call(Op::Rename, ROOT, Some("three"), Some((ROOT, "away"))).status, 0);
    bob.handle(Op::Create, ROOT, "three");
    assert_eq!((removes(&mut alice, "three"), removes(&mut alice, "away")), (ACCES, 0));
    // Given to another one.
    let four = alice.handle(Op::Create, ROOT, "four");
    assert_eq!((ann.chown(&four, BOB).status, removes(&mut alice, "four")), (0, ACCES));
    assert_eq!((removes(&mut bob, "four"), removes(&mut bob, "one")), (0, 0));
    // Over somebody else's.
    let mine = alice.handle(Op::Create, ROOT, "five");
    assert_eq!(alice.call(Op::Rename, ROOT, Some("five"), Some((ROOT, "two"))).status, ACCES);
    assert_eq!(files.lock().unwrap().objects[&mine].uid, ALICE);
}

#[test]
fn a_call_that_was_answered_late_teaches_nothing() {
    // A server that holds replies back.
    let (address, connections) = server();
    let (wall, _folder) = wall(address, Some(&policy("")), Limits::default());
    let (mut alice, mut ann) = (client(&wall), client(&wall));
    let call = |uid: u32, xid: u32, op: Op, name: Option<&[u8]>| {
        let record = Record::nfs3(xid, op, &Caller { uid, ..CALLER }).opaque(ROOT);
        name.into_iter().fold(record, |record, name| record.opaque(name)).finish()
    };
    let attributes = |uid: u32| {
        Attributes { folder: uid == 0, mode: 0o777, uid, gid: 100, size: 3, fsid: 7, fileid: 5, time: (1, 1) }
            .bytes()
    };
    let found =
        |handle: &[u8], uid: u32| Made::ok().opaque(handle).after(Some(&attributes(uid))).after(None).0;
    // Reads a call of that operation and answers it.
    let serve = |stream: &mut TcpStream, op: Op, results: &[u8]| {
        let record = read_record(stream).unwrap();
        assert_eq!(get_u32(&record, 20), op as u32);
        stream.write_all(&reply_to(&record, results)).unwrap();
    };
    alice.write_all(&call(ALICE, 1, Op::Getattr, None)).unwrap();
    let mut behind_alice = connections.recv_timeout(BOUND).unwrap();
    let root = Made::ok().attributes(&attributes(0)).0;
    // Once as a question of FileWall's own.
    (0..2).for_each(|_| serve(&mut behind_alice, Op::Getattr, &root));
    read_record(&mut alice).unwrap();
    alice.write_all(&call(ALICE, 2, Op::Lookup, Some(b"name"))).unwrap();
    let held = read_record(&mut behind_alice).unwrap();
    ann.write_all(&call(ADMIN, 3, Op::Remove, Some(b"name"))).unwrap();
    let mut behind_ann = connections.recv_timeout(BOUND).unwrap();
    serve(&mut behind_ann, Op::Lookup, &found(b"alices", ALICE));
    serve(&mut behind_ann, Op::Remove, &[0; 12]);
    read_record(&mut ann).unwrap();
    // Now the client hears what the name has led to, and the name leads elsewhere.
    behind_alice.write_all(&reply_to(&held, &found(b"alices", ALICE))).unwrap();
    read_record(&mut alice).unwrap();
    alice.write_all(&call(ALICE, 4, Op::Remove, Some(b"name"))).unwrap();
    serve(&mut behind_alice, Op::Lookup, &found(b"bobs", BOB));
    assert_eq!(get_u32(&read_record(&mut alice).unwrap(), 24), ACCES);
    assert_eq!(detail(&wall, "names_not_asked"), 0);
}

#[test]
fn two_filewalls_before_one_server_believe_owners_for_a_time_and_names_never() {
    let (address, files) = files();
    let shared = policy("known-s: 1");
    let (one, _folder) = wall(address, Some(&shared), Limits::default());
    let (other, _another) = wall(address, Some(&shared), Limits::default());
    let (mut alice, mut bob) = (Client::new(&one, ALICE), Client::new(&other, BOB));
    let mut ann = Client::new(&other, ADMIN);
    // What the one has seen is removed through the other, and made anew by somebody else.
    alice.handle(Op::Create, ROOT, "name");
    assert_eq!(ann.call(Op::Remove, ROOT, Some("name"), None).status, 0);
    bob.handle(Op::Create, ROOT, "name");
    assert_eq!(alice.call(Op::Remove, ROOT, Some("name"), None).status, ACCES);
    assert_eq!(bob.call(Op::Remove, ROOT, Some("name"), None).status, 0);
    // Given away through the other: a removal asks whose it is now.
    let file = alice.handle(Op::Create, ROOT, "given");
    assert_eq!(ann.chown(&file, BOB).status, 0);
    assert_eq!(alice.call(Op::Remove, ROOT, Some("given"), None).status, ACCES);
    // Everything else does so when what is known has grown old.
    let file = alice.handle(Op::Create, ROOT, "read");
    assert_eq!(alice.call(Op::Read, &file, None, None).status, 0);
    assert_eq!(ann.chown(&file, BOB).status, 0);
    until("the end of what is believed", || {
        std::thread::sleep(std::time::Duration::from_millis(50));
        alice.call(Op::Read, &file, None, None).status == ACCES
    });
    taken(&files);
    // It is asked for once, not with each call.
    let lasts = alice.handle(Op::Create, ROOT, "mine");
    for _ in 0..5 {
        assert_eq!(alice.call(Op::Read, &lasts, None, None).status, 0);
    }
    assert!(taken(&files).len() < 10);
    assert_eq!(detail(&one, "names_not_asked") + detail(&other, "names_not_asked"), 0);
}

#[test]
fn files_that_are_open_stay_good_when_another_filewall_takes_over_under_rules_by_path() {
    let (address, files) = files();
    let context = tempfile::tempdir().unwrap();
    let text = "kind: access
default: allow
rules:
- {deny: [all], paths: [/secret], users: ['1002']}
- {deny: [changes], paths: [/public]}
";
    let [secret, public] = ["secret", "public"].map(|name| {
        let mut files = files.lock().unwrap();
        let folder = files.make(ROOT, name, 0, true);
        files.make(&folder, "file", ALICE, false);
        folder
    });
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("p.yaml"), text).unwrap();
    let first = wall_with_context(address, folder.path(), context.path());
    let mut alice = Client::new(&first, ALICE);
    assert_eq!(alice.handle(Op::Lookup, ROOT, "secret"), secret);
    assert_eq!(alice.handle(Op::Lookup, ROOT, "public"), public);
    let (in_secret, in_public) =
        (alice.handle(Op::Lookup, &secret, "file"), alice.handle(Op::Lookup, &public, "file"));
    let unseen = files.lock().unwrap().make(&secret, "unseen", ALICE, false);
    drop((alice, first));
    // Clients have the handles of before, and nothing else.
    let context = left_behind(context.path());
    let second = wall_with_context(address, folder.path(), context.path());
    let (mut alice, mut bob) = (Client::new(&second, ALICE), Client::new(&second, BOB));
    let reads = |client: &mut Client, handle: &[u8]| client.call(Op::Read, handle, None, None).status;
    assert_eq!((reads(&mut alice, &in_secret), reads(&mut bob, &in_secret)), (0, ACCES));
    assert_eq!((reads(&mut bob, &in_public), bob.chown(&in_public, BOB).status), (0, ACCES));
    // What no FileWall has shown to anybody is not known.
    assert_eq!(reads(&mut alice, &unseen), STALE);
}
