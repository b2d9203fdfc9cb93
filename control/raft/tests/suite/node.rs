//! A replica in a process of its own with a small service in front: what the process tests and the measurements drive.
//!
//! A request: its length (4 bytes), a tag (8), a kind (1) and the rest. An answer: the tag (8), a status (1), a number (8).

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use weir_base::world::{RealClock, RealDisk};
use weir_order::{BatcherSettings, Completion, Engine, Entry, Error, Position, Sink, Submitter, batcher};
use weir_raft::driver::{Identity, RaftEngine, TlsListener, TlsTransport, replica_name};
use weir_raft::{ReadKind, Settings};

/// Orders the rest as an operation; its first 8 bytes are its id.
pub const PUT: u8 = 1;
/// Behind a barrier: is the operation with this id (8 bytes) there?
pub const HAS: u8 = 2;
/// Who leads? The number is the leader, or 0.
pub const WHO: u8 = 3;
/// Founds the group of all replicas.
pub const FOUND: u8 = 4;

pub const OK: u8 = 0;
pub const REFUSED: u8 = 1;
pub const UNKNOWN: u8 = 2;

const FRAME_BYTES_MAX: usize = 12 << 20;

/// Where a group of processes lives.
#[derive(Clone)]
pub struct Place {
    pub dir: PathBuf,
    pub base_port: u16,
    pub replicas: u64,
}

impl Place {
    pub fn peer(&self, id: u64) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.base_port + id as u16))
    }

    pub fn service(&self, id: u64) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.base_port + 50 + id as u16))
    }

    /// Makes the authority and everybody's certificates.
    pub fn make_identities(&self) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let authority = params.self_signed(&key).unwrap();
        let issuer = Issuer::from_ca_cert_der(authority.der(), key).unwrap();
        std::fs::write(self.dir.join("authority"), authority.der()).unwrap();
        for id in 1..=self.replicas {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec![replica_name(id)]).unwrap();
            let certificate = params.signed_by(&key, &issuer).unwrap();
            std::fs::write(self.dir.join(format!("certificate-{id}")), certificate.der()).unwrap();
            std::fs::write(self.dir.join(format!("key-{id}")), key.serialize_der()).unwrap();
        }
    }

    pub fn identity(&self, id: u64) -> Identity {
        let read = |name: String| std::fs::read(self.dir.join(name)).unwrap();
        Identity {
            chain: vec![read(format!("certificate-{id}")).into()],
            key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(read(format!("key-{id}")))),
            authority: read("authority".to_owned()).into(),
        }
    }
}

/// Remembers the ids of all operations.
struct Ids(Arc<Mutex<BTreeSet<u64>>>);

impl Sink for Ids {
    fn committed(&mut self, entry: &Entry) {
        let mut ids = self.0.lock().unwrap();
        for operation in batcher::decode(&entry.batch).unwrap() {
            ids.insert(u64::from_le_bytes(operation[..8].try_into().unwrap()));
        }
    }

    fn install(&mut self, _at: Position, state: &mut dyn Read) -> io::Result<()> {
        let mut bytes = Vec::new();
        state.read_to_end(&mut bytes)?;
        let mut ids = self.0.lock().unwrap();
        *ids = bytes.chunks(8).map(|id| u64::from_le_bytes(id.try_into().unwrap())).collect();
        Ok(())
    }
}

/// Runs replica `id` until its process is killed.
pub fn run(place: &Place, id: u64) {
    let identity = place.identity(id);
    let listener = TcpListener::bind(place.peer(id)).expect("the replica's port");
    let service = TcpListener::bind(place.service(id)).expect("the service's port");
    let path: PathBuf = place.dir.join(format!("replica-{id}"));
    let disk = Arc::new(RealDisk::open(Path::new(&path)).unwrap());
    let transport = Arc::new(TlsTransport::new(&identity, FRAME_BYTES_MAX).unwrap());
    let listener = Box::new(TlsListener::new(listener, &identity, FRAME_BYTES_MAX).unwrap());
    let ids: Arc<Mutex<BTreeSet<u64>>> = Arc::default();
    let sink = Box::new(Ids(Arc::clone(&ids)));
    let engine = RaftEngine::start(disk, Settings::new(id, "processes"), transport, listener, sink).unwrap();
    let engine = Arc::new(engine);
    let submitter = Submitter::new(
        Arc::clone(&engine) as Arc<dyn Engine>,
        Arc::new(RealClock::new()),
        BatcherSettings::default(),
    );
    let submitter = Arc::new(submitter.unwrap());
    for stream in service.incoming().flatten() {
        let (engine, submitter, ids, place) =
            (Arc::clone(&engine), Arc::clone(&submitter), Arc::clone(&ids), place.clone());
        stream.set_nodelay(true).unwrap();
        thread::spawn(move || {
            let (answers, answered) = channel();
            let writer = stream.try_clone().unwrap();
            thread::spawn(move || write_answers(writer, &answered));
            // Ends when the client goes.
            let _gone = serve(BufReader::new(stream), &engine, &submitter, &ids, &place, &answers);
        });
    }
}

