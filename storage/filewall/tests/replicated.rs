//! What "live" means, checked: whatever clients do and servers suffer, at rest all live trees are equal and hold all that was
//! acknowledged.

mod checker;

use crate::disk::{Disk, FIFO, Fault, Shared, disk};
use crate::played::{BOUND, ROOT, client, config_of_many, read_record, server_at, until};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weir_filewall::proxy::FileWall;
use weir_filewall::replicate::Plan;
use weir_filewall::wire::build::{Caller, Record};
use weir_filewall::wire::nfs3::{Op, ftype};
use weir_filewall::wire::reply::{Results, results};
use weir_filewall::wire::rpc::reply_head;
use weir_filewall::wire::xdr::{Reader, Span, get_u32};

/// How long a server may take to answer: where one that is late would be another finding, long enough for any machine.
const PATIENT: Duration = Duration::from_secs(30);
/// Where servers do not answer at all.
const HASTY: Duration = Duration::from_millis(1500);
const CALLER: Caller<'static> = Caller { uid: 0, gid: 0, groups: &[] };
const JUKEBOX: u32 = 10_008;
const EXIST: u32 = 17;

struct Stage {
    disks: Vec<Shared>,
    wall: FileWall,
    _context: tempfile::TempDir,
}

impl Stage {
    fn new(count: u64) -> Stage {
        Stage::with(count, PATIENT, |_| {})
    }

    /// One that gives servers little time.
    fn hasty(count: u64, answer_within: Duration) -> Stage {
        Stage::with(count, answer_within, |_| {})
    }

    /// With servers that are prepared before FileWall sees them.
    fn with(count: u64, answer_within: Duration, prepare: impl Fn(&[Shared])) -> Stage {
        let made: Vec<(SocketAddr, Shared)> = (1..=count).map(disk).collect();
        let disks: Vec<Shared> = made.iter().map(|(_, disk)| disk.clone()).collect();
        prepare(&disks);
        let context = tempfile::tempdir().unwrap();
        let mut servers = made.iter().map(|(address, _)| server_at(*address));
        let config = config_of_many(servers.next().unwrap());
        let plan = Plan {
            replicas: servers.collect(),
            state_file: context.path().join("names"),
            context: Some(context.path().to_path_buf()),
            answer_within: Some(answer_within),
            ..Plan::default()
        };
        let wall = FileWall::start_group(config, &plan).unwrap();
        Stage { disks, wall, _context: context }
    }

    fn live(&self) -> Vec<bool> {
        self.wall.status().replicas.iter().map(|(_, live)| *live).collect()
    }

    fn all_live(&self) {
        until("all replicas to be live", || self.live().iter().all(|live| *live));
    }

    fn fault(&self, at: usize, fault: Fault) {
        self.disks[at].lock().unwrap().fault = fault;
    }

    /// All trees, once all replicas are live.
    fn same(&self) {
        self.all_live();
        let trees: Vec<_> = self.disks.iter().map(|disk| disk.lock().unwrap().tree()).collect();
        for tree in &trees[1..] {
            let differs = trees[0].iter().find(|(path, node)| tree.get(*path) != Some(*node));
            assert!(
                differs.is_none() && tree.len() == trees[0].len(),
                "{differs:?} is not the same: {tree:?}"
            );
        }
    }

    fn talk(&self) -> Talk<'_> {
        let mut talk = Talk { wall: &self.wall, stream: client(&self.wall), xid: 1 << 20, root: Vec::new() };
        talk.root = talk.mount();
        talk
    }
}

/// What came of a call.
struct Came {
    status: u32,
    record: Vec<u8>,
    found: Results,
}

impl Came {
    fn of(&self, span: Option<Span>) -> Vec<u8> {
        span.map(|span| span.of(&self.record).to_vec()).unwrap_or_default()
    }

    fn handle(&self) -> Vec<u8> {
        self.of(self.found.handle)
    }

    fn verifier(&self) -> &[u8] {
        &self.record[self.record.len() - 8..]
    }
}

/// A client that knows that its call may get no answer.
struct Talk<'w> {
    wall: &'w FileWall,
    stream: TcpStream,
    xid: u32,
    root: Vec<u8>,
}

