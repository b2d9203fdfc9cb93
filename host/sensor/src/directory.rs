//! Where boxes are found by name: a folder with one small file a box, which says the process and the descriptor that hold
//! its memory.
//!
//! The file is a claim, not a proof: a monitor opens the memory through `/proc/PROCESS/fd/DESCRIPTOR` and takes it only
//! if it is sealed and has the layout. Boxes of different users may have the same name, so a registration also says
//! whose file it is, and a caller who cares compares.

use crate::error::{Error, Result};
use crate::layout::{BOX_NAME_BYTES, check_name};
use crate::view::View;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where boxes are registered unless another folder is said.
pub const FOLDER: &str = "/run/weir/sensors";
/// How the names of registrations end.
const SUFFIX: &str = ".box";
/// Longest registration that is read, bytes.
const REGISTRATION_BYTES_MAX: u64 = 64;
/// Most registrations that a listing reads.
pub const REGISTRATIONS_MAX: usize = 4096;

/// A folder of registrations.
#[derive(Clone, Debug)]
pub struct Directory(PathBuf);

/// What a registration says.
fn claim(memory: &OwnedFd) -> String {
    format!("{} {}\n", rustix::process::getpid().as_raw_nonzero(), memory.as_raw_fd())
}

impl Default for Directory {
    fn default() -> Directory {
        Directory(PathBuf::from(FOLDER))
    }
}

/// A box that somebody exported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Its name.
    pub name: String,
    /// The process that exported it, as the file says.
    pub process: u32,
    /// The descriptor of its memory there, as the file says.
    pub descriptor: u32,
    /// The user whom the file belongs to.
    pub user: u32,
}

impl Directory {
    /// A folder; it is made by the first export.
    pub fn new(folder: impl Into<PathBuf>) -> Directory {
        Directory(folder.into())
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn register(&self, name: &str, memory: &OwnedFd) -> Result<PathBuf> {
        let failed = |what: &str, path: &Path| format!("{what} {}", path.display());
        std::fs::create_dir_all(&self.0).map_err(|error| Error::io(failed("making", &self.0), error))?;
        let path = self.0.join(format!("{name}{SUFFIX}"));
        let process = rustix::process::getpid().as_raw_nonzero();
        let aside = self.0.join(format!(".{name}.{process}"));
        let write = |aside: &Path| -> std::io::Result<()> {
            let mut file = std::fs::File::create(aside)?;
            file.write_all(claim(memory).as_bytes())
        };
        write(&aside).map_err(|error| Error::io(failed("writing", &aside), error))?;
        std::fs::rename(&aside, &path).map_err(|error| Error::io(failed("registering", &path), error))?;
        Ok(path)
    }

    /// Whether a registration is still the one of this memory, in this process.
    pub(crate) fn says(path: &Path, memory: &OwnedFd) -> bool {
        std::fs::read_to_string(path).is_ok_and(|text| text == claim(memory))
    }

    /// What is registered, by name. Files that are no registrations are passed over.
    ///
    /// # Errors
    /// [`Error::Io`]; a folder that does not exist is an empty one.
    pub fn list(&self) -> Result<Vec<Registration>> {
        let entries = match std::fs::read_dir(&self.0) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::io(format!("listing {}", self.0.display()), error)),
        };
        let mut found: Vec<Registration> = entries
            .take(REGISTRATIONS_MAX)
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter_map(|file| self.read(file.strip_suffix(SUFFIX)?))
            .collect();
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    fn read(&self, name: &str) -> Option<Registration> {
        check_name("sensor box", name, BOX_NAME_BYTES).ok()?;
        let path = self.0.join(format!("{name}{SUFFIX}"));
        let status = std::fs::symlink_metadata(&path).ok()?;
        if !status.is_file() || status.len() > REGISTRATION_BYTES_MAX {
            return None;
        }
        let text = std::fs::read_to_string(&path).ok()?;
        let (process, descriptor) = text.trim_end().split_once(' ')?;
        let (process, descriptor) = (process.parse().ok()?, descriptor.parse().ok()?);
        Some(Registration { name: name.to_string(), process, descriptor, user: status.uid() })
    }

    /// Finds a box by name and maps it for reading.
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::NotABox`], [`Error::Io`] when its process is gone.
    #[doc(alias = "sbdiscover")]
    pub fn discover(&self, name: &str) -> Result<View> {
        check_name("sensor box", name, BOX_NAME_BYTES)?;
        let unknown = || Error::Unknown { name: name.to_string(), folder: self.0.display().to_string() };
        self.read(name).ok_or_else(unknown)?.open()
    }

    /// Finds a box by name that this user has exported, and no other.
    ///
    /// # Errors
    /// As [`Directory::discover`].
    pub fn discover_own(&self, name: &str) -> Result<View> {
        check_name("sensor box", name, BOX_NAME_BYTES)?;
        let own = rustix::process::geteuid().as_raw();
        let unknown = || Error::Unknown { name: name.to_string(), folder: self.0.display().to_string() };
        self.read(name).filter(|registration| registration.user == own).ok_or_else(unknown)?.open()
    }
}

impl Registration {
    /// Maps the box for reading.
    ///
    /// # Errors
    /// [`Error::NotABox`], [`Error::Io`] when its process is gone.
    pub fn open(&self) -> Result<View> {
        let path = format!("/proc/{}/fd/{}", self.process, self.descriptor);
        let failed =
            |error: rustix::io::Errno| Error::io(format!("the memory of box '{}'", self.name), error);
        // What is there may be a pipe or a device, which must not be opened: look first.
        let place =
            rustix::fs::openat(CWD, &path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
        let status = rustix::fs::fstat(&place).map_err(failed)?;
        if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
            return Err(Error::NotABox {
                name: self.name.clone(),
                reason: format!("descriptor {} of process {} is no memory", self.descriptor, self.process),
            });
        }
        let same = format!("/proc/self/fd/{}", place.as_raw_fd());
        let memory = rustix::fs::openat(CWD, &same, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(failed)?;
        Ok(View::of_process(&self.name, memory)?.with_target(self.target()))
    }

    /// The memory of the process that registered the box, where references lead. A registration may name any process: this
    /// one must be of the user whose file it is, or a box could show its maker what other users keep in memory. What is
    /// opened stays that process's: the memory of whatever follows it, by exec or under its number, is another.
    fn target(&self) -> Option<OwnedFd> {
        let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let process =
            rustix::fs::openat(CWD, format!("/proc/{}", self.process), folder, Mode::empty()).ok()?;
        let is_theirs = || rustix::fs::fstat(&process).is_ok_and(|status| status.st_uid == self.user);
        let memory = is_theirs()
            .then(|| rustix::fs::openat(&process, "mem", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()))?;
        memory.ok().filter(|_| is_theirs())
    }
}
