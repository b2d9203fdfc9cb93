//! What comes to a worker from other threads.

use super::names::{SessionKey, Ticket};
use crate::policy::{Chain, Mount};
use crate::wire::nfs3::Handle;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// What the server said to a mount.
#[derive(Debug)]
pub struct Mounted {
    /// Session.
    pub session: SessionKey,
    /// The client's transaction number.
    pub xid: u32,
    /// What policies were told.
    pub mount: Mount,
    /// The chain that allowed it.
    pub chain: Arc<Chain>,
    /// The handle, or the status of the refusal.
    pub result: Result<Handle, u32>,
}

/// What comes through the inbox.
#[derive(Debug)]
pub enum Delivery {
    /// A new connection, and its seat.
    Connection(TcpStream, SocketAddr, Ticket),
    /// A MOUNT call was carried out.
    Mounted(Mounted),
    /// A reply to a call of which this session has sent a copy.
    Reply {
        /// The session.
        session: SessionKey,
        /// The copy's transaction number.
        xid: u32,
        /// The record, with its mark.
        reply: Arc<[u8]>,
    },
    /// Nobody knows what became of the call of which this session has sent a copy.
    End {
        /// The session.
        session: SessionKey,
    },
}

/// The other end of an inbox.
#[derive(Debug)]
pub struct Inbox {
    sender: Sender<Delivery>,
    bell: OwnedFd,
}

impl Inbox {
    /// Puts something in and wakes the worker. A worker that has ended hears nothing.
    pub fn deliver(&self, delivery: Delivery) {
        if self.sender.send(delivery).is_ok() {
            self.ring();
        }
    }

    /// Wakes the worker.
    pub fn ring(&self) {
        // It fails only when the counter is full: then the worker is awake anyway.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}

/// A worker's own end of its inbox.
#[derive(Debug)]
pub struct InboxEnd {
    pub(super) receiver: Receiver<Delivery>,
    pub(super) bell: OwnedFd,
}

/// Makes an inbox.
///
/// # Errors
/// What the system says.
pub fn inbox() -> std::io::Result<(Inbox, InboxEnd)> {
    let (sender, receiver) = channel();
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let other = bell.try_clone()?;
    Ok((Inbox { sender, bell: other }, InboxEnd { receiver, bell }))
}
