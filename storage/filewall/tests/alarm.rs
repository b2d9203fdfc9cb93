//! `alarm` before servers of both versions: each way of encrypting files is seen, at the file at which it must be; what people and their
//! programs do with many files is not.

use crate::careless::careless;
use crate::careless4::{HANDLE, careless4};
use crate::played::{ROOT, client_from, read_record, wall};
use std::io::Write;
use std::net::TcpStream;
use weir_filewall::proxy::{FileWall, Limits};
use weir_filewall::wire::build::{Caller, Record};
use weir_filewall::wire::nfs3::Op;
use weir_filewall::wire::nfs4::Op4;
use weir_filewall::wire::reply::{Results, results};
use weir_filewall::wire::xdr::{Reader, get_u32, put_opaque};

/// Files in folder `d`, and folders with one file each.
const FILES: usize = 40;
/// Of the shipped policy.
const SHIPPED: &str = include_str!("../../../docs/operate/filewall/ransomware.yaml");
const LOGS: &str = "kind: alarm\nfiles: 10\nwindow-s: 86400\n";
const TEXT: &[u8] =
    b"Every call passes an ordered chain of policies before it reaches the server. Every call does so.";

/// How a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speech {
    /// NFSv3.
    Three,
    /// NFSv4 as kernels do: with the handle of each object.
    Four,
    /// NFSv4 from the root on in each COMPOUND.
    FourByNames,
}

const ALL: [Speech; 3] = [Speech::Three, Speech::Four, Speech::FourByNames];

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn opaque(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_opaque(&mut out, bytes);
    out
}

fn noise(seed: usize) -> Vec<u8> {
    let mut random = crate::oracle::Random::new(seed as u64 + 1);
    (0..1024).map(|_| random.below(256) as u8).collect()
}

fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

type Op4s = Vec<(Op4, Vec<u8>)>;

struct User {
    stream: TcpStream,
    speech: Speech,
    uid: u32,
    xid: u32,
    /// What the last call was answered with; all but success is a fault where it is not awaited.
    status: u32,
    awaits: bool,
}

impl User {
    fn new(wall: &FileWall, speech: Speech, uid: u32, machine: u8) -> User {
        User {
            stream: client_from(wall, [127, 0, 0, machine]),
            speech,
            uid,
            xid: 0,
            status: 0,
            awaits: false,
        }
    }

    fn ask(&mut self, record: Vec<u8>, what: &str) -> Vec<u8> {
        self.stream.write_all(&record).unwrap();
        let reply = read_record(&mut self.stream).expect("an answer");
        self.status = get_u32(&reply, 24);
        assert!(
            self.awaits || self.status == 0,
            "{}: {what} of user {} in {:?}",
            self.status,
            self.uid,
            self.speech
        );
        reply
    }

    fn three(&mut self, op: Op, arguments: impl FnOnce(Record) -> Record) -> Vec<u8> {
        self.xid += 1;
        let caller = Caller { uid: self.uid, gid: 100, groups: &[] };
        let record = arguments(Record::nfs3(self.xid, op, &caller)).finish();
        self.ask(record, op.name())
    }

    fn four(&mut self, ops: &Op4s) -> Vec<u8> {
        self.xid += 1;
        let caller = Caller { uid: self.uid, gid: 100, groups: &[] };
        let record = Record::call(self.xid, 100_003, 4, 1, &caller).opaque(b"").u32(0).u32(ops.len() as u32);
        let record =
            ops.iter().fold(record, |record, (op, arguments)| record.u32(op.number()).raw(arguments));
        self.ask(record.finish(), &format!("{:?}", ops.last().map(|(op, _)| op)))
    }

    /// The handle of a path, which is looked up name by name.
    fn handle(&mut self, path: &str) -> Vec<u8> {
        path.split('/').filter(|name| !name.is_empty()).fold(ROOT.to_vec(), |folder, name| {
            let reply = self.three(Op::Lookup, |record| record.opaque(&folder).opaque(name.as_bytes()));
            let (mut found, mut reader) = (Results::default(), Reader::whole(&reply));
            reader.take(24).unwrap();
            results(&mut reader, Op::Lookup, &mut found).unwrap();
            found.handle.unwrap().of(&reply).to_vec()
        })
    }

