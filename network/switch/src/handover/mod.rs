//! One process of the switch replaces another under traffic (row A30; Andromeda §6.2; decision 0027).
//!
//! ```text
//!        the old one                                      the new one
//!   serves                          ◄── hello ──     reads settings and keys
//!                                   ── welcome ─►     sockets of the underlay, lock, control and punt sockets
//!   serves, notes what changes      ◄── copy ───     reads the checkpoint, follows its journal
//!                                   ── connections ─►                                            brownout
//!   ................................ ◄── freeze ── ...............................................
//!   pauses its engine between two turns, lets                                                    blackout
//!   its slow path end what it has
//!                                   ── changed connections, TAPs, virtual machines,
//!                                      fragments, held frames, frozen ─►
//!                                                     takes all of it, runs its engine
//!   ................................ ◄── serving ─ ...............................................
//!   ends                                              serves
//! ```
//!
//! What is carried: connections with their translations, all of them; descriptors of TAPs, of the underlay and of the local
//! sockets; connections, memory and events of virtual machines ([`crate::ports::vhost::session`]); fragments under way; who takes
//! partial checksums; frames that wait for an answer; the clock of the switch. What is in force comes from the checkpoint
//! and its journal, which the new one follows while the old one writes it. Flows are not carried: the first packet of
//! each makes the new one decide anew, and in order. Keys are read from their files. Packets that come during the
//! blackout wait in the kernel's queues and in the rings of virtual machines.
//!
//! Invariants
//! - At most one of the two reads from outside. The old one stops before it says [`message::Frozen`]; it begins again only when the
//!   new one cannot run any more: it kills it first, by a descriptor of its process.
//! - Until [`message::Message::Serving`] has come the old one can go on, and goes on when the new one says no, dies, or is too
//!   slow. The new one needs the old one no more from [`message::Message::Frozen`] on, and serves also when that one dies then. When
//!   it dies earlier the new one starts from the checkpoint, as after a crash.
//! - The run directory's lock is one open file of both, so nobody else finds it free in between.
//! - Every wait has a limit, named here.
//!
//! A downgrade is the same the other way round: both releases speak a version in common ([`message`]).
//!
//! Departures from the paper: the connections of virtual machine monitors are handed over, so that no monitor connects anew (the
//! paper plans to); updates are taken during the brownout too.

pub mod asks;
pub mod guests;
pub mod message;
pub mod new;
pub mod old;
pub mod store;
pub mod wire;

#[cfg(test)]
mod tests;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use weir_model::Label;
use weir_model::resource::Encapsulation;

/// Name of the socket in the run directory at which a process takes over.
pub const UPGRADE_SOCKET: &str = "upgrade.sock";
/// Largest message, bytes.
pub const MESSAGE_BYTES_MAX: usize = 96 * 1024;
/// Most descriptors of a message: below the kernel's 253.
pub const MESSAGE_FDS_MAX: usize = 128;
/// Connections of one message.
pub const CONNECTIONS_PER_MESSAGE: usize = 512;
/// Records of one message, of what is larger.
pub const RECORDS_PER_MESSAGE: usize = 256;
/// Most rounds of copying before the blackout: the first has all, each further one what changed meanwhile.
pub const ROUNDS_MAX: usize = 8;
/// A round with at most so many connections is the last: they cost well below a millisecond of blackout.
pub const ROUND_SMALL: u64 = 256;

/// How long the answer to a hello may take.
pub const HELLO_LIMIT: Duration = Duration::from_secs(2);
/// How long either may let the other wait during the brownout: the new one reads a checkpoint of millions of entries.
pub const BROWNOUT_LIMIT: Duration = Duration::from_secs(60);
/// How long the slow thread may take to answer during the brownout.
pub const ASK_LIMIT: Duration = Duration::from_secs(5);
/// How long the engine may take to end its turn.
pub const PAUSE_LIMIT: Duration = Duration::from_millis(500);
/// How long the slow path may take to end what it has; what is left then is lost, and counted. It has some thousand frames at most, which
/// take milliseconds; the rest is for a machine on which its thread or the engine's does not get a processor at once.
pub const DRAIN_LIMIT: Duration = Duration::from_millis(400);
/// How long the virtual machines' threads together may take to stand still.
pub const GUESTS_LIMIT: Duration = Duration::from_millis(50);
/// How long either may let the other wait during the blackout.
pub const BLACKOUT_LIMIT: Duration = Duration::from_secs(2);
/// How long to wait for the end of a process that was killed.
pub const KILL_LIMIT: Duration = Duration::from_secs(2);

