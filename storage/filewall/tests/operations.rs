//! Every operation of NFSv3, NFSv4.0 and NFSv4.1 against every policy that speaks of operations: a table says what each of them does, and
//! each policy must treat it as all of that, whatever it is called.
//!
//! - `access`: it is denied exactly where one of the things that it does is, and allowed where all of them are.
//! - `rbac`: the same, over objects.
//! - `quota`: it counts what it brings, once, and nothing where it was refused, or the server never came to it.
//! - `rate`, `audit`: they see it where one of their operations is among what it does; a rate counts it once.
//! - `read-only`: it is refused where it changes something.

use crate::careless4::{HANDLE, Node, Shared as Tree, careless4};
use crate::disk::{Shared as Disk, disk};
use crate::oracle4::{Op as Operation, bytes, get_attr, lookup, opaque, open, put_fh, read_dir};
use crate::played::{CALLER, ROOT, ask, client, until, wall};
use std::net::TcpStream;
use weir_filewall::proxy::{FileWall, Limits};
use weir_filewall::wire::build::Record;
use weir_filewall::wire::nfs3::{CHANGES, Op, ftype};
use weir_filewall::wire::nfs4::{Op4, as_nfs3};
use weir_filewall::wire::reply::{Results, results};
use weir_filewall::wire::rpc::{program, reply_head};
use weir_filewall::wire::xdr::{Reader, get_u32};

const ACCES: u32 = 13;
const ROFS: u32 = 30;
/// What rules answer here, and no server does.
const JUKEBOX: u32 = 10_008;

/// What an operation does.
#[derive(Clone, Debug)]
struct Case {
    name: &'static str,
    /// All of it, in the words of NFSv3, whatever the server has.
    does: Vec<Op>,
    /// And what it removes of what the server has.
    removes: Vec<Op>,
    /// And what it does where owners are told apart.
    of_owners: Vec<Op>,
    /// What is not asked there: a file that is made is one's own, and one that is there is not made.
    not_of_owners: Vec<Op>,
    /// Bytes and names that it brings.
    brings: (u64, u64),
    call: Made,
}

#[derive(Clone, Debug)]
enum Made {
    /// A call of NFSv3: arguments.
    Three(Op, Vec<u8>),
    /// A COMPOUND.
    Four(Vec<Operation>),
}

fn case(name: &'static str, does: &[Op], brings: (u64, u64), call: Made) -> Case {
    Case {
        name,
        does: does.to_vec(),
        removes: Vec::new(),
        of_owners: Vec::new(),
        not_of_owners: Vec::new(),
        brings,
        call,
    }
}

impl Case {
    fn removing(mut self, op: Op) -> Case {
        self.removes.push(op);
        self
    }

    fn of_owners(mut self, ops: &[Op]) -> Case {
        self.of_owners.extend(ops);
        self
    }

    fn not_of_owners(mut self, op: Op) -> Case {
        self.not_of_owners.push(op);
        self
    }

    fn is_denied_with(&self, op: Op) -> bool {
        self.does.contains(&op) || self.removes.contains(&op)
    }
}

fn number(handle: u64) -> Vec<u8> {
    [b"disk", &handle.to_be_bytes()[..]].concat()
}

/// Attributes that are set: a mode, or a length.
fn set3(mode: Option<u32>, size: Option<u32>) -> Vec<u8> {
    let mode = mode.map_or(bytes(&[0]), |mode| bytes(&[1, mode]));
    let size = size.map_or(bytes(&[0]), |size| bytes(&[1, 0, size]));
    [mode, bytes(&[0, 0]), size, bytes(&[0, 0])].concat()
}

