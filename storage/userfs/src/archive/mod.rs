//! `archive:FILE`: the files of a tar, tar.gz, zip or gz, read where they are (the paper's archive backend, 4.5).
//!
//! An index of names, attributes and places is built when it is mounted, in one pass; nothing is unpacked. A stored file is read
//! from its place in the archive. Of compressed streams only the piece that is asked for is inflated, from a restart point
//! before it (`inflate`). What is stored in a zip is run through once, when it is first read, for its checksum (`checked`). A zip is not run through at mount time, so the first read of a deflated member at a
//! far place runs through what is before it, once.
//!
//! What the archive is, its bytes say, not its name. Nothing in it is believed (`tree`); what is left out is counted by reason
//! ([`Backend::notes`]).
//!
//! Invariants
//! - Nothing can be written, and nothing changes: an archive whose file changes while it is mounted gives ESTALE.
//! - Memory: what accelerated processes read (`kept`), the index, [`STREAM_POINTS_MAX`] restart points (43 KiB each) of a gz, [`OPEN_MEMBERS`] times
//!   [`MEMBER_POINTS_MAX`] of a zip, and 8 MiB of inflated blocks.

mod checked;
mod inflate;
mod kept;
mod named;
mod source;
mod tar;
#[cfg(test)]
mod tests;
mod tree;
mod zip;

use crate::backend::{Attributes, Backend, Change, Entry, Inode, New, Replace, Space, Written};
use crate::error::{Errno, Error, Result};
use crate::journal::Journal;
use crate::life::Life;
use crate::segment::{FETCH_BYTES_MAX, Secret, Segment};
use checked::Checked;
use inflate::{BLOCK_BYTES, Blocks, Framing, GZIP_MAGIC, Inflated};
use kept::Kept;
use source::{ArchiveFile, Identity, Source, damaged};
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tree::{About, Builder, Content, Data, Node, Piece, Tree};

/// Restart points of a gz or tar.gz.
const STREAM_POINTS_MAX: usize = 512;
/// Restart points of a member of a zip.
const MEMBER_POINTS_MAX: usize = 64;
/// Members of a zip whose restart points are kept.
const OPEN_MEMBERS: usize = 16;

/// A deflated member of a zip.
#[derive(Debug, Clone, Copy)]
struct Member {
    range: (u64, u64),
    size: u64,
    checksum: u32,
}

/// Bytes of files: a stream in which they lie, and members that are streams of their own.
#[derive(Debug)]
struct Members {
    stream: Arc<dyn Source>,
    blocks: Arc<Blocks>,
    all: Vec<Member>,
    checked: Vec<Checked>,
    open: Mutex<VecDeque<(u32, Arc<Inflated>)>>,
}

impl Members {
    fn new(stream: Arc<dyn Source>, blocks: Arc<Blocks>) -> Members {
        Members { stream, blocks, all: Vec::new(), checked: Vec::new(), open: Mutex::default() }
    }

    fn add(&mut self, member: Member) -> Data {
        self.all.push(member);
        Data::Member(self.all.len() as u32 - 1)
    }

    fn add_checked(&mut self, stored: Checked) -> Data {
        self.checked.push(stored);
        Data::Checked(self.checked.len() as u32 - 1)
    }

    fn member(&self, number: u32) -> Option<Arc<Inflated>> {
        let member = self.all.get(number as usize)?;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let inflated = match open.iter().position(|entry| entry.0 == number) {
            Some(at) => open.remove(at)?.1,
            None => {
                let framing = Framing::Bare { size: member.size, checksum: member.checksum };
                let blocks = (self.blocks.clone(), number);
                Arc::new(Inflated::new(self.stream.clone(), member.range, framing, blocks, MEMBER_POINTS_MAX))
            }
        };
        open.push_back((number, inflated.clone()));
        if open.len() > OPEN_MEMBERS {
            open.pop_front();
        }
        Some(inflated)
    }

