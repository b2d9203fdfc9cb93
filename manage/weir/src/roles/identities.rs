//! Identities as the API sees them: which keys and certificates are taken of whom, how they change, and how they are revoked.
//!
//! This controller's own key is in two files of its state directory, beside those that every controller can tell: `event.identity`, the
//! seed of the key in use, once it was changed, and `event.identity.next`, the seed of the one that is to come. The second takes the place
//! of the first when the order knows it, and the key before is dropped when this controller has said so. Whoever runs the command carries
//! what is ordered to a controller that orders: in a group over raft a follower orders nothing. So a crash of the controller or of the
//! command at any step leaves a controller whose key is taken, and the command goes on when it is given again.

use super::backend::{Controlled, api_error};
use super::state::{StateError, kept_key};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use sha2::{Digest as _, Sha256};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_api::pki::{Refuses, Shown};
use weir_api::types::{CertificateView, IdentityList, IdentityView, KeyChange, RevokeRequest, RevokedView};
use weir_api::{ApiError, Caller};
use weir_apps::fabric;
use weir_base::codec::{decode, encode};
use weir_controller::core::identities::Row;
use weir_controller::driver::{ControllerHandle, certificate_key};
use weir_model::Label;
use weir_model::event::{EventBody, SourceId};
use weir_model::identity::{IdentityEvent, KeyHash};
use weir_model::join::to_hex;
use weir_trust::identity::KeyPair;

/// The seed of this controller's key, once it was changed.
const KEY_FILE: &str = "event.identity";
/// The seed of the key that is to come.
const NEXT_FILE: &str = "event.identity.next";
/// How long an actuator may take to change its keys: the old one is dropped some seconds after the new one is in use.
const ROTATION_BOUND: Duration = Duration::from_secs(60);
/// How often it is looked whether it has.
const ROTATION_LOOK: Duration = Duration::from_millis(100);

/// This controller's own key and certificate.
pub struct Own {
    state_dir: PathBuf,
    /// What its servers show.
    pub shown: Arc<Shown>,
}

impl Own {
    /// Where it is kept.
    pub fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// In a state directory.
    pub fn new(state_dir: &Path, shown: Arc<Shown>) -> Own {
        Own { state_dir: state_dir.to_path_buf(), shown }
    }
}

fn internal(error: impl std::fmt::Display) -> ApiError {
    ApiError::internal(error.to_string())
}

fn fingerprint(key: &[u8; 32]) -> String {
    to_hex(&Sha256::digest(key))
}

/// The key with which a controller signs: the one of the settings until it was changed.
///
/// # Errors
/// [`StateError`].
pub fn own_key(state_dir: &Path, first: KeyPair) -> Result<KeyPair, StateError> {
    let path = state_dir.join(KEY_FILE);
    if !path.exists() {
        return Ok(first);
    }
    Ok(KeyPair::from_seed(&kept_key::<32>(path)?))
}

/// Why a client's certificate is not taken any more.
pub fn refuses(handle: ControllerHandle) -> Arc<Refuses> {
    Arc::new(move |der: &[u8]| {
        let name = weir_api::tls::dns_names(der).into_iter().next();
        // Only actuators' names are labels.
        let Some(name) = name.and_then(|name| Label::new(name).ok()) else { return Ok(()) };
        let source = SourceId::of_actuator(&name);
        handle.takes_certificate(&source, der).map_err(|error| error.to_string())
    })
}

/// The same, and why that of an actuator that has not joined, or was forgotten since, is not taken.
pub fn refuses_strangers(handle: ControllerHandle) -> Arc<Refuses> {
    let refuses = refuses(handle.clone());
    Arc::new(move |der: &[u8]| {
        refuses(der)?;
        let name = weir_api::tls::dns_names(der).into_iter().next();
        let Some(name) = name.and_then(|name| Label::new(name).ok()) else { return Ok(()) };
        match handle.published().joined.contains_key(&name) {
            true => Ok(()),
            false => Err(format!("'{name}' has not joined, or was forgotten: it joins with a new token")),
        }
    })
}

