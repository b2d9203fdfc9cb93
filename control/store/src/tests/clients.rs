use super::*;
use crate::clients::{CLIENTS_MAX, IDLE_MS_MAX, OUTCOMES_MAX};

fn open(store: &mut Store, principal: u64) -> u64 {
    let batch = Batch { principal, ..Batch::once([Operation::OpenClient]) };
    let now_ms = store.now_ms();
    match &store.apply(&Registry::new(), now_ms, &batch).outcomes[..] {
        [Outcome::Opened { client }] => *client,
        other => panic!("{other:?}"),
    }
}

fn ask(store: &mut Store, client: u64, settled_below: u64, sequence: u64, operation: Operation) -> Outcome {
    let batch =
        Batch { client, principal: 7, settled_below, requests: vec![Request { sequence, operation }] };
    let now_ms = store.now_ms();
    store.apply(&Registry::new(), now_ms, &batch).outcomes.remove(0)
}

fn add(key: &[u8]) -> Operation {
    write("t/a", key, Condition::Always, Action::Increment { column: String::new(), by: 1 })
}

#[test]
fn a_request_asked_again_is_done_once_also_by_a_replica_that_began_from_a_snapshot() {
    let mut store = with_tables(&["t/a"]);
    let client = open(&mut store, 7);
    let first = ask(&mut store, client, 0, 1, add(b"n"));
    let second = ask(&mut store, client, 0, 2, add(b"n"));
    let digest = store.digest();
    assert_eq!(ask(&mut store, client, 0, 1, add(b"n")), first);
    let mut other = Store::from_snapshot(&store.to_snapshot()).unwrap();
    assert_eq!(ask(&mut other, client, 0, 2, add(b"n")), second);
    assert_eq!((store.digest(), other.digest()), (digest, digest));
    assert!(matches!(ask(&mut store, client, 0, 3, add(b"n")), Outcome::Counted { before: 2, .. }));
}

#[test]
fn what_is_settled_is_forgotten_and_refused() {
    let mut store = with_tables(&["t/a"]);
    let client = open(&mut store, 7);
    ask(&mut store, client, 0, 1, add(b"n"));
    ask(&mut store, client, 2, 2, add(b"n"));
    let late = refusal(ask(&mut store, client, 0, 1, add(b"n")));
    assert_eq!(late, Refusal::Settled { sequence: 1, settled_below: 2 });
    // Whoever does not settle is stopped at the bound, and goes on after settling.
    for sequence in 3..OUTCOMES_MAX as u64 + 2 {
        assert!(matches!(ask(&mut store, client, 2, sequence, add(b"n")), Outcome::Counted { .. }));
    }
    let next = OUTCOMES_MAX as u64 + 2;
    assert!(matches!(refusal(ask(&mut store, client, 2, next, add(b"n"))), Refusal::Unsettled { .. }));
    assert!(matches!(ask(&mut store, client, next, next, add(b"n")), Outcome::Counted { .. }));
}

#[test]
fn a_client_that_is_closed_idle_or_another_s_is_unknown() {
    let mut store = with_tables(&["t/a"]);
    let client = open(&mut store, 7);
    let others = open(&mut store, 8);
    assert_eq!(refusal(ask(&mut store, others, 0, 1, add(b"n"))), Refusal::UnknownClient { client: others });
    assert_eq!(refusal(ask(&mut store, 999, 0, 1, add(b"n"))), Refusal::UnknownClient { client: 999 });
    let version = written(&ask(&mut store, client, 0, 1, Operation::CloseClient { client }));
    assert_eq!(version, store.version().0);
    assert_eq!(refusal(ask(&mut store, client, 0, 1, add(b"n"))), Refusal::UnknownClient { client });
    let client = open(&mut store, 7);
    apply(&mut store, IDLE_MS_MAX - 1, []);
    assert!(matches!(ask(&mut store, client, 0, 1, add(b"n")), Outcome::Counted { before: 0, .. }));
    apply(&mut store, 2 * IDLE_MS_MAX, []);
    assert_eq!(refusal(ask(&mut store, client, 0, 1, add(b"n"))), Refusal::UnknownClient { client });
}

#[test]
fn the_client_idle_longest_makes_room() {
    let mut store = Store::new();
    let first = open(&mut store, 7);
    apply(&mut store, 1, []);
    let second = open(&mut store, 7);
    for _ in 2..=CLIENTS_MAX {
        open(&mut store, 7);
    }
    let close = |client| Operation::CloseClient { client };
    assert_eq!(refusal(ask(&mut store, first, 0, 1, close(first))), Refusal::UnknownClient { client: first });
    written(&ask(&mut store, second, 0, 1, close(second)));
}
