//! The tree in the words of a journal, for the daemon that comes after one that died.
//!
//! Bytes, sizes and times of contents are in the segment, which outlives a daemon as the journal does. Names in the segment are made anew from
//! the tree: the daemon may have died in the middle of changing them.

use super::tree::{Changes, Content, Directory, Node, Tree};
use crate::backend::{Inode, ROOT};
use crate::segment::{moment, nanoseconds};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::SystemTime;

/// What became true.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Entry {
    Gone { inode: Inode },
    Node(Box<Shape>),
    Name { folder: Inode, name: Vec<u8>, now: Option<(Inode, u64)> },
    Told { inode: Inode, times: u64 },
}

/// A node, without what it has inside.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Shape {
    inode: Inode,
    mode: u32,
    links: u32,
    user: u32,
    group: u32,
    device: u32,
    accessed_ns: i64,
    modified_ns: i64,
    changed_ns: i64,
    told: u64,
    kind: Kind,
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

#[derive(Debug, Serialize, Deserialize)]
enum Kind {
    File,
    Directory { parent: Inode },
    Link(Vec<u8>),
    Special,
}

fn to_ns(time: SystemTime) -> i64 {
    nanoseconds(time).cast_signed()
}

fn from_ns(ns: i64) -> SystemTime {
    moment(ns.cast_unsigned())
}

fn shape(inode: Inode, node: &Node) -> Entry {
    let kind = match &node.content {
        Content::File => Kind::File,
        Content::Directory(directory) => Kind::Directory { parent: directory.parent },
        Content::Link(target) => Kind::Link(target.clone()),
        Content::Special => Kind::Special,
    };
    let bytes = |(name, value): (&OsString, &Vec<u8>)| (name.as_bytes().to_vec(), value.clone());
    Entry::Node(Box::new(Shape {
        inode,
        mode: node.mode,
        links: node.links,
        user: node.user,
        group: node.group,
        device: node.device,
        accessed_ns: to_ns(node.accessed),
        modified_ns: to_ns(node.modified),
        changed_ns: to_ns(node.changed),
        told: node.told,
        kind,
        attributes: node.attributes.iter().map(bytes).collect(),
    }))
}

/// What changed, for the journal.
pub(super) fn entries(tree: &Tree, changes: &Changes) -> Vec<Entry> {
    let mut shown = HashSet::new();
    let mut all: Vec<Entry> = changes.gone.iter().map(|inode| Entry::Gone { inode: *inode }).collect();
    for inode in &changes.touched {
        if shown.insert(*inode)
            && let Ok(node) = tree.node(*inode)
        {
            all.push(shape(*inode, node));
        }
    }
    all.extend(changes.names.iter().map(|change| Entry::Name {
        folder: change.folder,
        name: change.name.as_bytes().to_vec(),
        now: change.now,
    }));
    for inode in &changes.told {
        if shown.insert(*inode)
            && let Ok(node) = tree.node(*inode)
        {
            all.push(Entry::Told { inode: *inode, times: node.told });
        }
    }
    all
}

/// All that is true: nodes first, so that there are folders for names.
pub(super) fn all(tree: &Tree) -> impl Iterator<Item = Entry> + '_ {
    let nodes = tree.nodes.iter().map(|(inode, node)| shape(*inode, node));
    let names = tree.nodes.iter().flat_map(|(folder, node)| {
        let directory = match &node.content {
            Content::Directory(directory) => Some(directory),
            _ => None,
        };
        directory.into_iter().flat_map(move |directory| {
            directory.after(0).map(move |(place, name, inode)| Entry::Name {
                folder: *folder,
                name: name.as_bytes().to_vec(),
                now: Some((inode, place)),
            })
        })
    });
    nodes.chain(names)
}

