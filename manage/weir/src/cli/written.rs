//! Files that commands write (`--out`, `--write`). What is there already is not replaced unless that is said; what is no plain
//! file (a device, a link, a folder) never; `-` is the standard output. A file has its name when it is whole and synced, and
//! until then none, so nothing is left behind, also not by a kill; where the file system cannot do this, it has a name of its
//! own that goes with the command.

use super::Failure;
use clap::Args;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Who may read the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readers {
    /// Everybody whom the umask lets.
    Anybody,
    /// The owner.
    Owner,
}

/// `--force` of a command that writes a file.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct Force {
    /// Replace the file when it is there
    #[arg(long)]
    force: bool,
}

impl Force {
    /// Writes a file, or the standard output.
    ///
    /// # Errors
    /// [`Failure`]: then there is no new file, and an old one is as it was.
    pub(super) fn write<T>(
        self,
        path: &Path,
        readers: Readers,
        fill: impl FnOnce(&mut dyn Write) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        write(path, self.force, readers, fill)
    }
}

/// Whether a path means the standard output.
pub(super) fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn write<T>(
    path: &Path,
    force: bool,
    readers: Readers,
    fill: impl FnOnce(&mut dyn Write) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let name = path.display().to_string();
    if is_stdout(path) {
        let mut out = BufWriter::new(crate::print::Out);
        let result = fill(&mut out)?;
        out.flush().map_err(Failure::io("standard output"))?;
        return Ok(result);
    }
    check(path, force)?;
    let pending = Pending::new(path, readers).map_err(Failure::io(name.clone()))?;
    let mut out = BufWriter::new(&pending.file);
    let result = fill(&mut out)?;
    out.flush().map_err(Failure::io(name.clone()))?;
    drop(out);
    pending.file.sync_all().map_err(Failure::io(name.clone()))?;
    pending.keep(force).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => there(&name),
        _ => Failure::io(name)(error),
    })?;
    Ok(result)
}

fn there(name: &str) -> Failure {
    Failure::Refused(format!("{name} is there already: name another file, or say --force to replace it"))
}

/// Before anything is fetched or made.
fn check(path: &Path, force: bool) -> Result<(), Failure> {
    let name = path.display().to_string();
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.is_file() => Err(Failure::Refused(format!(
            "{name} is no plain file and is left alone: name a new file, or '-' for the standard output"
        ))),
        Ok(_) if !force => Err(there(&name)),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Failure::io(name)(error)),
    }
}

/// A file that has not its name yet.
struct Pending<'p> {
    path: &'p Path,
    file: File,
    /// Where the file system has none without a name: a name of its own.
    named: Option<PathBuf>,
}

impl Pending<'_> {
    fn new(path: &Path, readers: Readers) -> std::io::Result<Pending<'_>> {
        let folder = folder_of(path);
        let mode = if readers == Readers::Owner { 0o600 } else { 0o644 };
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        match rustix::fs::open(folder, flags, Mode::from_raw_mode(mode)) {
            Ok(file) => Ok(Pending { path, file: file.into(), named: None }),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                let named = own_name(path);
                let mut options = std::fs::OpenOptions::new();
                let file = options.write(true).create_new(true).mode(mode).open(&named)?;
                Ok(Pending { path, file, named: Some(named) })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Gives it its name. A link never replaces what is there; a rename does.
    fn keep(mut self, force: bool) -> std::io::Result<()> {
        let target = if force { own_name(self.path) } else { self.path.to_path_buf() };
        match (&self.named, force) {
            (Some(named), true) => std::fs::rename(named, self.path)?,
            (Some(named), false) => std::fs::hard_link(named, self.path)?,
            (None, _) => {
                if force {
                    // Of a process of this number that was killed.
                    let _none = std::fs::remove_file(&target);
                }
                let of = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                rustix::fs::linkat(CWD, of, CWD, &target, AtFlags::SYMLINK_FOLLOW)?;
                if force {
                    self.named = Some(target);
                    if let Some(named) = &self.named {
                        std::fs::rename(named, self.path)?;
                    }
                }
            }
        }
        File::open(folder_of(self.path))?.sync_all()
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if let Some(named) = &self.named {
            let _gone = std::fs::remove_file(named);
        }
    }
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// A name beside the path that nobody else uses.
fn own_name(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}.part", std::process::id()))
}

#[cfg(test)]
mod tests;
