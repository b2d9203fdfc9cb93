//! Operations of clients of the store, on their way through the order and back (row B1).

use super::ControllerHandle;
use super::locking::locked;
use crate::Error;
use crate::core::Item;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::oneshot;
use weir_base::world::random_u64;
use weir_store::{Batch, Outcome};

type Answer = oneshot::Sender<Result<Vec<Outcome>, Error>>;

/// Batches that wait for their outcomes.
pub(super) struct Operations {
    /// Tells this process from those before it, whose batches a replay may still bring, and from other replicas.
    origin: u64,
    next_ticket: AtomicU64,
    waiting: Mutex<HashMap<u64, Answer>>,
    waiting_max: usize,
}

impl Operations {
    pub fn new(waiting_max: usize) -> Operations {
        // Other processes, here before and elsewhere now, have the same tickets.
        let origin = random_u64();
        Operations { origin, next_ticket: AtomicU64::new(1), waiting: Mutex::default(), waiting_max }
    }

    pub fn answer(&self, origin: u64, ticket: u64, outcomes: Vec<Outcome>) {
        if origin == self.origin {
            self.finish(ticket, Ok(outcomes));
        }
    }

    fn finish(&self, ticket: u64, result: Result<Vec<Outcome>, Error>) {
        if let Some(answer) = locked(&self.waiting).remove(&ticket) {
            // Who asked may have given up.
            let _ = answer.send(result);
        }
    }

    /// How many batches wait for their outcomes.
    pub fn open(&self) -> usize {
        locked(&self.waiting).len()
    }

    pub fn clear(&self) {
        locked(&self.waiting).clear();
    }
}

impl ControllerHandle {
    /// Orders and applies operations on tables of clients. They have their place in the order when this
    /// returns; the outcomes come when they are durable and applied, and [`ControllerHandle::store`] shows them then.
    /// A receiver that is dropped by the controller means that it stopped: they may or may not be done.
    ///
    /// # Errors
    /// [`Error::Overloaded`]: nothing is done.
    pub fn operate(&self, batch: Batch) -> Result<oneshot::Receiver<Result<Vec<Outcome>, Error>>, Error> {
        let shared = self.shared.clone();
        if shared.converts.load(Ordering::SeqCst) {
            return Err(Error::Converts);
        }
        shared.tell_rules();
        let operations = &shared.operations;
        let ticket = operations.next_ticket.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        {
            let mut waiting = locked(&operations.waiting);
            if waiting.len() >= operations.waiting_max {
                let limit = operations.waiting_max;
                return Err(Error::Overloaded { what: "batches of operations", limit });
            }
            waiting.insert(ticket, answer);
        }
        let now_ms = shared.ordered_now_ms();
        let item = Item::Operations { now_ms, origin: operations.origin, ticket, batch };
        let failed = self.shared.clone();
        shared.submit(&item, move |error| failed.operations.finish(ticket, Err(error)));
        Ok(answered)
    }
}
