//! What a protocol may ask of a disk: one flat directory of files.

use std::any::Any;
use std::io;
use std::sync::Arc;

/// An open directory. Names are plain file names, without a path separator.
///
/// Creating, renaming and removing take effect at once for readers and become durable with [`Disk::sync_dir`].
pub trait Disk: Send + Sync {
    /// Makes an empty file. Fails with `AlreadyExists` when the name is taken.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens a file to read and write. Fails with `NotFound` when there is none.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// Gives a file another name, replacing a file that had it. Atomic: readers see the one or the other.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a name.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// The names in the directory, sorted.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Makes every name change so far durable.
    fn sync_dir(&self) -> io::Result<()>;
    /// Takes the exclusive lock of the file `name` (made when missing) and writes `holder` into it.
    /// The lock goes with the returned value or with the process, whichever ends first.
    fn lock(&self, name: &str, holder: &str) -> io::Result<LockOutcome>;
    /// What to call this directory in a message, such as its path.
    fn describe(&self) -> String;
}

/// An open file. Offsets and lengths are in bytes.
pub trait DiskFile: Send + Sync {
    /// Writes all of `bytes` at `offset`; a hole before it reads as zeros. After an error any part may be written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Reads up to `bytes.len()` bytes at `offset`; fewer only at the end of the file.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize>;
    /// Makes the bytes and the length durable. After an error nothing written since the last success may be
    /// taken as durable, and a later success does not repair that: write the bytes again.
    fn sync_data(&self) -> io::Result<()>;
    /// The length.
    fn len(&self) -> io::Result<u64>;
    /// Whether the length is 0.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// A held lock; dropping it releases it.
pub struct DiskLock {
    _held: Box<dyn Any + Send + Sync>,
}

impl DiskLock {
    /// A lock that is released when `held` is dropped.
    pub fn new(held: Box<dyn Any + Send + Sync>) -> DiskLock {
        DiskLock { _held: held }
    }
}

/// The answer to [`Disk::lock`].
pub enum LockOutcome {
    /// The caller has the lock now.
    Held(DiskLock),
    /// Somebody else has it.
    Busy {
        /// What the holder wrote of itself; may be empty when it has only just taken the lock.
        holder: String,
    },
}
