//! The bytes of sessions, signatures and the gate's journal, held by their hashes: software of different releases
//! reads them. A hash that differs means a new format: raise the protocol's number, and say in
//! `docs/protocol/session.md` what changed.

use crate::TrustError;
use crate::batch::{GroupSigner, SingleSigner, Verifier, frames, sign_batch};
use crate::gate::{Gate, take};
use crate::identity::{
    KeyPair, sign_acks, sign_event, sign_fetch, sign_rotation, sign_settled, verify_event, verify_rotation,
    verify_settled,
};
use crate::owner::{sign_owner, to_der, verify_owner};
use crate::said::{sign_joined_by, sign_said, verify_joined_by, verify_said};
use crate::threshold::{Dealer, GroupPublic, Player, Round, simulation};
use sha2::{Digest as _, Sha256};
use std::net::IpAddr;
use weir_base::codec::{encode, encode_frame};
use weir_model::approval::{Approval, Need, Needs, RequestKind};
use weir_model::domain::{DomainController, DomainEvent, DomainRecord, Fetch, Statement, StatementBody};
use weir_model::entry::{
    ControllersEntry, GatewayEntry, LocationEntry, NetworkEntry, PolicyEntry, PortEntry, RouteEntry,
    RouteHop, Rule, ServiceEntry, SubnetEntry, TurnEntry, UnderlaysEntry, VirtualEntry, Vni,
};
use weir_model::event::{
    ActuatorFacts, Event, EventBody, NewRule, Role, SourceId, TurnUse, Usage, UsageReport,
};
use weir_model::identity::{IdentityEvent, TokenChange};
use weir_model::operator::{OperatorChange, OperatorFacts, OperatorRole};
use weir_model::packet_in::{PacketIn, PacketInReport, Why};
use weir_model::plane::{PlaneOrder, PlaneReport};
use weir_model::resource::{
    Action, DhcpOptions, Direction, Encapsulation, Peer, PortRange, PortState, Protocol,
};
use weir_model::said::Said;
use weir_model::session::{PROTOCOL, PROTOCOL_MIN, StateDigest, ToActuator, ToController};
use weir_model::signed::{GroupSignature, HeaderEndorsement, MemberSignature, SignedUpdates};
use weir_model::{Change, Entry, Key, Label, Update, Version};

fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn hash(bytes: &[u8]) -> String {
    let digest: [u8; 32] = Sha256::digest(bytes).into();
    digest[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn rule(protocol: Protocol, peer: Peer) -> Rule {
    Rule {
        name: label("web"),
        version: Version(300),
        direction: Direction::Ingress,
        priority: 1000,
        action: Action::Allow,
        protocol,
        ports: vec![PortRange { first: 80, last: 443 }],
        peers: vec![peer],
        targets: vec![label("server")],
        stateful: true,
    }
}

/// Every kind of key with an entry of its kind, with every variant inside used once.
fn entries() -> Vec<(Key, Entry)> {
    let vni = Vni(70_000);
    let (v4, v6) = (address("10.1.2.3"), address("fd00::5"));
    let route = |next_hop| Entry::Route(RouteEntry { name: label("out"), version: Version(9), next_hop });
    let route_key = |prefix: &str| Key::Route { vni, prefix: prefix.parse().unwrap() };
    vec![
        (Key::Gateways, Entry::Gateways(vec![GatewayEntry { name: label("g1"), underlay: v4 }])),
        (
            Key::Network { vni },
            Entry::Network(NetworkEntry {
                name: label("red"),
                mtu: 1400,
                encapsulation: Encapsulation::Vxlan,
                external_access: true,
                subnets: vec![SubnetEntry {
                    name: label("a"),
                    v4: Some("10.1.0.0/16".parse().unwrap()),
                    router_v4: Some("10.1.0.1".parse().unwrap()),
                    v6: None,
                    router_v6: None,
                }],
                forwarding: weir_model::resource::Forwarding::Learned,
            }),
        ),
        (
            Key::Policy { vni },
            Entry::Policy(PolicyEntry {
                default_ingress: Action::Deny,
                default_egress: Action::Allow,
                rules: vec![
                    rule(Protocol::Any, Peer::Tag(label("client"))),
                    rule(Protocol::Icmp, Peer::Prefix("fd00::/8".parse().unwrap())),
                    rule(Protocol::Number(6), Peer::Prefix("10.0.0.0/8".parse().unwrap())),
                ],
            }),
        ),
        (Key::Members { vni, tag: label("client"), bucket: 63 }, Entry::Members(vec![v4, v6])),
        (route_key("0.0.0.0/0"), route(RouteHop::External)),
        (route_key("10.9.0.0/16"), route(RouteHop::Drop)),
        (route_key("fd00:9::/32"), route(RouteHop::Address(v6))),
        (
            Key::Port { vni, endpoint: label("web") },
            Entry::Port(PortEntry {
                mac: "02:00:00:00:00:07".parse().unwrap(),
                addresses: vec![v4],
                tags: vec![label("server")],
                state: PortState::Up,
                netns: Some("red-web".into()),
                device: "eth0".into(),
                kind: weir_model::resource::AttachmentKind::Tap,
                queue_pairs: 1,
                subnet: label("a"),
                dhcp: DhcpOptions::default(),
                policy_min: Version(299),
            }),
        ),
        (
            Key::Location { vni, address: v6 },
            Entry::Location(LocationEntry {
                endpoint: label("web"),
                mac: "02:00:00:00:00:07".parse().unwrap(),
                host: label("h1"),
                underlay: v4,
            }),
        ),
        (Key::Sought { vni, address: v4 }, Entry::Sought),
        (
            Key::Virtual { vni, address: v4 },
            Entry::Virtual(VirtualEntry {
                name: label("shop"),
                services: vec![ServiceEntry { protocol: 6, port: 80, target_port: 8080 }],
                members: vec![v4],
            }),
        ),
        (
            Key::Turn { vni, client: v6, address: v6 },
            Entry::Turn(TurnEntry { endpoint: label("web"), member: v6 }),
        ),
    ]
}

/// The kinds of entries that came with protocol 11.
fn later_entries() -> Vec<(Key, Entry)> {
    let (switches, guarded) = ("198.18.2.0/24".parse().unwrap(), "fd00:2::1/128".parse().unwrap());
    vec![
        (Key::Switches { bucket: 63 }, Entry::Switches(vec![address("192.0.2.1"), address("fd00::5")])),
        (
            Key::Underlays,
            Entry::Underlays(UnderlaysEntry { switches: vec![switches], guarded: vec![guarded] }),
        ),
    ]
}

/// The kind of entry that came with protocol 12, and what is ordered and told of planes.
fn planes() -> (Key, Entry, EventBody, EventBody, ToController) {
    let (plane, actuator) = (label("echo"), label("h1"));
    let key = Key::Plane { plane: plane.clone(), name: "n 1".into() };
    let order = PlaneOrder {
        plane: plane.clone(),
        actuator: actuator.clone(),
        name: "n 1".into(),
        spec: Some(b"{}".to_vec()),
    };
    let report = PlaneReport { plane: plane.clone(), actuator, name: "n 1".into(), bytes: b"{}".to_vec() };
    let has = ToController::Plane { plane, entries: Some(vec![(key.clone(), Version(300))]), last: true };
    (key, Entry::Plane(b"{}".to_vec()), EventBody::Order(order), EventBody::Report(report), has)
}

fn updates() -> Vec<Update> {
    let update = |key, version, change| Update {
        target: label("h1"),
        key,
        version: Version(version),
        expected: Version::ZERO,
        change,
    };
    let deleted = update(Key::Network { vni: Vni(5) }, 300, Change::Delete);
    let puts = entries().into_iter().map(|(key, entry)| update(key, 301, Change::Put(entry)));
    std::iter::once(deleted).chain(puts).collect()
}

fn signer() -> SingleSigner {
    SingleSigner(KeyPair::from_seed(&[1; 32]))
}

fn signed() -> SignedUpdates {
    let (header, proven) = sign_batch(&signer(), &label("prod"), 2, Version(301), updates()).unwrap();
    frames(proven.into_iter().map(|proven| (header.clone(), proven)), 100).remove(0)
}

fn gate(folder: &std::path::Path) -> Gate {
    let verifier = Verifier::new(label("prod"), signer().group_key());
    Gate::open(label("h1"), verifier, &folder.join("gate")).unwrap()
}

#[test]
fn keys_and_entries_keep_their_bytes() {
    for (key, entry) in entries() {
        assert!(entry.fits(&key), "{key}");
    }
    assert_eq!(hash(&encode(&entries())), "a6dc64b1e8a9f274");
    for (key, entry) in later_entries() {
        assert!(entry.fits(&key), "{key}");
    }
    assert_eq!(hash(&encode(&later_entries())), "14f90826757b38aa");
    let later = planes();
    assert!(later.1.fits(&later.0));
    assert_eq!(hash(&encode(&later)), "83200e807171c59e");
    let speaks = EventBody::Speaks { name: label("h1"), protocol: 11 };
    assert_eq!(hash(&encode(&speaks)), "2555cb69cc28d62c");
}

#[test]
fn signed_updates_and_acks_keep_their_bytes() {
    assert_eq!(hash(&encode_frame(&ToActuator::Updates(signed())).unwrap()), "4b0aaf968a0cb26d");
    let folder = tempfile::tempdir().unwrap();
    let acks = take(&mut gate(folder.path()), &signed(), |_| Ok(())).unwrap();
    assert!(acks.iter().all(|ack| ack.result.is_ok()), "{acks:?}");
    let signed = sign_acks(&KeyPair::from_seed(&[2; 32]), &label("h1"), acks);
    assert_eq!(hash(&encode_frame(&ToController::Acks(signed)).unwrap()), "c70f207ac030a6a9");
}

#[test]
fn signed_events_keep_their_bytes() {
    let key = KeyPair::from_seed(&[2; 32]);
    let usage = Usage { vni: Vni(70_000), address: address("10.1.2.3"), bytes: 1 << 40 };
    let (through_gateway, direct) =
        (vec![usage.clone()], vec![Usage { address: address("fd00::5"), ..usage }]);
    let turn = TurnUse { vni: Vni(70_000), client: address("10.1.2.3"), address: address("10.1.2.9") };
    let report =
        UsageReport { actuator: label("h1"), window_ms: 1000, through_gateway, direct, turns: vec![turn] };
    let (source, sequence) = (SourceId::of_actuator(&label("h1")), 1_700_000_000_000);
    let event = Event { source, sequence, body: EventBody::Usage(report) };
    let signed = sign_event(&key, &label("prod"), event.clone(), None);
    assert_eq!(verify_event(&key.public(), &label("prod"), &signed), Ok(()));
    assert_eq!(hash(&encode_frame(&ToController::Event(signed)).unwrap()), "8687a62d89e35049");
    let packet = PacketIn {
        endpoint: label("web"),
        why: Why::Unknown,
        source_mac: "02:00:00:00:00:07".parse().unwrap(),
        source: Some(address("10.1.2.3")),
        destination: Some(address("fd00::5")),
        protocol: 6,
        ports: (40_000, 443),
    };
    let packets = PacketInReport { actuator: label("h1"), vni: Vni(70_000), packets: vec![packet] };
    assert_eq!(hash(&encode(&EventBody::PacketIn(packets))), "e9b7f9e8b9aacd6f");
    let removed = EventBody::Removed { actuator: label("h1") };
    let source = SourceId::of_controller(&label("c1"));
    let signed =
        sign_event(&key, &label("prod"), Event { source, sequence, body: removed }, Some("admin".into()));
    assert_eq!(verify_event(&key.public(), &label("prod"), &signed), Ok(()));
    assert_eq!(hash(&encode(&signed)), "55f4239fc07ff353");
    for change in 0..4 {
        let mut changed = signed.clone();
        match change {
            0 => changed.event.source.0.push('x'),
            1 => changed.event.sequence += 1,
            2 => changed.subject = None,
            _ => changed.event.body = event.body.clone(),
        }
        assert_eq!(verify_event(&key.public(), &label("prod"), &changed), Err(TrustError::BadSignature));
    }
    assert_eq!(verify_event(&key.public(), &label("other"), &signed), Err(TrustError::BadSignature));
}

/// What domains tell each other: a statement under a signature, who asks, and the event that orders it.
#[test]
fn what_domains_tell_each_other_keeps_its_bytes() {
    let location = LocationEntry {
        endpoint: label("web"),
        mac: "02:00:00:00:00:07".parse().unwrap(),
        host: label("h1"),
        underlay: address("192.0.2.1"),
    };
    let vni = Vni(7000);
    let controller = DomainController { id: 1, key: [3; 32], api: "192.0.2.1:7443".into() };
    let at = Some(location);
    let bodies = [
        StatementBody::Controllers(vec![controller.clone()]),
        StatementBody::Location { network: label("red"), vni, address: address("10.1.2.3"), at },
        StatementBody::Location { network: label("red"), vni, address: address("10.1.2.3"), at: None },
        StatementBody::Complete { since: 1 },
    ];
    let told = (1..).zip(bodies).map(|(sequence, body)| Update {
        target: label("east"),
        key: Key::Statement { to: label("east"), sequence },
        version: Version(301),
        expected: Version::ZERO,
        change: Change::Put(Entry::Statement(Box::new(Statement { after: sequence - 1, body }))),
    });
    let (header, proven) = sign_batch(&signer(), &label("prod"), 2, Version(301), told.collect()).unwrap();
    let statements = frames(proven.into_iter().map(|proven| (header.clone(), proven)), 100);
    let fetch = Fetch {
        domain: label("east"),
        controller: 1,
        of: label("prod"),
        through: 4,
        begin: false,
        now_ms: 1_700_000_000_000,
    };
    let word = sign_fetch(&KeyPair::from_seed(&[2; 32]), fetch);
    let record = DomainRecord {
        name: label("prod"),
        group_key: signer().group_key(),
        authority_pem: "pem".into(),
        controllers: vec![controller.clone()],
        underlays: vec!["192.0.2.0/24".parse().unwrap()],
    };
    let events = [
        DomainEvent::Known(record),
        DomainEvent::Forgotten { domain: label("prod") },
        DomainEvent::Controllers(vec![controller]),
        DomainEvent::Forwarded { origin: label("prod"), statements },
        DomainEvent::Heard { domain: label("east"), through: 4, begin: false, words: vec![word] },
    ];
    let hashes = events.map(|event| hash(&encode(&EventBody::Domain(Box::new(event)))));
    assert_eq!(
        hashes,
        ["cd02a311268e05f6", "1302c329e68eb30a", "3b4d19e727f9cd83", "9e331e7e54d56d98", "ffb22925b5470467"]
    );
}

/// What the order is told of identities, with the signatures of the keys themselves.
#[test]
fn what_is_said_of_identities_keeps_its_bytes() {
    let (domain, whose) = (label("prod"), SourceId::of_actuator(&label("h1")));
    let (old, new) = (KeyPair::from_seed(&[2; 32]), KeyPair::from_seed(&[3; 32]));
    let rotation = sign_rotation(&domain, whose.clone(), &old, &new);
    assert_eq!(verify_rotation(&domain, &rotation), Ok(()));
    let by_key = sign_settled(&domain, &whose, &new);
    assert_eq!(verify_settled(&domain, &whose, &new.public(), &by_key), Ok(()));
    assert_eq!(
        verify_settled(&label("other"), &whose, &new.public(), &by_key),
        Err(TrustError::BadSignature)
    );
    let fifth = SourceId::of_controller(&label("controller-5"));
    let events = [
        IdentityEvent::Certified { whose: whose.clone(), key: [7; 32], until_s: 1_800_000_000 },
        IdentityEvent::Rotated(rotation),
        IdentityEvent::Settled { whose: whose.clone(), key: new.public(), by_key },
        IdentityEvent::Revoked { whose, reason: "stolen".into() },
        IdentityEvent::Introduced { whose: fifth, key: [8; 32] },
    ];
    let hashes = events.map(|event| hash(&encode(&EventBody::Identity(Box::new(event)))));
    assert_eq!(
        hashes,
        ["4a7eab62dfcd5ac2", "fc29c1c0df9acb67", "82b409519e1d7f15", "4e112adc752f07b7", "d38583cd036cf1c4"]
    );
}

#[test]
fn the_journal_of_the_gate_keeps_its_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = gate(folder.path());
    take(&mut first, &signed(), |_| Ok(())).unwrap();
    assert_eq!(hash(&std::fs::read(folder.path().join("gate")).unwrap()), "329f8babc98a01d2");
    let digest = first.digest();
    drop(first);
    assert_ne!(digest, StateDigest::default());
    assert_eq!(gate(folder.path()).digest(), digest);
}

/// What both sides say first in a session of a protocol.
fn first_frames(protocol: u32) -> String {
    let hello = ToController::Hello {
        protocol,
        actuator: label("h1"),
        role: Role::Host,
        software: "0.1.0".into(),
        identity: [3; 32],
        underlay: address("192.0.2.1"),
        digest: StateDigest(7),
    };
    let all = [
        encode_frame(&hello).unwrap(),
        encode_frame(&ToActuator::Welcome { protocol, epoch: 2 }).unwrap(),
        encode_frame(&ToActuator::Refused("no".into())).unwrap(),
        encode_frame(&ToActuator::SendState).unwrap(),
        encode_frame(&ToController::State { entries: vec![(Key::Gateways, Version(1))], last: true })
            .unwrap(),
        encode_frame(&ToActuator::Ping { id: 1 }).unwrap(),
        encode_frame(&ToController::Pong { id: 1 }).unwrap(),
    ];
    hash(&all.concat())
}

/// Release 0.1.0 speaks protocol 10, in these bytes: controllers take it, so all that it says and can read stays as it is.
#[test]
fn the_first_frames_of_a_session_keep_their_bytes() {
    assert_eq!((PROTOCOL, first_frames(PROTOCOL).as_str()), (13, "f617d1fef6b3fd2d"));
    // What came with 13 is in none of these: they differ by the number.
    assert_eq!(first_frames(12), "ac43f9ebb8f2c456");
    assert_eq!((PROTOCOL_MIN, first_frames(PROTOCOL_MIN).as_str()), (10, "499e0d8835b8e62a"));
}

/// A threshold group's messages: a seeded dealer of a seeded group of four, and what the four sign.
#[test]
fn threshold_groups_keep_their_bytes() {
    let members = simulation::members(1..=4);
    let round = Round::fresh(simulation::domain(), 1, members).unwrap();
    let mut rng = weir_base::world::Rng::new(5);
    let mut dealer = Dealer::new(round.clone(), 1, None, &mut |bytes| rng.fill(bytes)).unwrap();
    let mut acks = Vec::new();
    for id in 1..=3 {
        let mut player = Player::new(round.clone(), id).unwrap();
        acks.push(player.take(&dealer.deal(id).unwrap(), &simulation::identity(id)).unwrap());
        dealer.take_ack(&acks[acks.len() - 1]).unwrap();
    }
    let group = simulation::group(4, 1);
    let share = group.secrets[&2].sign(crate::identity::Context::Batch, b"root").unwrap();
    let (header, _) = sign_batch(&group, &label("prod"), 2, Version(301), updates()).unwrap();
    let hashes = [
        hash(&encode(&round)),
        hash(&round.id()),
        hash(&encode(&dealer.deal(2).unwrap())),
        hash(&encode(&acks)),
        hash(&encode(&dealer.log(&simulation::identity(1)).unwrap())),
        hash(&encode::<GroupPublic>(&group.public)),
        hash(&encode(&share)),
        hash(&encode(&header)),
        hash(&encode(&group.group_key())),
    ];
    let wanted = [
        "f84fb925c8038592",
        "af0676f121c216cf",
        "2398ec148beb660e",
        "29a4ad109c3f0796",
        "6860eac6e5028c05",
        "fd0b1a2c531ebbbf",
        "f1e646e812434594",
        "1d3af2dec29a05e8",
        "eeb9b722608133ff",
    ];
    assert_eq!(hashes, wanted);
}

/// A batch that three of four controllers endorsed, and what says who the four are.
#[test]
fn endorsed_batches_and_their_controllers_keep_their_bytes() {
    let known = ControllersEntry { phase: 7, threshold: 3, members: simulation::members(1..=4) };
    let mut endorsed = signed();
    let header = &endorsed.header.header;
    let by = |member| MemberSignature {
        member,
        signature: crate::endorsement::endorse(&simulation::identity(member), 7, header),
    };
    let one = HeaderEndorsement { header: header.clone(), phase: 7, by: by(4) };
    let signatures = vec![by(1), by(2), by(4)];
    endorsed.header.signature = GroupSignature::Members { phase: 7, signatures };
    let hashes = [
        hash(&encode(&(Key::Controllers, Entry::Controllers(known)))),
        hash(&encode_frame(&ToActuator::Updates(endorsed)).unwrap()),
        hash(&encode_frame(&ToActuator::Endorsement(one)).unwrap()),
    ];
    assert_eq!(hashes, ["f840b7d28f680c28", "09bbc9b7343c27d2", "f1ca2f561116a15c"]);
}

/// What people order, and what lets an actuator join by their word.
#[test]
fn requests_of_operators_keep_their_bytes() {
    let (domain, key) = (label("prod"), KeyPair::from_seed(&[2; 32]));
    let author = SourceId::of_operator(&label("anna"));
    let body = EventBody::Removed { actuator: label("h1") };
    let event = Event { source: author.clone(), sequence: Said::number_at(1_700_000_000_000), body };
    let times_ms = (1_700_000_000_000, 1_700_000_060_000);
    let said = sign_said(&key, &domain, event, times_ms);
    assert_eq!(verify_said(&key.public(), &domain, &said), Ok(()));
    assert_eq!(verify_said(&key.public(), &label("other"), &said), Err(TrustError::BadSignature));
    for change in 0..6 {
        let mut changed = said.clone();
        match change {
            0 => changed.event.source.0.push('x'),
            1 => changed.event.sequence += 1,
            2 => changed.made_ms += 1,
            3 => changed.until_ms += 1,
            4 => changed.event.body = EventBody::Removed { actuator: label("h2") },
            _ => changed.signature.s[0] ^= 1,
        }
        assert_eq!(verify_said(&key.public(), &domain, &changed), Err(TrustError::BadSignature), "{change}");
    }
    let underlay = address("192.0.2.1");
    let facts = ActuatorFacts { name: label("h1"), role: Role::Host, identity: [3; 32], underlay };
    let joined = sign_joined_by(&key, &domain, [4; 16], [5; 32], facts.clone());
    assert_eq!(verify_joined_by(&key.public(), &domain, &joined), Ok(()));
    assert_eq!(verify_joined_by(&key.public(), &label("other"), &joined), Err(TrustError::BadSignature));
    for change in 0..6 {
        let mut changed = joined.clone();
        match change {
            0 => changed.facts.name = label("h2"),
            1 => changed.facts.role = Role::Gateway,
            2 => changed.facts.identity[0] ^= 1,
            3 => changed.facts.underlay = address("192.0.2.2"),
            4 => changed.token[0] ^= 1,
            _ => changed.authority[0] ^= 1,
        }
        let wrong = verify_joined_by(&key.public(), &domain, &changed);
        assert_eq!(wrong, Err(TrustError::BadSignature), "{change}");
    }
    let admin = OperatorFacts { role: OperatorRole::Admin, keys: vec![key.public()] };
    let changes = [
        OperatorChange::Added(admin.clone()),
        OperatorChange::Changed(OperatorFacts { role: OperatorRole::Operator, ..admin.clone() }),
        OperatorChange::Removed,
        OperatorChange::Founded([(label("anna"), admin)].into()),
    ];
    let changes = changes.map(|change| IdentityEvent::Operator { whose: author.clone(), change });
    let made = TokenChange::MadeWithKey {
        role: Role::Host,
        until_s: 1_800_000_000,
        underlay: Some("192.0.2.0/24".parse().unwrap()),
        key: key.public(),
    };
    let whose = SourceId::of_actuator(&label("h1"));
    let token = IdentityEvent::Token { whose, id: [4; 16], change: made };
    let hashes = [
        hash(&encode(&EventBody::Said(Box::new(said)))),
        hash(&encode(&EventBody::JoinedBy(Box::new(joined)))),
        hash(&encode(&changes)),
        hash(&encode(&token)),
    ];
    assert_eq!(hashes, ["79e8e474e71105f2", "7256d67c271cb246", "a70675fa7f708aef", "d4f07c8de047aa90"]);
}

/// What operators say of requests that wait, a rule, and whose the key of a certificate is.
#[test]
fn approvals_and_the_word_of_an_owner_keep_their_bytes() {
    let kinds = RequestKind::ALL.into_iter().zip(2..);
    let kinds =
        kinds.map(|(kind, approvals)| (kind, Need { approvals, role: OperatorRole::Admin })).collect();
    let needs = Needs { kinds, wait_s: 3_600 };
    let said = [Approval::Given([1; 32]), Approval::Refused([2; 32]), Approval::Needed(needs)];
    let (key, owner) = (KeyPair::from_seed(&[2; 32]), SourceId::of_actuator(&label("h1")));
    let word = sign_owner(&key, &label("prod"), &owner, &[7; 32]);
    assert_eq!(verify_owner(&key.public(), &label("prod"), &owner, &[7; 32], &word), Ok(()));
    let hashes = [hash(&encode(&said)), hash(&encode(&NewRule::OwnersCertificates)), hash(&to_der(&word))];
    assert_eq!(hashes, ["9ae8e894892aa969", "6e340b9cffb37a98", "38813a808508b319"]);
}