impl Tree {
    /// As it was before the daemon died: what it had written down is done again.
    pub(super) fn redo(&mut self, entry: Entry) {
        match entry {
            Entry::Gone { inode } => drop(self.nodes.remove(&inode)),
            Entry::Node(shape) => self.redo_node(*shape),
            Entry::Name { folder, name, now } => {
                if let Some(Node { content: Content::Directory(directory), .. }) = self.nodes.get_mut(&folder)
                {
                    let name = OsStr::from_bytes(&name);
                    match now {
                        Some((inode, place)) => directory.insert_at(place, name, inode),
                        None => directory.remove(name),
                    }
                }
            }
            Entry::Told { inode, times } => {
                if let Some(node) = self.nodes.get_mut(&inode) {
                    node.told = times;
                }
            }
        }
    }

    fn redo_node(&mut self, shape: Shape) {
        let before = self.nodes.remove(&shape.inode).map(|node| node.content);
        let content = match (shape.kind, before) {
            (Kind::Directory { parent }, Some(Content::Directory(mut directory))) => {
                directory.parent = parent;
                Content::Directory(directory)
            }
            (Kind::Directory { parent }, _) => Content::Directory(Directory::new(parent)),
            (Kind::File, _) => Content::File,
            (Kind::Link(target), _) => Content::Link(target),
            (Kind::Special, _) => Content::Special,
        };
        let attributes: BTreeMap<OsString, Vec<u8>> =
            shape.attributes.into_iter().map(|(name, value)| (OsString::from_vec(name), value)).collect();
        let node = Node {
            content,
            mode: shape.mode,
            links: shape.links,
            user: shape.user,
            group: shape.group,
            device: shape.device,
            accessed: from_ns(shape.accessed_ns),
            modified: from_ns(shape.modified_ns),
            changed: from_ns(shape.changed_ns),
            attributes,
            told: shape.told,
        };
        self.nodes.insert(shape.inode, node);
    }

    /// All is done again. `aside`: numbers that are set aside, or of files that processes made meanwhile. Files that nobody names or knows
    /// may be open in processes.
    pub(super) fn redone(&mut self, aside: &HashSet<Inode>) {
        let used = self.nodes.keys().chain(aside).copied().max().unwrap_or(ROOT);
        self.next = used + 1;
        self.free = (ROOT + 1..self.next)
            .filter(|inode| !self.nodes.contains_key(inode) && !aside.contains(inode))
            .collect();
        let nobodys = |(inode, node): (&Inode, &Node)| {
            (node.links == 0 && node.told == 0 && *inode != ROOT).then_some(*inode)
        };
        self.held = self.nodes.iter().filter_map(nobodys).collect();
        // What made it so is known.
        drop(self.changes());
    }

