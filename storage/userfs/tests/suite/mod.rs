//! The same tests for every backend, through the kernel.

mod accelerated;
mod archives;
mod archives_beside;
mod beneath;
mod beside;
mod crash_points;
mod crashes;
mod creation;
mod descriptors;
mod doctor;
mod every;
mod files;
mod kernel;
mod liars;
mod mounts;
mod named;
mod odd;
mod opened;
mod passthrough;
mod peers;
mod posix;
mod privileges;
mod programs;
mod remote;
mod stash;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use weir_userfs::backend::Backend;
use weir_userfs::dir::Directory;
use weir_userfs::mem::{Limits, Memory};
use weir_userfs::mount::{Mount, Options};

/// A mounted backend below a folder of its own; everything is gone after the test.
pub struct Mounted {
    mount: Option<Mount>,
    folder: tempfile::TempDir,
    /// Name of the backend, for messages.
    pub name: &'static str,
}

impl Mounted {
    /// Where files are.
    pub fn root(&self) -> PathBuf {
        self.folder.path().join("mount")
    }

    fn new(name: &'static str, backend: impl FnOnce(&Path) -> Arc<dyn Backend>) -> Mounted {
        Mounted::with(name, Options::default(), backend)
    }

    fn with(
        name: &'static str,
        options: Options,
        backend: impl FnOnce(&Path) -> Arc<dyn Backend>,
    ) -> Mounted {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for part in ["mount", "under"] {
            std::fs::create_dir(folder.path().join(part)).expect("a folder");
        }
        let backend = backend(&folder.path().join("under"));
        let options =
            Options { source: format!("test-{name}"), others: true, devices: true, set_ids: true, ..options };
        let mount = Mount::new(backend, &folder.path().join("mount"), &options).expect("it mounts");
        Mounted { mount: Some(mount), folder, name }
    }

    /// Any backend that is there already.
    pub fn shared(name: &'static str, backend: Arc<dyn Backend>) -> Mounted {
        Mounted::new(name, |_| backend)
    }

    /// Any backend.
    pub fn of(name: &'static str, backend: impl Backend) -> Mounted {
        Mounted::new(name, |_| Arc::new(backend))
    }

    /// Limits of the memory backend.
    pub fn memory(limits: Limits) -> Mounted {
        Mounted::new("mem", |_| Arc::new(Memory::new(limits, 0, 0).expect("memory")))
    }

    /// The same, and nothing may be written.
    pub fn read_only_memory(limits: Limits) -> Mounted {
        let options = Options { read_only: true, ..Options::default() };
        Mounted::with("mem --read-only", options, |_| Arc::new(Memory::new(limits, 0, 0).expect("memory")))
    }

    /// A local directory.
    pub fn directory() -> Mounted {
        Mounted::new("dir", |under| Arc::new(Directory::open(under).expect("a folder")))
    }

    /// The same, read and written by the daemon.
    pub fn cached_directory() -> Mounted {
        let options = Options { cached: true, ..Options::default() };
        Mounted::with("dir --cached", options, |under| Arc::new(Directory::open(under).expect("a folder")))
    }

    /// Where the files of a directory really are.
    pub fn under(&self) -> PathBuf {
        self.folder.path().join("under")
    }

    /// The mount itself.
    pub fn mount(&mut self) -> &mut Mount {
        self.mount.as_mut().expect("mounted until dropped")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.mount = None;
    }
}

/// Says why this machine cannot run a test that mounts.
pub fn cannot_mount() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root to mount");
    }
    if !Path::new("/dev/fuse").exists() {
        return Some("there is no /dev/fuse");
    }
    None
}

/// Runs `test` on every backend.
pub fn on_all(name: &str, test: impl Fn(&Mounted)) {
    if let Some(reason) = cannot_mount() {
        println!("NOT RUN {name}: {reason}");
        return;
    }
    for mounted in [Mounted::directory(), Mounted::cached_directory(), Mounted::memory(Limits::default())] {
        println!("{name} on {}", mounted.name);
        test(&mounted);
    }
}
