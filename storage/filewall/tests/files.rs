//! A server of NFSv3 with files that are made, moved and removed, played by the tests; several FileWalls may stand in front of it.

use crate::played::{CALLER, ROOT, ask, client, read_record, reply_to, server};
use std::collections::BTreeMap;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use weir_filewall::proxy::FileWall;
use weir_filewall::wire::build::{Caller, Record};
use weir_filewall::wire::call::arguments;
use weir_filewall::wire::make::{Attributes, Made};
use weir_filewall::wire::nfs3::{Op, Status};
use weir_filewall::wire::reply::{Results, results};
use weir_filewall::wire::rpc::{call_head, program, reply_head};
use weir_filewall::wire::xdr::Reader;

/// A file or folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    pub uid: u32,
    pub folder: bool,
    pub mode: u32,
    pub data: Vec<u8>,
    /// When it was changed: each server has a clock of its own.
    pub time: u64,
}

/// What the server has.
#[derive(Debug, Default)]
pub struct Files {
    /// Handles by folder and name.
    pub names: BTreeMap<(Vec<u8>, Vec<u8>), Vec<u8>>,
    /// Objects by handle.
    pub objects: BTreeMap<Vec<u8>, Object>,
    /// What it was asked to do, in order.
    pub asked: Vec<Op>,
    /// Calls are not answered any more: connections end.
    pub down: bool,
    made: u64,
    clock: u64,
}

pub type Shared = Arc<Mutex<Files>>;

impl Files {
    /// Makes an object by a name.
    pub fn make(&mut self, folder: &[u8], name: &str, uid: u32, is_folder: bool) -> Vec<u8> {
        self.made += 1;
        self.clock += 1;
        let handle = format!("handle-{}", self.made).into_bytes();
        self.names.insert((folder.to_vec(), name.as_bytes().to_vec()), handle.clone());
        let mode = if is_folder { 0o777 } else { 0o644 };
        let made = Object { uid, folder: is_folder, mode, data: Vec::new(), time: self.clock };
        self.objects.insert(handle.clone(), made);
        handle
    }

    /// Paths of all files, with owners and contents, and of folders.
    pub fn tree(&self) -> BTreeMap<String, (u32, String)> {
        let mut tree = BTreeMap::new();
        let mut folders = vec![(ROOT.to_vec(), String::new())];
        while let Some((folder, path)) = folders.pop() {
            for ((_, name), handle) in self.names.iter().filter(|((at, _), _)| *at == folder) {
                let path = format!("{path}/{}", String::from_utf8_lossy(name));
                let object = &self.objects[handle];
                tree.insert(path.clone(), (object.uid, String::from_utf8_lossy(&object.data).into_owned()));
                if object.folder {
                    folders.push((handle.clone(), path));
                }
            }
        }
        tree
    }

    fn attributes(&self, handle: &[u8]) -> Option<[u8; 84]> {
        let Object { uid, folder, mode, data, time } = self.objects.get(handle)?;
        let fileid = handle.iter().fold(0u64, |number, byte| number.wrapping_mul(31) + u64::from(*byte));
        let (folder, mode, uid, size) = (*folder, *mode, *uid, data.len() as u64);
        let time = (*time as u32, 0);
        Some(Attributes { folder, mode, uid, gid: 100, size, fsid: 7, fileid, time }.bytes())
    }

    fn set(&mut self, handle: &[u8], reader: &mut Reader<'_>) {
        self.clock += 1;
        let clock = self.clock;
        let object = self.objects.get_mut(handle).unwrap();
        let mut word = || reader.u32().unwrap();
        if word() == 1 {
            object.mode = word();
        }
        if word() == 1 {
            object.uid = word();
        }
        if word() == 1 {
            word();
        }
        if word() == 1 {
            word();
            object.data.resize(word() as usize, 0);
            object.time = clock;
        }
        if word() == 2 {
            word();
            word();
        }
        if word() == 2 {
            object.time = u64::from(word());
        }
    }

