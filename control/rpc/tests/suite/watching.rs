use super::server::{Server, anybody, table};
use weir_rpc::Error;
use weir_rpc::client::WatchFilter;
use weir_rpc::local::LocalSettings;
use weir_store::{HistorySettings, TableOptions};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_resumes_where_it_was_and_misses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path()).await;
    let client = server.client();
    table(&client, "t/a", TableOptions::default()).await;
    table(&client, "t/b", TableOptions::default()).await;
    let filter = WatchFilter { table: "t/a".into(), key_prefix: b"x".into() };
    let mut watch = client.watch(None, vec![filter.clone()]);
    watch.next().await.unwrap();
    let start = watch.version().unwrap();
    for n in 0..5_u8 {
        client.put("t/a", &[b'x', n], [n]).await.unwrap();
        client.put("t/a", &[b'y', n], [n]).await.unwrap();
        client.put("t/b", &[b'x', n], [n]).await.unwrap();
    }
    let gather = async |mut watch: weir_rpc::client::Watch| {
        let mut keys = Vec::new();
        while keys.len() < 5 {
            let changes = watch.next().await.unwrap();
            assert!(changes.is_sorted_by_key(|change| change.version));
            keys.extend(changes.into_iter().flat_map(|change| change.writes).map(|write| write.key.to_vec()));
        }
        keys
    };
    let wanted: Vec<Vec<u8>> = (0..5).map(|n| vec![b'x', n]).collect();
    assert_eq!(gather(watch).await, wanted);
    assert_eq!(gather(client.watch(Some(start), vec![filter])).await, wanted, "from the version once more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_from_too_long_ago_is_told_to_begin_with_a_read() {
    let dir = tempfile::tempdir().unwrap();
    let history = HistorySettings { changes_max: 2, bytes_max: 1_000_000 };
    let settings = LocalSettings { history, ..LocalSettings::default() };
    let mut server = Server::start_with(dir.path(), settings, None, anybody()).await;
    let client = server.client();
    table(&client, "t/a", TableOptions::default()).await;
    let old = client.put("t/a", b"k", *b"0").await.unwrap();
    for _ in 0..3 {
        client.put("t/a", b"k", *b"1").await.unwrap();
    }
    let error = client.watch(Some(old), vec![]).next().await.unwrap_err();
    assert!(matches!(&error, Error::WatchTooOld(text) if text.contains("read the tables")), "{error}");
    // A watch goes on over a restart when nothing was missed.
    let mut watch = client.watch(None, vec![]);
    watch.next().await.unwrap();
    server.restart().await;
    client.put("t/a", b"k", *b"2").await.unwrap();
    let changes = loop {
        let changes = watch.next().await.unwrap();
        if !changes.is_empty() {
            break changes;
        }
    };
    assert_eq!(changes[0].writes[0].value.as_deref(), Some(&b"2"[..]));
}
