//! Names and attributes of files in the segment (`segment/names.h`): what accelerated processes open and make files by.

use super::{Caller, Head, PROCESSES_MAX, Segment, copy, ready, thread_id, waited};
use crate::backend::Inode;
use std::cell::UnsafeCell;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Longest name that is in the table.
const NAME_BYTES_MAX: usize = 115;
const HOLDS_MAX: usize = 512;
/// Numbers that may be set aside for files that processes make.
const SPARES_MAX: usize = 1024;
/// What processes may have done before the daemon looks.
const EVENTS_MAX: usize = 4096;
/// Kinds of `struct segment_event`.
const MADE: u32 = 1;
const CHANGED: u32 = 2;
const REMOVED: u32 = 3;
const MOVED: u32 = 4;
const MOVED_TO: u32 = 5;

/// With the token and a file's number, in hexadecimal with `-` between, a name that only `private.c` uses.
const SECRET_BEGINS: &[u8] = b".weir-";
/// What follows where the file is to be fetched.
const SECRET_FETCHES: &str = "-fetch";
/// Largest file of a tree that never changes of which what is not here yet is fetched.
pub const FETCH_BYTES_MAX: u64 = 1 << 20;

/// `struct segment_node` of names.h.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeFields {
    /// Kind and permissions, as in `st_mode`.
    pub mode: u32,
    /// Owner.
    pub user: u32,
    /// Group.
    pub group: u32,
    /// Names.
    pub links: u32,
    /// Last read, nanoseconds since 1970.
    pub accessed_ns: u64,
    /// Last change of contents or attributes, likewise.
    pub changed_ns: u64,
    /// Last change of contents, as it was set; the record has the real one.
    pub modified_ns: u64,
}

#[repr(C)]
struct RawNode {
    fields: NodeFields,
    opens: AtomicU32,
    told: AtomicU32,
    listed: u32,
    entries: AtomicU32,
    held: AtomicU64,
}
const _: () = assert!(size_of::<RawNode>() == 64);

/// `struct segment_name` of names.h.
#[repr(C)]
struct RawName {
    next: u32,
    folder: u32,
    inode: u32,
    bytes: u8,
    text: [u8; NAME_BYTES_MAX],
}
const _: () = assert!(size_of::<RawName>() == 128);

/// `struct segment_event` of names.h.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawEvent {
    at_ns: u64,
    kind: u32,
    inode: u32,
    folder: u32,
    bytes: u8,
    text: [u8; NAME_BYTES_MAX],
}
const _: () = assert!(size_of::<RawEvent>() == 136);

/// `struct segment_names` of names.h.
#[repr(C)]
struct RawNames {
    lock: AtomicU32,
    lost: AtomicU32,
    buckets: u32,
    entries_max: u32,
    next_entry: u32,
    free_entry: u32,
    token: AtomicU64,
    nodes_offset: u64,
    entries_offset: u64,
    buckets_offset: u64,
    made_here: AtomicU64,
    events_count: AtomicU32,
    spare_count: AtomicU32,
    batch: AtomicU32,
    unfinished: AtomicU32,
    held_back: AtomicU32,
    full: AtomicU32,
    events: [UnsafeCell<RawEvent>; EVENTS_MAX],
    spare: [AtomicU32; SPARES_MAX],
    holds: [[AtomicU32; HOLDS_MAX]; PROCESSES_MAX],
}

unsafe extern "C" {
    fn segment_names(segment: *mut Head) -> *const RawNames;
    fn segment_node_at(segment: *mut Head, inode: u64) -> *mut RawNode;
    #[cfg(test)]
    fn segment_name_at(segment: *mut Head, entry: u64) -> *const RawName;
    fn names_lock(caller: *const Caller) -> i32;
    fn names_unlock(segment: *mut Head);
    fn names_put(segment: *mut Head, folder: u64, text: *const u8, bytes: u64, inode: u64);
    fn names_take(segment: *mut Head, folder: u64, text: *const u8, bytes: u64);
    fn names_release_all(segment: *mut Head, slot: u32);
    fn names_clear(segment: *mut Head, until: u64);
    #[cfg(test)]
    fn names_find(segment: *mut Head, folder: u64, text: *const u8, bytes: u64) -> u32;
    #[cfg(test)]
    fn names_remove(
        segment: *mut Head,
        folder: u64,
        text: *const u8,
        bytes: u64,
        inode: u64,
        now_ns: u64,
    ) -> i32;
    #[cfg(test)]
    fn names_make(segment: *mut Head, folder: u64, text: *const u8, bytes: u64, node: *const RawNode) -> u32;
}

