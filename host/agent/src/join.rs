//! Joining a domain: from a token to keys, a certificate and trust, kept in the state directory.
//!
//! The token pins the authority's certificate, so nothing that the network says is believed before
//! it is checked. Keys are made here and never leave.
//!
//! Invariants
//! - Idempotent: keys that are there are used again; an actuator that has joined under the same name
//!   does not join again unless told to.
//! - Secrets are written with mode 0600 and in no log; each file is whole or absent.
//! - What the controller answers is checked before any of it is kept: the certificate is for our key
//!   and our name's chain ends at the pinned authority.

mod http;
pub mod keys;
pub mod membership;

pub use keys::identity;
pub use membership::{MEMBERSHIP_FILE, Membership, membership};

use crate::AgentError;
use crate::config::check_controllers;
use crate::kept;
use crate::owner;
use crate::session::renewal;
use crate::session::tls::{pinned_config, session_config};
use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use keys::Keys;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sha2::{Digest as _, Sha256};
use std::net::IpAddr;
use std::path::Path;
use std::time::SystemTime;
use weir_model::Label;
use weir_model::event::{ActuatorFacts, Role};
use weir_model::join::{
    AUTHORITY_FILE, CERTIFICATE_FILE, JOIN_PATH, JOIN_TOKEN_BYTES_MAX, JOIN_TOKEN_PREFIX, JoinRequest,
    JoinResponse, JoinToken, TRUST_FILE, TrustFile, from_hex, to_hex,
};
use weir_model::signed::GroupKey;
use weir_trust::identity::{KeyPair, sign_join};
use weir_trust::said::sign_joined_by;
use zeroize::Zeroizing;

/// Who wants to join.
#[derive(Clone, Debug)]
pub struct Applicant {
    /// Name of the actuator.
    pub name: Label,
    /// What it is.
    pub role: Role,
    /// Address on the underlay.
    pub underlay: IpAddr,
}

/// How joining ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Joined {
    /// It is a member since now.
    Now(Membership),
    /// It was one already; nothing was asked.
    Before(Membership),
}

/// Reads a token.
///
/// # Errors
/// What is wrong with it. The text itself is a secret and is not repeated.
pub fn parse_token(text: &str) -> Result<JoinToken, AgentError> {
    let wrong = |reason: &str| AgentError::Token(reason.to_string());
    let text = text.trim();
    if text.len() > JOIN_TOKEN_BYTES_MAX {
        return Err(AgentError::Token(format!("it is longer than {JOIN_TOKEN_BYTES_MAX} bytes")));
    }
    let encoded = text
        .strip_prefix(JOIN_TOKEN_PREFIX)
        .ok_or_else(|| AgentError::Token(format!("it does not begin with '{JOIN_TOKEN_PREFIX}'")))?;
    // Both alphabets, with or without padding: tokens are copied by hand.
    let config = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let decode = |alphabet| GeneralPurpose::new(alphabet, config).decode(encoded);
    let json = decode(&alphabet::URL_SAFE)
        .or_else(|_| decode(&alphabet::STANDARD))
        .map(Zeroizing::new)
        .map_err(|_| wrong("the part behind the dot is not base64: was it cut off?"))?;
    let token: JoinToken =
        serde_json::from_slice(&json).map_err(|error| AgentError::Token(error.to_string()))?;
    if from_hex::<32>(&token.ca_fingerprint).is_none() {
        return Err(wrong("ca_fingerprint is not 64 hex digits"));
    }
    if token.secret.is_empty() {
        return Err(wrong("secret is empty"));
    }
    if token.controllers.is_empty() {
        return Err(wrong("it names no controller"));
    }
    match (&token.key, &token.domain) {
        (None, _) => {}
        (Some(_), None) => return Err(wrong("it has a key and names no domain")),
        (Some(key), Some(_)) if from_hex::<32>(key).is_none() => {
            return Err(wrong("key is not 64 hex digits"));
        }
        (Some(_), Some(_)) if token.id().is_none() => {
            return Err(wrong("it has a key, and its secret does not begin with the token's name"));
        }
        (Some(_), Some(_)) => {}
    }
    for address in &token.controllers {
        http::parse_base(address).map_err(|reason| AgentError::Token(format!("controllers: {reason}")))?;
    }
    Ok(token)
}

