//! Checks a chain from its bytes: that it is whole, and that everything in it was said by who is said to have said it.
//!
//! It needs nothing of the controller whose chain it is. What it trusts is given to it ([`Trusted`]); where nothing is
//! given it takes the keys that the chain itself tells, and says so.

use super::link::{GENESIS, Link, LinkHash, hash};
use super::record::{Body, Contradiction, Ended, EventRecord, KeysRecord, LeftOut, Record, SeenFault};
use crate::aside::{EntryName, is_promise};
use std::collections::BTreeMap;
use weir_base::codec::encode;
use weir_model::event::{EventBody, SourceId};
use weir_model::identity::IdentityEvent;
use weir_model::operator::OperatorChange;
use weir_model::said::Said;
use weir_model::signed::{BatchHeader, Digest, GroupKey, GroupSignature, SignedAcks};
use weir_model::{Label, Update};
use weir_trust::TrustError;
use weir_trust::batch::HeaderVerifier;
use weir_trust::identity::{verify_acks, verify_digested_event, verify_rotation};
use weir_trust::merkle::{Tree, leaf_hash};
use weir_trust::said::is_signed_by;

/// Findings that are kept, the first ones; all are counted.
pub const FINDINGS_MAX: usize = 1_000;
/// Batches whose updates did not all come yet, at most.
const OPEN_MAX: usize = 64;

/// Whom evidence convicts, if anybody: the number of a member.
pub type Convicts = fn(&[u8]) -> Option<u32>;

/// What an auditor knows beforehand.
#[derive(Clone, Debug, Default)]
pub struct Trusted {
    /// The group's public key, from elsewhere than the chain.
    pub group_key: Option<GroupKey>,
    /// The hash of a link that was noted earlier, with its number: the chain must still have it.
    pub noted: Option<(u64, LinkHash)>,
    /// Whom the evidence of votes that exclude each other convicts: the order's engine knows.
    pub convicts: Option<Convicts>,
}

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Number of the link.
    pub link: u64,
    /// What.
    pub what: String,
}

/// What was checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Links.
    pub links: u64,
    /// Number of the first.
    pub first: u64,
    /// Number of the last.
    pub last: u64,
    /// Hash of the last.
    pub head: LinkHash,
    /// Events whose source's signature verifies.
    pub events: u64,
    /// Requests of operators whose author's signature verifies.
    pub requests: u64,
    /// Requests of operators whose keys the chain does not tell.
    pub requests_unchecked: u64,
    /// Events of sources whose key the chain does not tell: their `Joined` is older than its first link.
    pub events_unchecked: u64,
    /// Batches whose updates hash to the root that the group signs.
    pub batches: u64,
    /// Signatures of the group that verify.
    pub signatures: u64,
    /// Frames of acks that verify.
    pub acks: u64,
    /// Acks of actuators whose key the chain does not tell.
    pub acks_unchecked: u64,
    /// Faults of members that are proven.
    pub faults_proven: u64,
    /// Faults of members that only this controller saw.
    pub faults_seen: u64,
    /// Records of what others did that only this controller saw.
    pub misdeeds: u64,
    /// Places where a state was taken over, so that the chain lacks what was ordered between.
    pub gaps: u64,
    /// Whether the group's key was given, and not taken from the chain.
    pub key_given: bool,
    /// What is wrong.
    pub findings: Vec<Finding>,
    /// How much is wrong in all.
    pub findings_total: u64,
}

fn with_verifier(key: GroupKey) -> (GroupKey, HeaderVerifier) {
    let verifier = HeaderVerifier::new(&key);
    (key, verifier)
}

/// A batch whose updates come in parts.
struct Open {
    leaves: Vec<Digest>,
    count: u32,
}

/// See the module.
pub struct Auditor {
    trusted: Trusted,
    domain: Option<Label>,
    next: Option<u64>,
    head: LinkHash,
    group_key: Option<(GroupKey, HeaderVerifier)>,
    /// The keys of each source, the newest last.
    keys: BTreeMap<SourceId, Vec<[u8; 32]>>,
    phases: BTreeMap<u64, Box<KeysRecord>>,
    open: BTreeMap<Digest, Open>,
    /// Whether the first updates of a batch were seen: what comes before may lack those that are gone with older links.
    begun: bool,
    checked: Checked,
}

