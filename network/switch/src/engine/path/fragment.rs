//! Fragments on the engine's way: each gets the key of its datagram's flow (see [`crate::fragments`]).
//!
//! When the slow path has the first fragment of a datagram, those behind it go there too, so that none arrives at the
//! next switch before the first. They come back in order, under the key that they were handed over with.
//!
//! One that comes before its first is kept ([`crate::fragments::Held`]), and taken at the end of the turn in which that has come.

use super::{Origin, Path};
use crate::counters::Reason;
use crate::engine::Miss;
use crate::engine::counters::{Counters, EngineEvent};
use crate::engine::forward::{Checked, is_special};
use crate::engine::ring::FrameProducer;
use crate::flow::{CounterIndex, MissReason};
use crate::fragments::{Fragments, Held, HeldFrame, Lost};
use weir_packet::{FlowKey, Fragment, Parsed};

/// What is known of the fragments of datagrams.
#[derive(Default)]
pub(super) struct Following {
    /// Datagrams under way.
    pub(super) fragments: Fragments,
    /// Fragments whose first one has not come.
    pub(super) held: Held,
}

/// Why a fragment does not go on now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stopped {
    /// It was dropped and counted.
    Dropped,
    /// Its first one has not come: it is to be held.
    Early,
}

/// The key of a packet's flow, and whether it must go through the slow path. `origin` is asked for fragments only.
#[inline]
pub(super) fn key_of(
    following: &mut Following,
    counters: &Counters,
    now_ms: u32,
    zone: Option<u32>,
    parsed: &Parsed,
    bytes: usize,
    origin: impl FnOnce() -> Origin,
) -> Result<(FlowKey, bool), Stopped> {
    let zone = zone.unwrap_or_default();
    if parsed.fragment == Fragment::Whole {
        return Ok((FlowKey::new(zone, parsed), false));
    }
    let (key, waits) = follow(following, counters, now_ms, parsed, bytes, &origin())?;
    Ok((FlowKey { zone, ..key }, waits))
}

#[cold]
fn follow(
    following: &mut Following,
    counters: &Counters,
    now_ms: u32,
    parsed: &Parsed,
    bytes: usize,
    origin: &Origin,
) -> Result<(FlowKey, bool), Stopped> {
    if is_special(parsed) {
        return Ok((FlowKey::new(0, parsed), false));
    }
    let Following { fragments, held } = following;
    if let Some(key) = origin.again {
        if parsed.fragment == Fragment::First {
            fragments.first_goes(&origin.ingress, parsed, now_ms);
        }
        return Ok((key, false));
    }
    match fragments.take(&origin.ingress, origin.class, parsed, now_ms) {
        Ok(followed) => {
            counters.event(EngineEvent::Fragments).add(u64::from(parsed.fragment == Fragment::Later));
            counters.event(EngineEvent::FragmentEvictions).set(fragments.evicted);
            if parsed.fragment == Fragment::First {
                held.first_came(&origin.ingress, parsed, now_ms);
            }
            Ok((followed.key, followed.waits))
        }
        // Of senders on the underlay those wait of whom a flow is known: strangers get no room.
        Err(Reason::FragmentEarly) if !origin.held && origin.zone.is_some() => Err(Stopped::Early),
        Err(reason) => {
            count(counters, reason, Lost { frames: 1, bytes: bytes as u64 });
            Err(Stopped::Dropped)
        }
    }
}

fn count(counters: &Counters, reason: Reason, lost: Lost) {
    if let Some(pair) = counters.rule(reason as CounterIndex) {
        pair.add(lost.frames, lost.bytes);
    }
}

/// Keeps a fragment that is early.
#[cold]
pub(super) fn hold(
    held: &mut Held,
    counters: &Counters,
    now_ms: u32,
    origin: &Origin,
    packet: &Checked,
    frame: &[u8],
) {
    let virtio = packet.offload.header(&packet.parsed);
    let kept = HeldFrame { ingress: origin.ingress, class: origin.class, virtio, frame: frame.into() };
    let lost = held.hold(&packet.parsed, kept, now_ms);
    counters.event(EngineEvent::FragmentsHeld).add(1);
    counters.event(EngineEvent::FragmentsHeldLost).add(lost.frames);
    count(counters, Reason::FragmentEarly, lost);
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

impl Path {
    /// Whether fragments wait.
    #[inline]
    pub fn holds(&self) -> bool {
        !self.following.held.is_empty()
    }

    /// Takes the fragments whose first one has come, and lets those go that have waited too long.
    #[cold]
    pub fn serve_held(&mut self, misses: &mut FrameProducer<Miss>) {
        // One that is taken here is not held again, so this ends.
        while let Some(HeldFrame { ingress, virtio, frame, .. }) = self.following.held.take_due() {
            let at = self.arena_place();
            let Some(room) = self.arena.get_mut(at..at + frame.len()) else { continue };
            room.copy_from_slice(&frame);
            let origin = Origin { held: true, ..self.origin(&ingress) };
            self.take_frame(origin, at, frame.len(), None, &virtio, misses);
        }
        let lost = self.following.held.expire(self.now_ms);
        self.shared.counters.event(EngineEvent::FragmentsHeldLost).add(lost.frames);
        count(&self.shared.counters, Reason::FragmentEarly, lost);
    }
}

#[cfg(test)]
mod tests;
