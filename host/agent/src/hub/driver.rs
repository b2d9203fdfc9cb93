//! Finds the sockets of the planes' processes, and moves their frames.
//!
//! A process makes its socket in the host's run directory; the folder is looked at every [`LOOK`]. A socket that nobody serves, or
//! whose process is no plane's, is tried again after a pause that doubles ([`PAUSE_MAX`]). Frames to a process wait in a queue of
//! [`TO_LOCAL_MAX`]; what does not fit is dropped, and sent again by controllers.

use crate::wire::{read_frame, write_frame};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use weir_base::codec::CodecError;
use weir_model::Label;
use weir_model::local::{FromSwitch, PLANES_FOLDER, ToSwitch};

/// How often the folder is looked at.
const LOOK: Duration = Duration::from_millis(500);
/// Longest pause before a socket is tried again.
const PAUSE_MAX: Duration = Duration::from_secs(8);
/// A process says within so long which plane it is.
const GREETING_BOUND: Duration = Duration::from_secs(10);
/// Frames that may wait for one process.
pub const TO_LOCAL_MAX: usize = super::HELD_MAX + 64;
/// Sockets that are looked at; more are left alone.
const SOCKETS_MAX: usize = super::LOCALS_MAX;

/// What a process of a plane does.
#[derive(Debug)]
pub enum HubEvent {
    /// It is there.
    Came {
        /// Number of the connection.
        id: u64,
        /// Its plane.
        plane: Label,
        /// The names that it takes; none means all.
        names: Option<Vec<String>>,
        /// To it. Dropping all of these ends the connection.
        sender: mpsc::Sender<ToSwitch>,
    },
    /// It says something.
    Frame {
        /// Number of the connection.
        id: u64,
        /// What.
        frame: FromSwitch,
    },
    /// It is gone.
    Went {
        /// Number of the connection.
        id: u64,
    },
}

/// A socket that is not connected: when it may be tried again, and how long the pause after that is.
struct Rest {
    until: Instant,
    pause: Duration,
}

/// Keeps connections to all processes for ever; returns when nobody takes the events.
pub async fn run(run_dir: PathBuf, events: mpsc::Sender<HubEvent>) {
    let folder = run_dir.join(PLANES_FOLDER);
    let mut tasks: JoinSet<(PathBuf, bool)> = JoinSet::new();
    let mut busy: BTreeSet<PathBuf> = BTreeSet::new();
    let mut resting: BTreeMap<PathBuf, Rest> = BTreeMap::new();
    let mut next = 1;
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = looks.tick() => {}
            Some(ended) = tasks.join_next(), if !tasks.is_empty() => {
                let Ok((path, served)) = ended else { return };
                busy.remove(&path);
                let pause = match resting.get(&path) {
                    Some(rest) if !served => rest.pause,
                    _ => LOOK,
                };
                resting.insert(path, Rest { until: Instant::now() + pause, pause: (pause * 2).min(PAUSE_MAX) });
                continue;
            }
        }
        if events.is_closed() {
            return;
        }
        let found = sockets(&folder);
        resting.retain(|path, _| found.contains(path));
        for path in found {
            let rests = resting.get(&path).is_some_and(|rest| rest.until > Instant::now());
            if !rests && busy.insert(path.clone()) {
                tasks.spawn(connect(path, next, events.clone()));
                next += 1;
            }
        }
    }
}

/// The sockets in the folder, in the order of their names.
fn sockets(folder: &Path) -> BTreeSet<PathBuf> {
    // Without a folder there is no plane.
    let Ok(entries) = std::fs::read_dir(folder) else { return BTreeSet::new() };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut all: BTreeSet<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|kind| kind == "sock")).collect();
    while all.len() > SOCKETS_MAX {
        all.pop_last();
    }
    all
}

/// Serves one process; tells its socket, and whether it was a plane's.
async fn connect(path: PathBuf, id: u64, events: mpsc::Sender<HubEvent>) -> (PathBuf, bool) {
    let Ok(stream) = UnixStream::connect(&path).await else { return (path, false) };
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    let greeting = tokio::time::timeout(GREETING_BOUND, greet(&mut read, &mut write)).await;
    let (plane, names) = match greeting {
        Ok(Ok(greeting)) => greeting,
        Ok(Err(error)) => {
            tracing::warn!(socket = %path.display(), %error, "this is no process of a plane");
            return (path, false);
        }
        Err(_) => {
            tracing::warn!(socket = %path.display(), "its process does not say which plane it is");
            return (path, false);
        }
    };
    let (sender, frames) = mpsc::channel(TO_LOCAL_MAX);
    tracing::info!(%plane, socket = %path.display(), "a plane's process is here");
    if events.send(HubEvent::Came { id, plane: plane.clone(), names, sender }).await.is_err() {
        return (path, true);
    }
    let error = tokio::select! {
        error = read_all(id, &mut read, &events) => error,
        error = write_all(write, frames) => error,
    };
    tracing::warn!(%plane, socket = %path.display(), %error, "a plane's process is gone");
    // Fails only when the agent ends.
    let _ended = events.send(HubEvent::Went { id }).await;
    (path, true)
}

async fn greet(
    read: &mut BufReader<OwnedReadHalf>,
    write: &mut OwnedWriteHalf,
) -> Result<(Label, Option<Vec<String>>), CodecError> {
    write_frame(write, &ToSwitch::Subscribe).await?;
    match read_frame(read).await? {
        FromSwitch::Plane { plane, names } => Ok((plane, names)),
        _ => {
            let reason = "it says something else first".to_string();
            Err(CodecError::Malformed { what: "the name of its plane", length: 0, reason })
        }
    }
}

async fn read_all(
    id: u64,
    read: &mut BufReader<OwnedReadHalf>,
    events: &mpsc::Sender<HubEvent>,
) -> CodecError {
    loop {
        match read_frame(read).await {
            Ok(frame) => {
                if events.send(HubEvent::Frame { id, frame }).await.is_err() {
                    return CodecError::Closed;
                }
            }
            Err(error) => return error,
        }
    }
}

async fn write_all(mut write: OwnedWriteHalf, mut frames: mpsc::Receiver<ToSwitch>) -> CodecError {
    while let Some(frame) = frames.recv().await {
        if let Err(error) = write_frame(&mut write, &frame).await {
            return error;
        }
        if let Err(error) = write.flush().await {
            return error.into();
        }
    }
    CodecError::Closed
}
