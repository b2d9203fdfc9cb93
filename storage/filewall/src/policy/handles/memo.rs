//! Handles that a thread has translated lately. Translation is a function of its arguments, so a remembered one is as good as a
//! new one, and costs a tenth: a listing of a hundred entries translates a hundred handles.
//!
//! Each thread has two tables of [`SLOTS`] places; a handle has one place in each, and what comes there next takes it. Only what
//! was found authentic is remembered, and a place is compared as a whole. A place keeps as much of a server's handle as a client's
//! can hold, so that it covers few lines of the cache.

use super::{HANDLE_BYTES_MAX, OpenHandle, SERVER_HANDLE_BYTES_MAX};
use crate::wire::nfs3::{HANDLE4_BYTES_MAX, Handle};
use std::cell::RefCell;
use std::hash::{BuildHasher, Hasher};

/// Places of a table: about 0.6 MB.
pub const SLOTS: usize = 4096;

/// A client's handle.
pub type Sealed = [u8; HANDLE_BYTES_MAX];

/// What a translation depends on besides the handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Under {
    /// Number of the policy, never 0.
    pub policy: u64,
    /// What handles are bound to.
    pub bound: [u8; 16],
}

/// A server's handle that may be put into a client's.
#[derive(Clone, Copy, Debug)]
pub struct Inner<'h> {
    /// Its bytes without the zeros at its end.
    pub used: &'h [u8],
    /// Its length with them.
    pub length: u8,
    /// As in [`OpenHandle`].
    pub above: bool,
}

impl<'h> Inner<'h> {
    /// `None` if it is too long.
    #[inline]
    pub fn new(server: &'h [u8], above: bool) -> Option<Inner<'h>> {
        let length = u8::try_from(server.len()).ok().filter(|_| server.len() <= HANDLE4_BYTES_MAX)?;
        let used = server.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        (used <= SERVER_HANDLE_BYTES_MAX).then(|| Inner { used: &server[..used], length, above })
    }
}

#[derive(Clone)]
struct Slot {
    under: Under,
    client: Sealed,
    server: [u8; SERVER_HANDLE_BYTES_MAX],
    used: u8,
    length: u8,
    above: bool,
}

impl Slot {
    const FREE: Slot = Slot {
        under: Under { policy: 0, bound: [0; 16] },
        client: [0; HANDLE_BYTES_MAX],
        server: [0; SERVER_HANDLE_BYTES_MAX],
        used: 0,
        length: 0,
        above: false,
    };

    fn new(under: &Under, inner: Inner<'_>, client: Sealed) -> Slot {
        let mut server = [0; SERVER_HANDLE_BYTES_MAX];
        server[..inner.used.len()].copy_from_slice(inner.used);
        let used = inner.used.len() as u8;
        Slot { under: *under, client, server, used, length: inner.length, above: inner.above }
    }

    fn used(&self) -> &[u8] {
        &self.server[..usize::from(self.used)]
    }

    fn is(&self, under: &Under, inner: Inner<'_>) -> bool {
        self.under == *under
            && (self.length, self.above) == (inner.length, inner.above)
            && self.used() == inner.used
    }
}

/// The tables of a thread.
pub struct Memo {
    hasher: foldhash::fast::RandomState,
    by_client: Vec<Slot>,
    by_server: Vec<Slot>,
}

thread_local! {
    static MEMO: RefCell<Memo> = RefCell::new(Memo {
        hasher: foldhash::fast::RandomState::default(),
        by_client: vec![Slot::FREE; SLOTS],
        by_server: vec![Slot::FREE; SLOTS],
    });
}

/// Lends this thread's tables, once for as many handles as there are.
pub fn with<T>(work: impl FnOnce(&mut Memo) -> T) -> T {
    MEMO.with_borrow_mut(work)
}

impl Memo {
    fn place(&self, under: &Under, bytes: &[u8]) -> usize {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u128(u128::from_ne_bytes(under.bound) ^ u128::from(under.policy));
        hasher.write(bytes);
        hasher.finish() as usize % SLOTS
    }

    /// The server's handle of a client's, from memory or by `work`.
    pub fn open(
        &mut self,
        under: &Under,
        client: &Sealed,
        work: impl FnOnce() -> Option<OpenHandle>,
    ) -> Option<OpenHandle> {
        let place = self.place(under, client);
        let known = &self.by_client[place];
        if known.under == *under && known.client == *client {
            let mut server = [0; HANDLE4_BYTES_MAX];
            server[..known.used().len()].copy_from_slice(known.used());
            let handle = Handle::new(&server[..usize::from(known.length)])?;
            return Some(OpenHandle { handle, above: known.above });
        }
        let open = work()?;
        let inner = Inner::new(open.handle.as_bytes(), open.above)?;
        self.by_client[place] = Slot::new(under, inner, *client);
        Some(open)
    }

    /// The client's handle for a server's, from memory or by `work`.
    pub fn seal(
        &mut self,
        under: &Under,
        inner: Inner<'_>,
        work: impl FnOnce() -> Option<Sealed>,
    ) -> Option<&Sealed> {
        let place = self.place(under, inner.used);
        let slot = &mut self.by_server[place];
        if !slot.is(under, inner) {
            *slot = Slot::new(under, inner, work()?);
        }
        Some(&slot.client)
    }
}
