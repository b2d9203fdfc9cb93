//! The engine with a decider of its own: rooms, each with a sign that says the same to all, but in its guests' names.

use super::tables::ALL;
use super::*;
use weir_model::event::{ActuatorFacts, Role, SourceId};
use weir_model::plane::PlaneOrder;
use weir_model::update::{Reason, Refusal};
use weir_model::{Change, Dependency, Entry, Key, Label, Version};
use weir_store::{Store, TableName};

/// `name` -> what the sign says.
const SIGNS: TableName = "toy-sign";
/// `actuator 0 name` -> nothing: who has earned the sign.
const EARNED: TableName = "toy-earned";

fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

fn key(name: &str) -> Key {
    Key::Plane { plane: label("sign"), name: name.into() }
}

fn earned(actuator: &Label, name: &str) -> Vec<u8> {
    tables::joined(tables::name0(actuator.as_str()), name.as_bytes())
}

/// Takes orders for an actuator as: the sign says this to all, and this one has earned it.
struct Signs;

impl Decider for Signs {
    fn owns(&self, key: &Key) -> bool {
        matches!(key, Key::Plane { plane, .. } if plane.as_str() == "sign")
    }

    fn problem(&self, key: &Key) -> Option<String> {
        matches!(key, Key::Plane { name, .. } if name.is_empty()).then(|| "it has no name".to_string())
    }

    fn note(&mut self, desk: &mut Desk<'_, '_>, event: &Event, _: u64) -> Result<(), Rejection> {
        let EventBody::Order(PlaneOrder { actuator, name, spec, .. }) = &event.body else { return Ok(()) };
        match spec {
            Some(spec) => desk.view.put(SIGNS, name.as_bytes(), spec.clone())?,
            None => desk.view.delete(SIGNS, name.as_bytes()),
        }
        desk.flag(EARNED, &earned(actuator, name))?;
        for other in ["h1", "h2", "h9"] {
            desk.marks.key(&label(other), key(name));
        }
        Ok(())
    }

    fn entry(&mut self, desk: &mut Desk<'_, '_>, key: &Key) -> Result<Option<Entry>, Rejection> {
        let Key::Plane { name, .. } = key else { return Ok(None) };
        Ok(desk.view.get(SIGNS, name.as_bytes()).map(|sign| Entry::Plane(sign.to_vec())))
    }

    fn held(
        &mut self,
        desk: &mut Desk<'_, '_>,
        target: &Label,
        key: &Key,
        entry: &Entry,
        _before: Option<&[u8]>,
    ) -> Held {
        let (Key::Plane { name, .. }, Entry::Plane(sign)) = (key, entry) else { return Held::Not };
        match desk.has(EARNED, &earned(target, name)) && desk.member(target).is_some() {
            true if sign == b"own" => Held::Own(Entry::Plane(target.as_str().as_bytes().to_vec())),
            true => Held::Same,
            false => Held::Not,
        }
    }

    fn let_go(&mut self, desk: &mut Desk<'_, '_>, target: &Label, key: &Key) -> Result<(), Rejection> {
        if let Key::Plane { name, .. } = key {
            desk.view.delete(EARNED, &earned(target, name));
        }
        Ok(())
    }

    fn depend(&mut self, desk: &mut Desk<'_, '_>, issued: &[Issued], after: &mut [Vec<Dependency>]) {
        for (update, list) in issued.iter().zip(after) {
            // Each sign waits for the one before it, where there is one.
            if let Some(version) =
                desk.desired_version(&update.target, &key("a")).filter(|_| update.key != key("a"))
            {
                let (target, key) = (update.target.clone(), key("a"));
                list.push(Dependency { target, key, version, reason: Reason::ListBeforeUse });
            }
        }
    }
}

struct House(Store);

impl House {
    fn new(entries_max: usize) -> (House, Bounds) {
        let bounds = Bounds {
            actuators_max: 2,
            entries_per_host_max: entries_max,
            entries_per_gateway_max: entries_max,
        };
        (House(Store::new()), bounds)
    }

