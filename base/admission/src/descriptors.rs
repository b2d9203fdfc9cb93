//! Descriptors of this process: as many as the system allows, and some kept for its own files.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors for files, the runtime and what is not counted by a door: log, audit, snapshots, standard streams.
pub const RESERVED: usize = 256;
/// Fewer than this cannot serve anybody.
const FEWEST: usize = 64;

/// Raises the limit of open files (RLIMIT_NOFILE) of this process to the most that the system allows it; how many that is.
pub fn raise() -> usize {
    let now = getrlimit(Resource::Nofile);
    let most = Rlimit { current: now.maximum, maximum: now.maximum };
    if now.current != now.maximum
        && let Err(error) = setrlimit(Resource::Nofile, most)
    {
        tracing::warn!(%error, "the limit of open files could not be raised");
    }
    getrlimit(Resource::Nofile)
        .current
        .map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// How many connections there are descriptors for, beside [`RESERVED`] ones.
pub fn for_connections(descriptors: usize) -> usize {
    descriptors.saturating_sub(RESERVED).max(FEWEST)
}
