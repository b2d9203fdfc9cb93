//! A server of NFSv3 that the tests play, and a client that sends what it is told to.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use weir_filewall::proxy::{Config, FileWall, Limits, Server};
use weir_filewall::replicate::Plan;
use weir_filewall::wire::build::{Caller, Record};
use weir_filewall::wire::nfs3::Op;
use weir_filewall::wire::xdr::{get_u32, put_opaque, put_u32};

/// Generous bound on every wait.
pub const BOUND: Duration = Duration::from_secs(60);
pub const CALLER: Caller<'static> = Caller { uid: 1001, gid: 100, groups: &[] };

/// Reads one record, without its mark; `None` at the end of the stream.
pub fn read_record(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut mark = [0; 4];
    stream.read_exact(&mut mark).ok()?;
    let mut record = vec![0; (u32::from_be_bytes(mark) & !(1 << 31)) as usize];
    stream.read_exact(&mut record).ok()?;
    Some(record)
}

/// A server: connections come out of the receiver.
pub fn server() -> (SocketAddr, Receiver<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, connections) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            stream.set_read_timeout(Some(BOUND)).unwrap();
            // Two replies one after the other would wait for each other: 40 ms a pair.
            stream.set_nodelay(true).unwrap();
            if sender.send(stream).is_err() {
                return;
            }
        }
    });
    (address, connections)
}

/// The handle of the export's root, as FileWall is told when it asks.
pub const ROOT: &[u8] = b"export-root";

/// A server of MOUNT that gives everybody [`ROOT`]; its port.
pub fn mounts() -> u16 {
    let (address, connections) = server();
    std::thread::spawn(move || {
        for mut stream in connections {
            let Some(call) = read_record(&mut stream) else { continue };
            let mut results = 0u32.to_be_bytes().to_vec();
            put_opaque(&mut results, ROOT);
            [1, 1].into_iter().for_each(|word| put_u32(&mut results, word));
            // Whoever asked may be gone.
            let _ = stream.write_all(&reply_to(&call, &results));
        }
    });
    address.port()
}

/// A FileWall in front of it.
pub fn wall(server: SocketAddr, policy: Option<&str>, limits: Limits) -> (FileWall, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    if let Some(text) = policy {
        std::fs::write(folder.path().join("p.yaml"), text).unwrap();
    }
    let config = config(server, policy.map(|_| folder.path()), limits);
    (FileWall::start(config).unwrap(), folder)
}

/// A FileWall in front of a server that nobody plays.
pub fn wall_before(server: Server, policy: &str) -> (FileWall, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("p.yaml"), policy).unwrap();
    let own = config(SocketAddr::from(([127, 0, 0, 1], 0)), Some(folder.path()), Limits::default());
    (FileWall::start(Config { server, ..own }).unwrap(), folder)
}

/// A FileWall with a context, perhaps one that another has left behind.
pub fn wall_with_context(server: SocketAddr, policy: &Path, context: &Path) -> FileWall {
    let plan = Plan { context: Some(context.to_path_buf()), ..Plan::default() };
    FileWall::start_group(config(server, Some(policy), Limits::default()), &plan).unwrap()
}

/// A context as a FileWall that was killed leaves it behind: the one in this process still has its own.
pub fn left_behind(context: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(context).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    copy
}

/// A server that a test plays at this address.
pub fn server_at(address: SocketAddr) -> Server {
    Server {
        address: address.ip(),
        nfs_port: address.port(),
        mount_port: Some(mounts()),
        path: "/export".into(),
    }
}

/// A FileWall in front of several servers, of which this is the first: without policies, and over TCP.
pub fn config_of_many(server: Server) -> Config {
    let at = SocketAddr::from(([127, 0, 0, 1], 0));
    Config { server, udp: false, watch: false, ..config(at, None, Limits::default()) }
}

fn config(server: SocketAddr, policy: Option<&Path>, limits: Limits) -> Config {
    Config {
        server: server_at(server),
        listen: [127, 0, 0, 1].into(),
        port: 0,
        portmap_port: None,
        udp: true,
        workers: 2,
        policy: policy.map(Path::to_path_buf),
        watch: true,
        limits,
    }
}

/// A client's connection.
pub fn client(wall: &FileWall) -> TcpStream {
    let stream = TcpStream::connect(wall.address).unwrap();
    stream.set_read_timeout(Some(BOUND)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

pub fn getattr(xid: u32) -> Vec<u8> {
    Record::nfs3(xid, Op::Getattr, &CALLER).opaque(b"handle").finish()
}

pub fn remove(xid: u32) -> Vec<u8> {
    Record::nfs3(xid, Op::Remove, &CALLER).opaque(b"handle").opaque(b"name").finish()
}

pub fn write_call(xid: u32, data: &[u8]) -> Vec<u8> {
    Record::nfs3(xid, Op::Write, &CALLER)
        .opaque(b"handle")
        .u64(0)
        .u32(data.len() as u32)
        .u32(0)
        .opaque(data)
        .finish()
}

/// A reply to the call in `record`, with these results.
pub fn reply_to(record: &[u8], results: &[u8]) -> Vec<u8> {
    let mut reply = Vec::new();
    for word in [(24 + results.len()) as u32 | 1 << 31, get_u32(record, 0), 1, 0, 0, 0, 0] {
        put_u32(&mut reply, word);
    }
    reply.extend_from_slice(results);
    reply
}

/// NFS3ERR_NOENT in the shape of a REMOVE: a reply that tells executions apart from denials.
pub const REMOVED: [u8; 12] = [0; 12];

/// Results of a READ of `data`.
pub fn read_results(data: &[u8]) -> Vec<u8> {
    let mut results = Vec::new();
    for word in [0, 0, data.len() as u32, 1] {
        put_u32(&mut results, word);
    }
    put_opaque(&mut results, data);
    results
}

/// Sends and expects one record back.
pub fn ask(stream: &mut TcpStream, call: &[u8]) -> Vec<u8> {
    stream.write_all(call).unwrap();
    read_record(stream).expect("an answer")
}

/// Waits for a condition.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = std::time::Instant::now();
    while !condition() {
        assert!(begin.elapsed() < BOUND, "waited for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A client's connection from another address of this machine.
pub fn client_from(wall: &FileWall, address: [u8; 4]) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let fd = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&fd, &SocketAddr::from((address, 0))).unwrap();
    connect(&fd, &wall.address).unwrap();
    let stream = TcpStream::from(fd);
    stream.set_read_timeout(Some(BOUND)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}
