//! What the fast path and the slow path say to each other (rows A22, A24).
//!
//! A flow is one direction of one conversation, as it enters here. Its key leads by one hash lookup
//! to a dense index, and the index to an [`Action`] that says everything the engine does with
//! its packets. The slow path makes actions on a miss; the engine only obeys and counts.

use ipnet::IpNet;
use std::net::IpAddr;
use weir_model::packet_in::PacketIn;
use weir_model::resource::{AttachmentKind, Encapsulation};
use weir_model::update::Refusal;
use weir_model::{MacAddr, Update};
use weir_packet::encap::Half;
use weir_packet::key::FlowKey;

/// Number of a port of this switch: dense, given by the resolver, reused after the port is gone
/// and every flow of it was invalidated.
pub type PortIndex = u16;

/// Number of a rule counter: dense, given by the resolver, never reused while the process lives.
pub type CounterIndex = u32;

/// Most flows of a switch, unless it is set up for another number.
pub const FLOWS_MAX: usize = 1 << 20;
/// Most flows that a switch can be set up for.
pub const FLOWS_LIMIT: usize = 1 << 22;

/// How a frame came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ingress {
    /// From an endpoint.
    Port(PortIndex),
    /// From another switch.
    Underlay {
        /// The outer source address.
        sender: IpAddr,
        /// Identifier of the network.
        vni: u32,
        /// Security token of the packet that missed. It is no part of the flow: the token is
        /// checked on a miss (row A18).
        token: Option<u64>,
        /// Format of the outer headers.
        format: Encapsulation,
        /// What the sender's half of the firewall decided.
        half: Half,
    },
    /// From outside, at a gateway.
    External,
}

/// What the engine does with every packet of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    /// Where it goes.
    pub hop: Hop,
    /// New Ethernet addresses (destination, source); `None` leaves them.
    pub ethernet: Option<(MacAddr, MacAddr)>,
    /// Address and port to write: at a gateway, and to and from virtual addresses.
    pub nat: Option<Nat>,
    /// Whether TTL or hop limit goes down by one (between subnets, and at a gateway).
    pub routed: bool,
    /// Largest IP packet that may go on, bytes. A larger one is handed to the slow path, which
    /// answers with ICMP.
    pub mtu: u16,
    /// Limit for the MSS option of SYN segments; zero leaves it.
    pub mss_max: u16,
    /// The rule, route or reason that packets are counted under.
    pub counter: CounterIndex,
    /// The connection that the flow belongs to; [`NO_CONNECTION`] if it is not tracked.
    pub connection: u32,
    /// Drop the flow from the table after so long without a packet, milliseconds.
    pub idle_ms: u32,
    /// What it hangs on that neither its key nor the fields above say.
    pub hangs: Hangs,
}

/// Addresses besides those of its packets that a flow can hang on one by one.
pub const OTHERS: usize = 2;
/// Next hops that a flow can hang on: of its packets' addresses and of the others.
pub const NEXT_HOPS: usize = 2 + OTHERS;

/// What a flow hangs on besides where it comes from, where it goes and the addresses of its packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hangs {
    /// Addresses that its action writes, or that its decision asked about.
    pub others: [Option<IpAddr>; OTHERS],
    /// Next hops of the routes by which any of its addresses are reached.
    pub next_hops: [Option<IpAddr>; NEXT_HOPS],
    /// Its decision asked about more addresses than there is room for: it hangs on any of its network.
    pub any: bool,
    /// That there is no gateway: it is dropped for that.
    pub no_gateway: bool,
}

impl Hangs {
    /// Notes an address that is written or was asked about, of a flow whose packets have two others.
    pub fn on_other(&mut self, packets: [IpAddr; 2], address: IpAddr) {
        if !packets.contains(&address) {
            self.any |= !put(&mut self.others, address);
        }
    }

    /// Notes a next hop, unless it hangs on the address anyway.
    pub fn on_next_hop(&mut self, packets: [IpAddr; 2], hop: IpAddr) {
        if !packets.contains(&hop) && !self.others.contains(&Some(hop)) {
            // There is a place for one of each address.
            self.any |= !put(&mut self.next_hops, hop);
        }
    }
}

/// Puts an address where there is room, once; false if there is none.
fn put(places: &mut [Option<IpAddr>], address: IpAddr) -> bool {
    if places.contains(&Some(address)) {
        return true;
    }
    let free = places.iter_mut().find(|place| place.is_none());
    free.map(|free| *free = Some(address)).is_some()
}

/// Value of [`Action::connection`] for a flow that is not tracked (row A24).
pub const NO_CONNECTION: u32 = u32::MAX;

