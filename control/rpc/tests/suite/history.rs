//! Callers of a store that remember what they asked and were answered, for the checker.

use super::checker::{Deed, Event};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use weir_rpc::Error;
use weir_rpc::client::Client;
use weir_store::{Action, Condition, Selected};

/// Milliseconds would be too coarse: every event has its own moment.
#[derive(Debug, Default)]
pub struct Moments(AtomicU64);

impl Moments {
    /// How many there were.
    #[allow(dead_code, reason = "of the two test programs that have this file, one does not ask")]
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

fn key(number: u64) -> [u8; 1] {
    [number as u8]
}

fn read(found: Option<weir_store::Found>) -> u64 {
    match found.map(|found| found.value) {
        Some(Selected::Whole(bytes)) => u64::from_be_bytes(bytes.try_into().unwrap()),
        None => 0,
        other => panic!("{other:?}"),
    }
}

/// One caller: puts, gets and swaps of one of `keys` keys after the other, with values that nobody else writes, and a pause
/// after each. Each event comes with the number of its key.
pub async fn call(
    client: Client,
    table: &str,
    caller: u64,
    keys: u64,
    pause: Duration,
    stop: Arc<AtomicBool>,
    moments: Arc<Moments>,
) -> Vec<(u64, Event)> {
    let (mut history, mut last) = (Vec::new(), 0);
    for turn in 0_u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        let (number, value) = ((turn + caller) % keys, (caller + 1) << 32 | (turn + 1));
        let called = moments.next();
        let put = |condition| {
            let action = Action::Put { value: value.to_be_bytes().into(), ttl_ms: 0 };
            let client = &client;
            async move { client.write(table, &key(number), condition, action).await }
        };
        let (deed, known) = match turn % 3 {
            0 => match client.get(table, &key(number)).await {
                Ok(found) => {
                    last = read(found);
                    (Deed::Get(last), true)
                }
                Err(_) => continue,
            },
            1 => match put(Condition::Always).await {
                Ok(_) => (Deed::Put(value), true),
                Err(Error::Uncertain(_)) => (Deed::Put(value), false),
                Err(_) => continue,
            },
            // What is not there is 0 in histories.
            _ => match put(if last == 0 {
                Condition::Absent
            } else {
                Condition::Value(last.to_be_bytes().into())
            })
            .await
            {
                Ok(took) => (Deed::Swap(last, value, Some(took.is_ok())), true),
                Err(Error::Uncertain(_)) => (Deed::Swap(last, value, None), false),
                Err(_) => continue,
            },
        };
        let returned = if known { moments.next() } else { u64::MAX };
        history.push((number, Event { called, returned, deed }));
    }
    history
}
