//! A server of NFSv3 that tests play: strict, in memory, with files of all kinds, names of one file, writes that are lost when it
//! begins anew before they are committed, and faults on demand.

use crate::oracle::Random;
use crate::played::{ROOT, read_record, reply_to, server};
use std::collections::BTreeMap;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use weir_filewall::wire::answer;
use weir_filewall::wire::call::{Arguments, arguments};
use weir_filewall::wire::make::{Attributes, Made, at};
use weir_filewall::wire::nfs3::{ATTRIBUTES_BYTES, Op, Status, ftype};
use weir_filewall::wire::rpc::call_head;
use weir_filewall::wire::xdr::{Reader, get_u32, set_u32};

/// FIFO, as `ftype3`.
pub const FIFO: u32 = 7;
const NLINK: usize = 8;

/// What one thing is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub kind: u32,
    pub mode: u32,
    pub uid: u32,
    /// Bytes of a file, or the target of a link.
    pub data: Vec<u8>,
    /// What of them is durable.
    durable: Vec<u8>,
    pub time: u64,
}

/// What is wrong with a server now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    /// Connections end, and nothing is carried out.
    pub down: bool,
    /// Calls are carried out, but their replies do not come.
    pub mute: bool,
    /// Changes wait so long, ms, are then carried out whoever waits for them still, and are not answered.
    pub hoards_ms: u64,
    /// A call may take so long, ms.
    pub jitter_ms: u64,
    /// Some answers to LOOKUP come so much later, ms.
    pub late_ms: u64,
    /// It is full: a WRITE writes so many bytes at most.
    pub room: Option<usize>,
    /// Changes are refused.
    pub read_only: bool,
    /// Replies come byte by byte.
    pub trickle: bool,
}

#[derive(Debug)]
pub struct Disk {
    pub names: BTreeMap<(u64, Vec<u8>), u64>,
    pub nodes: BTreeMap<u64, Node>,
    pub fault: Fault,
    /// Names that it does not let go.
    pub keeps: Vec<Vec<u8>>,
    pub folders_read: usize,
    /// Names that were looked up.
    pub looked_up: usize,
    /// Changes that wait.
    pub hoarded: usize,
    verifier: u64,
    next: u64,
    clock: u64,
    random: Random,
}

pub type Shared = Arc<Mutex<Disk>>;

/// A tree as it must be the same everywhere: by path, kind, mode, owner, content, and all paths of the same thing.
pub type Tree = BTreeMap<String, (u32, u32, u32, Vec<u8>, Vec<String>)>;

impl Disk {
    fn new(seed: u64) -> Disk {
        let root = Node {
            kind: ftype::DIRECTORY,
            mode: 0o777,
            uid: 0,
            data: Vec::new(),
            durable: Vec::new(),
            time: 1,
        };
        Disk {
            names: BTreeMap::new(),
            nodes: [(1, root)].into(),
            fault: Fault::default(),
            keeps: Vec::new(),
            folders_read: 0,
            looked_up: 0,
            hoarded: 0,
            verifier: seed << 32,
            next: 2,
            clock: seed << 20,
            random: Random::new(seed),
        }
    }

    /// It loses power and begins anew: what was not committed is as it was before.
    pub fn begin_anew(&mut self) {
        self.verifier += 1;
        self.nodes.values_mut().for_each(|node| node.data.clone_from(&node.durable));
    }

    pub fn tree(&self) -> Tree {
        let mut paths: BTreeMap<u64, Vec<String>> = BTreeMap::new();
        let mut folders = vec![(1, String::new())];
        while let Some((folder, path)) = folders.pop() {
            for ((_, name), node) in self.names.range((folder, Vec::new())..(folder + 1, Vec::new())) {
                let path = format!("{path}/{}", String::from_utf8_lossy(name));
                if self.nodes[node].kind == ftype::DIRECTORY {
                    folders.push((*node, path.clone()));
                }
                paths.entry(*node).or_default().push(path);
            }
        }
        let mut tree = Tree::new();
        for (number, mut same) in paths {
            same.sort();
            let Node { kind, mode, uid, data, .. } = &self.nodes[&number];
            for path in &same {
                tree.insert(path.clone(), (*kind, *mode, *uid, data.clone(), same.clone()));
            }
        }
        tree
    }

    /// Puts something there behind everybody's back; its number.
    pub fn put(&mut self, folder: u64, name: &str, kind: u32, data: &[u8]) -> u64 {
        let number = self.next;
        self.next += 1;
        self.clock += 1;
        let node =
            Node { kind, mode: 0o644, uid: 0, data: data.to_vec(), durable: data.to_vec(), time: self.clock };
        self.nodes.insert(number, node);
        self.names.insert((folder, name.into()), number);
        number
    }

