//! Roles, sessions and the control folder over NFSv4.0 and 4.1, before a server that is played here: a few files, sequence
//! numbers of owners, and slots of a session, both of which it checks as a real one does.

use crate::compound::carried_out;
use crate::played::{read_record, reply_to, server, wall};
use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use weir_filewall::proxy::{FileWall, Limits};
use weir_filewall::wire::build::{Caller, Record};
use weir_filewall::wire::nfs4::arguments::{Argument, Compound, head, operations};
use weir_filewall::wire::nfs4::results::{Results4, results};
use weir_filewall::wire::nfs4::{Op4, has_bit, status};
use weir_filewall::wire::rpc::{Credential, call_head};
use weir_filewall::wire::xdr::{Reader, Span, get_u32, put_opaque, put_u32, put_u64, set_u32};

const EXAMPLE: &str = include_str!("../../../docs/operate/filewall/rbac.yaml");
const ROOT: u32 = 0;
const ALICE: u32 = 1001;
const BOB: u32 = 1002;
const CHARLES: u32 = 1003;

/// Folder, name, handle, owner, mode, whether it is a folder.
type Node = (&'static str, &'static str, &'static str, u32, u32, bool);
const NODES: [Node; 8] = [
    ("", "", "pseudo", 0, 0o755, true),
    ("pseudo", "export", "root", 0, 0o777, true),
    ("root", "alice", "h-alice", ALICE, 0o600, false),
    ("root", "bob", "h-bob", BOB, 0o600, false),
    ("root", "charles", "h-charles", CHARLES, 0o600, false),
    ("root", "work", "h-work", BOB, 0o755, true),
    ("h-work", "plan", "h-plan", CHARLES, 0o600, false),
    ("", "made", "h-made", BOB, 0o600, false),
];

/// What the server got in one COMPOUND.
#[derive(Clone, Debug)]
struct Seen {
    uid: u32,
    ops: Vec<Op4>,
    names: Vec<String>,
}

#[derive(Debug, Default)]
struct Played {
    seen: Vec<Seen>,
    /// The next number of each owner.
    owners: BTreeMap<Vec<u8>, u32>,
    slot: u32,
    /// A name that comes to be between a question and what it is asked for.
    races: bool,
}

fn node(handle: &str) -> Option<&'static Node> {
    NODES.iter().find(|node| node.2 == handle)
}

fn put_attributes(node: &Node, wanted: &[u8], out: &mut Vec<u8>) {
    let mut values = Vec::new();
    let mut words = [0u32; 2];
    for attribute in [1u32, 4, 8, 19, 20, 33, 36, 37] {
        if !has_bit(wanted, attribute) {
            continue;
        }
        words[attribute as usize / 32] |= 1 << (attribute % 32);
        match attribute {
            1 => put_u32(&mut values, if node.5 { 2 } else { 1 }),
            4 => put_u64(&mut values, 3),
            8 => [7, 9].into_iter().for_each(|part| put_u64(&mut values, part)),
            19 => put_opaque(&mut values, node.2.as_bytes()),
            20 => put_u64(&mut values, node.2.len() as u64),
            33 => put_u32(&mut values, node.4),
            _ => put_opaque(&mut values, node.3.to_string().as_bytes()),
        }
    }
    [2, words[0], words[1]].into_iter().for_each(|word| put_u32(out, word));
    put_opaque(out, &values);
}

impl Played {
    /// Results of a COMPOUND, from its status on.
    fn carry_out(&mut self, record: &[u8]) -> Vec<u8> {
        let mut reader = Reader::whole(record);
        let rpc = call_head(&mut reader).unwrap();
        let Credential::Sys(sys) = rpc.credential else { panic!() };
        let compound = head(&mut reader).unwrap();
        let mut found = Compound::default();
        operations(&mut reader, &compound, &mut found).unwrap();
        assert_eq!(found.refused, None);
        let names = found.ops.iter().flat_map(|op| op.names[..op.name_count].iter());
        let names = names.map(|name| String::from_utf8_lossy(name.of(record)).into_owned()).collect();
        self.seen.push(Seen { uid: sys.uid, ops: found.ops.iter().map(|op| op.op).collect(), names });
        let (mut current, mut saved) = (None, None);
        carried_out(compound.tag.of(record), &found.ops, |argument, out| {
            self.one(argument, record, compound.minor, (&mut current, &mut saved), out)
        })
    }

