//! Whom this member reaches and whom it does not, and why: the pauses between tries, and what a log says of refused links.
//!
//! A member is known by its key alone. Where a link comes from says nothing: a machine may have more than one address, or its links may come
//! through a translator.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use commonware_cryptography::ed25519::PublicKey;
use commonware_runtime::{Clock, Sink, Stream};
use commonware_stream::Upgrader;
use rand_chacha::rand_core::CryptoRng;
use weir_base::reconnect::{Line, Pauses, Reconnect, Reconnects};

use crate::lock::locked;
use crate::members::MEMBERS_MAX;

/// Pauses between two tries to reach a member.
const PAUSES: Pauses = Pauses { min_ms: 200, max_ms: 5_000 };
/// Addresses that are remembered: those of members, of who is to come, and of who has gone.
const ADDRESSES_MAX: usize = 2 * MEMBERS_MAX;

/// See the module.
pub struct Contacts {
    begun: Instant,
    dialed: Mutex<Reconnects<SocketAddr>>,
    places: Mutex<BTreeMap<PublicKey, SocketAddr>>,
    /// Links that others opened and that were refused: told once a minute, as one whom nobody knows may try for ever.
    refused: Mutex<Reconnect>,
    refused_total: AtomicU64,
}

impl Default for Contacts {
    fn default() -> Contacts {
        Contacts {
            begun: Instant::now(),
            dialed: Mutex::new(Reconnects::new(PAUSES, ADDRESSES_MAX)),
            places: Mutex::default(),
            refused: Mutex::new(Reconnect::new(PAUSES)),
            refused_total: AtomicU64::new(0),
        }
    }
}

impl Contacts {
    fn now_ms(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    /// Where members are now.
    pub fn set_places(&self, places: BTreeMap<PublicKey, SocketAddr>) {
        let known = |address: &SocketAddr| places.values().any(|place| place == address);
        locked(&self.dialed).retain(known);
        *locked(&self.places) = places;
    }

    /// Whether it is time for another try.
    pub fn may_dial(&self, address: SocketAddr) -> bool {
        locked(&self.dialed).wait_ms(&address, self.now_ms()) == 0
    }

    /// A try failed.
    pub fn failed(&self, address: SocketAddr, problem: &str) {
        let line = locked(&self.dialed).failed(&address, self.now_ms(), problem);
        if let Some(Line { failures, pause_ms, problem }) = line {
            tracing::warn!(%address, failures, pause_ms, problem, "cannot connect to controller");
        }
    }

    fn place(&self, peer: &PublicKey) -> Option<SocketAddr> {
        locked(&self.places).get(peer).copied()
    }

    fn reached(&self, peer: &PublicKey) {
        let Some(address) = self.place(peer) else { return };
        if let Some(failures) = locked(&self.dialed).reached(&address) {
            tracing::info!(%address, failures, "connected to controller again");
        }
    }

    fn refuses(&self, problem: &str) {
        self.refused_total.fetch_add(1, Ordering::Relaxed);
        let line = locked(&self.refused).failed(self.now_ms(), problem);
        if let Some(Line { failures, problem, .. }) = line {
            tracing::warn!(refused = failures, problem, "refused inbound connections");
        }
    }

    /// Members that are not reached, and why.
    pub fn unreached(&self) -> BTreeMap<SocketAddr, String> {
        locked(&self.dialed).unreached(self.now_ms())
    }

    /// Tries to reach a member that failed, and links of others that were refused.
    pub fn counts(&self) -> (u64, u64) {
        (locked(&self.dialed).failures_total(), self.refused_total.load(Ordering::Relaxed))
    }
}

/// An error with what it comes from.
fn whole(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}

/// Authenticates links as `U` does, and says which came to nothing.
#[derive(Clone)]
pub struct Telling<U> {
    inner: U,
    contacts: Arc<Contacts>,
}

impl<U> Telling<U> {
    /// `inner`, whose failures `contacts` hears of.
    pub fn new(inner: U, contacts: Arc<Contacts>) -> Telling<U> {
        Telling { inner, contacts }
    }
}

impl<U: Upgrader<PublicKey = PublicKey>> Upgrader for Telling<U> {
    const MAX_SIZE: u32 = U::MAX_SIZE;
    type PublicKey = PublicKey;
    type Error = U::Error;
    type Sender<I: Stream, O: Sink> = U::Sender<I, O>;
    type Receiver<I: Stream, O: Sink> = U::Receiver<I, O>;

    fn public_key(&self) -> PublicKey {
        self.inner.public_key()
    }

    async fn dial<C, I, O>(
        self,
        context: C,
        namespace: &[u8],
        max_message_size: u32,
        peer: PublicKey,
        stream: I,
        sink: O,
    ) -> Result<(Self::Sender<I, O>, Self::Receiver<I, O>), Self::Error>
    where
        C: Clock + CryptoRng,
        I: Stream,
        O: Sink,
    {
        let Telling { inner, contacts } = self;
        let dialed = inner.dial(context, namespace, max_message_size, peer.clone(), stream, sink).await;
        match (&dialed, contacts.place(&peer)) {
            (Ok(_), _) => contacts.reached(&peer),
            (Err(error), Some(address)) => {
                let problem = format!(
                    "it takes the connection and no link: it has another key than the list of members says, does not know this \
                     one's, or is none of this group ({})",
                    whole(error)
                );
                contacts.failed(address, &problem);
            }
            (Err(_), None) => {}
        }
        dialed
    }

    async fn listen<C, I, O, B, F>(
        self,
        context: C,
        namespace: &[u8],
        max_message_size: u32,
        bouncer: B,
        stream: I,
        sink: O,
    ) -> Result<(PublicKey, Self::Sender<I, O>, Self::Receiver<I, O>), Self::Error>
    where
        C: Clock + CryptoRng,
        I: Stream,
        O: Sink,
        B: FnOnce(PublicKey) -> F + Send,
        F: Future<Output = bool> + Send,
    {
        let Telling { inner, contacts } = self;
        let judged = contacts.clone();
        let bouncer = |peer: PublicKey| {
            let known = judged.place(&peer).is_some();
            let asked = bouncer(peer.clone());
            async move {
                let taken = asked.await;
                if !taken && !known {
                    judged.refuses(&format!("key {peer} is no member's: 'weir group identity' on its machine must print what the list of members has"));
                }
                taken
            }
        };
        let listened = inner.listen(context, namespace, max_message_size, bouncer, stream, sink).await;
        match &listened {
            Ok((peer, ..)) => contacts.reached(peer),
            Err(error) => contacts.refuses(&format!("a link did not come about: {}", whole(error))),
        }
        listened
    }
}
