//! The replicated engine for Byzantine faults: [`weir_order::Engine`] over commonware's simplex (rows B1, R1, R4, R9).
//!
//! A group of 3f+1 replicas gives batches one order although f of them do whatever they like. Consensus is simplex with a rotating leader
//! and ed25519 votes; it orders digests of 32 bytes. What is ours is around it, from the bottom up:
//!
//! - [`wire`]: the bytes of batches, blocks and messages.
//! - [`rules`]: what may be ordered next; what was ordered is refused by the vote, batch or signed event.
//! - [`members`]: who is a member in which epoch, and the proof of it.
//! - [`core`]: the pure core: pool of batches, judging and building blocks, committing, fetching, catching up.
//! - [`journal`]: batches, blocks and certificates on the durable log of `weir_order`, states beside it.
//! - [`votes`]: this replica's votes, on a log of their own.
//! - `certificates`: what members need not send to each other, because they have it already.
//! - [`consensus`]: adapters to simplex, and the members' keys.
//! - [`replica`]: joins them, on any runtime and network.
//! - [`driver`]: threads, io_uring or tokio, and TCP. Everything else runs in a simulation as it does in production.
//!
//! **A proposal's way.** The replica that is asked signs the batch, sends it to all and writes it down; so do the others. Whoever leads the
//! next view names the batches that it has in a block. The others vote when they hold the block right, and finalize when it is on
//! their disks, which it mostly is by then. With 2f+1 finalizing votes it is committed. A leader that has nothing to order
//! proposes the parent's digest once more after [`settings::Timers::idle`], so an idle group writes no blocks; one that stays idle
//! rests, and does so every [`settings::Timers::rest`] (`rest`).
//!
//! **Every replica takes proposals**, and each batch is ordered once: a name (origin, life, sequence) is used up when it or a higher one of
//! its origin is ordered. A batch that a leader passed by gets another name from its origin.
//!
//! **Reads.** A barrier orders an empty batch for all reads that wait, so that what they see hangs on no other member's word.
//!
//! **Evidence.** Votes of a member that exclude each other are kept as bytes that convict it ([`evidence`]).
//!
//! **Digests.** Members compare the digests of their states; whose differs from that of 2f+1 serves nothing until it has theirs
//! ([`replica::health`]).
//!
//! **Membership** changes by one at a time: one engine of simplex an epoch, and the members of the next are ordered in the one before
//! ([`members`]). A replica that is no member yet follows the members, by ranges and states, until it is one.
//!
//! **Clocks** matter for nothing: timers run on monotonic time, and members whose clocks differ link as any others.
//!
//! **A lost disk.** A replica that lost its votes may vote again where it had voted, so until it has caught up it is one of the f.
//!
//! Departures: RoSCo and Botelho et al. order with BFT-SMaRt, which has a stable leader and batches of requests in its proposals. Here the
//! leader rotates and batches travel apart from proposals, so no leader can leave a source out for longer than its view, and a
//! leader's upload is not what limits the group.
//!
//! A crate of its own because the generic types of the library take a minute to compile: others see the trait alone.
//! `docs/decisions/0015-byzantine-order-on-commonware.md` says why this library, and what it costs.

mod certificates;
mod codec;
pub mod consensus;
pub mod core;
pub mod driver;
mod error;
pub mod evidence;
pub mod group;
pub mod journal;
mod lock;
mod member;
pub mod members;
pub mod replica;
mod rest;
pub mod rules;
pub mod settings;
mod turns;
pub mod votes;
pub mod wire;

pub use consensus::Identity;
pub use driver::{BftEngine, Places};
pub use error::Error;
pub use evidence::{Conflict, Convicted, Evidence};
pub use group::Members;
pub use members::{Change, Member, Roster, SPARES_MAX};
pub use replica::{PeerSink, Replica, ReplicaCounters, ReplicaStatus, WaitSink};
pub use settings::{Settings, Timers};
