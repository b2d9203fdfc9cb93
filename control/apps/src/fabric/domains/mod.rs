//! What concerns other domains (row C6; decision 0028): what this one tells them, and what it believes of what they tell.
//!
//! A network that has a subnet of another domain is in both. Of each address of such a network the domain of the host that has it
//! tells the others where it is ([`told`]); the others' gateways then send there ([`heard`]). Everything else stays where it happens.
//!
//! Invariants
//! - Only what this domain owns is told: locations of its endpoints on its hosts, and who its controllers are. What others
//!   told is in a table that telling never reads, so nothing is forwarded twice.
//! - What is told to a domain is numbered without gaps, each number once, also when it was forgotten and is known again; what is taken from one is taken in that order, once.
//! - A statement counts only under the signature of its origin's group, and only about what the origin owns: addresses of its own
//!   subnets, at places on the underlay that the operator granted it. The rest is refused, counted, and passed over.
//! - What is kept of a domain is bounded: see [`super::FabricSettings`]. A domain that does not take what it is told costs at
//!   most `statements_waiting_max` statements; then it is told everything anew when it is back.
//!
//! Departures from Cicero (§3.3.3, §3.4.2)
//! - Its domains trust each other's events; here a domain is believed only about its own.
//! - It forwards the event that a switch sent. What is forwarded here is what the origin's order made of it, so that the
//!   receiver need not know the origin's hosts, and no single controller of the origin is believed.
//! - A location is told without waiting for the port at its host: one dead host must not hold up what is told of all others.
//!   A packet that comes before the port is dropped there, as one from a gateway that fills.
//! - Hosts get no direct location of another domain's endpoint: they do not know its gateways, by which answers come.
//!   Such packets go by the own gateway.

mod heard;
mod query;
mod told;

pub use query::{DomainStatus, controllers, domain, domains, record, told_domain, word};

use super::marks::mark_underlays;
use super::tables::{
    DOMAINS, FOREIGN, LANES, NUMBERED, OWN_CONTROLLERS, SHARED, TAKEN, address_bytes, joined, label, name0,
    read, vni_key,
};
use super::work::{Count, Work};
use crate::delta::{reference, wrong_field};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use weir_base::codec::encode;
use weir_model::domain::{DomainController, DomainEvent, DomainRecord};
use weir_model::entry::{LocationEntry, Vni};
use weir_model::event::Event;
use weir_model::resource::{Encapsulation, FieldError, Forwarding, Kind, Resource, ResourceId, Subnet};
use weir_model::session::CONTROLLERS_MAX;
use weir_model::{Key, Label};
use weir_store::Rejection;

pub(super) use told::tell;

/// Most domains that are forgotten and whose last numbers are remembered.
const FORGOTTEN_MAX: usize = 1_024;
/// Longest address of a controller, bytes.
const API_BYTES_MAX: usize = 64;

/// How far a domain is with what it is told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lane {
    /// The last number given.
    pub last: u64,
    /// It has taken all up to this one.
    pub acked: u64,
    /// It did not take what it was told, and is told nothing until it is heard again.
    pub cut: bool,
    /// What is told next begins anew.
    pub fresh: bool,
    /// When it was last told everything anew, ordered time, milliseconds.
    pub begun_ms: u64,
    /// How often it was.
    pub begun: u64,
    /// When, by its own time, it was said what led to that, milliseconds: what was said until then leads to nothing more.
    pub begun_word_ms: u64,
}

/// Why a statement is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Unowned {
    /// The address is in a subnet of another domain, or of this one.
    NotItsSubnet,
    /// The place is not on the underlay that the operator granted.
    NotItsUnderlay,
    /// The network has another identifier on the wire here.
    OtherNetwork,
    /// An address that no endpoint can have.
    NoEndpoint,
    /// It told of too many already.
    TooMany,
    /// No list of controllers.
    NoControllers,
}

impl Unowned {
    /// Every reason.
    pub const ALL: [Unowned; 6] = [
        Unowned::NotItsSubnet,
        Unowned::NotItsUnderlay,
        Unowned::OtherNetwork,
        Unowned::NoEndpoint,
        Unowned::TooMany,
        Unowned::NoControllers,
    ];

