//! The word of this actuator's identity in its certificate: [`weir_trust::owner`].
//!
//! Invariant
//! - A certificate that has it is followed only by one that has it, and so is a key that is changed: a controller that lies could give one without, which
//!   no other controller takes.

use crate::AgentError;
use sha2::{Digest as _, Sha256};
use std::path::Path;
use weir_model::Label;
use weir_model::event::SourceId;
use weir_model::join::{TRUST_FILE, TrustFile};
use weir_trust::owner::{OWNER_OID, of_der, verify_owner};
use x509_parser::oid_registry::Oid;
use x509_parser::prelude::{FromDer, X509Certificate};
use zeroize::Zeroizing;

/// The domain that the actuator of a state directory has joined.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn domain_of(state_dir: &Path) -> Result<Label, AgentError> {
    let path = state_dir.join(TRUST_FILE);
    let bytes = std::fs::read(&path).map(Zeroizing::new);
    let bytes = bytes.map_err(|error| AgentError::file(&path, error))?;
    let trust: TrustFile = serde_json::from_slice(&bytes).map_err(|error| AgentError::Material {
        what: path.display().to_string(),
        reason: error.to_string(),
    })?;
    Ok(trust.domain)
}

fn is_owner(oid: &Oid<'_>) -> bool {
    oid.iter().is_some_and(|arcs| arcs.eq(OWNER_OID))
}

/// Whether a certificate (DER) has somebody's word for its key.
pub(crate) fn has_word(der: &[u8]) -> bool {
    X509Certificate::from_der(der)
        .is_ok_and(|(_, certificate)| certificate.extensions().iter().any(|one| is_owner(&one.oid)))
}

/// Whether a certificate (DER) has the word of this identity for its key, in this domain.
pub(crate) fn has_word_of(der: &[u8], domain: &Label, name: &Label, identity: &[u8; 32]) -> bool {
    let Ok((_, certificate)) = X509Certificate::from_der(der) else { return false };
    let key = Sha256::digest(certificate.public_key().raw).into();
    let word =
        certificate.extensions().iter().find(|one| is_owner(&one.oid)).and_then(|one| of_der(one.value));
    let source = SourceId::of_actuator(name);
    word.is_some_and(|word| verify_owner(identity, domain, &source, &key, &word).is_ok())
}
