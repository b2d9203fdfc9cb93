//! This controller's own key and certificate; how they change is in [`super::identities`].

use super::state::{StateError, kept_key};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weir_api::pki::Shown;
use weir_trust::identity::KeyPair;

/// The seed of this controller's key, once it was changed.
pub(super) const KEY_FILE: &str = "event.identity";

/// See the module.
pub struct Own {
    pub(super) state_dir: PathBuf,
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