    fn links(&self, number: u64) -> u32 {
        self.names.values().filter(|other| **other == number).count() as u32
    }

    fn attributes(&self, number: u64) -> Option<[u8; ATTRIBUTES_BYTES]> {
        let node = self.nodes.get(&number)?;
        let folder = node.kind == ftype::DIRECTORY;
        let (size, time) = (node.data.len() as u64, (node.time as u32, 0));
        let made = Attributes {
            folder,
            mode: node.mode,
            uid: node.uid,
            gid: 0,
            size,
            fsid: 7,
            fileid: number,
            time,
        };
        let mut bytes = made.bytes();
        set_u32(&mut bytes, at::KIND, node.kind);
        if !folder {
            set_u32(&mut bytes, NLINK, self.links(number));
        }
        Some(bytes)
    }

    fn handle(number: u64) -> Vec<u8> {
        if number == 1 { ROOT.to_vec() } else { [b"disk", &number.to_be_bytes()[..]].concat() }
    }

    fn number(&self, handle: &[u8]) -> Option<u64> {
        let number = match handle.strip_prefix(b"disk") {
            Some(number) => u64::from_be_bytes(number.try_into().ok()?),
            None => (handle == ROOT).then_some(1)?,
        };
        self.nodes.contains_key(&number).then_some(number)
    }

    fn drop_unnamed(&mut self, number: u64) {
        if self.links(number) == 0 {
            self.nodes.remove(&number);
        }
    }
}

struct Call<'c> {
    record: &'c [u8],
    op: Op,
    found: Arguments,
    uid: u32,
}