type Answer = (u64, u8, u64);

fn write_answers(mut stream: TcpStream, answers: &Receiver<Answer>) {
    let mut bytes = Vec::new();
    while let Ok(first) = answers.recv() {
        for (tag, status, number) in std::iter::once(first).chain(answers.try_iter()) {
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.push(status);
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        if stream.write_all(&bytes).is_err() {
            return;
        }
        bytes.clear();
    }
}

fn status_of(error: &Error) -> (u8, u64) {
    match error {
        Error::NotLeader { leader } => (REFUSED, leader.unwrap_or(0)),
        error if error.is_definite() => (REFUSED, 0),
        _ => (UNKNOWN, 0),
    }
}

fn serve(
    mut stream: impl Read,
    engine: &RaftEngine,
    submitter: &Submitter,
    ids: &Arc<Mutex<BTreeSet<u64>>>,
    place: &Place,
    answers: &Sender<Answer>,
) -> io::Result<()> {
    loop {
        let mut head = [0; 4];
        stream.read_exact(&mut head)?;
        let mut body = vec![0; u32::from_le_bytes(head) as usize];
        stream.read_exact(&mut body)?;
        let (tag, kind) = (u64::from_le_bytes(body[..8].try_into().unwrap()), body[8]);
        let answers = answers.clone();
        let tell = move |status, number| {
            // The client may be gone.
            let _gone = answers.send((tag, status, number));
        };
        match kind {
            PUT => {
                let reply =
                    Box::new(move |result: Result<weir_order::OperationPosition, Error>| match result {
                        Ok(position) => tell(OK, position.batch.index),
                        Err(error) => {
                            let (status, leader) = status_of(&error);
                            tell(status, leader);
                        }
                    });
                submitter.submit(Bytes::from(body).slice(9..), reply);
            }
            HAS => {
                let wanted = u64::from_le_bytes(body[9..17].try_into().unwrap());
                let (ids, told) = (Arc::clone(ids), tell.clone());
                let done = Completion::new(move |result| match result {
                    Ok(_) => told(OK, u64::from(ids.lock().unwrap().contains(&wanted))),
                    Err(error) => {
                        let (status, leader) = status_of(&error);
                        told(status, leader);
                    }
                });
                if let Err(error) = engine.read_barrier(ReadKind::Index, done) {
                    let (status, leader) = status_of(&error);
                    tell(status, leader);
                }
            }
            WHO => tell(OK, engine.status().leader.unwrap_or(0)),
            FOUND => {
                let members: BTreeMap<u64, String> =
                    (1..=place.replicas).map(|id| (id, place.peer(id).to_string())).collect();
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                let founded = runtime.block_on(engine.initialize(members));
                tell(if founded.is_ok() { OK } else { REFUSED }, 0);
            }
            _ => return Ok(()),
        }
    }
}

/// A client of one replica: requests may be pipelined.
pub struct Client {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
    next_tag: u64,
}

impl Client {
    pub fn connect(address: SocketAddr, patience: Duration) -> io::Result<Client> {
        let stream = TcpStream::connect_timeout(&address, patience)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        let reader = BufReader::new(stream.try_clone()?);
        Ok(Client { stream, reader, next_tag: 0 })
    }

    pub fn send(&mut self, kind: u8, parts: &[&[u8]]) -> io::Result<u64> {
        self.next_tag += 1;
        let length = 9 + parts.iter().map(|part| part.len()).sum::<usize>();
        let mut bytes = (length as u32).to_le_bytes().to_vec();
        bytes.extend_from_slice(&self.next_tag.to_le_bytes());
        bytes.push(kind);
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        self.stream.write_all(&bytes)?;
        Ok(self.next_tag)
    }

    pub fn receive(&mut self) -> io::Result<Answer> {
        let mut bytes = [0; 17];
        self.reader.read_exact(&mut bytes)?;
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        Ok((word(0), bytes[8], word(9)))
    }

    pub fn ask(&mut self, kind: u8, parts: &[&[u8]]) -> io::Result<(u8, u64)> {
        let tag = self.send(kind, parts)?;
        loop {
            let (answered, status, number) = self.receive()?;
            if answered == tag {
                return Ok((status, number));
            }
        }
    }
}

/// Waits until somebody says that it leads, and gives who; `skip` is not asked.
pub fn wait_for_leader(place: &Place, skip: &[u64], limit: Duration) -> Option<u64> {
    let until = Instant::now() + limit;
    while Instant::now() < until {
        for id in (1..=place.replicas).filter(|id| !skip.contains(id)) {
            let asked = Client::connect(place.service(id), Duration::from_millis(500))
                .and_then(|mut client| client.ask(WHO, &[]));
            if matches!(asked, Ok((OK, leader)) if leader == id) {
                return Some(id);
            }
        }
        thread::sleep(Duration::from_millis(3));
    }
    None
}