/// Where a flow goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hop {
    /// To an endpoint here.
    Port(PortIndex),
    /// To another switch.
    Underlay {
        /// Its address.
        receiver: IpAddr,
        /// Identifier of the network.
        vni: u32,
        /// Format of the outer headers.
        format: Encapsulation,
        /// Security token, with Geneve.
        token: u64,
        /// What this half of the firewall decided, with Geneve.
        half: Half,
        /// Whether the receiver is a gateway that stands in for a location: usage is reported then.
        by_gateway: bool,
    },
    /// Outside, at a gateway.
    External,
    /// Nowhere: counted under the action's counter.
    Drop,
}

/// Addresses and ports to write. `None` leaves the old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nat {
    /// New source address and port (ICMP: identifier).
    pub source: Option<(IpAddr, u16)>,
    /// New destination address and port (ICMP: identifier).
    pub destination: Option<(IpAddr, u16)>,
}

/// Why the engine handed a frame over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissReason {
    /// No flow.
    NoFlow,
    /// The packet is larger than the flow's `mtu`, or its segments are; the limit is in it.
    TooBig(u16),
    /// TTL or hop limit is used up.
    TtlExpired,
    /// Not for the flow table: ARP, ND, broadcast, multicast, or for the router itself.
    Special,
}

/// What becomes of a frame that missed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Put it back into the engine: there is a flow for it now (row A22).
    Reinject,
    /// Give this frame to where the missed one came from.
    Answer(Vec<u8>),
    /// Give it to the agent (DHCP, DNS).
    Punt,
    /// Send this frame, which is ready, that way: the verdict is for it alone and no flow may stand
    /// for it (ICMP errors, whose fate and translation hang on the packet inside them). The resolver
    /// has counted it.
    Forward {
        /// Where it goes; never [`Hop::Drop`].
        hop: Hop,
        /// The Ethernet frame as it goes on.
        frame: Vec<u8>,
    },
    /// Hold it, and ask the controllers: its network is learned and nobody told where its destination is, or its
    /// destination is virtual and nobody told whose turn it is.
    Ask(Box<Asked>),
    /// Nothing. The resolver has counted it.
    Drop,
}

/// A question to the controllers about a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The port that it came from.
    pub port: PortIndex,
    /// The network.
    pub vni: u32,
    /// What is asked.
    pub about: About,
    /// What the controllers are told of the frame.
    pub packet: PacketIn,
}

/// What a question asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum About {
    /// Where the endpoint with an address is.
    Place(IpAddr),
    /// Which member of a virtual address serves a client.
    Turn {
        /// The client.
        client: IpAddr,
        /// The virtual address.
        address: IpAddr,
    },
}

/// Result of a miss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// Flows to add, whatever the outcome; a flow that has the key already is replaced. With
    /// [`Outcome::Reinject`] both directions of a connection, before the frame is put back. The
    /// ingress tells which zone the key gets: its own `zone` is not looked at. Sender, network, format and the
    /// sender's decision must be part of the zone of the underlay, for the token is checked on a miss only.
    pub install: Vec<(Ingress, FlowKey, Action)>,
    /// What becomes of the frame.
    pub outcome: Outcome,
}

/// Which flows must be decided again.
///
/// A flow is of a network when it comes from a port of it, from the underlay with its identifier, or
/// when its hop is a port of it or carries its identifier. It is from or to an address when the key
/// or what the action writes has it; it hangs on an address also when its decision asked about that, or when the route of an address that it hangs on leads there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invalidate {
    /// None.
    Nothing,
    /// Those of a network.
    Network(u32),
    /// Those from or to a port.
    Port(PortIndex),
    /// Those of a network that hang on an address.
    Address(u32, IpAddr),
    /// Those of a network that hang on an address, not as the next hop alone, which takes this route now, or a shorter one and took this before.
    Route(u32, IpNet),
    /// Those that go to a gateway which is gone, or which one of those that came is to have now; those that are dropped for
    /// want of any, when one came.
    Gateways {
        /// Underlay addresses of those that are new.
        come: Vec<IpAddr>,
        /// Underlay addresses of those that are no more.
        gone: Vec<IpAddr>,
    },
    /// Those that come from an address of the underlay, of one network or of all.
    Sender(Option<u32>, IpAddr),
    /// Those of all networks to an address.
    Outside(IpAddr),
    /// Those of a network that come from the underlay and are dropped.
    Denied(u32),
    /// All.
    All,
}

/// Why flows are decided again: under what they are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ChangeCause {
    /// Parameters or policy of their network.
    Network,
    /// A port of theirs.
    Port,
    /// Where one of their addresses is, who has its tags, or what is virtual about it.
    Address,
    /// A route.
    Route,
    /// The list of gateways.
    Gateways,
    /// Who may send encapsulated packets, and what of the underlay no tenant reaches.
    Underlay,
    /// Too many denied flows to remember.
    Denied,
    /// Anything.
    All,
}

