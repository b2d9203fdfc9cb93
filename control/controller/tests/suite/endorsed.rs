//! A group of four from a seed whose controllers endorse what they decided, with the switches: cores, members' parts and gates as they
//! run, and an agent that hands on what enough have endorsed. Frames and messages are lost, shares are dealt anew and controllers cease to
//! endorse and begin again in the middle of changes, and one endorses wrongly.
//!
//! Checked all the time: a switch has what the order desires or desired, and only the group's key says whose endorsements it takes. At
//! the end every switch has all, and none was refused anything that controllers know of.

use super::app::{self, TestApp, endpoint, event, facts, label, policy, transaction};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use weir_base::codec::encode;
use weir_base::world::{Rng, SimDisk};
use weir_controller::core::scheduler::SchedulerSettings;
use weir_controller::core::{Core, CoreSettings, Input, Item, Output, Signer};
use weir_controller::quorum::kept::Kept;
use weir_controller::quorum::{self, Me, Quorum, Way};
use weir_model::entry::ControllersEntry;
use weir_model::event::{EventBody, SourceId};
use weir_model::signed::{GroupSignature, HeaderEndorsement, SignedHeader, SignedUpdates, UnsignedUpdates};
use weir_model::update::Refusal;
use weir_model::{Entry, Key, Label, Version};
use weir_trust::batch::Verifier;
use weir_trust::endorsement::{endorse, verify_one};
use weir_trust::gate::{Gate, take};
use weir_trust::identity::{KeyPair, sign_acks};

const STEP_MS: u64 = 5;
const SWITCHES: [&str; 3] = ["h1", "h2", "g1"];

struct Replica {
    core: Core,
    quorum: Quorum,
    applied: usize,
}

/// What an agent has of a batch.
#[derive(Default)]
struct Batch {
    waiting: Vec<UnsignedUpdates>,
    endorsements: BTreeMap<u32, HeaderEndorsement>,
    doubted: bool,
}

struct Switch {
    gate: Gate,
    identity: KeyPair,
    batches: BTreeMap<Vec<u8>, Batch>,
    _dir: tempfile::TempDir,
}

impl Switch {
    fn controllers(&self) -> Option<ControllersEntry> {
        match &self.gate.get(&Key::Controllers)?.entry {
            Some(Entry::Controllers(known)) => Some(known.clone()),
            _ => None,
        }
    }

    /// What enough have endorsed of a batch, as one frame after the other.
    fn proven(&mut self, name: &[u8]) -> Vec<SignedUpdates> {
        let Some(known) = self.controllers() else { return Vec::new() };
        let Some(batch) = self.batches.get_mut(name) else { return Vec::new() };
        let right = |one: &&HeaderEndorsement| {
            let key = known.members.get(&one.by.member);
            let good = |key| verify_one(key, one.phase, &one.header, &one.by.signature).is_ok();
            one.phase == known.phase && key.is_some_and(|key| !batch.doubted || good(key))
        };
        let signatures: Vec<_> = batch.endorsements.values().filter(right).map(|one| one.by).collect();
        let enough = known.threshold as usize;
        if signatures.len() < enough {
            return Vec::new();
        }
        let signature =
            GroupSignature::Members { phase: known.phase, signatures: signatures[..enough].to_vec() };
        let signed = |frame: UnsignedUpdates| SignedUpdates {
            header: SignedHeader { header: frame.header, signature: signature.clone() },
            updates: frame.updates,
        };
        std::mem::take(&mut batch.waiting).into_iter().map(signed).collect()
    }
}

struct World {
    rng: Rng,
    now_ms: u64,
    replicas: BTreeMap<u32, Replica>,
    switches: BTreeMap<Label, Switch>,
    order: Vec<Vec<Item>>,
    network: Vec<(u64, u32, u32, Vec<u8>)>,
    sequence: u64,
    /// One frame or message of so many is lost; 0: none.
    loss: u64,
    liar: Option<u32>,
    /// Endorsements that the liar sent.
    lies: u64,
}

fn identity(member: u32) -> KeyPair {
    KeyPair::from_seed(&[100 + member as u8; 32])
}

fn replica(rng: &mut Rng, id: u32) -> Replica {
    let scheduler = SchedulerSettings { send_unsigned: true, ..SchedulerSettings::default() };
    let source = SourceId("controller/c1".into());
    let settings = CoreSettings {
        domain: label("d"),
        epoch: 1,
        source,
        keys: app::keys(),
        believes_one: true,
        scheduler,
    };
    let mut core = Core::new(settings, Signer::Shares, vec![Arc::new(TestApp)]);
    core.step(Input::Lead(id == 1), &mut Vec::new());
    let me = Me { domain: label("d"), id, identity: identity(id), way: Way::Endorsed };
    let mut randomness = Rng::new(rng.next_u64());
    let disk = Arc::new(SimDisk::new(rng.next_u64()));
    let quorum = Quorum::new(me, Kept::new(disk), Box::new(move |bytes: &mut [u8]| randomness.fill(bytes)));
    Replica { core, quorum, applied: 0 }
}

