//! The process that keeps a mount when the one that serves it dies.
//!
//! It mounts nothing and understands no file: it holds descriptors, and forks. The daemon is its child. When it has mounted, it
//! hands over the connection to the kernel, the segment, the journals and the counts ([`line::Kept`]), and learns by which descriptors the keeper has them, as
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

pub(crate) mod line;

use crate::daemon::{self, Task};
use crate::error::Error;
use line::{Kept, Line, Word, hear, say};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, waitpid};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const DEATHS_MAX: usize = 8;
const DEATHS_WITHIN: Duration = Duration::from_secs(60);
/// Before a daemon that died twice is followed by another; longer after each death that counts.
const PAUSE: Duration = Duration::from_millis(250);
/// How long it takes at most to see that it shall end.
const TURN_MS: i64 = 200;

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
