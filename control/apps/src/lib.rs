//! Apps: what decides (DESIGN §1.3), one module an app. Each is a deterministic procedure over the
//! store's tables, [`weir_store::App`]; it keeps no state, reads no clock and does no I/O.

pub mod fabric;
