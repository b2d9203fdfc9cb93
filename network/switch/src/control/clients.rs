//! A client of the control socket, as the slow thread sees it: a bounded queue of frames.

use crate::engine::sys::Wakeup;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;
use weir_base::codec::encode_frame;
use weir_model::local::{FromSwitch, ToSwitch};

/// Bytes that may wait for one client. One that does not read is dropped when there are more.
pub const WAITING_BYTES_MAX: usize = 32 * 1024 * 1024;

/// What the control thread counts.
#[derive(Debug, Default)]
pub struct ControlCounters {
    /// Clients dropped because they did not read.
    pub clients_dropped: AtomicU64,
    /// Clients closed because they sent what is no frame.
    pub clients_malformed: AtomicU64,
    /// Clients refused because there were too many.
    pub clients_refused: AtomicU64,
    /// Whether new clients wait, because another process takes over, who will serve them.
    pub paused: AtomicBool,
}

/// What a client wants.
pub struct Request {
    /// Who.
    pub client: Arc<Client>,
    /// What.
    pub body: ToSwitch,
    /// When it was whole.
    pub received: Instant,
}

#[derive(Default)]
struct Waiting {
    frames: VecDeque<Vec<u8>>,
    bytes: usize,
}

/// See the module.
pub struct Client {
    waiting: Mutex<Waiting>,
    alive: AtomicBool,
    wake: Arc<Wakeup>,
    counters: Arc<ControlCounters>,
}

impl Client {
    /// A client with an empty queue; `wake` wakes whoever writes it out.
    pub fn new(wake: Arc<Wakeup>, counters: Arc<ControlCounters>) -> Client {
        Client { waiting: Mutex::default(), alive: AtomicBool::new(true), wake, counters }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // A queue is whole after every push and pop, also when a thread panicked between them.
        self.waiting.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Queues a frame. A client with too much in its queue ends instead.
    pub fn send(&self, frame: &FromSwitch) {
        if !self.is_alive() {
            return;
        }
        let bytes = match encode_frame(frame) {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::error!(%error, "an answer was too long to send");
                return;
            }
        };
        let mut waiting = self.waiting();
        if waiting.bytes + bytes.len() > WAITING_BYTES_MAX {
            drop(waiting);
            self.counters.clients_dropped.fetch_add(1, Relaxed);
            self.end();
            return;
        }
        waiting.bytes += bytes.len();
        waiting.frames.push_back(bytes);
        drop(waiting);
        self.wake.wake();
    }

    /// The next frame to write.
    pub fn next_frame(&self) -> Option<Vec<u8>> {
        let mut waiting = self.waiting();
        let frame = waiting.frames.pop_front()?;
        waiting.bytes -= frame.len();
        Some(frame)
    }

    /// Bytes in the queue.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting().bytes
    }

    /// Whether frames can be sent to it.
    pub fn is_alive(&self) -> bool {
        self.alive.load(Relaxed)
    }

    /// The client is gone.
    pub fn end(&self) {
        self.alive.store(false, Relaxed);
        let mut waiting = self.waiting();
        waiting.frames.clear();
        waiting.bytes = 0;
        drop(waiting);
        self.wake.wake();
    }
}
