//! One split queue (virtio 1.2 §2.7), as a device reads it.
//!
//! Chains are done with in the order in which they come, so one number says everything: `next` is both the next chain to take
//! and the number of those that were given back. What is given back is published once a batch.
//!
//! Invariants
//! - The three parts of the queue lie in lent memory, each in one piece and aligned: checked in [`Queue::new`].
//! - An index that the guest writes is taken modulo the size, a descriptor's number is checked against it, and a
//!   chain is at most [`CHAIN_MAX`] descriptors long.
//! - A guest that claims more chains than the queue has makes the queue broken for good: nothing in it can be trusted then.

use super::memory::Memory;
use super::{CHAIN_MAX, QUEUE_SIZE_MAX};
use crate::flowtable::zeroed::prefetch;
use std::sync::atomic::{AtomicU16, Ordering, fence};

const FLAG_NEXT: u16 = 1;
const FLAG_WRITE: u16 = 2;
const FLAG_INDIRECT: u16 = 4;
/// In the available ring: no interrupts, please.
const NO_INTERRUPT: u16 = 1;
/// In the used ring: no kicks, please.
const NO_NOTIFY: u16 = 1;
/// Bytes of a descriptor.
pub const DESCRIPTOR_BYTES: usize = 16;
/// Most chains that are read ahead at once (row A20).
pub const BATCH_MAX: usize = 64;
/// Chains for the guest that are read ahead at once: what is sent to it in one turn mostly.
const WRITE_AHEAD: u16 = 32;

/// What a guest wrote makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonsense;

#[derive(Clone, Copy, Debug, Default)]
struct Descriptor {
    address: u64,
    length: u32,
    flags: u16,
    next: u16,
}

/// Where the parts of a queue are, in addresses of the virtual machine monitor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Table of descriptors.
    pub descriptors: u64,
    /// What the guest makes available.
    pub available: u64,
    /// What it gets back.
    pub used: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Queue {
    size: u16,
    descriptors: *const u8,
    available: *mut u16,
    used: *mut u16,
    next: u16,
    published: u16,
    /// The guest's index when it was last looked at.
    seen: u16,
    event_index: bool,
    /// Index at which the guest was last interrupted, if it was.
    signalled: Option<u16>,
    broken: bool,
    /// Chains that were read ahead: number and first descriptor.
    ahead: Box<[(u16, Descriptor); BATCH_MAX]>,
    /// Position of the first of them.
    ahead_from: u16,
    ahead_length: u16,
    ahead_used: u16,
}

// SAFETY: the pointers are to memory that is mapped as long as the queue's owner holds it, and that no thread of ours owns.
#[allow(unsafe_code)]
unsafe impl Send for Queue {}

#[inline]
fn cell<'a>(words: *mut u16, at: usize) -> &'a AtomicU16 {
    // SAFETY: the callers stay inside of the ring, whose bounds and alignment `Queue::new` checked; the other side is
    // another process, to which an atomic is all that can be promised.
    #[allow(unsafe_code)]
    unsafe {
        AtomicU16::from_ptr(words.add(at))
    }
}

impl Queue {
    /// A queue of `size` chains. It goes on behind what was given back before.
    ///
    /// # Errors
    /// What is wrong with size or addresses, in words.
    pub fn new(memory: &Memory, size: u16, addresses: Addresses, event_index: bool) -> Result<Queue, String> {
        if !size.is_power_of_two() || size > QUEUE_SIZE_MAX {
            return Err(format!(
                "a queue has {size} descriptors: a power of two up to {QUEUE_SIZE_MAX} is right"
            ));
        }
        let count = usize::from(size);
        let part = |what: &str, at: u64, length: usize, align: usize| {
            let problem =
                || format!("the {what} of a queue, at {at:#x}, is not in the lent memory, or not aligned");
            memory.user(at, length, align).ok_or_else(problem)
        };
        let descriptors = part("table", addresses.descriptors, count * DESCRIPTOR_BYTES, 16)?;
        let available = part("available ring", addresses.available, 6 + 2 * count, 2)?;
        let used = part("used ring", addresses.used, 6 + 8 * count, 4)?;
        let used: *mut u16 = used.cast();
        let next = cell(used, 1).load(Ordering::Acquire);
        Ok(Queue {
            size,
            descriptors,
            available: available.cast(),
            used,
            next,
            published: next,
            seen: next,
            event_index,
            signalled: None,
            broken: false,
            ahead: Box::new([(0, Descriptor::default()); BATCH_MAX]),
            ahead_from: next,
            ahead_length: 0,
            ahead_used: 0,
        })
    }