/// All of NFSv3. The export has a file of ten bytes, another one, an empty folder, another one, and a link.
fn cases3(disk: &Disk) -> Vec<Case> {
    let mut disk = disk.lock().unwrap();
    disk.names.clear();
    disk.nodes.retain(|number, _| *number == 1);
    let file = number(disk.put(1, "file", ftype::REGULAR, b"0123456789"));
    disk.put(1, "other", ftype::REGULAR, b"other");
    let folder = number(disk.put(1, "folder", ftype::DIRECTORY, b""));
    disk.put(1, "empty", ftype::DIRECTORY, b"");
    let link = number(disk.put(1, "link", ftype::LINK, b"target"));
    let of = |handle: &[u8], rest: &[u8]| [opaque(handle), rest.to_vec()].concat();
    let at = |name: &str, rest: &[u8]| [opaque(ROOT), opaque(name.as_bytes()), rest.to_vec()].concat();
    let three = Made::Three;
    let plain = |op: Op, arguments: Vec<u8>| case(op.name(), &[op], (0, 0), three(op, arguments));
    let rename = |name, from: &str, to: &str| {
        let call = three(Op::Rename, [at(from, &[]), at(to, &[])].concat());
        case(name, &[Op::Rename], (0, 0), call).of_owners(&[Op::Create])
    };
    let create = |name, does: &[Op], bytes, made: &str, rest: &[u8]| {
        case(name, does, (bytes, 1), three(Op::Create, at(made, rest)))
    };
    let unguarded = |size| [bytes(&[0]), set3(None, size)].concat();
    vec![
        case("NULL", &[], (0, 0), three(Op::Null, Vec::new())),
        plain(Op::Getattr, of(&file, &[])),
        case(
            "SETATTR",
            &[Op::Setattr],
            (0, 0),
            three(Op::Setattr, of(&file, &[set3(Some(0o600), None), bytes(&[0])].concat())),
        ),
        case(
            "SETATTR, longer",
            &[Op::Setattr, Op::Write],
            (15, 0),
            three(Op::Setattr, of(&file, &[set3(None, Some(25)), bytes(&[0])].concat())),
        ),
        case(
            "SETATTR, cut",
            &[Op::Setattr, Op::Write],
            (0, 0),
            three(Op::Setattr, of(&file, &[set3(None, Some(0)), bytes(&[0])].concat())),
        ),
        plain(Op::Lookup, at("file", &[])),
        plain(Op::Access, of(&file, &bytes(&[63]))),
        plain(Op::Readlink, of(&link, &[])),
        plain(Op::Read, of(&file, &bytes(&[0, 0, 4096]))),
        case(
            "WRITE",
            &[Op::Write],
            (7, 0),
            three(Op::Write, of(&file, &[bytes(&[0, 0, 7, 2]), opaque(b"written")].concat())),
        ),
        create("CREATE, guarded", &[Op::Create], 0, "new", &[bytes(&[1]), set3(None, None)].concat()),
        create(
            "CREATE, guarded, long",
            &[Op::Create],
            5,
            "new",
            &[bytes(&[1]), set3(None, Some(5))].concat(),
        ),
        create("CREATE, exclusive", &[Op::Create, Op::Lookup], 0, "new", &bytes(&[2, 0, 0])),
        create("CREATE, there", &[Op::Create, Op::Lookup], 0, "file", &unguarded(None)),
        create(
            "CREATE, there, cut",
            &[Op::Create, Op::Lookup, Op::Setattr, Op::Write],
            5,
            "file",
            &unguarded(Some(5)),
        ),
        case("MKDIR", &[Op::Mkdir], (0, 1), three(Op::Mkdir, at("new", &set3(None, None)))),
        case(
            "SYMLINK",
            &[Op::Symlink],
            (6, 1),
            three(Op::Symlink, at("new", &[set3(None, None), opaque(b"target")].concat())),
        ),
        case(
            "MKNOD",
            &[Op::Mknod],
            (0, 1),
            three(Op::Mknod, at("new", &[bytes(&[7]), set3(None, None)].concat())),
        ),
        plain(Op::Remove, at("file", &[])),
        plain(Op::Rmdir, at("folder", &[])),
        rename("RENAME", "file", "new"),
        rename("RENAME over a file", "file", "other").removing(Op::Remove),
        rename("RENAME over a folder", "folder", "empty").removing(Op::Rmdir),
        case("LINK", &[Op::Link], (0, 1), three(Op::Link, [opaque(&file), at("new", &[])].concat()))
            .of_owners(&[Op::Create]),
        plain(Op::Readdir, of(ROOT, &bytes(&[0, 0, 0, 0, 4096]))),
        case(
            "READDIRPLUS",
            &[Op::Readdirplus, Op::Readdir],
            (0, 0),
            three(Op::Readdirplus, of(&folder, &bytes(&[0, 0, 0, 0, 4096, 16_384]))),
        ),
        plain(Op::Fsstat, of(ROOT, &[])),
        plain(Op::Fsinfo, of(ROOT, &[])),
        plain(Op::Pathconf, of(ROOT, &[])),
        plain(Op::Commit, of(&file, &bytes(&[0, 0, 0]))),
    ]
}

