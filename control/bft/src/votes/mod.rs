//! Where consensus keeps its votes (rows B1, R1): the storage that the consensus library asks for, as records of one durable log of `weir_order`
//! and a copy in memory.
//!
//! simplex keeps a journal with a file for each view. Over plain files a view costs a new file, the syncs of two directories that make it
//! last, syncs that change its length, and a removal: a dozen transactions of the file system, one after the other for all replicas of a
//! disk. Here each vote is one write into bytes that were zeroed before, and one sync that changes no metadata.
//!
//! Invariants
//! - What a completed sync of any blob covers survives everything.
//! - After a crash all blobs together are as they were at one moment, at or after the last completed sync. That is more than the library
//!   asks for: it wants each blob's synced bytes and expects the others torn.
//! - What is live is written anew whenever a segment of the log is full, and takes effect with its last record; only then do older segments go.
//!   So the log is as long as what is live and two segments.
//! - A failed write or sync is final: all that comes after fails too, and the replica ends. It votes again only after the log was opened anew.
//!   A disk without room is no such failure: what is to be written waits ([`writer`]).
//!
//! Departure from what the library asks: a blob is made and removed durably with the next sync, not at once. A blob that comes back is one
//! that consensus had forgotten for being old, and it forgets it again.
//!
//! - [`record`]: the bytes.
//! - [`blobs`]: the blobs in memory.
//! - [`writer`]: the log and who writes it, on a thread of its own, or as a task.
//! - [`Keeping`]: a runtime's context whose storage is this.

pub mod blobs;
mod context;
pub mod record;
#[cfg(test)]
mod tests;
mod writer;

use std::sync::Arc;

use commonware_utils::channel::mpsc;
use weir_base::world::Disk;
use weir_order::Error;
use weir_order::log::{Log, LogSettings};

pub use blobs::Votes;
pub use context::Keeping;
pub use writer::VotesWriter;

use blobs::Blobs;
use record::{RECORD_BYTES_MAX, Reading};

/// Opens the votes in `disk`, or begins without any, on a log with segments of `segment_bytes`. The caller holds the replica's lock.
pub fn open(disk: Arc<dyn Disk>, segment_bytes: u64) -> Result<(Votes, VotesWriter), Error> {
    let settings =
        LogSettings { segment_bytes, batch_bytes_max: RECORD_BYTES_MAX as u64, ..LogSettings::default() };
    let mut reading = Reading::default();
    let (log, _) = Log::open_visited(disk, settings, 0, &mut |header, _, body| {
        reading.record(header.kind, header.tag, body).map_err(|error| error.to_string())
    })?;
    let contents = reading.finish();
    let (requests, requested) = mpsc::unbounded_channel();
    Ok((Votes::new(Blobs::from(contents.clone()), requests), VotesWriter::new(log, contents, requested)))
}
