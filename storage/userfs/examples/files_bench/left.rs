//! What a bench that was killed left behind, by the names of its folders: mounts, files, and the kernel's switch.

use crate::Failure;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Where folders of the bench are.
const PLACES: [&str; 2] = ["/var/tmp", "/dev/shm"];
/// Before the number of the bench's process, in names of its folders.
const PREFIX: &str = "weir-files-bench-";
/// A file of a folder: what a switch was before, and which.
const SWITCH: &str = "switch-before";

/// A folder of this bench.
pub fn folder(place: &str) -> Result<TempDir, Failure> {
    assert!(PLACES.contains(&place), "{place} is looked through");
    let prefix = format!("{PREFIX}{}-", std::process::id());
    Ok(tempfile::Builder::new().prefix(&prefix).tempdir_in(place)?)
}

/// Writes down what `switch` was, for who comes after us if we are killed.
pub fn note(folder: &Path, switch: &str, before: &str) -> Result<(), Failure> {
    Ok(std::fs::write(folder.join(SWITCH), format!("{switch}\n{before}"))?)
}

/// Whether the bench that made a folder of this name still runs.
fn runs(name: &str) -> Option<bool> {
    let process = name.strip_prefix(PREFIX)?.split('-').next()?;
    let number: u32 = process.parse().ok()?;
    let program = std::fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
    Some(String::from_utf8_lossy(&program).contains("files_bench"))
}

/// Mount points below `folder`, the last first.
fn mounts(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let all = std::fs::read_to_string("/proc/self/mountinfo")?;
    let points = all.lines().filter_map(|line| Some(PathBuf::from(line.split(' ').nth(4)?)));
    let mut below: Vec<PathBuf> = points.filter(|point| point.starts_with(folder)).collect();
    below.reverse();
    Ok(below)
}

/// Unmounts and removes what benches left that are gone.
pub fn clean() -> Result<(), Failure> {
    for place in PLACES {
        for entry in std::fs::read_dir(place)? {
            let entry = entry?;
            if runs(&entry.file_name().to_string_lossy()) != Some(false) {
                continue;
            }
            let folder = entry.path();
            for point in mounts(&folder)? {
                rustix::mount::unmount(&point, rustix::mount::UnmountFlags::DETACH)?;
            }
            if let Ok(noted) = std::fs::read_to_string(folder.join(SWITCH))
                && let Some((switch, before)) = noted.split_once('\n')
                && switch.starts_with("/sys/module/fuse/")
            {
                std::fs::write(switch, before.trim())?;
            }
            std::fs::remove_dir_all(&folder)?;
            println!("removed what a bench left that was killed: {}", folder.display());
        }
    }
    Ok(())
}
