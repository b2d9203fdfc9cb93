//! Packets: parse, key, checksum, encapsulate, segment, coalesce, build and rewrite.
//!
//! Everything here is pure: bytes in, bytes out, no I/O, no clock, no allocation. The switch (rows A19-A25)
//! and its tests are the users. A frame is an Ethernet frame without the frame check sequence.
//!
//! The way of a frame: [`headers::parse`] reads every field once and refuses what lies about its lengths;
//! [`key::FlowKey`] names the flow; [`virtio::VirtioNetHeader::validate`] turns what a guest asks for into a
//! checked [`virtio::Offload`]; [`segment`] cuts a super-frame, [`encap`] wraps the pieces; on the other side
//! [`encap`] unwraps, [`coalesce`] joins. [`outer`] has the headers around a tunnel's, where the kernel does not make them. [`build`] answers on behalf of the network, [`rewrite`] translates.
//!
//! Invariants:
//! - No function panics on any input bytes. Functions that take `(frame, &Parsed)` need the `Parsed` of that
//!   frame; a frame that is shorter is refused with [`PacketError::FrameMismatch`].
//! - Every refusal is one [`PacketError`], whose [`PacketError::as_str`] is a stable metric label.
//! - Numbers are in host order in structs and in network order on the wire.

mod bytes;

pub mod address;
pub mod build;
pub mod checksum;
pub mod coalesce;
pub mod encap;
pub mod error;
pub mod headers;
pub mod key;
pub mod outer;
pub mod rewrite;
pub mod segment;
pub mod train;
pub mod virtio;

#[cfg(test)]
#[path = "../tests/fixtures.rs"]
mod fixtures;

pub use address::{IpAddress, Mac};
pub use error::PacketError;
pub use headers::{Fragment, Network, Parsed, Plain, Transport, parse, parse_into};
pub use key::{FlowKey, HashSeed};
