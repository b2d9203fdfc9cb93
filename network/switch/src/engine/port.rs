//! The ports of the engine: devices with their state.
//!
//! A device is a descriptor that is read and written (a TAP, or an AF_PACKET socket, which is the same to us), an AF_XDP socket, or the
//! queues of a virtual machine. Which one is a branch, taken once a frame; nothing is called by pointer.
//!
//! A guest that had something is looked at in every turn and asked not to kick, until a turn finds nothing (it is *hot*
//! meanwhile). What guests were sent, and what was taken of them, is shown to them at the end of the turn, at once (row A20).

use super::counters::{Counters, EngineDrop, EngineEvent};
use super::forward::plain::ADDRESSES_BYTES;
use super::sys::{self, Poller};
use super::{EXTERNAL, PORTS_MAX};
use crate::flow::PortIndex;
use crate::ports::vhost::calls::Batch;
use crate::ports::vhost::guest::{Guest, Refused};
use crate::ports::xdp::{self, Socket as Xdp};
use std::cell::{RefCell, RefMut};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use weir_packet::address::Mac;
use weir_packet::virtio::{HEADER_BYTES, VirtioNetHeader};

/// What the engine reads and writes frames with virtio headers on.
#[derive(Debug)]
pub enum Device {
    /// The descriptor of a TAP or of an AF_PACKET socket, which must not block.
    Tap(Arc<OwnedFd>),
    /// A network device's frames in shared memory.
    Xdp(Box<RefCell<Xdp>>),
    /// A virtual machine.
    Guest(Box<RefCell<Guest>>),
}

/// A device with its state.
#[derive(Debug)]
pub struct Port {
    /// The device.
    pub device: Device,
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
    /// Guests to look at in the next turn. Each is in it once, so it has at most `PORTS_MAX`.
    hot: Vec<usize>,
    /// Guests and AF_XDP sockets that have something which is not shown yet; each is in it once.
    dirty: RefCell<Vec<usize>>,
    /// Interrupts of guests, while they are gathered.
    calls: Batch,
}

impl Default for Ports {
    fn default() -> Ports {
        Ports {
            ports: (0..=PORTS_MAX).map(|_| None).collect(),
            single: None,
            hot: Vec::new(),
            dirty: RefCell::default(),
            calls: Batch::default(),
        }
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
        match &port.device {
            Device::Tap(device) => {
                poller.remove(device.as_fd());
                if up {
                    // It fails only for a device that is gone, which the next write tells.
                    let _ = poller.add(device.as_fd(), number as u64);
                }
            }
            Device::Xdp(socket) => {
                let socket = socket.borrow();
                poller.remove(socket.fd().as_fd());
                if up {
                    // It fails for no socket that is open.
                    let _ = poller.add(socket.fd().as_fd(), number as u64);
                }
            }
            Device::Guest(guest) => {
                for kick in guest.borrow().kicks() {
                    poller.remove(kick);
                    if up {
                        // It fails for the second queue of those that share one.
                        let _ = poller.add_edges(kick, number as u64);
                    }
                }
                if up {
                    // It may have something whose kick was before.
                    self.heat(number);
                }
            }
        }
    }

    /// Has a guest looked at in the next turn. Returns whether the port is a guest's.
    #[inline]
    pub fn heat(&mut self, number: usize) -> bool {
        let Some(guest) = guest_of(&self.ports, number) else { return false };
        let mut guest = guest.borrow_mut();
        if !guest.hot {
            guest.hot = true;
            guest.ask_for_kicks(false);
            self.hot.push(number);
        }
        true
    }

    /// Whether there are guests to look at.
    #[inline]
    pub fn has_hot(&self) -> bool {
        !self.hot.is_empty()
    }

    /// The guest to look at that is `at` in the list.
    #[inline]
    pub fn hot(&self, at: usize) -> Option<usize> {
        self.hot.get(at).copied()
    }

    /// The guest that is `at` in the list had nothing: waits for its kick, unless there is something by now. Returns whether
    /// it is in the list no more.
    pub fn cool(&mut self, at: usize) -> bool {
        let Some(number) = self.hot(at) else { return true };
        if let Some(guest) = self.guest(number) {
            let mut guest = guest.borrow_mut();
            if guest.ask_for_kicks(true) {
                guest.ask_for_kicks(false);
                return false;
            }
            guest.hot = false;
        } else if let Some(guest) = guest_of(&self.ports, number) {
            // It does not carry traffic.
            guest.borrow_mut().hot = false;
        }
        self.hot.swap_remove(at);
        true
    }

