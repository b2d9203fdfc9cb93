//! What must hold whatever is asked: what policies deny is neither seen nor changed.
//!
//! Files that are denied are marked: in what they hold, in their names, in what links lead to, and in their times. Clients
//! make random calls of all operations, with odd names, handles of any origin, and any credentials. Afterwards no mark has
//! reached a client, and what is denied is as it was.

use crate::careless::careless;
use crate::played::{BOUND, client, read_record, wall};
use std::fs::{self, File, FileTimes};
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};
use weir_filewall::proxy::{FileWall, Limits};
use weir_filewall::wire::build::{Caller, Record};
use weir_filewall::wire::nfs3::Op;
use weir_filewall::wire::reply::{Results, results};
use weir_filewall::wire::rpc::{program, reply_head};
use weir_filewall::wire::xdr::Reader;

/// What no client may see.
const MARK: &[u8; 4] = b"MARK";
/// Calls of a run.
const CALLS: usize = 1500;
const SEEDS: [u64; 2] = [1, 2];

/// Numbers that are the same in each run.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }

    pub fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    /// One of these handles, or now and then one that is cut, has a wrong bit, or was never given.
    pub fn handle(&mut self, given: &[Vec<u8>]) -> Vec<u8> {
        let mut handle = self.of(given).clone();
        match self.below(20) {
            0 => handle.truncate(self.below(handle.len() + 1)),
            1 if !handle.is_empty() => {
                let at = self.below(handle.len());
                handle[at] ^= 1 << self.below(8);
            }
            2 => handle = (0..self.below(65)).map(|byte| byte as u8).collect(),
            _ => {}
        }
        handle
    }
}

/// Path, mode, time and content.
pub type About = (PathBuf, u32, i64, Vec<u8>);

/// Everything below a folder, with all that can change of it.
pub fn tree(folder: &Path) -> Vec<About> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(path) = folders.pop() {
        let about = fs::symlink_metadata(&path).unwrap();
        let content = if about.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        if about.is_dir() {
            folders.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        found.push((path, about.mode(), about.mtime(), content));
    }
    found.sort();
    found
}

/// An export with marked files in and beside it; where it is.
pub fn export(folder: &Path) -> PathBuf {
    let export = folder.join("export");
    for name in ["export/pub", "export/open/inner", "export/secret/deep", "beside"] {
        fs::create_dir_all(folder.join(name)).unwrap();
    }
    for name in ["secret/s.txt", "secret/MARK", "secret/deep/file", "../beside/file"] {
        fs::write(export.join(name), b"MARK in it").unwrap();
    }
    std::os::unix::fs::symlink("MARK", export.join("secret/link")).unwrap();
    for name in ["pub/file", "open/file", "open/inner/file"] {
        fs::write(export.join(name), b"for all").unwrap();
    }
    let time = UNIX_EPOCH + Duration::from_secs(u32::from_be_bytes(*MARK).into());
    for name in [
        "secret/s.txt",
        "secret/MARK",
        "secret/deep/file",
        "secret/deep",
        "secret",
        "../beside/file",
        "../beside",
        // The folder above the export.
        "..",
    ] {
        let times = FileTimes::new().set_modified(time).set_accessed(time);
        File::open(export.join(name)).unwrap().set_times(times).unwrap();
    }
    export
}

pub fn odd_names(export: &Path) -> Vec<Vec<u8>> {
    let absolute = |name: &str| export.join(name).display().to_string().into_bytes();
    let mut names: Vec<Vec<u8>> = [
        "pub",
        "open",
        "inner",
        "file",
        "new",
        "other",
        "secret",
        "s.txt",
        "deep",
        "link",
        ".",
        "..",
        "",
        "...",
        "secret/s.txt",
        "secret/",
        "./secret",
        "/secret",
        "//secret",
        "secret\0",
        "secret\0x",
        "../secret",
        "../secret/s.txt",
        "pub/../secret/s.txt",
        "secret/.",
        "secret/deep/..",
        "../../beside/file",
        "../beside",
        "..\0",
        ".\0",
        "../..",
        "/",
        "../secret/new",
        "secret/new",
        "secret/s.txt\0",
        "\0",
        "\0secret",
        "secret/link",
        "SECRET",
        "secret ",
        "open/../secret",
    ]
    .map(|name| name.as_bytes().to_vec())
    .to_vec();
    names.extend([absolute("secret"), absolute("secret/s.txt"), absolute("../beside/file")]);
    names.extend([vec![b'a'; 255], vec![b'a'; 256], vec![b'a'; 5000], b"\xff\xfe".to_vec()]);
    names
}

