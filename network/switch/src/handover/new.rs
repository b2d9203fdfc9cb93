//! The process that takes over: what it asks for, and what it gets.

use super::guests::Guests;
use super::message::{
    CarriedTap, CarriedVeth, Frozen, HeldFrame, Hello, Message, VERSION_NEWEST, VERSION_OLDEST, Welcome,
};
use super::wire::Channel;
use super::{
    BLACKOUT_LIMIT, BROWNOUT_LIMIT, Fixed, HELLO_LIMIT, HandoverError, KILL_LIMIT, ROUND_SMALL, ROUNDS_MAX,
    UPGRADE_SOCKET, Who, build,
};
use crate::conntrack::Changes;
use crate::fragments::CarriedDatagram;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, pidfd_open};
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;
use weir_model::Key;

/// What was handed over last.
#[derive(Debug, Default)]
pub struct Taken {
    /// Connections that changed, in this order.
    pub changes: Vec<Changes>,
    /// TAPs; of no port: the outside.
    pub taps: HashMap<Option<Key>, (CarriedTap, OwnedFd)>,
    /// Sockets of veth pairs.
    pub veths: HashMap<Key, (CarriedVeth, Vec<OwnedFd>)>,
    /// Virtual machines.
    pub guests: Guests,
    /// Datagrams under way.
    pub fragments: Vec<CarriedDatagram>,
    /// Switches that take partial checksums.
    pub peers: Vec<(IpAddr, u32)>,
    /// Gateways that have answered, and whether they are silent.
    pub gateways: Vec<(IpAddr, bool)>,
    /// Frames that wait.
    pub held: Vec<HeldFrame>,
    /// What the other process counts.
    pub end: Frozen,
}

/// A hand-over under way.
#[derive(Debug)]
pub struct Taking {
    channel: Channel,
    /// The process that serves.
    peer: Option<OwnedFd>,
    /// What the other process is.
    pub welcome: Welcome,
}

impl Taking {
    /// Says hello to the process that serves in a run directory; `None` if none does.
    ///
    /// # Errors
    /// [`HandoverError`].
    pub fn begin(run_dir: &Path, who: &Who) -> Result<Option<(Taking, Fixed)>, HandoverError> {
        let mut channel = match Channel::connect(&run_dir.join(UPGRADE_SOCKET)) {
            Ok(channel) => channel,
            Err(error) => {
                return match error.kind() {
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Ok(None),
                    _ => Err(HandoverError::Socket(error)),
                };
            }
        };
        let peer = channel.peer().ok().and_then(|peer| pidfd_open(peer.pid, PidfdFlags::empty()).ok());
        channel.set_limit(HELLO_LIMIT)?;
        let hello = Hello {
            oldest: VERSION_OLDEST,
            newest: VERSION_NEWEST,
            build: build(),
            name: who.name.clone(),
            domain: who.domain.clone(),
            underlay: who.underlay,
        };
        channel.send(&Message::Hello(hello), &[])?;
        let (welcome, fds) = match channel.receive()? {
            (Message::Welcome(welcome), fds) => (welcome, fds),
            (other, _) => return Err(unexpected(other)),
        };
        let fixed = fixed(&welcome, fds)?;
        tracing::info!(build = welcome.build, version = welcome.version, "taking over from another process");
        Ok(Some((Taking { channel, peer, welcome }, fixed)))
    }

    fn limit(&self, limit: Duration) -> Result<(), HandoverError> {
        Ok(self.channel.set_limit(limit)?)
    }

    /// Copies the connections while the other process serves: until few change between two rounds. Returns how many came.
    ///
    /// # Errors
    /// [`HandoverError`].
    pub fn copy(&mut self, mut take: impl FnMut(&Changes)) -> Result<u64, HandoverError> {
        self.limit(BROWNOUT_LIMIT)?;
        let mut all = 0;
        for _ in 0..ROUNDS_MAX {
            self.channel.send(&Message::Copy, &[])?;
            let count = loop {
                match self.channel.receive()?.0 {
                    Message::Copied(count) => break count,
                    message => take(&changes_of(message)?),
                }
            };
            all += count;
            if count <= ROUND_SMALL {
                break;
            }
        }
        Ok(all)
    }