/// Operations of NFSv4 that name a handle, a state, a client or a session, and do nothing to a file. What they lead to is judged when
/// something is done with it; the way from the server's root into the export is a mount.
const NOTHING: [Op4; 28] = [
    Op4::BindConnection,
    Op4::Close,
    Op4::CreateSession,
    Op4::DelegPurge,
    Op4::DelegReturn,
    Op4::DestroyClientId,
    Op4::DestroySession,
    Op4::ExchangeId,
    Op4::FreeState,
    Op4::GetFh,
    Op4::OpenConfirm,
    Op4::OpenDowngrade,
    Op4::PutFh,
    Op4::PutPubFh,
    Op4::PutRootFh,
    Op4::ReclaimComplete,
    Op4::ReleaseLockOwner,
    Op4::Renew,
    Op4::RestoreFh,
    Op4::SaveFh,
    // Of the current handle: which flavours of authentication it takes.
    Op4::SecInfoNoName,
    Op4::Sequence,
    Op4::SetClientId,
    Op4::SetClientIdConfirm,
    Op4::TestState,
    // What is unlocked was locked.
    Op4::Unlock,
    // Judged by what they are, not by one name: see the cases.
    Op4::Create,
    Op4::Open,
];

const FOLDER: &str = "/export/pub";

fn handle4(path: &str) -> Operation {
    put_fh(&[HANDLE, path.as_bytes()].concat())
}

/// Attributes that are set: a mode, or a length.
fn set4(mode: Option<u32>, size: Option<u32>) -> Vec<u8> {
    match (mode, size) {
        (Some(mode), _) => bytes(&[2, 0, 1 << 1, 4, mode]),
        (None, Some(size)) => bytes(&[1, 1 << 4, 8, 0, size]),
        (None, None) => bytes(&[0, 0]),
    }
}

fn tree() -> Vec<(&'static str, Option<&'static str>)> {
    vec![
        ("", None),
        ("/export", None),
        (FOLDER, None),
        ("/export/pub/file", Some("0123456789")),
        ("/export/pub/other", Some("other")),
        ("/export/pub/folder", None),
    ]
}

