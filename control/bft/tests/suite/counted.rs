//! A disk that counts what is written to it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_base::world::{Disk, DiskFile, LockOutcome};

/// A disk whose written bytes are counted, with those of whoever shares the count.
pub struct Counted {
    pub disk: Arc<dyn Disk>,
    pub written: Arc<AtomicU64>,
}

struct CountedFile {
    file: Arc<dyn DiskFile>,
    written: Arc<AtomicU64>,
}

impl Counted {
    fn file(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(CountedFile { file, written: Arc::clone(&self.written) })
    }
}

impl DiskFile for CountedFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.file.write_at(offset, bytes)
    }
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(offset, bytes)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
}

impl Disk for Counted {
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.file(self.disk.create(name)?))
    }
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.file(self.disk.open(name)?))
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }
    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }
    fn sync_dir(&self) -> io::Result<()> {
        self.disk.sync_dir()
    }
    fn lock(&self, name: &str, holder: &str) -> io::Result<LockOutcome> {
        self.disk.lock(name, holder)
    }
    fn describe(&self) -> String {
        self.disk.describe()
    }
}
