use super::server::{Server, table};
use weir_rpc::Error;
use weir_rpc::cache::{Cache, UPDATE_ATTEMPTS_MAX};
use weir_store::{Condition, TableOptions};

const LONG: u64 = 3_600_000;

fn number(value: Option<&[u8]>) -> u64 {
    value.map_or(0, |bytes| u64::from_be_bytes(bytes.try_into().unwrap()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cached_entry_is_given_within_the_bound_only() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path()).await;
    let (client, other) = (server.client(), server.client());
    table(&client, "t/a", TableOptions::default()).await;
    let cache = Cache::new(client, 100);
    let value =
        async |bound| cache.get("t/a", b"k", bound).await.unwrap().map(|cached| cached.value.to_vec());
    assert_eq!(value(LONG).await, None);
    other.put("t/a", b"k", *b"1").await.unwrap();
    assert_eq!(value(LONG).await, None, "that it was not there is kept too");
    assert_eq!(value(0).await, Some(b"1".to_vec()), "bound 0 asks the store");
    other.put("t/a", b"k", *b"2").await.unwrap();
    assert_eq!(value(LONG).await, Some(b"1".to_vec()));
    tokio::time::sleep(std::time::Duration::from_millis(30)).await;
    assert_eq!(value(20).await, Some(b"2".to_vec()), "older than the bound");
    cache.put("t/a", b"k", Condition::Always, b"3").await.unwrap().unwrap();
    assert_eq!(value(LONG).await, Some(b"3".to_vec()), "writes go through");
    cache.remove("t/a", b"k").await.unwrap();
    assert_eq!(value(LONG).await, None);
    assert_eq!(other.get("t/a", b"k").await.unwrap(), None);
    let counters = cache.counters();
    assert_eq!((counters.hits, counters.misses), (3, 4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_based_on_stale_data_is_refused_and_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path()).await;
    let client = server.client();
    table(&client, "t/a", TableOptions::default()).await;
    let callers: Vec<_> = (0..4)
        .map(|_| {
            let cache = Cache::new(server.client(), 100);
            tokio::spawn(async move {
                for _ in 0..25 {
                    let add = |value: Option<&[u8]>| Some((number(value) + 1).to_be_bytes().to_vec());
                    // Contention is told, and then tried again here.
                    while let Err(error) = cache.update("t/a", b"n", LONG, add).await {
                        assert!(matches!(error, Error::Contended { .. }), "{error}");
                    }
                }
                cache.counters().conflicts
            })
        })
        .collect();
    let mut conflicts = 0;
    for caller in callers {
        conflicts += caller.await.unwrap();
    }
    assert!(conflicts > 0, "four caches that may be an hour stale cannot all have been right");
    let cache = Cache::new(client.clone(), 100);
    let sum = cache.get("t/a", b"n", 0).await.unwrap();
    assert_eq!(number(sum.as_ref().map(|cached| &cached.value[..])), 100);

    // Somebody who always comes first.
    let (handle, rival) = (tokio::runtime::Handle::current(), server.client());
    let error = cache.update("t/a", b"n", 0, |_| {
        let put = rival.put("t/a", b"n", *b"rival");
        tokio::task::block_in_place(|| handle.block_on(put)).unwrap();
        Some(b"mine".into())
    });
    let error = error.await.unwrap_err();
    assert!(matches!(error, Error::Contended { attempts: UPDATE_ATTEMPTS_MAX }), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cache_keeps_its_bound_and_what_was_used_last() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path()).await;
    let client = server.client();
    table(&client, "t/a", TableOptions::default()).await;
    let cache = Cache::new(client, 3);
    for key in [1, 2, 3, 1, 4] {
        cache.get("t/a", &[key], LONG).await.unwrap();
    }
    assert_eq!((cache.counters().hits, cache.counters().dropped), (1, 1));
    cache.get("t/a", &[1], LONG).await.unwrap();
    assert_eq!(cache.counters().hits, 2, "1 was used after 2 and stayed");
    cache.get("t/a", &[2], LONG).await.unwrap();
    assert_eq!(cache.counters().hits, 2);
}
