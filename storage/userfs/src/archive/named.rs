//! Names and attributes of an archive's files in shared memory (`segment/names.h`): accelerated processes look files up, and open small ones, without
//! the kernel's side of FUSE.
//!
//! All is written before anybody maps it, and nothing changes afterwards but how often the kernel was told a file.
//!
//! What cannot be shown here as the kernel shows it has no kind here, so processes leave it to the kernel: times that do not fit into
//! nanoseconds.

use super::tree::{Content, Node, Tree};
use crate::segment::{NodeFields, Segment, moment, nanoseconds};

/// Files of an archive whose names are here: each takes some 330 bytes. Files of larger archives are opened by the kernel.
const NAMED_MAX: u64 = 1 << 18;

/// Shared memory for the files of `tree`, and `bytes_max` bytes of what is in them.
pub(super) fn segment(tree: &Tree, bytes_max: u64) -> std::io::Result<Segment> {
    // Numbers begin with the root's, which is 1.
    let records = tree.files() + 1;
    if tree.files() > NAMED_MAX {
        return Segment::create(records, bytes_max);
    }
    let segment = Segment::create_with_names(records, bytes_max)?;
    put_all(&segment, tree);
    Ok(segment)
}

fn put_all(segment: &Segment, tree: &Tree) {
    let Some(mut names) = segment.names() else { return };
    for (inode, node) in tree.every() {
        let fields = fields(node);
        match &node.content {
            Content::Directory { names: below, .. } => {
                names.describe(inode, fields, below.len());
                for (name, file) in below {
                    names.put(inode, name, *file);
                }
                // The kernel shows directories: it has walked through them anyway.
                if let Ok(mut record) = segment.record(inode) {
                    record.tell_attributes();
                }
            }
            Content::File { size, .. } => {
                names.describe_partial(inode, fields, node.content.blocks());
                if let Ok(mut record) = segment.record(inode) {
                    record.begin_partial(*size);
                }
            }
            Content::Link(_) | Content::Pipe => names.describe(inode, fields, 0),
        }
    }
}

fn fields(node: &Node) -> NodeFields {
    let about = node.about;
    let modified_ns = nanoseconds(about.modified);
    let is_exact = moment(modified_ns) == about.modified;
    NodeFields {
        mode: if is_exact { about.mode } else { about.mode & !libc::S_IFMT },
        user: about.user,
        group: about.group,
        links: node.links,
        accessed_ns: modified_ns,
        changed_ns: modified_ns,
        modified_ns,
    }
}
