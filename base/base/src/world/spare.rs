//! Descriptors that a process keeps for its own files, so that what has to be written can be, however many connections there are.
//!
//! A log that cannot make its next segment ends its process. When the process, or the machine, has no descriptor left, one that was
//! opened ahead is closed, and its place taken; who is quicker may take it instead, so this is done again and again, for a bounded time.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Descriptors kept ahead.
pub const SPARES: usize = 16;
/// How often it is tried again to open a file for want of a descriptor.
const TRIES_MAX: u32 = 500;
/// Rest between two tries.
const REST: Duration = Duration::from_millis(20);
/// No descriptor left in the process; in the machine.
const EMFILE: i32 = 24;
const ENFILE: i32 = 23;

static KEPT: Mutex<Vec<File>> = Mutex::new(Vec::new());
static SPENT: AtomicU64 = AtomicU64::new(0);

fn kept() -> MutexGuard<'static, Vec<File>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens what is missing of the descriptors that are kept; as many as there are.
pub fn keep() {
    let mut kept = kept();
    while kept.len() < SPARES {
        match File::open("/dev/null") {
            Ok(file) => kept.push(file),
            Err(_) => return,
        }
    }
}

/// How often a kept descriptor was given up for a file.
pub fn spent() -> u64 {
    SPENT.load(Ordering::Relaxed)
}

fn is_want_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(EMFILE | ENFILE))
}

/// Opens something; with a descriptor that was kept when there is no other, for a bounded time.
///
/// # Errors
/// Of the last try.
pub fn opening<T>(mut open: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut tries = 0;
    loop {
        match open() {
            Err(error) if is_want_of_descriptors(&error) && tries < TRIES_MAX => {
                tries += 1;
                let spare = kept().pop();
                if spare.is_some() {
                    SPENT.fetch_add(1, Ordering::Relaxed);
                } else {
                    std::thread::sleep(REST);
                }
            }
            done => {
                if tries > 0 {
                    keep();
                }
                return done;
            }
        }
    }
}
