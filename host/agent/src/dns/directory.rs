//! What the mirror says to a question: pure.

use super::ZONE_TTL_S;
use crate::mirror::{Known, Mirror, PortContext, ROOT_ZONE};
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::rdata::{A, AAAA, PTR, SOA};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use std::net::IpAddr;
use weir_model::entry::{NetworkEntry, Vni};
use weir_model::event::Role;

/// A question of class IN.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Question {
    /// Full name in lower case.
    pub name: Name,
    /// Type of the records wanted.
    pub kind: RecordType,
}

/// An answer without its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// How it went.
    pub code: ResponseCode,
    /// The records.
    pub records: Vec<Record>,
    /// The zone's SOA in a negative answer, so that it is not kept for long.
    pub authority: Vec<Record>,
    /// Whether it comes from the directory.
    pub authoritative: bool,
}

impl Answer {
    /// Only a code.
    pub fn code(code: ResponseCode) -> Answer {
        Answer { code, records: vec![], authority: vec![], authoritative: false }
    }
}

/// Who knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// We do.
    Answer(Answer),
    /// A gateway.
    Gateway {
        /// What to ask it.
        ask: Question,
    },
    /// A resolver outside.
    Upstream,
}

/// What a question is about, seen from one network.
enum Subject {
    /// The zone itself.
    Apex,
    /// One label in the zone.
    Endpoint(String),
    /// An address, by its reverse name.
    Address(IpAddr),
    /// Inside our domain, but nothing of this network.
    Nothing,
    /// Not ours.
    Outside,
}

fn labels(name: &Name) -> Vec<String> {
    name.iter().map(|label| String::from_utf8_lossy(label).to_ascii_lowercase()).collect()
}

/// The address of a full reverse name.
fn reverse_address(labels: &[String]) -> Option<IpAddr> {
    // Anything that is not plain is not a reverse name; and the parser sees nothing odd.
    if !labels.iter().all(|l| l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')) {
        return None;
    }
    let net = Name::from_ascii(format!("{}.", labels.join("."))).ok()?.parse_arpa_name().ok()?;
    (net.prefix_len() == net.max_prefix_len()).then(|| net.addr())
}

/// Splits `<rest>.<network>.weir.internal`.
fn in_root_zone(labels: &[String]) -> Option<(&[String], &str)> {
    let root: Vec<&str> = ROOT_ZONE.split('.').collect();
    let rest = labels.len().checked_sub(root.len())?;
    if labels[rest..].iter().zip(&root).any(|(a, b)| a != b) {
        return None;
    }
    match labels[..rest].split_last() {
        Some((network, inner)) => Some((inner, network)),
        None => Some((&[], "")),
    }
}

fn subject(port: &PortContext, question: &Question) -> Subject {
    let labels = labels(&question.name);
    if let Some((inner, network)) = in_root_zone(&labels) {
        return match inner {
            _ if network != port.network.name.as_str() => Subject::Nothing,
            [] => Subject::Apex,
            [endpoint] => Subject::Endpoint(endpoint.clone()),
            _ => Subject::Nothing,
        };
    }
    match reverse_address(&labels) {
        Some(address) if in_network(&port.network, address) => Subject::Address(address),
        Some(address) if is_private(address) => Subject::Nothing,
        _ => Subject::Outside,
    }
}

fn in_network(network: &NetworkEntry, address: IpAddr) -> bool {
    network.subnets.iter().any(|subnet| match address {
        IpAddr::V4(v4) => subnet.v4.is_some_and(|prefix| prefix.contains(&v4)),
        IpAddr::V6(v6) => subnet.v6.is_some_and(|prefix| prefix.contains(&v6)),
    })
}

/// Addresses whose reverse names mean nothing outside (RFC 6303).
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let shared = v4.octets()[0] == 100 && v4.octets()[1] & 0xc0 == 64;
            v4.is_private() || v4.is_loopback() || v4.is_link_local() || v4.is_unspecified() || shared
        }
        IpAddr::V6(v6) => {
            v6.is_unique_local() || v6.is_unicast_link_local() || v6.is_loopback() || v6.is_unspecified()
        }
    }
}

/// Who answers an endpoint's question, and with what if we do.
pub fn decide(mirror: &Mirror, role: Role, port: &PortContext, question: &Question) -> Decision {
    let zone = zone_name(&port.network);
    let directory = Directory { mirror, vni: port.vni, zone: &zone, all: role == Role::Gateway };
    let decided = match subject(port, question) {
        Subject::Outside => return Decision::Upstream,
        Subject::Nothing => Some(directory.missing()),
        Subject::Apex => Some(directory.apex(question)),
        Subject::Endpoint(endpoint) => directory.endpoint(&endpoint, question),
        Subject::Address(address) => match directory.address(address, question) {
            None => {
                let Ok(name) = question.name.clone().append_domain(&zone) else {
                    return Decision::Answer(directory.missing());
                };
                let ask = Question { name, kind: question.kind };
                return Decision::Gateway { ask };
            }
            known => known,
        },
    };
    match decided {
        Some(answer) => Decision::Answer(answer),
        None => Decision::Gateway { ask: question.clone() },
    }
}

