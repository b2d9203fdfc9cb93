//! What people sign: their requests, and that an actuator joins by a token that they made (rows R4, R12). What either means is
//! [`weir_model::said`].
//!
//! Invariants
//! - A request's signature is over all of it and the domain, and so is a join's: nothing of one is good in another.
//! - Signed is the hash of a request's body and not the body, as of events: a transaction may have megabytes.

use crate::TrustError;
use crate::identity::{Context, KeyPair, verify};
use ed25519_dalek::VerifyingKey;
use sha2::{Digest as _, Sha256};
use weir_base::codec::encode;
use weir_model::Label;
use weir_model::event::{ActuatorFacts, Event};
use weir_model::identity::TokenId;
use weir_model::said::{JoinedBy, Said};
use weir_model::signed::Signature;

/// SHA-256 of what the author of a request signs: two requests with the same are the same.
pub fn digest(domain: &Label, said: &Said) -> [u8; 32] {
    Sha256::digest(statement(domain, said)).into()
}

/// What an author signs, in [`Context::Said`].
fn statement(domain: &Label, said: &Said) -> Vec<u8> {
    let body: [u8; 32] = Sha256::digest(encode(said.body())).into();
    encode(&(domain, said.author(), said.number(), said.made_ms, said.until_ms, body))
}

/// The bytes that an author signs, for a key that is not here.
pub fn to_sign(domain: &Label, said: &Said) -> Vec<u8> {
    [Context::Said.tag(), &statement(domain, said)].concat()
}

/// Signs what is wanted as its author: the event's source and number are the author's.
pub fn sign_said(key: &KeyPair, domain: &Label, event: Event, (made_ms, until_ms): (u64, u64)) -> Said {
    let signature = Signature { r: [0; 32], s: [0; 32] };
    let unsigned = Said { event, made_ms, until_ms, signature };
    let signature = key.sign(Context::Said, &statement(domain, &unsigned));
    Said { signature, ..unsigned }
}

/// Checks that the author with this key asks for this, in this domain. Whose key it is, and whether it is in time, others check.
///
/// # Errors
/// [`TrustError::BadKey`] or [`TrustError::BadSignature`].
pub fn verify_said(public: &[u8; 32], domain: &Label, said: &Said) -> Result<(), TrustError> {
    verify(public, Context::Said, &statement(domain, said), &said.signature)
}

/// Whether one of these keys signed a request, in this domain.
pub fn is_signed_by(keys: &[[u8; 32]], domain: &Label, said: &Said) -> bool {
    let statement = statement(domain, said);
    keys.iter().any(|key| verify(key, Context::Said, &statement, &said.signature).is_ok())
}

/// Lets an actuator join, with the key of its token. `authority` is the SHA-256 of the authority's certificate that the token pins.
pub fn sign_joined_by(
    key: &KeyPair,
    domain: &Label,
    token: TokenId,
    authority: [u8; 32],
    facts: ActuatorFacts,
) -> JoinedBy {
    let signature = key.sign(Context::JoinedBy, &encode(&(domain, token, authority, &facts)));
    JoinedBy { facts, token, authority, signature }
}

/// Checks that who has the token with this key lets the actuator join, in this domain.
///
/// # Errors
/// [`TrustError::BadKey`] or [`TrustError::BadSignature`].
pub fn verify_joined_by(public: &[u8; 32], domain: &Label, joined: &JoinedBy) -> Result<(), TrustError> {
    let JoinedBy { facts, token, authority, signature } = joined;
    verify(public, Context::JoinedBy, &encode(&(domain, token, authority, facts)), signature)
}

/// Whether these bytes are a key whose signatures can be checked.
pub fn is_key(public: &[u8; 32]) -> bool {
    VerifyingKey::from_bytes(public).is_ok_and(|key| !key.is_weak())
}
