//! The bytes of what the order carries, of snapshots of the core and of the audit, held by their hashes: controllers of different
//! releases read them. A hash that differs means a new format: raise its number, read the one before, and say in
//! `docs/operate/compatibility.md` what changed.

use crate::audit::record::{Body, Ended, EventRecord, LeftOut, Record};
use crate::core::scheduler::SchedulerSettings;
use crate::core::{Core, CoreSettings, Input, Item, decode_batch};
use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use std::sync::Arc;
use weir_base::codec::encode;
use weir_model::event::{Event, EventBody, SignedEvent, SourceId, Transaction};
use weir_model::signed::Signature;
use weir_model::{Change, Key, Label, Plan, PlannedUpdate, Update, Version};
use weir_store::{
    Action, App, Batch, Condition, Decision, Operation, Rejection, Request, Step, TableOptions, View, Write,
};
use weir_trust::batch::SingleSigner;
use weir_trust::identity::{KeyPair, sign_event};

fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

fn hash(bytes: &[u8]) -> String {
    let digest: [u8; 32] = Sha256::digest(bytes).into();
    digest[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn source() -> SourceId {
    SourceId("controller/c1".into())
}

fn event(sequence: u64) -> SignedEvent {
    let body = EventBody::Intent(Transaction { mutations: Vec::new(), replace_all: true });
    let event = Event { source: source(), sequence, body };
    sign_event(&KeyPair::from_seed(&[7; 32]), &label("d"), event, Some("admin".into()))
}

/// One item of each kind; those of the group's key are held in `weir-trust`.
fn items() -> Vec<Item> {
    let write = Write {
        table: "n/t".into(),
        key: b"k".to_vec(),
        condition: Condition::Absent,
        action: Action::Put { value: b"v".to_vec(), ttl_ms: 5 },
    };
    let operations = vec![
        Operation::CreateTable { table: "n/t".into(), options: TableOptions::default() },
        Operation::Write(write.clone()),
        Operation::Transaction(vec![Step::Write(write)]),
        Operation::OpenClient,
    ];
    let requests = (1..).zip(operations).map(|(sequence, operation)| Request { sequence, operation });
    let batch = Batch { client: 0, principal: 7, settled_below: 1, requests: requests.collect() };
    vec![
        Item::Event { now_ms: 1_700_000_000_000, event: event(300) },
        Item::Repair { now_ms: 1, actuator: label("h1"), found: vec![(Key::Gateways, Version(300))] },
        Item::Operations { now_ms: 1_700_000_000_001, origin: 9, ticket: 300, batch },
    ]
}

/// Deletes a key for each event.
struct Deletes;

impl App for Deletes {
    fn name(&self) -> &'static str {
        "deletes"
    }

    fn decide(
        &self,
        view: &mut View<'_>,
        version: Version,
        now_ms: u64,
        _: &Event,
    ) -> Result<Decision, Rejection> {
        view.put("count", b"events", encode(&(version, now_ms)))?;
        let (target, key) = (label("h1"), Key::Gateways);
        let update = Update { target, key, version, expected: Version::ZERO, change: Change::Delete };
        Ok(Decision { plan: Plan { updates: vec![PlannedUpdate { update, after: Vec::new() }] } })
    }
}

fn core() -> Core {
    let settings = CoreSettings {
        domain: label("d"),
        epoch: 3,
        source: source(),
        keys: [(source(), KeyPair::from_seed(&[7; 32]).public())].into(),
        believes_one: true,
        scheduler: SchedulerSettings::default(),
    };
    let signer = SingleSigner(KeyPair::from_seed(&[1; 32]));
    Core::new(settings, Box::new(signer), vec![Arc::new(Deletes)])
}

#[test]
fn what_the_order_carries_keeps_its_bytes() {
    let hashes: Vec<String> = items().iter().map(|item| hash(&encode(item))).collect();
    assert_eq!(hashes, ["09642b9b26a8b60c", "aa0b336676ee06cd", "b62524feee936e8c"]);
}

#[test]
fn the_snapshot_of_a_core_keeps_its_bytes() {
    let mut core = core();
    let mut out = Vec::new();
    core.step(Input::Ordered(items()), &mut out);
    let bytes = core.snapshot().to_bytes();
    // With what the store keeps of the operations in it.
    assert_eq!((bytes[0], hash(&bytes).as_str()), (4, "19813691022a8a40"));
}

#[test]
fn records_of_the_audit_keep_their_bytes() {
    let signed = event(300);
    let of = EventRecord {
        index: 300,
        source: signed.event.source.clone(),
        sequence: signed.event.sequence,
        subject: signed.subject.clone(),
        body: Body::Whole(signed.event.body.clone()),
        signature: signed.signature,
        ended: Ended::Decided(Version(301)),
    };
    let records = [
        Record::Began {
            domain: label("d"),
            controller: source(),
            software: "0.1.0".into(),
            sources: vec![(source(), [3; 32])],
            group_key: None,
        },
        Record::Event(Box::new(of)),
        Record::Repair { index: 300, actuator: label("h1"), version: Version(301), keys: 2 },
        Record::TooLarge { kind: "event".into(), bytes: 300, sha256: [4; 32] },
        Record::Reached { index: 300 },
        Record::TookOver { after: 1, index: 300, version: Version(301) },
        Record::SetAside { index: 300, sha256: [4; 32] },
        Record::LeftOut(Box::new(LeftOut {
            index: 300,
            sha256: [4; 32],
            word: None,
            promises: vec![(1, [3; 32], Signature { r: [1; 32], s: [2; 32] })],
        })),
    ];
    assert!(records.iter().all(|record| Record::KINDS.contains(&record.kind())));
    let hashes = records.map(|record| hash(&encode(&record)));
    let wanted = [
        "a7aa6d0bfbadd65f",
        "ea5872477928ee13",
        "227fe3473f99ea6e",
        "cdb547e519e2d170",
        "a6340a3aa841dfda",
        "75646182100b9023",
        "5578b36e2c5e3f4c",
        "c60bbcf4a5170fa8",
    ];
    assert_eq!(hashes, wanted);
}

/// An event of a later release ends the controller that cannot read it, and only that one. It is told what to do.
#[test]
fn an_event_of_a_later_release_is_told_as_such() {
    let read = encode(&items()[0]);
    assert_eq!(decode_batch(&weir_order::batcher::encode(&[Bytes::from(read)])).unwrap().len(), 1);
    // As `Item::Event` with a body whose kind is beyond all.
    let later = encode(&(0_u32, 5_u64, ("controller/c1", 300_u64, 200_u32)));
    let batch = weir_order::batcher::encode(&[Bytes::from(later)]);
    let said = decode_batch(&batch).unwrap_err().to_string();
    assert!(said.contains("operation 0 of a batch") && said.contains("upgrade this controller"), "{said}");
}
