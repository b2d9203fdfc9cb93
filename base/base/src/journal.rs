//! A journal of records in one file: what an actuator keeps so that it restarts from its own
//! checkpoint, without any controller (row A9).
//!
//! It protects against the end of the process at any byte (kill -9). It does not sync: after a
//! loss of power the valid prefix is used, and reconciliation with the controller repairs the rest.
//! The durable log of the control plane is another thing, in `weir-order`.
//!
//! Record: `u32` length, `u32` CRC-32C of the body, body; little-endian. A record that is cut or
//! does not match its CRC ends the journal: it and everything behind it are dropped and counted.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
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
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
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
        let aside = self.path.with_extension("new");
        let mut bytes = MAGIC.to_vec();
        for record in records {
            put(&mut bytes, record)?;
        }
        std::fs::write(&aside, &bytes)?;
        std::fs::rename(&aside, &self.path)?;
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