    /// The guest of a port that carries traffic.
    #[inline]
    pub fn guest(&self, number: usize) -> Option<&RefCell<Guest>> {
        match self.device(number) {
            Some(Device::Guest(guest)) => Some(guest),
            _ => None,
        }
    }

    /// Shows guests what they were sent, and what was taken of them.
    #[inline]
    pub fn publish(&mut self, counters: &Counters) {
        if self.dirty.get_mut().is_empty() {
            return;
        }
        let mut dirty = std::mem::take(self.dirty.get_mut());
        for number in &dirty {
            match device_of(&self.ports, *number) {
                Some(Device::Guest(guest)) => {
                    guest.borrow_mut().show();
                }
                Some(Device::Xdp(socket)) => {
                    let mut socket = socket.borrow_mut();
                    socket.dirty = false;
                    // Whether its device is still there the slow path looks.
                    let _ = socket.kick();
                }
                Some(Device::Tap(_)) | None => {}
            }
        }
        // What guests want is read after they can see what they get.
        fence(Ordering::SeqCst);
        for number in &dirty {
            let Some(guest) = guest_of(&self.ports, *number) else { continue };
            let mut guest = guest.borrow_mut();
            guest.interrupt(&mut self.calls);
            guest.prepare();
            let ails = guest.is_lost() || guest.has_broken();
            drop(guest);
            if ails {
                // Whoever looks at it sees why.
                self.heat(*number);
            }
        }
        // No guest is taken out before: all their descriptors are open still.
        counters.event(EngineEvent::GuestInterrupts).add(self.calls.give());
        dirty.clear();
        *self.dirty.get_mut() = dirty;
    }

    /// Has AF_XDP sockets go on where their rings stand; returns the ports of those that cannot.
    #[cold]
    pub fn go_on(&self) -> Vec<usize> {
        let cannot = self.ports.iter().enumerate().filter(|(_, port)| match port.as_deref() {
            Some(Port { device: Device::Xdp(socket), .. }) => socket.borrow_mut().go_on().is_err(),
            _ => false,
        });
        cannot.map(|(number, _)| number).collect()
    }

    /// Stops watching a port.
    pub fn unwatch(&mut self, number: usize, poller: &Poller) {
        match self.ports.get(number).and_then(|port| port.as_ref()).map(|port| &port.device) {
            Some(Device::Tap(device)) => poller.remove(device.as_fd()),
            Some(Device::Xdp(socket)) => poller.remove(socket.borrow().fd().as_fd()),
            Some(Device::Guest(guest)) => guest.borrow().kicks().for_each(|kick| poller.remove(kick)),
            None => {}
        }
    }

    /// Takes a port out.
    pub fn remove(&mut self, number: usize, poller: &Poller) -> Option<Box<Port>> {
        self.unwatch(number, poller);
        self.hot.retain(|hot| *hot != number);
        self.dirty.borrow_mut().retain(|dirty| *dirty != number);
        self.ports.get_mut(number)?.take()
    }

    /// The device of a port that carries traffic.
    #[inline]
    pub fn device(&self, number: usize) -> Option<&Device> {
        match &self.ports[number] {
            Some(port) if port.up => Some(&port.device),
            _ => None,
        }
    }

