//! Datagrams under way, for the process that takes over (row A30): without them their later fragments would have no first
//! one there.

use super::{Datagram, DatagramKey, Fragments, PIECES_MAX, Pieces, State};
use crate::counters::Reason;
use crate::engine::limits::{EXTERNAL, MISS_CLASSES, PORTS_MAX};
use crate::flow::PortIndex;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use weir_model::Key;

/// Where the fragments of a datagram come in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CarriedPlace {
    /// From a port. Its number is another one in the other process.
    Port(Key),
    /// From outside, at a gateway.
    External,
    /// From other switches, in a network; and which class of senders is charged.
    Network(u32, u16),
}

/// What becomes of the rest of a datagram.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CarriedFate {
    /// Its first fragment is with the slow path.
    Waits,
    /// Its first fragment is through.
    Goes,
    /// It is refused, for this reason.
    Refused(String),
}

/// A datagram under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarriedDatagram {
    /// Source.
    pub source: IpAddr,
    /// Destination.
    pub destination: IpAddr,
    /// Where it comes in.
    pub place: CarriedPlace,
    /// Its identification.
    pub identification: u32,
    /// Protocol that names it, of IPv4.
    pub named_protocol: u8,
    /// Protocol of its first fragment.
    pub protocol: u8,
    /// Source and destination port of its first fragment.
    pub ports: (u16, u16),
    /// What becomes of it.
    pub fate: CarriedFate,
    /// Which bytes have come.
    pub pieces: Vec<(u16, u16)>,
    /// Where it ends.
    pub end: Option<u16>,
    /// Time of its first fragment, milliseconds of the switch's own clock, wrapping.
    pub since_ms: u32,
}

impl Fragments {
    /// The datagrams that are under way at `now_ms`; `key_of` names the ports. One of a port that is gone is left out.
    pub fn carried(&self, now_ms: u32, key_of: impl Fn(PortIndex) -> Option<Key>) -> Vec<CarriedDatagram> {
        let under_way = self.datagrams.iter().flatten().filter(|datagram| !datagram.is_over(now_ms));
        under_way.filter_map(|datagram| carried(datagram, &key_of)).collect()
    }

    /// Takes datagrams over; `number_of` knows the ports. Returns how many there was no place for.
    pub fn carry(
        &mut self,
        all: &[CarriedDatagram],
        now_ms: u32,
        number_of: impl Fn(&Key) -> Option<PortIndex>,
    ) -> usize {
        let mut left = 0;
        for datagram in all {
            match taken_over(datagram, &number_of) {
                Some(datagram) if self.place(&datagram.key, now_ms).is_none() => {
                    let class = usize::from(datagram.class);
                    let at = self.room(&datagram.key, class, now_ms);
                    self.clear(at);
                    self.held[class] += 1;
                    self.datagrams[at] = Some(datagram);
                }
                _ => left += 1,
            }
        }
        left
    }
}

fn carried(datagram: &Datagram, key_of: impl Fn(PortIndex) -> Option<Key>) -> Option<CarriedDatagram> {
    let key = &datagram.key;
    let place = match key.place {
        place if place & super::NETWORKS != 0 => {
            CarriedPlace::Network(place & !super::NETWORKS, datagram.class)
        }
        place if place as usize == EXTERNAL => CarriedPlace::External,
        place => CarriedPlace::Port(key_of(place as PortIndex)?),
    };
    Some(CarriedDatagram {
        source: key.source.into(),
        destination: key.destination.into(),
        place,
        identification: key.identification,
        named_protocol: key.protocol,
        protocol: datagram.protocol,
        ports: (datagram.source_port, datagram.destination_port),
        fate: match datagram.state {
            State::Waits => CarriedFate::Waits,
            State::Goes => CarriedFate::Goes,
            State::Refused(reason) => CarriedFate::Refused(reason.as_str().to_string()),
        },
        pieces: datagram.pieces.pieces[..usize::from(datagram.pieces.count)].to_vec(),
        end: datagram.pieces.end,
        since_ms: datagram.since_ms,
    })
}

fn taken_over(carried: &CarriedDatagram, number_of: impl Fn(&Key) -> Option<PortIndex>) -> Option<Datagram> {
    let (place, class) = match &carried.place {
        CarriedPlace::Port(key) => number_of(key).map(|port| (u32::from(port), usize::from(port)))?,
        CarriedPlace::External => (EXTERNAL as u32, EXTERNAL),
        CarriedPlace::Network(vni, class) => (super::NETWORKS | vni, usize::from(*class).max(PORTS_MAX + 1)),
    };
    let ordered = carried.pieces.windows(2).all(|pair| pair[0].1 < pair[1].0);
    let proper = carried.pieces.iter().all(|piece| piece.0 < piece.1);
    if carried.pieces.len() > PIECES_MAX || !ordered || !proper || class >= MISS_CLASSES {
        return None;
    }
    let mut pieces = Pieces { end: carried.end, count: carried.pieces.len() as u8, ..Pieces::default() };
    pieces.pieces[..carried.pieces.len()].copy_from_slice(&carried.pieces);
    let key = DatagramKey {
        source: carried.source.into(),
        destination: carried.destination.into(),
        place,
        identification: carried.identification,
        protocol: carried.named_protocol,
    };
    let reason = |label: &String| Reason::ALL.iter().find(|reason| reason.as_str() == label).copied();
    Some(Datagram {
        key,
        source_port: carried.ports.0,
        destination_port: carried.ports.1,
        protocol: carried.protocol,
        state: match &carried.fate {
            CarriedFate::Waits => State::Waits,
            CarriedFate::Goes => State::Goes,
            CarriedFate::Refused(label) => State::Refused(reason(label).unwrap_or(Reason::FragmentEarly)),
        },
        pieces,
        since_ms: carried.since_ms,
        class: class as u16,
    })
}

#[cfg(test)]
mod tests;
