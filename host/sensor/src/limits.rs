//! Bounds of a box.

/// Most sensors of a box.
pub const SENSORS_MAX: u64 = 4096;
/// Fewest records of a ring.
pub const RECORDS_MIN: u64 = 16;
/// Most records of a ring.
pub const RECORDS_MAX: u64 = 1 << 20;
