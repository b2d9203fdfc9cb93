//! The list of switches: who is told of whom, in which order, and that who cannot read it is told nothing.

use super::domains::record;
use super::*;
use std::collections::BTreeSet;
use std::net::IpAddr;
use weir_model::domain::{DomainController, DomainEvent};
use weir_model::entry::{MEMBER_BUCKETS, member_bucket};
use weir_model::session::{PROTOCOL, PROTOCOL_MIN};

impl Cloud {
    pub(super) fn by(&mut self, source: &str, body: EventBody) -> Result<Plan, Rejection> {
        let version = Version(self.store.version().0 + 1);
        let event = Event { source: SourceId(source.into()), sequence: version.0, body };
        let mut view = self.store.view();
        let plan = self.app.decide(&mut view, version, self.now_ms, &event)?.plan;
        let writes = view.into_writes();
        self.store.commit(version, writes);
        Ok(plan)
    }

    pub(super) fn speaks(&mut self, name: &str, protocol: u32) -> Plan {
        self.by("controller/c1", EventBody::Speaks { name: label(name), protocol }).unwrap()
    }

    /// The list of an actuator, and whether it counts.
    fn listed(&self, at: &str) -> (BTreeSet<IpAddr>, bool) {
        let mut all = BTreeSet::new();
        for bucket in 0..MEMBER_BUCKETS {
            if let Some(Entry::Switches(some)) = self.entry(at, Key::Switches { bucket }) {
                assert!(some.is_sorted() && some.iter().all(|one| member_bucket(*one) == bucket));
                all.extend(some);
            }
        }
        (all, self.entry(at, Key::Underlays).is_some())
    }
}

fn at(last: u8) -> IpAddr {
    [10, 0, 0, last].into()
}

fn switches(last: u8) -> String {
    format!("switches/{}", member_bucket(at(last)))
}

#[test]
fn who_can_read_it_has_the_list_and_nobody_else() {
    let mut cloud = Cloud::with_switches();
    let before = cloud.store.digest();
    assert!(cloud.by("client", EventBody::Speaks { name: label("h1"), protocol: PROTOCOL }).is_err());
    assert!(cloud.by("controller/c1", EventBody::Speaks { name: label("h9"), protocol: PROTOCOL }).is_err());
    assert_eq!(cloud.store.digest(), before);
    let everybody: BTreeSet<IpAddr> = [101, 102, 1, 2, 3].map(at).into();
    let plan = cloud.speaks("h1", PROTOCOL);
    assert!(plan.updates.iter().all(|planned| planned.update.target == label("h1")));
    assert_eq!(cloud.listed("h1"), (everybody.clone(), true));
    // The list counts when it is whole.
    let waits = after(&plan, "+h1 underlays");
    assert_eq!(waits.len(), everybody.iter().map(|one| member_bucket(*one)).collect::<BTreeSet<_>>().len());
    assert_eq!(cloud.speaks("h1", PROTOCOL), Plan::default(), "said again");
    for other in ["h2", "g1"] {
        assert_eq!(cloud.listed(other), (BTreeSet::new(), false), "an older release");
    }
    let gone = cloud.speaks("h1", PROTOCOL_MIN);
    assert!(gone.updates.iter().all(|planned| planned.update.change == Change::Delete));
    assert_eq!(cloud.listed("h1"), (BTreeSet::new(), false));
}

#[test]
fn a_switch_that_joins_moves_or_goes_costs_each_other_one_entry() {
    let mut cloud = Cloud::with_switches();
    for name in ["g1", "g2", "h1", "h2"] {
        cloud.speaks(name, PROTOCOL);
    }
    let told = |plan: &Plan, last: u8| {
        let key = switches(last);
        lines(plan).iter().filter(|line| line.ends_with(&format!(" {key}"))).count()
    };
    let plan = cloud.join("h9", Role::Host, 9);
    assert_eq!(told(&plan, 9), 4, "{:?}", lines(&plan));
    let moved = cloud.join("h9", Role::Host, 10);
    assert_eq!((told(&moved, 9), told(&moved, 10)), (4, 4), "{:?}", lines(&moved));
    let (list, _) = cloud.listed("h1");
    assert!(list.contains(&at(10)) && !list.contains(&at(9)));
    let removed = cloud.decide(EventBody::Removed { actuator: label("h9") }).unwrap();
    assert_eq!(told(&removed, 10), 4, "{:?}", lines(&removed));
    assert!(!cloud.listed("g1").0.contains(&at(10)));
    // Two with one address: it stays while one of them has it.
    cloud.join("h7", Role::Host, 3);
    cloud.decide(EventBody::Removed { actuator: label("h7") }).unwrap();
    assert!(cloud.listed("h1").0.contains(&at(3)));
    // Who is forgotten and joins again is asked again what it speaks.
    cloud.decide(EventBody::Removed { actuator: label("h1") }).unwrap();
    cloud.join("h1", Role::Host, 1);
    assert_eq!(cloud.listed("h1"), (BTreeSet::new(), false));
}

