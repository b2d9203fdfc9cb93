use super::*;
use crate::event::{ActuatorFacts, Event, Role, Transaction};
use crate::health::RepairOrder;
use crate::identity::KeyHash;
use crate::signed::Signature;
use crate::{Label, Version};
use weir_base::codec::{decode, encode};

fn said(body: EventBody) -> Said {
    let author = SourceId::of_operator(&Label::new("anna").unwrap());
    let event = Event { source: author, sequence: Said::number_at(5_000), body };
    Said { event, made_ms: 5_000, until_ms: 65_000, signature: Signature { r: [1; 32], s: [2; 32] } }
}

fn removed() -> EventBody {
    EventBody::Removed { actuator: Label::new("h1").unwrap() }
}

#[test]
fn a_request_keeps_its_bytes() {
    // Its place among the bodies, author, number, both times, the body as bytes, and the signature.
    let head = b"\x10\x0doperator/anna\x80\xc0\xb8\x02\x88\x27\xe8\xfb\x03\x04\x02\x02h1";
    let bytes = [&head[..], &[1; 32], &[2; 32]].concat();
    let body = EventBody::Said(Box::new(said(removed())));
    assert_eq!(encode(&body), bytes);
    assert_eq!(decode::<EventBody>(&bytes).unwrap(), body);
}

#[test]
fn a_request_in_a_request_is_not_read() {
    let mut nested = EventBody::Said(Box::new(said(removed())));
    nested = EventBody::Said(Box::new(said(nested)));
    let error = decode::<EventBody>(&encode(&nested)).unwrap_err().to_string();
    assert!(error.contains("EventBody"), "{error}");
    // However deep: nobody goes down there.
    for _ in 0..200 {
        nested = EventBody::Said(Box::new(said(nested)));
    }
    assert!(decode::<EventBody>(&encode(&nested)).is_err());
    // Nor when its place is written in more bytes than it needs.
    let mut long = encode(&EventBody::Said(Box::new(said(removed()))));
    long.splice(0..1, [0x90, 0x00]);
    let wire = |body: Vec<u8>| {
        let head = b"\x10\x0doperator/anna\x80\xc0\xb8\x02\x88\x27\xe8\xfb\x03".to_vec();
        [head, encode(&body), vec![1; 64]].concat()
    };
    assert!(decode::<EventBody>(&wire(encode(&removed()))).is_ok());
    assert!(decode::<EventBody>(&wire(long)).is_err());
}

#[test]
fn a_request_is_in_time_for_ten_minutes_at_most() {
    let whole = said(removed());
    assert_eq!(whole.time_problem(0), None);
    assert_eq!(whole.time_problem(65_000), None);
    assert!(whole.time_problem(65_001).unwrap().contains("over"));
    let made_ms = 5_000 + AHEAD_MAX_MS;
    let ahead = Said { made_ms, until_ms: made_ms + 1, ..whole.clone() };
    assert_eq!(ahead.time_problem(5_000), None);
    assert!(ahead.time_problem(4_999).unwrap().contains("a clock is wrong"));
    let lives = |until_ms| Said { until_ms, ..whole.clone() }.time_problem(5_000);
    assert_eq!(lives(5_000 + LIFE_MAX_MS), None);
    for wrong in [5_001 + LIFE_MAX_MS, 5_000, 0, u64::MAX] {
        assert!(lives(wrong).unwrap().contains("600000"), "{wrong}");
    }
    let numbered = |number| {
        let event = Event { sequence: number, ..whole.event.clone() };
        Said { event, ..whole.clone() }.time_problem(5_000)
    };
    assert_eq!((numbered(0), numbered(Said::number_at(5_001) - 1)), (None, None));
    for wrong in [Said::number_at(5_001), u64::MAX] {
        assert!(numbered(wrong).unwrap().contains("later time"), "{wrong}");
    }
}

