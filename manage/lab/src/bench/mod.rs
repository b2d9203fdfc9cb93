//! Comparisons with other systems, in one interleaved run on one machine.

pub mod load;
pub mod net;
