//! Answers of a backend in the words of the FUSE protocol.

use crate::backend::{Attributes, NewTime};
use crate::error::{Errno, Result};
use fuser::{FileAttr, FileType, INodeNo, ReplyEmpty, ReplyXattr, TimeOrNow};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(super) fn errno(error: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(error.0)
}

pub(super) fn kind(mode: u32) -> FileType {
    match mode & libc::S_IFMT {
        libc::S_IFDIR => FileType::Directory,
        libc::S_IFLNK => FileType::Symlink,
        libc::S_IFIFO => FileType::NamedPipe,
        libc::S_IFCHR => FileType::CharDevice,
        libc::S_IFBLK => FileType::BlockDevice,
        libc::S_IFSOCK => FileType::Socket,
        _ => FileType::RegularFile,
    }
}

pub(super) fn shown(of: &Attributes) -> FileAttr {
    FileAttr {
        ino: INodeNo(of.inode),
        size: of.size,
        blocks: of.blocks,
        atime: of.accessed,
        mtime: of.modified,
        ctime: of.changed,
        crtime: SystemTime::UNIX_EPOCH,
        kind: kind(of.mode),
        perm: (of.mode & 0o7777) as u16,
        nlink: of.links,
        uid: of.user,
        gid: of.group,
        rdev: of.device,
        blksize: 4096,
        flags: 0,
    }
}

/// A time before 1970 that has a fraction: the kernel counts that forwards from whole seconds, and the library has taken it backwards.
fn told(time: SystemTime) -> SystemTime {
    let Err(before) = time.duration_since(UNIX_EPOCH) else { return time };
    let fraction = Duration::from_nanos(before.duration().subsec_nanos().into());
    time.checked_add(fraction * 2).unwrap_or(time)
}

pub(super) fn new_time(time: TimeOrNow) -> NewTime {
    match time {
        TimeOrNow::SpecificTime(time) => NewTime::At(told(time)),
        TimeOrNow::Now => NewTime::Now,
    }
}

pub(super) fn empty(answer: Result<()>, reply: ReplyEmpty) {
    match answer {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

pub(super) fn extended(answer: Result<Vec<u8>>, size: u32, reply: ReplyXattr) {
    match answer {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(fuser::Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(error) => reply.error(errno(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fraction_before_1970_counts_forwards() {
        // What the library makes of -101 seconds and 999,999,995 nanoseconds.
        let taken = UNIX_EPOCH - Duration::new(101, 999_999_995);
        assert_eq!(told(taken), UNIX_EPOCH - Duration::new(100, 5));
        for whole in [UNIX_EPOCH - Duration::from_secs(7), UNIX_EPOCH, UNIX_EPOCH + Duration::new(1, 5)] {
            assert_eq!(told(whole), whole);
        }
    }
}
