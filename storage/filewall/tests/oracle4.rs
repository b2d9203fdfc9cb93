//! What must hold whatever is asked, over COMPOUNDs of NFSv4: what policies deny is neither seen nor changed (as [`crate::oracle`] over
//! NFSv3), before a server that lets names lead anywhere and whose handles can be guessed.

use crate::careless4::{HANDLE, Node, Shared, careless4};
use crate::oracle::{Random, odd_names};
use crate::played::{client, read_record, wall};
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use weir_filewall::proxy::{FileWall, Limits};
use weir_filewall::wire::build::{Caller, Record};
use weir_filewall::wire::nfs4::Op4;
use weir_filewall::wire::nfs4::results::{Results4, results};
use weir_filewall::wire::xdr::{Reader, get_u32, put_opaque, put_u32};

/// What no client may see: in files, in names, in times.
pub const MARK: &[u8; 4] = b"MARK";
const MARKED: u32 = u32::from_be_bytes(*MARK);
const CALLS: usize = 1500;
pub const KEY: &str = "kind: handles\nkey-file: key\n---\n";

/// Seeds that are run; with `WEIR_SUITES=whole` many more.
fn seeds() -> std::ops::RangeInclusive<u64> {
    let whole = std::env::var("WEIR_SUITES").is_ok_and(|which| which == "whole");
    1..=if whole { 40 } else { 4 }
}

const NODES: [(&str, Option<&str>, u32); 14] = [
    ("", None, 1),
    ("/export", None, 1),
    ("/export/pub", None, 1),
    ("/export/pub/file", Some("for all"), 1),
    ("/export/open", None, 1),
    ("/export/open/file", Some("for all"), 1),
    ("/export/open/inner", None, 1),
    ("/export/secret", None, MARKED),
    ("/export/secret/s.txt", Some("MARK in it"), MARKED),
    ("/export/secret/MARK", Some("MARK in it"), MARKED),
    ("/export/secret/deep", None, MARKED),
    ("/export/secret/deep/file", Some("MARK in it"), MARKED),
    ("/beside", None, MARKED),
    ("/beside/file", Some("MARK in it"), MARKED),
];

pub fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

pub fn opaque(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_opaque(&mut out, bytes);
    out
}

pub type Op = (Op4, Vec<u8>);

pub fn put_fh(handle: &[u8]) -> Op {
    (Op4::PutFh, opaque(handle))
}

pub fn lookup(name: &[u8]) -> Op {
    (Op4::Lookup, opaque(name))
}

/// Kind, length, file system, handle, number; mode, owners, time of change.
const ALL: [u32; 3] =
    [2, 1 << 1 | 1 << 4 | 1 << 8 | 1 << 11 | 1 << 19 | 1 << 20, 1 << 1 | 1 << 4 | 1 << 5 | 1 << 21];

pub fn get_attr() -> Op {
    (Op4::GetAttr, bytes(&ALL))
}

pub fn read_dir() -> Op {
    (Op4::ReadDir, [bytes(&[0, 0, 0, 0, 8192, 32_768]), bytes(&ALL)].concat())
}

/// OPEN of a name, of an owner of its own: access, and how it is made, if it is; `None` for the length leaves it as it is.
pub fn open(
    seqid: u32,
    access: u32,
    how: Option<u32>,
    length: Option<u32>,
    (claim, rest): (u32, &[u8]),
) -> Op {
    let mut out = bytes(&[seqid, access, 0, 0, 5]);
    put_opaque(&mut out, format!("owner {seqid}").as_bytes());
    match how {
        None => put_u32(&mut out, 0),
        Some(how) => {
            out.extend(bytes(&[1, how]));
            match (how, length) {
                (2, _) => out.extend([0; 8]),
                (3, length) => {
                    out.extend([0; 8]);
                    let sized = length.map(|length| bytes(&[1, 1 << 4, 8, 0, length]));
                    out.extend(sized.unwrap_or_else(|| bytes(&[0, 0])));
                }
                (_, Some(length)) => out.extend(bytes(&[1, 1 << 4, 8, 0, length])),
                (_, None) => out.extend(bytes(&[0, 0])),
            }
        }
    }
    put_u32(&mut out, claim);
    out.extend(rest);
    (Op4::Open, out)
}