impl Talk<'_> {
    fn mount(&mut self) -> Vec<u8> {
        let call =
            Record::call(7, weir_filewall::wire::rpc::program::MOUNT, 3, 1, &CALLER).opaque(b"/export");
        self.stream.write_all(&call.finish()).unwrap();
        let reply = read_record(&mut self.stream).unwrap();
        assert_eq!(get_u32(&reply, 24), 0);
        Reader::whole(&reply[28..]).opaque(64).unwrap().of(&reply[28..]).to_vec()
    }

    /// `None` if nobody knows whether it was carried out.
    fn ask(&mut self, op: Op, arguments: impl Fn(Record) -> Record) -> Option<Came> {
        let begin = Instant::now();
        loop {
            assert!(begin.elapsed() < BOUND, "{op} is never answered");
            self.xid += 1;
            let call = arguments(Record::nfs3(self.xid, op, &CALLER)).finish();
            let sent = self.stream.write_all(&call).is_ok();
            let Some(record) = sent.then(|| read_record(&mut self.stream)).flatten() else {
                self.stream = client(self.wall);
                if op.changes() {
                    return None;
                }
                continue;
            };
            let mut reader = Reader::whole(&record);
            reply_head(&mut reader).unwrap();
            let mut found = Results::default();
            results(&mut reader, op, &mut found).unwrap();
            if found.status == JUKEBOX {
                std::thread::sleep(Duration::from_millis(20));
                continue;
            }
            return Some(Came { status: found.status, record, found });
        }
    }

    fn look(&mut self, folder: &[u8], name: &str) -> Came {
        self.ask(Op::Lookup, |call| call.opaque(folder).opaque(name.as_bytes())).unwrap()
    }

    fn read(&mut self, handle: &[u8]) -> Vec<u8> {
        let came = self.ask(Op::Read, |call| call.opaque(handle).u64(0).u32(65_536)).unwrap();
        assert_eq!(came.status, 0);
        came.of(came.found.payload)
    }

    fn write(&mut self, handle: &[u8], at: u64, data: &[u8], stable: u32) -> Option<Came> {
        self.ask(Op::Write, |call| {
            call.opaque(handle).u64(at).u32(data.len() as u32).u32(stable).opaque(data)
        })
    }

    fn commit(&mut self, handle: &[u8]) -> Option<Came> {
        self.ask(Op::Commit, |call| call.opaque(handle).u64(0).u32(0))
    }

    fn none(call: Record) -> Record {
        (0..6).fold(call, |call, _| call.u32(0))
    }

    fn make(&mut self, op: Op, folder: &[u8], name: &str) -> Option<Came> {
        self.ask(op, |call| {
            let call = call.opaque(folder).opaque(name.as_bytes());
            match op {
                Op::Create => Talk::none(call.u32(1)),
                Op::Mknod => Talk::none(call.u32(FIFO)),
                Op::Symlink => Talk::none(call).opaque(format!("to {name}").as_bytes()),
                _ => Talk::none(call),
            }
        })
    }

    fn made(&mut self, op: Op, folder: &[u8], name: &str) -> Vec<u8> {
        let came = self.make(op, folder, name).unwrap();
        assert_eq!(came.status, 0, "{op} of {name}");
        came.handle()
    }

    fn named(&mut self, op: Op, folder: &[u8], name: &str) -> Option<Came> {
        self.ask(op, |call| call.opaque(folder).opaque(name.as_bytes()))
    }

    fn rename(&mut self, folder: &[u8], from: &str, to: &str) -> Option<Came> {
        self.ask(Op::Rename, |call| {
            call.opaque(folder).opaque(from.as_bytes()).opaque(folder).opaque(to.as_bytes())
        })
    }

    fn link(&mut self, handle: &[u8], folder: &[u8], name: &str) -> Option<Came> {
        self.ask(Op::Link, |call| call.opaque(handle).opaque(folder).opaque(name.as_bytes()))
    }

    /// Sets the time.
    fn time(&mut self, handle: &[u8], seconds: u32) -> Option<Came> {
        self.ask(Op::Setattr, |call| {
            let call = call.opaque(handle).u32(0).u32(0).u32(0).u32(0).u32(0);
            call.u32(2).u32(seconds).u32(0).u32(0)
        })
    }
}

