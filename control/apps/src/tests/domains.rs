//! Two fabrics that tell each other, statement by statement.

use super::*;
use crate::fabric::domains::{Taken, Unowned, domain, told_domain};
use weir_model::domain::{
    DomainController, DomainEvent, DomainRecord, Fetch, NUMBER_MAX, Statement, StatementBody, statement_of,
};
use weir_model::entry::LocationEntry;
use weir_model::signed::SignedUpdates;
use weir_trust::batch::{GroupSigner, SingleSigner, sign_batch};
use weir_trust::identity::{KeyPair, sign_fetch};

fn number(name: &str) -> u8 {
    name.as_bytes()[0]
}

fn signer(name: &str) -> SingleSigner {
    SingleSigner(KeyPair::from_seed(&[number(name); 32]))
}

fn identity(name: &str, id: u64) -> KeyPair {
    KeyPair::from_seed(&[number(name) + id as u8; 32])
}

fn list(name: &str, count: u64) -> Vec<DomainController> {
    let one = |id| DomainController { id, key: identity(name, id).public(), api: format!("{name}{id}:1") };
    (1..=count).map(one).collect()
}

/// Hosts of domain `a` are at 10.97.0.0/16, of `b` at 10.98.0.0/16.
pub(super) fn record(name: &str) -> DomainRecord {
    DomainRecord {
        name: label(name),
        group_key: signer(name).group_key(),
        authority_pem: String::new(),
        controllers: list(name, 4),
        underlays: vec![format!("10.{}.0.0/16", number(name)).parse().unwrap()],
    }
}

fn about(event: DomainEvent) -> EventBody {
    EventBody::Domain(Box::new(event))
}

/// A domain with a gateway and a host, which knows another one.
fn cloud(name: &str, other: &str) -> Cloud {
    let mut cloud = Cloud::new();
    cloud.app = Deciders::new(FabricSettings {
        domain: Some(label(name)),
        statements_waiting_max: 6,
        foreign_per_domain_max: 3,
        begin_again_ms: 1_000,
        ..FabricSettings::default()
    });
    for (actuator, role, last) in [("g1", Role::Gateway, 21), ("h1", Role::Host, 11)] {
        let underlay = [10, number(name), 0, last].into();
        let facts = ActuatorFacts { name: label(actuator), role, identity: [last; 32], underlay };
        cloud.decide(EventBody::Joined(facts)).unwrap();
    }
    cloud.decide(about(DomainEvent::Known(record(other)))).unwrap();
    cloud
}

fn shared() -> Value {
    json!([
        {"kind": "network", "name": "red", "vni": 7000, "encapsulation": "vxlan"},
        {"kind": "subnet", "network": "red", "name": "left", "v4": "10.1.0.0/24", "domain": "a"},
        {"kind": "subnet", "network": "red", "name": "right", "v4": "10.2.0.0/24", "domain": "b"},
    ])
}

fn web(subnet: &str, last: u8) -> Value {
    json!([{"kind": "endpoint", "network": "red", "name": format!("e{last}"), "subnet": subnet, "host": "h1",
        "addresses": [format!("10.{}.0.{last}", if subnet == "left" { 1 } else { 2 })]}])
}

/// What a plan tells a domain, under its group's signature.
fn told(name: &str, plan: Plan) -> Option<SignedUpdates> {
    let updates: Vec<_> = plan.updates.into_iter().map(|planned| planned.update).collect();
    let updates: Vec<_> = updates.into_iter().filter(|update| statement_of(update).is_some()).collect();
    (!updates.is_empty()).then(|| certified(name, name, updates))
}

fn certified(signed_by: &str, name: &str, updates: Vec<weir_model::Update>) -> SignedUpdates {
    let (header, updates) = sign_batch(&signer(signed_by), &label(name), 1, Version(9), updates).unwrap();
    SignedUpdates { header, updates }
}

