//! Gathers operations into batches for an engine (row R9: size and time limits are settings).
//!
//! A pure core. Two batches may be in flight; what comes meanwhile waits and forms the next batch, so the batch size
//! follows the load without a timer. A linger is off by default: measured, it costs latency and gains nothing.
//!
//! Invariants
//! - Operations keep the order in which they were offered, within and across batches.
//! - The queue is bounded in operations and in bytes; beyond, an offer is refused and counted, and nothing is dropped.
//! - Every operation that was taken is answered exactly once.
//!
//! Departure from R9: the paper's default is 1,000 events or 0.1 s; ours is 512 operations or 512 KiB and no time.

mod codec;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use bytes::Bytes;

pub use codec::{BATCH_OVERHEAD_BYTES, OPERATION_OVERHEAD_BYTES, decode, encode};

use crate::counters::BatcherCounters;
use crate::error::Error;
use crate::position::Position;

/// Limits of a batcher.
#[derive(Debug, Clone, Copy)]
pub struct BatcherSettings {
    /// Operations in a batch, at most.
    pub operations_max: usize,
    /// Bytes of a batch, at most, unless one operation alone is larger.
    pub batch_bytes_max: usize,
    /// The largest operation.
    pub operation_bytes_max: usize,
    /// How long an operation may wait for its batch to fill, in ns. 0: not at all.
    pub linger_ns: u64,
    /// Lets operations wait only after a batch that had more operations than this: a lone caller then waits for nobody, while
    /// many, who are all answered at once and come back at once, share a batch. 0: always.
    pub linger_above_operations: usize,
    /// Batches proposed and not yet answered.
    pub in_flight_max: usize,
    /// Operations that may wait.
    pub queue_operations_max: usize,
    /// Bytes that may wait.
    pub queue_bytes_max: usize,
}

impl Default for BatcherSettings {
    fn default() -> Self {
        BatcherSettings {
            operations_max: 512,
            batch_bytes_max: 512 << 10,
            operation_bytes_max: 4 << 20,
            linger_ns: 0,
            linger_above_operations: 0,
            in_flight_max: 2,
            queue_operations_max: 65_536,
            queue_bytes_max: 64 << 20,
        }
    }
}

/// Where an operation stands in the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct OperationPosition {
    /// Its batch's place.
    pub batch: Position,
    /// Its place in the batch, from 0.
    pub nth: u32,
}

/// What happens to the batcher. `T` names an operation to whoever drives the batcher.
#[derive(Debug)]
pub enum Input<T> {
    /// Somebody wants a place for an operation.
    Offer {
        /// Comes back in [`Output::Reply`].
        ticket: T,
        /// The operation.
        operation: Bytes,
        /// The time now.
        now_ns: u64,
    },
    /// The engine answered a proposal.
    Finished {
        /// Which.
        batch: u64,
        /// The answer.
        result: Result<Position, Error>,
        /// The time now.
        now_ns: u64,
    },
    /// Time passed.
    Tick {
        /// The time now.
        now_ns: u64,
    },
}

/// What the driver must do, in this order.
#[derive(Debug)]
pub enum Output<T> {
    /// Propose this to the engine, and report the answer.
    Propose {
        /// Names the batch.
        batch: u64,
        /// Its bytes.
        bytes: Bytes,
    },
    /// Answer an operation.
    Reply {
        /// Which.
        ticket: T,
        /// Its place, or why it has none.
        result: Result<OperationPosition, Error>,
    },
}

struct Waiting<T> {
    ticket: T,
    operation: Bytes,
    since_ns: u64,
}

/// The batcher's core.
pub struct Batcher<T> {
    settings: BatcherSettings,
    queue: VecDeque<Waiting<T>>,
    queue_bytes: usize,
    in_flight: VecDeque<(u64, Vec<T>)>,
    next_batch: u64,
    /// Operations of the last batch that was answered.
    last_operations: usize,
    counters: BatcherCounters,
}

impl<T> Batcher<T> {
    /// An empty batcher.
    pub fn new(settings: BatcherSettings) -> Batcher<T> {
        let (queue, in_flight) = (VecDeque::new(), VecDeque::new());
        Batcher {
            settings,
            queue,
            queue_bytes: 0,
            in_flight,
            next_batch: 0,
            last_operations: 0,
            counters: BatcherCounters::default(),
        }
    }

    /// What was counted so far.
    pub fn counters(&self) -> BatcherCounters {
        self.counters
    }

    /// Lets nothing linger from now on; send a tick for what waits already.
    pub fn stop_linger(&mut self) {
        self.settings.linger_ns = 0;
    }

