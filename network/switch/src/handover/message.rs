//! What two processes of the switch say to each other, version 1.
//!
//! The bytes are frozen: a fixture of every message is kept in the tests (`message-v1.bin`), and a release that can no longer
//! read it cannot replace an earlier one under traffic. Whoever changes a message adds one of a new kind or raises the version,
//! and goes on speaking the old one for a release.

use super::HandoverError;
use crate::conntrack::{CarriedConnection, RecordKey};
use crate::fragments::{CarriedDatagram, CarriedPlace};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use weir_base::codec::{decode, encode};
use weir_model::resource::Encapsulation;
use weir_model::{Key, Label};

/// Bytes of kind and flags.
pub const HEADER_BYTES: usize = 4;
/// Versions that this release speaks.
pub const VERSION_OLDEST: u16 = 1;
/// The newest of them.
pub const VERSION_NEWEST: u16 = 1;

/// In the flags: refuse the hand-over if the kind is not known.
const MUST_KNOW: u16 = 1;

/// Who wants to take over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Oldest version that it speaks.
    pub oldest: u16,
    /// Newest version that it speaks.
    pub newest: u16,
    /// Which release it is, for people.
    pub build: String,
    /// Name of the switch.
    pub name: Label,
    /// Its domain.
    pub domain: Label,
    /// Its address on the underlay, and the UDP ports of Geneve and VXLAN.
    pub underlay: (IpAddr, u16, u16),
}

/// The answer to a [`Hello`]. With it come the lock of the run directory, the listening control socket and the punt
/// socket; then the receiving and the sending sockets of the underlay, in the order in which they are listed here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The version to speak.
    pub version: u16,
    /// Which release it is, for people.
    pub build: String,
    /// The switch's own clock, milliseconds; it goes on in the process that takes over.
    pub now_ms: u64,
    /// Format of each receiving socket.
    pub receivers: Vec<Encapsulation>,
    /// Format of each sending socket.
    pub senders: Vec<Encapsulation>,
}

/// The TAP of a port, whose descriptor comes with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarriedTap {
    /// The port; none: the outside, at a gateway.
    pub key: Option<Key>,
    /// Namespace of the device.
    pub netns: Option<String>,
    /// Name of the device.
    pub device: String,
}

/// The socket of a veth pair's port, whose descriptor comes with it; with one of AF_XDP those of its memory and of its program's link, too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarriedVeth {
    /// The port.
    pub key: Key,
    /// Namespace of the container's end.
    pub netns: Option<String>,
    /// Name of the container's end.
    pub device: String,
    /// How its frames are had.
    pub way: CarriedWay,
}

/// How a veth pair's frames are had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CarriedWay {
    /// By AF_PACKET.
    Packet {
        /// Why not by AF_XDP, if that was wanted.
        why: String,
    },
    /// By AF_XDP.
    Xdp {
        /// Number of the device.
        device: u32,
        /// Chunks of each direction, and entries of each ring.
        chunks: u32,
        /// Bytes of a chunk.
        chunk_bytes: u32,
    },
}

impl CarriedWay {
    /// Descriptors that come with it.
    pub fn descriptors(&self) -> usize {
        match self {
            CarriedWay::Packet { .. } => 1,
            CarriedWay::Xdp { .. } => 3,
        }
    }
}

/// The socket of a virtual machine's port. With it come the connection and the listening socket, of those that there are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarriedGuest {
    /// The port.
    pub key: Key,
    /// Path of the socket.
    pub path: String,
    /// Whether the switch listens.
    pub listens: bool,
    /// Most pairs of queues.
    pub pairs: u16,
    /// Whether a virtual machine monitor is connected.
    pub connected: bool,
    /// Whether the listening socket is handed over.
    pub listening: bool,
    /// Features of virtio that the monitor chose; zero: none yet.
    pub features: u64,
    /// Features of the protocol that it chose.
    pub protocol_features: u64,
}

/// Memory that a virtual machine lends, a descriptor for each region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarriedMemory {
    /// The port.
    pub key: Key,
    /// Address in the guest, address in the monitor, bytes, offset in the file.
    pub regions: Vec<(u64, u64, u64, u64)>,
}

/// Settings of one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarriedQueue {
    /// Descriptors; zero: not told yet.
    pub size: u16,
    /// Addresses in the monitor of table, available and used ring.
    pub addresses: Option<(u64, u64, u64)>,
    /// Whether its kick is handed over.
    pub kick: bool,
    /// Whether its call is handed over.
    pub call: bool,
    /// Whether it may be used.
    pub enabled: bool,
}

/// Settings of some queues, with their kicks and calls. Where a queue goes on is in the guest's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarriedQueues {
    /// The port.
    pub key: Key,
    /// Number of the first of these queues.
    pub first: u16,
    /// The queues.
    pub queues: Vec<CarriedQueue>,
}