struct Attack<'a> {
    wall: &'a FileWall,
    stream: TcpStream,
    random: Random,
    names: Vec<Vec<u8>>,
    handles: Vec<Vec<u8>>,
    xid: u32,
    /// How long a server may be silent.
    patience: Duration,
    /// Calls that it has left without an answer.
    unanswered: Vec<Option<Op>>,
}

impl<'a> Attack<'a> {
    fn new(wall: &'a FileWall, export: &Path, seed: u64, patience: Duration) -> Attack<'a> {
        let (random, names) = (Random::new(seed), odd_names(export));
        let stream = patient(wall, patience);
        Attack {
            wall,
            stream,
            random,
            names,
            handles: vec![Vec::new()],
            xid: 0,
            patience,
            unanswered: Vec::new(),
        }
    }

    fn handle(&mut self) -> Vec<u8> {
        self.random.handle(&self.handles)
    }

    fn name(&mut self) -> Vec<u8> {
        self.random.of(&self.names).clone()
    }

    fn attributes(&mut self, record: Record) -> Record {
        let record = match self.random.below(3) {
            0 => record.u32(1).u32(0o777),
            _ => record.u32(0),
        };
        let record = record.u32(0).u32(0);
        // A length of nothing, or none.
        let record = if self.random.below(4) == 0 { record.u32(1).u64(0) } else { record.u32(0) };
        record.u32(0).u32(0)
    }

    /// A call of MOUNT, or of any operation of NFS.
    fn call(&mut self) -> (Option<Op>, Vec<u8>) {
        self.xid += 1;
        let uid = *self.random.of(&[0, 0, 1001, 1002, 65_534, u32::MAX]);
        let caller = Caller { uid, gid: uid, groups: &[0, 100] };
        if self.random.below(12) == 0 {
            let begins = ["/export", "/export/", "/export/pub/", "", "/export\0", "/"];
            let begin = self.random.of(&begins).as_bytes();
            let path = [begin, &self.name()].concat();
            let path = &path[..path.len().min(1024)];
            return (None, Record::call(self.xid, program::MOUNT, 3, 1, &caller).opaque(path).finish());
        }
        let op = *self.random.of(&Op::ALL);
        let mut record = Record::nfs3(self.xid, op, &caller);
        if op != Op::Null {
            record = record.opaque(&self.handle());
        }
        let record = match op {
            Op::Null | Op::Getattr | Op::Readlink | Op::Fsstat | Op::Fsinfo | Op::Pathconf => record,
            Op::Lookup | Op::Remove | Op::Rmdir => record.opaque(&self.name()),
            Op::Setattr => self.attributes(record).u32(0),
            Op::Access => record.u32(63),
            Op::Read | Op::Commit => record.u64(0).u32(4096),
            Op::Write => record.u64(0).u32(7).u32(2).opaque(b"written"),
            Op::Create => {
                let record = record.opaque(&self.name()).u32(self.random.below(2) as u32);
                self.attributes(record)
            }
            Op::Mkdir => {
                let record = record.opaque(&self.name());
                self.attributes(record)
            }
            Op::Symlink => {
                let record = record.opaque(&self.name());
                self.attributes(record).opaque(b"target")
            }
            Op::Mknod => {
                let record = record.opaque(&self.name()).u32(7);
                self.attributes(record)
            }
            Op::Rename => record.opaque(&self.name()).opaque(&self.handle()).opaque(&self.name()),
            Op::Link => record.opaque(&self.handle()).opaque(&self.name()),
            Op::Readdir => record.u64(0).u64(0).u32(4096),
            Op::Readdirplus => record.u64(0).u64(0).u32(4096).u32(16_384),
        };
        (Some(op), record.finish())
    }

    /// What came to a client; the handles in it are used from then on.
    fn ask(&mut self, op: Option<Op>, call: &[u8]) -> Vec<u8> {
        let sent = self.stream.write_all(call).is_ok();
        let Some(reply) = sent.then(|| read_record(&mut self.stream)).flatten() else {
            self.stream = patient(self.wall, self.patience);
            self.unanswered.push(op);
            return Vec::new();
        };
        let mut reader = Reader::whole(&reply);
        if reply_head(&mut reader).is_ok_and(|head| head.results_at.is_some()) {
            match op {
                Some(op) => {
                    let mut found = Results::default();
                    if results(&mut reader, op, &mut found).is_ok() {
                        let entries = found.entries.iter().filter_map(|entry| entry.handle);
                        self.handles.extend(
                            found.handle.into_iter().chain(entries).map(|span| span.of(&reply).to_vec()),
                        );
                    }
                }
                None if reader.u32() == Ok(0) => {
                    self.handles.extend(reader.opaque(64).map(|span| span.of(&reply).to_vec()));
                }
                None => {}
            }
        }
        self.handles.sort();
        self.handles.dedup();
        reply
    }
}

fn patient(wall: &FileWall, patience: Duration) -> TcpStream {
    let stream = client(wall);
    stream.set_read_timeout(Some(patience)).unwrap();
    stream
}

/// What must hold under some rules.
pub struct Holds {
    /// Whether bytes that came to a client are looked at for marks, by what they answer.
    looks: fn(Option<Op>) -> bool,
    /// Whether the marks stand in what files hold and are called too, not in times alone.
    all_marked: bool,
    /// What must be as it was: of what was there before, and of what is there afterwards.
    same: fn(&[About], &[About]) -> bool,
}

/// Nothing is seen and nothing is changed.
pub const NOTHING: Holds = Holds { looks: |_| true, all_marked: true, same: |before, after| before == after };

fn run(seed: u64, policy: &str, holds: &Holds) {
    let folder = tempfile::tempdir().unwrap();
    let export = export(folder.path());
    if !holds.all_marked {
        unmark(&export);
    }
    let denied = [export.join("secret"), folder.path().join("beside")];
    let before = denied.each_ref().map(|path| tree(path));
    let (wall, _policies) = wall(careless(&export), Some(policy), Limits::default());
    let (done, unanswered) = attacked(&wall, &export, (seed, CALLS), holds, BOUND);
    // What is allowed was done: an oracle that sees nothing would hold too.
    assert!(done > CALLS / 20, "{done} calls were carried out");
    assert_eq!(unanswered.len(), 0, "{unanswered:?}");
    for (path, before) in denied.iter().zip(&before) {
        let after = tree(path);
        assert!(
            (holds.same)(before, &after),
            "seed {seed}: what is denied was changed: {before:?} {after:?}"
        );
    }
}

/// Makes random calls and looks at what comes; how many were carried out, and which were not answered.
pub fn attacked(
    wall: &FileWall,
    export: &Path,
    (seed, calls): (u64, usize),
    holds: &Holds,
    patience: Duration,
) -> (usize, Vec<Option<Op>>) {
    let mut attack = Attack::new(wall, export, seed, patience);
    let mount = Record::call(1, program::MOUNT, 3, 1, &Caller { uid: 0, gid: 0, groups: &[] });
    attack.ask(None, &mount.opaque(b"/export").finish());
    assert!(attack.handles.len() > 1, "the export is there");
    let mut done = 0;
    for number in 0..calls {
        let (op, call) = attack.call();
        let reply = attack.ask(op, &call);
        let shown = (holds.looks)(op) && reply.windows(MARK.len()).any(|bytes| bytes == MARK);
        assert!(
            !shown,
            "seed {seed}, call {number}: {op:?} {:?} shows what is denied",
            String::from_utf8_lossy(&call)
        );
        done += usize::from(reply.get(24..28) == Some(&[0; 4]));
    }
    assert!(attack.handles.len() > 5, "it got about");
    (done, attack.unanswered)
}

pub const RULES: &str = "kind: access\ndefault: allow\nrules:\n- {deny: [all], paths: [/secret]}\n";

/// Takes the marks out of all but the times of files: a folder's own attributes stand in front of its listing.
fn unmark(export: &Path) {
    for name in ["secret/s.txt", "secret/MARK", "secret/deep/file"] {
        let path = export.join(name);
        let about = fs::metadata(&path).unwrap();
        fs::write(&path, "its content").unwrap();
        let times = FileTimes::new().set_modified(about.modified().unwrap());
        File::options().write(true).open(&path).unwrap().set_times(times).unwrap();
    }
    fs::rename(export.join("secret/MARK"), export.join("secret/named")).unwrap();
    fs::remove_file(export.join("secret/link")).unwrap();
    for name in ["secret", "secret/deep"] {
        let now = FileTimes::new().set_modified(UNIX_EPOCH + Duration::from_secs(1 << 30));
        File::open(export.join(name)).unwrap().set_times(now).unwrap();
    }
}

#[test]
fn nothing_that_is_denied_is_seen_or_changed_whatever_is_asked() {
    for seed in SEEDS {
        run(seed, RULES, &NOTHING);
        run(seed, &format!("kind: handles\nkey-file: key\n---\n{RULES}"), &NOTHING);
    }
}

/// Names come, go and move to and fro, and over the border where somebody tries it, while others look: no call of one may lead a call of another to
/// the other side.
#[test]
fn clients_that_race_each_other_over_the_border_see_and_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let export = export(folder.path());
    let denied = [export.join("secret"), folder.path().join("beside")];
    let before = denied.each_ref().map(|path| tree(path));
    let policy = format!("kind: handles\nkey-file: key\n---\n{RULES}");
    let (wall, _policies) = wall(careless(&export), Some(&policy), Limits::default());
    std::thread::scope(|scope| {
        for seed in 11..15 {
            let (wall, export) = (&wall, &export);
            scope.spawn(move || attacked(wall, export, (seed, CALLS), &NOTHING, BOUND));
        }
    });
    assert_eq!(denied.each_ref().map(|path| tree(path)), before);
}

