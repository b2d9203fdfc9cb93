//! The link to the switch's control socket: it comes back when the switch restarts, keeps the
//! mirror, and hands the frames of the session on.

use crate::mirror::Reading;
use crate::shared::{Shared, SwitchSender, TO_SWITCH_MAX};
use crate::switchless::{self, Here};
use crate::wire::{read_frame, write_frame};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncWriteExt, BufReader, BufWriter};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use weir_base::codec::CodecError;
use weir_model::Key;
use weir_model::local::{Answer, FromSwitch, PortStatus, Question, ToSwitch};

/// First wait for a switch that is not there, milliseconds.
const RETRY_MIN_MS: u64 = 50;
/// Longest wait for a switch that is not there, milliseconds.
const RETRY_MAX_MS: u64 = 1000;
/// Marks the numbers of our own questions among those of the session.
const OWN_QUESTION: u64 = 1 << 63;

/// What the link tells the session.
#[derive(Debug)]
pub enum LinkEvent {
    /// Connected; frames go by this sender until `Down`.
    Up(SwitchSender),
    /// The connection is gone.
    Down,
    /// A frame for the session.
    Frame(FromSwitch),
}

/// Where the switch is.
#[derive(Clone, Debug)]
pub enum Place {
    /// Behind its control socket.
    Socket(PathBuf),
    /// Nowhere: this stands in its place.
    Here(Here),
}

impl Place {
    async fn connect(&self) -> std::io::Result<UnixStream> {
        match self {
            Place::Socket(socket) => UnixStream::connect(socket).await,
            Place::Here(here) => {
                let (ours, theirs) = UnixStream::pair()?;
                // It ends with the stream.
                tokio::spawn(switchless::serve(here.clone(), theirs));
                Ok(ours)
            }
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Socket(socket) => write!(f, "{}", socket.display()),
            Place::Here(_) => f.write_str("none: this host has planes only"),
        }
    }
}

/// Keeps the link for ever.
pub async fn run(shared: Arc<Shared>, place: Place, events: mpsc::Sender<LinkEvent>) {
    let mut wait_ms = RETRY_MIN_MS;
    let mut told = false;
    loop {
        match place.connect().await {
            Ok(stream) => {
                tracing::info!(switch = %place, "connected to the switch");
                shared.metrics.link_connects.count();
                shared.metrics.link_up.set(1);
                let error = serve(&shared, stream, &events).await;
                shared.metrics.link_up.set(0);
                shared.metrics.link_errors.count();
                shared.switch.send_replace(None);
                tracing::warn!(%error, "the connection to the switch is gone; it forwards on its own");
                if events.send(LinkEvent::Down).await.is_err() {
                    return;
                }
                wait_ms = RETRY_MIN_MS;
                told = false;
            }
            Err(error) if !told => {
                tracing::warn!(switch = %place, %error, "waiting for the switch");
                told = true;
            }
            Err(_) => {}
        }
        tokio::time::sleep(Duration::from_millis(wait_ms)).await;
        wait_ms = (wait_ms * 2).min(RETRY_MAX_MS);
    }
}

/// Serves one connection until it ends, and tells why it did.
async fn serve(shared: &Arc<Shared>, stream: UnixStream, events: &mpsc::Sender<LinkEvent>) -> CodecError {
    let (read, write) = stream.into_split();
    let (sender, receiver) = mpsc::channel(TO_SWITCH_MAX);
    let writer = write_all(shared.clone(), write, receiver);
    let reader = async {
        let mut link = Link { shared, events, sender: sender.clone(), reading: None, pages: 0 };
        match link.begin().await {
            Ok(()) => link.read_all(read).await,
            Err(error) => error,
        }
    };
    tokio::select! {
        error = reader => error,
        error = writer => error,
        () = shared.reset_switch.notified() => CodecError::Io(std::io::ErrorKind::TimedOut.into()),
    }
}

async fn write_all(
    shared: Arc<Shared>,
    write: OwnedWriteHalf,
    mut frames: mpsc::Receiver<ToSwitch>,
) -> CodecError {
    let mut write = BufWriter::new(write);
    while let Some(frame) = frames.recv().await {
        shared.metrics.link_frames_out.count();
        if let Err(error) = write_frame(&mut write, &frame).await {
            return error;
        }
        if frames.is_empty()
            && let Err(error) = write.flush().await
        {
            return error.into();
        }
    }
    CodecError::Closed
}

struct Link<'a> {
    shared: &'a Arc<Shared>,
    events: &'a mpsc::Sender<LinkEvent>,
    sender: SwitchSender,
    reading: Option<Reading>,
    pages: u64,
}