fn statement(to: &str, sequence: u64, after: u64, body: StatementBody) -> weir_model::Update {
    weir_model::Update {
        target: label(to),
        key: Key::Statement { to: label(to), sequence },
        version: Version(9),
        expected: Version::ZERO,
        change: Change::Put(Entry::Statement(Box::new(Statement { after, body }))),
    }
}

fn place(address: &str, underlay: &str) -> StatementBody {
    let at = LocationEntry {
        endpoint: label("x"),
        mac: "02:00:00:00:00:66".parse().unwrap(),
        host: label("h1"),
        underlay: underlay.parse().unwrap(),
    };
    StatementBody::Location {
        network: label("red"),
        vni: Vni(7000),
        address: address.parse().unwrap(),
        at: Some(at),
    }
}

fn hear(cloud: &mut Cloud, origin: &str, statements: Vec<SignedUpdates>) -> Result<Plan, Rejection> {
    cloud.decide(about(DomainEvent::Forwarded { origin: label(origin), statements }))
}

fn taken(cloud: &Cloud, name: &str) -> Taken {
    domain(&cloud.store, &label(name)).unwrap().taken
}

fn refused(cloud: &Cloud, name: &str, why: Unowned) -> u64 {
    let at = Unowned::ALL.iter().position(|known| *known == why).unwrap();
    taken(cloud, name).refused[at]
}

#[test]
fn a_location_of_one_domain_is_an_entry_of_the_others_gateways_and_of_nobody_else() {
    let (mut a, mut b) = (cloud("a", "b"), cloud("b", "a"));
    let begin = told("a", a.apply(shared()));
    assert_eq!(begin, None, "there is nothing to tell yet");
    let first = told("a", a.apply(web("left", 10))).unwrap();
    b.apply(shared());
    let before = b.store.digest();
    let text = hear(&mut b, "a", vec![first.clone()]).unwrap_err().to_string();
    assert!(text.contains("follows 1, and 0 was taken last"), "{text}");
    assert_eq!(b.store.digest(), before);

    // What a says when it comes to know b: that there is nothing.
    let mut anew = cloud("a", "c");
    let begin = told("a", anew.decide(about(DomainEvent::Known(record("b")))).unwrap()).unwrap();
    assert_eq!(lines(&hear(&mut b, "a", vec![begin]).unwrap()), [] as [&str; 0]);
    let plan = hear(&mut b, "a", vec![first.clone()]).unwrap();
    assert_eq!(lines(&plan), ["+g1 location/7000/10.1.0.10"]);
    assert!(plan.updates[0].after.is_empty(), "ports of another domain are not waited for");
    let Some(Entry::Location(at)) =
        b.entry("g1", Key::Location { vni: Vni(7000), address: "10.1.0.10".parse().unwrap() })
    else {
        panic!("no location")
    };
    assert_eq!(at.underlay.to_string(), "10.97.0.11");
    assert!(told("b", plan).is_none(), "what was forwarded is never forwarded again");

    // Once, whoever orders it again.
    let digest = b.store.digest();
    assert_eq!(lines(&hear(&mut b, "a", vec![first]).unwrap()), [] as [&str; 0]);
    assert_eq!((taken(&b, "a").through, b.store.digest()), (2, digest));

    // Moved and gone.
    let gone = told("a", a.try_delete(&["endpoint/red/e10"]).unwrap()).unwrap();
    assert_eq!(lines(&hear(&mut b, "a", vec![gone]).unwrap()), ["-g1 location/7000/10.1.0.10"]);
    assert_eq!(taken(&b, "a").locations, 0);
}

