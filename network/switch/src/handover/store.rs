//! What this process has open is kept by its supervisor as well ([`weir_model::local::ToStore`]; decision 0033): after a crash the next
//! process goes on with the very same devices and sockets.
//!
//! - Kept are the sockets of the underlay, the TAPs of ports, and that of the outside. A TAP that nobody has open has no carrier:
//!   the endpoint's kernel forgets its neighbours and asks for them anew, a second later if the first question is lost.
//! - Beside each are words of this module's own version. Those of another version are let go, and opened anew.
//! - Nothing waits for the store but the start of a process, and that not long. Without a supervisor nothing is kept.
//! - A supervisor that begins anew has nothing: all is sent again, by [`Store::tend`].

use super::message::CarriedTap;
use super::{MESSAGE_FDS_MAX, new::Taken};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg, sockopt,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_base::codec::{decode, encode};
use weir_model::Key;
use weir_model::local::{FromStore, STORE_BYTES_MAX, STORE_FDS_MAX, STORE_SOCKET, ToStore};
use weir_model::resource::Encapsulation;

/// Version of the words beside what is kept.
const VERSION: u16 = 1;
/// Name of the sockets of the underlay.
const UNDERLAY: &str = "underlay";
/// How long a beginning process waits for the store.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// How often a store that is not there is looked for.
const RETRY: Duration = Duration::from_secs(1);

/// The sockets of the underlay: what they are bound to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptUnderlay {
    /// Address on the underlay, ports of Geneve and VXLAN.
    pub address: (IpAddr, u16, u16),
    /// Format of each receiving socket.
    pub receivers: Vec<Encapsulation>,
    /// Format of each sending socket.
    pub senders: Vec<Encapsulation>,
}

/// What is kept under a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Words {
    /// The sockets of the underlay, those that receive first.
    Underlay(KeptUnderlay),
    /// A TAP.
    Tap(CarriedTap),
}

impl Words {
    /// With the version in front.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        bytes.extend_from_slice(&encode(self));
        bytes
    }

    /// `None` for those of another version, and for what makes no sense.
    pub fn from_bytes(bytes: &[u8]) -> Option<Words> {
        let (version, body) = bytes.split_first_chunk::<2>()?;
        if u16::from_le_bytes(*version) == VERSION { decode(body).ok() } else { None }
    }

    fn name(&self) -> String {
        match self {
            Words::Underlay(_) => UNDERLAY.into(),
            Words::Tap(tap) => tap_name(tap.key.as_ref()),
        }
    }
}

fn tap_name(key: Option<&Key>) -> String {
    key.map_or_else(|| "tap of the outside".into(), |key| format!("tap of {key}"))
}

/// What a crashed process had.
#[derive(Debug, Default)]
pub struct Found {
    /// The sockets of the underlay.
    pub underlay: Option<(KeptUnderlay, Vec<OwnedFd>)>,
    /// The TAPs.
    pub taken: Taken,
}

impl Found {
    fn put(&mut self, words: Words, fds: Vec<OwnedFd>) {
        match words {
            Words::Underlay(of) if fds.len() == of.receivers.len() + of.senders.len() => {
                self.underlay = Some((of, fds));
            }
            Words::Tap(tap) => {
                if let Ok([device]) = <[OwnedFd; 1]>::try_from(fds) {
                    self.taken.taps.insert(tap.key.clone(), (tap, device));
                }
            }
            Words::Underlay(_) => {}
        }
    }
}

/// What is kept, and the way to who keeps it.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    socket: Option<OwnedFd>,
    tried: Option<Instant>,
    things: BTreeMap<String, (Words, Vec<Arc<OwnedFd>>)>,
}

impl Store {
    /// Of the supervisor of a run directory.
    pub fn new(run_dir: &Path) -> Store {
        Store { path: run_dir.join(STORE_SOCKET), socket: None, tried: None, things: BTreeMap::new() }
    }

    /// Takes what a crashed process had. It stays kept until this one has said what it goes on with.
    pub fn find(&mut self) -> Found {
        let mut found = Found::default();
        if !self.connect() {
            return found;
        }
        if let Err(error) = self.ask(&ToStore::Give, |words, fds| found.put(words, fds)) {
            self.lose(&error);
        }
        found
    }

