//! Descriptors that outlive the process that uses them (row A30, decision 0033): the supervisor's store, as systemd's is for services.
//!
//! A switch keeps copies of its devices and sockets here under names, with what it says of them. When it crashes they stay open: the kernel takes
//! no carrier from the endpoints and forgets no neighbour, and what comes meanwhile waits in the queues. The next switch asks for all, and
//! says which it goes on with.
//!
//! Invariants
//! - The store neither reads nor uses what it has, and knows nothing of releases: bytes and descriptors.
//! - What a process said before it died is taken before the next one is answered.
//! - A switch that does not ask here finds no device in use: what is kept is let go when a process ended that was never here.
//! - There are limits of things and descriptors; what is beyond is not kept, and its user opens it anew, as without a store.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg,
};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use weir_base::codec::{decode, encode};
use weir_model::local::{FromStore, STORE_BYTES_MAX, STORE_FDS_MAX, ToStore};

/// Most processes at once: one that serves, one that takes over, and some that are ending.
const CLIENTS_MAX: usize = 8;
/// Most descriptors that are kept: well below what a process may have open by default.
const DESCRIPTORS_MAX: usize = 768;
/// Most processes of which it is known that they were here.
const KNOWN_MAX: usize = 64;
/// A process that takes over comes within so long, unless it never does.
const COMES_WITHIN: Duration = Duration::from_secs(2);
/// How long a client may take to read.
const CLIENT_LIMIT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4;

/// What is kept under a name.
struct Kept {
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
    /// The connection by which it came.
    of: u64,
}

/// What is kept, and who was here.
#[derive(Default)]
struct Shelf {
    kept: BTreeMap<String, Kept>,
    /// Numbers of the processes that were here, the newest last.
    known: VecDeque<u32>,
}

impl Shelf {
    fn descriptors(&self) -> usize {
        self.kept.values().map(|kept| kept.descriptors.len()).sum()
    }

    fn knows(&mut self, pid: u32) {
        self.known.push_back(pid);
        if self.known.len() > KNOWN_MAX {
            self.known.pop_front();
        }
    }

    fn keep(&mut self, name: String, kept: Kept) {
        // Never an older state of the same thing.
        self.kept.remove(&name);
        if self.descriptors() + kept.descriptors.len() > DESCRIPTORS_MAX {
            tracing::debug!(name, limit = DESCRIPTORS_MAX, "no room: it is opened anew after a crash");
            return;
        }
        self.kept.insert(name, kept);
    }
}

/// The store. Its thread ends with the process.
#[derive(Clone)]
pub(super) struct Store(Arc<Mutex<Shelf>>);

impl Store {
    /// Listens at a path. Without that nothing is kept, and a crash costs more.
    pub(super) fn listen(path: &Path) -> Store {
        let store = Store(Arc::default());
        let seen = store.clone();
        let started = bind(path).and_then(|listener| {
            std::thread::Builder::new().name("weir-store".into()).spawn(move || seen.serve(&listener))
        });
        if let Err(error) = started {
            tracing::error!(socket = %path.display(), %error, "no descriptors are kept for a switch that crashes");
        }
        store
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A switch has ended: what is kept is let go if it was never here. It would not ask for it.
    pub(super) fn ended(&self, pid: Option<u32>) {
        let mut shelf = self.shelf();
        if !pid.is_some_and(|pid| shelf.known.contains(&pid)) {
            shelf.kept.clear();
        }
    }

    /// A process has taken over: when it does not come soon, it is of a release that knows no store, and what its
    /// predecessor kept is let go.
    pub(super) fn expect(&self, pid: u32) {
        let store = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(COMES_WITHIN).await;
            store.ended(Some(pid));
        });
    }

    /// How many things are kept.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.shelf().kept.len()
    }

    fn serve(&self, listener: &OwnedFd) {
        let mut clients: Vec<Client> = Vec::new();
        let mut next = 0;
        loop {
            let mut watched: Vec<PollFd<'_>> =
                clients.iter().map(|client| PollFd::new(&client.socket, PollFlags::IN)).collect();
            // One that waits for a place must not keep this thread awake.
            if clients.len() < CLIENTS_MAX {
                watched.push(PollFd::new(listener, PollFlags::IN));
            }
            // A signal ends the wait early; then all are looked at, none of which blocks.
            let _ = poll(&mut watched, None);
            // Older ones first: what a process said before it died comes before what the next one asks.
            clients.retain_mut(|client| client.take(self));
            if clients.len() < CLIENTS_MAX
                && let Ok(socket) =
                    rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
            {
                next += 1;
                if let Ok(peer) = rustix::net::sockopt::socket_peercred(&socket) {
                    self.shelf().knows(peer.pid.as_raw_pid().cast_unsigned());
                }
                clients.push(Client { socket, number: next });
            }
        }
    }
}

