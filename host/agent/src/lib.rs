//! The host's agent: the process beside the switch that owns the session with the controller, the
//! devices of ports, DHCP and DNS (Andromeda; rows A15, A16; pains 8, 11, 12, 13). Also what stands
//! around it: joining a domain, the configuration file, and the supervisor of both processes.
//!
//! ```text
//!  controller ◄─ TLS ─► session ◄──► link ◄─ control.sock ─► switch ─ TAP ─ endpoint
//!                                     │ mirror                 ▲
//!                                     ▼                        │ punt.sock
//!                          ports (devices)   punts: dhcp, dns ◄┘
//! ```
//!
//! Beside the switch stand the host's planes, each a process with a socket in the run directory ([`hub`]). A host may have planes and no
//! switch: then [`switchless`] stands in its place.
//!
//! Invariants
//! - The agent holds no state of the network: killed and started again it reads all of it from the
//!   switch, which goes on forwarding meanwhile. What it keeps itself is its identity and the list of
//!   devices that it has made.
//! - It verifies no update: the switch's gate does. A wrong agent can withhold updates, not forge them.
//! - Everything of tenants is read strictly; nothing of it can stop the process or grow without bound.

pub mod agent;
pub mod config;
pub mod dhcp;
pub mod dns;
pub mod error;
pub mod frame;
pub mod hub;
pub mod join;
pub mod kept;
pub mod link;
pub mod metrics;
pub mod mirror;
mod owner;
pub mod ports;
pub mod punts;
pub mod session;
pub mod shared;
pub mod supervise;
pub mod switchless;
mod sys;
pub mod wire;

#[cfg(test)]
mod testing;

pub use error::AgentError;