pub struct Attack<'a> {
    wall: &'a FileWall,
    stream: TcpStream,
    random: Random,
    names: Vec<Vec<u8>>,
    handles: Vec<Vec<u8>>,
    xid: u32,
    /// Its number at the server.
    client: [u8; 8],
}

/// What came back: the record, and its statuses by operation.
struct Back {
    reply: Vec<u8>,
    ops: Vec<(Op4, u32)>,
}

impl<'a> Attack<'a> {
    fn new(wall: &'a FileWall, seed: u64) -> Attack<'a> {
        // GETFH says again what a client has guessed: nothing in that may be a mark.
        let paths = NODES.iter().map(|(path, ..)| path.as_bytes()).filter(|path| !shows(path, MARK));
        let guessed = paths.map(|path| [HANDLE, path].concat());
        Attack {
            wall,
            stream: client(wall),
            random: Random::new(seed),
            names: odd_names(Path::new("/export")),
            handles: guessed.chain([Vec::new()]).collect(),
            xid: 0,
            client: [0; 8],
        }
    }

    /// One at a server that nobody plays: it has guessed no handle, and makes itself known.
    pub fn known(wall: &'a FileWall, seed: u64) -> Attack<'a> {
        let mut attack = Attack { handles: vec![Vec::new()], ..Attack::new(wall, seed) };
        let nobody = [opaque(b"tcp"), opaque(b"0.0.0.0.0.0")].concat();
        let names =
            [&[0; 8][..], &opaque(format!("attack {seed}").as_bytes()), &bytes(&[0]), &nobody, &bytes(&[0])];
        let back = attack.call(0, &[(Op4::SetClientId, names.concat())]);
        assert_eq!(back.ops, [(Op4::SetClientId, 0)]);
        let given = &back.reply[back.reply.len() - 16..];
        attack.client = given[..8].try_into().unwrap();
        let back = attack.call(0, &[(Op4::SetClientIdConfirm, given.to_vec())]);
        assert_eq!(back.ops, [(Op4::SetClientIdConfirm, 0)]);
        attack
    }

    fn handle(&mut self) -> Vec<u8> {
        self.random.handle(&self.handles)
    }

    fn name(&mut self) -> Vec<u8> {
        opaque(&self.random.of(&self.names).clone())
    }

    fn attributes(&mut self) -> Vec<u8> {
        match self.random.below(3) {
            0 => bytes(&[0, 0]),
            1 => bytes(&[1, 1 << 4, 8, 0, 0]),
            _ => bytes(&[2, 0, 1 << 1, 4, 0o777]),
        }
    }

    fn op(&mut self) -> Op {
        let no_state = [0; 16];
        let kinds = [
            Op4::PutFh,
            Op4::PutRootFh,
            Op4::PutPubFh,
            Op4::GetFh,
            Op4::SaveFh,
            Op4::RestoreFh,
            Op4::Lookup,
            Op4::Lookup,
            Op4::LookupParent,
            Op4::GetAttr,
            Op4::Access,
            Op4::Read,
            Op4::Write,
            Op4::SetAttr,
            Op4::ReadDir,
            Op4::SecInfo,
            Op4::Commit,
            Op4::Remove,
            Op4::Rename,
            Op4::Link,
            Op4::Create,
            Op4::Open,
            Op4::Verify,
        ];
        let op = *self.random.of(&kinds);
        let arguments = match op {
            Op4::PutFh => opaque(&self.handle()),
            Op4::Lookup | Op4::SecInfo | Op4::Remove | Op4::Link => self.name(),
            Op4::Rename => [self.name(), self.name()].concat(),
            Op4::GetAttr => bytes(&ALL),
            Op4::Access => bytes(&[63]),
            Op4::Read => [&no_state[..], &bytes(&[0, 0, 4096])].concat(),
            Op4::Write => [&no_state[..], &bytes(&[0, 0, 2]), &opaque(b"written")].concat(),
            Op4::SetAttr => [&no_state[..], &self.attributes()].concat(),
            Op4::ReadDir => read_dir().1,
            Op4::Commit => bytes(&[0, 0, 0]),
            Op4::Create => {
                let kind = match self.random.below(3) {
                    0 => [bytes(&[5]), opaque(b"/export/secret")].concat(),
                    _ => bytes(&[2]),
                };
                [kind, self.name(), self.attributes()].concat()
            }
            // The time of its last change is what the mark says.
            Op4::Verify => bytes(&[2, 0, 1 << 21, 12, 0, MARKED, 0]),
            Op4::Open => {
                let how = [None, Some(0), Some(0), Some(1), Some(2), Some(3)][self.random.below(6)];
                let length = [None, Some(0)][self.random.below(2)];
                let claim = self.random.below(7) as u32;
                let rest = match claim {
                    0 | 3 => self.name(),
                    1 => bytes(&[0]),
                    2 => [no_state.to_vec(), self.name()].concat(),
                    5 => no_state.to_vec(),
                    _ => Vec::new(),
                };
                let (seqid, access) = (self.xid, 1 + self.random.below(3) as u32);
                let (op, mut open) = open(seqid, access, how, length, (claim, &rest));
                // Behind number, access and what is denied to others.
                open[12..20].copy_from_slice(&self.client);
                return (op, open);
            }
            _ => Vec::new(),
        };
        (op, arguments)
    }

    /// Makes random calls and looks at what comes; how many operations were carried out.
    pub fn attacks(&mut self, (seed, calls): (u64, usize), marks: &[&[u8]]) -> usize {
        let back = self.call(0, &[(Op4::PutRootFh, Vec::new()), lookup(b"export"), (Op4::GetFh, Vec::new())]);
        assert_eq!(back.ops.last(), Some(&(Op4::GetFh, 0)), "the export is there");
        let mut done = 0;
        for number in 0..calls {
            let mut ops = match self.random.below(3) {
                0 => vec![(Op4::PutRootFh, Vec::new()), lookup(b"export")],
                _ => vec![put_fh(&self.handle())],
            };
            ops.extend((0..1 + self.random.below(6)).map(|_| self.op()));
            let uid = *self.random.of(&[0, 0, 1001, 1002, 65_534, u32::MAX]);
            let back = self.call(uid, &ops);
            for mark in marks {
                assert!(
                    !shows(&back.reply, mark),
                    "seed {seed}, call {number}: {ops:?} shows what is denied"
                );
            }
            done += back.ops.iter().filter(|(_, status)| *status == 0).count();
        }
        done
    }

    fn call(&mut self, uid: u32, ops: &[Op]) -> Back {
        self.xid += 1;
        let caller = Caller { uid, gid: 100, groups: &[] };
        let record =
            Record::call(self.xid, 100_003, 4, 1, &caller).opaque(b"tag").u32(0).u32(ops.len() as u32);
        let record =
            ops.iter().fold(record, |record, (op, arguments)| record.u32(op.number()).raw(arguments));
        let sent = self.stream.write_all(&record.finish()).is_ok();
        let Some(reply) = sent.then(|| read_record(&mut self.stream)).flatten() else {
            self.stream = client(self.wall);
            return Back { reply: Vec::new(), ops: Vec::new() };
        };
        let mut found = Results4::default();
        let mut reader = Reader::whole(&reply);
        let ops = match reader.take(24).and_then(|_| results(&mut reader, &mut found)) {
            Ok(_) => found.outcomes.iter().map(|one| (one.op, one.status)).collect(),
            Err(_) => Vec::new(),
        };
        let handles = found.outcomes.iter().filter_map(|one| one.found);
        let handles = handles.chain(found.entries.iter().filter_map(|entry| entry.found));
        self.handles.extend(handles.map(|found| found.handle.of(&reply).to_vec()));
        self.handles.sort();
        self.handles.dedup();
        Back { reply, ops }
    }
}

fn denied(tree: &Shared) -> Vec<(Vec<u8>, Node)> {
    let tree = tree.lock().unwrap();
    let inside = |path: &[u8]| {
        let mut folders = [&b"/export/secret"[..], b"/beside"].into_iter();
        folders.any(|folder| path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest[0] == b'/'))
    };
    tree.nodes
        .iter()
        .filter(|(path, _)| inside(path))
        .map(|(path, node)| (path.clone(), node.clone()))
        .collect()
}

fn shows(reply: &[u8], mark: &[u8]) -> bool {
    reply.windows(mark.len()).any(|bytes| bytes == mark)
}

/// Whether two states of what is denied are as much the same as they must be.
type Same = fn(&[(Vec<u8>, Node)], &[(Vec<u8>, Node)]) -> bool;

fn run(seed: u64, policy: &str, marks: &[&[u8]], (times_only, same): (bool, Same)) {
    let nodes = NODES.map(|(path, data, seconds)| match times_only {
        true => (
            if path.ends_with("MARK") { "/export/secret/named" } else { path },
            data.map(|_| "its content"),
            seconds,
        ),
        false => (path, data, seconds),
    });
    let (address, tree) = careless4(&nodes);
    let before = denied(&tree);
    // The same seed, the same handles.
    let keys = tempfile::tempdir().unwrap();
    let key = keys.path().join("key");
    std::fs::write(&key, [seed as u8; 32]).unwrap();
    let policy = policy.replace("key-file: key", &format!("key-file: {}", key.display()));
    let (wall, _folder) = wall(address, Some(&policy), Limits::default());
    let mut attack = Attack::new(&wall, seed);
    let done = attack.attacks((seed, CALLS), marks);
    let after = denied(&tree);
    assert!(same(&before, &after), "seed {seed}: what is denied was changed: {before:?} {after:?}");
    assert!(done > CALLS / 2 && tree.lock().unwrap().done > CALLS / 2, "{done} operations were carried out");
}

pub fn rules(deny: &str) -> String {
    format!("kind: access\ndefault: allow\nrules:\n- {{deny: [{deny}], paths: [/secret]}}\n")
}

#[test]
fn nothing_that_is_denied_is_seen_or_changed_by_any_compound() {
    let same: Same = |before, after| before == after;
    for seed in seeds() {
        run(seed, &rules("all"), &[MARK], (false, same));
        run(seed, &format!("{KEY}{}", rules("all")), &[MARK, b"h:/export"], (false, same));
    }
}

#[test]
fn attributes_that_are_denied_are_seen_in_no_compound() {
    let same: Same = |before, after| before == after;
    for seed in seeds() {
        run(seed, &rules("GETATTR, changes"), &[MARK], (true, same));
        run(seed, &format!("{KEY}{}", rules("GETATTR, changes")), &[MARK], (true, same));
    }
}

#[test]
fn attributes_that_may_not_be_set_stay_in_any_compound() {
    let deny = "SETATTR, WRITE, REMOVE, RMDIR, RENAME, LINK";
    let same: Same = |before, after| before.iter().all(|node| after.contains(node));
    for seed in seeds() {
        run(seed, &rules(deny), &[], (false, same));
        run(seed, &format!("{KEY}{}", rules(deny)), &[], (false, same));
    }
}

#[test]
fn an_open_that_empties_a_file_is_denied_with_setattr() {
    let (address, tree) = careless4(&NODES);
    let rule = "kind: access\ndefault: allow\nrules:\n- {deny: [SETATTR], answer: perm}\n";
    let (wall, _folder) = wall(address, Some(rule), Limits::default());
    let mut attack = Attack::new(&wall, 1);
    let mut try_open = |how: u32, length: Option<u32>, name: &str| {
        let seqid = attack.xid;
        let way = [(Op4::PutRootFh, Vec::new()), lookup(b"export"), lookup(b"pub")];
        let one = open(seqid, 3, Some(how), length, (0, &opaque(name.as_bytes())));
        *attack.call(0, &[&way[..], &[one]].concat()).ops.last().unwrap()
    };
    // UNCHECKED: emptied, or taken as it is.
    assert_eq!(try_open(0, Some(0), "file"), (Op4::Open, 1));
    assert_eq!(tree.lock().unwrap().nodes[&b"/export/pub/file"[..]].data, b"for all");
    assert_eq!(try_open(0, None, "file"), (Op4::Open, 0));
    // A file that is made has the length that its maker says.
    assert_eq!(try_open(1, Some(0), "new"), (Op4::Open, 0));
    assert_eq!(tree.lock().unwrap().nodes[&b"/export/pub/file"[..]].data, b"for all");
}

#[test]
fn an_open_means_a_name_or_the_current_file_and_empties_what_it_did_not_make_only_where_that_is_allowed() {
    for key in ["", KEY] {
        let (address, tree) = careless4(&NODES);
        let rule = "kind: access\ndefault: allow\nrules:\n- {deny: [SETATTR], answer: perm}\n";
        let (wall, _folder) = wall(address, Some(&format!("{key}{rule}")), Limits::default());
        let mut attack = Attack::new(&wall, 1);
        let mut try_open = |way: &[&str], how: Option<u32>, length: Option<u32>, claim: u32, rest: &[u8]| {
            let one = open(attack.xid, 1, how, length, (claim, rest));
            let way = way.iter().map(|name| lookup(name.as_bytes()));
            let ops: Vec<Op> = [(Op4::PutRootFh, Vec::new())].into_iter().chain(way).chain([one]).collect();
            attack.call(0, &ops).ops.last().unwrap().1
        };
        let (folder, file) = (["export", "pub"], ["export", "pub", "file"]);
        let name = opaque(b"file");
        // By the current file nothing is made; a file that is there loses nothing by being made only where there is none.
        for how in 0..4 {
            for (claim, rest) in [(1, &[0; 4][..]), (4, &[])] {
                assert_eq!(try_open(&file, Some(how), Some(0), claim, rest), 22, "how {how}, claim {claim}");
            }
        }
        assert_eq!(try_open(&file, None, None, 4, &[]), 0);
        // Claims of delegations: of a name, and of the current file.
        let state = [0; 16];
        for (claim, rest) in
            [(2, [&state[..], &name].concat()), (3, name.clone()), (5, state.into()), (6, vec![])]
        {
            assert_eq!(try_open(&folder, None, None, claim, &rest), 10_004, "claim {claim}");
        }
        // Who knows the verifier takes a file as made by himself.
        assert_eq!(try_open(&folder, Some(3), Some(0), 0, &name), 1);
        assert_eq!(try_open(&folder, Some(3), None, 0, &name), 0);
        assert_eq!(try_open(&folder, Some(1), Some(0), 0, &name), 17);
        assert_eq!(tree.lock().unwrap().nodes[&b"/export/pub/file"[..]].data, b"for all");
    }
}

#[test]
fn a_listing_of_nfsv4_shows_neither_attributes_nor_handles_of_what_may_not_be_looked_at() {
    for key in ["", KEY] {
        let (address, _tree) = careless4(&NODES);
        let (wall, _folder) = wall(address, Some(&format!("{key}{}", rules("GETATTR"))), Limits::default());
        let mut attack = Attack::new(&wall, 1);
        let list = |attack: &mut Attack<'_>, way: &[Op]| {
            let ops = [&[(Op4::PutRootFh, Vec::new()), lookup(b"export")][..], way, &[read_dir()]].concat();
            let back = attack.call(0, &ops);
            assert_eq!(back.ops.last(), Some(&(Op4::ReadDir, 0)));
            let mut found = Results4::default();
            let mut reader = Reader::whole(&back.reply);
            reader.take(24).unwrap();
            results(&mut reader, &mut found).unwrap();
            let entries = found.entries.iter();
            let shown = |name: &[u8], handle: bool| (String::from_utf8_lossy(name).into_owned(), handle);
            let names: Vec<(String, bool)> =
                entries.map(|entry| shown(entry.name.of(&back.reply), entry.found.is_some())).collect();
            (names, back.reply)
        };
        let (names, reply) = list(&mut attack, &[]);
        let expected = [("open", true), ("pub", true), ("secret", false)];
        assert_eq!(names, expected.map(|(name, handle)| (name.to_string(), handle)));
        assert!(!shows(&reply, MARK));
        let (names, reply) = list(&mut attack, &[lookup(b"secret")]);
        let expected = [("MARK", false), ("deep", false), ("s.txt", false)];
        assert_eq!(names, expected.map(|(name, handle)| (name.to_string(), handle)));
        // The name alone.
        let marks = (0..reply.len()).filter(|at| reply.get(*at..at + 4) == Some(&MARK[..])).count();
        assert_eq!(marks, 1);
        // Asked for it, GETATTR is denied.
        let ops = [(Op4::PutRootFh, Vec::new()), lookup(b"export"), lookup(b"secret"), get_attr()];
        let back = attack.call(0, &ops);
        assert_eq!((back.ops.last(), get_u32(&back.reply, 24)), (Some(&(Op4::GetAttr, 13)), 13));
    }
}
