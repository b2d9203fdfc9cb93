//! The roles that run for ever.

pub mod state;
pub mod trace;