/// All of NFSv4 that does something, below the current folder.
fn cases4(seqid: u32) -> Vec<Case> {
    let state = [0; 16];
    let file = || handle4("/export/pub/file");
    let folder = || handle4(FOLDER);
    let on_file = |op: Op4, arguments: Vec<u8>| Made::Four(vec![file(), (op, arguments)]);
    let in_folder = |op: Op4, arguments: Vec<u8>| Made::Four(vec![folder(), (op, arguments)]);
    let named = |op: Op4, name: &str| in_folder(op, opaque(name.as_bytes()));
    let create = |kind: Vec<u8>| in_folder(Op4::Create, [kind, opaque(b"new"), set4(None, None)].concat());
    let opened = |access, how, size, name: &str| {
        Made::Four(vec![folder(), open(seqid, access, how, size, (0, &opaque(name.as_bytes())))])
    };
    let two = |op: Op4, from: Operation, arguments: Vec<u8>| {
        Made::Four(vec![from, (Op4::SaveFh, Vec::new()), folder(), (op, arguments)])
    };
    let rename = |name, to: &str| {
        let names = [opaque(b"file"), opaque(to.as_bytes())].concat();
        case(name, &[Op::Rename], (0, 0), two(Op4::Rename, folder(), names)).of_owners(&[Op::Create])
    };
    let compares = |op: Op4| on_file(op, bytes(&[1, 1 << 1, 4, 1]));
    let owner = || [vec![0; 8], opaque(b"owner")].concat();
    let cut = [Op::Create, Op::Lookup, Op::Setattr, Op::Write];
    vec![
        case("ACCESS", &[Op::Access], (0, 0), on_file(Op4::Access, bytes(&[63]))),
        case("COMMIT", &[Op::Commit], (0, 0), on_file(Op4::Commit, bytes(&[0, 0, 0]))),
        case("CREATE of a folder", &[Op::Mkdir], (0, 1), create(bytes(&[2]))),
        case("CREATE of a link", &[Op::Symlink], (6, 1), create([bytes(&[5]), opaque(b"target")].concat())),
        case("CREATE of a device", &[Op::Mknod], (0, 1), create(bytes(&[4, 1, 1]))),
        case("CREATE of a FIFO", &[Op::Mknod], (0, 1), create(bytes(&[7]))),
        case("GETATTR", &[Op::Getattr], (0, 0), Made::Four(vec![file(), get_attr()])),
        case("LINK", &[Op::Link], (0, 1), two(Op4::Link, file(), opaque(b"new"))).of_owners(&[Op::Create]),
        case(
            "LOCK",
            &[Op::Getattr],
            (0, 0),
            on_file(
                Op4::Lock,
                [bytes(&[2, 0, 0, 0, 0, 9, 1, 1]), state.to_vec(), bytes(&[1]), owner()].concat(),
            ),
        ),
        case(
            "LOCKT",
            &[Op::Getattr],
            (0, 0),
            on_file(Op4::LockTest, [bytes(&[2, 0, 0, 0, 9]), owner()].concat()),
        ),
        case("LOOKUP", &[Op::Lookup], (0, 0), Made::Four(vec![folder(), lookup(b"file")])),
        case(
            "LOOKUPP",
            &[Op::Getattr, Op::Lookup],
            (0, 0),
            Made::Four(vec![folder(), (Op4::LookupParent, Vec::new())]),
        ),
        case("NVERIFY", &[Op::Getattr], (0, 0), compares(Op4::NVerify)),
        case("VERIFY", &[Op::Getattr], (0, 0), compares(Op4::Verify)),
        case("OPEN to read", &[Op::Lookup, Op::Read], (0, 0), opened(1, None, None, "file")),
        case("OPEN to write", &[Op::Lookup, Op::Write], (0, 0), opened(2, None, None, "file")),
        case("OPEN for both", &[Op::Lookup, Op::Read, Op::Write], (0, 0), opened(3, None, None, "file")),
        case(
            "OPEN of the current file",
            &[Op::Write],
            (0, 0),
            Made::Four(vec![file(), open(seqid, 2, None, None, (4, &[]))]),
        ),
        case("OPEN, guarded", &[Op::Create, Op::Read], (5, 1), opened(1, Some(1), Some(5), "new"))
            .of_owners(&[Op::Lookup])
            .not_of_owners(Op::Read),
        case("OPEN, new", &[Op::Create, Op::Lookup, Op::Read], (0, 1), opened(1, Some(0), None, "new"))
            .not_of_owners(Op::Read),
        case("OPEN, there", &[Op::Create, Op::Lookup, Op::Write], (0, 1), opened(2, Some(0), None, "file"))
            .not_of_owners(Op::Create),
        case("OPEN, there, cut", &cut, (5, 1), opened(2, Some(0), Some(5), "file")).not_of_owners(Op::Create),
        case(
            "OPEN, there, cut, to read",
            &[&cut[..], &[Op::Read]].concat(),
            (5, 1),
            opened(1, Some(0), Some(5), "file"),
        )
        .not_of_owners(Op::Create),
        case("OPEN, exclusive, cut", &cut, (5, 1), opened(2, Some(3), Some(5), "file"))
            .not_of_owners(Op::Create),
        case(
            "READ",
            &[Op::Read],
            (0, 0),
            on_file(Op4::Read, [state.to_vec(), bytes(&[0, 0, 4096])].concat()),
        ),
        case("READDIR", &[Op::Readdirplus, Op::Readdir], (0, 0), Made::Four(vec![folder(), read_dir()])),
        case("READLINK", &[Op::Readlink], (0, 0), on_file(Op4::ReadLink, Vec::new())),
        case("REMOVE", &[], (0, 0), named(Op4::Remove, "file")).removing(Op::Remove),
        case("REMOVE of a folder", &[], (0, 0), named(Op4::Remove, "folder")).removing(Op::Rmdir),
        rename("RENAME", "new"),
        rename("RENAME over a file", "other").removing(Op::Remove),
        case("SECINFO", &[Op::Lookup], (0, 0), named(Op4::SecInfo, "file")),
        case(
            "SETATTR",
            &[Op::Setattr],
            (0, 0),
            on_file(Op4::SetAttr, [state.to_vec(), set4(Some(0o600), None)].concat()),
        ),
        case(
            "SETATTR, longer",
            &[Op::Setattr, Op::Write],
            (25, 0),
            on_file(Op4::SetAttr, [state.to_vec(), set4(None, Some(25))].concat()),
        ),
        case(
            "WRITE",
            &[Op::Write],
            (7, 0),
            on_file(Op4::Write, [state.to_vec(), bytes(&[0, 0, 2]), opaque(b"written")].concat()),
        ),
    ]
}

