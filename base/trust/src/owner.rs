//! Whose the key in a certificate is, by the word of its owner's identity (rows R4, R12).
//!
//! Every controller has the key of the domain's authority, so a certificate by itself says no more than that a controller made it. Its
//! owner's identity is in the order, by the word of who made its token; so the identity signs the key of each certificate, and
//! whoever takes the certificate looks whether it did. The signature stands in the certificate, as an extension ([`OWNER_OID`]): it goes with it
//! wherever it is shown, and nothing of certificates has to be ordered.
//!
//! Invariants
//! - The signature is over domain, owner and key: a certificate for another name, key or domain has none.
//! - It ends with the identity: who was revoked, or has changed its keys, has no certificate by the old one.

use crate::TrustError;
use crate::identity::{Context, KeyPair, verify};
use weir_base::codec::encode;
use weir_model::Label;
use weir_model::event::SourceId;
use weir_model::identity::KeyHash;
use weir_model::signed::Signature;

pub use weir_model::identity::OWNER_OID;

/// Begin of the DER of the OCTET STRING.
const HEAD: [u8; 2] = [0x04, 64];

/// Signs the key of a certificate as its owner.
pub fn sign_owner(key: &KeyPair, domain: &Label, owner: &SourceId, certified: &KeyHash) -> Signature {
    key.sign(Context::Owner, &encode(&(domain, owner, certified)))
}

/// Checks that the identity with this key says that the key of a certificate is its own.
///
/// # Errors
/// [`TrustError::BadKey`] or [`TrustError::BadSignature`].
pub fn verify_owner(
    public: &[u8; 32],
    domain: &Label,
    owner: &SourceId,
    certified: &KeyHash,
    signature: &Signature,
) -> Result<(), TrustError> {
    verify(public, Context::Owner, &encode(&(domain, owner, certified)), signature)
}

/// The content of the extension, DER.
pub fn to_der(signature: &Signature) -> Vec<u8> {
    [&HEAD[..], &signature.r, &signature.s].concat()
}

/// The values of the attribute of a request, DER: a SET of the one.
pub fn to_der_set(signature: &Signature) -> Vec<u8> {
    let one = to_der(signature);
    [&[0x31, one.len() as u8][..], &one].concat()
}

/// A signature from the content of the extension.
pub fn of_der(der: &[u8]) -> Option<Signature> {
    let bytes: &[u8; 64] = der.strip_prefix(&HEAD)?.try_into().ok()?;
    let (mut r, mut s) = ([0; 32], [0; 32]);
    r.copy_from_slice(&bytes[..32]);
    s.copy_from_slice(&bytes[32..]);
    Some(Signature { r, s })
}

/// A signature from the values of the attribute.
pub fn of_der_set(der: &[u8]) -> Option<Signature> {
    of_der(der.strip_prefix(&[0x31, 66])?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_its_owners_by_the_word_of_its_identity_alone() {
        let (domain, owner) =
            (Label::new("prod").unwrap(), SourceId::of_actuator(&Label::new("h1").unwrap()));
        let (identity, thief) = (KeyPair::from_seed(&[1; 32]), KeyPair::from_seed(&[2; 32]));
        let signature = sign_owner(&identity, &domain, &owner, &[7; 32]);
        let takes = |by: &KeyPair, domain: &Label, owner: &SourceId, key: &KeyHash| {
            verify_owner(&by.public(), domain, owner, key, &signature).is_ok()
        };
        assert!(takes(&identity, &domain, &owner, &[7; 32]));
        let (west, h2) = (Label::new("west").unwrap(), SourceId::of_actuator(&Label::new("h2").unwrap()));
        assert!(!takes(&thief, &domain, &owner, &[7; 32]));
        assert!(!takes(&identity, &west, &owner, &[7; 32]));
        assert!(!takes(&identity, &domain, &h2, &[7; 32]));
        assert!(!takes(&identity, &domain, &owner, &[8; 32]));
        // What it signed for another purpose is none.
        let settled = crate::identity::sign_settled(&domain, &owner, &identity);
        assert!(verify_owner(&identity.public(), &domain, &owner, &identity.public(), &settled).is_err());
    }

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let signature = Signature { r: [0x31; 32], s: [0x04; 32] };
        assert_eq!(of_der(&to_der(&signature)), Some(signature));
        assert_eq!(of_der_set(&to_der_set(&signature)), Some(signature));
        bolero::check!().with_iterations(10_000).for_each(|bytes: &[u8]| {
            if let Some(signature) = of_der(bytes) {
                assert_eq!(to_der(&signature), bytes);
            }
            if let Some(signature) = of_der_set(bytes) {
                assert_eq!(to_der_set(&signature), bytes);
            }
        });
    }
}
