//! Changing this actuator's keys while it runs: the one that signs what its switch says, and that of its certificate.
//!
//! ```text
//!  made ──► asked for ──► known: certificate ──► installed ──► switch signs with it ──► sessions anew ──► old one dropped
//!  (kept)    (again and again, of one controller after the other)                                          (file removed)
//! ```
//!
//! What is made is kept in one file before it is told to anybody, and stays there until the old key is dropped everywhere. So a crash
//! at any step leaves a change that goes on: before the certificate is there the old keys are used, after that the new ones.
//!
//! Invariants
//! - The new key is ordered before anything is signed with it, and the old one is dropped only some seconds after the switch last
//!   signed with it: what it signed is ordered by then.
//! - The files of keys and certificate are written from the one file, all of them again after a crash.
//! - Sessions are made anew before the old ones end.

use super::tls;
use crate::AgentError;
use crate::join::keys::{Keys, identity};
use crate::kept;
use crate::owner;
use rcgen::KeyPair as TlsKey;
use rustls::pki_types::UnixTime;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use weir_base::file::replace;
use weir_model::Label;
use weir_model::event::SourceId;
use weir_model::join::{CERTIFICATE_FILE, IDENTITY_FILE, KEY_FILE, from_hex, to_hex};
use weir_model::session::ToController;
use weir_trust::identity::{KeyPair, sign_rotation, sign_settled};
use x509_parser::prelude::{FromDer, X509Certificate};
use zeroize::Zeroizing;

/// File of a change that is under way, in the state directory.
pub const ROTATION_FILE: &str = "rotation.json";
/// Between two requests that nobody answered.
const RETRY: Duration = Duration::from_secs(3);
/// Between a refusal and the next request: one that does not lead refuses at once, and the next controller may.
const NEXT: Duration = Duration::from_millis(200);
/// From when the switch signs with the new key until the old one is dropped: longer than an event may wait for its turn.
const GRACE: Duration = Duration::from_secs(5);
const FORMAT: u32 = 1;

/// What the file holds.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    format: u32,
    /// Seed of the new identity, hex.
    seed: String,
    /// The new certificate's key, PEM.
    key_pem: String,
    /// The new certificate, PEM, once the new identity is known.
    certificate_pem: Option<String>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        use zeroize::Zeroize as _;
        self.seed.zeroize();
        self.key_pem.zeroize();
    }
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing now.
    Wait,
    /// Say this to a controller.
    Say(Box<ToController>),
    /// Tell the switch to read its identity.
    TellSwitch,
}

/// See the module.
pub struct Rotation {
    state_dir: PathBuf,
    name: Label,
    kept: Option<Kept>,
    /// When the switch was first heard to sign with the new key.
    switch_since: Option<Instant>,
    not_before: Option<Instant>,
}

impl std::fmt::Debug for Rotation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rotation").field("open", &self.is_open()).finish_non_exhaustive()
    }
}

fn material(path: &Path, reason: impl ToString) -> AgentError {
    AgentError::Material { what: path.display().to_string(), reason: reason.to_string() }
}

fn wrong(reason: impl ToString) -> AgentError {
    AgentError::Material { what: "the new certificate".to_string(), reason: reason.to_string() }
}

impl Rotation {
    /// Goes on with what an earlier agent began; installs what it had got.
    ///
    /// # Errors
    /// The file is there and cannot be used, or others cannot be written.
    pub fn open(state_dir: &Path, name: &Label) -> Result<Rotation, AgentError> {
        let path = state_dir.join(ROTATION_FILE);
        let kept = match std::fs::read(&path).map(Zeroizing::new) {
            Ok(bytes) => {
                let kept: Kept = serde_json::from_slice(&bytes).map_err(|error| material(&path, error))?;
                if kept.format != FORMAT {
                    return Err(material(&path, format!("it has format {}, not {FORMAT}", kept.format)));
                }
                Some(kept)
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(AgentError::file(path, error)),
        };
        let (state_dir, name) = (state_dir.to_path_buf(), name.clone());
        let rotation = Rotation { state_dir, name, kept, switch_since: None, not_before: None };
        rotation.install()?;
        Ok(rotation)
    }

    /// Whether a change is under way.
    pub fn is_open(&self) -> bool {
        self.kept.is_some()
    }

    /// Makes new keys, unless a change is under way already.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn begin(&mut self) -> Result<(), AgentError> {
        if self.is_open() {
            return Ok(());
        }
        let key = TlsKey::generate().map_err(wrong)?;
        let seed = Zeroizing::new(rand::random::<[u8; 32]>());
        let (seed, key_pem) = (to_hex(seed.as_slice()), key.serialize_pem());
        self.keep(Kept { format: FORMAT, seed, key_pem, certificate_pem: None })?;
        self.not_before = None;
        self.switch_since = None;
        Ok(())
    }

    fn keep(&mut self, kept: Kept) -> Result<(), AgentError> {
        let path = self.state_dir.join(ROTATION_FILE);
        let text = Zeroizing::new(serde_json::to_vec(&kept).map_err(wrong)?);
        replace(&path, &text, 0o600).map_err(|error| AgentError::file(path, error))?;
        self.kept = Some(kept);
        Ok(())
    }

    /// Writes the files from what was kept, once all of it is there.
    fn install(&self) -> Result<(), AgentError> {
        let Some(kept) = &self.kept else { return Ok(()) };
        let Some(certificate_pem) = &kept.certificate_pem else { return Ok(()) };
        let seed = Zeroizing::new(format!("{}\n", kept.seed));
        let files: [(&str, &[u8], u32); 3] = [
            (IDENTITY_FILE, seed.as_bytes(), 0o600),
            (KEY_FILE, kept.key_pem.as_bytes(), 0o600),
            (CERTIFICATE_FILE, certificate_pem.as_bytes(), 0o644),
        ];
        for (name, bytes, mode) in files {
            kept::write(&self.state_dir, name, bytes, mode)?;
        }
        kept::record(&self.state_dir);
        Ok(())
    }

