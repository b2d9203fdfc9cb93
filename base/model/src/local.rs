//! Frames between a host's agent and its switch, on a local socket, and the questions that can be
//! put to a switch from anywhere.
//!
//! The switch owns forwarding, connection tracking and its checkpoint; the agent owns the session
//! with the controller, the devices, DHCP and DNS. Each goes on when the other is gone.
//!
//! Two sockets in the switch's run directory, both made by the switch:
//! - `control.sock`, a stream of postcard frames [`ToSwitch`] and [`FromSwitch`];
//! - `punt.sock`, datagrams [`Punt`] both ways: frames for DHCP and DNS, and their answers. The agent
//!   sends from `punt-agent.sock` in the same directory, which it makes itself, and the switch
//!   sends there; an empty datagram of the agent only says that it is there.
//!
//! A frame in a [`Punt`] has no virtio-net header: a checksum that the endpoint left to its device is
//! still the sum over the pseudo header only, and the agent takes it so.

use crate::entry::{Entry, Key};
use crate::event::SignedEvent;
use crate::protocol::StateDigest;
use crate::signed::{SignedAcks, SignedHeader, SignedUpdates};
use crate::{Label, Version};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// File name of the stream socket in the run directory.
pub const CONTROL_SOCKET: &str = "control.sock";
/// File name of the switch's datagram socket in the run directory.
pub const PUNT_SOCKET: &str = "punt.sock";
/// File name of the agent's datagram socket in the run directory.
pub const PUNT_AGENT_SOCKET: &str = "punt-agent.sock";
/// File name in the run directory of the supervisor's store of descriptors.
pub const STORE_SOCKET: &str = "store.sock";
/// Folder in the run directory with the sockets of the planes beside the switch.
pub const PLANES_FOLDER: &str = "planes";
/// Most names that a process of a plane says are its own.
pub const PLANE_NAMES_MAX: usize = 64;
/// Largest message to or from the store, bytes.
pub const STORE_BYTES_MAX: usize = 16 * 1024;
/// Most descriptors of one thing in the store: below the kernel's 253.
pub const STORE_FDS_MAX: usize = 128;
/// File name in the run directory of the lock (`flock`) that a running switch holds.
pub const SWITCH_LOCK: &str = "switch.lock";
/// Most entries of one [`Answer::Entries`] frame.
pub const ENTRIES_CHUNK: usize = 1024;
/// Largest punted frame, bytes.
pub const PUNT_BYTES_MAX: usize = 9216;

/// File name, in [`PLANES_FOLDER`], of the stream socket of a plane's process: `PLANE.sock`, or `PLANE-INSTANCE.sock` where a host has
/// several of one plane. It speaks [`ToSwitch`] and [`FromSwitch`] as a switch does; which plane it is it says itself
/// ([`FromSwitch::Plane`]), and not its file's name.
pub fn plane_socket(plane: &Label, instance: Option<&Label>) -> String {
    match instance {
        Some(instance) => format!("{plane}-{instance}.sock"),
        None => format!("{plane}.sock"),
    }
}

/// Names a port on its host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PortName {
    /// Name of the network.
    pub network: Label,
    /// Name of the endpoint.
    pub endpoint: Label,
}

impl std::fmt::Display for PortName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.network, self.endpoint)
    }
}

/// From the switch to the supervisor's store (`SOCK_SEQPACKET`, one of these a message). What the store has it neither
/// reads nor uses: a switch that crashed is followed by one that gets the same open files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToStore {
    /// Keep the descriptors that come with this, in place of those of the same name.
    Keep {
        /// The name.
        name: String,
        /// What they are, in the words of whoever keeps them.
        bytes: Vec<u8>,
    },
    /// Keep these no more.
    Drop {
        /// The name.
        name: String,
    },
    /// Keep only what has come by this connection.
    Settle,
    /// Send all that is kept, and [`FromStore::Done`]; it stays kept.
    Give,
    /// Say [`FromStore::Done`] when what was said before is done.
    Sync,
}

/// From the store to the switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromStore {
    /// Something that was kept, with its descriptors.
    Kept {
        /// The name.
        name: String,
        /// What they are.
        bytes: Vec<u8>,
    },
    /// That was all.
    Done,
}

/// From the agent (or a tool) to the switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToSwitch {
    /// Apply these; answered by [`FromSwitch::Acks`].
    Updates(SignedUpdates),
    /// Which keys and versions are in force; answered by [`FromSwitch::State`].
    SendState,
    /// From now on send [`FromSwitch::Changed`], [`FromSwitch::Ports`] and [`FromSwitch::Event`].
    Subscribe,
    /// The device of a port is there, or was made anew: attach to it.
    Attach {
        /// The key of the port.
        key: Key,
    },
    /// A question.
    Ask {
        /// Number of the question.
        id: u64,
        /// The question.
        question: Question,
    },
    /// Read the file of the identity anew and sign with what it holds; answered by [`FromSwitch::Identity`].
    ReadIdentity,
}

