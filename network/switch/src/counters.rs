//! Counters of verdicts: every drop under its exact reason and, where a rule or route decided, under
//! that rule or route (pain 9).
//!
//! An index names a counter for the life of the process. The engine counts what its flows carry under
//! the index in the action; the resolver counts what it decides packet by packet. The figure of a
//! counter is the sum of both.
//!
//! Invariants
//! - An index is never reused. A name has one index: a rule that goes and comes again counts on.
//! - Labels are names of resources and fixed words, never what a packet says.
//! - There are at most [`COUNTERS_MAX`]; whatever comes later counts under `counter-overflow`.

use crate::flow::CounterIndex;
use hashbrown::HashMap;
use weir_packet::PacketError;

/// Most counters.
pub const COUNTERS_MAX: usize = 65_536;

macro_rules! reasons {
    ($($variant:ident, $label:literal, $text:literal;)*) => {
        /// Why a packet was dropped, when no rule, route or malformation says it better.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Reason { $(#[doc = $text] $variant,)* }

        impl Reason {
            /// All of them, in the order of their counters.
            pub const ALL: &'static [Reason] = &[$(Reason::$variant,)*];

            /// The value of the label `reason`.
            pub const fn as_str(self) -> &'static str {
                match self { $(Reason::$variant => $label,)* }
            }

            /// What it means, for people.
            pub const fn text(self) -> &'static str {
                match self { $(Reason::$variant => $text,)* }
            }
        }
    };
}

reasons! {
    CounterOverflow, "counter-overflow", "there are too many counters for this one to have its own";
    NoPort, "no-port", "the port is gone";
    PortDown, "port-down", "the port does not carry traffic yet or any more";
    UnknownNetwork, "unknown-network", "the network is not in force here";
    WrongFormat, "wrong-format", "the packet came in another encapsulation than its network uses";
    BadToken, "bad-token", "the security token is missing or wrong";
    UnknownSender, "unknown-sender", "the sender is no switch that may carry this source address";
    VlanTagged, "vlan-tagged", "endpoints have no VLANs";
    NotIp, "not-ip", "neither IP nor ARP";
    SpoofedMac, "spoofed-mac", "the source Ethernet address is not the port's";
    SpoofedSource, "spoofed-source", "the source address does not belong there";
    LinkLocal, "link-local", "link-local addresses reach only the router";
    Broadcast, "broadcast", "broadcasts are not forwarded";
    Multicast, "multicast", "multicasts are not forwarded";
    BadDestination, "bad-destination", "nobody can have this destination address";
    ToSelf, "to-self", "the destination is the sender's own address";
    ArpUnsolicited, "arp-unsolicited", "an ARP packet that asks nothing";
    ArpOwnAddress, "arp-own-address", "ARP for the asker's own address, which nobody else has";
    ArpOutside, "arp-outside", "ARP for an address outside of the network";
    NeighborUnsolicited, "neighbor-unsolicited", "a neighbour message that asks nothing";
    NeighborOwnAddress, "neighbor-own-address", "a solicitation for the asker's own address";
    NeighborOutside, "neighbor-outside", "a solicitation for an address outside of the network";
    NoRouterAddress, "no-router-address", "the router has no address of this family there";
    ToRouter, "to-router", "the router does not offer this";
    NoPolicy, "no-policy", "the network has no policy in force, so nothing may pass";
    NatProtocol, "nat-protocol", "the protocol has no ports to translate";
    NatShare, "nat-share", "the endpoint or its network has its share of the translated ports towards this destination";
    NatExhausted, "nat-exhausted", "no translated port is free towards this destination";
    Guarded, "guarded", "the destination is a switch, a controller or this machine, or no host's: no tenant reaches it from here";
    NoExternalAccess, "no-external-access", "the network may not reach the outside";
    NoRoute, "no-route", "no subnet, route or outside has this destination";
    NoGateway, "no-gateway", "no gateway is known";
    NotHere, "not-here", "the destination is not on this host";
    UnknownDestination, "unknown-destination", "no endpoint has this address";
    NoConnection, "no-connection", "it belongs to no connection";
    ConnectionsFull, "connections-full", "the table of connections, or the share of this endpoint, is full";
    TooBig, "too-big", "larger than the way allows";
    TtlExpired, "ttl-expired", "TTL or hop limit is used up";
    IcmpUnrelated, "icmp-unrelated", "an ICMP error about no connection";
    IcmpForbidden, "icmp-forbidden", "a redirect, a source quench or a router advertisement, which only a network's router sends";
    IcmpLimited, "icmp-limited", "an ICMP answer was due, but too many were sent";
    FragmentEarly, "fragment-early", "a later fragment whose first one did not come in time, did not pass, or is too long ago";
    FragmentOverlap, "fragment-overlap", "a fragment that overlaps or contradicts another of its datagram";
    FragmentScattered, "fragment-scattered", "the fragments of its datagram came in too much disorder to follow";
    Revoked, "revoked", "its connection is no longer allowed";
    NoService, "no-service", "the virtual address does not offer this";
    NoMember, "no-member", "no member of the virtual address can serve the client now";
    BalancerConflict, "balancer-conflict", "the same ports are in use between the client and the member already";
}

