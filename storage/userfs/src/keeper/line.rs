//! What a daemon and its keeper say to each other, and what is handed over.

use crate::accelerate::Holder;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Longest message.
const WORD_BYTES_MAX: usize = 64 * 1024;
/// Connection, segment, two journals of two files, and counts.
const DESCRIPTORS_MAX: usize = 7;

/// What is kept, besides descriptors.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct About {
    /// `st_dev` of all files.
    pub(crate) device: u64,
    /// Where programs ask for the injector: those that run know the name.
    pub(crate) injector: String,
    /// Which descriptors come along, after the connection.
    pub(crate) segment: bool,
    pub(crate) journal: bool,
    pub(crate) passthrough: bool,
    pub(crate) counts: bool,
}

/// What outlives a daemon.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) about: About,
    pub(crate) kernel: OwnedFd,
    pub(crate) segment: Option<OwnedFd>,
    pub(crate) journal: Option<[OwnedFd; 2]>,
    pub(crate) passthrough: Option<[OwnedFd; 2]>,
    pub(crate) counts: Option<OwnedFd>,
}

impl Kept {
    pub(super) fn new(about: About, descriptors: Vec<OwnedFd>) -> Option<Kept> {
        let mut all = descriptors.into_iter();
        let kernel = all.next()?;
        let segment = if about.segment { Some(all.next()?) } else { None };
        let journal = if about.journal { Some([all.next()?, all.next()?]) } else { None };
        let passthrough = if about.passthrough { Some([all.next()?, all.next()?]) } else { None };
        let counts = if about.counts { Some(all.next()?) } else { None };
        Some(Kept { about, kernel, segment, journal, passthrough, counts })
    }

    pub(super) fn holder(&self, process: u32) -> Holder {
        let segment = self.segment.as_ref().map(AsRawFd::as_raw_fd);
        Holder { process, kernel: self.kernel.as_raw_fd(), segment }
    }
}

/// What a daemon and its keeper say to each other, a message each.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Word {
    /// The daemon: it has mounted this. Descriptors come along.
    Keep(About),
    /// The keeper: it has it.
    Kept(Holder),
    /// The daemon: the mount is served again.
    Serving,
    /// The daemon: it ends its mount for this reason.
    Ends(String),
}

pub(super) fn say(line: &OwnedFd, word: &Word, descriptors: &[BorrowedFd<'_>]) -> std::io::Result<()> {
    let bytes = serde_json::to_vec(word).map_err(std::io::Error::other)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut along = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !along.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(std::io::Error::other("too many descriptors"));
    }
    // Nobody listens any more: an error, not a signal.
    sendmsg(line, &[IoSlice::new(&bytes)], &mut along, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Nothing when the other side is gone.
pub(super) fn hear(line: &OwnedFd) -> std::io::Result<Option<(Word, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; WORD_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut along = RecvAncillaryBuffer::new(&mut space);
    let got = {
        let mut parts = [IoSliceMut::new(&mut bytes)];
        match recvmsg(line, &mut parts, &mut along, RecvFlags::CMSG_CLOEXEC) {
            Ok(got) => got.bytes,
            Err(rustix::io::Errno::CONNRESET) => 0,
            Err(error) => return Err(error.into()),
        }
    };
    if got == 0 {
        return Ok(None);
    }
    let descriptors = along
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        })
        .flatten()
        .collect();
    let word = serde_json::from_slice(&bytes[..got]).map_err(std::io::Error::other)?;
    Ok(Some((word, descriptors)))
}

/// The daemon's end of the line.
#[derive(Debug)]
pub(crate) struct Line {
    pub(super) line: OwnedFd,
    /// The keeper.
    pub(crate) keeper: u32,
    /// Daemons of this mount that died.
    pub(crate) deaths: u64,
    /// What the one before left, and where programs find it.
    pub(crate) left: Option<(Kept, Holder)>,
}

impl Line {
    /// Hands over what is to be kept. Where programs find it.
    pub(crate) fn keep(&self, about: About, descriptors: &[BorrowedFd<'_>]) -> std::io::Result<Holder> {
        say(&self.line, &Word::Keep(about), descriptors)?;
        match hear(&self.line)? {
            Some((Word::Kept(holder), _)) => Ok(holder),
            _ => Err(std::io::Error::other("the keeper of the mount did not take it")),
        }
    }

    /// Says that the mount is served again.
    pub(crate) fn serving(&self) -> std::io::Result<()> {
        say(&self.line, &Word::Serving, &[])
    }

    /// Whether the keeper still lives.
    pub(crate) fn is_kept(&self) -> bool {
        let mut ready = [PollFd::new(&self.line, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut ready, Some(&now)).is_ok() && !ready[0].revents().contains(PollFlags::HUP)
    }
}

/// The descriptors that [`About`] tells of, in order.
pub(crate) fn descriptors<'a>(
    kernel: &'a OwnedFd,
    segment: Option<&'a OwnedFd>,
    journals: [Option<[BorrowedFd<'a>; 2]>; 2],
    counts: Option<&'a OwnedFd>,
) -> Vec<BorrowedFd<'a>> {
    let mut all = vec![kernel.as_fd()];
    all.extend(segment.map(AsFd::as_fd));
    all.extend(journals.into_iter().flatten().flatten());
    all.extend(counts.map(AsFd::as_fd));
    all
}