/// Writes a token; the reverse of [`parse_token`].
pub fn format_token(token: &JoinToken) -> String {
    let json = serde_json::to_vec(token).unwrap_or_default();
    let config = GeneralPurposeConfig::new().with_encode_padding(false);
    format!("{JOIN_TOKEN_PREFIX}{}", GeneralPurpose::new(&alphabet::URL_SAFE, config).encode(json))
}

/// The key of the group that the actuator trusts; nothing before it has joined.
pub fn group_key(state_dir: &Path) -> Option<GroupKey> {
    let bytes = Zeroizing::new(std::fs::read(state_dir.join(TRUST_FILE)).ok()?);
    let trust: TrustFile = serde_json::from_slice(&bytes).ok()?;
    GroupKey::from_hex(&trust.group_key)
}

/// Keeps where the controllers are now. Without a membership there is nothing to keep.
///
/// # Errors
/// The file cannot be read or written.
pub(crate) fn keep_controllers(state_dir: &Path, controllers: &[String]) -> Result<(), AgentError> {
    let Some(mut member) = membership(state_dir)? else { return Ok(()) };
    if member.controllers == controllers {
        return Ok(());
    }
    member.controllers = controllers.to_vec();
    let text = serde_json::to_vec_pretty(&member).map_err(|error| AgentError::Join(error.to_string()))?;
    kept::write(state_dir, MEMBERSHIP_FILE, &text, 0o644)
}

/// The word of the token's key that the asker joins, which each controller checks for itself; empty where the token has no key.
fn by_token(token: &JoinToken, applicant: &Applicant, identity: [u8; 32]) -> String {
    let read = |token: &JoinToken| {
        let seed = from_hex::<32>(token.key.as_ref()?).map(Zeroizing::new)?;
        Some((KeyPair::from_seed(&seed), token.domain.clone()?, token.id()?))
    };
    let authority = from_hex::<32>(&token.ca_fingerprint);
    let (Some((key, domain, id)), Some(authority)) = (read(token), authority) else { return String::new() };
    let Applicant { name, role, underlay } = applicant.clone();
    let joined =
        sign_joined_by(&key, &domain, id, authority, ActuatorFacts { name, role, identity, underlay });
    to_hex(&[joined.signature.r, joined.signature.s].concat())
}

/// Joins. A member does so again with `again`, or when its certificate is over.
///
/// # Errors
/// What is wrong with the token, the files, or each controller's answer.
pub async fn join(
    state_dir: &Path,
    applicant: &Applicant,
    token: &str,
    again: bool,
) -> Result<Joined, AgentError> {
    let token = parse_token(token)?;
    // Before a key is made anew.
    kept::check(state_dir)?;
    // A certificate that is over opens no session to renew it on.
    let over = || renewal::is_over(state_dir, SystemTime::now());
    if let Some(member) = membership(state_dir)?
        && !again
        && !over()?
    {
        if member.name != applicant.name || member.role != applicant.role {
            return Err(AgentError::Join(format!(
                "{} holds the membership of {:?} '{}': use another state directory, or remove that one",
                state_dir.display(),
                member.role,
                member.name
            )));
        }
        session_config(state_dir)?;
        return Ok(Joined::Before(member));
    }
    std::fs::create_dir_all(state_dir).map_err(|error| AgentError::file(state_dir, error))?;
    let keys = Keys::load_or_make(state_dir)?;
    let mut request = JoinRequest {
        name: applicant.name.clone(),
        role: applicant.role,
        csr_pem: keys.signing_request(&applicant.name, token.domain.as_ref())?,
        identity: to_hex(&keys.identity.public()),
        underlay: applicant.underlay,
        secret: token.secret.clone(),
        proof: String::new(),
        by_token: by_token(&token, applicant, keys.identity.public()),
    };
    let proof = sign_join(&keys.identity, &token.ca_fingerprint, &request);
    request.proof = to_hex(&[proof.r, proof.s].concat());
    let response = ask_controllers(&token, &request).await?;
    let member = keep(state_dir, applicant, &token, &keys, &response)?;
    Ok(Joined::Now(member))
}

