//! What was decided once is decided the same for ever: a log of before is replayed by the program of now.
//!
//! Random events of every kind, from seeds, and of all that they lead to one digest: each plan to the byte and in its order, each
//! rejection as such, and the store. The digest is a constant. A change of it is a change of what a replay decides: it breaks every
//! log that is there, so it comes with a rule of the order that says from where on it holds, never with a new constant.

use super::world::{self, actuators, event, label, pick};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;
use std::collections::BTreeSet;
use weir_apps::Deciders;
use weir_apps::fabric::{FabricSettings, order_of};
use weir_base::codec::encode;
use weir_model::domain::{DomainController, DomainEvent, DomainRecord, Fetch, Statement, StatementBody};
use weir_model::entry::{Entry, LocationEntry, Vni};
use weir_model::event::{Apply, EventBody, Mutation, SourceId, Transaction, Wanted};
use weir_model::filewall::{PolicyFile, PolicyOrder};
use weir_model::health::{HealthReport, RepairAction, RepairOrder};
use weir_model::identity::{IdentityEvent, Rotation};
use weir_model::plane::{OrderChange, PlaneOrder, PlaneReport};
use weir_model::signed::Signature;
use weir_model::{Change, Key, Update, Version};
use weir_store::{App, Store};
use weir_trust::batch::{GroupSigner, SingleSigner, sign_batch};
use weir_trust::identity::{KeyPair, sign_fetch};

const SEEDS: u64 = 12;
const EVENTS: u64 = 250;

/// What all runs together led to.
const DIGEST: &str = "d22dfb230769d95b6f8110c839c8af27";

/// FNV-1a of 128 bits: against change by mistake, not by malice.
struct Digest(u128);

