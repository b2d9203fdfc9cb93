//! What an action makes of a frame, for traces and for frames that go on alone. The engine does the
//! same with the same functions.

use crate::flow::{Action, Nat};
use weir_packet::parse;
use weir_packet::rewrite::{
    ChecksumState, Endpoint, Rewrite, clamp_mss, decrement_ttl, parse_embedded, rewrite, rewrite_embedded,
    set_macs,
};

fn rewrite_of(nat: &Nat) -> Rewrite {
    let endpoint =
        |(address, port): (std::net::IpAddr, u16)| Endpoint { address: address.into(), port: Some(port) };
    Rewrite { source: nat.source.map(endpoint), destination: nat.destination.map(endpoint) }
}

/// The frame as it goes on; `None` when its TTL ends or it cannot be translated.
pub(crate) fn perform(frame: &[u8], action: &Action) -> Option<Vec<u8>> {
    let mut frame = frame.to_vec();
    let mut parsed = parse(&frame).ok()?;
    if action.routed {
        decrement_ttl(&mut frame, &mut parsed).ok()?;
    }
    if let Some(nat) = &action.nat {
        rewrite(&mut frame, &mut parsed, &rewrite_of(nat), ChecksumState::Full).ok()?;
    }
    if action.mss_max > 0 {
        clamp_mss(&mut frame, &parsed, action.mss_max, ChecksumState::Full).ok()?;
    }
    if let Some((destination, source)) = action.ethernet {
        set_macs(&mut frame, &mut parsed, source.0, destination.0).ok()?;
    }
    Some(frame)
}

/// An ICMP error with the packet inside and its own addresses translated.
pub(crate) fn translate_error(frame: &[u8], inner: &Rewrite, outer: &Rewrite) -> Option<Vec<u8>> {
    let mut frame = frame.to_vec();
    let mut parsed = parse(&frame).ok()?;
    let mut embedded = parse_embedded(&frame, &parsed).ok()?;
    rewrite_embedded(&mut frame, &parsed, &mut embedded, inner).ok()?;
    rewrite(&mut frame, &mut parsed, outer, ChecksumState::Full).ok()?;
    Some(frame)
}
