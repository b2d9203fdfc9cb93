//! Callers that change networks, each one change after the other.

use crate::bench::order::median;
use crate::failure::Failure;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use weir_api::client::{Client, Context};
use weir_api::types::ApplyRequest;

/// How long a change may take until it is in force, milliseconds.
const IN_FORCE_MS: u32 = 20_000;
/// MTUs that networks are given in turn: allowed ones, all different.
const MTUS: std::ops::Range<u64> = 1_280..1_440;

/// What callers saw.
#[derive(Clone, Copy, Debug)]
pub struct Driven {
    /// Events a second.
    pub rate: f64,
    /// Median time of one, milliseconds.
    pub p50_ms: f64,
    /// Switches that one touched, on average.
    pub switches: f64,
}

/// What is changed, and what is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Callers.
    pub callers: usize,
    /// How long, milliseconds.
    pub window_ms: u64,
    /// Whether a change is answered when it is in force at its switches; else when it is in the order.
    pub in_force: bool,
}

/// Drives these networks: each caller has one of them, the next caller the next one.
///
/// # Errors
/// [`Failure`]: a change failed, or was not in force in time.
pub fn drive(context: &Context, networks: &[String], load: Load) -> Result<Driven, Failure> {
    let (begun, counter) = (Instant::now(), AtomicU64::new(0));
    let until = begun + Duration::from_millis(load.window_ms);
    let caller = &|number: usize| -> Result<Vec<(f64, usize)>, Failure> {
        let client = Client::new(context.clone())?;
        let network = &networks[number % networks.len()];
        let mut done = Vec::new();
        while Instant::now() < until {
            let nth = counter.fetch_add(1, Ordering::Relaxed);
            let mtu = MTUS.start + nth % (MTUS.end - MTUS.start);
            let asked = Instant::now();
            let applied = client.apply(&ApplyRequest {
                resources: vec![network_of(network, mtu)],
                wait_ms: if load.in_force { IN_FORCE_MS } else { 0 },
                ..ApplyRequest::default()
            })?;
            if load.in_force && !applied.in_force {
                return Err(Failure::Input(format!("a change was not in force within {IN_FORCE_MS} ms")));
            }
            done.push((asked.elapsed().as_secs_f64() * 1e3, applied.switches));
        }
        Ok(done)
    };
    let all: Result<Vec<Vec<(f64, usize)>>, Failure> = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..load.callers).map(|number| scope.spawn(move || caller(number))).collect();
        let ended = callers.into_iter().map(|caller| {
            caller.join().unwrap_or_else(|_| Err(Failure::Input("a caller ended early".into())))
        });
        ended.collect()
    });
    let all: Vec<(f64, usize)> = all?.into_iter().flatten().collect();
    let switches: usize = all.iter().map(|(_, switches)| switches).sum();
    Ok(Driven {
        rate: all.len() as f64 / begun.elapsed().as_secs_f64(),
        p50_ms: median(all.iter().map(|(ms, _)| *ms)),
        switches: switches as f64 / all.len().max(1) as f64,
    })
}

/// A network, with an MTU.
pub fn network_of(name: &str, mtu: u64) -> Value {
    json!({"kind": "network", "name": name, "mtu": mtu})
}