/// What a process did past us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The file. Of one that was made, a number that was set aside.
    pub inode: Inode,
    /// When, nanoseconds since 1970.
    pub at_ns: u64,
    /// What.
    pub what: What,
}

/// What happened to a file; names with the directory that they are in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// It was made.
    Made(Inode, OsString),
    /// Its attributes changed.
    Changed,
    /// It lost a name.
    Removed(Inode, OsString),
    /// It has another name, in place of what had it.
    Moved((Inode, OsString), (Inode, OsString)),
}

/// What is asked for by a name that only processes know which map the segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Secret {
    /// A file that may have no other name any more.
    File(Inode),
    /// Contents of a file of a tree that never changes, to be put down here.
    Contents(Inode),
}

/// Names, locked; dropping it unlocks.
pub struct Names<'a> {
    segment: &'a Segment,
    raw: &'a RawNames,
}

/// What only processes that map the segment can say.
pub(super) fn begin(segment: &Segment) -> std::io::Result<()> {
    let mut token = [0; 8];
    // SAFETY: fills our eight bytes.
    if unsafe { libc::getrandom(token.as_mut_ptr().cast(), token.len(), 0) } != token.len() as isize {
        return Err(std::io::Error::last_os_error());
    }
    if let Some(raw) = raw(segment) {
        raw.token.store(u64::from_le_bytes(token), Ordering::Relaxed);
    }
    Ok(())
}

fn raw(segment: &Segment) -> Option<&RawNames> {
    // SAFETY: the mapping lives as long as `segment`; null where there are no names.
    unsafe { segment_names(segment.head).as_ref() }
}

impl Segment {
    /// Locks the names; nothing in a segment without them.
    pub fn names(&self) -> Option<Names<'_>> {
        let raw = raw(self)?;
        let caller = Caller { segment: self.head, thread: thread_id(), copy, waited, ready };
        // SAFETY: the segment has names, and `caller` outlives the call.
        let locked = unsafe { names_lock(&raw const caller) };
        assert_eq!(locked, 0, "a thread locks names once");
        Some(Names { segment: self, raw })
    }

    /// What a name stands for that only processes know which map the segment, in any directory.
    pub fn secret(&self, name: &OsStr) -> Option<Secret> {
        let rest = name.as_bytes().strip_prefix(SECRET_BEGINS)?;
        let (token, rest) = std::str::from_utf8(rest).ok()?.split_once('-')?;
        if u64::from_str_radix(token, 16) != Ok(raw(self)?.token.load(Ordering::Relaxed)) {
            return None;
        }
        let number = |text| u64::from_str_radix(text, 16).ok();
        match rest.strip_suffix(SECRET_FETCHES) {
            Some(inode) => number(inode).map(Secret::Contents),
            None => number(rest).map(Secret::File),
        }
    }

    fn node(&self, inode: Inode) -> *mut RawNode {
        assert!(inode < self.records_max(), "node {inode} is inside the segment");
        // SAFETY: the segment has names; inside the table by the assertion.
        unsafe { segment_node_at(self.head, inode) }
    }

    /// The kernel is told a file of a tree that never changes once more. Call it before it is.
    pub fn tell_once(&self, inode: Inode) {
        if self.has_names() {
            // SAFETY: in the mapping.
            let told = unsafe { &(*self.node(inode)).told };
            // What is told more often than can be counted counts as told for ever.
            let _ = told.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |times| times.checked_add(1));
        }
    }

    /// It forgot so many tellings of it.
    pub fn untell(&self, inode: Inode, times: u64) {
        if self.has_names() {
            let times = u32::try_from(times).unwrap_or(u32::MAX);
            // SAFETY: in the mapping.
            let told = unsafe { &(*self.node(inode)).told };
            let less = |told: u32| (told < u32::MAX).then(|| told.saturating_sub(times));
            let _ = told.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        }
    }

    /// There is no room for more contents: processes leave files of which nothing is here to the kernel from now on.
    pub fn fetch_no_more(&self) {
        if let Some(raw) = raw(self) {
            raw.full.store(1, Ordering::Release);
        }
    }

    /// Whether processes may open and make files by it.
    pub fn has_names(&self) -> bool {
        raw(self).is_some()
    }

    /// Files that processes made by themselves.
    pub(super) fn files_made(&self) -> u64 {
        raw(self).map_or(0, |raw| raw.made_here.load(Ordering::Relaxed))
    }
}

