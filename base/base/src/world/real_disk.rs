//! A directory of the machine's file system. What is made in it is its owner's alone, whatever the umask is: logs hold what
//! clients wrote, and audits who wrote it.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::disk::{Disk, DiskFile, DiskLock, LockOutcome};
use super::spare;

/// More than this of a lock file is not a holder's name.
const HOLDER_BYTES_MAX: u64 = 256;

/// A directory of the file system.
#[derive(Debug)]
pub struct RealDisk {
    path: PathBuf,
    dir: File,
}

impl RealDisk {
    /// Opens the directory `path`, making it and its parents when missing; a directory made here is durable on
    /// return, and its owner's alone.
    pub fn open(path: &Path) -> io::Result<RealDisk> {
        if !path.is_dir() {
            DirBuilder::new().recursive(true).mode(0o700).create(path)?;
            for ancestor in path.ancestors().skip(1).filter(|p| !p.as_os_str().is_empty()) {
                File::open(ancestor)?.sync_all()?;
            }
        }
        spare::keep();
        Ok(RealDisk { path: path.to_path_buf(), dir: spare::opening(|| File::open(path))? })
    }

    fn path_of(&self, name: &str) -> io::Result<PathBuf> {
        if name.is_empty() || name == "." || name == ".." || name.contains('/') {
            let text = format!("{name:?} is not a plain file name");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Ok(self.path.join(name))
    }
}

impl Disk for RealDisk {
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.path_of(name)?;
        let open = || OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
        let file = spare::opening(open)?;
        Ok(Arc::new(RealFile { file }))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.path_of(name)?;
        let file = spare::opening(|| OpenOptions::new().read(true).write(true).open(&path))?;
        Ok(Arc::new(RealFile { file }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path_of(from)?, self.path_of(to)?)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path_of(name)?)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in spare::opening(|| fs::read_dir(&self.path))? {
            // A name that is not UTF-8 was not made through this trait.
            names.extend(entry?.file_name().into_string().ok());
        }
        names.sort();
        Ok(names)
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.dir.sync_all()
    }

    fn lock(&self, name: &str, holder: &str) -> io::Result<LockOutcome> {
        let path = self.path_of(name)?;
        let open =
            || OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let mut file = spare::opening(open)?;
        match file.try_lock() {
            Ok(()) => {
                file.set_len(0)?;
                file.rewind()?;
                file.write_all(holder.as_bytes())?;
                Ok(LockOutcome::Held(DiskLock::new(Box::new(file))))
            }
            Err(TryLockError::WouldBlock) => {
                let mut holder = Vec::new();
                file.take(HOLDER_BYTES_MAX).read_to_end(&mut holder)?;
                Ok(LockOutcome::Busy { holder: String::from_utf8_lossy(&holder).into_owned() })
            }
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn describe(&self) -> String {
        self.path.display().to_string()
    }
}

struct RealFile {
    file: File,
}

impl DiskFile for RealFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < bytes.len() {
            match self.file.read_at(&mut bytes[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }
}
