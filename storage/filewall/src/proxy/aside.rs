//! Calls that are set aside so that others of the same client go first (paper 4.2.3: messages are reordered); which ones a policy
//! says ([`crate::policy::reorder`]).
//!
//! A call that is set aside has passed all policies and is pending: only its record waits, as a copy. It goes out when its
//! time is over, when nothing that could go first is waiting, when there are too many, or before a call that depends on it.
//!
//! Invariants
//! - Calls that are set aside keep their order among each other.
//! - No call passes one that is set aside for the same file, and only looks and reads pass at all: whatever changes a name, a
//!   length or an attribute, and every COMPOUND, waits for what came before it.
//! - At most [`CALLS_MAX`] calls of [`BYTES_MAX`] bytes wait on one session.

use super::buffer::Output;
use crate::message::Call;
use crate::metrics::Totals;
use crate::wire::nfs3::{Handle, LOOKS, READS};
use std::collections::VecDeque;

/// Most calls that wait on one session.
pub const CALLS_MAX: usize = 64;
/// Most bytes of them.
pub const BYTES_MAX: usize = 8 << 20;

#[derive(Debug)]
struct Aside {
    record: Vec<u8>,
    handle: Handle,
    until_us: u64,
}

/// The calls that wait on a session.
#[derive(Debug, Default)]
pub struct Asides {
    queue: VecDeque<Aside>,
    bytes: usize,
}

impl Asides {
    /// True if none waits.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Number of calls that wait.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// True if a record of so many bytes may wait too.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.queue.len() < CALLS_MAX && self.bytes + bytes <= BYTES_MAX
    }

    /// Sets a record aside, with its mark.
    pub fn push(&mut self, record: Vec<u8>, handle: Handle, until_us: u64, totals: &Totals) {
        Totals::count(&totals.set_aside_total);
        self.bytes += record.len();
        self.queue.push_back(Aside { record, handle, until_us });
    }

    /// True if a call may go before those that wait.
    pub fn may_pass(&self, call: &Call<'_>) -> bool {
        let looks = call.op().bit() & (LOOKS | READS) != 0;
        looks && self.queue.iter().all(|aside| aside.handle.as_bytes() != call.handle(0))
    }

    /// When the first one must go, µs.
    pub fn until_us(&self) -> Option<u64> {
        self.queue.iter().map(|aside| aside.until_us).min()
    }

    /// All go out now.
    pub fn release(&mut self, output: &mut Output) {
        self.bytes = 0;
        for aside in self.queue.drain(..) {
            output.head(|out| out.extend_from_slice(&aside.record));
        }
    }
}
