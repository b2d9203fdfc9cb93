//! The process that keeps a mount when the one that serves it dies.
//!
//! It mounts nothing and understands no file: it holds descriptors, and forks. The daemon is its child. When it has mounted, it
//! hands over the connection to the kernel, the segment, the journals and the counts ([`Kept`]), and learns by which descriptors the keeper has them, as
//! programs take them from there. When the daemon dies without having ended its mount, a new child begins with them (`Mount::again`):
//! to programs the mount was only slow for a moment. The kernel holds what they ask meanwhile.
//!
//! Invariants
//! - The keeper has one thread, and allocates little: forking it is sound, and nothing that a backend does harms it.
//! - A daemon that ends its mount says so by ending well, or by its last words; then nobody serves it again.
//! - At most [`DEATHS_MAX`] deaths in [`DEATHS_WITHIN`]: a daemon that cannot live is given up. Programs then see "transport endpoint is
//!   not connected", as the connection closes with the keeper; the mount is left, lest they write to the folder below it.
//! - If the keeper dies the daemon goes on, and says in its status that the next death is the last.
#![allow(unsafe_code)]

use crate::accelerate::Holder;
use crate::daemon::{self, Task};
use crate::error::Error;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, waitpid};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const DEATHS_MAX: usize = 8;
const DEATHS_WITHIN: Duration = Duration::from_secs(60);
/// Before a daemon that died twice is followed by another; longer after each death that counts.
const PAUSE: Duration = Duration::from_millis(250);
/// How long it takes at most to see that it shall end.
const TURN_MS: i64 = 200;
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
    fn new(about: About, descriptors: Vec<OwnedFd>) -> Option<Kept> {
        let mut all = descriptors.into_iter();
        let kernel = all.next()?;
        let segment = if about.segment { Some(all.next()?) } else { None };
        let journal = if about.journal { Some([all.next()?, all.next()?]) } else { None };
        let passthrough = if about.passthrough { Some([all.next()?, all.next()?]) } else { None };
        let counts = if about.counts { Some(all.next()?) } else { None };
        Some(Kept { about, kernel, segment, journal, passthrough, counts })
    }

    fn holder(&self, process: u32) -> Holder {
        let segment = self.segment.as_ref().map(AsRawFd::as_raw_fd);
        Holder { process, kernel: self.kernel.as_raw_fd(), segment }
    }
}

/// What a daemon and its keeper say to each other, a message each.
#[derive(Debug, Serialize, Deserialize)]
enum Word {
    /// The daemon: it has mounted this. Descriptors come along.
    Keep(About),
    /// The keeper: it has it.
    Kept(Holder),
    /// The daemon: the mount is served again.
    Serving,
    /// The daemon: it ends its mount for this reason.
    Ends(String),
}

