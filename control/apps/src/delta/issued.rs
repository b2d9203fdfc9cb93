//! An update on its way into a plan.

use std::sync::Arc;
use weir_model::{Change, Key, Label};

/// An update without its dependencies.
pub(crate) struct Issued {
    pub target: Label,
    pub key: Key,
    pub change: Change,
    /// What the target was to have before: a value of [`super::tables::DESIRED`].
    pub before: Option<Arc<[u8]>>,
}
