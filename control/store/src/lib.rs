//! The store: named tables of opaque values, the operations that clients order on them, and the
//! procedures that run beside them (Botelho et al., rows B2, B5 to B8; the parts of B1 and B9 that a
//! state machine has).
//!
//! ```text
//!   ordered: Batch of a client ─► Store::apply ─► outcomes, changes      events ─► App::decide on a View ─► Store::commit
//!   not ordered: Query ─► Store::query on a snapshot
//! ```
//!
//! Two kinds of tables live side by side. A table with a plain name belongs to the apps that decide on
//! events ([`App`]). A table named `namespace/word` belongs to clients ([`Operation`]); no operation
//! writes the former, and no app the latter, so one order and one digest hold both.
//!
//! From the bottom up
//! - [`columns`]: columns inside a value; [`name`]: whose a name is.
//! - [`View`]: a change in the making, with quotas; [`Store::commit`] makes it true.
//! - [`operation`], [`query`]: the vocabulary. [`access`]: who may ask what. [`meter`]: what an entry may cost.
//!   [`apply`]: what operations do. [`clients`]: each request once.
//! - [`procedure`]: procedures of clients, in Rust or loaded (`weir-procedure` has the WebAssembly ones).
//! - [`history`]: the last changes, so that a watcher resumes.
//!
//! Invariants
//! - It changes only by [`Store::apply`] and by committing a [`View`], each change at a version above
//!   all before. The same calls in the same order give the same outcomes and the same digest, with any
//!   number of snapshots and restores between them.
//! - A view sees its own writes; dropping it leaves no trace. So a dry run is a decision whose view
//!   is dropped, and a transaction or procedure that fails has done nothing.
//! - A clone of a store is a snapshot: it costs nothing and never changes.
//! - A request of an open client is done at most once; asked again it gets the same outcome.
//! - Entries go by ordered time only, and before anything else that is ordered at that time.
//!
//! No socket, thread, clock or disk: who hosts the store orders, stores and moves bytes.
//!
//! The digest is a sum over all parts, so that it runs along at the cost of one hash a write. It tells
//! replicas apart that differ by fault; it does not withstand somebody who chooses values to hide a difference.

pub mod access;
mod app;
pub mod apply;
mod call;
mod cell;
pub mod clients;
pub mod columns;
mod digest;
pub mod history;
pub mod meter;
mod module;
pub mod name;
pub mod operation;
pub mod procedure;
pub mod query;
mod snapshot;
mod tables;
mod view;
mod writes;

pub use app::{App, Decision, Rejection};
pub use apply::{Applied, Change, Terms};
pub use cell::{Cell, Key, TableName};
pub use history::{History, HistoryError, HistorySettings};
pub use meter::Meter;
pub use module::MODULE_BYTES_MAX;
pub use operation::{
    Action, Batch, Condition, Operation, Outcome, ProcedureLimits, Quota, Refusal, Request, Step,
    StepOutcome, TableOptions, Write, principal_of,
};
pub use procedure::{Aborted, BadModule, Call, Entry, Loader, Procedure, Registry};
pub use query::{Answer, Found, ProcedureInfo, Query, Select, Selected, TableInfo};
pub use snapshot::SnapshotError;
pub use tables::{Changed, Store};
pub use view::{Mark, View};

/// Longest key, bytes.
pub const KEY_BYTES_MAX: usize = 1024;
/// Largest value, bytes.
pub const VALUE_BYTES_MAX: usize = 1024 * 1024;
/// Most bytes of keys and values in all tables.
pub const STORE_BYTES_MAX: u64 = 8 * 1024 * 1024 * 1024;
/// Most namespaces.
pub const NAMESPACES_MAX: usize = 4_096;

#[cfg(test)]
mod tests;