impl Auditor {
    /// For one chain.
    pub fn new(trusted: Trusted) -> Auditor {
        let checked = Checked { key_given: trusted.group_key.is_some(), ..Checked::default() };
        Auditor {
            group_key: trusted.group_key.clone().map(with_verifier),
            trusted,
            domain: None,
            next: None,
            head: GENESIS,
            keys: BTreeMap::new(),
            phases: BTreeMap::new(),
            open: BTreeMap::new(),
            begun: false,
            checked,
        }
    }

    /// Takes the next link. Gives it when it can be read.
    pub fn take(&mut self, number: u64, bytes: &[u8]) -> Option<Link> {
        if let Some(next) = self.next.filter(|next| *next != number) {
            self.finding(number, format!("link {next} should come here"));
        }
        let link = match Link::from_bytes(bytes) {
            Ok(link) => link,
            Err(error) => {
                self.finding(number, format!("its bytes are no link: {error}"));
                self.passed(number, bytes);
                return None;
            }
        };
        let before = match (self.next, number) {
            (Some(_), _) => Some(self.head),
            (None, 1) => Some(GENESIS),
            // The links before the first are gone, so nobody can say.
            (None, _) => None,
        };
        if before.is_some_and(|before| before != link.previous) {
            self.finding(number, "it does not follow the link before: one of the two was changed".into());
        }
        self.passed(number, bytes);
        for record in &link.records {
            self.record(number, record);
        }
        Some(link)
    }

    fn passed(&mut self, number: u64, bytes: &[u8]) {
        self.head = hash(number, bytes);
        self.next = Some(number + 1);
        let checked = &mut self.checked;
        if checked.links == 0 {
            checked.first = number;
        }
        checked.links += 1;
        checked.last = number;
        checked.head = self.head;
        if self.trusted.noted.is_some_and(|(noted, hash)| noted == number && hash != self.head) {
            self.finding(number, "its hash is not the one that was noted: the chain was rewritten".into());
        }
    }

    fn finding(&mut self, link: u64, what: String) {
        self.checked.findings_total += 1;
        if self.checked.findings.len() < FINDINGS_MAX {
            self.checked.findings.push(Finding { link, what });
        }
    }

    /// What was found, when all links were taken.
    pub fn finish(mut self) -> Checked {
        if let Some((noted, _)) = self.trusted.noted
            && self.next.is_none_or(|next| noted >= next)
        {
            let last = self.checked.last;
            self.finding(
                last,
                format!("the chain ends here, but link {noted} was noted: its end was cut off"),
            );
        }
        self.checked
    }

    fn record(&mut self, number: u64, record: &Record) {
        match record {
            Record::Began { domain, sources, group_key, .. } => {
                self.domain = Some(domain.clone());
                // A key that changed since stands over that of the settings.
                for (source, key) in sources {
                    self.keys.entry(source.clone()).or_insert_with(|| vec![*key]);
                }
                if self.group_key.is_none() {
                    self.group_key = group_key.clone().map(with_verifier);
                }
            }
            Record::Event(event) => self.event(number, event),
            Record::Batch { header, first_leaf, updates, .. } => {
                self.batch(number, header, *first_leaf, updates);
            }
            Record::Signed { header, signature, .. } => self.signed(number, header, signature),
            Record::Acks(acks) => self.acks(number, acks),
            Record::Keys(keys) => self.group_keys(number, keys),
            Record::Fault(fault) => self.fault(number, fault),
            Record::Contradiction(votes) => self.contradiction(number, votes),
            Record::Misdeed(_) => self.checked.misdeeds += 1,
            Record::TookOver { .. } => {
                self.checked.gaps += 1;
                self.open.clear();
            }
            Record::LeftOut(left_out) => self.left_out(number, left_out),
            Record::Repair { .. }
            | Record::TooLarge { .. }
            | Record::Reached { .. }
            | Record::SetAside { .. } => {}
        }
    }

    /// Each who is said to have promised must have.
    fn left_out(&mut self, number: u64, left_out: &LeftOut) {
        let Some(domain) = self.domain.clone() else { return };
        let entry = EntryName { index: left_out.index, sha256: left_out.sha256 };
        let forged = left_out
            .promises
            .iter()
            .filter(|(member, key, signature)| !is_promise(key, &domain, &entry, *member, signature));
        let forged: Vec<String> = forged.map(|(member, ..)| member.to_string()).collect();
        if !forged.is_empty() {
            let (index, members) = (left_out.index, forged.join(", "));
            let text = format!(
                "controllers {members} did not promise to leave entry {index} out: their signatures do not verify"
            );
            self.finding(number, text);
        }
    }

