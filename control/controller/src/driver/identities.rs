//! Changes of keys as the driver sees them: what an actuator asks in its session, what this controller does with its own key, and
//! what is refused, counted by reason.

use super::handle::ControllerHandle;
use super::shared::Shared;
use crate::Error;
use crate::core::admission::Unauthentic;
use crate::core::identities::{Certified, Keys, has_its_own_address};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use weir_model::event::{ActuatorFacts, EventBody, SourceId};
use weir_model::identity::{IdentityEvent, KeyHash, Rotation};
use weir_model::session::{REQUEST_BYTES_MAX, ToActuator};
use weir_model::signed::Signature;
use weir_model::{Label, Version};
use weir_trust::identity::{KeyPair, sign_rotation, sign_settled};
use weir_trust::owner::{OWNER_OID, of_der, verify_owner};
use x509_parser::pem::parse_x509_pem;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Signs a certificate (PEM) for an actuator from its request (PEM); a text says why not.
pub type Renewer = dyn Fn(&Label, &str) -> Result<String, String> + Send + Sync;

/// How long an event about an actuator's keys may take before the actuator is told to ask again.
const ORDER_LIMIT: Duration = Duration::from_secs(8);

/// What a certificate says: hash of its public key, when it is over, and the word of its owner's identity.
///
/// # Errors
/// Its bytes (DER) are no certificate.
pub fn certificate_key(der: &[u8]) -> Result<Certified, Error> {
    use sha2::Digest as _;
    let (_, certificate) = X509Certificate::from_der(der)
        .map_err(|error| Error::Peer(format!("the certificate cannot be read: {error}")))?;
    let key = sha2::Sha256::digest(certificate.public_key().raw).into();
    let until_s = certificate.validity().not_after.timestamp().max(0).cast_unsigned();
    let is_owner =
        |oid: &x509_parser::oid_registry::Oid<'_>| oid.iter().is_some_and(|arcs| arcs.eq(OWNER_OID));
    let owner = certificate.extensions().iter().find(|extension| is_owner(&extension.oid));
    Ok(Certified { key, until_s, owner: owner.and_then(|owner| of_der(owner.value)) })
}

/// The same of the first certificate of a PEM text.
pub(super) fn certificate_of_pem(pem: &str) -> Result<Certified, String> {
    let (_, pem) = parse_x509_pem(pem.as_bytes()).map_err(|error| error.to_string())?;
    certificate_key(&pem.contents).map_err(|error| error.to_string())
}

impl Shared {
    /// Whether a certificate of the domain's authority is taken of a source; counted when not.
    ///
    /// # Errors
    /// Why not.
    pub fn takes_certificate(&self, source: &SourceId, shown: &Certified) -> Result<(), Unauthentic> {
        let known = self.published();
        let taken = known.registered(self.keys()).takes_certificate(&self.domain, source, shown);
        taken.inspect_err(|reason| self.counters.refused.session(*reason))
    }

    /// The keys that are taken of a source.
    ///
    /// # Errors
    /// Why none is.
    pub fn keys_of(&self, source: &SourceId) -> Result<Keys, Unauthentic> {
        self.published().registered(self.keys()).keys_of(source)
    }
}

/// Whom an actuator's session is with, and what it has shown.
pub(super) struct Asks<'a> {
    pub handle: &'a ControllerHandle,
    pub actuator: &'a Label,
    /// The certificate of this session.
    pub shown: Certified,
    pub renewer: &'a Renewer,
}

