//! Everything the engine counts: flat arrays of atomics that the engine alone writes, with plain
//! stores, and anybody reads.

use crate::engine::limits::{PORTS_MAX, RULE_COUNTERS_MAX};
use crate::engine::wire::BySockets;
use crate::flow::CounterIndex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use weir_packet::PacketError;

/// Rule counters in one piece of memory.
const CHUNK: usize = 4096;
/// A number that one thread writes.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds. For the one writer.
    #[inline]
    pub fn add(&self, more: u64) {
        self.0.store(self.0.load(Relaxed) + more, Relaxed);
    }

    /// Sets. For the one writer.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    /// Reads.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Packets and their bytes.
#[derive(Debug, Default)]
pub struct Pair {
    /// Packets; segments of a large one count each.
    pub packets: Count,
    /// Bytes of the inner frames.
    pub bytes: Count,
}

impl Pair {
    /// Counts packets.
    #[inline]
    pub fn add(&self, packets: u64, bytes: u64) {
        self.packets.add(packets);
        self.bytes.add(bytes);
    }
}

/// Traffic of a port.
#[derive(Debug, Default)]
pub struct PortCounters {
    /// From the endpoint.
    pub rx: Pair,
    /// To the endpoint.
    pub tx: Pair,
}

macro_rules! labels {
    ($(#[$doc:meta])* $name:ident { $($variant:ident, $label:literal, $text:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $(#[doc = $text] $variant,)*
        }

        impl $name {
            /// All of them, in the order of the counters.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// The label in metrics.
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $label,)* }
            }
        }
    };
}

labels! {
    /// Why the engine itself dropped a packet.
    EngineDrop {
        SlowPathOverflow, "slow-path-overflow", "The slow path had too many frames of this port or sender, or in all.";
        PortFull, "port-full", "The device of the port took no more.";
        PortDown, "port-down", "The port does not carry traffic, or its device is gone.";
        PortWrite, "port-write", "The device of the port refused the frame.";
        PortRead, "port-read", "The device of the port gave a frame larger than any may be.";
        UnderlayFull, "underlay-full", "The underlay took no more for two milliseconds.";
        UnderlayTooBig, "underlay-too-big", "The encapsulated packet is larger than the underlay's MTU.";
        UnderlayUnreachable, "underlay-unreachable", "The host has no way to the receiver.";
        UnderlaySend, "underlay-send", "The underlay refused the packet for another reason.";
        UnderlayFamily, "underlay-family", "The receiver's address is of the other family than the underlay.";
        UnderlayTruncated, "underlay-truncated", "A datagram was larger than the receive buffer.";
        NoExternal, "no-external", "The flow goes outside, and this switch has no outside.";
        OuterCongestion, "outer-congestion", "Congestion was marked on a packet whose transport would not see it.";
        ControlPacket, "control-packet", "A Geneve control packet.";
        MissTwice, "miss-twice", "A packet that the slow path put back had no flow.";
        NotTranslatable, "not-translatable", "The flow has an address translation that does not fit the packet.";
        Fault, "fault", "The handling of the frame failed: it is a fault of the program, and the frame is kept for whoever looks for it.";
    }
}