/// Name of a counter: metric and labels, such as `drops{reason="rule",network="red",rule="no-ssh"}`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CounterName {
    /// The metric.
    pub metric: &'static str,
    /// Labels with their values.
    pub labels: Vec<(&'static str, String)>,
}

impl std::fmt::Display for CounterName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.metric)?;
        for (number, (label, value)) in self.labels.iter().enumerate() {
            write!(f, "{}{label}=\"{value}\"", if number == 0 { '{' } else { ',' })?;
        }
        f.write_str(if self.labels.is_empty() { "" } else { "}" })
    }
}

/// The registry.
#[derive(Debug)]
pub struct Counters {
    names: Vec<CounterName>,
    counts: Vec<u64>,
    by_name: HashMap<CounterName, CounterIndex, foldhash::quality::RandomState>,
    max: usize,
}

impl Default for Counters {
    fn default() -> Counters {
        Counters::with_limit(COUNTERS_MAX)
    }
}

impl Counters {
    /// A registry of at most `max` counters, though never fewer than the fixed ones.
    pub fn with_limit(max: usize) -> Counters {
        let fixed = Reason::ALL.len() + PacketError::COUNT;
        let mut counters = Counters {
            names: Vec::new(),
            counts: Vec::new(),
            by_name: HashMap::default(),
            max: max.max(fixed),
        };
        for reason in Reason::ALL {
            counters.register("drops", &[("reason", reason.as_str())]);
        }
        for error in PacketError::ALL {
            counters.register("drops", &[("reason", "malformed"), ("error", error.as_str())]);
        }
        counters
    }

    /// The index of a reason.
    pub fn reason(&self, reason: Reason) -> CounterIndex {
        reason as CounterIndex
    }

    /// The index of a malformation.
    pub fn malformed(&self, error: PacketError) -> CounterIndex {
        (Reason::ALL.len() + error.index()) as CounterIndex
    }

    /// The index of a name, a new one if it has none yet.
    pub fn register(&mut self, metric: &'static str, labels: &[(&'static str, &str)]) -> CounterIndex {
        let labels = labels.iter().map(|(label, value)| (*label, (*value).to_string())).collect();
        let name = CounterName { metric, labels };
        if let Some(&index) = self.by_name.get(&name) {
            return index;
        }
        if self.names.len() >= self.max {
            return Reason::CounterOverflow as CounterIndex;
        }
        let index = self.names.len() as CounterIndex;
        self.names.push(name.clone());
        self.counts.push(0);
        self.by_name.insert(name, index);
        index
    }

    /// Counts packets that the resolver itself decided on.
    pub fn count(&mut self, index: CounterIndex, packets: u64) {
        if let Some(count) = self.counts.get_mut(index as usize) {
            *count += packets;
        }
    }

    /// How many counters there are; indices are below it.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Never.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Name of a counter and the packets that the resolver itself counted under it.
    pub fn get(&self, index: CounterIndex) -> Option<(&CounterName, u64)> {
        Some((self.names.get(index as usize)?, self.counts[index as usize]))
    }

    /// All, by index: name and the packets that the resolver itself counted.
    pub fn iter(&self) -> impl Iterator<Item = (CounterIndex, &CounterName, u64)> {
        let pairs = self.names.iter().zip(&self.counts).enumerate();
        pairs.map(|(index, (name, &count))| (index as CounterIndex, name, count))
    }
}

#[cfg(test)]
mod tests;
