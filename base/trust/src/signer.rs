//! How a local actuator says something in its host's name: answers to updates, and events with a number each (rows A9, R4). The switch
//! and the processes of planes sign with this one machine, each with numbers of its own.
//!
//! Invariants
//! - An event is signed only with a number that no earlier process of this actuator used ([`Numbers`]).
//! - An actuator that holds its key signs with another one only after [`HostSigner::read_again`], so that it can say which counts from when on;
//!   one that does not hold it signs with what the file has at that moment.

use std::io;
use weir_base::numbers::Numbers;
use weir_model::event::{Event, EventBody, SignedEvent, SourceId};
use weir_model::signed::SignedAcks;
use weir_model::{Ack, Label};

use crate::identity::{KeyPair, sign_acks, sign_event};

/// Reads the key that the host signs with, which the host changes.
pub type ReadKey = Box<dyn Fn() -> Result<KeyPair, String> + Send>;

/// Why nothing is said.
#[derive(Debug, thiserror::Error)]
pub enum Unsigned {
    /// The host's key cannot be read.
    #[error("the host's key cannot be read: {0}")]
    Key(String),
    /// The event gets no number.
    #[error("an event has no number: the state directory cannot be written: {0}")]
    Number(#[source] io::Error),
}

/// See the module.
pub struct HostSigner {
    host: Label,
    domain: Label,
    source: SourceId,
    read_key: ReadKey,
    /// Held until it is read again.
    key: Option<KeyPair>,
    numbers: Numbers,
}

impl std::fmt::Debug for HostSigner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostSigner").field("source", &self.source).finish_non_exhaustive()
    }
}

impl HostSigner {
    /// Of a host of a domain; its events are of `source`. The key is read for each thing that is signed.
    pub fn new(
        host: Label,
        domain: Label,
        source: SourceId,
        read_key: ReadKey,
        numbers: Numbers,
    ) -> HostSigner {
        HostSigner { host, domain, source, read_key, key: None, numbers }
    }

    /// The same with a key that it holds.
    #[must_use]
    pub fn holding(self, key: KeyPair) -> HostSigner {
        HostSigner { key: Some(key), ..self }
    }

    /// The host.
    pub fn host(&self) -> &Label {
        &self.host
    }

    /// Goes on with other numbers: another process took from these until now.
    pub fn set_numbers(&mut self, numbers: Numbers) {
        self.numbers = numbers;
    }

    /// Holds what the file has now.
    ///
    /// # Errors
    /// [`Unsigned::Key`]; the key stays the one before.
    pub fn read_again(&mut self) -> Result<(), Unsigned> {
        self.key = Some((self.read_key)().map_err(Unsigned::Key)?);
        Ok(())
    }

    fn with_key<T>(&self, sign: impl FnOnce(&KeyPair) -> T) -> Result<T, Unsigned> {
        match &self.key {
            Some(key) => Ok(sign(key)),
            None => (self.read_key)().map(|key| sign(&key)).map_err(Unsigned::Key),
        }
    }

    /// The public key that it signs with now.
    ///
    /// # Errors
    /// [`Unsigned::Key`].
    pub fn public_key(&self) -> Result<[u8; 32], Unsigned> {
        self.with_key(KeyPair::public)
    }

    /// Signs answers to updates.
    ///
    /// # Errors
    /// [`Unsigned::Key`].
    pub fn acks(&self, acks: Vec<Ack>) -> Result<SignedAcks, Unsigned> {
        self.with_key(|key| sign_acks(key, &self.host, acks))
    }

    /// Numbers and signs an event.
    ///
    /// # Errors
    /// [`Unsigned`]. A number that was taken for an event whose key could not be read is not used any more.
    pub fn event(&mut self, body: EventBody) -> Result<SignedEvent, Unsigned> {
        let sequence = self.numbers.take().map_err(Unsigned::Number)?;
        let event = Event { source: self.source.clone(), sequence, body };
        self.with_key(|key| sign_event(key, &self.domain, event, None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{verify_acks, verify_event};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU8, Ordering};
    use weir_base::world::RealDisk;
    use weir_model::{Key, Version};

    fn label(name: &str) -> Label {
        Label::new(name).unwrap()
    }

    /// A signer whose file holds the key of a seed; seed 0: there is no file.
    fn signer(folder: &std::path::Path, seed: &Arc<AtomicU8>) -> HostSigner {
        let numbers = Numbers::open(Arc::new(RealDisk::open(folder).unwrap()), "numbers", 4, 1).unwrap();
        let seed = Arc::clone(seed);
        let read_key: ReadKey = Box::new(move || match seed.load(Ordering::SeqCst) {
            0 => Err("no file".into()),
            seed => Ok(KeyPair::from_seed(&[seed; 32])),
        });
        HostSigner::new(label("h1"), label("lab"), SourceId::of_actuator(&label("h1")), read_key, numbers)
    }

    fn ack() -> Vec<Ack> {
        vec![Ack { key: Key::Controllers, version: Version(1), result: Ok(()) }]
    }

    #[test]
    fn who_holds_the_key_changes_it_when_told_and_who_does_not_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let seed = Arc::new(AtomicU8::new(1));
        let public = |seed: u8| KeyPair::from_seed(&[seed; 32]).public();
        let reading = signer(folder.path(), &seed);
        let mut holding = signer(folder.path(), &seed).holding(KeyPair::from_seed(&[1; 32]));
        seed.store(2, Ordering::SeqCst);
        assert_eq!(verify_acks(&public(2), &reading.acks(ack()).unwrap()), Ok(()));
        assert_eq!(verify_acks(&public(1), &holding.acks(ack()).unwrap()), Ok(()));
        assert_eq!(holding.public_key().unwrap(), public(1));
        holding.read_again().unwrap();
        assert_eq!(verify_acks(&public(2), &holding.acks(ack()).unwrap()), Ok(()));
        seed.store(0, Ordering::SeqCst);
        assert!(matches!(reading.acks(ack()), Err(Unsigned::Key(reason)) if reason == "no file"));
        assert!(holding.read_again().is_err());
        assert_eq!(holding.public_key().unwrap(), public(2), "the key stays the one before");
    }

    #[test]
    fn no_number_is_used_twice_also_over_restarts() {
        let folder = tempfile::tempdir().unwrap();
        let seed = Arc::new(AtomicU8::new(1));
        let public = KeyPair::from_seed(&[1; 32]).public();
        let mut used = std::collections::BTreeSet::new();
        for _ in 0..3 {
            let mut signer = signer(folder.path(), &seed);
            for _ in 0..5 {
                let event = signer.event(EventBody::Removed { actuator: label("h2") }).unwrap();
                assert_eq!(verify_event(&public, &label("lab"), &event), Ok(()));
                assert!(used.insert(event.event.sequence), "{}", event.event.sequence);
            }
        }
        assert_eq!(used.len(), 15);
    }
}
