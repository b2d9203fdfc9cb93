//! A client process: so many callers, each with one operation on its way, for so long.

use super::Window;
use super::etcd::Etcd;
use super::servers::{Servers, runtime};
use crate::failure::Failure;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use weir_api::client::Context;
use weir_api::pki::client_config;
use weir_model::join::CONTROLLER_DNS_NAME;
use weir_rpc::client::{Client, ClientSettings};
use weir_store::{Operation, TableOptions};

/// Keys that are written and read.
const KEYS: u64 = 1_000;
/// The table.
pub const TABLE: &str = "bench/order";
/// Connections of etcd's client, at most.
const CONNECTIONS_MAX: usize = 16;
/// Another replica is tried after so long without an answer, milliseconds: twice the longest election time-out.
const TRY_MS: u64 = 320;

/// What is measured.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Cell {
    /// Linearizable reads; else writes.
    pub reads: bool,
    /// Bytes of a value.
    pub bytes: usize,
    /// Callers.
    pub callers: usize,
    /// From the beginning of a caller's operation to that of its next one, at least, milliseconds. Where it is not 0 no keys are written before.
    pub every_ms: u64,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.reads { "get" } else { "put" };
        write!(f, "{what}_{}B_{}_callers", self.bytes, self.callers)
    }
}

#[derive(Serialize, Deserialize)]
struct Work {
    cell: Cell,
    window_ms: u64,
    /// `None`: etcd.
    context: Option<Context>,
    /// The server that leads.
    leader: String,
}

fn wrong(error: impl fmt::Display) -> Failure {
    Failure::Input(error.to_string())
}

/// Runs a client process against the leader.
pub fn run(servers: &Servers, cell: &Cell, window_ms: u64) -> Result<Window, Failure> {
    let leader = servers.leader_address()?;
    let context = if servers.peer.is_weir() { Some(servers.context()?) } else { None };
    let work = Work { cell: *cell, window_ms, context, leader };
    let mut command = Command::new(std::env::current_exe().map_err(Failure::io("finding this program"))?);
    command.args(["lab-tool", "order-client"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(Failure::io("starting a client"))?;
    if let Some(input) = child.stdin.take() {
        // By a pipe, since every user of the machine may read command lines.
        serde_json::to_writer(input, &work).map_err(wrong)?;
    }
    let output = child.wait_with_output().map_err(Failure::io("running a client"))?;
    if !output.status.success() {
        return Err(wrong(format!("the client of {:?} failed at {cell}", servers.peer)));
    }
    serde_json::from_slice(&output.stdout).map_err(wrong)
}

/// The client process itself: reads its work from standard input and gives its [`Window`].
pub fn tool() -> Result<String, Failure> {
    let work: Work = serde_json::from_reader(std::io::stdin()).map_err(wrong)?;
    let (latencies, elapsed) = runtime()?.block_on(measure(&work))?;
    let mut us: Vec<f64> = latencies.iter().map(|one| one.as_secs_f64() * 1e6).collect();
    us.sort_by(f64::total_cmp);
    let at =
        |share: f64| us.get(((us.len().max(1) - 1) as f64 * share) as usize).copied().unwrap_or(f64::NAN);
    let window = Window {
        rate: us.len() as f64 / elapsed.as_secs_f64(),
        p50_us: at(0.5),
        p99_us: at(0.99),
        count: us.len() as u64,
        client_cpu_us: own_cpu_us(),
    };
    serde_json::to_string(&window).map_err(wrong)
}

/// Processor time of this process, microseconds, to a few microseconds.
fn own_cpu_us() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).map_or(f64::NAN, |ns| ns / 1e3)
}

