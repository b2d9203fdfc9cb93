//! A virtio driver in memory, for tests: the guest's side of a few queues, which may also write what no driver would.

use super::guest::{Guest, Pair};
use super::memory::{Lent, Memory};
use super::offered::Event;
use super::ring::{Addresses, DESCRIPTOR_BYTES, Queue};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

/// Where the memory begins for the guest.
pub const GUEST: u64 = 0x1_0000_0000;
/// Where it begins for the monitor.
pub const USER: u64 = 0x7000_0000_0000;
/// Bytes of the memory.
pub const BYTES: usize = 4 * 1024 * 1024;
/// Bytes of one queue's rings.
const RINGS: usize = 64 * 1024;
/// Where buffers begin.
const BUFFERS: usize = 16 * RINGS;

pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const INDIRECT: u16 = 4;

pub struct Driver {
    pub file: OwnedFd,
    start: *mut u8,
    pub size: u16,
    descriptors: Vec<u16>,
    available: Vec<u16>,
    used: Vec<u16>,
    buffers: usize,
}

impl Drop for Driver {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`.
        #[allow(unsafe_code)]
        unsafe {
            libc::munmap(self.start.cast(), BYTES);
        }
    }
}

impl Driver {
    pub fn new(size: u16) -> Driver {
        let file = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, BYTES as u64).unwrap();
        // SAFETY: a new mapping of a live descriptor.
        #[allow(unsafe_code)]
        let start = unsafe {
            let flags = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), BYTES, flags, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        assert_ne!(start, libc::MAP_FAILED);
        let none = || vec![0; 16];
        let start = start.cast();
        Driver { file, start, size, descriptors: none(), available: none(), used: none(), buffers: BUFFERS }
    }

    pub fn lent(&self) -> (Lent, OwnedFd) {
        let lent = Lent { guest: GUEST, user: USER, length: BYTES as u64, offset: 0 };
        (lent, self.file.try_clone().unwrap())
    }

    pub fn memory(&self) -> Arc<Memory> {
        Arc::new(Memory::map(vec![self.lent()]).unwrap())
    }

    fn available_at(&self, queue: usize) -> usize {
        queue * RINGS + usize::from(self.size) * DESCRIPTOR_BYTES
    }

    fn used_at(&self, queue: usize) -> usize {
        (self.available_at(queue) + 6 + 2 * usize::from(self.size)).next_multiple_of(4)
    }

    pub fn addresses(&self, queue: usize) -> Addresses {
        let at = |offset: usize| USER + offset as u64;
        Addresses {
            descriptors: at(queue * RINGS),
            available: at(self.available_at(queue)),
            used: at(self.used_at(queue)),
        }
    }

    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= BYTES);
        // SAFETY: inside of the mapping.
        #[allow(unsafe_code)]
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(at), bytes.len());
        }
    }

    pub fn read(&self, at: usize, length: usize) -> Vec<u8> {
        assert!(at + length <= BYTES);
        let mut bytes = vec![0; length];
        // SAFETY: inside of the mapping.
        #[allow(unsafe_code)]
        unsafe {
            std::ptr::copy_nonoverlapping(self.start.add(at), bytes.as_mut_ptr(), length);
        }
        bytes
    }

    fn number(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.read(at, 2).try_into().unwrap())
    }

    /// Room for a buffer: its offset, which is also its address from [`GUEST`].
    pub fn buffer(&mut self, length: usize) -> usize {
        let at = self.buffers;
        self.buffers = (at + length).next_multiple_of(64);
        if self.buffers > BYTES {
            self.buffers = BUFFERS;
            return self.buffer(length);
        }
        at
    }

    pub fn descriptor(address: u64, length: u32, flags: u16, next: u16) -> [u8; DESCRIPTOR_BYTES] {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        bytes[..8].copy_from_slice(&address.to_le_bytes());
        bytes[8..12].copy_from_slice(&length.to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..].copy_from_slice(&next.to_le_bytes());
        bytes
    }

    /// Makes a chain of buffers available: their offsets and lengths; returns its first descriptor.
    pub fn post(&mut self, queue: usize, pieces: &[(usize, usize)], flags: u16) -> u16 {
        let head = self.descriptors[queue];
        for (number, (at, length)) in pieces.iter().enumerate() {
            let this = (head + number as u16) % self.size;
            let last = number + 1 == pieces.len();
            let flags = if last { flags } else { flags | NEXT };
            let next = (this + 1) % self.size;
            let bytes = Driver::descriptor(GUEST + *at as u64, *length as u32, flags, next);
            self.write(queue * RINGS + usize::from(this) * DESCRIPTOR_BYTES, &bytes);
        }
        self.descriptors[queue] = (head + pieces.len() as u16) % self.size;
        self.offer(queue, head);
        head
    }

    /// Writes a descriptor as it is.
    pub fn put_descriptor(&self, queue: usize, number: u16, bytes: &[u8; DESCRIPTOR_BYTES]) {
        self.write(queue * RINGS + usize::from(number) * DESCRIPTOR_BYTES, bytes);
    }

    /// Makes a chain available by its first descriptor.
    pub fn offer(&mut self, queue: usize, head: u16) {
        let slot = usize::from(self.available[queue] % self.size);
        self.write(self.available_at(queue) + 4 + 2 * slot, &head.to_le_bytes());
        self.available[queue] = self.available[queue].wrapping_add(1);
        self.set_available(queue, self.available[queue]);
    }

    /// Claims that so many chains are available.
    pub fn set_available(&self, queue: usize, index: u16) {
        self.write(self.available_at(queue) + 2, &index.to_le_bytes());
    }

    /// Flags of the available ring.
    pub fn set_flags(&self, queue: usize, flags: u16) {
        self.write(self.available_at(queue), &flags.to_le_bytes());
    }

    /// The index at which this side wants to be interrupted.
    pub fn set_used_event(&self, queue: usize, index: u16) {
        self.write(self.available_at(queue) + 4 + 2 * usize::from(self.size), &index.to_le_bytes());
    }

    /// Whether the device wants to be kicked for a queue without event index.
    pub fn wants_kicks(&self, queue: usize) -> bool {
        self.number(self.used_at(queue)) & 1 == 0
    }

    /// The index at which the device wants to be kicked.
    pub fn available_event(&self, queue: usize) -> u16 {
        self.number(self.used_at(queue) + 4 + 8 * usize::from(self.size))
    }

    /// Chains that came back since the last time, with the bytes written.
    pub fn take_used(&mut self, queue: usize) -> Vec<(u32, u32)> {
        let at = self.used_at(queue);
        let index = self.number(at + 2);
        let mut back = Vec::new();
        while self.used[queue] != index {
            let slot = usize::from(self.used[queue] % self.size);
            let words = self.read(at + 4 + 8 * slot, 8);
            let word = |at: usize| u32::from_le_bytes(words[at..at + 4].try_into().unwrap());
            back.push((word(0), word(4)));
            self.used[queue] = self.used[queue].wrapping_add(1);
        }
        back
    }

    /// Where and how long the buffer of a chain of one descriptor is.
    pub fn buffer_of(&self, queue: usize, head: u32) -> usize {
        let bytes = self.read(queue * RINGS + head as usize * DESCRIPTOR_BYTES, 8);
        (u64::from_le_bytes(bytes.try_into().unwrap()) - GUEST) as usize
    }

    /// The device of some pairs of queues.
    pub fn guest(&self, pairs: usize, features: u64) -> Guest {
        let memory = self.memory();
        let queue = |number| {
            let event_index = features & super::feature::EVENT_IDX != 0;
            Queue::new(&memory, self.size, self.addresses(number), event_index).unwrap()
        };
        let pairs = (0..pairs).map(|pair| Pair {
            receive: queue(2 * pair),
            receive_call: Some(event()),
            transmit: queue(2 * pair + 1),
            transmit_call: Some(event()),
            transmit_kick: event(),
        });
        let pairs = pairs.collect();
        Guest::new(memory, pairs, features, None).unwrap()
    }
}

/// What a guest gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// A frame behind its virtio header; all bytes.
    Frame(usize),
    /// Something that is no frame; it is given back.
    Nonsense,
    /// Nothing.
    Nothing,
}

/// Takes the next frame of those that were read ahead, into the beginning of `room`.
pub fn take(guest: &mut Guest, pair: usize, room: &mut [u8]) -> Taken {
    let header_bytes = guest.header_bytes();
    let queue = guest.given(pair);
    if queue.known() == 0 {
        return Taken::Nothing;
    }
    let bytes = queue.copy(queue.ahead(0), room);
    queue.take(1);
    if bytes > header_bytes { Taken::Frame(bytes) } else { Taken::Nonsense }
}

pub fn event() -> Event {
    use rustix::event::{EventfdFlags, eventfd};
    Event::offered(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap()).unwrap()
}

/// What an event has counted since the last time.
pub fn take_event(event: impl AsFd) -> u64 {
    let mut bytes = [0; 8];
    match crate::engine::sys::read(event.as_fd(), &mut bytes) {
        Ok(_) => u64::from_ne_bytes(bytes),
        Err(_) => 0,
    }
}
