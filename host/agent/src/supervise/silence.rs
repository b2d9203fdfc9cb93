//! Notices a switch that lives and does nothing: it is asked on its control socket, by the thread of it that
//! everything waits for.
//!
//! Silence is what counts, nothing else: an answer of any kind, also a stream that it closes, is life. The time
//! runs only while the supervisor itself runs, slice by slice, so that a machine that was asleep or overloaded as a
//! whole kills nobody. A switch that a debugger or tracer is attached to is left alone.

use super::holder;
use crate::wire::{read_frame, write_frame};
use rustix::process::Pid;
use std::path::Path;
use std::pin::pin;
use std::time::Duration;
use tokio::net::UnixStream;
use weir_base::codec::CodecError;
use weir_model::local::{FromSwitch, Question, ToSwitch};

/// The time for an answer is counted in so many slices.
const SLICES: u32 = 10;
/// A switch that was just started has so many times the time for its first answer: it reads its checkpoint.
const FIRST_ANSWER_TIMES: u32 = 6;
/// Frames that the switch may send before the answer.
const FRAMES_MAX: usize = 16;

/// Waits until the switch that holds `lock` has not answered on `socket` for `limit`. Without a limit for ever.
pub(super) async fn wait(socket: &Path, lock: &Path, limit: Option<Duration>) {
    let Some(limit) = limit else { return std::future::pending().await };
    let mut left = FIRST_ANSWER_TIMES;
    loop {
        tokio::time::sleep(limit / SLICES).await;
        if answers(socket, limit).await {
            left = 1;
            continue;
        }
        left -= 1;
        if left == 0 {
            match holder(lock).filter(|pid| is_traced(*pid)) {
                None => return,
                Some(pid) => {
                    let pid = pid.as_raw_pid();
                    tracing::warn!(
                        pid,
                        "the switch does not answer, but a debugger holds it: it is left alone"
                    );
                    left = 1;
                }
            }
        }
    }
}

/// Whether there is an answer within the time.
async fn answers(socket: &Path, limit: Duration) -> bool {
    let slice = limit / SLICES;
    let mut asked = pin!(ask(socket, slice));
    for _ in 0..SLICES {
        if tokio::time::timeout(slice, &mut asked).await.is_ok() {
            return true;
        }
    }
    false
}

/// Asks until something comes back: an answer, or the end of the stream, which a switch with too many clients gives.
async fn ask(socket: &Path, pause: Duration) {
    loop {
        // No socket yet, or nobody who listens, is no sign of life.
        if let Ok(stream) = UnixStream::connect(socket).await {
            if let Err(error) = ask_once(stream).await {
                tracing::debug!(%error, "the switch lives and does not answer");
            }
            return;
        }
        tokio::time::sleep(pause).await;
    }
}

async fn ask_once(mut stream: UnixStream) -> Result<(), CodecError> {
    let question = Question::Connections { limit: 0 };
    write_frame(&mut stream, &ToSwitch::Ask { id: 1, question }).await?;
    for _ in 0..FRAMES_MAX {
        if let FromSwitch::Answer { .. } = read_frame(&mut stream).await? {
            break;
        }
    }
    Ok(())
}

/// Whether a debugger or tracer is attached to a process.
fn is_traced(pid: Pid) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_pid())).unwrap_or_default();
    has_tracer(&status)
}

/// The same, from the text of its `status`.
fn has_tracer(status: &str) -> bool {
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    tracer.is_some_and(|pid| pid.trim() != "0")
}

#[cfg(test)]
mod tests;
