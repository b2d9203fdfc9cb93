//! A call and a reply as policies see and change them (rows F: attribute remapping, operation and argument rewriting).
//!
//! Fields of fixed size are changed where they lie. Handles may change their length: a new handle is kept beside the
//! record, and [`Call::put`] and [`Reply::put`] write the head of the record with it. A payload is never touched: what they
//! write ends where it begins, and the rest of the record follows from the receive buffer.

mod listing;

pub use listing::EntryHandles;

use crate::identity::Principal;
use crate::places::Place;
use crate::policy::does;
use crate::wire::call::Arguments;
use crate::wire::nfs3::{ATTRIBUTES_BYTES, Handle, Op, Status};
use crate::wire::reply::{BEFORE_BYTES, Results};
use crate::wire::rpc::{CallHead, Credential, mark_of};
use crate::wire::xdr::{get_u32, padded, put_opaque, put_u32, set_u32};
use std::ops::Range;
use std::sync::Arc;

/// What time it is, read once for each batch of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Since the Unix epoch, milliseconds.
    pub unix_ms: u64,
    /// Since an arbitrary moment, never going back, microseconds.
    pub steady_us: u64,
}

/// What quotas have counted for a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Bytes that files grow by.
    pub bytes: u64,
    /// When the first of them did, since the Unix epoch, milliseconds.
    pub unix_ms: u64,
}

/// A call of FileWall's own, made on behalf of a policy that must know more before it decides (paper 4.2.3: messages are
/// injected, and their replies filtered out).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Handle of the object, or of the directory.
    pub handle: Handle,
    /// The name to look up; without one, the object's attributes are asked for.
    pub name: Option<Box<[u8]>>,
}

/// What the server answered to a [`Probe`].
#[derive(Clone, Debug)]
pub struct ProbeAnswer {
    /// What was asked.
    pub probe: Probe,
    /// `nfsstat3`.
    pub status: u32,
    /// Handle of the name.
    pub handle: Option<Handle>,
    /// `fattr3`.
    pub attributes: Option<[u8; ATTRIBUTES_BYTES]>,
}

/// What a policy notes when a call is shown to it, and finds again with the reply: what had changed so far, so that a reply which a change
/// has overtaken teaches nothing ([`crate::policy::rbac`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Keys of the names that the call is about.
    pub keys: [Option<(u64, u64)>; 2],
    /// Numbers of their folders.
    pub folders: [u16; 2],
    /// Changes of the first name so far, or in the folder that is listed.
    pub names: u64,
    /// Changes of names so far that came in the other version of NFS.
    pub names_elsewhere: u64,
    /// Changes of owners so far, in each version; 0 where nothing was noted.
    pub owners: [u64; 2],
    /// What the call itself changes, as bits.
    pub begun: u8,
    /// It came in NFSv4.
    pub four: bool,
    /// An object may have several handles, so that names are always asked for.
    pub asks: bool,
    /// When, µs.
    pub at_us: u64,
}

/// Most probes for one call.
pub const PROBES_MAX: usize = 6;

/// What a call is besides, where it is an operation of a COMPOUND of NFSv4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InCompound {
    /// The cookie that a READDIR begins behind.
    pub cookie: u64,
    /// It is on a file that a policy made up, which is open under this handle.
    pub open: bool,
    /// Who the server shall think is calling, user and group: the COMPOUND has one credential for all its operations.
    pub user: Option<(u32, u32)>,
}

/// A call on its way to the server: one of NFSv3, or an operation of a COMPOUND of NFSv4 that has its like in NFSv3.
#[derive(Debug)]
pub struct Call<'a> {
    record: &'a mut [u8],
    record_bytes: usize,
    /// Its head.
    pub head: CallHead,
    /// Where its arguments are.
    pub arguments: Arguments,
    /// Who calls.
    pub caller: &'a Arc<Principal>,
    /// When.
    pub now: Now,
    /// Places of its handles where they follow from the operations before it, as in a COMPOUND of NFSv4; otherwise they are
    /// those of the handles.
    pub places: Option<[Option<Place>; 2]>,
    /// Set for an operation of a COMPOUND.
    pub compound: Option<InCompound>,
    /// What the server answered to the probes of this call.
    pub told: Vec<ProbeAnswer>,
    /// What a policy wants to know, with [`crate::policy::Verdict::Ask`].
    pub probe: Option<Box<Probe>>,
    /// Results, from the status on, of a call that a policy answers itself, with [`crate::policy::Verdict::Reply`].
    pub results: Vec<u8>,
    /// What a policy wants to remember until the reply comes; 0 is nothing.
    pub note: u64,
    /// What quotas have counted for it.
    pub counted: Counted,
    /// What had changed when it was shown to the policies first.
    pub seen: Seen,
    /// A policy lets others go first for so long, µs.
    pub aside_us: u64,
    /// It was sent to the server before, and nobody knows what became of it.
    pub unknown: bool,
    /// Policies that let the same operation of a COMPOUND go on before, as bits, when it was shown as another one.
    pub passed: u64,
    /// What a policy answers such a call with, unless it turns out to have happened; it must not reach the server then.
    pub unless: Option<Status>,
    handles: [Option<Handle>; 2],
}

