//! Names and attributes of an archive, built once.
//!
//! Archives come from strangers, so nothing in them is believed: names that lead out (`..`) or are too long,
//! devices, and entries that go through something that is no directory are left out and counted by reason; what comes
//! later under the same name wins, as it would when unpacking; bits that change the user are dropped.

use crate::backend::{Inode, ROOT};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::SystemTime;

/// Entries of an archive.
pub(super) const ENTRIES_MAX: usize = 1 << 21;
/// Bytes of one component of a name.
const NAME_BYTES_MAX: usize = 255;
/// Bytes of a whole name, and of a link's target.
pub(super) const PATH_BYTES_MAX: usize = 4096;
/// Components of all names: a name may have as many as fit into it, and each is looked for.
const COMPONENTS_MAX: usize = 1 << 26;
/// Pieces of all sparse files of an archive.
pub(super) const PIECES_MAX: usize = 1 << 20;

/// Why an entry is left out.
pub(super) type Refusal = &'static str;

/// A piece of a sparse file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    /// Where it is in the file.
    pub(super) offset: u64,
    /// Bytes.
    pub(super) bytes: u64,
    /// Where it is in the stream.
    pub(super) stored: u64,
}

/// Where the bytes of a file are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Data {
    /// In one piece of the stream, from there.
    Stored(u64),
    /// In pieces of the stream, by offset, with holes between.
    Sparse(Box<[Piece]>),
    /// Deflated: the number of the member.
    Member(u32),
    /// Stored with a checksum: the number among those.
    Checked(u32),
    /// It cannot be read.
    Unreadable,
}

/// What a node is.
#[derive(Debug)]
pub(super) enum Content {
    Directory { parent: Inode, names: Vec<(OsString, Inode)> },
    File { size: u64, data: Data },
    Link(Vec<u8>),
    Pipe,
}

impl Content {
    /// Blocks of 512 bytes that it takes.
    pub(super) fn blocks(&self) -> u64 {
        let held = match self {
            Content::File { data: Data::Sparse(pieces), .. } => pieces.iter().map(|piece| piece.bytes).sum(),
            Content::File { size, .. } => *size,
            _ => 0,
        };
        held.div_ceil(512)
    }
}

/// Attributes of an entry.
#[derive(Debug, Clone, Copy)]
pub(super) struct About {
    pub(super) mode: u32,
    pub(super) user: u32,
    pub(super) group: u32,
    pub(super) modified: SystemTime,
}

/// A file.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) about: About,
    pub(super) links: u32,
    pub(super) content: Content,
}

/// All names of an archive.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    /// Entries that were left out, by reason.
    pub(super) refused: BTreeMap<Refusal, u64>,
}

impl Tree {
    pub(super) fn node(&self, inode: Inode) -> Option<&Node> {
        self.nodes.get(usize::try_from(inode).ok()?.checked_sub(1)?)
    }

    pub(super) fn files(&self) -> u64 {
        self.nodes.len() as u64
    }

    /// All, with their numbers.
    pub(super) fn every(&self) -> impl Iterator<Item = (Inode, &Node)> {
        (ROOT..).zip(&self.nodes)
    }

    /// The entry `name` of a directory's names.
    pub(super) fn find(names: &[(OsString, Inode)], name: &OsStr) -> Option<Inode> {
        names.binary_search_by(|entry| entry.0.as_os_str().cmp(name)).ok().map(|at| names[at].1)
    }
}

#[derive(Debug)]
struct Growing {
    node: Node,
    names: BTreeMap<OsString, Inode>,
}

/// A tree while entries are being read.
#[derive(Debug)]
pub(super) struct Builder {
    nodes: Vec<Growing>,
    /// For directories that no entry describes.
    implied: About,
    entries: usize,
    pieces: usize,
    components: usize,
    refused: BTreeMap<Refusal, u64>,
}

fn split(path: &[u8]) -> Result<Vec<&OsStr>, Refusal> {
    if path.len() > PATH_BYTES_MAX {
        return Err("name too long");
    }
    let parts: Vec<&OsStr> = path
        .split(|byte| *byte == b'/')
        .filter(|part| !part.is_empty() && *part != b".")
        .map(OsStr::from_bytes)
        .collect();
    if parts.iter().any(|part| *part == "..") {
        return Err("name with '..'");
    }
    if parts.iter().any(|part| part.len() > NAME_BYTES_MAX) {
        return Err("name too long");
    }
    if parts.iter().any(|part| part.as_bytes().contains(&0)) {
        return Err("name with a zero byte");
    }
    Ok(parts)
}

impl Builder {
    /// An empty tree whose directories without entry are `implied`.
    pub(super) fn new(implied: About) -> Builder {
        let mut builder = Builder {
            nodes: Vec::new(),
            implied: About { mode: libc::S_IFDIR | 0o755, ..implied },
            entries: 0,
            pieces: 0,
            components: 0,
            refused: BTreeMap::new(),
        };
        builder.push(builder.implied, Content::Directory { parent: ROOT, names: Vec::new() });
        builder
    }

