//! One split queue (virtio 1.2 §2.7), as a device reads it.
//!
//! Chains are done with in the order in which they come, so one number says everything: `next` is both the next chain to take
//! and the number of those that were given back. What is given back is published once a turn of the engine.
//!
//! Chains are read ahead a batch at a time, in two passes, so that what another processor wrote is waited for all at once: first the
//! numbers of the descriptors, whose lines are asked for, then the descriptors. A chain of one
//! piece that lies in one region, as nearly all do, is then known by its place in our own addresses, and its descriptor is not read
//! again. Any other is walked when it is its turn, from its number on, and believes nothing that was read ahead. The memory of
//! a chain is asked for a few chains before its turn, while others are worked on; that of a chain for the guest so that no other processor
//! has it any more when it is written.
//!
//! Invariants
//! - The three parts of the queue lie in lent memory, each in one piece and aligned: checked in [`Queue::new`].
//! - An index that the guest writes is taken modulo the size, a descriptor's number is checked against it, and a
//!   chain is at most [`super::CHAIN_MAX`] descriptors long.
//! - A guest that claims more chains than the queue has makes the queue broken for good: nothing in it can be trusted then.

pub use super::chain::{Chain, DESCRIPTOR_BYTES, Nonsense};

use super::QUEUE_SIZE_MAX;
use super::chain::{Descriptor, FLAG_INDIRECT, FLAG_NEXT, FLAG_WRITE, read_descriptor};
use super::copy::{copy_short, take_pieces};
use super::memory::Memory;
use crate::flowtable::zeroed::{prefetch, prefetch_to_write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering, fence};

/// In the available ring: no interrupts, please.
const NO_INTERRUPT: u16 = 1;
/// In the used ring: no kicks, please.
const NO_NOTIFY: u16 = 1;
const LINE_BYTES: usize = 64;
/// Most chains that are read ahead at once (row A20).
pub const BATCH_MAX: usize = 64;
/// Chains for the guest that are read ahead at once: what is sent to it in one turn mostly.
const WRITE_AHEAD: u16 = 32;

/// How many chains before its own turn a chain's memory is asked for. A processor waits for a dozen lines at once and no more: who
/// asks for those of a whole batch at once waits for most of them there.
const LEAD: u16 = 8;

/// A chain that was read ahead.
#[derive(Clone, Copy, Debug)]
pub struct Ahead {
    /// Where its only piece begins here.
    pub start: *mut u8,
    /// Bytes of it, all in lent memory. 0: it is of several pieces, or of none that can be used so.
    pub bytes: u32,
    /// Number of its first descriptor, which nobody has checked yet if there are no bytes.
    pub head: u16,
}

impl Ahead {
    /// Has the beginning of its memory fetched.
    #[inline(always)]
    fn ask<const KIND: u16>(&self) {
        // Even if it is shorter, or there is none: a hint costs less than the question.
        for line in [self.start, self.start.wrapping_add(LINE_BYTES)] {
            if KIND == FLAG_WRITE { prefetch_to_write(line) } else { prefetch(line) }
        }
    }
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
    /// In which all the pointers here point.
    memory: Arc<Memory>,
    size: u16,
    descriptors: *const u8,
    available: *mut u16,
    used: *mut u16,
    next: u16,
    published: u16,
    /// Something was shown for which the guest may want an interrupt.
    unasked: bool,
    /// The guest's index when it was last looked at.
    seen: u16,
    event_index: bool,
    /// Index at which the guest was last interrupted, if it was.
    signalled: Option<u16>,
    broken: bool,
    /// Chains that were read ahead, each at its position modulo [`BATCH_MAX`].
    ahead: Box<[Ahead; BATCH_MAX]>,
    /// Position behind the last of them.
    ahead_end: u16,
}

