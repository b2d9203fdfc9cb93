use super::server::{Server, table};
use std::sync::Arc;
use weir_rpc::Error;
use weir_rpc::local::LocalSettings;
use weir_store::{
    Action, Answer, Condition, Operation, Outcome, ProcedureLimits, Query, Refusal, Select, Selected, Step,
    TableOptions,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_caller_reads_what_it_wrote() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path()).await;
    let client = server.client();
    table(&client, "t/a", TableOptions::default()).await;
    let first = client.put("t/a", b"k", *b"1").await.unwrap();
    let found = client.get("t/a", b"k").await.unwrap().unwrap();
    assert_eq!((found.version, found.value), (first, Selected::Whole(b"1".into())));
    assert_eq!(client.get("t/a", b"none").await.unwrap(), None);
    let put = Action::Put { value: b"2".into(), ttl_ms: 0 };
    let refused = client.write("t/a", b"k", Condition::Absent, put).await.unwrap();
    assert_eq!(refused, Err(first));
    assert_eq!(client.increment("t/a", b"n", "", 5).await.unwrap(), 0);
    assert_eq!(client.increment("t/a", b"n", "", 5).await.unwrap(), 5);
    let check = Step::Check { table: "t/a".into(), key: b"k".into(), condition: Condition::Absent };
    assert_eq!(client.transact(vec![check]).await.unwrap(), Err(0));
    let error = client.put("t/none", b"k", *b"1").await.unwrap_err();
    assert!(matches!(error, Error::Refused(Refusal::NoTable { .. })), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_share_batches_and_each_request_is_done_once() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path()).await;
    let client = server.client();
    table(&client, "t/a", TableOptions::default()).await;
    let callers: Vec<_> = (0..200)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                let mut seen = Vec::new();
                for _ in 0..10 {
                    seen.push(client.increment("t/a", b"n", "", 1).await.unwrap());
                }
                seen
            })
        })
        .collect();
    let mut all = Vec::new();
    for caller in callers {
        let seen = caller.await.unwrap();
        assert!(seen.is_sorted());
        all.extend(seen);
    }
    all.sort_unstable();
    assert_eq!(all, (0..2_000).collect::<Vec<i64>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_repeated_over_restarts_and_done_once() {
    let dir = tempfile::tempdir().unwrap();
    let settings = LocalSettings { snapshot_entries: 20, ..LocalSettings::default() };
    let mut server = Server::start_with(dir.path(), settings, None, super::server::anybody()).await;
    let client = server.client();
    table(&client, "t/a", TableOptions::default()).await;
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let callers: Vec<_> = (0..8)
        .map(|_| {
            let (client, stop) = (client.clone(), stop.clone());
            tokio::spawn(async move {
                let mut seen = Vec::new();
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    seen.push(client.increment("t/a", b"n", "", 1).await.unwrap());
                }
                seen
            })
        })
        .collect();
    for round in 1..=4 {
        let before = client.increment("t/a", b"rounds", "", 1).await.unwrap();
        assert_eq!(before, round - 1);
        server.restart().await;
    }
    client.increment("t/a", b"rounds", "", 1).await.unwrap();
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let mut all = Vec::new();
    for caller in callers {
        all.extend(caller.await.unwrap());
    }
    // Every number once: none was lost, none done twice.
    all.sort_unstable();
    assert_eq!(all, (0..all.len() as i64).collect::<Vec<i64>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn references_columns_scans_and_procedures_work_from_afar() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path()).await;
    let client = server.client();
    let columns = TableOptions { columns: true, ..TableOptions::default() };
    table(&client, "t/macs", columns).await;
    let references = vec![(String::new(), "t/macs".to_owned())];
    table(&client, "t/ips", TableOptions { references, ..TableOptions::default() }).await;
    client.put("t/ips", b"10.0.0.1", *b"mac").await.unwrap();
    let set = vec![("port".to_owned(), b"7".to_vec()), ("seen".to_owned(), b"1".to_vec())];
    let action = Action::Columns { set, remove: vec![] };
    client.write("t/macs", b"mac", Condition::Absent, action).await.unwrap().unwrap();
    let select = Select::Columns(vec!["port".into()]);
    let follow = Query::Follow { table: "t/ips".into(), key: b"10.0.0.1".into(), via: vec![], select };
    let (version, answer) = client.read(follow, 0).await.unwrap();
    let Answer::Found(found) = answer else { panic!("{answer:?}") };
    assert_eq!(found.value, Selected::Columns(vec![("port".into(), b"7".to_vec())]));
    assert_eq!(found.version, version);
    let scan =
        |limit| Query::Scan { table: "t/ips".into(), from: vec![], to: vec![], limit, select: Select::Whole };
    let (_, answer) = client.read(scan(1), 1_000).await.unwrap();
    assert!(matches!(answer, Answer::Page { ref entries, next: None } if entries.len() == 1), "{answer:?}");

    let text = r#"(module (memory (export "memory") 1)
        (func (export "alloc") (param i32) (result i32) (i32.const 64))
        (func (export "call") (param $at i32) (param $bytes i32) (result i64)
          (i64.or (i64.shl (i64.extend_i32_u (local.get $at)) (i64.const 32)) (i64.extend_i32_u (local.get $bytes)))))"#;
    let load = |module| Operation::LoadProcedure {
        procedure: "t/echo".into(),
        module,
        limits: ProcedureLimits::default(),
    };
    let loaded = client.submit(load(wat::parse_str(text).unwrap())).await.unwrap();
    assert!(matches!(loaded, Outcome::Written { .. }), "{loaded:?}");
    assert_eq!(client.call("t/echo", *b"hello").await.unwrap(), b"hello");
    let bad = client.submit(load(b"bad".to_vec())).await.unwrap();
    assert!(matches!(bad, Outcome::Refused(Refusal::Module { .. })), "{bad:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_go_without_anybody_asking() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path()).await;
    let client = server.client();
    table(&client, "t/a", TableOptions::default()).await;
    let mut watch = client.watch(None, vec![]);
    assert_eq!(watch.next().await.unwrap(), []);
    let put = Action::Put { value: b"1".into(), ttl_ms: 1 };
    client.write("t/a", b"k", Condition::Always, put).await.unwrap().unwrap();
    let mut values = Vec::new();
    while values.len() < 2 {
        let changes = watch.next().await.unwrap();
        values
            .extend(changes.into_iter().flat_map(|change| change.writes).map(|write| write.value.is_some()));
    }
    assert_eq!(values, [true, false]);
    assert_eq!(client.get("t/a", b"k").await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_there_is_said_and_nothing_was_done() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path()).await;
    let mut settings = server.settings();
    settings.endpoints = vec!["127.0.0.1:1".into()];
    settings.give_up_ms = 50;
    let alone = weir_rpc::client::Client::new(settings).unwrap();
    let error = alone.put("t/a", b"k", *b"1").await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    // A replica that is not there is passed by.
    let mut settings = server.settings();
    settings.endpoints.insert(0, "127.0.0.1:1".into());
    let client = weir_rpc::client::Client::new(settings).unwrap();
    table(&client, "t/a", TableOptions::default()).await;
}

