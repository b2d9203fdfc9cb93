//! Probes of gateways ([`crate::slow::probes`]): a gateway sends what a host asks back to it, a host counts what comes back.
//!
//! Neither has to do with any network: the identifier is none's. Both are flows as others, so that the slow path sees the first packet and the engine
//! does the rest. What is sent back has lived once less, so no probe goes round between two switches, whatever its sender made of it.

use super::TableResolver;
use super::decision::{Arrival, Cause, Decision, Forward, Install, Observer, Path, Stage, Track};
use crate::conntrack::FLOW_IDLE_MS;
use crate::counters::Reason;
use crate::flow::{Action, Hangs, Hop, Ingress, MissReason, NO_CONNECTION};
use weir_model::resource::Encapsulation;
use weir_packet::encap::Half;

/// Largest probe, bytes: as any packet of the underlay.
const MTU: u16 = 1400;

impl TableResolver {
    pub(super) fn probe_from_underlay<O: Observer>(
        &self,
        at: &Arrival<'_>,
        observer: &mut O,
    ) -> Stage<Decision> {
        let Ingress::Underlay { sender, vni, token, format, .. } = *at.ingress else {
            return Err(Decision::drop_packet(Reason::UnknownSender));
        };
        if let Some(problem) = self.unlisted(sender) {
            observer.note("sender", || format!("{sender}: {problem}"));
            return Err(Decision::drop_packet(Reason::UnknownSender));
        }
        if format != Encapsulation::Geneve {
            observer.note("sender", || Reason::WrongFormat.text().to_string());
            return Err(Decision::drop_packet(Reason::WrongFormat));
        }
        if !token.is_some_and(|token| self.config.token_key.check(vni, sender, token)) {
            observer.note("sender", || format!("{sender}: {}", Reason::BadToken.text()));
            return Err(Decision::drop_packet(Reason::BadToken));
        }
        match at.reason {
            MissReason::NoFlow => {}
            MissReason::TtlExpired => return Err(Decision::drop_packet(Reason::TtlExpired)),
            MissReason::TooBig(_) => return Err(Decision::drop_packet(Reason::TooBig)),
            MissReason::Special => return Err(Decision::drop_packet(Reason::Multicast)),
        }
        let cause = Cause::Path(Path::Probe);
        if !self.is_gateway() {
            observer.note("probe", || format!("an answer of {sender}, which is counted"));
            return Ok(Decision::Drop { cause, install: Install::Flow, revoke: None });
        }
        observer.note("probe", || format!("back to {sender}, that asks whether this gateway forwards"));
        let token = self.config.token_key.token(vni, self.config.underlay);
        let hop =
            Hop::Underlay { receiver: sender, vni, format, token, half: Half::Unsaid, by_gateway: false };
        let action = Action {
            hop,
            ethernet: None,
            nat: None,
            routed: true,
            mtu: MTU,
            mss_max: 0,
            counter: 0,
            connection: NO_CONNECTION,
            idle_ms: FLOW_IDLE_MS,
            hangs: Hangs::default(),
        };
        Ok(Decision::Forward(Box::new(Forward::plain(action, cause, Track::Untracked))))
    }
}