    /// How many chains were given back, of a queue that nobody works with: where the next one goes on.
    pub fn position(memory: &Memory, size: u16, addresses: Addresses) -> Option<u16> {
        let used = memory.user(addresses.used, 6 + 8 * usize::from(size), 4)?;
        Some(cell(used.cast(), 1).load(Ordering::Acquire))
    }

    /// Whether the guest wrote an index that cannot be.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Chains that are known to wait.
    #[inline]
    pub fn waiting(&self) -> u16 {
        self.seen.wrapping_sub(self.next)
    }

    /// Looks how many chains wait.
    #[inline]
    pub fn look(&mut self) -> u16 {
        if self.broken {
            return 0;
        }
        let seen = cell(self.available, 1).load(Ordering::Acquire);
        if seen.wrapping_sub(self.next) > self.size {
            self.broken = true;
            self.seen = self.next;
            return 0;
        }
        self.seen = seen;
        self.waiting()
    }

    /// Number of the first descriptor of the chain that is `ahead` behind the next one.
    #[inline]
    fn head(&self, ahead: u16) -> u16 {
        let slot = self.next.wrapping_add(ahead) & (self.size - 1);
        cell(self.available, 2 + usize::from(slot)).load(Ordering::Relaxed)
    }

    #[inline]
    fn descriptor(&self, number: u16) -> Result<Descriptor, Nonsense> {
        if number >= self.size {
            return Err(Nonsense);
        }
        Ok(read_descriptor(self.descriptors, number))
    }

    /// Reads up to `most` chains ahead, and has the memory that they begin with fetched: whoever works on them then
    /// waits for all of it at once. Returns how many.
    #[inline]
    pub fn read_ahead(&mut self, memory: &Memory, most: usize) -> usize {
        if self.waiting() == 0 {
            self.look();
        }
        let count = self.waiting().min(most.min(BATCH_MAX) as u16);
        self.fetch(memory, count);
        usize::from(count)
    }

    #[inline]
    fn fetch(&mut self, memory: &Memory, count: u16) {
        for ahead in 0..count {
            let head = self.head(ahead);
            // One that is not there is told from its number when it is its turn.
            let first = self.descriptor(head).unwrap_or_default();
            if let Some((start, bytes)) = memory.at(first.address, first.length) {
                prefetch(start);
                if bytes > 64 {
                    prefetch(start.wrapping_add(64));
                }
            }
            self.ahead[usize::from(ahead) % BATCH_MAX] = (head, first);
        }
        (self.ahead_from, self.ahead_length, self.ahead_used) = (self.next, count, 0);
    }

    /// The next chain that was read ahead, to be read: its number, and its pieces.
    #[inline]
    pub fn take_ahead(&mut self) -> Option<(u16, Chain)> {
        if self.ahead_used == self.ahead_length {
            return None;
        }
        let (head, first) = self.ahead[usize::from(self.ahead_used) % BATCH_MAX];
        self.ahead_used += 1;
        let valid = head < self.size;
        Some((head, Chain::new(self.descriptors, self.size, first, valid, false)))
    }

    /// The next chain, if it is one piece of `bytes` or more to be written, of which it gives the place in the guest: the
    /// nearly certain case. `None` for all others, which [`Queue::chain_to_write`] is for.
    #[inline]
    pub fn piece_to_write(&mut self, memory: &Memory, bytes: usize) -> Option<(u16, u64)> {
        let mut at = self.next.wrapping_sub(self.ahead_from);
        if at >= self.ahead_length {
            if self.waiting() == 0 {
                self.look();
            }
            let count = self.waiting().min(WRITE_AHEAD);
            if count == 0 {
                return None;
            }
            self.fetch(memory, count);
            at = 0;
        }
        let (head, first) = self.ahead[usize::from(at) % BATCH_MAX];
        let is_plain = first.flags & (FLAG_NEXT | FLAG_WRITE | FLAG_INDIRECT) == FLAG_WRITE;
        (is_plain && first.length as usize >= bytes).then_some((head, first.address))
    }