impl ChangeCause {
    /// All causes.
    pub const ALL: [ChangeCause; 8] = [
        ChangeCause::Network,
        ChangeCause::Port,
        ChangeCause::Address,
        ChangeCause::Route,
        ChangeCause::Gateways,
        ChangeCause::Underlay,
        ChangeCause::Denied,
        ChangeCause::All,
    ];

    /// As a label.
    pub fn as_str(self) -> &'static str {
        match self {
            ChangeCause::Network => "network",
            ChangeCause::Port => "port",
            ChangeCause::Address => "address",
            ChangeCause::Route => "route",
            ChangeCause::Gateways => "gateways",
            ChangeCause::Underlay => "underlay",
            ChangeCause::Denied => "denied",
            ChangeCause::All => "all",
        }
    }
}

impl Invalidate {
    /// Under what the flows are counted.
    pub fn cause(&self) -> ChangeCause {
        match self {
            Invalidate::Network(_) => ChangeCause::Network,
            Invalidate::Port(_) => ChangeCause::Port,
            Invalidate::Address(..) => ChangeCause::Address,
            Invalidate::Route(..) => ChangeCause::Route,
            Invalidate::Gateways { .. } => ChangeCause::Gateways,
            Invalidate::Sender(..) | Invalidate::Outside(_) => ChangeCause::Underlay,
            Invalidate::Denied(_) => ChangeCause::Denied,
            Invalidate::Nothing | Invalidate::All => ChangeCause::All,
        }
    }
}

/// What a flow that is in the table is to be, by what is in force now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Again {
    /// This.
    Action(Action),
    /// Nothing: its next packet decides.
    Ask,
}

/// What the engine must do about a port after an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortEffect {
    /// Attach to the device of the port and let it carry traffic, or not.
    Set {
        /// The port.
        port: PortIndex,
        /// Its network.
        vni: u32,
        /// Namespace of the device; `None` means the process's own.
        netns: Option<String>,
        /// Name of the device, or path of a virtual machine's socket.
        device: String,
        /// Which of them it is.
        kind: AttachmentKind,
        /// Pairs of queues that a virtual machine may use.
        queue_pairs: u16,
        /// Whether it shall carry traffic now: wanted up, and its policy in force (pain 8).
        up: bool,
        /// Why not, when not.
        reason: String,
        /// MTU of the network, bytes.
        mtu: u16,
    },
    /// Detach.
    Remove {
        /// The port.
        port: PortIndex,
    },
}

/// What an applied update changes outside the tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Flows to decide again. Those whose connection is no longer allowed end there:
    /// this is how a revoked rule reaches established connections.
    pub invalidate: Vec<Invalidate>,
    /// Ports.
    pub ports: Vec<PortEffect>,
}

/// What the engine has seen of a flow since it was last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowUse {
    /// Packets; segments of a large one count each.
    pub packets: u64,
    /// Bytes of the inner frames.
    pub bytes: u64,
    /// TCP flags seen, or-ed.
    pub tcp_flags: u8,
}

/// The slow path's mind: pure, no I/O, no clock of its own.
pub trait Resolver {
    /// Decides on a frame that the engine handed over. `frame` is the inner Ethernet frame, `key`
    /// its flow key (zone zero).
    fn resolve(
        &mut self,
        now_ms: u64,
        ingress: &Ingress,
        key: &FlowKey,
        reason: MissReason,
        frame: &[u8],
    ) -> Resolution;

    /// Decides again on a flow that is in the table, whose packets have this key (zone zero). Nothing is counted, and its
    /// connection is not kept alive by it.
    fn decide_again(&mut self, now_ms: u64, ingress: &Ingress, key: &FlowKey) -> Again;

    /// Length of the longest prefix of a network's routes that has an address, bits.
    fn route_bits(&self, vni: u32, address: IpAddr) -> Option<u8>;

    /// Applies an update that passed the gate.
    ///
    /// # Errors
    /// A refusal; nothing has changed then.
    fn apply(&mut self, now_ms: u64, update: &Update) -> Result<Effects, Refusal>;

    /// Tells what a flow carried since the last time. `connection` is [`Action::connection`] as it
    /// was given, which differs for the two directions of one connection.
    fn used(&mut self, now_ms: u64, connection: u32, use_: FlowUse);

    /// Lets time pass: connections that are over or idle too long end. Called about once a second.
    fn tick(&mut self, now_ms: u64) -> Vec<Invalidate>;
}
