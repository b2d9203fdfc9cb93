//! TLS towards controllers: which certificate is a controller's, and what we show ourselves.
//!
//! A controller's certificate must come from the domain's authority and be for the host in the
//! address or for [`CONTROLLER_DNS_NAME`].

use crate::AgentError;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore,
    SignatureScheme,
};
use sha2::{Digest as _, Sha256};
use std::path::Path;
use std::sync::Arc;
use weir_model::join::{AUTHORITY_FILE, CERTIFICATE_FILE, CONTROLLER_DNS_NAME, KEY_FILE};

/// Most certificates that a server may show in one chain.
const CHAIN_MAX: usize = 8;

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Whom we take for the authority.
#[derive(Debug)]
enum Authority {
    /// This one.
    Known(Arc<WebPkiServerVerifier>),
    /// The certificate in the shown chain with this SHA-256.
    Pinned([u8; 32]),
}

/// Verifies a controller's certificate.
#[derive(Debug)]
struct ControllerVerifier {
    authority: Authority,
    provider: Arc<CryptoProvider>,
}

fn verifier_of(
    authority: CertificateDer<'static>,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<WebPkiServerVerifier>, Error> {
    let mut roots = RootCertStore::empty();
    roots.add(authority)?;
    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .build()
        .map_err(|error| Error::General(error.to_string()))
}

impl ServerCertVerifier for ControllerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if intermediates.len() > CHAIN_MAX {
            return Err(Error::General(format!("the server shows more than {CHAIN_MAX} certificates")));
        }
        let verifier = match &self.authority {
            Authority::Known(verifier) => verifier.clone(),
            Authority::Pinned(fingerprint) => {
                let pinned = intermediates
                    .iter()
                    .find(|shown| <[u8; 32]>::from(Sha256::digest(shown.as_ref())) == *fingerprint)
                    .ok_or_else(|| {
                        Error::General(
                            "the server's chain does not hold the authority that the token names".into(),
                        )
                    })?;
                verifier_of(pinned.clone().into_owned(), &self.provider)?
            }
        };
        let verify = |name: &ServerName<'_>| {
            verifier.verify_server_cert(end_entity, intermediates, name, ocsp_response, now)
        };
        match verify(server_name) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => {
                let name = ServerName::try_from(CONTROLLER_DNS_NAME)
                    .map_err(|error| Error::General(error.to_string()))?;
                verify(&name)
            }
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn material(path: &Path, error: impl ToString) -> AgentError {
    AgentError::Material { what: path.display().to_string(), reason: error.to_string() }
}

fn read(path: &Path) -> Result<Vec<u8>, AgentError> {
    std::fs::read(path).map_err(|source| {
        let missing = source.kind() == std::io::ErrorKind::NotFound;
        let hint = if missing { "; join first: `weir host` with WEIR_JOIN_TOKEN" } else { "" };
        AgentError::File { path: path.into(), source, hint }
    })
}

/// The certificates of a file; at least one.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, AgentError> {
    certificates_of(&read(path)?).map_err(|reason| material(path, reason))
}

/// The certificates of a PEM text; at least one.
pub(crate) fn certificates_of(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err("it holds no certificate in PEM".to_string()),
        Err(error) => Err(error.to_string()),
    }
}

/// Verifies certificates of this domain's clients, such as our own.
pub(crate) fn client_verifier(state_dir: &Path) -> Result<Arc<dyn ClientCertVerifier>, AgentError> {
    let path = state_dir.join(AUTHORITY_FILE);
    let mut roots = RootCertStore::empty();
    roots.add(certificates(&path)?.remove(0)).map_err(|error| material(&path, error))?;
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
        .build()
        .map_err(|error| material(&path, error))
}

/// Configuration for sessions, from the files that joining left in a state directory.
///
/// # Errors
/// A file that is missing or is not what it should be.
pub fn session_config(state_dir: &Path) -> Result<Arc<ClientConfig>, AgentError> {
    let provider = provider();
    let authority_path = state_dir.join(AUTHORITY_FILE);
    let authority = certificates(&authority_path)?.remove(0);
    let verifier = verifier_of(authority, &provider).map_err(|error| material(&authority_path, error))?;
    let chain = certificates(&state_dir.join(CERTIFICATE_FILE))?;
    let key_path = state_dir.join(KEY_FILE);
    let key = PrivateKeyDer::from_pem_slice(&read(&key_path)?).map_err(|error| material(&key_path, error))?;
    let verifier = ControllerVerifier { authority: Authority::Known(verifier), provider: provider.clone() };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| material(&key_path, error))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_auth_cert(chain, key)
        .map_err(|error| material(&key_path, error))?;
    Ok(Arc::new(config))
}

/// Configuration for joining: the authority is known only by its certificate's SHA-256.
///
/// # Errors
/// None in practice; the builder's type has one.
pub fn pinned_config(fingerprint: [u8; 32]) -> Result<Arc<ClientConfig>, AgentError> {
    let provider = provider();
    let verifier =
        ControllerVerifier { authority: Authority::Pinned(fingerprint), provider: provider.clone() };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| AgentError::Join(error.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// What a person is told of an error below which TLS found a certificate out of its time; nothing for other errors.
pub fn clock_words(error: &std::io::Error) -> Option<String> {
    use CertificateError::{Expired, ExpiredContext, NotValidYet, NotValidYetContext};
    let days = |from: UnixTime, to: UnixTime| to.as_secs().saturating_sub(from.as_secs()) / 86_400;
    let what = match error.get_ref()?.downcast_ref::<Error>()? {
        Error::InvalidCertificate(NotValidYetContext { time, not_before }) => {
            format!("is not valid yet, for {} days", days(*time, *not_before))
        }
        Error::InvalidCertificate(ExpiredContext { time, not_after }) => {
            format!("is over, since {} days", days(*not_after, *time))
        }
        Error::InvalidCertificate(NotValidYet) => "is not valid yet".to_owned(),
        Error::InvalidCertificate(Expired) => "is over".to_owned(),
        Error::AlertReceived(AlertDescription::CertificateExpired) => {
            let words = "it says that our certificate is out of its time: its clock is wrong, or the one that the certificate was made by";
            return Some(words.to_owned());
        }
        _ => return None,
    };
    Some(format!(
        "its certificate {what} by the clock of this machine: set this clock right, or the controller's"
    ))
}

/// A text that is no `host:port`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{address}' is not an address: use host:port, such as 192.0.2.1:7444 or [2001:db8::1]:7444")]
pub struct WrongAddress {
    /// The text.
    pub address: String,
}

/// Splits `host:port`, with brackets around IPv6.
///
/// # Errors
/// [`WrongAddress`].
pub fn split_address(address: &str) -> Result<(&str, u16), WrongAddress> {
    let wrong = || WrongAddress { address: address.to_string() };
    let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
    let host = match host.strip_prefix('[') {
        Some(inner) => inner.strip_suffix(']').ok_or_else(wrong)?,
        None if host.contains(':') => return Err(wrong()),
        None => host,
    };
    let port = port.parse().ok().filter(|&port| port != 0).ok_or_else(wrong)?;
    if ServerName::try_from(host).is_err() {
        return Err(wrong());
    }
    Ok((host, port))
}
