//! The certificates of a domain: one authority, made when the controller first starts, that signs
//! the controller's, the administrators' and the actuators' certificates.
//!
//! Names keep the three apart: an actuator's certificate has its name, a label without a dot, as
//! only DNS name; a controller's has [`CONTROLLER_DNS_NAME`], an administrator's [`ADMIN_DNS_NAME`]; those of a group show
//! each other one with `replica-<number>.weir.internal`.

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, CustomExtension, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    DigitallySignedStruct, DistinguishedName as DistinguishedNames, RootCertStore, SignatureScheme,
};
use sha2::{Digest as _, Sha256};
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use weir_model::Label;
use weir_model::identity::OWNER_OID;
use weir_model::join::{CONTROLLER_DNS_NAME, to_hex};
use weir_model::signed::Signature;
use weir_trust::owner::{of_der_set, to_der};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::oid_registry::Oid;
use x509_parser::prelude::FromDer as _;

/// DNS name that only administrators' certificates carry.
pub const ADMIN_DNS_NAME: &str = "admin.weir.internal";

/// Length of the values of the attribute with the word of a certificate's owner, bytes.
const DER_SET_BYTES: usize = 68;
/// How far an actuator's clock may be behind the controller's.
const CLOCKS_APART: Duration = Duration::from_secs(3600);
/// Life of a controller's certificate. A controller makes itself one at each start, and every [`CONTROLLER_RENEWAL`].
const CONTROLLER_LIFE: Duration = Duration::from_secs(398 * 86_400);
/// After so long a controller that runs shows a new certificate.
pub const CONTROLLER_RENEWAL: Duration = Duration::from_secs(30 * 86_400);

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

    /// The controller's certificate, with the authority's behind it, good from an hour before `now` on. That is what the clocks of the
    /// group say where they are known: one controller's may be wrong.
    ///
    /// # Errors
    /// [`PkiError`].
    pub fn controller(&self, addresses: &[IpAddr], now: SystemTime) -> Result<Identity, PkiError> {
        let mut names = vec![CONTROLLER_DNS_NAME.to_string(), "localhost".to_string()];
        names.dedup();
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = named(CONTROLLER_DNS_NAME);
        params.subject_alt_names.extend(addresses.iter().map(|address| SanType::IpAddress(*address)));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.not_before = (now - CLOCKS_APART).into();
        params.not_after = (now + CONTROLLER_LIFE).into();
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

    /// Signs an actuator's request, good for `days` from `now` on, which is what the clocks of the group say. Taken from the request are its key, and the
    /// word of its owner's identity for the key, which whoever takes the certificate checks; names and purposes are ours.
    ///
    /// # Errors
    /// [`PkiError`] when the request is no PKCS#10 request.
    pub fn actuator(
        &self,
        name: &Label,
        csr_pem: &str,
        days: u32,
        now: SystemTime,
    ) -> Result<String, PkiError> {
        let request = CertificateSigningRequestParams::from_pem(csr_pem)?;
        let mut params = CertificateParams::new(vec![name.to_string()])?;
        params.distinguished_name = named(name.as_str());
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.not_before = (now - CLOCKS_APART).into();
        params.not_after = (now + Duration::from_secs(u64::from(days) * 86_400)).into();
        let word = owner_in(csr_pem).map(|word| CustomExtension::from_oid_content(&OWNER_OID, to_der(&word)));
        params.custom_extensions.extend(word);
        Ok(params.signed_by(&request.public_key, &self.issuer)?.pem())
    }
}