    /// What leads to a path.
    fn to(&mut self, path: &str) -> Op4s {
        let lookup = |name: &str| (Op4::Lookup, opaque(name.as_bytes()));
        let names = ["export"].into_iter().chain(path.split('/').filter(|name| !name.is_empty()));
        let from_root = vec![(Op4::PutRootFh, Vec::new())];
        if self.speech == Speech::FourByNames {
            return from_root.into_iter().chain(names.map(lookup)).collect();
        }
        // The server's handles are paths.
        let mut at = from_root;
        let mut way = String::new();
        for name in names {
            at.extend([lookup(name), (Op4::GetFh, Vec::new())]);
            self.four(&at);
            way = format!("{way}/{name}");
            at = vec![(Op4::PutFh, opaque(&[HANDLE, way.as_bytes()].concat()))];
        }
        at
    }

    fn do4(&mut self, path: &str, op: Op4, arguments: Vec<u8>) {
        let mut ops = self.to(path);
        ops.push((op, arguments));
        self.four(&ops);
    }

    fn read(&mut self, path: &str) {
        if self.speech != Speech::Three {
            return self.do4(path, Op4::Read, [&[0; 24][..], &words(&[4096])].concat());
        }
        let handle = self.handle(path);
        self.three(Op::Read, |record| record.opaque(&handle).u64(0).u32(4096));
    }

    fn write(&mut self, path: &str, offset: u32, data: &[u8]) {
        if self.speech != Speech::Three {
            let arguments = [&[0; 16][..], &words(&[0, offset, 2]), &opaque(data)].concat();
            return self.do4(path, Op4::Write, arguments);
        }
        let handle = self.handle(path);
        let bytes = data.len() as u32;
        self.three(Op::Write, |record| {
            record.opaque(&handle).u64(offset.into()).u32(bytes).u32(2).opaque(data)
        });
    }

    /// Makes a file, only if there is none or, emptied, as it comes.
    fn create(&mut self, path: &str, guarded: bool) {
        let (folder, name) = split(path);
        let how = u32::from(guarded);
        if self.speech != Speech::Three {
            let attributes = if guarded { words(&[0, 0]) } else { words(&[1, 1 << 4, 8, 0, 0]) };
            let claim = [words(&[0]), opaque(name.as_bytes())].concat();
            let begin = [words(&[self.xid, 2, 0, 0, 5]), opaque(b"owner"), words(&[1, how])].concat();
            return self.do4(folder, Op4::Open, [begin, attributes, claim].concat());
        }
        let handle = self.handle(folder);
        self.three(Op::Create, |record| {
            let record = record.opaque(&handle).opaque(name.as_bytes()).u32(how).u32(0).u32(0).u32(0);
            let record = if guarded { record.u32(0) } else { record.u32(1).u64(0) };
            record.u32(0).u32(0)
        });
    }

    fn cut(&mut self, path: &str, bytes: u32) {
        if self.speech != Speech::Three {
            return self.do4(path, Op4::SetAttr, [vec![0; 16], words(&[1, 1 << 4, 8, 0, bytes])].concat());
        }
        let handle = self.handle(path);
        self.three(Op::Setattr, |record| {
            record.opaque(&handle).u32(0).u32(0).u32(0).u32(1).u64(bytes.into()).u32(0).u32(0).u32(0)
        });
    }

    fn remove(&mut self, path: &str) {
        let (folder, name) = split(path);
        if self.speech != Speech::Three {
            return self.do4(folder, Op4::Remove, opaque(name.as_bytes()));
        }
        let handle = self.handle(folder);
        self.three(Op::Remove, |record| record.opaque(&handle).opaque(name.as_bytes()));
    }

    fn rename(&mut self, from: &str, to: &str) {
        let ((folder, name), (other, new)) = (split(from), split(to));
        if self.speech != Speech::Three {
            let names = [opaque(name.as_bytes()), opaque(new.as_bytes())].concat();
            let ops = [self.to(folder), vec![(Op4::SaveFh, Vec::new())], self.to(other)].concat();
            let ops = [ops, vec![(Op4::Rename, names)]].concat();
            self.four(&ops);
            return;
        }
        let (handle, second) = (self.handle(folder), self.handle(other));
        self.three(Op::Rename, |record| {
            record.opaque(&handle).opaque(name.as_bytes()).opaque(&second).opaque(new.as_bytes())
        });
    }

