//! The secrets of a domain that all controllers of its group share, as one file: made by `weir group keys` and copied to
//! each machine before its controller starts.
//!
//! Whoever has the file is a controller of the domain. It is written with mode 0600, and may be deleted when every controller
//! has started once.

use super::state::{State, StateError, write_secret};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;
use weir_model::Label;

/// The files of a state directory that are shared, by name.
const SHARED: [&str; 8] =
    ["domain", "ca.key", "ca.crt", "admin.token", "group.seed", "event.seed", "dataplane.secret", "join.key"];

/// See the module.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Keys {
    /// Format of the file.
    format: u32,
    /// Content of each file.
    files: std::collections::BTreeMap<String, String>,
}

const FORMAT: u32 = 1;

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> StateError {
    let path = path.to_path_buf();
    move |error| StateError::File { path, error }
}

impl Keys {
    /// Those of a state directory, which is made when it is not there.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn of(state_dir: &Path, domain: &Label) -> Result<Keys, StateError> {
        drop(State::open(state_dir, domain, &[])?);
        let read = |name: &str| {
            let path = state_dir.join(name);
            let text = std::fs::read_to_string(&path).map_err(file_error(&path))?;
            Ok::<_, StateError>((name.to_string(), text.trim_end().to_string()))
        };
        Ok(Keys { format: FORMAT, files: SHARED.into_iter().map(read).collect::<Result<_, _>>()? })
    }

    /// Reads the file.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn read(path: &Path) -> Result<Keys, StateError> {
        let text = std::fs::read_to_string(path).map_err(file_error(path))?;
        let damaged = |reason: String| StateError::Keys { path: path.to_path_buf(), reason };
        let keys: Keys = serde_json::from_str(&text).map_err(|error| damaged(error.to_string()))?;
        if keys.format != FORMAT {
            return Err(damaged(format!("it has format {}, this release reads {FORMAT}", keys.format)));
        }
        match SHARED.into_iter().find(|name| !keys.files.contains_key(*name)) {
            Some(missing) => Err(damaged(format!("'{missing}' is missing"))),
            None => Ok(keys),
        }
    }

    /// The file's text.
    ///
    /// # Errors
    /// [`StateError::Keys`].
    pub fn to_text(&self) -> Result<String, StateError> {
        let damaged = |error: serde_json::Error| StateError::Keys {
            path: Path::new("keys").to_path_buf(),
            reason: error.to_string(),
        };
        serde_json::to_string_pretty(self).map_err(damaged)
    }

    /// Puts them into a state directory that has none; one that has must have the same.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn install(&self, state_dir: &Path) -> Result<(), StateError> {
        std::fs::create_dir_all(state_dir).map_err(file_error(state_dir))?;
        for name in SHARED {
            let (path, text) = (state_dir.join(name), &self.files[name]);
            match std::fs::read_to_string(&path) {
                Ok(found) if found.trim_end() == text => {}
                Ok(_) => return Err(StateError::OtherKeys { path }),
                Err(error) if error.kind() == io::ErrorKind::NotFound => write_secret(&path, text)?,
                Err(error) => return Err(StateError::File { path, error }),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_carried_to_another_directory_makes_the_same_domain() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two, file) = (dir.path().join("1"), dir.path().join("2"), dir.path().join("keys"));
        let domain = Label::new("lab").unwrap();
        std::fs::write(&file, Keys::of(&one, &domain).unwrap().to_text().unwrap()).unwrap();
        let keys = Keys::read(&file).unwrap();
        keys.install(&two).unwrap();
        keys.install(&two).unwrap();
        let (first, second) =
            (State::open(&one, &domain, &[]).unwrap(), State::open(&two, &domain, &[]).unwrap());
        assert_eq!(first.group_key().public(), second.group_key().public());
        assert_eq!(first.authority.fingerprint().unwrap(), second.authority.fingerprint().unwrap());
        assert_eq!(first.admin_token, second.admin_token);
        let token = first.join_token(&[7; 16], vec![]).unwrap();
        assert!(token.starts_with("weir1."));

        let third = Keys::of(&dir.path().join("3"), &domain).unwrap();
        std::fs::write(&file, third.to_text().unwrap()).unwrap();
        let other = Keys::read(&file).unwrap().install(&two);
        assert!(matches!(other, Err(StateError::OtherKeys { .. })));
        std::fs::write(&file, "{\"format\":1,\"files\":{}}").unwrap();
        assert!(Keys::read(&file).is_err_and(|error| error.to_string().contains("'domain' is missing")));
    }
}
