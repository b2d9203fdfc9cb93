//! A value and what it is found by.

use std::sync::Arc;
use weir_model::Version;

/// Name of an app's table: a short word, such as `endpoint`.
pub type TableName = &'static str;
/// A key, shared by the table, its changes and its snapshots.
pub type Key = Arc<[u8]>;

/// A value with the version at which it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// When it was written.
    pub version: Version,
    /// When it goes, milliseconds of ordered time; 0: never.
    pub expires_ms: u64,
    /// The bytes.
    pub value: Arc<[u8]>,
}
