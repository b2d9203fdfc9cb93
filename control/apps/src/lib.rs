//! Apps: what decides (DESIGN §1.3), one module an app.
//!
//! - [`fabric`] decides on ordered events: a deterministic procedure over the store's tables,
//!   [`weir_store::App`]; it keeps no state, reads no clock and does no I/O.
//! - [`flows`] decides on packets: three apps that share their state by the store, as its clients.

pub mod fabric;
pub mod flows;
