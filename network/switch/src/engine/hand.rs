//! Which frame is in hand, and whose: what is thrown away when its handling fails (`contained`).

use super::limits::EXTERNAL;

/// Class of what comes from the underlay or from nobody that is known.
pub(super) const NOBODY: usize = EXTERNAL + 1;

/// Where the frame in hand lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hand {
    /// Nothing is in hand.
    #[default]
    Nothing,
    /// In the arena.
    Arena {
        /// First byte.
        at: usize,
        /// Bytes.
        length: usize,
    },
    /// In the receive buffers.
    Received {
        /// First byte.
        at: usize,
        /// Bytes.
        length: usize,
    },
}
