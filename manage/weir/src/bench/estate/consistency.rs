//! Events a second and their latency: by consistency, order and switches; and by the bound of a batch.

use super::Estate;
use super::drive::{Driven, Load, drive, network_of};
use super::picture::{Line, Picture};
use crate::bench::order::servers::{Given, Peer, Servers};
use crate::bench::simulated::{Folder, Host};
use crate::failure::Failure;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use weir_api::client::Client;
use weir_api::types::ApplyRequest;
use weir_model::Label;
use weir_model::event::Role;

/// What was measured for each number of switches, by the words of an order and a consistency.
type Lines = BTreeMap<String, Vec<(f64, Driven)>>;

/// Orders: a name, the kind, and how many controllers.
const ORDERS: [(&str, Peer, usize); 3] =
    [("local", Peer::Weir, 1), ("raft", Peer::Weir, 3), ("bft", Peer::Bft, 4)];
const CONSISTENCIES: [&str; 3] = ["none", "linear", "dependent"];
/// Switches that take part.
const SWITCHES: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
const SWITCHES_QUICK: [usize; 2] = [1, 4];
/// Callers of changes of one switch, spread over the switches that take part; and of changes of all of them.
const CALLERS: [(&str, usize); 2] = [("one", 32), ("all", 8)];
/// Events of a batch, at most.
const BATCHES: [usize; 4] = [1, 10, 100, 1_000];
const BATCHES_QUICK: [usize; 2] = [1, 100];
/// Callers who make batches.
const CALLERS_OF_BATCHES: usize = 128;
/// How long anything may take to come about.
const BOUND: Duration = Duration::from_secs(120);

