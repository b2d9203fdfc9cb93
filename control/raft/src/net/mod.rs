//! Frames between replicas.
//!
//! A [`Transport`] carries frames over links; there is a real one (`driver::tls`) and the simulator's. A link belongs to one
//! [`Lane`], so that a snapshot or a burst of entries holds up neither votes nor signs of life. Over a link go
//! requests with a number and their responses ([`message`]); entries are pipelined: up to [`PIPELINE_MAX`] requests
//! without an answer, answered in order.
//!
//! What a transport promises: a link's frames arrive whole, in order and unforged, or the link breaks; who is at the other
//! end is known. Frames of different links, and of a link and its successor, have no order. Requests are numbered without
//! gaps, and a gap ends the link, so that a transport which lost a frame is noticed.

mod contacts;
pub mod message;
mod peer;
mod server;
#[cfg(test)]
mod tests;
mod transfer;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::sync::mpsc;

pub use contacts::Contacts;
pub use peer::{Client, Network, Pace};
pub use server::{Notice, Service, serve};
pub use transfer::Incoming;

/// The version of the protocol between replicas.
pub const PROTOCOL: u32 = 1;
/// The largest frame, beside the largest batch.
pub const FRAME_OVERHEAD_BYTES: usize = 64 << 10;
/// Frames that may wait in a link, each way.
pub const LINK_FRAMES_MAX: usize = 256;
/// Requests of entries on their way to one replica.
pub const PIPELINE_MAX: usize = 64;

/// What a link is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Entries.
    Append,
    /// Votes, signs of life, digests, orders to lead.
    Control,
    /// Snapshots.
    Snapshot,
    /// What those above the order say to each other.
    Peers,
}

impl Lane {
    /// All of them.
    pub const ALL: [Lane; 4] = [Lane::Append, Lane::Control, Lane::Snapshot, Lane::Peers];

    pub(crate) fn number(self) -> u8 {
        match self {
            Lane::Append => 1,
            Lane::Control => 2,
            Lane::Snapshot => 3,
            Lane::Peers => 4,
        }
    }
}

/// An open link. Dropping either half ends it.
pub struct Link {
    /// To the other replica.
    pub outgoing: mpsc::Sender<Bytes>,
    /// From it; ends when the link is broken.
    pub incoming: mpsc::Receiver<Bytes>,
}

/// A link that another replica opened.
pub struct Accepted {
    /// Who is at the other end, as the transport made sure.
    pub from: u64,
    /// The link.
    pub link: Link,
}

/// Opens links.
pub trait Transport: Send + Sync + 'static {
    /// Opens a link to replica `to` at `address`.
    fn connect(&self, to: u64, address: String, lane: Lane) -> BoxFuture<'static, io::Result<Link>>;
}

/// Hears what another replica's upper half says: its number, which the transport made sure of, and the message. It must
/// not block.
pub type PeerSink = dyn Fn(u64, Bytes) + Send + Sync;

/// Counts of the network of a replica.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NetworkCounters {
    /// Links opened to others.
    pub links_opened: u64,
    /// Tries to open one that failed.
    pub links_failed: u64,
    /// Links of others.
    pub links_accepted: u64,
    /// Links of others that were refused, for a wrong group, version or number.
    pub links_refused: u64,
    /// Requests sent.
    pub requests: u64,
    /// Requests whose answer did not come in time.
    pub timeouts: u64,
    /// Frames that were no message.
    pub malformed: u64,
    /// Bytes sent.
    pub bytes_sent: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// Chunks of snapshots sent.
    pub chunks_sent: u64,
    /// Transfers that went on where an earlier one had ended.
    pub transfers_resumed: u64,
    /// Snapshots received whole.
    pub snapshots_received: u64,
    /// Requests of a leader that were not taken, because this replica's disk was full.
    pub appends_refused: u64,
    /// Messages for another replica's upper half that were lost.
    pub tells_lost: u64,
}

/// The counts, while they count.
#[derive(Debug, Default)]
pub struct Counts {
    pub(crate) links_opened: AtomicU64,
    pub(crate) links_failed: AtomicU64,
    pub(crate) links_accepted: AtomicU64,
    pub(crate) links_refused: AtomicU64,
    pub(crate) requests: AtomicU64,
    pub(crate) timeouts: AtomicU64,
    pub(crate) malformed: AtomicU64,
    pub(crate) bytes_sent: AtomicU64,
    pub(crate) bytes_received: AtomicU64,
    pub(crate) chunks_sent: AtomicU64,
    pub(crate) transfers_resumed: AtomicU64,
    pub(crate) snapshots_received: AtomicU64,
    pub(crate) appends_refused: AtomicU64,
    pub(crate) tells_lost: AtomicU64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves plain values that are each whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

impl Counts {
    /// The counts now.
    pub fn now(&self) -> NetworkCounters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        NetworkCounters {
            links_opened: read(&self.links_opened),
            links_failed: read(&self.links_failed),
            links_accepted: read(&self.links_accepted),
            links_refused: read(&self.links_refused),
            requests: read(&self.requests),
            timeouts: read(&self.timeouts),
            malformed: read(&self.malformed),
            bytes_sent: read(&self.bytes_sent),
            bytes_received: read(&self.bytes_received),
            chunks_sent: read(&self.chunks_sent),
            transfers_resumed: read(&self.transfers_resumed),
            snapshots_received: read(&self.snapshots_received),
            appends_refused: read(&self.appends_refused),
            tells_lost: read(&self.tells_lost),
        }
    }
}

/// What all parts of a replica's network know.
pub struct Common {
    /// This replica.
    pub id: u64,
    /// Its group.
    pub group: String,
    /// Bytes of a frame, at most.
    pub frame_bytes_max: usize,
    /// Counts.
    pub counts: Arc<Counts>,
    /// Whom it reaches.
    pub contacts: Arc<Contacts>,
}