/// What takes connections and says nothing.
async fn silent() -> (tokio::net::TcpListener, weir_rpc::client::ClientSettings) {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let mut settings = weir_rpc::client::ClientSettings::new([listener.local_addr().unwrap().to_string()]);
    (settings.try_ms, settings.give_up_ms, settings.waiting_max) = (20, 300, 1);
    (listener, settings)
}

/// Longest wait for what must end by itself. Never a measure of anything.
const BOUND: std::time::Duration = std::time::Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_ends_also_one_that_waits_for_a_place() {
    let (_listener, settings) = silent().await;
    let client = weir_rpc::client::Client::new(settings).unwrap();
    let callers: Vec<_> = (0..50)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.put("t/a", b"k", *b"1").await.unwrap_err().to_string() })
        })
        .collect();
    let mut said = Vec::new();
    for caller in callers {
        said.push(tokio::time::timeout(BOUND, caller).await.unwrap().unwrap());
    }
    // One is tried and one is in the queue; whoever is behind them waits in its own time, and not in theirs behind each other.
    assert!(said.iter().any(|one| one.contains("wait already")), "{said:?}");
    assert!(said.iter().any(|one| one.contains("does not answer")), "{said:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_says_that_it_reaches_nobody_and_goes_on_when_it_is_asked_again() {
    let (_listener, settings) = silent().await;
    let client = weir_rpc::client::Client::new(settings).unwrap();
    let mut watch = client.watch(None, vec![]);
    for _ in 0..2 {
        let error = tokio::time::timeout(BOUND, watch.next()).await.unwrap().unwrap_err();
        assert!(matches!(&error, Error::Unavailable(text) if text.contains("does not answer")), "{error}");
    }
}