impl Call<'_> {
    fn carry_out(&self, disk: &mut Disk) -> Result<Vec<u8>, Status> {
        let number =
            |which: usize| disk.number(self.found.handles[which].of(self.record)).ok_or(Status::Stale);
        let name = |which: usize| self.found.names[which].of(self.record).to_vec();
        let own = number(0)?;
        if self.op.changes() && self.op != Op::Commit && disk.fault.read_only {
            return Err(Status::Rofs);
        }
        let words = |made: Made, count: usize| (0..count).fold(made, |made, _| made.u32(0)).0;
        Ok(match self.op {
            Op::Getattr => Made::ok().attributes(&disk.attributes(own).unwrap()).0,
            Op::Access => Made::ok().after(None).u32(63).0,
            Op::Lookup => {
                let found = *disk.names.get(&(own, name(0))).ok_or(Status::Noent)?;
                disk.looked_up += 1;
                Made::ok().opaque(&Disk::handle(found)).after(disk.attributes(found).as_ref()).after(None).0
            }
            Op::Readlink => {
                let node =
                    disk.nodes.get(&own).filter(|node| node.kind == ftype::LINK).ok_or(Status::Inval)?;
                Made::ok().after(None).opaque(&node.data).0
            }
            Op::Read => {
                let data = &disk.nodes[&own].data;
                let begin = data.len().min(self.found.offset as usize);
                let end = data.len().min(begin + self.found.count as usize);
                let made = Made::ok().after(disk.attributes(own).as_ref());
                made.u32((end - begin) as u32).u32(u32::from(end == data.len())).opaque(&data[begin..end]).0
            }
            Op::Create | Op::Mkdir | Op::Symlink | Op::Mknod => self.make(disk, own, name(0))?,
            Op::Remove | Op::Rmdir => {
                let key = (own, name(0));
                let found = *disk.names.get(&key).ok_or(Status::Noent)?;
                let folder = disk.nodes[&found].kind == ftype::DIRECTORY;
                match (folder, self.op) {
                    (true, Op::Remove) => return Err(Status::Isdir),
                    (false, Op::Rmdir) => return Err(Status::Notdir),
                    _ if disk.keeps.contains(&key.1) => return Err(Status::Acces),
                    (true, _) if disk.names.keys().any(|(at, _)| *at == found) => {
                        return Err(Status::Notempty);
                    }
                    _ => {}
                }
                disk.names.remove(&key);
                disk.drop_unnamed(found);
                words(Made::ok(), 2)
            }
            Op::Rename => {
                let (from, to) = ((own, name(0)), (number(1)?, name(1)));
                let found = *disk.names.get(&from).ok_or(Status::Noent)?;
                let there = disk.names.get(&to).copied();
                let folder = disk.nodes[&found].kind == ftype::DIRECTORY;
                if there.is_some_and(|there| (disk.nodes[&there].kind == ftype::DIRECTORY) != folder)
                    || there.is_some_and(|there| disk.names.keys().any(|(at, _)| *at == there))
                    || folder
                {
                    return Err(Status::Exist);
                }
                if there != Some(found) {
                    disk.names.remove(&from);
                    disk.names.insert(to, found);
                    there.into_iter().for_each(|there| disk.drop_unnamed(there));
                }
                words(Made::ok(), 4)
            }
            Op::Link => {
                let to = (number(1)?, name(0));
                if disk.names.contains_key(&to) {
                    return Err(Status::Exist);
                }
                disk.names.insert(to, own);
                Made::ok().after(disk.attributes(own).as_ref()).u32(0).u32(0).0
            }
            Op::Setattr => {
                self.set(disk, own, self.found.handles[0].padded_end());
                Made::ok().u32(0).after(disk.attributes(own).as_ref()).0
            }
            Op::Write => self.write(disk, own)?,
            Op::Commit => {
                let verifier = disk.verifier;
                let node = disk.nodes.get_mut(&own).unwrap();
                node.durable.clone_from(&node.data);
                Made::ok().u32(0).after(disk.attributes(own).as_ref()).u64(verifier).0
            }
            Op::Readdir | Op::Readdirplus => {
                disk.folders_read += 1;
                let at = self.found.handles[0].padded_end();
                let cookie =
                    u64::from(get_u32(self.record, at)) << 32 | u64::from(get_u32(self.record, at + 4));
                let mut made = Made::ok().after(None).u64(0);
                let below: Vec<_> = disk.names.range((own, Vec::new())..(own + 1, Vec::new())).collect();
                let ends = below.len() <= cookie as usize + 256;
                for (cookie, ((_, name), found)) in (1u64..).zip(below).skip(cookie as usize).take(256) {
                    made = made.u32(1).u64(*found).opaque(name).u64(cookie);
                    if self.op == Op::Readdirplus {
                        made =
                            made.after(disk.attributes(*found).as_ref()).u32(1).opaque(&Disk::handle(*found));
                    }
                }
                made.u32(0).u32(u32::from(ends)).0
            }
            _ => return Err(Status::Notsupp),
        })
    }

    fn make(&self, disk: &mut Disk, folder: u64, name: Vec<u8>) -> Result<Vec<u8>, Status> {
        if disk.nodes[&folder].kind != ftype::DIRECTORY {
            return Err(Status::Notdir);
        }
        let behind = self.found.names[0].padded_end();
        let how = get_u32(self.record, behind);
        let attributes_at = if matches!(self.op, Op::Create | Op::Mknod) { behind + 4 } else { behind };
        let made = match disk.names.get(&(folder, name.clone())) {
            Some(there) if self.op == Op::Create && how == 0 && disk.nodes[there].kind == ftype::REGULAR => {
                *there
            }
            Some(_) => return Err(Status::Exist),
            None => {
                let kind = match self.op {
                    Op::Mkdir => ftype::DIRECTORY,
                    Op::Symlink => ftype::LINK,
                    Op::Mknod => how,
                    _ => ftype::REGULAR,
                };
                let made = disk.put(folder, &String::from_utf8_lossy(&name), kind, b"");
                disk.nodes.get_mut(&made).unwrap().uid = self.uid;
                made
            }
        };
        // An exclusive CREATE brings a verifier.
        let exclusive = self.op == Op::Create && how == 2;
        let behind = if exclusive { attributes_at } else { self.set(disk, made, attributes_at) };
        if self.op == Op::Symlink {
            let bytes = get_u32(self.record, behind) as usize;
            let node = disk.nodes.get_mut(&made).unwrap();
            node.data = self.record[behind + 4..behind + 4 + bytes].to_vec();
            node.durable.clone_from(&node.data);
        }
        Ok(Made::ok()
            .u32(1)
            .opaque(&Disk::handle(made))
            .after(disk.attributes(made).as_ref())
            .u32(0)
            .u32(0)
            .0)
    }

    /// Sets attributes that stand at `at`; where what follows begins.
    fn set(&self, disk: &mut Disk, number: u64, at: usize) -> usize {
        let mut reader = Reader::whole(self.record);
        reader.take(at).unwrap();
        disk.clock += 1;
        let clock = disk.clock;
        let node = disk.nodes.get_mut(&number).unwrap();
        let mut word = || reader.u32().unwrap();
        if word() == 1 {
            node.mode = word() & 0o7777;
        }
        if word() == 1 {
            node.uid = word();
        }
        if word() == 1 {
            word();
        }
        if word() == 1 {
            word();
            node.data.resize(word() as usize, 0);
            node.durable.clone_from(&node.data);
            node.time = clock;
        }
        if word() == 2 {
            word();
            word();
        }
        if word() == 2 {
            node.time = word().into();
            word();
        }
        reader.at()
    }

    fn write(&self, disk: &mut Disk, number: u64) -> Result<Vec<u8>, Status> {
        let data = self.found.payload.unwrap().of(self.record);
        let data = &data[..data.len().min(disk.fault.room.unwrap_or(usize::MAX))];
        if data.is_empty() {
            return Err(Status::Nospc);
        }
        disk.clock += 1;
        let (clock, verifier) = (disk.clock, disk.verifier);
        // Whether it is to be durable stands before the data.
        let stable = get_u32(self.record, self.found.payload.unwrap().start - 8);
        let node =
            disk.nodes.get_mut(&number).filter(|node| node.kind == ftype::REGULAR).ok_or(Status::Inval)?;
        let begin = self.found.offset as usize;
        node.data.resize(node.data.len().max(begin + data.len()), 0);
        node.data[begin..begin + data.len()].copy_from_slice(data);
        node.time = clock;
        if stable > 0 {
            node.durable.clone_from(&node.data);
        }
        let made = Made::ok().u32(0).after(disk.attributes(number).as_ref());
        Ok(made.u32(data.len() as u32).u32(stable).u64(verifier).0)
    }
}

