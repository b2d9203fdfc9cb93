//! A link of IP packets in memory, on both sides bounded by what one step can make.

use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;
use std::collections::VecDeque;

/// Most packets that wait to leave; TCP sends what it could not later.
const SENT_MAX: usize = 64;
/// TCP's flags, bytes behind its header's start, and the reset among them.
const FLAGS_AT: usize = 13;
const RESET: u8 = 0x04;

/// See the module.
pub struct Queue {
    mtu: usize,
    received: VecDeque<Vec<u8>>,
    sent: Vec<Vec<u8>>,
    resets: u64,
}

/// A packet that came.
pub struct Received(Vec<u8>);
/// Room for a packet.
pub struct Room<'a>(&'a mut Queue);

impl Queue {
    /// With an IP MTU.
    pub fn new(mtu: usize) -> Queue {
        Queue { mtu, received: VecDeque::new(), sent: Vec::new(), resets: 0 }
    }

    /// Puts a packet in.
    pub fn receive(&mut self, packet: Vec<u8>) {
        self.received.push_back(packet);
    }

    /// Whether no packet waits to be looked at.
    pub fn is_empty(&self) -> bool {
        self.received.is_empty()
    }

    /// Whether no more can be sent before what was sent is taken.
    pub fn is_full(&self) -> bool {
        self.sent.len() >= SENT_MAX
    }

    /// Takes what was sent.
    pub fn take_sent(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.sent)
    }

    /// How many resets were sent since the last call.
    pub fn take_resets(&mut self) -> u64 {
        std::mem::take(&mut self.resets)
    }
}

/// Whether a packet that was built here, without options or extension headers, resets a connection.
fn resets(packet: &[u8]) -> bool {
    let header = if packet.first().is_some_and(|first| first >> 4 == 4) { 20 } else { 40 };
    packet.get(header + FLAGS_AT).is_some_and(|flags| flags & RESET != 0)
}

impl Device for Queue {
    type RxToken<'a> = Received;
    type TxToken<'a> = Room<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Received, Room<'_>)> {
        if self.is_full() {
            return None;
        }
        let packet = self.received.pop_front()?;
        Some((Received(packet), Room(self)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Room<'_>> {
        (!self.is_full()).then_some(Room(self))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.mtu;
        // The frame's parser has checked what comes: an endpoint may leave sums to its device.
        capabilities.checksum.tcp = Checksum::Tx;
        capabilities.checksum.ipv4 = Checksum::Tx;
        capabilities
    }
}

impl RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl TxToken for Room<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, f: F) -> R {
        let mut packet = vec![0; length];
        let result = f(&mut packet);
        self.0.resets += u64::from(resets(&packet));
        self.0.sent.push(packet);
        result
    }
}
