//! The certificates of a domain: one authority, made when the controller first starts, that signs
//! the controller's, the administrators' and the actuators' certificates.
//!
//! Names keep the three apart: an actuator's certificate has its name, a label without a dot, as
//! only DNS name; a controller's has [`CONTROLLER_DNS_NAME`], an administrator's [`ADMIN_DNS_NAME`]; those of a group show
//! each other one with `replica-<number>.weir.internal`.

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use sha2::{Digest as _, Sha256};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use weir_model::Label;
use weir_model::join::{CONTROLLER_DNS_NAME, to_hex};

/// DNS name that only administrators' certificates carry.
pub const ADMIN_DNS_NAME: &str = "admin.weir.internal";

/// How far an actuator's clock may be behind the controller's.
const CLOCKS_APART: Duration = Duration::from_secs(3600);

/// Why a certificate or a TLS configuration cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// Making a certificate failed.
    #[error("a certificate cannot be made: {0}")]
    Make(#[from] rcgen::Error),
    /// TLS does not take it.
    #[error("TLS does not take the certificates: {0}")]
    Tls(#[from] rustls::Error),
    /// The PEM text holds no such thing.
    #[error("the PEM text has no {0}")]
    Pem(&'static str),
    /// Client verification cannot be set up.
    #[error("client certificates cannot be verified: {0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

/// A certificate with its key, PEM.
#[derive(Clone)]
pub struct Identity {
    /// Certificate, or chain.
    pub certificate_pem: String,
    /// Key. Secret.
    pub key_pem: String,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Identity")
    }
}

/// The authority of a domain.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate_pem: String,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authority")
    }
}

fn named(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

impl Authority {
    /// Makes an authority.
    ///
    /// # Errors
    /// [`PkiError`].
    pub fn make(domain: &Label) -> Result<Identity, PkiError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = named(&format!("Weir domain {domain}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key)?;
        Ok(Identity { certificate_pem: certificate.pem(), key_pem: key.serialize_pem() })
    }

    /// Opens the authority that [`Authority::make`] made.
    ///
    /// # Errors
    /// [`PkiError`].
    pub fn open(identity: &Identity) -> Result<Authority, PkiError> {
        let key = KeyPair::from_pem(&identity.key_pem)?;
        let issuer = Issuer::from_ca_cert_pem(&identity.certificate_pem, key)?;
        Ok(Authority { issuer, certificate_pem: identity.certificate_pem.clone() })
    }

    /// Its certificate, PEM.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// SHA-256 of its certificate (DER), 64 hex digits: what join tokens pin.
    ///
    /// # Errors
    /// [`PkiError::Pem`].
    pub fn fingerprint(&self) -> Result<String, PkiError> {
        fingerprint(&self.certificate_pem)
    }

    /// The controller's certificate, with the authority's behind it.
    ///
    /// # Errors
    /// [`PkiError`].
    pub fn controller(&self, addresses: &[IpAddr]) -> Result<Identity, PkiError> {
        let mut names = vec![CONTROLLER_DNS_NAME.to_string(), "localhost".to_string()];
        names.dedup();
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = named(CONTROLLER_DNS_NAME);
        params.subject_alt_names.extend(addresses.iter().map(|address| SanType::IpAddress(*address)));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let mut identity = self.issue(params)?;
        identity.certificate_pem.push_str(&self.certificate_pem);
        Ok(identity)
    }

    /// The certificate by which a controller of a group is known to the others: both ends of a connection between
    /// them show one.
    ///
    /// # Errors
    /// [`PkiError`].
    pub fn replica(&self, dns_name: &str) -> Result<Identity, PkiError> {
        let mut params = CertificateParams::new(vec![dns_name.to_string()])?;
        params.distinguished_name = named(dns_name);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(params)
    }

    /// An administrator's certificate.
    ///
    /// # Errors
    /// [`PkiError`].
    pub fn admin(&self) -> Result<Identity, PkiError> {
        let mut params = CertificateParams::new(vec![ADMIN_DNS_NAME.to_string()])?;
        params.distinguished_name = named("administrator");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(params)
    }

    fn issue(&self, params: CertificateParams) -> Result<Identity, PkiError> {
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Identity { certificate_pem: certificate.pem(), key_pem: key.serialize_pem() })
    }

    /// Signs an actuator's request, good for `days` from now on. Only its key is taken from the request;
    /// names and purposes are ours.
    ///
    /// # Errors
    /// [`PkiError`] when the request is no PKCS#10 request.
    pub fn actuator(&self, name: &Label, csr_pem: &str, days: u32) -> Result<String, PkiError> {
        let request = CertificateSigningRequestParams::from_pem(csr_pem)?;
        let mut params = CertificateParams::new(vec![name.to_string()])?;
        params.distinguished_name = named(name.as_str());
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let now = SystemTime::now();
        params.not_before = (now - CLOCKS_APART).into();
        params.not_after = (now + Duration::from_secs(u64::from(days) * 86_400)).into();
        Ok(params.signed_by(&request.public_key, &self.issuer)?.pem())
    }
}

/// SHA-256 of the first certificate (DER) of a PEM text, 64 hex digits.
///
/// # Errors
/// [`PkiError::Pem`].
pub fn fingerprint(certificate_pem: &str) -> Result<String, PkiError> {
    let der = CertificateDer::from_pem_slice(certificate_pem.as_bytes())
        .map_err(|_| PkiError::Pem("certificate"))?;
    Ok(to_hex(&Sha256::digest(&der)))
}

/// The certificates of a PEM text (DER).
///
/// # Errors
/// [`PkiError::Pem`].
pub fn chain(pem: &str) -> Result<Vec<CertificateDer<'static>>, PkiError> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|_| PkiError::Pem("certificate"))
}

/// The key of an identity (DER).
///
/// # Errors
/// [`PkiError::Pem`].
pub fn key(identity: &Identity) -> Result<PrivateKeyDer<'static>, PkiError> {
    PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes()).map_err(|_| PkiError::Pem("key"))
}

fn roots(authority_pem: &str) -> Result<RootCertStore, PkiError> {
    let mut roots = RootCertStore::empty();
    for certificate in chain(authority_pem)? {
        roots.add(certificate)?;
    }
    Ok(roots)
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Server side of TLS. With `client_required` a client without a certificate of the domain is
/// refused; else it is let in, and is known only when it has one.
///
/// # Errors
/// [`PkiError`].
pub fn server_config(
    identity: &Identity,
    authority_pem: &str,
    client_required: bool,
) -> Result<Arc<rustls::ServerConfig>, PkiError> {
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(authority_pem)?), provider());
    let verifier = if client_required { verifier } else { verifier.allow_unauthenticated() }.build()?;
    let config = rustls::ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain(&identity.certificate_pem)?, key(identity)?)?;
    Ok(Arc::new(config))
}

/// Client side of TLS, for whoever proves itself by a token.
///
/// # Errors
/// [`PkiError`].
pub fn client_config(authority_pem: &str) -> Result<Arc<rustls::ClientConfig>, PkiError> {
    let config = rustls::ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots(authority_pem)?)
        .with_no_client_auth();
    Ok(Arc::new(config))
}