    /// Lets go of what cannot be gone on with, and waits until that is done: it is opened anew.
    pub fn release_underlay(&mut self) {
        self.send(&ToStore::Drop { name: UNDERLAY.into() }, &[]);
        if self.socket.is_some()
            && let Err(error) = self.ask(&ToStore::Sync, |_, _| ())
        {
            self.lose(&error);
        }
    }

    /// Keeps something, in place of what had its name.
    pub fn keep(&mut self, words: Words, fds: Vec<Arc<OwnedFd>>) {
        let name = words.name();
        self.say(&words, &fds);
        self.things.insert(name, (words, fds));
    }

    /// Keeps the TAP of a port no more.
    pub fn drop_tap(&mut self, key: &Key) {
        let name = tap_name(Some(key));
        if self.things.remove(&name).is_some() {
            self.send(&ToStore::Drop { name }, &[]);
        }
    }

    /// Says that what was kept since the beginning is all.
    pub fn settle(&mut self) {
        self.send(&ToStore::Settle, &[]);
    }

    /// Looks for a supervisor if none is there, and gives it everything.
    pub fn tend(&mut self) {
        if self.socket.as_ref().is_some_and(|socket| !is_closed(socket)) {
            return;
        }
        self.socket = None;
        if self.tried.is_some_and(|tried| tried.elapsed() < RETRY) || !self.connect() {
            return;
        }
        let things = std::mem::take(&mut self.things);
        for (words, fds) in things.values() {
            self.say(words, fds);
        }
        self.things = things;
        self.settle();
    }

    fn connect(&mut self) -> bool {
        self.tried = Some(Instant::now());
        let connected = || -> io::Result<OwnedFd> {
            let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
            let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
            sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(ANSWER_LIMIT))?;
            rustix::net::connect(&socket, &SocketAddrUnix::new(&self.path)?)?;
            Ok(socket)
        };
        // None is there: a switch that runs by itself, or whose supervisor is just being replaced.
        self.socket = connected().ok();
        self.socket.is_some()
    }

    fn lose(&mut self, error: &io::Error) {
        tracing::warn!(socket = %self.path.display(), %error, "the supervisor's store: it is tried again");
        self.socket = None;
    }

    fn say(&mut self, words: &Words, fds: &[Arc<OwnedFd>]) {
        if fds.len() > STORE_FDS_MAX {
            return;
        }
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(|fd| fd.as_fd()).collect();
        self.send(&ToStore::Keep { name: words.name(), bytes: words.to_bytes() }, &fds);
    }

    /// Sends without waiting. A store that does not read is given up, and told everything when it does again.
    fn send(&mut self, message: &ToStore, fds: &[BorrowedFd<'_>]) {
        let Some(socket) = &self.socket else { return };
        let bytes = encode(message);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_FDS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            // There is room for as many as are allowed.
            let pushed = control.push(SendAncillaryMessage::ScmRights(fds));
            debug_assert!(pushed);
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        if let Err(error) = sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, flags) {
            self.lose(&error.into());
        }
    }

    fn ask(&mut self, question: &ToStore, mut take: impl FnMut(Words, Vec<OwnedFd>)) -> io::Result<()> {
        self.send(question, &[]);
        let socket = self.socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let mut bytes = vec![0; STORE_BYTES_MAX];
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_FDS_MAX))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC;
            let received = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)?;
            let mut fds = Vec::new();
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(more) = message {
                    fds.extend(more);
                }
            }
            if received.bytes == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
                return Err(io::Error::other("a message was cut"));
            }
            let message = decode(&bytes[..received.bytes]);
            match message.map_err(|error| io::Error::other(error.to_string()))? {
                FromStore::Done => return Ok(()),
                FromStore::Kept { name, bytes } => match Words::from_bytes(&bytes) {
                    Some(words) => take(words, fds),
                    None => tracing::info!(name, "kept by another version: opened anew"),
                },
            }
        }
    }
}

/// Whether the other end is gone; nothing comes by itself.
fn is_closed(socket: &OwnedFd) -> bool {
    let mut byte = [0; 1];
    let got = rustix::net::recv(socket, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT);
    !matches!(got, Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR))
}

#[cfg(test)]
mod tests;
