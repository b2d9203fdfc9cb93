//! Numbers that a source never uses twice, whenever its process ends (row R4: a source's events are ordered at most
//! once, by their number).
//!
//! A file holds the first number that is not reserved. A process uses a number only when the file that
//! reserves it is durable, and reserves many at a time, so that a number costs no disk access. After a kill or a
//! loss of power the rest of the reserved range is skipped: numbers rise, with gaps.
//!
//! The file, replaced whole: `weirnum1`, the number as u64, CRC-32C of these 16 bytes as u32; little-endian.
//!
//! Invariant: what [`Numbers::take`] gives is above everything that any earlier process got from the same file. When
//! the file is gone or damaged that rests on `floor` alone: callers give what they know otherwise, such as
//! the clock's milliseconds or the highest number in a log, and say by [`Numbers::begin_behind`] what they hear of later.

use crate::world::Disk;
use std::io;
use std::sync::Arc;

const MAGIC: &[u8; 8] = b"weirnum1";
const FILE_BYTES: usize = 20;

/// See the module.
pub struct Numbers {
    disk: Arc<dyn Disk>,
    name: String,
    step: u64,
    next: u64,
    /// Numbers below this are reserved durably.
    reserved: u64,
    /// Whether the file was there and not readable, so that the floor stands for it.
    pub damaged: bool,
    /// Reservations made: one durable write each.
    pub reservations: u64,
}

impl std::fmt::Debug for Numbers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Numbers").field("next", &self.next).field("reserved", &self.reserved).finish()
    }
}

impl Numbers {
    /// The numbers kept in the file `name`, from `floor` (at least 1) on when it says less; `step` are reserved
    /// at once. Writes nothing yet.
    ///
    /// # Errors
    /// The disk's, when the file is there and cannot be read.
    pub fn open(disk: Arc<dyn Disk>, name: &str, step: u64, floor: u64) -> io::Result<Numbers> {
        assert!(step > 0, "a reservation has numbers");
        let (kept, damaged) = match disk.open(name) {
            Ok(file) => {
                let mut bytes = [0; FILE_BYTES + 1];
                let read = file.read_at(0, &mut bytes)?;
                let kept = decode(&bytes[..read]);
                (kept.unwrap_or(0), kept.is_none())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => (0, false),
            Err(error) => return Err(error),
        };
        let next = kept.max(floor).max(1);
        Ok(Numbers { disk, name: name.to_string(), step, next, reserved: next, damaged, reservations: 0 })
    }

    /// Gives no number up to `used` any more: somebody else knows that they were used, by a process whose file is gone.
    pub fn begin_behind(&mut self, used: u64) {
        self.next = self.next.max(used.saturating_add(1));
        self.reserved = self.reserved.max(self.next);
    }

    /// The next number.
    ///
    /// # Errors
    /// The disk's: no number is given then, and a later call may do better. `Other` after 2^64 - 1.
    pub fn take(&mut self) -> io::Result<u64> {
        if self.next == self.reserved {
            let end = self.reserved.checked_add(self.step);
            let end = end.ok_or_else(|| io::Error::other("there are no more numbers"))?;
            self.write(end)?;
            self.reserved = end;
            self.reservations += 1;
        }
        let number = self.next;
        self.next += 1;
        Ok(number)
    }

    fn write(&self, end: u64) -> io::Result<()> {
        crate::file::replace_at(&*self.disk, &self.name, &encode(end))
    }
}

fn encode(number: u64) -> [u8; FILE_BYTES] {
    let mut bytes = [0; FILE_BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..16]);
    bytes[16..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Option<u64> {
    let bytes: &[u8; FILE_BYTES] = bytes.try_into().ok()?;
    let number = u64::from_le_bytes(bytes[8..16].try_into().ok()?);
    (encode(number) == *bytes).then_some(number)
}

#[cfg(test)]
mod tests;
