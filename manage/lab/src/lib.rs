//! Labs and benches on one machine: whole systems in network namespaces, with real processes and real packets.
//!
//! - [`scope`]: one lab's namespaces, links and processes under one name prefix, and their removal.
//! - [`netns`]: namespaces, veth pairs, bridges, addresses, routes.
//! - [`process`]: programs started in a namespace, recorded so that a later process can end exactly those.
//! - [`probe`]: ping, curl, iperf3, sockperf and small datagrams, with parsed results.
//! - [`bench`]: comparisons with other systems in one interleaved run.
//! - [`progress`], [`table`]: what a person sees while it runs and at the end.
//! - [`guest`]: the first root of QEMU guests, and their kernel.
//! - [`interrupt`]: ctrl-c as a flag that long runs look at, so that they clean up first.
//!
//! Invariants
//! - Nothing is created whose name does not begin with the prefix of its scope, and nothing else is deleted.
//! - No program in a namespace writes the machine's `/etc`.
//! - Only a process whose pid, start time and boot id were recorded by its scope is ever sent a signal.
//! - Every wait is bounded, and says what it waited for when the bound is reached.

pub mod bench;
pub mod error;
pub mod guest;
pub mod interrupt;
pub mod netns;
mod private;
pub mod probe;
pub mod process;
pub mod progress;
pub mod scope;
pub mod system;
pub mod table;

pub use error::{Error, Result};
pub use netns::Netns;
pub use process::{Daemon, Program};
pub use scope::{Cleaned, Scope};