    /// Has the other process stop serving, and takes the rest. The blackout begins here.
    ///
    /// # Errors
    /// [`HandoverError`]; the other process goes on then.
    pub fn freeze(&mut self) -> Result<Taken, HandoverError> {
        self.limit(BLACKOUT_LIMIT)?;
        self.channel.send(&Message::Freeze, &[])?;
        let mut taken = Taken::default();
        loop {
            let (message, fds) = self.channel.receive()?;
            match message {
                Message::Tap(tap) => {
                    let Ok([device]) = <[OwnedFd; 1]>::try_from(fds) else {
                        return Err(HandoverError::Nonsense("a TAP comes with one descriptor".into()));
                    };
                    taken.taps.insert(tap.key.clone(), (tap, device));
                }
                Message::Veth(veth) => {
                    if fds.len() != veth.way.descriptors() {
                        let text = format!("{} descriptors come with the socket of {}", fds.len(), veth.key);
                        return Err(HandoverError::Nonsense(text));
                    }
                    taken.veths.insert(veth.key.clone(), (veth, fds));
                }
                Message::Guest(guest) => taken.guests.head(guest, fds)?,
                Message::Memory(memory) => taken.guests.memory(memory, fds)?,
                Message::Queues(queues) => taken.guests.queues(queues, fds)?,
                Message::Fragments(part) => taken.fragments.extend(part),
                Message::Peers(part) => taken.peers.extend(part),
                Message::Gateways(part) => taken.gateways.extend(part),
                Message::Held(frame) => taken.held.push(frame),
                Message::Frozen(end) => {
                    taken.end = end;
                    return complete(taken);
                }
                message => taken.changes.push(changes_of(message)?),
            }
        }
    }

    /// Tells the other process that this one serves: it ends.
    pub fn serving(&self) {
        // One that has died meanwhile needs not be told.
        let _ = self.channel.send(&Message::Serving, &[]);
    }

    /// Waits until the other process, which was killed, has ended altogether: until then it holds the lock and the sockets.
    pub fn wait_for_end(self) {
        drop(self.channel);
        let Some(peer) = &self.peer else { return };
        let timeout = Timespec { tv_sec: KILL_LIMIT.as_secs() as i64, tv_nsec: 0 };
        // A signal ends the wait early; then what is still held is told as an error.
        let _ = poll(&mut [PollFd::new(peer, PollFlags::IN)], Some(&timeout));
    }

    /// Tells the other process that this one does not take over.
    pub fn refuse(&self, reason: &str) {
        let _ = self.channel.send(&Message::No(reason.to_string()), &[]);
    }
}

fn unexpected(message: Message) -> HandoverError {
    match message {
        Message::No(reason) => HandoverError::Refused(reason),
        other => HandoverError::Nonsense(format!("{other:?} is not its turn")),
    }
}

fn changes_of(message: Message) -> Result<Changes, HandoverError> {
    match message {
        Message::Connections(put) => Ok(Changes { put, gone: Vec::new() }),
        Message::Gone(gone) => Ok(Changes { put: Vec::new(), gone }),
        other => Err(unexpected(other)),
    }
}

fn complete(taken: Taken) -> Result<Taken, HandoverError> {
    let came = (taken.taps.len(), taken.guests.len());
    let said = (taken.end.taps as usize, taken.end.guests as usize);
    if came == said {
        return Ok(taken);
    }
    Err(HandoverError::Nonsense(format!("{came:?} TAPs and virtual machines came of {said:?}")))
}

fn fixed(welcome: &Welcome, fds: Vec<OwnedFd>) -> Result<Fixed, HandoverError> {
    let wanted = 3 + welcome.receivers.len() + welcome.senders.len();
    if fds.len() != wanted || !(VERSION_OLDEST..=VERSION_NEWEST).contains(&welcome.version) {
        let text = format!("{} descriptors of {wanted}, version {}", fds.len(), welcome.version);
        return Err(HandoverError::Nonsense(text));
    }
    let mut fds = fds.into_iter();
    let (Some(lock), Some(control), Some(punt)) = (fds.next(), fds.next(), fds.next()) else {
        return Err(HandoverError::Nonsense("no lock and no local sockets".into()));
    };
    let receivers =
        fds.by_ref().take(welcome.receivers.len()).zip(welcome.receivers.iter().copied()).collect();
    let senders = fds.zip(welcome.senders.iter().copied()).collect();
    Ok(Fixed { lock, control, punt, receivers, senders })
}