/// The key of a certificate that was just signed, and when it is over.
///
/// # Errors
/// [`ApiError`].
pub fn key_of_certificate(certificate_pem: &str) -> Result<(KeyHash, u64), ApiError> {
    let der = weir_api::pki::chain(certificate_pem).map_err(internal)?;
    let der = der.first().ok_or_else(|| internal("no certificate was made"))?;
    certificate_key(der).map_err(api_error)
}

/// Orders which certificate was signed for an actuator.
///
/// # Errors
/// [`ApiError`].
pub async fn certified(
    handle: &ControllerHandle,
    name: &Label,
    certificate_pem: &str,
) -> Result<(), ApiError> {
    let (key, until_s) = key_of_certificate(certificate_pem)?;
    let source = SourceId::of_actuator(name);
    let about = IdentityEvent::Certified { whose: source.clone(), key, until_s };
    handle.about_identity(about, Some(source.0)).await.map(drop).map_err(api_error)
}

fn view(source: &SourceId, kind: &str, handle: &ControllerHandle, row: Option<&Row>) -> IdentityView {
    let keys = handle.keys_of(source).ok();
    let certificates = row.map(|row| &row.certificates[..]).unwrap_or_default();
    IdentityView {
        source: source.0.clone(),
        kind: kind.to_string(),
        key: keys.map(|keys| fingerprint(&keys.now)),
        previous: keys.and_then(|keys| keys.before).map(|key| fingerprint(&key)),
        since_ms: row.map_or(0, |row| row.since_ms),
        certificates: certificates
            .iter()
            .map(|known| CertificateView { key: to_hex(&known.key), until_s: known.until_s })
            .collect(),
        revoked: row.and_then(|row| row.revoked.as_ref()).map(|revoked| RevokedView {
            reason: revoked.reason.clone(),
            version: revoked.version.0,
            at_ms: revoked.at_ms,
        }),
        refused: row.map_or(0, |row| row.refused.len()),
    }
}

impl Controlled {
    /// Who is in the group, or this controller alone; with whoever is revoked.
    fn controllers(&self) -> Vec<SourceId> {
        let known = self.handle.published();
        let revoked =
            known.identities.rows().filter(|(source, row)| source.is_controller() && row.revoked.is_some());
        let mut all: Vec<SourceId> = match &self.group {
            None => vec![self.handle.source().clone()],
            Some(group) => {
                let named = |id| SourceId::of_controller(&super::names::member_name(id));
                group.status().members.into_iter().map(|member| named(member.id)).collect()
            }
        };
        for (source, _) in revoked {
            if !all.contains(source) {
                all.push(source.clone());
            }
        }
        all
    }

    pub(super) async fn list_identities(&self, stale: bool) -> Result<IdentityList, ApiError> {
        if !stale {
            self.barrier().await?;
        }
        let known = self.handle.published();
        let mut items: Vec<IdentityView> = Vec::new();
        for source in self.controllers() {
            items.push(view(&source, "controller", &self.handle, known.identities.row(&source)));
        }
        for actuator in fabric::actuators(&known.store) {
            let source = SourceId::of_actuator(&actuator.facts.name);
            let kind = actuator.facts.role.as_str();
            items.push(view(&source, kind, &self.handle, known.identities.row(&source)));
        }
        let (key, until_s) = certificate_key(&self.own.shown.certificate()).map_err(api_error)?;
        Ok(IdentityList { items, own: CertificateView { key: to_hex(&key), until_s } })
    }

