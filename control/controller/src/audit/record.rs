//! What the audit keeps.

use crate::aside::Word;
use crate::core::Outcome;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use weir_base::codec::{encode, encoded_bytes};
use weir_model::event::{EventBody, SignedEvent, SourceId};
use weir_model::signed::{BatchHeader, Digest, GroupKey, GroupSignature, Signature, SignedAcks};
use weir_model::{Label, Update, Version};
use weir_trust::identity::{Context, verify};
use weir_trust::threshold::{FaultKind, GroupPublic, Members, ShareSignature};

/// Bodies of events up to this size, bytes, are kept whole; of larger ones the digest.
pub const BODY_BYTES_MAX: usize = 64 * 1024;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    /// The controller started.
    Began {
        /// The domain.
        domain: Label,
        /// Its name as a source.
        controller: SourceId,
        /// Release of its software.
        software: String,
        /// Keys of the sources that need not join: the controllers of the domain.
        sources: Vec<(SourceId, [u8; 32])>,
        /// The one key by which batches are signed; none in a group with shares.
        group_key: Option<GroupKey>,
    },
    /// The order brought an event.
    Event(Box<EventRecord>),
    /// The order brought keys of an actuator to be decided anew, and they were.
    Repair {
        /// Place in the order.
        index: u64,
        /// The actuator.
        actuator: Label,
        /// At which version.
        version: Version,
        /// How many keys were found to differ.
        keys: u64,
    },
    /// Updates were decided: those of a batch behind `first_leaf`.
    Batch {
        /// Place in the order.
        index: u64,
        /// What the group signs.
        header: BatchHeader,
        /// Number of the first update below among those under the root.
        first_leaf: u32,
        /// The updates.
        updates: Vec<Update>,
    },
    /// The group's signature over a batch is there.
    Signed {
        /// The batch.
        header: BatchHeader,
        /// The signature.
        signature: GroupSignature,
        /// Phase of the shares in force here when it came; 0 with a single key.
        phase: u64,
    },
    /// An actuator acknowledged updates; its signature was checked.
    Acks(SignedAcks),
    /// The group's key, or the shares of it, changed.
    Keys(Box<KeysRecord>),
    /// A member of the group was found out.
    Fault(Box<SeenFault>),
    /// A record that no link has room for.
    TooLarge {
        /// What kind of record.
        kind: String,
        /// Its size.
        bytes: u64,
        /// SHA-256 of its encoding.
        sha256: Digest,
    },
    /// The order was followed up to this place without more to record.
    Reached {
        /// Place in the order.
        index: u64,
    },
    /// A state was taken over: what was ordered between is not in this chain.
    TookOver {
        /// The last place in the order that the chain knows.
        after: u64,
        /// The place of the state.
        index: u64,
        /// Its version.
        version: Version,
    },
    /// A member of the order signed votes that exclude each other.
    Contradiction(Box<Contradiction>),
    /// Somebody who takes part did what it should not, as this controller saw it.
    Misdeed(Box<Misdeed>),
    /// An operator set an entry of the order aside here, with a release that did so without the others: nothing of it was done.
    SetAside {
        /// Place in the order.
        index: u64,
        /// SHA-256 of the entry.
        sha256: Digest,
    },
    /// The members agreed to set an entry of the order aside: nothing of it was done.
    LeftOut(Box<LeftOut>),
}

/// An entry that the members agreed to set aside ([`crate::aside`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Place in the order.
    pub index: u64,
    /// SHA-256 of the entry.
    pub sha256: Digest,
    /// The operator's word, where operators sign.
    pub word: Option<Word>,
    /// Who promised never to carry it out: number, key, signature. Enough of them decide; which ones may differ between controllers.
    pub promises: Vec<(u32, [u8; 32], Signature)>,
}

/// What somebody did who takes part, and how often so far. A few of many are recorded: the 1st, 2nd, 4th, 8th and so on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Misdeed {
    /// Who: in whose session it came, or whose turn it was.
    pub who: SourceId,
    /// What.
    pub what: Wrong,
    /// How often, with this.
    pub count: u64,
}