impl<'a> Call<'a> {
    /// A call whose head and arguments were read from `record`, the beginning of `record_bytes` bytes.
    pub fn new(
        record: &'a mut [u8],
        record_bytes: usize,
        head: CallHead,
        arguments: Arguments,
        caller: &'a Arc<Principal>,
        now: Now,
    ) -> Self {
        Self {
            record,
            record_bytes,
            head,
            arguments,
            caller,
            now,
            places: None,
            compound: None,
            told: Vec::new(),
            probe: None,
            results: Vec::new(),
            note: 0,
            counted: Counted::default(),
            seen: Seen::default(),
            aside_us: 0,
            unknown: false,
            passed: 0,
            unless: None,
            handles: [None; 2],
        }
    }

    /// Operation.
    pub fn op(&self) -> Op {
        self.arguments.op
    }

    /// Length of the record, bytes.
    pub fn record_bytes(&self) -> usize {
        self.record_bytes
    }

    /// The `number`th handle as it stands now; empty if the operation has none.
    pub fn handle(&self, number: usize) -> &[u8] {
        match &self.handles[number] {
            Some(handle) => handle.as_bytes(),
            None => self.arguments.handles[number].of(self.record),
        }
    }

    /// Puts another handle in place of the `number`th.
    pub fn set_handle(&mut self, number: usize, handle: Handle) {
        self.handles[number] = Some(handle);
    }

    /// The handles that were put in place of others.
    pub fn replaced_handles(&self) -> [Option<Handle>; 2] {
        self.handles
    }

    /// Puts the handles back that were replaced before the call was delayed.
    pub fn restore_handles(&mut self, handles: [Option<Handle>; 2]) {
        self.handles = handles;
    }

    /// The `number`th name; empty if the operation has none.
    pub fn name(&self, number: usize) -> &[u8] {
        self.arguments.names[number].of(self.record)
    }

    /// The integer at `at`, one of the places in [`Call::arguments`].
    pub fn word(&self, at: usize) -> u32 {
        get_u32(self.record, at)
    }

    /// Changes the integer at `at`, one of the places in [`Call::arguments`].
    pub fn set_word(&mut self, at: usize, value: u32) {
        set_u32(self.record, at, value);
    }

    /// Changes who the server shall think is calling; nothing happens without AUTH_SYS.
    pub fn set_user(&mut self, uid: u32, gid: u32) {
        if let Some(compound) = &mut self.compound {
            compound.user = Some((uid, gid));
            return;
        }
        if let Credential::Sys(sys) = &self.head.credential {
            set_u32(self.record, sys.uid_at, uid);
            set_u32(self.record, sys.uid_at + 4, gid);
        }
    }

    /// Changes each further group with `change`.
    pub fn map_groups(&mut self, mut change: impl FnMut(u32) -> u32) {
        if let Credential::Sys(sys) = &self.head.credential {
            for number in 0..sys.group_count {
                let at = sys.uid_at + 12 + 4 * number;
                let group = change(get_u32(self.record, at));
                set_u32(self.record, at, group);
            }
        }
    }

    /// The cookie that a READDIR or READDIRPLUS begins behind.
    pub fn cookie(&self) -> u64 {
        if let Some(compound) = &self.compound {
            return compound.cookie;
        }
        let at = self.arguments.handles[0].padded_end();
        u64::from(get_u32(self.record, at)) << 32 | u64::from(get_u32(self.record, at + 4))
    }

    /// Lets the server leave room for an entry of `bytes` more in a READDIR or READDIRPLUS.
    pub fn leave_room(&mut self, bytes: u32) {
        let last = self.listing_bytes_at();
        let asked = get_u32(self.record, last);
        set_u32(self.record, last, asked.saturating_sub(bytes).max(asked.min(1024)));
    }

    /// Where the longest reply to a READDIR or READDIRPLUS stands: at the end, or where the COMPOUND has it.
    fn listing_bytes_at(&self) -> usize {
        let last = self.record_bytes - 4;
        if self.compound.is_some() { self.arguments.maxcount_at.unwrap_or(last) } else { last }
    }

    /// The longest reply to a READDIR or READDIRPLUS, bytes.
    pub fn listing_bytes(&self) -> u32 {
        get_u32(self.record, self.listing_bytes_at())
    }

