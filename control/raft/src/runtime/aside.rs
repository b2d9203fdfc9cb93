//! Work that takes long and waits for nothing: reading and checking states, reading old entries.
//!
//! A replica's tasks share one thread, and one that computes or reads for a tenth of a second keeps signs of life from going out: a leader
//! that sends a large state, or the whole log, to one member would lose its office for it. So such work goes to a thread of its own, where
//! the replica has threads ([`Life::with_threads`](super::Life::with_threads)); in a simulation it is done where it stands, and all other
//! tasks go first once, which leaves a simulation repeatable and shows who would have been kept waiting.

use super::life::has_threads;

/// Does `work` beside the tasks of this replica.
///
/// # Panics
/// When `work` does.
pub async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    if !has_threads() {
        tokio::task::yield_now().await;
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime ends, and with it who waits.
        Err(_) => std::future::pending().await,
    }
}
