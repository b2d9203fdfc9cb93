//! A runtime's context as consensus gets it: everything is the runtime's own, but its storage is [`Votes`], its time goes slower while the
//! group rests ([`crate::rest`]), and a moment that has passed
//! is waited for by letting all other tasks go first. Some loops of consensus wait for such a moment again and again while they have
//! something to try (questions to members that no link leads to); on a thread that does everything nothing else went on, links least of all.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::ops::RangeInclusive;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use commonware_runtime::telemetry::metrics::{Metric, Registered};
use commonware_runtime::{
    BlobVersion, Clock, Error, Handle, Metrics, Name, Spawner, Storage, Supervisor, signal,
};
use governor::clock::{Clock as GovernorClock, ReasonablyRealtime};
use rand_chacha::rand_core::{CryptoRng, TryCryptoRng, TryRng};

use super::Votes;
use super::blobs::Votebox;
use crate::rest::Pace;

/// The context `E` with votes in place of its storage.
pub struct Keeping<E> {
    inner: E,
    votes: Votes,
    pace: Pace<E>,
}

impl<E> Keeping<E> {
    /// `inner`, whose storage and time are not used.
    pub(crate) fn new(inner: E, votes: Votes, pace: Pace<E>) -> Keeping<E> {
        Keeping { inner, votes, pace }
    }
}

impl<E: Supervisor> Supervisor for Keeping<E> {
    fn name(&self) -> Name {
        self.inner.name()
    }

    fn child(&self, label: &'static str) -> Self {
        Keeping { inner: self.inner.child(label), votes: self.votes.clone(), pace: self.pace.clone() }
    }

    fn with_attribute(self, key: &'static str, value: impl std::fmt::Display) -> Self {
        Keeping { inner: self.inner.with_attribute(key, value), votes: self.votes, pace: self.pace }
    }
}

impl<E: Spawner> Spawner for Keeping<E> {
    fn shared(self, blocking: bool) -> Self {
        Keeping { inner: self.inner.shared(blocking), votes: self.votes, pace: self.pace }
    }

    fn dedicated(self) -> Self {
        Keeping { inner: self.inner.dedicated(), votes: self.votes, pace: self.pace }
    }

    fn spawn<F, Fut, T>(self, f: F) -> Handle<T>
    where
        F: FnOnce(Self) -> Fut + Send + 'static,
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let Keeping { inner, votes, pace } = self;
        inner.spawn(move |inner| f(Keeping { inner, votes, pace }))
    }

    async fn stop(self, value: i32, timeout: Option<Duration>) -> Result<(), Error> {
        self.inner.stop(value, timeout).await
    }

    fn stopped(&self) -> signal::Signal {
        self.inner.stopped()
    }
}

impl<E: Metrics> Metrics for Keeping<E> {
    fn register<N: Into<String>, H: Into<String>, M: Metric>(
        &self,
        name: N,
        help: H,
        metric: M,
    ) -> Registered<M> {
        self.inner.register(name, help, metric)
    }

    fn encode(&self) -> String {
        self.inner.encode()
    }
}

impl<E: Clock> GovernorClock for Keeping<E> {
    type Instant = SystemTime;

    fn now(&self) -> SystemTime {
        self.pace.current()
    }
}

impl<E: Clock> ReasonablyRealtime for Keeping<E> {}

impl<E: Clock> Clock for Keeping<E> {
    fn current(&self) -> SystemTime {
        self.pace.current()
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send + 'static + use<E> {
        let pace = self.pace.clone();
        let deadline = pace.current().checked_add(duration);
        async move {
            match deadline {
                Some(deadline) => pace.sleep_until(deadline).await,
                // Beyond all time.
                None => std::future::pending().await,
            }
        }
    }

    fn sleep_until(&self, deadline: SystemTime) -> impl Future<Output = ()> + Send + 'static + use<E> {
        let pace = self.pace.clone();
        let passed = deadline <= pace.current();
        async move {
            match passed {
                true => after_others().await,
                false => pace.sleep_until(deadline).await,
            }
        }
    }
}

/// Comes when the tasks that wait have gone first, once.
async fn after_others() {
    let mut woken = false;
    poll_fn(|context| {
        if woken {
            return Poll::Ready(());
        }
        woken = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl<E: CryptoRng> TryRng for Keeping<E> {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(self.inner.next_u32())
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.inner.next_u64())
    }

    fn try_fill_bytes(&mut self, to: &mut [u8]) -> Result<(), Infallible> {
        self.inner.fill_bytes(to);
        Ok(())
    }
}

impl<E: CryptoRng> TryCryptoRng for Keeping<E> {}

impl<E: Send + Sync + 'static> Storage for Keeping<E> {
    type Blob = Votebox;

    async fn open_versioned(
        &self,
        partition: &str,
        name: &[u8],
        versions: RangeInclusive<BlobVersion>,
    ) -> Result<(Votebox, u64, BlobVersion), Error> {
        self.votes.open_versioned(partition, name, versions).await
    }

    async fn remove(&self, partition: &str, name: Option<&[u8]>) -> Result<(), Error> {
        self.votes.remove(partition, name).await
    }

    async fn scan(&self, partition: &str) -> Result<Vec<Vec<u8>>, Error> {
        self.votes.scan(partition).await
    }
}