    /// All that it does, as bits ([`does`]).
    pub fn does(&self) -> u32 {
        does::does(&self.arguments)
    }

    /// Bytes of data that it brings (WRITE, SYMLINK) or asks for (READ).
    pub fn data_bytes(&self) -> u64 {
        match self.op() {
            Op::Read | Op::Write => u64::from(self.arguments.count),
            Op::Symlink => self.arguments.target.map_or(0, |target| target.bytes as u64),
            _ => 0,
        }
    }

    /// The first bytes of the data of a WRITE, as far as they are at hand.
    pub fn payload(&self, bytes_max: usize) -> &[u8] {
        let payload = self.arguments.payload.unwrap_or_default();
        let end = (payload.start + payload.bytes.min(bytes_max)).min(self.record.len());
        self.record.get(payload.start..end).unwrap_or_default()
    }

    /// Where the head ends and the data of a WRITE begins.
    pub fn head_end(&self) -> usize {
        self.arguments.payload.map_or(self.record_bytes, |payload| payload.start)
    }

    /// What stands behind the head, as far as it is at hand.
    pub fn behind_head(&self) -> &[u8] {
        &self.record[self.head_end()..]
    }

    /// Appends the record mark and the head, with `xid` for its transaction number.
    pub fn put(&self, xid: u32, out: &mut Vec<u8>) {
        let replaced = |number: usize| {
            let old = self.arguments.handles[number];
            self.handles[number].as_ref().map(|new| (old.start - 4..old.padded_end(), Some(new)))
        };
        put_head(
            self.record,
            self.record_bytes,
            self.head_end(),
            xid,
            [replaced(0), replaced(1)].into_iter().flatten(),
            out,
        );
    }
}

/// Appends mark and head of a record, with new handles in place of old ones, and with what is replaced by nothing said to be absent.
fn put_head<'h>(
    record: &[u8],
    record_bytes: usize,
    head_end: usize,
    xid: u32,
    replaced: impl Iterator<Item = (Range<usize>, Option<&'h Handle>)>,
    out: &mut Vec<u8>,
) {
    let begin = out.len();
    put_u32(out, 0);
    put_u32(out, xid);
    let mut from = 4;
    let mut bytes = record_bytes;
    for (old, new) in replaced {
        out.extend_from_slice(&record[from..old.start]);
        let new = new.map_or(&[][..], Handle::as_bytes);
        // An empty opaque and a boolean that is false are the same word.
        put_opaque(out, new);
        from = old.end;
        bytes = bytes + 4 + padded(new.len()) - old.len();
    }
    out.extend_from_slice(&record[from..head_end]);
    out[begin..begin + 4].copy_from_slice(&mark_of(bytes).to_be_bytes());
}

/// What is remembered of a forwarded call until its reply has come.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Operation.
    pub op: Op,
    /// Who called.
    pub caller: Arc<Principal>,
    /// First handle as the server got it.
    pub handle: Handle,
    /// Second handle as the server got it.
    pub handle_to: Option<Handle>,
    /// Place of the first handle, where it follows from the operations before it, as in a COMPOUND of NFSv4; otherwise it is the handle's.
    pub place: Option<Place>,
    /// First name, where somebody needs it.
    pub name: Option<Box<[u8]>>,
    /// Second name, where somebody needs it.
    pub name_to: Option<Box<[u8]>>,
    /// `maxcount` of READDIRPLUS as the client gave it, bytes.
    pub maxcount: u32,
    /// True if the client's transport is UDP.
    pub datagram: bool,
    /// What a policy wanted to remember.
    pub note: u64,
    /// What quotas have counted for it.
    pub counted: Counted,
    /// What had changed when the call was shown to the policies first.
    pub seen: Seen,
}

#[cfg(test)]
impl Asked {
    /// A GETATTR of nothing in particular.
    pub fn getattr(caller: Arc<Principal>) -> Asked {
        Asked {
            op: Op::Getattr,
            caller,
            handle: Handle::EMPTY,
            handle_to: None,
            place: None,
            name: None,
            name_to: None,
            maxcount: 0,
            datagram: false,
            note: 0,
            counted: Counted::default(),
            seen: Seen::default(),
        }
    }
}

/// An entry that a policy adds behind the last one of a directory.
#[derive(Clone, Debug)]
pub struct Extra {
    /// Number of the file.
    pub fileid: u64,
    /// Its name.
    pub name: Box<[u8]>,
    /// Where a listing goes on behind it.
    pub cookie: u64,
    /// Its attributes; READDIRPLUS only.
    pub attributes: [u8; ATTRIBUTES_BYTES],
    /// Its handle; READDIRPLUS only.
    pub handle: Handle,
}

