//! The audit log: what was said, decided, signed and acknowledged, and who lied, as a chain of hashes (issue of the
//! papers' future work: RoSCo §2.7, Cicero §3.7).
//!
//! ```text
//!  core thread ── events, batches, acks ──┐
//!  quorum thread ── faults with proofs ───┴─► keeper (a thread, a log of its own) ── pages ──► API ──► `weir audit`
//! ```
//!
//! - [`record`]: what is kept.
//! - [`link`]: links of the chain and their bytes.
//! - [`links`]: from records to links. The thread that writes them, and the handle to it, are [`crate::driver::Keeper`].
//! - [`auditor`]: checks a chain from its bytes alone; it shares nothing with the keeper but the format, and runs with
//!   whoever asks and not with the controller that is examined.
//!
//! Invariants
//! - A link has the hash of the one before it, so a chain that was changed anywhere has another head. Only whole links
//!   are written; one that a crash tore was never told to anybody.
//! - What the order forgets, the audit has: a snapshot is saved only when the audit is on disk up to its place. After a
//!   crash the rest comes again with the replay, and entries that the audit has are not written twice.
//! - What is not ordered (signatures that arrive, acks, faults) is on disk some milliseconds after it was seen; a crash
//!   may lose that much. Signatures and acks are seen again when actuators return.
//! - The keeper never drops what it is given: who gives waits for room. Its size on disk is bounded: the oldest segments
//!   go, and the chain then begins with the first link that is left.
//!
//! Operations of clients of the store are data and not changes of the cloud: they are not in it.
//!
//! What it proves, and to whom. An event carries its source's signature, a batch the root that the group signed, an ack its
//! actuator's signature, a bad share the statement of the member that sent it: these convince anybody who has the public
//! keys. That nothing was left out is shown only by the chains of the other controllers: their records of the same place in
//! the order must be the same.

pub mod auditor;
pub mod link;
pub mod links;
pub mod record;

pub use auditor::{Auditor, Checked, Finding, Trusted};
pub use link::{Link, LinkHash};
pub use record::{
    BadShare, Body, Contradiction, Ended, EventRecord, KeysRecord, LeftOut, Misdeed, Record, SeenFault,
    Wrong, kind_of,
};
