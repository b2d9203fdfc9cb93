//! The underlay without sockets: datagrams as whole frames in memory that a device, or another thread, reads and writes (rows A19, A20).
//!
//! Beside the UDP sockets, never in their place. By the wire go single datagrams, to receivers whose next hop is known, that fit the way's
//! MTU. Everything else goes by the sockets: what was cut from super-frames, which the kernel takes 64 at a time ([`super::transmit`]);
//! what no next hop is known for, so that the kernel looks for it; what is larger than the MTU; what the wire has no room for. Each is
//! counted under its reason ([`BySockets`]).
//!
//! A [`Wire`] carries frames. What is around a datagram is made here, from what all datagrams to one receiver have in common ([`Hop`]). Hops are
//! worked out by another thread ([`crate::underlay`]), as a whole map that it swaps ([`SharedHops`]): the engine looks at it, without
//! a lock, and asks for a receiver that is not in it, once a map.
//!
//! The UDP source port is that of the socket which the flow would take. So the underlay sees one flow, whichever way its datagrams
//! go; and what routers say of datagrams that were too large reaches that socket, and through it the kernel's routes, from which the hop has its MTU.
//!
//! Invariants
//! - Frames leave in the order in which they were put, and are shown before a socket sends anything that came after them.
//! - Bytes of a wire are read once, and believed in nothing ([`weir_packet::outer::open`]).

use super::sys::Wakeup;
use arc_swap::{ArcSwap, Cache};
use hashbrown::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, TrySendError};
use weir_model::resource::Encapsulation;
use weir_packet::outer::{OuterHeader, overhead};

/// Receivers whose next hops are known at once.
pub const HOPS_MAX: usize = 4096;
/// Receivers that the engine has asked for, and that nobody has looked at yet.
pub const ASKS_MAX: usize = 256;
/// Receivers that are remembered to have been asked for.
const ASKED_SLOTS: usize = 256;

/// Frames to and from a device, or whoever has its place. One thread uses it.
pub trait Wire: Send {
    /// Copies a frame, which is `pieces` one behind the other. Returns whether there was room. It leaves with [`Wire::show`], or before.
    fn put(&mut self, pieces: &[&[u8]]) -> bool;

    /// Has what was put leave.
    ///
    /// # Errors
    /// The device is gone.
    fn show(&mut self) -> io::Result<()>;

    /// Gives frames that came to `each`, at most so many and until it returns false: that frame stays, and comes first the next time.
    /// Returns how many were taken.
    fn take(&mut self, most: usize, each: &mut dyn FnMut(&[u8]) -> bool) -> usize;

    /// To wait for frames. Without one it is looked at in every turn, and nobody wakes an engine that sleeps.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Waits until what was shown has left, for so long as a device takes for it.
    ///
    /// # Errors
    /// It does not leave, or the device is gone.
    fn settle(&mut self) -> io::Result<()>;
}

macro_rules! reasons {
    ($($variant:ident, $label:literal, $text:literal;)*) => {
        /// Why datagrams went by the sockets although there is a wire.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum BySockets {
            $(#[doc = $text] $variant,)*
        }

        impl BySockets {
            /// All of them, in the order of the counters.
            pub const ALL: &'static [BySockets] = &[$(BySockets::$variant,)*];

            /// The label in metrics.
            pub const fn as_str(self) -> &'static str {
                match self { $(BySockets::$variant => $label,)* }
            }
        }
    };
}

reasons! {
    Cut, "super-frame", "They were cut from a super-frame, or lay one behind the other.";
    TooLarge, "mtu", "They are larger than the way to the receiver takes.";
    Unknown, "unknown", "Nobody has looked for the receiver's next hop yet, or there are too many receivers.";
    NoNeighbour, "no-neighbour", "The next hop's Ethernet address is not known: the kernel asks for it.";
    OtherWay, "other-way", "The way to the receiver does not lead through the wire's device, or is none.";
    Full, "full", "The wire had no room.";
    Rests, "rests", "The wire rests: another process takes over, or its device is gone.";
}

/// How datagrams get to a receiver by the wire.
#[derive(Debug, PartialEq, Eq)]
pub struct Hop {
    /// Outer headers of Geneve and VXLAN.
    headers: [OuterHeader; 2],
    /// Largest datagram, with its tunnel header.
    payload_max: usize,
}

impl Hop {
    /// From what the way is known to be. `None` if the addresses are of two families, or the MTU has no room for headers.
    pub fn new(
        ethernet: ([u8; 6], [u8; 6]),
        source: IpAddr,
        receiver: IpAddr,
        hop_limit: u8,
        ports: [u16; 2],
        mtu: usize,
    ) -> Option<Hop> {
        let header = |port| OuterHeader::new(ethernet, source, receiver, hop_limit, port);
        let headers = [header(ports[0])?, header(ports[1])?];
        let payload_max = mtu.checked_sub(overhead(source.is_ipv6()))?;
        Some(Hop { headers, payload_max })
    }

    /// The outer headers of a format.
    #[inline]
    pub fn header(&self, format: Encapsulation) -> &OuterHeader {
        &self.headers[usize::from(format == Encapsulation::Vxlan)]
    }
}

/// A receiver.
#[derive(Clone, Debug)]
pub struct Receiver {
    /// How datagrams get there; or why not by the wire.
    pub way: Result<Arc<Hop>, BySockets>,
    /// Set when there is something for it; whoever keeps the map clears it, and drops who is not used.
    pub used: Arc<AtomicBool>,
}

