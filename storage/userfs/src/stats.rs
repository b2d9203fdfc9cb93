//! Counters of operations: how many, how many failed, how long they took.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

macro_rules! operations {
    ($($variant:ident $name:literal,)*) => {
        /// An operation of a backend.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum Operation { $($variant,)* }
        /// Names, in the order of [`Operation`].
        const NAMES: &[&str] = &[$($name,)*];
    };
}

operations! {
    Lookup "lookup", Attributes "attributes", Change "change", ReadLink "read_link", Make "make",
    MakeDirectory "make_directory", MakeLink "make_link", Link "link", Unlink "unlink",
    RemoveDirectory "remove_directory", Rename "rename", Read "read", Write "write", Sync "sync", List "list",
    Space "space", Seek "seek", Allocate "allocate", GetAttribute "get_attribute", SetAttribute "set_attribute",
    ListAttributes "list_attributes", RemoveAttribute "remove_attribute", Open "open", Close "close",
}

#[derive(Debug, Default)]
struct Counter {
    calls: AtomicU64,
    errors: AtomicU64,
    nanoseconds: AtomicU64,
}

/// Counters of all operations of a mount.
#[derive(Debug)]
pub struct Stats {
    counters: Vec<Counter>,
}

impl Default for Stats {
    fn default() -> Stats {
        Stats { counters: NAMES.iter().map(|_| Counter::default()).collect() }
    }
}

/// What one operation counted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Count {
    /// The operation.
    pub operation: String,
    /// Calls.
    pub calls: u64,
    /// Those that gave an error. "No such file" counts too.
    pub errors: u64,
    /// Mean time in the backend, microseconds.
    pub mean_us: f64,
}

impl Stats {
    /// Counts one call.
    pub fn count(&self, operation: Operation, failed: bool, took: Duration) {
        let counter = &self.counters[operation as usize];
        counter.calls.fetch_add(1, Ordering::Relaxed);
        counter.errors.fetch_add(u64::from(failed), Ordering::Relaxed);
        counter.nanoseconds.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Operations that were called.
    pub fn counts(&self) -> Vec<Count> {
        let of = |(name, counter): (&&str, &Counter)| {
            let calls = counter.calls.load(Ordering::Relaxed);
            (calls > 0).then(|| Count {
                operation: (*name).to_owned(),
                calls,
                errors: counter.errors.load(Ordering::Relaxed),
                mean_us: counter.nanoseconds.load(Ordering::Relaxed) as f64 / calls as f64 / 1000.0,
            })
        };
        NAMES.iter().zip(&self.counters).filter_map(of).collect()
    }
}