    /// When to send [`Input::Tick`], if nothing else comes before: the end of a linger.
    pub fn wake_at_ns(&self) -> Option<u64> {
        let may_propose = self.lingers() && self.in_flight.len() < self.settings.in_flight_max;
        let oldest = self.queue.front().filter(|_| may_propose)?;
        Some(oldest.since_ns.saturating_add(self.settings.linger_ns))
    }

    /// The next step.
    pub fn step(&mut self, input: Input<T>, out: &mut Vec<Output<T>>) {
        let now_ns = match input {
            Input::Offer { ticket, operation, now_ns } => {
                if let Err(error) = self.admit(operation.len()) {
                    out.push(Output::Reply { ticket, result: Err(error) });
                    return;
                }
                self.counters.operations += 1;
                self.queue_bytes += operation.len();
                self.queue.push_back(Waiting { ticket, operation, since_ns: now_ns });
                now_ns
            }
            Input::Finished { batch, result, now_ns } => {
                self.finish(batch, &result, out);
                now_ns
            }
            Input::Tick { now_ns } => now_ns,
        };
        while self.is_due(now_ns) {
            self.propose(out);
        }
    }

    fn admit(&mut self, bytes: usize) -> Result<(), Error> {
        let settings = &self.settings;
        if bytes > settings.operation_bytes_max {
            let limit_bytes = settings.operation_bytes_max as u64;
            return Err(Error::TooLarge { what: "the operation", bytes: bytes as u64, limit_bytes });
        }
        let (what, waiting, limit) = if self.queue.len() >= settings.queue_operations_max {
            ("operations", self.queue.len(), settings.queue_operations_max)
        } else if self.queue_bytes + bytes > settings.queue_bytes_max {
            ("bytes of operations", self.queue_bytes, settings.queue_bytes_max)
        } else {
            return Ok(());
        };
        self.counters.overloads += 1;
        Err(Error::Overloaded { what, waiting: waiting as u64, limit: limit as u64 })
    }

    fn lingers(&self) -> bool {
        let above = self.settings.linger_above_operations;
        self.settings.linger_ns > 0 && (above == 0 || self.last_operations > above)
    }

    fn is_due(&self, now_ns: u64) -> bool {
        let Some(oldest) = self.queue.front() else { return false };
        if self.in_flight.len() >= self.settings.in_flight_max {
            return false;
        }
        let overhead = BATCH_OVERHEAD_BYTES + OPERATION_OVERHEAD_BYTES * self.queue.len();
        self.queue.len() >= self.settings.operations_max
            || self.queue_bytes + overhead >= self.settings.batch_bytes_max
            // Threads read the clock before they queue here, so `now_ns` may be a little before `since_ns`.
            || !self.lingers()
            || oldest.since_ns.saturating_add(self.settings.linger_ns) <= now_ns
    }

    fn propose(&mut self, out: &mut Vec<Output<T>>) {
        let (mut tickets, mut operations) = (Vec::new(), Vec::new());
        let mut bytes = BATCH_OVERHEAD_BYTES;
        while let Some(next) = self.queue.front() {
            let with_next = bytes + OPERATION_OVERHEAD_BYTES + next.operation.len();
            let full =
                operations.len() >= self.settings.operations_max || with_next > self.settings.batch_bytes_max;
            if full && !operations.is_empty() {
                break;
            }
            let Some(next) = self.queue.pop_front() else { break };
            bytes = with_next;
            self.queue_bytes -= next.operation.len();
            tickets.push(next.ticket);
            operations.push(next.operation);
        }
        let batch = self.next_batch;
        self.next_batch += 1;
        self.in_flight.push_back((batch, tickets));
        self.counters.batches += 1;
        self.counters.bytes += bytes as u64;
        out.push(Output::Propose { batch, bytes: encode(&operations) });
    }

    fn finish(&mut self, batch: u64, result: &Result<Position, Error>, out: &mut Vec<Output<T>>) {
        let found = self.in_flight.iter().position(|(id, _)| *id == batch);
        let Some((_, tickets)) = found.and_then(|at| self.in_flight.remove(at)) else {
            unreachable!("batch {batch} was answered twice or never proposed");
        };
        self.last_operations = tickets.len();
        if result.is_err() {
            self.counters.failed += tickets.len() as u64;
        }
        for (nth, ticket) in tickets.into_iter().enumerate() {
            let result = result.clone().map(|batch| OperationPosition { batch, nth: nth as u32 });
            out.push(Output::Reply { ticket, result });
        }
    }
}