/// What may not be looked at has no attributes in a listing or in a reply to another operation, and gives none when it is asked for them.
#[test]
fn attributes_that_are_denied_are_in_no_reply_whatever_is_asked() {
    let rules = "kind: access\ndefault: allow\nrules:\n- {deny: [GETATTR, changes], paths: [/secret]}\n";
    let holds = Holds { looks: |_| true, all_marked: false, same: |before, after| before == after };
    for seed in SEEDS {
        run(seed, rules, &holds);
        run(seed, &format!("kind: handles\nkey-file: key\n---\n{rules}"), &holds);
    }
}

/// Where SETATTR is denied, no CREATE empties a file and no mode is changed, though names may be made beside them.
#[test]
fn attributes_that_may_not_be_set_stay_whatever_is_asked() {
    let rules = "kind: access\ndefault: allow\nrules:\n\
                 - {deny: [SETATTR, WRITE, REMOVE, RMDIR, RENAME, LINK, SYMLINK], paths: [/secret]}\n";
    let same = |before: &[About], after: &[About]| {
        before.iter().all(|(path, mode, _, content)| {
            after.iter().any(|other| (&other.0, &other.1, &other.3) == (path, mode, content))
        })
    };
    let holds = Holds { looks: |_| false, all_marked: true, same };
    for seed in SEEDS {
        run(seed, rules, &holds);
        run(seed, &format!("kind: handles\nkey-file: key\n---\n{rules}"), &holds);
    }
}