#[test]
fn a_replica_that_was_away_gets_every_kind_of_thing() {
    let stage = Stage::new(2);
    stage.all_live();
    let mut talk = stage.talk();
    let root = talk.root.clone();
    let (a, copy) = (talk.made(Op::Create, &root, "a"), talk.made(Op::Create, &root, "copy"));
    talk.made(Op::Symlink, &root, "current");
    talk.write(&a, 0, b"AAAA", 2).unwrap();
    talk.write(&copy, 0, b"OLDOLD", 2).unwrap();
    talk.time(&copy, 1000).unwrap();
    talk.made(Op::Create, &root, "apart");
    stage.same();
    stage.fault(1, Fault { down: true, ..Fault::default() });
    talk.write(&a, 0, b"BBBB", 2).unwrap();
    talk.named(Op::Remove, &root, "current").unwrap();
    talk.ask(Op::Symlink, |call| Talk::none(call.opaque(&root).opaque(b"current")).opaque(b"elsewhere"))
        .unwrap();
    assert_eq!(talk.link(&a, &root, "b").unwrap().status, 0);
    talk.made(Op::Mknod, &root, "fifo");
    talk.write(&copy, 0, b"NEWNEW", 2).unwrap();
    talk.time(&copy, 1000).unwrap();
    let folder = talk.made(Op::Mkdir, &root, "folder");
    let inside = talk.made(Op::Create, &folder, "inside");
    assert_eq!(talk.link(&inside, &root, "outside").unwrap().status, 0);
    assert_eq!(stage.live(), [true, false]);
    stage.fault(1, Fault::default());
    stage.same();
    // The names are one file on both: what is written by one is read by the other.
    let b = talk.look(&root, "b").handle();
    talk.write(&b, 0, b"CCCC", 2).unwrap();
    assert_eq!(talk.read(&a), b"CCCC");
    stage.same();
    // Names that are one file no more.
    stage.fault(1, Fault { down: true, ..Fault::default() });
    talk.named(Op::Remove, &root, "b").unwrap();
    let b = talk.made(Op::Create, &root, "b");
    talk.write(&b, 0, b"DDDD", 2).unwrap();
    stage.fault(1, Fault::default());
    stage.same();
}

#[test]
fn one_replica_stays_live_and_only_what_it_has_done_is_acknowledged() {
    let stage = Stage::hasty(2, HASTY);
    stage.all_live();
    let mut talk = stage.talk();
    let root = talk.root.clone();
    let (x, y) = (talk.made(Op::Create, &root, "x"), talk.made(Op::Create, &root, "y"));
    // The first one's reply is lost, and before that is noticed the second one's to another change.
    let acknowledged = std::thread::scope(|scope| {
        let change = |file: &[u8], data: &'static [u8], wait: Duration| {
            let (file, stage) = (file.to_vec(), &stage);
            scope.spawn(move || {
                let mut talk = stage.talk();
                std::thread::sleep(wait);
                talk.write(&file, 0, data, 2).map(|came| came.status)
            })
        };
        stage.fault(0, Fault { mute: true, ..Fault::default() });
        let first = change(&y, b"Y", Duration::ZERO);
        until("the first change", || {
            let tree = stage.disks[1].lock().unwrap().tree();
            tree["/y"].3 == b"Y"
        });
        stage.fault(0, Fault::default());
        stage.fault(1, Fault { mute: true, ..Fault::default() });
        let second = change(&x, b"X", Duration::ZERO);
        let done = [(&y, &b"Y"[..], first.join().unwrap()), (&x, &b"X"[..], second.join().unwrap())];
        stage.fault(1, Fault::default());
        done
    });
    assert!(stage.live().contains(&true), "one stays");
    stage.same();
    for (file, data, status) in acknowledged {
        if status == Some(0) {
            assert_eq!(talk.read(file), data, "what was acknowledged is there");
        }
    }
}

