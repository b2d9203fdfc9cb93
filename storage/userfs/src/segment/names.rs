//! Names and attributes of files in the segment (`segment/names.h`): what accelerated processes open and make files by.

use super::{Caller, Head, PROCESSES_MAX, Segment, copy, ready, waited};
use crate::backend::Inode;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Longest name that is in the table.
const NAME_BYTES_MAX: usize = 115;
const HOLDS_MAX: usize = 512;
/// Numbers that may be set aside for files that processes make, and files that they may have made before the daemon looks.
const EXCHANGE_MAX: usize = 1024;

/// With the token and a file's number, in hexadecimal with `-` between, a name that only `private.c` uses.
const SECRET_BEGINS: &[u8] = b".weir-";

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
    _reserved: [u32; 5],
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
    made_count: AtomicU32,
    spare_count: AtomicU32,
    changed_count: AtomicU32,
    unfinished: AtomicU32,
    made: [AtomicU32; EXCHANGE_MAX],
    changed: [AtomicU32; EXCHANGE_MAX],
    spare: [AtomicU32; EXCHANGE_MAX],
    holds: [[AtomicU32; HOLDS_MAX]; PROCESSES_MAX],
}

unsafe extern "C" {
    fn segment_names(segment: *mut Head) -> *const RawNames;
    fn segment_node_at(segment: *mut Head, inode: u64) -> *mut RawNode;
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
    fn names_make(segment: *mut Head, folder: u64, text: *const u8, bytes: u64, node: *const RawNode) -> u32;
}

/// A file that a process made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// Its number, one of those that were set aside.
    pub inode: Inode,
    /// The directory that it is in.
    pub folder: Inode,
    /// Its name there.
    pub name: Vec<u8>,
    /// Its attributes.
    pub fields: NodeFields,
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
        let caller = Caller {
            segment: self.head,
            thread: rustix::thread::gettid().as_raw_nonzero().get() as u32,
            copy,
            waited,
            ready,
        };
        // SAFETY: the segment has names, and `caller` outlives the call.
        let locked = unsafe { names_lock(&raw const caller) };
        assert_eq!(locked, 0, "a thread locks names once");
        Some(Names { segment: self, raw })
    }

    /// The file for which a name stands that only processes know that map the segment, in any directory: a file that has no
    /// other name any more.
    pub fn named_by_secret(&self, name: &OsStr) -> Option<Inode> {
        let rest = name.as_bytes().strip_prefix(SECRET_BEGINS)?;
        let (token, inode) = std::str::from_utf8(rest).ok()?.split_once('-')?;
        let is_ours = u64::from_str_radix(token, 16) == Ok(raw(self)?.token.load(Ordering::Relaxed));
        is_ours.then(|| u64::from_str_radix(inode, 16).ok()).flatten()
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
        assert!(inode < self.segment.records_max(), "node {inode} is inside the segment");
        // SAFETY: the segment has names; inside the table by the assertion.
        unsafe { segment_node_at(self.segment.head, inode) }
    }

    /// Attributes are these now.
    pub fn describe(&mut self, inode: Inode, fields: NodeFields) {
        let node = self.node(inode);
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

    /// Files that processes made and that were not [`Names::taken`], in order.
    pub fn made(&self) -> Vec<Made> {
        let count = (self.raw.made_count.load(Ordering::Acquire) as usize).min(EXCHANGE_MAX);
        let of = |place: &AtomicU32| {
            let inode = Inode::from(place.load(Ordering::Relaxed));
            if inode >= self.segment.records_max() {
                return None;
            }
            // SAFETY: both lie in the mapping, and do not change while we hold the lock.
            let (name, node) =
                unsafe { (segment_name_at(self.segment.head, inode).as_ref()?, self.node(inode).as_ref()?) };
            let text = name.text.get(..usize::from(name.bytes))?;
            Some(Made { inode, folder: Inode::from(name.folder), name: text.to_vec(), fields: node.fields })
        };
        self.raw.made[..count].iter().filter_map(of).collect()
    }

    /// Files whose attributes processes changed, likewise, as they are now.
    pub fn changed(&self) -> Vec<(Inode, NodeFields)> {
        let count = (self.raw.changed_count.load(Ordering::Acquire) as usize).min(EXCHANGE_MAX);
        let of = |place: &AtomicU32| {
            let inode = Inode::from(place.load(Ordering::Relaxed));
            // SAFETY: inside the table, and not changed while we hold the lock.
            (inode < self.segment.records_max()).then(|| (inode, unsafe { (*self.node(inode)).fields }))
        };
        self.raw.changed[..count].iter().filter_map(of).collect()
    }

    /// Whether there is something in [`Names::made`] or [`Names::changed`].
    pub fn has_news(&self) -> bool {
        self.raw.made_count.load(Ordering::Acquire) > 0 || self.raw.changed_count.load(Ordering::Acquire) > 0
    }

    /// What is there is known now.
    pub fn taken(&mut self) {
        self.raw.made_count.store(0, Ordering::Release);
        self.raw.changed_count.store(0, Ordering::Release);
    }

    /// What follows is not to be seen in part, even if we die.
    pub fn change_begins(&mut self) {
        self.raw.unfinished.store(1, Ordering::Release);
    }

    /// It may be seen.
    pub fn change_ends(&mut self) {
        self.raw.unfinished.store(0, Ordering::Release);
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
        let (text, node) = (name.as_bytes(), RawNode { fields, opens: AtomicU32::new(0), _reserved: [0; 5] });
        // SAFETY: locked; `text` is as long as we say, and `node` outlives the call.
        let made = unsafe {
            names_make(self.segment.head, folder, text.as_ptr(), text.len() as u64, &raw const node)
        };
        (made != 0).then(|| Inode::from(made))
    }

    /// Whether some process could make files.
    pub fn has_users(&self) -> bool {
        self.segment.head().processes.iter().any(|process| process.id.load(Ordering::Relaxed) != 0)
    }

    /// How many numbers are set aside.
    pub fn spare(&self) -> usize {
        (self.raw.spare_count.load(Ordering::Relaxed) as usize).min(EXCHANGE_MAX)
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