/// A frame of a port that waits for an answer of the controllers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldFrame {
    /// Where it came in: only ports ask.
    pub place: CarriedPlace,
    /// Its virtio header.
    pub header: [u8; 10],
    /// The Ethernet frame.
    pub frame: Vec<u8>,
}

/// All is said: the process that is replaced serves no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frozen {
    /// TAPs that were handed over.
    pub taps: u32,
    /// Sockets of virtual machines that were handed over.
    pub guests: u32,
    /// Sockets of virtual machines that were not, because a message was under way on them.
    pub guests_left: u32,
    /// Length of the checkpoint, bytes.
    pub checkpoint_bytes: u64,
    /// Length of the journal of connections, bytes.
    pub journal_bytes: u64,
}

macro_rules! messages {
    ($($variant:ident $(($body:ty))? = $kind:literal, $must:literal, $text:literal;)*) => {
        /// A message.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Message { $(#[doc = $text] $variant $(($body))?,)* }

        impl Message {
            /// Its bytes.
            pub fn encode(&self) -> Vec<u8> {
                match self { $(messages!(@pattern message $variant $(($body))?) => {
                    let flags = if $must { MUST_KNOW } else { 0 };
                    let mut bytes = Vec::with_capacity(256);
                    bytes.extend_from_slice(&u16::to_le_bytes($kind));
                    bytes.extend_from_slice(&u16::to_le_bytes(flags));
                    messages!(@body bytes message $(($body))?);
                    bytes
                })* }
            }

            /// From bytes; `None` for a kind that is not known and need not be.
            ///
            /// # Errors
            /// [`HandoverError::Unknown`], [`HandoverError::Nonsense`].
            pub fn decode(bytes: &[u8]) -> Result<Option<Message>, HandoverError> {
                let Some((header, body)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
                    return Err(HandoverError::Nonsense(format!("{} bytes are no message", bytes.len())));
                };
                let kind = u16::from_le_bytes([header[0], header[1]]);
                let flags = u16::from_le_bytes([header[2], header[3]]);
                let nonsense = |error: weir_base::codec::CodecError| HandoverError::Nonsense(error.to_string());
                match kind {
                    $($kind => messages!(@decode $variant body nonsense $(($body))?),)*
                    kind if flags & MUST_KNOW != 0 => Err(HandoverError::Unknown(kind)),
                    _ => Ok(None),
                }
            }
        }
    };
    (@pattern $message:ident $variant:ident) => { Message::$variant };
    (@pattern $message:ident $variant:ident ($body:ty)) => { Message::$variant($message) };
    (@body $bytes:ident $message:ident) => {};
    (@body $bytes:ident $message:ident ($body:ty)) => { $bytes.extend_from_slice(&encode($message)) };
    (@decode $variant:ident $from:ident $nonsense:ident) => {
        if $from.is_empty() {
            Ok(Some(Message::$variant))
        } else {
            Err(HandoverError::Nonsense(format!("{} bytes are too many", $from.len())))
        }
    };
    (@decode $variant:ident $from:ident $nonsense:ident ($body:ty)) => {
        decode::<$body>($from).map(|body| Some(Message::$variant(body))).map_err($nonsense)
    };
}

messages! {
    Hello(Hello) = 1, true, "Who wants to take over.";
    Welcome(Welcome) = 2, true, "It may. With descriptors.";
    No(String) = 3, true, "The hand-over does not take place, for this reason.";
    Copy = 4, true, "Send the connections: all at first, then what changed.";
    Connections(Vec<CarriedConnection>) = 5, true, "Connections, new or as they are now.";
    Gone(Vec<RecordKey>) = 6, true, "Connections that are over.";
    Copied(u64) = 7, true, "So many connections were sent since the request.";
    Freeze = 8, true, "Stop serving, and send the rest.";
    Tap(CarriedTap) = 9, true, "The device of a port.";
    Guest(CarriedGuest) = 10, true, "The socket of a virtual machine's port.";
    Memory(CarriedMemory) = 11, true, "Memory that a virtual machine lends.";
    Queues(CarriedQueues) = 12, true, "Queues of a virtual machine.";
    Fragments(Vec<CarriedDatagram>) = 13, false, "Datagrams of which fragments are under way.";
    Peers(Vec<(IpAddr, u32)>) = 14, false, "Switches that take partial checksums, and when they said so, milliseconds.";
    Held(HeldFrame) = 15, false, "A frame that waits for an answer.";
    Frozen(Frozen) = 16, true, "That was all.";
    Serving = 17, true, "The one that takes over serves.";
    Veth(CarriedVeth) = 18, false, "The socket of a veth pair's port: whoever passes it over opens one, once this process has ended.";
    Gateways(Vec<(IpAddr, bool)>) = 19, false, "Gateways that have answered probes, and whether they are silent now.";
}
