//! One connection: its state and how long it lasts.

use super::Owner;
use crate::flow::CounterIndex;
use std::net::IpAddr;
use weir_packet::headers::tcp_flags::{ACK, FIN, RST, SYN};
use weir_packet::key::FlowKey;

pub(super) const TCP: u8 = 6;
const UDP: u8 = 17;

/// Which way a packet goes in its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From who opened it.
    Opener,
    /// Back.
    Reply,
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum State {
    /// Only the opener was seen.
    Opening,
    /// Both were seen.
    Open,
    /// TCP: one side is done.
    HalfClosed,
    /// TCP: both are done, or one has reset it.
    Closed,
    /// The rules no longer allow it. It is remembered, so that a packet of the side that did not open
    /// it cannot bring it back as a connection of its own.
    Revoked,
}

impl State {
    /// The state in words.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Opening => "opening",
            State::Open => "open",
            State::HalfClosed => "half-closed",
            State::Closed => "closed",
            State::Revoked => "revoked",
        }
    }
}

/// How long a connection lasts without a packet, milliseconds.
pub fn timeout_ms(protocol: u8, state: State) -> u64 {
    let seconds = match (protocol, state) {
        (_, State::Revoked) => 60,
        (TCP, State::Opening) => 60,
        (TCP, State::Open) => 2 * 3600,
        (TCP, State::HalfClosed) => 600,
        (_, State::Closed) => 30,
        (UDP, State::Opening) => 30,
        (UDP, _) => 180,
        (1 | 58, _) => 30,
        _ => 600,
    };
    seconds * 1000
}

/// What a side of a connection that is here was judged: whether its rule lets replies pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sides {
    /// The opener is here, and its egress rule is stateful (`Some(true)`) or not.
    pub egress: Option<bool>,
    /// The receiver is here, and its ingress rule is stateful or not.
    pub ingress: Option<bool>,
}

/// A translation: at a gateway of the opener's source, at a host of its virtual destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Outside address and port (ICMP: identifier); of a virtual destination the member's.
    pub external: (IpAddr, u16),
    /// Key of replies as they come in: from outside with zone zero, from a member with the network's identifier.
    pub inbound: FlowKey,
}

/// A connection.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    /// Key of the opener's packets; the zone is the network's identifier.
    pub key: FlowKey,
    /// Generation of the network in which it was judged.
    pub generation: u64,
    /// What the sides that are here were judged.
    pub sides: Sides,
    /// Counter of the rule that allowed it.
    pub counter: CounterIndex,
    /// How far it is.
    pub state: State,
    /// Who is charged.
    pub owner: Owner,
    /// Translation, at a gateway or to a virtual address.
    pub binding: Option<Binding>,
    /// When a packet was seen last.
    pub last_ms: u64,
    /// TCP flags seen from the opener and from the other side.
    pub(super) flags: [u8; 2],
    /// Whether both sides were seen.
    pub(super) seen: [bool; 2],
    /// Whether it was told to the journal.
    pub(super) recorded: bool,
    /// It is known by a reply alone: its opener was not seen here.
    pub(super) resumed: bool,
    /// Its opener's host takes it for replies in one the other way, whose place it took here; nothing was sent back since
    /// that opens one there.
    pub(super) untold: bool,
}

impl Connection {
    /// A connection that a first packet opens.
    pub fn new(
        key: FlowKey,
        generation: u64,
        sides: Sides,
        counter: CounterIndex,
        owner: Owner,
    ) -> Connection {
        Connection {
            key,
            generation,
            sides,
            counter,
            state: State::Opening,
            owner,
            binding: None,
            last_ms: 0,
            flags: [0; 2],
            seen: [true, false],
            recorded: false,
            resumed: false,
            untold: false,
        }
    }

    /// One that goes on here by a reply: both sides were seen elsewhere.
    pub fn resumed(mut self) -> Connection {
        (self.seen, self.resumed, self.state) = ([true; 2], true, State::Open);
        if self.key.protocol == TCP {
            self.flags = restored_flags(State::Open);
        }
        self
    }

    /// One that its opener's host takes for another, the other way.
    pub fn untold(mut self) -> Connection {
        self.untold = true;
        self
    }

    /// Whether the opener's host, if it says that it remembers one the other way, says so of an older one.
    pub fn is_untold(&self) -> bool {
        self.untold
    }

    /// Whether whoever is at the opener's end has sent nothing in it: what is left of another conversation looks so.
    pub fn is_left_over(&self, way: Way) -> bool {
        if way == Way::Opener { self.resumed } else { !self.is_answered() }
    }

    /// The key of the opener's packets as the member of the virtual address gets them, if that is where they go.
    pub fn inside(&self) -> Option<FlowKey> {
        let inbound = self.binding?.inbound;
        (inbound.zone != 0).then(|| inbound.reverse())
    }

    /// The key that the rules judge: policies see the member, as for direct traffic.
    pub fn judged_key(&self) -> FlowKey {
        self.inside().unwrap_or(self.key)
    }

    /// Whether the other side has ever sent anything in it.
    pub fn is_answered(&self) -> bool {
        self.seen[Way::Reply as usize]
    }

    /// The network.
    pub fn vni(&self) -> u32 {
        self.key.zone
    }

    /// Whether it may make room for another: never answered and not translated.
    pub(super) fn is_expendable(&self) -> bool {
        self.binding.is_none() && matches!(self.state, State::Opening | State::Closed)
    }

    /// Takes in what was seen one way, and says whether the state changed.
    pub(super) fn see(&mut self, way: Way, flags: u8) -> bool {
        let before = self.state;
        if before == State::Revoked {
            return false;
        }
        let side = way as usize;
        self.resumed &= way == Way::Reply;
        self.seen[side] = true;
        if self.key.protocol != TCP {
            if self.seen == [true; 2] {
                self.state = State::Open;
            }
            return self.state != before;
        }
        if self.state == State::Closed && flags & SYN != 0 && flags & RST == 0 {
            self.flags = [0; 2];
            self.seen = [way == Way::Opener, way == Way::Reply];
            self.state = State::Opening;
        }
        self.flags[side] |= flags;
        let finished = self.flags.iter().filter(|flags| **flags & FIN != 0).count();
        let reset = self.flags.iter().any(|flags| flags & RST != 0);
        self.state = if reset || finished == 2 {
            State::Closed
        } else if finished == 1 {
            State::HalfClosed
        } else if self.seen == [true; 2] && self.flags.iter().any(|flags| flags & ACK != 0) {
            State::Open
        } else {
            State::Opening
        };
        self.state != before
    }
}

/// TCP flags that lead to a state.
pub(super) fn restored_flags(state: State) -> [u8; 2] {
    match state {
        State::Opening | State::Revoked => [0; 2],
        State::Open => [ACK; 2],
        State::HalfClosed => [ACK | FIN, ACK],
        State::Closed => [ACK | FIN; 2],
    }
}