#[test]
fn a_domain_is_believed_about_its_own_only() {
    let mut b = cloud("b", "a");
    b.apply(shared());
    b.apply(json!([{"kind": "network", "name": "own", "vni": 5},
        {"kind": "subnet", "network": "own", "name": "main", "v4": "10.9.0.0/24"}]));
    b.apply(web("right", 10));
    let gateway = |cloud: &Cloud| -> Vec<(Key, Option<Entry>)> {
        let all = desired(&cloud.store, &label("g1"));
        all.map(|(key, _, entry)| (key, entry)).collect()
    };
    let before = gateway(&b);
    let other = |vni, network: &str, address: &str| match place(address, "10.97.0.11") {
        StatementBody::Location { address, at, .. } => {
            StatementBody::Location { network: label(network), vni: Vni(vni), address, at }
        }
        other => other,
    };
    let lies = [
        (Unowned::NotItsSubnet, place("10.2.0.10", "10.97.0.11")),
        (Unowned::NotItsSubnet, other(5, "own", "10.9.0.7")),
        (Unowned::NotItsUnderlay, place("10.1.0.10", "10.98.0.11")),
        (Unowned::NotItsUnderlay, place("10.1.0.10", "192.0.2.1")),
        (Unowned::OtherNetwork, other(8, "red", "10.1.0.10")),
        (Unowned::NoEndpoint, place("224.0.0.1", "10.97.0.11")),
        (Unowned::NoControllers, StatementBody::Controllers(Vec::new())),
    ];
    let count = lies.len() as u64;
    for (number, (_, body)) in (1..).zip(&lies) {
        let update = statement("b", number, number - 1, body.clone());
        assert_eq!(hear(&mut b, "a", vec![certified("a", "a", vec![update])]).unwrap(), Plan::default());
    }
    for (why, _) in &lies {
        assert!(refused(&b, "a", *why) > 0, "{why:?}");
    }
    let now = taken(&b, "a");
    assert_eq!((now.through, now.taken, now.locations), (count, 0, 0));
    assert_eq!(gateway(&b), before);

    // What is true behind it is taken, up to a limit.
    for number in 1..=4 {
        let body = place(&format!("10.1.0.{}", 10 + number), "10.97.0.11");
        let update = statement("b", count + number, count + number - 1, body);
        hear(&mut b, "a", vec![certified("a", "a", vec![update])]).unwrap();
    }
    assert_eq!((taken(&b, "a").locations, refused(&b, "a", Unowned::TooMany)), (3, 1));
}

#[test]
fn nothing_is_taken_that_the_origins_group_did_not_sign_for_this_domain_in_order() {
    let mut b = cloud("b", "a");
    b.apply(shared());
    let body = || place("10.1.0.10", "10.97.0.11");
    let good = |number: u64, after: u64| statement("b", number, after, body());
    let before = b.store.digest();
    let mut forged = certified("a", "a", vec![good(1, 0)]);
    forged.updates[0].update.change = Change::Put(Entry::Statement(Box::new(Statement {
        after: 0,
        body: place("10.1.0.11", "10.97.0.11"),
    })));
    let attempts = [
        ("another key", certified("b", "a", vec![good(1, 0)])),
        ("another domain's batch", certified("a", "c", vec![good(1, 0)])),
        ("told to somebody else", certified("a", "a", vec![statement("c", 1, 0, body())])),
        ("another statement under the signature", forged),
        ("a gap", certified("a", "a", vec![good(5, 4)])),
        (
            "an update of a switch",
            certified(
                "a",
                "a",
                vec![weir_model::Update { key: Key::Gateways, target: label("g1"), ..good(1, 0) }],
            ),
        ),
    ];
    for (what, statements) in attempts {
        assert!(hear(&mut b, "a", vec![statements]).is_err(), "{what}");
    }
    assert!(hear(&mut b, "c", vec![certified("c", "c", vec![good(1, 0)])]).is_err(), "nobody knows c");
    assert_eq!(b.store.digest(), before);
}