/// What a gateway answers to an agent's question; `None` when it is not about any network.
pub fn decide_for_agent(mirror: &Mirror, question: &Question) -> Option<Answer> {
    let labels = labels(&question.name);
    let (inner, network) = in_root_zone(&labels)?;
    let Some((vni, network)) = mirror.network_named(network) else {
        return Some(Answer { authoritative: true, ..Answer::code(ResponseCode::NXDomain) });
    };
    let zone = zone_name(network);
    let directory = Directory { mirror, vni, zone: &zone, all: true };
    match inner {
        [] => Some(directory.apex(question)),
        [endpoint] => directory.endpoint(endpoint, question),
        inner => match reverse_address(inner) {
            Some(address) => directory.address(address, question),
            None => Some(directory.missing()),
        },
    }
}

fn zone_name(network: &NetworkEntry) -> Name {
    Name::from_ascii(format!("{}.{ROOT_ZONE}.", network.name)).unwrap_or_default()
}

/// The mirror, seen from one network.
struct Directory<'a> {
    mirror: &'a Mirror,
    vni: Vni,
    zone: &'a Name,
    /// Whether what is not known here does not exist.
    all: bool,
}

impl Directory<'_> {
    fn soa(&self) -> Record {
        let server = self.zone.clone();
        let soa = SOA::new(server.clone(), server, 1, 3600, 600, 86_400, ZONE_TTL_S);
        Record::from_rdata(self.zone.clone(), ZONE_TTL_S, RData::SOA(soa))
    }

    fn missing(&self) -> Answer {
        Answer {
            code: ResponseCode::NXDomain,
            records: vec![],
            authority: vec![self.soa()],
            authoritative: true,
        }
    }

    /// Records, or the statement that the name has none of the kind.
    fn found(&self, records: Vec<Record>) -> Answer {
        let authority = if records.is_empty() { vec![self.soa()] } else { vec![] };
        Answer { code: ResponseCode::NoError, records, authority, authoritative: true }
    }

    fn apex(&self, question: &Question) -> Answer {
        match question.kind {
            RecordType::SOA => self.found(vec![self.soa()]),
            _ => self.found(vec![]),
        }
    }

    /// `None` when only a gateway can know.
    fn endpoint(&self, endpoint: &str, question: &Question) -> Option<Answer> {
        let Some((addresses, known)) = self.mirror.addresses(self.vni, endpoint) else {
            return self.all.then(|| self.missing());
        };
        let records: Vec<Record> = addresses
            .into_iter()
            .filter_map(|address| match (address, question.kind) {
                (IpAddr::V4(v4), RecordType::A) => Some(RData::A(A(v4))),
                (IpAddr::V6(v6), RecordType::AAAA) => Some(RData::AAAA(AAAA(v6))),
                _ => None,
            })
            .map(|data| Record::from_rdata(question.name.clone(), ZONE_TTL_S, data))
            .collect();
        let whole = self.all || known == Known::Whole;
        (whole || !records.is_empty()).then(|| self.found(records))
    }

    /// `None` when only a gateway can know.
    fn address(&self, address: IpAddr, question: &Question) -> Option<Answer> {
        let Some(endpoint) = self.mirror.endpoint_at(self.vni, address) else {
            return self.all.then(|| self.missing());
        };
        let record = match question.kind {
            RecordType::PTR => self
                .zone
                .prepend_label(endpoint.as_str())
                .ok()
                .map(|name| Record::from_rdata(question.name.clone(), ZONE_TTL_S, RData::PTR(PTR(name)))),
            _ => None,
        };
        Some(self.found(record.into_iter().collect()))
    }
}

/// Keeps of a gateway's answer what can be true for the asker's network, under the name it asked.
pub fn only_of_network(
    port: &PortContext,
    question: &Question,
    asked: &Question,
    mut answer: Answer,
) -> Answer {
    let zone = zone_name(&port.network);
    answer.records.retain_mut(|record| {
        let right = record.name.to_lowercase() == asked.name
            && match &record.data {
                RData::A(A(v4)) => question.kind == RecordType::A && in_network(&port.network, (*v4).into()),
                RData::AAAA(AAAA(v6)) => {
                    question.kind == RecordType::AAAA && in_network(&port.network, (*v6).into())
                }
                RData::PTR(PTR(name)) => question.kind == RecordType::PTR && zone.zone_of(name),
                RData::SOA(_) => question.kind == RecordType::SOA,
                _ => false,
            };
        record.name = question.name.clone();
        record.ttl = record.ttl.min(ZONE_TTL_S);
        right
    });
    answer.authority.retain(|record| matches!(record.data, RData::SOA(_)) && record.name == zone);
    answer.authoritative = false;
    answer
}