    fn push(&mut self, about: About, content: Content) -> Inode {
        let links = if matches!(content, Content::Directory { .. }) { 2 } else { 1 };
        self.nodes.push(Growing { node: Node { about, links, content }, names: BTreeMap::new() });
        self.nodes.len() as Inode
    }

    fn at(&mut self, inode: Inode) -> &mut Growing {
        // Numbers come from `push` alone.
        &mut self.nodes[inode as usize - 1]
    }

    fn is_directory(&mut self, inode: Inode) -> bool {
        matches!(self.at(inode).node.content, Content::Directory { .. })
    }

    /// The directory of the last part, made where it lacks.
    fn descend(&mut self, parts: &[&OsStr]) -> Result<Inode, Refusal> {
        self.components += parts.len();
        if self.components > COMPONENTS_MAX {
            return Err("too many folders in names");
        }
        let mut here = ROOT;
        for part in parts {
            here = match self.at(here).names.get(*part).copied() {
                Some(inode) if self.is_directory(inode) => inode,
                Some(_) => return Err("name that goes through something that is no directory"),
                None => {
                    self.count()?;
                    let implied = self.implied;
                    let made = self.push(implied, Content::Directory { parent: here, names: Vec::new() });
                    self.at(here).names.insert((*part).to_owned(), made);
                    self.at(here).node.links += 1;
                    made
                }
            };
        }
        Ok(here)
    }

    fn count(&mut self) -> Result<(), Refusal> {
        self.entries += 1;
        if self.entries > ENTRIES_MAX { Err("too many entries") } else { Ok(()) }
    }

    /// Counts an entry that is left out.
    pub(super) fn refuse(&mut self, reason: Refusal) {
        *self.refused.entry(reason).or_default() += 1;
    }

    /// Adds an entry, or counts why not.
    pub(super) fn add(&mut self, path: &[u8], about: About, content: Content) {
        if let Err(reason) = self.try_add(path, about, content) {
            self.refuse(reason);
        }
    }

    fn try_add(&mut self, path: &[u8], mut about: About, content: Content) -> Result<(), Refusal> {
        let parts = split(path)?;
        let pieces = match &content {
            Content::File { size, .. } if *size > i64::MAX as u64 => {
                return Err("file of an impossible size");
            }
            Content::File { data: Data::Sparse(pieces), .. } => pieces.len(),
            Content::Link(target) if target.is_empty() || target.len() > PATH_BYTES_MAX => {
                return Err("link without a target, or with one that is too long");
            }
            _ => 0,
        };
        self.pieces += pieces;
        if self.pieces > PIECES_MAX {
            return Err("too many pieces of sparse files");
        }
        about.mode &= libc::S_IFMT | 0o1777;
        let directory = matches!(content, Content::Directory { .. });
        let Some((name, above)) = parts.split_last() else {
            if directory {
                self.at(ROOT).node.about = about;
                return Ok(());
            }
            return Err("entry without a name");
        };
        let parent = self.descend(above)?;
        match self.at(parent).names.get(*name).copied() {
            Some(there) if self.is_directory(there) && directory => {
                self.at(there).node.about = about;
                return Ok(());
            }
            Some(there) if self.is_directory(there) => {
                return Err("file under the name of a directory");
            }
            Some(there) => self.at(there).node.links -= 1,
            None => {}
        }
        self.count()?;
        let content = match content {
            Content::Directory { names, .. } => Content::Directory { parent, names },
            other => other,
        };
        let made = self.push(about, content);
        self.at(parent).names.insert((*name).to_owned(), made);
        if directory {
            self.at(parent).node.links += 1;
        }
        Ok(())
    }

    /// Adds one more name of an entry that came before, or counts why not.
    pub(super) fn link(&mut self, path: &[u8], target: &[u8]) {
        if let Err(reason) = self.try_link(path, target) {
            self.refuse(reason);
        }
    }

    fn try_link(&mut self, path: &[u8], target: &[u8]) -> Result<(), Refusal> {
        let target = split(target)?;
        self.components += target.len();
        let mut here = ROOT;
        for part in target {
            here = self.at(here).names.get(part).copied().ok_or("hard link to what is not there")?;
        }
        if self.is_directory(here) {
            return Err("hard link to a directory");
        }
        let parts = split(path)?;
        let (name, above) = parts.split_last().ok_or("entry without a name")?;
        let parent = self.descend(above)?;
        match self.at(parent).names.get(*name).copied() {
            Some(there) if there == here => return Ok(()),
            Some(there) if self.is_directory(there) => return Err("file under the name of a directory"),
            Some(there) => self.at(there).node.links -= 1,
            None => {}
        }
        self.count()?;
        self.at(here).node.links += 1;
        self.at(parent).names.insert((*name).to_owned(), here);
        Ok(())
    }

    /// The tree.
    pub(super) fn finish(self) -> Tree {
        let freeze = |growing: Growing| {
            let mut node = growing.node;
            if let Content::Directory { names, .. } = &mut node.content {
                *names = growing.names.into_iter().collect();
            }
            node
        };
        Tree { nodes: self.nodes.into_iter().map(freeze).collect(), refused: self.refused }
    }
}
