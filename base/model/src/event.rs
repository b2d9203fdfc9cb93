//! Events: everything that enters the loop (rows R1, R4, A1).
//!
//! An event is an observation or an intent of an authenticated source, with a number that the
//! source never uses twice; the order drops what it has seen. What travels and is ordered is a
//! [`SignedEvent`]: whoever decides on it checks for itself who said it. Acks are not here: they go straight
//! to the scheduler (DESIGN §1), except refusals, on which an app must decide.

use crate::approval::Approval;
use crate::conversion::Conversion;
use crate::domain::DomainEvent;
use crate::entry::Key;
use crate::filewall::PolicyOrder;
use crate::group::{ConductReport, GroupWord};
use crate::health::{HealthReport, RepairOrder};
use crate::identity::{IdentityEvent, TokenId};
use crate::packet_in::PacketInReport;
use crate::plane::{OrderChange, PlaneOrder, PlaneReport};
use crate::resource::ResourceId;
use crate::signed::Signature;
use crate::update::Refusal;
use crate::vni::Vni;
use crate::{Label, Version};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::net::IpAddr;
use weir_base::codec::{decode, encode, variant};

pub use crate::source::{Role, SourceId};

/// Most changes of one transaction.
pub const MUTATIONS_MAX: usize = 20_000;
/// Most flows of one usage report.
pub const USAGE_FLOWS_MAX: usize = 1024;
/// Most turns of one usage report: as many as a host may have.
pub const USAGE_TURNS_MAX: usize = 4096;

/// Longest subject of an event, bytes: that of a DNS name.
pub const SUBJECT_BYTES_MAX: usize = 253;

/// An event as it travels and is ordered: with the signature of its source. `weir-trust` makes and checks it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedEvent {
    /// The event.
    pub event: Event,
    /// For whom the source speaks, when it authenticated somebody: a controller's API, the name in the client's
    /// certificate or the kind of its token. At most [`SUBJECT_BYTES_MAX`] bytes.
    pub subject: Option<String>,
    /// The source's signature over domain, source, number, subject and body.
    pub signature: Signature,
}

/// What was said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Who saw or wants it.
    pub source: SourceId,
    /// The source's number for it, ascending.
    pub sequence: u64,
    /// What it is.
    pub body: EventBody,
}

/// What an event says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventBody {
    /// Resources shall change, all of them or none.
    Intent(Transaction),
    /// An actuator joined, or joined again with other facts.
    Joined(ActuatorFacts),
    /// An actuator shall be forgotten.
    Removed {
        /// Its name.
        actuator: Label,
    },
    /// What a host sent and to whom (row A11).
    Usage(UsageReport),
    /// An actuator would not apply an update.
    Refused {
        /// The actuator.
        actuator: Label,
        /// The key.
        key: Key,
        /// The version that it refused.
        version: Version,
        /// Why.
        refusal: Refusal,
    },
    /// What the monitor of a host saw and did (row O).
    Health(HealthReport),
    /// A monitor shall repair something, or no longer (row O).
    Repair(RepairOrder),
    /// A FileWall shall have these policies, or is no longer told which (row F).
    FileWall(PolicyOrder),
    /// Packets of a network that a switch has no rules for (row B10).
    PacketIn(PacketInReport),
    /// Something about other domains (row C6).
    Domain(Box<DomainEvent>),
    /// Something about keys and certificates (rows R4, R12).
    Identity(Box<IdentityEvent>),
    /// Ordered time stays as it is, and wall time differs from it by what makes this so.
    Clock {
        /// Wall time when this is ordered, milliseconds of the Unix epoch.
        wall_ms: u64,
    },
    /// An actuator speaks this protocol of sessions, by the word of a controller that has one with it: it can read what came with it.
    Speaks {
        /// The actuator.
        name: Label,
        /// The number: see [`crate::session::PROTOCOL`].
        protocol: u32,
    },
    /// A plane of a host shall have this under a name, or no longer.
    Order(PlaneOrder),
    /// What a plane of a host tells of itself.
    Report(PlaneReport),
    /// Resources and what planes are to have shall change together, all of it or none.
    Apply(Apply),
    /// A person asks, by the hand of the source.
    Said(Box<Said>),
    /// An actuator joined, by the word of who made its token.
    JoinedBy(Box<JoinedBy>),
    /// An operator says something of requests that wait, or of what has to wait. Always what somebody asks ([`EventBody::Said`]).
    Approval(Box<Approval>),
    /// From here on a rule holds, by the word of a controller: one that takes something away from controllers, and from nobody else.
    Rule(NewRule),
    /// This order ends here: see [`crate::conversion`].
    Converted(Box<Conversion>),
    /// A controller's word about another one, or about spares.
    Group(Box<GroupWord>),
    /// A host ended the session of a controller for what came on it.
    Conduct(ConductReport),
}

/// A rule that is put in force by an event, so that what was ordered before it is decided as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NewRule {
    /// A certificate counts by the word of its owner's key, which is in it; no controller tells certificates.
    OwnersCertificates,
}

/// Place of [`EventBody::Said`] among the bodies of events, as encoded.
const SAID_VARIANT: u32 = 16;

/// A request of a person, signed by its author. Whoever hands it on says it as the body of an event of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// The author, the author's number for it, and what is wanted. The body is never a [`Said`].
    pub event: Event,
    /// When it was made, by the author's clock, milliseconds of the Unix epoch.
    pub made_ms: u64,
    /// When it is over; at most [`LIFE_MAX_MS`] after it was made.
    pub until_ms: u64,
    /// The author's signature. `weir_trust::said` makes and checks it.
    pub signature: Signature,
}

