//! Snapshots of the application's state beside the log.
//!
//! Invariants
//! - A snapshot has its name only when it is whole and durable: it is written to a temporary file, synced, renamed, and
//!   the directory is synced.
//! - The newest two are kept, and the log from the OLDER one on. So when the newest rots, the older one and the
//!   log still give the whole state.
//! - A snapshot is checked from end to end before any of it is given out, and again while it is read.

mod format;
#[cfg(test)]
mod tests;

use std::io::{self, Read};
use std::sync::Arc;

use weir_base::world::{Disk, DiskFile};

pub use format::{CHUNK_BYTES_MAX, Decoder, EncodeError, SNAPSHOT_VERSION, SnapshotInfo, encode};

use crate::error::Error;
use crate::position::Position;

/// How many good snapshots are kept.
pub const SNAPSHOTS_KEPT: usize = 2;

const TMP: &str = "snapshot.tmp";
const READ_BYTES: usize = 64 * 1024;

/// A snapshot's file.
pub fn file_name(index: u64) -> String {
    format!("snap-{index:016x}.snap")
}

fn index_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("snap-")?.strip_suffix(".snap")?;
    let index = u64::from_str_radix(digits, 16).ok()?;
    (file_name(index) == name).then_some(index)
}

/// A snapshot that was found damaged and is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Its file.
    pub file: String,
    /// What is wrong with it.
    pub what: String,
}

/// Reads the state out of a snapshot.
pub type SnapshotReader = Decoder<FileReader>;

/// How many bytes of the snapshot file `name` are whole, and whether that is all of it; a file that is not even whole in
/// its header has none.
pub fn whole_prefix(disk: &dyn Disk, name: &str) -> io::Result<(u64, bool)> {
    match Decoder::new(FileReader::new(disk.open(name)?)) {
        Ok(decoder) => decoder.whole_prefix(),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok((0, false)),
        Err(error) => Err(error),
    }
}

/// Reads a file from its beginning.
pub struct FileReader {
    file: Arc<dyn DiskFile>,
    offset: u64,
    buffer: Vec<u8>,
    given: usize,
}

impl FileReader {
    fn new(file: Arc<dyn DiskFile>) -> FileReader {
        FileReader { file, offset: 0, buffer: Vec::new(), given: 0 }
    }
}

impl Read for FileReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.given == self.buffer.len() {
            self.buffer.resize(READ_BYTES, 0);
            let count = self.file.read_at(self.offset, &mut self.buffer)?;
            self.buffer.truncate(count);
            self.offset += count as u64;
            self.given = 0;
        }
        let left = &self.buffer[self.given..];
        let count = left.len().min(out.len());
        out[..count].copy_from_slice(&left[..count]);
        self.given += count;
        Ok(count)
    }
}

/// The snapshots in a directory.
pub struct SnapshotStore {
    disk: Arc<dyn Disk>,
    dir: String,
    good: Vec<SnapshotInfo>,
    refused: Vec<Refused>,
}

