//! Mounts whose daemon and keeper are gone: nobody serves them, and all that is asked of them is "transport endpoint is not connected".

use super::HELPER;
use crate::doctor::mount_points;
use crate::error::Error;
use rustix::mount::UnmountFlags;
use std::path::Path;

/// Takes away what is left at `point` of mounts of ours, if nobody serves them any more. Whether there was any.
///
/// # Errors
/// When it cannot be unmounted.
pub fn clear(point: &Path) -> Result<bool, Error> {
    /// One on top of the other.
    const MOST: usize = 64;
    let mut cleared = false;
    for _ in 0..MOST {
        if !is_dead(point) {
            break;
        }
        let failed = |error| Error::io(format!("unmounting what is left at {}", point.display()), error);
        match rustix::mount::unmount(point, UnmountFlags::DETACH) {
            Err(rustix::io::Errno::PERM) => unmount_by_helper(point, true)?,
            other => other.map_err(failed)?,
        }
        cleared = true;
    }
    Ok(cleared)
}

fn is_dead(point: &Path) -> bool {
    let dead =
        matches!(rustix::fs::statfs(point), Err(rustix::io::Errno::NOTCONN | rustix::io::Errno::CONNABORTED));
    dead && mount_points(&std::fs::read("/proc/self/mountinfo").unwrap_or_default())
        .iter()
        .any(|mounted| mounted == point)
}

pub(super) fn unmount_by_helper(point: &Path, lazy: bool) -> Result<(), Error> {
    let mut helper = std::process::Command::new(HELPER);
    helper.arg("-u").args(lazy.then_some("-z")).arg(point);
    let what = format!("running {HELPER} (of the package fuse3)");
    let answer = helper.output().map_err(|error| Error::io(what, error))?;
    if answer.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&answer.stderr).trim().to_owned();
    Err(Error::io(format!("unmounting {}", point.display()), std::io::Error::other(words)))
}
