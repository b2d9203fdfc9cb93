//! Chains over crashes at any change of the disk, and what an auditor finds in chains that were changed.

use super::{AuditPlace, BYTES_MIN, Keeper, Observer};
use crate::audit::links::batch_records;
use crate::audit::{Auditor, Checked, Contradiction, EventRecord, Link, LinkHash, Record, Trusted, link};
use crate::core::Outcome;
use crate::core::Output;
use crate::core::admission::Unauthentic;
use crate::core::keys::GroupKeys;
use crate::core::operators::founding;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use weir_base::world::{Rng, SimClock, SimDisk};
use weir_model::entry::{Entry as SwitchEntry, Key};
use weir_model::event::{ActuatorFacts, Event, EventBody, Role, SourceId, Transaction};
use weir_model::operator::{OperatorFacts, OperatorRole};
use weir_model::signed::GroupKey;
use weir_model::{Ack, Change, Label, Update, Version};
use weir_trust::batch::{GroupSigner as _, SingleSigner, sign_batch};
use weir_trust::identity::{KeyPair, sign_acks, sign_event};
use weir_trust::said::sign_said;

fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

fn controller() -> SourceId {
    SourceId::of_controller(&label("c1"))
}

fn source_key() -> KeyPair {
    KeyPair::from_seed(&[1; 32])
}

fn group() -> SingleSigner {
    SingleSigner(KeyPair::from_seed(&[2; 32]))
}

fn switch_key() -> KeyPair {
    KeyPair::from_seed(&[3; 32])
}

fn began() -> Record {
    Record::Began {
        domain: label("d"),
        controller: controller(),
        software: "1".into(),
        sources: vec![(controller(), source_key().public())],
        group_key: Some(group().group_key()),
    }
}

fn event(index: u64, body: EventBody) -> Record {
    let event = Event { source: controller(), sequence: index, body };
    let signed = sign_event(&source_key(), &label("d"), event, Some("admin".into()));
    Record::Event(Box::new(EventRecord::new(index, &signed, &Outcome::Committed(Version(index)))))
}

fn joined(index: u64) -> Record {
    let underlay = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let facts =
        ActuatorFacts { name: label("h1"), role: Role::Host, identity: switch_key().public(), underlay };
    event(index, EventBody::Joined(facts))
}

fn updates(version: u64, count: usize) -> Vec<Update> {
    let update = |number: usize| Update {
        target: label("h1"),
        key: Key::Repair { host: label("h1"), cgroup: format!("g{number}") },
        version: Version(version),
        expected: Version::ZERO,
        change: if number.is_multiple_of(2) {
            Change::Delete
        } else {
            Change::Put(SwitchEntry::Members(vec![IpAddr::V4(Ipv4Addr::LOCALHOST); 100]))
        },
    };
    (0..count).map(update).collect()
}

/// What an entry of the order leads to.
fn decision(index: u64, count: usize) -> Vec<Record> {
    let updates = updates(index, count);
    let (signed, _) = sign_batch(&group(), &label("d"), 1, Version(index), updates.clone()).unwrap();
    let intent = EventBody::Intent(Transaction { mutations: Vec::new(), replace_all: false });
    let mut records = vec![if index == 1 { joined(index) } else { event(index, intent) }];
    records.extend(batch_records(index, &signed.header, updates.iter()));
    records.push(Record::Signed { header: signed.header, signature: signed.signature, phase: 0 });
    records
}

fn acks(version: u64) -> Record {
    let key = Key::Repair { host: label("h1"), cgroup: "g0".into() };
    let ack = Ack { key, version: Version(version), result: Ok(()) };
    Record::Acks(sign_acks(&switch_key(), &label("h1"), vec![ack]))
}

fn open(disk: &SimDisk) -> (Keeper, std::thread::JoinHandle<()>, u64) {
    open_bounded(disk, BYTES_MIN)
}

fn open_bounded(disk: &SimDisk, bytes_max: u64) -> (Keeper, std::thread::JoinHandle<()>, u64) {
    let place = AuditPlace { disk: Arc::new(disk.clone()), bytes_max };
    Keeper::open(&place, Arc::new(SimClock::new(1_000))).unwrap()
}

fn all(keeper: &Keeper) -> Vec<(u64, Vec<u8>)> {
    let (mut links, mut next) = (Vec::new(), 0);
    loop {
        let page = keeper.read(next, 7).unwrap();
        if page.links.is_empty() {
            return links;
        }
        next = page.from;
        for link in page.links {
            links.push((next, link.to_vec()));
            next += 1;
        }
    }
}

fn audited(links: &[(u64, Vec<u8>)], trusted: Trusted) -> Checked {
    let mut auditor = Auditor::new(trusted);
    for (number, bytes) in links {
        auditor.take(*number, bytes);
    }
    auditor.finish()
}

