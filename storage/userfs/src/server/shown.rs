//! Answers of a backend in the words of the FUSE protocol.

use crate::backend::{Attributes, NewTime};
use crate::error::{Errno, Result};
use fuser::{FileAttr, FileType, INodeNo, ReplyEmpty, ReplyXattr, TimeOrNow};
use std::time::SystemTime;

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

pub(super) fn new_time(time: TimeOrNow) -> NewTime {
    match time {
        TimeOrNow::SpecificTime(time) => NewTime::At(time),
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
