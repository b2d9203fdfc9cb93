//! A packet's way through the real tables: each switch on the way is asked in turn (row A27).
//!
//! Nothing is decided here. A switch says what it would do with the frame, by the same code and
//! tables that forward packets; where it would send it, that switch is asked next.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::IpAddr;
use weir_api::ApiError;
use weir_api::types::{TraceLine, TraceResponse};
use weir_model::local::{Answer, Question, TraceFrom, TraceReport, TraceVerdict};
use weir_model::signed::{GroupKey, GroupSignature, SignedHeader};
use weir_model::{Label, MacAddr};
use weir_switch::answer::Service;

/// Most switches a packet may cross: a path longer than this is a loop.
pub const SWITCHES_MAX: usize = 8;
/// Payload of a described packet, bytes.
const PAYLOAD: &[u8] = b"weir trace";

/// A packet to make.
#[derive(Clone, Debug)]
pub struct Described {
    /// Ethernet source and destination.
    pub macs: (MacAddr, MacAddr),
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// `tcp`, `udp` or `icmp`.
    pub protocol: String,
    /// Source and destination port.
    pub ports: (u16, u16),
}

impl Described {
    /// The Ethernet frame.
    ///
    /// # Errors
    /// `invalid` when the description makes no packet.
    pub fn frame(&self) -> Result<Vec<u8>, ApiError> {
        if self.source.is_ipv4() != self.destination.is_ipv4() {
            return Err(ApiError::invalid(format!(
                "{} and {} are of two families: the sender has no address of the destination's",
                self.source, self.destination
            )));
        }
        let (protocol, transport) = match self.protocol.as_str() {
            "tcp" => (6, self.tcp()),
            "udp" => (17, self.udp()),
            "icmp" | "" if self.source.is_ipv4() => (1, echo(8)),
            "icmp" | "" => (58, echo(128)),
            other => {
                return Err(ApiError::invalid(format!(
                    "protocol: '{other}' is not allowed: tcp, udp or icmp"
                )));
            }
        };
        let mut frame = Vec::new();
        frame.extend_from_slice(&self.macs.1.0);
        frame.extend_from_slice(&self.macs.0.0);
        self.network_header(&mut frame, protocol, transport.len() as u16);
        frame.extend_from_slice(&transport);
        let wrong = |error: weir_packet::PacketError| ApiError::internal(error.to_string());
        let parsed = weir_packet::parse(&frame).map_err(wrong)?;
        weir_packet::checksum::fill_network(&mut frame, &parsed).map_err(wrong)?;
        weir_packet::checksum::fill_transport(&mut frame, &parsed).map_err(wrong)?;
        Ok(frame)
    }

    fn network_header(&self, frame: &mut Vec<u8>, protocol: u8, length: u16) {
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                frame.extend_from_slice(&[0x08, 0x00, 0x45, 0]);
                frame.extend_from_slice(&(20 + length).to_be_bytes());
                frame.extend_from_slice(&[0, 0, 0x40, 0, 64, protocol, 0, 0]);
                frame.extend_from_slice(&source.octets());
                frame.extend_from_slice(&destination.octets());
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                frame.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0]);
                frame.extend_from_slice(&length.to_be_bytes());
                frame.extend_from_slice(&[protocol, 64]);
                frame.extend_from_slice(&source.octets());
                frame.extend_from_slice(&destination.octets());
            }
            _ => {}
        }
    }

    fn tcp(&self) -> Vec<u8> {
        let mut tcp = Vec::from(self.ports.0.to_be_bytes());
        tcp.extend_from_slice(&self.ports.1.to_be_bytes());
        tcp.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x02, 0xff, 0xff, 0, 0, 0, 0]);
        tcp
    }

    fn udp(&self) -> Vec<u8> {
        let mut udp = Vec::from(self.ports.0.to_be_bytes());
        udp.extend_from_slice(&self.ports.1.to_be_bytes());
        udp.extend_from_slice(&(8 + PAYLOAD.len() as u16).to_be_bytes());
        udp.extend_from_slice(&[0, 0]);
        udp.extend_from_slice(PAYLOAD);
        udp
    }
}

fn echo(kind: u8) -> Vec<u8> {
    let mut icmp = vec![kind, 0, 0, 0, 0x57, 0x52, 0, 1];
    icmp.extend_from_slice(PAYLOAD);
    icmp
}

/// Whether an answer of a switch is an error: the packet does not arrive, and its sender is told.
fn is_refusal(by: &str) -> bool {
    Service::ALL.iter().any(|service| service.as_str() == by && service.is_refusal())
}