impl Link<'_> {
    /// Subscribes first, so that no change falls between it and the reading.
    async fn begin(&mut self) -> Result<(), CodecError> {
        self.send(ToSwitch::Subscribe).await?;
        self.reading = Some(Reading::default());
        self.ask_page(None).await?;
        self.shared.switch.send_replace(Some(self.sender.clone()));
        self.tell(LinkEvent::Up(self.sender.clone())).await
    }

    async fn send(&self, frame: ToSwitch) -> Result<(), CodecError> {
        self.sender.send(frame).await.map_err(|_| CodecError::Closed)
    }

    async fn tell(&self, event: LinkEvent) -> Result<(), CodecError> {
        self.events.send(event).await.map_err(|_| CodecError::Closed)
    }

    async fn ask_page(&mut self, after: Option<Key>) -> Result<(), CodecError> {
        self.pages += 1;
        self.send(ToSwitch::Ask { id: OWN_QUESTION | self.pages, question: Question::Entries { after } })
            .await
    }

    async fn read_all(&mut self, read: OwnedReadHalf) -> CodecError {
        let mut read = BufReader::new(read);
        loop {
            let result = match read_frame::<FromSwitch>(&mut read).await {
                Ok(frame) => self.frame(frame).await,
                Err(error) => Err(error),
            };
            if let Err(error) = result {
                return error;
            }
        }
    }

    async fn frame(&mut self, frame: FromSwitch) -> Result<(), CodecError> {
        self.shared.metrics.link_frames_in.count();
        match frame {
            FromSwitch::Changed { key, version, entry } => {
                if let Some(reading) = &mut self.reading {
                    reading.change(&key, version, entry.as_ref());
                }
                let touched = self.shared.change_mirror(|mirror| mirror.apply(&key, version, entry.as_ref()));
                self.touched(touched);
                Ok(())
            }
            FromSwitch::Ports(_) => Ok(()),
            FromSwitch::Answer { id, answer } if id & OWN_QUESTION != 0 => self.page(id, answer).await,
            FromSwitch::Answer { id, answer: Answer::Ports(ports) } => {
                let answer = Answer::Ports(self.with_problems(ports));
                self.tell(LinkEvent::Frame(FromSwitch::Answer { id, answer })).await
            }
            frame => self.tell(LinkEvent::Frame(frame)).await,
        }
    }

    /// A switch sees that a device is not there; why it cannot be made, its agent knows.
    fn with_problems(&self, mut ports: Vec<PortStatus>) -> Vec<PortStatus> {
        let problems = self.shared.problems();
        for port in ports.iter_mut().filter(|port| !port.up) {
            if let Some(reason) = problems.get(&port.key) {
                port.reason.clone_from(reason);
            }
        }
        ports
    }

    fn touched(&self, touched: crate::mirror::Touched) {
        if touched.any {
            self.shared.metrics.mirror_changes.count();
        }
        if touched.full {
            self.shared.metrics.mirror_full.count();
        }
        if touched.ports && self.shared.synced() {
            self.shared.ports_changed.notify_one();
        }
    }

    async fn page(&mut self, id: u64, answer: Answer) -> Result<(), CodecError> {
        if id != OWN_QUESTION | self.pages {
            return Ok(());
        }
        let (entries, last) = match answer {
            Answer::Entries { entries, last } => (entries, last),
            other => {
                let reason = match other {
                    Answer::Error(reason) => reason,
                    _ => "the answer is of another kind".to_string(),
                };
                let reason = format!("the switch does not give its entries: {reason}");
                return Err(CodecError::Malformed { what: "entries", length: 0, reason });
            }
        };
        let Some(reading) = &mut self.reading else { return Ok(()) };
        let after = entries.last().map(|(key, ..)| key.clone());
        let mut full = 0;
        for (key, version, entry, _) in &entries {
            full += u64::from(reading.page_entry(key, *version, entry).full);
        }
        self.shared.metrics.mirror_full.add(full);
        if last || after.is_none() {
            self.finish();
            Ok(())
        } else {
            self.ask_page(after).await
        }
    }

    fn finish(&mut self) {
        if let Some(reading) = self.reading.take() {
            let mirror = reading.finish();
            tracing::info!(entries = mirror.len(), "the switch's entries are read");
            self.shared.change_mirror(|old| *old = mirror);
            self.shared.set_synced();
            self.shared.ports_changed.notify_one();
        }
    }
}

/// Asks the switch to attach to a port's device. Without a connection nothing is lost: every new
/// connection is told of all devices.
pub async fn attach(shared: &Shared, key: Key) {
    let sender = shared.switch.borrow().clone();
    if let Some(sender) = sender {
        // An error means that the connection ended, and a new one is told anyway.
        let _ = sender.send(ToSwitch::Attach { key }).await;
    }
}

/// The control socket in a run directory.
pub fn control_socket(run_dir: &Path) -> PathBuf {
    run_dir.join(weir_model::local::CONTROL_SOCKET)
}
