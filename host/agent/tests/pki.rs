//! An authority and a controller that speaks TLS, for tests.

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair,
};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio_rustls::TlsAcceptor;

pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub certificate: CertificateDer<'static>,
    pub pem: String,
}

impl Authority {
    pub fn new() -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        let (der, pem) = (certificate.der().clone(), certificate.pem());
        Authority { issuer: Issuer::new(params, key), certificate: der, pem }
    }

    pub fn fingerprint(&self) -> String {
        weir_model::join::to_hex(&Sha256::digest(self.certificate.as_ref()))
    }

    /// Signs an actuator's request.
    pub fn sign(&self, csr_pem: &str) -> String {
        let mut request = CertificateSigningRequestParams::from_pem(csr_pem).unwrap();
        request.params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        request.signed_by(&self.issuer).unwrap().pem()
    }

    /// Signs an actuator's request for a life that began before now, seconds.
    pub fn sign_for(&self, csr_pem: &str, name: &str, since_s: u64, left_s: u64) -> String {
        let mut request = CertificateSigningRequestParams::from_pem(csr_pem).unwrap();
        let now = SystemTime::now();
        request.params.distinguished_name = rcgen::DistinguishedName::new();
        request.params.distinguished_name.push(rcgen::DnType::CommonName, name);
        request.params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        request.params.not_before = (now - Duration::from_secs(since_s)).into();
        request.params.not_after = (now + Duration::from_secs(left_s)).into();
        request.signed_by(&self.issuer).unwrap().pem()
    }

    /// A server with a certificate for a name; it asks for client certificates when told so.
    pub fn acceptor(&self, name: &str, mutual: bool) -> TlsAcceptor {
        self.acceptor_from(name, mutual, 1975)
    }

    /// The same, with a certificate that is good from the first day of a year on.
    pub fn acceptor_from(&self, name: &str, mutual: bool, year: i32) -> TlsAcceptor {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_string()]).unwrap();
        params.not_before = rcgen::date_time_ymd(year, 1, 1);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let chain = vec![certificate.der().clone(), self.certificate.clone()];
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = if mutual {
            let mut roots = rustls::RootCertStore::empty();
            roots.add(self.certificate.clone()).unwrap();
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
            builder.with_client_cert_verifier(verifier)
        } else {
            builder.with_no_client_auth()
        };
        TlsAcceptor::from(Arc::new(builder.with_single_cert(chain, key).unwrap()))
    }
}
