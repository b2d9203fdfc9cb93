//! ICMP errors about conversations that may pass (pain 11): judged by the packet inside them.
//!
//! They are forwarded one by one and never make a flow, because the flow key of an error does not say
//! what it is about.

use super::TableResolver;
use super::decision::{Arrival, Cause, Decision, Observer, Path, Track};
use super::firewall::{Passed, denied};
use super::perform;
use crate::counters::Reason;
use crate::flow::Action;
use crate::tables::network::Network;
use weir_packet::rewrite::parse_embedded;

impl TableResolver {
    /// Whether an ICMP error is about a packet that its receiver may have sent.
    pub(super) fn is_related(&self, at: &Arrival<'_>, network: &Network) -> bool {
        let Ok(embedded) = parse_embedded(at.frame, at.parsed) else { return false };
        embedded.source == at.key.destination
            && self.is_conversation(network, &embedded.key(network.vni.0, at.parsed))
    }

    /// An error about nothing that its receiver may have sent, whatever the rules say of ICMP: who makes errors up cuts others' paths.
    pub(super) fn unrelated<O: Observer>(&self, at: &Arrival<'_>, observer: &mut O) -> Decision {
        observer.note("connection", || Reason::IcmpUnrelated.text().to_string());
        denied(at, Cause::Reason(Reason::IcmpUnrelated))
    }

    pub(super) fn related_passes<O: Observer>(&self, observer: &mut O) -> Passed {
        observer.note("connection", || "it is an ICMP error about a packet that may pass".to_string());
        Passed { cause: Cause::Path(Path::Related), track: Track::Alone }
    }

    /// The frame as the action leaves it.
    pub(super) fn send_alone(&self, at: &Arrival<'_>, action: &Action, cause: Cause) -> Decision {
        match perform::perform(at.frame, action) {
            Some(frame) => Decision::Send { hop: action.hop.clone(), frame, cause },
            None => Decision::drop_packet(Reason::TtlExpired),
        }
    }
}
