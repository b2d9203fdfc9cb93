//! The sockets of an actuator: one in the host's run directory, which the agent finds there and connects to.
//!
//! A client has a thread, and whoever asks is answered in that thread, so nothing waits in a queue. What a client does not read
//! within [`WRITE_BOUND`] ends its connection; more than [`CLIENTS_MAX`] are refused. The socket is its user's alone (mode 0600).

use crate::machine::Machine;
use crate::{Actuator, ActuatorError, Folders, Identity};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use weir_base::codec::{CodecError, encode, read_frame, write_frame};
use weir_base::limits::FRAME_BYTES_MAX;
use weir_model::local::{Answer, ENTRIES_CHUNK, FromSwitch, PLANES_FOLDER, Question, ToSwitch, plane_socket};
use weir_model::session::STATE_CHUNK_KEYS;
use weir_model::{Key, Label, Version};
use weir_trust::kept::Cursor;

/// Clients at the same time.
pub const CLIENTS_MAX: usize = 8;
/// Clients that are told of reports.
const SUBSCRIBERS_MAX: usize = CLIENTS_MAX;
/// How long a client may take to read a frame.
const WRITE_BOUND: Duration = Duration::from_secs(10);
/// How often the actuator is asked for its reports.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// How often reports that did not change are told again, because one may have been lost on its way.
const REPORT_AGAIN: Duration = Duration::from_secs(60);
/// How long to wait after a client could not be taken.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// An actuator with its sockets, that does not serve yet.
pub struct Runner<A: Actuator> {
    machine: Machine<A>,
    listener: UnixListener,
    path: PathBuf,
}

type Client = Arc<Mutex<UnixStream>>;

struct Shared<A: Actuator> {
    machine: Mutex<Machine<A>>,
    subscribers: Mutex<Vec<Client>>,
    clients: AtomicU64,
    refused: AtomicU64,
    stop: AtomicBool,
    stopped: (Mutex<()>, Condvar),
}

