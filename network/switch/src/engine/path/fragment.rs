//! Fragments on the engine's way: each gets the key of its datagram's flow (see [`crate::fragments`]).
//!
//! When the slow path has the first fragment of a datagram, those behind it go there too, so that none arrives at the
//! next switch before the first. They come back in order, under the key that they were handed over with.

use super::Origin;
use crate::engine::counters::{Counters, EngineEvent};
use crate::engine::forward::is_special;
use crate::flow::{CounterIndex, MissReason};
use crate::fragments::Fragments;
use weir_packet::{FlowKey, Fragment, Parsed};

/// The key of a packet's flow, and whether it must go through the slow path. `None` for a fragment that was dropped and
/// counted. `origin` is asked for fragments only.
#[inline]
pub(super) fn key_of(
    fragments: &mut Fragments,
    counters: &Counters,
    now_ms: u32,
    zone: Option<u32>,
    parsed: &Parsed,
    bytes: usize,
    origin: impl FnOnce() -> Origin,
) -> Option<(FlowKey, bool)> {
    let zone = zone.unwrap_or_default();
    if parsed.fragment == Fragment::Whole {
        return Some((FlowKey::new(zone, parsed), false));
    }
    let (key, waits) = follow(fragments, counters, now_ms, parsed, bytes, &origin())?;
    Some((FlowKey { zone, ..key }, waits))
}

#[cold]
fn follow(
    fragments: &mut Fragments,
    counters: &Counters,
    now_ms: u32,
    parsed: &Parsed,
    bytes: usize,
    origin: &Origin,
) -> Option<(FlowKey, bool)> {
    if is_special(parsed) {
        return Some((FlowKey::new(0, parsed), false));
    }
    if let Some(key) = origin.again {
        if parsed.fragment == Fragment::First {
            fragments.first_goes(&origin.ingress, parsed, now_ms);
        }
        return Some((key, false));
    }
    match fragments.take(&origin.ingress, origin.class, parsed, now_ms) {
        Ok(followed) => {
            counters.event(EngineEvent::Fragments).add(u64::from(parsed.fragment == Fragment::Later));
            counters.event(EngineEvent::FragmentEvictions).set(fragments.evicted);
            Some((followed.key, followed.waits))
        }
        Err(reason) => {
            if let Some(pair) = counters.rule(reason as CounterIndex) {
                pair.add(1, bytes as u64);
            }
            None
        }
    }
}

/// A packet was not forwarded from here: the slow path has `taken` it, or it is lost.
pub(super) fn missed(
    fragments: &mut Fragments,
    now_ms: u32,
    origin: &Origin,
    parsed: &Parsed,
    reason: MissReason,
    taken: bool,
) {
    if parsed.fragment != Fragment::First {
        return;
    }
    if taken && reason == MissReason::NoFlow {
        fragments.first_waits(&origin.ingress, parsed, now_ms);
    } else {
        fragments.first_ended(&origin.ingress, parsed, now_ms);
    }
}
