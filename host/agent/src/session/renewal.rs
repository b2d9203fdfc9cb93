//! Renewing this actuator's certificate over the session that the present one opened.
//!
//! When two thirds of its life are over, the agent asks with a request for the same key and name; the
//! controller signs for the name that the session proved. The new certificate takes the place of the
//! old one in its file, and the next session shows it.
//!
//! Invariants
//! - What comes back is kept only when it is for our key and our name, ends at the domain's authority,
//!   and lasts longer than what we have; else the old one stays.
//! - One request is open of all sessions: the next comes when it was answered, its session has ended, or after [`RETRY_S`], and goes to
//!   another controller. An answer that nobody waits for (of a controller that was given up) is no failure.

use super::tls;
use crate::AgentError;
use crate::join::keys::{Keys, identity};
use crate::kept;
use crate::owner;
use rustls::pki_types::UnixTime;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use weir_model::Label;
use weir_model::join::CERTIFICATE_FILE;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The certificate is looked at this often, seconds.
pub const LOOK_S: u64 = 60;
/// Wait after a request that failed or was not answered, seconds.
pub const RETRY_S: u64 = 600;

/// From when to when a certificate holds, seconds of the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// Begin.
    pub from_s: i64,
    /// End.
    pub until_s: i64,
}

impl Life {
    /// When a new one shall be asked for: two thirds are over.
    pub fn renew_s(self) -> i64 {
        self.from_s.saturating_add((self.until_s.saturating_sub(self.from_s)) / 3 * 2)
    }

    fn of(der: &[u8]) -> Result<Life, String> {
        let (_, certificate) = X509Certificate::from_der(der).map_err(|error| error.to_string())?;
        let validity = certificate.validity();
        Ok(Life { from_s: validity.not_before.timestamp(), until_s: validity.not_after.timestamp() })
    }
}

fn unix_s(now: SystemTime) -> i64 {
    now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs().try_into().unwrap_or(i64::MAX)
}

/// The life of the certificate in a state directory.
///
/// # Errors
/// The file is missing or holds no certificate.
pub fn life(state_dir: &Path) -> Result<Life, AgentError> {
    let path = state_dir.join(CERTIFICATE_FILE);
    let certificate = tls::certificates(&path)?.remove(0);
    Life::of(&certificate).map_err(|reason| AgentError::Material { what: path.display().to_string(), reason })
}

/// For how many days the certificate in a state directory is over; nothing while it is not.
///
/// # Errors
/// As [`life`].
pub fn over_for_days(state_dir: &Path, now: SystemTime) -> Result<Option<i64>, AgentError> {
    let over_s = unix_s(now).saturating_sub(life(state_dir)?.until_s);
    Ok((over_s > 0).then_some(over_s / 86_400))
}

/// Whether the certificate in a state directory is over.
///
/// # Errors
/// As [`life`].
pub fn is_over(state_dir: &Path, now: SystemTime) -> Result<bool, AgentError> {
    Ok(over_for_days(state_dir, now)?.is_some())
}

/// See the module.
#[derive(Debug)]
pub struct Renewal {
    state_dir: PathBuf,
    name: Label,
    /// No request before this.
    not_before: SystemTime,
    /// The session that was asked and has not answered.
    asked: Option<u64>,
    /// The session that was asked last.
    last: Option<u64>,
}

impl Renewal {
    /// For an actuator.
    pub fn new(state_dir: PathBuf, name: Label) -> Renewal {
        Renewal { state_dir, name, not_before: UNIX_EPOCH, asked: None, last: None }
    }

    /// Whom to ask of the sessions that there are: the one after who was asked last.
    pub fn whom(&self, sessions: &[u64]) -> Option<u64> {
        let last = self.last.and_then(|last| sessions.iter().position(|one| *one == last));
        let next = last.map_or(0, |last| last + 1);
        sessions.get(next).or(sessions.first()).copied()
    }

    /// It was asked.
    pub fn was_asked(&mut self, session: u64) {
        (self.asked, self.last) = (Some(session), Some(session));
    }

    /// A session has answered; says whether that was waited for.
    pub fn answered(&mut self, session: u64) -> bool {
        self.asked.take_if(|asked| *asked == session).is_some()
    }

    /// A session has ended: what it was asked is asked of another one soon.
    pub fn ended(&mut self, session: u64, now: SystemTime) {
        if self.answered(session) {
            self.not_before = self.not_before.min(now + Duration::from_secs(LOOK_S));
        }
    }

    /// The request (PEM) to send now, if it is time for one.
    ///
    /// # Errors
    /// Certificate or key cannot be read.
    pub fn request(&mut self, now: SystemTime) -> Result<Option<String>, AgentError> {
        if now < self.not_before || unix_s(now) < life(&self.state_dir)?.renew_s() {
            return Ok(None);
        }
        self.not_before = now + Duration::from_secs(RETRY_S);
        // Who has not joined by a token knows of no domain; its controllers want no word of its identity.
        let domain = owner::domain_of(&self.state_dir).ok();
        Keys::load(&self.state_dir)?.signing_request(&self.name, domain.as_ref()).map(Some)
    }

    /// Keeps a new certificate (PEM), and tells its life.
    ///
    /// # Errors
    /// It is not what was asked for; the old one stays.
    pub fn keep(&mut self, certificate_pem: &str, now: SystemTime) -> Result<Life, AgentError> {
        let wrong = |reason: &str| AgentError::Material {
            what: "the renewed certificate".to_string(),
            reason: reason.to_string(),
        };
        let chain = tls::certificates_of(certificate_pem.as_bytes()).map_err(|reason| wrong(&reason))?;
        let verifier = tls::client_verifier(&self.state_dir)?;
        let at = UnixTime::since_unix_epoch(now.duration_since(UNIX_EPOCH).unwrap_or_default());
        verifier
            .verify_client_cert(&chain[0], &chain[1..], at)
            .map_err(|error| wrong(&format!("the domain's authority did not sign it: {error}")))?;
        let (_, certificate) =
            X509Certificate::from_der(&chain[0]).map_err(|error| wrong(&error.to_string()))?;
        if certificate.public_key().subject_public_key.data.as_ref() != Keys::load(&self.state_dir)?.public()
        {
            return Err(wrong("it is not for the key that was sent"));
        }
        let names = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok());
        if !names.eq([self.name.as_str()]) {
            return Err(wrong(&format!("it is not for '{}'", self.name)));
        }
        if owner::has_word(&tls::certificates(&self.state_dir.join(CERTIFICATE_FILE))?[0]) {
            let (domain, identity) = (owner::domain_of(&self.state_dir)?, identity(&self.state_dir)?);
            if !owner::has_word_of(&chain[0], &domain, &self.name, &identity.public()) {
                return Err(wrong("it has not the word of our identity, which the present one has"));
            }
        }
        let (old, new) = (life(&self.state_dir)?, Life::of(&chain[0]).map_err(|reason| wrong(&reason))?);
        if new.until_s <= old.until_s {
            return Err(wrong("it does not last longer than the present one"));
        }
        kept::write(&self.state_dir, CERTIFICATE_FILE, certificate_pem.as_bytes(), 0o644)?;
        kept::record(&self.state_dir);
        self.not_before = UNIX_EPOCH;
        Ok(new)
    }
}

#[cfg(test)]
mod tests;