fn bind(path: &Path) -> io::Result<OwnedFd> {
    // The lock of the supervisor is ours: whoever listened here is gone.
    let _ = std::fs::remove_file(path);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::bind(&listener, &SocketAddrUnix::new(path)?)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    rustix::net::listen(&listener, BACKLOG)?;
    Ok(listener)
}

struct Client {
    socket: OwnedFd,
    number: u64,
}

impl Client {
    /// Takes all that has come; returns whether there may be more later.
    fn take(&mut self, store: &Store) -> bool {
        loop {
            match self.receive() {
                Ok(Some((message, descriptors))) => {
                    if let Err(error) = self.obey(store, message, descriptors) {
                        tracing::warn!(%error, "a client of the store");
                        return false;
                    }
                }
                Ok(None) => return false,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::warn!(%error, "a client of the store");
                    return false;
                }
            }
        }
    }

    fn receive(&self) -> io::Result<Option<(ToStore, Vec<OwnedFd>)>> {
        let mut bytes = vec![0; STORE_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(STORE_FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received =
            recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = message {
                descriptors.extend(more);
            }
        }
        if received.bytes == 0 {
            return Ok(None);
        }
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(io::Error::other("a message was cut: it, or its descriptors, are too many"));
        }
        let message =
            decode(&bytes[..received.bytes]).map_err(|error| io::Error::other(error.to_string()))?;
        Ok(Some((message, descriptors)))
    }

    fn obey(&self, store: &Store, message: ToStore, descriptors: Vec<OwnedFd>) -> io::Result<()> {
        let mut shelf = store.shelf();
        match message {
            ToStore::Keep { name, bytes } => {
                shelf.keep(name, Kept { bytes, descriptors, of: self.number });
            }
            ToStore::Drop { name } => drop(shelf.kept.remove(&name)),
            ToStore::Settle => shelf.kept.retain(|_, kept| kept.of == self.number),
            ToStore::Give => {
                for (name, kept) in &shelf.kept {
                    let descriptors: Vec<BorrowedFd<'_>> =
                        kept.descriptors.iter().map(OwnedFd::as_fd).collect();
                    let message = FromStore::Kept { name: name.clone(), bytes: kept.bytes.clone() };
                    self.send(&message, &descriptors)?;
                }
                self.send(&FromStore::Done, &[])?;
            }
            ToStore::Sync => self.send(&FromStore::Done, &[])?,
        }
        Ok(())
    }

    /// Waits for a client that is reading, but not long.
    fn send(&self, message: &FromStore, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = encode(message);
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(STORE_FDS_MAX))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty() {
                // There is room for as many as are taken.
                let pushed = control.push(SendAncillaryMessage::ScmRights(descriptors));
                debug_assert!(pushed);
            }
            match sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => {
                    if poll(&mut [PollFd::new(&self.socket, PollFlags::OUT)], Some(&CLIENT_LIMIT))? == 0 {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests;
