//! Where boxes are found by name: a folder with one small file a box, which says the process and the descriptor that hold
//! its memory.
//!
//! The file is a claim, not a proof: a monitor opens the memory through `/proc/PROCESS/fd/DESCRIPTOR` and takes it only
//! if it is sealed, has the layout, and was made by the user whose file it is; and that user's must be the process, too, unless it is
//! root that vouches for it. So the publisher is whom the kernel says, and no box can speak for another user's process. Boxes of
//! different users may have the same name, so a registration also says whose file it is, and a caller who cares compares.
//!
//! The folder is everybody's, so nothing in it is opened that may keep a reader waiting, or followed, and what is written there is written
//! under a name that nobody can know before, into a file that is new.

use crate::error::{Error, Result};
use crate::layout::{BOX_NAME_BYTES, check_name};
use crate::view::View;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where boxes are registered unless another folder is said.
pub const FOLDER: &str = "/run/weir/sensors";
/// How the names of registrations end.
const SUFFIX: &str = ".box";
/// Longest registration that is read, bytes.
const REGISTRATION_BYTES_MAX: u64 = 64;
/// Names aside that are tried: more than one are taken only if somebody can foresee random numbers.
const TRIES_MAX: usize = 8;
/// How the kernel names memory that is no file of a file system: one of those may keep whoever looks at it waiting.
const MEMORY: &str = "/memfd:";
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
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(&self.0, flags, Mode::empty())
            .map_err(|error| Error::io(failed("opening", &self.0), error))?;
        let (file, path) = (format!("{name}{SUFFIX}"), self.0.join(format!("{name}{SUFFIX}")));
        let aside = write_aside(&folder, name, claim(memory).as_bytes())
            .map_err(|error| Error::io(failed("writing into", &self.0), error))?;
        rustix::fs::renameat(&folder, &aside, &folder, &file).map_err(|error| {
            let _ = rustix::fs::unlinkat(&folder, &aside, AtFlags::empty());
            Error::io(failed("registering", &path), error)
        })?;
        Ok(path)
    }

    /// Whether a registration is still the one of this memory, in this process.
    pub(crate) fn says(path: &Path, memory: &OwnedFd) -> bool {
        read_small(path).is_some_and(|(text, _)| text == claim(memory))
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
        let (text, user) = read_small(&path)?;
        let (process, descriptor) = text.trim_end().split_once(' ')?;
        let (process, descriptor) = (process.parse().ok()?, descriptor.parse().ok()?);
        Some(Registration { name: name.to_string(), process, descriptor, user })
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

/// Writes a new file of a name that nobody can know before; returns the name. Whatever is there already is neither followed nor changed.
fn write_aside(folder: &OwnedFd, name: &str, text: &[u8]) -> std::io::Result<String> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut source = std::fs::File::open("/dev/urandom")?;
    let mut tries = 0;
    loop {
        let mut random = [0; 16];
        source.read_exact(&mut random)?;
        let aside = format!(".{name}.{:032x}", u128::from_ne_bytes(random));
        match rustix::fs::openat(folder, &aside, flags, Mode::from_raw_mode(0o644)) {
            Ok(file) => {
                let mut file = std::fs::File::from(file);
                return file.write_all(text).map(|()| aside);
            }
            Err(rustix::io::Errno::EXIST) if tries < TRIES_MAX => tries += 1,
            Err(error) => return Err(error.into()),
        }
    }
}

/// What is in a small file, and whose it is. Nothing that may keep a reader waiting is read.
fn read_small(path: &Path) -> Option<(String, u32)> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = std::fs::File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    let status = file.metadata().ok()?;
    if !status.is_file() || status.len() > REGISTRATION_BYTES_MAX {
        return None;
    }
    let mut text = String::new();
    file.take(REGISTRATION_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some((text, status.uid()))
}

impl Registration {
    /// Maps the box for reading.
    ///
    /// # Errors
    /// [`Error::NotABox`], [`Error::Io`] when its process is gone.
    pub fn open(&self) -> Result<View> {
        let failed =
            |error: rustix::io::Errno| Error::io(format!("the memory of box '{}'", self.name), error);
        let wrong = |reason: String| Error::NotABox { name: self.name.clone(), reason };
        let process = self.process()?;
        // What is there may be a pipe, a device, or a file of a file system that never answers: its name is read first, which asks nobody.
        let descriptor = format!("fd/{}", self.descriptor);
        let is_memory = |name: rustix::io::Result<std::ffi::CString>| {
            name.is_ok_and(|name| name.as_bytes().starts_with(MEMORY.as_bytes()))
        };
        let no_memory =
            || wrong(format!("descriptor {} of process {} is no memory", self.descriptor, self.process));
        if !is_memory(rustix::fs::readlinkat(&process, &descriptor, Vec::new())) {
            return Err(no_memory());
        }
        let place = rustix::fs::openat(&process, &descriptor, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .map_err(failed)?;
        let same = format!("/proc/self/fd/{}", place.as_raw_fd());
        if !is_memory(rustix::fs::readlinkat(CWD, &same, Vec::new())) {
            return Err(no_memory());
        }
        let status = rustix::fs::fstat(&place).map_err(failed)?;
        if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
            return Err(no_memory());
        }
        if status.st_uid != self.user {
            return Err(wrong(format!(
                "its memory was made by user {}, and its registration by user {}: both must be the publisher's",
                status.st_uid, self.user
            )));
        }
        let memory = rustix::fs::openat(CWD, &same, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(failed)?;
        // The process is looked at again: another may have had its number, and its descriptor, meanwhile.
        self.is_theirs(&process).then_some(()).ok_or_else(|| self.not_theirs())?;
        let view = View::of_process(&self.name, memory)?.of_publisher(self.process);
        Ok(view.with_target(self.target(&process)))
    }

    fn not_theirs(&self) -> Error {
        let reason = format!(
            "process {} is not of user {}, whose registration it is: nobody can publish for another",
            self.process, self.user
        );
        Error::NotABox { name: self.name.clone(), reason }
    }

    /// Whether a process, by its folder, is one that this registration may speak for: one of its own user's, or any if it is root's.
    fn is_theirs(&self, process: &OwnedFd) -> bool {
        rustix::fs::fstat(process).is_ok_and(|status| self.user == 0 || status.st_uid == self.user)
    }

    /// The folder of its process. What is opened there stays that process's, whatever follows under its number.
    fn process(&self) -> Result<OwnedFd> {
        let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let process = rustix::fs::openat(CWD, format!("/proc/{}", self.process), folder, Mode::empty())
            .map_err(|error| Error::io(format!("the process of box '{}'", self.name), error))?;
        if self.is_theirs(&process) { Ok(process) } else { Err(self.not_theirs()) }
    }

    /// The memory of the process that registered the box, where references lead: of one of the user whose file it is, or a box could show
    /// its maker what other users keep in memory.
    fn target(&self, process: &OwnedFd) -> Option<OwnedFd> {
        let is_same = || rustix::fs::fstat(process).is_ok_and(|status| status.st_uid == self.user);
        let memory = is_same()
            .then(|| rustix::fs::openat(process, "mem", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()))?;
        memory.ok().filter(|_| is_same())
    }
}