    /// In a word, for metrics.
    pub fn word(self) -> &'static str {
        match self {
            Unowned::NotItsSubnet => "not_its_subnet",
            Unowned::NotItsUnderlay => "not_its_underlay",
            Unowned::OtherNetwork => "other_network",
            Unowned::NoEndpoint => "no_endpoint",
            Unowned::TooMany => "too_many",
            Unowned::NoControllers => "no_controllers",
        }
    }
}

/// How far this domain is with what another one tells.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// All statements up to this one are ordered here.
    pub through: u64,
    /// Locations that are kept.
    pub locations: u64,
    /// Statements that were taken.
    pub taken: u64,
    /// Statements that were refused, by [`Unowned::ALL`].
    pub refused: [u64; 6],
    /// The last one that was refused, in words.
    pub last_refused: Option<String>,
    /// Everything is wanted anew, because the operator made it known by other facts.
    pub anew: bool,
}

/// A location that another domain told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Foreign {
    /// Number of the statement.
    pub sequence: u64,
    pub vni: Vni,
    pub at: LocationEntry,
}

/// Decides on an event about domains.
pub(super) fn decide(
    work: &mut Work<'_, '_, '_>,
    event: &Event,
    about: &DomainEvent,
    now_ms: u64,
) -> Result<(), Rejection> {
    if work.settings.domain.is_none() {
        return Err(reference("domain", "this controller has no domain of its own"));
    }
    match about {
        DomainEvent::Known(record) => know(work, record, now_ms),
        DomainEvent::Forgotten { domain } => forget(work, domain),
        DomainEvent::Controllers(list) => told::controllers(work, event, list),
        DomainEvent::Forwarded { origin, statements } => heard::forwarded(work, origin, statements),
        DomainEvent::Heard { domain, through, begin, words } => {
            told::heard(work, domain, (*through, *begin), words, now_ms)
        }
    }
}

fn id(domain: &Label) -> String {
    format!("domain/{domain}")
}

fn record_of(work: &Work<'_, '_, '_>, domain: &Label) -> Option<DomainRecord> {
    work.view.get(DOMAINS, domain.as_str().as_bytes()).map(|bytes| read(DOMAINS, &bytes))
}

fn put_record(work: &mut Work<'_, '_, '_>, record: &DomainRecord) -> Result<(), Rejection> {
    work.view.put(DOMAINS, record.name.as_str().as_bytes(), encode(record))
}

fn lane_of(work: &Work<'_, '_, '_>, domain: &Label) -> Option<Lane> {
    work.view.get(LANES, domain.as_str().as_bytes()).map(|bytes| read(LANES, &bytes))
}

fn put_lane(work: &mut Work<'_, '_, '_>, domain: &Label, lane: &Lane) -> Result<(), Rejection> {
    work.view.put(LANES, domain.as_str().as_bytes(), encode(lane))
}

/// The last number that a domain was told before it was forgotten. Of its own only, for a domain may say any number of itself.
fn numbered(work: &Work<'_, '_, '_>, domain: &Label) -> u64 {
    work.view.get(NUMBERED, domain.as_str().as_bytes()).map_or(0, |bytes| read(NUMBERED, &bytes))
}

fn taken_of(work: &Work<'_, '_, '_>, domain: &Label) -> Taken {
    let bytes = work.view.get(TAKEN, domain.as_str().as_bytes());
    bytes.map_or_else(Taken::default, |bytes| read(TAKEN, &bytes))
}

fn put_taken(work: &mut Work<'_, '_, '_>, domain: &Label, taken: &Taken) -> Result<(), Rejection> {
    work.view.put(TAKEN, domain.as_str().as_bytes(), encode(taken))
}

/// Names of the domains that are known, ascending.
fn known_domains(work: &Work<'_, '_, '_>) -> Vec<Label> {
    work.view.scan(DOMAINS, b"").into_iter().map(|(key, _)| label(&key)).collect()
}

/// What is known of each of them.
pub(super) fn records(work: &Work<'_, '_, '_>) -> Vec<DomainRecord> {
    work.view.scan(DOMAINS, b"").iter().map(|(_, bytes)| read(DOMAINS, bytes)).collect()
}

/// How many controllers this domain has, as far as they said.
pub(super) fn controllers_count(work: &Work<'_, '_, '_>) -> usize {
    let now = own_controllers(work);
    if now.is_empty() { work.settings.controllers_founded } else { now.len() }
}

