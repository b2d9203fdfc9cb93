//! The process that is replaced: a thread that waits for whoever wants to take over, and leads the hand-over. The state is
//! the slow thread's ([`crate::slow::handover`]), which it asks.

use super::asks::{Ask, FrozenState, Verdict};
use super::message::{Hello, Message, VERSION_NEWEST, VERSION_OLDEST, Welcome};
use super::wire::{Channel, listen};
use super::{
    ASK_LIMIT, BLACKOUT_LIMIT, BROWNOUT_LIMIT, CONNECTIONS_PER_MESSAGE, Fixed, HELLO_LIMIT, HandoverCounters,
    HandoverError, KILL_LIMIT, RECORDS_PER_MESSAGE, Who, build, sign_lock,
};
use crate::conntrack::Changes;
use crate::engine::Shared;
use crate::engine::sys::Wakeup;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

/// The thread.
#[derive(Debug)]
pub struct Keeper {
    /// Where others take over.
    pub path: PathBuf,
    /// What is handed over first.
    pub fixed: Fixed,
    /// Name and device of the outside, at a gateway.
    pub outside: Option<(String, Arc<OwnedFd>)>,
    /// Who this is.
    pub who: Who,
    /// To the slow thread.
    pub asks: SyncSender<Ask>,
    /// Shared with it.
    pub shared: Arc<Shared>,
    /// Wakes this thread, to end.
    pub wake: Arc<Wakeup>,
    /// What is counted.
    pub counters: Arc<HandoverCounters>,
}

/// What a wait for one of two descriptors came to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waited {
    Readable,
    Ended,
    TooSlow,
}

impl Keeper {
    /// Waits for others until the switch ends.
    ///
    /// # Errors
    /// None: without its socket the switch cannot be taken over from, and that is told.
    pub fn run(self) -> io::Result<()> {
        let listener = match listen(&self.path) {
            Ok(listener) => listener,
            Err(error) => {
                tracing::error!(path = %self.path.display(), %error, "no process can take over from this one");
                return Ok(());
            }
        };
        while !self.shared.stop.load(Relaxed) {
            if self.wait(listener.as_fd(), BROWNOUT_LIMIT) != Waited::Readable {
                continue;
            }
            let accepted = rustix::net::accept_with(&listener, rustix::net::SocketFlags::CLOEXEC);
            let Ok(socket) = accepted else { continue };
            self.counters.begun.fetch_add(1, Relaxed);
            match self.hand_over(Channel::new(socket)) {
                Ok(()) => {
                    tracing::info!("another process serves: this one ends");
                    return Ok(());
                }
                Err(error) => tracing::warn!(%error, "no hand-over: this process goes on"),
            }
        }
        Ok(())
    }