#[test]
fn an_operator_orders_resources_and_an_admin_who_takes_part() {
    let actuator = Label::new("h1").unwrap();
    let whose = SourceId::of_actuator(&actuator);
    let token = |change| IdentityEvent::Token { whose: whose.clone(), id: [1; 16], change };
    let key: KeyHash = [7; 32];
    let identity = |about| EventBody::Identity(Box::new(about));
    let facts = ActuatorFacts {
        name: actuator.clone(),
        role: Role::Host,
        identity: [1; 32],
        underlay: "192.0.2.1".parse().unwrap(),
    };
    let of_operators = [
        EventBody::Intent(Transaction::default()),
        EventBody::Apply(crate::event::Apply::default()),
        EventBody::Repair(RepairOrder { actuator: actuator.clone(), cgroup: "g".into(), action: None }),
        EventBody::Approval(Box::new(Approval::Given([1; 32]))),
        EventBody::Approval(Box::new(Approval::Refused([1; 32]))),
    ];
    let of_admins = [
        removed(),
        EventBody::Approval(Box::new(Approval::Needed(Default::default()))),
        EventBody::Domain(Box::new(DomainEvent::Forgotten { domain: actuator.clone() })),
        identity(IdentityEvent::Revoked { whose: whose.clone(), reason: String::new() }),
        identity(IdentityEvent::Introduced { whose: whose.clone(), key }),
        identity(IdentityEvent::Operator { whose: whose.clone(), change: OperatorChange::Removed }),
        identity(token(TokenChange::Made { role: Role::Host, until_s: 1, underlay: None })),
        identity(token(TokenChange::MadeWithKey { role: Role::Host, until_s: 1, underlay: None, key })),
        identity(token(TokenChange::Voided)),
    ];
    let of_nobody = [
        identity(token(TokenChange::Used { key })),
        identity(IdentityEvent::Operator {
            whose: whose.clone(),
            change: OperatorChange::Founded(Founders::new()),
        }),
        identity(IdentityEvent::Certified { whose: whose.clone(), key, until_s: 1 }),
        EventBody::Domain(Box::new(DomainEvent::Controllers(Vec::new()))),
        EventBody::Joined(facts.clone()),
        EventBody::JoinedBy(Box::new(JoinedBy {
            facts,
            token: [1; 16],
            authority: key,
            signature: Signature { r: [1; 32], s: [2; 32] },
        })),
        EventBody::Clock { wall_ms: 1 },
        EventBody::Rule(crate::event::NewRule::OwnersCertificates),
        EventBody::Converted(Box::new(crate::conversion::Conversion {
            order: crate::conversion::GroupOrder::Raft,
            member: 1,
            listen: String::new(),
            wide: false,
        })),
        EventBody::Speaks { name: actuator.clone(), protocol: 1 },
        EventBody::Refused {
            actuator,
            key: crate::Key::Gateways,
            version: Version(1),
            refusal: crate::update::Refusal::Failed(String::new()),
        },
        EventBody::Said(Box::new(said(removed()))),
    ];
    let may = |role: OperatorRole, bodies: &[EventBody]| {
        let orders: Vec<bool> = bodies.iter().map(|body| role.may_order(body)).collect();
        (orders.iter().all(|may| *may), orders.iter().any(|may| *may))
    };
    assert_eq!(may(OperatorRole::Operator, &of_operators), (true, true));
    assert_eq!(may(OperatorRole::Admin, &of_operators), (true, true));
    assert_eq!(may(OperatorRole::Operator, &of_admins), (false, false));
    assert_eq!(may(OperatorRole::Admin, &of_admins), (true, true));
    assert_eq!(may(OperatorRole::Admin, &of_nobody), (false, false));
}

#[test]
fn operators_are_named_as_others_are() {
    let source = SourceId::of_operator(&Label::new("anna").unwrap());
    assert_eq!((source.0.as_str(), source.short()), ("operator/anna", "anna"));
    assert_eq!(source.operator().unwrap().as_str(), "anna");
    assert!(!source.is_controller() && source.actuator().is_none());
    for other in ["operator/", "operator/a/b", "actuator/anna", "controller/anna", "anna"] {
        assert_eq!(SourceId(other.into()).operator(), None, "{other}");
    }
}

#[test]
fn fuzz_decoding_a_request() {
    bolero::check!().with_iterations(10_000).for_each(|bytes: &[u8]| {
        let given = [&[0x10], bytes].concat();
        if let Ok(body) = decode::<EventBody>(&given) {
            assert_eq!(decode::<EventBody>(&encode(&body)).unwrap(), body);
        }
    });
}
