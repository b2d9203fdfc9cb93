//! How much of this process's address space monitors may take, one and all of them.
//!
//! A sparse file costs its owner nothing, whatever its length; mapped here it takes addresses, of which a process has 128 TiB. One
//! that has none left cannot grow its heap, and ends. So a port has a bound, all of them together have one, and no port gets more than half
//! of what is left: however many ports of one owner take all they can, there is room for another's virtual machine of common size.
//!
//! What is counted is what is mapped, whole pages of the file's.

use super::offered::wrong;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most bytes that one port's monitor may lend: more than the largest virtual machines have.
pub const LENT_BYTES_MAX_PORT: u64 = 16 << 40;
/// Most bytes that all may lend together: half of the addresses that a process has.
pub const LENT_BYTES_MAX: u64 = 64 << 40;

/// A region as the virtual machine monitor describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lent {
    /// Address in the guest.
    pub guest: u64,
    /// Address in the monitor, by which it tells where queues are.
    pub user: u64,
    /// Bytes.
    pub length: u64,
    /// Where it begins in the file.
    pub offset: u64,
}

/// Bytes that are lent to this process, or to something else that counts apart.
#[derive(Debug, Default)]
pub struct Budget(AtomicU64);

static PROCESS: Budget = Budget::new();

impl Budget {
    /// Of which nothing is taken.
    pub const fn new() -> Budget {
        Budget(AtomicU64::new(0))
    }

    /// This process's.
    pub fn process() -> &'static Budget {
        &PROCESS
    }

    /// Bytes that are lent.
    pub fn lent(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes so many bytes for one port.
    ///
    /// # Errors
    /// It is more than a port may have, or than half of what is left.
    pub fn take(&'static self, bytes: u64) -> io::Result<Share> {
        let mut before = self.lent();
        loop {
            let left = LENT_BYTES_MAX.saturating_sub(before);
            let most = LENT_BYTES_MAX_PORT.min(left / 2);
            if bytes > most {
                return Err(wrong(format!(
                    "{bytes} bytes of memory are lent: a port may lend {LENT_BYTES_MAX_PORT}, and half of what is left of \
                     {LENT_BYTES_MAX} for all ports, which is {most} now"
                )));
            }
            match self.0.compare_exchange_weak(before, before + bytes, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(Share { budget: self, bytes }),
                Err(now) => before = now,
            }
        }
    }
}

/// Bytes that a port has lent, until this is dropped.
#[derive(Debug)]
pub struct Share {
    budget: &'static Budget,
    bytes: u64,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// What is mapped for a region: where that begins in the file, and its bytes.
///
/// # Errors
/// The region has no proper bounds, or is longer than its file.
pub fn mapped(lent: &Lent, page_bytes: u64, file_bytes: u64) -> io::Result<(u64, u64)> {
    let end = lent.offset.checked_add(lent.length).filter(|end| *end <= i64::MAX as u64 / 2);
    let ends = [lent.guest, lent.user].map(|start| start.checked_add(lent.length));
    let (Some(end), [Some(_), Some(_)], true) = (end, ends, lent.length > 0) else {
        return Err(wrong(format!("a region of lent memory has no proper bounds: {lent:?}")));
    };
    if end > file_bytes {
        return Err(wrong(format!("{end} bytes of a memory file are lent that has {file_bytes}")));
    }
    let start = lent.offset - lent.offset % page_bytes;
    Ok((start, end.next_multiple_of(page_bytes) - start))
}

/// Checks that no address, of the guest's or of the monitor's, is in two regions. Their bounds were checked before.
///
/// # Errors
/// Two regions overlap, and which.
pub fn apart(lent: &[Lent]) -> io::Result<()> {
    for start_of in [|lent: &Lent| lent.guest, |lent: &Lent| lent.user] {
        let mut sorted: Vec<&Lent> = lent.iter().collect();
        sorted.sort_by_key(|lent| start_of(lent));
        let overlap = sorted.windows(2).find(|pair| start_of(pair[0]) + pair[0].length > start_of(pair[1]));
        if let Some(pair) = overlap {
            return Err(wrong(format!("regions of lent memory overlap: {:?} and {:?}", pair[0], pair[1])));
        }
    }
    Ok(())
}
