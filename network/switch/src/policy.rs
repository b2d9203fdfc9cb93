//! The firewall rules of a network, compiled for lookup (rows A17, A24).
//!
//! The first rule of a direction that matches decides, then the direction's default. Rules are looked
//! at on a miss only: the flow table remembers the verdict.
//!
//! Fragments are judged by the ports of their first one (see [`crate::fragments`]). Where those are not
//! known, in an ICMP error about a later fragment, an allowing rule that names ports does not match and a
//! denying one does.

use crate::tables::tags::{TagId, Tags};
use std::net::IpAddr;
use weir_model::Label;
use weir_model::entry::{PolicyEntry, Rule};
use weir_model::resource::{Action, Direction, Peer, PortRange, Protocol};
use weir_packet::key::FlowKey;

/// Most rules of a network.
pub const RULES_MAX: usize = 20_000;

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;

/// What a packet has for ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ports {
    /// Its protocol has none.
    None,
    /// It has some, but they cannot be seen: a later fragment alone.
    Unseen,
    /// Destination port.
    Destination(u16),
}

/// What the rules are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// The other side.
    pub peer: IpAddr,
    /// IP protocol.
    pub protocol: u8,
    /// Ports.
    pub ports: Ports,
}

impl Query {
    /// The query of a packet that crosses its receiver's or sender's port.
    pub fn new(key: &FlowKey, direction: Direction) -> Query {
        let peer = if direction == Direction::Ingress { key.source } else { key.destination };
        let ports = match key.protocol {
            TCP | UDP if key.is_fragment() => Ports::Unseen,
            TCP | UDP => Ports::Destination(key.destination_port),
            _ => Ports::None,
        };
        Query { peer: peer.into(), protocol: key.protocol, ports }
    }
}

/// What the rules answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// Allow or deny.
    pub action: Action,
    /// Number of the rule in its direction; `None` when the default decided.
    pub rule: Option<u32>,
    /// Whether replies pass by themselves. The defaults are stateful.
    pub stateful: bool,
}

/// A peer of a compiled rule.
#[derive(Clone, Debug)]
enum PeerMatch {
    Prefix(ipnet::IpNet),
    Tag(TagId),
}

/// A compiled rule.
#[derive(Clone, Debug)]
pub struct CompiledRule {
    /// Name.
    pub name: Label,
    /// Counter, once it has decided something.
    pub counter: Option<u32>,
    action: Action,
    protocol: Protocol,
    ports: Vec<PortRange>,
    peers: Vec<PeerMatch>,
    targets: Vec<TagId>,
    stateful: bool,
}

impl CompiledRule {
    fn new(rule: &Rule, tags: &mut Tags) -> CompiledRule {
        let peers = rule
            .peers
            .iter()
            .map(|peer| match peer {
                Peer::Prefix(prefix) => PeerMatch::Prefix(*prefix),
                Peer::Tag(tag) => PeerMatch::Tag(tags.hold(tag)),
            })
            .collect();
        CompiledRule {
            name: rule.name.clone(),
            counter: None,
            action: rule.action,
            protocol: rule.protocol,
            ports: rule.ports.clone(),
            peers,
            targets: rule.targets.iter().map(|tag| tags.hold(tag)).collect(),
            stateful: rule.stateful,
        }
    }

    /// What it does.
    pub fn action(&self) -> Action {
        self.action
    }

    fn matches(&self, query: &Query, port_tags: &[TagId], tags: &Tags) -> bool {
        self.matches_protocol(query)
            && self.matches_ports(query)
            && (self.targets.is_empty() || self.targets.iter().any(|tag| port_tags.contains(tag)))
            && (self.peers.is_empty() || self.peers.iter().any(|peer| peer.matches(query.peer, tags)))
    }

    fn matches_protocol(&self, query: &Query) -> bool {
        match self.protocol {
            Protocol::Any => true,
            Protocol::Icmp => query.protocol == if query.peer.is_ipv4() { ICMP } else { ICMPV6 },
            Protocol::Number(number) => query.protocol == number,
        }
    }

    fn matches_ports(&self, query: &Query) -> bool {
        if self.ports.is_empty() {
            return true;
        }
        match query.ports {
            Ports::None => false,
            Ports::Unseen => self.action == Action::Deny,
            Ports::Destination(port) => self.ports.iter().any(|r| (r.first..=r.last).contains(&port)),
        }
    }
}

impl PeerMatch {
    fn matches(&self, peer: IpAddr, tags: &Tags) -> bool {
        match self {
            PeerMatch::Prefix(prefix) => prefix.contains(&peer),
            PeerMatch::Tag(tag) => tags.has(*tag, peer),
        }
    }
}

/// The compiled policy of a network.
#[derive(Debug)]
pub struct Policy {
    ingress: Rules,
    egress: Rules,
}

/// The rules of one direction.
#[derive(Debug)]
pub struct Rules {
    /// In the order in which they decide.
    pub list: Vec<CompiledRule>,
    /// What happens when none matches.
    pub default: Action,
    /// Counter of the default, once it has decided something.
    pub default_counter: Option<u32>,
}

impl Policy {
    /// Compiles an entry. Each tag that it names is held in `tags` until [`Policy::release`].
    pub fn compile(entry: &PolicyEntry, tags: &mut Tags) -> Policy {
        let mut rules = |direction: Direction, default: Action| Rules {
            list: entry
                .rules
                .iter()
                .filter(|rule| rule.direction == direction)
                .map(|rule| CompiledRule::new(rule, tags))
                .collect(),
            default,
            default_counter: None,
        };
        Policy {
            ingress: rules(Direction::Ingress, entry.default_ingress),
            egress: rules(Direction::Egress, entry.default_egress),
        }
    }

    /// Lets go of the tags.
    pub fn release(self, tags: &mut Tags) {
        for rule in self.ingress.list.iter().chain(&self.egress.list) {
            for peer in &rule.peers {
                if let PeerMatch::Tag(tag) = peer {
                    tags.release(*tag);
                }
            }
            rule.targets.iter().for_each(|tag| tags.release(*tag));
        }
    }

    /// The rules of a direction.
    pub fn rules(&self, direction: Direction) -> &Rules {
        if direction == Direction::Ingress { &self.ingress } else { &self.egress }
    }

    /// The rules of a direction, to note their counters.
    pub fn rules_mut(&mut self, direction: Direction) -> &mut Rules {
        if direction == Direction::Ingress { &mut self.ingress } else { &mut self.egress }
    }

    /// Whether a rule selects its peers by the tag.
    pub fn selects_peers_by(&self, tag: TagId) -> bool {
        let mut rules = self.ingress.list.iter().chain(&self.egress.list);
        rules.any(|rule| rule.peers.iter().any(|peer| matches!(peer, PeerMatch::Tag(t) if *t == tag)))
    }

    /// Asks the rules of a direction about a packet of the port that carries `port_tags`.
    pub fn judge(&self, direction: Direction, port_tags: &[TagId], tags: &Tags, query: &Query) -> Judgement {
        let rules = self.rules(direction);
        let found = rules.list.iter().position(|rule| rule.matches(query, port_tags, tags));
        match found {
            Some(number) => {
                let rule = &rules.list[number];
                Judgement { action: rule.action, rule: Some(number as u32), stateful: rule.stateful }
            }
            None => Judgement { action: rules.default, rule: None, stateful: true },
        }
    }
}

#[cfg(test)]
mod tests;