/// A FileWall before a server of one version, and a client.
struct Place {
    wall: FileWall,
    stream: TcpStream,
    server: Server,
    xid: u32,
    minor: u32,
    folder: tempfile::TempDir,
}

enum Server {
    Three(Disk),
    Four(Tree),
}

/// Versions, and minor versions of the last.
const VERSIONS: [Option<u32>; 3] = [None, Some(0), Some(1)];

impl Place {
    fn new(version: Option<u32>, policy: &str) -> Place {
        let (address, server) = match version {
            None => {
                let (address, shared) = disk(1);
                (address, Server::Three(shared))
            }
            Some(_) => {
                let (address, shared) = careless4(&[]);
                (address, Server::Four(shared))
            }
        };
        let (wall, folder) = wall(address, Some(policy), Limits::default());
        let stream = client(&wall);
        Place { wall, stream, server, xid: 0, minor: version.unwrap_or(0), folder }
    }

    /// All cases, with what they need on the server.
    fn cases(&self) -> Vec<Case> {
        match &self.server {
            Server::Three(disk) => cases3(disk),
            Server::Four(shared) => {
                let mut shared = shared.lock().unwrap();
                let node = |(path, data): (&str, Option<&str>)| {
                    let node = Node {
                        folder: data.is_none(),
                        data: data.unwrap_or_default().into(),
                        mode: 0o755,
                        seconds: 1,
                    };
                    (path.as_bytes().to_vec(), node)
                };
                shared.nodes = tree().into_iter().map(node).collect();
                cases4(self.xid)
            }
        }
    }

    /// What a call is answered with in all.
    fn status(&mut self, call: &Made) -> u32 {
        let reply = self.ask(call);
        if matches!(call, Made::Three(Op::Null, _)) { 0 } else { get_u32(&reply, 24) }
    }

