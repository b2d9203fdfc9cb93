//! Flows that are decided again: because an update changed what they hang on, or because a gateway does not forward.

use super::flows::Decided;
use super::mind::Mind;
use super::probes::{self, PROBE_VNI};
use super::{MISSES_PER_SWAP, Slow};
use crate::engine::Inject;
use crate::flow::{Ingress, Invalidate};
use crate::flowtable::store::SLOTS_SPARE;
use crate::flowtable::tunnel::Tunnel;
use std::io;
use std::net::IpAddr;
use weir_model::event::Role;
use weir_model::resource::Encapsulation;
use weir_packet::FlowKey;
use weir_packet::encap::Half;

/// Flows that are decided again between two swaps, each of which takes a slot until the next.
const AGAIN_PER_SWAP: usize = 4096;
const _: () = assert!(AGAIN_PER_SWAP + 2 * MISSES_PER_SWAP <= SLOTS_SPARE);

impl<M: Mind> Slow<M> {
    /// Decides again on the flows that hang on what changed, in parts: the engine gets what is decided as it goes, and packets that miss
    /// meanwhile are decided between two parts. The shadow is here before and after; the last part is not published yet.
    pub(super) fn decide_again(&mut self, changes: &[Invalidate]) -> io::Result<()> {
        let slots = self.flows.dependents(changes, &self.mind);
        // Whoever is judged anew is judged by all that was seen.
        self.flows.tell(&slots, self.shared.now_ms(), &mut self.mind, &mut self.usage);
        for (number, part) in slots.chunks(AGAIN_PER_SWAP).enumerate() {
            if number > 0 {
                self.publish_and_wait()?;
                self.take_misses()?;
                self.wait_for_shadow()?;
            }
            for slot in part {
                self.decide_one_again(*slot);
            }
        }
        self.flows.tell_leaving(self.shared.now_ms(), &mut self.mind, &mut self.usage);
        Ok(())
    }

    fn decide_one_again(&mut self, slot: u32) {
        let now_ms = self.shared.now_ms();
        let Some((ingress, _)) = self.flows.flow(slot) else { return };
        let decided = self.with_frame(&ingress, &[], |slow| {
            slow.flows.decide_again(slot, now_ms, &mut slow.mind, |port| slow.ports.vni(port))
        });
        match decided {
            Some(Decided::Replaced(counter)) => self.shared.counters.prepare_rule(counter),
            Some(Decided::Same | Decided::Out) => {}
            // A packet of it says whether that fails too.
            None => self.flows.take_out(slot),
        }
    }

    /// Goes on with what another process knew of gateways: one that it found silent has no conversations here either.
    pub(super) fn carry_gateways(&mut self, known: &[(IpAddr, bool)]) {
        self.probes.set(self.shared.now_ms(), self.mind.gateways());
        self.probes.carry(known);
        // Nothing is forwarded here yet, so there are no flows to decide again.
        drop(self.mind.set_silent(self.probes.silent()));
    }

    /// Asks gateways whether they forward, and has the conversations of those that do not go to the others.
    pub(super) fn probe_gateways(&mut self, now_ms: u64) -> io::Result<()> {
        if self.identity.role != Role::Host {
            return Ok(());
        }
        let gateways = self.mind.gateways();
        self.probes.set(now_ms, gateways);
        if self.probed.len() > gateways.len() {
            self.probed.retain(|known, _| gateways.iter().any(|gateway| gateway.underlay == *known));
        }
        let frame = probes::frame();
        let key = weir_packet::parse(&frame).map(|parsed| FlowKey::new(0, &parsed));
        let (flows, store, probed) = (&self.flows, &self.shared.store, &mut self.probed);
        let step = self.probes.pass_time(now_ms, |gateway| {
            let (format, half) = (Encapsulation::Geneve, Half::Unsaid);
            let ingress = Ingress::Underlay { sender: gateway, vni: PROBE_VNI, token: None, format, half };
            let slot = key.as_ref().ok().and_then(|key| flows.slot_of(&ingress, key));
            let seen = slot.map(|slot| (slot, store.counters(slot).packets()));
            let before = match seen {
                Some(seen) => probed.insert(gateway, seen),
                None => probed.remove(&gateway),
            };
            seen.is_some_and(|(slot, packets)| packets > 0 && before != Some((slot, packets)))
        });
        for gateway in &step.send {
            let token = self.identity.tokens.token(PROBE_VNI, self.identity.underlay);
            if let Some(tunnel) = Tunnel::new(*gateway, PROBE_VNI, Encapsulation::Geneve, Some(token)) {
                self.inject(Inject::Underlay(tunnel), &frame);
            }
        }
        if !step.send.is_empty() {
            self.shared.engine_wake.wake();
        }
        for gateway in &step.lost {
            tracing::warn!(%gateway, "this gateway sends nothing back: its conversations go to the others");
        }
        for gateway in &step.back {
            tracing::info!(%gateway, "this gateway forwards again: it has its conversations back");
        }
        let silent = self.probes.silent();
        if step.lost.is_empty() && step.back.is_empty() && silent.is_empty() {
            return Ok(());
        }
        // Also while nothing changes: one that left the list and came again meanwhile is as it was here, and was forgotten there.
        let changes = self.mind.set_silent(silent);
        self.decide_again(&changes)
    }
}
