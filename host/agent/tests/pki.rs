//! An authority and a controller that speaks TLS, for tests.

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, CustomExtension,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio_rustls::TlsAcceptor;
use weir_trust::owner::{OWNER_OID, of_der_set, to_der};

pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub certificate: CertificateDer<'static>,
    pub pem: String,
}

/// The word of its owner's identity that is in a request, for the certificate.
fn owners_word(csr_pem: &str) -> Option<CustomExtension> {
    let der = CertificateSigningRequestDer::from_pem_slice(csr_pem.as_bytes()).unwrap();
    // Of the name all but its first byte: the values stand behind.
    let name: Vec<u8> = OWNER_OID[2..].iter().flat_map(|arc| base_128(*arc)).collect();
    let at = der.windows(name.len()).position(|bytes| bytes == name)? + name.len();
    let word = of_der_set(der.get(at..at + 68)?)?;
    Some(CustomExtension::from_oid_content(&OWNER_OID, to_der(&word)))
}

/// A number of a name, as DER has it.
fn base_128(mut number: u64) -> Vec<u8> {
    let mut bytes = vec![(number & 0x7f) as u8];
    while number > 0x7f {
        number >>= 7;
        bytes.insert(0, 0x80 | (number & 0x7f) as u8);
    }
    bytes
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
        request.params.custom_extensions.extend(owners_word(csr_pem));
        request.signed_by(&self.issuer).unwrap().pem()
    }

    /// Signs an actuator's request for a life that began before now, seconds.
    pub fn sign_for(&self, csr_pem: &str, name: &str, since_s: u64, left_s: u64) -> String {
        let mut request = CertificateSigningRequestParams::from_pem(csr_pem).unwrap();
        let now = SystemTime::now();
        request.params.distinguished_name = rcgen::DistinguishedName::new();
        request.params.distinguished_name.push(rcgen::DnType::CommonName, name);
        request.params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        request.params.custom_extensions.extend(owners_word(csr_pem));
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