impl World {
    /// A group that has its key, endorses, and has its switches.
    fn new(seed: u64) -> World {
        let mut rng = Rng::new(seed);
        let replicas = (1..=4).map(|id| (id, replica(&mut rng, id))).collect();
        let mut world = World {
            rng,
            now_ms: 1_000,
            replicas,
            switches: BTreeMap::new(),
            order: Vec::new(),
            network: Vec::new(),
            sequence: 0,
            loss: 0,
            liar: None,
            lies: 0,
        };
        for id in 1..=4 {
            world.tell(id, quorum::Input::Group { leader: Some(1), voters: (1..=4).collect() });
        }
        world.until("a key", |world| world.replicas.values().all(|one| one.core.group_keys().endorses()));
        for name in SWITCHES {
            world.event(EventBody::Joined(facts(name, KeyPair::from_seed(&[5; 32]).public())));
        }
        world.until("everybody decided so", World::decided);
        let key = world.replicas[&1].core.group_keys().key().unwrap();
        for (number, name) in SWITCHES.into_iter().enumerate() {
            let dir = tempfile::tempdir().unwrap();
            let verifier = Verifier::new(label("d"), key.clone());
            let gate = Gate::open(label(name), verifier, &dir.path().join("gate")).unwrap();
            let digest = gate.digest();
            let identity = KeyPair::from_seed(&[5; 32]);
            world
                .switches
                .insert(label(name), Switch { gate, identity, batches: BTreeMap::new(), _dir: dir });
            for id in 1..=4 {
                let session = number as u64 + 1;
                world.core(id, Input::Connected { actuator: label(name), session, digest });
            }
        }
        world
    }

    fn session(name: &Label) -> u64 {
        SWITCHES.iter().position(|one| *one == name.as_str()).unwrap() as u64 + 1
    }

    fn event(&mut self, body: EventBody) {
        self.sequence += 1;
        let event = event("client", self.sequence, body);
        self.order.push(vec![Item::Event { now_ms: self.now_ms, event }]);
    }

    /// A change of something.
    fn change(&mut self) {
        let name = format!("e{}", self.rng.below(6));
        let host = ["h1", "h2"][self.rng.below(2) as usize];
        let action = ["allow", "deny"][self.rng.below(2) as usize];
        let mutation = match self.rng.below(3) {
            0 => policy("n1", action),
            _ => endpoint("n1", &name, host),
        };
        self.event(EventBody::Intent(transaction(vec![mutation])));
    }

    fn decided(&self) -> bool {
        self.replicas.values().all(|one| one.applied == self.order.len())
    }

    fn lost(&mut self) -> bool {
        self.loss > 0 && self.rng.chance(1, self.loss)
    }

    fn core(&mut self, id: u32, input: Input) {
        let mut out = Vec::new();
        self.replicas.get_mut(&id).unwrap().core.step(input, &mut out);
        for output in out {
            match output {
                Output::Sign(header) => self.tell(id, quorum::Input::Sign(Arc::downgrade(&header))),
                Output::KeysChanged => {
                    let keys = self.replicas[&id].core.group_keys().clone();
                    self.tell(id, quorum::Input::Keys(keys));
                }
                Output::AskState { target, session } => {
                    let entries = self.switches[&target].gate.iter();
                    let entries = entries.map(|(key, found)| (key.clone(), found.version)).collect();
                    self.core(id, Input::State { actuator: target, session, entries, last: true });
                }
                Output::Send { target, updates, .. } => {
                    assert!(matches!(updates.header.signature, GroupSignature::Threshold(_)));
                    if !self.lost() {
                        self.apply(&target, &updates);
                    }
                }
                Output::SendUnsigned { target, updates, .. } if !self.lost() => {
                    let name = encode(&updates.header);
                    let switch = self.switches.get_mut(&target).unwrap();
                    switch.batches.entry(name.clone()).or_default().waiting.push(updates);
                    self.hand_on(&target, &name);
                }
                Output::Repair { target, found } => {
                    self.order.push(vec![Item::Repair { now_ms: self.now_ms, actuator: target, found }]);
                }
                Output::Refused { refusal, key, .. } => panic!("{key} was refused: {refusal}"),
                Output::Forged { .. } => panic!("{output:?}"),
                // It comes back at once.
                Output::Close { target, session, .. } => {
                    let digest = self.switches[&target].gate.digest();
                    self.core(id, Input::Connected { actuator: target, session, digest });
                }
                _ => {}
            }
        }
    }