    /// Has an actuator change its keys, and waits until only the new ones are taken.
    pub(super) async fn rotate_actuator(&self, name: &str) -> Result<(), ApiError> {
        let name = Label::new(name).map_err(|error| ApiError::invalid(format!("name: {error}")))?;
        self.barrier().await?;
        self.known(&name)?;
        let source = SourceId::of_actuator(&name);
        let keys = || self.handle.keys_of(&source).map_err(|error| ApiError::conflict(error.to_string()));
        let before = keys()?;
        self.handle.ask_to_rotate(&name).map_err(|_| {
            ApiError::unavailable(format!(
                "'{name}' has no session now, and only it can change its keys: 'weir status' shows when it is back"
            ))
        })?;
        let until = Instant::now() + ROTATION_BOUND;
        while Instant::now() < until {
            let now = keys()?;
            // When a change was under way already, its end is what is waited for.
            let changed = now.now != before.now || before.before.is_some();
            if changed && now.before.is_none() {
                return Ok(());
            }
            tokio::time::sleep(ROTATION_LOOK).await;
        }
        Err(ApiError::unavailable(format!(
            "'{name}' has not changed its keys within {} s: it goes on by itself ('weir identity list' shows how far it is, \
             its agent's log what is in the way)",
            ROTATION_BOUND.as_secs()
        )))
    }

    pub(super) async fn revoke_source(&self, caller: Caller, request: RevokeRequest) -> Result<(), ApiError> {
        self.barrier().await?;
        let whose = SourceId(request.source);
        let about = IdentityEvent::Revoked { whose, reason: request.reason };
        self.say(&caller, EventBody::Identity(Box::new(about))).await.map(drop)
    }

    pub(super) async fn order_change(&self, caller: Caller, change: KeyChange) -> Result<(), ApiError> {
        let wrong = || ApiError::invalid("event: this is no change of a controller's key");
        let bytes = BASE64_STANDARD.decode(&change.event).map_err(|_| wrong())?;
        let about: IdentityEvent = decode(&bytes).map_err(|_| wrong())?;
        // These carry the word of the keys themselves.
        if !matches!(about, IdentityEvent::Rotated(_) | IdentityEvent::Settled { .. }) {
            return Err(wrong());
        }
        self.say(&caller, EventBody::Identity(Box::new(about))).await.map(drop)
    }

    fn next_seed(&self) -> Result<[u8; 32], ApiError> {
        kept_key(self.own.state_dir.join(NEXT_FILE)).map_err(internal)
    }

    /// Makes the next key, kept before it is told, and shows another certificate.
    pub(super) async fn make_next_key(&self) -> Result<KeyChange, ApiError> {
        let next = KeyPair::from_seed(&self.next_seed()?);
        let rotation = self.handle.rotation_to(&next);
        let identity = self.state.controller_certificate(self.handle.time().by_clocks()).map_err(internal)?;
        self.own.shown.show(&identity).map_err(internal)?;
        Ok(change(&IdentityEvent::Rotated(rotation)))
    }

    /// Signs with the next key once the order knows it here.
    pub(super) async fn take_next_key(&self) -> Result<KeyChange, ApiError> {
        let (next, path) = (self.own.state_dir.join(NEXT_FILE), self.own.state_dir.join(KEY_FILE));
        if next.exists() {
            let key = KeyPair::from_seed(&self.next_seed()?);
            let known = self.handle.keys_of(self.handle.source());
            if known.map_err(|error| ApiError::conflict(error.to_string()))?.now != key.public() {
                return Err(ApiError::unavailable("the order has not brought the next key here yet"));
            }
            let bytes = std::fs::read(&next).map_err(internal)?;
            super::manifest::will_hold(&self.own.state_dir, KEY_FILE, &bytes).map_err(internal)?;
            std::fs::rename(&next, &path).map_err(internal)?;
            // Before the old one is dropped: a crash must not bring that back.
            weir_base::file::sync_folder_of(&path).map_err(internal)?;
            self.handle.use_identity(Arc::new(key));
            tracing::info!("this controller signs with another key now");
        }
        Ok(change(&self.handle.settled()))
    }
}

fn change(about: &IdentityEvent) -> KeyChange {
    KeyChange { event: BASE64_STANDARD.encode(encode(about)) }
}