/// All receivers that were looked for, [`HOPS_MAX`] at most.
#[derive(Debug, Default)]
pub struct Hops {
    receivers: HashMap<IpAddr, Receiver, foldhash::fast::RandomState>,
    /// Another number than that of the map before.
    version: u64,
}

impl Hops {
    /// A map with a new version; those beyond [`HOPS_MAX`] are left out.
    pub fn new(version: u64, receivers: impl IntoIterator<Item = (IpAddr, Receiver)>) -> Hops {
        Hops { receivers: receivers.into_iter().take(HOPS_MAX).collect(), version }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.receivers.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.receivers.is_empty()
    }
}

/// The map that the engine looks at, and that another thread swaps.
pub type SharedHops = Arc<ArcSwap<Hops>>;

/// What the engine says to whoever keeps the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// There is something for a receiver that is not in the map.
    Hop(IpAddr),
    /// The wire's device is gone.
    Gone,
}

/// The wires of the queues of one device, as the engine has them. What is sent goes by the first.
pub struct Wires {
    queues: Vec<Box<dyn Wire>>,
    hops: Cache<SharedHops, Arc<Hops>>,
    asks: Option<(SyncSender<Ask>, Arc<Wakeup>)>,
    asked: Box<[Option<IpAddr>]>,
    asked_version: u64,
    rests: bool,
    /// Something was put and not shown.
    unshown: bool,
}

impl Wires {
    /// With the map of receivers, and who to ask for those that are not in it.
    pub fn new(
        queues: Vec<Box<dyn Wire>>,
        hops: SharedHops,
        asks: Option<(SyncSender<Ask>, Arc<Wakeup>)>,
    ) -> Wires {
        Wires {
            queues,
            hops: Cache::new(hops),
            asks,
            asked: vec![None; ASKED_SLOTS].into_boxed_slice(),
            asked_version: 0,
            rests: false,
            unshown: false,
        }
    }

    /// How many queues there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.queues.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// One of them.
    #[inline]
    pub fn queue(&mut self, number: usize) -> Option<&mut dyn Wire> {
        Some(&mut **self.queues.get_mut(number)?)
    }

    /// To wait for frames.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.queues.iter().filter_map(|queue| queue.fd())
    }

    /// Has everything go by the sockets, or not any more.
    pub fn rest(&mut self, rests: bool) {
        self.rests = rests;
    }

    /// The newest map.
    #[inline]
    pub(super) fn hops(&mut self) -> Arc<Hops> {
        let hops = self.hops.load();
        if hops.version != self.asked_version {
            self.asked_version = hops.version;
            self.asked.fill(None);
        }
        Arc::clone(hops)
    }

    /// How datagrams of at most `longest` bytes get to a receiver, or why not by the wire. Asks for one that is not in the map.
    #[inline]
    pub(super) fn way<'a>(
        &mut self,
        hops: &'a Hops,
        receiver: IpAddr,
        is_cut: bool,
        longest: usize,
    ) -> Result<&'a Hop, BySockets> {
        if self.rests || self.queues.is_empty() {
            return Err(BySockets::Rests);
        }
        if is_cut {
            return Err(BySockets::Cut);
        }
        let Some(known) = hops.receivers.get(&receiver) else {
            self.ask(receiver);
            return Err(BySockets::Unknown);
        };
        if !known.used.load(Relaxed) {
            known.used.store(true, Relaxed);
        }
        match &known.way {
            Ok(hop) if longest <= hop.payload_max => Ok(hop),
            Ok(_) => Err(BySockets::TooLarge),
            Err(reason) => Err(*reason),
        }
    }

    #[cold]
    fn ask(&mut self, receiver: IpAddr) {
        let bytes = weir_packet::IpAddress::from(receiver).0;
        let sum =
            bytes.iter().fold(0_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(usize::from(*byte)));
        let slot = &mut self.asked[sum % ASKED_SLOTS];
        if *slot == Some(receiver) {
            return;
        }
        *slot = Some(receiver);
        self.say(Ask::Hop(receiver));
    }

    fn say(&mut self, ask: Ask) {
        let Some((sender, wake)) = &self.asks else { return };
        if let Err(TrySendError::Full(_)) = sender.try_send(ask) {
            // It is asked again with the next datagram.
            self.asked.fill(None);
            return;
        }
        wake.wake();
    }

    /// Copies a frame into the first wire; false when there is no room.
    #[inline]
    pub(super) fn put(&mut self, pieces: &[&[u8]]) -> bool {
        let Some(queue) = self.queues.first_mut() else { return false };
        self.unshown = true;
        queue.put(pieces)
    }

    /// Has what was put leave; returns whether there was something.
    #[inline]
    pub(super) fn show(&mut self) -> bool {
        let was = std::mem::take(&mut self.unshown);
        if was && let Some(Err(_)) = self.queues.first_mut().map(|queue| queue.show()) {
            self.rests = true;
            self.say(Ask::Gone);
        }
        was
    }

    /// Waits until what was put has left.
    pub(super) fn settle(&mut self) {
        self.show();
        if let Some(queue) = self.queues.first_mut() {
            // What does not leave in time is in the device's hands, and lost only if the device is.
            let _ = queue.settle();
        }
    }
}

#[cfg(test)]
mod tests;