    fn read(&self, data: &Data, offset: u64, to: &mut [u8]) -> std::io::Result<usize> {
        match data {
            Data::Stored(start) => self.stream.read_at(start.saturating_add(offset), to),
            Data::Sparse(pieces) => self.read_pieces(pieces, offset, to),
            Data::Member(number) => match self.member(*number) {
                Some(member) => member.read_at(offset, to),
                None => Err(damaged("a member that is not there")),
            },
            Data::Checked(number) => match self.checked.get(*number as usize) {
                Some(stored) => stored.read_at(self.stream.as_ref(), offset, to),
                None => Err(damaged("a member that is not there")),
            },
            Data::Unreadable => Err(std::io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
        }
    }

    fn read_pieces(&self, pieces: &[Piece], offset: u64, to: &mut [u8]) -> std::io::Result<usize> {
        to.fill(0);
        let end = offset.saturating_add(to.len() as u64);
        let first = pieces.partition_point(|piece| piece.offset + piece.bytes <= offset);
        for piece in pieces[first..].iter().take_while(|piece| piece.offset < end) {
            let (from, until) = (piece.offset.max(offset), (piece.offset + piece.bytes).min(end));
            let part = &mut to[(from - offset) as usize..(until - offset) as usize];
            source::read_all(self.stream.as_ref(), piece.stored + (from - piece.offset), part)?;
        }
        Ok(to.len())
    }
}

/// An archive.
#[derive(Debug)]
pub struct Archive {
    tree: Tree,
    members: Members,
    bytes: u64,
    /// What accelerated processes read; nothing when there is no memory for it.
    kept: Option<Kept>,
    /// Which file it is, for a daemon that comes after us.
    journal: Option<Journal>,
}

/// Who mounts: owner of what the archive gives no owner for.
fn mounter() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

impl Archive {
    /// The archive in `file`.
    ///
    /// # Errors
    /// When it cannot be read, is damaged, or is no archive.
    pub fn open(file: &Path) -> std::result::Result<Archive, Error> {
        Archive::open_in(file, Life::Alone)
    }

    /// The same, in a life that may not be its only one: numbers come out the same as long as the archive is.
    ///
    /// # Errors
    /// As [`Archive::open`]; and when the archive is another one than in its former life.
    pub fn open_in(file: &Path, life: Life) -> std::result::Result<Archive, Error> {
        let failed = |error: std::io::Error| match error.raw_os_error() {
            Some(_) => Error::io(format!("reading {}", file.display()), error),
            None => Error::Archive { file: file.to_owned(), reason: error.to_string() },
        };
        let source = ArchiveFile::open(file).map_err(failed)?;
        let bytes = source.bytes();
        let name = file.file_name().unwrap_or_default().as_bytes();
        let identity = source.identity();
        let mut archive = Archive::read(Arc::new(source), bytes, name, mounter()).map_err(failed)?;
        archive.live(identity, life).map_err(failed)?;
        for (reason, entries) in &archive.tree.refused {
            tracing::warn!("{}: {entries} entries: {reason}", file.display());
        }
        Ok(archive)
    }

    /// The archive of `bytes` bytes in `source`, that is called `name`.
    fn read(source: Arc<dyn Source>, bytes: u64, name: &[u8], owner: (u32, u32)) -> std::io::Result<Archive> {
        let blocks = Arc::new(Blocks::default());
        let now = SystemTime::now();
        let about = About { mode: libc::S_IFREG | 0o444, user: owner.0, group: owner.1, modified: now };
        let mut builder = Builder::new(About { modified: UNIX_EPOCH, ..about });
        let mut magic = [0; 4];
        let read = source.read_at(0, &mut magic)?;
        if read == 4 && (magic == *b"PK\x03\x04" || magic == *b"PK\x05\x06") {
            let mut members = Members::new(source.clone(), blocks);
            zip::index(&source, bytes, owner, &mut builder, &mut members)?;
            return Ok(Archive::new(builder.finish(), members, bytes));
        }
        if magic[..2] != GZIP_MAGIC {
            if !starts_tar(source.as_ref())? {
                // Something may be in front of a zip: a program that unpacks it, for one.
                let mut members = Members::new(source.clone(), blocks);
                return match zip::index(&source, bytes, owner, &mut builder, &mut members) {
                    Ok(()) => Ok(Archive::new(builder.finish(), members, bytes)),
                    Err(_) => Err(damaged("it is no tar, tar.gz, zip or gz")),
                };
            }
            tar::index(source.as_ref(), &mut builder)?;
            return Ok(Archive::new(builder.finish(), Members::new(source, blocks), bytes));
        }
        let stream = Inflated::new(source, (0, bytes), Framing::Gzip, (blocks.clone(), 0), STREAM_POINTS_MAX);
        let tar = starts_tar(&stream)?;
        if tar {
            tar::index(&stream, &mut builder)?;
        }
        // The rest too, so that damage is found now, and the size of a single file is known.
        let size = stream.measure()?;
        if !tar {
            let name = name.strip_suffix(b".gz").filter(|name| !name.is_empty()).unwrap_or(b"contents");
            builder.add(name, about, Content::File { size, data: Data::Stored(0) });
        }
        let members = Members::new(Arc::new(stream), blocks);
        Ok(Archive::new(builder.finish(), members, size))
    }

    fn new(tree: Tree, members: Members, bytes: u64) -> Archive {
        Archive { tree, members, bytes, kept: None, journal: None }
    }