/// Asks the controllers in turn. A refusal is an answer; only silence leads to the next.
async fn ask_controllers(token: &JoinToken, request: &JoinRequest) -> Result<JoinResponse, AgentError> {
    let fingerprint = from_hex::<32>(&token.ca_fingerprint)
        .ok_or_else(|| AgentError::Token("ca_fingerprint is not 64 hex digits".into()))?;
    let config = pinned_config(fingerprint)?;
    let body =
        Zeroizing::new(serde_json::to_vec(request).map_err(|error| AgentError::Join(error.to_string()))?);
    let mut failures = Vec::new();
    for controller in &token.controllers {
        match http::post(config.clone(), controller, JOIN_PATH, &body).await {
            Ok((200 | 201, bytes)) => {
                return serde_json::from_slice(&bytes).map_err(|error| {
                    AgentError::Join(format!(
                        "{controller} answers something else than a membership: {error}"
                    ))
                });
            }
            Ok((status @ 400..=499, bytes)) => {
                let reason = http::reason_of(&bytes);
                return Err(AgentError::Join(format!("{controller} refuses (status {status}): {reason}")));
            }
            Ok((status, bytes)) => {
                failures.push(format!("{controller}: status {status}: {}", http::reason_of(&bytes)));
            }
            Err(reason) => failures.push(format!("{controller}: {reason}")),
        }
    }
    Err(AgentError::Join(failures.join("; ")))
}

/// Checks an answer and keeps it; the membership last, so that it stands for all the rest.
fn keep(
    state_dir: &Path,
    applicant: &Applicant,
    token: &JoinToken,
    keys: &Keys,
    response: &JoinResponse,
) -> Result<Membership, AgentError> {
    check(token, applicant, keys, response)?;
    let trust = TrustFile {
        domain: response.domain.clone(),
        group_key: response.group_key.clone(),
        epoch: response.epoch,
        dataplane_secret: response.dataplane_secret.clone(),
    };
    let member = Membership {
        name: applicant.name.clone(),
        role: applicant.role,
        domain: response.domain.clone(),
        controllers: response.controllers.clone(),
    };
    let json = |error: serde_json::Error| AgentError::Join(error.to_string());
    let trust = Zeroizing::new(serde_json::to_vec_pretty(&trust).map_err(json)?);
    let files: [(&str, &[u8], u32); 4] = [
        (AUTHORITY_FILE, response.ca_pem.as_bytes(), 0o644),
        (CERTIFICATE_FILE, response.certificate_pem.as_bytes(), 0o644),
        (TRUST_FILE, &trust, 0o600),
        (MEMBERSHIP_FILE, &serde_json::to_vec_pretty(&member).map_err(json)?, 0o644),
    ];
    for (name, bytes, mode) in files {
        kept::write(state_dir, name, bytes, mode)?;
    }
    session_config(state_dir)?;
    kept::record(state_dir);
    Ok(member)
}

fn check(
    token: &JoinToken,
    applicant: &Applicant,
    keys: &Keys,
    response: &JoinResponse,
) -> Result<(), AgentError> {
    let wrong = |reason: &str| AgentError::Join(format!("the controller's answer is wrong: {reason}"));
    let authority = CertificateDer::from_pem_slice(response.ca_pem.as_bytes())
        .map_err(|_| wrong("ca_pem holds no certificate"))?;
    if to_hex(&Sha256::digest(authority.as_ref())) != token.ca_fingerprint.to_ascii_lowercase() {
        return Err(wrong("ca_pem is not the authority that the token names"));
    }
    let certificate = CertificateDer::from_pem_slice(response.certificate_pem.as_bytes())
        .map_err(|_| wrong("certificate_pem holds no certificate"))?;
    let key = keys.public();
    if !certificate.windows(key.len()).any(|window| window == key) {
        return Err(wrong("certificate_pem is not for the key that was sent"));
    }
    // Where operators sign, no controller takes one without; this one may lie.
    if let Some(domain) = &token.domain
        && !owner::has_word_of(&certificate, domain, &applicant.name, &keys.identity.public())
    {
        return Err(wrong("certificate_pem has not the word of our identity that was sent with the request"));
    }
    if GroupKey::from_hex(&response.group_key).is_none() {
        return Err(wrong("group_key is not 64 hex digits, or 192 of a threshold key"));
    }
    if from_hex::<16>(&response.dataplane_secret).is_none() {
        return Err(wrong("dataplane_secret is not 32 hex digits"));
    }
    if response.controllers.is_empty() {
        return Err(wrong("it names no controller"));
    }
    check_controllers("controllers", &response.controllers)
}