impl Digest {
    fn new() -> Digest {
        Digest(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }

    fn add(&mut self, bytes: &[u8]) {
        for byte in (bytes.len() as u64).to_le_bytes().iter().chain(bytes) {
            self.0 = (self.0 ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
    }
}

/// A run of domain `a`, which may share networks with domain `b`.
struct Run {
    rng: ChaCha8Rng,
    app: Deciders,
    store: Store,
    now_ms: u64,
    /// The last statement of `b`.
    said: u64,
    /// Which kinds of keys were decided, so that a generator that makes too little is seen.
    seen: BTreeSet<String>,
}

fn signer_of_b() -> SingleSigner {
    SingleSigner(KeyPair::from_seed(&[98; 32]))
}

fn document(value: &serde_json::Value) -> Mutation {
    Mutation { id: world::document_id(value), expected: None, wanted: Wanted::Document(value.to_string()) }
}

impl Run {
    fn new(seed: u64) -> Run {
        let settings = FabricSettings {
            domain: Some(label("a")),
            believes_no_controller: seed.is_multiple_of(3),
            statements_waiting_max: 12,
            foreign_per_domain_max: 4,
            begin_again_ms: 1_000,
            entries_per_host_max: if seed % 4 == 1 { 24 } else { 262_144 },
            ..FabricSettings::default()
        };
        let app = Deciders::new(settings);
        Run {
            rng: ChaCha8Rng::seed_from_u64(seed),
            app,
            store: Store::new(),
            now_ms: 0,
            said: 0,
            seen: BTreeSet::new(),
        }
    }

    fn name(&mut self, letter: char, count: u32) -> String {
        format!("{letter}{}", self.rng.random_range(0..count))
    }

    fn order(&mut self) -> PlaneOrder {
        let plane: &&str = pick(&mut self.rng, &["echo", "wall", "echo"]);
        let plane = label(plane);
        let actuator = pick(&mut self.rng, &actuators()).clone();
        let name = self.name('o', 4);
        let spec = (self.rng.random_range(0..3) > 0).then(|| vec![self.rng.random_range(0..3); 3]);
        PlaneOrder { plane, actuator, name, spec }
    }

    fn apply(&mut self) -> EventBody {
        let count = self.rng.random_range(1..4);
        let mut orders: Vec<OrderChange> = Vec::new();
        for _ in 0..count {
            let order = self.order();
            let standing = order_of(&self.store, &order.actuator, &order.plane, &order.name);
            let version = standing.map_or(Version::ZERO, |ordered| ordered.version);
            let expected = (self.rng.random_range(0..3) == 0).then_some(version);
            orders.push(OrderChange { order, expected });
        }
        let mut resources = world::transaction(&mut self.rng, &self.store);
        resources.replace_all &= self.rng.random_range(0..2) == 0;
        EventBody::Apply(Apply { resources, orders })
    }

    /// Planes of before, ordered by events of their own.
    fn former_plane(&mut self) -> EventBody {
        let actuator = pick(&mut self.rng, &actuators()).clone();
        match self.rng.random_range(0..3) {
            0 => {
                let action =
                    *pick(&mut self.rng, &[None, Some(RepairAction::Kill), Some(RepairAction::Freeze)]);
                EventBody::Repair(RepairOrder { actuator, cgroup: self.name('c', 3), action })
            }
            1 => {
                let text = self.name('p', 3);
                let files = vec![PolicyFile { name: "a.yaml".into(), text }];
                let files = (self.rng.random_range(0..3) > 0).then_some(files);
                let wall = label(&self.name('w', 2));
                EventBody::FileWall(PolicyOrder { actuator, wall, files })
            }
            _ => {
                let alarms = self.rng.random_range(0..9);
                EventBody::Health(HealthReport { actuator, kernel: "k".into(), alarms, notes: Vec::new() })
            }
        }
    }

    fn report(&mut self) -> EventBody {
        let PlaneOrder { plane, actuator, name, .. } = self.order();
        EventBody::Report(PlaneReport { plane, actuator, name, bytes: vec![self.rng.random_range(0..9)] })
    }

    fn rotation(&mut self) -> EventBody {
        let name = pick(&mut self.rng, &actuators()).clone();
        let new = [self.rng.random_range(1..9); 32];
        let whose = SourceId::of_actuator(&name);
        let none = Signature { r: [0; 32], s: [0; 32] };
        let rotation = Rotation { whose, old: [0; 32], new, by_old: none, by_new: none };
        EventBody::Identity(Box::new(IdentityEvent::Rotated(rotation)))
    }

    /// A network of both domains, with an endpoint of this one.
    fn shared(&mut self) -> EventBody {
        let tail = self.rng.random_range(2..6);
        let host = self.name('h', 4);
        let mut documents = vec![
            json!({"kind": "network", "name": "both", "vni": 7000, "encapsulation": "vxlan"}),
            json!({"kind": "subnet", "network": "both", "name": "left", "v4": "10.1.0.0/24", "domain": "a"}),
            json!({"kind": "subnet", "network": "both", "name": "right", "v4": "10.2.0.0/24", "domain": "b"}),
            json!({"kind": "endpoint", "network": "both", "name": format!("x{tail}"), "subnet": "left", "host": host,
                "addresses": [format!("10.1.0.{tail}")], "attachment": {"netns": "both", "device": format!("x{tail}")}}),
        ];
        if self.rng.random_range(0..8) == 0 {
            documents.remove(2);
        }
        let mutations = documents.iter().map(document).collect();
        EventBody::Intent(Transaction { mutations, replace_all: false })
    }

    fn controllers(&mut self, letter: char) -> Vec<DomainController> {
        let count = self.rng.random_range(1..4);
        let one = |id| DomainController {
            id,
            key: KeyPair::from_seed(&[id as u8; 32]).public(),
            api: format!("192.0.2.{id}:{}", letter as u32),
        };
        (1..=count).map(one).collect()
    }

    fn domain(&mut self) -> EventBody {
        let about = match self.rng.random_range(0..8) {
            0 => DomainEvent::Forgotten { domain: label("b") },
            1 | 2 => DomainEvent::Known(DomainRecord {
                name: label("b"),
                group_key: signer_of_b().group_key(),
                authority_pem: String::new(),
                controllers: self.controllers('b'),
                underlays: vec!["10.98.0.0/16".parse().unwrap()],
            }),
            3 | 4 => DomainEvent::Controllers(self.controllers('a')),
            5 => {
                let (through, begin) = (self.rng.random_range(0..9), self.rng.random_range(0..2) == 0);
                let now_ms = self.now_ms;
                let fetch = |controller| Fetch {
                    domain: label("b"),
                    controller,
                    of: label("a"),
                    through,
                    begin,
                    now_ms,
                };
                let words =
                    (1..3).map(|id| sign_fetch(&KeyPair::from_seed(&[id as u8; 32]), fetch(id))).collect();
                DomainEvent::Heard { domain: label("b"), through, begin, words }
            }
            _ => self.statement(),
        };
        EventBody::Domain(Box::new(about))
    }

    fn statement(&mut self) -> DomainEvent {
        let address = [10, 2, 0, self.rng.random_range(2..5)].into();
        let at = (self.rng.random_range(0..3) > 0).then(|| LocationEntry {
            endpoint: label("y"),
            mac: "02:00:00:00:00:66".parse().unwrap(),
            host: label("h1"),
            underlay: [10, 98, 0, self.rng.random_range(1..3)].into(),
        });
        let body = StatementBody::Location { network: label("both"), vni: Vni(7000), address, at };
        let sequence = self.said + 1;
        // Now and then anew, so that one who was forgotten goes on.
        let after = if self.rng.random_range(0..4) == 0 { 0 } else { self.said };
        let update = Update {
            target: label("a"),
            key: Key::Statement { to: label("a"), sequence },
            version: Version(9),
            expected: Version::ZERO,
            change: Change::Put(Entry::Statement(Box::new(Statement { after, body }))),
        };
        let signed = sign_batch(&signer_of_b(), &label("b"), 1, Version(9), vec![update]).unwrap();
        let (header, updates) = signed;
        let batch = weir_model::signed::SignedUpdates { header, updates };
        DomainEvent::Forwarded { origin: label("b"), statements: vec![batch] }
    }

    fn body(&mut self) -> EventBody {
        match self.rng.random_range(0..20) {
            0 | 1 => EventBody::Order(self.order()),
            2 | 3 => self.apply(),
            4 => self.report(),
            5 => self.former_plane(),
            6 => self.rotation(),
            7 | 8 => self.shared(),
            9 | 10 => self.domain(),
            11 => EventBody::Clock { wall_ms: self.now_ms },
            _ => world::body(&mut self.rng, &self.store),
        }
    }

    /// Decides on one event, and adds what came of it. Whether it was taken.
    fn step(&mut self, body: EventBody, digest: &mut Digest) -> bool {
        let version = Version(self.store.version().0 + 1);
        self.now_ms += self.rng.random_range(0..5_000);
        let mut event = event(version, body);
        if event.source.is_controller() || matches!(event.body, EventBody::Domain(_)) {
            event.source = SourceId(format!("controller/c{}", self.rng.random_range(1..3)));
        }
        let said = matches!(&event.body, EventBody::Domain(about) if matches!(**about, DomainEvent::Forwarded { .. }));
        let mut view = self.store.view();
        match self.app.decide(&mut view, version, self.now_ms, &event) {
            Ok(decision) => {
                let writes = view.into_writes();
                self.store.commit(version, writes);
                self.said += u64::from(said);
                let kind = |key: &Key| key.to_string().split('/').next().unwrap_or_default().to_string();
                self.seen.extend(decision.plan.updates.iter().map(|planned| kind(&planned.update.key)));
                digest.add(&encode(&decision.plan));
                digest.add(&self.store.digest().to_le_bytes());
                true
            }
            Err(_) => {
                digest.add(b"rejected");
                false
            }
        }
    }
}

#[test]
fn what_was_decided_is_decided_the_same_for_ever() {
    let (mut digest, mut seen, mut taken) = (Digest::new(), BTreeSet::new(), 0);
    for seed in 0..SEEDS {
        let mut run = Run::new(seed);
        for name in ["g0", "h0", "h1", "h2"] {
            run.step(world::join(name), &mut digest);
        }
        for _ in 0..EVENTS {
            let body = run.body();
            taken += u64::from(run.step(body, &mut digest));
        }
        seen.append(&mut run.seen);
    }
    let wanted = [
        "filewall",
        "gateways",
        "location",
        "members",
        "network",
        "plane",
        "policy",
        "port",
        "repair",
        "route",
        "statement",
        "switches",
        "turn",
        "underlays",
        "virtual",
    ];
    assert!(wanted.iter().all(|kind| seen.contains(*kind)), "{seen:?}");
    assert!(taken > SEEDS * EVENTS / 3, "{taken}");
    assert_eq!(format!("{:032x}", digest.0), DIGEST, "what is decided changed: see the module");
}
