//! The runtime that openraft runs on: tokio, made repeatable.
//!
//! Two things differ from `openraft_rt_tokio::TokioRuntime`, so that a simulation of a whole group in one thread gives
//! the same trace for the same seed, while production runs the same code:
//! - randomness comes from a seed when one is set ([`seed_randomness`]), else from the operating system;
//! - a watch channel wakes its waiters in the order in which they came ([`watch`]); tokio's picks at random.
//!
//! And one thing for both: tasks belong to the [`Life`] in which they were spawned and end with it, so a replica that
//! is dropped, or crashes in a simulation, leaves none behind.

mod aside;
mod life;
#[cfg(test)]
mod tests;
mod watch;

use std::cell::Cell;
use std::future::Future;
use std::time::Duration;

use openraft_rt::{AsyncRuntime, OptionalSend};
use openraft_rt_tokio::TokioRuntime;
use rand::SeedableRng;
use rand::rngs::SmallRng;

pub use aside::aside;
pub use life::{Life, spawn};
pub use watch::OrderedWatch;

thread_local! {
    static SEED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Draws all randomness of this thread's replicas from `seed`. For simulations.
pub fn seed_randomness(seed: u64) {
    SEED.set(Some(seed));
}

fn next_seed() -> u64 {
    let Some(seed) = SEED.get() else { return weir_base::world::random_u64() };
    let mut rng = weir_base::world::Rng::new(seed);
    let drawn = rng.next_u64();
    SEED.set(Some(seed.wrapping_add(0x9e37_79b9_7f4a_7c15)));
    drawn
}

/// See the module.
#[derive(Debug)]
pub struct Runtime(TokioRuntime);

impl AsyncRuntime for Runtime {
    type JoinError = tokio::task::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = tokio::task::JoinHandle<T>;
    type Sleep = tokio::time::Sleep;
    type Instant = openraft_rt_tokio::TokioInstant;
    type TimeoutError = tokio::time::error::Elapsed;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = tokio::time::Timeout<T>;
    type ThreadLocalRng = SmallRng;
    type Mpsc = openraft_rt_tokio::TokioMpsc;
    type Watch = OrderedWatch;
    type Oneshot = openraft_rt_tokio::TokioOneshot;
    type Mutex<T: OptionalSend + 'static> = openraft_rt_tokio::TokioMutex<T>;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        spawn(future)
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        TokioRuntime::sleep(duration)
    }

    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        TokioRuntime::sleep_until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(
        duration: Duration,
        future: F,
    ) -> Self::Timeout<R, F> {
        TokioRuntime::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(
        deadline: Self::Instant,
        future: F,
    ) -> Self::Timeout<R, F> {
        TokioRuntime::timeout_at(deadline, future)
    }

    fn is_panic(error: &Self::JoinError) -> bool {
        error.is_panic()
    }

    fn thread_rng() -> SmallRng {
        SmallRng::seed_from_u64(next_seed())
    }

    fn new(threads: usize) -> Self {
        Runtime(TokioRuntime::new(threads))
    }

    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        self.0.block_on(future)
    }
}