/// True if whoever has asked waits no more: then it is not carried out.
fn is_closed(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let closed = matches!(stream.peek(&mut [0]), Ok(0));
    stream.set_nonblocking(false).unwrap();
    closed
}

/// Carries a call out after a while, whether anybody waits for it or not.
fn hoard(disk: &Shared, record: Vec<u8>, ms: u64) {
    disk.lock().unwrap().hoarded += 1;
    let disk = disk.clone();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(ms));
        let mut reader = Reader::whole(&record);
        let head = call_head(&mut reader).unwrap();
        let op = Op::from_number(head.procedure).unwrap();
        let found = arguments(&mut reader, op).unwrap();
        let mut disk = disk.lock().unwrap();
        // What it cannot do any more it does not.
        let _ = Call { record: &record, op, found, uid: 0 }.carry_out(&mut disk);
        disk.hoarded -= 1;
    });
}

/// A server that has the root of the export.
pub fn disk(seed: u64) -> (SocketAddr, Shared) {
    let (address, connections) = server();
    let shared = Arc::new(Mutex::new(Disk::new(seed)));
    let served = shared.clone();
    std::thread::spawn(move || {
        for mut stream in connections {
            let disk = served.clone();
            std::thread::spawn(move || {
                while let Some(record) = read_record(&mut stream) {
                    let (fault, before_ms, behind_ms) = {
                        let mut disk = disk.lock().unwrap();
                        let jitter = disk.fault.jitter_ms as usize + 1;
                        (disk.fault, disk.random.below(jitter), disk.random.below(jitter))
                    };
                    std::thread::sleep(Duration::from_millis(before_ms as u64));
                    let mut reader = Reader::whole(&record);
                    let head = call_head(&mut reader).unwrap();
                    let op = Op::from_number(head.procedure).unwrap();
                    let found = arguments(&mut reader, op).unwrap();
                    let weir_filewall::wire::rpc::Credential::Sys(sys) = head.credential else { panic!() };
                    if fault.hoards_ms > 0 && op.changes() && op != Op::Commit {
                        hoard(&disk, record.clone(), fault.hoards_ms);
                        continue;
                    }
                    let call = Call { record: &record, op, found, uid: sys.uid };
                    let results = {
                        let mut disk = disk.lock().unwrap();
                        if disk.fault.down || is_closed(&stream) {
                            return;
                        }
                        call.carry_out(&mut disk).unwrap_or_else(|status| answer::results(op, status))
                    };
                    let late = op == Op::Lookup && behind_ms.is_multiple_of(4);
                    let late_ms = if late { fault.late_ms } else { 0 };
                    std::thread::sleep(Duration::from_millis(behind_ms as u64 + late_ms));
                    let reply = reply_to(&record, &results);
                    if fault.mute {
                        continue;
                    }
                    let pieces = if fault.trickle { 1 } else { reply.len() };
                    for piece in reply.chunks(pieces) {
                        if stream.write_all(piece).is_err() {
                            return;
                        }
                        if fault.trickle {
                            std::thread::sleep(Duration::from_millis(300));
                        }
                    }
                }
            });
        }
    });
    (address, shared)
}