/// From the switch to the agent (or a tool).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromSwitch {
    /// Answers to updates.
    Acks(SignedAcks),
    /// What is in force, deleted keys whose version is remembered included.
    State {
        /// Digest of all of it.
        digest: StateDigest,
        /// Keys and versions.
        entries: Vec<(Key, Version)>,
        /// Whether this is the last part.
        last: bool,
    },
    /// A key changed; `None` means deleted.
    Changed {
        /// The key.
        key: Key,
        /// Version in force.
        version: Version,
        /// The value.
        entry: Option<Entry>,
    },
    /// State of the ports, after each change of it.
    Ports(Vec<PortStatus>),
    /// An event of the switch, such as what was sent to whom, signed by it.
    Event(SignedEvent),
    /// Answer to a question.
    Answer {
        /// The question's number.
        id: u64,
        /// The answer.
        answer: Answer,
    },
    /// Acks and events are signed with this key from now on.
    Identity {
        /// The public key.
        key: [u8; 32],
    },
    /// First answer of a plane's process to [`ToSwitch::Subscribe`]; a switch never says it.
    Plane {
        /// The plane whose keys it takes.
        plane: Label,
        /// The names that it takes, at most [`PLANE_NAMES_MAX`]; none means those that no other process of the plane takes.
        names: Option<Vec<String>>,
    },
    /// What a plane's process has in force, deleted keys whose version is remembered included: the answer to
    /// [`ToSwitch::SendState`], and, of the keys of a change, before its acks.
    Contents {
        /// Key, version, and what the key adds to the digest of the host's state. Version zero: it has it no longer.
        entries: Vec<(Key, Version, u128)>,
        /// Whether this is the last part.
        last: bool,
    },
}

/// Something to ask a switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// What is in force, from a key on; at most [`ENTRIES_CHUNK`] entries.
    Entries {
        /// First key wanted that is greater than this.
        after: Option<Key>,
    },
    /// State of the ports.
    Ports,
    /// All counters.
    Counters,
    /// Connections, at most `limit`.
    Connections {
        /// Most connections to give.
        limit: u32,
    },
    /// What would happen to this frame.
    Trace {
        /// Where it comes in.
        from: TraceFrom,
        /// The Ethernet frame, without any encapsulation.
        frame: Vec<u8>,
    },
    /// Copy frames of a port to a pcap stream.
    Capture {
        /// The port; `None` means the underlay.
        port: Option<PortName>,
        /// Stop after so many frames.
        frames_max: u32,
        /// Stop after so long, milliseconds.
        duration_ms: u32,
        /// Bytes kept of each frame.
        snap_bytes: u32,
    },
}

/// Where a traced frame comes in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TraceFrom {
    /// From an endpoint of this host.
    Port(PortName),
    /// From another switch.
    Underlay {
        /// Its address.
        sender: IpAddr,
        /// Identifier of the network, and in the byte above it what the sender's half of the firewall decided.
        vni: u32,
    },
    /// From outside, at a gateway.
    External,
}

/// What a switch answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Some of what is in force, in order of the keys.
    Entries {
        /// Key, version, value and the header that proves who signed it.
        entries: Vec<(Key, Version, Entry, SignedHeader)>,
        /// Whether there is nothing behind these.
        last: bool,
    },
    /// State of the ports.
    Ports(Vec<PortStatus>),
    /// Counters by name with labels, such as `drops{reason="no-route"}`.
    Counters(Vec<(String, u64)>),
    /// Connections.
    Connections(Vec<ConnectionStatus>),
    /// A trace.
    Trace(TraceReport),
    /// Captured frames: time (nanoseconds of the Unix epoch), original length, kept bytes.
    Captured {
        /// The frames.
        frames: Vec<(u64, u32, Vec<u8>)>,
        /// Whether the capture is over.
        last: bool,
    },
    /// The question cannot be answered, and why.
    Error(String),
}

/// A port as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortStatus {
    /// The port's key.
    pub key: Key,
    /// Its name.
    pub name: PortName,
    /// Version in force.
    pub version: Version,
    /// Whether it carries traffic.
    pub up: bool,
    /// Why it does not, if it does not.
    pub reason: String,
    /// Frames and bytes from the endpoint.
    pub rx_frames: u64,
    /// Bytes from the endpoint.
    pub rx_bytes: u64,
    /// Frames to the endpoint.
    pub tx_frames: u64,
    /// Bytes to the endpoint.
    pub tx_bytes: u64,
}

/// A tracked connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionStatus {
    /// Network.
    pub vni: u32,
    /// IP protocol.
    pub protocol: u8,
    /// Who opened it.
    pub source: (IpAddr, u16),
    /// To whom.
    pub destination: (IpAddr, u16),
    /// Source after NAT, at a gateway.
    pub translated: Option<(IpAddr, u16)>,
    /// State in words.
    pub state: String,
    /// The rule that allowed it.
    pub rule: String,
    /// Time since the last packet, milliseconds.
    pub idle_ms: u64,
}

/// What happened to a traced frame in one switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceReport {
    /// The switch.
    pub actuator: Label,
    /// Each step in order.
    pub steps: Vec<TraceStep>,
    /// How it ends here.
    pub verdict: TraceVerdict,
}

/// One step of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceStep {
    /// Name of the stage, such as `anti-spoofing` or `egress-firewall`.
    pub stage: String,
    /// What it found, in words.
    pub detail: String,
    /// The rule or route that decided, if one did.
    pub rule: Option<String>,
    /// The entry looked at, its version, and the header that proves who signed it.
    pub source: Option<(Key, Version, SignedHeader)>,
}

/// How a trace ends in one switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TraceVerdict {
    /// Given to an endpoint of this host.
    Deliver {
        /// The port.
        port: PortName,
    },
    /// Sent to another switch.
    Send {
        /// Its underlay address.
        underlay: IpAddr,
        /// Identifier of the network, and in the byte above it what this half of the firewall decided.
        vni: u32,
        /// The Ethernet frame as it goes on.
        frame: Vec<u8>,
    },
    /// Sent outside.
    External {
        /// The IP packet as it goes on.
        packet: Vec<u8>,
    },
    /// Answered by the switch or the agent itself.
    Answered {
        /// By what, such as `arp` or `dhcp`.
        by: String,
    },
    /// Dropped.
    Drop {
        /// The counter's reason.
        reason: String,
    },
}

/// A frame handed over between switch and agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Punt {
    /// The port that it came from or goes to.
    pub key: Key,
    /// The Ethernet frame.
    pub frame: Vec<u8>,
}