/// What somebody did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wrong {
    /// Acks came in its session that are not signed by it, for this reason.
    ForgedAcks(String),
    /// Nobody was to propose this event before it, and it did not in its time: it drops events, or did not hear of this one.
    PassedOver {
        /// Whose event.
        source: SourceId,
        /// Its number.
        sequence: u64,
    },
    /// It sent another member what no honest member sends, such as votes that exclude each other, and that one cut it off.
    CutOff,
    /// It ordered what is an operator's to order, and no operator signed it: by its own word, or with a signature that is not the
    /// author's. The event in the chain has the controller's signature.
    Ordered {
        /// What kind of event.
        kind: String,
        /// Its number for it.
        sequence: u64,
        /// Why it was dropped.
        reason: String,
    },
}

/// Whether the `count`th time of something is recorded.
pub fn is_recorded(count: u64) -> bool {
    count.is_power_of_two()
}

/// Votes of a member of the order that exclude each other. What they say, the order's engine knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contradiction {
    /// Who.
    pub member: u32,
    /// The votes, and what is needed to check them.
    pub evidence: Vec<u8>,
}

/// An event of the order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventRecord {
    /// Place in the order.
    pub index: u64,
    /// Who said it.
    pub source: SourceId,
    /// The source's number for it.
    pub sequence: u64,
    /// For whom.
    pub subject: Option<String>,
    /// What.
    pub body: Body,
    /// The source's signature.
    pub signature: Signature,
    /// What became of it.
    pub ended: Ended,
}

/// The body of an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    /// As it was said.
    Whole(EventBody),
    /// Large ones, and those that are told all the time.
    Digest {
        /// What kind of event.
        kind: String,
        /// Its size.
        bytes: u64,
        /// SHA-256 of its encoding: this is what the source signed.
        sha256: Digest,
    },
}

/// What became of an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ended {
    /// Decided at this version.
    Decided(Version),
    /// It had been decided before, at this version.
    Duplicate(Version),
    /// Its number is so old that nobody knows.
    TooOld,
    /// The apps rejected it, for this reason.
    Rejected(String),
    /// It is not its source's, for this reason.
    Unauthentic(String),
}

/// The group's key in a phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeysRecord {
    /// Place in the order.
    pub index: u64,
    /// The phase.
    pub phase: u64,
    /// Members with the public keys of their identities.
    pub members: Members,
    /// The group's public side, under which each member's shares verify.
    pub group: GroupPublic,
}

/// What a member was found to have done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenFault {
    /// Phase of the shares.
    pub phase: u64,
    /// Who.
    pub member: u32,
    /// What.
    pub what: FaultKind,
    /// What convinces others of it, where there is such a thing.
    pub proof: Option<BadShare>,
}

/// A share of a signature that does not verify, with the statement of the member that it is its share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadShare {
    /// What it says to have signed.
    pub header: BatchHeader,
    /// The share.
    pub share: ShareSignature,
    /// The member's signature, with its identity, that this is its share.
    pub statement: Signature,
}

/// What a member signs with its identity when it sends a share of a signature.
pub fn statement(phase: u64, header: &BatchHeader, share: &ShareSignature) -> Vec<u8> {
    encode(&(phase, header, share))
}

impl BadShare {
    /// Whether it proves that `member` lied in this phase: the statement is its own, and the share is bad.
    pub fn convinces(&self, phase: u64, member: u32, members: &Members, group: &GroupPublic) -> bool {
        let said = statement(phase, &self.header, &self.share);
        let own = members.get(&member).is_some_and(|key| {
            self.share.member == member && verify(key, Context::Share, &said, &self.statement).is_ok()
        });
        own && group.verify_share(Context::Batch, &encode(&self.header), &self.share).is_err()
    }
}

