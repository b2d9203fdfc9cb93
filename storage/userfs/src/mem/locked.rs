//! The tree under its lock, with its copy in the segment and the journal.

use super::tree::{Node, Tree};
use super::{Memory, recall};
use crate::backend::Inode;
use crate::journal::Journal;
use crate::segment::{Names, NodeFields, Segment, What, moment, nanoseconds};
use std::collections::HashSet;
use std::ops::{Deref, DerefMut};
use std::sync::{MutexGuard, PoisonError};

/// Numbers that are set aside for files that accelerated processes make: when there are fewer, up to how many.
const SPARE_LOW: usize = 512;
const SPARE_MAX: usize = 1024;

/// The tree, and its copy in the segment, which is as the tree again when this is dropped.
pub(super) struct Locked<'a> {
    pub(super) names: Option<Names<'a>>,
    tree: MutexGuard<'a, Tree>,
    memory: &'a Memory,
}

impl Deref for Locked<'_> {
    type Target = Tree;

    fn deref(&self) -> &Tree {
        &self.tree
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Tree {
        &mut self.tree
    }
}

impl Memory {
    /// All names and attributes, with what processes did to them past us.
    pub(super) fn tree(&self) -> Locked<'_> {
        let tree = self.tree.lock().unwrap_or_else(PoisonError::into_inner);
        let mut locked = Locked { names: self.segment.names(), tree, memory: self };
        locked.begin();
        locked
    }
}

/// Takes in what processes did. They said so in the segment, where it stays until `names` is told that it is taken: a daemon that dies before that
/// has a successor who takes it in once more.
fn take_in(names: &Names<'_>, tree: &mut Tree) {
    for event in names.events() {
        if let Err(error) = tree.learn(&event, &names.fields(event.inode), moment(event.at_ns)) {
            tracing::warn!("what a process did is lost: {event:?}: {error:?}");
            continue;
        }
        // One that is gone by now needs nothing.
        if !matches!(event.what, What::Removed(..))
            && let Ok(node) = tree.node_mut(event.inode)
        {
            let fields = names.fields(event.inode);
            node.mode = fields.mode;
            (node.accessed, node.modified, node.changed) =
                (moment(fields.accessed_ns), moment(fields.modified_ns), moment(fields.changed_ns));
        }
    }
}

/// Whether processes know the names that changed already.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    Names,
    Nothing,
}

/// Writes down what changed: for a successor, then for processes. Who gets the lock of the names in between from a daemon that died
/// sees that it is not done, and leaves them alone.
fn write_down(names: &mut Names<'_>, tree: &mut Tree, journal: Option<&Journal>, known: Known) {
    let changes = tree.changes();
    if changes.is_empty() {
        return;
    }
    names.change_begins();
    if let Some(journal) = journal {
        journal.append(&recall::entries(tree, &changes));
        if journal.is_long() {
            journal.rewrite(recall::all(tree));
        }
    }
    for change in changes.names.iter().filter(|_| known == Known::Nothing) {
        match change.now {
            Some((inode, _)) => names.put(change.folder, &change.name, inode),
            None => names.take(change.folder, &change.name),
        }
    }
    for inode in changes.touched {
        if let Ok(node) = tree.node(inode) {
            names.describe(inode, fields(node), node.entries());
        }
    }
    for inode in changes.told {
        names.tell(inode, tree.node(inode).map_or(0, |node| node.told));
    }
    names.change_ends();
}

/// After a daemon died: its locks are nobody's, names in the segment are as in the tree, and records of files that are no more are free.
pub(super) fn mend(segment: &Segment, tree: &mut Tree, journal: &Journal) {
    let Some(mut names) = segment.names() else { return };
    names.change_begins();
    take_in(&names, tree);
    // Before anything else is written down: see `take_in`.
    let taken = tree.changes();
    journal.append(&recall::entries(tree, &taken));
    names.taken();
    let aside: HashSet<Inode> = names.numbers_aside().into_iter().collect();
    tree.redone(&aside);
    names.clear(tree.next);
    for (folder, name, inode) in tree.every_name() {
        names.put(folder, name, inode);
    }
    for (inode, node) in &tree.nodes {
        names.describe(*inode, fields(node), node.entries());
        names.tell(*inode, node.told);
    }
    segment.free_dead_locks(tree.next);
    for inode in &tree.free {
        if let Ok(mut record) = segment.record(*inode)
            && record.is_live()
        {
            record.end();
        }
    }
    names.change_ends();
}

impl Locked<'_> {
    /// Takes in what processes made, and ends what they no longer hold.
    fn begin(&mut self) {
        let Some(names) = &mut self.names else { return };
        if names.has_news() {
            let known = if names.is_unfinished() { Known::Nothing } else { Known::Names };
            take_in(names, &mut self.tree);
            write_down(names, &mut self.tree, self.memory.journal.as_ref(), known);
            names.taken();
            // Of a process that died before it said what it was about to do.
            names.change_ends();
        }
        if !self.tree.held.is_empty() {
            names.release_dead();
            for inode in std::mem::take(&mut self.tree.held) {
                self.memory.drop_if_gone(self, inode);
            }
            self.write_down();
        }
    }

    fn write_down(&mut self) {
        if let Some(names) = &mut self.names {
            write_down(names, &mut self.tree, self.memory.journal.as_ref(), Known::Nothing);
        } else {
            // Nobody wants to know.
            drop(self.tree.changes());
        }
    }

    /// Numbers for files that processes will make: never more than an eighth of what is free.
    fn set_aside(&mut self) {
        let Some(names) = self.names.as_mut().filter(|names| names.spare() < SPARE_LOW && names.has_users())
        else {
            return;
        };
        let free = self.tree.files_max() - self.tree.files();
        while names.spare() < SPARE_MAX.min(free as usize / 8)
            && let Some(inode) = self.tree.set_aside()
            && names.set_aside(inode)
        {}
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.set_aside();
        self.write_down();
        let is_looking = self.tree.is_looking();
        if let Some(names) = &mut self.names {
            names.hold_back(is_looking);
        }
    }
}

fn fields(node: &Node) -> NodeFields {
    NodeFields {
        mode: node.mode,
        user: node.user,
        group: node.group,
        links: node.links,
        accessed_ns: nanoseconds(node.accessed),
        changed_ns: nanoseconds(node.changed),
        modified_ns: nanoseconds(node.modified),
    }
}
