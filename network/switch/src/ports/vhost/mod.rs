//! Ports of virtual machines: vhost-user, the protocol by which a virtual machine monitor (QEMU), or a program that acts
//! as one (DPDK's virtio-user), lends a switch its guest's memory and the queues of its virtio network device (rows A19, A29).
//!
//! - [`offered`]: what a monitor offers, checked: its descriptors and numbers come in there and nowhere else. [`bounds`]: how much memory
//!   may be lent. [`touched`]: how much of it may be charged to the switch. [`calls`]: interrupts, in a way that never waits.
//! - [`memory`]: the guest's memory, mapped here. [`guard`]: what happens when it is taken away under our feet.
//! - [`ring`]: one queue (virtio 1.2 §2.7, split), [`chain`]: one chain of it. [`guest`]: the queues of a port as the engine reads and writes them, with the copies
//!   of `copy`.
//! - [`session`]: the socket, and a thread for each that speaks the protocol (crate `vhost`).
//!
//! Who owns what: a session has the settings of the queues, the engine the queues while they run. To change anything that
//! runs, the session asks for the queues back, waits until the engine has let go of them, and gives them anew. The
//! position in a queue is in the guest's memory, because frames are done with in the order in which they came: so nothing is
//! lost when either side restarts.
//!
//! What is not believed (row A29): all that a guest writes. Every address is checked against the memory that was lent,
//! every chain of descriptors has a limit, a frame is copied into the engine's own memory once and never looked at again
//! in the guest's, and memory that is truncated costs the port and nobody else. Nor is the virtual machine monitor: what it shares it goes
//! on having, so the engine neither reads nor writes its descriptors, and never believes their flags.
//!
//! Not there: packed queues, a log of written pages (so no live migration), reconnection with requests in flight that
//! complete out of order (there are none).

pub mod bounds;
pub mod calls;
pub mod chain;
mod copy;
pub mod guard;
pub mod guest;
pub mod memory;
pub mod offered;
pub mod ring;
pub mod session;
pub mod touched;

#[cfg(test)]
mod driver;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

/// Most descriptors of a queue: what virtio allows.
pub const QUEUE_SIZE_MAX: u16 = 32_768;
/// Longest chain of descriptors, indirect ones counted: four times what a Linux guest makes for a super-frame without
/// mergeable buffers.
pub const CHAIN_MAX: u16 = 1024;

/// Bits of virtio and of its network device (virtio 1.2 §5.1.3, §6).
pub mod feature {
    /// The guest may leave checksums partial.
    pub const CSUM: u64 = 1 << 0;
    /// The guest takes partial checksums.
    pub const GUEST_CSUM: u64 = 1 << 1;
    /// The guest takes TCP super-frames of IPv4.
    pub const GUEST_TSO4: u64 = 1 << 7;
    /// The guest takes TCP super-frames of IPv6.
    pub const GUEST_TSO6: u64 = 1 << 8;
    /// The guest takes super-frames with CWR.
    pub const GUEST_ECN: u64 = 1 << 9;
    /// The guest may send TCP super-frames of IPv4.
    pub const HOST_TSO4: u64 = 1 << 11;
    /// The guest may send TCP super-frames of IPv6.
    pub const HOST_TSO6: u64 = 1 << 12;
    /// The guest may send super-frames with CWR.
    pub const HOST_ECN: u64 = 1 << 13;
    /// A frame for the guest may take several chains.
    pub const MRG_RXBUF: u64 = 1 << 15;
    /// Several pairs of queues.
    pub const MQ: u64 = 1 << 22;
    /// Descriptors may be laid out as the driver likes.
    pub const ANY_LAYOUT: u64 = 1 << 27;
    /// A descriptor may point to a table of descriptors.
    pub const INDIRECT_DESC: u64 = 1 << 28;
    /// Each side says at which index it wants to be told.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// The protocol has features of its own (vhost-user).
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
    /// Not the draft that was before virtio 1.
    pub const VERSION_1: u64 = 1 << 32;
    /// The guest takes UDP super-frames of IPv4.
    pub const GUEST_USO4: u64 = 1 << 54;
    /// The guest takes UDP super-frames of IPv6.
    pub const GUEST_USO6: u64 = 1 << 55;
    /// The guest may send UDP super-frames.
    pub const HOST_USO: u64 = 1 << 56;

    /// What the switch offers; without [`MQ`], which a port has only with several pairs.
    pub const OFFERED: u64 = CSUM
        | GUEST_CSUM
        | GUEST_TSO4
        | GUEST_TSO6
        | GUEST_ECN
        | HOST_TSO4
        | HOST_TSO6
        | HOST_ECN
        | MRG_RXBUF
        | ANY_LAYOUT
        | INDIRECT_DESC
        | EVENT_IDX
        | PROTOCOL_FEATURES
        | VERSION_1
        | GUEST_USO4
        | GUEST_USO6
        | HOST_USO;
}

/// A socket to meet a virtual machine at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    /// Its path.
    pub path: PathBuf,
    /// Whether the switch listens, and not the virtual machine monitor.
    pub listens: bool,
    /// Most pairs of queues.
    pub pairs: u16,
}
