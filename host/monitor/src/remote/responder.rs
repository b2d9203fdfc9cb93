//! The target's side of probes and reads alone, for a packet core: it answers, and knows nothing of the ring.

use super::shelf::Shelf;
use super::{Kind, Packet, RingFile, read_key};
use crate::error::{Error, Result};
use crate::policy::Context;
use crate::ring::Host;
use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd};
use weir_sensor::{Directory, now_ns};

/// Probes and reads that are answered in one go.
const BURST_MAX: usize = 64;

/// A responder.
#[derive(Debug)]
pub struct Responder {
    socket: UdpSocket,
    key: Vec<u8>,
    own: Host,
    shelf: Shelf,
    /// Probes and reads answered.
    pub answered: u64,
    /// Packets that were neither, or not of this ring.
    pub dropped: u64,
}

impl Responder {
    /// Opens one where the ring's file wants it on the packet core; else nothing. Boxes of `sensors` can be read by it.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::File`] for a key that is too short.
    pub fn open(file: &RingFile, sensors: &Directory) -> Result<Option<Responder>> {
        if file.responder != Context::Dataplane {
            return Ok(None);
        }
        let Some(address) = file.hosts.get(&file.own) else { return Ok(None) };
        let failed = |error| Error::io(format!("listening for probes at {address}"), error);
        let socket = UdpSocket::bind(address).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        let own = file.hosts.keys().position(|name| *name == file.own).unwrap_or(0) as Host;
        let (key, shelf) = (read_key(&file.key_file)?, Shelf::open(sensors)?);
        Ok(Some(Responder { socket, key, own, shelf, answered: 0, dropped: 0 }))
    }

    /// To wait for.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Answers what waits, at most a burst. It blocks and allocates nothing.
    pub fn answer(&mut self) {
        let mut bytes = [0; super::PACKET_BYTES + 1];
        for _ in 0..BURST_MAX {
            let Ok((length, from)) = self.socket.recv_from(&mut bytes) else { return };
            let now = now_ns();
            let answer = match Packet::decode(&bytes[..length], &self.key) {
                Some(Packet { kind: Kind::Probe, nonce, .. }) => Packet {
                    kind: Kind::Answer,
                    from: self.own,
                    about: 0,
                    suspects: false,
                    nonce,
                    progress: now,
                    time: now,
                },
                Some(Packet { kind: Kind::Read, nonce, progress, .. }) => {
                    Packet::value(self.own, nonce, self.shelf.read(progress), now)
                }
                _ => {
                    self.dropped += 1;
                    continue;
                }
            };
            // To where it came from: that is the prober's own socket. One that does not take it asks again.
            drop(self.socket.send_to(&answer.encode(&self.key), from));
            self.answered += 1;
        }
    }
}
