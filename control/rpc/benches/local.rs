//! One process that is client and server: gRPC stream of batches on loopback, durable log, store in memory.
//!
//!     cargo bench -p weir-rpc --bench local [-- SECONDS]
//!
//! Prints `RESULT store-local <what>` lines: operations a second, latency of one (p50, p90, p99), CPU of one
//! (client and server together).

#![allow(clippy::unwrap_used)]

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use weir_base::world::{RealClock, RealDisk};
use weir_rpc::access::Identity;
use weir_rpc::client::{Client, ClientSettings};
use weir_rpc::local::{LocalSettings, LocalStore};
use weir_store::{Aborted, Call, Operation, Procedure, Registry, TableOptions};

const KEYS: u64 = 1_000;

/// What the learning switch does, in one request: notes one address, and gives another's port.
struct LearnAndLook;

impl Procedure for LearnAndLook {
    fn call(&self, call: &mut Call<'_, '_>, arguments: &[u8]) -> Result<Vec<u8>, Aborted> {
        let (learn, look) =
            arguments.split_at_checked(8).ok_or_else(|| Aborted::new("two keys of 8 bytes"))?;
        call.put("a", learn, b"port-1")?;
        Ok(call.get("a", look)?.map(|entry| entry.value.to_vec()).unwrap_or_default())
    }
}

#[derive(Clone, Copy)]
enum What {
    Put(usize),
    Get { staleness_ms: u64 },
    Procedure,
}

fn key(number: u64) -> [u8; 8] {
    (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) % KEYS).to_be_bytes()
}

async fn one(client: &Client, what: What, number: u64) {
    match what {
        What::Put(bytes) => drop(client.put("t/a", &key(number), vec![7; bytes]).await.unwrap()),
        What::Get { staleness_ms } => {
            let query = weir_store::Query::Get {
                table: "t/a".into(),
                key: key(number).into(),
                select: weir_store::Select::Whole,
            };
            drop(client.read(query, staleness_ms).await.unwrap());
        }
        What::Procedure => {
            let arguments = [key(number), key(number + 1)].concat();
            drop(client.call("t/learn-and-look", arguments).await.unwrap());
        }
    }
}

/// Milliseconds of CPU that this process used, of all its threads.
fn cpu_ms() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    // utime and stime, in hundredths of a second.
    (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()) * 10
}

async fn cell(clients: &[Client], name: &str, what: What, callers: u64, window: Duration) {
    let run = async |window: Duration| {
        let end = Instant::now() + window;
        let tasks: Vec<_> = (0..callers)
            .map(|caller| {
                let client = clients[caller as usize % clients.len()].clone();
                tokio::spawn(async move {
                    let mut taken_us = Vec::new();
                    for number in 0.. {
                        let begun = Instant::now();
                        if begun >= end {
                            break;
                        }
                        one(&client, what, caller * 1_000_003 + number).await;
                        taken_us.push(begun.elapsed().as_micros() as u64);
                    }
                    taken_us
                })
            })
            .collect();
        let mut all = Vec::new();
        for task in tasks {
            all.extend(task.await.unwrap());
        }
        all
    };
    run(window / 5).await;
    let (begun, cpu) = (Instant::now(), cpu_ms());
    let mut taken_us = run(window).await;
    let (seconds, cpu) = (begun.elapsed().as_secs_f64(), cpu_ms() - cpu);
    taken_us.sort_unstable();
    let at = |part: usize| taken_us[(taken_us.len() * part / 100).min(taken_us.len() - 1)] as f64 / 1_000.0;
    let count = taken_us.len() as f64;
    println!(
        "RESULT store-local {name} callers={callers} {:.0}/s p50={:.2}ms p90={:.2}ms p99={:.2}ms cpu={:.1}us",
        count / seconds,
        at(50),
        at(90),
        at(99),
        cpu as f64 * 1_000.0 / count
    );
}

fn main() {
    let seconds = std::env::args().skip(1).find_map(|argument| argument.parse::<f64>().ok()).unwrap_or(2.0);
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(RealDisk::open(dir.path()).unwrap());
    let registry = Arc::new(Registry::new().with("learn-and-look", Arc::new(LearnAndLook)));
    let settings = LocalSettings::default();
    let store = Arc::new(LocalStore::open(disk, Arc::new(RealClock::new()), registry, settings).unwrap());
    let server = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = server.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let anybody =
        Arc::new(|_: &tonic::Extensions, _: &tonic::metadata::MetadataMap| Ok(Identity::admin("bench")));
    server.spawn(weir_rpc::server::serve(listener, None, store, anybody, std::future::pending()));

    let callers = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    callers.block_on(async {
        let connect = || Client::new(ClientSettings::new([address.clone()])).unwrap();
        let clients: Vec<Client> = (0..4).map(|_| connect()).collect();
        let create = Operation::CreateTable { table: "t/a".into(), options: TableOptions::default() };
        clients[0].submit(create).await.unwrap();
        let window = Duration::from_secs_f64(seconds);
        for (name, what) in [
            ("put-100", What::Put(100)),
            ("put-1400", What::Put(1_400)),
            ("get-linearizable", What::Get { staleness_ms: 0 }),
            ("get-stale", What::Get { staleness_ms: 1_000 }),
            ("procedure-ls-ucast", What::Procedure),
        ] {
            for count in [1, 16, 256] {
                cell(&clients, name, what, count, window).await;
            }
        }
    });
}