    /// Shared memory for accelerated processes, with all names where there are not too many.
    fn share(&mut self) {
        match Kept::new(&self.tree) {
            Ok(kept) => self.kept = Some(kept),
            Err(error) => tracing::warn!("no shared memory for accelerated processes: {error}"),
        }
    }

    /// The whole of a small file comes into shared memory, for a process that reads it there. What goes wrong it finds out when it then asks the
    /// kernel.
    fn fetch(&self, inode: Inode) {
        let (Ok((size, _)), Some(kept)) = (self.file(inode), &self.kept) else { return };
        if size <= FETCH_BYTES_MAX && kept.has_room(size) {
            let _ = self.read(inode, 0, &mut vec![0; size as usize]);
        }
    }

    fn live(&mut self, identity: Identity, life: Life) -> std::io::Result<()> {
        self.journal = match life {
            Life::Alone => {
                self.share();
                None
            }
            Life::Kept => {
                self.share();
                let journal = Journal::create()?;
                journal.append(&[identity]);
                Some(journal)
            }
            Life::Again(left) => {
                let mut before = None;
                let files =
                    left.journal.ok_or_else(|| std::io::Error::other("its daemon left no journal"))?;
                let journal = Journal::open(files, |lines: Vec<Identity>| before = lines.last().copied())?;
                if before != Some(identity) {
                    return Err(std::io::Error::other("it is not the archive any more that was mounted"));
                }
                if let Some(segment) = left.segment {
                    // Names are there: whoever had them ready is who mounted it.
                    self.kept = Some(Kept::join(Segment::join(segment)?));
                }
                Some(journal)
            }
        };
        Ok(())
    }

    fn node(&self, inode: Inode) -> Result<&Node> {
        self.tree.node(inode).ok_or(Errno(libc::ESTALE))
    }

    fn directory(&self, inode: Inode) -> Result<(Inode, &[(std::ffi::OsString, Inode)])> {
        match &self.node(inode)?.content {
            Content::Directory { parent, names } => Ok((*parent, names)),
            _ => Err(Errno::NOT_A_DIRECTORY),
        }
    }

    fn file(&self, inode: Inode) -> Result<(u64, &Data)> {
        match &self.node(inode)?.content {
            Content::File { size, data } => Ok((*size, data)),
            Content::Directory { .. } => Err(Errno::IS_A_DIRECTORY),
            _ => Err(Errno::INVALID),
        }
    }
}

fn starts_tar(source: &dyn Source) -> std::io::Result<bool> {
    let mut block = [0; 512];
    let read = source.read_at(0, &mut block)?;
    // An empty tar is two blocks of zeros.
    Ok(read == block.len() && (tar::is_header(&block) || block.iter().all(|byte| *byte == 0)))
}

impl Backend for Archive {
    fn read_only(&self) -> bool {
        true
    }

    fn notes(&self) -> Vec<String> {
        self.tree.refused.iter().map(|(reason, entries)| format!("{entries} entries: {reason}")).collect()
    }

    fn lookup(&self, parent: Inode, name: &OsStr) -> Result<Attributes> {
        let segment = self.segment();
        let inode = match segment.and_then(|segment| segment.secret(name)) {
            Some(Secret::Contents(inode)) => {
                self.fetch(inode);
                return Err(Errno::NOT_FOUND);
            }
            Some(Secret::File(inode)) => inode,
            None => Tree::find(self.directory(parent)?.1, name).ok_or(Errno::NOT_FOUND)?,
        };
        let shown = self.attributes(inode)?;
        // Something may be mounted on what the kernel knows.
        segment.iter().for_each(|segment| segment.tell_once(inode));
        Ok(shown)
    }

    /// Numbers name the same file for ever; processes open by themselves without a question what the kernel does not know.
    fn forget(&self, inode: Inode, times: u64) {
        if self.node(inode).is_ok()
            && let Some(segment) = self.segment()
        {
            segment.untell(inode, times);
        }
    }

    fn attributes(&self, inode: Inode) -> Result<Attributes> {
        let node = self.node(inode)?;
        let size = match &node.content {
            Content::Directory { names, .. } => names.len() as u64,
            Content::File { size, .. } => *size,
            Content::Link(target) => target.len() as u64,
            Content::Pipe => 0,
        };
        let about = node.about;
        Ok(Attributes {
            inode,
            mode: about.mode,
            links: node.links,
            user: about.user,
            group: about.group,
            device: 0,
            size,
            blocks: node.content.blocks(),
            accessed: about.modified,
            modified: about.modified,
            changed: about.modified,
        })
    }