    /// Has plain frames go to a port, and no more to the one before. Returns whether it takes any frame as it is: it carries
    /// traffic, and prescribes no Ethernet addresses.
    #[inline(never)]
    pub fn turn_to<'a>(
        &'a self,
        outlet: &mut Option<Outlet<'a>>,
        counters: &'a Counters,
        number: PortIndex,
    ) -> bool {
        // First: a guest is borrowed once.
        *outlet = None;
        *outlet = self.outlet(counters, number);
        outlet.is_some()
    }

    fn outlet<'a>(&'a self, counters: &'a Counters, number: PortIndex) -> Option<Outlet<'a>> {
        let port = self.ports.get(usize::from(number))?.as_ref()?;
        if !port.up || port.ethernet.is_some() {
            return None;
        }
        let mut guest = match &port.device {
            Device::Guest(guest) => Some(guest.borrow_mut()),
            Device::Tap(_) | Device::Xdp(_) => None,
        };
        if let Some(guest) = &mut guest {
            self.note(usize::from(number), guest);
        }
        Some(Outlet { port: number, guest, counters, packets: 0, bytes: 0 })
    }

    /// Notes that something may have to be shown to a guest at the end of the turn.
    #[inline]
    pub fn note(&self, number: usize, guest: &mut Guest) {
        if !std::mem::replace(&mut guest.dirty, true) {
            self.dirty.borrow_mut().push(number);
        }
    }

    /// The AF_XDP socket of a port that carries traffic.
    #[inline]
    pub fn xdp(&self, number: usize) -> Option<&RefCell<Xdp>> {
        match self.device(number) {
            Some(Device::Xdp(socket)) => Some(socket),
            _ => None,
        }
    }

    /// The TAP of a port that carries traffic.
    #[inline]
    pub fn tap(&self, number: usize) -> Option<BorrowedFd<'_>> {
        match self.device(number) {
            Some(Device::Tap(device)) => Some(device.as_fd()),
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

/// Where plain frames of a batch go that follow each other to one port: it is looked up and counted once.
pub struct Outlet<'a> {
    /// The port.
    pub port: PortIndex,
    /// Its guest, if it is a guest's.
    guest: Option<RefMut<'a, Guest>>,
    counters: &'a Counters,
    packets: u32,
    bytes: u64,
}

impl Outlet<'_> {
    /// Writes a frame of which nothing is left to do to the guest: Ethernet addresses, and what follows them. Returns whether it was
    /// written; if not, [`write`] says why, once this is dropped.
    #[inline(always)]
    pub fn send(&mut self, ethernet: &[u8; ADDRESSES_BYTES], rest: &[u8]) -> bool {
        let Some(guest) = &mut self.guest else { return false };
        let is_sent = guest.put_plain(ethernet, rest, || flow_of(&[sys::piece(ethernet), sys::piece(rest)]));
        if is_sent {
            self.packets += 1;
            self.bytes += (ADDRESSES_BYTES + rest.len()) as u64;
        }
        is_sent
    }
}

impl Drop for Outlet<'_> {
    #[inline(never)]
    fn drop(&mut self) {
        if self.packets > 0 {
            self.counters.event(EngineEvent::PortWrites).add(self.packets.into());
            self.counters.port(usize::from(self.port)).tx.add(self.packets.into(), self.bytes);
        }
    }
}

/// The device of a port, whether it carries traffic or not.
#[inline]
fn device_of(ports: &[Option<Box<Port>>], number: usize) -> Option<&Device> {
    ports.get(number)?.as_ref().map(|port| &port.device)
}