#[test]
fn what_comes_before_its_network_waits_for_it() {
    let mut b = cloud("b", "a");
    let update = statement("b", 1, 0, place("10.1.0.10", "10.97.0.11"));
    assert_eq!(hear(&mut b, "a", vec![certified("a", "a", vec![update])]).unwrap(), Plan::default());
    let plan = b.apply(shared());
    assert!(lines(&plan).contains(&"+g1 location/7000/10.1.0.10".to_string()), "{:?}", lines(&plan));
    let plan = b.try_delete(&["subnet/red/left"]).unwrap();
    assert!(lines(&plan).contains(&"-g1 location/7000/10.1.0.10".to_string()), "{:?}", lines(&plan));
    // A gateway that joins gets it as well.
    b.apply(shared());
    let facts = ActuatorFacts {
        name: label("g2"),
        role: Role::Gateway,
        identity: [9; 32],
        underlay: [10, 98, 0, 22].into(),
    };
    let plan = b.decide(EventBody::Joined(facts)).unwrap();
    assert!(lines(&plan).contains(&"+g2 location/7000/10.1.0.10".to_string()), "{:?}", lines(&plan));
    let plan = b.decide(about(DomainEvent::Forgotten { domain: label("a") })).unwrap();
    assert_eq!(lines(&plan), ["-g1 location/7000/10.1.0.10", "-g2 location/7000/10.1.0.10"]);
    let empty = ["domain", "domain-told", "domain-taken", "told", "foreign"];
    assert!(empty.into_iter().all(|table| b.store.scan(table, b"").next().is_none()));
}

fn words(
    of: &str,
    ids: &[u64],
    through: u64,
    begin: bool,
    now_ms: u64,
) -> Vec<weir_model::domain::SignedFetch> {
    let fetch = |id: u64| Fetch { domain: label("b"), controller: id, of: label(of), through, begin, now_ms };
    ids.iter().map(|id| sign_fetch(&identity("b", *id), fetch(*id))).collect()
}

#[test]
fn statements_wait_until_more_controllers_than_may_lie_say_that_they_are_taken() {
    let mut a = cloud("a", "b");
    a.apply(shared());
    for last in 10..14 {
        a.apply(web("left", last));
    }
    let lane = |a: &Cloud| told_domain(&a.store, &label("b")).unwrap();
    assert_eq!((lane(&a).last, lane(&a).acked), (5, 0));
    let now_ms = a.now_ms;
    let heard = |a: &mut Cloud, through, begin, words| {
        a.decide(about(DomainEvent::Heard { domain: label("b"), through, begin, words }))
    };
    // Four controllers: one may lie, so two must say so.
    assert!(heard(&mut a, 3, false, words("a", &[1], 3, false, now_ms)).is_err());
    assert!(heard(&mut a, 3, false, words("a", &[1, 1], 3, false, now_ms)).is_err());
    assert!(heard(&mut a, 3, false, words("c", &[1, 2], 3, false, now_ms)).is_err());
    assert!(heard(&mut a, 3, false, words("a", &[1, 2], 2, false, now_ms)).is_err());
    assert!(heard(&mut a, 3, false, words("a", &[1, 2], 3, false, now_ms + 400_000)).is_err());
    assert!(heard(&mut a, 9, false, words("a", &[1, 2], 9, false, now_ms)).is_err(), "more than it was told");
    heard(&mut a, 3, false, words("a", &[1, 2], 3, false, now_ms)).unwrap();
    assert_eq!(lane(&a).acked, 3);

    // One that takes nothing is cut off, and told everything when it is heard again.
    for last in 14..20 {
        a.apply(web("left", last));
    }
    assert!(lane(&a).cut && lane(&a).last == 9, "{:?}", lane(&a));
    a.now_ms += 1_000;
    let now_ms = a.now_ms;
    let before = lane(&a).last;
    let plan = heard(&mut a, 5, false, words("a", &[1, 2], 5, false, now_ms)).unwrap();
    // Of ten locations six fit in what may wait here: with the next it is cut off again.
    let told: Vec<u64> = plan.updates.iter().map(|one| statement_of(&one.update).unwrap().1).collect();
    assert_eq!(told, (before + 1..=before + 6).collect::<Vec<_>>());
    assert_eq!(statement_of(&plan.updates[0].update).unwrap().2.after, 0, "what follows is everything anew");
    assert_eq!(statement_of(&plan.updates[1].update).unwrap().2.after, before + 1);
    let again = words("a", &[1, 2], 5, true, now_ms);
    assert!(heard(&mut a, 5, true, again).is_err(), "it was told everything a moment ago");
    // Later, too, what was said before that leads to nothing; and one who says a late time makes it no later.
    a.now_ms += 2_000;
    let old = words("a", &[1], 5, true, now_ms).into_iter().chain(words("a", &[2], 5, true, now_ms + 9_000));
    assert!(heard(&mut a, 5, true, old.collect()).is_err());
    let begun = lane(&a).begun;
    let now_ms = a.now_ms;
    heard(&mut a, 5, true, words("a", &[1, 2], 5, true, now_ms)).unwrap();
    assert_eq!(lane(&a).begun, begun + 1);
}