    fn one(
        &mut self,
        argument: &Argument,
        record: &[u8],
        minor: u32,
        (current, saved): (&mut Option<&'static Node>, &mut Option<&'static Node>),
        out: &mut Vec<u8>,
    ) -> u32 {
        let name = |number: usize| String::from_utf8_lossy(argument.names[number].of(record)).into_owned();
        let child = |folder: Option<&Node>, name: &str| {
            NODES.iter().find(|node| folder.is_some_and(|folder| node.0 == folder.2) && node.1 == name)
        };
        match argument.op {
            Op4::PutRootFh => *current = node("pseudo"),
            Op4::PutFh => {
                let handle = argument.handle.unwrap().of(record);
                *current = node(std::str::from_utf8(handle).unwrap_or_default());
                if current.is_none() {
                    return 10001;
                }
            }
            Op4::SaveFh => *saved = *current,
            Op4::RestoreFh => *current = *saved,
            Op4::Lookup => match child(*current, &name(0)) {
                None => return status::NOENT,
                found => *current = found,
            },
            Op4::LookupParent => match current.map(|current| (current.5, node(current.0))) {
                Some((false, _)) => return 20,
                Some((true, Some(found))) => *current = Some(found),
                _ => return status::NOENT,
            },
            Op4::GetFh => put_opaque(out, current.unwrap().2.as_bytes()),
            Op4::GetAttr => put_attributes(current.unwrap(), argument.wanted.unwrap().of(record), out),
            Op4::Access => {
                let asked = get_u32(record, argument.access_at.unwrap());
                [asked, asked].into_iter().for_each(|word| put_u32(out, word));
            }
            Op4::Read => {
                put_u32(out, 1);
                put_opaque(out, format!("of {}", current.unwrap().1).as_bytes());
            }
            Op4::Write => [argument.count, 2, 0, 0].into_iter().for_each(|word| put_u32(out, word)),
            Op4::SetAttr => put_u32(out, 0),
            Op4::Remove => match child(*current, &name(0)) {
                None => return status::NOENT,
                Some(_) => out.extend_from_slice(&[0; 20]),
            },
            Op4::ReadDir => {
                put_u64(out, 0);
                let folder = current.unwrap().2;
                for (number, node) in NODES.iter().enumerate().filter(|(_, node)| node.0 == folder) {
                    put_u32(out, 1);
                    put_u64(out, number as u64 + 10);
                    put_opaque(out, node.1.as_bytes());
                    put_attributes(node, argument.wanted.unwrap().of(record), out);
                }
                [0, 1].into_iter().for_each(|word| put_u32(out, word));
            }
            Op4::Sequence => {
                let [seqid, slot] = [16, 20].map(|at| get_u32(record, argument.start + 4 + at));
                if seqid != self.slot + 1 {
                    return 10063;
                }
                self.slot = seqid;
                out.extend_from_slice(&[0; 16]);
                [seqid, slot, 7, 7, 0].into_iter().for_each(|word| put_u32(out, word));
            }
            Op4::Open => return self.open(argument, record, minor, current, out),
            Op4::Close => {
                if argument.state.unwrap().of(record)[..4] != [0, 0, 0, 1] {
                    return status::BAD_STATEID;
                }
                if minor == 0
                    && !self
                        .next(b"\0\0\0\0\0\0\0\x05\0\0\0\x05owner\0\0\0", get_u32(record, argument.start + 4))
                {
                    return status::BAD_SEQID;
                }
                out.extend_from_slice(&[0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            }
            other => panic!("{other:?} is not played"),
        }
        status::OK
    }

    fn next(&mut self, owner: &[u8], seqid: u32) -> bool {
        let next = self.owners.entry(owner.to_vec()).or_insert(seqid);
        let right = *next == seqid;
        *next += u32::from(right);
        right
    }

    fn open(
        &mut self,
        argument: &Argument,
        record: &[u8],
        minor: u32,
        current: &mut Option<&'static Node>,
        out: &mut Vec<u8>,
    ) -> u32 {
        let open = argument.open.unwrap();
        if minor == 0 && !self.next(open.owner.of(record), get_u32(record, argument.start + 4)) {
            return status::BAD_SEQID;
        }
        if open.claim == 0 {
            let name = argument.names[0].of(record);
            let folder = current.unwrap().2;
            let found = NODES.iter().find(|node| node.0 == folder && node.1.as_bytes() == name);
            match (found, open.how_at) {
                (Some(_), Some(_)) if open.how == 1 => return status::EXIST,
                (None, Some(_)) if self.races => return status::EXIST,
                (None, None) => return status::NOENT,
                (None, Some(_)) => *current = node("h-made"),
                (found, _) => *current = found,
            }
        }
        [1, 0, 0, 0].into_iter().for_each(|word| put_u32(out, word));
        out.extend_from_slice(&[0; 20]);
        [0, 0, 0].into_iter().for_each(|word| put_u32(out, word));
        status::OK
    }
}

/// What came back for a COMPOUND.
struct Back {
    status: u32,
    ops: Vec<(Op4, u32)>,
    found: Results4,
    bytes: Vec<u8>,
}

impl Back {
    fn handle(&self) -> Vec<u8> {
        let outcome = self.found.outcomes.iter().rev().find_map(|outcome| outcome.found).expect("a handle");
        outcome.handle.of(&self.bytes).to_vec()
    }

    /// Data of the last READ.
    fn data(&self) -> String {
        let at = self.found.outcomes.last().unwrap().start + 12;
        let bytes = get_u32(&self.bytes, at) as usize;
        String::from_utf8(self.bytes[at + 4..at + 4 + bytes].to_vec()).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let name = |span: Span| String::from_utf8(span.of(&self.bytes).to_vec()).unwrap();
        self.found.entries.iter().map(|entry| name(entry.name)).collect()
    }

    /// The state identifier of the last OPEN.
    fn state(&self) -> Vec<u8> {
        let open = self.found.outcomes.iter().find(|outcome| outcome.op == Op4::Open).unwrap();
        self.bytes[open.start + 8..open.start + 24].to_vec()
    }
}

/// An operation with its arguments.
#[derive(Clone)]
struct Op(Op4, Vec<u8>);

fn op(op: Op4) -> Op {
    Op(op, Vec::new())
}

fn with(op: Op4, words: &[u32], name: Option<&[u8]>) -> Op {
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    if let Some(name) = name {
        put_opaque(&mut bytes, name);
    }
    Op(op, bytes)
}

fn put_fh(handle: &[u8]) -> Op {
    with(Op4::PutFh, &[], Some(handle))
}

fn lookup(name: &str) -> Op {
    with(Op4::Lookup, &[], Some(name.as_bytes()))
}

fn get_attr() -> Op {
    with(Op4::GetAttr, &[2, 1 << 1 | 1 << 3 | 1 << 4 | 1 << 20, 1 << 1 | 1 << 4 | 1 << 5], None)
}

fn read(state: &[u8]) -> Op {
    let mut bytes = state.to_vec();
    [0, 0, 4096].into_iter().for_each(|word| put_u32(&mut bytes, word));
    Op(Op4::Read, bytes)
}

fn write(state: &[u8], text: &str) -> Op {
    let mut bytes = state.to_vec();
    [0, 0, 0].into_iter().for_each(|word| put_u32(&mut bytes, word));
    put_opaque(&mut bytes, text.as_bytes());
    Op(Op4::Write, bytes)
}

fn read_dir() -> Op {
    with(Op4::ReadDir, &[0, 0, 0, 0, 8192, 8192, 2, 1 << 1 | 1 << 11 | 1 << 19 | 1 << 20, 1 << 1], None)
}

/// OPEN of a name: access, and how it is made.
fn open(seqid: u32, access: u32, how: Option<u32>, name: &str) -> Op {
    let mut bytes = Vec::new();
    [seqid, access, 0, 0, 5].into_iter().for_each(|word| put_u32(&mut bytes, word));
    put_opaque(&mut bytes, b"owner");
    match how {
        None => put_u32(&mut bytes, 0),
        // A length of 0.
        Some(how) => [1, how, 1, 1 << 4, 8, 0, 0].into_iter().for_each(|word| put_u32(&mut bytes, word)),
    }
    put_u32(&mut bytes, 0);
    put_opaque(&mut bytes, name.as_bytes());
    Op(Op4::Open, bytes)
}

fn close(seqid: u32, state: &[u8]) -> Op {
    Op(Op4::Close, [&seqid.to_be_bytes()[..], state].concat())
}

const NO_STATE: [u8; 16] = [0; 16];

struct Stage {
    wall: FileWall,
    stream: TcpStream,
    played: Arc<Mutex<Played>>,
    xid: u32,
    minor: u32,
    slot: u32,
    _folder: tempfile::TempDir,
}

impl Stage {
    fn new(minor: u32) -> Stage {
        Stage::with(minor, EXAMPLE)
    }

    fn with(minor: u32, policy: &str) -> Stage {
        let (address, connections) = server();
        let played = Arc::<Mutex<Played>>::default();
        let shared = played.clone();
        std::thread::spawn(move || {
            while let Ok(mut stream) = connections.recv() {
                let shared = shared.clone();
                std::thread::spawn(move || {
                    while let Some(call) = read_record(&mut stream) {
                        let results = shared.lock().unwrap().carry_out(&call);
                        if stream.write_all(&reply_to(&call, &results)).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        // Delegations depend on the time of the day, which no test does.
        let policy = policy.replace("delegations:", "#").replace("- {role: admin, to: [developer]", "#");
        let (wall, folder) = wall(address, Some(&policy), Limits::default());
        let stream = crate::played::client(&wall);
        Stage { wall, stream, played, xid: 100, minor, slot: 0, _folder: folder }
    }

    fn call(&mut self, uid: u32, ops: &[Op]) -> Back {
        self.xid += 1;
        let mut all = Vec::new();
        if self.minor > 0 {
            self.slot += 1;
            all.push(with(Op4::Sequence, &[0, 0, 0, 1, self.slot, 0, 0, 1], None));
        }
        all.extend_from_slice(ops);
        let caller = Caller { uid, gid: 100, groups: &[] };
        let tag = format!("call {}", self.xid);
        let record = Record::call(self.xid, 100_003, 4, 1, &caller).opaque(tag.as_bytes()).u32(self.minor);
        let record = record.u32(all.len() as u32);
        let record =
            all.iter().fold(record, |record, Op(op, arguments)| record.u32(op.number()).raw(arguments));
        self.stream.write_all(&record.finish()).unwrap();
        let bytes = read_record(&mut self.stream).expect("a reply");
        assert_eq!(get_u32(&bytes, 0), self.xid);
        let mut reader = Reader::whole(&bytes);
        reader.take(24).unwrap();
        let mut found = Results4::default();
        results(&mut reader, &mut found).unwrap_or_else(|wrong| panic!("{wrong}: {bytes:?}"));
        let ops = found.outcomes.iter().skip(self.minor as usize).map(|one| (one.op, one.status)).collect();
        assert_eq!(found.outcomes.last().map(|one| one.status), Some(found.status));
        Back { status: found.status, ops, found, bytes }
    }

    /// The handle of a path below the export.
    fn handle(&mut self, uid: u32, path: &str) -> Result<Vec<u8>, u32> {
        let mut ops = vec![op(Op4::PutRootFh), lookup("export")];
        ops.extend(path.split('/').filter(|name| !name.is_empty()).map(lookup));
        ops.push(op(Op4::GetFh));
        let back = self.call(uid, &ops);
        if back.status == 0 { Ok(back.handle()) } else { Err(back.status) }
    }

    fn read(&mut self, uid: u32, path: &str) -> Result<String, u32> {
        let handle = self.handle(uid, path)?;
        let back = self.call(uid, &[put_fh(&handle), read(&NO_STATE)]);
        if back.status == 0 { Ok(back.data()) } else { Err(back.status) }
    }

    fn write(&mut self, uid: u32, path: &str, text: &str) -> Result<(), u32> {
        let handle = self.handle(uid, path)?;
        let back = self.call(uid, &[put_fh(&handle), write(&NO_STATE, text), get_attr()]);
        if back.ops.iter().any(|(op, status)| *op == Op4::Write && *status == 0) {
            Ok(())
        } else {
            Err(back.status)
        }
    }

    /// COMPOUNDs that the server got and that are no questions of FileWall's own.
    fn last_seen(&self) -> Seen {
        self.played.lock().unwrap().seen.last().unwrap().clone()
    }
}

#[test]
fn roles_hold_and_calls_go_on_as_the_owner() {
    for minor in [0, 1] {
        let mut stage = Stage::new(minor);
        assert_eq!(stage.read(ALICE, "alice").unwrap(), "of alice");
        assert_eq!(stage.read(ALICE, "bob"), Err(13));
        assert_eq!(stage.read(BOB, "alice"), Err(13));
        assert_eq!(stage.read(CHARLES, "bob").unwrap(), "of bob");
        assert_eq!(stage.last_seen().uid, BOB, "Algorithm 2, line 19");
        assert_eq!(stage.read(BOB, "bob").unwrap(), "of bob");
        assert_eq!(stage.last_seen().uid, BOB);
        assert_eq!(stage.read(4711, "bob"), Err(13));
        // Removing is the owner's, and is judged by what is named.
        let work = stage.handle(BOB, "work").unwrap();
        let remove = |name: &str| with(Op4::Remove, &[], Some(name.as_bytes()));
        let back = stage.call(BOB, &[put_fh(&work), remove("plan")]);
        assert_eq!(back.ops, [(Op4::PutFh, 0), (Op4::Remove, 13)]);
        assert_eq!(stage.call(CHARLES, &[put_fh(&work), remove("plan")]).status, 0);
        assert_eq!(stage.last_seen().uid, BOB, "as the owner of the folder");
        assert_eq!(stage.call(CHARLES, &[put_fh(&work), remove("nothing")]).status, 2);
    }
}

#[test]
fn operations_behind_a_denied_one_are_not_carried_out_and_names_are_judged_once() {
    let mut stage = Stage::new(1);
    let root = stage.handle(ALICE, "").unwrap();
    let back = stage.call(ALICE, &[put_fh(&root), lookup("bob"), get_attr(), op(Op4::GetFh)]);
    assert_eq!(back.ops, [(Op4::PutFh, 0), (Op4::Lookup, 0), (Op4::GetAttr, 13)]);
    let seen = stage.last_seen();
    assert_eq!(seen.ops, [Op4::Sequence, Op4::PutFh, Op4::PutFh], "the handle that was judged, not its name");
    assert!(seen.names.is_empty());
    // The slot was used up each time, else the server had said so.
    assert_eq!(stage.call(ALICE, &[put_fh(&root), get_attr()]).status, 0);
    // Different credentials do not go together.
    let bob = stage.handle(CHARLES, "bob").unwrap();
    let plan = stage.handle(CHARLES, "work/plan").unwrap();
    let both = [put_fh(&bob), read(&NO_STATE), put_fh(&plan), read(&NO_STATE)];
    let back = stage.call(CHARLES, &both);
    assert_eq!(back.ops.last(), Some(&(Op4::Read, status::TOO_MANY_OPS)));
    assert_eq!(back.ops[1], (Op4::Read, 0));
}

#[test]
fn an_open_is_what_it_is_for_and_uses_up_its_number_when_it_is_refused() {
    let mut stage = Stage::new(0);
    let root = stage.handle(BOB, "").unwrap();
    let try_open =
        |stage: &mut Stage, uid: u32, one: Op| stage.call(uid, &[put_fh(&root), one, op(Op4::GetFh)]);
    let back = try_open(&mut stage, BOB, open(1, 1, None, "alice"));
    assert_eq!(back.ops, [(Op4::PutFh, 0), (Op4::Open, 13)]);
    let back = try_open(&mut stage, BOB, open(2, 3, None, "charles"));
    assert_eq!(back.status, 0, "{:?}: the server has counted the refused one", back.ops);
    assert_eq!(stage.last_seen().uid, CHARLES);
    assert_eq!(try_open(&mut stage, BOB, open(3, 3, Some(0), "alice")).status, 13);
    // What is made stays its maker's, and is not made over what came to be meanwhile.
    let back = try_open(&mut stage, BOB, open(4, 3, Some(0), "made"));
    assert_eq!((back.status, stage.last_seen().uid), (0, BOB));
    stage.played.lock().unwrap().races = true;
    assert_eq!(try_open(&mut stage, BOB, open(5, 3, Some(0), "late")).status, status::DELAY);
    assert_eq!(try_open(&mut stage, BOB, open(6, 1, None, "nothing")).status, 2);
    // From 4.1 on, the server opens what was judged, by its handle.
    let mut stage = Stage::new(1);
    let root = stage.handle(BOB, "").unwrap();
    let back = stage.call(BOB, &[put_fh(&root), open(0, 1, None, "bob"), op(Op4::GetFh), get_attr()]);
    let expected = [Op4::PutFh, Op4::Open, Op4::GetFh, Op4::GetAttr].map(|op| (op, 0));
    assert_eq!(back.ops, expected);
    let seen = stage.last_seen();
    assert_eq!(seen.ops[1..4], [Op4::PutFh, Op4::PutFh, Op4::Open]);
    assert!(seen.names.is_empty());
}

#[test]
fn the_control_folder_is_there_in_both_minor_versions() {
    for minor in [0, 1] {
        let mut stage = Stage::new(minor);
        let root = stage.handle(BOB, "").unwrap();
        let mut names = stage.call(BOB, &[put_fh(&root), read_dir()]).names();
        names.sort();
        assert_eq!(names, [".control", "alice", "bob", "charles", "work"]);
        let top = stage.handle(BOB, ".control").unwrap();
        assert_eq!(top.len(), 64, "sealed like any other");
        assert_eq!(stage.call(BOB, &[put_fh(&top), read_dir()]).names(), ["users", "roles", "shadow"]);
        let shadow = stage.handle(BOB, ".control/shadow").unwrap();
        let mut names = stage.call(BOB, &[put_fh(&shadow), read_dir()]).names();
        names.sort();
        assert_eq!(names, ["alice", "bob", "charles", "work"], "the mirror");
        assert_eq!(stage.read(BOB, ".control/users/bob/ctrl").unwrap(), "user\ndeveloper\n");
        assert_eq!(stage.write(BOB, ".control/users/bob/ctrl", "user"), Ok(()));
        assert_eq!(stage.read(BOB, ".control/users/bob/ctrl").unwrap(), "user\n");
        assert_eq!(stage.read(BOB, "charles"), Err(13), "no developer any more");
        assert_eq!(stage.write(BOB, ".control/users/bob/ctrl", "user developer"), Ok(()));
        // Permissions in the shadow: owners only, whole or not at all, and the handle changes with the content.
        let shadow = ".control/shadow/bob";
        assert_eq!(stage.write(CHARLES, shadow, "READ user"), Err(13));
        assert_eq!(stage.write(BOB, shadow, "READ nonsense"), Err(22));
        let before = stage.handle(BOB, shadow).unwrap();
        assert_eq!(stage.write(BOB, shadow, "looks user\nREAD user"), Ok(()));
        assert_eq!(stage.call(BOB, &[put_fh(&before), get_attr()]).status, 70);
        assert_ne!(stage.handle(BOB, shadow).unwrap(), before);
        assert_eq!(stage.read(ALICE, "bob").unwrap(), "of bob");
        // No attributes to change, no names to make or remove.
        let ctrl = stage.handle(BOB, ".control/users/bob/ctrl").unwrap();
        let mode = with(Op4::SetAttr, &[0, 0, 0, 0, 2, 0, 2, 4, 0o777], None);
        assert_eq!(stage.call(BOB, &[put_fh(&ctrl), mode]).status, 1);
        let folder = stage.handle(BOB, ".control/users/bob").unwrap();
        let remove = with(Op4::Remove, &[], Some(b"ctrl"));
        assert_eq!(stage.call(BOB, &[put_fh(&folder), remove]).status, 13);
        let rename = [put_fh(&root), op(Op4::SaveFh), put_fh(&folder)];
        let mut names = Vec::new();
        ["bob", "there"].into_iter().for_each(|name| put_opaque(&mut names, name.as_bytes()));
        let back = stage.call(BOB, &[&rename[..], &[Op(Op4::Rename, names)]].concat());
        assert_eq!(back.status, 18, "another file system");
    }
}

#[test]
fn files_of_the_control_folder_are_opened_and_closed_without_disturbing_the_servers_numbers() {
    for minor in [0, 1] {
        let mut stage = Stage::new(minor);
        let folder = stage.handle(BOB, ".control/users/bob").unwrap();
        let root = stage.handle(BOB, "").unwrap();
        let back = stage.call(BOB, &[put_fh(&root), open(1, 1, None, "bob"), op(Op4::GetFh)]);
        assert_eq!(back.status, 0);
        // Like a shell's redirection: opened with truncation, written, closed under the handle that it was opened with.
        let access = with(Op4::Access, &[0x3f], None);
        let back = stage
            .call(BOB, &[put_fh(&folder), open(2, 2, Some(0), "ctrl"), op(Op4::GetFh), access, get_attr()]);
        assert_eq!(back.status, 0, "{:?}", back.ops);
        let (handle, state) = (back.handle(), back.state());
        let back = stage.call(BOB, &[put_fh(&handle), write(&state, "user\n"), get_attr()]);
        assert_eq!(back.ops, [(Op4::PutFh, 0), (Op4::Write, 0), (Op4::GetAttr, 0)]);
        let back = stage.call(BOB, &[put_fh(&handle), get_attr(), close(3, &state)]);
        assert_eq!(back.ops, [(Op4::PutFh, 0), (Op4::GetAttr, 0), (Op4::Close, 0)]);
        assert_eq!(stage.call(BOB, &[put_fh(&handle), read(&state)]).status, 10025, "closed");
        assert_eq!(stage.call(BOB, &[put_fh(&handle), get_attr()]).status, 70, "changed");
        assert_eq!(stage.read(BOB, ".control/users/bob/ctrl").unwrap(), "user\n");
        // Others' files cannot be opened for writing, and the refusal is counted too.
        let back = stage.call(ALICE, &[put_fh(&folder), open(4, 2, None, "ctrl")]);
        assert_eq!(back.ops, [(Op4::PutFh, 0), (Op4::Open, 13)]);
        assert_eq!(stage.call(BOB, &[put_fh(&folder), open(5, 1, Some(0), "new")]).status, 13);
        assert_eq!(
            stage.call(BOB, &[put_fh(&root), open(6, 1, None, "bob")]).status,
            0,
            "the server's count"
        );
        assert_eq!(stage.wall.status().totals.counters["bad_replies_total"], 0);
    }
}

#[test]
fn the_way_up_leads_to_folders_that_may_be_looked_at_and_no_further_than_the_way_down() {
    for (minor, policy) in [(0, EXAMPLE), (1, EXAMPLE), (1, "kind: handles\nkey-file: key\n")] {
        let mut stage = Stage::with(minor, policy);
        let up = || op(Op4::LookupParent);
        let [root, work] = ["", "work"].map(|path| stage.handle(BOB, path).unwrap());
        let back = stage.call(BOB, &[put_fh(&work), up(), op(Op4::GetFh)]);
        assert_eq!(
            (back.ops.last(), back.handle()),
            (Some(&(Op4::GetFh, 0)), root.clone()),
            "{:?}",
            back.ops
        );
        assert!(!stage.last_seen().ops.contains(&Op4::LookupParent), "the handle that was judged");
        assert_eq!(
            stage.call(BOB, &[put_fh(&work), lookup("..")]).ops[1],
            (Op4::Lookup, status::BADNAME),
            "no name"
        );
        let plan = stage.handle(CHARLES, "work/plan").unwrap();
        assert_eq!(stage.call(CHARLES, &[put_fh(&plan), up()]).ops[1], (Op4::LookupParent, 20));
        // From the export's root the way is the one down to it.
        let back = stage.call(BOB, &[put_fh(&root), up(), lookup("export"), op(Op4::GetFh)]);
        assert_eq!((back.status, back.handle()), (0, root.clone()));
        let back = stage.call(BOB, &[put_fh(&root), up(), lookup("etc")]);
        assert_eq!(back.ops.last(), Some(&(Op4::Lookup, 2)));
        assert_eq!(stage.call(BOB, &[put_fh(&root), up(), up()]).ops[2], (Op4::LookupParent, 2));
        assert_eq!(stage.call(BOB, &[op(Op4::PutRootFh), up()]).ops[1], (Op4::LookupParent, 2));
        assert_eq!(stage.call(BOB, &[up()]).status, status::NOFILEHANDLE);
    }
}

#[test]
fn a_lost_slot_changes_nothing_in_the_control_folder() {
    let mut stage = Stage::new(1);
    let ctrl = stage.handle(BOB, ".control/users/bob/ctrl").unwrap();
    stage.slot += 5;
    let back = stage.call(BOB, &[put_fh(&ctrl), write(&NO_STATE, "user")]);
    assert_eq!((back.status, back.found.outcomes.len()), (10063, 1));
    stage.slot = stage.played.lock().unwrap().slot;
    assert_eq!(stage.read(BOB, ".control/users/bob/ctrl").unwrap(), "user\ndeveloper\n");
    // Two questions in one COMPOUND, one COMPOUND for the server.
    let before = stage.played.lock().unwrap().slot;
    let ops = [put_fh(&ctrl), get_attr(), read(&NO_STATE), get_attr()];
    assert_eq!(stage.call(BOB, &ops).status, 0);
    assert_eq!(stage.played.lock().unwrap().slot, before + 1);
}

#[test]
fn a_copy_in_the_same_place_of_a_slot_is_answered_as_the_first_one_was() {
    let mut stage = Stage::new(1);
    let work = stage.handle(BOB, "work").unwrap();
    let ctrl = stage.handle(BOB, ".control/users/bob/ctrl").unwrap();
    let remove = |name: &str| with(Op4::Remove, &[], Some(name.as_bytes()));
    // Carried out by the server, refused by a policy, refused by the server, carried out here.
    for ops in [
        vec![put_fh(&work), remove("plan")],
        vec![put_fh(&work), op(Op4::SaveFh), remove("nothing")],
        vec![put_fh(&ctrl), write(&NO_STATE, "user")],
    ] {
        for uid in [CHARLES, BOB] {
            let first = stage.call(uid, &ops);
            let seen = stage.played.lock().unwrap().seen.len();
            stage.slot -= 1;
            let copy = stage.call(uid, &ops);
            assert_eq!((&copy.ops, &copy.bytes[4..]), (&first.ops, &first.bytes[4..]));
            assert_eq!(stage.played.lock().unwrap().seen.len(), seen, "the server is not asked again");
        }
    }
    // Another call in the same place, or the same one of another user, is not answered with what the server has answered there.
    let look = [put_fh(&work), get_attr()];
    assert_eq!(stage.call(CHARLES, &look).status, 0);
    let seen = stage.played.lock().unwrap().seen.len();
    for (uid, ops) in [(CHARLES, &[put_fh(&work), op(Op4::GetFh)]), (BOB, &look)] {
        stage.slot -= 1;
        let back = stage.call(uid, ops);
        assert_eq!((back.status, back.found.outcomes.len()), (status::SEQ_FALSE_RETRY, 1));
    }
    assert_eq!(stage.played.lock().unwrap().seen.len(), seen);
    assert_eq!(stage.wall.status().totals.counters["false_retries_total"], 2);
    // A place that the server has not given may be another call's later.
    stage.slot += 1;
    assert_eq!(stage.call(CHARLES, &look).status, 10063);
    stage.slot -= 2;
    assert_eq!(stage.call(CHARLES, &look).status, 0);
    assert_eq!(stage.call(CHARLES, &[put_fh(&work), remove("plan")]).status, 0);
}

#[test]
fn what_the_server_does_and_what_is_made_up_stand_in_one_compound_in_that_order() {
    for minor in [0, 1] {
        let mut stage = Stage::new(minor);
        let root = stage.handle(BOB, "").unwrap();
        let ctrl = stage.handle(BOB, ".control/users/bob/ctrl").unwrap();
        let ops =
            [put_fh(&ctrl), op(Op4::SaveFh), put_fh(&root), get_attr(), op(Op4::RestoreFh), op(Op4::GetFh)];
        let back = stage.call(BOB, &[&ops[..], &[read(&NO_STATE)]].concat());
        assert_eq!((back.status, back.ops.len()), (0, 7), "{:?}", back.ops);
        assert_eq!((back.handle(), back.data().as_str()), (ctrl.clone(), "user\ndeveloper\n"));
        // What the server would have to do behind it needs a COMPOUND of its own.
        let back = stage.call(BOB, &[put_fh(&ctrl), read(&NO_STATE), put_fh(&root), get_attr()]);
        let refused = if minor == 0 { status::RESOURCE } else { status::TOO_MANY_OPS };
        assert_eq!(back.ops, [(Op4::PutFh, 0), (Op4::Read, 0), (Op4::PutFh, refused)]);
        // The server refuses what stands before: nothing behind it is done.
        let back =
            stage.call(BOB, &[put_fh(&root), lookup("nothing"), put_fh(&ctrl), write(&NO_STATE, "user")]);
        assert_eq!((back.status, back.ops.len()), (2, 2));
        assert_eq!(stage.read(BOB, ".control/users/bob/ctrl").unwrap(), "user\ndeveloper\n");
    }
}

#[test]
fn who_asks_for_what_is_out_of_reach_is_a_threat_over_nfsv4_too() {
    let mut stage = Stage::new(1);
    assert_eq!(stage.write(ALICE, ".control/users/alice/ctrl", "admin"), Err(13));
    assert_eq!(stage.read(ALICE, "alice"), Err(13));
    assert_eq!(stage.write(ROOT, ".control/users/root/ctrl", "admin"), Ok(()));
    assert_eq!(stage.write(ROOT, ".control/users/alice/ctrl", "enable"), Ok(()));
    assert_eq!(stage.read(ALICE, "alice").unwrap(), "of alice");
    // A handle of another client, or a made-up one, opens nothing.
    let ctrl = stage.handle(BOB, ".control/users/bob/ctrl").unwrap();
    let mut forged = ctrl.clone();
    let last = get_u32(&forged, 60) ^ 1;
    set_u32(&mut forged, 60, last);
    assert_eq!(stage.call(BOB, &[put_fh(&forged), get_attr()]).status, 10001);
    assert_eq!(stage.call(BOB, &[put_fh(b"\xf1weirVCN"), get_attr()]).status, 10001);
}

#[test]
fn a_name_that_was_seen_is_not_asked_for_again_until_it_is_taken_away() {
    let mut stage = Stage::new(0);
    let work = stage.handle(BOB, "work").unwrap();
    let remove = |name: &str| with(Op4::Remove, &[], Some(name.as_bytes()));
    let seen = |stage: &Stage| stage.played.lock().unwrap().seen.len();
    assert_eq!(stage.call(CHARLES, &[put_fh(&work), lookup("plan")]).status, 0);
    // Looked up again, denied and removed: one COMPOUND each, the client's own.
    let before = seen(&stage);
    assert_eq!(stage.call(CHARLES, &[put_fh(&work), lookup("plan")]).status, 0);
    assert_eq!(stage.call(BOB, &[put_fh(&work), remove("plan")]).status, 13, "judged as ever");
    assert_eq!(stage.call(CHARLES, &[put_fh(&work), remove("plan")]).status, 0);
    assert_eq!(seen(&stage) - before, 3);
    assert_eq!(stage.last_seen().ops, [Op4::PutFh, Op4::Remove]);
    // It was taken away, so what it leads to now is asked for.
    let before = seen(&stage);
    assert_eq!(stage.call(CHARLES, &[put_fh(&work), remove("plan")]).status, 0);
    assert!(seen(&stage) - before > 1);
}
