//! The runtime on which a remote backend talks to its server; operations of the kernel wait for it.

use crate::error::{Errno, Result};
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::runtime::Runtime;

/// How long a server may take for one request.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A runtime with a thread of its own.
pub(crate) fn start(name: &str) -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).thread_name(name).enable_all().build()
}

/// Runs `future`, for at most [`PATIENCE`].
///
/// # Errors
/// ETIMEDOUT.
pub(crate) fn wait<T>(runtime: &Runtime, future: impl Future<Output = T>) -> Result<T> {
    let timed = async { tokio::time::timeout(PATIENCE, future).await };
    runtime.block_on(timed).map_err(|_| Errno(libc::ETIMEDOUT))
}

/// How a connection fared.
#[derive(Debug, Default)]
pub(crate) struct Fate {
    /// Times that it was made.
    pub(crate) connected: AtomicU64,
    /// Times that it was lost, or a request took too long.
    pub(crate) lost: AtomicU64,
    /// Names in listings that no file can have.
    pub(crate) left_out: AtomicU64,
}

impl Fate {
    pub(crate) fn notes(&self) -> Vec<String> {
        let mut notes = self.left_out();
        let lost = self.lost.load(Ordering::Relaxed);
        let connected = self.connected.load(Ordering::Relaxed);
        if lost > 0 {
            notes.push(format!("the connection was lost {lost} times and made {connected} times"));
        }
        notes
    }

    pub(crate) fn left_out(&self) -> Vec<String> {
        let left_out = self.left_out.load(Ordering::Relaxed);
        let told = format!("{left_out} names were left out of listings: no file can have them");
        if left_out > 0 { vec![told] } else { Vec::new() }
    }
}
