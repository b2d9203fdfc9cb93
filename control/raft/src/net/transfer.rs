//! The receiving end of a snapshot on its way.
//!
//! The file has the name `incoming-<index>-<first 8 bytes of its digest>.part`, so that a transfer that was cut off, also by
//! a restart of this replica, goes on behind the last whole chunk. Each chunk is checked as it comes, and the whole file
//! from end to end before it is used. There is at most one such file.

use std::io;
use std::sync::Arc;

use weir_base::world::{Disk, DiskFile};
use weir_order::{Position, SnapshotInfo, snapshot};

use super::message::Offer;
use crate::machine::SnapshotFile;

const PREFIX: &str = "incoming-";
const SUFFIX: &str = ".part";

/// A snapshot that comes in.
pub struct Incoming {
    offer: Offer,
    name: String,
    file: Arc<dyn DiskFile>,
    /// How much of it is there, whole.
    have: u64,
}

fn name_of(offer: &Offer) -> String {
    let short = offer.sha256[..8].iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
    format!("{PREFIX}{:016x}-{short}{SUFFIX}", offer.position.0)
}

impl Incoming {
    /// Begins, or goes on with, the transfer of what is offered. Removes the remains of others.
    pub fn begin(disk: &dyn Disk, offer: Offer) -> io::Result<Incoming> {
        let name = name_of(&offer);
        let mut there = false;
        for other in disk.list()? {
            if other == name {
                there = true;
            } else if other.starts_with(PREFIX) && other.ends_with(SUFFIX) {
                disk.remove(&other)?;
            }
        }
        let mut have = 0;
        if there {
            let (bytes, whole) = snapshot::whole_prefix(disk, &name)?;
            let fits = disk.open(&name)?.len()? <= offer.file_bytes;
            have = if whole && fits { offer.file_bytes } else { bytes.min(offer.file_bytes) };
            if !fits || have == 0 {
                disk.remove(&name)?;
                (there, have) = (false, 0);
            }
        }
        let file = if there { disk.open(&name)? } else { disk.create(&name)? };
        Ok(Incoming { offer, name, file, have })
    }

    /// What is being sent.
    pub fn offer(&self) -> &Offer {
        &self.offer
    }

    /// How many bytes are there.
    pub fn have(&self) -> u64 {
        self.have
    }

    /// Takes bytes at `offset`; what does not fit or is damaged changes nothing. Gives how many bytes are there.
    pub fn chunk(&mut self, offset: u64, crc: u32, bytes: &[u8]) -> io::Result<u64> {
        let fits = offset == self.have && offset + bytes.len() as u64 <= self.offer.file_bytes;
        if fits && crc32c::crc32c(bytes) == crc {
            self.file.write_at(offset, bytes)?;
            self.have += bytes.len() as u64;
        }
        Ok(self.have)
    }

    /// The whole file, to be checked and installed.
    pub fn finish(self) -> io::Result<(Offer, SnapshotFile)> {
        if self.have != self.offer.file_bytes {
            let what = format!("{} of {} bytes are there", self.have, self.offer.file_bytes);
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
        }
        let at = Position { index: self.offer.position.0, term: self.offer.position.1 };
        let info = SnapshotInfo { at, bytes: 0, sha256: self.offer.sha256 };
        let data =
            SnapshotFile { file: self.file, name: self.name, info, file_bytes: self.have, incoming: true };
        Ok((self.offer, data))
    }
}