/// The word of its owner's identity in a request (PEM) for a certificate, as it stands there.
fn owner_in(csr_pem: &str) -> Option<Signature> {
    let der = CertificateSigningRequestDer::from_pem_slice(csr_pem.as_bytes()).ok()?;
    let (_, request) = X509CertificationRequest::from_der(&der).ok()?;
    let mut attributes = request.certification_request_info.iter_attributes();
    let is_owner = |oid: &Oid<'_>| oid.iter().is_some_and(|arcs| arcs.eq(OWNER_OID));
    let oid = &attributes.find(|attribute| is_owner(&attribute.oid))?.oid;
    // Of an attribute that the parser does not know it gives the name alone: the values stand behind that.
    let name = [&[0x06, u8::try_from(oid.as_bytes().len()).ok()?][..], oid.as_bytes()].concat();
    let at = der.windows(name.len()).position(|bytes| bytes == name)? + name.len();
    of_der_set(der.get(at..at + DER_SET_BYTES)?)
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

/// Why a client's certificate (DER), which the authority signed, is not taken all the same.
pub type Refuses = dyn Fn(&[u8]) -> Result<(), String> + Send + Sync;

/// What time it is, for who judges certificates.
pub type Now = dyn Fn() -> SystemTime + Send + Sync;

/// Asks, behind the authority's signature, whether a certificate is taken still, by the time that it is told and not by the machine's clock.
struct Verifier {
    inner: Arc<dyn ClientCertVerifier>,
    refuses: Arc<Refuses>,
    now: Arc<Now>,
}

impl std::fmt::Debug for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Verifier").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl ClientCertVerifier for Verifier {
    fn offer_client_auth(&self) -> bool {
        self.inner.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedNames] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _machine: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let now = (self.now)().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = UnixTime::since_unix_epoch(now);
        let verified = self.inner.verify_client_cert(end_entity, intermediates, now)?;
        (self.refuses)(end_entity.as_ref()).map_err(|reason| {
            tracing::info!(reason, "a certificate is not taken any more");
            rustls::Error::InvalidCertificate(rustls::CertificateError::Revoked)
        })?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// The certificate that a server shows; another one may take its place while it serves.
pub struct Shown(RwLock<Arc<CertifiedKey>>);

impl std::fmt::Debug for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shown")
    }
}

impl Shown {
    /// Shows this one at first.
    ///
    /// # Errors
    /// [`PkiError`].
    pub fn new(identity: &Identity) -> Result<Shown, PkiError> {
        Ok(Shown(RwLock::new(certified(identity)?)))
    }

    /// Shows another one from now on.
    ///
    /// # Errors
    /// [`PkiError`]: the one before stays.
    pub fn show(&self, identity: &Identity) -> Result<(), PkiError> {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = certified(identity)?;
        Ok(())
    }

    fn now(&self) -> Arc<CertifiedKey> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The certificate, DER.
    pub fn certificate(&self) -> CertificateDer<'static> {
        self.now().cert.first().cloned().unwrap_or_else(|| CertificateDer::from(Vec::new()))
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.now())
    }
}

fn certified(identity: &Identity) -> Result<Arc<CertifiedKey>, PkiError> {
    let key = provider().key_provider.load_private_key(key(identity)?)?;
    Ok(Arc::new(CertifiedKey::new(chain(&identity.certificate_pem)?, key)))
}

/// Server side of TLS that shows what may change, and refuses certificates that are not taken any more. No connection goes on from an
/// earlier one, as a certificate is asked for in whole handshakes only. Certificates are judged by `now`, what the clocks of the group say.
///
/// # Errors
/// [`PkiError`].
pub fn refusing_server_config(
    shown: Arc<Shown>,
    authority_pem: &str,
    client_required: bool,
    refuses: Arc<Refuses>,
    now: Arc<Now>,
) -> Result<Arc<rustls::ServerConfig>, PkiError> {
    let inner = client_verifier(authority_pem, client_required)?;
    let mut config = rustls::ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(Arc::new(Verifier { inner, refuses, now }))
        .with_cert_resolver(shown);
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

fn client_verifier(authority_pem: &str, required: bool) -> Result<Arc<dyn ClientCertVerifier>, PkiError> {
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(authority_pem)?), provider());
    Ok(if required { verifier } else { verifier.allow_unauthenticated() }.build()?)
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
    let config = rustls::ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(client_verifier(authority_pem, client_required)?)
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

/// What a person is told of an error of TLS that is about the time of a controller's certificate; nothing for other errors.
pub fn clock_words(error: &rustls::Error) -> Option<String> {
    use rustls::CertificateError::{Expired, ExpiredContext, NotValidYet, NotValidYetContext};
    let rustls::Error::InvalidCertificate(found) = error else { return None };
    let days = |from: UnixTime, to: UnixTime| to.as_secs().saturating_sub(from.as_secs()) / 86_400;
    let what = match found {
        NotValidYetContext { time, not_before } => {
            format!("is not valid yet, for {} days", days(*time, *not_before))
        }
        ExpiredContext { time, not_after } => format!("is over, since {} days", days(*not_after, *time)),
        NotValidYet => "is not valid yet".to_owned(),
        Expired => "is over".to_owned(),
        _ => return None,
    };
    Some(format!(
        "its certificate {what} by the clock of this machine: set this clock right, or the controller's"
    ))
}
