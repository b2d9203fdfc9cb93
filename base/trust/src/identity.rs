//! Identities: ed25519 keys of sources, actuators and controllers.
//!
//! Every signature is over a context and a message, so that what was signed for one purpose is
//! never valid for another.

use crate::TrustError;
use ed25519_dalek::{Signer, SigningKey, VerifyingKey};
use sha2::{Digest as _, Sha256};
use weir_model::domain::{Fetch, SignedFetch};
use weir_model::event::{Event, SUBJECT_BYTES_MAX, SignedEvent, SourceId};
use weir_model::identity::Rotation;
use weir_model::join::JoinRequest;
use weir_model::signed::{Signature, SignedAcks};
use weir_model::{Ack, Label};

/// What a signature is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    /// Header of a decided batch.
    Batch,
    /// Acks of an actuator.
    Acks,
    /// An event of a source.
    Event,
    /// A player's receipt for a share of a group's key.
    DealAck,
    /// What a dealer of a group's key publishes.
    DealLog,
    /// A member's statement that a share of a signature is its own.
    Share,
    /// What a controller asks another domain.
    Fetch,
    /// A source's change of its key.
    Rotation,
    /// A source's word that it uses one key only.
    Settled,
    /// A controller's own signature over a batch.
    Endorsement,
    /// Whoever joins has the key that it names.
    Join,
    /// A person's request.
    Said,
    /// Whoever has a join token lets an actuator join.
    JoinedBy,
    /// The key of a certificate is its owner's.
    Owner,
    /// An operator's word that an entry of the order is to be set aside.
    SetAside,
    /// A controller's promise that it never carries an entry of the order out.
    AsidePromise,
    /// A group's key names the one that comes after it.
    Succession,
}

impl Context {
    pub(crate) fn tag(self) -> &'static [u8] {
        match self {
            Context::Batch => b"weir/batch/1\0",
            Context::Acks => b"weir/acks/1\0",
            Context::Event => b"weir/event/1\0",
            Context::DealAck => b"weir/deal-ack/1\0",
            Context::DealLog => b"weir/deal-log/1\0",
            Context::Share => b"weir/share/1\0",
            Context::Fetch => b"weir/fetch/1\0",
            Context::Rotation => b"weir/rotation/1\0",
            Context::Settled => b"weir/settled/1\0",
            Context::Endorsement => b"weir/endorsement/1\0",
            Context::Join => b"weir/join/1\0",
            Context::Said => b"weir/said/1\0",
            Context::JoinedBy => b"weir/joined-by/1\0",
            Context::Owner => b"weir/owner/1\0",
            Context::SetAside => b"weir/set-aside/1\0",
            Context::AsidePromise => b"weir/aside-promise/1\0",
            Context::Succession => b"weir/succession/1\0",
        }
    }
}

/// A secret key. It is wiped from memory when dropped and never printed.
pub struct KeyPair(SigningKey);

impl std::fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeyPair({:02x?}…)", &self.public()[..4])
    }
}

impl KeyPair {
    /// The key pair of 32 secret random bytes.
    pub fn from_seed(seed: &[u8; 32]) -> KeyPair {
        KeyPair(SigningKey::from_bytes(seed))
    }

    /// The public key.
    pub fn public(&self) -> [u8; 32] {
        self.0.verifying_key().to_bytes()
    }

    /// Signs a message for a purpose.
    pub fn sign(&self, context: Context, message: &[u8]) -> Signature {
        let bytes = self.0.sign(&[context.tag(), message].concat()).to_bytes();
        let mut signature = Signature { r: [0; 32], s: [0; 32] };
        signature.r.copy_from_slice(&bytes[..32]);
        signature.s.copy_from_slice(&bytes[32..]);
        signature
    }
}

/// Checks a signature, strictly (no small-order keys, no malleability).
///
/// # Errors
/// [`TrustError::BadKey`] or [`TrustError::BadSignature`].
pub fn verify(
    public: &[u8; 32],
    context: Context,
    message: &[u8],
    signature: &Signature,
) -> Result<(), TrustError> {
    let key = VerifyingKey::from_bytes(public).map_err(|_| TrustError::BadKey)?;
    key.verify_strict(&[context.tag(), message].concat(), &plain(signature))
        .map_err(|_| TrustError::BadSignature)
}