labels! {
    /// What the engine does besides packets.
    EngineEvent {
        Turns, "turns", "Turns of the loop.";
        Sleeps, "sleeps", "Turns that waited.";
        Urgent, "urgent", "Times that the engine left bulk behind and went before others on its processor.";
        UrgencyRefused, "urgency_refused", "Times that the kernel did not let it: it has no CAP_SYS_NICE.";
        BusyNs, "busy_ns", "Nanoseconds of turns that had something to do, without the wait for it.";
        PortReads, "port_reads", "Reads from ports that gave a frame.";
        PortWrites, "port_writes", "Writes to ports.";
        UnderlaySends, "underlay_sends", "Messages given to the underlay.";
        UnderlaySegments, "underlay_segments", "Datagrams in them.";
        WireSegments, "wire_segments", "Datagrams of them that went by the wire, and not by a socket.";
        WireDatagrams, "wire_datagrams", "Datagrams that came by the wire, and not by a socket.";
        UnderlayReceives, "underlay_receives", "Messages got from the underlay.";
        UnderlayDatagrams, "underlay_datagrams", "Datagrams in them.";
        SegmentationFallbacks, "segmentation_fallbacks", "Messages sent one by one, because the device would not segment.";
        Misses, "misses", "Frames handed to the slow path.";
        Reinjected, "reinjected", "Frames that the slow path put back.";
        Answers, "answers", "Frames that the slow path or the agent made.";
        Swaps, "table_swaps", "Flow tables taken over.";
        SuperFrames, "super_frames", "Super-frames joined from received segments.";
        MergedFrames, "merged_frames", "Segments in them.";
        SpreadFrames, "spread_frames", "Super-frames read with room for the headers of their segments, and sent so.";
        GapsClosed, "gaps_closed", "Frames read with such room that were of another shape, and were closed up.";
        Fragments, "fragments", "Later fragments that followed their first one.";
        FragmentEvictions, "fragment_evictions", "Fragmented datagrams that made room for others.";
        FragmentsHeld, "fragments_held", "Later fragments that came before their first one, and waited for it.";
        FragmentsHeldLost, "fragments_held_lost", "Of them, those whose first one did not come in time, or that made room for others.";
        GuestInterrupts, "guest_interrupts", "Interrupts of virtual machines.";
        GuestNonsense, "guest_nonsense", "Chains of descriptors of virtual machines that made no sense; each costs its own frame.";
        GuestQueuesBroken, "guest_queues_broken", "Queues of virtual machines with an index that cannot be; no more is read from them.";
        GuestMemoryLost, "guest_memory_lost", "Virtual machines that took back the memory that they had lent; the port waits for a new connection.";
        CaptureLost, "capture_lost", "Frames that a capture had no room for.";
        Contained, "contained", "Faults of the program at one frame that cost only that frame, and those read with it.";
        LeftWaiting, "left_waiting", "Frames that waited in a device which was in hand when the process before this one ended; they were dropped.";
        Quarantines, "quarantines", "Ports that were taken out of traffic because the handling of their frames failed again.";
    }
}

/// See the module.
#[derive(Debug)]
pub struct Counters {
    parse_errors: Box<[Pair]>,
    drops: Box<[Pair]>,
    events: Box<[Count]>,
    by_sockets: Box<[Count]>,
    ports: Box<[PortCounters]>,
    rules: Box<[OnceLock<Box<[Pair]>>]>,
}

impl Default for Counters {
    fn default() -> Counters {
        let counters = Counters {
            parse_errors: (0..PacketError::COUNT).map(|_| Pair::default()).collect(),
            drops: EngineDrop::ALL.iter().map(|_| Pair::default()).collect(),
            events: EngineEvent::ALL.iter().map(|_| Count::default()).collect(),
            by_sockets: BySockets::ALL.iter().map(|_| Count::default()).collect(),
            ports: (0..=PORTS_MAX).map(|_| PortCounters::default()).collect(),
            rules: (0..RULE_COUNTERS_MAX / CHUNK).map(|_| OnceLock::new()).collect(),
        };
        // The engine counts fragments under the resolver's reasons, without a flow that names them.
        counters.prepare_rule(0);
        counters
    }
}

impl Counters {
    /// Of a reason why a packet or header was refused.
    #[inline]
    pub fn parse_error(&self, reason: PacketError) -> &Pair {
        &self.parse_errors[reason.index()]
    }

    /// Of a reason why the engine dropped.
    #[inline]
    pub fn dropped(&self, reason: EngineDrop) -> &Pair {
        &self.drops[reason as usize]
    }

    /// Of a thing that the engine did.
    #[inline]
    pub fn event(&self, event: EngineEvent) -> &Count {
        &self.events[event as usize]
    }

    /// Of a reason why datagrams went by the sockets although there is a wire.
    #[inline]
    pub fn by_sockets(&self, reason: BySockets) -> &Count {
        &self.by_sockets[reason as usize]
    }

    /// Of a port; [`crate::engine::EXTERNAL`] is the outside.
    #[inline]
    pub fn port(&self, port: usize) -> &PortCounters {
        &self.ports[port.min(PORTS_MAX)]
    }

    /// Makes room for a rule counter. For the slow thread, before a flow names it.
    pub fn prepare_rule(&self, counter: CounterIndex) {
        let chunk = (counter as usize).min(RULE_COUNTERS_MAX - 1) / CHUNK;
        self.rules[chunk].get_or_init(|| (0..CHUNK).map(|_| Pair::default()).collect());
    }

    /// Of a rule; `None` if no flow ever named it.
    #[inline]
    pub fn rule(&self, counter: CounterIndex) -> Option<&Pair> {
        let counter = (counter as usize).min(RULE_COUNTERS_MAX - 1);
        self.rules[counter / CHUNK].get().map(|chunk| &chunk[counter % CHUNK])
    }
}