#[test]
fn what_was_not_told_again_is_void() {
    let mut b = cloud("b", "a");
    b.apply(shared());
    let first = vec![
        statement("b", 1, 0, place("10.1.0.10", "10.97.0.11")),
        statement("b", 2, 1, place("10.1.0.11", "10.97.0.11")),
    ];
    hear(&mut b, "a", vec![certified("a", "a", first)]).unwrap();
    let anew = vec![
        statement("b", 7, 0, place("10.1.0.11", "10.97.0.11")),
        statement("b", 8, 7, StatementBody::Complete { since: 7 }),
    ];
    let plan = hear(&mut b, "a", vec![certified("a", "a", anew)]).unwrap();
    assert_eq!(lines(&plan), ["-g1 location/7000/10.1.0.10"]);
    assert_eq!((taken(&b, "a").through, taken(&b, "a").locations), (8, 1));
}

#[test]
fn the_controllers_of_a_domain_are_those_that_enough_of_them_name() {
    let mut a = cloud("a", "b");
    let say = |a: &mut Cloud, source: &str, count: u64| -> Result<Plan, Rejection> {
        let version = Version(a.store.version().0 + 1);
        let body = about(DomainEvent::Controllers(list("a", count)));
        let event = Event { source: SourceId(source.into()), sequence: version.0, body };
        let mut view = a.store.view();
        let plan = a.app.decide(&mut view, version, a.now_ms, &event)?.plan;
        let writes = view.into_writes();
        a.store.commit(version, writes);
        Ok(plan)
    };
    assert!(say(&mut a, "actuator/h1", 4).is_err());
    let tells = |a: &mut Cloud, id: u64, count| {
        let plan = say(a, &format!("controller/controller-{id}"), count).unwrap();
        told("a", plan).is_some()
    };
    assert!(tells(&mut a, 1, 3));
    assert!(!tells(&mut a, 2, 3), "as it is already");

    // Where one of four may lie, two must say the same, and since the last list.
    let mut a = cloud("a", "b");
    a.app = Deciders::new(FabricSettings {
        domain: Some(label("a")),
        believes_no_controller: true,
        controllers_founded: 4,
        ..FabricSettings::default()
    });
    assert!(!tells(&mut a, 1, 4));
    assert!(!tells(&mut a, 2, 5));
    assert!(tells(&mut a, 3, 4));
    assert!(!tells(&mut a, 4, 5), "the word for five was before the list of four");
    assert!(!tells(&mut a, 4, 5), "one's own word counts once");
    assert!(tells(&mut a, 2, 5));
}