/// Checks signatures of several keys over one message, together: one equation with weights that are a hash of all that is
/// checked, which costs half of as many checks. Who has not the key passes neither. Unlike [`verify`] it takes a signature whose owner put a point of small
/// order into it, so what is to be judged again by others is checked one by one.
///
/// # Errors
/// [`TrustError::BadKey`] or [`TrustError::BadSignature`].
pub fn verify_all(
    context: Context,
    message: &[u8],
    signed: &[(&[u8; 32], &Signature)],
) -> Result<(), TrustError> {
    let message = [context.tag(), message].concat();
    let mut keys = Vec::with_capacity(signed.len());
    for (public, _) in signed {
        let key = VerifyingKey::from_bytes(public).map_err(|_| TrustError::BadKey)?;
        if key.is_weak() {
            return Err(TrustError::BadKey);
        }
        keys.push(key);
    }
    let signatures: Vec<_> = signed.iter().map(|(_, signature)| plain(signature)).collect();
    ed25519_dalek::verify_batch(&vec![&message[..]; signed.len()], &signatures, &keys)
        .map_err(|_| TrustError::BadSignature)
}

fn plain(signature: &Signature) -> ed25519_dalek::Signature {
    let mut bytes = [0; 64];
    bytes[..32].copy_from_slice(&signature.r);
    bytes[32..].copy_from_slice(&signature.s);
    ed25519_dalek::Signature::from_bytes(&bytes)
}

fn acks_message(actuator: &Label, acks: &[Ack]) -> Vec<u8> {
    weir_base::codec::encode(&(actuator, acks))
}

/// Signs acks as an actuator.
pub fn sign_acks(key: &KeyPair, actuator: &Label, acks: Vec<Ack>) -> SignedAcks {
    let signature = key.sign(Context::Acks, &acks_message(actuator, &acks));
    SignedAcks { actuator: actuator.clone(), acks, signature }
}

/// Checks acks of an actuator.
///
/// # Errors
/// [`TrustError::BadKey`] or [`TrustError::BadSignature`].
pub fn verify_acks(public: &[u8; 32], acks: &SignedAcks) -> Result<(), TrustError> {
    verify(public, Context::Acks, &acks_message(&acks.actuator, &acks.acks), &acks.signature)
}

/// Signed is the hash of the body and not the body: a transaction may have megabytes, and ed25519 hashes what it
/// signs twice. The domain is under the signature, so that an event counts in one domain only.
fn event_message(domain: &Label, event: &Event, subject: Option<&str>) -> Vec<u8> {
    let body = Sha256::digest(weir_base::codec::encode(&event.body)).into();
    digested_message(domain, &event.source, event.sequence, subject, body)
}

fn digested_message(
    domain: &Label,
    source: &SourceId,
    sequence: u64,
    subject: Option<&str>,
    body: [u8; 32],
) -> Vec<u8> {
    weir_base::codec::encode(&(domain, source, sequence, subject, body))
}

/// Signs an event as its source, for a domain.
pub fn sign_event(key: &KeyPair, domain: &Label, event: Event, subject: Option<String>) -> SignedEvent {
    let signature = key.sign(Context::Event, &event_message(domain, &event, subject.as_deref()));
    SignedEvent { event, subject, signature }
}

/// Signs what a controller asks another domain.
pub fn sign_fetch(key: &KeyPair, fetch: Fetch) -> SignedFetch {
    let signature = key.sign(Context::Fetch, &weir_base::codec::encode(&fetch));
    SignedFetch { fetch, signature }
}

/// Checks that a controller with this key asks.
///
/// # Errors
/// [`TrustError::BadKey`] or [`TrustError::BadSignature`].
pub fn verify_fetch(public: &[u8; 32], signed: &SignedFetch) -> Result<(), TrustError> {
    verify(public, Context::Fetch, &weir_base::codec::encode(&signed.fetch), &signed.signature)
}