    /// A new file of noise.
    fn noisy(&mut self, path: &str) {
        self.create(path, true);
        self.write(path, 0, &noise(path.len()));
    }
}

/// A wall before a server with files; what else must live is kept.
fn place(speech: Speech, policy: &str) -> (FileWall, [tempfile::TempDir; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let mut paths = vec![("d".to_string(), false)];
    for number in 0..FILES {
        paths.extend([
            (format!("d/f{number}"), true),
            (format!("d{number}"), false),
            (format!("d{number}/f"), true),
        ]);
    }
    let address = if speech == Speech::Three {
        for (path, file) in &paths {
            let path = folder.path().join(path);
            if *file { std::fs::write(path, TEXT) } else { std::fs::create_dir(path) }.unwrap();
        }
        careless(folder.path())
    } else {
        let whole = paths.iter().map(|(path, file)| (format!("/export/{path}"), *file));
        let whole: Vec<_> =
            [(String::new(), false), ("/export".into(), false)].into_iter().chain(whole).collect();
        let text = std::str::from_utf8(TEXT).unwrap();
        let nodes: Vec<_> =
            whole.iter().map(|(path, file)| (path.as_str(), file.then_some(text), 1)).collect();
        careless4(&nodes).0
    };
    let (wall, policies) = wall(address, Some(policy), Limits::default());
    (wall, [folder, policies])
}

fn raised(wall: &FileWall) -> u64 {
    let status = wall.status();
    status.policies.iter().find(|row| row.kind == "alarm").unwrap().details["raised"]
}

/// Whose files are encrypted by whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    /// A user, in one folder.
    One,
    /// A user, in many folders.
    ManyFolders,
    /// Each file by another user of a machine, in many folders.
    ManyUsers,
    /// Four files by each machine, each by another user, in one folder.
    ManyMachines,
}