/// What is wrong with a list of controllers, if it is none that can be kept.
fn list_problem(list: &[DomainController]) -> Option<&'static str> {
    let mut ids: Vec<u64> = list.iter().map(|one| one.id).collect();
    ids.dedup();
    if list.is_empty() || list.len() > CONTROLLERS_MAX {
        return Some("a domain has 1 to 16 controllers");
    }
    if !list.is_sorted_by(|a, b| a.id < b.id) {
        return Some("controllers are in the order of their numbers, each number once");
    }
    if list.iter().any(|one| one.api.is_empty() || one.api.len() > API_BYTES_MAX) {
        return Some("a controller's address has 1 to 64 bytes");
    }
    None
}

fn know(work: &mut Work<'_, '_, '_>, record: &DomainRecord, now_ms: u64) -> Result<(), Rejection> {
    let name = &record.name;
    let wrong = |field: &str, value: String, allowed: &str| {
        Err(wrong_field(id(name), FieldError::new(field, value, allowed)))
    };
    if work.settings.domain.as_ref() == Some(name) {
        return wrong("name", name.to_string(), "another domain than this one: each has a name of its own");
    }
    if let Some(problem) = list_problem(&record.controllers) {
        return wrong("controllers", record.controllers.len().to_string(), problem);
    }
    let underlays = record.underlays.len();
    if underlays == 0 || underlays > weir_model::domain::UNDERLAYS_MAX {
        let allowed = "1 to 64 prefixes in which its hosts are: it may tell of no other places";
        return wrong("underlays", underlays.to_string(), allowed);
    }
    if record.authority_pem.len() > weir_model::domain::AUTHORITY_BYTES_MAX {
        return wrong("authority", record.authority_pem.len().to_string(), "at most 8192 bytes of PEM");
    }
    match record_of(work, name) {
        Some(before) if before.group_key != record.group_key => {
            let problem = "it is known with another group's key, which never changes: forget it first, if it was made anew";
            Err(reference(id(name), problem))
        }
        Some(_) => {
            // What was refused by the facts before may be right by these.
            let taken = Taken { anew: true, ..taken_of(work, name) };
            put_taken(work, name, &taken)?;
            put_record(work, record)?;
            mark_underlays(work);
            Ok(())
        }
        None => {
            let limit = weir_model::domain::DOMAINS_MAX;
            work.count_up(Count::Domains, b"", limit, || "other domains".to_string())?;
            put_record(work, record)?;
            mark_underlays(work);
            put_taken(work, name, &Taken::default())?;
            let last = numbered(work, name);
            work.view.delete(NUMBERED, name.as_str().as_bytes());
            put_lane(work, name, &Lane { last, acked: last, ..Lane::default() })?;
            told::begin(work, name, now_ms)
        }
    }
}

fn forget(work: &mut Work<'_, '_, '_>, name: &Label) -> Result<(), Rejection> {
    if record_of(work, name).is_none() {
        return Ok(());
    }
    heard::forget_all(work, name);
    told::forget_all(work, name)?;
    // It may still have what it was told, and must not take a new statement for one of those.
    if let Some(lane) = lane_of(work, name).filter(|lane| lane.last > 0) {
        let remembered = work.view.scan(NUMBERED, b"");
        if remembered.len() >= FORGOTTEN_MAX
            && let Some((other, _)) = remembered.first()
        {
            work.view.delete(NUMBERED, other);
        }
        work.view.put(NUMBERED, name.as_str().as_bytes(), encode(&lane.last))?;
    }
    let key = name.as_str().as_bytes();
    for table in [DOMAINS, LANES, TAKEN] {
        work.view.delete(table, key);
    }
    mark_underlays(work);
    work.count_down(Count::Domains, b"")
}

/// The other domain that a subnet is of.
pub(super) fn foreign_domain<'s>(work: &Work<'_, '_, '_>, subnet: &'s Subnet) -> Option<&'s Label> {
    subnet.domain.as_ref().filter(|domain| work.settings.domain.as_ref() != Some(domain))
}