#[test]
fn a_network_of_several_domains_has_what_all_can_speak() {
    let mut a = cloud("a", "b");
    let network = |more: Value| with(json!({"kind": "network", "name": "red"}), more);
    let right =
        json!({"kind": "subnet", "network": "red", "name": "right", "v4": "10.2.0.0/24", "domain": "b"});
    let text = a.rejected(json!([network(json!({"vni": 7000})), right]));
    assert!(text.contains("use 'encapsulation: vxlan'"), "{text}");
    let text = a.rejected(json!([network(json!({"encapsulation": "vxlan"})), right]));
    assert!(text.contains("give it a 'vni'"), "{text}");
    let learned = json!({"vni": 7000, "encapsulation": "vxlan", "forwarding": "learned"});
    let text = a.rejected(json!([network(learned), right]));
    assert!(text.contains("use 'forwarding: routed'"), "{text}");
    a.apply(shared());
    let text = a.rejected(web("right", 10));
    assert!(text.contains("is of domain 'b': its endpoints are made there"), "{text}");
    let text = a.rejected(json!([network(json!({"vni": 7001, "encapsulation": "vxlan"}))]));
    assert!(text.contains("7000, which it has: it never changes"), "{text}");
    let text = a.rejected(json!([{"kind": "network", "name": "blue", "vni": 7000}]));
    assert!(text.contains("is that of network 'red'"), "{text}");
    let own = about(DomainEvent::Known(record("a")));
    assert!(a.decide(own).unwrap_err().to_string().contains("another domain than this one"));
    let stranger = DomainRecord { group_key: signer("z").group_key(), ..record("b") };
    let text = a.decide(about(DomainEvent::Known(stranger))).unwrap_err().to_string();
    assert!(text.contains("never changes"), "{text}");
}

#[test]
fn a_domain_that_was_forgotten_and_is_known_again_gets_no_number_twice() {
    let mut a = cloud("a", "b");
    a.apply(shared());
    for last in 10..12 {
        a.apply(web("left", last));
    }
    let before = told_domain(&a.store, &label("b")).unwrap().last;
    a.decide(about(DomainEvent::Forgotten { domain: label("b") })).unwrap();
    let plan = a.decide(about(DomainEvent::Known(record("b")))).unwrap();
    let told = told("a", plan).unwrap();
    let (_, first, begin) = statement_of(&told.updates[0].update).unwrap();
    assert_eq!((first, begin.after), (before + 1, 0));

    // One that has the numbers of before takes what is told now, and voids what is not told again.
    let mut b = cloud("b", "a");
    b.apply(shared());
    let old = statement("b", before, 0, place("10.1.0.99", "10.97.0.11"));
    hear(&mut b, "a", vec![certified("a", "a", vec![old])]).unwrap();
    let plan = hear(&mut b, "a", vec![told]).unwrap();
    assert!(lines(&plan).contains(&"-g1 location/7000/10.1.0.99".to_string()), "{:?}", lines(&plan));
    assert!(lines(&plan).contains(&"+g1 location/7000/10.1.0.11".to_string()), "{:?}", lines(&plan));
}

#[test]
fn what_one_domain_says_of_numbers_changes_those_of_no_other() {
    let mut a = cloud("a", "b");
    a.now_ms += 20_000;
    let now_ms = a.now_ms;
    let through = NUMBER_MAX;
    let words = words("a", &[1, 2], through, true, now_ms);
    a.decide(about(DomainEvent::Heard { domain: label("b"), through, begin: true, words })).unwrap();
    a.decide(about(DomainEvent::Forgotten { domain: label("b") })).unwrap();
    a.decide(about(DomainEvent::Known(record("c")))).unwrap();
    assert_eq!(told_domain(&a.store, &label("c")).unwrap().last, 1);
}

#[test]
fn no_number_is_so_high_that_none_follows() {
    let mut a = cloud("a", "b");
    let now_ms = a.now_ms + 20_000;
    a.now_ms = now_ms;
    let heard = |a: &mut Cloud, through: u64| {
        let words = words("a", &[1, 2], through, true, now_ms);
        a.decide(about(DomainEvent::Heard { domain: label("b"), through, begin: true, words }))
    };
    assert!(heard(&mut a, u64::MAX).is_err());
    heard(&mut a, NUMBER_MAX).unwrap();
    assert!(told_domain(&a.store, &label("b")).unwrap().last > NUMBER_MAX);
    let mut b = cloud("b", "a");
    let highest = statement("b", u64::MAX, 0, place("10.1.0.99", "10.97.0.11"));
    assert!(hear(&mut b, "a", vec![certified("a", "a", vec![highest])]).is_err());
}
