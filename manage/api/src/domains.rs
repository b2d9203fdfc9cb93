//! Other domains in the API: what an operator brings from one to the other, how they get on, and how their controllers ask each
//! other (row C6; decision 0028).
//!
//! Controllers of other domains have no certificate here. Who asks is known by a signature in what it sends
//! (`weir_model::domain::SignedFetch`), and who answers by its certificate, which is of the authority that the operator brought.

use crate::pki;
use crate::problem::{ApiError, Problem};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use utoipa::ToSchema;
use weir_model::Label;
use weir_model::domain::{DomainController, DomainRecord};
use weir_model::join::from_hex;
use weir_model::signed::GroupKey;

/// Where controllers of other domains ask.
pub const STATEMENTS_PATH: &str = "/v1/domain/statements";
/// Largest question of a controller of another domain, bytes.
pub const QUESTION_BYTES_MAX: usize = 4 * 1024;
/// Largest answer to one, bytes.
pub const STATEMENTS_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// A controller, as other domains know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DomainMember {
    /// Its number in the group; 0 for one that is alone.
    pub id: u64,
    /// Public key that signs what it says, 64 hexadecimal digits.
    pub key: String,
    /// Where people, tools and other domains reach it, `ADDRESS:PORT`.
    pub api: String,
}

/// What a domain's operator brings to another domain's. Nothing in it is secret, and all trust rests on its coming from the right one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DomainDescription {
    /// Its name.
    pub name: String,
    /// Its group's public key, hexadecimal. It never changes.
    pub group_key: String,
    /// Certificate of the authority of its controllers, PEM.
    pub authority: String,
    /// Its controllers now; it tells when others come or go.
    pub controllers: Vec<DomainMember>,
}

/// Make another domain known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AddDomain {
    /// What its operator brought.
    pub domain: DomainDescription,
    /// Prefixes of the underlay in which its hosts are: it may tell of no other places.
    pub underlays: Vec<String>,
}

impl AddDomain {
    /// What the description means.
    ///
    /// # Errors
    /// `invalid`, with the field, its value, and what is allowed.
    pub fn record(self) -> Result<DomainRecord, ApiError> {
        let AddDomain { domain, underlays } = self;
        let wrong = |field: String, value: &str, allowed: &str| {
            ApiError::invalid(format!("{field}: '{value}' is not allowed: {allowed}"))
        };
        let name =
            Label::new(domain.name.clone()).map_err(|error| ApiError::invalid(format!("name: {error}")))?;
        let group_key = GroupKey::from_hex(&domain.group_key).ok_or_else(|| {
            let allowed = "64 hexadecimal digits of a single key, or 192 of a threshold key, as 'weir domain show' prints there";
            wrong("groupKey".into(), &domain.group_key, allowed)
        })?;
        if pki::chain(&domain.authority).map_or(0, |chain| chain.len()) != 1 {
            let allowed = "the one certificate of its authority in PEM, as 'weir domain show' prints there";
            let begins: String = domain.authority.chars().take(40).collect();
            return Err(wrong("authority".into(), &begins, allowed));
        }
        let controller = |one: DomainMember| {
            let key = from_hex::<32>(&one.key).ok_or_else(|| {
                let allowed = "64 hexadecimal digits of an ed25519 key";
                wrong(format!("key of controller {}", one.id), &one.key, allowed)
            })?;
            let at = one.api.parse::<SocketAddr>();
            if !at.is_ok_and(|at| at.port() != 0 && !at.ip().is_unspecified()) {
                let allowed =
                    "ADDRESS:PORT where this domain's controllers reach it, such as 192.0.2.10:7443";
                return Err(wrong(format!("api of controller {}", one.id), &one.api, allowed));
            }
            Ok(DomainController { id: one.id, key, api: one.api })
        };
        let controllers = domain.controllers.into_iter().map(controller);
        let mut controllers = controllers.collect::<Result<Vec<_>, _>>()?;
        controllers.sort_by_key(|one| one.id);
        let prefix = |text: &String| {
            let allowed = "a prefix of the underlay in which its hosts are, such as 198.18.2.0/24";
            text.parse().map_err(|_| wrong("underlays".into(), text, allowed))
        };
        let underlays = underlays.iter().map(prefix).collect::<Result<_, _>>()?;
        Ok(DomainRecord { name, group_key, authority_pem: domain.authority, controllers, underlays })
    }
}

