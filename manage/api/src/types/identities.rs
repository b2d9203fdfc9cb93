//! By what those who take part are known.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What the order knows of who takes part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct IdentityList {
    /// Hosts, gateways and controllers.
    pub items: Vec<IdentityView>,
    /// The certificate that the controller shows which answers.
    pub own: CertificateView,
}

/// By what one who takes part is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct IdentityView {
    /// As a source of events: `actuator/h1`, `controller/controller-2`.
    pub source: String,
    /// `host`, `gateway` or `controller`.
    pub kind: String,
    /// SHA-256 of the ed25519 key that signs what it says, hex; none where nothing of it is taken.
    pub key: Option<String>,
    /// The same of the key before, while it is taken too.
    pub previous: Option<String>,
    /// Ordered time of the last change of its key, milliseconds of the Unix epoch; 0: never changed.
    pub since_ms: u64,
    /// Certificates that are taken, the newest last; none: every one of the authority.
    pub certificates: Vec<CertificateView>,
    /// Why nothing of it is taken.
    pub revoked: Option<RevokedView>,
    /// Keys that are never taken again.
    pub refused: usize,
}

/// A certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CertificateView {
    /// SHA-256 of its public key (SubjectPublicKeyInfo, DER), hex.
    pub key: String,
    /// When it is over, seconds of the Unix epoch.
    pub until_s: u64,
}

/// A revocation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RevokedView {
    /// Why.
    pub reason: String,
    /// Version at which it was decided.
    pub version: u64,
    /// Ordered time, milliseconds of the Unix epoch.
    pub at_ms: u64,
}

/// What to revoke, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RevokeRequest {
    /// As a source of events.
    pub source: String,
    /// Why; at most 256 bytes.
    pub reason: String,
}

/// Whose keys shall change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RotateRequest {
    /// Name of the host or gateway.
    pub name: String,
}

/// A change of a controller's key, with the signatures that it needs: what that controller gives and any other one orders.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KeyChange {
    /// Postcard, base64.
    pub event: String,
}
