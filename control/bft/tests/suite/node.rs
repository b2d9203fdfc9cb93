//! A replica in a process of its own with a small service in front: what the process tests and the measurements drive.
//!
//! A request: its length (4 bytes), a tag (8), a kind (1) and the rest. An answer: the tag (8), a status (1), a number (8).

use std::collections::BTreeSet;
use std::io::{self, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use weir_base::world::{RealClock, RealDisk};
use weir_bft::settings::Reasonable;
use weir_bft::{BftEngine, Identity, Members, Places, Settings, Timers};
use weir_order::{Engine, Entry, Error, Position, Sink, Submitter, batcher};

/// Orders the rest as an operation; its first 8 bytes are its id.
pub const PUT: u8 = 1;
/// Is the operation with this id (8 bytes) there, on this replica?
pub const HAS: u8 = 2;
/// The index of the last batch that this replica has.
pub const WHERE: u8 = 3;
/// How many states of others it has taken over, times 2^32, and ranges of blocks.
pub const TAKEN: u8 = 4;

/// The members that votes convict, as bits.
pub const CONVICTED: u8 = 5;

/// What the wall clock says, in seconds since 1970.
pub const CLOCK: u8 = 6;

pub const OK: u8 = 0;
pub const REFUSED: u8 = 1;
pub const UNKNOWN: u8 = 2;

/// Every so many batches a replica keeps its state.
const STATE_EVERY: u64 = 512;

/// Where a group of processes lives.
#[derive(Clone)]
pub struct Place {
    pub dir: PathBuf,
    pub base_port: u16,
    pub replicas: u32,
    /// Long waits, for machines that are busy with something else.
    pub patient: bool,
}

impl Place {
    pub fn peer(&self, id: u32) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.base_port + id as u16))
    }

    pub fn service(&self, id: u32) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.base_port + 50 + id as u16))
    }

    pub fn disk(&self, id: u32) -> PathBuf {
        self.dir.join(format!("replica-{id}"))
    }
}

pub fn identity(id: u32) -> Identity {
    Identity { id, secret: [id as u8; 32] }
}

type Kept = (Position, Vec<u8>);

/// Remembers the ids of all operations.
struct Ids {
    ids: Arc<Mutex<BTreeSet<u64>>>,
    states: SyncSender<Kept>,
}

impl Sink for Ids {
    fn committed(&mut self, entry: &Entry) {
        let mut ids = self.ids.lock().unwrap();
        for operation in batcher::decode(&entry.batch).unwrap() {
            ids.insert(u64::from_le_bytes(operation[..8].try_into().unwrap()));
        }
        if entry.position.index.is_multiple_of(STATE_EVERY) {
            let bytes = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
            // One is left out while another is written.
            let _busy = self.states.try_send((entry.position, bytes));
        }
    }

    fn install(&mut self, _at: Position, state: &mut dyn Read) -> io::Result<()> {
        let mut bytes = Vec::new();
        state.read_to_end(&mut bytes)?;
        let mut ids = self.ids.lock().unwrap();
        *ids = bytes.chunks(8).map(|id| u64::from_le_bytes(id.try_into().unwrap())).collect();
        Ok(())
    }
}

/// What the group is called.
pub const GROUP: &str = "processes";

/// The members, and where replica `id` and the others are.
pub fn members(place: &Place, id: u32) -> (Members, Places) {
    let all = 1..=place.replicas;
    let members = Members(all.clone().map(|id| (id, identity(id).public().unwrap())).collect());
    let places = Places {
        listen: place.peer(id),
        members: all.map(|id| (id, place.peer(id))).collect(),
        votes: place.disk(id).join("votes"),
        // Both ways to write, beside each other.
        in_memory: id.is_multiple_of(2),
        threads: 2,
    };
    (members, places)
}

/// Runs replica `id` until its process is killed.
pub fn run(place: &Place, id: u32) {
    let service = TcpListener::bind(place.service(id)).expect("the service's port");
    let path = place.disk(id);
    std::fs::create_dir_all(path.join("journal")).unwrap();
    let disk = Arc::new(RealDisk::open(&path.join("journal")).unwrap());
    let (members, places) = members(place, id);
    let ids: Arc<Mutex<BTreeSet<u64>>> = Arc::default();
    let (states, to_keep) = sync_channel::<Kept>(1);
    let sink = Box::new(Ids { ids: Arc::clone(&ids), states });
    let timers = if place.patient { Timers::WAN } else { Timers::LAN };
    // One that lies may order what is its own: no application could read it.
    let reasonable: Reasonable = Arc::new(|batch| batcher::decode(&Bytes::copy_from_slice(batch)).is_ok());
    let settings = Settings { timers, reasonable: Some(reasonable), ..Settings::new(GROUP) };
    let engine = BftEngine::start(disk, settings, &identity(id), &members, places, sink).unwrap();
    let engine = Arc::new(engine);
    let keeper = Arc::clone(&engine);
    thread::spawn(move || {
        for (at, state) in to_keep {
            match keeper.save_snapshot(at, &mut &state[..]) {
                // It has a newer one already, or is stopping.
                Ok(_) | Err(Error::Index { .. } | Error::Stopped) => {}
                Err(error) => panic!("the state is not kept: {error}"),
            }
        }
    });
    let submitter = Submitter::new(
        Arc::clone(&engine) as Arc<dyn Engine>,
        Arc::new(RealClock::new()),
        weir_bft::settings::batcher(),
    );
    let submitter = Arc::new(submitter.unwrap());
    for stream in service.incoming().flatten() {
        let (engine, submitter, ids) = (Arc::clone(&engine), Arc::clone(&submitter), Arc::clone(&ids));
        stream.set_nodelay(true).unwrap();
        thread::spawn(move || {
            let (answers, answered) = channel();
            let writer = stream.try_clone().unwrap();
            thread::spawn(move || write_answers(writer, &answered));
            // Ends when the client goes.
            let _gone = serve(BufReader::new(stream), &engine, &submitter, &ids, &answers);
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

fn serve(
    mut stream: impl Read,
    engine: &BftEngine,
    submitter: &Submitter,
    ids: &Mutex<BTreeSet<u64>>,
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
                        Err(error) if error.is_definite() => tell(REFUSED, 0),
                        Err(_) => tell(UNKNOWN, 0),
                    });
                submitter.submit(Bytes::from(body).slice(9..), reply);
            }
            HAS => {
                let wanted = u64::from_le_bytes(body[9..17].try_into().unwrap());
                tell(OK, u64::from(ids.lock().unwrap().contains(&wanted)));
            }
            WHERE => tell(OK, engine.status().committed.index),
            TAKEN => {
                let core = engine.counters().core;
                tell(OK, (core.states << 32) + core.ranges);
            }
            CLOCK => tell(OK, SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()),
            CONVICTED => {
                let evidence = engine.evidence();
                let convicted = evidence.iter().filter_map(|one| one.convicts());
                tell(OK, convicted.fold(0, |bits, one| bits | 1 << one.member));
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