    fn ask(&mut self, call: &Made) -> Vec<u8> {
        self.xid += 1;
        let record = match call {
            Made::Three(op, arguments) => Record::nfs3(self.xid, *op, &CALLER).raw(arguments),
            Made::Four(ops) => {
                let record = Record::call(self.xid, program::NFS, 4, 1, &CALLER).opaque(b"tag");
                let record = record.u32(self.minor).u32(ops.len() as u32);
                ops.iter().fold(record, |record, (op, arguments)| record.u32(op.number()).raw(arguments))
            }
        };
        ask(&mut self.stream, &record.finish())
    }

    /// The operations in the audit log, in their order.
    fn audited(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.folder.path().join("audit.log")).unwrap();
        // The last line may be on its way.
        let lines = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        lines.map(|line| line["op"].as_str().unwrap().to_owned()).collect()
    }

    fn detail(&self, kind: &str, name: &str) -> u64 {
        let status = self.wall.status();
        status.policies.iter().find(|row| row.kind == kind).unwrap().details[name]
    }

    fn seen(&self, kind: &str) -> u64 {
        let status = self.wall.status();
        status.policies.iter().find(|row| row.kind == kind).unwrap().seen
    }

    fn counted(&self) -> (u64, u64) {
        (self.detail("quota", "bytes"), self.detail("quota", "names"))
    }

    /// Each case by itself, with a server as it was at first.
    fn each(&mut self, mut look: impl FnMut(&mut Place, &Case)) {
        for number in 0..self.cases().len() {
            let case = self.cases().swap_remove(number);
            look(self, &case);
        }
    }
}

fn minus((bytes, names): (u64, u64), (bytes_before, names_before): (u64, u64)) -> (u64, u64) {
    (bytes - bytes_before, names - names_before)
}

const QUOTA: &str =
    "kind: quota\nper: all\nbytes: 1000000000\nnames: 1000000\nperiod: ever\nstate-file: counts\n---\n";

#[test]
fn the_table_has_all_operations() {
    let (_, shared) = disk(1);
    let three = cases3(&shared);
    for op in Op::ALL {
        let has = |case: &Case| matches!(&case.call, Made::Three(own, _) if *own == op);
        assert!(three.iter().any(has), "{op}");
    }
    let four = cases4(0);
    for op in Op4::ALL {
        let has = |case: &Case| matches!(&case.call, Made::Four(ops) if ops.last().unwrap().0 == *op);
        let nothing = NOTHING.contains(op);
        assert!(nothing || four.iter().any(has), "{op:?}");
        assert!(!nothing || as_nfs3(*op).is_none(), "{op:?} has a rule");
    }
}

/// What is denied under one name is not done under another; what is seen of it is seen; what is refused counts nowhere.
#[test]
fn an_operation_is_judged_as_all_that_it_does() {
    for version in VERSIONS {
        for denied in Op::ALL.into_iter().filter(|op| *op != Op::Null) {
            let policy = format!(
                "{QUOTA}kind: rate\nper: all\ncalls-per-s: 1000000\nops: [\"{denied}\"]\n---\nkind: audit\nfile: audit.log\n\
                 ops: [\"{denied}\"]\n---\nkind: access\ndefault: allow\nrules: [{{deny: [\"{denied}\"], answer: jukebox}}]\n"
            );
            Place::new(version, &policy).each(|place, case| {
                let what = format!("version {version:?}, {denied} denied: {}", case.name);
                let (counted, seen) = (place.counted(), ["rate", "audit"].map(|kind| place.seen(kind)));
                let status = place.status(&case.call);
                let is_denied = case.is_denied_with(denied);
                assert_eq!(status == JUKEBOX, is_denied, "{what}: {status}");
                let brought = minus(place.counted(), counted);
                assert_eq!(brought, if status == 0 { case.brings } else { (0, 0) }, "{what}: {status}");
                // Whether a RENAME removes something nobody asks for a rate or a log.
                let is_removal =
                    matches!(&case.call, Made::Four(ops) if ops.last().unwrap().0 == Op4::Remove);
                let is_seen = case.does.contains(&denied) || is_removal && case.removes.contains(&denied);
                for (kind, seen) in ["rate", "audit"].into_iter().zip(seen) {
                    assert_eq!(place.seen(kind) > seen, is_seen, "{what}: {kind}");
                }
            });
        }
    }
}