#[test]
fn who_has_done_less_is_behind_and_it_is_said_why() {
    let stage = Stage::new(2);
    stage.all_live();
    let mut talk = stage.talk();
    let root = talk.root.clone();
    let file = talk.made(Op::Create, &root, "file");
    // A replica that is nearly full, whichever it is.
    for full in [1, 0] {
        stage.fault(full, Fault { room: Some(3), ..Fault::default() });
        let came = talk.write(&file, 0, b"all of it", 2).unwrap();
        assert_eq!((came.status, came.found.count), (0, 9));
        assert!(!stage.live()[full]);
        let why = stage.wall.status().replicas_behind.into_values().next().unwrap_or_default();
        assert!(!why.is_empty());
        stage.fault(full, Fault::default());
        stage.same();
    }
    // One that has become read-only, also where it is the first.
    for frozen in [1, 0] {
        stage.fault(frozen, Fault { read_only: true, ..Fault::default() });
        let name = format!("made while {frozen} is read-only");
        assert_eq!(talk.make(Op::Create, &root, &name).unwrap().status, 0);
        assert!(!stage.live()[frozen]);
        until("the reason", || stage.wall.status().replicas_behind.values().any(|why| why.contains("Rofs")));
        stage.fault(frozen, Fault::default());
        stage.same();
    }
    // One that keeps what the other has lost: it stays behind until it can be made the same.
    stage.fault(1, Fault { down: true, ..Fault::default() });
    talk.named(Op::Remove, &root, "file").unwrap();
    {
        let mut disk = stage.disks[1].lock().unwrap();
        disk.keeps.push(b"file".to_vec());
        disk.fault = Fault::default();
    }
    until("the reason", || {
        stage.wall.status().replicas_behind.values().any(|why| why.contains("file, which is too much"))
    });
    assert_eq!(stage.live(), [true, false]);
    stage.disks[1].lock().unwrap().keeps.clear();
    stage.same();
}

#[test]
fn what_was_not_committed_is_written_again_or_its_replica_is_behind() {
    let stage = Stage::new(2);
    stage.all_live();
    let mut talk = stage.talk();
    let root = talk.root.clone();
    let file = talk.made(Op::Create, &root, "file");
    talk.write(&file, 0, b"first", 2).unwrap();
    let written = talk.write(&file, 0, b"again", 0).unwrap();
    stage.disks[1].lock().unwrap().begin_anew();
    let committed = talk.commit(&file).unwrap();
    assert_eq!((committed.status, written.verifier()), (0, committed.verifier()), "one has it");
    stage.same();
    assert_eq!(talk.read(&file), b"again");
    // One has lost it, and is behind for another reason before that shows; lengths and times are equal.
    talk.write(&file, 0, b"other", 0).unwrap();
    talk.time(&file, 1000).unwrap();
    stage.disks[1].lock().unwrap().begin_anew();
    stage.fault(1, Fault { down: true, ..Fault::default() });
    talk.made(Op::Create, &root, "made meanwhile");
    stage.fault(1, Fault::default());
    stage.same();
    // One is compared before it has lost it.
    talk.write(&file, 0, b"fifth", 0).unwrap();
    stage.fault(1, Fault { down: true, ..Fault::default() });
    talk.made(Op::Create, &root, "made later");
    stage.fault(1, Fault::default());
    stage.all_live();
    stage.disks[1].lock().unwrap().begin_anew();
    stage.same();
    // Both have lost it: the client is told.
    let written = talk.write(&file, 0, b"third", 0).unwrap();
    stage.disks.iter().for_each(|disk| disk.lock().unwrap().begin_anew());
    let committed = talk.commit(&file).unwrap();
    assert_ne!(written.verifier(), committed.verifier());
    talk.write(&file, 0, b"third", 2).unwrap();
    stage.same();
    assert_eq!(talk.read(&file), b"third");
}

#[test]
fn a_replica_that_answers_byte_by_byte_has_no_more_time_than_another() {
    let stage = Stage::hasty(2, 4 * HASTY);
    stage.all_live();
    let mut talk = stage.talk();
    let root = talk.root.clone();
    let file = talk.made(Op::Create, &root, "file");
    stage.fault(1, Fault { trickle: true, ..Fault::default() });
    assert_eq!(talk.write(&file, 0, b"goes on", 2).unwrap().status, 0);
    assert_eq!(stage.live(), [true, false]);
    stage.fault(1, Fault::default());
    stage.same();
}

