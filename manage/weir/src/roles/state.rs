//! What a controller keeps besides its log: keys, certificates, and who may join.
//!
//! Everything is made at the first start and kept; secrets are files of mode 0600 in the state
//! directory, and in no log, store or metric.

pub mod error;

pub use error::StateError;

use super::manifest;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest as _, Sha256};
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use weir_api::client::Context;
use weir_api::pki::{Authority, Identity};
use weir_model::Label;
use weir_model::identity::TokenId;
use weir_model::join::{JOIN_TOKEN_PREFIX, JoinToken, from_hex, to_hex};
use weir_trust::identity::KeyPair;

/// Why a join token's secret is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It is not this domain's.
    #[error(
        "the join token is not of this domain, or of a release before this one: make one with 'weir token'"
    )]
    Unknown,
}

/// See the module.
pub struct State {
    /// Name of the domain.
    pub domain: Label,
    /// The domain's certificate authority.
    pub authority: Authority,
    /// The controller's certificate.
    pub server: Identity,
    /// The administrators' bearer token.
    pub admin_token: String,
    /// Seed of the group's signing key.
    pub group_seed: [u8; 32],
    /// Seed of the key that signs this controller's events.
    pub event_seed: [u8; 32],
    /// Key of the packets' security tokens.
    pub dataplane_secret: [u8; 16],
    /// Addresses in the controller's certificate.
    advertised: Vec<IpAddr>,
    join_key: [u8; 32],
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("domain", &self.domain).finish_non_exhaustive()
    }
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> StateError {
    let path = path.to_path_buf();
    move |error| StateError::File { path, error }
}

/// Writes a file whole or not at all, readable by its owner only.
pub fn write_secret(path: &Path, text: &str) -> Result<(), StateError> {
    weir_base::file::replace(path, text.as_bytes(), 0o600).map_err(file_error(path))
}

/// The folder of a controller's state that has its numbers, and what is to be known before its log is read; says whether it is a member of a group.
///
/// # Errors
/// [`StateError`]: it is no controller's state.
pub fn numbers_folder(state_dir: &Path) -> Result<(PathBuf, bool), StateError> {
    // The numbers of a controller that is alone are beside its log.
    let folders = [("numbers", true), ("log", false)].map(|(name, member)| (state_dir.join(name), member));
    folders.into_iter().find(|(path, _)| path.is_dir()).ok_or_else(|| StateError::Damaged {
        path: state_dir.to_path_buf(),
        reason: "it is no controller's state: it has no folder 'log' or 'numbers'".to_owned(),
    })
}

/// Closes a directory to everybody but its owner: what is in it may have been made by whoever had another umask. One that is
/// everybody's (sticky), or another's, is left as it is.
pub fn keep_private(dir: &Path) {
    const STICKY: u32 = 0o1000;
    let Ok(found) = fs::metadata(dir).map(|found| found.permissions().mode()) else { return };
    if found & 0o077 == 0 || found & STICKY != 0 {
        return;
    }
    if let Err(error) = fs::set_permissions(dir, fs::Permissions::from_mode(found & 0o700)) {
        tracing::warn!(%error, dir = %dir.display(), "the state can be read by others, and cannot be closed to them");
    }
}

/// The content of a file, made with `make` when it is not there.
fn kept(path: PathBuf, make: impl FnOnce() -> Result<String, StateError>) -> Result<String, StateError> {
    match fs::read_to_string(&path) {
        Ok(text) => Ok(text.trim_end().to_string()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            manifest::may_make(&path)?;
            let text = make()?;
            write_secret(&path, &text)?;
            Ok(text)
        }
        Err(error) => Err(StateError::File { path, error }),
    }
}

/// A random key that is kept as hexadecimal digits: made when it is not there.
///
/// # Errors
/// [`StateError`].
pub fn kept_key<const N: usize>(path: PathBuf) -> Result<[u8; N], StateError> {
    let text = kept(path.clone(), || {
        let mut bytes = [0; N];
        getrandom::fill(&mut bytes)?;
        Ok(to_hex(&bytes))
    })?;
    from_hex(&text)
        .ok_or_else(|| StateError::Damaged { path, reason: format!("it should be {} hex digits", 2 * N) })
}

