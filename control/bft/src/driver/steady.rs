//! The runtime as the replica gets it: its time is monotonic, and it does not connect again and again to who refuses.
//!
//! The library's runtimes read the machine's wall clock for timers. A step of that clock would make all of them due at once, or none for as
//! long as the step; so here time begins at the wall clock and then only follows the monotonic one. What time of day it is matters to nothing
//! below: see the bounds of handshakes in [`super`].

use std::convert::Infallible;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use commonware_runtime::telemetry::metrics::{Metric, Registered};
use commonware_runtime::{
    Clock, Error, Handle, ListenerOf, Metrics, Name, Network, Resolver, SinkOf, Spawner, StreamOf,
    Supervisor, signal,
};
use governor::clock::{Clock as GovernorClock, ReasonablyRealtime};
use rand_chacha::rand_core::{CryptoRng, TryCryptoRng, TryRng};

use super::contacts::Contacts;

/// The context `E` with monotonic time.
pub struct Steady<E> {
    inner: E,
    begun: (Instant, SystemTime),
    contacts: Arc<Contacts>,
}

impl<E> Steady<E> {
    /// `inner`, whose time begins now.
    pub fn new(inner: E, contacts: Arc<Contacts>) -> Steady<E> {
        Steady { inner, begun: (Instant::now(), SystemTime::now()), contacts }
    }

    fn of(&self, inner: E) -> Steady<E> {
        Steady { inner, begun: self.begun, contacts: self.contacts.clone() }
    }
}

impl<E: Supervisor> Supervisor for Steady<E> {
    fn name(&self) -> Name {
        self.inner.name()
    }

    fn child(&self, label: &'static str) -> Self {
        self.of(self.inner.child(label))
    }

    fn with_attribute(self, key: &'static str, value: impl std::fmt::Display) -> Self {
        let Steady { inner, begun, contacts } = self;
        Steady { inner: inner.with_attribute(key, value), begun, contacts }
    }
}

impl<E: Spawner> Spawner for Steady<E> {
    fn shared(self, blocking: bool) -> Self {
        let Steady { inner, begun, contacts } = self;
        Steady { inner: inner.shared(blocking), begun, contacts }
    }

    fn dedicated(self) -> Self {
        let Steady { inner, begun, contacts } = self;
        Steady { inner: inner.dedicated(), begun, contacts }
    }

    fn spawn<F, Fut, T>(self, f: F) -> Handle<T>
    where
        F: FnOnce(Self) -> Fut + Send + 'static,
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let Steady { inner, begun, contacts } = self;
        inner.spawn(move |inner| f(Steady { inner, begun, contacts }))
    }

    async fn stop(self, value: i32, timeout: Option<Duration>) -> Result<(), Error> {
        self.inner.stop(value, timeout).await
    }

    fn stopped(&self) -> signal::Signal {
        self.inner.stopped()
    }
}

impl<E: Metrics> Metrics for Steady<E> {
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

impl<E: Clock> GovernorClock for Steady<E> {
    type Instant = SystemTime;

    fn now(&self) -> SystemTime {
        self.current()
    }
}

impl<E: Clock> ReasonablyRealtime for Steady<E> {}

impl<E: Clock> Clock for Steady<E> {
    fn current(&self) -> SystemTime {
        let (instant, wall) = self.begun;
        wall.checked_add(instant.elapsed()).unwrap_or(wall)
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send + 'static + use<E> {
        self.inner.sleep(duration)
    }

    fn sleep_until(&self, deadline: SystemTime) -> impl Future<Output = ()> + Send + 'static + use<E> {
        // How long that is, by this clock: the runtime's own would ask the machine's.
        self.inner.sleep(deadline.duration_since(self.current()).unwrap_or_default())
    }
}

impl<E: CryptoRng> TryRng for Steady<E> {
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

impl<E: CryptoRng> TryCryptoRng for Steady<E> {}

impl<E: Network> Network for Steady<E> {
    type Listener = ListenerOf<E>;

    async fn bind(&self, socket: SocketAddr) -> Result<Self::Listener, Error> {
        self.inner.bind(socket).await
    }

    async fn dial(&self, socket: SocketAddr) -> Result<(SinkOf<Self>, StreamOf<Self>), Error> {
        if !self.contacts.may_dial(socket) {
            return Err(Error::ConnectionFailed);
        }
        let dialed = self.inner.dial(socket).await;
        if let Err(error) = &dialed {
            self.contacts.failed(socket, &error.to_string());
        }
        dialed
    }
}

impl<E: Resolver> Resolver for Steady<E> {
    async fn resolve(&self, host: &str) -> Result<Vec<IpAddr>, Error> {
        self.inner.resolve(host).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use commonware_runtime::{Runner as _, deterministic};

    /// The runtime's own clock jumps here, as a machine's does when it is set.
    #[test]
    fn timers_do_not_follow_the_clock_of_the_runtime() {
        let runner = deterministic::Runner::timed(Duration::from_secs(2 * 60 * 60));
        runner.start(|context| async move {
            let steady = Steady::new(context.child("steady"), Arc::new(Contacts::default()));
            let begun = steady.current();
            // An hour of the runtime's clock is none here.
            context.sleep(Duration::from_secs(60 * 60)).await;
            assert!(
                steady.current().duration_since(begun).unwrap_or_default() < Duration::from_secs(60 * 60)
            );
            // What is due by this clock is not late because that of the runtime stands elsewhere.
            let by_runtime = context.current();
            let due = steady.current() + Duration::from_millis(200);
            assert!(due > by_runtime, "the runtime's clock begins in 1970");
            steady.sleep_until(due).await;
            let waited = context.current().duration_since(by_runtime).unwrap_or_default();
            assert!(waited <= Duration::from_millis(300), "{waited:?}");
        });
    }
}
