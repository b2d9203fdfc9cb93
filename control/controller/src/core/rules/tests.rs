use super::super::tests::{from, joined, label, load, outcomes, settings, signed, source_key};
use super::super::{Input, Item, Output};
use super::*;
use weir_model::event::{EventBody, SignedEvent};
use weir_store::{Action, Condition, Operation, Outcome, Query, Refusal, Select, Step, TableOptions, Write};
use weir_trust::identity::KeyPair;

/// One that no app decides in.
fn core() -> Core {
    let key = KeyPair::from_seed(&[1; 32]);
    Core::new(settings(), Box::new(weir_trust::batch::SingleSigner(key)), Vec::new())
}

fn ask(core: &mut Core, principal: u64, operations: Vec<Operation>) -> Vec<Outcome> {
    let batch = Batch { principal, ..Batch::once(operations) };
    let mut out = Vec::new();
    core.step(Input::Ordered(vec![Item::Operations { now_ms: 1, origin: 1, ticket: 1, batch }]), &mut out);
    let applied = out.into_iter().find_map(|output| match output {
        Output::Applied { outcomes, .. } => Some(outcomes),
        _ => None,
    });
    applied.unwrap()
}

fn admin() -> u64 {
    Identity::admin(Identity::ADMINISTRATOR).principal()
}

fn host(name: &str) -> u64 {
    Identity::actuator(name).principal()
}

fn table(name: &str) -> Operation {
    Operation::CreateTable { table: name.into(), options: TableOptions::default() }
}

fn put(table: &str, key: &[u8], value: &[u8]) -> Operation {
    let action = Action::Put { value: value.into(), ttl_ms: 0 };
    Operation::Write(Write { table: table.into(), key: key.into(), condition: Condition::Always, action })
}

fn by_source(sequence: u64, body: EventBody) -> SignedEvent {
    signed(&source_key(), from("s", sequence, body))
}

fn decide(core: &mut Core, event: SignedEvent) {
    let found = outcomes(core, vec![Item::Event { now_ms: 1, event }]);
    assert!(matches!(found[..], [super::super::Outcome::Committed(_)]), "{found:?}");
}

fn switch_on(core: &mut Core) {
    core.step(Input::Ordered(vec![marker(1, RULES)]), &mut Vec::new());
    assert_eq!(core.rules(), RULES);
}

fn is_denied(outcomes: &[Outcome]) -> bool {
    outcomes.iter().all(|outcome| {
        matches!(outcome, Outcome::Refused(Refusal::Invalid { problem }) if problem.contains("may not"))
    })
}

/// Scans that answer more than an entry may.
fn greedy() -> Operation {
    let scan = || Query::Scan {
        table: "host.h1/t".into(),
        from: Vec::new(),
        to: Vec::new(),
        limit: 0,
        select: Select::Whole,
    };
    Operation::Transaction((0..256).map(|_| Step::Read(scan())).collect())
}

#[test]
fn rules_hold_behind_their_marker_and_older_entries_are_done_as_they_were() {
    let mut core = core();
    ask(&mut core, admin(), vec![table("host.h1/t")]);
    let rows = (0..200_u8).map(|n| put("host.h1/t", &[n], &[7; 1_000])).collect();
    ask(&mut core, admin(), rows);
    let before = ask(&mut core, 99, vec![greedy(), Operation::OpenClient]);
    assert!(
        matches!(before[..], [Outcome::Done { .. }, Outcome::Opened { .. }]),
        "whoever asks, whatever it costs"
    );
    assert_eq!(core.snapshot().to_bytes()[0], 4, "a member of the last release reads it");
    switch_on(&mut core);
    let version = core.store().version();
    let after = ask(&mut core, admin(), vec![greedy()]);
    assert!(
        matches!(&after[..], [Outcome::Refused(Refusal::TooLarge { what, .. })] if what.contains("answered"))
    );
    assert!(is_denied(&ask(&mut core, 99, vec![greedy(), Operation::OpenClient])), "nobody is known as 99");
    assert_eq!(core.store().version(), version);
    // Who begins from a snapshot goes by the same rules.
    let again = load(&core.snapshot().to_bytes()).unwrap();
    assert_eq!((again.rules(), again.replica_digest()), (RULES, core.replica_digest()));
}

