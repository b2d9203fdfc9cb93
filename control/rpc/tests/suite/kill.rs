//! A server process that is killed with SIGKILL in the midst of work, and comes back; what its clients saw is
//! linearizable.

use super::checker::{Event, is_linearizable};
use super::history::{Moments, call};
use super::server::{Server, table};
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weir_rpc::client::{Client, ClientSettings};
use weir_rpc::local::LocalSettings;
use weir_store::TableOptions;

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
    let (stop, moments) = (Arc::new(AtomicBool::new(false)), Arc::new(Moments::default()));
    // Two callers share a client, so that batches have several requests.
    let clients: Vec<Client> = (0..CALLERS / 2).map(|_| connect()).collect();
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let client = clients[(caller / 2) as usize].clone();
            tokio::spawn(call(client, "t/a", caller, KEYS, Duration::ZERO, stop.clone(), moments.clone()))
        })
        .collect();
    for kill in 1..=KILLS {
        while moments.count() < kill * 400 {
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