    /// Every name, for the segment.
    pub(super) fn every_name(&self) -> impl Iterator<Item = (Inode, &OsStr, Inode)> {
        self.nodes.iter().flat_map(|(folder, node)| {
            let directory = match &node.content {
                Content::Directory(directory) => Some(directory),
                _ => None,
            };
            directory
                .into_iter()
                .flat_map(|directory| directory.after(0))
                .map(move |(_, name, inode)| (*folder, name, inode))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Backend, Change, New, NewTime, Replace};
    use crate::mem::{Limits, Memory};
    use std::sync::Arc;
    use std::time::{Duration, UNIX_EPOCH};

    fn new(mode: u32) -> New {
        New { mode, device: 0, user: 1, group: 2 }
    }

    fn again(memory: &Memory) -> Memory {
        let journal = memory.journal().unwrap().files().map(|file| file.try_clone_to_owned().unwrap());
        let segment = memory.segment().unwrap().memory().try_clone().unwrap();
        Memory::recall(segment, journal).unwrap()
    }

    fn listed(memory: &Memory, inode: Inode) -> Vec<(u64, Inode, OsString)> {
        let mut all = Vec::new();
        memory
            .list(inode, 0, &mut |entry| {
                all.push((entry.next, entry.inode, entry.name.to_owned()));
                true
            })
            .unwrap();
        all
    }

    fn work(memory: &Memory, round: u32) {
        let name = |what: &str| OsString::from(format!("{what}{round}"));
        let folder = memory.make_directory(ROOT, &name("d"), new(0o755)).unwrap().inode;
        let file = memory.make(folder, &name("f"), new(libc::S_IFREG | 0o640)).unwrap().inode;
        memory.write(file, 0, b"contents", false).unwrap();
        memory.set_attribute(file, OsStr::new("user.a"), b"value", 0).unwrap();
        memory.link(file, ROOT, &name("l")).unwrap();
        memory.make_link(folder, &name("s"), OsStr::new("target"), new(0)).unwrap();
        let long = OsString::from("n".repeat(200) + &round.to_string());
        memory.make(folder, &long, new(libc::S_IFREG | 0o600)).unwrap();
        memory.rename((folder, &long), (ROOT, &name("r")), Replace::Yes).unwrap();
        let gone = memory.make(ROOT, &name("g"), new(libc::S_IFREG | 0o600)).unwrap().inode;
        memory.unlink(ROOT, &name("g")).unwrap();
        memory.forget(gone, 1);
        let old = UNIX_EPOCH - Duration::from_secs(1000);
        let change = Change { mode: Some(0o400), accessed: Some(NewTime::At(old)), ..Change::default() };
        memory.change(file, &change).unwrap();
    }

    #[test]
    fn a_tree_is_as_it_was() {
        let mut memory = Memory::kept(Limits { bytes_max: 1 << 24, files_max: 4096 }, 0, 0).unwrap();
        for round in 0..40 {
            work(&memory, round);
            if round % 8 == 3 {
                memory.journal().unwrap().rewrite(all(&memory.tree.lock().unwrap()));
            }
            let after = again(&memory);
            let mut folders = vec![ROOT];
            while let Some(folder) = folders.pop() {
                let names = listed(&memory, folder);
                assert_eq!(names, listed(&after, folder));
                for (_, inode, name) in names.into_iter().skip(2) {
                    let (is, was) = (after.attributes(inode).unwrap(), memory.attributes(inode).unwrap());
                    assert_eq!(is, was, "{name:?}");
                    assert_eq!(after.list_attributes(inode), memory.list_attributes(inode));
                    assert_eq!(after.read_link(inode), memory.read_link(inode));
                    if is.is_directory() {
                        folders.push(inode);
                    }
                    let names = after.segment().unwrap().names().unwrap();
                    if name.len() <= 100 {
                        assert_eq!(names.find(folder, &name), Some(inode), "{name:?}");
                    }
                }
            }
            assert_eq!(after.space(), memory.space());
            if round % 5 == 4 {
                memory = after;
            }
        }
    }

    #[test]
    fn what_was_removed_while_open_goes_when_it_is_forgotten() {
        let memory = Memory::kept(Limits { bytes_max: 1 << 24, files_max: 4096 }, 0, 0).unwrap();
        let file = memory.make(ROOT, OsStr::new("f"), new(libc::S_IFREG | 0o600)).unwrap().inode;
        memory.write(file, 0, &[1; 100_000], false).unwrap();
        memory.unlink(ROOT, OsStr::new("f")).unwrap();
        let after = Arc::new(again(&memory));
        let mut first = [0];
        assert_eq!(after.read(file, 99_999, &mut first), Ok(1));
        assert_eq!(first, [1]);
        after.forget(file, 1);
        assert!(after.attributes(file).is_err());
        assert_eq!(after.segment().unwrap().figures().blocks_used, 0);
    }

    #[test]
    fn what_a_process_did_not_finish_is_done() {
        for same_daemon in [true, false] {
            let memory = Memory::kept(Limits { bytes_max: 1 << 24, files_max: 4096 }, 0, 0).unwrap();
            let name = OsStr::new("f");
            let file = memory.make(ROOT, name, new(libc::S_IFREG | 0o600)).unwrap().inode;
            memory.forget(file, 1);
            {
                // It died when it had said so, and before the name was gone.
                let mut names = memory.segment().unwrap().names().unwrap();
                assert!(names.remove(ROOT, name, file));
                names.put(ROOT, name, file);
                names.change_begins();
            }
            let memory = if same_daemon { memory } else { again(&memory) };
            assert!(memory.lookup(ROOT, name).is_err());
            assert_eq!(memory.attributes(ROOT).unwrap().size, 0);
            let names = memory.segment().unwrap().names().unwrap();
            assert_eq!(names.find(ROOT, name), None);
            assert!(!names.has_news());
        }
    }
}
