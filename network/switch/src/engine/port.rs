//! The ports of the engine: devices with their state.

use super::counters::{Counters, EngineDrop, EngineEvent};
use super::sys::{self, Poller};
use super::{EXTERNAL, PORTS_MAX};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use weir_packet::address::Mac;

/// A device that the engine reads and writes frames with virtio headers on.
#[derive(Debug)]
pub struct Port {
    /// The descriptor, which must not block.
    pub device: Arc<OwnedFd>,
    /// Whether it carries traffic.
    pub up: bool,
    /// Ethernet addresses (destination, source) of every frame written to it, where the flow does not say:
    /// for the outside.
    pub ethernet: Option<(Mac, Mac)>,
}

/// How a port's turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// There was no frame left, or its share of the turn is used up.
    Done,
    /// The device is gone.
    Failed,
}

/// All ports, by their number.
pub struct Ports {
    ports: Box<[Option<Box<Port>>]>,
    /// The port whose last turn gave at most one frame, of those that were served last.
    single: Option<usize>,
}

impl Default for Ports {
    fn default() -> Ports {
        Ports { ports: (0..=PORTS_MAX).map(|_| None).collect(), single: None }
    }
}

impl Ports {
    /// Gives a port a device; returns the old one.
    pub fn set(&mut self, number: usize, port: Box<Port>, poller: &Poller) -> Option<Box<Port>> {
        let old = self.remove(number, poller);
        let slot = self.ports.get_mut(number)?;
        let up = port.up;
        *slot = Some(port);
        self.set_up(number, up, poller);
        old
    }

    /// Lets a port carry traffic or not. A port that does not is not read.
    pub fn set_up(&mut self, number: usize, up: bool, poller: &Poller) {
        let Some(Some(port)) = self.ports.get_mut(number) else { return };
        port.up = up;
        poller.remove(port.device.as_fd());
        if up {
            // It fails only for a device that is gone, which the next write tells.
            let _ = poller.add(port.device.as_fd(), number as u64);
        }
    }

    /// Stops watching a port.
    pub fn unwatch(&mut self, number: usize, poller: &Poller) {
        if let Some(Some(port)) = self.ports.get(number) {
            poller.remove(port.device.as_fd());
        }
    }

    /// Takes a port out.
    pub fn remove(&mut self, number: usize, poller: &Poller) -> Option<Box<Port>> {
        self.unwatch(number, poller);
        self.ports.get_mut(number)?.take()
    }

    /// The device of a port that carries traffic.
    #[inline]
    pub fn device(&self, number: usize) -> Option<BorrowedFd<'_>> {
        match &self.ports[number] {
            Some(port) if port.up => Some(port.device.as_fd()),
            _ => None,
        }
    }

    /// Whether the port gave at most one frame in its last turn, and was the last that was served; forgets it.
    #[inline]
    pub fn take_single(&mut self, number: usize) -> bool {
        self.single.take() == Some(number)
    }

    /// Remembers whether a port gave at most one frame.
    #[inline]
    pub fn set_single(&mut self, number: usize, single: bool) {
        self.single = single.then_some(number);
    }

    /// Ethernet addresses of frames written to a port, where the port prescribes them.
    #[inline]
    pub fn ethernet(&self, number: usize) -> Option<(Mac, Mac)> {
        self.ports[number].as_ref().and_then(|port| port.ethernet)
    }
}

/// Counts what a write to a port came to. `packets` and `bytes` are those of the frame when it is cut.
#[inline]
pub fn count_write(counters: &Counters, number: usize, result: &io::Result<usize>, packets: u64, bytes: u64) {
    match result {
        Ok(_) => {
            counters.event(EngineEvent::PortWrites).add(1);
            counters.port(number).tx.add(packets, bytes);
        }
        Err(error) => counters.dropped(write_failure(error)).add(packets, bytes),
    }
}

fn write_failure(error: &io::Error) -> EngineDrop {
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => EngineDrop::PortFull,
        Some(libc::EIO | libc::EBADFD | libc::ENODEV | libc::ENETDOWN) => EngineDrop::PortDown,
        _ => EngineDrop::PortWrite,
    }
}

/// Counts a frame for a port that does not carry traffic.
pub fn count_absent(counters: &Counters, number: usize, packets: u64, bytes: u64) {
    let reason = if number == EXTERNAL { EngineDrop::NoExternal } else { EngineDrop::PortDown };
    counters.dropped(reason).add(packets, bytes);
}

/// Writes a frame, virtio header included, to a port.
#[inline]
pub fn write(ports: &Ports, counters: &Counters, number: usize, frame: &[u8], packets: u64, bytes: u64) {
    match ports.device(number) {
        Some(device) => count_write(counters, number, &sys::write(device, frame), packets, bytes),
        None => count_absent(counters, number, packets, bytes),
    }
}
