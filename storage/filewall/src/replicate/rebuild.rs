//! A replica that has missed something gets what the others have.
//!
//! First everything that differs is copied while changes go on; then, while changes wait, what has changed since. What has the
//! same kind, owner, mode, length and time of change is taken to be the same: copies are given the times of their originals.

use super::change::Lost;
use super::listing::{DEPTH_MAX, Item, read_folder};
use super::server::{Member, ROOT, State};
use super::{Group, Router};
use crate::wire::build::Record;
use crate::wire::make::at;
use crate::wire::nfs3::{ATTRIBUTES_BYTES, Handle, Op, ftype};
use crate::wire::xdr::get_u32;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often replicas that are behind are tried.
const EVERY: Duration = Duration::from_millis(500);
/// Bytes that are copied at once.
const PIECE_BYTES: u32 = 256 << 10;
/// Symbolic link, as `ftype3`.
const LINK: u32 = 5;
/// Place of the time of change in `fattr3`.
const MTIME: usize = 68;

/// Looks for replicas that are behind until the router is stopped.
pub(super) fn watch(router: &Router) {
    let mut changes = 0;
    while !router.stop.load(Ordering::Relaxed) {
        std::thread::sleep(EVERY);
        if router.stop.load(Ordering::Relaxed) {
            return;
        }
        changes = router.rests(changes);
        for group in &router.groups {
            for member in group.members().iter().filter(|member| member.state() == State::Behind) {
                match router.rebuild(group, member) {
                    Ok(()) => tracing::info!(server = %member.server.nfs(), "a replica was rebuilt"),
                    Err(lost) => {
                        tracing::debug!(server = %member.server.nfs(), ?lost, "a replica stays behind")
                    }
                }
            }
        }
    }
}

impl Router {
    fn rebuild(&self, group: &Group, member: &Member) -> Result<(), Lost> {
        // Its handles may be others after it was away.
        self.names.forget(None, member.number);
        let to = member.mount()?;
        let members = group.members();
        let live = || members.iter().find(|other| other.state() == State::Live);
        let Some(source) = live() else { return Err(Lost::Status(0)) };
        same_folder(source, &source.mount()?, member, &to, 0)?;
        let _alone = self.changes.write().unwrap_or_else(PoisonError::into_inner);
        let Some(source) = live() else { return Err(Lost::Status(0)) };
        same_folder(source, &source.mount()?, member, &to, 0)?;
        // It may have been dropped meanwhile.
        self.mark(member, State::Live);
        Ok(())
    }
}

fn word(item: &Item, at: usize) -> u32 {
    item.attributes.as_ref().map_or(0, |attributes| get_u32(attributes, at))
}

/// True if two objects need no copy; of folders, the content is looked at in any case.
fn same(a: &Item, b: &Item) -> bool {
    let places = [at::KIND, at::MODE, at::UID, at::GID];
    let content = [at::SIZE, at::SIZE + 4, MTIME, MTIME + 4];
    let folder = word(a, at::KIND) == ftype::DIRECTORY;
    places.iter().all(|at| word(a, *at) == word(b, *at))
        && (folder || content.iter().all(|at| word(a, *at) == word(b, *at)))
}

fn done(member: &Member, op: Op, record: Record) -> Result<super::server::Answer, Lost> {
    let answer = member.call(op, &record.finish())?;
    if answer.results.status == 0 { Ok(answer) } else { Err(Lost::Status(answer.results.status)) }
}

/// Makes a folder of `to` hold what that of `from` holds.
fn same_folder(
    from: &Member,
    source: &Handle,
    to: &Member,
    target: &Handle,
    depth: usize,
) -> Result<(), Lost> {
    if depth > DEPTH_MAX {
        return Err(Lost::Status(63));
    }
    let (theirs, mut ours) = (read_folder(from, source)?, read_folder(to, target)?);
    ours.retain(|item| {
        let kept = theirs
            .iter()
            .any(|other| other.name == item.name && word(other, at::KIND) == word(item, at::KIND));
        if !kept && let Err(lost) = remove(to, target, item, depth) {
            tracing::debug!(?lost, "what is too much cannot be removed");
        }
        kept
    });
    for item in &theirs {
        let there = ours.iter().find(|other| other.name == item.name);
        let known = item.handle.ok_or(Lost::Status(70))?;
        let folder = word(item, at::KIND) == ftype::DIRECTORY;
        let handle = match (there.and_then(|there| there.handle), folder) {
            (Some(handle), _) => handle,
            (None, _) => match make(from, &known, to, target, item)? {
                Some(handle) => handle,
                None => continue,
            },
        };
        if folder {
            same_folder(from, &known, to, &handle, depth + 1)?;
        } else if word(item, at::KIND) == ftype::REGULAR && !there.is_some_and(|there| same(item, there)) {
            copy(from, &known, to, &handle)?;
        }
        if !there.is_some_and(|there| same(item, there)) {
            set_attributes(to, &handle, item)?;
        }
    }
    Ok(())
}

