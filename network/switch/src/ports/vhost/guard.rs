//! Memory that another process may take away (row A29).
//!
//! Whoever lends a file as memory can truncate it; the next touch of a page that is gone is a `SIGBUS`, which would end the
//! switch and with it every port. The handler here looks whether the page is of a lent region. If so it puts empty memory of
//! our own over the whole region and marks it: the access goes on, reads zeros or writes to where nobody looks, and the engine sees
//! the mark after its batch. No access needs a branch for this. Any other `SIGBUS` is left to whoever handled it before.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Most lent regions of the process.
pub const REGIONS_MAX: usize = 8192;

/// Start of a slot that is being written.
const TAKEN: usize = 1;

struct Slot {
    /// First address; 0: free, [`TAKEN`]: not to be looked at.
    start: AtomicUsize,
    end: AtomicUsize,
    lost: AtomicBool,
}

static SLOTS: [Slot; REGIONS_MAX] =
    [const { Slot { start: AtomicUsize::new(0), end: AtomicUsize::new(0), lost: AtomicBool::new(false) } };
        REGIONS_MAX];

/// The handler that was there before ours.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// A mapping that is guarded until this is dropped, which must be before it is unmapped.
#[derive(Debug)]
pub struct Guarded(usize);

impl Guarded {
    /// Guards the `length` bytes from `start`, a whole mapping.
    ///
    /// # Errors
    /// When there are [`REGIONS_MAX`] already, or the kernel takes no handler.
    pub fn new(start: usize, length: usize) -> io::Result<Guarded> {
        install()?;
        let slot = SLOTS.iter().position(|slot| {
            slot.start.compare_exchange(0, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
        let Some(number) = slot else {
            return Err(io::Error::other(format!("{REGIONS_MAX} regions of memory are lent already")));
        };
        let slot = &SLOTS[number];
        slot.lost.store(false, Ordering::Relaxed);
        slot.end.store(start + length, Ordering::Relaxed);
        slot.start.store(start, Ordering::Release);
        Ok(Guarded(number))
    }

    /// Whether a page of it was touched that was no longer there.
    #[inline]
    pub fn is_lost(&self) -> bool {
        SLOTS[self.0].lost.load(Ordering::Relaxed)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        SLOTS[self.0].start.store(0, Ordering::Release);
    }
}

fn install() -> io::Result<()> {
    static INSTALLED: std::sync::Mutex<bool> = std::sync::Mutex::new(false);
    let mut installed = INSTALLED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if *installed {
        return Ok(());
    }
    // SAFETY: all zeros is a valid `sigaction`; the kernel reads one and writes the other during the calls, and the
    // handler does only what a handler may. What was there before is kept before ours can run.
    #[allow(unsafe_code)]
    let result = unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before) == 0 {
            let _ = BEFORE.set(before);
        }
        let mut ours: libc::sigaction = std::mem::zeroed();
        ours.sa_sigaction = handle as *const () as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &raw const ours, std::ptr::null_mut())
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    *installed = true;
    Ok(())
}

/// Puts empty memory over the region that an address is in. Async-signal-safe: atomics and one system call.
fn replace(address: usize) -> bool {
    for slot in &SLOTS {
        let start = slot.start.load(Ordering::Acquire);
        if start <= TAKEN || address < start {
            continue;
        }
        let end = slot.end.load(Ordering::Relaxed);
        if address >= end {
            continue;
        }
        // SAFETY: the region is a mapping of ours that lives as long as its slot; whoever uses it uses raw pointers,
        // and reads zeros from now on.
        #[allow(unsafe_code)]
        let mapped = unsafe {
            libc::mmap(
                start as *mut libc::c_void,
                end - start,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if mapped == libc::MAP_FAILED {
            return false;
        }
        slot.lost.store(true, Ordering::Relaxed);
        return true;
    }
    false
}

#[allow(unsafe_code)]
extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the kernel hands over a live record, which has an address for SIGBUS.
    let address = unsafe { (*info).si_addr() } as usize;
    if replace(address) {
        return;
    }
    let before = BEFORE.get().filter(|before| {
        before.sa_sigaction != libc::SIG_DFL
            && before.sa_sigaction != libc::SIG_IGN
            && before.sa_flags & libc::SA_SIGINFO != 0
    });
    if let Some(before) = before {
        // SAFETY: it was installed as a handler of this form.
        unsafe {
            let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                std::mem::transmute(before.sa_sigaction);
            handler(signal, info, context);
        }
        return;
    }
    // SAFETY: with the default the access that is tried again ends the process, as it would have without us.
    unsafe {
        libc::signal(libc::SIGBUS, libc::SIG_DFL);
    }
}