/// A domain was made known or forgotten.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DomainResponse {
    /// The version at which it was decided.
    pub version: u64,
}

/// What another domain is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DomainTold {
    /// Number of the last statement.
    pub last: u64,
    /// It has taken all up to this one, as enough of its controllers said.
    pub acked: u64,
    /// It did not take what it was told, and is told nothing until it is heard again; then everything anew.
    pub cut: bool,
    /// How often it was told everything anew.
    pub begun: u64,
}

/// What another domain told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DomainTaken {
    /// Everything up to this statement is ordered here.
    pub through: u64,
    /// Locations that are kept of it.
    pub locations: u64,
    /// Statements that were taken.
    pub taken: u64,
    /// Statements that were refused, by reason.
    pub refused: BTreeMap<String, u64>,
    /// The last one that was refused, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_refused: Option<String>,
}

/// Another domain, as this one knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DomainView {
    /// What it is, with its controllers as it told them last.
    pub domain: DomainDescription,
    /// Where its hosts are, as the operator here granted it.
    pub underlays: Vec<String>,
    /// What it is told.
    pub told: DomainTold,
    /// What it told.
    pub taken: DomainTaken,
    /// Why the controller that answers gets nothing from it at the moment; absent when it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Other domains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DomainList {
    /// By name.
    pub items: Vec<DomainView>,
}

/// Why there is no answer of another domain.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The certificate of its authority is none.
    #[error(transparent)]
    Authority(ureq::Error),
    /// The controller does not answer.
    #[error("{api} does not answer: {error}")]
    NoAnswer {
        /// Its address.
        api: String,
        /// What came in between.
        error: ureq::Error,
    },
    /// The answer did not come whole.
    #[error("the answer of {api} broke off: {error}")]
    Broken {
        /// Its address.
        api: String,
        /// What came in between.
        error: ureq::Error,
    },
    /// The controller says no.
    #[error("{api} refuses: {why}")]
    Refused {
        /// Its address.
        api: String,
        /// Its words, or the status of HTTP.
        why: String,
    },
}

/// Asks controllers of one other domain. Blocks.
#[derive(Debug)]
pub struct DomainClient {
    agent: ureq::Agent,
}

impl DomainClient {
    /// Of the domain with this authority.
    ///
    /// # Errors
    /// What is wrong with the certificate.
    pub fn new(authority_pem: &str) -> Result<DomainClient, AskError> {
        let authority = Certificate::from_pem(authority_pem.as_bytes()).map_err(AskError::Authority)?;
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::Specific(Arc::new(vec![authority])))
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .build();
        let agent = ureq::Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .max_redirects(0)
            .build()
            .into();
        Ok(DomainClient { agent })
    }

    /// Sends a question to the controller at `api`; its answer, within `limit`.
    ///
    /// # Errors
    /// Why there is none.
    pub fn ask(&self, api: &str, question: &[u8], limit: Duration) -> Result<Vec<u8>, AskError> {
        let request = self.agent.post(format!("https://{api}{STATEMENTS_PATH}"));
        let request = request.header("content-type", "application/octet-stream");
        let sent = request.config().timeout_global(Some(limit)).build().send(question);
        let mut answer = sent.map_err(|error| AskError::NoAnswer { api: api.to_owned(), error })?;
        let (status, body) = (answer.status(), answer.body_mut());
        let bytes = body.with_config().limit(STATEMENTS_BYTES_MAX).read_to_vec();
        let bytes = bytes.map_err(|error| AskError::Broken { api: api.to_owned(), error })?;
        if status.is_success() {
            return Ok(bytes);
        }
        let why = serde_json::from_slice::<Problem>(&bytes).map(|problem| problem.message);
        let why = why.unwrap_or_else(|_| format!("status {status}"));
        Err(AskError::Refused { api: api.to_owned(), why })
    }
}
