//! Compares the tree of a replica with that of a live one, and makes it the same.
//!
//! Compared are names, kinds, targets of links, device numbers, which names are one file, modes, owners and lengths; and contents where
//! something was missed, where lengths or times differ, and where nothing is known. Of a file that has missed a change of some bytes these are
//! compared, unless files were changed by names that may be gone ([`Missed::tree`]): then all of it where length or time differs. Equal times and lengths say that contents
//! are equal only of files that the replica has not missed a change of. Only what differs is written.
//!
//! While changes go on, the live one's tree moves: what is gone when it is looked at was changed since, and is looked at again.
//!
//! Invariants
//! - Contents that were compared are durable on both: the live one's are committed before they are read. If its verifier is another one than it had,
//!   it has begun anew and may have lost what others have: then it is no measure ([`Router::begun_anew`]).
//! - What is different though nobody has changed it since it was compared is counted ([`Compare::late`]): the replica has carried out late
//!   what it was once asked ([`super::doubt`]). Files with several names are left out, for they change under names that nobody has named.

use super::Router;
use super::asked::Lost;
use super::listing::{DEPTH_MAX, Item, read_folder};
use super::missed::{Extent, Key, Missed, Names};
use super::names::Number;
use super::said::verifier;
use super::server::{Answer, Member, ROOT};
use crate::wire::build::Record;
use crate::wire::make::at;
use crate::wire::nfs3::{ATTRIBUTES_BYTES, Handle, Op, Status, ftype};
use crate::wire::xdr::get_u32;
use hashbrown::HashMap;
use std::cell::Cell;

/// Bytes that are compared and copied at once.
const PIECE_BYTES: u32 = 256 << 10;
/// Most files with several names that are kept in mind.
const LINKED_MAX: usize = 1 << 20;
/// Places in `fattr3`.
const NLINK: usize = 8;
const RDEV: usize = 36;
const MTIME: usize = 68;
/// `NFS3ERR_ROFS`.
const ROFS: u32 = 30;
/// Kinds of `ftype3` that are devices.
const DEVICES: [u32; 2] = [3, 4];

/// What could not be made the same, and why.
#[derive(Debug, thiserror::Error)]
#[error("{at}: {why}")]
pub struct Stuck {
    at: String,
    why: String,
    gone: bool,
}

impl Stuck {
    /// At a name, or with something.
    pub fn at(at: impl Into<String>, lost: Lost) -> Stuck {
        let gone = matches!(lost, Lost::Status(2 | 70));
        let why = match lost {
            Lost::Io(error) => error.to_string(),
            Lost::Status(0) => "it cannot be compared now".to_string(),
            Lost::Status(status) => format!("a server says {:?}", Status::of(status)),
        };
        Stuck { at: at.into(), why, gone }
    }
}

fn word(item: &Item, at: usize) -> u32 {
    item.attributes.as_ref().map_or(0, |attributes| get_u32(attributes, at))
}

fn long(item: &Item, at: usize) -> u64 {
    u64::from(word(item, at)) << 32 | u64::from(word(item, at + 4))
}

fn kind(item: &Item) -> u32 {
    word(item, at::KIND)
}

fn done(member: &Member, op: Op, record: Record) -> Result<Answer, Lost> {
    let answer = member.call(op, &record.finish())?;
    if answer.results.status == 0 { Ok(answer) } else { Err(Lost::Status(answer.results.status)) }
}

fn begin(op: Op, handle: &Handle) -> Record {
    Record::nfs3(0, op, &ROOT).opaque(handle.as_bytes())
}

/// A name of a server's; `None` if there is none.
fn find(member: &Member, folder: &Handle, name: &[u8]) -> Result<Option<Item>, Lost> {
    let answer = member.look(folder, Some(name))?;
    match answer.results.status {
        0 => {}
        2 => return Ok(None),
        status => return Err(Lost::Status(status)),
    }
    let handle = answer.handle().and_then(Handle::new);
    let item = Item {
        name: name.to_vec(),
        number: 0,
        sure: true,
        cookie: 0,
        attributes: answer.attributes().and_then(|bytes| bytes.try_into().ok()),
        handle,
    };
    complete(member, folder, item).map(Some)
}