    /// What an event leads to, as `actuator key change`.
    fn decide(&mut self, bounds: Bounds, body: EventBody) -> Result<Vec<String>, Rejection> {
        let version = Version(self.0.version().0 + 1);
        let event = Event { source: SourceId("test".into()), sequence: version.0, body };
        let mut view = self.0.view();
        let plan = decide(&mut Desk::new(&mut view, version, bounds), &mut [&mut Signs], &event, 0)?;
        let writes = view.into_writes();
        self.0.commit(version, writes);
        let text = |planned: &weir_model::PlannedUpdate| {
            let update = &planned.update;
            let what = match &update.change {
                Change::Put(Entry::Plane(sign)) => String::from_utf8_lossy(sign).into_owned(),
                Change::Put(other) => format!("{other:?}"),
                Change::Delete => "-".to_string(),
            };
            format!("{} {} {what} after {}", update.target, update.key, planned.after.len())
        };
        Ok(plan.updates.iter().map(text).collect())
    }
}

fn join(name: &str) -> EventBody {
    let underlay = [10, 0, 0, 1].into();
    EventBody::Joined(ActuatorFacts { name: label(name), role: Role::Host, identity: [1; 32], underlay })
}

fn order(host: &str, name: &str, spec: Option<&[u8]>) -> EventBody {
    let spec = spec.map(<[u8]>::to_vec);
    EventBody::Order(PlaneOrder { plane: label("sign"), actuator: label(host), name: name.into(), spec })
}

#[test]
fn the_engine_serves_a_decider_that_knows_no_network() {
    let (mut house, bounds) = House::new(3);
    let mut said = |body| house.decide(bounds, body);
    for host in ["h1", "h2"] {
        assert_eq!(said(join(host)).unwrap(), [] as [&str; 0]);
    }
    assert!(said(join("h3")).unwrap_err().to_string().contains("actuators"));
    // Who is not there or has not earned it has nothing.
    assert_eq!(said(order("h1", "a", Some(b"x"))).unwrap(), ["h1 plane/sign/a x after 0"]);
    assert_eq!(said(order("h1", "a", Some(b"x"))).unwrap(), [] as [&str; 0], "unchanged");
    assert_eq!(
        said(order("h2", "a", Some(b"own"))).unwrap(),
        ["h1 plane/sign/a h1 after 0", "h2 plane/sign/a h2 after 0"]
    );
    assert_eq!(said(order("h1", "b", Some(b"y"))).unwrap(), ["h1 plane/sign/b y after 1"]);
    assert!(said(order("h1", "c", Some(b"z"))).is_ok());
    let full = said(order("h1", "d", Some(b"z"))).unwrap_err().to_string();
    assert!(full.contains("entries of actuator h1 of 4 is over the limit of 3"), "{full}");
    // What goes leaves a tombstone, and what it was earned by is forgotten.
    assert_eq!(said(order("h1", "b", None)).unwrap(), ["h1 plane/sign/b - after 1"]);
    let status = actuator(&house.0, &label("h1")).unwrap();
    assert_eq!((status.entries, status.tombstones), (2, 1));
    assert_eq!(desired_entry(&house.0, &label("h1"), &key("b")).unwrap().1, None);
    assert!(house.0.get(EARNED, &earned(&label("h1"), "b")).is_none());
}

#[test]
fn a_refusal_is_answered_with_what_its_decider_says_of_the_key() {
    let (mut house, bounds) = House::new(9);
    house.decide(bounds, join("h1")).unwrap();
    house.decide(bounds, order("h1", "a", Some(b"x"))).unwrap();
    let refused = |name: &str, version: u64, in_force: u64| EventBody::Refused {
        actuator: label("h1"),
        key: key(name),
        version: Version(version),
        refusal: Refusal::Stale { in_force: Version(in_force) },
    };
    let text = house.decide(bounds, refused("", 2, 2)).unwrap_err().to_string();
    assert!(text.contains("it has no name"), "{text}");
    // Its own value again, above what is in force there; and what nobody gave it goes.
    assert_eq!(house.decide(bounds, refused("a", 2, 1)).unwrap(), ["h1 plane/sign/a x after 0"]);
    assert_eq!(house.decide(bounds, refused("zz", 2, 3)).unwrap(), ["h1 plane/sign/zz - after 1"]);
    assert_eq!(actuator(&house.0, &label("h1")).unwrap().refusals.len(), 2);
    // Who is removed has nothing in any table of the engine.
    house.decide(bounds, EventBody::Removed { actuator: label("h1") }).unwrap();
    for table in ALL {
        assert_eq!(house.0.count(table), 0, "{table}");
    }
    assert_eq!(house.0.get(SIGNS, b"a").map(|cell| cell.value.to_vec()), Some(b"x".to_vec()));
}
