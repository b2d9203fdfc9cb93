use super::*;
use weir_model::domain::{Statement, StatementBody};
use weir_model::signed::{BatchHeader, BlsSignature, ProvenUpdate};
use weir_model::{Change, Entry, Key, Update, Version};

fn label(name: &str) -> Label {
    Label::new(name).unwrap()
}

fn header(index: u64) -> Arc<DecidedHeader> {
    let header = BatchHeader {
        domain: label("a"),
        epoch: 1,
        index: Version(index),
        count: 1,
        root: [index as u8; 32],
    };
    Arc::new(DecidedHeader::unsigned(header, Vec::new()))
}

fn signature() -> GroupSignature {
    GroupSignature::Threshold(BlsSignature([[1; 16]; 3]))
}

fn told(header: &Arc<DecidedHeader>, to: &str, sequence: u64, after: u64) -> Held {
    let statement = Statement { after, body: StatementBody::Complete { since: sequence } };
    let update = Update {
        target: label(to),
        key: Key::Statement { to: label(to), sequence },
        version: header.header.index,
        expected: Version::ZERO,
        change: Change::Put(Entry::Statement(Box::new(statement))),
    };
    let bytes = encoded_bytes(&update);
    let proven = Arc::new(ProvenUpdate { leaf: 0, path: Vec::new(), update });
    Held { header: header.clone(), proven, after: Vec::new().into(), bytes }
}

fn numbers(page: &OutboxPage) -> Vec<u64> {
    let updates = page.statements.iter().flat_map(|batch| &batch.updates);
    updates.map(|proven| statement_of(&proven.update).unwrap().1).collect()
}

#[test]
fn statements_are_handed_over_in_order_as_far_as_they_are_signed() {
    let mut outbox = Outbox::default();
    let (first, second) = (header(1), header(2));
    for (header, sequence) in [(&first, 1), (&first, 2), (&second, 3)] {
        outbox.insert(told(header, "b", sequence, sequence - 1)).unwrap();
    }
    assert_eq!(outbox.page(&label("b"), 0), OutboxPage::default(), "nothing is signed");
    outbox.signed(&first.name(), &signature());
    assert_eq!(numbers(&outbox.page(&label("b"), 0)), [1, 2]);
    outbox.signed(&second.name(), &signature());
    let page = outbox.page(&label("b"), 0);
    assert_eq!((numbers(&page), page.statements.len()), (vec![1, 2, 3], 2), "a batch is under one signature");
    assert_eq!(numbers(&outbox.page(&label("b"), 2)), [3]);
    assert_eq!(outbox.page(&label("c"), 0), OutboxPage::default());
    assert_eq!(
        outbox.page(&label("b"), u64::MAX),
        OutboxPage::default(),
        "whatever somebody says that it has"
    );
    outbox.taken(&label("b"), 2);
    assert_eq!(outbox.held().count(), 1);
    // One that has not taken what is gone is told so.
    let behind = outbox.page(&label("b"), 1);
    assert!(behind.behind && behind.statements.is_empty());
}

#[test]
fn what_is_told_anew_takes_the_place_of_all_before_and_nothing_waits_for_nobody() {
    let mut outbox = Outbox::default();
    let (first, second) = (header(1), header(2));
    outbox.insert(told(&first, "b", 1, 0)).unwrap();
    outbox.insert(told(&first, "b", 2, 1)).unwrap();
    outbox.insert(told(&second, "b", 3, 0)).unwrap();
    assert_eq!(outbox.waiting()[&label("b")], 1);
    assert!(outbox.unsigned(&first.name()).is_none() && outbox.unsigned(&second.name()).is_some());
    outbox.forget(&label("b"));
    assert!(outbox.unsigned(&second.name()).is_none() && outbox.waiting().is_empty());
    // An update of a switch is none of its own.
    let mut other = told(&second, "b", 4, 3);
    Arc::make_mut(&mut other.proven).update.change = Change::Delete;
    assert!(outbox.insert(other).is_err());
}
