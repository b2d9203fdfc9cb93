//! Apps: what decides (DESIGN §1.3).
//!
//! - [`Deciders`] decides on ordered events: a deterministic procedure over the store's tables, [`weir_store::App`]; it keeps no state,
//!   reads no clock and does no I/O. It is one engine, [`delta`], and those who say what is wanted: [`fabric`] of networks,
//!   [`orders`] of what planes are to have as it is ordered.
//! - [`flows`] decides on packets: three apps that share their state by the store, as its clients.

mod deciders;
pub mod delta;
pub mod fabric;
pub mod flows;
pub mod orders;

pub use deciders::{Deciders, tables};

#[cfg(test)]
mod tests;
