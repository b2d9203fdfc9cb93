//! The policies that controllers order of a FileWall, in its folder: put there, put in force, and kept (row F). [`plane`] is the
//! process that verifies and acks them.
//!
//! Invariants
//! - Policies are put in force as a whole or not at all. Those that are wrong are refused, and the last good ones stay.
//! - The last good ones are on the disk before they count as such ([`KEPT_FILE`]), and are in force after a restart, with or without
//!   a switch, an agent and controllers.
//! - A withdrawn order changes nothing: what is in force stays.
//! - The machine's owner has files of his own in the folder. They are in force as without orders when they change, and one that is being
//!   written holds an order up for [`TRIES`] tries before it is refused.
//! - An order neither replaces nor removes a file that no order has put there, and one without policies is refused: what lets everything
//!   through says so (`kind: none`).

pub mod plane;

use crate::failure::Failure;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use weir_filewall::proxy::FileWall;
use weir_model::Label;
use weir_model::filewall::{PolicyFile, PolicySet, files_problem};

/// The last good policies, in the folder of policies.
const KEPT_FILE: &str = ".ordered.json";
/// Those that are being put in force: if they did not become the last good ones, their files are removed at the next start.
const NEXT_FILE: &str = ".ordered.next.json";
/// How often an order is tried while a file of the machine's owner cannot be read, and how long after another: it is being written.
const TRIES: u32 = 4;
const BETWEEN: Duration = Duration::from_millis(500);

/// What was in force last.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    version: u64,
    files: Vec<PolicyFile>,
}

/// Orders for a FileWall.
#[derive(Clone, Debug)]
pub struct Orders {
    /// Name of the FileWall there.
    pub wall: Label,
    /// Folder of policies.
    pub folder: PathBuf,
}

impl Orders {
    /// Makes the folder what it was when policies were in force last; their version, if there are any.
    fn mend(&self) -> Result<Option<u64>, Failure> {
        std::fs::create_dir_all(&self.folder).map_err(Failure::io(self.folder.display().to_string()))?;
        let kept = self.read(KEPT_FILE)?;
        if let Some(next) = self.read(NEXT_FILE)? {
            self.put(kept.as_ref().map_or(&[], |kept| &kept.files), &next.files)?;
        }
        if let Some(kept) = kept {
            self.put(&kept.files, &[])?;
            return Ok(Some(kept.version));
        }
        Ok(None)
    }

    /// Puts policies in force in a FileWall that serves, which reads no files by itself meanwhile; see [`Orders::take`].
    fn take_into(&self, wall: &FileWall, set: &PolicySet) -> Result<(), String> {
        // A file that is there already is not the order's, which will be refused.
        let (before, mut theirs) = (self.ordered(), self.ordered_by(set));
        theirs.retain(|file| before.contains(file) || file.symlink_metadata().is_err());
        wall.change_policies(|file| theirs.iter().any(|own| own == file), || self.take(set, || wall.reload()))
    }

    /// Puts policies into the folder and has them loaded; if they are wrong, those before are there again.
    fn take(&self, set: &PolicySet, load: impl Fn() -> weir_filewall::Result<()>) -> Result<(), String> {
        if let Some(problem) = files_problem(&set.files) {
            return Err(problem.to_string());
        }
        let text = |failure: Failure| failure.to_string();
        let before = self.read(KEPT_FILE).map_err(text)?.map(|kept| kept.files).unwrap_or_default();
        // What an order has not put there belongs to the machine's owner, and no order replaces or removes it.
        let ordered: BTreeSet<&str> = before.iter().map(|file| file.name.as_str()).collect();
        let owned = |file: &&PolicyFile| {
            !ordered.contains(file.name.as_str()) && self.folder.join(&file.name).symlink_metadata().is_ok()
        };
        if let Some(file) = set.files.iter().find(owned) {
            return Err(format!(
                "'{}' is there already and is no ordered file: order it under another name, or move it away",
                file.name
            ));
        }
        let next = Kept { version: set.version.0, files: set.files.clone() };
        let done = self
            .keep(NEXT_FILE, &next)
            .and_then(|()| self.put(&set.files, &before))
            .map_err(text)
            .and_then(|()| self.load(set, load).map_err(|error| error.to_string()));
        match done {
            Ok(()) => {
                tracing::info!(version = %set.version, files = set.files.len(), "ordered policies are in force");
                self.keep(KEPT_FILE, &next).map_err(text)
            }
            Err(reason) => {
                self.put(&before, &set.files).map_err(text)?;
                Err(reason)
            }
        }
    }

    /// Has the policies loaded. What is wrong with a file of the machine's owner is not the order's fault, and may be over at once.
    fn load(
        &self,
        set: &PolicySet,
        load: impl Fn() -> weir_filewall::Result<()>,
    ) -> weir_filewall::Result<()> {
        let theirs = self.ordered_by(set);
        for _ in 1..TRIES {
            match load() {
                Err(weir_filewall::Error::Policy { path, .. })
                    if path != self.folder && !theirs.contains(&path) =>
                {
                    tracing::warn!(file = %path.display(), "an order waits for a file that is none of its own");
                    std::thread::sleep(BETWEEN);
                }
                other => return other,
            }
        }
        load()
    }

    /// The files that orders have put into the folder.
    fn ordered(&self) -> Vec<PathBuf> {
        let kept = self.read(KEPT_FILE).ok().flatten().map(|kept| kept.files).unwrap_or_default();
        kept.iter().map(|file| self.folder.join(&file.name)).collect()
    }

    /// Those and the ones of an order.
    fn ordered_by(&self, set: &PolicySet) -> Vec<PathBuf> {
        let mut theirs = self.ordered();
        theirs.extend(set.files.iter().map(|file| self.folder.join(&file.name)));
        theirs
    }

    fn read(&self, name: &str) -> Result<Option<Kept>, Failure> {
        let path = self.folder.join(name);
        match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .map_err(|error| Failure::Input(format!("{}: {error}", path.display()))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Failure::io(path.display().to_string())(error)),
        }
    }

    fn keep(&self, name: &str, kept: &Kept) -> Result<(), Failure> {
        let path = self.folder.join(name);
        let bytes = serde_json::to_vec(kept).unwrap_or_default();
        write(&path, &bytes).map_err(Failure::io(path.display().to_string()))
    }

    /// Writes files, and removes those that are in `others` alone. What else is in the folder (keys, logs, states, files of
    /// the machine's own) is left alone.
    fn put(&self, files: &[PolicyFile], others: &[PolicyFile]) -> Result<(), Failure> {
        let names: BTreeSet<&str> = files.iter().map(|file| file.name.as_str()).collect();
        for file in files {
            let path = self.folder.join(&file.name);
            write(&path, file.text.as_bytes()).map_err(Failure::io(path.display().to_string()))?;
        }
        for other in others.iter().filter(|other| !names.contains(other.name.as_str())) {
            let path = self.folder.join(&other.name);
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(Failure::io(path.display().to_string())(error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// A file is there whole, or as it was before.
fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".new");
    let mut file = std::fs::File::create(&aside)?;
    file.write_all(bytes)?;
    file.sync_data()?;
    std::fs::rename(&aside, path)
}

#[cfg(test)]
mod tests;