/// A reply of NFSv3 on its way to the client.
#[derive(Debug)]
pub struct Reply<'a> {
    record: &'a mut [u8],
    record_bytes: usize,
    /// Where its results are.
    pub results: &'a mut Results,
    handle: Option<Handle>,
    entry_handles: &'a mut EntryHandles,
    /// An entry to be added where the directory ends.
    pub extra: Option<Box<Extra>>,
    /// True if its entries say what the same folder's have said before.
    pub learnt: bool,
    /// True if something was taken out of its entries.
    hides: bool,
    /// True if the client gets no attributes but those of entries.
    bare: bool,
    /// The client gets this in place of the reply.
    pub failed: Option<Status>,
}

impl<'a> Reply<'a> {
    /// A reply whose results were read from `record`. `scratch` is for the handles of entries, and is emptied.
    pub fn new(
        record: &'a mut [u8],
        record_bytes: usize,
        results: &'a mut Results,
        scratch: &'a mut EntryHandles,
    ) -> Self {
        scratch.clear();
        Self {
            record,
            record_bytes,
            results,
            handle: None,
            entry_handles: scratch,
            extra: None,
            learnt: false,
            hides: false,
            bare: false,
            failed: None,
        }
    }

    /// Handle of the object looked up or made.
    pub fn handle(&self) -> Option<&[u8]> {
        match &self.handle {
            Some(handle) => Some(handle.as_bytes()),
            None => self.results.handle.map(|span| span.of(self.record)),
        }
    }

    /// Puts another handle in its place; nothing happens if there is none.
    pub fn set_handle(&mut self, handle: Handle) {
        if self.results.handle.is_some() {
            self.handle = Some(handle);
        }
    }

    /// The integer at `at`, one of the places in [`Reply::results`].
    pub fn word(&self, at: usize) -> u32 {
        get_u32(self.record, at)
    }

    /// Changes the integer at `at`, one of the places in [`Reply::results`].
    pub fn set_word(&mut self, at: usize, value: u32) {
        set_u32(self.record, at, value);
    }

    /// The `fattr3` at `at`, one of the places in [`Reply::results`].
    pub fn attributes_at(&self, at: usize) -> &[u8] {
        &self.record[at..at + ATTRIBUTES_BYTES]
    }

    /// The bytes at `at`, one of the places in [`Reply::results`].
    pub fn bytes_at(&mut self, at: usize, bytes: usize) -> &mut [u8] {
        &mut self.record[at..at + bytes]
    }

    /// Calls `change` with the place of each `fattr3` in the reply.
    pub fn each_attributes(&mut self, mut change: impl FnMut(&mut [u8], usize)) {
        for at in &self.results.attributes {
            change(self.record, *at);
        }
        for at in self.results.entries.iter().filter_map(|entry| entry.attributes) {
            change(self.record, at);
        }
    }

    /// True if there are attributes in it besides those of entries.
    pub fn has_attributes(&self) -> bool {
        !self.results.attributes.is_empty() || !self.results.before.is_empty()
    }

    /// Takes them out: NFSv3 lets a server leave them out wherever they are not what is asked for.
    pub fn hide_attributes(&mut self) {
        self.bare = true;
    }

    /// What is replaced in the record, in its order: the handle, and behind it attributes that the client does not get. A boolean stands
    /// in front of each of these.
    fn replaced(&self) -> impl Iterator<Item = (Range<usize>, Option<&Handle>)> {
        let span = self.results.handle.zip(self.handle.as_ref());
        let handle = span.map(|(old, new)| (old.start - 4..old.padded_end(), Some(new)));
        let mut gone = Vec::new();
        if self.bare {
            let Results { attributes, before, .. } = &*self.results;
            gone.extend(attributes.iter().map(|at| (at - 4..at + ATTRIBUTES_BYTES, None)));
            gone.extend(before.iter().map(|at| (at - 4..at + BEFORE_BYTES, None)));
            gone.sort_unstable_by_key(|(range, _)| range.start);
        }
        handle.into_iter().chain(gone)
    }

    /// Where the head ends and the data of a READ begins.
    pub fn head_end(&self) -> usize {
        self.results.payload.map_or(self.record_bytes, |payload| payload.start)
    }

    /// Appends the record mark and the head, with `xid` for its transaction number. A list of entries that new handles
    /// made longer than `results_bytes_max` (results, from the status on, at `results_at`) is cut: the client asks
    /// for the rest with the last entry's cookie. True if it was cut.
    pub fn put(&self, xid: u32, results_at: usize, results_bytes_max: usize, out: &mut Vec<u8>) -> bool {
        if self.entry_handles.is_empty() && self.extra.is_none() && !self.hides {
            put_head(self.record, self.record_bytes, self.head_end(), xid, self.replaced(), out);
            return false;
        }
        self.put_entries(xid, results_at, results_bytes_max, out)
    }
}

#[cfg(test)]
mod tests;
