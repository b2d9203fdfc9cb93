//! The keys of an actuator, in the state directory: made once, and never sent.

use crate::AgentError;
use rcgen::{Attribute, CertificateParams, DnType, KeyPair as TlsKey, PublicKeyData as _};
use sha2::{Digest as _, Sha256};
use std::path::Path;
use weir_base::file::replace;
use weir_model::Label;
use weir_model::event::SourceId;
use weir_model::join::{IDENTITY_FILE, KEY_FILE, from_hex, to_hex};
use weir_trust::identity::KeyPair;
use weir_trust::owner::{OWNER_OID, sign_owner, to_der_set};
use zeroize::Zeroizing;

/// Seed of the identity that signs acks.
///
/// # Errors
/// The file is missing or is not 64 hex digits.
pub fn identity(state_dir: &Path) -> Result<KeyPair, AgentError> {
    let path = state_dir.join(IDENTITY_FILE);
    let text = std::fs::read_to_string(&path).map(Zeroizing::new).map_err(|source| {
        let missing = source.kind() == std::io::ErrorKind::NotFound;
        let hint = if missing { "; join first: `weir host` with WEIR_JOIN_TOKEN" } else { "" };
        AgentError::File { path: path.clone(), source, hint }
    })?;
    let seed = from_hex::<32>(text.trim()).map(Zeroizing::new).ok_or_else(|| AgentError::Material {
        what: path.display().to_string(),
        reason: "it is not 64 hex digits".into(),
    })?;
    Ok(KeyPair::from_seed(&seed))
}

/// The keys of an actuator.
pub(crate) struct Keys {
    tls: TlsKey,
    pub(super) identity: KeyPair,
}

fn material(path: &Path, error: impl ToString) -> AgentError {
    AgentError::Material { what: path.display().to_string(), reason: error.to_string() }
}

impl Keys {
    /// The keys that are there, and new ones where none are.
    pub(super) fn load_or_make(state_dir: &Path) -> Result<Keys, AgentError> {
        let path = state_dir.join(KEY_FILE);
        let pem = load_or_make(&path, || {
            let key = TlsKey::generate().map_err(|error| material(&path, error))?;
            Ok(Zeroizing::new(key.serialize_pem()))
        })?;
        let tls = TlsKey::from_pem(&pem).map_err(|error| material(&path, error))?;
        load_or_make(&state_dir.join(IDENTITY_FILE), || {
            let seed = Zeroizing::new(rand::random::<[u8; 32]>());
            Ok(Zeroizing::new(format!("{}\n", to_hex(seed.as_slice()))))
        })?;
        Ok(Keys { tls, identity: identity(state_dir)? })
    }

    /// The keys that joining made.
    pub(crate) fn load(state_dir: &Path) -> Result<Keys, AgentError> {
        let path = state_dir.join(KEY_FILE);
        let pem = std::fs::read_to_string(&path).map(Zeroizing::new);
        let pem = pem.map_err(|error| AgentError::file(&path, error))?;
        let tls = TlsKey::from_pem(&pem).map_err(|error| material(&path, error))?;
        Ok(Keys { tls, identity: identity(state_dir)? })
    }

    /// The key in the certificate, as it stands there.
    pub(crate) fn public(&self) -> &[u8] {
        self.tls.public_key_raw()
    }

    /// A request (PEM) for a certificate, with the word of the identity where the domain is known.
    pub(crate) fn signing_request(&self, name: &Label, domain: Option<&Label>) -> Result<String, AgentError> {
        Keys::request_of(&self.tls, name, domain.map(|domain| (domain, &self.identity)))
    }

    /// A request (PEM) for a certificate of a key, with the word of an identity of a domain that the key is its own.
    pub(crate) fn request_of(
        key: &TlsKey,
        name: &Label,
        owner: Option<(&Label, &KeyPair)>,
    ) -> Result<String, AgentError> {
        let failed = |error: rcgen::Error| AgentError::Join(format!("no certificate request: {error}"));
        let mut params = CertificateParams::new(vec![name.to_string()]).map_err(failed)?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name.as_str());
        let attributes = owner.map(|(domain, identity)| {
            let certified = Sha256::digest(key.subject_public_key_info()).into();
            let word = sign_owner(identity, domain, &SourceId::of_actuator(name), &certified);
            Attribute { oid: &OWNER_OID, values: to_der_set(&word) }
        });
        let request = params.serialize_request_with_attributes(key, attributes.into_iter().collect());
        request.and_then(|request| request.pem()).map_err(failed)
    }
}

fn load_or_make(
    path: &Path,
    make: impl FnOnce() -> Result<Zeroizing<String>, AgentError>,
) -> Result<Zeroizing<String>, AgentError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Zeroizing::new(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let text = make()?;
            replace(path, text.as_bytes(), 0o600).map_err(|error| AgentError::file(path, error))?;
            Ok(text)
        }
        Err(error) => Err(AgentError::file(path, error)),
    }
}