    /// The chain that is `ahead` behind the next one, to be written: its number, and its pieces.
    #[inline]
    pub fn chain_to_write(&self, ahead: u16) -> (u16, Chain) {
        let head = self.head(ahead);
        let first = self.descriptor(head);
        let valid = first.is_ok();
        (head, Chain::new(self.descriptors, self.size, first.unwrap_or_default(), valid, true))
    }

    /// Notes that the chain which is `ahead` behind the next one is given back, with so many bytes written.
    #[inline]
    pub fn give_back(&mut self, ahead: u16, head: u16, bytes: u32) {
        let slot = usize::from(self.next.wrapping_add(ahead) & (self.size - 1));
        let element = u64::from(head) | u64::from(bytes) << 32;
        // SAFETY: the slot is inside of the ring, which `new` checked; the elements are behind 4 bytes, so only
        // four-byte aligned.
        #[allow(unsafe_code)]
        unsafe {
            self.used.add(2 + 4 * slot).cast::<u64>().write_unaligned(element);
        }
    }

    /// Goes on behind so many chains that were given back.
    #[inline]
    pub fn advance(&mut self, chains: u16) {
        self.next = self.next.wrapping_add(chains);
    }

    /// Shows the guest what was given back since the last time. Returns whether it wants to be interrupted.
    #[inline]
    pub fn publish(&mut self) -> bool {
        if self.published == self.next {
            return false;
        }
        cell(self.used, 1).store(self.next, Ordering::Release);
        self.published = self.next;
        // What the guest wants must be read after it can see what it gets.
        fence(Ordering::SeqCst);
        if !self.event_index {
            return cell(self.available, 0).load(Ordering::Relaxed) & NO_INTERRUPT == 0;
        }
        let wanted = cell(self.available, 2 + usize::from(self.size)).load(Ordering::Relaxed);
        let before = self.signalled.replace(self.next);
        let new = self.next;
        before.is_none_or(|old| new.wrapping_sub(wanted).wrapping_sub(1) < new.wrapping_sub(old))
    }

    /// Asks the guest to kick when there is a further chain, or not to. Returns whether there is one by now.
    #[inline]
    pub fn ask_for_kicks(&mut self, wanted: bool) -> bool {
        if self.event_index {
            if !wanted {
                // The index at which a kick is wanted stays behind: none comes.
                return false;
            }
            let at = 2 + 4 * usize::from(self.size);
            cell(self.used, at).store(self.next, Ordering::Relaxed);
        } else {
            cell(self.used, 0).store(if wanted { 0 } else { NO_NOTIFY }, Ordering::Relaxed);
        }
        if !wanted {
            return false;
        }
        fence(Ordering::SeqCst);
        self.look() > 0
    }
}

#[inline]
fn read_descriptor(table: *const u8, number: u16) -> Descriptor {
    // SAFETY: the caller checked number and table; the table is aligned to 8 bytes at least. Each word is read once: the guest
    // may change it at any time.
    #[allow(unsafe_code)]
    let [address, rest] = unsafe {
        let words: *const u64 = table.add(usize::from(number) * DESCRIPTOR_BYTES).cast();
        [words.read_volatile(), words.add(1).read_volatile()]
    };
    Descriptor { address, length: rest as u32, flags: (rest >> 32) as u16, next: (rest >> 48) as u16 }
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
    /// The only piece of a chain of one to be read: the nearly certain case.
    #[inline]
    pub fn only(&self) -> Option<(u64, u32)> {
        let first = self.current?;
        let is_plain = first.flags & (FLAG_NEXT | FLAG_WRITE | FLAG_INDIRECT) == 0;
        (self.valid && is_plain && !self.writes).then_some((first.address, first.length))
    }

    #[inline]
    fn new(table: *const u8, entries: u16, first: Descriptor, valid: bool, writes: bool) -> Chain {
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