impl Names<'_> {
    /// A name is there now, or stands for another file.
    pub fn put(&mut self, folder: Inode, name: &OsStr, inode: Inode) {
        let text = name.as_bytes();
        // SAFETY: locked; `text` is as long as we say.
        unsafe { names_put(self.segment.head, folder, text.as_ptr(), text.len() as u64, inode) };
    }

    /// A name is there no more.
    pub fn take(&mut self, folder: Inode, name: &OsStr) {
        let text = name.as_bytes();
        // SAFETY: locked; `text` is as long as we say.
        unsafe { names_take(self.segment.head, folder, text.as_ptr(), text.len() as u64) };
    }

    fn node(&self, inode: Inode) -> *mut RawNode {
        self.segment.node(inode)
    }

    /// A file that is only partly here takes so many blocks of 512 bytes where it is whole.
    pub fn describe_partial(&mut self, inode: Inode, fields: NodeFields, held: u64) {
        self.describe(inode, fields, 0);
        // SAFETY: in the mapping.
        unsafe { (*self.node(inode)).held.store(held, Ordering::Relaxed) };
    }

    /// Attributes are these now; of a directory also how many names it has.
    pub fn describe(&mut self, inode: Inode, fields: NodeFields, entries: usize) {
        let node = self.node(inode);
        // SAFETY: in the mapping.
        unsafe { (*node).entries.store(entries as u32, Ordering::Relaxed) };
        // SAFETY: in the mapping, and nobody else uses fields without the lock.
        unsafe { (&raw mut (*node).fields).write(fields) };
    }

    /// Whether a process has it open that did not tell the kernel.
    pub fn is_held(&self, inode: Inode) -> bool {
        // SAFETY: in the mapping.
        unsafe { (*self.node(inode)).opens.load(Ordering::SeqCst) > 0 }
    }

    /// Gives back what processes held that are gone.
    pub fn release_dead(&mut self) {
        for (slot, process) in self.segment.head().processes.iter().enumerate() {
            let id = process.id.load(Ordering::Relaxed) as i32;
            let is_dead = rustix::process::Pid::from_raw(id)
                .is_some_and(|id| rustix::process::test_kill_process(id) == Err(rustix::io::Errno::SRCH));
            if is_dead {
                // SAFETY: the segment has names, and the slot is one.
                unsafe { names_release_all(self.segment.head, slot as u32) };
            }
        }
    }

    /// What processes did and that was not [`Names::taken`], in order. What makes no sense is left out: a foreign process wrote it.
    pub fn events(&self) -> Vec<Event> {
        let count = (self.raw.events_count.load(Ordering::Acquire) as usize).min(EVENTS_MAX);
        let at = |place: usize| {
            // SAFETY: lies in the mapping, and does not change while we hold the lock.
            let raw = unsafe { *self.raw.events.get(place).filter(|_| place < count)?.get() };
            let text = raw.text.get(..usize::from(raw.bytes))?.to_vec();
            Some((raw, (Inode::from(raw.folder), OsString::from_vec(text))))
        };
        let event = |place| {
            let (raw, name) = at(place)?;
            let what = match raw.kind {
                MADE => What::Made(name.0, name.1),
                CHANGED => What::Changed,
                REMOVED => What::Removed(name.0, name.1),
                MOVED => What::Moved(
                    name,
                    at(place + 1).filter(|(next, _)| next.kind == MOVED_TO).map(|(_, to)| to)?,
                ),
                _ => return None,
            };
            let inode = Inode::from(raw.inode);
            (inode < self.segment.records_max()).then_some(Event { inode, at_ns: raw.at_ns, what })
        };
        (0..count).filter_map(event).collect()
    }

    /// Attributes as they are here.
    pub fn fields(&self, inode: Inode) -> NodeFields {
        // SAFETY: in the mapping, and nobody else uses fields without the lock.
        unsafe { (&raw const (*self.node(inode)).fields).read() }
    }

    /// The kernel knows the file by so many tellings.
    pub fn tell(&mut self, inode: Inode, times: u64) {
        // SAFETY: in the mapping.
        unsafe { (*self.node(inode)).told.store(times.min(u64::from(u32::MAX)) as u32, Ordering::Relaxed) };
    }

    /// Whether there is something in [`Names::events`], or somebody died in the middle of it.
    pub fn has_news(&self) -> bool {
        self.raw.events_count.load(Ordering::Acquire) > 0 || self.is_unfinished()
    }

    /// Whether names may be others than the events say.
    pub fn is_unfinished(&self) -> bool {
        self.raw.unfinished.load(Ordering::Acquire) != 0
    }

    /// What is there is known now.
    pub fn taken(&mut self) {
        self.raw.events_count.store(0, Ordering::Release);
        self.raw.batch.fetch_add(1, Ordering::Release);
    }

    /// What follows is not to be seen in part, even if we die.
    pub fn change_begins(&mut self) {
        self.raw.unfinished.store(1, Ordering::Release);
    }

    /// It may be seen.
    pub fn change_ends(&mut self) {
        self.raw.unfinished.store(0, Ordering::Release);
    }

    /// Whether processes make names.
    pub fn hold_back(&mut self, held_back: bool) {
        self.raw.held_back.store(held_back.into(), Ordering::Release);
    }

    /// No name is there. All files have lower numbers than `until`.
    pub fn clear(&mut self, until: Inode) {
        // SAFETY: the segment has names, and they are locked.
        unsafe { names_clear(self.segment.head, until) };
    }

    /// The numbers that are set aside.
    pub fn numbers_aside(&self) -> Vec<Inode> {
        let aside = self.raw.spare[..self.spare()].iter();
        aside.map(|place| Inode::from(place.load(Ordering::Relaxed))).collect()
    }

    /// As a process does it: the file of a name.
    #[cfg(test)]
    pub(crate) fn find(&self, folder: Inode, name: &OsStr) -> Option<Inode> {
        let text = name.as_bytes();
        // SAFETY: locked; `text` is as long as we say.
        let entry = unsafe { names_find(self.segment.head, folder, text.as_ptr(), text.len() as u64) };
        // SAFETY: an entry that was found lies in the mapping.
        (entry != 0)
            .then(|| unsafe { Inode::from((*segment_name_at(self.segment.head, u64::from(entry))).inode) })
    }

    /// As a process does it: makes a file.
    #[cfg(test)]
    pub(super) fn make(&mut self, folder: Inode, name: &OsStr, fields: NodeFields) -> Option<Inode> {
        let (text, node) = (
            name.as_bytes(),
            RawNode {
                fields,
                opens: AtomicU32::new(0),
                told: AtomicU32::new(0),
                listed: 0,
                entries: AtomicU32::new(0),
                held: AtomicU64::new(0),
            },
        );
        // SAFETY: locked; `text` is as long as we say, and `node` outlives the call.
        let made = unsafe {
            names_make(self.segment.head, folder, text.as_ptr(), text.len() as u64, &raw const node)
        };
        (made != 0).then(|| Inode::from(made))
    }

    /// As a process does it: takes a name away.
    #[cfg(test)]
    pub(crate) fn remove(&mut self, folder: Inode, name: &OsStr, inode: Inode) -> bool {
        let text = name.as_bytes();
        // SAFETY: locked; `text` is as long as we say.
        let done =
            unsafe { names_remove(self.segment.head, folder, text.as_ptr(), text.len() as u64, inode, 1) };
        done != 0
    }

    /// Whether some process could make files.
    pub fn has_users(&self) -> bool {
        self.segment.head().processes.iter().any(|process| process.id.load(Ordering::Relaxed) != 0)
    }

    /// How many numbers are set aside.
    pub fn spare(&self) -> usize {
        (self.raw.spare_count.load(Ordering::Relaxed) as usize).min(SPARES_MAX)
    }

    /// Sets a number aside; false when there is no room.
    pub fn set_aside(&mut self, inode: Inode) -> bool {
        let count = self.spare();
        let Some(place) = self.raw.spare.get(count) else { return false };
        place.store(inode as u32, Ordering::Relaxed);
        self.raw.spare_count.store(count as u32 + 1, Ordering::Release);
        true
    }
}

impl Drop for Names<'_> {
    fn drop(&mut self) {
        // SAFETY: locked by us.
        unsafe { names_unlock(self.segment.head) };
    }
}
