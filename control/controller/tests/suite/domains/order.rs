//! One domain: an order that is right by assumption (orders have simulations of their own), and controllers that each follow it at
//! their own pace.

use super::check::Taking;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use weir_apps::Deciders;
use weir_apps::fabric::FabricSettings;
use weir_apps::fabric::domains as query;
use weir_base::codec::encode;
use weir_controller::core::admission::SourceKeys;
use weir_controller::core::scheduler::SchedulerSettings;
use weir_controller::core::{Core, CoreSettings, Input, Item, Outcome, Output, SharedApp, decode_batch};
use weir_controller::domains::{Asker, Words};
use weir_model::Label;
use weir_model::domain::{DomainController, DomainEvent, DomainRecord, statement_of};
use weir_model::event::{ActuatorFacts, Event, EventBody, Mutation, Role, SourceId, Transaction, Wanted};
use weir_model::resource::{Kind, ResourceId};
use weir_trust::batch::{GroupSigner, SingleSigner};
use weir_trust::identity::{KeyPair, sign_event};

/// The network that all domains have a subnet of.
pub const RED: &str = "red";
pub const VNI: u32 = 7000;
/// A network of one domain only.
pub const OWN: &str = "own";

pub fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

/// The number of a domain in addresses: `a` is the first.
pub fn number(domain: &Label) -> u8 {
    domain.as_str().as_bytes()[0] - b'a' + 1
}

fn key(domain: &Label, id: u8) -> KeyPair {
    let mut seed = [7; 32];
    seed[..2].copy_from_slice(&[number(domain), id]);
    KeyPair::from_seed(&seed)
}

pub fn identity(domain: &Label, id: u64) -> KeyPair {
    key(domain, id as u8)
}

/// The group's key. It is one here: that no minority has it is shown elsewhere.
pub fn signer(domain: &Label) -> SingleSigner {
    SingleSigner(key(domain, 200))
}

/// Where a domain's hosts are.
pub fn underlay(domain: &Label) -> String {
    format!("10.{}.0.0/16", 100 + number(domain))
}

/// Its controllers; the generation stands for all that may change about them.
pub fn list(domain: &Label, count: usize, generation: u64) -> Vec<DomainController> {
    let one = |id: u64| DomainController {
        id,
        key: identity(domain, id).public(),
        api: format!("{domain}{id}:{generation}"),
    };
    (1..=count as u64).map(one).collect()
}

pub fn record(domain: &Label, count: usize) -> DomainRecord {
    DomainRecord {
        name: domain.clone(),
        group_key: signer(domain).group_key(),
        authority_pem: String::new(),
        controllers: list(domain, count, 0),
        underlays: vec![underlay(domain).parse().unwrap()],
    }
}

fn source(id: u64) -> SourceId {
    SourceId::of_controller(&label(&format!("controller-{id}")))
}

fn operator() -> SourceId {
    SourceId("client".into())
}