impl SnapshotStore {
    /// Finds and checks the snapshots in `disk`. A damaged one is left where it is and reported.
    pub fn open(disk: Arc<dyn Disk>) -> Result<SnapshotStore, Error> {
        let dir = disk.describe();
        match disk.remove(TMP) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::io("removing", TMP, &dir, error));
            }
            _ => {}
        }
        let names = disk.list().map_err(|error| Error::io("listing", "files", &dir, error))?;
        let mut store = SnapshotStore { disk, dir, good: Vec::new(), refused: Vec::new() };
        for name in names {
            let Some(index) = index_of(&name) else { continue };
            match store.decoder(&name).and_then(Decoder::verify) {
                Ok(info) if info.at.index == index => store.good.push(info),
                Ok(info) => store.refuse(name, format!("its header says index {}", info.at.index)),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    store.refuse(name, error.to_string())
                }
                Err(error) => return Err(Error::io("reading", &name, &store.dir, error)),
            }
        }
        store.good.sort_by_key(|info| info.at);
        Ok(store)
    }

    fn refuse(&mut self, file: String, what: String) {
        tracing::warn!(dir = self.dir, file, what, "a snapshot is damaged and is not used");
        self.refused.push(Refused { file, what });
    }

    fn decoder(&self, name: &str) -> io::Result<SnapshotReader> {
        Decoder::new(FileReader::new(self.disk.open(name)?))
    }

    /// The newest good snapshot.
    pub fn newest(&self) -> Option<SnapshotInfo> {
        self.good.last().copied()
    }

    /// Damaged snapshots found at opening.
    pub fn refused(&self) -> &[Refused] {
        &self.refused
    }

    /// The index at and below which no log is needed, when there is one.
    pub fn log_needed_above(&self) -> Option<u64> {
        let older = self.good.len().checked_sub(SNAPSHOTS_KEPT)?;
        Some(self.good[older].at.index)
    }

    /// Reads the newest good snapshot.
    pub fn read_newest(&self) -> Result<Option<SnapshotReader>, Error> {
        let Some(info) = self.newest() else { return Ok(None) };
        let name = file_name(info.at.index);
        self.decoder(&name).map(Some).map_err(|error| Error::io("reading", &name, &self.dir, error))
    }

    /// Stores the state after `at`, which must be above the newest good snapshot. Durable on return; then the log is
    /// needed only above [`SnapshotStore::log_needed_above`].
    pub fn save(&mut self, at: Position, state: &mut dyn Read) -> Result<SnapshotInfo, Error> {
        let newest = self.newest().map_or(0, |info| info.at.index);
        if at.index <= newest {
            let right = format!("a snapshot must be of an index above {newest}");
            return Err(Error::Index { index: at.index, right });
        }
        let name = file_name(at.index);
        let saved = self.write(at, state, &name);
        if saved.is_err() {
            // Gives the space back and leaves no doubtful name; the failure to tell is the first one.
            let _freed = (self.disk.remove(TMP), self.disk.remove(&name));
        }
        let info = saved?;
        self.good.push(info);
        self.drop_old(&name)?;
        Ok(info)
    }

    /// Takes the snapshot file `name`, which came from another replica, as the only one: checks it from end to end, gives
    /// it its name and removes all others. Durable on return.
    pub fn adopt(&mut self, name: &str) -> Result<SnapshotInfo, Error> {
        let failed = |action, error| Error::io(action, name, &self.dir, error);
        let file = self.disk.open(name).map_err(|error| failed("opening", error))?;
        file.sync_data().map_err(|error| failed("syncing", error))?;
        let info = self.decoder(name).and_then(Decoder::verify).map_err(|error| failed("checking", error))?;
        let named = file_name(info.at.index);
        self.disk.rename(name, &named).map_err(|error| failed("renaming", error))?;
        self.disk.sync_dir().map_err(|error| failed("syncing the name of", error))?;
        let mut old: Vec<String> = self.good.drain(..).map(|info| file_name(info.at.index)).collect();
        old.extend(self.refused.drain(..).map(|refused| refused.file));
        self.good.push(info);
        old.iter().filter(|name| **name != named).try_for_each(|name| self.remove(name))?;
        Ok(info)
    }

    /// The good snapshots, oldest first.
    pub fn good(&self) -> &[SnapshotInfo] {
        &self.good
    }

    /// Reads the good snapshot of `index`.
    pub fn read(&self, index: u64) -> Result<SnapshotReader, Error> {
        let name = file_name(index);
        self.decoder(&name).map_err(|error| Error::io("reading", &name, &self.dir, error))
    }

    fn remove(&self, name: &str) -> Result<(), Error> {
        match self.disk.remove(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::io("removing", name, &self.dir, error))
            }
            _ => Ok(()),
        }
    }

    fn write(&self, at: Position, state: &mut dyn Read, name: &str) -> Result<SnapshotInfo, Error> {
        let io = |action: &'static str| {
            move |error: io::Error| match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    Error::DiskFull { dir: self.dir.clone(), file: name.to_owned() }
                }
                _ => Error::io(action, name, &self.dir, error),
            }
        };
        match self.disk.remove(TMP) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io("removing")(error)),
            _ => {}
        }
        let file = self.disk.create(TMP).map_err(io("creating"))?;
        let mut offset = 0;
        let output = |bytes: &[u8]| {
            file.write_at(offset, bytes)?;
            offset += bytes.len() as u64;
            Ok(())
        };
        let info = encode(at, state, output).map_err(|error| match error {
            EncodeError::Source(source) => Error::SnapshotSource { source: Arc::new(source) },
            EncodeError::Output(error) => io("writing")(error),
        })?;
        file.sync_data().map_err(io("syncing"))?;
        self.disk.rename(TMP, name).map_err(io("renaming"))?;
        self.disk.sync_dir().map_err(io("syncing the name of"))?;
        Ok(info)
    }

    /// Removes damaged snapshots and all good ones but the newest.
    fn drop_old(&mut self, saved: &str) -> Result<(), Error> {
        let old = self.good.len().saturating_sub(SNAPSHOTS_KEPT);
        let mut names: Vec<String> = self.good.drain(..old).map(|info| file_name(info.at.index)).collect();
        names.extend(self.refused.drain(..).map(|refused| refused.file).filter(|file| file != saved));
        names.iter().try_for_each(|name| self.remove(name))
    }
}