fn wait(what: &str, mut holds: impl FnMut() -> Result<bool, Failure>) -> Result<(), Failure> {
    let begun = Instant::now();
    while !holds()? {
        if begun.elapsed() > BOUND {
            return Err(Failure::Input(format!("{what}: not within {} s", BOUND.as_secs())));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Controllers with switches that are simulated.
struct Up {
    servers: Servers,
    client: Client,
    /// Ends before the folder of its hosts goes.
    runtime: Option<tokio::runtime::Runtime>,
    _folder: Folder,
}

impl Drop for Up {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The network of one switch, or of the first so many.
fn network(word: &str, number: usize) -> String {
    format!("{word}-{number}")
}

/// A network with an endpoint on each of these hosts, whose name is its own on its host: its device has it too.
fn resources(name: &str, subnet: usize, hosts: std::ops::Range<usize>) -> Vec<Value> {
    let prefix = format!("10.{subnet}.0.0/16");
    let mut all =
        vec![network_of(name, 1_440), json!({"kind": "subnet", "network": name, "name": "a", "v4": prefix})];
    all.extend(hosts.map(|host| {
        json!({"kind": "endpoint", "network": name, "name": format!("{name}-{host}"), "subnet": "a", "host": format!("h{host}")})
    }));
    all
}

impl Up {
    fn bring(
        (_, peer, count): (&str, Peer, usize),
        given: Given,
        estate: &Estate,
        switches: &[usize],
    ) -> Result<Up, Failure> {
        let servers = Servers::start_with(peer, count, &estate.folder, given)?;
        let client = Client::new(servers.context()?)?;
        wait("the group's key", || Ok(client.status().is_ok_and(|status| !status.group_key.is_empty())))?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(Failure::io("starting threads"))?;
        let folder = Folder::new("estate")?;
        let most = switches.iter().copied().max().unwrap_or(1);
        for number in 0..most {
            let name = Label::new(format!("h{number}")).map_err(|error| Failure::Input(error.to_string()))?;
            let host = Host::join((name, Role::Host, number as u32), &client, folder.path(), &runtime)?;
            host.serve(&servers.sessions(), &runtime);
        }
        let up = Up { servers, client, runtime: Some(runtime), _folder: folder };
        wait("every session", || Ok(up.client.status()?.actuators.iter().all(|one| one.connected)))?;
        let mut all: Vec<Value> = Vec::new();
        (0..most).for_each(|host| all.extend(resources(&network("one", host), 1, host..host + 1)));
        switches.iter().for_each(|many| all.extend(resources(&network("all", *many), 2, 0..*many)));
        let request = ApplyRequest { resources: all, wait_ms: 60_000, ..ApplyRequest::default() };
        let applied = up.client.apply(&request)?;
        match applied.in_force {
            true => Ok(up),
            false => Err(Failure::Input("the networks of the bench were not in force within 60 s".into())),
        }
    }

    fn cell(&self, spread: &str, callers: usize, switches: usize, window_ms: u64) -> Result<Driven, Failure> {
        let networks = match spread {
            "one" => (0..switches).map(|host| network("one", host)).collect(),
            _ => vec![network("all", switches)],
        };
        drive(&self.servers.context()?, &networks, Load { callers, window_ms, in_force: true })
    }
}

/// One picture of rates and one of latencies.
fn pictures(
    name: &str,
    title: &str,
    across: &str,
    found: &BTreeMap<String, Vec<(f64, Driven)>>,
) -> Vec<(String, Picture)> {
    let lines = |value: fn(&Driven) -> f64| -> Vec<Line> {
        let line = |(name, points): (&String, &Vec<(f64, Driven)>)| Line {
            name: name.clone(),
            points: points.iter().map(|(at, driven)| (*at, value(driven))).collect(),
        };
        found.iter().map(line).collect()
    };
    let picture = |what: &str, up: &str, lines: Vec<Line>| Picture {
        title: format!("{title}: {what}"),
        across: across.into(),
        up: up.into(),
        logarithmic: (true, true),
        lines,
    };
    vec![
        (format!("{name}-rate"), picture("events a second", "events/s", lines(|driven| driven.rate))),
        (format!("{name}-latency"), picture("median time of one", "ms", lines(|driven| driven.p50_ms))),
    ]
}

/// Every consistency and order over every number of switches.
///
/// # Errors
/// [`Failure`].
pub fn measure(estate: &Estate) -> Result<Vec<(String, Picture)>, Failure> {
    let switches: &[usize] = if estate.quick { &SWITCHES_QUICK } else { &SWITCHES };
    let mut found: BTreeMap<&str, Lines> = BTreeMap::new();
    for order in ORDERS {
        for consistency in CONSISTENCIES {
            // Each order and each consistency once.
            let is_quick = matches!(
                (order.0, consistency),
                ("local", "none") | ("raft", "linear") | ("bft", "dependent")
            );
            if estate.quick && !is_quick {
                continue;
            }
            let given = Given { lines: format!("consistency: {consistency}\n"), group: String::new() };
            let up = Up::bring(order, given, estate, switches)?;
            for (spread, callers) in CALLERS {
                for many in switches {
                    let driven = up.cell(spread, callers, *many, estate.window_ms())?;
                    let word = format!("{}-{consistency}", order.0);
                    say!(
                        "RESULT estate {word}-{spread}-{many} weir={:.0}events/s p50={:.2}ms switches={:.1}",
                        driven.rate,
                        driven.p50_ms,
                        driven.switches
                    );
                    let lines = found.entry(spread).or_default();
                    lines.entry(word).or_default().push((*many as f64, driven));
                }
            }
        }
    }
    compare(&found, switches);
    let titles = [("one", "One switch an event"), ("all", "All switches an event")];
    Ok(titles
        .into_iter()
        .filter_map(|(spread, title)| Some((spread, title, found.get(spread)?)))
        .flat_map(|(spread, title, found)| {
            pictures(&format!("estate-consistency-{spread}"), title, "switches", found)
        })
        .collect())
}

/// What the paper says of four switches or more: weak consistency that survives lies is above a group that survives crashes only and does
/// one thing at a time.
fn compare(found: &BTreeMap<&str, Lines>, switches: &[usize]) {
    for (spread, lines) in found {
        for (at, many) in switches.iter().enumerate().filter(|(_, many)| **many >= 4) {
            let rate = |word: &str| Some(lines.get(word)?.get(at)?.1.rate);
            if let (Some(ours), Some(theirs)) = (rate("bft-dependent"), rate("raft-linear")) {
                say!(
                    "RESULT estate dependent-over-linear-{spread}-{many} bft-dependent={ours:.0}events/s raft-linear={theirs:.0}events/s \
                     ratio={:.2}",
                    ours / theirs
                );
            }
        }
    }
}

/// Bounds of a batch, with and without a wait for it to fill.
///
/// # Errors
/// [`Failure`].
pub fn batches(estate: &Estate) -> Result<Vec<(String, Picture)>, Failure> {
    let bounds: &[usize] = if estate.quick { &BATCHES_QUICK } else { &BATCHES };
    // The paper's is a tenth of a second.
    let waits: &[&str] = if estate.quick { &["0ms"] } else { &["0ms", "2ms", "100ms"] };
    let mut found: BTreeMap<String, Vec<(f64, Driven)>> = BTreeMap::new();
    for order in ORDERS.into_iter().filter(|(_, _, count)| *count > 1) {
        for wait in waits {
            for bound in bounds {
                let group = format!("  batch: {{ events: {bound}, wait: {wait} }}\n");
                let up = Up::bring(order, Given { lines: String::new(), group }, estate, &[1])?;
                let (callers, window_ms) = (CALLERS_OF_BATCHES, estate.window_ms());
                let load = Load { callers, window_ms, in_force: false };
                let driven = drive(&up.servers.context()?, &[network("one", 0)], load)?;
                let word = format!("{}-{wait}", order.0);
                say!(
                    "RESULT estate batch-{word}-{bound} weir={:.0}events/s p50={:.2}ms",
                    driven.rate,
                    driven.p50_ms
                );
                found.entry(word).or_default().push((*bound as f64, driven));
            }
        }
    }
    Ok(pictures(
        "estate-batches",
        "Events ordered, by the bound of a batch",
        "events of a batch, at most",
        &found,
    ))
}