/// A resource of a network, or the network itself, with what its document says beside kind, network and name.
pub fn document(kind: Kind, network: &str, name: &str, more: &str) -> Mutation {
    let id = id(kind, network, name);
    let of = if kind == Kind::Network { String::new() } else { format!(r#""network":"{network}","#) };
    let text = format!(r#"{{"kind":"{kind}",{of}"name":"{name}",{more}}}"#);
    Mutation { id, expected: None, wanted: Wanted::Document(text) }
}

fn id(kind: Kind, network: &str, name: &str) -> ResourceId {
    let network = (kind != Kind::Network).then(|| label(network));
    ResourceId { kind, network, name: label(name) }
}

pub fn absent(kind: Kind, network: &str, name: &str) -> Mutation {
    Mutation { id: id(kind, network, name), expected: None, wanted: Wanted::Absent }
}

pub fn subnet(of: &Label) -> Mutation {
    let more = format!(r#""v4":"10.{}.0.0/24","domain":"{of}""#, number(of));
    document(Kind::Subnet, RED, &format!("of-{of}"), &more)
}

#[derive(Clone)]
pub struct Batch {
    bytes: Vec<u8>,
    /// What it changes concerns no other domain.
    pub local: bool,
}

pub struct Proposal {
    /// A controller's number in the list, and which life of it; an operator's when there is none.
    pub by: Option<(usize, u64)>,
    pub item: Item,
    pub local: bool,
}

impl Proposal {
    /// Whether it is what a domain told.
    pub fn brings(&self, of: &Label) -> bool {
        let Item::Event { event, .. } = &self.item else { return false };
        let EventBody::Domain(about) = &event.event.body else { return false };
        matches!(&**about, DomainEvent::Forwarded { origin, .. } if origin == of)
    }
}

/// One controller.
pub struct Replica {
    pub id: u64,
    pub core: Core,
    pub applied: usize,
    pub up: bool,
    pub lies: bool,
    /// Grows when it dies.
    pub life: u64,
    pub snapshot: Option<(usize, Vec<u8>)>,
    pub askers: BTreeMap<Label, Asker>,
    pub words: Words,
    /// Kept on its disk: no number is used twice.
    pub sequence: u64,
}

/// See the module.
pub struct Domain {
    pub name: Label,
    /// Some of its controllers may lie, so each may propose; else one leads.
    pub byzantine: bool,
    pub log: Vec<Batch>,
    pub proposals: Vec<Proposal>,
    pub replicas: Vec<Replica>,
    pub leader: usize,
    pub generation: u64,
    operator_sequence: u64,
    /// Whether a controller hears that its event was refused.
    pub forgetful: bool,
    /// Batches that somebody has applied.
    pub frontier: usize,
    pub taking: Taking,
    /// What each domain was told: numbers, and what each follows.
    pub told: BTreeMap<Label, BTreeMap<u64, u64>>,
    pub local_events: u64,
    pub violations: Vec<String>,
}

fn settings(domain: &Label, id: u64, count: usize) -> CoreSettings {
    let mut keys: SourceKeys =
        (1..=count as u64).map(|id| (source(id), identity(domain, id).public())).collect();
    keys.insert(operator(), key(domain, 201).public());
    let scheduler = SchedulerSettings::default();
    CoreSettings { domain: domain.clone(), epoch: 1, source: source(id), keys, believes_one: true, scheduler }
}

fn apps(domain: &Label, count: usize, byzantine: bool) -> Vec<SharedApp> {
    vec![Arc::new(Deciders::new(FabricSettings {
        domain: Some(domain.clone()),
        believes_no_controller: byzantine,
        controllers_founded: count,
        statements_waiting_max: 16,
        foreign_per_domain_max: 64,
        begin_again_ms: 1_000,
        ..FabricSettings::default()
    }))]
}

impl Domain {
    pub fn new(name: &str, count: usize, byzantine: bool) -> Domain {
        let name = label(name);
        let replicas = (1..=count as u64).map(|id| Replica {
            id,
            core: Core::new(
                settings(&name, id, count),
                Box::new(signer(&name)),
                apps(&name, count, byzantine),
            ),
            applied: 0,
            up: true,
            lies: byzantine && id == count as u64,
            life: 0,
            snapshot: None,
            askers: BTreeMap::new(),
            words: Words::default(),
            sequence: 0,
        });
        let mut domain = Domain {
            replicas: replicas.collect(),
            name,
            byzantine,
            log: Vec::new(),
            proposals: Vec::new(),
            leader: 0,
            generation: 0,
            operator_sequence: 0,
            forgetful: false,
            frontier: 0,
            taking: Taking::default(),
            told: BTreeMap::new(),
            local_events: 0,
            violations: Vec::new(),
        };
        domain.furnish();
        domain
    }

    /// Two hosts, a gateway, and a network of its own.
    fn furnish(&mut self) {
        for (last, name, role) in [(11, "h1", Role::Host), (12, "h2", Role::Host), (21, "g1", Role::Gateway)]
        {
            let underlay = [10, 100 + number(&self.name), 0, last].into();
            let facts = ActuatorFacts { name: label(name), role, identity: [last; 32], underlay };
            self.operate(EventBody::Joined(facts), true);
        }
        let own = vec![
            document(Kind::Network, OWN, OWN, r#""vni":5"#),
            document(Kind::Subnet, OWN, "main", r#""v4":"10.200.0.0/24""#),
            document(Kind::Network, RED, RED, &format!(r#""vni":{VNI},"encapsulation":"vxlan""#)),
            subnet(&self.name),
        ];
        self.change(own, true);
    }

    /// Orders all that is proposed, in its order, and all follow.
    pub fn settle(&mut self, now_ms: u64) {
        while !self.proposals.is_empty() {
            self.order(0, now_ms);
        }
        (0..self.replicas.len()).for_each(|replica| self.apply_all(replica));
    }

    /// An operator's event, signed for as the API does.
    pub fn operate(&mut self, body: EventBody, local: bool) {
        self.operator_sequence += 1;
        let event = Event { source: operator(), sequence: self.operator_sequence, body };
        let event = sign_event(&key(&self.name, 201), &self.name, event, None);
        self.proposals.push(Proposal { by: None, item: Item::Event { now_ms: 0, event }, local });
    }

    pub fn change(&mut self, mutations: Vec<Mutation>, local: bool) {
        self.operate(EventBody::Intent(Transaction { mutations, replace_all: false }), local);
    }

    pub fn about(&mut self, about: DomainEvent) {
        self.operate(EventBody::Domain(Box::new(about)), false);
    }

    /// A controller proposes something of its own.
    pub fn propose(&mut self, replica: usize, about: DomainEvent) {
        let name = self.name.clone();
        let one = &mut self.replicas[replica];
        one.sequence += 1;
        let body = EventBody::Domain(Box::new(about));
        let event = Event { source: source(one.id), sequence: one.sequence, body };
        let event = sign_event(&identity(&name, one.id), &name, event, None);
        let item = Item::Event { now_ms: 0, event };
        self.proposals.push(Proposal { by: Some((replica, one.life)), item, local: false });
    }

    /// Orders a proposal at a time. Where one leads, it is the only one whose proposals count.
    pub fn order(&mut self, at: usize, now_ms: u64) {
        let Proposal { by, item, local } = self.proposals.remove(at);
        if !self.byzantine && by.is_some_and(|(replica, _)| replica != self.leader) {
            return;
        }
        let Item::Event { event, .. } = item else { return };
        let item = bytes::Bytes::from(encode(&Item::Event { now_ms, event }));
        let bytes = weir_order::batcher::encode(&[item]).to_vec();
        self.log.push(Batch { bytes, local });
    }

    /// Whose turn it is to order something that could be for so long.
    pub fn may_order(&self, replica: usize, since_ms: u64) -> bool {
        if !self.byzantine {
            return replica == self.leader;
        }
        let before = self.replicas[..replica].iter().filter(|one| one.up).count() as u64;
        since_ms >= before * 300
    }

    pub fn is_current(&self, replica: usize) -> bool {
        self.replicas[replica].applied == self.log.len()
    }

    /// One batch more at a controller.
    pub fn apply(&mut self, replica: usize) {
        let Some(batch) = self.log.get(self.replicas[replica].applied).cloned() else { return };
        let (own, first) =
            (source(self.replicas[replica].id), self.replicas[replica].applied == self.frontier);
        let one = &mut self.replicas[replica];
        let before = Taking::look(&one.core);
        let changes = one.core.outbox().changes();
        let items = decode_batch(&batch.bytes).unwrap();
        let mut out = Vec::new();
        one.core.step(Input::Ordered(items), &mut out);
        one.applied += 1;
        if batch.local && one.core.outbox().changes() != changes {
            self.violations.push(format!("{}: a local event was told to somebody", self.name));
        }
        for output in out {
            match output {
                Output::Decided { event, outcome } => {
                    let EventBody::Domain(about) = &event.event.body else { continue };
                    let DomainEvent::Forwarded { origin, .. } = &**about else {
                        if let (DomainEvent::Forgotten { domain }, Outcome::Committed(_)) =
                            (&**about, &outcome)
                            && first
                        {
                            self.taking.forget(domain);
                        }
                        continue;
                    };
                    let rejected = matches!(outcome, Outcome::Rejected(_));
                    if rejected
                        && event.event.source == own
                        && !self.forgetful
                        && let Some(asker) = one.askers.get_mut(origin)
                    {
                        asker.lost(one.core.now_ms());
                    }
                    let wrong = self.taking.check(&before, &one.core, about, &outcome, first);
                    self.violations.extend(wrong.map(|wrong| format!("{}: {wrong}", self.name)));
                }
                Output::Prepared { updates, .. } if first => {
                    for (to, sequence, statement) in
                        updates.iter().filter_map(|one| statement_of(&one.update))
                    {
                        let told = self.told.entry(to.clone()).or_default();
                        if told.insert(sequence, statement.after).is_some() {
                            self.violations
                                .push(format!("{}: number {sequence} was told {to} twice", self.name));
                        }
                    }
                }
                _ => {}
            }
        }
        if first {
            self.frontier += 1;
            self.local_events += u64::from(batch.local);
        }
    }

    pub fn apply_all(&mut self, replica: usize) {
        while self.replicas[replica].up && !self.is_current(replica) {
            self.apply(replica);
        }
    }

    /// A controller is killed: what it knew is gone, and what it proposed may or may not be ordered.
    pub fn kill(&mut self, replica: usize) {
        let one = &mut self.replicas[replica];
        one.up = false;
        one.life += 1;
        one.askers.clear();
        one.words = Words::default();
    }

    /// It starts again from its snapshot, and follows the order from there.
    pub fn start(&mut self, replica: usize) {
        let (name, count) = (self.name.clone(), self.replicas.len());
        let one = &mut self.replicas[replica];
        let (settings, apps) = (settings(&name, one.id, count), apps(&name, count, self.byzantine));
        (one.applied, one.core) = match &one.snapshot {
            None => (0, Core::new(settings, Box::new(signer(&name)), apps)),
            Some((at, bytes)) => {
                (*at, Core::from_snapshot(settings, Box::new(signer(&name)), apps, bytes).unwrap())
            }
        };
        one.up = true;
    }

    /// Another one leads, with all that was ordered.
    pub fn elect(&mut self, replica: usize) {
        if self.replicas[replica].up {
            self.apply_all(replica);
            self.leader = replica;
        }
    }

    pub fn list(&self) -> Vec<DomainController> {
        list(&self.name, self.replicas.len(), self.generation)
    }

    /// One that tells the truth and has all that was ordered.
    pub fn truth(&self) -> &Core {
        let found =
            self.replicas.iter().enumerate().find(|(at, one)| one.up && !one.lies && self.is_current(*at));
        &found.unwrap().1.core
    }

    /// Numbers that some domain was told since it was last told everything anew, and that must therefore be taken.
    pub fn must_be_taken(&self, by: &Label) -> BTreeSet<u64> {
        let told = self.told.get(by).cloned().unwrap_or_default();
        let begin = told.iter().rev().find(|(_, after)| **after == 0).map_or(0, |(number, _)| *number);
        let last = query::told_domain(self.truth().store(), by).map_or(0, |lane| lane.last);
        told.into_keys().filter(|number| (begin..=last).contains(number)).collect()
    }
}

impl Domain {
    /// Up to where a controller has what another domain told.
    pub fn taking_through(&self, replica: usize, of: &Label) -> u64 {
        query::domain(self.replicas[replica].core.store(), of).map_or(0, |known| known.taken.through)
    }
}
