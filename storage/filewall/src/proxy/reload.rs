//! Policies that change while calls go on.
//!
//! The files are looked at twice a second. When they have changed and then stayed the same for one look (for two seconds where one is gone), they are loaded; the
//! new chain takes the place of the old one for the calls that come then, and calls in flight keep theirs. Files that are wrong are
//! refused as a whole: the error is logged and shown, and the chain stays.
//!
//! Invariants
//! - What was read is what is compared with from then on: a file that changes while others are read, or before the first look, is a change.
//! - While somebody changes several files that belong together ([`change`]), nobody else reads them.

use super::Shared;
use crate::error::{Error, Result};
use crate::metrics::Totals;
use crate::policy;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Looks at which files must have stayed the same, since they are written; and where one is gone.
const LOOKS: u32 = 1;
const LOOKS_GONE: u32 = 4;
/// How often it is seen that the process shall stop.
const STEP: Duration = Duration::from_millis(50);

/// Loads the policies and puts them in force.
pub(super) fn reload(shared: &Shared) -> Result<()> {
    let Some(path) = &shared.policy else { return Ok(()) };
    let before = shared.chain.load_full();
    let loaded = policy::load(path, Some(&before)).and_then(|chain| {
        let refused = |reason: String| Error::Policy { path: path.clone(), document: None, reason };
        match (chain.servers(), &shared.router) {
            (None, _) if before.servers().is_none() => {}
            (Some(servers), Some(router)) if before.servers().is_some() => {
                router.apply(servers).map_err(|reason| refused(format!("kind replication: {reason}")))?;
            }
            _ => return Err(refused("replication begins and ends when FileWall begins anew".to_string())),
        }
        Ok(chain)
    });
    let mut shown = shared.policy_error.lock().unwrap_or_else(PoisonError::into_inner);
    match loaded {
        Ok(chain) => {
            let lost = lost_kinds(&before, &chain);
            if !lost.is_empty() {
                Totals::count(&shared.totals.policy_kinds_lost_total);
                tracing::error!(
                    kinds = lost.join(", "),
                    "policies that protected something are in force no more"
                );
            }
            tracing::info!(epoch = chain.epoch(), policies = chain.entries().len(), "policies are in force");
            if let Some(reason) = chain.refuses_nfs4() {
                tracing::warn!("{reason}");
            }
            shared.chain.store(Arc::new(chain));
            Totals::count(&shared.totals.policy_loads_total);
            *shown = None;
            Ok(())
        }
        Err(error) => {
            tracing::error!(%error, "the policies are refused; those before stay in force");
            Totals::count(&shared.totals.policy_refusals_total);
            *shown = Some(error.to_string());
            Err(error)
        }
    }
}

/// Kinds of policies that protect something, and that were in force and are no more.
fn lost_kinds(before: &policy::Chain, after: &policy::Chain) -> Vec<&'static str> {
    let has = |chain: &policy::Chain, kind: &str| match kind {
        "identities" => chain.identities().any(),
        _ => chain.entries().iter().any(|entry| entry.policy.kind() == kind),
    };
    policy::file::PROTECTING.into_iter().filter(|kind| has(before, kind) && !has(after, kind)).collect()
}

/// What a change of the files changes.
pub(super) type Fingerprint = Vec<(PathBuf, u64, i64, i64, u64)>;

/// Lets somebody change files that are `theirs`, and put them in force, while nobody else reads any. What others do to their own files
/// meanwhile is seen as a change afterwards, whether it was read or not.
pub(super) fn change<T>(shared: &Shared, theirs: impl Fn(&Path) -> bool, work: impl FnOnce() -> T) -> T {
    let Some(path) = &shared.policy else { return work() };
    let mut seen = shared.policy_files.lock().unwrap_or_else(PoisonError::into_inner);
    seen.retain(|file| !theirs(&file.0));
    let others = |files: &Fingerprint| -> Fingerprint {
        files.iter().filter(|file| !theirs(&file.0)).cloned().collect()
    };
    let before = others(&fingerprint(path));
    let done = work();
    let after = fingerprint(path);
    // What is in force may be of a file as it was for a moment: all is read again.
    let moved = before != *seen || others(&after) != *seen;
    seen.extend(after.into_iter().filter(|file| theirs(&file.0)));
    seen.extend(moved.then(|| (PathBuf::new(), 0, 0, 0, 0)));
    seen.sort();
    done
}

pub(super) fn fingerprint(path: &Path) -> Fingerprint {
    let files: Vec<PathBuf> = if path.is_dir() {
        std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    } else {
        vec![path.to_path_buf()]
    };
    let policies = files.into_iter().filter(|file| {
        file == path || file.extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
    });
    let mut found: Fingerprint = policies
        .filter_map(|file| {
            let metadata = std::fs::metadata(&file).ok()?;
            Some((file, metadata.size(), metadata.mtime(), metadata.mtime_nsec(), metadata.ino()))
        })
        .collect();
    found.sort();
    found
}

/// Looks at the files until the process stops.
pub(super) fn watch(shared: &Shared) {
    let Some(path) = &shared.policy else { return };
    let (mut seen, mut looks) = (Fingerprint::new(), 0);
    while !shared.stop.load(Ordering::Relaxed) {
        for _ in 0..LOOK_EVERY.as_millis() / STEP.as_millis() {
            std::thread::sleep(STEP);
            if shared.stop.load(Ordering::Relaxed) {
                return;
            }
        }
        let mut loaded = shared.policy_files.lock().unwrap_or_else(PoisonError::into_inner);
        let now = fingerprint(path);
        looks = if now == seen { looks + 1 } else { 0 };
        // A file that is gone may have been moved away for a moment.
        let gone = loaded.iter().any(|file| !now.iter().any(|other| other.0 == file.0));
        if looks >= if gone { LOOKS_GONE } else { LOOKS } && now != *loaded {
            loaded.clone_from(&now);
            // What is wrong was logged, and is shown.
            let _ = reload(shared);
        }
        seen = now;
    }
}