#[test]
fn at_the_first_start_what_the_first_server_has_counts() {
    let prepare = |disks: &[Shared]| {
        for (number, disk) in disks.iter().enumerate() {
            let mut disk = disk.lock().unwrap();
            let file = disk.put(1, "file", ftype::REGULAR, format!("content {number}").as_bytes());
            disk.nodes.get_mut(&file).unwrap().time = 5;
            disk.put(1, &format!("only {number}"), ftype::REGULAR, b"");
        }
    };
    let stage = Stage::with(3, PATIENT, prepare);
    let mut talk = stage.talk();
    let root = talk.root.clone();
    for _ in 0..9 {
        let file = talk.look(&root, "file").handle();
        assert_eq!(talk.read(&file), b"content 0");
    }
    stage.same();
    assert!(!stage.disks[2].lock().unwrap().tree().contains_key("/only 2"));
}

#[test]
fn a_folder_is_listed_once_however_much_is_changed_in_it_meanwhile() {
    const ENTRIES: usize = 1500;
    const MISSED: usize = 200;
    let stage = Stage::with(2, PATIENT, |disks| {
        for disk in disks {
            let mut disk = disk.lock().unwrap();
            for number in 0..ENTRIES {
                disk.put(1, &format!("file-{number}"), ftype::REGULAR, b"");
            }
        }
    });
    stage.all_live();
    let mut talk = stage.talk();
    let root = talk.root.clone();
    stage.fault(1, Fault { down: true, ..Fault::default() });
    // More than are compared while changes wait.
    for number in 0..MISSED {
        talk.made(Op::Create, &root, &format!("new-{number}"));
    }
    {
        let mut disk = stage.disks[0].lock().unwrap();
        (disk.folders_read, disk.looked_up) = (0, 0);
    }
    stage.fault(1, Fault::default());
    stage.same();
    // 256 entries a call.
    let pages = (ENTRIES + MISSED).div_ceil(256) + 1;
    let disk = stage.disks[0].lock().unwrap();
    assert!(disk.folders_read <= pages, "changes would wait for the second time");
    assert!(
        disk.looked_up < MISSED / 4,
        "what was compared with the tree is not compared again: {}",
        disk.looked_up
    );
}

#[test]
fn what_was_written_by_a_name_that_is_gone_is_found_by_the_other_one() {
    let stage = Stage::new(2);
    stage.all_live();
    let mut talk = stage.talk();
    let root = talk.root.clone();
    let file = talk.made(Op::Create, &root, "file");
    talk.write(&file, 0, b"0000000000", 2).unwrap();
    assert_eq!(talk.link(&file, &root, "other").unwrap().status, 0);
    let other = talk.look(&root, "other").handle();
    stage.same();
    stage.fault(1, Fault { down: true, ..Fault::default() });
    talk.write(&other, 0, b"1111", 2).unwrap();
    talk.named(Op::Remove, &root, "other").unwrap();
    // Of what it has missed by the name that is left it knows, and the length is the same.
    talk.write(&file, 8, b"2", 2).unwrap();
    stage.fault(1, Fault::default());
    stage.same();
    assert_eq!(stage.disks[1].lock().unwrap().tree()["/file"].3, b"1111000020");
}

/// Changes that the server `late` carries out only when it was given up and others have gone on.
fn carried_out_late(late: usize) {
    let stage = Stage::hasty(3, HASTY);
    stage.all_live();
    let mut talk = stage.talk();
    let root = talk.root.clone();
    let written = talk.made(Op::Create, &root, "written");
    talk.write(&written, 0, b"0000", 2).unwrap();
    // Changes of one folder go one after another: each has its own.
    let folders = ["a", "b", "c"].map(|name| talk.made(Op::Mkdir, &root, name));
    let [a, b, c] = &folders;
    talk.made(Op::Create, a, "removed");
    talk.made(Op::Create, b, "moved");
    stage.same();
    stage.fault(late, Fault { hoards_ms: 2 * HASTY.as_millis() as u64, ..Fault::default() });
    std::thread::scope(|scope| {
        scope.spawn(|| stage.talk().write(&written, 0, b"AAAA", 2).unwrap());
        scope.spawn(|| stage.talk().named(Op::Remove, a, "removed").unwrap());
        scope.spawn(|| stage.talk().rename(b, "moved", "elsewhere").unwrap());
        scope.spawn(|| stage.talk().make(Op::Create, c, "new").unwrap());
    });
    assert!(stage.disks[late].lock().unwrap().hoarded > 0, "it has not carried them out yet");
    assert_eq!(stage.live().iter().filter(|live| **live).count(), 2);
    stage.fault(late, Fault::default());
    // The others go on, so that each of these would undo something.
    talk.write(&written, 0, b"BBBB", 2).unwrap();
    talk.made(Op::Create, a, "removed");
    talk.made(Op::Create, b, "moved");
    talk.named(Op::Remove, c, "new").unwrap();
    stage.same();
    until("late calls", || stage.disks[late].lock().unwrap().hoarded == 0);
    let trees: Vec<_> = stage.disks.iter().map(|disk| disk.lock().unwrap().tree()).collect();
    assert_eq!(stage.live(), [true; 3]);
    assert!(trees.iter().all(|tree| *tree == trees[0]), "server {late} has carried out late: {trees:?}");
    assert_eq!(trees[0]["/written"].3, b"BBBB");
}