/// Follows a frame from a port on.
///
/// # Errors
/// `unavailable` when a switch on the way does not answer.
pub async fn follow<F>(
    first: Label,
    from: TraceFrom,
    frame: Vec<u8>,
    switches: &BTreeMap<IpAddr, Label>,
    group: &str,
    ask: impl Fn(Label, Question) -> F,
) -> Result<TraceResponse, ApiError>
where
    F: Future<Output = Result<Answer, ApiError>>,
{
    let own = |name: &Label| switches.iter().find(|(_, other)| *other == name).map(|(address, _)| *address);
    let (mut at, mut from, mut frame) = (first, from, frame);
    let mut steps = Vec::new();
    for _ in 0..SWITCHES_MAX {
        let report = match ask(at.clone(), Question::Trace { from, frame }).await? {
            Answer::Trace(report) => report,
            Answer::Error(reason) => return Err(ApiError::invalid(format!("{at}: {reason}"))),
            _ => return Err(ApiError::internal(format!("{at} answered another question"))),
        };
        steps.extend(lines(&report, group));
        let (verdict, delivered) = match report.verdict {
            TraceVerdict::Send { underlay, vni, frame: next } => match (switches.get(&underlay), own(&at)) {
                (Some(name), Some(sender)) => {
                    (at, from, frame) = (name.clone(), TraceFrom::Underlay { sender, vni }, next);
                    continue;
                }
                _ => (format!("sent to {underlay}, where no switch of the domain is"), false),
            },
            TraceVerdict::Deliver { port } => (format!("delivered to {port} at {at}"), true),
            TraceVerdict::External { .. } => (format!("sent outside at {at}"), true),
            TraceVerdict::Answered { by } if is_refusal(&by) => (format!("refused at {at}: {by}"), false),
            TraceVerdict::Answered { by } => (format!("answered by {by} at {at}"), true),
            TraceVerdict::Drop { reason } => (format!("dropped at {at}: {reason}"), false),
        };
        return Ok(TraceResponse { steps, verdict, delivered });
    }
    Ok(TraceResponse {
        steps,
        verdict: format!("a loop: more than {SWITCHES_MAX} switches"),
        delivered: false,
    })
}

fn lines<'a>(report: &'a TraceReport, group: &'a str) -> impl Iterator<Item = TraceLine> + 'a {
    report.steps.iter().map(move |step| TraceLine {
        switch: report.actuator.to_string(),
        stage: step.stage.clone(),
        detail: step.detail.clone(),
        rule: step.rule.clone(),
        entry: step.source.as_ref().map(|(key, _, _)| key.to_string()),
        version: step.source.as_ref().map(|(_, version, _)| version.0),
        signed_by: step.source.as_ref().map(|(_, _, header)| signer(header, group)),
    })
}

fn signer(signed: &SignedHeader, group: &str) -> String {
    let header = &signed.header;
    let group = &group[..group.len().min(16)];
    let by = match &signed.signature {
        GroupSignature::Single(_) => format!("key {group}…"),
        GroupSignature::Succeeded(by) => {
            let key = GroupKey::Threshold(by.succession.key).to_hex();
            format!("threshold key {}…, named by the key before", &key[..16])
        }
        GroupSignature::Threshold(_) => format!("threshold key {group}…"),
        GroupSignature::Members { phase, signatures } => {
            let members: Vec<String> = signatures.iter().map(|one| format!("c{}", one.member)).collect();
            format!("endorsed by {}, dealing {phase} of key {group}…", members.join(","))
        }
    };
    format!("domain {} epoch {} batch {} ({by})", header.domain, header.epoch, header.index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_described_packet_is_a_right_one() {
        let described = |source: &str, destination: &str, protocol: &str| Described {
            macs: (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2])),
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            protocol: protocol.to_string(),
            ports: (40000, 80),
        };
        for protocol in ["tcp", "udp", "icmp"] {
            for (source, destination) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
                let frame = described(source, destination, protocol).frame().unwrap();
                let parsed = weir_packet::parse(&frame).unwrap();
                assert_eq!(weir_packet::checksum::verify(&frame, &parsed), Ok(()), "{protocol} {source}");
            }
        }
        assert!(described("10.0.0.1", "fd00::1", "tcp").frame().is_err());
        assert!(described("10.0.0.1", "10.0.0.2", "gre").frame().unwrap_err().to_string().contains("gre"));
    }
}