#[test]
fn receivers_are_told_before_senders() {
    let mut cloud = Cloud::with_switches();
    for name in ["g1", "g2", "h1", "h2"] {
        cloud.speaks(name, PROTOCOL);
    }
    let plan = cloud.join("h9", Role::Host, 9);
    let waits = after(&plan, "+h9 gateways");
    for gateway in ["g1", "g2"] {
        let wanted = format!("{gateway} {} @", switches(9));
        assert!(waits.iter().any(|wait| wait.starts_with(&wanted)), "{waits:?}");
    }
    // A place is told when its host takes what comes from there, and the other way round.
    cloud.apply(red());
    let plan = cloud.apply(json!([endpoint("red", "web", "h1"), endpoint("red", "db", "h2")]));
    let waits = after(&plan, "+g1 location/1/10.0.0.2");
    assert!(waits.iter().any(|wait| wait.starts_with(&format!("h2 {} @", switches(101)))), "{waits:?}");
    assert!(waits.iter().any(|wait| wait.starts_with(&format!("g1 {} @", switches(2)))), "{waits:?}");
    let usage = UsageReport {
        actuator: label("h1"),
        window_ms: 1000,
        through_gateway: vec![Usage { vni: Vni(1), address: "10.0.0.2".parse().unwrap(), bytes: 1 << 30 }],
        direct: Vec::new(),
        turns: Vec::new(),
    };
    let plan = cloud.decide(EventBody::Usage(usage)).unwrap();
    let waits = after(&plan, "+h1 location/1/10.0.0.2");
    assert!(waits.iter().any(|wait| wait.starts_with(&format!("h2 {} @", switches(1)))), "{waits:?}");
    assert!(waits.iter().any(|wait| wait.starts_with(&format!("h1 {} @", switches(2)))), "{waits:?}");
}

#[test]
fn a_domain_that_is_forgotten_is_in_nobodys_list() {
    let mut cloud = Cloud::with_switches();
    cloud.app = Deciders::new(FabricSettings { domain: Some(label("a")), ..FabricSettings::default() });
    cloud.speaks("h1", PROTOCOL);
    let places = |cloud: &Cloud| match cloud.entry("h1", Key::Underlays) {
        Some(Entry::Underlays(entry)) => {
            let text = |list: Vec<ipnet::IpNet>| list.iter().map(ToString::to_string).collect::<Vec<_>>();
            (text(entry.switches), text(entry.guarded))
        }
        other => panic!("{other:?}"),
    };
    let none: Vec<String> = Vec::new();
    assert_eq!(places(&cloud), (none.clone(), none.clone()));
    let mut record = record("b");
    // Bits behind the length name no other place.
    record.underlays = vec!["198.18.2.7/24".parse().unwrap(), "198.18.2.0/24".parse().unwrap()];
    let plan = cloud.decide(EventBody::Domain(Box::new(DomainEvent::Known(record)))).unwrap();
    assert!(lines(&plan).contains(&"+h1 underlays".to_string()), "{:?}", lines(&plan));
    assert_eq!(places(&cloud), (vec!["198.18.2.0/24".to_string()], none.clone()));
    let own = |id: u64, api: &str| DomainController { id, key: [1; 32], api: api.into() };
    let list = vec![own(1, "192.0.2.1:7443"), own(2, "[fd00::2]:7443"), own(3, "c3.example:7443")];
    cloud.by("controller/c1", EventBody::Domain(Box::new(DomainEvent::Controllers(list)))).unwrap();
    let guarded = vec!["192.0.2.1/32".to_string(), "fd00::2/128".to_string()];
    assert_eq!(places(&cloud), (vec!["198.18.2.0/24".to_string()], guarded.clone()));
    let forgotten = DomainEvent::Forgotten { domain: label("b") };
    let plan = cloud.decide(EventBody::Domain(Box::new(forgotten))).unwrap();
    assert!(lines(&plan).contains(&"+h1 underlays".to_string()), "{:?}", lines(&plan));
    assert_eq!(places(&cloud), (none, guarded));
}

#[test]
fn where_one_may_lie_enough_must_say_it() {
    let mut cloud = Cloud::with_switches();
    let settings =
        FabricSettings { believes_no_controller: true, controllers_founded: 4, ..FabricSettings::default() };
    cloud.app = Deciders::new(settings);
    let says = |protocol: u32| EventBody::Speaks { name: label("h1"), protocol };
    for _ in 0..3 {
        cloud.by("controller/1", says(PROTOCOL)).unwrap();
        assert!(!cloud.listed("h1").1, "one alone");
    }
    cloud.by("controller/2", says(PROTOCOL)).unwrap();
    assert!(cloud.listed("h1").1);
    cloud.by("controller/3", says(PROTOCOL_MIN)).unwrap();
    assert!(cloud.listed("h1").1, "a liar alone opens no door");
    cloud.decide(EventBody::Removed { actuator: label("h1") }).unwrap();
    assert_eq!(cloud.store.scan(weir_model::event::SPEAKS_TABLE, b"").count(), 0);
}
