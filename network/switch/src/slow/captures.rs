//! Captures that clients asked for: the engine fills their rings, every tick empties them.

use super::Slow;
use super::mind::Mind;
use crate::capture::{CAPTURES_MAX, Point, Reader, capture};
use crate::control::clients::Client;
use crate::engine::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_model::local::{Answer, FromSwitch, PortName};

/// Bytes of captured frames in one answer.
const CHUNK_BYTES: usize = 1024 * 1024;
/// Longest capture.
const DURATION_MAX: Duration = Duration::from_secs(3600);

struct Running {
    id: u64,
    client: Arc<Client>,
    question: u64,
    frames_left: u32,
    ends: Instant,
    reader: Reader,
}

/// The captures that run.
#[derive(Default)]
pub struct Captures {
    running: Vec<Running>,
    last_id: u64,
}

/// What to capture.
pub(super) struct Wanted {
    pub(super) port: Option<PortName>,
    pub(super) frames_max: u32,
    pub(super) duration_ms: u32,
    pub(super) snap_bytes: u32,
}

impl<M: Mind> Slow<M> {
    /// Starts a capture.
    ///
    /// # Errors
    /// Why not, in words.
    pub(super) fn start_capture(
        &mut self,
        client: &Arc<Client>,
        question: u64,
        wanted: &Wanted,
    ) -> Result<(), String> {
        if self.captures.running.len() >= CAPTURES_MAX {
            return Err(format!("{CAPTURES_MAX} captures run already: end one first"));
        }
        let point = match &wanted.port {
            None => Point::Underlay,
            Some(name) => match self.ports.named(name, self.kept.gate()) {
                Some(port) => Point::Port(usize::from(port)),
                None => return Err(format!("there is no port {name} here")),
            },
        };
        self.captures.last_id += 1;
        let id = self.captures.last_id;
        let duration = Duration::from_millis(u64::from(wanted.duration_ms)).min(DURATION_MAX);
        let (tap, reader) = capture(id, point, wanted.frames_max, duration, wanted.snap_bytes);
        self.captures.running.push(Running {
            id,
            client: Arc::clone(client),
            question,
            frames_left: wanted.frames_max,
            ends: Instant::now() + duration,
            reader,
        });
        self.command(Command::StartCapture(tap)).map_err(|error| error.to_string())
    }

    /// Sends what was captured, and ends captures that are over.
    pub(super) fn serve_captures(&mut self) {
        let mut over = Vec::new();
        for running in &mut self.captures.running {
            let last = Instant::now() >= running.ends || !running.client.is_alive();
            let frames = take_frames(running);
            let last = last || running.frames_left == 0;
            if last || !frames.is_empty() {
                let answer = Answer::Captured { frames, last };
                running.client.send(&FromSwitch::Answer { id: running.question, answer });
            }
            if last {
                over.push(running.id);
            }
        }
        for id in over {
            self.captures.running.retain(|running| running.id != id);
            let _ = self.command(Command::StopCapture(id));
        }
    }
}

fn take_frames(running: &mut Running) -> Vec<(u64, u32, Vec<u8>)> {
    let (mut frames, mut bytes) = (Vec::new(), 0);
    while running.frames_left > 0 && bytes < CHUNK_BYTES {
        let Some((stamp, kept)) = running.reader.peek() else { break };
        bytes += kept.len();
        frames.push((stamp.time_ns, stamp.length, kept.to_vec()));
        running.reader.pop();
        running.frames_left -= 1;
    }
    frames
}