fn whole_chain() -> Vec<(u64, Vec<u8>)> {
    let disk = SimDisk::new(1);
    let (keeper, thread, _) = open(&disk);
    keeper.seen(began());
    for index in 1..=6 {
        keeper.ordered(index, decision(index, 5));
        keeper.seen(acks(index));
    }
    keeper.flush(6);
    let links = all(&keeper);
    drop(keeper);
    thread.join().unwrap();
    links
}

#[test]
fn a_whole_chain_is_found_right() {
    let checked = audited(&whole_chain(), Trusted::default());
    assert_eq!(checked.findings, []);
    assert_eq!((checked.events, checked.batches, checked.signatures, checked.acks), (6, 6, 6, 6));
    assert_eq!((checked.events_unchecked, checked.acks_unchecked, checked.gaps), (0, 0, 0));
}

#[test]
fn any_changed_byte_is_found() {
    let links = whole_chain();
    let sound = audited(&links, Trusted::default());
    let noted = Some((sound.last, sound.head));
    let mut rng = Rng::new(7);
    for _ in 0..300 {
        let mut changed = links.clone();
        let link = rng.below(changed.len() as u64) as usize;
        let byte = rng.below(changed[link].1.len() as u64) as usize;
        changed[link].1[byte] ^= 1 << rng.below(8);
        let found = audited(&changed, Trusted { noted, ..Trusted::default() });
        assert!(found.findings_total > 0, "byte {byte} of link {link} was changed, and nobody noticed");
    }
}

#[test]
fn what_is_cut_off_or_left_out_is_found() {
    let links = whole_chain();
    let sound = audited(&links, Trusted::default());
    let noted = Some((sound.last, sound.head));
    let cut = audited(&links[..links.len() - 1], Trusted { noted, ..Trusted::default() });
    assert!(cut.findings[0].what.contains("its end was cut off"), "{:?}", cut.findings);
    for left_out in 1..links.len() - 1 {
        let mut changed = links.clone();
        changed.remove(left_out);
        assert!(audited(&changed, Trusted::default()).findings_total > 0, "link {left_out} was left out");
    }
}

#[test]
fn a_chain_that_was_forged_from_its_beginning_does_not_have_the_groups_signatures() {
    let group_key = Some(GroupKey::Single(KeyPair::from_seed(&[9; 32]).public()));
    let found = audited(&whole_chain(), Trusted { group_key, ..Trusted::default() });
    assert_eq!((found.signatures, found.findings_total), (0, 6));
    assert!(found.key_given);
}

#[test]
fn votes_that_exclude_each_other_convict_whom_they_convict() {
    let votes = |member| Record::Contradiction(Box::new(Contradiction { member, evidence: vec![3, 3] }));
    let convicts: fn(&[u8]) -> Option<u32> = |evidence| match evidence {
        [first, second] if first == second => Some(u32::from(*first)),
        _ => None,
    };
    let (keeper, thread, _) = open(&SimDisk::new(1));
    keeper.seen(began());
    keeper.seen(votes(3));
    keeper.seen(votes(4));
    keeper.flush(0);
    let links = all(&keeper);
    drop(keeper);
    thread.join().unwrap();
    let told = audited(&links, Trusted { convicts: Some(convicts), ..Trusted::default() });
    assert_eq!((told.faults_proven, told.faults_seen, told.findings_total), (1, 0, 1), "{:?}", told.findings);
    assert!(told.findings[0].what.contains("member 4"), "{:?}", told.findings);
    let nobody_can_tell = audited(&links, Trusted::default());
    assert_eq!((nobody_can_tell.faults_proven, nobody_can_tell.faults_seen), (0, 2));
}

#[test]
fn who_did_not_say_it_is_not_its_source() {
    let mut records = decision(2, 3);
    if let Record::Event(event) = &mut records[0] {
        event.subject = Some("somebody-else".into());
    }
    let stranger = sign_acks(&KeyPair::from_seed(&[8; 32]), &label("h1"), Vec::new());
    let mut records = [vec![began()], decision(1, 1), records, vec![Record::Acks(stranger)]].concat();
    let Some(Record::Batch { updates, .. }) = records.iter_mut().rev().find(|r| r.kind() == "batch") else {
        panic!("a decision has updates")
    };
    updates[1].change = Change::Delete;
    let bytes = Link { previous: link::GENESIS, wall_ms: 0, records }.to_bytes();
    let found = audited(&[(1, bytes)], Trusted::default());
    let whats: Vec<&str> = found.findings.iter().map(|finding| finding.what.as_str()).collect();
    assert!(whats[0].contains("event 2 of controller/c1 is not its source's"), "{whats:?}");
    assert!(whats[1].contains("not those under the signed root"), "{whats:?}");
    assert!(whats[2].contains("acks of h1 are not signed by it"), "{whats:?}");
    assert_eq!(whats.len(), 3);
}