/// What a server leaves out of a listing or an answer is asked for.
fn complete(member: &Member, folder: &Handle, mut item: Item) -> Result<Item, Lost> {
    if item.handle.is_none() {
        let answer = done(member, Op::Lookup, begin(Op::Lookup, folder).opaque(&item.name))?;
        item.handle = answer.handle().and_then(Handle::new);
    }
    let handle = item.handle.ok_or(Lost::Status(Status::Stale.number()))?;
    if item.attributes.is_none() {
        let answer = done(member, Op::Getattr, begin(Op::Getattr, &handle))?;
        item.attributes = answer.attributes().and_then(|bytes| bytes.try_into().ok());
    }
    Ok(item)
}

fn target_of(member: &Member, handle: &Handle) -> Result<Vec<u8>, Lost> {
    let answer = done(member, Op::Readlink, begin(Op::Readlink, handle))?;
    Ok(answer.results.path.map(|span| span.of(&answer.record).to_vec()).unwrap_or_default())
}

/// A comparison.
pub(super) struct Compare<'r> {
    router: &'r Router,
    from: &'r Member,
    to: &'r Member,
    /// No changes go on.
    pub alone: bool,
    all: bool,
    /// Names do not say which files were changed.
    tree: bool,
    suspect: Names,
    /// Those of them that were compared before, and were not changed since.
    doubtful: Names,
    /// Folders and names around this one that were changed, so that all in them may be different.
    expected: usize,
    late: Cell<usize>,
    /// What is done by the first name of a file with several ones: its handle and number on the replica, by its number on the live one.
    linked: HashMap<u64, (Handle, u64)>,
    /// The same the other way round.
    theirs: HashMap<u64, u64>,
}

