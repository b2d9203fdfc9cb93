use openraft_rt::testing::Suite;
use openraft_rt::{AsyncRuntime, Watch, WatchReceiver, WatchSender};

use super::*;

/// Upstream's own tests of a runtime.
#[test]
fn the_runtime_is_as_openraft_wants_it() {
    Suite::<Runtime>::test_all();
}

#[test]
fn waiters_wake_in_the_order_in_which_they_came() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let (sender, receiver) = OrderedWatch::channel(0);
        let (order, mut woken) = tokio::sync::mpsc::unbounded_channel();
        for waiter in 0..50 {
            let (mut receiver, order) = (receiver.clone(), order.clone());
            spawn(async move {
                receiver.changed().await.unwrap();
                order.send(waiter).unwrap();
            });
        }
        tokio::task::yield_now().await;
        sender.send(1).unwrap();
        drop((sender, order));
        let mut seen = Vec::new();
        while let Some(waiter) = woken.recv().await {
            seen.push(waiter);
        }
        assert_eq!(seen, (0..50).collect::<Vec<_>>());
    });
}

#[test]
fn the_last_value_is_seen_after_its_sender_is_gone() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let (sender, mut receiver) = OrderedWatch::channel(0);
        sender.send(7).unwrap();
        drop(sender);
        receiver.changed().await.unwrap();
        assert_eq!(*receiver.borrow_watched(), 7);
        assert!(receiver.changed().await.is_err());
    });
}

#[test]
fn the_same_seed_gives_the_same_numbers() {
    let draw = || {
        seed_randomness(5);
        use rand::RngExt;
        (0..10).map(|_| Runtime::thread_rng().random_range(0..1_000_000_u64)).collect::<Vec<_>>()
    };
    let first = draw();
    assert_eq!(first, draw());
    assert!(first.windows(2).any(|pair| pair[0] != pair[1]));
}

#[test]
fn a_life_ends_all_that_was_spawned_in_it() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let life = Life::default();
        let (alive, mut over) = tokio::sync::mpsc::channel::<()>(1);
        life.spawn(async move {
            for _ in 0..3 {
                let alive = alive.clone();
                spawn(async move {
                    std::future::pending::<()>().await;
                    drop(alive);
                });
            }
            std::future::pending::<()>().await;
        });
        tokio::task::yield_now().await;
        life.end();
        assert_eq!(over.recv().await, None);
        assert!(life.spawn(async {}).await.unwrap_err().is_cancelled());
    });
}
