//! Traces: the walk of [`crate::resolve`] with a watcher and without the commit (pain 10). What a
//! trace says is what the next such packet gets, as long as nothing changes in between.

use crate::answer::Service;
use crate::counters::Reason;
use crate::flow::{CounterIndex, Hop, Ingress, MissReason};
use crate::resolve::{Arrival, Cause, Decision, Step, TableResolver, key_of, perform};
use weir_model::local::{TraceFrom, TraceReport, TraceStep, TraceVerdict};
use weir_model::resource::Encapsulation;
use weir_model::signed::SignedHeader;
use weir_model::{Key, Version};
use weir_packet::Fragment;
use weir_packet::encap::Half;
use weir_packet::key::FlowKey;

/// Who signed what is in force: the gate knows.
pub trait Proofs {
    /// Version of a key in force and the header that proves who signed it.
    fn proof(&self, key: &Key) -> Option<(Version, SignedHeader)>;
}

impl<F: Fn(&Key) -> Option<(Version, SignedHeader)>> Proofs for F {
    fn proof(&self, key: &Key) -> Option<(Version, SignedHeader)> {
        self(key)
    }
}

impl TableResolver {
    /// What would happen to a frame. `fragment` is what would become of it if it is a fragment: the key of its flow, or
    /// why it would be dropped.
    ///
    /// # Errors
    /// In words, when the place it comes from is not there.
    pub fn trace(
        &self,
        now_ms: u64,
        from: &TraceFrom,
        frame: &[u8],
        fragment: Option<Result<FlowKey, Reason>>,
        proofs: &impl Proofs,
    ) -> Result<TraceReport, String> {
        let ingress = self.ingress_of(from)?;
        let mut steps = Vec::new();
        let verdict = self.walk(now_ms, &ingress, frame, fragment, &mut steps);
        let steps = steps.into_iter().map(|step| with_proof(step, proofs)).collect();
        Ok(TraceReport { actuator: self.config.name.clone(), steps, verdict })
    }

    /// Where a traced frame comes in.
    ///
    /// # Errors
    /// In words, when the place is not there.
    pub fn ingress_of(&self, from: &TraceFrom) -> Result<Ingress, String> {
        match from {
            TraceFrom::Port(name) => {
                let network = self.tables.network_named(&name.network);
                let port = network.and_then(|network| self.tables.port_named(network.vni.0, &name.endpoint));
                let port = port.ok_or_else(|| format!("{} has no port {name}", self.config.name))?;
                Ok(Ingress::Port(port.index))
            }
            TraceFrom::Underlay { sender, vni } => {
                // What the switch before decided goes along above the identifier, as in the header.
                let [half, vni @ ..] = vni.to_be_bytes();
                let (half, vni) = (Half::of_wire(half), &u32::from_be_bytes([0, vni[0], vni[1], vni[2]]));
                let network = self.tables.network(*vni).and_then(|network| network.entry.as_ref());
                let network =
                    network.ok_or_else(|| format!("{} has no network {vni} in force", self.config.name))?;
                let token = Some(self.config.token_key.token(*vni, *sender));
                Ok(Ingress::Underlay {
                    sender: *sender,
                    vni: *vni,
                    token,
                    format: network.encapsulation,
                    half,
                })
            }
            TraceFrom::External => Ok(Ingress::External),
        }
    }

    fn walk(
        &self,
        now_ms: u64,
        ingress: &Ingress,
        frame: &[u8],
        fragment: Option<Result<FlowKey, Reason>>,
        steps: &mut Vec<Step>,
    ) -> TraceVerdict {
        let parsed = match weir_packet::parse(frame) {
            Ok(parsed) => parsed,
            Err(error) => {
                let detail = error.to_string();
                steps.push(Step { stage: "parse", detail, rule: None, key: None });
                return TraceVerdict::Drop { reason: self.reason_of(&Cause::Malformed(error)) };
            }
        };
        let known = match fragment {
            Some(Err(reason)) => {
                let detail = reason.text().to_string();
                steps.push(Step { stage: "fragment", detail, rule: None, key: None });
                return TraceVerdict::Drop { reason: reason.as_str().to_string() };
            }
            Some(Ok(key)) => Some(key),
            None => None,
        };
        let key = key_of(&parsed, known.as_ref());
        if parsed.fragment == Fragment::Later {
            let detail = "a later fragment: it goes the way of its first one".to_string();
            steps.push(Step { stage: "fragment", detail, rule: None, key: None });
        }
        let arrival = |reason| Arrival { now_ms, ingress, key, reason, frame, parsed: &parsed };
        let decision = self.decide(&mut arrival(MissReason::NoFlow), steps);
        if let Decision::Forward(forward) = &decision {
            let length = parsed.l3_length();
            let too_big = length > usize::from(forward.action.mtu);
            let expired = forward.action.routed && parsed.ttl <= 1;
            if too_big || expired {
                let reason =
                    if too_big { MissReason::TooBig(forward.action.mtu) } else { MissReason::TtlExpired };
                let mut again = Vec::new();
                let decision = self.decide(&mut arrival(reason), &mut again);
                steps.extend(again.into_iter().filter(|step| matches!(step.stage, "size" | "ttl")));
                return self.verdict(decision, frame);
            }
        }
        self.verdict(decision, frame)
    }