fn remove(to: &Member, folder: &Handle, item: &Item, depth: usize) -> Result<(), Lost> {
    let is_folder = word(item, at::KIND) == ftype::DIRECTORY;
    if let (true, Some(handle)) = (is_folder && depth < DEPTH_MAX, item.handle) {
        for inner in read_folder(to, &handle)? {
            remove(to, &handle, &inner, depth + 1)?;
        }
    }
    let op = if is_folder { Op::Rmdir } else { Op::Remove };
    done(to, op, Record::nfs3(0, op, &ROOT).opaque(folder.as_bytes()).opaque(&item.name)).map(|_| ())
}

/// No attributes to be set.
fn none(record: Record) -> Record {
    (0..6).fold(record, |record, _| record.u32(0))
}

/// Makes an object; `None` for special files, which are not copied.
fn make(
    from: &Member,
    source: &Handle,
    to: &Member,
    folder: &Handle,
    item: &Item,
) -> Result<Option<Handle>, Lost> {
    let begin = |op| Record::nfs3(0, op, &ROOT).opaque(folder.as_bytes()).opaque(&item.name);
    let (op, record) = match word(item, at::KIND) {
        ftype::DIRECTORY => (Op::Mkdir, none(begin(Op::Mkdir))),
        ftype::REGULAR => (Op::Create, none(begin(Op::Create).u32(0))),
        LINK => {
            let call = Record::nfs3(0, Op::Readlink, &ROOT).opaque(source.as_bytes());
            let answer = done(from, Op::Readlink, call)?;
            let path = answer.results.path.map(|span| span.of(&answer.record).to_vec()).unwrap_or_default();
            (Op::Symlink, none(begin(Op::Symlink)).opaque(&path))
        }
        _ => return Ok(None),
    };
    let made = done(to, op, record)?;
    match made.handle().and_then(Handle::new) {
        Some(handle) => Ok(Some(handle)),
        None => Ok(to.look(folder, Some(&item.name))?.handle().and_then(Handle::new)),
    }
}

fn copy(from: &Member, source: &Handle, to: &Member, target: &Handle) -> Result<(), Lost> {
    let cut = Record::nfs3(0, Op::Setattr, &ROOT).opaque(target.as_bytes());
    done(to, Op::Setattr, cut.u32(0).u32(0).u32(0).u32(1).u64(0).u32(0).u32(0).u32(0))?;
    let mut offset = 0u64;
    loop {
        let read = Record::nfs3(0, Op::Read, &ROOT).opaque(source.as_bytes()).u64(offset).u32(PIECE_BYTES);
        let answer = done(from, Op::Read, read)?;
        let data = answer.results.payload.map(|span| span.of(&answer.record)).unwrap_or_default();
        if data.is_empty() {
            break;
        }
        let bytes = u32::try_from(data.len()).unwrap_or(0);
        let write = Record::nfs3(0, Op::Write, &ROOT).opaque(target.as_bytes()).u64(offset).u32(bytes).u32(0);
        let written = done(to, Op::Write, write.opaque(data))?.results.count;
        if written == 0 {
            return Err(Lost::Status(5));
        }
        offset += u64::from(written);
    }
    done(to, Op::Commit, Record::nfs3(0, Op::Commit, &ROOT).opaque(target.as_bytes()).u64(0).u32(0))
        .map(|_| ())
}

/// Owner, mode and times as those of the original.
fn set_attributes(to: &Member, target: &Handle, item: &Item) -> Result<(), Lost> {
    let Some(attributes) = &item.attributes else { return Ok(()) };
    debug_assert_eq!(attributes.len(), ATTRIBUTES_BYTES);
    let link = word(item, at::KIND) == LINK;
    let mut record = Record::nfs3(0, Op::Setattr, &ROOT).opaque(target.as_bytes());
    record = if link { record.u32(0) } else { record.u32(1).u32(word(item, at::MODE)) };
    record = record.u32(1).u32(word(item, at::UID)).u32(1).u32(word(item, at::GID)).u32(0).u32(0);
    record = record.u32(2).u32(word(item, MTIME)).u32(word(item, MTIME + 4)).u32(0);
    done(to, Op::Setattr, record).map(|_| ())
}
