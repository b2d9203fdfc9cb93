use super::*;
use crate::Label;
use crate::approval::{APPROVALS_MAX, WAIT_MAX_S, WAIT_MIN_S, WAIT_S};
use crate::event::{Apply, Transaction};
use crate::identity::TokenChange;
use crate::operator::OperatorChange;
use crate::resource::ResourceId;
use crate::source::{Role, SourceId};
use weir_base::codec::{decode, encode};

fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

fn mutation(kind: Kind, wanted: Wanted) -> Mutation {
    let network = (kind != Kind::Network).then(|| label("red"));
    Mutation { id: ResourceId { kind, network, name: label("x") }, expected: None, wanted }
}

fn intent(mutations: Vec<Mutation>, replace_all: bool) -> EventBody {
    EventBody::Intent(Transaction { mutations, replace_all })
}

fn identity(about: IdentityEvent) -> EventBody {
    EventBody::Identity(Box::new(about))
}

fn order(spec: Option<Vec<u8>>) -> PlaneOrder {
    PlaneOrder { plane: label("echo"), actuator: label("h1"), name: "n".into(), spec }
}

fn need(approvals: u8, role: OperatorRole) -> Need {
    Need { approvals, role }
}

#[test]
fn each_request_is_of_its_kinds() {
    use RequestKind::{
        Apply as A, Delete as D, DeleteNetwork as N, Domain, DomainForget, Forget, Operators, Revoke,
    };
    let put = || Wanted::Document("{}".into());
    let whose = SourceId::of_actuator(&label("h1"));
    let token = TokenChange::Made { role: Role::Host, until_s: 1, underlay: None };
    let apply = |spec| Apply {
        resources: Transaction::default(),
        orders: vec![crate::plane::OrderChange { order: order(spec), expected: None }],
    };
    let cases: Vec<(EventBody, &[RequestKind])> = vec![
        (intent(vec![mutation(Kind::Network, put())], false), &[A]),
        (intent(vec![mutation(Kind::Endpoint, Wanted::Absent)], false), &[A, D]),
        (intent(vec![mutation(Kind::Network, Wanted::Absent)], false), &[A, D, N]),
        // A network that is put beside something that goes.
        (intent(vec![mutation(Kind::Network, put()), mutation(Kind::Route, Wanted::Absent)], false), &[A, D]),
        (intent(Vec::new(), true), &[A, D, N]),
        (EventBody::Apply(apply(Some(vec![1]))), &[A]),
        (EventBody::Apply(apply(None)), &[A, D]),
        (EventBody::Order(order(None)), &[A, D]),
        (EventBody::Order(order(Some(vec![]))), &[A]),
        (EventBody::Removed { actuator: label("h1") }, &[Forget]),
        (EventBody::Domain(Box::new(DomainEvent::Forgotten { domain: label("east") })), &[DomainForget]),
        (identity(IdentityEvent::Revoked { whose: whose.clone(), reason: String::new() }), &[Revoke]),
        (
            identity(IdentityEvent::Operator { whose: whose.clone(), change: OperatorChange::Removed }),
            &[Operators],
        ),
        (EventBody::Approval(Box::new(Approval::Needed(Needs::default()))), &[Operators]),
        (EventBody::Approval(Box::new(Approval::Given([1; 32]))), &[]),
        (EventBody::Approval(Box::new(Approval::Refused([1; 32]))), &[]),
        (identity(IdentityEvent::Token { whose, id: [1; 16], change: token }), &[]),
        (EventBody::Clock { wall_ms: 1 }, &[]),
    ];
    for (body, kinds) in cases {
        assert_eq!(kinds_of(&body), kinds.iter().copied().collect(), "{body:?}");
    }
    assert_eq!(Domain.to_string(), "domain");
    for kind in RequestKind::ALL {
        assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
    }
}

#[test]
fn a_request_of_several_kinds_needs_what_each_of_them_needs() {
    use OperatorRole::{Admin, Operator};
    let kinds = [(RequestKind::Apply, need(2, Operator)), (RequestKind::DeleteNetwork, need(3, Admin))];
    let needs = Needs { kinds: kinds.into(), ..Needs::default() };
    let put = intent(vec![mutation(Kind::Network, Wanted::Document("{}".into()))], false);
    let gone = intent(vec![mutation(Kind::Network, Wanted::Absent)], false);
    assert_eq!((needs.of(&put), needs.of(&gone)), (Some(need(2, Operator)), Some(need(3, Admin))));
    assert_eq!(needs.of(&EventBody::Removed { actuator: label("h1") }), None);
    // Who could make operators, or lower the needs, could do the rest.
    let lower = EventBody::Approval(Box::new(Approval::Needed(Needs::default())));
    assert_eq!(needs.of(&lower), Some(need(3, Admin)));
    assert_eq!(Needs::default().of(&lower), None);
    assert_eq!(needs.all().last(), Some((RequestKind::Operators, need(3, Admin))));
}

#[test]
fn what_nobody_could_fulfil_is_told() {
    let of = |approvals, wait_s| {
        let kinds = [(RequestKind::Forget, need(approvals, OperatorRole::Admin))].into();
        Needs { kinds, wait_s }.problem()
    };
    assert_eq!((of(2, WAIT_MIN_S), of(APPROVALS_MAX, WAIT_MAX_S)), (None, None));
    for approvals in [0, 1, APPROVALS_MAX + 1] {
        assert!(of(approvals, WAIT_S).unwrap().contains("forget"), "{approvals}");
    }
    for wait_s in [0, WAIT_MIN_S - 1, WAIT_MAX_S + 1] {
        assert!(of(2, wait_s).unwrap().contains("60 to 604800"), "{wait_s}");
    }
}

#[test]
fn what_is_said_of_requests_is_read_as_it_was_written() {
    let needs = Needs { kinds: [(RequestKind::Operators, need(2, OperatorRole::Admin))].into(), wait_s: 60 };
    for about in [Approval::Given([1; 32]), Approval::Refused([2; 32]), Approval::Needed(needs)] {
        let body = EventBody::Approval(Box::new(about));
        assert_eq!(decode::<EventBody>(&encode(&body)).unwrap(), body);
    }
}
