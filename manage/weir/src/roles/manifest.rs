//! What must be in a controller's state directory ([`weir_base::manifest`]), checked at every start before anything is made or opened.
//!
//! Keys and names are checked by what they hold, logs and numbers by their being there: what is in these, they prove themselves
//! (`log.proof` beside each log). A directory without a manifest is a new one, or of a release that had none; it gets
//! its own when its controller has started. One that has a log but not its keys is neither.
//!
//! What is missing or changed is never made anew: a controller with another key is another controller, and a member of a group
//! that does not know how it voted may vote twice. An operator brings it back, lets a member rejoin ([`rejoin`]), or says that it
//! shall be so ([`accept`]).

use super::state::error::StateError;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use weir_base::manifest::{Manifest, ManifestError, Watched, in_words};

/// A manifest is read and written again as a whole: who does so must be alone, or forgets what another one says.
static CHANGES: Mutex<()> = Mutex::new(());

fn one_at_a_time() -> MutexGuard<'static, ()> {
    // Nothing is left half done there.
    CHANGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Files whose content is known.
const HELD: &[&str] = &[
    "domain",
    "ca.key",
    "ca.crt",
    "admin.token",
    "group.seed",
    "event.seed",
    "dataplane.secret",
    "join.key",
    "group.identity",
    "event.identity",
    "quorum/identity",
    "member",
    "log/left-out",
    "numbers/left-out",
    "converted",
];
/// Files that every state directory has from its first start on.
const ALWAYS: [&str; 8] =
    ["domain", "ca.key", "ca.crt", "admin.token", "group.seed", "event.seed", "dataplane.secret", "join.key"];
/// Files that change as it goes.
const THERE: &[&str] = &[
    "log/log.proof",
    "log/event-numbers",
    "group/log.proof",
    "group-votes/log.proof",
    "numbers/event-numbers",
    "audit/log.proof",
];
const WATCHED: Watched = Watched { held: HELD, there: THERE };
/// Folders of a member's place in the order.
const OF_MEMBER: [&str; 3] = ["group", "group-votes", "member"];

fn unusable(error: ManifestError) -> StateError {
    match error {
        ManifestError::Io { path, error } => StateError::File { path, error },
        damaged @ ManifestError::Damaged { .. } => StateError::Manifest { reason: damaged.to_string() },
    }
}

/// Whether a folder holds a log with segments.
pub fn has_segments(folder: &Path) -> bool {
    let named = |entry: std::fs::DirEntry| {
        let name = entry.file_name();
        name.to_str().is_some_and(|name| name.starts_with("log-") && name.ends_with(".seg"))
    };
    std::fs::read_dir(folder).is_ok_and(|mut files| files.any(|entry| entry.is_ok_and(named)))
}

/// What is wrong with a state directory, each with its name; nothing where it has no manifest and no log.
///
/// # Errors
/// [`StateError`]: its manifest cannot be read, or is of another domain.
pub fn problems(dir: &Path, domain: Option<&str>) -> Result<Vec<String>, StateError> {
    let Some(manifest) = Manifest::read(dir).map_err(unusable)? else {
        let is_used = ["log", "group"].iter().any(|folder| has_segments(&dir.join(folder)));
        let missing = ALWAYS.iter().filter(|name| is_used && !dir.join(name).exists());
        return Ok(missing.map(|name| format!("'{name}' is missing beside a log that is there")).collect());
    };
    if let Some(wanted) = domain.filter(|wanted| **wanted != manifest.domain) {
        let (path, found, wanted) = (dir.to_path_buf(), manifest.domain, wanted.to_owned());
        return Err(StateError::OtherDomain { path, found, wanted });
    }
    Ok(in_words(manifest.check(dir).map_err(unusable)?))
}

/// Refuses a directory that has lost something.
///
/// # Errors
/// [`StateError`].
pub fn check(dir: &Path, domain: &str) -> Result<(), StateError> {
    let problems = problems(dir, Some(domain))?;
    if problems.is_empty() {
        return Ok(());
    }
    let member = OF_MEMBER.iter().any(|name| dir.join(name).exists())
        || problems.iter().any(|one| one.contains("'member'"));
    let rejoin = if member {
        format!(
            "; or let this member of a group begin anew ('weir state rejoin --state {}' says how)",
            dir.display()
        )
    } else {
        String::new()
    };
    Err(StateError::Incomplete { path: dir.to_path_buf(), problems: problems.join(", "), rejoin })
}

