//! Bytes that can be read at any place: the archive's file, or what comes out of a compressed stream.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// Bytes at places.
pub(crate) trait Source: std::fmt::Debug + Send + Sync + 'static {
    /// Fills `to`; fewer bytes only at the end.
    fn read_at(&self, offset: u64, to: &mut [u8]) -> std::io::Result<usize>;
}

/// What is wrong with bytes that were read, as an error of input.
pub(crate) fn damaged(reason: impl Into<String>) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, reason.into())
}

/// Reads exactly `to`, or says that the archive ends too early.
pub(crate) fn read_all(from: &dyn Source, offset: u64, to: &mut [u8]) -> std::io::Result<()> {
    if from.read_at(offset, to)? < to.len() {
        return Err(damaged(format!("it ends in the middle, before byte {}", offset + to.len() as u64)));
    }
    Ok(())
}

/// The file of an archive, as it was when it was mounted.
#[derive(Debug)]
pub(crate) struct ArchiveFile {
    file: File,
    /// Size and time of the last change: an index of other contents would lead to wrong bytes.
    version: Identity,
}

/// Size and time of the last change of an archive's file.
pub(crate) type Identity = (u64, i64, i64);

fn version(file: &File) -> std::io::Result<Identity> {
    let found = file.metadata()?;
    Ok((found.size(), found.mtime(), found.mtime_nsec()))
}

impl ArchiveFile {
    pub(crate) fn open(path: &Path) -> std::io::Result<ArchiveFile> {
        let file = File::open(path)?;
        if !file.metadata()?.is_file() {
            return Err(damaged("it is no regular file"));
        }
        Ok(ArchiveFile { version: version(&file)?, file })
    }

    pub(crate) fn identity(&self) -> Identity {
        self.version
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.version.0
    }
}

impl Source for ArchiveFile {
    fn read_at(&self, offset: u64, to: &mut [u8]) -> std::io::Result<usize> {
        let mut done = 0;
        while done < to.len() {
            match self.file.read_at(&mut to[done..], offset.saturating_add(done as u64)) {
                Ok(0) => break,
                Ok(bytes) => done += bytes,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if version(&self.file)? != self.version {
            return Err(std::io::Error::from_raw_os_error(libc::ESTALE));
        }
        Ok(done)
    }
}

#[cfg(test)]
impl Source for Vec<u8> {
    fn read_at(&self, offset: u64, to: &mut [u8]) -> std::io::Result<usize> {
        let from = usize::try_from(offset).ok().and_then(|offset| self.get(offset..)).unwrap_or_default();
        let bytes = from.len().min(to.len());
        to[..bytes].copy_from_slice(&from[..bytes]);
        Ok(bytes)
    }
}
