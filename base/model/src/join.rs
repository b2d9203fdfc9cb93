//! How an actuator joins a domain: what it asks of the controller's `/v1/join`, and the answer.
//!
//! Both are JSON. The request travels over HTTPS; the server sends its whole chain, the
//! authority's certificate included, because the join token pins that certificate by its hash. The
//! server's certificate is for the host in the address or for [`CONTROLLER_DNS_NAME`], both here and
//! on sessions. The answer carries a secret and must not be logged.

use crate::Label;
use crate::identity::TokenId;
use crate::source::Role;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;

pub use crate::hex::{from_hex, to_hex};

/// Path of the request on the controller's API.
pub const JOIN_PATH: &str = "/v1/join";
/// First part of a join token; the second is URL-safe base64 without padding of [`JoinToken`] as JSON.
pub const JOIN_TOKEN_PREFIX: &str = "weir1.";
/// DNS name that only controllers' certificates carry; no actuator's name has a dot.
pub const CONTROLLER_DNS_NAME: &str = "controller.weir.internal";
/// File of the session certificate, PEM, in an actuator's state directory.
pub const CERTIFICATE_FILE: &str = "session.crt";
/// File of the session certificate's key, PEM, mode 0600.
pub const KEY_FILE: &str = "session.key";
/// File of the authority's certificate, PEM.
pub const AUTHORITY_FILE: &str = "ca.crt";
/// File of the seed of the identity that signs acks: 64 hex digits, mode 0600.
pub const IDENTITY_FILE: &str = "identity.seed";
/// File of a [`TrustFile`], JSON, mode 0600.
pub const TRUST_FILE: &str = "trust.json";
/// Longest certificate request of who joins, bytes.
pub const JOIN_REQUEST_BYTES_MAX: usize = 4 * 1024;
/// Longest join token, bytes.
pub const JOIN_TOKEN_BYTES_MAX: usize = 8192;

/// What a join token holds.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JoinToken {
    /// SHA-256 of the authority's certificate (DER), as 64 hex digits.
    pub ca_fingerprint: String,
    /// Proves that the bearer may join.
    pub secret: String,
    /// Base addresses of the API, such as `https://192.0.2.1:7443`, tried in turn.
    pub controllers: Vec<String>,
    /// The domain, where the bearer signs with `key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<Label>,
    /// Seed of the token's ed25519 key, as 64 hex digits: in a domain whose operators sign what they ask, who joins signs with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

impl JoinToken {
    /// By what the controllers know it; none where its secret does not begin with that.
    pub fn id(&self) -> Option<TokenId> {
        from_hex(self.secret.split_once('.')?.0)
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinToken")
            .field("ca_fingerprint", &self.ca_fingerprint)
            .field("controllers", &self.controllers)
            .finish_non_exhaustive()
    }
}

/// What an actuator asks when it joins.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    /// Name of the actuator; it becomes the subject and the only DNS name of its certificate.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub name: Label,
    /// What it is.
    pub role: Role,
    /// PKCS#10 request for its session certificate, PEM.
    pub csr_pem: String,
    /// ed25519 public key that signs its acks, as 64 hex digits.
    pub identity: String,
    /// Its address on the underlay.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub underlay: IpAddr,
    /// The join token's secret.
    pub secret: String,
    /// Signature of `identity` over all of this and the authority's fingerprint, as 128 hex digits: the asker has the key. That it has
    /// the other one says the signature in `csr_pem`.
    #[serde(default)]
    pub proof: String,
    /// Signature of the token's key that makes the controllers let the asker join, as 128 hex digits; empty where the token has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by_token: String,
}

impl fmt::Debug for JoinRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinRequest")
            .field("name", &self.name)
            .field("role", &self.role)
            .field("identity", &self.identity)
            .field("underlay", &self.underlay)
            .finish_non_exhaustive()
    }
}

/// What a joined actuator gets.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct JoinResponse {
    /// Its session certificate, PEM.
    pub certificate_pem: String,
    /// The authority's certificate, PEM.
    pub ca_pem: String,
    /// The domain.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub domain: Label,
    /// Epoch of the group.
    pub epoch: u64,
    /// The group's public key (ed25519), as 64 hex digits.
    pub group_key: String,
    /// Key of the security tokens in packets, as 32 hex digits. Secret.
    pub dataplane_secret: String,
    /// Session addresses of the controllers, `host:port`.
    pub controllers: Vec<String>,
}

impl fmt::Debug for JoinResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinResponse")
            .field("domain", &self.domain)
            .field("epoch", &self.epoch)
            .field("group_key", &self.group_key)
            .field("controllers", &self.controllers)
            .finish_non_exhaustive()
    }
}

/// What a switch must know to verify updates and packets: [`TRUST_FILE`].
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrustFile {
    /// The domain.
    pub domain: Label,
    /// The group's public key (ed25519), as 64 hex digits.
    pub group_key: String,
    /// Epoch of the group when the actuator joined.
    pub epoch: u64,
    /// Key of the security tokens in packets, as 32 hex digits. Secret.
    pub dataplane_secret: String,
}

impl fmt::Debug for TrustFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrustFile")
            .field("domain", &self.domain)
            .field("group_key", &self.group_key)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