type Way = (&'static str, fn(&mut User, &str));

/// Ways to encrypt a file.
const WAYS: [Way; 9] = [
    ("in place", |user, file| {
        user.read(file);
        user.write(file, 0, &noise(0));
    }),
    ("by a new file that takes its name", |user, file| {
        user.read(file);
        let new = format!("{file}-new");
        user.noisy(&new);
        user.rename(&new, file);
    }),
    ("by truncation of the original", |user, file| {
        user.read(file);
        user.noisy(&format!("{file}-new"));
        user.cut(file, 0);
    }),
    ("not from offset 1", |user, file| {
        user.read(file);
        user.write(file, 1, &noise(0));
    }),
    ("far behind the beginning", |user, file| {
        user.read(file);
        user.write(file, 70_000, &noise(0));
    }),
    ("by truncation to a few bytes", |user, file| {
        user.noisy(&format!("{file}-new"));
        user.cut(file, 7);
    }),
    ("by making the original anew", |user, file| {
        user.noisy(&format!("{file}-new"));
        user.create(file, false);
    }),
    ("by a copy, and removing the original", |user, file| {
        user.noisy(&format!("{file}-new"));
        user.remove(file);
    }),
    ("in place, with a suffix", |user, file| {
        user.read(file);
        user.write(file, 0, &noise(0));
        user.rename(file, &format!("{file}.locked"));
    }),
];

/// One way; it must be seen at the last file and not before.
fn encrypts(speech: Speech, who: Who, (name, way): Way) {
    let (wall, _kept) = place(speech, LOGS);
    let count = if matches!(who, Who::One | Who::ManyFolders) { 10 } else { FILES };
    for number in 0..count {
        assert_eq!(raised(&wall), 0, "{speech:?}, {who:?}, {name}: at file {number}");
        let uid = if matches!(who, Who::One | Who::ManyFolders) { 1001 } else { 2000 + number as u32 };
        let machine = if who == Who::ManyMachines { 2 + number as u8 / 4 } else { 1 };
        let one = matches!(who, Who::One | Who::ManyMachines);
        let file = if one { format!("d/f{number}") } else { format!("d{number}/f") };
        way(&mut User::new(&wall, speech, uid, machine), &file);
    }
    assert_eq!(raised(&wall), 1, "{speech:?}, {who:?}, {name}");
}

#[test]
fn each_way_of_encrypting_is_seen_in_both_versions() {
    for speech in ALL {
        WAYS.into_iter().for_each(|way| encrypts(speech, Who::One, way));
        for who in [Who::ManyFolders, Who::ManyUsers] {
            WAYS.into_iter().take(3).for_each(|way| encrypts(speech, who, way));
        }
    }
}

#[test]
fn what_many_machines_do_in_one_folder_is_seen_in_both_versions() {
    for speech in ALL {
        WAYS.into_iter().for_each(|way| encrypts(speech, Who::ManyMachines, way));
    }
}

#[test]
fn what_is_stopped_in_a_folder_goes_on_in_others() {
    for speech in [Speech::Three, Speech::Four] {
        let (wall, _kept) = place(speech, &format!("{LOGS}folder-files: 10\nact: freeze\n"));
        for number in 0..9 {
            let mut user = User::new(&wall, speech, 2000 + number, 1);
            WAYS[0].1(&mut user, &format!("d/f{number}"));
        }
        let denied = |uid: u32, change: fn(&mut User)| {
            let mut user = User { awaits: true, ..User::new(&wall, speech, uid, 2) };
            change(&mut user);
            user.status == 13
        };
        assert!(denied(3000, |user| WAYS[0].1(user, "d/f9")), "{speech:?}: the tenth file");
        assert!(denied(4000, |user| user.write("d/f11", 0, TEXT)), "{speech:?}: text of another");
        assert!(denied(4000, |user| user.rename("d/f12", "d1/g")), "{speech:?}: out of it");
        let mut other = User::new(&wall, speech, 4000, 3);
        other.write("d1/f", 0, TEXT);
        other.read("d/f1");
        assert_eq!(raised(&wall), 1);
    }
}

type Work = (&'static str, fn(&mut User));

/// What people and their programs do, each in its own window.
const WORKS: [Work; 5] = [
    ("git checkout", |user| {
        user.read("d0/f");
        for number in 0..FILES {
            let file = format!("d/f{number}");
            user.remove(&file);
            user.create(&file, true);
            user.write(&file, 0, &TEXT.repeat(20));
        }
        user.noisy("d0/index.lock");
        user.rename("d0/index.lock", "d0/f");
    }),
    ("tar x", |user| {
        for number in 0..2 * FILES {
            user.noisy(&format!("d/photo {number}.jpg"));
            user.create(&format!("d/text {number}.txt"), false);
            user.write(&format!("d/text {number}.txt"), 0, &TEXT.repeat(20));
        }
    }),
    ("rsync", |user| {
        for number in 0..FILES {
            // New photographs, changed texts, and a few photographs that have changed.
            user.noisy("d/.tmp.aX3f");
            user.rename("d/.tmp.aX3f", &format!("d/photo {number}.jpg"));
            user.create("d/.tmp.bY4g", true);
            user.write("d/.tmp.bY4g", 0, &TEXT.repeat(20));
            user.rename("d/.tmp.bY4g", &format!("d/f{number}"));
            if number % 8 == 0 {
                user.noisy("d/.tmp.cZ5h");
                user.rename("d/.tmp.cZ5h", &format!("d/photo {number}.jpg"));
            }
        }
    }),
    ("log rotation", |user| {
        for number in 0..FILES {
            let log = format!("d/f{number}");
            user.rename(&log, &format!("{log}.1"));
            user.create(&log, false);
            user.write(&log, 0, TEXT);
            if number % 2 == 0 {
                user.read(&format!("{log}.1"));
                user.noisy(&format!("{log}.1.gz"));
                user.remove(&format!("{log}.1"));
            }
        }
    }),
    ("saves of editors", |user| {
        for number in 0..FILES {
            // Office documents are compressed; five of them are saved again and again.
            let document = format!("d{}/f", number % 5);
            user.read(&document);
            user.noisy("d/.~document#");
            user.rename("d/.~document#", &document);
            let text = format!("d/f{number}");
            user.rename(&text, &format!("{text}~"));
            user.create(&text, false);
            user.write(&text, 0, &TEXT.repeat(20));
            user.remove(&format!("{text}~"));
        }
    }),
];

#[test]
fn what_programs_do_with_many_files_raises_nothing_under_the_shipped_policy() {
    assert!(SHIPPED.contains("files: 30"), "more files are touched than it takes");
    for speech in ALL {
        for (name, work) in WORKS {
            let (wall, _kept) = place(speech, SHIPPED);
            work(&mut User::new(&wall, speech, 1001, 1));
            assert_eq!(raised(&wall), 0, "{speech:?}: {name}");
        }
    }
}