impl<'r> Compare<'r> {
    /// Of one with another.
    pub(super) fn new(router: &'r Router, from: &'r Member, to: &'r Member) -> Result<Compare<'r>, Stuck> {
        let (linked, theirs) = (HashMap::new(), HashMap::new());
        Ok(Compare {
            router,
            from,
            to,
            alone: false,
            all: false,
            tree: false,
            suspect: Names::new(),
            doubtful: Names::new(),
            expected: 0,
            late: Cell::new(0),
            linked,
            theirs,
        })
    }

    /// Things that were different, though nobody has changed them since they were compared.
    pub(super) fn late(&self) -> usize {
        self.late.get()
    }

    /// True if a name may be different: it was changed, or it is changed now.
    fn expects(&self, key: Option<&Key>) -> bool {
        let known = |key: &Key| {
            self.suspect.contains_key(key) && !self.doubtful.contains_key(key)
                || self.to.missed().names.contains_key(key)
        };
        self.all || self.expected > 0 || key.is_some_and(known)
    }

    /// Something is made the same.
    fn mends(&self, key: Option<&Key>, items: [Option<&Item>; 2]) {
        if !self.expects(key) && !items.into_iter().flatten().any(several) {
            self.late.set(self.late.get() + 1);
        }
    }

    fn roots(&self) -> Result<(Handle, Handle), Stuck> {
        let root = |member: &Member| {
            member.mount().map_err(|error| Stuck::at(format!("the root of {}", member.name()), error.into()))
        };
        Ok((root(self.from)?, root(self.to)?))
    }

    /// The whole tree; contents of what was missed are compared, and of everything if that is not known.
    pub(super) fn everything(&mut self, missed: &Missed) -> Result<(), Stuck> {
        (self.all, self.tree) = (missed.all, missed.tree);
        self.suspect = missed.names.clone();
        self.doubtful = missed.doubtful.clone();
        (self.linked, self.theirs) = (HashMap::new(), HashMap::new());
        let (source, target) = self.roots()?;
        self.root(&source, &target)?;
        self.folder(Some(Router::root(0)), &source, &target, "", 0)?;
        (self.all, self.tree) = (false, false);
        (self.suspect, self.doubtful) = (Names::new(), Names::new());
        Ok(())
    }

    fn root(&self, source: &Handle, target: &Handle) -> Result<(), Stuck> {
        let own = |member: &Member, handle: &Handle| {
            let item = Item {
                name: Vec::new(),
                number: 0,
                sure: true,
                cookie: 0,
                attributes: None,
                handle: Some(*handle),
            };
            complete(member, handle, item).map_err(|lost| Stuck::at("/", lost))
        };
        let (theirs, ours) = (own(self.from, source)?, own(self.to, target)?);
        let set = self.attributes(&theirs, Some(&ours), target).map_err(|lost| Stuck::at("/", lost))?;
        if set {
            self.mends(Some(&super::missed::root()), [None, None]);
        }
        Ok(())
    }

    /// A folder and all that is in it.
    fn folder(
        &mut self,
        number: Option<Number>,
        source: &Handle,
        target: &Handle,
        path: &str,
        depth: usize,
    ) -> Result<(), Stuck> {
        let stuck = |lost| Stuck::at(format!("{path}/"), lost);
        if depth > DEPTH_MAX {
            return Err(stuck(Lost::Status(Status::Nametoolong.number())));
        }
        let theirs = match read_folder(self.from, source).map_err(stuck) {
            Err(gone) if gone.gone && !self.alone => return Ok(()),
            other => other?,
        };
        let ours = read_folder(self.to, target).map_err(stuck)?;
        let mut ours: HashMap<Vec<u8>, Item> =
            ours.into_iter().map(|item| (item.name.clone(), item)).collect();
        let here: hashbrown::HashSet<&[u8]> = theirs.iter().map(|item| &*item.name).collect();
        for item in
            ours.extract_if(|name, _| !here.contains(&**name)).map(|(_, item)| item).collect::<Vec<_>>()
        {
            let own = number.map(|folder| (folder, Box::from(&*item.name)));
            self.mends(own.as_ref(), [Some(&item), None]);
            self.remove(target, &item, path, depth)?;
        }
        for item in &theirs {
            let own = number.map(|folder| (folder, Box::from(&*item.name)));
            let ours = ours.remove(&item.name);
            self.entry(own, (source, target), item.clone(), ours, Extent::ALL, path, depth)?;
        }
        Ok(())
    }

    /// One name, and what is new behind it.
    pub(super) fn one(&mut self, key: &Key, extent: Extent, doubtful: bool) -> Result<(), Stuck> {
        self.expected += usize::from(!doubtful);
        if doubtful {
            self.doubtful.insert(key.clone(), extent);
        }
        let done = self.compare_one(key, extent);
        self.doubtful.remove(key);
        self.expected -= usize::from(!doubtful);
        done
    }

    fn compare_one(&mut self, key: &Key, extent: Extent) -> Result<(), Stuck> {
        if *key == super::missed::root() {
            let (source, target) = self.roots()?;
            return self.root(&source, &target);
        }
        let (folder, name) = key;
        let path = String::from_utf8_lossy(name).into_owned();
        let stuck = |lost| Stuck::at(&*path, lost);
        let source = match self.router.resolve(self.from, *folder) {
            Ok(source) => source,
            // A folder that is gone was itself changed.
            Err(Lost::Status(2 | 70)) => return Ok(()),
            Err(lost) => return Err(stuck(lost)),
        };
        let target = match self.router.resolve(self.to, *folder) {
            Ok(target) => target,
            Err(Lost::Status(_)) => return self.above(*folder, &path),
            Err(lost) => return Err(stuck(lost)),
        };
        let theirs = match find(self.from, &source, name).map_err(stuck) {
            Err(gone) if gone.gone && !self.alone => return Ok(()),
            other => other?,
        };
        let ours = find(self.to, &target, name).map_err(stuck)?;
        match (theirs, ours) {
            (None, None) => Ok(()),
            (None, Some(ours)) => {
                self.mends(Some(key), [Some(&ours), None]);
                self.remove(&target, &ours, "", 0)
            }
            (Some(theirs), ours) => {
                self.suspect.insert(key.clone(), extent);
                let same = self.entry(Some(key.clone()), (&source, &target), theirs, ours, extent, "", 0);
                self.suspect.remove(key);
                same
            }
        }
    }

    /// The replica has no such folder: the name that leads to it is compared, with all that is behind it.
    fn above(&mut self, folder: Number, path: &str) -> Result<(), Stuck> {
        match self.router.names.at(folder) {
            Some(key) => {
                self.router.names.forget(Some(folder), self.to.number);
                self.one(&key, Extent::ALL, false)
            }
            None => Err(Stuck::at(path, Lost::Status(Status::Stale.number()))),
        }
    }

    #[allow(clippy::too_many_arguments)] // a name on both sides, and how it is looked at
    fn entry(
        &mut self,
        key: Option<Key>,
        handles: (&Handle, &Handle),
        theirs: Item,
        ours: Option<Item>,
        extent: Extent,
        path: &str,
        depth: usize,
    ) -> Result<(), Stuck> {
        let expected = usize::from(self.expects(key.as_ref()));
        self.expected += expected;
        let done = self.compare_entry(key, handles, theirs, ours, extent, path, depth);
        self.expected -= expected;
        done
    }

    #[allow(clippy::too_many_arguments)] // as above
    fn compare_entry(
        &mut self,
        key: Option<Key>,
        (source, target): (&Handle, &Handle),
        theirs: Item,
        ours: Option<Item>,
        extent: Extent,
        path: &str,
        depth: usize,
    ) -> Result<(), Stuck> {
        let path = format!("{path}/{}", String::from_utf8_lossy(&theirs.name));
        let stuck = |lost| Stuck::at(&*path, lost);
        let theirs = match complete(self.from, source, theirs).map_err(stuck) {
            Err(gone) if gone.gone && !self.alone => return Ok(()),
            other => other?,
        };
        let mut ours = match ours {
            Some(ours) => Some(complete(self.to, target, ours).map_err(stuck)?),
            None => None,
        };
        let known = theirs.handle.ok_or_else(|| stuck(Lost::Status(Status::Stale.number())))?;
        let first = self.linked.get(&long(&theirs, at::FILEID)).copied().filter(|_| several(&theirs));
        if let Some(there) = &ours
            && !self.may_stay(&theirs, there, first).map_err(stuck)?
        {
            self.mends(key.as_ref(), [Some(&theirs), Some(there)]);
            self.remove(target, there, &path, depth)?;
            ours = None;
        }
        if let (Some((file, _)), None) = (first, &ours) {
            let link = begin(Op::Link, &file).opaque(target.as_bytes()).opaque(&theirs.name);
            done(self.to, Op::Link, link).map_err(stuck)?;
            ours = find(self.to, target, &theirs.name).map_err(stuck)?;
        }
        let made = ours.is_none();
        if made {
            self.mends(key.as_ref(), [Some(&theirs), None]);
        }
        let handle = match ours.as_ref().and_then(|ours| ours.handle) {
            Some(handle) => handle,
            None => match self.make(&known, target, &theirs) {
                Err(Lost::Status(2 | 70)) if !self.alone => return Ok(()),
                other => other.map_err(stuck)?,
            },
        };
        self.is_linked(&theirs, &handle, ours.as_ref()).map_err(stuck)?;
        let folder = kind(&theirs) == ftype::DIRECTORY;
        if folder && (made || extent == Extent::ALL) {
            let number = key.as_ref().and_then(|(folder, name)| self.router.names.peek(*folder, name));
            self.folder(number, &known, &handle, &path, depth + 1)?;
        } else if kind(&theirs) == ftype::REGULAR {
            let extent = self.extent(key.as_ref(), &theirs, ours.as_ref());
            match self.content(&known, &theirs, &handle, ours.as_ref(), extent) {
                Err(Lost::Status(2 | 70)) if !self.alone => return Ok(()),
                // Its time is another one now.
                Ok(true) => {
                    if !made {
                        self.mends(key.as_ref(), [Some(&theirs), ours.as_ref()]);
                    }
                    ours = None;
                }
                other => drop(other.map_err(stuck)?),
            }
        }
        let set = self.attributes(&theirs, ours.as_ref(), &handle).map_err(stuck)?;
        // Where it has just been made, or written, it has other times for that reason.
        if set && ours.is_some() {
            self.mends(key.as_ref(), [Some(&theirs), ours.as_ref()]);
        }
        Ok(())
    }

    /// True if what the replica has can be made what the live one has.
    fn may_stay(&self, theirs: &Item, ours: &Item, first: Option<(Handle, u64)>) -> Result<bool, Lost> {
        let own = long(ours, at::FILEID);
        let other_file = match first {
            Some((_, fileid)) => fileid != own,
            None => {
                let known = self.theirs.get(&own);
                several(ours) && known.is_some_and(|known| *known != long(theirs, at::FILEID))
            }
        };
        if kind(theirs) != kind(ours) || other_file {
            return Ok(false);
        }
        if DEVICES.contains(&kind(theirs)) {
            return Ok(long(theirs, RDEV) == long(ours, RDEV));
        }
        match (theirs.handle, ours.handle) {
            (Some(from), Some(to)) if kind(theirs) == ftype::LINK => {
                Ok(target_of(self.from, &from)? == target_of(self.to, &to)?)
            }
            _ => Ok(true),
        }
    }

    fn is_linked(&mut self, theirs: &Item, handle: &Handle, ours: Option<&Item>) -> Result<(), Lost> {
        if kind(theirs) == ftype::DIRECTORY || !several(theirs) && !ours.is_some_and(several) {
            return Ok(());
        }
        if self.linked.len() >= LINKED_MAX {
            return Err(Lost::Io(std::io::Error::other(format!(
                "more than {LINKED_MAX} files with several names"
            ))));
        }
        let own = match ours {
            Some(ours) => long(ours, at::FILEID),
            None => {
                let answer = done(self.to, Op::Getattr, begin(Op::Getattr, handle))?;
                answer.attributes().map_or(0, |bytes| {
                    u64::from(get_u32(bytes, at::FILEID)) << 32 | u64::from(get_u32(bytes, at::FILEID + 4))
                })
            }
        };
        self.linked.insert(long(theirs, at::FILEID), (*handle, own));
        self.theirs.insert(own, long(theirs, at::FILEID));
        Ok(())
    }

    /// Which bytes of a file are to be compared.
    fn extent(&self, key: Option<&Key>, theirs: &Item, ours: Option<&Item>) -> Extent {
        let Some(ours) = ours else { return Extent::ALL };
        let missed = key.and_then(|key| self.suspect.get(key)).copied();
        let [size, own] = [long(theirs, at::SIZE), long(ours, at::SIZE)];
        match missed {
            _ if self.all => Extent::ALL,
            Some(extent) if size == own && !self.tree => extent,
            Some(extent) if !self.tree => Extent { from: extent.from.min(size.min(own)), to: u64::MAX },
            _ if size != own || long(theirs, MTIME) != long(ours, MTIME) => Extent::ALL,
            missed => missed.unwrap_or(Extent::NONE),
        }
    }

    fn remove(&self, folder: &Handle, item: &Item, path: &str, depth: usize) -> Result<(), Stuck> {
        let path = format!("{path}/{}", String::from_utf8_lossy(&item.name));
        let stuck = |lost| Stuck::at(format!("{path}, which is too much"), lost);
        let item = complete(self.to, folder, item.clone()).map_err(stuck)?;
        let is_folder = kind(&item) == ftype::DIRECTORY;
        if let (true, Some(handle)) = (is_folder, item.handle) {
            if depth > DEPTH_MAX {
                return Err(stuck(Lost::Status(Status::Nametoolong.number())));
            }
            for inner in read_folder(self.to, &handle).map_err(stuck)? {
                self.remove(&handle, &inner, &path, depth + 1)?;
            }
        }
        let op = if is_folder { Op::Rmdir } else { Op::Remove };
        done(self.to, op, begin(op, folder).opaque(&item.name)).map(|_| ()).map_err(stuck)
    }

    /// Makes an object.
    fn make(&self, source: &Handle, folder: &Handle, item: &Item) -> Result<Handle, Lost> {
        let named = |op| begin(op, folder).opaque(&item.name);
        let (op, record) = match kind(item) {
            ftype::DIRECTORY => (Op::Mkdir, none(named(Op::Mkdir))),
            ftype::REGULAR => (Op::Create, none(named(Op::Create).u32(0))),
            ftype::LINK => {
                let path = target_of(self.from, source)?;
                (Op::Symlink, none(named(Op::Symlink)).opaque(&path))
            }
            special => {
                let record = none(named(Op::Mknod).u32(special));
                let device = DEVICES.contains(&special);
                (Op::Mknod, if device { record.u64(long(item, RDEV)) } else { record })
            }
        };
        let made = done(self.to, op, record)?;
        match made.handle().and_then(Handle::new) {
            Some(handle) => Ok(handle),
            None => find(self.to, folder, &item.name)?
                .and_then(|item| item.handle)
                .ok_or(Lost::Status(Status::Stale.number())),
        }
    }

    /// Makes the bytes of a file the same; true if some were not.
    fn content(
        &self,
        source: &Handle,
        theirs: &Item,
        target: &Handle,
        ours: Option<&Item>,
        extent: Extent,
    ) -> Result<bool, Lost> {
        let size = long(theirs, at::SIZE);
        let own = ours.map_or(0, |ours| long(ours, at::SIZE));
        if extent.from < extent.to {
            self.durable(source)?;
        }
        if ours.is_some() && extent.from < extent.to {
            // What it has, perhaps of the last minute, must not be lost behind the comparison.
            done(self.to, Op::Commit, begin(Op::Commit, target).u64(0).u32(0))?;
        }
        if ours.is_some() && size != own {
            let cut = begin(Op::Setattr, target).u32(0).u32(0).u32(0).u32(1).u64(size);
            done(self.to, Op::Setattr, cut.u32(0).u32(0).u32(0))?;
        }
        let mut written = Vec::new();
        let mut offset = extent.from;
        while offset < extent.to {
            let bytes = u32::try_from(extent.to - offset).unwrap_or(u32::MAX).min(PIECE_BYTES);
            let read = |handle: &Handle| begin(Op::Read, handle).u64(offset).u32(bytes);
            let answer = done(self.from, Op::Read, read(source))?;
            let data = answer.results.payload.map(|span| span.of(&answer.record)).unwrap_or_default();
            if data.is_empty() {
                break;
            }
            let there = done(self.to, Op::Read, read(target))?;
            let there = there.results.payload.map(|span| span.of(&there.record)).unwrap_or_default();
            if there.get(..data.len()) != Some(data) {
                self.write(target, offset, data, &mut written)?;
            }
            offset += data.len() as u64;
        }
        let Some(first) = written.first().copied() else { return Ok(false) };
        let commit = done(self.to, Op::Commit, begin(Op::Commit, target).u64(0).u32(0))?;
        written.extend(verifier(Op::Commit, &commit));
        // It has begun anew in between, and may have lost what was written.
        if written.iter().any(|verifier| *verifier != first) {
            Err(Lost::Status(Status::Jukebox.number()))
        } else {
            Ok(true)
        }
    }

    /// Makes a file of the live one's durable, and looks whether that one has begun anew since it was written to.
    fn durable(&self, source: &Handle) -> Result<(), Lost> {
        let known = *self.from.verifier();
        let answer = match done(self.from, Op::Commit, begin(Op::Commit, source).u64(0).u32(0)) {
            // One that is read-only now makes nothing durable, and says nothing of what it was.
            Err(Lost::Status(ROFS)) => return Ok(()),
            answer => answer?,
        };
        match verifier(Op::Commit, &answer) {
            Some(now) if known.is_some_and(|known| known != now) => {
                self.router.begun_anew(self.from, now)?;
                Err(Lost::Status(Status::Jukebox.number()))
            }
            _ => Ok(()),
        }
    }

    fn write(
        &self,
        target: &Handle,
        mut offset: u64,
        mut data: &[u8],
        verifiers: &mut Vec<u64>,
    ) -> Result<(), Lost> {
        while !data.is_empty() {
            let bytes = u32::try_from(data.len()).unwrap_or(0);
            let write = begin(Op::Write, target).u64(offset).u32(bytes).u32(0).opaque(data);
            let answer = done(self.to, Op::Write, write)?;
            let written = (answer.results.count as usize).min(data.len());
            if written == 0 {
                return Err(Lost::Status(Status::Nospc.number()));
            }
            if let Some(verifier) = verifier(Op::Write, &answer)
                && verifiers.last() != Some(&verifier)
            {
                verifiers.push(verifier);
            }
            (offset, data) = (offset + written as u64, &data[written..]);
        }
        Ok(())
    }

    /// Owner, mode and time as those of the original, where they differ; true if they did.
    fn attributes(&self, theirs: &Item, ours: Option<&Item>, target: &Handle) -> Result<bool, Lost> {
        debug_assert!(theirs.attributes.is_none_or(|attributes| attributes.len() == ATTRIBUTES_BYTES));
        let same = |at: usize| ours.is_some_and(|ours| word(theirs, at) == word(ours, at));
        let timed = kind(theirs) == ftype::REGULAR;
        let modes = [at::MODE, at::UID, at::GID];
        let times = [MTIME, MTIME + 4, at::SIZE, at::SIZE + 4];
        if modes.iter().all(|at| same(*at)) && (!timed || times.iter().all(|at| same(*at))) {
            return Ok(false);
        }
        let link = kind(theirs) == ftype::LINK;
        let mut record = begin(Op::Setattr, target);
        record = if link { record.u32(0) } else { record.u32(1).u32(word(theirs, at::MODE) & 0o7777) };
        record = record.u32(1).u32(word(theirs, at::UID)).u32(1).u32(word(theirs, at::GID)).u32(0).u32(0);
        record = match timed {
            true => record.u32(2).u32(word(theirs, MTIME)).u32(word(theirs, MTIME + 4)),
            false => record.u32(0),
        };
        done(self.to, Op::Setattr, record.u32(0)).map(|_| true)
    }
}

/// True if an object has several names.
fn several(item: &Item) -> bool {
    kind(item) != ftype::DIRECTORY && word(item, NLINK) > 1
}

/// No attributes to be set.
fn none(record: Record) -> Record {
    (0..6).fold(record, |record, _| record.u32(0))
}
