//! Replacing a file as a whole: after a crash, a full disk or a loss of power it is the old one or the new one.
//!
//! The new content is written aside, into a file that did not exist (so that no link that somebody planted is followed), and synced;
//! its name replaces the old one, and the folder is synced: when a call returns well, the new content is there whatever happens.
//! When it fails, the old content is in force and the space aside is given back. And reading text whole, or not at all.

#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::path::PathBuf;

use crate::world::Disk;

/// What a file's name has at its end while it is written.
const ASIDE: &str = ".new";

/// Where the new content of a file is until it is whole.
fn aside_of(path: &Path) -> PathBuf {
    let mut aside = path.as_os_str().to_owned();
    aside.push(ASIDE);
    aside.into()
}

fn absent_is_well(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Replaces the file `path`, or makes it, with these permissions (less the process's umask).
///
/// # Errors
/// The file system's; the old content is in force then, but for an error of the last step (the folder's sync), after which it is either.
pub fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let aside = aside_of(path);
    // What a process left there that died.
    absent_is_well(fs::remove_file(&aside))?;
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&aside)?;
    let written =
        file.write_all(content).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&aside, path));
    if written.is_err() {
        // Gives the space back; the failure to tell is the first one.
        let _freed = fs::remove_file(&aside);
    }
    written?;
    sync_folder_of(path)
}

/// Syncs the folder that holds `path`, so that names made or changed there stay.
///
/// # Errors
/// The file system's.
pub fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    fs::File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Reads all text there is, at most `bytes_max` bytes. What is longer is an error, never a part: a part of a file may say something
/// else than the file.
///
/// # Errors
/// The reader's; `FileTooLarge`; `InvalidData` for what is not UTF-8.
pub fn read_text(from: impl io::Read, bytes_max: u64) -> io::Result<String> {
    let mut text = String::new();
    from.take(bytes_max.saturating_add(1)).read_to_string(&mut text)?;
    if text.len() as u64 > bytes_max {
        let words = format!("it is longer than {bytes_max} bytes, the most that is read");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, words));
    }
    Ok(text)
}

/// [`replace`] for a file of a [`Disk`], which is its owner's alone.
///
/// # Errors
/// The disk's, as with [`replace`].
pub fn replace_at(disk: &dyn Disk, name: &str, content: &[u8]) -> io::Result<()> {
    let aside = format!("{name}{ASIDE}");
    absent_is_well(disk.remove(&aside))?;
    let file = disk.create(&aside)?;
    let written =
        file.write_at(0, content).and_then(|()| file.sync_data()).and_then(|()| disk.rename(&aside, name));
    if written.is_err() {
        let _freed = disk.remove(&aside);
    }
    written?;
    disk.sync_dir()
}