    fn carry_out(&mut self, record: &[u8]) -> Vec<u8> {
        let mut reader = Reader::whole(record);
        let head = call_head(&mut reader).unwrap();
        let op = Op::from_number(head.procedure).unwrap();
        let found = arguments(&mut reader, op).unwrap();
        let weir_filewall::wire::rpc::Credential::Sys(sys) = head.credential else { panic!() };
        self.asked.push(op);
        let handle = |number: usize| found.handles[number].of(record).to_vec();
        let name = |number: usize| (handle(number), found.names[number].of(record).to_vec());
        let refuse = |status: Status| {
            let mut whole = Vec::new();
            weir_filewall::wire::answer::put(&mut whole, 0, op, status);
            whole[28..].to_vec()
        };
        if !self.objects.contains_key(&handle(0)) {
            return refuse(Status::Stale);
        }
        match op {
            Op::Getattr => Made::ok().attributes(&self.attributes(&handle(0)).unwrap()).0,
            Op::Lookup => match self.names.get(&name(0)) {
                Some(found) => Made::ok().opaque(found).after(self.attributes(found).as_ref()).after(None).0,
                None => refuse(Status::Noent),
            },
            Op::Create | Op::Mkdir => {
                let (folder, name) = name(0);
                let made = self.make(&folder, std::str::from_utf8(&name).unwrap(), sys.uid, op == Op::Mkdir);
                let made = Made::ok().u32(1).opaque(&made).after(self.attributes(&made).as_ref());
                made.u32(0).u32(0).0
            }
            Op::Remove | Op::Rmdir => match self.names.remove(&name(0)) {
                Some(gone) => {
                    self.objects.remove(&gone);
                    Made::ok().u32(0).u32(0).0
                }
                None => refuse(Status::Noent),
            },
            Op::Rename => match self.names.remove(&name(0)) {
                Some(moved) => {
                    if let Some(replaced) = self.names.insert(name(1), moved) {
                        self.objects.remove(&replaced);
                    }
                    (0..4).fold(Made::ok(), |made, _| made.u32(0)).0
                }
                None => refuse(Status::Noent),
            },
            Op::Setattr => {
                let mut reader = Reader::whole(record);
                reader.take(found.handles[0].padded_end()).unwrap();
                self.set(&handle(0), &mut reader);
                Made::ok().change(&self.attributes(&handle(0)).unwrap()).0
            }
            Op::Write => {
                self.clock += 1;
                let (clock, data) = (self.clock, found.payload.unwrap().of(record).to_vec());
                let object = self.objects.get_mut(&handle(0)).unwrap();
                let end = found.offset as usize + data.len();
                object.data.resize(object.data.len().max(end), 0);
                object.data[found.offset as usize..end].copy_from_slice(&data);
                object.time = clock;
                Made::ok()
                    .change(&self.attributes(&handle(0)).unwrap())
                    .u32(data.len() as u32)
                    .u32(2)
                    .u64(0)
                    .0
            }
            Op::Commit => Made::ok().change(&self.attributes(&handle(0)).unwrap()).u64(0).0,
            Op::Readdirplus => {
                let mut made = Made::ok().after(None).u64(0);
                for (cookie, ((folder, name), found)) in (1..).zip(&self.names) {
                    if *folder == handle(0) {
                        made = made.u32(1).u64(cookie).opaque(name).u64(cookie);
                        made = made.after(self.attributes(found).as_ref()).u32(1).opaque(found);
                    }
                }
                made.u32(0).u32(1).0
            }
            Op::Read => {
                let data = &self.objects[&handle(0)].data;
                let begin = data.len().min(found.offset as usize);
                let end = data.len().min(begin + found.count as usize);
                let made = Made::ok().after(None).u32((end - begin) as u32).u32(u32::from(end == data.len()));
                made.opaque(&data[begin..end]).0
            }
            other => panic!("{other}"),
        }
    }

    /// How often the server was asked for something since the last time.
    pub fn taken(&mut self) -> Vec<Op> {
        std::mem::take(&mut self.asked)
    }
}

