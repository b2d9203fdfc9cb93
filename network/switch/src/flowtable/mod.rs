//! The flow table (row A22): one hash lookup to a dense index, then flat arrays. The engine reads,
//! only the slow thread writes, and neither waits for the other.
//!
//! - [`store`]: the flat arrays, indexed by the dense index: key and statistics of a flow, and apart
//!   from them its action. There is one copy. A flow is written before any published index
//!   names it and is not touched again, but for its statistics, until no index that names it can be read any more.
//! - [`ways`]: ways to other switches.
//! - `book`: what flows share, each once: ways, and beginnings of actions.
//! - [`zeroed`]: the memory of all of them.
//! - [`index`]: buckets of tags, from the hash of a key to the dense index. There are two copies: the
//!   engine's and the shadow.
//! - [`shadow`]: the writer. It changes the shadow, sends it to the engine by message, gets the old
//!   copy back, replays the same changes on it, and so has a shadow again (left-right). What was
//!   removed is free for reuse only then.
//!
//! Departure from the paper: one lookup with the whole key, no 3-tuple first: our key is made while
//! parsing, and tenants' firewalls make most flows 5-tuple flows anyway.

pub mod action;
mod book;
pub mod index;
pub mod shadow;
pub mod store;
pub mod tunnel;
pub mod ways;
pub mod zeroed;

pub use action::{CompiledAction, CompiledHop};
pub use index::{Index, ZoneKey};
pub use shadow::{Shadow, TableFull, Tables};
pub use store::{Flow, FlowStore};

#[cfg(test)]
mod tests;