    fn verdict(&self, decision: Decision, frame: &[u8]) -> TraceVerdict {
        match decision {
            Decision::Forward(forward) => match perform(frame, &forward.action) {
                Some(sent) => self.sent(&forward.action.hop, sent),
                None => TraceVerdict::Drop { reason: "not-translatable".to_string() },
            },
            Decision::Send { hop, frame, .. } => self.sent(&hop, frame),
            Decision::Answer { service, .. } | Decision::Punt(service) => {
                TraceVerdict::Answered { by: service_name(service) }
            }
            Decision::Ask(_) => TraceVerdict::Answered { by: "controllers, which are asked".to_string() },
            Decision::Drop { cause, .. } => TraceVerdict::Drop { reason: self.reason_of(&cause) },
        }
    }

    fn sent(&self, hop: &Hop, frame: Vec<u8>) -> TraceVerdict {
        match hop {
            Hop::Port(index) => match self.tables.port(*index) {
                Some(port) => TraceVerdict::Deliver { port: self.port_name(port) },
                None => TraceVerdict::Drop { reason: "no-port".to_string() },
            },
            Hop::Underlay { receiver, vni, format, half, .. } => {
                let said = if *format == Encapsulation::Geneve { *half } else { Half::Unsaid };
                let vni = *vni | u32::from(said.wire()) << 24;
                TraceVerdict::Send { underlay: *receiver, vni, frame }
            }
            Hop::External => {
                let packet = weir_packet::parse(&frame)
                    .map(|parsed| frame[parsed.l3_offset..parsed.end].to_vec())
                    .unwrap_or_default();
                TraceVerdict::External { packet }
            }
            Hop::Drop => TraceVerdict::Drop { reason: "drop".to_string() },
        }
    }

    /// The value of the label `reason` that a cause is counted under.
    pub(crate) fn reason_of(&self, cause: &Cause) -> String {
        match *cause {
            Cause::Reason(reason) => reason.as_str().to_string(),
            Cause::Malformed(error) => format!("malformed: {}", error.as_str()),
            Cause::Rule { .. } => format!("rule {}", self.rule_name(cause).unwrap_or_default()),
            Cause::Default { .. } => "default-deny".to_string(),
            Cause::Route { .. } => format!("route {}", self.rule_name(cause).unwrap_or_default()),
            Cause::Counter(counter) => match self.rule_name(cause) {
                Some(rule) => format!("rule {rule}"),
                None => self.counted_reason(counter).unwrap_or_else(|| Reason::Revoked.as_str().to_string()),
            },
            Cause::Path(_) => "none".to_string(),
        }
    }

    /// The label `reason` of a counter that has one.
    fn counted_reason(&self, counter: CounterIndex) -> Option<String> {
        let (name, _) = self.counters().get(counter)?;
        name.labels.iter().find(|(label, _)| *label == "reason").map(|(_, reason)| reason.clone())
    }
}

fn service_name(service: Service) -> String {
    service.as_str().to_string()
}

fn with_proof(step: Step, proofs: &impl Proofs) -> TraceStep {
    let source = step.key.and_then(|key| {
        let (version, header) = proofs.proof(&key)?;
        Some((key, version, header))
    });
    TraceStep { stage: step.stage.to_string(), detail: step.detail, rule: step.rule, source }
}

#[cfg(test)]
mod tests;