    fn wait(&self, fd: BorrowedFd<'_>, limit: Duration) -> Waited {
        let until = Instant::now() + limit;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            let wake = self.wake.fd();
            let mut fds = [PollFd::new(&wake, PollFlags::IN), PollFd::new(&fd, PollFlags::IN)];
            // A signal ends the wait early.
            let _ = poll(&mut fds, Some(&timeout));
            let readable = !fds[1].revents().is_empty();
            if self.shared.stop.load(Relaxed) {
                return Waited::Ended;
            }
            if readable {
                return Waited::Readable;
            }
            if left.is_zero() {
                return Waited::TooSlow;
            }
        }
    }

    fn receive(&self, channel: &mut Channel, limit: Duration) -> Result<Message, HandoverError> {
        match self.wait(channel.fd(), limit) {
            Waited::Readable => {}
            Waited::Ended => return Err(HandoverError::Own("the switch ends".into())),
            Waited::TooSlow => return Err(HandoverError::TooSlow),
        }
        match channel.receive()? {
            (Message::No(reason), _) => Err(HandoverError::Refused(reason)),
            (message, _) => Ok(message),
        }
    }

    /// A hand-over; on success the other process serves.
    fn hand_over(&self, mut channel: Channel) -> Result<(), HandoverError> {
        let before = self.brownout(&mut channel);
        let peer = match before {
            Ok(peer) => peer,
            Err(error) => {
                self.counters.failed_brownout.fetch_add(1, Relaxed);
                let _ = self.asks.send(Ask::Forget);
                self.shared.slow_wake.wake();
                // Whoever does not read it any more needs no reason.
                let _ = channel.send(&Message::No(error.to_string()), &[]);
                return Err(error);
            }
        };
        self.blackout(&mut channel, &peer).inspect_err(|_| {
            self.counters.failed_blackout.fetch_add(1, Relaxed);
        })
    }

    /// Everything before this process stops to serve; returns the process that takes over.
    fn brownout(&self, channel: &mut Channel) -> Result<OwnedFd, HandoverError> {
        channel.set_limit(BROWNOUT_LIMIT)?;
        let credentials = channel.peer()?;
        if credentials.uid != rustix::process::geteuid() && !credentials.uid.is_root() {
            return Err(HandoverError::Own(format!("user {} may not take over", credentials.uid.as_raw())));
        }
        let peer = pidfd_open(credentials.pid, PidfdFlags::empty()).map_err(io::Error::from)?;
        let Message::Hello(hello) = self.receive(channel, HELLO_LIMIT)? else {
            return Err(HandoverError::Nonsense("it does not begin with a hello".into()));
        };
        let version = self.check(&hello)?;
        tracing::info!(
            build = hello.build,
            version,
            pid = pid(credentials.pid),
            "another process takes over"
        );
        self.welcome(channel, version)?;
        let mut first = true;
        loop {
            match self.receive(channel, BROWNOUT_LIMIT)? {
                Message::Copy if std::mem::take(&mut first) => self.copy_all(channel)?,
                Message::Copy => {
                    let changes = self.ask(Ask::Changes)?;
                    let changes = changes.ok_or_else(too_many)?;
                    send_changes(channel, &changes)?;
                    let count = changes.put.len() + changes.gone.len();
                    channel.send(&Message::Copied(count as u64), &[])?;
                }
                Message::Freeze if !first => return Ok(peer),
                other => return Err(HandoverError::Nonsense(format!("{other:?} is not its turn"))),
            }
        }
    }

    fn check(&self, hello: &Hello) -> Result<u16, HandoverError> {
        let theirs = Who { name: hello.name.clone(), domain: hello.domain.clone(), underlay: hello.underlay };
        if theirs != self.who {
            return Err(HandoverError::Own(format!(
                "this is switch '{}' of '{}' at {:?}, and not '{}' of '{}' at {:?}: restart it for other settings",
                self.who.name,
                self.who.domain,
                self.who.underlay,
                theirs.name,
                theirs.domain,
                theirs.underlay
            )));
        }
        if hello.oldest > VERSION_NEWEST || hello.newest < VERSION_OLDEST {
            return Err(HandoverError::Own(format!(
                "versions {VERSION_OLDEST} to {VERSION_NEWEST} are spoken here, and {} to {} there: go by a release in \
                 between, or restart",
                hello.oldest, hello.newest
            )));
        }
        Ok(hello.newest.min(VERSION_NEWEST))
    }

    fn welcome(&self, channel: &Channel, version: u16) -> Result<(), HandoverError> {
        let fixed = &self.fixed;
        let welcome = Welcome {
            version,
            build: build(),
            now_ms: self.shared.now_ms(),
            receivers: fixed.receivers.iter().map(|(_, format)| *format).collect(),
            senders: fixed.senders.iter().map(|(_, format)| *format).collect(),
        };
        let local = [&fixed.lock, &fixed.control, &fixed.punt].into_iter();
        let underlay = fixed.receivers.iter().chain(&fixed.senders).map(|(socket, _)| socket);
        let fds: Vec<BorrowedFd<'_>> = local.chain(underlay).map(OwnedFd::as_fd).collect();
        channel.send(&Message::Welcome(welcome), &fds)
    }

    /// Asks the slow thread something.
    fn ask<T>(&self, make: impl FnOnce(SyncSender<T>) -> Ask) -> Result<T, HandoverError> {
        let (sender, answer) = std::sync::mpsc::sync_channel(1);
        self.asks.send(make(sender)).map_err(|_| HandoverError::Own("the slow thread has ended".into()))?;
        self.shared.slow_wake.wake();
        answer
            .recv_timeout(ASK_LIMIT)
            .map_err(|_| HandoverError::Own("the slow thread does not answer".into()))
    }

    /// All connections, part by part, while the slow thread goes on in between.
    fn copy_all(&self, channel: &Channel) -> Result<(), HandoverError> {
        self.ask(Ask::Note)?;
        let (mut from, mut count) = (Some(0), 0);
        while let Some(at) = from {
            let (part, next) =
                self.ask(|answer| Ask::Part { from: at, most: CONNECTIONS_PER_MESSAGE, answer })?;
            count += part.len() as u64;
            if !part.is_empty() {
                channel.send(&Message::Connections(part), &[])?;
            }
            from = next;
        }
        channel.send(&Message::Copied(count), &[])
    }

    /// From the last packet of this process to the first of the other, or back.
    fn blackout(&self, channel: &mut Channel, peer: &OwnedFd) -> Result<(), HandoverError> {
        let began = Instant::now();
        channel.set_limit(BLACKOUT_LIMIT)?;
        channel.set_deadline(began + BLACKOUT_LIMIT);
        let (verdicts, verdict) = std::sync::mpsc::channel();
        let frozen = self.ask(|answer| Ask::Freeze { answer, verdict });
        let result = match frozen {
            Ok(Ok(state)) => self.send_frozen(channel, &state).and_then(|()| self.await_serving(channel)),
            Ok(Err(reason)) => Err(HandoverError::Own(reason)),
            Err(error) => Err(error),
        };
        if let Err(error) = &result {
            // Whoever does not read it any more needs no reason.
            let _ = channel.send(&Message::No(error.to_string()), &[]);
            self.fence(peer);
            if let Err(error) = sign_lock(&self.fixed.lock) {
                tracing::warn!(%error, "the lock does not say who holds it");
            }
        }
        let verdict = if result.is_ok() { Verdict::Leave } else { Verdict::Thaw };
        // When the slow thread does not wait any more, it has thawed by itself, or the switch ends.
        let _ = verdicts.send(verdict);
        let blackout_us = began.elapsed().as_micros() as u64;
        tracing::info!(blackout_us, ?verdict, "the blackout is over");
        result
    }

    fn await_serving(&self, channel: &mut Channel) -> Result<(), HandoverError> {
        match self.receive(channel, BLACKOUT_LIMIT)? {
            Message::Serving => Ok(()),
            other => Err(HandoverError::Nonsense(format!("{other:?} instead of serving"))),
        }
    }

    /// Sees to it that the other process cannot serve, whatever it has got so far, and whatever it says.
    fn fence(&self, peer: &OwnedFd) {
        if pidfd_send_signal(peer, Signal::KILL).is_ok() {
            self.counters.killed.fetch_add(1, Relaxed);
        }
        let timeout = Timespec { tv_sec: KILL_LIMIT.as_secs() as i64, tv_nsec: 0 };
        // The signal is pending in any case: what is killed does not return from the kernel.
        let _ = poll(&mut [PollFd::new(peer, PollFlags::IN)], Some(&timeout));
    }

    fn send_frozen(&self, channel: &Channel, state: &FrozenState) -> Result<(), HandoverError> {
        send_changes(channel, &state.changes)?;
        for (tap, device) in &state.taps {
            channel.send(&Message::Tap(tap.clone()), &[device.as_fd()])?;
        }
        if let Some((name, device)) = &self.outside {
            let tap = super::message::CarriedTap { key: None, netns: None, device: name.clone() };
            channel.send(&Message::Tap(tap), &[device.as_fd()])?;
        }
        for (veth, descriptors) in &state.veths {
            let fds: Vec<BorrowedFd<'_>> = descriptors.iter().map(|fd| fd.as_fd()).collect();
            channel.send(&Message::Veth(veth.clone()), &fds)?;
        }
        for guest in &state.guests {
            super::guests::send(channel, guest)?;
        }
        for part in state.fragments.chunks(RECORDS_PER_MESSAGE) {
            channel.send(&Message::Fragments(part.to_vec()), &[])?;
        }
        for part in state.peers.chunks(RECORDS_PER_MESSAGE) {
            channel.send(&Message::Peers(part.to_vec()), &[])?;
        }
        for part in state.gateways.chunks(RECORDS_PER_MESSAGE) {
            channel.send(&Message::Gateways(part.to_vec()), &[])?;
        }
        for held in &state.held {
            channel.send(&Message::Held(held.clone()), &[])?;
        }
        let mut end = state.end;
        end.taps += u32::from(self.outside.is_some());
        channel.send(&Message::Frozen(end), &[])
    }
}

fn pid(pid: Pid) -> i32 {
    pid.as_raw_nonzero().get()
}

fn too_many() -> HandoverError {
    HandoverError::Own(
        "more connections changed than can be noted: try again when there is less to do".into(),
    )
}

fn send_changes(channel: &Channel, changes: &Changes) -> Result<(), HandoverError> {
    for part in changes.gone.chunks(CONNECTIONS_PER_MESSAGE) {
        channel.send(&Message::Gone(part.to_vec()), &[])?;
    }
    for part in changes.put.chunks(CONNECTIONS_PER_MESSAGE) {
        channel.send(&Message::Connections(part.to_vec()), &[])?;
    }
    Ok(())
}