/// What kind of event a body is, in a word.
pub fn kind_of(body: &EventBody) -> &'static str {
    match body {
        EventBody::Intent(_) => "intent",
        EventBody::Apply(_) => "apply",
        EventBody::Joined(_) => "joined",
        EventBody::Removed { .. } => "removed",
        EventBody::Usage(_) => "usage",
        EventBody::Refused { .. } => "refused",
        EventBody::Health(_) => "health",
        EventBody::Repair(_) => "repair",
        EventBody::FileWall(_) => "filewall",
        EventBody::PacketIn(_) => "packet-in",
        EventBody::Domain(_) => "domain",
        EventBody::Identity(_) => "identity",
        EventBody::Clock { .. } => "clock",
        EventBody::Speaks { .. } => "speaks",
        EventBody::Order(_) => "order",
        EventBody::Report(_) => "report",
        EventBody::Said(said) => kind_of(said.body()),
        EventBody::JoinedBy(_) => "joined",
        EventBody::Approval(_) => "approval",
        EventBody::Rule(_) => "rule",
        EventBody::Converted(_) => "converted",
        EventBody::Group(_) => "group",
        EventBody::Conduct(_) => "conduct",
    }
}

impl Body {
    /// What is kept of a body.
    pub fn of(body: &EventBody) -> Body {
        // Reports of traffic and planes come all the time, and decide little.
        let often = matches!(body, EventBody::Usage(_) | EventBody::PacketIn(_) | EventBody::Report(_));
        let bytes = encode(body);
        if !often && bytes.len() <= BODY_BYTES_MAX {
            return Body::Whole(body.clone());
        }
        let sha256 = Sha256::digest(&bytes).into();
        Body::Digest { kind: kind_of(body).to_owned(), bytes: bytes.len() as u64, sha256 }
    }

    /// What kind of event it is, in a word.
    pub fn kind(&self) -> &str {
        match self {
            Body::Whole(body) => kind_of(body),
            Body::Digest { kind, .. } => kind,
        }
    }

    /// The digest that the source signed.
    pub fn sha256(&self) -> Digest {
        match self {
            Body::Whole(body) => Sha256::digest(encode(body)).into(),
            Body::Digest { sha256, .. } => *sha256,
        }
    }
}

impl EventRecord {
    /// The record of an event at a place of the order.
    pub fn new(index: u64, event: &SignedEvent, outcome: &Outcome) -> EventRecord {
        let ended = match outcome {
            Outcome::Committed(version) => Ended::Decided(*version),
            Outcome::Duplicate(version) => Ended::Duplicate(*version),
            Outcome::TooOld => Ended::TooOld,
            Outcome::Rejected(rejection) => Ended::Rejected(rejection.to_string()),
            Outcome::Unauthentic(reason) => Ended::Unauthentic(reason.to_string()),
        };
        let SignedEvent { event, subject, signature } = event;
        EventRecord {
            index,
            source: event.source.clone(),
            sequence: event.sequence,
            subject: subject.clone(),
            body: Body::of(&event.body),
            signature: *signature,
            ended,
        }
    }
}

impl Record {
    /// The words of all kinds.
    pub const KINDS: [&str; 15] = [
        "began",
        "event",
        "repair",
        "batch",
        "signed",
        "acks",
        "keys",
        "fault",
        "too-large",
        "reached",
        "took-over",
        "contradiction",
        "misdeed",
        "set-aside",
        "left-out",
    ];

    /// The record itself, or what is kept of one of more than `bytes_max`, and its size.
    pub fn bounded(self, bytes_max: usize) -> (Record, usize) {
        let size = encoded_bytes(&self);
        if size <= bytes_max {
            return (self, size);
        }
        let sha256 = Sha256::digest(encode(&self)).into();
        let small = Record::TooLarge { kind: self.kind().to_owned(), bytes: size as u64, sha256 };
        let size = encoded_bytes(&small);
        (small, size)
    }

    /// What kind of record it is, in a word.
    pub fn kind(&self) -> &'static str {
        match self {
            Record::Began { .. } => "began",
            Record::Event(_) => "event",
            Record::Repair { .. } => "repair",
            Record::Batch { .. } => "batch",
            Record::Signed { .. } => "signed",
            Record::Acks(_) => "acks",
            Record::Keys(_) => "keys",
            Record::Fault(_) => "fault",
            Record::TooLarge { .. } => "too-large",
            Record::Reached { .. } => "reached",
            Record::TookOver { .. } => "took-over",
            Record::Contradiction(_) => "contradiction",
            Record::Misdeed(_) => "misdeed",
            Record::SetAside { .. } => "set-aside",
            Record::LeftOut(_) => "left-out",
        }
    }
}