/// A [`Said`] as encoded: its body as bytes, so that whoever decodes it goes no deeper than one level.
#[derive(Serialize, Deserialize)]
struct Wire {
    author: SourceId,
    number: u64,
    made_ms: u64,
    until_ms: u64,
    #[serde(serialize_with = "as_bytes")]
    body: Vec<u8>,
    signature: Signature,
}

fn as_bytes<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(bytes)
}

impl Serialize for Said {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Said { event, made_ms, until_ms, signature } = self;
        Wire {
            author: event.source.clone(),
            number: event.sequence,
            made_ms: *made_ms,
            until_ms: *until_ms,
            body: encode(&event.body),
            signature: *signature,
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Said {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Said, D::Error> {
        let Wire { author, number, made_ms, until_ms, body, signature } = Wire::deserialize(deserializer)?;
        if variant(&body).is_none_or(|variant| variant == SAID_VARIANT) {
            return Err(D::Error::custom("a request holds what is wanted, and no other request"));
        }
        let body: EventBody = decode(&body).map_err(D::Error::custom)?;
        let event = Event { source: author, sequence: number, body };
        Ok(Said { event, made_ms, until_ms, signature })
    }
}

/// An actuator joins, by the word of who made its token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinedBy {
    /// What it tells of itself.
    pub facts: ActuatorFacts,
    /// The token.
    pub token: TokenId,
    /// SHA-256 of the certificate (DER) of the authority that it was shown: its bearer pins it.
    pub authority: [u8; 32],
    /// Signature of the token's key over domain, token, authority and facts.
    pub signature: Signature,
}

impl EventBody {
    /// The actuator that may say this of itself, where actuators may say it at all. What its planes say they say under names of
    /// their own.
    pub fn witness(&self) -> Option<&Label> {
        match self {
            EventBody::Usage(report) => Some(&report.actuator),
            EventBody::Refused { actuator, .. } => Some(actuator),
            EventBody::Health(report) => Some(&report.actuator),
            EventBody::PacketIn(report) => Some(&report.actuator),
            EventBody::Conduct(report) => Some(&report.actuator),
            EventBody::Intent(_)
            | EventBody::Joined(_)
            | EventBody::Removed { .. }
            | EventBody::Repair(_)
            | EventBody::FileWall(_)
            | EventBody::Domain(_)
            | EventBody::Identity(_)
            | EventBody::Clock { .. }
            | EventBody::Speaks { .. }
            | EventBody::Order(_)
            | EventBody::Report(_)
            | EventBody::Said(_)
            | EventBody::JoinedBy(_)
            | EventBody::Approval(_)
            | EventBody::Rule(_)
            | EventBody::Converted(_)
            | EventBody::Group(_)
            | EventBody::Apply(_) => None,
        }
    }
}

/// Table of the store by which protocol an actuator speaks: `name` -> `u32`, absent where nobody said it. And `name 0 source` -> `u32`,
/// the word of one controller, where a single one is not believed.
pub const SPEAKS_TABLE: &str = "speaks";

/// Table of the store with the one entry, under the empty key, by how much wall time is ahead of ordered time: an `i64` of milliseconds.
pub const CLOCK_TABLE: &str = "clock";

/// Changes that become true together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transaction {
    /// At most [`MUTATIONS_MAX`].
    pub mutations: Vec<Mutation>,
    /// Also delete every resource that no mutation names: a full update (row A1).
    pub replace_all: bool,
}

/// Changes of resources and of what planes are to have, which become true together.
///
/// A transaction by itself ([`EventBody::Intent`]) never changed what planes have, and never will: it is in logs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Apply {
    /// The resources. Its `replace_all` withdraws what planes have, too, where no change names it.
    pub resources: Transaction,
    /// Of planes; with the mutations at most [`MUTATIONS_MAX`].
    pub orders: Vec<OrderChange>,
}

/// One change of one resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mutation {
    /// Which resource.
    pub id: ResourceId,
    /// The version it must have now; `Some(Version::ZERO)` means it must not exist (row B6).
    pub expected: Option<Version>,
    /// What shall be.
    pub wanted: Wanted,
}

/// What a resource shall be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wanted {
    /// This document: a [`crate::resource::Resource`] as JSON.
    Document(String),
    /// Gone.
    Absent,
}

/// What an actuator tells of itself when it joins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActuatorFacts {
    /// Its name.
    pub name: Label,
    /// What it is.
    pub role: Role,
    /// Its public key, which signs its acks.
    pub identity: [u8; 32],
    /// Its address on the underlay.
    pub underlay: IpAddr,
}

/// What a host sent in a window of time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageReport {
    /// The host.
    pub actuator: Label,
    /// Length of the window, milliseconds.
    pub window_ms: u32,
    /// Destinations that it sent to by a gateway, largest first; at most [`USAGE_FLOWS_MAX`].
    pub through_gateway: Vec<Usage>,
    /// Destinations that it sent to directly; `bytes` is zero where it was idle.
    pub direct: Vec<Usage>,
    /// Turns of virtual addresses that its clients used; at most [`USAGE_TURNS_MAX`].
    pub turns: Vec<TurnUse>,
}

/// A turn that was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TurnUse {
    /// The network.
    pub vni: Vni,
    /// The client's address.
    pub client: IpAddr,
    /// The virtual address.
    pub address: IpAddr,
}

/// Bytes towards one destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// The network.
    pub vni: Vni,
    /// The destination.
    pub address: IpAddr,
    /// Bytes in the window.
    pub bytes: u64,
}
