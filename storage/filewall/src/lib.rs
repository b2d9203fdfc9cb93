//! FileWall: a policy middlebox for NFS that neither clients nor servers know of (Bohra, chapter 4; row F).
//!
//! Clients mount FileWall as if it were the server. Every call passes an ordered chain of policies before it reaches the
//! server, and its reply passes the same policies in the opposite order.
//!
//! ```text
//!  client ──► record ──► arguments ──► policy 0 ► policy 1 ► … ──► pending map ──► server
//!                        (in place)       │ answer, wait                              │
//!  client ◄── record ◄── policy 0 ◄ policy 1 ◄ … ◄── results (in place) ◄─────────────┘
//! ```
//!
//! - [`wire`]: ONC RPC, NFSv3, NFSv4.0 and 4.1, MOUNT, PORTMAP, decoded where they lie.
//! - [`message`]: a call and a reply as policies see and change them.
//! - [`identity`]: users, groups, roles; who is calling.
//! - [`places`]: which handle is below which path of the policies, learnt from the messages.
//! - [`policy`]: the policies, their files, and the chain.
//! - [`proxy`]: listeners, sessions, the pending map, retransmissions, the way to the server.
//! - [`replicate`]: several servers as one.
//! - [`metrics`]: what `weir filewall top` and Prometheus show.
//!
//! Invariants
//! - A call is forwarded at most once: each upstream transaction number belongs to one entry of the pending map, and a
//!   retransmission of an operation that must happen once is answered from memory (see [`proxy::retransmit`]).
//! - Every call that is not forwarded gets an answer in the shape of its operation, except one that is a copy of a
//!   call still pending, whose answer is on its way.
//! - A policy file that is wrong changes nothing: the chain before it stays in force.
//! - Payloads of READ and WRITE are written from the buffer that they were received into, unless a COMPOUND is cut behind one.
//!
//! Departures from the paper: see [`policy`] (files and compiled tables in place of FWL and its C compiler),
//! [`policy::handles`] (handles that carry their content under a key in place of two persistent maps), and
//! [`proxy`] (policies run to completion one after another on the thread of their session: there are no buffers
//! between them that could overflow).

pub mod error;
pub mod identity;
pub mod message;
pub mod metrics;
pub mod places;
pub mod policy;
pub mod proxy;
pub mod replicate;
pub mod wire;

pub use error::{Error, Result};
