//! What must be in a host's state directory ([`weir_base::manifest`]), checked at every start before anything is made or opened.
//!
//! Keys, certificates, trust and membership are checked by what they hold; journals, which change as they go, by their being there. What is
//! missing, damaged or of another time is never made anew: a host with another identity is another host, one with an older trust
//! may take what was revoked, and a switch whose numbers are gone says again what it has said. An operator brings it back, or says that it shall
//! be so ([`accept`]) and has the host join anew.
//!
//! A directory without a manifest is a new one, or of a release that had none: it gets its own when its agent starts.
//!
//! Invariants
//! - A file whose content is known gets another one only by [`write`], which says so in the manifest first; a crash in between is no damage.
//! - What was lost is said with its name and cure, before a key is made or a controller asked.

use crate::AgentError;
use crate::join::membership::{MEMBERSHIP_FILE, membership};
use std::path::Path;
use weir_base::file::replace;
use weir_base::manifest::{Manifest, ManifestError, Watched, Wrong, in_words};
use weir_model::join::{AUTHORITY_FILE, CERTIFICATE_FILE, IDENTITY_FILE, KEY_FILE, TRUST_FILE};

/// Files whose content is known.
const HELD: &[&str] =
    &[IDENTITY_FILE, KEY_FILE, CERTIFICATE_FILE, AUTHORITY_FILE, TRUST_FILE, MEMBERSHIP_FILE];
/// Files that change as it goes: the numbers of the switch's events, the devices that are its own and the signature by which it knows
/// them, the repairs that its monitor has done by order. The monitor's log proves itself, and may be moved away by who rotates logs.
const THERE: &[&str] = &["switch.numbers", "devices.json", "devices.owner", "monitor/ordered.json"];
const WATCHED: Watched = Watched { held: HELD, there: THERE };

fn unusable(error: ManifestError) -> AgentError {
    match error {
        ManifestError::Io { path, error } => AgentError::file(path, error),
        damaged @ ManifestError::Damaged { .. } => {
            AgentError::Material { what: "the state directory".into(), reason: damaged.to_string() }
        }
    }
}

/// Whether a directory is a host's, or was.
pub fn is_host(dir: &Path) -> bool {
    let named = Manifest::read(dir).ok().flatten();
    let of_manifest = named.is_some_and(|manifest| manifest.files.contains_key(MEMBERSHIP_FILE));
    of_manifest || [MEMBERSHIP_FILE, TRUST_FILE, IDENTITY_FILE].iter().any(|name| dir.join(name).exists())
}

/// What is wrong with a state directory, each with its name; nothing where it has no manifest.
///
/// # Errors
/// The manifest cannot be read.
pub fn problems(dir: &Path) -> Result<Vec<String>, AgentError> {
    let Some(manifest) = Manifest::read(dir).map_err(unusable)? else { return Ok(Vec::new()) };
    let found = manifest.check(dir).map_err(unusable)?;
    // Who takes the membership away, and nothing else, has the host join anew: so it is let in again after it was forgotten. Without a
    // token it does not start.
    if found == [(MEMBERSHIP_FILE.to_owned(), Wrong::Missing)] {
        return Ok(Vec::new());
    }
    Ok(in_words(found))
}

/// Refuses a directory that has lost something.
///
/// # Errors
/// [`AgentError::Incomplete`] with all that is wrong.
pub fn check(dir: &Path) -> Result<(), AgentError> {
    let problems = problems(dir)?;
    if problems.is_empty() {
        return Ok(());
    }
    Err(AgentError::Incomplete { path: dir.to_path_buf(), problems: problems.join(", ") })
}

/// Writes down what is there now, besides what was known before. What cannot be written is told, and tried again later.
pub fn record(dir: &Path) {
    if let Err(error) = recorded(dir, false) {
        tracing::warn!(%error, "what must be in the state directory was not written down");
    }
}

fn recorded(dir: &Path, anew: bool) -> Result<u64, AgentError> {
    let made = || match membership(dir) {
        Ok(Some(member)) => Some(Manifest::new(member.domain.as_str())),
        // It has not joined: there is nothing to lose.
        Ok(None) if !anew => None,
        _ => Some(Manifest::new("unknown")),
    };
    let manifest = WATCHED.record(dir, anew, made).map_err(unusable)?;
    Ok(manifest.map_or(0, |manifest| manifest.generation))
}

/// Gives a file of the directory another content.
///
/// # Errors
/// It cannot be written, nor what it will hold.
pub(crate) fn write(dir: &Path, name: &str, bytes: &[u8], mode: u32) -> Result<(), AgentError> {
    Manifest::announce(dir, name, bytes).map_err(unusable)?;
    let path = dir.join(name);
    replace(&path, bytes, mode).map_err(|error| AgentError::file(path, error))
}

/// Takes a directory as it is now; gives the generation of its new manifest. A host that lacks a part of what joining gave it has
/// joined no more: it does so again at its next start, with a token.
///
/// # Errors
/// The directory cannot be written.
pub fn accept(dir: &Path) -> Result<u64, AgentError> {
    let has_all = HELD.iter().all(|name| dir.join(name).exists());
    let member = dir.join(MEMBERSHIP_FILE);
    if !has_all && member.exists() {
        std::fs::remove_file(&member).map_err(|error| AgentError::file(member, error))?;
    }
    recorded(dir, true)
}

#[cfg(test)]
mod tests;