    fn event(&mut self, number: u64, event: &EventRecord) {
        let keys = self.keys.get(&event.source);
        let verified = match (&self.domain, keys) {
            (Some(domain), Some(keys)) => {
                let said = (&event.source, event.sequence, event.subject.as_deref());
                let digest = event.body.sha256();
                let mut tried = keys.iter().rev();
                tried.any(|key| verify_digested_event(key, domain, said, digest, &event.signature).is_ok())
            }
            _ => {
                self.checked.events_unchecked += 1;
                self.changes_keys(number, event);
                return;
            }
        };
        match verified {
            true => self.checked.events += 1,
            // It was dropped for that.
            false if matches!(event.ended, Ended::Unauthentic(_)) => {}
            false => {
                let (source, sequence) = (&event.source.0, event.sequence);
                self.finding(
                    number,
                    format!(
                        "event {sequence} of {source} is not its source's: the signature does not verify"
                    ),
                );
                return;
            }
        }
        self.changes_keys(number, event);
    }

    /// Takes in whose key an event changed.
    fn changes_keys(&mut self, number: u64, event: &EventRecord) {
        let (Body::Whole(body), Ended::Decided(_)) = (&event.body, &event.ended) else { return };
        let body = match body {
            EventBody::Said(said) => {
                self.request(number, said);
                said.body()
            }
            body => body,
        };
        match body {
            EventBody::Joined(facts) => {
                self.keys.insert(SourceId::of_actuator(&facts.name), vec![facts.identity]);
            }
            EventBody::JoinedBy(by) => {
                self.keys.insert(SourceId::of_actuator(&by.facts.name), vec![by.facts.identity]);
            }
            EventBody::Removed { actuator } => drop(self.keys.remove(&SourceId::of_actuator(actuator))),
            EventBody::Identity(about) => self.identity(number, about),
            _ => {}
        }
    }

    /// A request that was decided has its author's signature.
    fn request(&mut self, number: u64, said: &Said) {
        let keys = self.keys.get(said.author());
        match keys.zip(self.domain.as_ref()).map(|(keys, domain)| is_signed_by(keys, domain, said)) {
            Some(true) => self.checked.requests += 1,
            None => self.checked.requests_unchecked += 1,
            Some(false) => {
                let (author, request) = (&said.author().0, said.number());
                let what =
                    format!("request {request} of {author} was decided, and is not signed by its author");
                self.finding(number, what);
            }
        }
    }

    fn operator(&mut self, whose: &SourceId, change: &OperatorChange) {
        match change {
            OperatorChange::Added(facts) | OperatorChange::Changed(facts) => {
                self.keys.insert(whose.clone(), facts.keys.clone());
            }
            OperatorChange::Removed => drop(self.keys.remove(whose)),
            // In force when enough controllers have said it; what they said before is not.
            OperatorChange::Founded(founders) => {
                let named = founders.iter();
                self.keys
                    .extend(named.map(|(name, facts)| (SourceId::of_operator(name), facts.keys.clone())));
            }
        }
    }

    fn identity(&mut self, number: u64, about: &IdentityEvent) {
        match about {
            IdentityEvent::Rotated(rotation) => {
                let domain = self.domain.clone();
                if domain.is_none_or(|domain| verify_rotation(&domain, rotation).is_ok()) {
                    self.keys.insert(rotation.whose.clone(), vec![rotation.old, rotation.new]);
                } else {
                    let whose = &rotation.whose.0;
                    self.finding(
                        number,
                        format!("the change of the key of {whose} is not signed by both keys"),
                    );
                }
            }
            IdentityEvent::Settled { whose, key, .. } => drop(self.keys.insert(whose.clone(), vec![*key])),
            // In force when enough controllers have said it: nobody else has the key anyway.
            IdentityEvent::Introduced { whose, key } => {
                let keys = self.keys.entry(whose.clone()).or_default();
                if !keys.contains(key) {
                    keys.push(*key);
                }
            }
            IdentityEvent::Operator { whose, change } => self.operator(whose, change),
            IdentityEvent::Certified { .. } | IdentityEvent::Revoked { .. } | IdentityEvent::Token { .. } => {
            }
        }
    }