/// Who this is: another switch is not replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    /// Name.
    pub name: Label,
    /// Domain.
    pub domain: Label,
    /// Address on the underlay, ports of Geneve and VXLAN.
    pub underlay: (IpAddr, u16, u16),
}

/// What does not change while a process runs, and is handed over first.
#[derive(Debug)]
pub struct Fixed {
    /// The lock of the run directory.
    pub lock: OwnedFd,
    /// The listening control socket.
    pub control: OwnedFd,
    /// The punt socket.
    pub punt: OwnedFd,
    /// Sockets that receive.
    pub receivers: Vec<(OwnedFd, Encapsulation)>,
    /// Sockets that send.
    pub senders: Vec<(OwnedFd, Encapsulation)>,
}

/// Which release this is.
pub fn build() -> String {
    format!("weir {}", env!("CARGO_PKG_VERSION"))
}

/// Why a hand-over failed.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    /// The other one ended, or closed the connection.
    #[error("the other process is gone")]
    Gone,
    /// The other one was too slow.
    #[error("the other process took too long")]
    TooSlow,
    /// The other one says no.
    #[error("the other process refuses: {0}")]
    Refused(String),
    /// A message of a kind that this release must know and does not.
    #[error(
        "a message of kind {0}, which this release does not know: use one that speaks a version in common"
    )]
    Unknown(u16),
    /// What the other one says makes no sense.
    #[error("the other process does not keep to the protocol: {0}")]
    Nonsense(String),
    /// A message is over the limits.
    #[error("a message of {bytes} bytes and {descriptors} descriptors is over the limit")]
    TooLarge {
        /// Its bytes.
        bytes: usize,
        /// Its descriptors.
        descriptors: usize,
    },
    /// This side cannot.
    #[error("{0}")]
    Own(String),
    /// The socket failed.
    #[error("the socket between the processes: {0}")]
    Socket(#[source] io::Error),
}

impl From<io::Error> for HandoverError {
    fn from(error: io::Error) -> HandoverError {
        HandoverError::Own(error.to_string())
    }
}

/// What is counted of hand-overs, by the process that counts it.
#[derive(Debug, Default)]
pub struct HandoverCounters {
    /// Processes that wanted to take over.
    pub begun: AtomicU64,
    /// Hand-overs that failed before the blackout.
    pub failed_brownout: AtomicU64,
    /// Hand-overs that failed in the blackout: this process went on.
    pub failed_blackout: AtomicU64,
    /// Processes that were killed because they had not said that they serve.
    pub killed: AtomicU64,
    /// Frames that the slow path had no time for before the blackout.
    pub frames_left: AtomicU64,
    /// Whether this process took over from another.
    pub taken_over: AtomicU64,
    /// Connections that it took over.
    pub connections: AtomicU64,
    /// Sockets of virtual machines that could not be handed over.
    pub guests_left: AtomicU64,
    /// How long it was from its hello to the blackout, microseconds.
    pub brownout_us: AtomicU64,
    /// How long the blackout was as it saw it, microseconds.
    pub blackout_us: AtomicU64,
}

impl HandoverCounters {
    /// All, by name.
    pub fn all(&self) -> [(&'static str, u64); 10] {
        use std::sync::atomic::Ordering::Relaxed;
        [
            ("handovers_begun", &self.begun),
            ("handovers_failed{phase=\"brownout\"}", &self.failed_brownout),
            ("handovers_failed{phase=\"blackout\"}", &self.failed_blackout),
            ("handover_kills", &self.killed),
            ("handover_frames_left", &self.frames_left),
            ("handover_taken_over", &self.taken_over),
            ("handover_connections", &self.connections),
            ("handover_guests_left", &self.guests_left),
            ("handover_brownout_us", &self.brownout_us),
            ("handover_blackout_us", &self.blackout_us),
        ]
        .map(|(name, count)| (name, count.load(Relaxed)))
    }
}

/// Writes this process's number into the lock that it holds: `flock` alone tells who took it first.
///
/// # Errors
/// I/O errors.
pub fn sign_lock(lock: &OwnedFd) -> io::Result<()> {
    let text = format!("{}\n", std::process::id());
    rustix::fs::ftruncate(lock.as_fd(), 0)?;
    let written = rustix::io::pwrite(lock.as_fd(), text.as_bytes(), 0)?;
    if written == text.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}