/// See [`State::member_event_key`].
pub fn member_event_key(event_seed: &[u8; 32], id: u64) -> KeyPair {
    let mut hash = Sha256::new();
    hash.update(b"weir/member-event/1\0");
    hash.update(event_seed);
    hash.update(id.to_le_bytes());
    KeyPair::from_seed(&hash.finalize().into())
}

impl State {
    /// Opens the state directory of a controller, or makes it.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn open(dir: &Path, domain: &Label, advertised: &[IpAddr]) -> Result<State, StateError> {
        fs::create_dir_all(dir).map_err(file_error(dir))?;
        keep_private(dir);
        manifest::check(dir, domain.as_str())?;
        let found = kept(dir.join("domain"), || Ok(domain.to_string()))?;
        if found != domain.as_str() {
            let wanted = domain.to_string();
            return Err(StateError::OtherDomain { path: dir.to_path_buf(), found, wanted });
        }
        // Key before certificate: a crash between the two leaves neither in force.
        let (certificate, key) = (dir.join("ca.crt"), dir.join("ca.key"));
        if !certificate.exists() {
            let made = Authority::make(domain)?;
            write_secret(&key, &made.key_pem)?;
            write_secret(&certificate, &made.certificate_pem)?;
        }
        let read = |path: &Path| fs::read_to_string(path).map_err(file_error(path));
        let authority =
            Authority::open(&Identity { certificate_pem: read(&certificate)?, key_pem: read(&key)? })?;
        // By this machine's clock: nobody has told another yet.
        let server = authority.controller(advertised, SystemTime::now())?;
        let admin_token = to_hex(&kept_key::<32>(dir.join("admin.token"))?);
        Ok(State {
            domain: domain.clone(),
            authority,
            server,
            admin_token,
            group_seed: kept_key(dir.join("group.seed"))?,
            event_seed: kept_key(dir.join("event.seed"))?,
            dataplane_secret: kept_key(dir.join("dataplane.secret"))?,
            advertised: advertised.to_vec(),
            join_key: kept_key(dir.join("join.key"))?,
        })
    }

    /// Another certificate of this controller, for another key, good from about `now` on.
    ///
    /// # Errors
    /// [`StateError::Pki`].
    pub fn controller_certificate(&self, now: SystemTime) -> Result<Identity, StateError> {
        Ok(self.authority.controller(&self.advertised, now)?)
    }

    /// The group's key pair.
    pub fn group_key(&self) -> KeyPair {
        KeyPair::from_seed(&self.group_seed)
    }

    /// The key pair that signs the events of a controller that is alone.
    pub fn event_key(&self) -> KeyPair {
        KeyPair::from_seed(&self.event_seed)
    }

    /// The key pair that signs the events of a member of the group. All members can tell each other's: they share the
    /// seed.
    pub fn member_event_key(&self, id: u64) -> KeyPair {
        member_event_key(&self.event_seed, id)
    }

    /// Writes the context that the command line reads, with the controllers' addresses, this one's first.
    ///
    /// # Errors
    /// [`StateError::File`].
    pub fn write_context(&self, path: &Path, servers: &[String]) -> Result<(), StateError> {
        let mut servers = servers.iter().map(|server| format!("https://{server}"));
        let context = Context {
            server: servers.next().unwrap_or_default(),
            others: servers.collect(),
            token: self.admin_token.clone(),
            ca: self.authority.certificate_pem().to_string(),
            operator: None,
        };
        let text = serde_json::to_string_pretty(&context)
            .map_err(|error| StateError::Damaged { path: path.to_path_buf(), reason: error.to_string() })?;
        // On a full disk a file that need not change must not be what a controller fails at.
        if fs::read_to_string(path).is_ok_and(|found| found == text) {
            return Ok(());
        }
        write_secret(path, &text)
    }

    /// A join token for what is ordered under `id`. It is not stored: what it proves is that somebody with the domain's secret made it.
    ///
    /// # Errors
    /// [`StateError::Pki`].
    pub fn join_token(&self, id: &TokenId, controllers: Vec<String>) -> Result<String, StateError> {
        let secret = format!("{}.{}", to_hex(id), to_hex(&self.join_mac(id).finalize().into_bytes()));
        let token = JoinToken {
            ca_fingerprint: self.authority.fingerprint()?,
            secret,
            controllers,
            domain: None,
            key: None,
        };
        let json = serde_json::to_string(&token).map_err(|error| StateError::Damaged {
            path: PathBuf::from("join token"),
            reason: error.to_string(),
        })?;
        Ok(format!("{JOIN_TOKEN_PREFIX}{}", URL_SAFE_NO_PAD.encode(json)))
    }

    fn join_mac(&self, id: &TokenId) -> Hmac<Sha256> {
        let mut mac = match Hmac::<Sha256>::new_from_slice(&self.join_key) {
            Ok(mac) => mac,
            Err(_) => unreachable!("HMAC takes keys of every length"),
        };
        mac.update(b"weir/join/2\0");
        mac.update(id);
        mac
    }

    /// Checks the secret of a join token, and gives what is ordered about it its name: whether it is taken is known there.
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn check_join(&self, secret: &str) -> Result<TokenId, TokenError> {
        let (id, tag) = secret.split_once('.').ok_or(TokenError::Unknown)?;
        let id: TokenId = from_hex(id).ok_or(TokenError::Unknown)?;
        let tag: [u8; 32] = from_hex(tag).ok_or(TokenError::Unknown)?;
        self.join_mac(&id).verify_slice(&tag).map_err(|_| TokenError::Unknown)?;
        Ok(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(dir: &Path, domain: &str) -> Result<State, StateError> {
        State::open(dir, &Label::new(domain).unwrap(), &[])
    }

    #[test]
    fn what_was_made_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let first = open(dir.path(), "lab").unwrap();
        let again = open(dir.path(), "lab").unwrap();
        assert_eq!(first.group_key().public(), again.group_key().public());
        assert_eq!(first.admin_token, again.admin_token);
        assert_eq!(first.authority.fingerprint().unwrap(), again.authority.fingerprint().unwrap());
        assert!(matches!(open(dir.path(), "other"), Err(StateError::OtherDomain { .. })));
        fs::write(dir.path().join("group.seed"), "short").unwrap();
        assert!(matches!(open(dir.path(), "lab"), Err(StateError::Damaged { .. })));
    }

    #[test]
    fn a_join_token_is_of_one_domain() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let state = open(dir.path(), "lab").unwrap();
        let token = state.join_token(&[7; 16], vec!["https://192.0.2.1:7443".into()]).unwrap();
        let json = URL_SAFE_NO_PAD.decode(token.strip_prefix(JOIN_TOKEN_PREFIX).unwrap()).unwrap();
        let token: JoinToken = serde_json::from_slice(&json).unwrap();
        assert_eq!(state.check_join(&token.secret), Ok([7; 16]));
        let another = token.secret.replacen("07", "08", 1);
        assert_eq!(state.check_join(&another), Err(TokenError::Unknown));
        assert_eq!(open(other.path(), "lab").unwrap().check_join(&token.secret), Err(TokenError::Unknown));
        for none in ["", ".", "07.07", &format!("{}.{}", "07".repeat(16), "00".repeat(32))] {
            assert_eq!(state.check_join(none), Err(TokenError::Unknown), "{none}");
        }
    }

    #[test]
    fn secrets_are_for_their_owner_only() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        open(dir.path(), "lab").unwrap();
        for entry in fs::read_dir(dir.path()).unwrap() {
            let mode = entry.unwrap().metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o077, 0);
        }
    }
}