/// Whether a file may be made because it never was there.
///
/// # Errors
/// [`StateError::Incomplete`]: it was.
pub fn may_make(path: &Path) -> Result<(), StateError> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Ok(());
    };
    let known = Manifest::read(dir).map_err(unusable)?;
    if known.is_some_and(|manifest| manifest.files.contains_key(name)) {
        let (path, problems) = (dir.to_path_buf(), format!("'{name}' is missing"));
        return Err(StateError::Incomplete { path, problems, rejoin: String::new() });
    }
    Ok(())
}

/// Writes down what is there now, besides what was known before. A file that is full or cannot be written is told, and tried again
/// at the next start.
pub fn record(dir: &Path, domain: &str) {
    if let Err(error) = recorded(dir, domain, false) {
        tracing::warn!(%error, "what must be in the state directory was not written down");
    }
}

fn recorded(dir: &Path, domain: &str, anew: bool) -> Result<u64, StateError> {
    let _one = one_at_a_time();
    let manifest = WATCHED.record(dir, anew, || Some(Manifest::new(domain))).map_err(unusable)?;
    Ok(manifest.map_or(0, |manifest| manifest.generation))
}

/// Says what a file is about to hold, where there is a manifest.
///
/// # Errors
/// [`StateError`].
pub fn will_hold(dir: &Path, name: &str, bytes: &[u8]) -> Result<(), StateError> {
    let _one = one_at_a_time();
    Manifest::announce(dir, name, bytes).map_err(unusable)
}

/// Whether [`accept`] can take a directory: it is one of a controller, a host or a gateway.
///
/// # Errors
/// [`StateError`].
pub fn may_accept(dir: &Path) -> Result<(), StateError> {
    if dir.join("domain").exists() || weir_agent::kept::is_host(dir) {
        return Ok(());
    }
    let path = dir.join("domain");
    Err(StateError::File { path, error: std::io::ErrorKind::NotFound.into() })
}

/// What is there of a member's place in the order: what [`rejoin`] puts aside.
pub fn of_member(dir: &Path) -> Vec<&'static str> {
    OF_MEMBER.into_iter().filter(|name| dir.join(name).exists()).collect()
}

/// Takes a directory as it is now; gives the generation of its new manifest.
///
/// # Errors
/// [`StateError`]: also where it has no domain.
pub fn accept(dir: &Path) -> Result<u64, StateError> {
    if !dir.join("domain").exists() && weir_agent::kept::is_host(dir) {
        let failed = |error: weir_agent::AgentError| StateError::Manifest { reason: error.to_string() };
        return weir_agent::kept::accept(dir).map_err(failed);
    }
    let path = dir.join("domain");
    let domain = std::fs::read_to_string(&path).map_err(|error| StateError::File { path, error })?;
    recorded(dir, domain.trim_end(), true)
}

/// Puts a file aside that need not be there any more, under its name and `.before`.
///
/// # Errors
/// [`StateError`].
pub fn put_aside(dir: &Path, name: &str) -> Result<(), StateError> {
    // What need not be there is not missed, whichever of the two a crash leaves out.
    if let Some(mut manifest) = Manifest::read(dir).map_err(unusable)?
        && manifest.files.remove(name).is_some()
    {
        manifest.write(dir).map_err(unusable)?;
    }
    let (path, aside) = (dir.join(name), dir.join(format!("{name}.before")));
    match std::fs::rename(&path, aside) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(StateError::File { path, error }),
        _ => Ok(()),
    }
}

/// Puts a member's place in the order aside, so that it can begin anew; gives where that is now.
///
/// # Errors
/// [`StateError`].
pub fn rejoin(dir: &Path) -> Result<PathBuf, StateError> {
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let aside = dir.join(format!("left-{now_s}"));
    let failed = |path: &Path| {
        let path = path.to_path_buf();
        move |error| StateError::File { path, error }
    };
    std::fs::create_dir(&aside).map_err(failed(&aside))?;
    for name in OF_MEMBER {
        let from = dir.join(name);
        if from.exists() {
            std::fs::rename(&from, aside.join(name)).map_err(failed(&from))?;
        }
    }
    if let Some(mut manifest) = Manifest::read(dir).map_err(unusable)? {
        manifest.files.retain(|name, _| !OF_MEMBER.contains(&name.split('/').next().unwrap_or_default()));
        manifest.write(dir).map_err(unusable)?;
    }
    Ok(aside)
}

#[cfg(test)]
mod tests;
