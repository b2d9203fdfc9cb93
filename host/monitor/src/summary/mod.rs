//! Summaries: what is kept of a stream of events, of which each is seen once (Bohra, 3.4.2; row O). All have a size that is
//! fixed when they are made.
//!
//! - [`Counts`]: exact counts, and counts of a window.
//! - [`Samples`]: average, least, most and slope of a value over a window.
//! - [`Bloom`]: was this ever seen? No false "no"; a false "yes" with a probability that grows with what was seen.
//! - [`CountMin`]: how often? Never too low.
//! - [`Heaviest`]: which were the most frequent?
//! - [`LockOrder`]: may the locks of a program block each other, and do they?
//!
//! Hashes are keyed with random keys, so that a target that chooses names cannot choose collisions.

mod locks;
mod sketch;
mod window;

pub use locks::LockOrder;
pub use sketch::{Bloom, CountMin, Heaviest, Key, Keys, TOP_MAX, key_of_number, key_of_text};
pub use window::{Counts, Samples};

#[cfg(test)]
mod tests;