fn say(line: &OwnedFd, word: &Word, descriptors: &[BorrowedFd<'_>]) -> std::io::Result<()> {
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
fn hear(line: &OwnedFd) -> std::io::Result<Option<(Word, Vec<OwnedFd>)>> {
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
    line: OwnedFd,
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

struct Keeper {
    task: Task,
    kept: Option<Kept>,
    deaths: u64,
    recent: VecDeque<Instant>,
}

/// How a daemon ended.
enum End {
    /// Its mount is over.
    Over(Result<(), Error>),
    /// It is not: what the system says of its end, or its own words.
    Died(String),
}

/// Mounts, and has it served until it is unmounted, or until `end` is set. Returns once nothing is mounted any more.
///
/// It forks, so the process should have no other thread that does anything.
///
/// # Errors
/// When it cannot be mounted, or its daemons die one after the other.
pub fn serve(task: Task, end: &AtomicBool) -> Result<(), Error> {
    let point = daemon::place(&task.point)?;
    let task = Task { point, ..task };
    let mut keeper = Keeper { task, kept: None, deaths: 0, recent: VecDeque::new() };
    loop {
        match keeper.one_life(end)? {
            End::Over(result) => return result,
            End::Died(how) if end.load(Ordering::Relaxed) => return Err(keeper.gives_up(&how)),
            End::Died(how) => keeper.bury(&how)?,
        }
    }
}

impl Keeper {
    /// A daemon, from its beginning to its end.
    fn one_life(&mut self, end: &AtomicBool) -> Result<End, Error> {
        let failed = |error: std::io::Error| Error::io("starting the daemon", error);
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (own, line) = pair.map_err(|error| failed(error.into()))?;
        let keeper = std::process::id();
        // SAFETY: there is no other thread whose locks the child could find held; see `serve`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop(own);
            let left = self.kept.take().map(|kept| {
                let holder = kept.holder(keeper);
                (kept, holder)
            });
            live(self.task.clone(), end, Line { line, keeper, deaths: self.deaths, left });
        }
        drop(line);
        let child = Pid::from_raw(child).filter(|_| child > 0);
        self.watch(&own, child.ok_or_else(|| failed(std::io::Error::last_os_error()))?, end).map_err(failed)
    }

    fn watch(&mut self, line: &OwnedFd, child: Pid, end: &AtomicBool) -> std::io::Result<End> {
        let mut served = self.kept.is_none();
        let mut last_words = None;
        let mut told = false;
        loop {
            if end.load(Ordering::Relaxed) && !std::mem::replace(&mut told, true) {
                // One that is gone by now needs no telling.
                let _ = kill_process(child, Signal::TERM);
            }
            let patience = Timespec { tv_sec: 0, tv_nsec: TURN_MS * 1_000_000 };
            match rustix::event::poll(&mut [PollFd::new(line, PollFlags::IN)], Some(&patience)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
            match hear(line)? {
                Some((Word::Keep(about), descriptors)) => {
                    self.kept = Kept::new(about, descriptors);
                    let kept = self.kept.as_ref().map(|kept| kept.holder(std::process::id()));
                    if let Some(holder) = kept {
                        // One that died meanwhile is seen next.
                        let _ = say(line, &Word::Kept(holder), &[]);
                    }
                }
                Some((Word::Serving, _)) => served = true,
                Some((Word::Ends(words), _)) => last_words = Some(words),
                Some((Word::Kept(_), _)) => {}
                None => break,
            }
        }
        let status = loop {
            match waitpid(Some(child), WaitOptions::empty()) {
                Ok(found) => break found.map(|(_, status)| status),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        };
        Ok(self.judge(status, last_words, served))
    }

    fn judge(&self, status: Option<WaitStatus>, last_words: Option<String>, served: bool) -> End {
        let code = status.and_then(|status| status.exit_status());
        let how = match (&last_words, status.and_then(|status| status.terminating_signal())) {
            (Some(words), _) => words.clone(),
            (None, Some(signal)) => format!("it was ended by signal {signal}"),
            (None, None) => format!("it ended with code {}", code.unwrap_or(-1)),
        };
        match (code, last_words) {
            (Some(0), _) => End::Over(Ok(())),
            (_, Some(words)) if served => End::Over(Err(Error::Daemon(words))),
            _ if self.kept.is_none() => End::Over(Err(Error::Daemon(how))),
            _ => End::Died(how),
        }
    }

    /// Counts a death; waits where there are many.
    fn bury(&mut self, how: &str) -> Result<(), Error> {
        self.deaths += 1;
        self.recent.retain(|death| death.elapsed() < DEATHS_WITHIN);
        self.recent.push_back(Instant::now());
        if self.recent.len() > DEATHS_MAX {
            return Err(self.gives_up(how));
        }
        tracing::warn!("the daemon of {} died: {how}; another takes its place", self.task.point.display());
        std::thread::sleep(PAUSE * (self.recent.len() as u32 - 1));
        Ok(())
    }

    fn gives_up(&self, how: &str) -> Error {
        Error::Daemon(format!(
            "the daemon of {} died {} times, and its mount is given up: {how}",
            self.task.point.display(),
            self.deaths.max(1)
        ))
    }
}

/// The child's life.
fn live(task: Task, end: &AtomicBool, line: Line) -> ! {
    let last = line.line.try_clone();
    let lived = catch_unwind(AssertUnwindSafe(|| daemon::serve_kept(task, end, line)));
    let code = match lived {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => {
            // Who cannot say it ends all the same.
            let _ = last.and_then(|line| say(&line, &Word::Ends(error.to_string()), &[]));
            1
        }
        Err(_) => 101,
    };
    // SAFETY: ends the process, without what the keeper would do at its own end.
    unsafe { libc::_exit(code) }
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