    fn tell(&mut self, id: u32, input: quorum::Input) {
        let mut out = Vec::new();
        self.replicas.get_mut(&id).unwrap().quorum.step(input, &mut out).unwrap();
        for output in out {
            match output {
                quorum::Output::Tell { to, message } if !self.lost() => {
                    let at_ms = self.now_ms + 1 + self.rng.below(2 * STEP_MS);
                    self.network.push((at_ms, id, to, encode(&message)));
                }
                quorum::Output::Signed { batch, signature } => {
                    let signature = GroupSignature::Threshold(signature);
                    self.core(id, Input::Signed { batch, signature });
                }
                quorum::Output::Endorsement { targets, endorsement } => {
                    for target in targets {
                        self.endorsed(id, &target, (*endorsement).clone());
                    }
                }
                quorum::Output::Propose(step) if id == 1 => {
                    self.order.push(vec![Item::Keys { now_ms: self.now_ms, step }]);
                }
                quorum::Output::Share { .. } => panic!("actuators get no shares"),
                quorum::Output::FoundOut(fault) => panic!("nobody lies about shares: {fault:?}"),
                _ => {}
            }
        }
    }

    fn endorsed(&mut self, id: u32, target: &Label, mut one: HeaderEndorsement) {
        if self.liar == Some(id) {
            self.lies += 1;
            let mut other = one.header.clone();
            other.root[0] ^= 1;
            one.by.signature = endorse(&identity(id), one.phase, &other);
        }
        if self.lost() {
            return;
        }
        let name = encode(&one.header);
        let Some(switch) = self.switches.get_mut(target) else { return };
        switch.batches.entry(name.clone()).or_default().endorsements.insert(id, one);
        self.hand_on(target, &name);
    }

    /// What the agent does.
    fn hand_on(&mut self, target: &Label, name: &[u8]) {
        let frames = self.switches.get_mut(target).unwrap().proven(name);
        for frame in frames {
            if self.apply(target, &frame) {
                continue;
            }
            let batch = self.switches.get_mut(target).unwrap().batches.get_mut(name).unwrap();
            let UnsignedUpdates { header, updates } =
                UnsignedUpdates { header: frame.header.header, updates: frame.updates };
            batch.waiting.push(UnsignedUpdates { header, updates });
            // The same again is of no use.
            if !std::mem::replace(&mut batch.doubted, true) {
                self.hand_on(target, name);
            }
        }
    }

    /// Gives a frame to the gate; false when that calls it forged, which goes no further.
    fn apply(&mut self, target: &Label, frame: &SignedUpdates) -> bool {
        let endorsed = matches!(frame.header.signature, GroupSignature::Members { .. });
        let switch = self.switches.get_mut(target).unwrap();
        let acks = take(&mut switch.gate, frame, |_| Ok(())).unwrap();
        if acks.iter().any(|ack| ack.result == Err(Refusal::Forged)) {
            assert!(endorsed && acks.iter().all(|ack| ack.result.is_err()));
            return false;
        }
        let acks = sign_acks(&switch.identity, target, acks);
        for id in 1..=4 {
            self.core(id, Input::Acks { session: World::session(target), acks: acks.clone() });
        }
        true
    }

    fn pass(&mut self) {
        self.now_ms += STEP_MS;
        let now_ms = self.now_ms;
        let due: Vec<_> = self.network.extract_if(.., |(at_ms, ..)| *at_ms <= now_ms).collect();
        for (_, from, to, bytes) in due {
            self.tell(to, quorum::Input::Peer { from, bytes });
        }
        for id in 1..=4 {
            let applied = self.replicas[&id].applied;
            if applied < self.order.len() && !self.rng.chance(1, 3) {
                self.replicas.get_mut(&id).unwrap().applied += 1;
                self.core(id, Input::Ordered(self.order[applied].clone()));
            }
            if now_ms.is_multiple_of(20) {
                self.tell(id, quorum::Input::Tick { now_ms });
                self.core(id, Input::Tick { now_ms });
            }
        }
        self.check();
    }

    /// Only the group's key says whose endorsements count.
    fn check(&self) {
        for switch in self.switches.values() {
            if let Some(known) = switch.gate.get(&Key::Controllers) {
                assert!(matches!(known.header.signature, GroupSignature::Threshold(_)));
            }
        }
    }

