//! A journal of records in one file: what an actuator keeps so that it restarts from its own
//! checkpoint, without any controller (row A9).
//!
//! It protects against the end of the process at any byte (kill -9). It does not sync: after a
//! loss of power the valid prefix is used, and reconciliation with the controller repairs the rest.
//! The durable log of the control plane is another thing, in `weir-order`.
//!
//! A process that takes over from another follows the other's journal ([`Journal::follow`]) while that one still writes
//! it, and owns it ([`Journal::own`]) when that one has stopped (row A30).
//!
//! Record: `u32` length, `u32` CRC-32C of the body, body; little-endian. A record that is cut or
//! does not match its CRC ends the journal: it and everything behind it are dropped and counted.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Largest record, bytes.
pub const RECORD_BYTES_MAX: usize = crate::limits::FRAME_BYTES_MAX;
const HEADER_BYTES: usize = 8;
const MAGIC: &[u8; 8] = b"weirjnl1";

/// An open journal. Appends go to the end; [`Journal::rewrite`] compacts.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    /// Bytes in the file now.
    pub length_bytes: u64,
    /// Bytes that were cut off at open because the last record was torn or damaged.
    pub cut_bytes: u64,
}

impl Journal {
    /// Opens or creates the journal and returns its records in order.
    ///
    /// # Errors
    /// I/O errors, and `InvalidData` when the file is not a journal at all.
    pub fn open(path: &Path) -> io::Result<(Journal, Vec<Vec<u8>>)> {
        let mut options = OpenOptions::new();
        let mut file = options.read(true).append(true).create(true).mode(0o600).open(path)?;
        let mode = file.metadata()?.permissions().mode();
        if mode & 0o077 != 0 {
            // What a switch keeps is nobody else's; another's file cannot be closed, and need not be.
            let _closed = file.set_permissions(Permissions::from_mode(mode & 0o700));
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        if bytes.len() < MAGIC.len() && MAGIC.starts_with(&bytes) {
            file.set_len(0)?;
            file.write_all(MAGIC)?;
            bytes = MAGIC.to_vec();
        }
        if !bytes.starts_with(MAGIC) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{} is not a journal: move it away to start empty", path.display()),
            ));
        }
        let (records, valid) = scan(&bytes[MAGIC.len()..]);
        let length = (MAGIC.len() + valid) as u64;
        let cut_bytes = bytes.len() as u64 - length;
        if cut_bytes > 0 {
            file.set_len(length)?;
        }
        let records = records.into_iter().map(<[u8]>::to_vec).collect();
        Ok((Journal { path: path.to_path_buf(), file, length_bytes: length, cut_bytes }, records))
    }

    /// Reads a journal that another process writes, and changes nothing of it. Appending fails until [`Journal::own`].
    ///
    /// # Errors
    /// I/O errors, and `InvalidData` when the file is not a journal at all.
    pub fn follow(path: &Path) -> io::Result<(Journal, Vec<Vec<u8>>)> {
        let mut file = File::open(path)?;
        let mut magic = [0; MAGIC.len()];
        if file.read_exact(&mut magic).is_err() || magic != *MAGIC {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{} is not a journal", path.display()),
            ));
        }
        let length_bytes = MAGIC.len() as u64;
        let mut journal = Journal { path: path.to_path_buf(), file, length_bytes, cut_bytes: 0 };
        let records = journal.more()?;
        Ok((journal, records))
    }

    /// The records that were appended since the last call, of a journal that is followed. One that is not whole yet comes
    /// with a later call.
    ///
    /// # Errors
    /// I/O errors; `InvalidData` when the file was replaced, so that all of it is to be read anew.
    pub fn more(&mut self) -> io::Result<Vec<Vec<u8>>> {
        let (ours, there) = (self.file.metadata()?, std::fs::metadata(&self.path)?);
        if (ours.dev(), ours.ino()) != (there.dev(), there.ino()) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{} was compacted meanwhile", self.path.display()),
            ));
        }
        let mut bytes = Vec::new();
        self.file.seek(SeekFrom::Start(self.length_bytes))?;
        self.file.read_to_end(&mut bytes)?;
        let (records, valid) = scan(&bytes);
        let records = records.into_iter().map(<[u8]>::to_vec).collect();
        self.length_bytes += valid as u64;
        Ok(records)
    }

    /// Follows the file that has taken the place of the one that was followed; returns its records.
    ///
    /// # Errors
    /// As of [`Journal::follow`].
    pub fn follow_anew(&mut self) -> io::Result<Vec<Vec<u8>>> {
        let (journal, records) = Journal::follow(&self.path)?;
        *self = journal;
        Ok(records)
    }

    /// Makes a followed journal one's own, when nobody else writes it any more: what lies behind the last record that was
    /// read is cut off.
    ///
    /// # Errors
    /// I/O errors.
    pub fn own(&mut self) -> io::Result<()> {
        let file = OpenOptions::new().read(true).append(true).open(&self.path)?;
        self.cut_bytes = file.metadata()?.len().saturating_sub(self.length_bytes);
        if self.cut_bytes > 0 {
            file.set_len(self.length_bytes)?;
        }
        self.file = file;
        Ok(())
    }

    /// Appends records with one write, so that a batch is in the page cache whole or cut at one place.
    ///
    /// # Errors
    /// I/O errors; `InvalidInput` for a record over [`RECORD_BYTES_MAX`]. After an error the file
    /// may end in a torn record, which the next open cuts, so the caller must reopen or give up.
    pub fn append(&mut self, records: &[Vec<u8>]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(records.iter().map(|r| r.len() + HEADER_BYTES).sum());
        for record in records {
            put(&mut bytes, record)?;
        }
        self.file.write_all(&bytes)?;
        self.length_bytes += bytes.len() as u64;
        Ok(())
    }

    /// Waits until what was appended is on the disk: for those to whom a loss of power matters too.
    ///
    /// # Errors
    /// I/O errors.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Replaces the whole content atomically (write aside, then rename).
    ///
    /// # Errors
    /// I/O errors; the old content stays in force then.
    pub fn rewrite<'a>(&mut self, records: impl Iterator<Item = &'a [u8]>) -> io::Result<()> {
        let mut bytes = MAGIC.to_vec();
        for record in records {
            put(&mut bytes, record)?;
        }
        crate::file::replace(&self.path, &bytes, 0o600)?;
        self.file = OpenOptions::new().read(true).append(true).open(&self.path)?;
        self.length_bytes = bytes.len() as u64;
        Ok(())
    }
}

fn put(bytes: &mut Vec<u8>, record: &[u8]) -> io::Result<()> {
    if record.len() > RECORD_BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("a record of {} bytes is over the limit of {RECORD_BYTES_MAX}", record.len()),
        ));
    }
    bytes.extend_from_slice(&(record.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&crc32c::crc32c(record).to_le_bytes());
    bytes.extend_from_slice(record);
    Ok(())
}

/// The valid records at the start of `bytes`, and how many bytes they fill.
fn scan(bytes: &[u8]) -> (Vec<&[u8]>, usize) {
    let mut records = Vec::new();
    let mut at = 0;
    while let Some(header) = bytes.get(at..at + HEADER_BYTES) {
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let crc = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
        if length > RECORD_BYTES_MAX {
            break;
        }
        let Some(body) = bytes.get(at + HEADER_BYTES..at + HEADER_BYTES + length) else { break };
        if crc32c::crc32c(body) != crc {
            break;
        }
        records.push(body);
        at += HEADER_BYTES + length;
    }
    (records, at)
}

#[cfg(test)]
mod tests;