    fn change(&self, _inode: Inode, _change: &Change) -> Result<Attributes> {
        Err(Errno::READ_ONLY)
    }

    fn read_link(&self, inode: Inode) -> Result<Vec<u8>> {
        match &self.node(inode)?.content {
            Content::Link(target) => Ok(target.clone()),
            _ => Err(Errno::INVALID),
        }
    }

    fn make(&self, _parent: Inode, _name: &OsStr, _new: New) -> Result<Attributes> {
        Err(Errno::READ_ONLY)
    }

    fn make_directory(&self, _parent: Inode, _name: &OsStr, _new: New) -> Result<Attributes> {
        Err(Errno::READ_ONLY)
    }

    fn make_link(&self, _parent: Inode, _name: &OsStr, _target: &OsStr, _new: New) -> Result<Attributes> {
        Err(Errno::READ_ONLY)
    }

    fn link(&self, _inode: Inode, _parent: Inode, _name: &OsStr) -> Result<Attributes> {
        Err(Errno::READ_ONLY)
    }

    fn unlink(&self, _parent: Inode, _name: &OsStr) -> Result<()> {
        Err(Errno::READ_ONLY)
    }

    fn remove_directory(&self, _parent: Inode, _name: &OsStr) -> Result<()> {
        Err(Errno::READ_ONLY)
    }

    fn rename(&self, _from: (Inode, &OsStr), _to: (Inode, &OsStr), _replace: Replace) -> Result<()> {
        Err(Errno::READ_ONLY)
    }

    fn read(&self, inode: Inode, offset: u64, to: &mut [u8]) -> Result<usize> {
        let (size, data) = self.file(inode)?;
        let bytes = size.saturating_sub(offset).min(to.len() as u64) as usize;
        let read = self.members.read(data, offset, &mut to[..bytes]).map_err(|error| {
            tracing::warn!("reading file {inode} at {offset}: {error}");
            Errno::from(error)
        })?;
        // Less than the index says: the archive is damaged.
        if read < bytes {
            return Err(Errno::IO);
        }
        if let Some(kept) = &self.kept {
            kept.put(inode, size, offset, &to[..read]);
        }
        Ok(read)
    }

    fn write(&self, _inode: Inode, _offset: u64, _from: &[u8], _append: bool) -> Result<Written> {
        Err(Errno::READ_ONLY)
    }

    fn sync(&self, inode: Inode, _data_only: bool) -> Result<()> {
        self.node(inode).map(drop)
    }

    fn list(&self, inode: Inode, after: u64, entry: &mut dyn FnMut(Entry<'_>) -> bool) -> Result<()> {
        let (parent, names) = self.directory(inode)?;
        for (place, number, name) in [(1, inode, "."), (2, parent, "..")] {
            let told = Entry { inode: number, next: place, mode: libc::S_IFDIR, name: OsStr::new(name) };
            if place > after && !entry(told) {
                return Ok(());
            }
        }
        let skipped = after.saturating_sub(2);
        for (place, (name, number)) in (3 + skipped..).zip(names.iter().skip(skipped as usize)) {
            let mode = self.node(*number)?.about.mode;
            if !entry(Entry { inode: *number, next: place, mode, name }) {
                break;
            }
        }
        Ok(())
    }

    fn space(&self) -> Result<Space> {
        let block_bytes = BLOCK_BYTES as u32;
        let blocks = self.bytes.div_ceil(BLOCK_BYTES as u64);
        Ok(Space { block_bytes, blocks, blocks_free: 0, files: self.tree.files(), files_free: 0 })
    }

    fn seek(&self, inode: Inode, offset: u64, hole: bool) -> Result<u64> {
        let (size, data) = self.file(inode)?;
        if offset >= size {
            return Err(Errno::NO_SUCH_OFFSET);
        }
        let Data::Sparse(pieces) = data else {
            return Ok(if hole { size } else { offset });
        };
        let first = pieces.partition_point(|piece| piece.offset + piece.bytes <= offset);
        if !hole {
            let piece = pieces.get(first).ok_or(Errno::NO_SUCH_OFFSET)?;
            return Ok(piece.offset.max(offset));
        }
        let mut at = offset;
        for piece in &pieces[first..] {
            if piece.offset > at {
                break;
            }
            at = piece.offset + piece.bytes;
        }
        Ok(at.min(size))
    }

    fn allocate(&self, _inode: Inode, _offset: u64, _bytes: u64, _mode: i32) -> Result<()> {
        Err(Errno::READ_ONLY)
    }

    fn segment(&self) -> Option<&Segment> {
        self.kept.as_ref().map(Kept::segment)
    }

    fn journal(&self) -> Option<&Journal> {
        self.journal.as_ref()
    }
}