    fn new_key(kept: &Kept) -> Result<KeyPair, AgentError> {
        let seed = from_hex::<32>(&kept.seed).map(Zeroizing::new);
        let seed = seed.ok_or_else(|| material(Path::new(ROTATION_FILE), "seed is not 64 hex digits"))?;
        Ok(KeyPair::from_seed(&seed))
    }

    /// What is to be done now; `anew` tells whether a session is there that shows the new certificate.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn step(&mut self, now: Instant, anew: bool) -> Result<Step, AgentError> {
        let Some(kept) = &self.kept else { return Ok(Step::Wait) };
        if self.not_before.is_some_and(|not_before| now < not_before) {
            return Ok(Step::Wait);
        }
        let (new, source) = (Rotation::new_key(kept)?, SourceId::of_actuator(&self.name));
        let step = match (&kept.certificate_pem, self.switch_since) {
            (None, _) => {
                let key = TlsKey::from_pem(&kept.key_pem).map_err(wrong)?;
                let (domain, old) = (owner::domain_of(&self.state_dir)?, identity(&self.state_dir)?);
                let csr_pem = Keys::request_of(&key, &self.name, Some((&domain, &new)))?;
                let rotation = sign_rotation(&domain, source, &old, &new);
                Step::Say(Box::new(ToController::Rotate { rotation, csr_pem }))
            }
            (Some(_), None) => Step::TellSwitch,
            (Some(_), Some(since)) if anew && now >= since + GRACE => {
                let by_key = sign_settled(&owner::domain_of(&self.state_dir)?, &source, &new);
                Step::Say(Box::new(ToController::Settle { key: new.public(), by_key }))
            }
            (Some(_), Some(_)) => return Ok(Step::Wait),
        };
        self.not_before = Some(now + RETRY);
        Ok(step)
    }

    /// The new key is known, and this is the certificate for the other one: keeps and installs both. Gives the new identity when that
    /// is new.
    ///
    /// # Errors
    /// It is not what was asked for: then nothing changes.
    pub fn known(
        &mut self,
        key: &[u8; 32],
        certificate_pem: &str,
        now: SystemTime,
    ) -> Result<Option<[u8; 32]>, AgentError> {
        let Some(kept) = self.kept.as_ref().filter(|kept| kept.certificate_pem.is_none()) else {
            return Ok(None);
        };
        let new = Rotation::new_key(kept)?.public();
        if new != *key {
            return Err(wrong("it comes with another identity than the one that was sent"));
        }
        let tls_key = TlsKey::from_pem(&kept.key_pem).map_err(wrong)?;
        self.check(certificate_pem, (&tls_key, &new), now)?;
        let mut kept = kept.clone();
        kept.certificate_pem = Some(certificate_pem.to_owned());
        self.keep(kept)?;
        self.install()?;
        self.not_before = None;
        Ok(Some(new))
    }

    /// A controller refused: the next one is asked soon.
    pub fn refused(&mut self, now: Instant) {
        let next = now + NEXT;
        self.not_before = self.not_before.map(|not_before| not_before.min(next));
    }

    fn check(
        &self,
        certificate_pem: &str,
        (key, identity): (&TlsKey, &[u8; 32]),
        now: SystemTime,
    ) -> Result<(), AgentError> {
        let chain = tls::certificates_of(certificate_pem.as_bytes()).map_err(wrong)?;
        let at = UnixTime::since_unix_epoch(now.duration_since(UNIX_EPOCH).unwrap_or_default());
        tls::client_verifier(&self.state_dir)?
            .verify_client_cert(&chain[0], &chain[1..], at)
            .map_err(|error| wrong(format!("the domain's authority did not sign it: {error}")))?;
        let (_, certificate) = X509Certificate::from_der(&chain[0]).map_err(wrong)?;
        if certificate.public_key().subject_public_key.data.as_ref() != key.public_key_raw() {
            return Err(wrong("it is not for the key that was sent"));
        }
        let names = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok());
        if !names.eq([self.name.as_str()]) {
            return Err(wrong(format!("it is not for '{}'", self.name)));
        }
        // Whatever the present one has: it is told by its key, and the new one by nobody.
        let domain = owner::domain_of(&self.state_dir)?;
        if !owner::has_word_of(&chain[0], &domain, &self.name, identity) {
            return Err(wrong("it has not the word of the new identity that was sent with the request"));
        }
        Ok(())
    }

    /// A connection to a switch begins: which key it signs with is not known.
    pub fn switch_is_new(&mut self) {
        self.switch_since = None;
        self.not_before = None;
    }

    /// The switch signs with this key.
    pub fn switch_signs(&mut self, key: &[u8; 32], now: Instant) {
        let new = self.kept.as_ref().and_then(|kept| Rotation::new_key(kept).ok());
        if self.switch_since.is_none() && new.is_some_and(|new| new.public() == *key) {
            self.switch_since = Some(now);
            self.not_before = None;
        }
    }

    /// Nobody takes another key than this any more. Tells whether the change is over.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn settled(&mut self, key: &[u8; 32]) -> Result<bool, AgentError> {
        let Some(kept) = self.kept.as_ref().filter(|kept| kept.certificate_pem.is_some()) else {
            return Ok(false);
        };
        if Rotation::new_key(kept)?.public() != *key {
            return Ok(false);
        }
        let path = self.state_dir.join(ROTATION_FILE);
        std::fs::remove_file(&path).map_err(|error| AgentError::file(path, error))?;
        self.kept = None;
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