// SAFETY: the pointers are to memory that is mapped as long as the queue holds it, and that no thread of ours owns.
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
    pub fn new(
        memory: &Arc<Memory>,
        size: u16,
        addresses: Addresses,
        event_index: bool,
    ) -> Result<Queue, String> {
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
            memory: Arc::clone(memory),
            size,
            descriptors,
            available: available.cast(),
            used,
            next,
            published: next,
            unasked: false,
            seen: next,
            event_index,
            signalled: None,
            broken: false,
            ahead: Box::new([Ahead { start: std::ptr::null_mut(), bytes: 0, head: 0 }; BATCH_MAX]),
            ahead_end: next,
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
            (self.seen, self.ahead_end) = (self.next, self.next);
            return 0;
        }
        self.seen = seen;
        self.waiting()
    }

    /// Reads up to `most` chains ahead, so that whoever works on them waits for all of them at once. Returns how many there are
    /// now, at most so many.
    #[inline]
    pub fn read_ahead(&mut self, most: usize) -> usize {
        let most = most.min(BATCH_MAX) as u16;
        if self.waiting() < most {
            self.look();
        }
        let count = self.waiting().min(most);
        if count > self.known() {
            self.fetch::<0>(count);
        }
        usize::from(count)
    }

    /// Reads chains ahead until `count` are, of the kind that [`FLAG_WRITE`] says.
    #[inline(never)]
    fn fetch<const KIND: u16>(&mut self, count: u16) {
        let (memory, table, available) = (&*self.memory, self.descriptors, self.available);
        let (size, mask, ahead) = (self.size, self.size - 1, &mut *self.ahead);
        let (first, known) = (self.ahead_end, self.ahead_end.wrapping_sub(self.next));
        let positions = || (0..count - known).map(|more| first.wrapping_add(more));
        for position in positions() {
            let head = cell(available, 2 + usize::from(position & mask)).load(Ordering::Relaxed);
            prefetch(table.wrapping_add(usize::from(head) * DESCRIPTOR_BYTES));
            ahead[usize::from(position) % BATCH_MAX].head = head;
        }
        for position in positions() {
            let ahead = &mut ahead[usize::from(position) % BATCH_MAX];
            ahead.bytes = 0;
            if ahead.head >= size {
                continue;
            }
            let first = read_descriptor(table, ahead.head);
            let is_plain = first.flags & (FLAG_NEXT | FLAG_WRITE | FLAG_INDIRECT) == KIND;
            match memory.whole(first.address, first.length) {
                Some(start) if is_plain => (ahead.start, ahead.bytes) = (start, first.length),
                _ => read_other(memory, first, is_plain, ahead),
            }
        }
        self.ahead_end = self.next.wrapping_add(count);
        for at in known..count.min(LEAD) {
            self.ahead(usize::from(at)).ask::<KIND>();
        }
    }

    /// Chains that were read ahead and are not done with.
    #[inline]
    pub fn known(&self) -> u16 {
        self.ahead_end.wrapping_sub(self.next)
    }

    /// The one of them that is `at` behind the next one.
    #[inline(always)]
    pub fn ahead(&self, at: usize) -> &Ahead {
        &self.ahead[(usize::from(self.next) + at) % BATCH_MAX]
    }

    /// Has the memory of the chain fetched that is to be read [`LEAD`] chains behind the one that is `at` behind the next one.
    #[inline(always)]
    pub fn ask_behind(&self, at: usize) {
        if at + usize::from(LEAD) < usize::from(self.known()) {
            self.ahead(at + usize::from(LEAD)).ask::<0>();
        }
    }

    /// Copies what one of them leads to into the beginning of `room`. Returns how many bytes that is; 0 if it makes no sense.
    #[inline(always)]
    pub fn copy(&self, ahead: &Ahead, room: &mut [u8]) -> usize {
        let bytes = ahead.bytes as usize;
        if bytes == 0 || bytes > room.len() {
            return take_pieces(self.chain(ahead.head, false), &self.memory, room).unwrap_or(0);
        }
        // SAFETY: the bytes were found to be lent memory, the slice is the target; our own memory is never lent. The guest may
        // write there meanwhile: then these bytes are some mixture, and are judged as they were copied.
        #[allow(unsafe_code)]
        unsafe {
            copy_short(ahead.start, room.as_mut_ptr(), bytes);
        }
        bytes
    }

    /// Gives the next `count` of them back, which there are.
    #[inline]
    pub fn take(&mut self, count: usize) {
        debug_assert!(count <= usize::from(self.known()));
        for chain in 0..count {
            self.give_back(chain as u16, self.ahead(chain).head, 0);
        }
        self.advance(count as u16);
    }

    /// The next chain to be written, if it is one piece of `bytes` or more: the nearly certain case. `None` for all others,
    /// which [`Queue::chain_to_write`] is for.
    #[inline(always)]
    pub fn room(&mut self, bytes: usize) -> Option<Ahead> {
        if self.known() == 0 && !self.read_room() {
            return None;
        }
        if self.known() > LEAD {
            self.ahead(usize::from(LEAD)).ask::<FLAG_WRITE>();
        }
        let ahead = *self.ahead(0);
        (ahead.bytes as usize >= bytes).then_some(ahead)
    }

    /// Reads chains for the guest ahead; returns whether there are any.
    #[inline(never)]
    fn read_room(&mut self) -> bool {
        if self.waiting() <= self.known() {
            self.look();
        }
        let count = self.waiting().min(WRITE_AHEAD);
        if count > self.known() {
            self.fetch::<FLAG_WRITE>(count);
        }
        count > 0
    }

    /// Has chains for the guest, and what is written there, fetched before they are needed.
    #[inline]
    pub fn prepare_room(&mut self) {
        if self.known() <= WRITE_AHEAD / 2 {
            self.read_room();
        }
    }

    /// The chain that is `ahead` behind the next one, to be written: its number, and its pieces.
    #[inline]
    pub fn chain_to_write(&self, ahead: u16) -> (u16, Chain) {
        let slot = self.next.wrapping_add(ahead) & (self.size - 1);
        let head = cell(self.available, 2 + usize::from(slot)).load(Ordering::Relaxed);
        (head, self.chain(head, true))
    }

    fn chain(&self, head: u16, writes: bool) -> Chain {
        Chain::new(self.descriptors, self.size, head, writes)
    }

    /// Notes that the chain which is `ahead` behind the next one is given back, with so many bytes written.
    #[inline]
    pub fn give_back(&self, ahead: u16, head: u16, bytes: u32) {
        let slot = usize::from(self.next.wrapping_add(ahead) & (self.size - 1));
        let element = u64::from(head) | u64::from(bytes) << 32;
        // SAFETY: the slot is inside of the ring, which `new` checked; the elements are behind 4 bytes, so only
        // four-byte aligned.
        #[allow(unsafe_code)]
        unsafe {
            self.used.add(2 + 4 * slot).cast::<u64>().write_unaligned(element);
        }
    }

    /// Gives the next chain back, with so many bytes written, and goes on behind it.
    #[inline(always)]
    pub fn finish(&mut self, head: u16, bytes: u32) {
        debug_assert!(self.known() > 0);
        self.give_back(0, head, bytes);
        self.next = self.next.wrapping_add(1);
    }

    /// Goes on behind so many chains that were given back.
    #[inline]
    pub fn advance(&mut self, chains: u16) {
        self.ahead_end = self.next.wrapping_add(self.known().max(chains));
        self.next = self.next.wrapping_add(chains);
    }

    /// Shows the guest what was given back since the last time. Returns whether that was anything: then, behind a fence,
    /// [`Queue::wants_interrupt`] is to be asked.
    #[inline]
    pub fn show(&mut self) -> bool {
        if self.published == self.next {
            return false;
        }
        cell(self.used, 1).store(self.next, Ordering::Release);
        self.published = self.next;
        self.unasked = true;
        true
    }

    /// Whether the guest wants to be interrupted for what was shown since the last time. What it wants must be read after it can see
    /// what it gets, so a full fence must lie between: one does for all queues.
    #[inline]
    pub fn wants_interrupt(&mut self) -> bool {
        if !std::mem::take(&mut self.unasked) {
            return false;
        }
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

/// Notes where a chain begins that is not of one piece in the largest region.
#[cold]
#[inline(never)]
fn read_other(memory: &Memory, first: Descriptor, is_plain: bool, ahead: &mut Ahead) {
    let Some((start, there)) = memory.at(first.address, first.length) else { return };
    ahead.start = start;
    if is_plain && there == first.length as usize {
        ahead.bytes = first.length;
    }
}