#[test]
fn an_operation_needs_no_more_than_what_it_does() {
    for version in VERSIONS {
        let count = Place::new(version, "kind: none").cases().len();
        for number in 0..count {
            let case = Place::new(version, "kind: none").cases().swap_remove(number);
            let needed: Vec<&str> = case.does.iter().chain(&case.removes).map(|op| op.name()).collect();
            if needed.is_empty() {
                continue;
            }
            let rule = format!("rules: [{{allow: [{}]}}]\n", needed.join(", "));
            let mut place = Place::new(version, &format!("kind: access\ndefault: deny\n{rule}"));
            let case = place.cases().swap_remove(number);
            assert_ne!(place.status(&case.call), ACCES, "version {version:?}: {}", case.name);
        }
    }
}

#[test]
fn a_rate_counts_an_operation_once_whatever_it_is_for() {
    for version in VERSIONS {
        Place::new(version, "kind: rate\nper: all\ncalls-per-s: 1000000\n").each(|place, case| {
            let seen = place.seen("rate");
            place.status(&case.call);
            let is_one = !(case.does.is_empty() && case.removes.is_empty());
            assert_eq!(place.seen("rate") - seen, u64::from(is_one), "version {version:?}: {}", case.name);
        });
    }
}

#[test]
fn what_changes_something_is_refused_where_all_is_read_only() {
    for version in VERSIONS {
        Place::new(version, "kind: read-only\n").each(|place, case| {
            let changes = CHANGES & !Op::Commit.bit();
            let is_change = case.does.iter().chain(&case.removes).any(|op| op.bit() & changes != 0);
            let status = place.status(&case.call);
            assert_eq!(status == ROFS, is_change, "version {version:?}: {}: {status}", case.name);
        });
    }
}

/// Whoever goes to a file by names in the COMPOUND that uses it is where he is all the same, and so is who names the folder itself.
#[test]
fn an_audit_by_folder_sees_what_a_compound_finds_by_names() {
    let root = [(Op4::PutRootFh, Vec::new()), lookup(b"export")];
    let read = (Op4::Read, [vec![0; 16], bytes(&[0, 0, 4096])].concat());
    let by_names = [&root[..], &[lookup(b"pub"), lookup(b"file"), read]].concat();
    let itself =
        [&root[..], &[(Op4::Create, [bytes(&[2]), opaque(b"pub"), set4(None, None)].concat())]].concat();
    for (folder, sees) in [("/pub", true), ("/open", false)] {
        for (ops, call) in [("READ", &by_names), ("MKDIR", &itself)] {
            let policy = format!("kind: audit\nfile: audit.log\nops: [{ops}, COMMIT]\npaths: [{folder}]\n");
            let mut place = Place::new(Some(0), &policy);
            place.cases();
            place.ask(&Made::Four(call.clone()));
            // Lines are written in their order: the last is that of a file whose place nobody knows.
            place.ask(&Made::Four(vec![handle4("/export/pub/other"), (Op4::Commit, bytes(&[0, 0, 0]))]));
            let mut seen = Vec::new();
            until("the line of the file whose place nobody knows", || {
                seen = place.audited();
                seen.last().is_some_and(|op| op == "COMMIT")
            });
            let expected: &[&str] = if sees { &[ops, "COMMIT"] } else { &["COMMIT"] };
            assert_eq!(seen, expected, "{ops} in {folder}");
        }
    }
}