#[test]
fn what_is_carried_out_after_it_was_given_up_makes_no_live_replica_differ() {
    std::thread::scope(|scope| {
        let each: Vec<_> = (0..3).map(|late| scope.spawn(move || carried_out_late(late))).collect();
        each.into_iter().for_each(|one| one.join().unwrap());
    });
}

#[test]
fn a_server_that_has_begun_anew_is_no_measure_for_another() {
    let stage = Stage::hasty(3, HASTY);
    stage.all_live();
    let mut talk = stage.talk();
    let root = talk.root.clone();
    let (file, other) = (talk.made(Op::Create, &root, "file"), talk.made(Op::Create, &root, "other"));
    talk.write(&file, 0, b"first", 2).unwrap();
    stage.same();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Changes that have no verifier go on, so FileWall commits nothing by itself.
        scope.spawn(|| {
            let mut talk = stage.talk();
            for time in 1000.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                talk.time(&other, time);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        // One leaves it unanswered, and one has lost it before that is noticed.
        stage.fault(1, Fault { mute: true, ..Fault::default() });
        let writing = scope.spawn(|| stage.talk().write(&file, 0, b"again", 0).unwrap());
        until("the write", || {
            stage.disks.iter().all(|disk| disk.lock().unwrap().tree()["/file"].3 == b"again")
        });
        stage.disks[0].lock().unwrap().begin_anew();
        stage.fault(1, Fault::default());
        let written = writing.join().unwrap();
        assert_eq!(written.status, 0);
        until("the one that was mute to be live", || stage.live()[1]);
        let committed = talk.commit(&file).unwrap();
        assert_eq!((committed.status, committed.verifier()), (0, written.verifier()), "one has it");
        stop.store(true, Ordering::Relaxed);
    });
    stage.same();
    assert_eq!(stage.disks[0].lock().unwrap().tree()["/file"].3, b"again");
}

#[test]
fn a_name_that_is_rotated_leads_to_the_new_file_on_all_replicas() {
    const ROTATIONS: usize = 60;
    let stage = Stage::new(2);
    stage.all_live();
    let mut talk = stage.talk();
    let root = talk.root.clone();
    talk.made(Op::Create, &root, "log");
    (0..2).for_each(|at| stage.fault(at, Fault { jitter_ms: 4, late_ms: 60, ..Fault::default() }));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let mut talk = stage.talk();
                while !stop.load(Ordering::Relaxed) {
                    talk.look(&root, "log");
                }
            });
        }
        for number in 0..ROTATIONS {
            talk.rename(&root, "log", &format!("log.{number}")).unwrap();
            let file = talk.made(Op::Create, &root, "log");
            assert_eq!(talk.write(&file, 0, format!("{number}").as_bytes(), 2).unwrap().status, 0);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(stage.live(), [true, true], "nobody has done anything else");
    for disk in &stage.disks {
        let tree = Disk::tree(&disk.lock().unwrap());
        for number in 1..ROTATIONS {
            let content = String::from_utf8_lossy(&tree[&format!("/log.{number}")].3).into_owned();
            assert_eq!(content, format!("{}", number - 1));
        }
    }
    assert_ne!(root, ROOT);
}
