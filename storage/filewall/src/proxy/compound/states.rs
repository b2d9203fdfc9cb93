//! What FileWall knows of NFSv4 for all sessions: the root of the export, places in the server's sessions ([`super::slots`]), and
//! the files that policies make up and clients have open.
//!
//! ```text
//! stateid   0        4          8                16
//!           │ seqid  │ "weir"   │ number of the OPEN │
//! ```
//!
//! Numbers begin anywhere, so a state of another process is none. When there are too many, the oldest is forgotten: a client that
//! is gone closes nothing.

use super::owners::Owners;
use super::question::Root;
use super::slots::Slots;
use crate::wire::nfs3::Handle;
use crate::wire::nfs4::STATE_BYTES;
use crate::wire::xdr::{get_u32, put_u32, put_u64};
use arc_swap::ArcSwapOption;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Most files of policies that are open at once.
pub const OPENS_MAX: usize = 4096;
const MAGIC: u32 = u32::from_be_bytes(*b"weir");

#[derive(Clone, Debug)]
struct Open {
    handle: Handle,
    owner: Box<[u8]>,
}

/// What all sessions share.
#[derive(Debug)]
pub struct Shared4 {
    root: ArcSwapOption<Root>,
    /// Places in the server's sessions that are taken.
    pub slots: Slots,
    /// Whose the server's sessions are.
    pub owners: Owners,
    opens: Mutex<BTreeMap<u64, Open>>,
    next: AtomicU64,
}

impl Default for Shared4 {
    fn default() -> Self {
        let random = crate::proxy::server::random;
        let first = u64::from(random()) << 32 | u64::from(random()) >> 1;
        Self {
            root: ArcSwapOption::empty(),
            slots: Slots::default(),
            owners: Owners::default(),
            opens: Mutex::default(),
            next: AtomicU64::new(first >> 1),
        }
    }
}

impl Shared4 {
    /// The root of the export, if it is known.
    pub fn root(&self) -> Option<Root> {
        self.root.load().as_deref().copied()
    }

    /// It is known now, or not any more.
    pub fn set_root(&self, root: Option<Root>) {
        self.root.store(root.map(Arc::new));
    }

    fn opens(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Open>> {
        self.opens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a file for an owner; its number, and whether another one was forgotten for it.
    pub fn open(&self, handle: Handle, owner: &[u8]) -> (u64, bool) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut opens = self.opens();
        let full = opens.len() >= OPENS_MAX;
        if full {
            opens.pop_first();
        }
        opens.insert(number, Open { handle, owner: owner.into() });
        (number, full)
    }

    /// The owner of an open file.
    pub fn owner(&self, number: u64) -> Option<Box<[u8]>> {
        self.opens().get(&number).map(|open| open.owner.clone())
    }

    /// True if a file is open under this handle.
    pub fn is_open(&self, handle: &Handle) -> bool {
        self.opens().values().any(|open| open.handle == *handle)
    }

    /// Closes a file.
    pub fn close(&self, number: u64) {
        self.opens().remove(&number);
    }

    /// Number of open files.
    pub fn count(&self) -> usize {
        self.opens().len()
    }
}

/// The state identifier of an open file.
pub fn put_state(out: &mut Vec<u8>, seqid: u32, number: u64) {
    put_u32(out, seqid);
    put_u32(out, MAGIC);
    put_u64(out, number);
}

/// What a state identifier says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// None is needed: all bits are 0, or 1.
    Special,
    /// One of ours.
    Open {
        /// How often it was changed.
        seqid: u32,
        /// Number.
        number: u64,
    },
    /// Another one.
    Foreign,
}

impl State {
    /// Reads a state identifier.
    pub fn of(bytes: &[u8]) -> State {
        if bytes.len() < STATE_BYTES {
            return State::Foreign;
        }
        let words = [0, 4, 8, 12].map(|at| get_u32(bytes, at));
        match words {
            [_, 0, 0, 0] | [u32::MAX, u32::MAX, u32::MAX, u32::MAX] => State::Special,
            [seqid, MAGIC, high, low] => {
                State::Open { seqid, number: u64::from(high) << 32 | u64::from(low) }
            }
            _ => State::Foreign,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_told_apart_and_the_oldest_is_forgotten() {
        let mut bytes = Vec::new();
        put_state(&mut bytes, 7, 0x1234_5678_9abc_def0);
        assert_eq!(State::of(&bytes), State::Open { seqid: 7, number: 0x1234_5678_9abc_def0 });
        assert_eq!([State::of(&[0; 16]), State::of(&[255; 16])], [State::Special; 2]);
        assert_eq!([State::of(&[1; 16]), State::of(&[0; 15])], [State::Foreign; 2]);
        let shared = Shared4::default();
        let handles = ["a", "b"].map(|name| Handle::new(name.as_bytes()).unwrap_or(Handle::EMPTY));
        let (first, full) = shared.open(handles[0], b"owner");
        assert!(!full && shared.is_open(&handles[0]) && !shared.is_open(&handles[1]));
        for _ in 1..OPENS_MAX {
            assert!(!shared.open(handles[1], b"other").1);
        }
        assert_eq!(shared.owner(first).as_deref(), Some(&b"owner"[..]));
        let (last, full) = shared.open(handles[1], b"other");
        assert!(full && shared.owner(first).is_none() && !shared.is_open(&handles[0]));
        shared.close(last);
        assert_eq!(shared.count(), OPENS_MAX - 1);
    }
}