/// The other domain of an address of a network, by the subnet that has it.
fn domain_of(work: &mut Work<'_, '_, '_>, network: &Label, address: IpAddr) -> Option<Result<Label, ()>> {
    for stored in work.all_of(network, Kind::Subnet) {
        if let Resource::Subnet(subnet) = &stored.resource
            && subnet.prefix_for(address).is_some_and(|prefix| prefix.contains(&address))
        {
            return Some(foreign_domain(work, subnet).cloned().ok_or(()));
        }
    }
    None
}

fn foreign_key(domain: &Label, network: &Label, address: IpAddr) -> Vec<u8> {
    let network = joined(name0(domain.as_str()), &name0(network.as_str()));
    joined(network, &address_bytes(address))
}

/// The location of an address that another domain has.
pub(super) fn foreign_location(
    work: &mut Work<'_, '_, '_>,
    vni: Vni,
    address: IpAddr,
) -> Option<LocationEntry> {
    if work.count(Count::Domains, b"") == 0 {
        return None;
    }
    let network = work.network_name(vni)?;
    let domain = domain_of(work, &network, address)?.ok()?;
    let bytes = work.view.get(FOREIGN, &foreign_key(&domain, &network, address))?;
    let foreign: Foreign = read(FOREIGN, &bytes);
    (foreign.vni == vni).then_some(foreign.at)
}

/// Marks all that other domains told, for a gateway that just joined.
pub(super) fn mark_foreign(work: &mut Work<'_, '_, '_>, gateway: &Label) {
    for domain in known_domains(work) {
        for (vni, address) in heard::told_by(work, &domain, None) {
            work.marks.key(gateway, Key::Location { vni, address });
        }
    }
}

/// A subnet comes or goes: its network comes to be shared with the subnet's domain, or ceases to be.
pub(super) fn share(
    work: &mut Work<'_, '_, '_>,
    vni: Vni,
    subnet: &Subnet,
    comes: bool,
) -> Result<(), Rejection> {
    let Some(domain) = foreign_domain(work, subnet).cloned() else { return Ok(()) };
    if work.settings.domain.is_none() {
        let problem = "its controllers have no networks together with other domains: leave 'domain' out";
        return Err(reference(format!("subnet/{}/{}", subnet.network, subnet.name), problem));
    }
    let key = vni_key(vni, domain.as_str().as_bytes());
    let subnets = work.view.get(SHARED, &key).map_or(0, |bytes| read::<u64>(SHARED, &bytes));
    match (comes, subnets) {
        (false, 0 | 1) => work.view.delete(SHARED, &key),
        (false, _) => work.view.put(SHARED, &key, encode(&(subnets - 1)))?,
        (true, _) => work.view.put(SHARED, &key, encode(&(subnets + 1)))?,
    }
    work.own.shares.insert((domain.clone(), vni));
    for (_, address) in heard::told_by(work, &domain, Some(&subnet.network)) {
        work.own.broad.locations.insert((vni, address));
    }
    Ok(())
}

/// A network that is in other domains too has what their switches can speak.
pub(super) fn check_shared(work: &mut Work<'_, '_, '_>, of: &ResourceId) -> Result<(), Rejection> {
    let name = of.network.as_ref().unwrap_or(&of.name);
    let Some(vni) = work.vni(name) else { return Ok(()) };
    if work.view.scan(SHARED, &vni_key(vni, b"")).is_empty() {
        return Ok(());
    }
    let Some(stored) = work.named(name, Kind::Network, name) else { return Ok(()) };
    let Resource::Network(network) = &stored.resource else { return Ok(()) };
    let wrong = |problem: &str| Err(reference(stored.resource.id(), problem));
    if network.vni.is_none() {
        return wrong("it has a subnet of another domain: give it a 'vni', the same in both");
    }
    if network.encapsulation != Encapsulation::Vxlan {
        return wrong(
            "it has a subnet of another domain, whose switches do not know this domain's tokens: use 'encapsulation: vxlan'",
        );
    }
    if network.forwarding != Forwarding::Routed {
        return wrong(
            "it has a subnet of another domain, whose switches cannot be asked: use 'forwarding: routed'",
        );
    }
    Ok(())
}

/// The list of this domain's controllers that is in force; empty before there is one.
pub(super) fn own_controllers(work: &Work<'_, '_, '_>) -> Vec<DomainController> {
    work.view.get(OWN_CONTROLLERS, b"").map_or_else(Vec::new, |bytes| read(OWN_CONTROLLERS, &bytes))
}
