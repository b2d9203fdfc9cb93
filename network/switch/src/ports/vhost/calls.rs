//! Interrupts of guests, given in a way that never waits (row A29).
//!
//! A guest is interrupted through an eventfd of its monitor's. Who writes to one whose count is full waits, unless the open file
//! is set not to block; and that setting is the open file's, so the monitor may undo it at any time. So nothing is written here: the kernel
//! is asked to *signal* the eventfd at the end of an operation that is over at once (`IOCB_FLAG_RESFD` of the kernel's
//! asynchronous I/O, with a read of `/dev/null`). It adds to the count without regard to the open file's flags, stops at the
//! largest number, and wakes whoever waits: what a device of a virtual machine inside of the kernel does, too.
//!
//! All interrupts of a turn of the engine take one system call.
//!
//! Invariant: nothing of this waits for anybody outside of the kernel. The lock is held for that one call.

use super::offered::Event;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Most interrupts of one system call.
pub const CALLS_MAX: usize = 64;
/// `IOCB_CMD_PREAD`.
const READ: u16 = 0;
/// `IOCB_FLAG_RESFD`.
const SIGNALS: u32 = 1;
/// First words of a ring whose shape is known here (`AIO_RING_MAGIC`).
const RING_MAGIC: u32 = 0xa10a_10a1;

/// An operation, as the kernel reads it (`struct iocb`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Operation {
    data: u64,
    key_and_flags: u64,
    what: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    signalled: u32,
}

/// Beginning of the kernel's ring of what is done (`struct aio_ring`), which it maps into this process.
#[repr(C)]
struct Ring {
    id: u32,
    entries: u32,
    head: AtomicU32,
    tail: AtomicU32,
    magic: u32,
    compatible: u32,
    incompatible: u32,
    header_bytes: u32,
}

/// What is done (`struct io_event`).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Done([u64; 4]);

/// The kernel's side: one for the process, which lasts as long as it does.
#[derive(Debug)]
pub struct Calls {
    context: libc::c_ulong,
    /// Where the operations read nothing from.
    nothing: File,
    /// Who submits takes what is done out of the ring again, so that it is never full.
    submits: Mutex<()>,
}

static SHARED: OnceLock<Calls> = OnceLock::new();

impl Calls {
    /// The process's.
    ///
    /// # Errors
    /// The kernel gives no context, and why: no guest can be interrupted then.
    pub fn shared() -> io::Result<&'static Calls> {
        if let Some(calls) = SHARED.get() {
            return Ok(calls);
        }
        let made = Calls::new()?;
        Ok(SHARED.get_or_init(|| made))
    }

    fn new() -> io::Result<Calls> {
        let nothing = File::open("/dev/null")?;
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes one number.
        #[allow(unsafe_code)]
        let result = unsafe { libc::syscall(libc::SYS_io_setup, CALLS_MAX, &raw mut context) };
        if result != 0 {
            let error = io::Error::last_os_error();
            let text = format!(
                "interrupts need the kernel's asynchronous I/O: io_setup: {error}; allow the call, or raise fs.aio-max-nr"
            );
            return Err(io::Error::new(error.kind(), text));
        }
        let calls = Calls { context, nothing, submits: Mutex::new(()) };
        calls.prove()?;
        Ok(calls)
    }

    /// Proves that this kernel does it.
    fn prove(&self) -> io::Result<()> {
        use rustix::event::{EventfdFlags, eventfd};
        let event = Event::offered(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)?;
        let operation = self.operation(&event);
        let mut count = [0; 8];
        if self.signal(&[operation, operation]) == 2 {
            rustix::io::read(&event, &mut count)?;
        }
        if u64::from_ne_bytes(count) == 2 {
            return Ok(());
        }
        Err(io::Error::other(
            "interrupts need the kernel's asynchronous I/O to signal eventfds, which it does not do",
        ))
    }

    fn operation(&self, event: &Event) -> Operation {
        Operation {
            what: READ,
            file: self.nothing.as_raw_fd().cast_unsigned(),
            flags: SIGNALS,
            signalled: event.as_fd().as_raw_fd().cast_unsigned(),
            ..Operation::default()
        }
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.submits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Signals events; returns how many.
    fn signal(&self, operations: &[Operation]) -> u64 {
        let mut pointers = [std::ptr::null::<Operation>(); CALLS_MAX];
        let count = operations.len().min(CALLS_MAX);
        for (pointer, operation) in pointers.iter_mut().zip(operations) {
            *pointer = operation;
        }
        let _lock = self.lock();
        let (mut at, mut signalled) = (0, 0);
        while at < count {
            let rest = &pointers[at..count];
            // SAFETY: pointers to live operations, whose buffers are of no bytes; the context is open for ever.
            #[allow(unsafe_code)]
            let taken = unsafe {
                libc::syscall(libc::SYS_io_submit, self.context, rest.len() as libc::c_long, rest.as_ptr())
            };
            self.clear();
            // The first of them is refused, as of a kernel without memory: the guest is told the next time.
            let taken = usize::try_from(taken).unwrap_or(0);
            signalled += taken as u64;
            at += taken.max(1);
        }
        signalled
    }

    /// Takes what is done out of the ring. It is of no interest.
    fn clear(&self) {
        // SAFETY: a context is the address of its ring, which the kernel maps for as long as the context is open, and which it changes
        // by single words only.
        #[allow(unsafe_code)]
        let ring = NonNull::new(self.context as *mut Ring).map(|ring| unsafe { ring.as_ref() });
        if let Some(ring) = ring.filter(|ring| (ring.magic, ring.incompatible) == (RING_MAGIC, 0)) {
            ring.head.store(ring.tail.load(Ordering::Acquire), Ordering::Release);
            return;
        }
        let mut done = [Done::default(); CALLS_MAX];
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel writes at most as many as there is room for.
        #[allow(unsafe_code)]
        unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.context,
                0_usize,
                CALLS_MAX,
                done.as_mut_ptr(),
                &raw const at_once,
            );
        }
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        // SAFETY: nobody submits any more, and no operation takes longer than its submission.
        #[allow(unsafe_code)]
        unsafe {
            libc::syscall(libc::SYS_io_destroy, self.context);
        }
    }
}

/// Interrupts that are given together.
#[derive(Debug, Default)]
pub struct Batch {
    operations: Vec<Operation>,
    signalled: u64,
}

impl Batch {
    /// Adds one, which must stay open until [`Batch::give`].
    pub fn add(&mut self, calls: &Calls, event: &Event) {
        self.operations.push(calls.operation(event));
        if self.operations.len() == CALLS_MAX {
            self.flush(calls);
        }
    }

    fn flush(&mut self, calls: &Calls) {
        self.signalled += calls.signal(&self.operations);
        self.operations.clear();
    }

    /// Gives those that were added; returns how many came through.
    pub fn give(&mut self) -> u64 {
        if let (false, Some(calls)) = (self.operations.is_empty(), SHARED.get()) {
            self.flush(calls);
        }
        std::mem::take(&mut self.signalled)
    }
}