#[test]
fn a_marker_changes_nothing_but_the_rules() {
    let mut marked = core();
    let mut plain = core();
    for core in [&mut marked, &mut plain] {
        ask(core, admin(), vec![table("host.h1/t"), put("host.h1/t", b"k", b"v")]);
    }
    switch_on(&mut marked);
    assert_eq!(marked.replica_digest(), plain.replica_digest());
    // A marker of rules that are not known yet gives those that are.
    let Item::Operations { now_ms, origin, ticket, batch } = marker(2, RULES) else { panic!() };
    let batch = Batch { settled_below: u64::from(RULES) + 5, ..batch };
    plain.step(Input::Ordered(vec![Item::Operations { now_ms, origin, ticket, batch }]), &mut Vec::new());
    assert_eq!(plain.rules(), RULES);
}

#[test]
fn a_host_reads_and_writes_entries_of_its_namespace_as_long_as_it_belongs_here() {
    let mut core = core();
    switch_on(&mut core);
    let key = KeyPair::from_seed(&[8; 32]);
    decide(&mut core, by_source(1, joined("h1", &key)));
    ask(&mut core, admin(), vec![table("host.h1/t"), table("host.h2/t")]);
    let written = |outcomes: &[Outcome]| matches!(outcomes, [Outcome::Written { .. }]);
    assert!(written(&ask(&mut core, host("h1"), vec![put("host.h1/t", b"k", b"v")])));
    let denied = vec![
        put("host.h2/t", b"k", b"v"),
        table("host.h1/u"),
        Operation::DropTable { table: "host.h1/t".into() },
        Operation::OpenClient,
        Operation::Call { procedure: "host.h1/p".into(), arguments: vec![] },
        Operation::LoadProcedure {
            procedure: "host.h1/p".into(),
            module: vec![],
            limits: Default::default(),
        },
    ];
    assert!(is_denied(&ask(&mut core, host("h1"), denied)));
    assert!(is_denied(&ask(&mut core, host("h2"), vec![put("host.h2/t", b"k", b"v")])), "it did not join");
    let mut replica = load(&core.snapshot().to_bytes()).unwrap();
    assert!(
        written(&ask(&mut replica, host("h1"), vec![put("host.h1/t", b"k", b"w")])),
        "known from a snapshot too"
    );
    // A host of that name is not the administrator.
    decide(&mut core, by_source(2, joined(Identity::ADMINISTRATOR, &KeyPair::from_seed(&[9; 32]))));
    assert!(is_denied(&ask(&mut core, host(Identity::ADMINISTRATOR), vec![table("x/y")])));
    decide(&mut core, by_source(3, EventBody::Removed { actuator: label("h1") }));
    assert!(is_denied(&ask(&mut core, host("h1"), vec![put("host.h1/t", b"k", b"v")])), "it is gone");
}

#[test]
fn who_is_revoked_meanwhile_has_nothing_more_done() {
    use weir_model::identity::IdentityEvent;
    let mut core = core();
    switch_on(&mut core);
    let key = KeyPair::from_seed(&[8; 32]);
    decide(&mut core, by_source(1, joined("h1", &key)));
    ask(&mut core, admin(), vec![table("host.h1/t")]);
    let revoked =
        IdentityEvent::Revoked { whose: SourceId::of_actuator(&label("h1")), reason: "stolen".into() };
    decide(&mut core, by_source(2, EventBody::Identity(Box::new(revoked))));
    assert!(is_denied(&ask(&mut core, host("h1"), vec![put("host.h1/t", b"k", b"v")])));
}

/// One request many times over what an entry may cost does not hinder its neighbours' small ones.
#[test]
fn neighbours_of_a_greedy_batch_are_served() {
    let mut core = core();
    switch_on(&mut core);
    ask(&mut core, admin(), vec![table("host.h1/t")]);
    ask(&mut core, admin(), (0..200_u8).map(|n| put("host.h1/t", &[n], &[7; 1_000])).collect());
    let item = |operations: Vec<Operation>, ticket| Item::Operations {
        now_ms: 1,
        origin: 1,
        ticket,
        batch: Batch { principal: admin(), ..Batch::once(operations) },
    };
    let mut items: Vec<Item> = (0..20).map(|n| item(vec![greedy(); 3], n)).collect();
    items.push(item(vec![put("host.h1/t", b"small", b"v")], 99));
    let mut out = Vec::new();
    core.step(Input::Ordered(items), &mut out);
    let applied: Vec<&Vec<Outcome>> = out
        .iter()
        .filter_map(|output| match output {
            Output::Applied { outcomes, .. } => Some(outcomes),
            _ => None,
        })
        .collect();
    assert!(
        applied[..20]
            .iter()
            .flat_map(|outcomes| outcomes.iter())
            .all(|outcome| matches!(outcome, Outcome::Refused(Refusal::TooLarge { .. })))
    );
    assert!(matches!(applied[20][..], [Outcome::Written { .. }]));
}