    fn until(&mut self, what: &str, done: impl Fn(&World) -> bool) {
        let limit_ms = self.now_ms + 120_000;
        while !done(self) {
            assert!(self.now_ms < limit_ms, "{what} does not come");
            self.pass();
        }
    }

    /// Every switch has what is desired, the controllers of now included.
    fn whole(&self) -> bool {
        let core = &self.replicas[&1].core;
        let entries = app::entries(core.store());
        let controllers = core.group_keys().controllers();
        self.decided()
            && self.switches.iter().all(|(name, switch)| {
                let wanted: BTreeMap<&Key, (Version, &Entry)> = entries
                    .iter()
                    .filter(|((target, _), _)| target == name)
                    .map(|((_, key), (version, entry))| (key, (*version, entry)))
                    .collect();
                let found: BTreeMap<&Key, (Version, &Entry)> = switch
                    .gate
                    .iter()
                    .filter(|(key, _)| **key != Key::Controllers)
                    .filter_map(|(key, found)| Some((key, (found.version, found.entry.as_ref()?))))
                    .collect();
                found == wanted && switch.controllers() == controllers
            })
    }

    fn counted(&self, of: impl Fn(&Gate) -> u64) -> u64 {
        self.switches.values().map(|switch| of(&switch.gate)).sum()
    }
}

fn run(seed: u64, loss: u64, liar: Option<u32>) -> World {
    let mut world = World::new(seed);
    world.until("the switches know the controllers", World::whole);
    (world.loss, world.liar) = (loss, liar);
    for _ in 0..30 {
        world.change();
        for _ in 0..world.rng.below(6) {
            world.pass();
        }
    }
    world.until("everything is in force", World::whole);
    // New shares in the middle of changes: what members of the old phase endorse is on its way still.
    let phase = world.replicas[&1].core.group_keys().phase();
    world.tell(1, quorum::Input::Refresh);
    while world.replicas[&1].core.group_keys().phase() == phase {
        if world.rng.chance(1, 4) {
            world.change();
        }
        world.pass();
    }
    for _ in 0..10 {
        world.change();
        world.pass();
    }
    world.until("everything is in force in the new phase", World::whole);
    world
}

#[test]
fn switches_take_what_enough_controllers_endorsed_whatever_is_lost() {
    for seed in 0..6 {
        let loss = [0, 20, 6][seed as usize % 3];
        let mut world = run(seed, loss, None);
        assert!(world.counted(|gate| gate.counters.endorsed) > 10, "seed {seed}");
        if loss == 0 {
            let before = world.counted(|gate| gate.counters.endorsed_badly);
            (0..10).for_each(|_| world.change());
            world.until("everything is in force", World::whole);
            assert_eq!(world.counted(|gate| gate.counters.endorsed_badly), before);
        }
    }
}

#[test]
fn one_that_endorses_wrongly_holds_nothing_up() {
    for (seed, liar) in [(20, 1), (21, 2), (22, 4)] {
        let world = run(seed, if liar == 4 { 10 } else { 0 }, Some(liar));
        assert!(world.lies > 30);
        assert!(world.counted(|gate| gate.counters.endorsed) > 10, "seed {seed}: the others are enough");
        let badly = world.counted(|gate| gate.counters.endorsed_badly);
        assert!(badly > 0, "seed {seed}: the gate found it out");
        let proven_by: BTreeSet<u32> = world
            .switches
            .values()
            .flat_map(|switch| switch.gate.iter())
            .filter_map(|(_, found)| match &found.header.signature {
                GroupSignature::Members { signatures, .. } => Some(signatures.iter().map(|one| one.member)),
                _ => None,
            })
            .flatten()
            .collect();
        assert!(!proven_by.contains(&liar), "what is shown as endorsed by somebody is");
    }
}

#[test]
fn where_controllers_cease_to_endorse_nothing_is_lost() {
    let mut world = run(30, 0, None);
    // The order says so; who endorses still, by its settings, does it no more.
    world.order.push(vec![Item::Keys {
        now_ms: world.now_ms,
        step: weir_controller::core::keys::KeyStep::Endorse(false),
    }]);
    for _ in 0..10 {
        world.change();
        world.pass();
    }
    // The leader has it otherwise in its settings, and says so.
    world.until("they endorse again", |world| {
        world.whole() && world.replicas[&1].core.group_keys().endorses()
    });
    let before = world.counted(|gate| gate.counters.endorsed);
    (0..5).for_each(|_| world.change());
    world.until("everything is in force", World::whole);
    assert!(world.counted(|gate| gate.counters.endorsed) > before);
}
