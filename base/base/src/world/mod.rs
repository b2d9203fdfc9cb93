//! The world outside a protocol: clock, disk and randomness, real or simulated from a seed.
//!
//! Protocol cores never touch the operating system. What they need of it is one of these traits, so the
//! same core runs on a host and inside a simulation that can lose power, tear writes and rot bits.
//!
//! Invariants
//! - A simulated world is a function of its seed and of the calls made: no thread, clock or address of
//!   the real one enters it.
//! - [`Disk`] promises no more than POSIX does: a write is durable after `sync_data` of its file returned
//!   Ok, a name after `sync_dir` returned Ok, and nothing is durable because time passed.

mod clock;
mod disk;
mod real_disk;
mod rng;
mod sim_disk;
pub mod spare;
#[cfg(test)]
mod tests;

pub use clock::{Clock, RealClock, SimClock};
pub use disk::{Disk, DiskFile, DiskLock, LockOutcome};
pub use real_disk::RealDisk;
pub use rng::{Rng, random_u64};
pub use sim_disk::{SECTOR_BYTES, SimDisk};