/// A server that has the root of the export.
pub fn files() -> (SocketAddr, Shared) {
    let (address, connections) = server();
    let files = Shared::default();
    let root = Object { uid: 0, folder: true, mode: 0o777, data: Vec::new(), time: 0 };
    files.lock().unwrap().objects.insert(ROOT.to_vec(), root);
    let served = files.clone();
    std::thread::spawn(move || {
        for mut stream in connections {
            let files = served.clone();
            std::thread::spawn(move || {
                while let Some(record) = read_record(&mut stream) {
                    let results = match &mut *files.lock().unwrap() {
                        files if files.down => return,
                        files => files.carry_out(&record),
                    };
                    if stream.write_all(&reply_to(&record, &results)).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, files)
}

/// A client's connection, and what it asks for as somebody.
pub struct Client {
    stream: TcpStream,
    xid: u32,
    pub uid: u32,
}

/// What came of a call.
#[derive(Debug, PartialEq, Eq)]
pub struct Came {
    pub status: u32,
    pub handle: Option<Vec<u8>>,
    pub data: Vec<u8>,
}

impl Client {
    pub fn new(wall: &FileWall, uid: u32) -> Client {
        Client { stream: client(wall), xid: uid << 8, uid }
    }

    /// A call of an operation on a handle, with a name, and another handle and name.
    pub fn call(&mut self, op: Op, handle: &[u8], name: Option<&str>, to: Option<(&[u8], &str)>) -> Came {
        self.xid += 1;
        let caller = Caller { uid: self.uid, ..CALLER };
        let mut record = Record::nfs3(self.xid, op, &caller).opaque(handle);
        record = name.into_iter().fold(record, |record, name| record.opaque(name.as_bytes()));
        record = to.into_iter().fold(record, |record, (to, name)| record.opaque(to).opaque(name.as_bytes()));
        let record = match op {
            Op::Create => (0..7).fold(record, |record, _| record.u32(0)),
            Op::Mkdir => (0..6).fold(record, |record, _| record.u32(0)),
            Op::Read => record.u64(0).u32(65_536),
            Op::Readdirplus => record.u64(0).u64(0).u32(4096).u32(8192),
            _ => record,
        };
        self.ask(op, &record.finish())
    }

    /// The handle of the export's root.
    pub fn mount(&mut self) -> Vec<u8> {
        self.xid += 1;
        let call = Record::call(self.xid, program::MOUNT, 3, 1, &Caller { uid: self.uid, ..CALLER });
        let reply = ask(&mut self.stream, &call.opaque(b"/export").finish());
        let mut reader = Reader::whole(&reply);
        reader.take(reply_head(&mut Reader::whole(&reply)).unwrap().results_at.unwrap()).unwrap();
        assert_eq!(reader.u32().unwrap(), 0);
        reader.opaque(64).unwrap().of(&reply).to_vec()
    }

    /// Gives an object to somebody.
    pub fn chown(&mut self, handle: &[u8], uid: u32) -> Came {
        self.xid += 1;
        let record = Record::nfs3(self.xid, Op::Setattr, &Caller { uid: self.uid, ..CALLER }).opaque(handle);
        let record = record.u32(0).u32(1).u32(uid).u32(0).u32(0).u32(0).u32(0).u32(0);
        self.ask(Op::Setattr, &record.finish())
    }

    /// Writes a file anew.
    pub fn write(&mut self, handle: &[u8], data: &str) -> Came {
        self.xid += 1;
        let record = Record::nfs3(self.xid, Op::Write, &Caller { uid: self.uid, ..CALLER }).opaque(handle);
        let record = record.u64(0).u32(data.len() as u32).u32(2).opaque(data.as_bytes());
        self.ask(Op::Write, &record.finish())
    }

    fn ask(&mut self, op: Op, call: &[u8]) -> Came {
        let reply = ask(&mut self.stream, call);
        let mut reader = Reader::whole(&reply);
        assert!(reply_head(&mut reader).unwrap().results_at.is_some(), "{op} was refused");
        let mut found = Results::default();
        results(&mut reader, op, &mut found).unwrap();
        let of = |span: Option<weir_filewall::wire::xdr::Span>| span.map(|span| span.of(&reply).to_vec());
        Came { status: found.status, handle: of(found.handle), data: of(found.payload).unwrap_or_default() }
    }

    /// The handle of a name that is there, or is made by `op`.
    pub fn handle(&mut self, op: Op, folder: &[u8], name: &str) -> Vec<u8> {
        let came = self.call(op, folder, Some(name), None);
        came.handle.unwrap_or_else(|| panic!("{op} of {name} came to {}", came.status))
    }
}
