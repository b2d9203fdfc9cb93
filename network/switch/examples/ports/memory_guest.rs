//! A virtio driver in memory: the guest's side of one pair of queues whose descriptors never change, so that what it costs
//! the engine's thread is next to nothing.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use weir_packet::virtio::MERGEABLE_HEADER_BYTES;
use weir_switch::engine::sys;
use weir_switch::ports::vhost::feature;
use weir_switch::ports::vhost::guest::{Guest, Pair};
use weir_switch::ports::vhost::memory::{Lent, Memory};
use weir_switch::ports::vhost::offered::Event;
use weir_switch::ports::vhost::ring::{Addresses, Queue};

/// Descriptors of a queue.
pub const RING: usize = 1024;
const GUEST: u64 = 0x1_0000_0000;
const USER: u64 = 0x7000_0000_0000;
/// Bytes of one queue's rings: a table of 16 KiB, and two smaller parts.
const RINGS_BYTES: usize = 64 * 1024;
const BUFFER_BYTES: usize = 2048;
const BYTES: usize = 2 * RINGS_BYTES + 2 * RING * BUFFER_BYTES;
const DESCRIPTOR_BYTES: usize = 16;
const WRITE: u16 = 2;

/// A queue of the driver: the device reads it (0: to the guest, 1: from the guest).
#[derive(Clone, Copy)]
struct Half(usize);

impl Half {
    fn table(self) -> usize {
        self.0 * RINGS_BYTES
    }

    fn available(self) -> usize {
        self.table() + RING * DESCRIPTOR_BYTES
    }

    fn used(self) -> usize {
        (self.available() + 6 + 2 * RING).next_multiple_of(64)
    }

    fn buffer(self, at: usize) -> usize {
        2 * RINGS_BYTES + (self.0 * RING + at) * BUFFER_BYTES
    }
}

const TO_GUEST: Half = Half(0);
const FROM_GUEST: Half = Half(1);

/// See the module.
pub struct MemoryGuest {
    _file: OwnedFd,
    start: *mut u8,
    memory: Arc<Memory>,
    kick: Event,
    sent: u16,
    taken: u16,
}

// SAFETY: the mapping is its own, and whoever has it alone writes into it as a driver; the engine has one of its own.
#[allow(unsafe_code)]
unsafe impl Send for MemoryGuest {}

impl MemoryGuest {
    /// With `frame` in every buffer that it sends from.
    pub fn new(frame: &[u8]) -> MemoryGuest {
        let file = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).expect("a memory file");
        rustix::fs::ftruncate(&file, BYTES as u64).expect("its length");
        // SAFETY: a new mapping of a live descriptor.
        #[allow(unsafe_code)]
        let start = unsafe {
            let flags = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), BYTES, flags, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        assert_ne!(start, libc::MAP_FAILED, "a mapping");
        let lent = Lent { guest: GUEST, user: USER, length: BYTES as u64, offset: 0 };
        let memory = Memory::map(vec![(lent, file.try_clone().expect("a descriptor"))]).expect("lent memory");
        let kick = sys::Wakeup::new().expect("an event").fd().try_clone_to_owned().expect("a descriptor");
        let kick = Event::offered(kick).expect("an eventfd");
        let (start, memory) = (start.cast(), Arc::new(memory));
        let mut guest = MemoryGuest { _file: file, start, memory, kick, sent: 0, taken: 0 };
        for half in [TO_GUEST, FROM_GUEST] {
            for at in 0..RING {
                let (length, flags) = match half {
                    Half(0) => (BUFFER_BYTES, WRITE),
                    _ => (MERGEABLE_HEADER_BYTES + frame.len(), 0),
                };
                let address = GUEST + half.buffer(at) as u64;
                guest.put(half.table() + at * DESCRIPTOR_BYTES, &address.to_le_bytes());
                let rest = length as u64 | u64::from(flags) << 32;
                guest.put(half.table() + at * DESCRIPTOR_BYTES + 8, &rest.to_le_bytes());
                guest.put(half.available() + 4 + 2 * at, &(at as u16).to_le_bytes());
            }
            // Interrupts are of no use to who looks anyway.
            guest.put(half.available(), &1_u16.to_le_bytes());
        }
        for at in 0..RING {
            guest.put(FROM_GUEST.buffer(at) + MERGEABLE_HEADER_BYTES, frame);
        }
        guest.index(TO_GUEST.available()).store(RING as u16, Ordering::Release);
        guest
    }

    /// The queues as the engine gets them.
    pub fn queues(&self) -> Guest {
        let queue = |half: Half| {
            let at = |offset: usize| USER + offset as u64;
            let addresses = Addresses {
                descriptors: at(half.table()),
                available: at(half.available()),
                used: at(half.used()),
            };
            Queue::new(&self.memory, RING as u16, addresses, false).expect("a queue")
        };
        let pair = Pair {
            receive: queue(TO_GUEST),
            receive_call: None,
            transmit: queue(FROM_GUEST),
            transmit_call: None,
            transmit_kick: self.kick.clone(),
        };
        Guest::new(Arc::clone(&self.memory), vec![pair], feature::VERSION_1 | feature::MRG_RXBUF, None)
            .expect("a guest")
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= BYTES);
        // SAFETY: inside of the mapping; the engine takes what it finds.
        #[allow(unsafe_code)]
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(at), bytes.len());
        }
    }

    /// The index of the part of a ring that begins at `ring`.
    fn index(&self, ring: usize) -> &AtomicU16 {
        // SAFETY: inside of the mapping and aligned.
        #[allow(unsafe_code)]
        unsafe {
            AtomicU16::from_ptr(self.start.add(ring + 2).cast())
        }
    }

    /// Writes into the frame that will be sent as the `ahead`th from now.
    pub fn write_next(&mut self, ahead: usize, offset: usize, bytes: &[u8]) {
        let at = (usize::from(self.sent) + ahead) % RING;
        self.put(FROM_GUEST.buffer(at) + MERGEABLE_HEADER_BYTES + offset, bytes);
    }

    /// Sends so many frames.
    pub fn send(&mut self, frames: u16) {
        self.sent = self.sent.wrapping_add(frames);
        self.index(FROM_GUEST.available()).store(self.sent, Ordering::SeqCst);
        // SAFETY: inside of the mapping and aligned.
        #[allow(unsafe_code)]
        let flags = unsafe { AtomicU16::from_ptr(self.start.add(FROM_GUEST.used()).cast()) };
        if flags.load(Ordering::SeqCst) == 0 {
            rustix::io::write(self.kick.as_fd(), &1_u64.to_ne_bytes()).expect("a kick");
        }
    }

    /// Frames that were sent and wait.
    pub fn unsent(&self) -> usize {
        usize::from(self.sent.wrapping_sub(self.index(FROM_GUEST.used()).load(Ordering::Acquire)))
    }

    /// Takes what came, and gives the buffers back; returns how many frames.
    pub fn take(&mut self) -> usize {
        let used = self.index(TO_GUEST.used()).load(Ordering::Acquire);
        let count = used.wrapping_sub(self.taken);
        // A line that is written without need is fetched from the engine's processor without need.
        if count > 0 {
            self.taken = used;
            self.index(TO_GUEST.available()).store(used.wrapping_add(RING as u16), Ordering::Release);
        }
        usize::from(count)
    }
}
