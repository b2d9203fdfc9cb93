//! How a peer of the API is known by its certificate.

use crate::pki::ADMIN_DNS_NAME;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use weir_model::Label;
use weir_model::event::SourceId;
use x509_parser::extensions::GeneralName;

/// What an administrator is called at a door, whatever shows that it is one.
pub const ADMINISTRATOR: &str = "administrator";

/// Who is at the other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// Whether its certificate is an administrator's.
    pub is_admin: bool,
    /// The first name in its certificate, when it showed one.
    pub name: Option<String>,
    /// Its certificate (DER), when it showed one.
    pub certificate: Option<Arc<[u8]>>,
}

impl Peer {
    /// Who is there, by the certificate (DER) that it showed and TLS has verified.
    pub fn of(address: SocketAddr, shown: Option<&[u8]>) -> Peer {
        let names = shown.map(dns_names).unwrap_or_default();
        let is_admin = names.iter().any(|name| name == ADMIN_DNS_NAME);
        Peer { address, is_admin, name: names.into_iter().next(), certificate: shown.map(Arc::from) }
    }

    /// As whom its certificate makes it known; nothing without one.
    pub fn principal(&self) -> Option<String> {
        if self.is_admin {
            return Some(ADMINISTRATOR.to_owned());
        }
        let name = self.name.as_ref()?;
        // Only actuators' names are labels.
        Some(Label::new(name.as_str()).map_or_else(|_| name.clone(), |label| SourceId::of_actuator(&label).0))
    }

    /// When its certificate is over, if it is `now` now; nothing without one.
    pub fn over_at(&self, now: SystemTime) -> Option<Instant> {
        let (_, certificate) = x509_parser::parse_x509_certificate(self.certificate.as_deref()?).ok()?;
        let over_s = u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or_default();
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        Instant::now().checked_add(Duration::from_secs(over_s).saturating_sub(now))
    }
}

/// The DNS names of a certificate; none when it cannot be read.
pub fn dns_names(der: &[u8]) -> Vec<String> {
    let Ok((_, certificate)) = x509_parser::parse_x509_certificate(der) else { return Vec::new() };
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return Vec::new() };
    names
        .value
        .general_names
        .iter()
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_string()),
            _ => None,
        })
        .collect()
}
