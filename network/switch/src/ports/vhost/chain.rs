//! One chain of descriptors of a queue (virtio 1.2 §2.7.5), of which nothing is believed.

use super::CHAIN_MAX;
use super::memory::Memory;

pub(super) const FLAG_NEXT: u16 = 1;
pub(super) const FLAG_WRITE: u16 = 2;
pub(super) const FLAG_INDIRECT: u16 = 4;
/// Bytes of a descriptor.
pub const DESCRIPTOR_BYTES: usize = 16;

/// What a guest wrote makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonsense;

/// An entry of a table.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Descriptor {
    pub address: u64,
    pub length: u32,
    pub flags: u16,
    pub next: u16,
}

/// The pieces of one chain of descriptors, in order.
#[derive(Debug)]
pub struct Chain {
    table: *const u8,
    entries: u16,
    current: Option<Descriptor>,
    left: u16,
    is_indirect: bool,
    valid: bool,
    writes: bool,
}

impl Chain {
    /// The chain that begins at entry `head` of a table with so many of them.
    #[inline]
    pub(super) fn new(table: *const u8, entries: u16, head: u16, writes: bool) -> Chain {
        let valid = head < entries;
        let first = if valid { read_descriptor(table, head) } else { Descriptor::default() };
        Chain { table, entries, current: Some(first), left: CHAIN_MAX, is_indirect: false, valid, writes }
    }

    /// The next piece: address in the guest and bytes.
    ///
    /// # Errors
    /// [`Nonsense`]; the chain must not be looked at further.
    #[inline]
    pub fn next(&mut self, memory: &Memory) -> Result<Option<(u64, u32)>, Nonsense> {
        if !self.valid {
            return Err(Nonsense);
        }
        let Some(mut descriptor) = self.current.take() else { return Ok(None) };
        if descriptor.flags & FLAG_INDIRECT != 0 {
            descriptor = self.follow(&descriptor, memory)?;
        }
        self.left = self.left.checked_sub(1).ok_or(Nonsense)?;
        if (descriptor.flags & FLAG_WRITE != 0) != self.writes {
            return Err(Nonsense);
        }
        if descriptor.flags & FLAG_NEXT != 0 {
            if descriptor.next >= self.entries {
                return Err(Nonsense);
            }
            self.current = Some(read_descriptor(self.table, descriptor.next));
        }
        Ok(Some((descriptor.address, descriptor.length)))
    }

    /// Goes into a table that a descriptor points to; returns its first entry.
    #[cold]
    fn follow(&mut self, descriptor: &Descriptor, memory: &Memory) -> Result<Descriptor, Nonsense> {
        let bytes = descriptor.length as usize;
        let entries = bytes / DESCRIPTOR_BYTES;
        let shaped =
            entries > 0 && bytes.is_multiple_of(DESCRIPTOR_BYTES) && entries <= usize::from(u16::MAX);
        if self.is_indirect || descriptor.flags & FLAG_NEXT != 0 || !shaped {
            return Err(Nonsense);
        }
        let (table, there) = memory.at(descriptor.address, descriptor.length).ok_or(Nonsense)?;
        if there < bytes || !(table as usize).is_multiple_of(8) {
            return Err(Nonsense);
        }
        (self.table, self.entries, self.is_indirect) = (table, entries as u16, true);
        let first = read_descriptor(table, 0);
        // A table in a table is not allowed.
        if first.flags & FLAG_INDIRECT != 0 { Err(Nonsense) } else { Ok(first) }
    }
}

/// The entry of a number that is in the table.
#[inline]
pub(super) fn read_descriptor(table: *const u8, number: u16) -> Descriptor {
    // SAFETY: the caller checked number and table; the table is aligned to 8 bytes at least. Each word is read once: the guest
    // may change it at any time.
    #[allow(unsafe_code)]
    let [address, rest] = unsafe {
        let words: *const u64 = table.add(usize::from(number) * DESCRIPTOR_BYTES).cast();
        [words.read_volatile(), words.add(1).read_volatile()]
    };
    Descriptor { address, length: rest as u32, flags: (rest >> 32) as u16, next: (rest >> 48) as u16 }
}
