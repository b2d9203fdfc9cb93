//! Gathers single operations into batches in front of an engine.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bytes::Bytes;
use weir_base::world::Clock;

use super::locked;
use crate::batcher::{Batcher, BatcherSettings, Input, OperationPosition, Output};
use crate::counters::BatcherCounters;
use crate::engine::{Completion, Engine};
use crate::error::Error;

/// Called once with the fate of an operation, on the caller's or the engine's thread.
pub type Reply = Box<dyn FnOnce(Result<OperationPosition, Error>) + Send>;

struct Inner {
    engine: Arc<dyn Engine>,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    wake: Condvar,
}

struct State {
    batcher: Batcher<Reply>,
    /// When the linger thread means to wake; it must be woken for anything earlier.
    sleeps_until_ns: Option<u64>,
    closed: bool,
}

/// Takes operations and answers each when it is durable and committed. Dropping it lets what was taken finish.
pub struct Submitter {
    inner: Arc<Inner>,
    linger: Option<JoinHandle<()>>,
}

impl Submitter {
    /// A submitter in front of `engine`. A thread is started only when the settings ask for a linger.
    pub fn new(
        engine: Arc<dyn Engine>,
        clock: Arc<dyn Clock>,
        settings: BatcherSettings,
    ) -> Result<Submitter, Error> {
        let state = State { batcher: Batcher::new(settings), sleeps_until_ns: None, closed: false };
        let inner = Arc::new(Inner { engine, clock, state: Mutex::new(state), wake: Condvar::new() });
        let linger = match settings.linger_ns {
            0 => None,
            _ => {
                let inner = Arc::clone(&inner);
                Some(super::spawn("order-linger", move || inner.linger())?)
            }
        };
        Ok(Submitter { inner, linger })
    }

    /// Asks for a place for `operation`. Operations of one thread keep their order. `reply` may be called within.
    pub fn submit(&self, operation: Bytes, reply: Reply) {
        let now_ns = self.inner.clock.now_ns();
        Inner::step(&self.inner, Input::Offer { ticket: reply, operation, now_ns });
    }

    /// What was counted so far.
    pub fn counters(&self) -> BatcherCounters {
        locked(&self.inner.state).batcher.counters()
    }
}

impl Inner {
    fn step(inner: &Arc<Inner>, input: Input<Reply>) {
        let mut replies = Vec::new();
        {
            let mut state = locked(&inner.state);
            let mut inputs = vec![input];
            // Proposed under the lock, or two threads could swap two batches.
            while let Some(input) = inputs.pop() {
                let mut out = Vec::new();
                state.batcher.step(input, &mut out);
                for output in out {
                    match output {
                        Output::Reply { ticket, result } => replies.push((ticket, result)),
                        Output::Propose { batch, bytes } => {
                            inputs.extend(Inner::propose(inner, batch, bytes))
                        }
                    }
                }
            }
            if state.batcher.wake_at_ns() != state.sleeps_until_ns {
                inner.wake.notify_all();
            }
        }
        for (reply, result) in replies {
            reply(result);
        }
    }

    /// Gives the answer when the engine refuses at once.
    fn propose(inner: &Arc<Inner>, batch: u64, bytes: Bytes) -> Option<Input<Reply>> {
        let keep = Arc::clone(inner);
        let done = Completion::new(move |result| {
            let now_ns = keep.clock.now_ns();
            Inner::step(&keep, Input::Finished { batch, result, now_ns });
        });
        let refused = inner.engine.propose(bytes, done).err()?;
        let now_ns = inner.clock.now_ns();
        Some(Input::Finished { batch, result: Err(refused), now_ns })
    }

    /// Ticks the batcher whenever a linger ends.
    fn linger(self: &Arc<Inner>) {
        let mut state = locked(&self.state);
        while !state.closed {
            let now_ns = self.clock.now_ns();
            let wake_at_ns = state.batcher.wake_at_ns();
            state.sleeps_until_ns = wake_at_ns;
            state = match wake_at_ns {
                Some(at_ns) if at_ns <= now_ns => {
                    drop(state);
                    Inner::step(self, Input::Tick { now_ns });
                    locked(&self.state)
                }
                Some(at_ns) => {
                    let wait = Duration::from_nanos(at_ns - now_ns);
                    self.wake.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

impl Drop for Submitter {
    fn drop(&mut self) {
        let Some(linger) = self.linger.take() else { return };
        {
            let mut state = locked(&self.inner.state);
            state.closed = true;
            state.batcher.stop_linger();
        }
        self.inner.wake.notify_all();
        Inner::step(&self.inner, Input::Tick { now_ns: self.inner.clock.now_ns() });
        if linger.thread().id() != thread::current().id() && linger.join().is_err() {
            tracing::error!("the linger thread panicked");
        }
    }
}
