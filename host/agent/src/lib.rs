//! The host's agent: the process beside the switch that owns the session with the controller, the
//! devices of ports, DHCP and DNS.

pub mod agent;
pub mod config;
pub mod dhcp;
pub mod dns;
pub mod error;
pub mod frame;
pub mod join;
pub mod link;
pub mod metrics;
pub mod mirror;
pub mod ports;
pub mod punts;
pub mod session;
pub mod shared;
pub mod supervise;
mod sys;
pub mod wire;

#[cfg(test)]
mod testing;

pub use error::AgentError;