#[test]
fn after_a_power_cut_the_chain_goes_on_and_lacks_nothing_that_was_flushed() {
    let seeds = std::env::var("WEIR_AUDIT_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(12);
    for seed in 0..seeds {
        let mut rng = Rng::new(seed);
        let mut disk = SimDisk::new(seed);
        let (mut flushed, mut heads): (u64, Vec<(u64, LinkHash)>) = (0, Vec::new());
        for _ in 0..6 {
            let (keeper, thread, complete) = open(&disk);
            assert!(complete >= flushed, "seed {seed}: {flushed} was flushed, {complete} is there");
            for noted in heads.iter().rev().take(2) {
                let found = audited(&all(&keeper), Trusted { noted: Some(*noted), ..Trusted::default() });
                assert_eq!(found.findings, [], "seed {seed}");
            }
            keeper.seen(began());
            disk.cut_power_after(rng.below(30));
            // Replays what is there as well, as a controller does.
            for index in complete.saturating_sub(3).max(1)..=complete + 4 {
                let count = if rng.chance(1, 30) { 4_000 } else { 2 };
                keeper.ordered(index, decision(index, count));
                if rng.chance(1, 2) {
                    keeper.flush(index);
                    let status = keeper.status();
                    if !status.failed {
                        flushed = index;
                        heads.push((status.last, status.head));
                    }
                }
            }
            drop(keeper);
            thread.join().unwrap();
            disk.cut_power();
            disk = disk.restart();
        }
        let (keeper, thread, _) = open(&disk);
        let found = audited(&all(&keeper), Trusted::default());
        assert_eq!(found.findings, [], "seed {seed}");
        assert_eq!(found.head, keeper.status().head);
        drop(keeper);
        thread.join().unwrap();
    }
}

#[test]
fn entries_that_are_there_are_not_kept_twice() {
    let disk = SimDisk::new(3);
    for _ in 0..3 {
        let (keeper, thread, _) = open(&disk);
        for index in 1..=4 {
            keeper.ordered(index, decision(index, 2));
        }
        keeper.flush(4);
        assert_eq!(audited(&all(&keeper), Trusted::default()).batches, 4);
        drop(keeper);
        thread.join().unwrap();
    }
}

#[test]
fn a_state_that_was_taken_over_leaves_a_gap_that_is_told() {
    let disk = SimDisk::new(4);
    let (keeper, thread, _) = open(&disk);
    keeper.seen(began());
    keeper.ordered(1, decision(1, 2));
    keeper.took_over(1, Version(1));
    keeper.took_over(40, Version(70));
    keeper.ordered(41, decision(41, 2));
    keeper.flush(41);
    let found = audited(&all(&keeper), Trusted::default());
    assert_eq!((found.gaps, found.batches), (1, 2));
    assert_eq!(found.findings, []);
    drop(keeper);
    thread.join().unwrap();
}

#[test]
fn the_oldest_links_go_when_there_is_no_room_and_the_rest_is_a_chain() {
    let disk = SimDisk::new(5);
    let (keeper, thread, _) = open_bounded(&disk, 0);
    for index in 1..=150 {
        keeper.ordered(index, decision(index, 2_500));
        keeper.flush(index);
    }
    let status = keeper.status();
    assert!(status.bytes > 2 * BYTES_MIN, "{status:?}");
    assert!(disk.used_bytes() <= BYTES_MIN + (16 << 20), "{} bytes are used", disk.used_bytes());
    assert!(status.first > 1 && !status.failed, "{status:?}");
    let links = all(&keeper);
    assert_eq!((links[0].0, links.last().unwrap().0), (status.first, status.last));
    let found = audited(&links, Trusted { group_key: Some(group().group_key()), ..Trusted::default() });
    assert_eq!(found.findings, []);
    assert!(found.signatures > 10);
    drop(keeper);
    thread.join().unwrap();
}

#[test]
fn a_disk_that_fails_stops_the_audit_and_says_so() {
    let disk = SimDisk::new(6);
    let (keeper, thread, _) = open(&disk);
    keeper.ordered(1, decision(1, 2));
    keeper.flush(1);
    disk.fail_syncs(1);
    keeper.ordered(2, decision(2, 2));
    keeper.flush(2);
    assert!(keeper.status().failed);
    drop(keeper);
    thread.join().unwrap();
    let (keeper, thread, complete) = open(&disk);
    assert!(complete >= 1);
    keeper.ordered(2, decision(2, 2));
    keeper.flush(2);
    assert!(!keeper.status().failed);
    assert_eq!(audited(&all(&keeper), Trusted::default()).batches, 2);
    drop(keeper);
    thread.join().unwrap();
}

#[test]
fn a_record_without_room_leaves_its_digest() {
    let disk = SimDisk::new(7);
    let (keeper, thread, _) = open(&disk);
    let ack = |number: u64| Ack {
        key: Key::Repair { host: label("h1"), cgroup: "g".repeat(200) },
        version: Version(number),
        result: Ok(()),
    };
    keeper.seen(Record::Acks(sign_acks(&switch_key(), &label("h1"), (0..20_000).map(ack).collect())));
    keeper.flush(1);
    let links = all(&keeper);
    let first = Link::from_bytes(&links[0].1).unwrap();
    assert!(matches!(&first.records[..], [Record::TooLarge { kind, .. }, ..] if kind == "acks"), "{first:?}");
    drop(keeper);
    thread.join().unwrap();
}

#[test]
fn fuzz_any_bytes_are_a_link_or_a_finding() {
    let sound = whole_chain();
    bolero::check!().with_iterations(2_000).with_type::<(Vec<u8>, u8, u16, u8)>().for_each(
        move |(bytes, link, at, flip)| {
            let mut auditor = Auditor::new(Trusted::default());
            auditor.take(1, bytes);
            let (number, sound) = &sound[usize::from(*link) % sound.len()];
            let mut changed = sound.clone();
            let at = usize::from(*at) % changed.len();
            changed[at] ^= flip;
            auditor.take(*number, &changed);
            let checked = auditor.finish();
            assert_eq!(checked.links, 2);
        },
    );
}

#[test]
fn links_wait_for_room_on_a_full_disk_and_none_is_lost() {
    let disk = SimDisk::new(7);
    let (keeper, thread, _) = open(&disk);
    keeper.ordered(1, decision(1, 2));
    keeper.flush(1);
    disk.fail_writes(3, std::io::ErrorKind::StorageFull);
    keeper.ordered(2, decision(2, 2));
    keeper.ordered(3, decision(3, 2));
    // Returns when they are written after all.
    keeper.flush(3);
    assert!(!keeper.status().failed);
    assert_eq!(audited(&all(&keeper), Trusted::default()).batches, 3);
    drop(keeper);
    thread.join().unwrap();
    assert_eq!(open(&disk).2, 3);
}

#[test]
fn who_orders_what_nobody_signed_is_named_and_requests_are_checked() {
    let (keeper, thread, _) = open(&SimDisk::new(8));
    keeper.seen(began());
    let mut observer = Observer::new(Some(keeper.clone()));
    let anna = KeyPair::from_seed(&[11; 32]);
    let facts = OperatorFacts { role: OperatorRole::Admin, keys: vec![anna.public()] };
    let founded = founding(&[(label("anna"), facts)].into()).unwrap();
    let intent = EventBody::Intent(Transaction::default());
    let asked = |key: &KeyPair| {
        let source = SourceId::of_operator(&label("anna"));
        let event = Event { source, sequence: 1, body: intent.clone() };
        EventBody::Said(Box::new(sign_said(key, &label("d"), event, (1, 2))))
    };
    let unsigned = || Outcome::Unauthentic(Unauthentic::Unsigned);
    let decided = |version| Outcome::Committed(Version(version));
    let told = [
        (EventBody::Identity(Box::new(founded)), decided(1)),
        (asked(&anna), decided(2)),
        (intent.clone(), unsigned()),
        (intent.clone(), unsigned()),
        (intent.clone(), unsigned()),
        // Dropped, so it is no finding but a misdeed.
        (asked(&source_key()), Outcome::Unauthentic(Unauthentic::Forged)),
        (asked(&source_key()), decided(3)),
    ];
    for (index, (body, outcome)) in (1..).zip(told) {
        let event = Event { source: controller(), sequence: index, body };
        let event = Box::new(sign_event(&source_key(), &label("d"), event, None));
        observer.ordered(index, &[Output::Decided { event, outcome }], &GroupKeys::default());
    }
    keeper.flush(7);
    let links = all(&keeper);
    let misdeeds: Vec<(SourceId, u64)> = links
        .iter()
        .flat_map(|(_, bytes)| Link::from_bytes(bytes).unwrap().records)
        .filter_map(|record| match record {
            Record::Misdeed(misdeed) => Some((misdeed.who, misdeed.count)),
            _ => None,
        })
        .collect();
    // The 1st, 2nd and 4th time.
    assert_eq!(misdeeds, [(controller(), 1), (controller(), 2), (controller(), 4)]);
    drop((observer, keeper));
    thread.join().unwrap();
    let found = audited(&links, Trusted::default());
    assert_eq!((found.requests, found.requests_unchecked, found.misdeeds), (1, 0, 3));
    assert_eq!(found.findings_total, 1, "{:?}", found.findings);
    assert!(found.findings[0].what.contains("operator/anna"), "{:?}", found.findings);
}
