//! Handles that a thread has translated lately. Translation is a function of its arguments, so a remembered one is as good as a
//! new one, and costs a tenth: a listing of a hundred entries translates a hundred handles.
//!
//! Each thread has two tables of [`SLOTS`] places; a handle has one place in each, and what comes there next takes it. Only what
//! was found authentic is remembered, and a place is compared as a whole.

use super::OpenHandle;
use crate::wire::nfs3::Handle;
use std::cell::RefCell;
use std::hash::BuildHasher;

/// Places of a table: about 0.7 MB.
pub const SLOTS: usize = 4096;

#[derive(Clone)]
struct Slot {
    policy: u64,
    bound: [u8; 16],
    client: Handle,
    open: OpenHandle,
}

struct Memo {
    hasher: foldhash::fast::RandomState,
    by_client: Vec<Option<Slot>>,
    by_server: Vec<Option<Slot>>,
}

thread_local! {
    static MEMO: RefCell<Memo> = RefCell::new(Memo {
        hasher: foldhash::fast::RandomState::default(),
        by_client: vec![None; SLOTS],
        by_server: vec![None; SLOTS],
    });
}

/// The server's handle of a client's, from memory or by `work`.
pub fn open(
    policy: u64,
    bound: &[u8; 16],
    client: Handle,
    work: impl FnOnce() -> Option<OpenHandle>,
) -> Option<OpenHandle> {
    MEMO.with_borrow_mut(|memo| {
        let place = memo.hasher.hash_one((policy, bound, client.as_bytes())) as usize % SLOTS;
        let slot = &mut memo.by_client[place];
        if let Some(known) = slot
            && known.policy == policy
            && known.bound == *bound
            && known.client == client
        {
            return Some(known.open);
        }
        let open = work()?;
        *slot = Some(Slot { policy, bound: *bound, client, open });
        Some(open)
    })
}

/// The client's handle for a server's, from memory or by `work`.
pub fn seal(
    policy: u64,
    bound: &[u8; 16],
    open: OpenHandle,
    work: impl FnOnce() -> Option<Handle>,
) -> Option<Handle> {
    MEMO.with_borrow_mut(|memo| {
        let place =
            memo.hasher.hash_one((policy, bound, open.handle.as_bytes(), open.above)) as usize % SLOTS;
        let slot = &mut memo.by_server[place];
        if let Some(known) = slot
            && known.policy == policy
            && known.bound == *bound
            && known.open == open
        {
            return Some(known.client);
        }
        let client = work()?;
        *slot = Some(Slot { policy, bound: *bound, client, open });
        Some(client)
    })
}
