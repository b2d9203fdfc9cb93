//! The replicated engine for crash faults: [`weir_order::Engine`] over openraft (rows B1, R1, R9).
//!
//! A group of 2f+1 replicas gives batches one order and survives f of them, and the loss of all of them at once except for
//! their disks. openraft does the consensus; what is ours is around it:
//!
//! - [`log`]: openraft's log on the durable log of `weir_order`: one writer, group commit, the vote in the same log.
//! - [`machine`]: hands committed batches to the application's sink, and the state to and from snapshots.
//! - [`net`]: requests between replicas over a transport's links, entries pipelined, snapshots in chunks that can be resumed.
//! - [`replica`]: proposals, barriers for reads, membership, status, fencing of a replica that diverged.
//! - [`seed`]: the directory of a replica that begins with the state of another order.
//! - [`runtime`]: tokio for openraft, made repeatable by a seed.
//! - [`driver`]: threads, TCP and TLS. Everything else runs in a simulation as it does in production.
//!
//! A crate of its own because openraft's generic types are a weight that others must not link: they see the trait only.
//! openraft is an alpha and pinned exactly; `docs/decisions/0005-raft-by-openraft.md` says why and what would change it.
//!
//! Departures from the papers: Botelho et al. order with BFT-SMaRt in its crash mode; here it is raft. Their clients' requests
//! are ordered one by one; here the batcher of `weir_order` makes one entry of what waits.

mod codec;
pub mod driver;
mod error;
pub mod log;
pub mod machine;
pub mod net;
pub mod replica;
pub mod runtime;
mod seed;
mod settings;
mod types;

pub use error::Error;
pub use replica::{Change, Lag, Leadership, ReadKind, Replica, ReplicaCounters, ReplicaStatus, Role};
pub use seed::{is_as_seeded, seed};
pub use settings::{Settings, Timers};