/// An actuator that serves, until it is dropped.
pub struct Serving<A: Actuator> {
    shared: Arc<Shared<A>>,
    path: PathBuf,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn listen(path: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

impl<A: Actuator> Runner<A> {
    /// Applies what was kept, and makes the socket. `instance` tells several processes of one plane apart.
    ///
    /// # Errors
    /// [`ActuatorError`].
    pub fn new(
        identity: Identity,
        folders: &Folders,
        instance: Option<&Label>,
        actuator: A,
    ) -> Result<Runner<A>, ActuatorError> {
        let machine = Machine::open(identity, &folders.state, actuator)?;
        let folder = folders.run.join(PLANES_FOLDER);
        std::fs::create_dir_all(&folder).map_err(ActuatorError::io(folder.display().to_string()))?;
        let path = folder.join(plane_socket(machine.plane(), instance));
        let listener = listen(&path).map_err(ActuatorError::io(path.display().to_string()))?;
        Ok(Runner { machine, listener, path })
    }

    /// The machine, before it serves.
    pub fn machine(&mut self) -> &mut Machine<A> {
        &mut self.machine
    }

    /// Serves in threads of its own.
    ///
    /// # Errors
    /// [`ActuatorError::Io`] when there are no threads.
    pub fn start(self) -> Result<Serving<A>, ActuatorError> {
        let Runner { machine, listener, path } = self;
        let plane = machine.plane().clone();
        tracing::info!(%plane, socket = %path.display(), entries = machine.entries().count(), "serving");
        let shared = Arc::new(Shared {
            machine: Mutex::new(machine),
            subscribers: Mutex::default(),
            clients: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            stopped: (Mutex::default(), Condvar::new()),
        });
        let serving = Serving { shared: shared.clone(), path };
        let threads = |error| ActuatorError::io("starting a thread")(error);
        let accepting = shared.clone();
        let named = |part: &str| std::thread::Builder::new().name(format!("{plane}-{part}"));
        named("clients").spawn(move || accept(&accepting, &listener)).map_err(threads)?;
        named("reports").spawn(move || report(&shared)).map_err(threads)?;
        Ok(serving)
    }
}

impl<A: Actuator> Serving<A> {
    /// Does something with the machine, between two updates.
    pub fn with<T>(&self, work: impl FnOnce(&mut Machine<A>) -> T) -> T {
        work(&mut locked(&self.shared.machine))
    }

    /// Clients that were refused because there were too many.
    pub fn clients_refused(&self) -> u64 {
        self.shared.refused.load(Ordering::Relaxed)
    }
}

impl<A: Actuator> Drop for Serving<A> {
    /// Ends it: nothing is applied any more when this returns.
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        let _nobody = locked(&self.shared.stopped.0);
        self.shared.stopped.1.notify_all();
        // Wakes whoever waits for clients, and what is in hand is done.
        let _woken = UnixStream::connect(&self.path);
        let _last = std::fs::remove_file(&self.path);
        for client in locked(&self.shared.subscribers).drain(..) {
            let _ended = locked(&client).shutdown(std::net::Shutdown::Both);
        }
        drop(locked(&self.shared.machine));
    }
}

impl<A: Actuator> Shared<A> {
    fn ends(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }
}

fn accept<A: Actuator>(shared: &Arc<Shared<A>>, listener: &UnixListener) {
    while !shared.ends() {
        let Ok((stream, _)) = listener.accept() else {
            std::thread::sleep(ACCEPT_REST);
            continue;
        };
        if shared.ends() {
            return;
        }
        if shared.clients.load(Ordering::SeqCst) >= CLIENTS_MAX as u64 {
            shared.refused.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        shared.clients.fetch_add(1, Ordering::SeqCst);
        let of_client = shared.clone();
        let spawned = std::thread::Builder::new().name("plane-client".into()).spawn(move || {
            if let Err(error) = serve(&of_client, stream)
                && !matches!(error, CodecError::Closed)
            {
                tracing::warn!(%error, "a client of the plane's socket is gone");
            }
            of_client.clients.fetch_sub(1, Ordering::SeqCst);
        });
        if spawned.is_err() {
            shared.clients.fetch_sub(1, Ordering::SeqCst);
            std::thread::sleep(ACCEPT_REST);
        }
    }
}

/// Answers one client until it goes.
fn serve<A: Actuator>(shared: &Arc<Shared<A>>, mut stream: UnixStream) -> Result<(), CodecError> {
    stream.set_write_timeout(Some(WRITE_BOUND))?;
    let client: Client = Arc::new(Mutex::new(stream.try_clone()?));
    let result = answer_all(shared, &mut stream, &client);
    locked(&shared.subscribers).retain(|known| !Arc::ptr_eq(known, &client));
    result
}

fn answer_all<A: Actuator>(
    shared: &Arc<Shared<A>>,
    stream: &mut UnixStream,
    client: &Client,
) -> Result<(), CodecError> {
    loop {
        let frame = read_frame::<ToSwitch>(stream)?;
        let send = |frame: &FromSwitch| write_frame(&mut *locked(client), frame);
        // Held over the answer, so that a state and the acks behind it come in the order in which they were true.
        let mut machine = locked(&shared.machine);
        if shared.ends() {
            return Err(CodecError::Closed);
        }
        match frame {
            ToSwitch::Updates(updates) => {
                let acks = machine.take(&updates);
                if updates.updates.iter().any(|proven| proven.update.key == Key::Controllers) {
                    send_controllers(&machine, &send)?;
                }
                if let Some(acks) = acks {
                    let own = acks.acks.iter().filter(|ack| machine.is_own(&ack.key));
                    let entries: Vec<_> = own.map(|ack| machine.content_of(&ack.key)).collect();
                    // Before the acks, so that whoever hears these knows what they are about.
                    send_contents(&entries, &send)?;
                    send(&FromSwitch::Acks(acks))?;
                }
            }
            ToSwitch::SendState => {
                let mut cursor = Cursor::default();
                loop {
                    let (entries, last) = machine.contents(&mut cursor, STATE_CHUNK_KEYS);
                    send(&FromSwitch::Contents { entries, last })?;
                    if last {
                        break;
                    }
                }
            }
            ToSwitch::Subscribe => {
                send(&FromSwitch::Plane { plane: machine.plane().clone(), names: machine.names() })?;
                send_controllers(&machine, &send)?;
                let mut subscribers = locked(&shared.subscribers);
                if subscribers.len() < SUBSCRIBERS_MAX
                    && !subscribers.iter().any(|known| Arc::ptr_eq(known, client))
                {
                    subscribers.push(client.clone());
                }
            }
            ToSwitch::Ask { id, question } => {
                let answer = match question {
                    Question::Counters => Answer::Counters(machine.metrics()),
                    Question::Entries { after } => entries(&machine, after.as_ref()),
                    _ => Answer::Error(format!("plane {} has no answer to this", machine.plane())),
                };
                send(&FromSwitch::Answer { id, answer })?;
            }
            ToSwitch::ReadIdentity => {
                if let Ok(key) = machine.public_key() {
                    send(&FromSwitch::Identity { key })?;
                }
            }
            // For a switch.
            ToSwitch::Attach { .. } => {}
        }
    }
}

/// Tells whose endorsements it takes, so that it is given no others.
fn send_controllers<A: Actuator>(
    machine: &Machine<A>,
    send: &impl Fn(&FromSwitch) -> Result<(), CodecError>,
) -> Result<(), CodecError> {
    let Some((version, entry)) = machine.controllers() else { return Ok(()) };
    send(&FromSwitch::Changed { key: Key::Controllers, version, entry })
}

fn send_contents(
    contents: &[(Key, Version, u128)],
    send: &impl Fn(&FromSwitch) -> Result<(), CodecError>,
) -> Result<(), CodecError> {
    let mut chunks = contents.chunks(STATE_CHUNK_KEYS).peekable();
    if chunks.peek().is_none() {
        return send(&FromSwitch::Contents { entries: Vec::new(), last: true });
    }
    while let Some(chunk) = chunks.next() {
        send(&FromSwitch::Contents { entries: chunk.to_vec(), last: chunks.peek().is_none() })?;
    }
    Ok(())
}

fn entries<A: Actuator>(machine: &Machine<A>, after: Option<&Key>) -> Answer {
    let (mut entries, mut bytes, mut last) = (Vec::new(), 0, true);
    for (key, version, entry, header) in machine.entries().filter(|(key, ..)| Some(*key) > after) {
        if entries.len() == ENTRIES_CHUNK || bytes > FRAME_BYTES_MAX / 2 {
            last = false;
            break;
        }
        let item = (key.clone(), version, entry.clone(), header.clone());
        bytes += encode(&item).len();
        entries.push(item);
    }
    Answer::Entries { entries, last }
}

/// Tells what the actuator reports, for as long as somebody hears it.
fn report<A: Actuator>(shared: &Arc<Shared<A>>) {
    let mut told_all: Option<Instant> = None;
    let mut hearers = 0;
    loop {
        let guard = locked(&shared.stopped.0);
        if shared.ends() {
            return;
        }
        drop(shared.stopped.1.wait_timeout(guard, REPORT_EVERY));
        if shared.ends() {
            return;
        }
        let clients = locked(&shared.subscribers).clone();
        // Whoever is new has heard nothing.
        let all = clients.len() > hearers || told_all.is_none_or(|at| at.elapsed() >= REPORT_AGAIN);
        hearers = clients.len();
        if clients.is_empty() {
            continue;
        }
        if all {
            told_all = Some(Instant::now());
        }
        let events = locked(&shared.machine).reports(all);
        for event in events {
            for client in &clients {
                let mut stream = locked(client);
                if write_frame(&mut *stream, &FromSwitch::Event(event.clone())).is_err() {
                    // Half of a frame may be there; its own thread sees that it is over.
                    let _over = stream.shutdown(std::net::Shutdown::Both);
                }
            }
        }
    }
}