    fn batch(&mut self, number: u64, header: &BatchHeader, first_leaf: u32, updates: &[Update]) {
        if first_leaf == 0 {
            self.begun = true;
            // The parts of a decision come again when a crash kept only some of them.
            self.open.insert(header.root, Open { leaves: Vec::new(), count: header.count });
            if self.open.len() > OPEN_MAX {
                self.open.pop_first();
            }
        }
        let Some(open) = self.open.get_mut(&header.root) else {
            if self.begun || self.checked.first == 1 {
                let version = header.index;
                self.finding(
                    number,
                    format!("the first updates of the batch of version {version} are missing"),
                );
            }
            return;
        };
        if open.leaves.len() != first_leaf as usize {
            self.open.remove(&header.root);
            self.finding(number, format!("updates of the batch of version {} are missing", header.index));
            return;
        }
        open.leaves.extend(updates.iter().map(|update| leaf_hash(&encode(update))));
        if open.leaves.len() < open.count as usize {
            return;
        }
        let Some(open) = self.open.remove(&header.root) else { return };
        let right = open.leaves.len() == open.count as usize && Tree::new(open.leaves).root() == header.root;
        if right {
            self.checked.batches += 1;
        } else {
            let version = header.index;
            self.finding(
                number,
                format!("the updates of version {version} are not those under the signed root"),
            );
        }
    }

    fn signed(&mut self, number: u64, header: &BatchHeader, signature: &GroupSignature) {
        let verified = match &self.group_key {
            Some((_, verifier)) => verifier.verify(header, signature),
            None => Err(TrustError::BadKey),
        };
        match verified {
            Ok(()) => {
                self.checked.signatures += 1;
                if let GroupSignature::Succeeded(by) = signature {
                    self.group_key = Some(with_verifier(GroupKey::Threshold(by.succession.key)));
                }
            }
            Err(error) => {
                let version = header.index;
                self.finding(
                    number,
                    format!("the signature over the batch of version {version} is not the group's: {error}"),
                );
            }
        }
    }

    fn acks(&mut self, number: u64, acks: &SignedAcks) {
        match self.keys.get(&SourceId::of_actuator(&acks.actuator)) {
            Some(keys) if keys.iter().any(|key| verify_acks(key, acks).is_ok()) => self.checked.acks += 1,
            Some(_) => self.finding(number, format!("acks of {} are not signed by it", acks.actuator)),
            None => self.checked.acks_unchecked += 1,
        }
    }

    fn group_keys(&mut self, number: u64, keys: &KeysRecord) {
        let key = GroupKey::Threshold(keys.group.key());
        match &self.group_key {
            None => self.group_key = Some(with_verifier(key)),
            // What one controller signed before names it: a signature under it that does not carry that word is found out.
            Some((GroupKey::Single(_), _)) => {}
            Some((known, _)) if *known != key => {
                self.finding(
                    number,
                    format!("in phase {} the group has another key: it never changes", keys.phase),
                );
            }
            Some(_) => {}
        }
        self.phases.insert(keys.phase, Box::new(keys.clone()));
    }

    fn contradiction(&mut self, number: u64, votes: &Contradiction) {
        match self.trusted.convicts.map(|convicts| convicts(&votes.evidence)) {
            None => self.checked.faults_seen += 1,
            Some(Some(member)) if member == votes.member => self.checked.faults_proven += 1,
            Some(_) => {
                let member = votes.member;
                let what = format!("votes that are said to prove that member {member} lied do not prove it");
                self.finding(number, what);
            }
        }
    }

    fn fault(&mut self, number: u64, fault: &SeenFault) {
        let Some(proof) = &fault.proof else {
            self.checked.faults_seen += 1;
            return;
        };
        match self.phases.get(&fault.phase) {
            Some(keys) if proof.convinces(fault.phase, fault.member, &keys.members, &keys.group) => {
                self.checked.faults_proven += 1;
            }
            Some(_) => {
                let member = fault.member;
                self.finding(
                    number,
                    format!("what is said to prove that member {member} lied does not prove it"),
                );
            }
            None => self.checked.faults_seen += 1,
        }
    }
}
