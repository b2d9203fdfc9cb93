//! The sockets of virtual machines in messages, and back.

use super::message::{CarriedGuest, CarriedMemory, CarriedQueue, CarriedQueues, Message};
use super::wire::Channel;
use super::{HandoverError, MESSAGE_FDS_MAX};
use crate::ports::vhost::Socket;
use crate::ports::vhost::memory::Lent;
use crate::ports::vhost::ring::Addresses;
use crate::ports::vhost::session::{Moved, MovedQueue};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use weir_model::Key;

/// Queues of one message: each has two descriptors at most.
const QUEUES_PER_MESSAGE: usize = MESSAGE_FDS_MAX / 2;

/// A virtual machine's port, to be handed over.
#[derive(Debug)]
pub struct Guest {
    /// The port.
    pub key: Key,
    /// Its socket.
    pub socket: Socket,
    /// What its session is.
    pub moved: Moved,
}

/// Sends one.
///
/// # Errors
/// [`HandoverError`].
pub fn send(channel: &Channel, guest: &Guest) -> Result<(), HandoverError> {
    let (key, moved) = (&guest.key, &guest.moved);
    let head = CarriedGuest {
        key: key.clone(),
        path: guest.socket.path.display().to_string(),
        listens: guest.socket.listens,
        pairs: guest.socket.pairs,
        connected: moved.stream.is_some(),
        listening: moved.listener.is_some(),
        features: moved.features,
        protocol_features: moved.protocol_features,
    };
    let fds: Vec<BorrowedFd<'_>> = moved.stream.iter().chain(&moved.listener).map(OwnedFd::as_fd).collect();
    channel.send(&Message::Guest(head), &fds)?;
    if !moved.memory.is_empty() {
        let regions = moved.memory.iter().map(|(lent, _)| (lent.guest, lent.user, lent.length, lent.offset));
        let memory = CarriedMemory { key: key.clone(), regions: regions.collect() };
        let fds: Vec<BorrowedFd<'_>> = moved.memory.iter().map(|(_, file)| file.as_fd()).collect();
        channel.send(&Message::Memory(memory), &fds)?;
    }
    for (number, part) in moved.queues.chunks(QUEUES_PER_MESSAGE).enumerate() {
        let queue = |queue: &MovedQueue| CarriedQueue {
            size: queue.size,
            addresses: queue.addresses.map(|of| (of.descriptors, of.available, of.used)),
            kick: queue.kick.is_some(),
            call: queue.call.is_some(),
            enabled: queue.enabled,
        };
        let queues = CarriedQueues {
            key: key.clone(),
            first: (number * QUEUES_PER_MESSAGE) as u16,
            queues: part.iter().map(queue).collect(),
        };
        let events = part.iter().flat_map(|queue| queue.kick.iter().chain(&queue.call));
        let fds: Vec<BorrowedFd<'_>> = events.map(OwnedFd::as_fd).collect();
        channel.send(&Message::Queues(queues), &fds)?;
    }
    Ok(())
}

/// Those that have come.
#[derive(Debug, Default)]
pub struct Guests(HashMap<Key, (Socket, Moved)>);

fn wrong(what: &str, key: &Key) -> HandoverError {
    HandoverError::Nonsense(format!("{what} of {key}"))
}

impl Guests {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The one of a port.
    pub fn take(&mut self, key: &Key) -> Option<(Socket, Moved)> {
        self.0.remove(key)
    }

    /// Takes a message in.
    ///
    /// # Errors
    /// The message does not fit to what has come before.
    pub fn head(&mut self, head: CarriedGuest, fds: Vec<OwnedFd>) -> Result<(), HandoverError> {
        if fds.len() != usize::from(head.connected) + usize::from(head.listening) {
            return Err(wrong("other descriptors than are named", &head.key));
        }
        let mut fds = fds.into_iter();
        let mut next = |there: bool| if there { fds.next() } else { None };
        let moved = Moved {
            stream: next(head.connected),
            listener: next(head.listening),
            features: head.features,
            protocol_features: head.protocol_features,
            ..Moved::default()
        };
        let socket = Socket { path: head.path.into(), listens: head.listens, pairs: head.pairs };
        match self.0.insert(head.key.clone(), (socket, moved)) {
            None => Ok(()),
            Some(_) => Err(wrong("a second socket", &head.key)),
        }
    }

    fn of(&mut self, key: &Key) -> Result<&mut Moved, HandoverError> {
        self.0
            .get_mut(key)
            .map(|(_, moved)| moved)
            .ok_or_else(|| wrong("queues or memory without a socket", key))
    }

    /// Takes a message in.
    ///
    /// # Errors
    /// As [`Guests::head`].
    pub fn memory(&mut self, memory: CarriedMemory, fds: Vec<OwnedFd>) -> Result<(), HandoverError> {
        if fds.len() != memory.regions.len() {
            return Err(wrong("other memory files than are named", &memory.key));
        }
        let moved = self.of(&memory.key)?;
        let lent =
            memory.regions.iter().map(|&(guest, user, length, offset)| Lent { guest, user, length, offset });
        moved.memory.extend(lent.zip(fds));
        Ok(())
    }

    /// Takes a message in.
    ///
    /// # Errors
    /// As [`Guests::head`].
    pub fn queues(&mut self, queues: CarriedQueues, fds: Vec<OwnedFd>) -> Result<(), HandoverError> {
        let named: usize =
            queues.queues.iter().map(|queue| usize::from(queue.kick) + usize::from(queue.call)).sum();
        if fds.len() != named {
            return Err(wrong("other events than are named", &queues.key));
        }
        let moved = self.of(&queues.key)?;
        if moved.queues.len() != usize::from(queues.first) {
            return Err(wrong("queues in another order", &queues.key));
        }
        let mut fds = fds.into_iter();
        let mut next = |there: bool| if there { fds.next() } else { None };
        for queue in queues.queues {
            let kick = next(queue.kick);
            let addresses = queue.addresses.map(|(descriptors, available, used)| Addresses {
                descriptors,
                available,
                used,
            });
            let (size, enabled) = (queue.size, queue.enabled);
            moved.queues.push(MovedQueue { size, addresses, kick, call: next(queue.call), enabled });
        }
        Ok(())
    }
}
