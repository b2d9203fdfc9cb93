//! The store over the network: a published protocol, a server over any order, and a client (rows B1,
//! B9; the survey's gRPC stream of batches).
//!
//! ```text
//!  callers ─► Client (numbers, batches, repeats) ══ Stream of batches ══► serve ─► StoreService ─► the order
//!               └─ Cache (bounded staleness)                                  (LocalStore, or the controller)
//! ```
//!
//! - [`proto`]: what `proto/weir/store/v1/store.proto` says, and `convert` between it and `weir-store`.
//! - [`service`]: what a server needs of whoever orders and applies. [`local`]: one process with a durable log.
//! - [`server`]: gRPC over a [`service::StoreService`]; who is who is told to it.
//! - [`client`]: numbers requests and repeats them until they have an outcome, so that each is done once;
//!   follows the leader. [`sizes`]: bytes on the wire. [`cache`]: keeps entries, with a bound on their age for each request.
//!
//! Invariants
//! - What the client library gives as done is done, once, in an order that agrees with real time.
//! - A request that it reports as uncertain was done at most once.
//! - A cached entry is never older than the bound of the request that gets it; bound 0 asks the store.

pub use weir_store::access;
pub mod cache;
pub mod client;
mod convert;
mod error;
pub mod local;
pub mod server;
pub mod service;
pub mod sizes;
pub mod tls;

/// Messages and service of `weir.store.v1`.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod proto {
    tonic::include_proto!("weir.store.v1");
}

pub use error::{ConvertError, Error};