async fn measure(work: &Work) -> Result<(Vec<Duration>, Duration), Failure> {
    let cell = work.cell;
    let value = vec![7; cell.bytes];
    match &work.context {
        Some(context) => {
            let client = weir_client(context, std::slice::from_ref(&work.leader))?;
            if cell.every_ms == 0 {
                make_table(&client).await?;
                fill(|key| {
                    let (client, value) = (client.clone(), value.clone());
                    async move { client.put(TABLE, &key, value).await.map(drop).map_err(wrong) }
                })
                .await?;
            }
            callers(
                work,
                |_| client.clone(),
                move |client, key, value| async move {
                    let result = match cell.reads {
                        true => client.get(TABLE, &key).await.map(|found| found.is_some()),
                        false => client.put(TABLE, &key, value).await.map(|_| true),
                    };
                    (client, result.map_err(wrong))
                },
            )
            .await
        }
        None => {
            let mut connections = Vec::new();
            for _ in 0..cell.callers.min(CONNECTIONS_MAX) {
                connections.push(Etcd::connect(&work.leader).await?);
            }
            fill(|key| {
                let (mut client, value) = (connections[0].clone(), value.clone());
                async move { client.put(key, value).await }
            })
            .await?;
            let of = |number: usize| connections[number % connections.len()].clone();
            callers(work, of, move |mut client, key, value| async move {
                let result = match cell.reads {
                    true => client.get(key).await,
                    false => client.put(key, value).await.map(|()| true),
                };
                (client, result)
            })
            .await
        }
    }
}

/// A client of Weir's store.
pub fn weir_client(context: &Context, endpoints: &[String]) -> Result<Client, Failure> {
    let mut settings = ClientSettings::new(endpoints);
    settings.tls = Some(client_config(&context.ca).map_err(wrong)?);
    settings.server_name = Some(CONTROLLER_DNS_NAME.to_owned());
    settings.token = Some(context.token.clone());
    settings.try_ms = TRY_MS;
    Client::new(settings).map_err(wrong)
}

/// Makes the table, unless it is there.
pub async fn make_table(client: &Client) -> Result<(), Failure> {
    let create = Operation::CreateTable { table: TABLE.to_owned(), options: TableOptions::default() };
    client.submit(create).await.map(drop).map_err(wrong)
}

pub fn key_of(number: u64) -> Vec<u8> {
    format!("key-{number:08}").into_bytes()
}

/// Puts every key once, many at a time.
async fn fill<F: Future<Output = Result<(), Failure>> + Send + 'static>(
    put: impl Fn(Vec<u8>) -> F,
) -> Result<(), Failure> {
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..KEYS {
        tasks.spawn(put(key_of(number)));
    }
    while let Some(done) = tasks.join_next().await {
        done.map_err(wrong)??;
    }
    Ok(())
}

/// The callers; the times of all operations that began in the window, and how long it was.
async fn callers<C, F>(
    work: &Work,
    client: impl Fn(usize) -> C,
    call: impl Fn(C, Vec<u8>, Vec<u8>) -> F + Clone + Send + 'static,
) -> Result<(Vec<Duration>, Duration), Failure>
where
    C: Send + 'static,
    F: Future<Output = (C, Result<bool, Failure>)> + Send + 'static,
{
    let begin = Instant::now();
    let until = begin + Duration::from_millis(work.window_ms);
    let every = Duration::from_millis(work.cell.every_ms);
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..work.cell.callers {
        let (mut client, call, bytes) = (client(number), call.clone(), work.cell.bytes);
        tasks.spawn(async move {
            let mut latencies = Vec::new();
            let mut key = number as u64;
            while Instant::now() < until {
                key = (key + 257) % KEYS;
                let began = Instant::now();
                let (back, result) = call(client, key_of(key), vec![7; bytes]).await;
                client = back;
                if !result? {
                    return Err(wrong("a key that was written is not there"));
                }
                latencies.push(began.elapsed());
                tokio::time::sleep(every.saturating_sub(began.elapsed())).await;
            }
            Ok(latencies)
        });
    }
    let mut latencies = Vec::new();
    while let Some(done) = tasks.join_next().await {
        latencies.append(&mut done.map_err(wrong)??);
    }
    Ok((latencies, begin.elapsed()))
}