/// The guest of a port, whether it carries traffic or not.
#[inline]
fn guest_of(ports: &[Option<Box<Port>>], number: usize) -> Option<&RefCell<Guest>> {
    match device_of(ports, number)? {
        Device::Guest(guest) => Some(guest),
        Device::Tap(_) | Device::Xdp(_) => None,
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

/// Counts a frame that was sent, of whose segments some may be lost: packets and bytes of both.
#[inline]
fn count_cut(counters: &Counters, number: usize, sent: (u64, u64), lost: (u64, u64)) {
    counters.event(EngineEvent::PortWrites).add(1);
    counters.port(number).tx.add(sent.0.saturating_sub(lost.0), sent.1.saturating_sub(lost.1));
    if lost.0 > 0 {
        counters.dropped(EngineDrop::PortFull).add(lost.0, lost.1);
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

/// Writes a frame to a port, behind room for its virtio header.
#[inline]
pub fn write(
    ports: &Ports,
    counters: &Counters,
    number: usize,
    header: &VirtioNetHeader,
    frame: &mut [u8],
    packets: u64,
    bytes: u64,
) {
    match ports.device(number) {
        Some(Device::Tap(device)) => {
            // There is room: `HEADER_BYTES` of it.
            let _ = header.encode(frame, HEADER_BYTES);
            count_write(counters, number, &sys::write(device.as_fd(), frame), packets, bytes);
        }
        Some(Device::Guest(guest)) => {
            let pieces = [sys::piece(&frame[HEADER_BYTES..])];
            send(ports, counters, number, guest, header, &pieces, packets, bytes);
        }
        Some(Device::Xdp(socket)) => {
            let pieces = [sys::piece(&frame[HEADER_BYTES..])];
            send_xdp(ports, counters, number, socket, header, &pieces, packets, bytes);
        }
        None => count_absent(counters, number, packets, bytes),
    }
}

/// Sends a frame to a device by AF_XDP, completed and cut.
#[allow(clippy::too_many_arguments)]
pub fn send_xdp(
    ports: &Ports,
    counters: &Counters,
    number: usize,
    socket: &RefCell<Xdp>,
    header: &VirtioNetHeader,
    pieces: &[libc::iovec],
    packets: u64,
    bytes: u64,
) {
    let mut socket = socket.borrow_mut();
    if !socket.dirty {
        ports.dirty.borrow_mut().push(number);
    }
    // SAFETY: the pieces are live memory of ours, as whoever sends them promises.
    #[allow(unsafe_code)]
    let sent = unsafe { socket.send(header, pieces) };
    match sent {
        Ok(lost) => count_cut(counters, number, (packets, bytes), (lost.packets, lost.bytes)),
        Err(xdp::Refused::Full) => counters.dropped(EngineDrop::PortFull).add(packets, bytes),
        Err(xdp::Refused::TooLarge) => counters.dropped(EngineDrop::PortWrite).add(packets, bytes),
    }
}

/// Sends a frame, virtio header in front, to a guest.
#[allow(clippy::too_many_arguments)]
#[inline]
pub fn send(
    ports: &Ports,
    counters: &Counters,
    number: usize,
    guest: &RefCell<Guest>,
    header: &VirtioNetHeader,
    pieces: &[libc::iovec],
    packets: u64,
    bytes: u64,
) {
    let mut guest = guest.borrow_mut();
    ports.note(number, &mut guest);
    match guest.send(header, pieces, || flow_of(pieces)) {
        Ok(lost) => count_cut(counters, number, (packets, bytes), (lost.packets, lost.bytes)),
        Err(refused) => {
            let reason = match refused {
                Refused::Full => EngineDrop::PortFull,
                Refused::TooLarge => EngineDrop::PortWrite,
                Refused::Nonsense => {
                    counters.event(EngineEvent::GuestNonsense).add(1);
                    EngineDrop::PortWrite
                }
                Refused::Broken => EngineDrop::PortDown,
            };
            counters.dropped(reason).add(packets, bytes);
        }
    }
}

/// A number that is the same for all frames of a flow: addresses and ports, summed. It needs not spread well against
/// somebody's will: a guest's own queues are all that it chooses among.
#[inline(never)]
fn flow_of(pieces: &[libc::iovec]) -> u32 {
    const ETHERNET_BYTES: usize = 14;
    let mut head = [0_u8; 64];
    let mut used = 0;
    for piece in pieces {
        let now = piece.iov_len.min(head.len() - used);
        // SAFETY: the pieces are live memory of ours, as whoever sends them promises.
        #[allow(unsafe_code)]
        let bytes = unsafe { std::slice::from_raw_parts(piece.iov_base.cast::<u8>().cast_const(), now) };
        head[used..used + now].copy_from_slice(bytes);
        used += now;
    }
    let (addresses, protocol, transport) = match [head[12], head[13]] {
        [0x08, 0x00] => {
            let header = usize::from(head[ETHERNET_BYTES] & 0xf) * 4;
            // Fragments have no ports, or only the first has.
            let is_fragment = (head[20] & 0x3f) | head[21] != 0;
            (26..34, if is_fragment { 0 } else { head[23] }, ETHERNET_BYTES + header)
        }
        [0x86, 0xdd] => (22..54, head[20], 54),
        _ => return 0,
    };
    let mut sum = 0_u32;
    for word in head[addresses].chunks_exact(2) {
        sum = sum.wrapping_mul(31).wrapping_add(u32::from(word[0]) << 8 | u32::from(word[1]));
    }
    if matches!(protocol, 6 | 17) && transport + 4 <= head.len() {
        for word in head[transport..transport + 4].chunks_exact(2) {
            sum = sum.wrapping_mul(31).wrapping_add(u32::from(word[0]) << 8 | u32::from(word[1]));
        }
    }
    sum ^ sum >> 16
}