impl Asks<'_> {
    /// Makes a new key known and signs a certificate; says so to the actuator.
    pub async fn rotate(&self, rotation: Rotation, csr_pem: &str) -> ToActuator {
        self.handle.shared.counters.refused.rotations.fetch_add(1, Ordering::Relaxed);
        match self.rotated(rotation, csr_pem).await {
            Ok(frame) => frame,
            Err(reason) => self.refused(reason),
        }
    }

    fn refused(&self, reason: String) -> ToActuator {
        self.handle.shared.counters.refused.rotations_refused.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(actuator = %self.actuator, reason, "key rotation refused");
        ToActuator::NotRotated(reason)
    }

    async fn order(&self, about: IdentityEvent) -> Result<Version, String> {
        let subject = SourceId::of_actuator(self.actuator).0;
        let ordered = tokio::time::timeout(ORDER_LIMIT, self.handle.about_identity(about, Some(subject)));
        match ordered.await {
            Ok(decided) => decided.map_err(|error| error.to_string()),
            Err(_) => Err("the order stands still: ask again".to_string()),
        }
    }

    async fn rotated(&self, rotation: Rotation, csr_pem: &str) -> Result<ToActuator, String> {
        let source = SourceId::of_actuator(self.actuator);
        if rotation.whose != source {
            return Err(format!("this is the session of '{}'", self.actuator));
        }
        if csr_pem.len() > REQUEST_BYTES_MAX {
            return Err(format!("the request has {} bytes: at most {REQUEST_BYTES_MAX}", csr_pem.len()));
        }
        let shared = &self.handle.shared;
        let (new, old) = (rotation.new, rotation.old);
        let is_done =
            || shared.keys_of(&source).is_ok_and(|keys| keys.now == new && keys.before == Some(old));
        if shared.published().operators.owners_certificates() {
            // Signed first: where it would not be taken, the keys stay as they are.
            let certificate_pem = (self.renewer)(self.actuator, csr_pem)?;
            let Certified { key, owner, .. } = certificate_of_pem(&certificate_pem)?;
            let owns = |word| verify_owner(&new, &shared.domain, &source, &key, &word).is_ok();
            if !owner.is_some_and(owns) {
                return Err(Unauthentic::Unowned.to_string());
            }
            if !is_done() {
                self.order(IdentityEvent::Rotated(rotation)).await?;
            }
            tracing::info!(actuator = %self.actuator, "key rotation: new key registered");
            return Ok(ToActuator::Rotated { key: new, certificate_pem });
        }
        let none = |row: &crate::core::identities::Row| row.certificates.is_empty();
        if shared.published().identities.row(&source).is_none_or(none) {
            // The one in use stays good while the new one is on its way.
            let Certified { key, until_s, .. } = self.shown;
            self.order(IdentityEvent::Certified { whose: source.clone(), key, until_s }).await?;
        }
        if !is_done() {
            self.order(IdentityEvent::Rotated(rotation)).await?;
        }
        let certificate_pem = (self.renewer)(self.actuator, csr_pem)?;
        let Certified { key, until_s, .. } = certificate_of_pem(&certificate_pem)?;
        self.order(IdentityEvent::Certified { whose: source, key, until_s }).await?;
        tracing::info!(actuator = %self.actuator, "key rotation: new key registered");
        Ok(ToActuator::Rotated { key: new, certificate_pem })
    }

    /// Drops the key before; says so to the actuator.
    pub async fn settle(&self, key: [u8; 32], by_key: Signature) -> ToActuator {
        let source = SourceId::of_actuator(self.actuator);
        let settled = self.handle.shared.keys_of(&source);
        if settled.is_ok_and(|keys| keys.now == key && keys.before.is_none()) {
            return ToActuator::Settled { key };
        }
        match self.order(IdentityEvent::Settled { whose: source, key, by_key }).await {
            Ok(_) => {
                tracing::info!(actuator = %self.actuator, "key rotation: old key retired");
                ToActuator::Settled { key }
            }
            Err(reason) => self.refused(reason),
        }
    }
}

impl ControllerHandle {
    /// Orders something about identities, for somebody whom the API authenticated or for this controller itself.
    ///
    /// # Errors
    /// As [`ControllerHandle::propose`].
    pub async fn about_identity(
        &self,
        about: IdentityEvent,
        subject: Option<String>,
    ) -> Result<Version, Error> {
        self.submit_own(EventBody::Identity(Box::new(about)), subject).await
    }

    /// The keys that are taken of a source, as this controller knows it.
    ///
    /// # Errors
    /// [`Error::Identity`]: why none is.
    pub fn keys_of(&self, source: &SourceId) -> Result<Keys, Error> {
        let who = || source.0.clone();
        self.shared.keys_of(source).map_err(|reason| Error::Identity { whose: who(), reason })
    }

    /// Whether an actuator may have the address on the underlay that it tells, as this controller knows it.
    ///
    /// # Errors
    /// Why not, and what would be right.
    pub fn may_have(&self, facts: &ActuatorFacts) -> Result<(), String> {
        let known = self.shared.published();
        has_its_own_address(known.registered(self.shared.keys()), facts)
    }

    /// Sources that are registered by the settings.
    pub fn configured(&self) -> impl Iterator<Item = &SourceId> {
        self.shared.keys().keys()
    }

    /// Whether a certificate that the domain's authority signed is taken of whom it names; counted when not.
    ///
    /// # Errors
    /// [`Error::Identity`]: why not.
    pub fn takes_certificate(&self, source: &SourceId, der: &[u8]) -> Result<(), Error> {
        let shown = certificate_key(der)?;
        let who = || source.0.clone();
        let taken = self.shared.takes_certificate(source, &shown);
        taken.map_err(|reason| Error::Identity { whose: who(), reason })
    }

    /// The certificate that an actuator shows in its session with this controller: its key, and when it is over.
    pub fn shown_certificate(&self, actuator: &Label) -> Option<(KeyHash, u64)> {
        self.shared.sessions.shown(actuator)
    }

    /// Asks an actuator to change its keys.
    ///
    /// # Errors
    /// [`Error::NotConnected`].
    pub fn ask_to_rotate(&self, actuator: &Label) -> Result<(), Error> {
        match self.shared.sessions.is_open(actuator) {
            true => self.shared.sessions.tell(actuator, ToActuator::RotateKeys),
            false => return Err(Error::NotConnected(actuator.clone())),
        }
        Ok(())
    }

    /// Public key with which this controller signs what it says.
    pub fn identity(&self) -> [u8; 32] {
        self.shared.identity().public()
    }

    /// The change of this controller's key to another one, signed by both.
    pub fn rotation_to(&self, new: &KeyPair) -> Rotation {
        sign_rotation(self.domain(), self.source().clone(), &self.shared.identity(), new)
    }

    /// Signs with this key from now on.
    pub fn use_identity(&self, key: Arc<KeyPair>) {
        self.shared.set_identity(key);
    }

    /// This controller's word that it uses its present key only.
    pub fn settled(&self) -> IdentityEvent {
        let key = self.shared.identity();
        let by_key = sign_settled(self.domain(), self.source(), &key);
        IdentityEvent::Settled { whose: self.source().clone(), key: key.public(), by_key }
    }
}