/// The server refuses it, or never comes to it: what stands behind an operation that fails is not carried out.
#[test]
fn what_was_not_carried_out_counts_for_no_quota() {
    let mut place = Place::new(None, QUOTA.trim_end_matches("---\n"));
    place.each(|place, case| {
        let Server::Three(disk) = &place.server else { return };
        disk.lock().unwrap().fault.read_only = true;
        place.status(&case.call);
        assert_eq!(place.counted(), (0, 0), "{}", case.name);
    });
    for minor in [0, 1] {
        let mut place = Place::new(Some(minor), QUOTA.trim_end_matches("---\n"));
        place.each(|place, case| {
            let Made::Four(ops) = &case.call else { return };
            let fails = [handle4(FOLDER), lookup(b"absent")];
            let behind = Made::Four([&fails[..], ops].concat());
            assert_eq!(place.status(&behind), 2, "{}", case.name);
            assert_eq!(place.counted(), (0, 0), "minor version {minor}: {}", case.name);
        });
    }
}

/// `permit` for all, and `forbid` for one operation. The server is as it was at first for each case, which others than FileWall see to.
fn roles(forbidden: Op) -> String {
    format!(
        "kind: identities\nusers: {{alice: {{uid: 1001, roles: [user]}}}}\nroles: {{user: {{}}}}\n---\nkind: rbac\n\
         state-file: rbac.state\nknown-s: 0\ninitial: [user]\nrules: |\n  permit (principal, action, resource);\n  \
         forbid (principal, action == Action::\"{forbidden}\", resource);\n"
    )
}

#[test]
fn roles_judge_an_operation_as_all_that_it_does() {
    for version in VERSIONS {
        for forbidden in Op::ALL.into_iter().filter(|op| *op != Op::Null) {
            Place::new(version, &roles(forbidden)).each(|place, case| {
                let status = place.status(&case.call);
                let is_denied = case.is_denied_with(forbidden) && !case.not_of_owners.contains(&forbidden)
                    || case.of_owners.contains(&forbidden);
                let what = format!("version {version:?}, {forbidden} forbidden: {}: {status}", case.name);
                assert_eq!(status == ACCES, is_denied, "{what}");
            });
        }
    }
}

/// Where GETATTR is denied, no reply of NFSv3 tells attributes by the way; where LOOKUP is, no listing and no mount gives a handle.
#[test]
fn what_is_denied_is_told_by_no_reply_to_another_operation() {
    for (denied, is_shown) in [(Op::Getattr, false), (Op::Lookup, true)] {
        let rule = format!("kind: access\ndefault: allow\nrules: [{{deny: [{denied}]}}]\n");
        let (mut entries, mut shown) = (0, 0);
        Place::new(None, &rule).each(|place, case| {
            let Made::Three(op, _) = &case.call else { return };
            if *op == Op::Null {
                return;
            }
            let call = match *op {
                // A folder that has something.
                Op::Readdirplus => {
                    Made::Three(*op, [opaque(ROOT), bytes(&[0, 0, 0, 0, 4096, 16_384])].concat())
                }
                _ => case.call.clone(),
            };
            let reply = place.ask(&call);
            let mut found = Results::default();
            let mut reader = Reader::whole(&reply);
            reply_head(&mut reader).unwrap();
            results(&mut reader, *op, &mut found).unwrap();
            shown += found.attributes.len() + found.before.len();
            if !is_shown {
                assert_eq!((found.attributes.len(), found.before.len()), (0, 0), "{}", case.name);
            }
            for entry in &found.entries {
                entries += 1;
                assert_eq!((entry.attributes, entry.handle), (None, None), "{}: {denied}", case.name);
            }
        });
        assert!(entries >= 5 && (shown > 0) == is_shown, "{denied}: {entries} entries, {shown} attributes");
    }
}
