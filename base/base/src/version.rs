//! One number line for everything that the loop decides.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The position of an event in a domain's total order, and so of everything decided on it (row B6).
///
/// Versions of different keys compare: a higher one was decided later. Zero means "nothing yet".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Version(pub u64);

impl Version {
    /// Before anything was decided.
    pub const ZERO: Version = Version(0);
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}
