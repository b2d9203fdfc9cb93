//! A server process that is killed with SIGKILL in the midst of work, and comes back; what its clients saw is
//! linearizable.

use super::checker::{Deed, Event, is_linearizable};
use super::server::{Server, table};
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use weir_rpc::Error;
use weir_rpc::client::{Client, ClientSettings};
use weir_rpc::local::LocalSettings;
use weir_store::{Action, Condition, Selected, TableOptions};

const DIR: &str = "WEIR_RPC_KILL_DIR";
const ADDRESS: &str = "WEIR_RPC_KILL_ADDRESS";
const NAME: &str = "suite::kill::what_clients_see_over_kills_is_linearizable";
const KEYS: u64 = 3;
const CALLERS: u64 = 6;
const KILLS: u64 = 4;

/// Kills and reaps the child also when an assertion fails.
struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _gone = (self.0.kill(), self.0.wait());
    }
}

fn start(dir: &Path, address: Option<SocketAddr>) -> (Reaped, SocketAddr) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", NAME, "--nocapture", "--test-threads=1"]);
    command.env(DIR, dir).stdout(Stdio::piped());
    if let Some(address) = address {
        command.env(ADDRESS, address.to_string());
    }
    let mut child = Reaped(command.spawn().unwrap());
    let lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    for line in lines {
        if let Some((_, address)) = line.unwrap().split_once("serving ") {
            return (child, address.parse().unwrap());
        }
    }
    panic!("the server ended before it served");
}

async fn child(dir: &Path) {
    let settings = LocalSettings { snapshot_entries: 50, ..LocalSettings::default() };
    let address = std::env::var(ADDRESS).ok().map(|address| address.parse::<SocketAddr>().unwrap());
    let server = Server::start_at(address, dir, settings, None, super::server::anybody()).await;
    println!("serving {}", server.address);
    std::future::pending::<()>().await;
}

/// Milliseconds would be too coarse: every event has its own moment.
struct Moments(AtomicU64);

impl Moments {
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

/// One caller: puts, gets and swaps of one key after the other, with values that nobody else writes.
async fn call(
    client: Client,
    caller: u64,
    stop: Arc<AtomicBool>,
    moments: Arc<Moments>,
) -> Vec<(u64, Event)> {
    let (mut history, mut last) = (Vec::new(), 0);
    for turn in 0_u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let (number, value) = ((turn + caller) % KEYS, (caller + 1) << 32 | (turn + 1));
        let called = moments.next();
        let put = |condition| {
            let action = Action::Put { value: value.to_be_bytes().into(), ttl_ms: 0 };
            let client = &client;
            async move { client.write("t/a", &key(number), condition, action).await }
        };
        let (deed, known) = match turn % 3 {
            0 => match client.get("t/a", &key(number)).await {
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
            _ => match put(Condition::Value(last.to_be_bytes().into())).await {
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_clients_see_over_kills_is_linearizable() {
    if let Ok(dir) = std::env::var(DIR) {
        return child(Path::new(&dir)).await;
    }
    let dir = tempfile::tempdir().unwrap();
    let (mut server, address) = start(dir.path(), None);
    let connect = || {
        let settings = ClientSettings::new([address.to_string()]);
        Client::new(ClientSettings { try_ms: 5_000, ..settings }).unwrap()
    };
    table(&connect(), "t/a", TableOptions::default()).await;
    let (stop, moments) = (Arc::new(AtomicBool::new(false)), Arc::new(Moments(AtomicU64::new(1))));
    // Two callers share a client, so that batches have several requests.
    let clients: Vec<Client> = (0..CALLERS / 2).map(|_| connect()).collect();
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let client = clients[(caller / 2) as usize].clone();
            tokio::spawn(call(client, caller, stop.clone(), moments.clone()))
        })
        .collect();
    for kill in 1..=KILLS {
        while moments.0.load(Ordering::SeqCst) < kill * 400 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        drop(server);
        server = start(dir.path(), Some(address)).0;
    }
    stop.store(true, Ordering::Relaxed);
    let mut histories: Vec<Vec<Event>> = vec![Vec::new(); KEYS as usize];
    for caller in callers {
        for (number, event) in caller.await.unwrap() {
            histories[number as usize].push(event);
        }
    }
    for (number, history) in histories.iter().enumerate() {
        assert!(history.len() > 50, "key {number} has {} events", history.len());
        assert!(is_linearizable(history), "key {number}: {history:?}");
    }
    drop(server);
}