/// Checks that an event is of the source with this key, and for this domain.
///
/// # Errors
/// [`TrustError::LongSubject`], [`TrustError::BadKey`] or [`TrustError::BadSignature`].
pub fn verify_event(public: &[u8; 32], domain: &Label, signed: &SignedEvent) -> Result<(), TrustError> {
    let subject = signed.subject.as_deref();
    let length = subject.map_or(0, str::len);
    if length > SUBJECT_BYTES_MAX {
        return Err(TrustError::LongSubject(length));
    }
    verify(public, Context::Event, &event_message(domain, &signed.event, subject), &signed.signature)
}

/// As [`verify_event`], of an event of whose body only the SHA-256 is known.
///
/// # Errors
/// [`TrustError::BadKey`] or [`TrustError::BadSignature`].
pub fn verify_digested_event(
    public: &[u8; 32],
    domain: &Label,
    (source, sequence, subject): (&SourceId, u64, Option<&str>),
    body: [u8; 32],
    signature: &Signature,
) -> Result<(), TrustError> {
    let message = digested_message(domain, source, sequence, subject, body);
    verify(public, Context::Event, &message, signature)
}

fn rotation_message(domain: &Label, whose: &SourceId, old: &[u8; 32], new: &[u8; 32]) -> Vec<u8> {
    weir_base::codec::encode(&(domain, whose, old, new))
}

/// Changes a source's key from `old` to `new`, with the word of both.
pub fn sign_rotation(domain: &Label, whose: SourceId, old: &KeyPair, new: &KeyPair) -> Rotation {
    let message = rotation_message(domain, &whose, &old.public(), &new.public());
    let by = |key: &KeyPair| key.sign(Context::Rotation, &message);
    Rotation { whose, old: old.public(), new: new.public(), by_old: by(old), by_new: by(new) }
}

/// Checks that both keys want the change, in this domain.
///
/// # Errors
/// [`TrustError::BadKey`] or [`TrustError::BadSignature`].
pub fn verify_rotation(domain: &Label, rotation: &Rotation) -> Result<(), TrustError> {
    let Rotation { whose, old, new, by_old, by_new } = rotation;
    let message = rotation_message(domain, whose, old, new);
    verify(old, Context::Rotation, &message, by_old)?;
    verify(new, Context::Rotation, &message, by_new)
}

/// What whoever joins signs with the key that is to be its identity: all that it asks, for one domain's authority.
fn join_message(ca_fingerprint: &str, request: &JoinRequest) -> Vec<u8> {
    let JoinRequest { name, role, csr_pem, identity, underlay, secret, proof: _, by_token: _ } = request;
    let hash = |text: &str| -> [u8; 32] { Sha256::digest(text).into() };
    let asked = (name, role, hash(csr_pem), identity, underlay, hash(secret));
    weir_base::codec::encode(&(ca_fingerprint.to_ascii_lowercase(), asked))
}

/// Shows that the asker has the key which a request to join names as its identity: the request's `proof`.
pub fn sign_join(key: &KeyPair, ca_fingerprint: &str, request: &JoinRequest) -> Signature {
    key.sign(Context::Join, &join_message(ca_fingerprint, request))
}

/// Checks that whoever asks to join has the key `identity`.
///
/// # Errors
/// [`TrustError::BadKey`] or [`TrustError::BadSignature`].
pub fn verify_join(
    identity: &[u8; 32],
    ca_fingerprint: &str,
    request: &JoinRequest,
    proof: &Signature,
) -> Result<(), TrustError> {
    verify(identity, Context::Join, &join_message(ca_fingerprint, request), proof)
}

/// A source's word that it uses this key only.
pub fn sign_settled(domain: &Label, whose: &SourceId, key: &KeyPair) -> Signature {
    key.sign(Context::Settled, &weir_base::codec::encode(&(domain, whose, key.public())))
}

/// Checks that the source with this key uses it only.
///
/// # Errors
/// [`TrustError::BadKey`] or [`TrustError::BadSignature`].
pub fn verify_settled(
    domain: &Label,
    whose: &SourceId,
    key: &[u8; 32],
    by_key: &Signature,
) -> Result<(), TrustError> {
    verify(key, Context::Settled, &weir_base::codec::encode(&(domain, whose, key)), by_key)
}
